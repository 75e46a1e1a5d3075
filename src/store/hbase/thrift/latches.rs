//! Latches through a Thrift1 gateway.
//!
//! The only conditional write of Thrift1 writes one column, so a count is changed by compare-and-set. A change of
//! this process cannot be distinguished from another's change of the same amount. So a lost reply is IN_DOUBT, the
//! request is never sent again, and participants cannot have names. A latch that was created with names through
//! `hbase://` is not counted while it waits for one of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hbase_thrift::hbase::{Mutation, TCell, THbaseSyncClient as _, TRowResult};

use super::gateway::{Gateway, ROWS_MAX, TTL};
use crate::error::{Error, Result};
use crate::names::latch_name::LatchName;
use crate::names::lock_name::Level;
use crate::runtime::random;
use crate::runtime::time::{self, Deadline, Moment, jittered};
use crate::store::hbase::cell_store::{CellStore as _, Content, LockTable};
use crate::store::hbase::latches::{
    self, LatchRow, came_column, count_column, count_columns, count_in, due_column, is_deleted, is_no_table,
    made_column, not_found, row_of,
};
use crate::store::hbase::row_keys::latch_row;
use crate::store::request_kind::RequestKind;
use crate::store::{LatchPage, LatchQuery, LatchStore, NewLatch, Roster, Step, Stepped, unexpected};

const FAMILY: &str = "C";

/// Most tries of one change. A try fails when another change wins.
const ROUNDS: usize = 1000;
/// Longest pause after a failed try.
const PAUSE_LONGEST: Duration = Duration::from_millis(20);
/// A "no" that took this long proves nothing. A gateway repeats by itself a request that its server did not answer,
/// and the second request then answers "no" to a change that the first one made. A repeat takes at least the pause
/// `hbase.client.pause`, and in practice the time that a region needs to come back.
const REPEATED_AFTER: Duration = Duration::from_millis(500);
/// Most latches in one read. The reply must fit into 1 MiB, with everything else in their rows.
const BATCH: usize = 100;

/// Latches over the connections of a [`Gateway`] for locks.
#[derive(Debug)]
pub(in crate::store::hbase) struct GatewayLatches {
    gateway: Gateway,
}

impl GatewayLatches {
    /// Keeps latches in `table` and uses the connections of `locks`.
    pub(in crate::store::hbase) fn beside(locks: &Gateway, table: &str) -> GatewayLatches {
        GatewayLatches { gateway: locks.beside(table, Content::Latches) }
    }
}

