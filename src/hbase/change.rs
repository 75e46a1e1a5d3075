//! One change of one row, made in one atomic step if its tests hold: its requests, and the meaning of the replies.
//!
//! ```text
//! steps of one request                             why
//! fence missing -> our fence      (fenced rows)    a filter never holds for a row without cells
//! fence below ours -> our fence   (fenced rows)    each holder raises it once, before its first change
//! mark missing -> "begun"         (exactly once)   the row then has a cell, so absences can be tested
//! newest as read -> "begun"       (exactly once)   the mark's column is then as new as the cells to overwrite
//! tests, fence is ours, not our mark -> the change, our mark
//! read the tested columns                          shows why it was refused, and whether its Puts are visible
//! ```
//!
//! * A change without fence and mark that tests only absences first writes a cell of its own (`BEGUN`), which
//!   expires after seconds. A single test for "missing or empty", as in `create`, needs no such cell.
//!   HBase's condition on one column does not distinguish an absent cell from an empty one, and a filter never
//!   holds for a row without cells (`HRegion.checkAndMutateInternal`).
//! * A Delete hides Puts with its timestamp or an older one, even later Puts. Our Deletes carry the timestamp of
//!   the cell that they delete, which is at least two milliseconds old. Deletes of others carry the server's
//!   time. They hide Puts of the same millisecond, and Puts made while a clock is set back. So a change that
//!   depends on an absence is read back, and made again if it is not visible.
//! * A cell hides later Puts with an older timestamp. Timestamps run ahead of the clock if a counter is added to
//!   more than once in a millisecond (`HRegion.reckonDelta`), or if a clock was set back. A server stamps a Put
//!   no older than one cell of the condition, and we choose this cell: the newest of the cells that were read. An
//!   older mark must not hide a mark in its column either. So the old mark is first overwritten with a timestamp
//!   no older than that of the newest cell. The change is then stamped no older than this.
//! * The filter that guards the raising of a fence passes the fence's cell, so the server stamps the new fence no
//!   older than that cell, even if the server's clock was set back.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::cells::{OWN_PREFIX, RowCells};
use super::fence::{FenceStanding, RowFence};
use super::row_id::RowId;
use super::table::{FenceColumns, OpenTable};
use crate::error::{Error, Result};
use crate::runtime::time::{self, Deadline};
use crate::store::hbase::cell_store::Durability;
use crate::store::hbase::marks::{IN_FLIGHT_TTL, MarkSlot, MarkedOperation, SENDING_MAX};
use crate::store::hbase::steps::{
    AfterWrite, CellTest, CellWrite, ColumnName, Repeat, Request, RowAnswer, RowGuard, RowStep, Rule, Which,
};
use crate::store::remote::resolve::Pauses;

/// Most rounds of one change. A round fails only if another client changes the row between two steps, or a Delete
/// hides a Put.
const ROUNDS: usize = 64;
/// TTL of the cell that makes absences testable. Only the request that writes it needs it.
const BEGUN_TTL: Duration = Duration::from_secs(5);
/// Value of that cell, and of a mark's column before its first mark.
const BEGUN: &[u8] = b".";
/// Pause before a Delete, and before a hidden change is made again. A Delete hides all Puts with its timestamp,
/// which has a resolution of milliseconds.
pub(super) const HIDDEN_PAUSE: Duration = Duration::from_millis(2);

/// Largest difference of two servers' clocks that marks allow for. HBase's master refuses a server whose clock
/// differs from its own by more than 30 s (`hbase.master.maxclockskew`).
const CLOCKS_DIFFER: Duration = Duration::from_secs(120);

const HIDDEN: &str = "it was written but is not visible: cells or Deletes with later timestamps hide it, or \
                      another client has already replaced it";

/// Outcome of a change.
pub(super) enum ChangeOutcome {
    /// It was made. `None` if it was made by a request without a reply, so the sums of additions are unknown.
    Made(Option<RowAnswer>),
    /// A test does not hold for the cells that were read back.
    Refused(RowAnswer),
}

pub(super) struct RowChange<'a> {
    pub(super) row: &'a RowId,
    /// Whether it writes an idempotency mark.
    pub(super) once: bool,
    pub(super) fence: Option<&'a RowFence>,
    pub(super) what: &'static str,
    pub(super) tests: Vec<CellTest<'a>>,
    pub(super) writes: Vec<CellWrite<'a>>,
    /// The cells from which the tests were made, if they were read before.
    pub(super) read: Option<&'a RowCells>,
    pub(super) by: Deadline,
}

/// A change that writes a mark.
struct Marked<'a> {
    operation: MarkedOperation<'a>,
    column: ColumnName,
}

