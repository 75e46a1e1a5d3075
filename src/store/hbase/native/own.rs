//! The operations of the layout `own`, as requests to a region.

use std::time::Duration;

use prost::bytes::Bytes;

use super::bytes::{EMPTY, packed};
use super::filter::{CellFilter, CellValue, FilterTest};
use super::locks::RecordRows;
use super::messages::{Cell, Condition, EQUAL, Get, MutationProto, RegionAction, RegionActionResult};
use super::request::{
    cells, check, comparing, conditional, conditional_somewhere, durable, filtering, filtering_all, get,
    in_turn, processed, put, reading, together,
};
use super::rpc::Native;
use super::send_error::{SendError, may_be_run, protocol_violation};
use crate::error::Result;
use crate::names::mode::Mode;
use crate::runtime::time::Deadline;
use crate::store::hbase::cell_store::{self, Durability};
use crate::store::hbase::layout::{OWN_FENCE, OWN_LOCK};
use crate::store::hbase::locks::FENCE_TTL;
use crate::store::hbase::own;
use crate::store::hbase::own_store::{
    Allowed, BesideCell, Claimed, Expects, LockCellTest, LockCellWrite, LockRowChange, LockRowChanged,
    LockRowCondition, LockRowStep, NumberTest, OwnCells, OwnStore, OwnWrite,
};
use crate::store::hbase::row_hints::RowHints;
use crate::store::remote::resolve::part;
use crate::store::remote::{OnReply, Record, Replace, Standing};
use crate::store::request_kind::RequestKind;

static FAMILY: Bytes = Bytes::from_static(OWN_LOCK.family.as_bytes());
static NUMBER: Bytes = Bytes::from_static(OWN_FENCE.qualifier.as_bytes());
static RECORD: Bytes = Bytes::from_static(OWN_LOCK.qualifier.as_bytes());

/// An [`OwnWrite`], as the fields of messages.
struct OwnBytes {
    row: Bytes,
    number: Bytes,
    first: Bytes,
    record: Bytes,
}

impl OwnStore for Native {
    fn claim(&self, write: &OwnWrite<'_>, expects: &Expects, by: Deadline) -> Result<Claimed> {
        let (what, number) = ("conditional Put of record and number", write.number.to_be_bytes());
        let first = write.first.to_be_bytes();
        let [row, number, first, record] = packed([write.row, &number, &first, write.record]);
        let bytes = OwnBytes { row, number, first, record };
        self.on_region(RequestKind::Write, what, write.row, by, |region, by| {
            let mut actions = vec![conditional(region, condition(&bytes, expects), puts(&bytes, write))];
            if *expects != Expects::Unused {
                actions.push(in_turn(region, vec![reading(whole(&bytes.row))]));
            }
            let results = self.multi(region, actions, by)?;
            if processed(results.first().ok_or_else(protocol_violation)?)? {
                return Ok(Claimed::Made);
            }
            let seen = results.get(1).and_then(|seen| cells(seen).ok());
            Ok(Claimed::Refused(seen.map(decoded)))
        })
    }

    fn rewrite(&self, write: &OwnWrite<'_>, expected: &[u8], parts: u32, by: Deadline) -> Result<bool> {
        let (what, number) = ("conditional Put of record and number", write.number.to_be_bytes());
        let [row, number, record, expected] = packed([write.row, &number, write.record, expected]);
        let bytes = OwnBytes { row, first: number.clone(), number, record };
        self.on_region(RequestKind::Write, what, write.row, by, |region, by| {
            let action = conditional(region, held(&bytes, &expected), puts(&bytes, write));
            let results = self.multi(region, vec![action], part(by, parts))?;
            processed(results.first().ok_or_else(protocol_violation)?)
        })
    }

    fn change(&self, change: &LockRowChange<'_>, by: Deadline) -> Result<LockRowChanged> {
        let row = Bytes::copy_from_slice(change.row);
        self.on_region(RequestKind::Write, "conditional Put of holds", change.row, by, |region, by| {
            let step = |step: &LockRowStep| {
                conditional(
                    region,
                    row_condition(&row, &step.condition),
                    step_puts(&row, step, change.durability),
                )
            };
            let mut actions: Vec<_> = change.steps.iter().map(step).collect();
            if change.reads {
                actions.push(in_turn(region, vec![reading(whole(&row))]));
            }
            let results = self.multi(region, actions, part(by, change.parts))?;
            let (steps, seen) =
                results.split_at_checked(change.steps.len()).ok_or_else(protocol_violation)?;
            let made = made(steps)?;
            let seen = seen.first().and_then(|seen| cells(seen).ok().map(decoded));
            Ok(match made {
                Some(at) => LockRowChanged::Made(at, seen),
                None => LockRowChanged::Refused(seen),
            })
        })
    }