impl LatchStore for GatewayLatches {
    fn initialize_latches(&self, by: Deadline) -> Result<()> {
        self.gateway.ensure_table(FAMILY, by)
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        if let Some(name) = new.roster.first() {
            return Err(no_names("participant", name));
        }
        let (row, value) = (row_of(new.name)?, new.count.to_be_bytes());
        let create = || {
            if self.swap(&row, new.name, b"", &value, new.ttl, new.by)? {
                return Ok(true);
            }
            // A count that was deleted through hbase:// is not empty.
            let cells = self.read(&[new.name], Level::Dc, new.by)?;
            match cells.value(new.name, &count_column(new.name.farm())).filter(|value| is_deleted(value)) {
                Some(deleted) => self.swap(&row, new.name, deleted, &value, new.ttl, new.by),
                None => Ok(false),
            }
        };
        match create() {
            Err(error) if is_no_table(&error) => {
                self.initialize_latches(new.by)?;
                create()
            }
            created => created,
        }
    }

    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        if let Some(name) = step.participant {
            return Err(no_names("participant", name));
        }
        let row = row_of(step.name)?;
        for round in 0..ROUNDS {
            let cells = self.read(&[step.name], Level::Dc, step.by)?;
            let count = cells.count(step.name, Level::Dc)?.ok_or_else(|| not_found(step.name))?;
            if round == 0 && cells.value(step.name, &made_column(step.name.farm())).is_some() {
                // Only latches with names have such a column, and those that were reset. The whole row has all names.
                let pending = self.read(&[step.name], Level::Xdc, step.by)?.pending(step.name);
                if !pending.is_empty() {
                    return Err(unexpected(step, &pending));
                }
            }
            let next = count.checked_add(step.add).ok_or_else(|| Error::Internal {
                what: format!("latch {}: its count would not fit into 64 bits", step.name),
                source: None,
            })?;
            if self.swap(&row, step.name, &count.to_be_bytes(), &next.to_be_bytes(), step.ttl, step.by)? {
                return Ok(Stepped::Counted(Some(next)));
            }
            let pause = Duration::from_millis(1 << round.min(10)).min(PAUSE_LONGEST);
            if step.by.remaining() <= pause {
                break;
            }
            time::sleep(jittered(pause).mul_f64(random::fraction()));
        }
        Err(Error::RetriesExhausted {
            store: self.gateway.describe(),
            what: format!("others changed latch {} before each try to count", step.name),
            source: None,
        })
    }

    fn reset_latch(&self, new: &NewLatch<'_>) -> Result<()> {
        Err(no_incarnations("reset of latch", new.name))
    }

    fn delete_latch(&self, name: &LatchName, _ttl: Duration, _by: Deadline) -> Result<()> {
        Err(no_incarnations("deletion of latch", name))
    }

    fn list_latches(&self, asked: &LatchQuery<'_>) -> Result<LatchPage> {
        latches::page(asked, |from, to, most| self.counts_in(from, to, most, asked.by))
    }

    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>> {
        let mut answers: Vec<_> = asked.iter().map(|(name, _)| row_of(name).err().map(Err)).collect();
        let (mut any_read, mut failed) = (answers.iter().any(Option::is_some), None);
        for level in [Level::Dc, Level::Xdc] {
            let is_open = |at: &usize| answers[*at].is_none() && asked[*at].1 == level;
            let open: Vec<usize> = (0..asked.len()).filter(is_open).collect();
            let mut batches: VecDeque<&[usize]> = open.chunks(BATCH).collect();
            while let Some(batch) = batches.pop_front() {
                let names: Vec<&LatchName> = batch.iter().map(|&at| asked[at].0).collect();
                let read = self.read(&names, level, by).map_err(Arc::new);
                if batch.len() > 1 && read.as_ref().is_err_and(|error| is_unreadable(error)) {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    batches.extend([first, second]);
                    continue;
                }
                for (&at, name) in batch.iter().zip(names) {
                    answers[at] = Some(match &read {
                        Ok(cells) => cells.count(name, level),
                        Err(error) => Err(Error::Context {
                            doing: format!("reading latch {name}"),
                            source: Arc::clone(error),
                        }),
                    });
                }
                any_read |= read.is_ok();
                failed = failed.or(read.err());
            }
        }
        match failed {
            Some(source) if !any_read => Err(Error::Context { doing: "reading latches".into(), source }),
            _ => Ok(answers.into_iter().flatten().collect()),
        }
    }

    fn roster(&self, name: &LatchName, _by: Deadline) -> Result<Roster> {
        Err(no_names("roster of latch", name.id()))
    }
}

impl GatewayLatches {
    /// Sets the farm's count to `value` if it is `expected`. An empty `expected` means that there is no count.
    fn swap(
        &self,
        row: &[u8],
        name: &LatchName,
        expected: &[u8],
        value: &[u8],
        ttl: Duration,
        by: Deadline,
    ) -> Result<bool> {
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let (table, column) = (self.gateway.table(), qualified(&count_column(name.farm())));
        let began = Moment::now();
        let put = self.gateway.call(RequestKind::Write, "checkAndPut", Some(row), by, |client| {
            let put = Mutation::new(false, column.clone(), value.to_vec(), true);
            let attributes = BTreeMap::from([(TTL.to_vec(), ttl_ms.to_be_bytes().to_vec())]);
            let expected = expected.to_vec();
            client.check_and_put(table.clone(), row.to_vec(), column.clone(), expected, put, attributes)
        })?;
        let took = Moment::now().since(began);
        // A gateway whose pause is known to be longer has surely not repeated it before.
        let sure_for = self.gateway.repeats_after().map_or(REPEATED_AFTER, |it| it.max(REPEATED_AFTER));
        if !put && took >= sure_for {
            let what = format!(
                "{}: the gateway took {took:?} to refuse a change of latch {name}: it may have made the change and then repeated it",
                self.gateway.describe()
            );
            return Err(Error::InDoubt { what, source: None });
        }
        Ok(put)
    }

    /// Reads the counts in a range of rows, and where the next page begins.
    fn counts_in(
        &self,
        from: &[u8],
        to: &[u8],
        most: usize,
        by: Deadline,
    ) -> Result<(Vec<LatchRow>, Option<Vec<u8>>)> {
        let most = most.clamp(1, ROWS_MAX);
        let counts = format!("ColumnPrefixFilter('{}')", String::from_utf8_lossy(&count_columns()));
        let (range, family) = ((from, to), FAMILY.as_bytes());
        let found = self.gateway.scan_rows(range, (family, Some(counts.into_bytes())), most, by)?;
        let next = found.last().and_then(|row| row.row.as_deref());
        let next = next.filter(|_| found.len() >= most).map(|last| [last, b"\0"].concat());
        let prefix = qualified(b"");
        let cells = |row: TRowResult| {
            let columns = row.columns.unwrap_or_default().into_iter().filter_map(|(column, cell)| {
                Some((column.strip_prefix(&prefix[..])?.to_vec(), cell.value.unwrap_or_default()))
            });
            Some((row.row?, columns.collect()))
        };
        Ok((found.into_iter().filter_map(cells).collect(), next))
    }

