//! The rule of rows: histories that break it, and others beside them that do not.

use std::ops::Range;

use dlm_testkit::history::linearizability::{Search, Span, search};
use dlm_testkit::history::{Answer, Operation, Rule, Tolerances, check};

use crate::sketch::{EXACT, Sketch, at};

/// A row with the value 1, written at 0 to 5.
fn row() -> Sketch {
    let mut sketch = Sketch::default();
    sketch.add("A", 0..5, Operation::CreateRow { value: 1 }, Answer::Ok);
    sketch
}

/// Whether the history is in order when these calls follow on the row.
fn is_in_order(calls: &[(Range<u64>, Operation, Answer)]) -> bool {
    let mut sketch = row();
    for (number, (times, operation, answer)) in calls.iter().enumerate() {
        sketch.add(&format!("client-{number}"), times.clone(), operation.clone(), answer.clone());
    }
    match sketch.broken()[..] {
        [] => true,
        [Rule::Linearizable] => false,
        ref broken => panic!("{broken:?}"),
    }
}

fn value(value: i64) -> Answer {
    Answer::Value(Some(value))
}

const PUT_2: Operation = Operation::Put { value: 2 };
const FROM_1_TO_3: Operation = Operation::CompareAndSet { expected: Some(1), value: 3 };

#[test]
fn a_read_of_a_value_that_was_overwritten_breaks_rule_r() {
    let read = |called: u64, answer: Answer| {
        is_in_order(&[(10..20, PUT_2, Answer::Ok), (called..called + 5, Operation::Get, answer)])
    };
    assert!(read(20, value(1)) && read(20, value(2)), "the calls overlap");
    assert!(!read(21, value(1)) && read(21, value(2)));
    assert!(!read(21, Answer::Value(None)));
    assert!(!read(9, value(3)), "nobody wrote it");
}

#[test]
fn two_reads_that_see_two_writes_in_different_orders_break_rule_r() {
    let reads = |answers: [i64; 4]| {
        let read = |number: usize, times| (times, Operation::Get, value(answers[number]));
        is_in_order(&[
            (10..100, PUT_2, Answer::Ok),
            (10..100, Operation::Put { value: 3 }, Answer::Ok),
            read(0, 20..30),
            read(1, 40..50),
            read(2, 60..70),
            read(3, 80..90),
        ])
    };
    assert!(reads([2, 2, 3, 3]) && reads([1, 3, 2, 2]));
    assert!(!reads([2, 3, 2, 2]) && !reads([2, 1, 2, 2]));
}

#[test]
fn a_compare_and_set_from_another_value_breaks_rule_r() {
    let set = |answer: Answer| is_in_order(&[(10..20, PUT_2, Answer::Ok), (30..40, FROM_1_TO_3, answer)]);
    assert!(set(Answer::No));
    assert!(!set(Answer::Ok));
    let fresh = |answer: Answer| is_in_order(&[(10..20, FROM_1_TO_3, answer)]);
    assert!(fresh(Answer::Ok));
    assert!(!fresh(Answer::No));
}

#[test]
fn a_row_that_is_created_twice_breaks_rule_r() {
    let create = |answer: Answer| is_in_order(&[(10..20, Operation::CreateRow { value: 2 }, answer)]);
    assert!(create(Answer::No) && create(Answer::InDoubt));
    assert!(!create(Answer::Ok));
}

#[test]
fn two_sums_of_one_value_break_rule_r() {
    let sums = |first: Answer, second: Answer| {
        is_in_order(&[
            (10..20, Operation::Increment { by: 1 }, first),
            (10..20, Operation::Modify { by: 1 }, second),
            (30..40, Operation::Get, value(3)),
        ])
    };
    assert!(sums(value(2), value(3)) && sums(value(3), value(2)) && sums(Answer::Ok, value(2)));
    assert!(!sums(value(2), value(2)));
}