impl RowChange<'_> {
    pub(super) fn run(&self) -> Result<ChangeOutcome> {
        let table = &*self.row.table.inner;
        let mut marked = self.mark(table)?;
        let begun = self.begun();
        let mut pauses = Pauses::until(self.by);
        let mut hidden = false;
        for _ in 0..ROUNDS {
            let raise = self.fence.is_some_and(|fence| !fence.raised.load(Ordering::Relaxed));
            let steps = || self.steps(marked.as_ref(), &begun, raise);
            let never = Repeat::Never;
            let repeat = marked.as_ref().map_or(never, |of| Repeat::Until(&of.operation.in_flight));
            let request = Request { what: self.what, row: &self.row.key, repeat, steps: &steps };
            let mut answers = match table.store.run(&request, self.by.sooner(Deadline::after(SENDING_MAX))) {
                Ok(answers) => answers,
                Err(error) => return Err(in_doubt(error, marked.as_ref(), hidden)),
            };
            let seen = if self.is_plain() { RowAnswer::default() } else { answers.pop().unwrap_or_default() };
            let change = answers.pop().unwrap_or_default();
            let outcome = if change.made {
                if let Some(fence) = self.fence {
                    fence.raised.store(true, Ordering::Relaxed);
                }
                Some(ChangeOutcome::Made(Some(change)))
            } else {
                self.refused(marked.as_ref(), &seen)?
            };
            match outcome {
                Some(ChangeOutcome::Made(answer)) if !self.can_be_seen(&seen, answer.is_some()) => {
                    hidden = true;
                    // It must not be made again if others may have deleted or replaced it since.
                    if seen.read != AfterWrite::AtOnce
                        || self.shows_another(&seen)
                        || !self.may_be_made_again()
                    {
                        break;
                    }
                    time::sleep(HIDDEN_PAUSE);
                    marked = self.mark(table)?;
                }
                Some(outcome) => return Ok(outcome),
                None => {}
            }
            if !pauses.rest() {
                break;
            }
        }
        let error = Error::RetriesExhausted {
            store: table.store.describe().to_owned(),
            what: "the row changed, or a Delete hid what was written, at each attempt".into(),
            source: None,
        };
        Err(in_doubt(error, marked.as_ref(), hidden))
    }

    /// Finds out why a change was not made. `None` if nothing prevents it any more.
    fn refused(&self, marked: Option<&Marked<'_>>, answer: &RowAnswer) -> Result<Option<ChangeOutcome>> {
        if let Some(marked) = marked
            && answer.value(&marked.column) == Some(&marked.operation.mark)
        {
            // Any of the requests in flight may have made the change, and its mark must outlive the others.
            if marked.operation.in_flight.get() > 1 {
                let mark = &marked.operation.mark;
                if !self.settle(marked, Some(mark), mark)? {
                    return Ok(None);
                }
            }
            return Ok(Some(ChangeOutcome::Made(None)));
        }
        if let (Some(fence), Some(columns)) = (self.fence, &self.row.table.inner.fences) {
            match fence.standing(columns, answer, self.row)? {
                FenceStanding::Raised => {}
                // Our fence has expired, or somebody deleted it.
                FenceStanding::Lower => {
                    fence.raised.store(false, Ordering::Relaxed);
                    return Ok(None);
                }
            }
        }
        if self.tests.iter().all(|test| holds(test, answer)) {
            return Ok(None);
        }
        if let Some(marked) = marked.filter(|marked| marked.operation.in_flight.get() > 0) {
            // The tests of a request in flight must not hold later.
            if !self.settle(marked, answer.value(&marked.column), &marked.operation.given_up())? {
                return Ok(None);
            }
        }
        Ok(Some(ChangeOutcome::Refused(answer.clone())))
    }

    /// Replaces the mark that was found by `value`. Returns whether it was still there.
    fn settle(&self, marked: &Marked<'_>, found: Option<&[u8]>, value: &[u8]) -> Result<bool> {
        let rule = found.filter(|found| !found.is_empty()).map_or(Rule::MissingOrEmpty, Rule::Is);
        let steps = || {
            let put = CellWrite::Put {
                cells: vec![(&marked.column, value)],
                ttl: Some(IN_FLIGHT_TTL),
                durability: Durability::UseDefault,
            };
            vec![RowStep::Change(RowGuard::One((&marked.column, rule)), vec![put])]
        };
        // A late request of this kind is harmless, because the slot is not used again.
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

    fn mark<'t>(&self, table: &'t OpenTable) -> Result<Option<Marked<'t>>> {
        if !self.once {
            return Ok(None);
        }
        let family = self.families().min().unwrap_or_default().to_vec();
        let column = |slot: &MarkSlot| [OWN_PREFIX, b"op_", slot.name().as_bytes()].concat();
        // The mark then lasts until `by` even if the region moves to a server whose clock differs by this much.
        let lasts = self.by.remaining() + CLOCKS_DIFFER;
        let operation = MarkedOperation::begin(&table.marks, column, lasts, self.by)?;
        let column = ColumnName { family, qualifier: operation.column.clone() };
        Ok(Some(Marked { operation, column }))
    }

    fn begun(&self) -> ColumnName {
        let family = self.tests.first().map(|(column, _)| column.family.clone()).unwrap_or_default();
        ColumnName { family, qualifier: [OWN_PREFIX, b"begun"].concat() }
    }

    /// Returns whether the change is unconditional.
    fn is_plain(&self) -> bool {
        self.tests.is_empty() && self.fence.is_none() && !self.once
    }

    fn steps<'s>(
        &'s self,
        marked: Option<&'s Marked<'_>>,
        begun: &'s ColumnName,
        raise: bool,
    ) -> Vec<RowStep<'s>> {
        let mut steps = Vec::with_capacity(5);
        let (mut tests, mut writes) = (self.tests.clone(), self.writes.clone());
        if let Some((fence, columns)) = self.fence_columns() {
            if raise {
                steps.extend(fence.raising(columns, self.row.table.inner.fence_ttl));
            }
            tests.extend(fence.stands(columns));
        }
        let newest = self.newest();
        if let Some(Marked { operation, column }) = marked {
            let put = |value, durability| CellWrite::Put {
                cells: vec![(column, value)],
                ttl: Some(operation.mark_ttl()),
                durability,
            };
            let missing = RowGuard::One((column, Rule::MissingOrEmpty));
            steps.push(RowStep::Change(missing, vec![put(BEGUN, Durability::Async)]));
            let not_made = (column, Rule::BeginsNot(&operation.mark));
            if let Some(newest) = newest {
                let newest = RowGuard::All(vec![self.tests[newest], not_made]);
                steps.push(RowStep::Change(newest, vec![put(BEGUN, Durability::Async)]));
            }
            tests.insert(0, not_made);
            writes.push(put(&operation.mark, Durability::UseDefault));
        } else if let Some(newest) = newest {
            tests.swap(0, newest);
        }
        let guard = match tests.as_slice() {
            [] => RowGuard::Always,
            [test] if may_be_alone(test) => RowGuard::One(*test),
            _ => {
                match tests.iter().position(|(_, rule)| asks_presence(rule)) {
                    Some(there) => tests.swap(0, there),
                    None => {
                        let put = CellWrite::Put {
                            cells: vec![(begun, BEGUN)],
                            ttl: Some(BEGUN_TTL),
                            durability: Durability::Async,
                        };
                        steps.push(RowStep::Change(RowGuard::Always, vec![put]));
                        tests.insert(0, (begun, Rule::NotEmpty));
                    }
                }
                RowGuard::All(tests)
            }
        };
        steps.push(RowStep::Change(guard, writes));
        if !self.is_plain() {
            steps.push(RowStep::Read(self.columns_to_read(marked)));
        }
        steps
    }

    /// Returns the index of the test of the newest cell that was read, if any.
    fn newest(&self) -> Option<usize> {
        let read_ms =
            |column: &ColumnName| self.read.and_then(|read| read.written_ms(column)).unwrap_or_default();
        let there = self.tests.iter().enumerate().filter(|(_, (_, rule))| asks_presence(rule));
        there.max_by_key(|(_, (column, _))| read_ms(column)).map(|(number, _)| number)
    }

    /// Returns the columns to read back. They show why a change was not made, and whether its Puts are visible.
    fn columns_to_read<'s>(&'s self, marked: Option<&'s Marked<'_>>) -> Which<'s> {
        let mut columns: Vec<&ColumnName> = self.tests.iter().map(|(column, _)| *column).collect();
        columns.extend(self.fence_columns().into_iter().flat_map(|(_, of)| [&of.fence, &of.lock]));
        columns.extend(marked.map(|marked| &marked.column));
        if self.rests_on_absence() {
            columns.extend(self.put().map(|(column, _)| column));
        }
        columns.sort_unstable();
        columns.dedup();
        Which { columns, families: Vec::new(), versions: 1 }
    }

    fn fence_columns(&self) -> Option<(&RowFence, &FenceColumns)> {
        self.fence.zip(self.row.table.inner.fences.as_ref())
    }

    fn rests_on_absence(&self) -> bool {
        self.tests.iter().any(|(_, rule)| matches!(rule, Rule::Missing | Rule::MissingOrEmpty))
    }

    /// Returns whether the Puts are visible. If the change put columns that were tested to be absent, these decide,
    /// because the others may have been deleted since. An anchor decides who created the row, so it must have the
    /// value that we put: if our Put is hidden, another client may have created the row since.
    ///
    /// If the change was made by a request without a reply (`at_once` is false), an absence proves nothing, because
    /// another client may have deleted the cell since.
    fn can_be_seen(&self, answer: &RowAnswer, at_once: bool) -> bool {
        if !self.rests_on_absence() || !at_once {
            return true;
        }
        if answer.read == AfterWrite::Failed {
            return false;
        }
        let rule = |column: &ColumnName| {
            self.tests.iter().find(|(tested, _)| *tested == column).map(|(_, rule)| rule)
        };
        let seen = |(column, value): (&ColumnName, &[u8])| match (rule(column), answer.value(column)) {
            (Some(Rule::MissingOrEmpty), found) => found == Some(value),
            (_, found) => found.is_some(),
        };
        let was_absent =
            |column: &ColumnName| matches!(rule(column), Some(Rule::Missing | Rule::MissingOrEmpty));
        if self.put().any(|(column, _)| was_absent(column)) {
            return self.put().filter(|(column, _)| was_absent(column)).any(seen);
        }
        self.put().next().is_none() || self.put().any(seen)
    }

    /// Returns whether another client's anchor is visible. Ours may be hidden, or may have been replaced.
    fn shows_another(&self, answer: &RowAnswer) -> bool {
        let anchors = self.tests.iter().filter(|(_, rule)| matches!(rule, Rule::MissingOrEmpty));
        anchors.into_iter().any(|(column, _)| answer.value(column).is_some_and(|found| !found.is_empty()))
    }

    /// Returns whether making the change a second time has no further effect.
    fn may_be_made_again(&self) -> bool {
        self.writes.iter().all(|write| matches!(write, CellWrite::Put { .. }))
    }

    fn put(&self) -> impl Iterator<Item = (&ColumnName, &[u8])> {
        let puts = self.writes.iter().filter_map(|write| match write {
            CellWrite::Put { cells, .. } => Some(cells),
            CellWrite::Add(..) | CellWrite::Delete(_) => None,
        });
        puts.flatten().copied()
    }

    /// Returns the families that are tested or written.
    fn families(&self) -> impl Iterator<Item = &[u8]> {
        let written = self.writes.iter().flat_map(|write| match write {
            CellWrite::Put { cells, .. } => cells.iter().map(|(column, _)| *column).collect(),
            CellWrite::Add(column, _) => vec![*column],
            CellWrite::Delete(cells) => cells.iter().map(|(column, _)| *column).collect(),
        });
        self.tests.iter().map(|(column, _)| *column).chain(written).map(|column| column.family.as_slice())
    }
}

