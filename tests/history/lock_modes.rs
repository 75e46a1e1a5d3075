//! The rules of locks where holds are shared or for update: a history that breaks each, and one beside it that does not.

use std::time::Duration;

use dlm::Mode::{self, Exclusive, Shared, Update};
use dlm_testkit::history::{Answer, CallId, Event, History, LockHistory, Operation, Rule, Tolerances, check};
use dlm_testkit::mutants::Receiver;

use rustix::time::{ClockId, clock_gettime};

use crate::sketch::{EXACT, Sketch, TTL, at, ms};

const MODES: [Mode; 3] = [Exclusive, Shared, Update];

fn failed() -> Answer {
    Answer::Failed { code: "CONNECTION_ERROR".to_owned() }
}

/// A lease that was acquired exclusively, and what became of it.
fn converted(to: Mode, number: u64) -> (Sketch, CallId, CallId) {
    let mut sketch = Sketch::default();
    let old = sketch.grant("A", 0..10, 1);
    let new = sketch.convert("A", 20..30, &old, to, number);
    (sketch, old, new)
}

#[test]
fn one_number_of_two_grants_breaks_rule_u_unless_both_are_members() {
    let broken = |modes: [Mode; 2]| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant_as("A", 0..1, modes[0], 7);
        sketch.release("A", 5..6, &lease, Answer::Ok);
        // The calls overlap, so that only the equal numbers are wrong.
        sketch.grant_as("B", 0..10, modes[1], 7);
        sketch.broken()
    };
    for a in MODES {
        for b in MODES {
            let allowed = a != Exclusive && b != Exclusive;
            assert_eq!(broken([a, b]).is_empty(), allowed, "{a} and {b}");
            assert!(allowed || broken([a, b]) == [Rule::UniqueFences], "{a} and {b}");
        }
    }
}

#[test]
fn an_exclusive_grant_among_members_with_its_number_breaks_rule_u() {
    let broken = |number: u64| {
        let mut sketch = Sketch::default();
        for client in ["A", "B"] {
            let lease = sketch.grant_as(client, 0..1, Shared, 7);
            sketch.release(client, 2..3, &lease, Answer::Ok);
        }
        sketch.grant("C", 0..10, number);
        sketch.broken()
    };
    assert_eq!(broken(7), [Rule::UniqueFences]);
    assert_eq!(broken(8), []);
}

#[test]
fn the_number_of_a_member_that_falls_breaks_rule_b_and_an_exclusive_one_must_rise() {
    let broken = |modes: [Mode; 2], number: u64| {
        let mut sketch = Sketch::default();
        sketch.grant_as("A", 0..10, modes[0], 7);
        // The first holder lives no longer than to 100.
        sketch.grant_as("B", 95..105, modes[1], number);
        sketch.broken()
    };
    for modes in [[Shared, Shared], [Shared, Update], [Update, Shared]] {
        assert!(broken(modes, 6).contains(&Rule::RisingFences), "{modes:?}");
        assert_eq!(broken(modes, 7), [], "{modes:?}");
        assert_eq!(broken(modes, 8), [], "{modes:?}");
    }
    for modes in [[Exclusive, Shared], [Update, Exclusive]] {
        assert!(broken(modes, 7).contains(&Rule::RisingFences), "{modes:?}");
        assert_eq!(broken(modes, 8), [], "{modes:?}");
    }
}

#[test]
fn a_member_with_the_number_of_an_exclusive_grant_before_breaks_rule_b_also_if_it_joins_others() {
    let broken = |exclusive: Option<u64>| {
        let mut sketch = Sketch::default();
        sketch.grant_as("A", 0..5, Shared, 7);
        if let Some(number) = exclusive {
            sketch.grant("B", 0..10, number);
        }
        sketch.grant_as("C", 11..12, Shared, 7);
        sketch.broken()
    };
    assert!(broken(Some(7)).contains(&Rule::RisingFences));
    assert!(!broken(Some(6)).contains(&Rule::RisingFences));
    assert_eq!(broken(None), []);
}

