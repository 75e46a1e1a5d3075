//! One change of one row, made in one atomic step if its tests hold: how the servers are asked for it, and what
//! their answers mean.
//!
//! ```text
//! steps of one request                             why
//! fence missing -> our fence      (fenced rows)    a filter never holds for a row without cells
//! fence below ours -> our fence   (fenced rows)    raised once by each holder, before its first change
//! mark missing -> "begun"         (exactly once)   the row has a cell now, so that absences can be tested
//! tests, our fence stands, mark not there -> the change, mark
//! read what was tested                             why it was refused, and whether what was put can be seen
//! ```
//!
//! * Without fence and mark, a change that tests absences alone first puts a cell of its own (`BEGUN`), which goes
//!   after seconds: HBase has no atomic test of an absence that tells it from an empty cell.
//! * A Delete hides what is put with its timestamp or an older one, also later. Ours carry the timestamp of the
//!   cell that they delete, from two milliseconds before. Those of others carry the server's time: what is put in
//!   the same millisecond, or while a clock is set back, is hidden. So a change that rests on an absence is read
//!   back, and made again where it cannot be seen.
//! * A Put can be hidden as well by the cell that it replaces, see `outshone`.
//! * Fences are raised by conditions on the fence's column alone: only those make sure that the new fence is
//!   stamped no older than the one before it, whatever the server's clock does.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::cells::OWN_PREFIX;
use super::fence::{RowFence, Standing};
use super::row::Row;
use super::table::{FenceColumns, Inner};
use crate::error::{Error, Result};
use crate::store::doubt::Pauses;
use crate::store::hbase::marks::{IN_FLIGHT_TTL, Operation, SENDING_MAX};
use crate::store::hbase::rows::Log;
use crate::store::hbase::steps::{Answer, Guard, Place, Repeat, Request, Rule, Step, Test, Which, Write};
use crate::time::Deadline;

/// Rounds of one change; each needs another client that changes the row between two steps, or a Delete that hides
/// what was put.
const ROUNDS: usize = 64;
/// How long the cell lasts that makes absences testable. The request that put it needs it, and nothing else.
const BEGUN_TTL: Duration = Duration::from_secs(5);
/// In that cell, and in a mark's column before its first mark.
const BEGUN: &[u8] = b".";
/// A Delete hides what is put with its timestamp, which is in milliseconds.
pub(super) const HIDDEN_PAUSE: Duration = Duration::from_millis(2);

/// What became of a change.
pub(super) enum Outcome {
    /// It was made. `None`: by a request that was not answered, so what additions came to is not known.
    Made(Option<Answer>),
    /// A test did not hold for what was read.
    Refused(Answer),
}

pub(super) struct Change<'a> {
    pub(super) row: &'a Row,
    pub(super) what: &'static str,
    pub(super) tests: Vec<Test<'a>>,
    pub(super) writes: Vec<Write<'a>>,
    pub(super) by: Deadline,
}

/// A change that writes a mark.
struct Marked<'a> {
    operation: Operation<'a>,
    place: Place,
}

