//! The operations of the lock protocol, as requests to a region.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::bytes::Bytes;

use super::batch::{ActionBatch, RowAction};
use super::bytes::{EMPTY, constant, packed};
use super::filter::FilterTest;
use super::messages::{
    self, Action, Condition, EQUAL, Get, GetRequest, GetResponse, MutationProto, RegionAction,
    RegionActionResult,
};
use super::region::Region;
use super::request::{
    self, changing, check, conditional, conditional_somewhere, counted, durable, in_turn, processed, reading,
    reading_somewhere, together, written_at,
};
use super::rpc::Native;
use super::scan::cell;
use super::send_error::{SendError, protocol_violation};
use super::servers::CLIENT_SERVICE;
use crate::error::Result;
use crate::names::diagnostic::Diagnostic;
use crate::runtime::time::Deadline;
use crate::store::hbase::cell_store::{
    Cell, CellStore, CheckAndPut, Count, Durability, LockCells, LockTable, PROBE, RowPage, RowScan,
    SchemaFault, Take, Taken,
};
use crate::store::hbase::layout::{COVER, CellColumn, FENCE, LOCK};
use crate::store::hbase::locks::standing;
use crate::store::hbase::row_keys::lock_row;
use crate::store::remote::resolve::part;
use crate::store::remote::{OnReply, Replace, Reply, Standing};
use crate::store::request_kind::RequestKind;

/// A read in a batch, with its name in messages.
const READ: (RequestKind, &str) = (RequestKind::Read, "Get");

/// How a layout replaces the records of many rows.
pub(super) trait RecordRows {
    /// Builds the conditional change of a row.
    fn change(&self, row: &Bytes, change: &Replace<'_>) -> RegionAction;

    /// Builds the read of a row after its change was refused.
    fn read(&self, row: &Bytes) -> Get;

    /// Decodes the answer to the read, for the holder whose change was refused.
    fn standing(
        &self,
        row: &Bytes,
        change: &Replace<'_>,
        seen: RegionActionResult,
    ) -> Result<Standing, SendError>;
}

/// The rows of the layout `java`.
struct JavaRows;

impl RecordRows for JavaRows {
    fn change(&self, row: &Bytes, change: &Replace<'_>) -> RegionAction {
        let [expected, record] = packed([change.expected.as_bytes(), change.record.as_bytes()]);
        let put = one_put(row, LOCK, &record, change.record.ttl());
        conditional_somewhere(holding(row, LOCK, &expected), [put])
    }

    fn read(&self, row: &Bytes) -> Get {
        one_get(row, LOCK)
    }

    fn standing(&self, _: &Bytes, _: &Replace<'_>, seen: RegionActionResult) -> Result<Standing, SendError> {
        found(seen).map(standing)
    }
}

impl Native {
    /// Replaces many records. After a refusal, reads the row in a further request.
    pub(super) fn replace_each<'a>(
        &self,
        changes: Vec<Replace<'a>>,
        by: Deadline,
        answered: OnReply<'_, 'a>,
        rows: &impl RecordRows,
    ) {
        const CHANGE: (RequestKind, &str) = (RequestKind::Write, "conditional Put");
        let action = |item: Replace<'a>| {
            let (row, alone) = (Bytes::from(lock_row(item.name)), item.alone);
            let action = rows.change(&row, &item);
            RowAction { item, row, action, kind: CHANGE, alone }
        };
        let mut batch = ActionBatch::new(self, changes.into_iter().map(action).collect(), by);
        while let Some((at, since, result)) = batch.next() {
            let asked = batch.row(at);
            let reply = match (asked.kind, result) {
                // It was refused. If the row could not be read, the caller reads it.
                (READ, seen) => {
                    Reply::No(seen.ok().and_then(|seen| rows.standing(&asked.row, &asked.item, seen).ok()))
                }
                (_, result) => match result.map(|result| processed(&result)) {
                    Ok(Ok(true)) => Reply::Yes(()),
                    Ok(Ok(false)) => {
                        let read = reading_somewhere(rows.read(&asked.row));
                        batch.send_next(at, READ, read);
                        continue;
                    }
                    Ok(Err(send_error)) => Reply::failed(self.explain(CHANGE.0, CHANGE.1, send_error)),
                    Err(error) => Reply::failed(error),
                },
            };
            if let Some(next) = answered(&asked.item, since, reply) {
                let change = rows.change(&asked.row, &next);
                asked.item = next;
                batch.send_next(at, CHANGE, change);
            }
        }
    }
}