#[test]
fn a_step_down_or_up_that_does_not_raise_the_number_breaks_rule_b() {
    for mode in [Shared, Update] {
        let broken = |number: u64| converted(mode, number).0.broken();
        assert!(broken(1).contains(&Rule::RisingFences), "{mode}");
        assert_eq!(broken(2), [], "{mode}");
    }
    let broken = |number: u64| {
        let (mut sketch, _, lease) = converted(Update, 2);
        sketch.convert("A", 40..50, &lease, Exclusive, number);
        sketch.broken()
    };
    assert!(broken(2).contains(&Rule::RisingFences));
    assert_eq!(broken(3), []);
}

#[test]
fn a_conversion_from_update_to_shared_that_changes_the_number_breaks_rule_b() {
    let broken = |number: u64| {
        let (mut sketch, _, lease) = converted(Update, 5);
        sketch.convert("A", 40..50, &lease, Shared, number);
        sketch.broken()
    };
    assert!(broken(4).contains(&Rule::RisingFences));
    assert_eq!(broken(5), []);
    assert_eq!(broken(6), [Rule::RisingFences]);
}

#[test]
fn a_member_that_has_nobody_to_join_breaks_rule_b_with_an_old_number() {
    let broken = |asked: u64, number: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant_as("A", 0..10, Shared, 7);
        sketch.release("A", 20..30, &lease, Answer::Ok);
        sketch.grant_as("B", asked..asked + 5, Shared, number);
        sketch.broken()
    };
    assert_eq!(broken(31, 7), [Rule::RisingFences]);
    assert_eq!(broken(30, 7), [], "it may have been there before the release");
    assert_eq!(broken(31, 8), []);
}

/// The first member may be over long before: others joined while it lived, and again others while those did.
#[test]
fn a_member_may_join_one_that_joined_another_or_whose_answer_was_lost() {
    let broken = |between: Option<(std::ops::Range<u64>, Mode, Answer)>| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant_as("A", 0..10, Shared, 7);
        if let Some((times, mode, answer)) = between {
            sketch.acquire_as("B", times, mode, answer);
        }
        sketch.release("A", 20..30, &lease, Answer::Ok);
        sketch.grant_as("C", 60..65, Shared, 7);
        sketch.broken()
    };
    let joined = |number| Answer::Granted { fence: Some(number), ends: at(5) };
    assert_eq!(broken(None), [Rule::RisingFences]);
    assert_eq!(broken(Some((15..18, Shared, joined(7)))), []);
    assert_eq!(broken(Some((15..18, Update, Answer::InDoubt))), []);
    assert_eq!(broken(Some((15..18, Exclusive, failed()))), [Rule::RisingFences], "it is no member");
    // It asks after the last one, which is why it cannot have been joined.
    assert_eq!(broken(Some((66..67, Shared, joined(7)))), [Rule::RisingFences]);
}

/// As in HBase, where what stands for readers stays for a while when they have died.
#[test]
fn an_epoch_may_be_joined_for_as_long_after_its_readers_as_the_store_says() {
    let is_broken = |epoch: Duration| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant_as("A", 0..10, Shared, 7);
        sketch.release("A", 20..30, &lease, Answer::Ok);
        sketch.grant_as("C", 60..65, Shared, 7);
        !check(&sketch.history(), &Tolerances { epoch, ..EXACT }).is_empty()
    };
    assert!(is_broken(Duration::ZERO) && is_broken(ms(29)));
    assert!(!is_broken(ms(30)));
}

/// All pairs of modes, of holds that overlap.
#[test]
fn holds_that_overlap_break_rule_a2_unless_their_modes_are_compatible() {
    let broken = |modes: [Mode; 2], second: u64| {
        let mut sketch = Sketch::default();
        for (mode, asked) in modes.into_iter().zip([0, second]) {
            let answer = Answer::Granted { fence: None, ends: at(asked) };
            sketch.acquire_as(&format!("client-{asked}"), asked..asked + 10, mode, answer);
        }
        sketch.broken()
    };
    for a in MODES {
        for b in MODES {
            let expected: &[Rule] = if a.is_compatible_with(b) { &[] } else { &[Rule::NoOverlap] };
            assert_eq!(broken([a, b], 80), expected, "{a} and {b}");
            assert_eq!(broken([a, b], 90), [], "{a} and {b}");
        }
    }
}

