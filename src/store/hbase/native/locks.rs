//! The operations of the lock protocol, as requests to a region.

use std::collections::BTreeMap;
use std::time::Duration;

use super::messages::{
    self, Action, Condition, EQUAL, Get, GetRequest, GetResponse, MutationProto, RegionAction,
    RegionActionResult,
};
use super::region::Region;
use super::request::{self, changing, check, conditional, counted, durable, in_turn, processed, reading};
use super::rpc::Native;
use super::send_error::{SendError, protocol_violation};
use super::servers::CLIENT_SERVICE;
use crate::error::Result;
use crate::store::hbase::cell_store::{
    Cell, CellColumn, CellStore, CheckAndPut, Count, Durability, LockTable, PROBE, SchemaFault, Take, Taken,
};
use crate::store::remote::resolve::part;
use crate::store::request_kind::RequestKind;
use crate::time::Deadline;

/// The ways to put a lock's record. The Put alone decides whether the lock is acquired. If a count or read after it
/// fails, its result is `None`, and the caller requests it again separately.
impl Native {
    fn take_alone(
        &self,
        region: &Region,
        take: &Take<'_>,
        verify: bool,
        by: Deadline,
    ) -> Result<Taken, SendError> {
        let put = one_put(take.row, take.column, take.value, take.ttl);
        let mut actions = vec![conditional(region, holding(take.row, take.column, b""), vec![put])];
        if verify {
            actions.push(in_turn(region, vec![read(take)]));
        }
        let mut results = self.multi(region, actions, by)?.into_iter();
        let put = processed(&results.next().ok_or_else(protocol_violation)?)?;
        Ok(Taken { put, counted: None, found: results.next().and_then(|result| found(&result).ok()) })
    }

    /// The Put need not be synced: the count is written to the same log after it and is synced.
    fn take_with_count_beside(
        &self,
        region: &Region,
        take: &Take<'_>,
        count: Count<'_>,
        by: Deadline,
    ) -> Result<Taken, SendError> {
        let put = durable(Durability::Async, one_put(take.row, take.column, take.value, take.ttl));
        let mut behind = vec![changing(add_one(count))];
        behind.extend(take.verify.then(|| read(take)));
        let actions = vec![
            conditional(region, holding(take.row, take.column, b""), vec![put]),
            begin_counting(region, count),
            in_turn(region, behind),
        ];
        let results: [_; 3] =
            self.multi(region, actions, by)?.try_into().map_err(|_| protocol_violation())?;
        let [first, _, behind] = results;
        let put = processed(&first)?;
        let sum = counted(&behind).ok();
        Ok(Taken { put, counted: sum, found: if take.verify { found(&behind).ok() } else { None } })
    }

    fn take_with_count_within(
        &self,
        region: &Region,
        take: &Take<'_>,
        count: Count<'_>,
        by: Deadline,
    ) -> Result<Taken, SendError> {
        let put = one_put(take.row, take.column, take.value, take.ttl);
        let both = vec![put, add_one(count)];
        let mut actions = vec![
            begin_counting(region, count),
            conditional(region, holding(take.row, take.column, b""), both),
        ];
        if take.verify {
            actions.push(in_turn(region, vec![read(take)]));
        }
        let mut results = self.multi(region, actions, by)?.into_iter().skip(1);
        let first = results.next().ok_or_else(protocol_violation)?;
        let put = processed(&first)?;
        let sum = if put { counted(&first).ok() } else { None };
        Ok(Taken { put, counted: sum, found: results.next().and_then(|result| found(&result).ok()) })
    }
}

impl LockTable for Native {
    fn describe(&self) -> String {
        self.place.clone()
    }

    fn ensure_table(&self, family: &'static str, by: Deadline) -> Result<()> {
        self.create_table(family, by)
    }

    fn version(&self, by: Deadline) -> Result<Option<String>> {
        self.asked_version(by).map(Some)
    }

    fn diagnose_table(&self, family: &'static str, by: Deadline) -> Result<Option<Vec<SchemaFault>>> {
        self.diagnosed(family, by)
    }

    fn probe_rows(&self, by: Deadline) -> Result<Vec<(String, Vec<u8>)>> {
        let mut rows = BTreeMap::new();
        // A table for locks has a region for each first byte. A region that is moving is left out.
        for first in 0..=u8::MAX {
            let row = [&[first][..], PROBE].concat();
            if let Ok(region) = self.locator.region(&row, by) {
                let server = &region.server;
                rows.entry(format!("{}:{}", server.host, server.port)).or_insert(row);
            }
        }
        if rows.is_empty() {
            // The write of this row reports why.
            rows.insert(self.place.clone(), PROBE.to_vec());
        }
        Ok(rows.into_iter().collect())
    }
}

