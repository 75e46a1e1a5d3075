//! The rule of rows: the calls on each row are linearizable. A row does not exist before its first call, and has one
//! value.

use super::History;
use super::event::{Answer, Event, Operation};
use super::linearizability::{Search, Span, search};
use super::tolerances::Tolerances;
use super::violation::{Rule, Violation};

/// Calls that a violation shows on each side of the one that cannot be explained.
const SHOWN: usize = 4;

/// Checks the rules [`Rule::Linearizable`] and [`Rule::Undecided`].
pub fn check(history: &History, tolerances: &Tolerances) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (_, mut events) in history.by_key() {
        events.retain(|event| is_evidence(event));
        let span = |event: &&Event| {
            let returned = event.returned.filter(|_| !event.answer.is_in_doubt());
            Span { called: event.called, returned }
        };
        let spans: Vec<Span> = events.iter().map(span).collect();
        let step = |number: usize, before: &Option<i64>| after(events[number], *before);
        let alike = |a: usize, b: usize| events[a].operation == events[b].operation;
        match search(None, &spans, step, alike, tolerances.search_steps) {
            Search::Found => {}
            Search::Stuck(number) => {
                let event = events[number];
                let what = format!("no order of the calls explains the answer of {}", event.id);
                let near = number.saturating_sub(SHOWN)..events.len().min(number + SHOWN);
                let shown = [&[event][..], &events[near]].concat();
                violations.push(Violation::new(Rule::Linearizable, what, &shown));
            }
            Search::GaveUp => {
                let what = format!(
                    "no order of {} calls was found in {} steps, and it is not known whether there is one",
                    events.len(),
                    tolerances.search_steps
                );
                violations.push(Violation::new(Rule::Undecided, what, &events[..1]));
            }
        }
    }
    violations
}

/// Whether the call is one on a row that says something about it, or may have changed it.
fn is_evidence(event: &Event) -> bool {
    let on_a_row = matches!(
        event.operation,
        Operation::CreateRow { .. }
            | Operation::Put { .. }
            | Operation::CompareAndSet { .. }
            | Operation::Get
            | Operation::Increment { .. }
            | Operation::Modify { .. }
    );
    let silent = event.operation == Operation::Get && event.answer.is_in_doubt();
    on_a_row && !silent && !matches!(event.answer, Answer::Failed { .. })
}

/// Returns the value of the row after the call; `None` if the answer is wrong for the value before. A call in doubt
/// that takes effect has done what was asked.
fn after(event: &Event, before: Option<i64>) -> Option<Option<i64>> {
    let done = event.answer == Answer::Ok || event.answer.is_in_doubt();
    let refused = event.answer == Answer::No;
    let write = |possible: bool, value: i64| match possible {
        true if done => Some(Some(value)),
        false if refused => Some(before),
        _ => None,
    };
    match event.operation {
        Operation::CreateRow { value } => write(before.is_none(), value),
        Operation::Put { value } => write(true, value),
        Operation::CompareAndSet { expected, value } => write(before == expected, value),
        Operation::Get => (event.answer == Answer::Value(before)).then_some(before),
        Operation::Increment { by } | Operation::Modify { by } => {
            let sum = Some(before.unwrap_or(0).wrapping_add(by));
            (done || event.answer == Answer::Value(sum)).then_some(sum)
        }
        _ => None,
    }
}