/// A shared hold that lasts longer must not hide the hold for update, nor the other way round.
#[test]
fn rule_a2_sees_the_hold_in_the_way_behind_a_longer_one_of_another_mode() {
    let broken = |holds: &[(u64, Mode)], next: Mode| {
        let mut sketch = Sketch::default();
        for (asked, mode) in holds {
            let answer = Answer::Granted { fence: None, ends: at(*asked) };
            sketch.acquire_as(&format!("client-{asked}"), *asked..*asked + 1, *mode, answer);
        }
        let answer = Answer::Granted { fence: None, ends: at(60) };
        sketch.acquire_as("next", 60..70, next, answer);
        sketch.broken()
    };
    assert_eq!(broken(&[(0, Update), (10, Shared)], Update), [Rule::NoOverlap]);
    assert_eq!(broken(&[(0, Shared), (10, Update), (20, Shared)], Shared), []);
    assert_eq!(broken(&[(0, Shared), (10, Update)], Exclusive), [Rule::NoOverlap]);
    assert_eq!(broken(&[(0, Shared), (10, Shared)], Update), []);
}

#[test]
fn a_grant_with_a_higher_number_while_a_lower_one_surely_lives_breaks_rule_a_in_every_mode() {
    let broken = |modes: [Mode; 2], numbers: [u64; 2], granted: u64| {
        let mut sketch = Sketch::default();
        sketch.grant_as("A", 0..10, modes[0], numbers[0]);
        sketch.grant_as("B", 50..granted, modes[1], numbers[1]);
        sketch.broken()
    };
    for a in MODES {
        for b in MODES {
            assert!(broken([a, b], [1, 2], 99).contains(&Rule::Exclusion), "{a} and {b}");
            assert_eq!(broken([a, b], [1, 2], 100), [], "{a} and {b}");
        }
    }
    assert_eq!(broken([Shared, Shared], [1, 2], 99), [Rule::Exclusion], "live members have one number");
    assert_eq!(broken([Shared, Shared], [1, 1], 99), []);
}

#[test]
fn two_holds_for_update_with_one_number_that_overlap_break_rules_a_and_a2() {
    let broken = |modes: [Mode; 2], granted: u64| {
        let mut sketch = Sketch::default();
        sketch.grant_as("A", 0..10, modes[0], 7);
        sketch.grant_as("B", 50..granted, modes[1], 7);
        sketch.broken()
    };
    assert_eq!(broken([Update, Update], 99), [Rule::Exclusion, Rule::NoOverlap]);
    assert_eq!(broken([Update, Update], 100), []);
    assert_eq!(broken([Update, Shared], 99), []);
}

#[test]
fn a_lease_is_over_when_a_conversion_is_called_that_succeeds_or_is_in_doubt() {
    let broken = |answer: Answer, called: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant_as("A", 0..10, Update, 7);
        sketch.ask_to_convert("A", called..called + 2, &lease, Shared, answer);
        sketch.grant_as("B", 40..50, Update, 7);
        sketch.broken()
    };
    let granted = || Answer::Granted { fence: Some(7), ends: at(20) };
    for ends in [granted(), Answer::InDoubt, Answer::Unknown] {
        assert_eq!(broken(ends.clone(), 50), [], "{ends:?}");
        assert_eq!(broken(ends.clone(), 51), [Rule::Exclusion, Rule::NoOverlap], "{ends:?}");
    }
    assert_eq!(broken(failed(), 20), [Rule::Exclusion, Rule::NoOverlap]);
    let refused = |client: &str| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant_as("A", 0..10, Update, 7);
        // It is in the way of the upgrade.
        sketch.grant_as("reader", 11..12, Shared, 7);
        sketch.ask_to_convert("A", 20..22, &lease, Exclusive, Answer::No);
        sketch.grant_as(client, 40..50, if client == "B" { Update } else { Shared }, 7);
        sketch.broken()
    };
    assert_eq!(refused("B"), [Rule::Exclusion, Rule::NoOverlap]);
    assert_eq!(refused("another reader"), []);
}