impl CellStore for Native {
    fn repeats_after(&self) -> Option<Duration> {
        None
    }

    fn get(&self, row: &[u8], column: CellColumn, by: Deadline) -> Result<Option<Cell>> {
        self.on_region(RequestKind::Read, "Get", row, by, |region, by| {
            let request = GetRequest { region: region.specifier(), get: Some(one_get(row, column)) };
            let answer: GetResponse = self
                .locator
                .servers()
                .call(&region.server, CLIENT_SERVICE, "Get", &request, by)
                .map_err(SendError::Call)?;
            Ok(answer.result.and_then(|result| result.cell.first().map(cell)))
        })
    }

    fn check_and_put(&self, swap: &CheckAndPut<'_>, by: Deadline) -> Result<bool> {
        let CheckAndPut { row, column, expected, value, ttl, durability, parts } = *swap;
        self.on_region(RequestKind::Write, "conditional Put", row, by, |region, by| {
            let by = part(by, parts);
            let put = durable(durability, one_put(row, column, value, ttl));
            let results =
                self.multi(region, vec![conditional(region, holding(row, column, expected), vec![put])], by)?;
            let result = results.into_iter().next().ok_or_else(protocol_violation)?;
            processed(&result)
        })
    }

    fn count(&self, count: Count<'_>, by: Deadline) -> Result<i64> {
        self.on_region(RequestKind::Write, "counting", count.row, by, |region, by| {
            let actions =
                vec![begin_counting(region, count), in_turn(region, vec![changing(add_one(count))])];
            let results = self.multi(region, actions, by)?;
            counted(results.get(1).ok_or_else(protocol_violation)?)
        })
    }

    fn take(&self, take: &Take<'_>, by: Deadline) -> Result<Taken> {
        self.on_region(
            RequestKind::Write,
            "conditional Put with count and read-back",
            take.row,
            by,
            |region, by| {
                match take.count {
                    Some(count) if count.row == take.row => {
                        self.take_with_count_within(region, take, count, by)
                    }
                    Some(count) if region.holds(count.row) => {
                        self.take_with_count_beside(region, take, count, by)
                    }
                    // After a split the counter may be in another region. Then a separate call counts it, and a
                    // read-back before that count would prove nothing.
                    Some(_) => self.take_alone(region, take, false, by),
                    None => self.take_alone(region, take, take.verify, by),
                }
            },
        )
    }
}

fn one_get(row: &[u8], column: CellColumn) -> Get {
    request::get(row, column.family.as_bytes(), &[column.qualifier.as_bytes()])
}

fn one_put(row: &[u8], column: CellColumn, value: &[u8], ttl: Duration) -> MutationProto {
    let cell = (column.qualifier.as_bytes().to_vec(), value.to_vec());
    request::put(row, column.family.as_bytes(), [cell], Some(ttl))
}

/// Builds the condition that the column holds `value`. An empty value also matches a missing cell.
fn holding(row: &[u8], column: CellColumn, value: &[u8]) -> Condition {
    request::comparing(row, column.family.as_bytes(), column.qualifier.as_bytes(), EQUAL, value)
}

/// Creates the counter with one below its seed if it does not exist. It need not be synced, because the same
/// request then counts, and that count is synced.
fn begin_counting(region: &Region, count: Count<'_>) -> RegionAction {
    let below = count.seed.wrapping_sub(1).to_be_bytes();
    let put = durable(Durability::Async, one_put(count.row, count.column, &below, count.ttl));
    conditional(region, holding(count.row, count.column, b""), vec![put])
}

fn add_one(count: Count<'_>) -> MutationProto {
    let CellColumn { family, qualifier } = count.column;
    request::increment(count.row, family.as_bytes(), qualifier.as_bytes(), 1, Some(count.ttl))
}

fn read(take: &Take<'_>) -> Action {
    reading(one_get(take.row, take.column))
}

pub(super) fn found(result: &RegionActionResult) -> Result<Option<Cell>, SendError> {
    check(result)?;
    let last = result.result_or_exception.last().and_then(|part| part.result.as_ref());
    Ok(last.and_then(|result| result.cell.first()).map(cell))
}

pub(super) fn cell(cell: &messages::Cell) -> Cell {
    Cell { value: cell.value.clone(), written_ms: cell.timestamp }
}