/// Returns whether a condition on one column can express the test.
fn may_be_alone((_, rule): &CellTest<'_>) -> bool {
    match rule {
        Rule::Is(value) => !value.is_empty(),
        Rule::MissingOrEmpty | Rule::NotEmpty => true,
        Rule::Missing | Rule::BeginsNot(_) | Rule::Below(_) => false,
    }
}

fn asks_presence(rule: &Rule<'_>) -> bool {
    !matches!(rule, Rule::Missing | Rule::MissingOrEmpty)
}

/// Returns whether a test holds for the cells that were read.
fn holds((column, rule): &CellTest<'_>, answer: &RowAnswer) -> bool {
    match (answer.value(column), rule) {
        (found, Rule::Is(value)) => found == Some(value),
        (found, Rule::Missing) => found.is_none(),
        (found, Rule::MissingOrEmpty) => found.is_none_or(<[u8]>::is_empty),
        (found, Rule::NotEmpty) => found.is_some_and(|found| !found.is_empty()),
        (found, Rule::BeginsNot(with)) => found.is_some_and(|found| !found.starts_with(with)),
        (found, Rule::Below(with)) => found.is_some_and(|found| found < *with),
    }
}

/// Turns `error` into IN_DOUBT if a request of the change may yet take effect, or if it took effect and is hidden.
fn in_doubt(error: Error, marked: Option<&Marked<'_>>, hidden: bool) -> Error {
    let unanswered = marked.is_some_and(|marked| marked.operation.in_flight.get() > 0);
    if error.is_in_doubt() || !(unanswered || hidden) {
        return error;
    }
    let what = if hidden { HIDDEN } else { "an earlier request of this change got no reply" };
    Error::InDoubt { what: what.into(), source: Some(error.into()) }
}