    fn put_beside(
        &self,
        row: &[u8],
        qualifier: &[u8],
        value: &[u8],
        ttl: Duration,
        by: Deadline,
    ) -> Result<()> {
        let [key, qualifier, value] = packed([row, qualifier, value]);
        self.on_region(RequestKind::Repeatable, "Put", row, by, |region, by| {
            let put = put(&key, &FAMILY, [(qualifier.clone(), value.clone())], Some(ttl));
            let results = self.multi(region, vec![together(region, [put])], by)?;
            check(results.first().ok_or_else(protocol_violation)?)
        })
    }

    fn replace_many<'a>(
        &self,
        changes: Vec<Replace<'a>>,
        hints: &RowHints,
        by: Deadline,
        answered: OnReply<'_, 'a>,
    ) {
        self.replace_each(changes, by, answered, &OwnRows(hints));
    }

    fn read_cells(&self, row: &[u8], by: Deadline) -> Result<OwnCells> {
        Ok(decoded(&self.read_row(row, whole, by)?))
    }

    fn read_many(&self, rows: &[Vec<u8>], by: Deadline, report: &mut dyn FnMut(usize, OwnCells)) {
        self.get_each(rows, by, whole, |index, result| {
            if let Ok(seen) = cells(&result) {
                report(index, decoded(seen));
            }
        });
    }
}

struct OwnRows<'h>(&'h RowHints);

impl RecordRows for OwnRows<'_> {
    fn change(&self, row: &Bytes, change: &Replace<'_>) -> RegionAction {
        let Replace { expected, record, .. } = change;
        if expected.mode() == Mode::Permit {
            // No row has the number 0, so one of which nothing is known is read.
            let base = self.0.permits(row).unwrap_or_else(|| (own::permits_base(0, expected.ttl(), 0), None));
            let step = own::renew_permit(expected, record, &base);
            let condition = row_condition(row, &step.condition);
            return conditional_somewhere(condition, step_puts(row, &step, Durability::Sync));
        }
        if expected.place().is_some() {
            let number = expected.number().unwrap_or_default();
            let step = own::renew(expected, record, self.0.base(row, number, expected.ttl()));
            let condition = row_condition(row, &step.condition);
            return conditional_somewhere(condition, step_puts(row, &step, Durability::Sync));
        }
        // No stored number is 0, so the change of a record without a number is refused.
        let number = expected.number().unwrap_or_default();
        let write = own::write(row, number, (record.as_bytes(), record.ttl()), Durability::Sync);
        let [number, record, expected] =
            packed([&number.to_be_bytes(), record.as_bytes(), expected.as_bytes()]);
        let bytes = OwnBytes { row: row.clone(), first: number.clone(), number, record };
        conditional_somewhere(held(&bytes, &expected), puts(&bytes, &write))
    }

    fn read(&self, row: &Bytes) -> Get {
        whole(row)
    }

    fn standing(
        &self,
        row: &Bytes,
        change: &Replace<'_>,
        seen: RegionActionResult,
    ) -> Result<Standing, SendError> {
        Ok(own::standing_of(decoded(cells(&seen)?), &change.expected, (self.0, row)))
    }
}

/// A filter never passes for a row without cells, so an unused row needs a plain comparison. The number sorts before the
/// record, so it is the first cell that the filter passes: the server stamps the Puts no older than that.
fn condition(bytes: &OwnBytes, expects: &Expects) -> Condition {
    match expects {
        Expects::Unused => comparing(&bytes.row, &FAMILY, &NUMBER, EQUAL, &EMPTY),
        Expects::Free => {
            let below = FilterTest::below(&FAMILY, &NUMBER, &bytes.first);
            filtering(&bytes.row, &[below, FilterTest::none(&FAMILY, &RECORD)])
        }
        Expects::Outlived { number, record } => {
            let [number, record] = packed([&number.to_be_bytes(), record]);
            both_are(&bytes.row, &number, &record)
        }
        Expects::Deserted(condition) => row_condition(&bytes.row, condition),
    }
}

