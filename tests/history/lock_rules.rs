//! Each rule of locks: a history that breaks it, and one beside it that does not.

use std::time::Duration;

use dlm::Mode;
use dlm_testkit::history::{Answer, Operation, Rule};

use crate::sketch::{Sketch, TTL, at, ms};

#[test]
fn two_grants_with_one_fence_break_rule_u() {
    let broken = |fences: [u64; 2]| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..1, fences[0]);
        sketch.release("A", 5..6, &lease, Answer::Ok);
        // The calls overlap, so that only the equal fences are wrong.
        sketch.grant("B", 0..10, fences[1]);
        sketch.broken()
    };
    assert_eq!(broken([7, 7]), [Rule::UniqueFences]);
    assert_eq!(broken([7, 8]), []);
}

#[test]
fn a_fence_that_falls_breaks_rule_b_unless_the_grants_were_asked_for_at_one_time() {
    let broken = |lower_asked: u64| {
        let mut sketch = Sketch::default();
        let higher = sketch.grant("A", 0..20, 7);
        sketch.release("A", 20..21, &higher, Answer::Ok);
        let lower = sketch.grant("B", lower_asked..lower_asked + 1, 6);
        sketch.release("B", lower_asked + 1..lower_asked + 2, &lower, Answer::Ok);
        sketch.broken()
    };
    assert!(broken(21).contains(&Rule::RisingFences));
    assert_eq!(broken(18), [], "B may have been the first");
}

#[test]
fn a_grant_before_the_lease_of_a_lower_fence_ends_breaks_rules_a_and_a2() {
    let broken = |next: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.renew("A", 50..60, &lease);
        sketch.grant("B", 90..next, 2);
        sketch.broken()
    };
    assert_eq!(broken(149), [Rule::Exclusion, Rule::NoOverlap]);
    assert_eq!(broken(150), []);
}

#[test]
fn a_holder_is_not_sure_from_when_its_release_is_called() {
    let broken = |released: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.release("A", released..released + 1, &lease, Answer::InDoubt);
        sketch.grant("B", 20..30, 2);
        sketch.broken()
    };
    assert_eq!(broken(30), []);
    assert_eq!(broken(31), [Rule::Exclusion, Rule::NoOverlap]);
}

#[test]
fn holds_that_overlap_break_rule_a2_also_without_fences() {
    let broken = |second: u64| {
        let mut sketch = Sketch::default();
        for asked in [0, second] {
            let answer = Answer::Granted { fence: None, ends: at(asked) };
            sketch.acquire(&format!("client-{asked}"), asked..asked + 10, answer);
        }
        sketch.broken()
    };
    assert_eq!(broken(80), [Rule::NoOverlap]);
    assert_eq!(broken(90), []);
}

#[test]
fn a_busy_lock_that_nobody_can_hold_breaks_rule_c() {
    let broken = |release: Answer, busy: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.release("A", 20..30, &lease, release);
        sketch.acquire("B", busy..busy + 5, Answer::No);
        sketch.broken()
    };
    assert_eq!(broken(Answer::Ok, 31), [Rule::NoPhantomHolder]);
    assert_eq!(broken(Answer::Ok, 30), []);
    assert_eq!(broken(Answer::Lost, 31), [Rule::NoPhantomHolder]);
    assert_eq!(broken(Answer::InDoubt, 110), []);
    assert_eq!(broken(Answer::InDoubt, 111), [Rule::NoPhantomHolder]);
}

#[test]
fn a_waiter_may_have_learnt_of_the_holder_a_while_before() {
    let broken = |asked: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.release("A", 20..30, &lease, Answer::Ok);
        sketch.add(
            "B",
            asked..asked + 5,
            Operation::Acquire { ttl: TTL, wait: ms(5), mode: Mode::Exclusive },
            Answer::No,
        );
        sketch.broken()
    };
    assert_eq!(broken(50), []);
    assert_eq!(broken(51), [Rule::NoPhantomHolder]);
}