impl Change<'_> {
    pub(super) fn run(&self) -> Result<Outcome> {
        let table = &*self.row.table.inner;
        let mut marked = self.mark(table)?;
        let begun = self.begun();
        let mut pauses = Pauses::until(self.by);
        let mut hidden = false;
        for _ in 0..ROUNDS {
            let raise = self.row.fence.as_ref().is_some_and(|fence| !fence.raised.load(Ordering::Relaxed));
            let steps = || self.steps(marked.as_ref(), &begun, raise);
            let never = Repeat::Never;
            let repeat = marked.as_ref().map_or(never, |of| Repeat::Until(&of.operation.in_flight));
            let request = Request { what: self.what, row: &self.row.key, repeat, steps: &steps };
            let mut answers = match table.store.run(&request, self.by.sooner(Deadline::after(SENDING_MAX))) {
                Ok(answers) => answers,
                Err(error) => return Err(in_doubt(error, marked.as_ref(), hidden)),
            };
            let look = if self.is_plain() { Answer::default() } else { answers.pop().unwrap_or_default() };
            let change = answers.pop().unwrap_or_default();
            if change.made {
                if let Some(fence) = &self.row.fence {
                    fence.raised.store(true, Ordering::Relaxed);
                }
                if let Some(place) = self.outshone(&look) {
                    return Err(Error::InDoubt {
                        what: format!(
                            "column {place} was written and cannot be seen: what it replaces has a later timestamp \
                             than the server's clock"
                        ),
                        source: None,
                    });
                }
                if self.can_be_seen(&look) {
                    return Ok(Outcome::Made(Some(change)));
                }
                hidden = true;
                if !self.may_be_made_again() {
                    break;
                }
                std::thread::sleep(HIDDEN_PAUSE);
                marked = self.mark(table)?;
            } else if let Some(outcome) = self.refused(marked.as_ref(), look)? {
                return Ok(outcome);
            }
            if !pauses.rest() {
                break;
            }
        }
        let error = Error::RetriesExhausted {
            store: table.store.describe().to_owned(),
            what: "the row changed, or what was put was hidden by a Delete, at each try".into(),
            source: None,
        };
        Err(in_doubt(error, marked.as_ref(), hidden))
    }

    /// Why a change was not made; `None` where nothing stands in its way any more.
    fn refused(&self, marked: Option<&Marked<'_>>, look: Answer) -> Result<Option<Outcome>> {
        if let Some(marked) = marked
            && look.value(&marked.place) == Some(&marked.operation.mark)
        {
            // Of several requests in flight it may be any that was made, and the mark must outlive the others.
            if marked.operation.in_flight.get() > 1 {
                let mark = &marked.operation.mark;
                if !self.settle(marked, Some(mark), mark)? {
                    return Ok(None);
                }
            }
            return Ok(Some(Outcome::Made(None)));
        }
        if let (Some(fence), Some(columns)) = (&self.row.fence, &self.row.table.inner.fences) {
            match fence.standing(columns, &look, self.row)? {
                Standing::Raised => {}
                // It has expired, or somebody deleted it.
                Standing::Lower => {
                    fence.raised.store(false, Ordering::Relaxed);
                    return Ok(None);
                }
            }
        }
        if self.tests.iter().all(|test| holds(test, &look)) {
            return Ok(None);
        }
        if let Some(marked) = marked.filter(|marked| marked.operation.in_flight.get() > 0) {
            // A request in flight must not find its tests to hold later.
            if !self.settle(marked, look.value(&marked.place), &marked.operation.given_up())? {
                return Ok(None);
            }
        }
        Ok(Some(Outcome::Refused(look)))
    }

    /// Writes `value` in place of the mark that was found; whether that was still there.
    fn settle(&self, marked: &Marked<'_>, found: Option<&[u8]>, value: &[u8]) -> Result<bool> {
        let rule = found.filter(|found| !found.is_empty()).map_or(Rule::MissingOrEmpty, Rule::Is);
        let steps = || {
            let put = Write::Put {
                cells: vec![(&marked.place, value)],
                ttl: Some(IN_FLIGHT_TTL),
                log: Log::Synced,
            };
            vec![Step::Change(Guard::One((&marked.place, rule)), vec![put])]
        };
        // None of its requests does harm when it comes late: the slot is not used again.
        let unanswered = Cell::new(0);
        let request = Request {
            what: "settling a change",
            row: &self.row.key,
            repeat: Repeat::Until(&unanswered),
            steps: &steps,
        };
        let answers = self.row.table.inner.store.run(&request, self.by);
        Ok(answers
            .map_err(|error| in_doubt(error, Some(marked), false))?
            .first()
            .is_some_and(|answer| answer.made))
    }

    fn mark<'t>(&self, table: &'t Inner) -> Result<Option<Marked<'t>>> {
        if !self.row.once {
            return Ok(None);
        }
        // The first cell that the condition looks at: a Put under it is stamped no older than that one, so that a
        // new mark is never hidden by an old one.
        let family = self.families().min().unwrap_or_default().to_vec();
        let column =
            |slot: &crate::store::hbase::marks::Slot| [OWN_PREFIX, b"op_", slot.name().as_bytes()].concat();
        let operation = Operation::begin(&table.slots, column, Duration::ZERO, self.by)?;
        let place = Place { family, qualifier: operation.column.clone() };
        Ok(Some(Marked { operation, place }))
    }

    fn begun(&self) -> Place {
        let family = self.tests.first().map(|(place, _)| place.family.clone()).unwrap_or_default();
        Place { family, qualifier: [OWN_PREFIX, b"begun"].concat() }
    }

    /// Whether nothing decides about it.
    fn is_plain(&self) -> bool {
        self.tests.is_empty() && self.row.fence.is_none() && !self.row.once
    }

    fn steps<'s>(&'s self, marked: Option<&'s Marked<'_>>, begun: &'s Place, raise: bool) -> Vec<Step<'s>> {
        let mut steps = Vec::with_capacity(5);
        let (mut tests, mut writes) = (self.tests.clone(), self.writes.clone());
        if let Some((fence, columns)) = self.fence() {
            if raise {
                steps.extend(fence.raising(columns, self.row.table.inner.fence_ttl));
            }
            tests.extend(fence.stands(columns));
        }
        if let Some(Marked { operation, place }) = marked {
            let put =
                |value, log| Write::Put { cells: vec![(place, value)], ttl: Some(operation.mark_ttl()), log };
            let missing = Guard::One((place, Rule::MissingOrEmpty));
            steps.push(Step::Change(missing, vec![put(BEGUN, Log::Lazy)]));
            tests.push((place, Rule::BeginsNot(&operation.mark)));
            writes.push(put(&operation.mark, Log::Synced));
        }
        let guard = match tests.as_slice() {
            [] => Guard::Always,
            [test] if may_be_alone(test) => Guard::One(*test),
            _ => {
                if !tests.iter().any(|(_, rule)| asks_presence(rule)) {
                    let put =
                        Write::Put { cells: vec![(begun, BEGUN)], ttl: Some(BEGUN_TTL), log: Log::Lazy };
                    steps.push(Step::Change(Guard::Always, vec![put]));
                    tests.push((begun, Rule::NotEmpty));
                }
                Guard::All(tests)
            }
        };
        steps.push(Step::Change(guard, writes));
        if !self.is_plain() {
            steps.push(Step::Read(self.look(marked)));
        }
        steps
    }

    /// What tells why a change was not made, and whether what it put can be seen.
    fn look<'s>(&'s self, marked: Option<&'s Marked<'_>>) -> Which<'s> {
        let mut columns: Vec<&Place> = self.tests.iter().map(|(place, _)| *place).collect();
        columns.extend(self.fence().into_iter().flat_map(|(_, of)| [&of.fence, &of.lock]));
        columns.extend(marked.map(|marked| &marked.place));
        if self.rests_on_absence() {
            columns.extend(self.put().map(|(place, _)| place));
        }
        columns.sort_unstable();
        columns.dedup();
        Which { columns, families: Vec::new(), versions: 1 }
    }

    fn fence(&self) -> Option<(&RowFence, &FenceColumns)> {
        self.row.fence.as_deref().zip(self.row.table.inner.fences.as_ref())
    }

    fn rests_on_absence(&self) -> bool {
        self.tests.iter().any(|(_, rule)| matches!(rule, Rule::Missing | Rule::MissingOrEmpty))
    }

    /// Whether what was put is there. What was absent and is there now decides, if there is any such: the other
    /// columns may have been deleted since. For an anchor, which decides who made the row, it must be what we put:
    /// where ours is hidden, another may have been faster by now.
    fn can_be_seen(&self, look: &Answer) -> bool {
        if !self.rests_on_absence() {
            return true;
        }
        let rule =
            |place: &Place| self.tests.iter().find(|(tested, _)| *tested == place).map(|(_, rule)| rule);
        let seen = |(place, value): (&Place, &[u8])| match (rule(place), look.value(place)) {
            (Some(Rule::MissingOrEmpty), found) => found == Some(value),
            (_, found) => found.is_some(),
        };
        let was_absent = |place: &Place| matches!(rule(place), Some(Rule::Missing | Rule::MissingOrEmpty));
        if self.put().any(|(place, _)| was_absent(place)) {
            return self.put().filter(|(place, _)| was_absent(place)).any(seen);
        }
        self.put().next().is_none() || self.put().any(seen)
    }

    /// Whether it has no more effect when it is made again behind itself.
    fn may_be_made_again(&self) -> bool {
        self.writes.iter().all(|write| matches!(write, Write::Put { .. }))
    }

    /// A column that was written, and that still shows what it held before. Where several columns are tested, the
    /// server stamps what is put no older than the first of them, and the others may be younger: it was added to more
    /// than once in this millisecond, or the clock was set back.
    fn outshone(&self, look: &Answer) -> Option<&Place> {
        let before = |place: &Place| {
            self.tests.iter().find_map(|(tested, rule)| match rule {
                Rule::Is(before) if *tested == place => Some(*before),
                _ => None,
            })
        };
        let hidden = |(place, value): &(&Place, &[u8])| {
            before(place).is_some_and(|before| before != *value && look.value(place) == Some(before))
        };
        self.put().find(hidden).map(|(place, _)| place)
    }

    fn put(&self) -> impl Iterator<Item = (&Place, &[u8])> {
        let puts = self.writes.iter().filter_map(|write| match write {
            Write::Put { cells, .. } => Some(cells),
            Write::Add(..) | Write::Delete(_) => None,
        });
        puts.flatten().copied()
    }

    /// The families that are tested or written.
    fn families(&self) -> impl Iterator<Item = &[u8]> {
        let written = self.writes.iter().flat_map(|write| match write {
            Write::Put { cells, .. } => cells.iter().map(|(place, _)| *place).collect(),
            Write::Add(place, _) => vec![*place],
            Write::Delete(cells) => cells.iter().map(|(place, _)| *place).collect(),
        });
        self.tests.iter().map(|(place, _)| *place).chain(written).map(|place| place.family.as_slice())
    }
}