#[test]
fn a_refused_lock_needs_a_holder_of_a_mode_that_excludes_the_one_asked_for() {
    let broken = |held: Mode, asked: Mode| {
        let mut sketch = Sketch::default();
        sketch.grant_as("A", 0..10, held, 1);
        sketch.acquire_as("B", 50..60, asked, Answer::No);
        sketch.broken()
    };
    for held in MODES {
        for asked in MODES {
            let expected: &[Rule] =
                if held.is_compatible_with(asked) { &[Rule::NoPhantomHolder] } else { &[] };
            assert_eq!(broken(held, asked), expected, "{asked} refused beside {held}");
        }
    }
}

#[test]
fn a_step_down_may_be_in_the_way_in_its_old_mode_until_it_returned_and_in_its_new_one_from_its_call() {
    let broken = |answer: Answer, asked: Mode, times: std::ops::Range<u64>| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.ask_to_convert("A", 20..30, &lease, Shared, answer);
        sketch.acquire_as("B", times, asked, Answer::No);
        sketch.broken()
    };
    let granted = || Answer::Granted { fence: Some(2), ends: at(20) };
    assert_eq!(broken(granted(), Shared, 30..35), []);
    assert_eq!(broken(granted(), Shared, 31..35), [Rule::NoPhantomHolder]);
    assert_eq!(broken(granted(), Exclusive, 130..135), []);
    assert_eq!(broken(granted(), Exclusive, 131..135), [Rule::NoPhantomHolder]);
    // The old lease may live to its end, and the new one as long as the request may be late.
    assert_eq!(broken(Answer::InDoubt, Shared, 110..115), []);
    assert_eq!(broken(Answer::InDoubt, Shared, 111..115), [Rule::NoPhantomHolder]);
    assert_eq!(broken(Answer::InDoubt, Exclusive, 1130..1135), []);
    assert_eq!(broken(Answer::InDoubt, Exclusive, 1131..1135), [Rule::NoPhantomHolder]);
}

/// The library says then that the lease is lost, and does not ask the store.
#[test]
fn a_renewal_after_a_conversion_in_doubt_does_not_say_that_others_find_the_lock_free() {
    let broken = |changed: Answer, asked: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.ask_to_convert("A", 20..30, &lease, Shared, changed);
        let renewal = Operation::Renew { lease: lease.clone(), ttl: TTL };
        sketch.add("A", 40..41, renewal, Answer::Lost);
        sketch.acquire_as("B", asked..asked + 1, Shared, Answer::No);
        sketch.broken()
    };
    // The renewal may have written the record all the same.
    assert_eq!(broken(Answer::InDoubt, 141), []);
    assert_eq!(broken(Answer::InDoubt, 142), [Rule::NoPhantomHolder]);
    assert_eq!(broken(failed(), 41), []);
    assert_eq!(broken(failed(), 42), [Rule::NoPhantomHolder], "it is the word of the store");
}

/// The store keeps the record for both, by its own clock.
#[test]
fn the_time_for_which_a_lock_stays_is_as_long_as_the_stores_clock_is_slow() {
    let broken = |asked: u64| {
        let mut sketch = Sketch::default();
        sketch.grant("A", 0..10, 1);
        sketch.acquire("B", asked..asked + 1, Answer::No);
        let tolerances = Tolerances { clock_rate: 0.5, linger: ms(40), ..EXACT };
        let violations = check(&sketch.history(), &tolerances);
        violations.iter().map(|violation| violation.rule).collect::<Vec<_>>()
    };
    assert_eq!(broken(220), []);
    assert_eq!(broken(221), [Rule::NoPhantomHolder]);
}

/// The library finds a lease lost when it is over by its own clock, and does not ask the store then.
#[test]
fn a_conversion_of_a_lost_lease_does_not_say_that_others_find_the_lock_free() {
    let broken = |asked: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.ask_to_convert("A", 95..96, &lease, Shared, Answer::Lost);
        // What the conversion itself may have made does not exclude this one.
        sketch.acquire_as("B", asked..asked + 1, Shared, Answer::No);
        sketch.broken()
    };
    assert_eq!(broken(110), []);
    assert_eq!(broken(111), [Rule::NoPhantomHolder]);
}

