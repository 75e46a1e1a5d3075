//! Latches over HBase's own RPC. Each change takes effect exactly once, even if replies are lost.
//!
//! ```text
//! count    if  the count exists, our mark does not,
//!              and no name is missing               ->  count + 1 or - 1, our mark        one atomic step
//! create   if  the count does not exist, or the
//!              deletion is the one that was read    ->  count, our mark, expected names
//! note     if  a count exists                       ->  the process that waits, with a TTL of its own
//! reset    if  the count exists, our mark does not,
//!              and the incarnation is the one read  ->  count, our mark, a new incarnation, expected names
//! delete   as reset                                 ->  a deleted count, our mark, a new incarnation
//! by name  if  the count exists, the incarnation is
//!              the one that was read, and the name
//!              is not in this incarnation           ->  count + 1 or - 1, the name
//! ```
//!
//! * The idempotency mark makes a change repeatable: a request that is sent again is not applied again. So a change
//!   whose reply was lost is sent until it is answered. After the answer "no", a read decides: our mark exists
//!   (applied), no count exists (no latch), or neither (the latch was created in between: try again).
//! * The mark of a change with only one request lives as long as the latch, and at least until the end of the
//!   call. After a request stays unanswered, marks are written with a TTL that outlives every late request
//!   (`IN_FLIGHT_TTL`).
//! * While a request is in flight, the result "the latch does not exist" must stay true even if the latch is
//!   created again. So a special mark is written first. It forbids the change for good.
//! * The count is changed by an Increment without a TTL. The cell keeps the TTL that the latch was created with,
//!   and that TTL starts again. A TTL of ours could be shorter; after its end the server would show an old count.
//! * The count can expire between the server's check and its Increment, within a fraction of a millisecond. Then
//!   the Increment begins at 0 and the cell has no TTL. No HBase operation uses the same time for both.
//! * Each change but the creation names the incarnation that it read, also if the latch has none, and a creation the
//!   deletion that it follows. So after a reset or a deletion no late request of before has an effect. Nothing is deleted:
//!   the marker of a deletion would hide what is written in the same millisecond, and what it hides would be shown again.
//!   Names, marks and the old count stay in the row until they expire.
//! * Names belong to one incarnation of a latch, so they may live longer than it. They live at least one day
//!   (`names_ttl`). Otherwise the names of early participants would expire while later participants keep the latch
//!   alive. A latch that Java or a gateway created gets its incarnation from its first change by name.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use prost::bytes::Bytes;

use super::bytes::{EMPTY, packed};
use super::counts;
use super::filter::{self, FilterTest};
use super::frame::FRAME_BYTES_MAX;
use super::messages::{
    self, Column, Condition, EQUAL, Get, GetRequest, GetResponse, MutationProto, RegionActionResult,
};
use super::request::{self, conditional, counted, filtering, processed};
use super::rpc::Native;
use super::scan::RowRange;
use super::send_error::{SendError, may_be_run, protocol_violation};
use super::servers::CLIENT_SERVICE;
use crate::error::{Error, Result};
use crate::names::latch_name::LatchName;
use crate::names::lock_name::Level;
use crate::names::notice_endpoint::LatchListener;
use crate::names::owner::OwnerToken;
use crate::runtime::sync::real::Mutex;
use crate::runtime::time::Deadline;
use crate::store::hbase::cell_store::{Content, Durability, LockTable};
use crate::store::hbase::latches::{
    self, DELETED, count_column, count_columns, count_in, deleted_value, is_deleted, is_no_table,
    listener_column, listener_columns, listener_in, listener_value, not_found, or_not_found, row_of,
};
use crate::store::hbase::marks::{
    IN_FLIGHT_TTL, IdempotencyMarks, MarkSlot, MarkedOperation, SENDING_MAX, ZERO,
};
use crate::store::remote::resolve::Pauses;
use crate::store::request_kind::RequestKind;
use crate::store::{
    LISTENERS_MAX, LatchNote, LatchPage, LatchQuery, LatchStore, NewLatch, Roster, Step, Stepped,
    check_participant, unexpected,
};

static FAMILY: Bytes = Bytes::from_static(b"C");