impl Native {
    /// Reads cells of one row.
    pub(super) fn read_row(
        &self,
        row: &[u8],
        get: impl Fn(&Bytes) -> Get,
        by: Deadline,
    ) -> Result<Vec<messages::Cell>> {
        let key = Bytes::copy_from_slice(row);
        self.on_region(RequestKind::Read, "Get", row, by, |region, by| {
            let request = GetRequest { region: region.specifier(), get: Some(get(&key)) };
            let answer: GetResponse = self
                .locator
                .servers()
                .call(&region.server, CLIENT_SERVICE, "Get", &request, by)
                .map_err(SendError::Call)?;
            Ok(answer.result.map(|result| result.cell).unwrap_or_default())
        })
    }

    /// Reads many rows. Calls `read` with the position of each row that was read, and the answer to its Get.
    pub(super) fn get_each(
        &self,
        rows: &[Vec<u8>],
        by: Deadline,
        get: impl Fn(&Bytes) -> Get,
        mut read: impl FnMut(usize, RegionActionResult),
    ) {
        let action = |row: &Vec<u8>| {
            let row = Bytes::copy_from_slice(row);
            let action = reading_somewhere(get(&row));
            RowAction { item: (), row, action, kind: READ, alone: false }
        };
        let mut batch = ActionBatch::new(self, rows.iter().map(action).collect(), by);
        while let Some((at, _, result)) = batch.next() {
            if let Ok(result) = result {
                read(at, result);
            }
        }
    }
}

/// The ways to put a lock's record. The Put alone decides whether the lock is acquired. If a count or read after it
/// fails, its result is `None`, and the caller requests it again separately.
impl Native {
    fn take_alone(
        &self,
        region: &Region,
        take: &TakeBytes,
        read_back: bool,
        by: Deadline,
    ) -> Result<Taken, SendError> {
        let mut actions = vec![conditional(region, take.free(), [take.put()])];
        if read_back {
            actions.push(in_turn(region, vec![take.read()]));
        }
        let mut results = self.multi(region, actions, by)?.into_iter();
        let put = processed(&results.next().ok_or_else(protocol_violation)?)?;
        Ok(Taken { put, counted: None, found: results.next().and_then(|result| lock_cells(&result).ok()) })
    }

    /// The Put need not be synced: the count is written to the same log after it and is synced.
    fn take_with_count_beside(
        &self,
        region: &Region,
        take: &TakeBytes,
        count: &CountBytes,
        by: Deadline,
    ) -> Result<Taken, SendError> {
        let put = durable(Durability::Async, take.put());
        let behind = vec![changing(count.increment()), take.read()];
        let actions =
            vec![conditional(region, take.free(), [put]), count.begin(region), in_turn(region, behind)];
        let results: [_; 3] =
            self.multi(region, actions, by)?.try_into().map_err(|_| protocol_violation())?;
        let [first, _, behind] = results;
        let put = processed(&first)?;
        let sum = counted(&behind).ok();
        Ok(Taken { put, counted: sum, found: lock_cells(&behind).ok() })
    }
}

impl LockTable for Native {
    fn describe(&self) -> String {
        self.uri.clone()
    }

    fn ensure_table(&self, family: &'static str, by: Deadline) -> Result<()> {
        self.create_table(family, by)
    }

    fn greet(&self, by: Deadline) -> Result<()> {
        self.locator.contact().greet(by, |by| self.hello(by))
    }

    fn version(&self, by: Deadline) -> Result<Option<String>> {
        self.asked_version(by).map(Some)
    }

    fn diagnose_login(&self) -> Option<Diagnostic> {
        self.locator.servers().diagnose_login()
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
            rows.insert(self.uri.clone(), PROBE.to_vec());
        }
        Ok(rows.into_iter().collect())
    }

    fn scan(&self, scan: &RowScan<'_>, by: Deadline) -> Result<RowPage> {
        self.scan_page(scan, by)
    }

    fn put(&self, row: &[u8], column: CellColumn, value: &[u8], ttl: Duration, by: Deadline) -> Result<()> {
        let [key, value] = packed([row, value]);
        self.on_region(RequestKind::Repeatable, "Put", row, by, |region, by| {
            let action = together(region, [one_put(&key, column, &value, ttl)]);
            let results = self.multi(region, vec![action], by)?;
            check(results.first().ok_or_else(protocol_violation)?)
        })
    }
}