#[test]
fn a_refused_upgrade_needs_another_holder_than_the_upgrader() {
    let broken = |reader: Option<u64>| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant_as("A", 0..10, Update, 7);
        if let Some(released) = reader {
            let other = sketch.grant_as("B", 11..12, Shared, 7);
            sketch.release("B", released..released + 1, &other, Answer::Ok);
        }
        sketch.ask_to_convert("A", 50..60, &lease, Exclusive, Answer::No);
        sketch.broken()
    };
    assert_eq!(broken(None), [Rule::NoPhantomHolder]);
    assert_eq!(broken(Some(49)), []);
    assert_eq!(broken(Some(48)), [Rule::NoPhantomHolder]);
}

/// The upgrader's own lease lasts longest, and is no reason. That of another is, also if it lasts less long.
#[test]
fn the_upgraders_own_hold_does_not_hide_that_of_another() {
    let broken = |third: Option<u64>, asked: u64| {
        let mut sketch = Sketch::default();
        sketch.grant_as("first", 0..1, Shared, 7);
        sketch.grant_as("second", 2..3, Shared, 7);
        let lease = sketch.grant_as("A", 4..10, Update, 7);
        sketch.renew("A", 90..95, &lease);
        if let Some(released) = third {
            let lease = sketch.grant_as("third", 11..12, Shared, 7);
            sketch.release("third", released..released + 1, &lease, Answer::Ok);
        }
        sketch.ask_to_convert("A", asked..asked + 1, &lease, Exclusive, Answer::No);
        sketch.broken()
    };
    assert_eq!(broken(None, 103), []);
    assert_eq!(broken(None, 104), [Rule::NoPhantomHolder]);
    assert_eq!(broken(Some(20), 103), [], "one that is over does not hide one that is not");
}

#[test]
fn a_step_down_is_never_refused() {
    let broken = |answer: Answer| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.add("W", 15..16, Operation::Acquire { ttl: TTL, wait: ms(1), mode: Exclusive }, Answer::No);
        sketch.ask_to_convert("A", 20..30, &lease, Shared, answer);
        sketch.broken()
    };
    assert_eq!(broken(Answer::No), [Rule::NoPhantomHolder], "a writer that waits is no reason");
    assert_eq!(broken(Answer::Lost), []);
}

/// An acquire, or an upgrade, that waits for readers.
fn writer(upgrade: bool, wait: Duration, times: std::ops::Range<u64>, answer: Answer) -> Sketch {
    let mut sketch = Sketch::default();
    let reader = sketch.grant_as("reader", 0..1, Shared, 7);
    let lease = upgrade.then(|| sketch.grant_as("W", 2..3, Update, 7));
    let operation = match &lease {
        Some(lease) => Operation::Convert { lease: lease.clone(), mode: Exclusive, ttl: TTL, wait },
        None => Operation::Acquire { ttl: TTL, wait, mode: Exclusive },
    };
    sketch.add("W", times, operation, answer);
    sketch.release("reader", 30..31, &reader, Answer::Ok);
    if let Some(lease) = lease {
        sketch.release("W", 30..31, &lease, Answer::Ok);
    }
    sketch
}

#[test]
fn a_member_may_be_refused_for_a_writer_that_waits_and_a_while_after() {
    let broken = |upgrade: bool, wait: u64, mode: Mode, asked: u64| {
        let mut sketch = writer(upgrade, ms(wait), 10..20, Answer::No);
        sketch.acquire_as("B", asked..asked + 1, mode, Answer::No);
        sketch.broken()
    };
    for upgrade in [false, true] {
        for mode in [Shared, Update] {
            assert_eq!(broken(upgrade, 10, mode, 50), [], "{mode}, upgrade: {upgrade}");
            assert_eq!(broken(upgrade, 10, mode, 51), [Rule::NoPhantomHolder], "{mode}, upgrade: {upgrade}");
        }
        assert_eq!(broken(upgrade, 10, Shared, 8), [Rule::NoPhantomHolder], "before the writer");
        assert_eq!(broken(upgrade, 0, Shared, 15), [Rule::NoPhantomHolder], "it does not wait");
        assert_eq!(
            broken(upgrade, 10, Exclusive, 50),
            [Rule::NoPhantomHolder],
            "it is no reason for a writer"
        );
    }
}

