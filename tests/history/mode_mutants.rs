//! The contract of modes finds each store that breaks it, and finds nothing in a store without a defect.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use dlm::Deadline;
use dlm::store::{LockStore, MemoryStore, Mode};
use dlm_testkit::contract::{Site, intents, modes, semaphores};
use dlm_testkit::mutants::{LockMutant, LockMutation};
use dlm_testkit::{Call, LONG, Spy};

type Case = fn(&Site);

fn site(mutation: LockMutation) -> Site {
    let store = Arc::new(LockMutant::new(Arc::new(MemoryStore::new()), mutation));
    Site::new("mutant", 200, move || store.clone() as Arc<dyn LockStore>)
}

/// Runs the case over a store with this defect. It must fail, and with a message that contains `why`.
#[track_caller]
fn is_found_by(mutation: LockMutation, case: Case, why: &str) {
    let message = message_of(mutation, case).unwrap_or_else(|| panic!("{mutation:?} was not found"));
    assert!(message.contains(why), "{mutation:?} was found for another reason: {message}");
}

/// As [`is_found_by`], for a case whose threads meet by chance: one of many runs must find the defect.
#[track_caller]
fn is_found_in_time(mutation: LockMutation, case: Case, why: &str) {
    let by = Deadline::after(LONG);
    while !by.passed() {
        if message_of(mutation, case).is_some_and(|message| message.contains(why)) {
            return;
        }
    }
    panic!("{mutation:?} was not found");
}

/// Returns the message with which the case fails, if it does.
fn message_of(mutation: LockMutation, case: Case) -> Option<String> {
    let site = site(mutation);
    let panic = catch_unwind(AssertUnwindSafe(|| case(&site))).err()?;
    let message = panic.downcast_ref::<String>().map(String::as_str);
    Some(message.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default().to_owned())
}

/// Cases that use every call about modes.
const EVERY_CALL: [Case; 7] = [
    modes::modes_go_together_as_the_table_says_and_a_refusal_names_the_holder,
    modes::a_number_begins_with_each_writer_and_with_the_first_reader_after_one,
    modes::a_conversion_changes_the_mode_and_voids_the_earlier_record,
    modes::all_holds_are_listed_and_one_is_broken_alone,
    modes::of_many_who_ask_in_all_modes_those_that_exclude_each_other_never_overlap,
    intents::an_intent_ends_with_the_grant_that_it_waits_for_and_with_no_other,
    intents::who_holds_the_lock_already_reads_on_in_spite_of_an_intent,
];

/// Otherwise a case could fail because of the mutant's other parts. This defect shows only where fences are reserved.
#[test]
fn a_store_that_is_wrapped_passes() {
    EVERY_CALL.iter().for_each(|case| case(&site(LockMutation::GivesBlockTwice)));
}

#[test]
fn a_spy_passes_on_every_call_about_modes_and_records_it() {
    let spy = Spy::on(Arc::new(MemoryStore::new()));
    for case in EVERY_CALL {
        // Each case needs names of its own, because some leave their locks held.
        let opened = spy.clone();
        case(&Site::new("spy", 200, move || opened.clone() as Arc<dyn LockStore>));
    }
    for call in [
        Call::AcquireMode(Mode::Update),
        Call::Convert(Mode::Shared),
        Call::Blocker,
        Call::Holds,
        Call::Announce,
        Call::Withdraw,
    ] {
        assert!(spy.calls_of(call) > 0, "{call:?}");
    }
}

/// The history of a workload does not show it, because its clients do not know who else changed the number.
#[test]
fn a_change_of_the_number_of_permits_that_is_ignored_is_found() {
    let case = semaphores::a_semaphore_that_gets_smaller_grants_nothing_before_higher_permits_are_free;
    is_found_by(LockMutation::IgnoresResize, case, "");
    let case = semaphores::permits_have_numbers_and_are_granted_up_to_the_size;
    is_found_by(LockMutation::PermitBeyondSize, case, "");
    let case = semaphores::another_size_is_refused_and_names_that_in_the_store;
    is_found_by(LockMutation::IgnoresSize, case, "");
}