impl CellStore for Native {
    fn repeats_after(&self) -> Option<Duration> {
        None
    }

    fn get(&self, row: &[u8], column: CellColumn, by: Deadline) -> Result<Option<Cell>> {
        let found = self.read_row(row, |row| one_get(row, column), by)?;
        Ok(found.into_iter().next().map(cell))
    }

    fn read_cells(&self, row: &[u8], by: Deadline) -> Result<LockCells> {
        Ok(decoded(&self.read_row(row, get_lock, by)?))
    }

    fn get_many(
        &self,
        rows: &[Vec<u8>],
        column: CellColumn,
        by: Deadline,
        report: &mut dyn FnMut(usize, Option<Cell>),
    ) {
        self.get_each(
            rows,
            by,
            |row| one_get(row, column),
            |index, result| {
                if let Ok(cell) = found(result) {
                    report(index, cell);
                }
            },
        );
    }

    fn check_and_put(&self, swap: &CheckAndPut<'_>, by: Deadline) -> Result<bool> {
        let CheckAndPut { row, column, expected, value, parts, .. } = *swap;
        let [key, expected, value] = packed([row, expected, value]);
        self.on_region(RequestKind::Write, "conditional Put", row, by, |region, by| {
            let by = part(by, parts);
            let condition = holding(&key, column, &expected);
            let action = conditional(region, condition, writes(&key, &value, swap));
            let results = self.multi(region, vec![action], by)?;
            let result = results.into_iter().next().ok_or_else(protocol_violation)?;
            processed(&result)
        })
    }

    fn compares_stamps(&self) -> bool {
        true
    }

    fn check_stamp_and_put(&self, swap: &CheckAndPut<'_>, written_ms: u64, by: Deadline) -> Result<bool> {
        let CheckAndPut { row, column, expected, value, parts, .. } = *swap;
        let [key, expected, value] = packed([row, expected, value]);
        let (family, qualifier) = names(column);
        self.on_region(RequestKind::Write, "conditional Put", row, by, |region, by| {
            let test = FilterTest::is(&family, &qualifier, &expected);
            let gone = request::delete_written_at(&key, &family, written_ms);
            let writes = writes(&key, &value, swap).chain([gone]);
            let action = conditional(region, written_at(&key, test, written_ms), writes);
            let results = self.multi(region, vec![action], part(by, parts))?;
            processed(results.first().ok_or_else(protocol_violation)?)
        })
    }

    fn replace_many<'a>(&self, changes: Vec<Replace<'a>>, by: Deadline, answered: OnReply<'_, 'a>) {
        self.replace_each(changes, by, answered, &JavaRows);
    }

    fn count(&self, count: Count<'_>, by: Deadline) -> Result<i64> {
        let bytes = CountBytes::new(count);
        self.on_region(RequestKind::Write, "counting", count.row, by, |region, by| {
            let actions = vec![bytes.begin(region), in_turn(region, vec![changing(bytes.increment())])];
            let results = self.multi(region, actions, by)?;
            counted(results.get(1).ok_or_else(protocol_violation)?)
        })
    }

    fn take(&self, take: &Take<'_>, by: Deadline) -> Result<Taken> {
        let what = "conditional Put with count and read-back";
        let (bytes, count) = (TakeBytes::new(take), take.count.map(CountBytes::new));
        self.on_region(RequestKind::Write, what, take.row, by, |region, by| match &count {
            Some(count) if region.holds(&count.row) => self.take_with_count_beside(region, &bytes, count, by),
            // After a split the counter may be in another region. Then a separate call counts it, and a read-back
            // before that count would prove nothing.
            Some(_) => self.take_alone(region, &bytes, false, by),
            None => self.take_alone(region, &bytes, true, by),
        })
    }
}

/// A [`Take`] without its counter, as the fields of messages.
struct TakeBytes {
    row: Bytes,
    column: CellColumn,
    value: Bytes,
    ttl: Duration,
}