/// It may have waited to the end, and have been killed then.
#[test]
fn a_writer_that_did_not_return_may_have_waited_for_as_long_as_it_wanted() {
    let broken = |asked: u64| {
        let mut sketch = Sketch::default();
        let operation = Operation::Acquire { ttl: ms(5), wait: ms(500), mode: Exclusive };
        sketch.add("W", 10..10, operation, Answer::Unknown);
        sketch.acquire_as("B", asked..asked + 1, Shared, Answer::No);
        sketch.broken()
    };
    // The wait, the latest effect of a request and the life of an intent.
    assert_eq!(broken(10 + 500 + 1000 + 30), []);
    assert_eq!(broken(10 + 500 + 1000 + 31), [Rule::NoPhantomHolder]);
}

#[test]
fn by_default_an_intent_lives_for_three_seconds() {
    assert_eq!(Tolerances::default().intent, ms(3000));
}

#[test]
fn a_member_that_succeeds_after_a_higher_number_was_granted_breaks_rules_d_e_and_f() {
    // The first lease is over at 100.
    let sketch = |numbers: [u64; 2]| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant_as("A", 0..10, Shared, numbers[0]);
        sketch.release("A", 20..30, &lease, Answer::InDoubt);
        sketch.grant_as("B", 40..50, Shared, numbers[1]);
        (sketch, lease)
    };
    let released = |numbers, called: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant_as("A", 0..10, Shared, 1);
        sketch.grant_as("B", 90..100, Shared, numbers);
        sketch.release("A", called..called + 1, &lease, Answer::Ok);
        sketch.broken()
    };
    assert_eq!(released(2, 101), [Rule::NoStaleRelease]);
    assert_eq!(released(2, 100), []);
    assert_eq!(released(1, 101), [], "readers of one epoch");
    let renewed = |numbers, called: u64| {
        let (mut sketch, lease) = sketch(numbers);
        sketch.renew("A", called..called + 1, &lease);
        sketch.broken()
    };
    assert_eq!(renewed([1, 2], 51), [Rule::NoStaleRenewal]);
    assert_eq!(renewed([1, 2], 50), []);
    assert_eq!(renewed([1, 1], 51), []);
    let checked = |numbers| {
        let (mut sketch, lease) = sketch(numbers);
        sketch.check("A", 51..52, &lease, Answer::Ok);
        sketch.broken()
    };
    assert_eq!(checked([1, 2]), [Rule::LeaseEnds]);
    assert_eq!(checked([1, 1]), []);
    let converted = |number, called: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant_as("A", 0..10, Update, 1);
        let higher = sketch.grant_as("B", 90..100, Shared, number);
        sketch.release("B", 100..101, &higher, Answer::Ok);
        sketch.convert("A", called..called + 10, &lease, Exclusive, 3);
        sketch.broken()
    };
    assert_eq!(converted(2, 101), [Rule::NoStaleRenewal]);
    assert_eq!(converted(2, 100), []);
    assert_eq!(converted(1, 101), []);
}

/// The number is the same, so only the conversion shows that the old lease is over.
#[test]
fn an_old_lease_that_works_after_its_conversion_breaks_rules_d_e_and_f() {
    let sketch = || {
        let mut sketch = Sketch::default();
        let lease = sketch.grant_as("A", 0..10, Update, 7);
        sketch.convert("A", 20..30, &lease, Shared, 7);
        (sketch, lease)
    };
    let used = |call: fn(&mut Sketch, u64, &CallId), called: u64| {
        let (mut sketch, lease) = sketch();
        call(&mut sketch, called, &lease);
        sketch.broken()
    };
    let renew =
        |sketch: &mut Sketch, called: u64, lease: &CallId| sketch.renew("B", called..called + 1, lease);
    assert_eq!(used(renew, 31), [Rule::NoStaleRenewal]);
    assert_eq!(used(renew, 30), []);
    let check = |sketch: &mut Sketch, called: u64, lease: &CallId| {
        sketch.check("B", called..called + 1, lease, Answer::Ok);
    };
    assert_eq!(used(check, 31), [Rule::LeaseEnds]);
    assert_eq!(used(check, 30), []);
    let convert = |sketch: &mut Sketch, called: u64, lease: &CallId| {
        sketch.convert("B", called..called + 1, lease, Shared, 7);
    };
    assert_eq!(used(convert, 31), [Rule::NoStaleRelease, Rule::NoStaleRenewal]);
}