    /// Reads the cells of these latches that `level` needs. Returns no cells if the table does not exist.
    fn read(&self, names: &[&LatchName], level: Level, by: Deadline) -> Result<GatewayCells> {
        let rows: Vec<_> = names.iter().map(|name| latch_row(name)).collect();
        // The counts of all farms of these latches, and what shows that they have names. Each latch picks its own columns.
        let farms = names.iter().map(|name| name.farm());
        let columns = farms.flat_map(|farm| [count_column(farm), made_column(farm)]);
        let columns: BTreeSet<_> = columns.map(|column| qualified(&column)).collect();
        let row = rows.first().filter(|_| rows.len() == 1).map(Vec::as_slice);
        let read = self.gateway.call(RequestKind::Read, "reading latches", row, by, |client| {
            let (table, rows, attributes) = (self.gateway.table(), rows.clone(), BTreeMap::new());
            match level {
                Level::Dc => {
                    client.get_rows_with_columns(table, rows, columns.iter().cloned().collect(), attributes)
                }
                // A gateway cannot select columns by prefix, so the whole rows are read.
                Level::Xdc => client.get_rows(table, rows, attributes),
            }
        });
        let found = match read {
            Ok(found) => found,
            Err(error) if is_no_table(&error) => Vec::new(),
            Err(error) => return Err(error),
        };
        let row = |row: TRowResult| Some((row.row?, row.columns?));
        Ok(GatewayCells(found.into_iter().filter_map(row).collect()))
    }
}

/// Returns whether the reply could not be read, for example because it was too large. A reply for fewer rows may
/// be readable. One latch with many names must not make the other latches of its batch unreadable.
fn is_unreadable(error: &Error) -> bool {
    let cause = match error {
        Error::RetriesExhausted { source: Some(cause), .. } => cause.downcast_ref::<thrift::Error>(),
        _ => None,
    };
    matches!(cause, Some(thrift::Error::Protocol(_)))
}

/// Cells by row and column.
struct GatewayCells(BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, TCell>>);

impl GatewayCells {
    fn count(&self, name: &LatchName, level: Level) -> Result<Option<i64>> {
        let row = self.0.get(&latch_row(name));
        let prefix = qualified(b"");
        let cells = row.into_iter().flatten().filter_map(|(column, cell)| {
            Some((column.strip_prefix(prefix.as_slice())?, cell.value.as_deref().unwrap_or_default()))
        });
        count_in(cells, name, level)
    }

    fn value(&self, name: &LatchName, column: &[u8]) -> Option<&[u8]> {
        self.0.get(&latch_row(name))?.get(&qualified(column))?.value.as_deref()
    }

    /// Returns the named participants of the latch that have not counted.
    fn pending(&self, name: &LatchName) -> Vec<String> {
        let farm = name.farm();
        let Some(incarnation) = self.value(name, &made_column(farm)) else { return Vec::new() };
        let names = |prefix: Vec<u8>| -> BTreeSet<String> {
            let cells = self.0.get(&latch_row(name)).into_iter().flatten();
            let of_it =
                |cell: &TCell| cell.value.as_ref().is_some_and(|value| value.starts_with(incarnation));
            let named = cells.filter(|(_, cell)| of_it(cell));
            let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
            named.filter_map(|(column, _)| column.strip_prefix(&qualified(&prefix)[..]).map(text)).collect()
        };
        names(due_column(farm, "")).difference(&names(came_column(farm, ""))).cloned().collect()
    }
}

fn qualified(column: &[u8]) -> Vec<u8> {
    [FAMILY.as_bytes(), b":", column].concat()
}

/// A late request could change a new incarnation: its only condition is the count.
fn no_incarnations(what: &'static str, name: &LatchName) -> Error {
    let allowed =
        "none through a Thrift gateway, which cannot change several columns in one atomic step; use hbase://";
    Error::invalid(what, name.id(), allowed)
}

fn no_names(what: &'static str, name: &str) -> Error {
    let allowed = "none through a Thrift gateway, which cannot change several columns in one atomic step; \
                   use hbase:// for names of participants";
    Error::invalid(what, name, allowed)
}
