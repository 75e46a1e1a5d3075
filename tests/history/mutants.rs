//! Each rule finds its mutant, and nothing is found in a store without a defect.

use std::sync::Arc;
use std::time::Duration;

use dlm::Deadline;
use dlm::store::{LockStore, MemoryStore};
use dlm_testkit::LONG;
use dlm_testkit::history::{History, Rule, Tolerances, Violation, check};
use dlm_testkit::mutants::{
    LatchMutant, LatchMutation, LockMutant, LockMutation, ModelRow, Receiver, RowMutation,
};
use dlm_testkit::workload::{LatchWorkload, LockWorkload, RowWorkload};

/// Runs of a workload go on for so long, until one shows the defect. A busy machine needs many seeds.
const PATIENCE: Duration = LONG.saturating_mul(3);

/// Longest delay of a wake-up. Short, so that a wake-up that never happens is found soon.
const WAKE: Duration = Duration::from_millis(500);

/// Length of one run.
const LASTS: Duration = Duration::from_millis(500);

/// Runs `workload` with one seed after another until its history breaks `rule`.
#[track_caller]
fn must_break(rule: Rule, mutation: &str, workload: impl Fn(u64) -> History) {
    let by = Deadline::after(PATIENCE);
    for seed in 0.. {
        let history = workload(seed);
        let violations = check(&history, &Tolerances { wake: WAKE, ..Tolerances::default() });
        if let Some((calls, after)) = first_shown(&history, &violations, rule) {
            let ms = after.as_millis();
            println!("{mutation}: rule {rule}, after {calls} calls and {ms} ms of run {}", seed + 1);
            return;
        }
        assert!(!by.passed(), "{mutation}: rule {rule} was not broken, only {:?}", broken(&violations));
    }
}

/// After how many calls, and how long after the first one, the history broke the rule.
fn first_shown(history: &History, violations: &[Violation], rule: Rule) -> Option<(usize, Duration)> {
    let shown = violations
        .iter()
        .filter(|violation| violation.rule == rule)
        .filter_map(|violation| violation.events.iter().map(|event| event.last_seen()).max())
        .min()?;
    let calls = history.events().partition_point(|event| event.called <= shown);
    Some((calls, shown.since(history.events()[0].called)))
}

fn broken(violations: &[Violation]) -> Vec<Rule> {
    let mut rules: Vec<Rule> = violations.iter().map(|violation| violation.rule).collect();
    rules.sort();
    rules.dedup();
    rules
}

fn lock_mutant_breaks(mutation: LockMutation, rule: Rule) {
    must_break(rule, &format!("{mutation:?}"), |seed| {
        let store: Arc<dyn LockStore> = Arc::new(LockMutant::new(Arc::new(MemoryStore::new()), mutation));
        LockWorkload { lasts: LASTS, ..LockWorkload::new(seed) }.run(&store, &Receiver::new())
    });
}

fn permit_mutant_breaks(mutation: LockMutation, rule: Rule) {
    must_break(rule, &format!("{mutation:?} of a semaphore"), |seed| {
        let store: Arc<dyn LockStore> = Arc::new(LockMutant::new(Arc::new(MemoryStore::new()), mutation));
        let workload = LockWorkload { lasts: LASTS, permits: 2, locks: 1, ..LockWorkload::new(seed) };
        workload.run(&store, &Receiver::new())
    });
}

#[test]
fn a_permit_beyond_the_number_of_permits_is_found() {
    permit_mutant_breaks(LockMutation::PermitBeyondSize, Rule::PermitNumbers);
}

#[test]
fn a_permit_that_two_hold_is_found() {
    permit_mutant_breaks(LockMutation::PermitHasTwoHolders, Rule::NoOverlap);
}

#[test]
fn a_permit_that_is_lost_when_its_holder_dies_is_found() {
    permit_mutant_breaks(LockMutation::PermitNeverEnds, Rule::NoPhantomHolder);
}

#[test]
fn a_permit_whose_fence_does_not_rise_is_found() {
    permit_mutant_breaks(LockMutation::PermitKeepsFence, Rule::UniqueFences);
}

#[test]
fn a_number_of_permits_that_is_ignored_is_found() {
    permit_mutant_breaks(LockMutation::IgnoresSize, Rule::PermitNumbers);
}