#[test]
fn a_call_in_doubt_takes_effect_late_or_never_but_not_before_it_was_made() {
    for doubt in [Answer::InDoubt, Answer::Unknown] {
        let read = |times: Range<u64>, answer: i64| (times, Operation::Get, value(answer));
        let put = (10..20, PUT_2, doubt);
        assert!(is_in_order(&[put.clone(), read(30..40, 1), read(50..60, 2)]));
        assert!(is_in_order(&[put.clone(), read(30..40, 1), read(50..60, 1)]));
        assert!(!is_in_order(&[put.clone(), read(30..40, 2), read(50..60, 1)]));
        assert!(!is_in_order(&[put, read(6..9, 2)]));
    }
}

#[test]
fn a_call_that_failed_has_no_effect() {
    let failed = || Answer::Failed { code: "CONNECTION_ERROR".to_owned() };
    assert!(is_in_order(&[(10..20, PUT_2, failed()), (30..40, Operation::Get, value(1))]));
    assert!(!is_in_order(&[(10..20, PUT_2, failed()), (30..40, Operation::Get, value(2))]));
}

#[test]
fn the_violation_names_the_call_that_cannot_be_explained() {
    let mut sketch = row();
    for time in (10..100).step_by(10) {
        sketch.add("B", time..time + 1, Operation::Increment { by: 1 }, Answer::Ok);
    }
    let read = sketch.add("C", 55..56, Operation::Get, value(5));
    let violations = sketch.violations();
    assert_eq!((violations.len(), violations[0].rule), (1, Rule::Linearizable));
    assert_eq!(violations[0].events[0].id, read);
    assert!(violations[0].what.contains("C:1"), "{}", violations[0]);
}

#[test]
fn a_search_that_gives_up_is_an_error_of_its_own() {
    let mut sketch = row();
    // All at the same time, in doubt, and a read that no choice of them explains.
    for number in 0..24 {
        let client = format!("client-{number}");
        sketch.add(&client, 10..20, Operation::Increment { by: 1 << number }, Answer::InDoubt);
    }
    sketch.add("reader", 30..40, Operation::Get, value(-1));
    let history = sketch.history();
    let broken = |search_steps| check(&history, &Tolerances { search_steps, ..EXACT })[0].rule;
    assert_eq!(broken(10_000), Rule::Undecided);
}

#[test]
fn the_search_agrees_with_trying_every_order() {
    let mut random = fastrand::Rng::with_seed(7);
    let (mut found, rounds) = (0, 3000);
    for _ in 0..rounds {
        // Registers: a call writes its number, or reads one.
        let count = random.usize(1..7);
        let mut calls: Vec<(Span, Option<u8>, u8)> = (0..count)
            .map(|_| {
                let called = random.u64(..20);
                let returned = (random.u8(..5) > 0).then(|| at(called + random.u64(..10)));
                let span = Span { called: at(called), returned };
                (span, random.bool().then(|| random.u8(1..3)), random.u8(..3))
            })
            .collect();
        calls.sort_by_key(|(span, ..)| span.called);
        let step = |number: usize, state: &u8| match calls[number] {
            (_, Some(written), _) => Some(written),
            (_, None, read) => (read == *state).then_some(read),
        };
        let alike = |a: usize, b: usize| calls[a].1.is_some() && calls[a].1 == calls[b].1;
        let spans: Vec<Span> = calls.iter().map(|(span, ..)| *span).collect();
        let expected = every_order(&spans, &step, &mut Vec::new(), 0);
        found += usize::from(expected);
        assert_eq!(search(0, &spans, step, alike, 100_000) == Search::Found, expected, "{calls:?}");
    }
    assert!(found > rounds / 10 && found < rounds * 9 / 10, "{found} of {rounds}");
}

/// Tries every order of the calls that are left.
fn every_order(
    spans: &[Span],
    step: &impl Fn(usize, &u8) -> Option<u8>,
    taken: &mut Vec<usize>,
    state: u8,
) -> bool {
    let left: Vec<usize> = (0..spans.len()).filter(|number| !taken.contains(number)).collect();
    if left.iter().all(|number| spans[*number].returned.is_none()) {
        return true;
    }
    left.iter().any(|&next| {
        // No call that is left may have returned before this one was made.
        let allowed =
            left.iter().all(|other| spans[*other].returned.is_none_or(|at| at >= spans[next].called));
        allowed
            && step(next, &state).is_some_and(|state| {
                taken.push(next);
                let found = every_order(spans, step, taken, state);
                taken.pop();
                found
            })
    })
}