#[test]
fn an_acquire_without_a_known_end_may_hold_the_lock_for_its_ttl_after_it_may_take_effect() {
    let broken = |answer: Answer, busy: u64| {
        let mut sketch = Sketch::default();
        sketch.acquire("A", 0..10, answer);
        sketch.acquire("B", busy..busy + 1, Answer::No);
        sketch.broken()
    };
    assert_eq!(broken(Answer::Unknown, 1100), []);
    assert_eq!(broken(Answer::Unknown, 1101), [Rule::NoPhantomHolder]);
    assert_eq!(broken(Answer::InDoubt, 1110), []);
    assert_eq!(broken(Answer::InDoubt, 1111), [Rule::NoPhantomHolder]);
    let failed = || Answer::Failed { code: "RETRIES_EXHAUSTED".to_owned() };
    assert_eq!(broken(failed(), 110), []);
    assert_eq!(broken(failed(), 111), [Rule::NoPhantomHolder]);
}

#[test]
fn a_request_that_was_delayed_may_hold_the_lock_later() {
    let broken = |delayed: &str, answer: Answer, busy: u64| {
        let mut sketch = Sketch::default();
        // The delay ends when the call begins.
        sketch.delay(delayed, 0..10, ms(40));
        sketch.acquire("A/1", 10..20, answer);
        sketch.acquire("B/1", busy..busy + 1, Answer::No);
        sketch.broken()
    };
    let failed = || Answer::Failed { code: "CONNECTION_ERROR".to_owned() };
    assert_eq!(broken("A/", failed(), 165), []);
    assert_eq!(broken("A/", failed(), 166), [Rule::NoPhantomHolder]);
    assert_eq!(broken("C/", failed(), 120), []);
    assert_eq!(broken("C/", failed(), 121), [Rule::NoPhantomHolder]);
    // A call in doubt may take effect later than any delay.
    assert_eq!(broken("A/", Answer::InDoubt, 1120), []);
    assert_eq!(broken("A/", Answer::InDoubt, 1121), [Rule::NoPhantomHolder]);
}

/// The library sends another request if it has lost an answer, and the first one may be carried out afterwards.
#[test]
fn a_granted_lock_whose_messages_were_delayed_may_be_held_after_its_release() {
    let broken = |delay: std::ops::Range<u64>, busy: u64| {
        let mut sketch = Sketch::default();
        sketch.delay("A", delay, ms(40));
        let lease = sketch.grant("A", 10..20, 1);
        sketch.release("A", 30..31, &lease, Answer::Ok);
        sketch.acquire("B", busy..busy + 1, Answer::No);
        sketch.broken()
    };
    assert_eq!(broken(20..25, 165), []);
    assert_eq!(broken(20..25, 166), [Rule::NoPhantomHolder]);
    assert_eq!(broken(21..25, 31), []);
    assert_eq!(broken(21..25, 32), [Rule::NoPhantomHolder]);
}

#[test]
fn a_renewal_for_a_shorter_ttl_may_let_the_lease_last_as_long_as_one_before() {
    let broken = |busy: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        let operation = Operation::Renew { lease, ttl: TTL / 2 };
        sketch.add("A", 50..60, operation, Answer::Renewed { ends: at(100) });
        sketch.acquire("B", busy..busy + 1, Answer::No);
        sketch.broken()
    };
    assert_eq!(broken(160), []);
    assert_eq!(broken(161), [Rule::NoPhantomHolder]);
}

#[test]
fn a_renewal_that_was_delayed_may_make_the_lease_longer() {
    let broken = |delayed: &str, busy: u64| {
        let mut sketch = Sketch::default();
        sketch.delay(delayed, 50..60, ms(40));
        let lease = sketch.grant("A", 0..10, 1);
        sketch.renew("A", 50..60, &lease);
        sketch.acquire("B", busy..busy + 1, Answer::No);
        sketch.broken()
    };
    assert_eq!(broken("A", 205), []);
    assert_eq!(broken("A", 206), [Rule::NoPhantomHolder]);
    assert_eq!(broken("C", 160), []);
    assert_eq!(broken("C", 161), [Rule::NoPhantomHolder]);
}

