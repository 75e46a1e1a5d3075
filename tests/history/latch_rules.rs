//! Each rule of latches: a history that breaks it, and one beside it that does not.

use dlm_testkit::history::{Answer, Operation, Rule};

use crate::sketch::{Sketch, at, ms};

/// A latch of the count two, created at 0 to 5.
fn latch() -> Sketch {
    let mut sketch = Sketch::default();
    sketch.create_latch("A", 0..5, 2, Answer::Ok);
    sketch
}

#[test]
fn a_count_that_the_steps_do_not_allow_breaks_rule_l1() {
    let broken = |count: i64, step: Answer| {
        let mut sketch = latch();
        sketch.count_down("A", 10..20, Answer::Ok);
        sketch.count_down("B", 10..20, step);
        sketch.read_count(30..31, count);
        sketch.broken()
    };
    assert_eq!(broken(0, Answer::Ok), []);
    assert_eq!(broken(1, Answer::Ok), [Rule::ExactCount], "lost");
    assert_eq!(broken(-1, Answer::Ok), [Rule::ExactCount], "counted twice");
    for count in [0, 1] {
        assert_eq!(broken(count, Answer::InDoubt), []);
        assert_eq!(broken(count, Answer::Unknown), []);
    }
    assert_eq!(broken(-1, Answer::InDoubt), [Rule::ExactCount]);
    let failed = || Answer::Failed { code: "CONNECTION_ERROR".to_owned() };
    assert_eq!(broken(0, failed()), [Rule::ExactCount]);
    assert_eq!(broken(1, failed()), []);
}

#[test]
fn a_read_at_the_same_time_may_see_a_step_or_not() {
    let broken = |read: u64, count: i64| {
        let mut sketch = latch();
        sketch.add("A", 10..20, Operation::CountUp, Answer::Ok);
        sketch.read_count(read..read + 1, count);
        sketch.broken()
    };
    for count in [2, 3] {
        assert_eq!(broken(9, count), []);
        assert_eq!(broken(20, count), []);
    }
    assert_eq!((broken(8, 2), broken(8, 3)), (vec![], vec![Rule::ExactCount]));
    assert_eq!((broken(21, 2), broken(21, 3)), (vec![Rule::ExactCount], vec![]));
}

#[test]
fn a_participant_that_counts_twice_breaks_rule_l1() {
    let broken = |second: Answer, count: i64| {
        let mut sketch = latch();
        sketch.count_down_as("A", 10..20, Answer::Ok);
        sketch.count_down_as("A", 20..30, second);
        sketch.read_count(40..41, count);
        sketch.broken()
    };
    assert_eq!(broken(Answer::No, 1), []);
    assert_eq!(broken(Answer::InDoubt, 1), []);
    assert_eq!(broken(Answer::InDoubt, 0), [Rule::ExactCount]);
    assert_eq!(broken(Answer::Ok, 1), [Rule::ExactCount]);
}

#[test]
fn a_participant_that_is_refused_before_it_counted_breaks_rule_l1() {
    let broken = |first: Answer| {
        let mut sketch = latch();
        sketch.count_down_as("A", 10..20, first);
        sketch.count_down_as("A", 20..30, Answer::No);
        sketch.broken()
    };
    assert_eq!(broken(Answer::NotFound), [Rule::ExactCount, Rule::LatchLifetime]);
    assert_eq!(broken(Answer::InDoubt), []);
}

#[test]
fn a_wait_that_ends_while_a_count_down_is_missing_breaks_rule_l2() {
    let broken = |returned: u64| {
        let mut sketch = latch();
        sketch.count_down("A", 10..20, Answer::Ok);
        sketch.count_down("B", 30..40, Answer::Ok);
        sketch.wait("C", 5..returned, 1000, Answer::Ok);
        sketch.broken()
    };
    assert_eq!(broken(29), [Rule::NoEarlyWake]);
    assert_eq!(broken(30), []);
}

#[test]
fn a_wait_may_end_when_the_latch_was_open_for_a_moment() {
    let broken = |called: u64| {
        let mut sketch = latch();
        sketch.count_down("A", 10..11, Answer::Ok);
        sketch.count_down("A", 12..13, Answer::Ok);
        sketch.add("A", 14..15, Operation::CountUp, Answer::Ok);
        sketch.wait("C", called..called + 9, 1000, Answer::Ok);
        sketch.broken()
    };
    assert_eq!(broken(5), []);
    assert_eq!(broken(15), []);
    assert_eq!(broken(16), [Rule::NoEarlyWake]);
}

