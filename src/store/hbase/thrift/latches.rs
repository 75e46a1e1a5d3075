//! Latches through a Thrift1 gateway, which knows one conditional write of one column: a count is
//! changed by compare-and-set, and nothing tells our change from another's of the same amount. So a lost
//! reply is IN_DOUBT and the request never sent again, and there are no names of participants.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hbase_thrift::hbase::{Mutation, TCell, THbaseSyncClient as _, TRowResult};

use super::gateway::{Gateway, TTL};
use crate::error::{Error, Result};
use crate::latch_name::LatchName;
use crate::name::Level;
use crate::random;
use crate::store::hbase::cell_store::{CellStore, Content};
use crate::store::hbase::latches::{count_column, count_in, is_no_table, not_found, row_of};
use crate::store::request_kind::RequestKind;
use crate::store::{LatchStore, NewLatch, Roster, Step, Stepped};
use crate::time::{self, Deadline, Moment, jittered};

const FAMILY: &str = "C";

/// Rounds of one change. Each but the last was won by another change.
const ROUNDS: usize = 1000;
/// Longest pause after a round that was lost.
const PAUSE_LONGEST: Duration = Duration::from_millis(20);
/// A gateway repeats by itself a request that its server did not answer. It then says "no" to what the
/// first request did. It takes at least its pause for that, `hbase.client.pause`, and in practice the time
/// that a region needs to come back: a "no" that took as long as this proves nothing.
const REPEATED_AFTER: Duration = Duration::from_millis(500);
/// Latches in one read: the reply must fit into a mebibyte, whatever else lies in their rows.
const BATCH: usize = 100;

/// The latches beside the locks of a [`Gateway`].
#[derive(Debug)]
pub(in crate::store::hbase) struct GatewayLatches {
    gateway: Gateway,
}

impl GatewayLatches {
    /// In `table`, over the connections of `locks`.
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
        let create = || self.swap(&row, new.name, b"", &value, new.ttl, new.by);
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
            let found = self.read(&[step.name], Level::Dc, step.by)?.count(step.name, Level::Dc)?;
            let count = found.ok_or_else(|| not_found(step.name))?;
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
            what: format!("others changed latch {} before each attempt to count", step.name),
            source: None,
        })
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
    /// Sets the farm's count to `value` where it is `expected`; an empty one stands for no count.
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
        if !put && took >= REPEATED_AFTER {
            let what = format!(
                "{}: the gateway took {took:?} to refuse a change of latch {name}: it may have repeated one that was made",
                self.gateway.describe()
            );
            return Err(Error::InDoubt { what, source: None });
        }
        Ok(put)
    }

    /// What `level` needs to know of these latches. Nothing where there is no table.
    fn read(&self, names: &[&LatchName], level: Level, by: Deadline) -> Result<GatewayCells> {
        let rows: Vec<_> = names.iter().map(|name| name.hbase_row()).collect();
        // Of several farms, if there are: each latch picks its own.
        let columns: BTreeSet<_> = names.iter().map(|name| qualified(&count_column(name.farm()))).collect();
        let row = rows.first().filter(|_| rows.len() == 1).map(Vec::as_slice);
        let read = self.gateway.call(RequestKind::Read, "reading latches", row, by, |client| {
            let (table, rows, attributes) = (self.gateway.table(), rows.clone(), BTreeMap::new());
            match level {
                Level::Dc => {
                    client.get_rows_with_columns(table, rows, columns.iter().cloned().collect(), attributes)
                }
                // A gateway has no prefixes of columns.
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

/// Whether the reply could not be read, as one that is too large: of fewer rows it may be smaller. One
/// latch with many names must not hide all that are read along with it.
fn is_unreadable(error: &Error) -> bool {
    let cause = match error {
        Error::RetriesExhausted { source: Some(cause), .. } => cause.downcast_ref::<thrift::Error>(),
        _ => None,
    };
    matches!(cause, Some(thrift::Error::Protocol(_)))
}

/// Columns and their cells by row.
struct GatewayCells(BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, TCell>>);

impl GatewayCells {
    fn count(&self, name: &LatchName, level: Level) -> Result<Option<i64>> {
        let row = self.0.get(&name.hbase_row());
        let prefix = qualified(b"");
        let cells = row.into_iter().flatten().filter_map(|(column, cell)| {
            Some((column.strip_prefix(prefix.as_slice())?, cell.value.as_deref().unwrap_or_default()))
        });
        count_in(cells, name, level)
    }
}

fn qualified(column: &[u8]) -> Vec<u8> {
    [FAMILY.as_bytes(), b":", column].concat()
}

fn no_names(what: &'static str, name: &str) -> Error {
    let allowed = "none through a Thrift gateway, which cannot change several columns in one atomic step: \
                   for names of participants use hbase://";
    Error::invalid(what, name, allowed)
}