/// Most tries of one change. A try fails only if another client creates or changes the latch in between.
const ROUNDS: usize = 16;
/// Shortest TTL of names.
const NAMES_TTL_MIN: Duration = Duration::from_secs(24 * 3600);
/// TTL of names, as a multiple of the latch's TTL.
const NAMES_TTL: u32 = 10;
/// Most latches that are remembered as waiting for no name. With more, a count reads the latch once more.
const REMEMBERED: usize = 4096;
const ID_BYTES: usize = OwnerToken::LEN;

/// Latches over the connections of a [`Native`] for locks.
#[derive(Debug)]
pub(in crate::store::hbase) struct NativeLatches {
    native: Native,
    marks: IdempotencyMarks,
    /// The incarnation of latches that wait for no named participant, by row and farm. It stays so while the incarnation
    /// lasts.
    nameless: Mutex<HashMap<(Bytes, String), Bytes>>,
}

impl NativeLatches {
    /// Keeps latches in `table` and uses the connections of `locks`.
    pub(in crate::store::hbase) fn beside(locks: &Native, table: &str) -> NativeLatches {
        NativeLatches {
            native: locks.beside(table, Content::Latches),
            marks: IdempotencyMarks::default(),
            nameless: Mutex::default(),
        }
    }
}

impl LatchStore for NativeLatches {
    fn initialize_latches(&self, by: Deadline) -> Result<()> {
        self.native.ensure_table(Content::Latches.family(), by)
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        new.roster.iter().try_for_each(|name| check_participant(name))?;
        let row = Bytes::from(row_of(new.name)?);
        check_size(new, &row)?;
        self.create(new, &row)
    }

    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        let row = Bytes::from(row_of(step.name)?);
        let stepped = match step.participant {
            None => self.count(step, &row),
            Some(participant) => {
                check_participant(participant).and_then(|()| self.count_by_name(step, &row, participant))
            }
        };
        stepped.map_err(|error| or_not_found(error, step.name))
    }

    fn reset_latch(&self, new: &NewLatch<'_>) -> Result<()> {
        new.roster.iter().try_for_each(|name| check_participant(name))?;
        let row = Bytes::from(row_of(new.name)?);
        check_size(new, &row)?;
        let reset = self.replace(new.name, &row, Some(new), new.ttl, new.by);
        reset.map_err(|error| or_not_found(error, new.name))
    }

    fn delete_latch(&self, name: &LatchName, ttl: Duration, by: Deadline) -> Result<()> {
        let row = Bytes::from(row_of(name)?);
        self.replace(name, &row, None, ttl, by).map_err(|error| or_not_found(error, name))
    }

    fn list_latches(&self, asked: &LatchQuery<'_>) -> Result<LatchPage> {
        let prefix = Bytes::from(count_columns());
        let read = |from: &[u8], to: &[u8], most: usize| {
            let columns = filter::columns_beginning(vec![prefix.clone()]);
            let family = Column { family: FAMILY.clone(), qualifier: Vec::new() };
            let range = RowRange { from, to, most, columns: vec![family], filter: Some(columns) };
            let (rows, next) = self.native.scan_range(&range, asked.by)?;
            let cells = |row: Vec<messages::Cell>| {
                let key = row.first().map(|cell| cell.row.clone()).unwrap_or_default();
                (key, row.into_iter().map(|cell| (cell.qualifier, cell.value)).collect())
            };
            Ok((rows.into_iter().map(cells).collect(), next))
        };
        latches::page(asked, read)
    }

    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>> {
        counts::read(&self.native, asked, by)
    }

    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster> {
        let row = Bytes::from(row_of(name)?);
        let read = self.roster_in(name, &row, by).map_err(|error| or_not_found(error, name))?;
        Ok(read.1)
    }

    fn listen(&self, note: &LatchNote<'_>) -> Result<bool> {
        let row = Bytes::from(row_of(note.name)?);
        let Some(column) = listener_column(note.listener.endpoint).map(Bytes::from) else { return Ok(false) };
        let value = Bytes::from(listener_value(note.listener));
        let count = match note.level {
            Level::Dc => count_column(note.name.farm()),
            Level::Xdc => count_columns(),
        };
        let request = || {
            // Holds if there is such a column. A column of another farm whose name begins like ours does no harm.
            let filter = Some(filter::filled_beginning(count.clone().into(), &Bytes::from_static(DELETED)));
            let condition = Condition { row: row.clone(), filter, ..Condition::default() };
            let noted = put(&row, vec![(column.clone(), value.clone())], note.lasts);
            (condition, vec![request::durable(Durability::Async, noted)])
        };
        let noted = self.change("noting who waits", &row, note.by, &Cell::new(0), &request);
        match noted {
            Ok(answer) => Ok(answer.processed == Some(true)),
            Err(error) if is_no_table(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn listeners(&self, name: &LatchName, by: Deadline) -> Result<Vec<LatchListener>> {
        let row = Bytes::from(row_of(name)?);
        let noted = filter::columns_beginning(vec![listener_columns().into()]);
        let cells = match self.read(Get { filter: Some(noted), ..get(&row, &[]) }, by) {
            Ok(cells) => cells,
            Err(error) if is_no_table(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let listeners = cells.0.iter().filter_map(|cell| listener_in(&cell.qualifier, &cell.value));
        Ok(listeners.take(LISTENERS_MAX).collect())
    }
}

impl NativeLatches {
    /// The only condition is that the count does not exist, or is deleted as it was read, because a filter never holds for a
    /// row without cells. So a late request that arrives after the latch has expired creates it again, for its TTL.
    fn create(&self, new: &NewLatch<'_>, row: &Bytes) -> Result<bool> {
        let by = new.by.sooner(Deadline::after(SENDING_MAX));
        let farm = new.name.farm();
        let (count, made) = (Bytes::from(count_column(farm)), made_column(farm));
        let operation = begin(&self.marks, farm, new.ttl, by)?;
        let found = match self.read(get(row, &[&count, &made]), by) {
            Ok(cells) => cells,
            Err(error) if is_no_table(&error) => {
                self.initialize_latches(by)?;
                LatchCells(Vec::new())
            }
            Err(error) => return Err(error),
        };
        if found.value(&count).is_some_and(|value| !value.is_empty() && !is_deleted(value)) {
            return Ok(false);
        }
        // Names of an earlier incarnation must not count for this one.
        let named = !new.roster.is_empty() || found.value(&made).is_some();
        let mut follows = found.deletion(&count);
        let incarnation = Bytes::from([ZERO.as_slice(), &draw()?].concat());
        let request = || {
            let mut puts = vec![
                put(row, vec![(count.clone(), Bytes::copy_from_slice(&new.count.to_be_bytes()))], new.ttl),
                put_mark(&operation, row),
            ];
            if named {
                let due = new.roster.iter().map(|name| due_column(farm, name));
                let cells = due.chain([made.clone()]).map(|column| (column, incarnation.clone())).collect();
                puts.push(put(row, cells, names_ttl(new.ttl)));
            }
            puts
        };
        let (mut initialized, mut pauses) = (false, Pauses::until(by));
        for _ in 0..ROUNDS {
            if operation.in_flight.get() > 0 && !pauses.rest() {
                break;
            }
            let request = || (holding(row, &count, &follows), request());
            let doubt = match self.change("creating a latch", row, by, &operation.in_flight, &request) {
                Ok(answer) if answer.processed == Some(true) => return Ok(true),
                Ok(_) => None,
                Err(error) if is_no_table(&error) && !initialized => {
                    self.initialize_latches(by)?;
                    initialized = true;
                    continue;
                }
                Err(error) if operation.in_flight.get() == 0 => return Err(error),
                Err(error) => Some(error),
            };
            let cells = match self.read(get(row, &[&count, &Bytes::copy_from_slice(&operation.column)]), by) {
                Ok(cells) => cells,
                Err(error) if operation.in_flight.get() == 0 => return Err(error),
                Err(error) => return Err(doubtful(doubt.unwrap_or(error))),
            };
            if cells.value(&operation.column) == Some(&operation.mark) {
                return Ok(true);
            }
            if cells.count(new.name)?.is_some() {
                return Ok(false);
            }
            if let Some(error) = doubt {
                return Err(doubtful(error));
            }
            // Created and deleted by others meanwhile.
            follows = cells.deletion(&count);
        }
        Err(contended(new.name))
    }

    /// Ends the incarnation of the farm's count. `next` is the one that follows.
    fn replace(
        &self,
        name: &LatchName,
        row: &Bytes,
        next: Option<&NewLatch<'_>>,
        ttl: Duration,
        by: Deadline,
    ) -> Result<()> {
        let by = by.sooner(Deadline::after(SENDING_MAX));
        let farm = name.farm();
        let (count, made) = (Bytes::from(count_column(farm)), made_column(farm));
        let operation = begin(&self.marks, farm, ttl, by)?;
        let fresh = Bytes::from([ZERO.as_slice(), &draw()?].concat());
        let value = match next {
            Some(new) => Bytes::copy_from_slice(&new.count.to_be_bytes()),
            None => Bytes::copy_from_slice(&deleted_value()?),
        };
        let due = next.map_or(&[][..], |new| new.roster).iter().map(|name| due_column(farm, name));
        let named: Vec<_> = due.chain([made.clone()]).map(|column| (column, fresh.clone())).collect();
        let mut pauses = Pauses::until(by);
        for _ in 0..ROUNDS {
            if operation.in_flight.get() > 0 && !pauses.rest() {
                break;
            }
            let in_doubt = |error| if operation.in_flight.get() == 0 { error } else { doubtful(error) };
            let cells = self.read(get(row, &[&count, &made]), by).map_err(in_doubt)?;
            let incarnation = cells.incarnation(name, &made).map_err(in_doubt)?.map(Bytes::from);
            if cells.count(name).map_err(in_doubt)?.is_none() {
                // One that was not answered may have been carried out before the count went.
                match self.look_for(&operation, name, row, by)? {
                    FoundLatch::Applied => return Ok(()),
                    FoundLatch::NoLatch => return Err(not_found(name)),
                    // It was created again.
                    FoundLatch::NotApplied => continue,
                }
            }
            // If the new cells lived for a shorter time than those below them, these would be shown again. And the Java library
            // takes a row in which only the incarnation is left for an open latch.
            let (lasts, named_lasts) = match (next, &incarnation) {
                (Some(_), _) => (ttl, names_ttl(ttl)),
                (None, Some(_)) => (names_ttl(ttl), names_ttl(ttl)),
                (None, None) => (ttl.max(NAMES_TTL_MIN), ttl.max(NAMES_TTL_MIN)),
            };
            let request = || {
                let [column, mark] = packed([&operation.column, &operation.mark]);
                let tests = [
                    FilterTest::there_and_begins_not(&FAMILY, &count, &Bytes::from_static(DELETED)),
                    FilterTest::begins_not(&FAMILY, &column, &mark),
                    as_read(&made, incarnation.as_ref()),
                ];
                let puts = vec![
                    put(row, vec![(count.clone(), value.clone())], lasts),
                    put(row, named.clone(), named_lasts),
                    put_mark(&operation, row),
                ];
                (filtering(row, &tests), puts)
            };
            let what = if next.is_some() { "resetting a latch" } else { "deleting a latch" };
            let doubt = match self.change(what, row, by, &operation.in_flight, &request) {
                Ok(answer) if answer.processed == Some(true) => return Ok(()),
                Ok(_) => None,
                Err(error) if operation.in_flight.get() == 0 => return Err(error),
                Err(error) => Some(error),
            };
            match self.look_for(&operation, name, row, by) {
                Ok(FoundLatch::Applied) => return Ok(()),
                Ok(FoundLatch::NoLatch) => return Err(not_found(name)),
                Ok(FoundLatch::NotApplied) => {}
                Err(error) if error.is_in_doubt() => return Err(doubt.map_or(error, doubtful)),
                Err(error) => return Err(error),
            }
            if let Some(error) = doubt {
                return Err(doubtful(error));
            }
        }
        Err(contended(name))
    }

    fn count(&self, step: &Step<'_>, row: &Bytes) -> Result<Stepped> {
        let by = step.by.sooner(Deadline::after(SENDING_MAX));
        let (count, made) = (Bytes::from(count_column(step.name.farm())), made_column(step.name.farm()));
        let operation = begin(&self.marks, step.name.farm(), step.ttl, by)?;
        let mut incarnation = self.known_nameless(step.name, row);
        let mut pauses = Pauses::until(by);
        for _ in 0..ROUNDS {
            let request = || {
                let [column, mark] = packed([&operation.column, &operation.mark]);
                let tests = [
                    FilterTest::some(&FAMILY, &count),
                    FilterTest::begins_not(&FAMILY, &column, &mark),
                    as_read(&made, incarnation.as_ref()),
                ];
                (filtering(row, &tests), vec![add(row, &count, step.add), put_mark(&operation, row)])
            };
            if operation.in_flight.get() > 0 && !pauses.rest() {
                break;
            }
            let doubt = match self.change("counting", row, by, &operation.in_flight, &request) {
                Ok(answer) if answer.processed == Some(true) => {
                    return Ok(Stepped::Counted(counted(&answer).ok()));
                }
                Ok(_) => None,
                Err(error) if operation.in_flight.get() == 0 => return Err(error),
                Err(error) => Some(error),
            };
            match self.look_for(&operation, step.name, row, by) {
                Ok(FoundLatch::Applied) => return Ok(Stepped::Counted(None)),
                Ok(FoundLatch::NoLatch) => return Err(not_found(step.name)),
                Ok(FoundLatch::NotApplied) => {}
                // The failure that made the read necessary explains more than the failure of the read.
                Err(error) if error.is_in_doubt() => return Err(doubt.map_or(error, doubtful)),
                Err(error) => return Err(error),
            }
            if let Some(error) = doubt {
                return Err(doubtful(error));
            }
            // The latch has names, was created in between, or is another incarnation.
            let in_doubt = |error| if operation.in_flight.get() == 0 { error } else { doubtful(error) };
            incarnation = self.refuse_unexpected(step, row, by).map_err(in_doubt)?;
        }
        Err(contended(step.name))
    }

    /// Finds the result of an operation that was answered with "no" or not at all. Its slot is not used again if a
    /// request is in flight.
    fn look_for(
        &self,
        operation: &MarkedOperation<'_>,
        name: &LatchName,
        row: &Bytes,
        by: Deadline,
    ) -> Result<FoundLatch> {
        let MarkedOperation { column, mark, in_flight, .. } = operation;
        let given_up = operation.given_up();
        let in_doubt = |error| if in_flight.get() == 0 { error } else { doubtful(error) };
        let mut pauses = Pauses::until(by);
        for round in 0..ROUNDS {
            if round > 0 && !pauses.rest() {
                break;
            }
            let columns = packed([&count_column(name.farm()), column]);
            let cells = self.read(get(row, &[&columns[0], &columns[1]]), by).map_err(in_doubt)?;
            let found = cells.value(column).unwrap_or_default();
            if found == given_up {
                return Ok(FoundLatch::NoLatch);
            }
            let (expected, value, outcome) = if found == *mark {
                // A single request in flight is the one that was applied. If there are more, the mark must outlive
                // them. It may be from the first request, whose mark has the shorter TTL.
                if in_flight.get() < 2 {
                    return Ok(FoundLatch::Applied);
                }
                (found, mark, FoundLatch::Applied)
            } else if cells.count(name)?.is_some() {
                return Ok(FoundLatch::NotApplied);
            } else if in_flight.get() == 0 {
                return Ok(FoundLatch::NoLatch);
            } else {
                (found, &given_up, FoundLatch::NoLatch)
            };
            let request = || {
                let [column, expected, value] = packed([column, expected, value]);
                (holding(row, &column, &expected), vec![put(row, vec![(column, value)], IN_FLIGHT_TTL)])
            };
            // A late request of these does no harm, because the slot is not used again.
            let settled = self.change("settling a change", row, by, &Cell::new(0), &request);
            if settled.map_err(doubtful)?.processed == Some(true) {
                return Ok(outcome);
            }
        }
        Err(contended(name))
    }

    fn count_by_name(&self, step: &Step<'_>, row: &Bytes, participant: &str) -> Result<Stepped> {
        let by = step.by.sooner(Deadline::after(SENDING_MAX));
        let farm = step.name.farm();
        let count = Bytes::from(count_column(farm));
        let (made, came) = (made_column(farm), came_column(farm, participant));
        let due = due_column(farm, participant);
        let (id, own_incarnation) = (draw()?, Bytes::from([ZERO.as_slice(), &draw()?].concat()));
        let (in_flight, mut doubt, mut pauses) = (Cell::new(0), None, Pauses::until(by));
        for _ in 0..ROUNDS {
            // After a doubt, only one more read is needed, without a pause.
            if in_flight.get() > 0 && doubt.is_none() && !pauses.rest() {
                break;
            }
            let cells = match self.read(get(row, &[&count, &made, &due, &came]), by) {
                Ok(cells) => cells,
                Err(error) if in_flight.get() == 0 => return Err(error),
                Err(error) => return Err(doubtful(doubt.unwrap_or(error))),
            };
            let found = cells.value(&came).unwrap_or_default();
            if found.len() > ID_BYTES && found.ends_with(&id) {
                return Ok(Stepped::Counted(None));
            }
            if let Some(error) = doubt {
                return Err(doubtful(error));
            }
            if cells.count(step.name)?.is_none() {
                let missing = not_found(step.name);
                return Err(if in_flight.get() == 0 { missing } else { doubtful(missing) });
            }
            let incarnation = cells.incarnation(step.name, &made)?.map(Bytes::from);
            if incarnation.as_ref().is_some_and(|incarnation| found.starts_with(incarnation)) {
                return Ok(Stepped::Already);
            }
            let as_read = as_read(&made, incarnation.as_ref());
            let is_due = |incarnation: &Bytes| {
                cells.value(&due).is_some_and(|value| value.starts_with(incarnation))
                    || self.known_nameless(step.name, row).as_ref() == Some(incarnation)
            };
            if !incarnation.as_ref().is_none_or(is_due) {
                let in_doubt = |error| if in_flight.get() == 0 { error } else { doubtful(error) };
                // If the latch was created again meanwhile, the condition fails.
                self.refuse_unexpected(step, row, by).map_err(in_doubt)?;
            }
            let incarnation = incarnation.as_ref().unwrap_or(&own_incarnation);
            let request = || {
                let tests = [
                    FilterTest::some(&FAMILY, &count),
                    as_read.clone(),
                    FilterTest::begins_not(&FAMILY, &came, incarnation),
                ];
                let cells = vec![
                    (made.clone(), incarnation.clone()),
                    (came.clone(), [&incarnation[..], &id].concat().into()),
                ];
                (
                    filtering(row, &tests),
                    vec![add(row, &count, step.add), put(row, cells, names_ttl(step.ttl))],
                )
            };
            doubt = match self.change("counting by name", row, by, &in_flight, &request) {
                Ok(answer) if answer.processed == Some(true) => {
                    return Ok(Stepped::Counted(counted(&answer).ok()));
                }
                Ok(_) => None,
                Err(error) if in_flight.get() == 0 => return Err(error),
                Err(error) => Some(error),
            };
        }
        Err(contended(step.name))
    }

    /// Refuses a step of somebody whom the latch does not expect, while it waits for named participants. Otherwise returns
    /// the incarnation that was read: the names of an incarnation never change, and a name that has come stays.
    fn refuse_unexpected(&self, step: &Step<'_>, row: &Bytes, by: Deadline) -> Result<Option<Bytes>> {
        let (incarnation, Roster { pending, arrived }) = self.roster_in(step.name, row, by)?;
        let is_expected = |name: &str| pending.iter().chain(&arrived).any(|it| it == name);
        if !pending.is_empty() && !step.participant.is_some_and(is_expected) {
            return Err(unexpected(step, &pending));
        }
        let (mut nameless, key) = (self.nameless.lock(), (row.clone(), step.name.farm().to_owned()));
        if nameless.len() >= REMEMBERED {
            nameless.clear();
        }
        match &incarnation {
            Some(incarnation) if pending.is_empty() => nameless.insert(key, incarnation.clone()),
            _ => nameless.remove(&key),
        };
        Ok(incarnation)
    }

    fn known_nameless(&self, name: &LatchName, row: &Bytes) -> Option<Bytes> {
        self.nameless.lock().get(&(row.clone(), name.farm().to_owned())).cloned()
    }

    /// Reads the incarnation and its participants.
    fn roster_in(&self, name: &LatchName, row: &Bytes, by: Deadline) -> Result<(Option<Bytes>, Roster)> {
        let farm = name.farm();
        let (made, due, came) = (made_column(farm), due_column(farm, ""), came_column(farm, ""));
        let prefixes = vec![count_column(farm).into(), made.clone(), due.clone(), came.clone()];
        let get = Get { filter: Some(filter::columns_beginning(prefixes)), ..get(row, &[]) };
        let cells = self.read(get, by)?;
        if cells.count(name)?.is_none() {
            return Err(not_found(name));
        }
        let Some(incarnation) = cells.incarnation(name, &made)? else {
            return Ok((None, Roster::default()));
        };
        let arrived = cells.names(&came, &incarnation);
        let pending = cells.names(&due, &incarnation).difference(&arrived).cloned().collect();
        Ok((Some(incarnation.into()), Roster { pending, arrived: arrived.into_iter().collect() }))
    }

    /// Sends an atomic change that may be run twice, until it is answered. The answer says whether its condition
    /// held. `in_flight` counts requests that may have been run and were not answered. `request` is called again
    /// for each send.
    fn change(
        &self,
        what: &str,
        row: &Bytes,
        by: Deadline,
        in_flight: &Cell<u32>,
        request: &dyn Fn() -> (Condition, Vec<MutationProto>),
    ) -> Result<RegionActionResult> {
        self.native.on_region(RequestKind::Repeatable, what, row, by, |region, by| {
            let (condition, mutations) = request();
            let action = conditional(region, condition, mutations);
            let answer = self.native.multi(region, vec![action], by).and_then(|results| {
                let result = results.into_iter().next().ok_or_else(protocol_violation)?;
                processed(&result).map(|_| result)
            });
            if answer.as_ref().is_err_and(may_be_run) {
                in_flight.set(in_flight.get() + 1);
            }
            answer
        })
    }

    fn read(&self, get: Get, by: Deadline) -> Result<LatchCells> {
        let row = get.row.clone();
        self.native.on_region(RequestKind::Read, "reading a latch", &row, by, |region, by| {
            let request = GetRequest { region: region.specifier(), get: Some(get.clone()) };
            let answer: GetResponse = self
                .native
                .locator
                .servers()
                .call(&region.server, CLIENT_SERVICE, "Get", &request, by)
                .map_err(SendError::Call)?;
            Ok(LatchCells(answer.result.unwrap_or_default().cell))
        })
    }
}

/// Result of [`NativeLatches::look_for`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FoundLatch {
    Applied,
    NotApplied,
    NoLatch,
}

/// Cells of one row.
struct LatchCells(Vec<messages::Cell>);

impl LatchCells {
    fn value(&self, column: &[u8]) -> Option<&[u8]> {
        self.0.iter().find(|cell| cell.qualifier == column).map(|cell| cell.value.as_slice())
    }

    fn count(&self, name: &LatchName) -> Result<Option<i64>> {
        let cells = self.0.iter().map(|cell| (cell.qualifier.as_slice(), cell.value.as_slice()));
        count_in(cells, name, Level::Dc)
    }

    /// Returns the value of a count that was deleted, or an empty value if there is none.
    fn deletion(&self, count: &[u8]) -> Bytes {
        self.value(count)
            .filter(|value| is_deleted(value))
            .map_or_else(|| EMPTY.clone(), Bytes::copy_from_slice)
    }

    /// Returns the incarnation that the names belong to. The values of their columns begin with these bytes too.
    fn incarnation(&self, name: &LatchName, column: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.value(column) {
            None => Ok(None),
            Some(value) if value.len() == ZERO.len() + ID_BYTES => Ok(Some(value.to_vec())),
            Some(_) => Err(Error::Internal {
                what: format!(
                    "column C:made_{} of latch {name} was not written by this library",
                    name.farm()
                ),
                source: None,
            }),
        }
    }

    /// Returns the names of the incarnation from the columns with this prefix.
    fn names(&self, prefix: &[u8], incarnation: &[u8]) -> BTreeSet<String> {
        let named = self.0.iter().filter(|cell| cell.value.starts_with(incarnation));
        named
            .filter_map(|cell| cell.qualifier.strip_prefix(prefix))
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect()
    }
}

/// Refuses a roster that could be created but never read. Each name has one cell, and a second one after it has
/// counted. Each cell contains row, column and value.
fn check_size(new: &NewLatch<'_>, row: &[u8]) -> Result<()> {
    // Lengths, values and timestamps of the two cells take 117 bytes.
    const OVERHEAD: usize = 128;
    let names = new.roster.iter().map(|name| 2 * (row.len() + new.name.farm().len() + name.len()) + OVERHEAD);
    if names.sum::<usize>() <= FRAME_BYTES_MAX as usize {
        return Ok(());
    }
    let allowed = "fewer or shorter names: after all have counted, they must fit into one answer of 4 MiB";
    Err(Error::invalid("participants", new.roster.len().to_string(), allowed))
}

/// Begins a change with a mark in a column that other farms do not use. The server stamps a mark no older than the
/// farm's count (see [`filtering`]), and each change makes the count newer. So a later mark in the column has no
/// older timestamp than an earlier one, even after a server's clock was set back.
///
/// The mark lives no longer than the latch if that is long enough. The Java library reads a row in which only zeros
/// are left as an open latch. It reads an empty row as an error.
fn begin<'a>(
    marks: &'a IdempotencyMarks,
    farm: &str,
    latch_ttl: Duration,
    by: Deadline,
) -> Result<MarkedOperation<'a>> {
    let column = |slot: &MarkSlot| format!("op_{}_{farm}", slot.name()).into_bytes();
    MarkedOperation::begin(marks, column, latch_ttl, by)
}

fn put_mark(operation: &MarkedOperation<'_>, row: &Bytes) -> MutationProto {
    let [column, mark] = packed([&operation.column, &operation.mark]);
    put(row, vec![(column, mark)], operation.mark_ttl())
}

fn made_column(farm: &str) -> Bytes {
    latches::made_column(farm).into()
}

fn due_column(farm: &str, name: &str) -> Bytes {
    latches::due_column(farm, name).into()
}

fn came_column(farm: &str, name: &str) -> Bytes {
    latches::came_column(farm, name).into()
}

/// Holds while the latch has this incarnation.
fn as_read(made: &Bytes, incarnation: Option<&Bytes>) -> FilterTest {
    incarnation.map_or_else(
        || FilterTest::none(&FAMILY, made),
        |incarnation| FilterTest::is(&FAMILY, made, incarnation),
    )
}

/// Returns the TTL of names. They must stay while changes keep the latch alive, and outlive every late request.
fn names_ttl(latch_ttl: Duration) -> Duration {
    latch_ttl.saturating_mul(NAMES_TTL).max(NAMES_TTL_MIN)
}

fn draw() -> Result<[u8; ID_BYTES]> {
    Ok(*OwnerToken::draw()?.as_bytes())
}

/// Converts the error of a change with a request that may still be run to IN_DOUBT.
fn doubtful(error: Error) -> Error {
    if error.is_in_doubt() {
        return error;
    }
    Error::InDoubt {
        what: "an earlier request of this change was not answered".into(),
        source: Some(error.into()),
    }
}

fn contended(name: &LatchName) -> Error {
    Error::InDoubt { what: format!("latch {name} changed during each of {ROUNDS} attempts"), source: None }
}

fn get(row: &Bytes, columns: &[&Bytes]) -> Get {
    let qualifiers: Vec<_> = columns.iter().copied().cloned().collect();
    request::get(row, &FAMILY, &qualifiers)
}

fn put(row: &Bytes, cells: Vec<(Bytes, Bytes)>, ttl: Duration) -> MutationProto {
    request::put(row, &FAMILY, cells, Some(ttl))
}

/// Builds an Increment without a TTL: the cell's own TTL starts again.
fn add(row: &Bytes, column: &Bytes, amount: i64) -> MutationProto {
    request::increment(row, &FAMILY, column, amount, None)
}

/// Builds the condition that the column holds `value`. An empty value also matches a missing cell.
fn holding(row: &Bytes, column: &Bytes, value: &Bytes) -> Condition {
    request::comparing(row, &FAMILY, column, EQUAL, value)
}