/// Builds the condition of a change of holds.
///
/// The filter for all cells is a `SkipFilter`: it passes a row only if its inner filter passes each cell. Nothing may hide cells
/// from it, so there is no filter for columns before it, and the number is still the first cell that passes: see [`condition`].
fn row_condition(row: &Bytes, condition: &LockRowCondition) -> Condition {
    let number = match condition.number {
        NumberTest::Absent => return comparing(row, &FAMILY, &NUMBER, EQUAL, &EMPTY),
        NumberTest::Is(number) => FilterTest::is(&FAMILY, &NUMBER, &be_bytes(number)),
        NumberTest::Below(number) => FilterTest::below(&FAMILY, &NUMBER, &be_bytes(number)),
    };
    let cell = |(qualifier, test): &(Vec<u8>, LockCellTest)| {
        let qualifier = Bytes::copy_from_slice(qualifier);
        match test {
            LockCellTest::Is(value) => FilterTest::is(&FAMILY, &qualifier, &Bytes::copy_from_slice(value)),
            LockCellTest::Empty => FilterTest::none(&FAMILY, &qualifier),
            LockCellTest::Filled => FilterTest::some(&FAMILY, &qualifier),
            LockCellTest::UpTo(value) => {
                FilterTest::up_to(&FAMILY, &qualifier, &Bytes::copy_from_slice(value))
            }
        }
    };
    let tests: Vec<_> = [number].into_iter().chain(condition.cells.iter().map(cell)).collect();
    match &condition.allows {
        None => filtering(row, &tests),
        Some(allowed) => filtering_all(row, &tests, allowed_cells(allowed)),
    }
}

/// Builds the list of what a cell may be.
fn allowed_cells(allowed: &Allowed) -> Vec<CellFilter> {
    let [place, permit] = [Bytes::from_static(&[own::PLACE]), Bytes::from_static(&[own::PERMIT])];
    let free = Bytes::from_static(&[own::FREE_PLACE]);
    let mut cells = vec![
        // The condition tests them on its own.
        CellFilter::column(&NUMBER),
        CellFilter::column(&RECORD),
        CellFilter::column(&Bytes::from_static(own::TURN)),
        CellFilter::empty(),
        CellFilter::column(&Bytes::from_static(own::SIZE)),
        CellFilter::beginning(&place, CellValue::Begins(free)),
        CellFilter::beginning(&Bytes::from_static(&[own::PERMIT_NUMBER]), CellValue::Any),
    ];
    let mode = |mode: &Mode| Record::begins(*mode).map(|begins| Bytes::copy_from_slice(&begins));
    let holds = allowed.modes.iter().filter_map(mode);
    cells.extend(holds.map(|begins| CellFilter::beginning(&place, CellValue::Begins(begins))));
    if let Some(begins) = mode(&Mode::Permit).filter(|_| allowed.permits > 0) {
        let below = u8::try_from(allowed.permits).ok().map(|number| Bytes::from(own::permit(number)));
        cells.push(CellFilter::beginning_below(&permit, below.as_ref(), &begins));
    }
    if allowed.intents {
        cells.push(CellFilter::beginning(&Bytes::from_static(&[own::INTENT]), CellValue::Any));
    }
    let exactly = |(qualifier, value): &(Vec<u8>, Vec<u8>)| {
        CellFilter::exactly(&Bytes::copy_from_slice(qualifier), &Bytes::copy_from_slice(value))
    };
    cells.extend(allowed.exactly.iter().map(exactly));
    cells
}

fn be_bytes(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

/// Returns the position of the step that was made.
///
/// The server goes on after a step that failed. So the error of one step is no answer while another one was made, or may have
/// been: what was "surely not applied" would be sent again, or reported as not done.
fn made(steps: &[RegionActionResult]) -> Result<Option<usize>, SendError> {
    let mut failed = None;
    for (at, step) in steps.iter().enumerate() {
        match processed(step) {
            Ok(true) => return Ok(Some(at)),
            Ok(false) => {}
            Err(error) if failed.as_ref().is_some_and(may_be_run) => drop(error),
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(None), Err)
}

/// Builds the Puts of a step, one for each TTL. The number is among them, so it always has the newest timestamp of the row.
fn step_puts(row: &Bytes, step: &LockRowStep, durability: Durability) -> Vec<MutationProto> {
    let put_cell = |qualifier: Bytes, value: Bytes, ttl: Duration| {
        durable(durability, put(row, &FAMILY, [(qualifier, value)], Some(ttl)))
    };
    let cell = |cell: &LockCellWrite| {
        let [qualifier, value] = packed([&cell.qualifier, &cell.value]);
        put_cell(qualifier, value, cell.ttl)
    };
    let number = put_cell(NUMBER.clone(), be_bytes(step.number), FENCE_TTL);
    [number].into_iter().chain(step.cells.iter().map(cell)).collect()
}

/// The condition of a change by the holder. The record alone would not do: if a flush has dropped newer versions that
/// did not last as long, the record of an earlier grant is the newest one again. The number lasts longer than any record.
fn held(bytes: &OwnBytes, expected: &Bytes) -> Condition {
    both_are(&bytes.row, &bytes.number, expected)
}

fn both_are(row: &Bytes, number: &Bytes, record: &Bytes) -> Condition {
    filtering(row, &[FilterTest::is(&FAMILY, &NUMBER, number), FilterTest::is(&FAMILY, &RECORD, record)])
}

/// Builds the Puts of both cells. There are two, because a TTL belongs to a whole Put.
fn puts<'p>(bytes: &'p OwnBytes, write: &'p OwnWrite<'_>) -> impl Iterator<Item = MutationProto> + use<'p> {
    let number = (NUMBER.clone(), bytes.number.clone());
    let record = (RECORD.clone(), bytes.record.clone());
    let intent = write.wait.map(own::end_intent);
    let intent = intent.map(|end| ((Bytes::from(end.qualifier), Bytes::from(end.value)), end.ttl));
    [(number, write.number_ttl), (record, write.ttl)]
        .into_iter()
        .chain(intent)
        .map(|(cell, ttl)| durable(write.durability, put(&bytes.row, &FAMILY, [cell], Some(ttl))))
}