#[test]
fn a_waiter_whose_messages_were_delayed_may_have_learnt_of_the_holder_earlier() {
    let broken = |asked: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.release("A", 20..30, &lease, Answer::Ok);
        sketch.delay("B", 32..33, ms(40));
        sketch.add(
            "B",
            asked..asked + 5,
            Operation::Acquire { ttl: TTL, wait: ms(5), mode: Mode::Exclusive },
            Answer::No,
        );
        sketch.broken()
    };
    assert_eq!(broken(53), []);
    // The delay is over before the earliest answer that waiters may share.
    assert_eq!(broken(54), [Rule::NoPhantomHolder]);
}

#[test]
fn a_server_that_goes_away_may_forget_a_release() {
    let broken = |away: u64, busy: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.release("A", 20..30, &lease, Answer::Ok);
        sketch.outage(away..away + 5);
        sketch.acquire("B", busy..busy + 1, Answer::No);
        sketch.broken()
    };
    assert_eq!(broken(40, 110), []);
    assert_eq!(broken(40, 111), [Rule::NoPhantomHolder]);
    assert_eq!(broken(19, 31), [Rule::NoPhantomHolder], "the server was away before the release");
}

/// A holder whose lease is over, and the next one.
fn stale() -> (Sketch, dlm_testkit::history::CallId) {
    let mut sketch = Sketch::default();
    let lease = sketch.grant("A", 0..10, 1);
    sketch.grant("B", 100..110, 2);
    (sketch, lease)
}

#[test]
fn a_release_that_succeeds_after_the_next_grant_breaks_rule_d() {
    let broken = |called: u64, answer: Answer| {
        let (mut sketch, lease) = stale();
        sketch.release("A", called..called + 5, &lease, answer);
        sketch.broken()
    };
    assert_eq!(broken(111, Answer::Ok), [Rule::NoStaleRelease]);
    assert_eq!(broken(110, Answer::Ok), [], "it may have taken effect before the grant");
    assert_eq!(broken(111, Answer::Lost), []);
}

/// The second release finds out that the first one, whose answer was lost, has freed the lock.
#[test]
fn a_release_that_confirms_one_in_doubt_may_succeed_after_the_next_grant() {
    let broken = |first: Answer| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.release("A", 20..30, &lease, first);
        sketch.grant("B", 40..50, 2);
        sketch.release("A", 60..61, &lease, Answer::Ok);
        sketch.broken()
    };
    assert_eq!(broken(Answer::InDoubt), []);
    let refused = Answer::Failed { code: "CONNECTION_ERROR".into() };
    assert!(broken(refused).contains(&Rule::NoStaleRelease));
}

#[test]
fn two_releases_of_one_lease_that_succeed_break_rule_d() {
    let broken = |second: Answer| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.release("A", 20..30, &lease, Answer::Ok);
        sketch.release("B", 20..30, &lease, second);
        sketch.broken()
    };
    assert_eq!(broken(Answer::Ok), [Rule::NoStaleRelease]);
    assert_eq!(broken(Answer::No), []);
}

#[test]
fn a_renewal_that_succeeds_after_the_next_grant_breaks_rule_e() {
    let broken = |called: u64| {
        let (mut sketch, lease) = stale();
        sketch.renew("A", called..called + 5, &lease);
        sketch.broken()
    };
    assert!(broken(111).contains(&Rule::NoStaleRenewal));
    assert!(!broken(110).contains(&Rule::NoStaleRenewal));
}

#[test]
fn a_check_that_succeeds_after_the_ttl_or_the_next_grant_breaks_rule_f() {
    let broken = |called: u64, answer: Answer| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.renew("A", 20..30, &lease);
        sketch.check("A", called..called + 1, &lease, answer);
        sketch.broken()
    };
    assert_eq!(broken(130, Answer::Ok), [Rule::LeaseEnds]);
    assert_eq!(broken(129, Answer::Ok), []);
    assert_eq!(broken(130, Answer::Lost), []);

    let after_the_next = |called: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.grant("A", 0..10, 1);
        sketch.release("A", 20..30, &lease, Answer::InDoubt);
        sketch.grant("B", 40..50, 2);
        sketch.check("A", called..called + 1, &lease, Answer::Ok);
        sketch.broken()
    };
    assert_eq!(after_the_next(51), [Rule::LeaseEnds]);
    assert_eq!(after_the_next(50), []);
}