#[test]
fn a_wait_that_goes_on_after_the_latch_opened_breaks_rule_l3() {
    let broken = |returned: u64, answer: Answer, stall: bool| {
        let mut sketch = latch();
        sketch.count_down("A", 10..20, Answer::Ok);
        sketch.count_down("B", 10..20, Answer::Ok);
        sketch.wait("C", 5..returned, returned, answer);
        for time in [20, if stall { 28 } else { 21 }] {
            sketch.add("beats", time..time, Operation::Beat { every: ms(1) }, Answer::Ok);
        }
        sketch.broken()
    };
    assert_eq!(broken(30, Answer::Ok, false), []);
    assert_eq!(broken(31, Answer::Ok, false), [Rule::NoMissedWake]);
    assert_eq!(broken(31, Answer::No, false), [Rule::NoMissedWake]);
    // The machine stood still for 8 ms.
    assert_eq!(broken(38, Answer::Ok, true), []);
    assert_eq!(broken(39, Answer::Ok, true), [Rule::NoMissedWake]);
}

#[test]
fn a_wait_may_take_longer_while_its_messages_are_delayed_or_the_server_is_away() {
    let broken = |returned: u64, delayed: &str, away: u64| {
        let mut sketch = latch();
        sketch.count_down("A", 10..20, Answer::Ok);
        sketch.count_down("B", 10..20, Answer::Ok);
        sketch.wait("C/1", 5..returned, 1000, Answer::Ok);
        sketch.delay(delayed, 22..23, ms(8));
        sketch.outage(25..25 + away);
        sketch.broken()
    };
    assert_eq!(broken(51, "C/", 13), []);
    assert_eq!(broken(52, "C/", 13), [Rule::NoMissedWake]);
    assert_eq!(broken(43, "A", 13), []);
    assert_eq!(broken(44, "A", 13), [Rule::NoMissedWake]);
    assert_eq!(broken(30, "A", 0), []);
    assert_eq!(broken(31, "A", 0), [Rule::NoMissedWake]);
}

#[test]
fn a_wait_need_not_end_if_a_count_up_may_have_closed_the_latch() {
    let mut sketch = latch();
    sketch.count_down("A", 10..20, Answer::Ok);
    sketch.count_down("B", 10..20, Answer::Ok);
    sketch.add("A", 25..26, Operation::CountUp, Answer::InDoubt);
    sketch.wait("C", 5..60, 60, Answer::No);
    assert_eq!(sketch.broken(), []);
}

#[test]
fn a_wait_that_times_out_before_its_deadline_or_long_after_breaks_rule_l4() {
    let broken = |returned: u64| {
        let mut sketch = latch();
        sketch.wait("C", 5..returned, 50, Answer::No);
        sketch.broken()
    };
    assert_eq!(broken(49), [Rule::TimeoutInTime]);
    assert_eq!(broken(50), []);
    assert_eq!(broken(60), []);
    assert_eq!(broken(61), [Rule::TimeoutInTime]);
}

#[test]
fn a_latch_that_is_created_again_while_it_lives_breaks_rule_l5() {
    let broken = |returned: u64, answer: Answer| {
        let mut sketch = latch();
        sketch.create_latch("B", 3..returned, 2, answer);
        sketch.broken()
    };
    assert_eq!(broken(99, Answer::Ok), [Rule::CreatedOnce]);
    assert_eq!(broken(100, Answer::Ok), []);
    assert_eq!(broken(99, Answer::No), []);
}

/// The first one may have created the latch after that of the second had expired.
#[test]
fn of_two_creations_the_first_may_be_the_later_one_if_it_answered_late() {
    let broken = |returned: u64| {
        let mut sketch = Sketch::default();
        sketch.create_latch("A", 0..returned, 2, Answer::Ok);
        sketch.create_latch("B", 5..10, 2, Answer::Ok);
        sketch.broken()
    };
    assert_eq!(broken(104), [Rule::CreatedOnce]);
    assert_eq!(broken(105), []);
}

#[test]
fn a_participant_counts_once_in_each_latch_of_a_name() {
    let broken = |second: Answer, counts: u64| {
        let mut sketch = latch();
        sketch.create_latch("A", 200..205, 2, second);
        for count in 0..counts {
            sketch.count_down_as("A", 210 * count + 10..210 * count + 20, Answer::Ok);
        }
        sketch.broken()
    };
    assert_eq!(broken(Answer::Ok, 2), []);
    assert_eq!(broken(Answer::InDoubt, 2), []);
    assert_eq!(broken(Answer::No, 2), [Rule::ExactCount]);
    assert_eq!(broken(Answer::Ok, 3), [Rule::ExactCount]);
}