#[test]
fn two_calls_that_each_end_one_lease_break_rule_d() {
    let broken = |second: Answer| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant_as("A", 0..10, Update, 7);
        sketch.convert("A", 20..30, &lease, Shared, 7);
        sketch.release("B", 20..30, &lease, second);
        sketch.broken()
    };
    assert_eq!(broken(Answer::Ok), [Rule::NoStaleRelease]);
    assert_eq!(broken(Answer::No), []);
}

#[test]
fn the_end_of_a_converted_lease_is_counted_from_its_conversion() {
    let broken = |checked: u64| {
        let (mut sketch, _, lease) = converted(Shared, 2);
        sketch.check("A", checked..checked + 1, &lease, Answer::Ok);
        sketch.broken()
    };
    assert_eq!(broken(129), []);
    assert_eq!(broken(130), [Rule::LeaseEnds]);
}

#[test]
fn a_write_with_a_lease_that_is_not_exclusive_breaks_rule_g() {
    let broken = |to: Mode| {
        let (mut sketch, _, lease) = converted(Update, 2);
        let lease = match to {
            Exclusive => sketch.convert("A", 40..50, &lease, Exclusive, 3),
            _ => lease,
        };
        sketch.write("A", 60..61, &lease, 3, Answer::Ok);
        sketch.broken()
    };
    assert_eq!(broken(Update), [Rule::NoStaleWrite]);
    assert_eq!(broken(Exclusive), []);
}

/// A writer, whose write has this answer, and a reader of epoch 2.
fn written(fence: u64, answer: Answer) -> (Sketch, CallId) {
    let mut sketch = Sketch::default();
    let reader = sketch.grant_as("R", 0..10, Shared, 2);
    let writer = sketch.grant("W", 200..201, 3);
    sketch.write("W", 300..310, &writer, fence, answer);
    (sketch, reader)
}

#[test]
fn a_stale_read_that_is_accepted_breaks_rule_g() {
    let broken = |fence: u64, called: u64, answer: Answer| {
        let (mut sketch, reader) = written(fence, Answer::Ok);
        sketch.read("R", called..called + 1, &reader, 2, answer);
        sketch.broken()
    };
    assert_eq!(broken(3, 311, Answer::Ok), [Rule::NoStaleWrite]);
    assert_eq!(broken(3, 310, Answer::Ok), [], "it may have come before the write");
    assert_eq!(broken(2, 311, Answer::Ok), [], "an equal number is not stale");
    assert_eq!(broken(3, 311, Answer::Refused { highest: 3 }), []);
}

#[test]
fn a_read_that_is_refused_without_a_higher_write_breaks_rule_g() {
    let broken = |fence: u64, write: Answer, called: u64, highest: u64| {
        let (mut sketch, reader) = written(fence, write);
        sketch.read("R", called..called + 10, &reader, 2, Answer::Refused { highest });
        sketch.broken()
    };
    assert_eq!(broken(3, Answer::Ok, 290, 3), []);
    assert_eq!(
        broken(3, Answer::Ok, 289, 3),
        [Rule::NoStaleWrite],
        "it returned before the write was called"
    );
    assert_eq!(broken(2, Answer::Ok, 320, 3), [Rule::NoStaleWrite]);
    assert_eq!(broken(3, Answer::Ok, 320, 2), [Rule::NoStaleWrite], "an equal number is not stale");
    assert_eq!(broken(3, Answer::Unknown, 320, 3), [], "the write may have been accepted");
    assert_eq!(broken(3, Answer::Refused { highest: 9 }, 320, 3), [Rule::NoStaleWrite]);
}