#[test]
fn an_end_that_the_library_counts_too_late_breaks_rule_f() {
    let broken = |ends: u64, renewed: u64| {
        let mut sketch = Sketch::default();
        let lease = sketch.acquire("A", 5..10, Answer::Granted { fence: Some(1), ends: at(ends) });
        let operation = Operation::Renew { lease, ttl: TTL };
        sketch.add("A", 20..30, operation, Answer::Renewed { ends: at(renewed) });
        sketch.broken()
    };
    assert_eq!(broken(110, 130), []);
    assert_eq!(broken(111, 130), [Rule::LeaseEnds]);
    assert_eq!(broken(110, 131), [Rule::LeaseEnds]);
}

#[test]
fn the_end_that_the_library_counts_is_sure() {
    let broken = |next: u64| {
        let mut sketch = Sketch::default();
        let operation = Operation::Acquire { ttl: TTL, wait: ms(50), mode: Mode::Exclusive };
        sketch.add("A", 0..40, operation, Answer::Granted { fence: Some(1), ends: at(130) });
        sketch.grant("B", 110..next, 2);
        sketch.broken()
    };
    assert_eq!(broken(129), [Rule::Exclusion, Rule::NoOverlap]);
    assert_eq!(broken(130), []);
}

#[test]
fn a_stale_write_that_is_accepted_breaks_rule_g() {
    let broken = |called: u64, answer: Answer| {
        let (mut sketch, lease) = stale();
        let next = sketch.acquire("C", 400..401, Answer::Granted { fence: Some(3), ends: at(400) });
        sketch.add("C", 410..420, Operation::Write { lease: next, fence: 3 }, Answer::Ok);
        sketch.add("A", called..called + 1, Operation::Write { lease, fence: 1 }, answer);
        sketch.broken()
    };
    assert_eq!(broken(421, Answer::Ok), [Rule::NoStaleWrite]);
    assert_eq!(broken(420, Answer::Ok), []);
    assert_eq!(broken(421, Answer::Refused { highest: 3 }), []);
    assert_eq!(
        broken(421, Answer::Refused { highest: 1 }),
        [Rule::NoStaleWrite],
        "an equal fence is not stale"
    );
}

#[test]
fn a_fence_that_two_leases_use_breaks_rule_g() {
    let broken = |fence: u64| {
        let (mut sketch, lease) = stale();
        let next = sketch.grant("C", 400..401, 3);
        sketch.add("A", 410..411, Operation::Write { lease, fence: 1 }, Answer::Ok);
        sketch.add("C", 420..421, Operation::Write { lease: next, fence }, Answer::Ok);
        sketch.broken()
    };
    assert_eq!(broken(1), [Rule::NoStaleWrite]);
    assert_eq!(broken(3), []);
}

#[test]
fn a_violation_names_rule_key_clients_and_times() {
    let mut sketch = Sketch::default();
    sketch.grant("A", 1000..1010, 1);
    sketch.grant("B", 1020..1030, 2);
    let text = sketch.violations()[0].to_string();
    assert_eq!(
        text.lines().next().unwrap(),
        "rule A is broken at \"k\": B was granted the lock with fence 2 while A held it with fence 1, surely for \
         another 70.000 ms"
    );
    assert!(text.contains("A:1: called at 1.000000 s, returned after 10.000 ms: Acquire"), "{text}");
    assert!(text.contains("B:1: called at 1.020000 s"), "{text}");
}

#[test]
fn one_lock_is_not_judged_by_the_grants_of_another() {
    let mut sketch = Sketch::default();
    sketch.grant("A", 0..10, 1);
    let mut events = sketch.history().events().to_vec();
    events[0].key = "other".into();
    let mut sketch = Sketch::default();
    sketch.grant("B", 0..10, 1);
    events.extend(sketch.history().events().to_vec());
    let history = dlm_testkit::history::History::new(events);
    assert!(dlm_testkit::history::check(&history, &crate::sketch::EXACT).is_empty());
    assert_eq!(history.stalled_within(at(0), at(10)), Duration::ZERO);
}