#[test]
fn permits_that_end_early_and_leases_of_them_that_go_on_are_found() {
    for (mutation, rule) in [
        (LockMutation::RenewsLostLease, Rule::NoStaleRenewal),
        (LockMutation::ReleaseAlwaysTrue, Rule::NoStaleRelease),
        (LockMutation::LeaksRelease, Rule::NoPhantomHolder),
    ] {
        permit_mutant_breaks(mutation, rule);
    }
}

#[test]
fn a_lease_that_ends_early_is_found() {
    lock_mutant_breaks(LockMutation::ExpiresEarly, Rule::Exclusion);
}

#[test]
fn a_lease_that_ends_early_is_found_without_its_fence() {
    lock_mutant_breaks(LockMutation::ExpiresEarly, Rule::NoOverlap);
}

#[test]
fn a_grant_that_is_dated_too_late_is_found() {
    lock_mutant_breaks(LockMutation::DatesGrantLater, Rule::LeaseEnds);
}

#[test]
fn a_release_without_a_check_of_the_owner_is_found() {
    lock_mutant_breaks(LockMutation::ReleasesWithoutOwner, Rule::NoStaleRelease);
}

#[test]
fn a_fence_that_does_not_rise_is_found() {
    lock_mutant_breaks(LockMutation::RepeatsFence, Rule::UniqueFences);
}

#[test]
fn a_fence_that_starts_again_after_an_expired_lease_is_found() {
    lock_mutant_breaks(LockMutation::ForgetsFenceAtExpiry, Rule::RisingFences);
}

#[test]
fn a_renewal_of_a_lost_lease_is_found() {
    lock_mutant_breaks(LockMutation::RenewsLostLease, Rule::NoStaleRenewal);
}

#[test]
fn a_release_that_always_says_true_is_found() {
    lock_mutant_breaks(LockMutation::ReleaseAlwaysTrue, Rule::NoStaleRelease);
}

#[test]
fn a_release_that_does_not_release_is_found() {
    lock_mutant_breaks(LockMutation::LeaksRelease, Rule::NoPhantomHolder);
}

/// Under the empty cell of the release before, after a move to a server whose clock is behind.
#[test]
fn a_grant_that_is_hidden_under_an_older_free_cell_is_found() {
    lock_mutant_breaks(LockMutation::HidesGrant, Rule::Exclusion);
}

#[test]
fn a_grant_whose_fence_is_below_the_one_before_is_found() {
    lock_mutant_breaks(LockMutation::LowersFence, Rule::RisingFences);
}

/// As after a wrap of the record's generation, when a node that was away wins with its older copy.
#[test]
fn an_old_holders_record_that_overwrites_a_newer_one_is_found() {
    lock_mutant_breaks(LockMutation::RestoresOldRecord, Rule::Exclusion);
}

#[test]
fn a_late_renewal_that_shortens_the_lease_is_found() {
    lock_mutant_breaks(LockMutation::ShortensLate, Rule::Exclusion);
}

/// With this defect, clients that use all modes break the rule.
///
/// Some defects show in no history. The contract of modes finds them in [`mode_mutants`](super::mode_mutants):
///
/// | Defect | Why |
/// |---|---|
/// | `IgnoresIntent`, `TurnNeverEnds`, `IgnoresTurn`, `WithdrawalEndsAll`, `NestsInAnything`, `RefusesNested` | somebody waits too long, or has to: a wait may time out. [`starved`](super::starved) shows the first and the third |
/// | `IntentNeverEnds` | the library withdraws its intents; only a writer that was killed leaves one |
/// | `IgnoresWithdrawal`, `GrantKeepsIntent` | the intent ends with its maximum, and rule C allows so much after each writer |
/// | `ConversionKeepsOldRecord` | the library never sends the record before a conversion again |
/// | `BreakEndsAll` | the clients break nobody |
fn mode_mutant_breaks(mutation: LockMutation, rule: Rule) {
    must_break(rule, &format!("{mutation:?}"), |seed| {
        let store: Arc<dyn LockStore> = Arc::new(LockMutant::new(Arc::new(MemoryStore::new()), mutation));
        // Leases of several lengths show what a hold does to others.
        let workload =
            LockWorkload { modes: true, other_ttls: true, lasts: LASTS, ..LockWorkload::new(seed) };
        workload.run(&store, &Receiver::new())
    });
}