#[test]
fn readers_of_one_epoch_all_pass_and_writers_of_one_fence_do_not() {
    let mut sketch = Sketch::default();
    let leases = ["A", "B"].map(|client| (client, sketch.grant_as(client, 0..10, Shared, 2)));
    for (client, lease) in &leases {
        sketch.read(client, 20..21, lease, 2, Answer::Ok);
    }
    assert_eq!(sketch.broken(), []);
}

/// What a receiver answers to two readers of one epoch, before and after a write of a later exclusive lease.
#[test]
fn a_receiver_that_accepts_stale_reads_is_found() {
    let broken = |receiver: &Receiver| {
        let mut sketch = Sketch::default();
        let answer = |result: Result<(), u64>| {
            result.map_or_else(|highest| Answer::Refused { highest }, |()| Answer::Ok)
        };
        let readers = ["A", "B"].map(|client| (client, sketch.grant_as(client, 0..10, Shared, 2)));
        let writer = sketch.grant("W", 200..201, 3);
        for called in [20, 320] {
            for (client, lease) in &readers {
                sketch.read(client, called..called + 1, lease, 2, answer(receiver.read("k", 2)));
            }
            sketch.write("W", called + 200..called + 201, &writer, 3, answer(receiver.write("k", 3)));
        }
        sketch.broken()
    };
    assert_eq!(broken(&Receiver::careless()), [Rule::NoStaleWrite]);
    let receiver = Receiver::new();
    assert_eq!(broken(&receiver), []);
    assert_eq!(
        (receiver.read("k", 2), receiver.read("k", 3), receiver.read("other", 0)),
        (Err(3), Ok(()), Ok(()))
    );
    // A reader makes no write stale.
    assert_eq!((receiver.read("k", 9), receiver.write("k", 3)), (Ok(()), Ok(())));
}

/// Readers join each other for a long time, and updaters and writers come between. Every moment has many members.
fn long(grants: u64) -> History {
    let mut events = Vec::new();
    let mut add = |client: String, number, called: u64, returned: u64, operation, answer| {
        let id = CallId { client: client.into(), number };
        let (called, returned) = (at(called), Some(at(returned)));
        events.push(Event { id: id.clone(), key: "k".into(), called, returned, operation, answer });
        id
    };
    let mut number = 1;
    for grant in 0..grants {
        // The first of each thousand writes, alone. One of ten of the others upgrades in vain.
        let (block, within) = (110_000 * (grant / 1000), grant % 1000);
        let (start, mode) = match within {
            0 => (block, Exclusive),
            _ if within % 10 == 5 => (block + 1000 + 100 * within, Update),
            _ => (block + 1000 + 100 * within, Shared),
        };
        number += u64::from(within < 2);
        let (client, operation) =
            (format!("c{grant}"), Operation::Acquire { ttl: ms(100_000), wait: ms(1), mode });
        let answer = Answer::Granted { fence: Some(number), ends: at(start) };
        let lease = add(client.clone(), 1, start, start + 1, operation, answer);
        let released = match mode {
            Exclusive => start + 100,
            Update => start + 500,
            _ => start + 2000,
        };
        if mode == Update {
            let convert =
                Operation::Convert { lease: lease.clone(), mode: Exclusive, ttl: ms(1000), wait: ms(10) };
            add(client.clone(), 2, start + 200, start + 210, convert, Answer::No);
        }
        add(client, 3, released, released + 1, Operation::Release { lease }, Answer::Ok);
    }
    History::new(events)
}

/// Returns how long this thread has run. It does not count while other tests do.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("it is not negative")
}

#[test]
fn a_long_history_with_many_members_is_judged_in_almost_linear_time() {
    let judged = |grants| {
        let history = long(grants);
        let start = cpu_time();
        let violations = check(&history, &EXACT);
        let took = cpu_time() - start;
        assert!(violations.is_empty(), "{}", violations[0]);
        let locks = LockHistory::of(&history);
        assert_eq!(locks[0].busy.len() as u64, grants / 10);
        took
    };
    let short = (0..3).map(|_| judged(2_000)).min().unwrap();
    let long = judged(32_000).min(judged(32_000));
    // Quadratic time would be 256 times as long.
    assert!(long < 100 * short.max(ms(1)), "{short:?} for 2,000 grants, {long:?} for 32,000");
}