#[test]
fn a_reader_beside_a_writer_is_found() {
    let case = modes::modes_go_together_as_the_table_says_and_a_refusal_names_the_holder;
    is_found_by(LockMutation::SharedBesideExclusive, case, "was granted beside a hold that excludes it");
    let case = modes::of_many_who_ask_in_all_modes_those_that_exclude_each_other_never_overlap;
    is_found_in_time(LockMutation::SharedBesideExclusive, case, "SHARED was granted beside EXCLUSIVE");
}

#[test]
fn two_holders_that_may_write_later_are_found() {
    let case = modes::a_hold_must_go_together_with_all_others;
    is_found_by(LockMutation::UpdateBesideUpdate, case, "UPDATE of");
}

#[test]
fn an_older_version_that_is_let_in_beside_a_reader_is_found() {
    let case = modes::versions_without_modes_find_the_lock_held_until_the_last_hold_is_released;
    is_found_by(LockMutation::OlderVersionBesideReader, case, "a version without modes got");
}

#[test]
fn a_step_down_that_begins_no_number_is_found() {
    let case = modes::a_conversion_changes_the_mode_and_voids_the_earlier_record;
    is_found_by(LockMutation::StepDownKeepsNumber, case, "EXCLUSIVE to UPDATE begins a number");
}

#[test]
fn an_upgrade_that_begins_no_number_is_found() {
    let case = modes::a_hold_that_changes_its_mode_again_and_again_has_rising_numbers;
    is_found_by(LockMutation::UpgradeKeepsNumber, case, "an upgrade");
}

#[test]
fn a_first_reader_that_begins_no_number_is_found() {
    let case = modes::a_number_begins_with_each_writer_and_with_the_first_reader_after_one;
    is_found_by(LockMutation::FirstReaderKeepsNumber, case, "readers after a writer");
}

#[test]
fn a_reader_that_joins_others_with_a_number_of_its_own_is_found() {
    let case = modes::a_number_begins_with_each_writer_and_with_the_first_reader_after_one;
    is_found_by(LockMutation::EachReaderBeginsNumber, case, "who joins has the epoch of the others");
    let case = modes::a_conversion_changes_the_mode_and_voids_the_earlier_record;
    is_found_by(LockMutation::EachReaderBeginsNumber, case, "who joins has the new epoch");
}

#[test]
fn reserved_fences_that_readers_get_too_are_found() {
    let case = modes::readers_come_above_all_fences_that_a_writer_has_reserved;
    is_found_by(LockMutation::GivesBlockTwice, case, "after Grant");
}

#[test]
fn an_intent_that_is_ignored_is_found() {
    let case = intents::while_a_process_waits_exclusively_no_reader_is_let_in_and_holders_go_on;
    is_found_by(LockMutation::IgnoresIntent, case, "in spite of an intent");
}

#[test]
fn an_intent_that_never_ends_is_found() {
    let case = intents::an_intent_ends_at_its_end_and_lasts_no_longer_than_its_maximum;
    is_found_by(LockMutation::IntentNeverEnds, case, "has not ended: an intent");
}

#[test]
fn an_intent_that_cannot_be_withdrawn_is_found() {
    let case = intents::an_intent_ends_when_its_own_process_withdraws_it;
    is_found_by(LockMutation::IgnoresWithdrawal, case, "second");
}

#[test]
fn a_withdrawal_that_ends_the_intents_of_others_is_found() {
    let case = intents::an_intent_ends_when_its_own_process_withdraws_it;
    is_found_by(LockMutation::WithdrawalEndsAll, case, "ended the intent of another process");
}

#[test]
fn an_intent_that_outlasts_its_grant_is_found() {
    let case = intents::an_intent_ends_with_the_grant_that_it_waits_for_and_with_no_other;
    is_found_by(LockMutation::GrantKeepsIntent, case, "should allow SHARED");
}