/// Whether a comparison of one column can say it.
fn may_be_alone((_, rule): &Test<'_>) -> bool {
    match rule {
        Rule::Is(value) => !value.is_empty(),
        Rule::MissingOrEmpty | Rule::NotEmpty => true,
        Rule::Missing | Rule::BeginsNot(_) | Rule::Below(_) => false,
    }
}

fn asks_presence(rule: &Rule<'_>) -> bool {
    !matches!(rule, Rule::Missing | Rule::MissingOrEmpty)
}

/// Whether a rule holds for what was read.
fn holds((place, rule): &Test<'_>, look: &Answer) -> bool {
    match (look.value(place), rule) {
        (found, Rule::Is(value)) => found == Some(value),
        (found, Rule::Missing) => found.is_none(),
        (found, Rule::MissingOrEmpty) => found.is_none_or(<[u8]>::is_empty),
        (found, Rule::NotEmpty) => found.is_some_and(|found| !found.is_empty()),
        (found, Rule::BeginsNot(with)) => found.is_some_and(|found| !found.starts_with(with)),
        (found, Rule::Below(with)) => found.is_some_and(|found| found < *with),
    }
}

/// `error`, as the outcome of a change of which a request may yet be run, or was made and could not be seen.
fn in_doubt(error: Error, marked: Option<&Marked<'_>>, hidden: bool) -> Error {
    let unanswered = marked.is_some_and(|marked| marked.operation.in_flight.get() > 0);
    if error.is_in_doubt() || !(unanswered || hidden) {
        return error;
    }
    let what = if hidden {
        "it was written, and cannot be seen behind cells or Deletes with later timestamps"
    } else {
        "an earlier request of this change was not answered"
    };
    Error::InDoubt { what: what.into(), source: Some(error.into()) }
}