impl TakeBytes {
    fn new(take: &Take<'_>) -> TakeBytes {
        let Take { column, ttl, .. } = *take;
        let [row, value] = packed([take.row, take.value]);
        TakeBytes { row, column, value, ttl }
    }

    fn put(&self) -> MutationProto {
        one_put(&self.row, self.column, &self.value, self.ttl)
    }

    fn free(&self) -> Condition {
        holding(&self.row, self.column, &EMPTY)
    }

    fn read(&self) -> Action {
        reading(get_lock(&self.row))
    }
}

/// A [`Count`], as the fields of messages.
struct CountBytes {
    row: Bytes,
    column: CellColumn,
    /// One below the seed.
    below: Bytes,
    add: i64,
    ttl: Duration,
}

impl CountBytes {
    fn new(count: Count<'_>) -> CountBytes {
        let Count { row, column, seed, add, ttl } = count;
        let [row, below] = packed([row, &seed.wrapping_sub(1).to_be_bytes()]);
        CountBytes { row, column, below, add, ttl }
    }

    /// Creates the counter with one below its seed if it does not exist. It need not be synced, because the same
    /// request then counts, and that count is synced.
    fn begin(&self, region: &Region) -> RegionAction {
        let put = durable(Durability::Async, one_put(&self.row, self.column, &self.below, self.ttl));
        conditional(region, holding(&self.row, self.column, &EMPTY), [put])
    }

    fn increment(&self) -> MutationProto {
        let (family, qualifier) = names(self.column);
        request::increment(&self.row, &family, &qualifier, self.add, Some(self.ttl))
    }
}

fn names(column: CellColumn) -> (Bytes, Bytes) {
    (constant(column.family), constant(column.qualifier))
}

fn one_get(row: &Bytes, column: CellColumn) -> Get {
    let (family, qualifier) = names(column);
    request::get(row, &family, &[qualifier])
}

/// Builds a read of the cells of a lock.
fn get_lock(row: &Bytes) -> Get {
    let [(family, record), (_, cover), (_, count)] = [LOCK, COVER, FENCE].map(names);
    request::get(row, &family, &[cover, count, record])
}

fn lock_cells(result: &RegionActionResult) -> Result<LockCells, SendError> {
    check(result)?;
    let last = result.result_or_exception.last().and_then(|part| part.result.as_ref());
    Ok(decoded(last.into_iter().flat_map(|result| &result.cell)))
}

fn decoded<'a>(found: impl IntoIterator<Item = &'a messages::Cell>) -> LockCells {
    let mut cells = LockCells::default();
    for found in found {
        match found.qualifier.as_slice() {
            it if it == FENCE.qualifier.as_bytes() => cells.has_count = true,
            it if it == COVER.qualifier.as_bytes() => cells.cover = Some(cell(found.clone())),
            _ => cells.record = Some(cell(found.clone())),
        }
    }
    cells
}

/// Builds the writes of a conditional change.
fn writes(row: &Bytes, value: &Bytes, put: &CheckAndPut<'_>) -> impl Iterator<Item = MutationProto> {
    let CheckAndPut { column, ttl, cover, durability, .. } = *put;
    let cover = cover.map(|lasts| {
        let ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
        one_put(row, COVER, &Bytes::copy_from_slice(&ms.to_be_bytes()), lasts)
    });
    let put = one_put(row, column, value, ttl);
    [put].into_iter().chain(cover).map(move |put| durable(durability, put))
}

fn one_put(row: &Bytes, column: CellColumn, value: &Bytes, ttl: Duration) -> MutationProto {
    let (family, qualifier) = names(column);
    request::put(row, &family, [(qualifier, value.clone())], Some(ttl))
}

/// Builds the condition that the column holds `value`. An empty value also matches a missing cell.
fn holding(row: &Bytes, column: CellColumn, value: &Bytes) -> Condition {
    let (family, qualifier) = names(column);
    request::comparing(row, &family, &qualifier, EQUAL, value)
}

pub(super) fn found(result: RegionActionResult) -> Result<Option<Cell>, SendError> {
    check(&result)?;
    let last = result.result_or_exception.into_iter().next_back().and_then(|part| part.result);
    Ok(last.and_then(|result| result.cell.into_iter().next()).map(cell))
}