#[test]
fn mode_histories_find_a_reader_beside_a_writer() {
    mode_mutant_breaks(LockMutation::SharedBesideExclusive, Rule::NoOverlap);
}

#[test]
fn mode_histories_find_two_holders_that_may_write_later() {
    mode_mutant_breaks(LockMutation::UpdateBesideUpdate, Rule::Exclusion);
}

#[test]
fn mode_histories_find_an_older_version_that_is_let_in_beside_a_reader() {
    mode_mutant_breaks(LockMutation::OlderVersionBesideReader, Rule::NoOverlap);
}

#[test]
fn mode_histories_find_a_step_down_that_begins_no_number() {
    mode_mutant_breaks(LockMutation::StepDownKeepsNumber, Rule::UniqueFences);
}

#[test]
fn mode_histories_find_an_upgrade_that_begins_no_number() {
    mode_mutant_breaks(LockMutation::UpgradeKeepsNumber, Rule::UniqueFences);
}

#[test]
fn mode_histories_find_a_first_reader_with_the_number_of_the_writer_before() {
    mode_mutant_breaks(LockMutation::FirstReaderKeepsNumber, Rule::RisingFences);
}

#[test]
fn mode_histories_find_a_reader_that_joins_others_with_a_number_of_its_own() {
    mode_mutant_breaks(LockMutation::EachReaderBeginsNumber, Rule::Exclusion);
}

#[test]
fn mode_histories_find_a_renewal_that_turns_the_number_back() {
    mode_mutant_breaks(LockMutation::RenewalLowersNumber, Rule::RisingFences);
}

#[test]
fn mode_histories_find_a_conversion_that_keeps_the_end_of_the_hold() {
    mode_mutant_breaks(LockMutation::ConversionKeepsEnd, Rule::Exclusion);
}

#[test]
fn mode_histories_find_a_conversion_in_two_steps() {
    mode_mutant_breaks(LockMutation::ConvertsInTwoSteps, Rule::Exclusion);
}

#[test]
fn mode_histories_find_an_upgrade_beside_a_reader() {
    mode_mutant_breaks(LockMutation::UpgradesBesideReaders, Rule::NoOverlap);
}

#[test]
fn mode_histories_find_a_release_that_ends_all_holds() {
    mode_mutant_breaks(LockMutation::ReleaseEndsAll, Rule::Exclusion);
}

#[test]
fn mode_histories_find_a_renewal_of_another_hold() {
    mode_mutant_breaks(LockMutation::RenewsFirst, Rule::Exclusion);
}

#[test]
fn mode_histories_find_a_dead_reader_that_others_keep_alive() {
    mode_mutant_breaks(LockMutation::RenewsAll, Rule::NoPhantomHolder);
}

#[test]
fn mode_histories_find_a_hold_that_is_shortened_by_others() {
    mode_mutant_breaks(LockMutation::ShortensOthers, Rule::Exclusion);
}

#[test]
fn mode_histories_find_a_released_reader_that_shows_again() {
    mode_mutant_breaks(LockMutation::ShowsReleasedReader, Rule::NoPhantomHolder);
}

#[test]
fn mode_histories_find_two_readers_in_one_slot() {
    mode_mutant_breaks(LockMutation::TwoInOneSlot, Rule::Exclusion);
}

#[test]
fn mode_histories_find_a_turn_that_lets_readers_in_beside_a_writer() {
    mode_mutant_breaks(LockMutation::TurnIgnoresWriter, Rule::NoOverlap);
}

