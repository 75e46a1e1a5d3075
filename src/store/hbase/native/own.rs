//! The operations of the layout `own`, as requests to a region.

use prost::bytes::Bytes;

use super::bytes::{EMPTY, packed};
use super::filter::FilterTest;
use super::locks::RecordRows;
use super::messages::{Cell, Condition, EQUAL, Get, MutationProto, RegionAction, RegionActionResult};
use super::request::{
    cells, comparing, conditional, conditional_somewhere, durable, filtering, get, in_turn, processed, put,
    reading,
};
use super::rpc::Native;
use super::send_error::{SendError, protocol_violation};
use crate::error::Result;
use crate::runtime::time::Deadline;
use crate::store::hbase::cell_store::{self, Claimed, Durability, Expects, OwnCells, OwnStore, OwnWrite};
use crate::store::hbase::layout::{OWN_FENCE, OWN_LOCK};
use crate::store::hbase::own;
use crate::store::remote::resolve::part;
use crate::store::remote::{OnReply, Replace, Standing};
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
                actions.push(in_turn(region, vec![reading(both(&bytes.row))]));
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

    fn replace_many<'a>(&self, changes: Vec<Replace<'a>>, by: Deadline, answered: OnReply<'_, 'a>) {
        self.replace_each(changes, by, answered, &OwnRows);
    }

    fn read_cells(&self, row: &[u8], by: Deadline) -> Result<OwnCells> {
        Ok(decoded(&self.read_row(row, both, by)?))
    }

    fn read_many(&self, rows: &[Vec<u8>], by: Deadline, report: &mut dyn FnMut(usize, OwnCells)) {
        self.get_each(rows, by, both, |index, result| {
            if let Ok(seen) = cells(&result) {
                report(index, decoded(seen));
            }
        });
    }
}

struct OwnRows;

impl RecordRows for OwnRows {
    fn change(&self, row: &Bytes, change: &Replace<'_>) -> RegionAction {
        let Replace { expected, record, .. } = change;
        // No stored number is 0, so the change of a record without a number is refused.
        let number = expected.number().unwrap_or_default();
        let write = own::write(row, number, (record.as_bytes(), record.ttl()), Durability::Sync);
        let [number, record, expected] =
            packed([&number.to_be_bytes(), record.as_bytes(), expected.as_bytes()]);
        let bytes = OwnBytes { row: row.clone(), first: number.clone(), number, record };
        conditional_somewhere(held(&bytes, &expected), puts(&bytes, &write))
    }

    fn read(&self, row: &Bytes) -> Get {
        both(row)
    }

    fn standing(&self, seen: RegionActionResult) -> Result<Standing, SendError> {
        Ok(own::standing(decoded(cells(&seen)?)))
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
    }
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
fn puts(bytes: &OwnBytes, write: &OwnWrite<'_>) -> [MutationProto; 2] {
    let number = (NUMBER.clone(), bytes.number.clone());
    let record = (RECORD.clone(), bytes.record.clone());
    [(number, write.number_ttl), (record, write.ttl)]
        .map(|(cell, ttl)| durable(write.durability, put(&bytes.row, &FAMILY, [cell], Some(ttl))))
}

fn both(row: &Bytes) -> Get {
    get(row, &FAMILY, &[NUMBER.clone(), RECORD.clone()])
}

fn decoded<'a>(found: impl IntoIterator<Item = &'a Cell>) -> OwnCells {
    let mut own = OwnCells::default();
    for cell in found {
        if cell.qualifier == NUMBER {
            own.number = cell.value.as_slice().try_into().ok().map(u64::from_be_bytes);
        } else if cell.qualifier == RECORD {
            own.record = Some(cell_store::Cell { value: cell.value.clone(), written_ms: cell.timestamp });
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
                durability: Durability::Sync,
            };
            let written: Vec<_> = puts(&bytes, &write)
                .into_iter()
                .flat_map(|put| put.column_value)
                .flat_map(|column| column.qualifier_value)
                .map(|cell| (cell.qualifier, cell.value.unwrap_or_default()))
                .collect();
            assert_eq!(written, [(NUMBER.clone(), number), (RECORD.clone(), record_bytes)]);
        }
    }
}