fn whole(row: &Bytes) -> Get {
    get(row, &FAMILY, &[])
}

fn decoded<'a>(found: impl IntoIterator<Item = &'a Cell>) -> OwnCells {
    let mut own = OwnCells::default();
    for cell in found {
        if cell.qualifier == NUMBER {
            own.number = cell.value.as_slice().try_into().ok().map(u64::from_be_bytes);
        } else if cell.qualifier == RECORD {
            own.record = Some(cell_store::Cell { value: cell.value.clone(), written_ms: cell.timestamp });
        } else {
            let qualifier = cell.qualifier.clone();
            let cell = cell_store::Cell { value: cell.value.clone(), written_ms: cell.timestamp };
            own.beside.push(BesideCell { qualifier, cell });
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use super::super::messages::NameBytesPair;
    use super::*;
    use crate::store::hbase::cell_store::Durability;
    use crate::store::hbase::layout::FREE;

    /// Otherwise a server whose clock is behind could put the next record below the empty cell of a release.
    #[test]
    fn every_change_writes_the_number_and_then_the_record_or_the_empty_cell() {
        for record in [&b"M\x02..."[..], FREE] {
            let number = 7_u64.to_be_bytes();
            let [row, number, record_bytes] = packed([b"r", &number, record]);
            let (first, record_bytes) = (number.clone(), record_bytes);
            let bytes = OwnBytes { row, first, number: number.clone(), record: record_bytes.clone() };
            let write = OwnWrite {
                row: b"r",
                number: 7,
                first: 7,
                number_ttl: Duration::from_secs(60),
                record,
                ttl: Duration::from_secs(30),
                wait: None,
                durability: Durability::Sync,
            };
            let written: Vec<_> = puts(&bytes, &write)
                .flat_map(|put| put.column_value)
                .flat_map(|column| column.qualifier_value)
                .map(|cell| (cell.qualifier, cell.value.unwrap_or_default()))
                .collect();
            assert_eq!(written, [(NUMBER.clone(), number), (RECORD.clone(), record_bytes)]);
        }
    }

    fn result(processed: bool) -> RegionActionResult {
        RegionActionResult { processed: Some(processed), ..RegionActionResult::default() }
    }

    fn failed(class: &str) -> RegionActionResult {
        let exception = NameBytesPair { name: class.into(), value: Vec::new() };
        RegionActionResult { exception: Some(exception), ..RegionActionResult::default() }
    }

    /// The server goes on after a step that failed.
    #[test]
    fn a_step_that_was_made_counts_though_one_before_it_failed() {
        let [made, refused] = [true, false].map(result);
        let (busy, doubtful) = (failed("RegionTooBusyException"), failed("java.io.IOException"));
        let position = |steps: &[&RegionActionResult]| {
            let steps: Vec<_> = steps.iter().map(|it| (*it).clone()).collect();
            super::made(&steps).map_err(|error| may_be_run(&error))
        };
        assert_eq!(position(&[&made, &refused]), Ok(Some(0)));
        assert_eq!(position(&[&refused, &made]), Ok(Some(1)));
        assert_eq!(position(&[&refused, &refused]), Ok(None));
        for error in [&busy, &doubtful] {
            assert_eq!(position(&[error, &made]), Ok(Some(1)));
        }
        assert_eq!(position(&[&refused, &busy]), Err(false));
        assert_eq!(position(&[&busy, &busy]), Err(false));
        // One of them may have been made, so it must not be sent again.
        assert_eq!(position(&[&busy, &doubtful]), Err(true));
        assert_eq!(position(&[&doubtful, &busy]), Err(true));
    }
}