#[test]
fn a_creation_that_is_refused_must_not_change_the_count() {
    let mut sketch = latch();
    sketch.create_latch("B", 10..11, 2, Answer::No);
    sketch.read_count(20..21, 4);
    assert_eq!(sketch.broken(), [Rule::ExactCount]);
}

#[test]
fn a_latch_that_is_gone_before_its_ttl_breaks_rule_l6() {
    let broken = |returned: u64| {
        let mut sketch = latch();
        sketch.count_down("A", 10..20, Answer::Ok);
        sketch.wait("C", 21..returned, 1000, Answer::NotFound);
        sketch.broken()
    };
    assert_eq!(broken(109), [Rule::LatchLifetime]);
    assert_eq!(broken(110), []);
}

#[test]
fn a_latch_may_be_missing_until_it_was_created() {
    let broken = |called: u64| {
        let mut sketch = latch();
        sketch.add("B", called..called + 1, Operation::ReadCount, Answer::NotFound);
        sketch.broken()
    };
    assert_eq!(broken(5), []);
    assert_eq!(broken(6), [Rule::LatchLifetime]);
}

#[test]
fn a_wait_that_goes_on_after_the_latch_expired_breaks_rule_l6() {
    let broken = |returned: u64, answer: Answer| {
        let mut sketch = latch();
        sketch.count_down("A", 10..20, Answer::Ok);
        sketch.wait("C", 21..returned, returned, answer);
        sketch.broken()
    };
    assert_eq!(broken(130, Answer::NotFound), []);
    assert_eq!(broken(131, Answer::NotFound), [Rule::LatchLifetime]);
    assert_eq!(broken(131, Answer::No), [Rule::LatchLifetime]);
}

#[test]
fn a_latch_whose_creation_is_in_doubt_is_judged_by_its_timeouts_only() {
    let mut sketch = Sketch::default();
    sketch.create_latch("A", 0..5, 2, Answer::InDoubt);
    sketch.read_count(10..11, 7);
    sketch.wait("C", 21..30, 31, Answer::No);
    assert_eq!(sketch.violations()[0].events[0].called, at(21));
}

#[test]
fn a_call_from_before_a_reset_that_counts_after_it_breaks_rule_l7() {
    let broken = |read: i64, during: Answer| {
        let mut sketch = latch();
        sketch.count_down("A", 10..20, Answer::Ok);
        // It was answered, or given up, before the reset.
        sketch.count_down("B", 10..20, Answer::InDoubt);
        sketch.add("C", 30..35, Operation::ResetLatch { count: 5, ttl: ms(60_000) }, Answer::Ok);
        sketch.count_down("D", 32..40, during);
        sketch.read_count(50..51, read);
        sketch.broken()
    };
    assert_eq!(broken(5, Answer::NotFound), []);
    for count in [2, 4, 6] {
        assert_eq!(broken(count, Answer::NotFound), [Rule::FreshIncarnation], "{count}");
    }
    // One that was called meanwhile may have counted before or after.
    for count in [4, 5] {
        assert_eq!(broken(count, Answer::Ok), []);
    }
    assert_eq!(broken(3, Answer::Ok), [Rule::FreshIncarnation]);
    let after = |count: i64| {
        let mut sketch = latch();
        sketch.add("C", 30..35, Operation::ResetLatch { count: 5, ttl: ms(60_000) }, Answer::Ok);
        sketch.count_down("D", 36..40, Answer::Ok);
        sketch.read_count(50..51, count);
        sketch.broken()
    };
    assert_eq!((after(4), after(5)), (vec![], vec![Rule::FreshIncarnation]));
}

#[test]
fn a_reset_in_doubt_and_a_second_reset_leave_the_count_open() {
    let broken = |second: Operation, answer: Answer| {
        let mut sketch = latch();
        sketch.add("C", 30..35, Operation::ResetLatch { count: 5, ttl: ms(60_000) }, Answer::Ok);
        sketch.add("C", 40..45, second, answer);
        sketch.read_count(50..51, 9);
        sketch.broken()
    };
    let reset = || Operation::ResetLatch { count: 9, ttl: ms(60_000) };
    assert_eq!(broken(reset(), Answer::Ok), []);
    assert_eq!(broken(reset(), Answer::InDoubt), []);
    assert_eq!(broken(Operation::DeleteLatch, Answer::Ok), []);
    assert_eq!(broken(reset(), Answer::NotFound), [Rule::FreshIncarnation]);
}
