//! The simulation finds each mutant of the testkit.
#![cfg(dlm_simulation)]

use std::sync::Arc;

use dlm::store::LockStore;
use dlm_simulation::world::{Subject, World};
use dlm_testkit::history::Rule;
use dlm_testkit::mutants::{LatchMutant, LatchMutation, LockMutant, LockMutation};

/// Worlds in which a mutant is looked for.
const WORLDS: u64 = 24;

/// Runs some worlds on the store that `wrap` makes. One at least must break `rule`.
#[track_caller]
fn is_found(
    what: &str,
    rule: Rule,
    subject: Subject,
    wrap: impl Fn(Arc<dyn LockStore>) -> Arc<dyn LockStore> + Clone + 'static,
) {
    let mut worlds = Vec::new();
    for seed in 0..WORLDS {
        let run = World::draw(seed, subject).run_with(wrap.clone());
        assert!(run.threads.is_empty(), "{what}: world {seed}: {:?}", run.threads);
        worlds.extend(run.violations.iter().any(|violation| violation.rule == rule).then_some(seed));
    }
    println!("{what}: rule {rule} was broken in {} of {WORLDS} worlds", worlds.len());
    assert!(!worlds.is_empty(), "{what}: no world broke rule {rule}");
}

fn lock_mutant_is_found(mutation: LockMutation, rule: Rule) {
    is_found(&format!("{mutation:?}"), rule, Subject::Locks, move |store| {
        Arc::new(LockMutant::new(store, mutation))
    });
}

fn mode_mutant_is_found(mutation: LockMutation, rule: Rule) {
    mode_mutant_is_found_in(Subject::Modes, mutation, rule);
}

fn mode_mutant_is_found_in(subject: Subject, mutation: LockMutation, rule: Rule) {
    is_found(&format!("{subject:?} {mutation:?}"), rule, subject, move |store| {
        Arc::new(LockMutant::new(store, mutation))
    });
}

fn latch_mutant_is_found(mutation: LatchMutation, rule: Rule) {
    is_found(&format!("{mutation:?}"), rule, Subject::Latches, move |store| {
        Arc::new(LatchMutant::new(store, mutation))
    });
}

#[test]
fn a_lease_that_ends_early_is_found() {
    lock_mutant_is_found(LockMutation::ExpiresEarly, Rule::Exclusion);
}

#[test]
fn a_lease_that_ends_early_is_found_without_its_fence() {
    lock_mutant_is_found(LockMutation::ExpiresEarly, Rule::NoOverlap);
}

#[test]
fn a_grant_that_is_dated_too_late_is_found() {
    lock_mutant_is_found(LockMutation::DatesGrantLater, Rule::LeaseEnds);
}

#[test]
fn a_release_without_a_check_of_the_owner_is_found() {
    lock_mutant_is_found(LockMutation::ReleasesWithoutOwner, Rule::NoStaleRelease);
}

#[test]
fn a_fence_that_does_not_rise_is_found() {
    lock_mutant_is_found(LockMutation::RepeatsFence, Rule::UniqueFences);
}

#[test]
fn a_fence_that_starts_again_after_an_expired_lease_is_found() {
    lock_mutant_is_found(LockMutation::ForgetsFenceAtExpiry, Rule::RisingFences);
}

#[test]
fn a_renewal_of_a_lost_lease_is_found() {
    lock_mutant_is_found(LockMutation::RenewsLostLease, Rule::NoStaleRenewal);
}

#[test]
fn a_release_that_always_says_true_is_found() {
    lock_mutant_is_found(LockMutation::ReleaseAlwaysTrue, Rule::NoStaleRelease);
}

#[test]
fn a_release_that_does_not_release_is_found() {
    lock_mutant_is_found(LockMutation::LeaksRelease, Rule::NoPhantomHolder);
}

/// Under the empty cell of the release before, after a move to a server whose clock is behind.
#[test]
fn a_grant_that_is_hidden_under_an_older_free_cell_is_found() {
    lock_mutant_is_found(LockMutation::HidesGrant, Rule::Exclusion);
}

#[test]
fn a_grant_whose_fence_is_below_the_one_before_is_found() {
    lock_mutant_is_found(LockMutation::LowersFence, Rule::RisingFences);
}

/// As after a wrap of the record's generation, when a node that was away wins with its older copy.
#[test]
fn an_old_holders_record_that_overwrites_a_newer_one_is_found() {
    lock_mutant_is_found(LockMutation::RestoresOldRecord, Rule::Exclusion);
}

#[test]
fn a_late_renewal_that_shortens_the_lease_is_found() {
    lock_mutant_is_found(LockMutation::ShortensLate, Rule::Exclusion);
}

#[test]
fn a_reader_beside_a_writer_is_found() {
    mode_mutant_is_found(LockMutation::SharedBesideExclusive, Rule::NoOverlap);
}

#[test]
fn mutants_of_modes_are_found_on_a_server_whose_messages_are_lost() {
    for (mutation, rule) in [
        (LockMutation::SharedBesideExclusive, Rule::NoOverlap),
        (LockMutation::StepDownKeepsNumber, Rule::UniqueFences),
        (LockMutation::ConvertsInTwoSteps, Rule::Exclusion),
        (LockMutation::TurnIgnoresWriter, Rule::NoOverlap),
    ] {
        mode_mutant_is_found_in(Subject::RemoteModes, mutation, rule);
    }
}

#[test]
fn a_writer_of_an_older_version_beside_readers_is_found() {
    mode_mutant_is_found(LockMutation::OlderVersionBesideReader, Rule::NoOverlap);
}

#[test]
fn a_step_down_that_begins_no_number_is_found() {
    mode_mutant_is_found(LockMutation::StepDownKeepsNumber, Rule::UniqueFences);
}

#[test]
fn a_renewal_that_turns_the_number_back_is_found() {
    mode_mutant_is_found(LockMutation::RenewalLowersNumber, Rule::RisingFences);
}

#[test]
fn a_conversion_in_two_steps_is_found() {
    mode_mutant_is_found(LockMutation::ConvertsInTwoSteps, Rule::Exclusion);
}

#[test]
fn a_dead_reader_that_others_keep_alive_is_found() {
    mode_mutant_is_found(LockMutation::RenewsAll, Rule::NoPhantomHolder);
}

#[test]
fn a_turn_that_lets_readers_in_beside_a_writer_is_found() {
    mode_mutant_is_found(LockMutation::TurnIgnoresWriter, Rule::NoOverlap);
}

#[test]
fn a_step_that_counts_twice_is_found() {
    latch_mutant_is_found(LatchMutation::CountsTwice, Rule::ExactCount);
}

#[test]
fn a_step_that_is_lost_is_found() {
    latch_mutant_is_found(LatchMutation::LosesCount, Rule::ExactCount);
}

#[test]
fn a_latch_that_opens_early_is_found() {
    latch_mutant_is_found(LatchMutation::OpensEarly, Rule::NoEarlyWake);
}

#[test]
fn a_latch_that_never_opens_is_found() {
    latch_mutant_is_found(LatchMutation::NeverOpens, Rule::NoMissedWake);
}

#[test]
fn a_latch_that_is_created_twice_is_found() {
    latch_mutant_is_found(LatchMutation::CreatesTwice, Rule::CreatedOnce);
}

#[test]
fn a_latch_that_expires_early_is_found() {
    latch_mutant_is_found(LatchMutation::ExpiresEarly, Rule::LatchLifetime);
}

#[test]
fn a_latch_that_never_expires_is_found() {
    latch_mutant_is_found(LatchMutation::NeverExpires, Rule::LatchLifetime);
}