/// Over a store with this defect, locks stay with their processes for as long as a lease lasts.
fn lingering_mutant_breaks(mutation: LockMutation, rule: Rule) {
    let by = Deadline::after(PATIENCE);
    for seed in 0.. {
        let store: Arc<dyn LockStore> = Arc::new(LockMutant::new(Arc::new(MemoryStore::new()), mutation));
        let workload = LockWorkload { lasts: LASTS, ..LockWorkload::new(seed) };
        // With few others that wait for a lock, it stays. With long steps, a lease that was taken again lasts until its end.
        let (pace, linger) = (Some(workload.ttl / 3), workload.ttl);
        let workload = LockWorkload { clients: 4, locks: 4, pace, linger, ..workload };
        let tolerances = Tolerances { linger: workload.linger, ..Tolerances::default() };
        let violations = check(&workload.run(&store, &Receiver::new()), &tolerances);
        if violations.iter().any(|violation| violation.rule == rule) {
            println!("{mutation:?}: rule {rule}, in run {}", seed + 1);
            return;
        }
        assert!(!by.passed(), "{mutation:?}: rule {rule} was not broken, only {:?}", broken(&violations));
    }
}

/// A lease that is taken again counts on the whole record.
#[test]
fn a_record_that_ends_before_a_lease_that_was_taken_again_is_found() {
    lingering_mutant_breaks(LockMutation::EndsBeforeItsTime, Rule::Exclusion);
}

#[test]
fn fences_that_are_reserved_twice_are_found() {
    lingering_mutant_breaks(LockMutation::GivesBlockTwice, Rule::UniqueFences);
}

#[test]
fn a_receiver_that_accepts_stale_writes_is_found() {
    must_break(Rule::NoStaleWrite, "careless receiver", |seed| {
        let store: Arc<dyn LockStore> = Arc::new(MemoryStore::new());
        LockWorkload { lasts: LASTS, ..LockWorkload::new(seed) }.run(&store, &Receiver::careless())
    });
}

fn latch_mutant_breaks(mutation: LatchMutation, rule: Rule) {
    must_break(rule, &format!("{mutation:?}"), |seed| {
        let store: Arc<dyn LockStore> = Arc::new(LatchMutant::new(Arc::new(MemoryStore::new()), mutation));
        LatchWorkload { wait: 3 * WAKE, lasts: LASTS, ..LatchWorkload::new(seed) }.run(&store)
    });
}

#[test]
fn a_step_that_counts_twice_is_found() {
    latch_mutant_breaks(LatchMutation::CountsTwice, Rule::ExactCount);
}

#[test]
fn a_step_that_is_lost_is_found() {
    latch_mutant_breaks(LatchMutation::LosesCount, Rule::ExactCount);
}

#[test]
fn a_latch_that_opens_early_is_found() {
    latch_mutant_breaks(LatchMutation::OpensEarly, Rule::NoEarlyWake);
}

#[test]
fn a_latch_that_never_opens_is_found() {
    latch_mutant_breaks(LatchMutation::NeverOpens, Rule::NoMissedWake);
}

#[test]
fn a_latch_that_is_created_twice_is_found() {
    latch_mutant_breaks(LatchMutation::CreatesTwice, Rule::CreatedOnce);
}

#[test]
fn a_latch_that_expires_early_is_found() {
    latch_mutant_breaks(LatchMutation::ExpiresEarly, Rule::LatchLifetime);
}

#[test]
fn a_latch_that_never_expires_is_found() {
    latch_mutant_breaks(LatchMutation::NeverExpires, Rule::LatchLifetime);
}

#[test]
fn a_count_down_from_before_a_reset_that_counts_after_it_is_found() {
    latch_mutant_breaks(LatchMutation::CountsLate, Rule::FreshIncarnation);
}

#[test]
fn a_reset_that_changes_nothing_is_found() {
    latch_mutant_breaks(LatchMutation::LosesReset, Rule::FreshIncarnation);
}

fn row_mutant_breaks(mutation: RowMutation) {
    must_break(Rule::Linearizable, &format!("{mutation:?}"), |seed| {
        RowWorkload::new(seed).run(&[ModelRow::mutant(mutation), ModelRow::mutant(mutation)])
    });
}

#[test]
fn a_compare_and_set_that_ignores_the_old_value_is_found() {
    row_mutant_breaks(RowMutation::IgnoresOldValue);
}

#[test]
fn an_increment_that_is_lost_is_found() {
    row_mutant_breaks(RowMutation::LosesIncrement);
}

#[test]
fn a_read_of_an_old_value_is_found() {
    row_mutant_breaks(RowMutation::ReadsStale);
}