#[test]
fn a_holder_that_waits_for_itself_is_found() {
    let case = intents::who_holds_the_lock_already_reads_on_in_spite_of_an_intent;
    is_found_by(LockMutation::RefusesNested, case, "waits for itself");
}

#[test]
fn a_record_that_holds_nothing_and_passes_an_intent_is_found() {
    let case = intents::who_holds_the_lock_already_reads_on_in_spite_of_an_intent;
    is_found_by(LockMutation::NestsInAnything, case, "in spite of an intent");
}

#[test]
fn a_turn_that_lets_readers_in_beside_a_writer_is_found() {
    let case = intents::a_turn_lets_nobody_in_beside_a_writer;
    is_found_by(LockMutation::TurnIgnoresWriter, case, "beside a writer, because of its turn");
}

#[test]
fn a_turn_that_is_ignored_is_found() {
    let case = intents::a_turn_lets_readers_pass_intents_until_its_end;
    is_found_by(LockMutation::IgnoresTurn, case, "an intent stood in the way of a turn");
}

#[test]
fn a_turn_that_never_ends_is_found() {
    let case = intents::a_turn_lets_readers_pass_intents_until_its_end;
    is_found_by(LockMutation::TurnNeverEnds, case, "has not ended: a turn");
}

#[test]
fn a_record_that_a_conversion_leaves_valid_is_found() {
    let case = modes::a_conversion_changes_the_mode_and_voids_the_earlier_record;
    is_found_by(LockMutation::ConversionKeepsOldRecord, case, "a void record was renewed");
}

#[test]
fn a_conversion_that_keeps_the_end_of_the_hold_is_found() {
    let case = modes::a_converted_hold_lasts_for_its_new_ttl;
    is_found_by(LockMutation::ConversionKeepsEnd, case, "it ended with its first TTL");
}

#[test]
fn a_conversion_in_two_steps_is_found() {
    let case = modes::nobody_gets_the_lock_during_a_conversion;
    is_found_by(LockMutation::ConvertsInTwoSteps, case, "NotOurs");
}

#[test]
fn an_upgrade_beside_a_reader_is_found() {
    let case = modes::an_upgrade_is_refused_while_a_reader_is_there_and_leaves_the_hold_as_it_was;
    is_found_by(LockMutation::UpgradesBesideReaders, case, "Granted");
    let case = modes::of_many_who_ask_in_all_modes_those_that_exclude_each_other_never_overlap;
    is_found_in_time(LockMutation::UpgradesBesideReaders, case, "EXCLUSIVE was granted beside SHARED");
}

#[test]
fn a_release_that_ends_all_holds_is_found() {
    let case = modes::each_of_many_readers_renews_and_releases_alone;
    is_found_by(LockMutation::ReleaseEndsAll, case, "left: []");
}

#[test]
fn a_break_that_ends_all_holds_is_found() {
    let case = modes::all_holds_are_listed_and_one_is_broken_alone;
    is_found_by(LockMutation::BreakEndsAll, case, "left: []");
}

#[test]
fn a_renewal_of_another_hold_is_found() {
    let case = modes::a_renewed_reader_outlives_its_first_ttl_beside_others;
    is_found_by(LockMutation::RenewsFirst, case, "it ended with its first TTL");
    let case = modes::of_many_renewals_of_all_modes_each_has_its_own_answer;
    is_found_by(LockMutation::RenewsFirst, case, "another hold was renewed");
}

#[test]
fn a_dead_reader_that_others_keep_alive_is_found() {
    let case = modes::a_dead_reader_ends_with_its_own_ttl_while_others_go_on;
    is_found_by(LockMutation::RenewsAll, case, "has not ended: the hold of a dead reader");
    let case = modes::of_many_renewals_of_all_modes_each_has_its_own_answer;
    is_found_by(LockMutation::RenewsAll, case, "another hold was renewed");
}

#[test]
fn a_hold_that_is_shortened_by_others_is_found() {
    let case = modes::a_long_reader_is_not_shortened_by_short_ones;
    is_found_by(LockMutation::ShortensOthers, case, "it ended with the short one");
}
