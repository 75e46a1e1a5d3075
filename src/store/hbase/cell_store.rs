//! The operations of HBase that the lock protocol needs: the interface between protocol and transports.

use std::fmt;
use std::time::Duration;

use super::layout::{CellColumn, LOCK};
use crate::error::Result;
use crate::names::diagnostic::Diagnostic;
use crate::runtime::time::Deadline;
use crate::store::hbase::row_keys::lock_row;
use crate::store::remote::{OnReply, Replace, Reply, replace_one_by_one};
use crate::store::request_kind::RequestKind;

/// Purpose of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Content {
    Locks,
    /// Locks in the layout `own`.
    OwnLocks,
    Latches,
    /// Rows of an application.
    Rows,
}

impl Content {
    /// Returns the only family of such a table. Empty for an application's table, which defines its own families.
    pub(super) fn family(self) -> &'static str {
        match self {
            Content::Locks => "D",
            Content::OwnLocks => "O",
            Content::Latches => "C",
            Content::Rows => "",
        }
    }

    /// Describes the fault of a table without this family, for an error message.
    pub(super) fn lacking(self) -> String {
        let (things, advice) = match self {
            Content::Locks => (
                "locks in the layout java",
                "; a table of the layout own (family O) needs the option layout=own",
            ),
            Content::OwnLocks => (
                "locks in the layout own",
                "; a table of the layout java (family D) needs no option layout=own",
            ),
            Content::Latches => ("latches", ""),
            Content::Rows => return "lacks a column family that was asked for".into(),
        };
        format!("has no family {}: it is not a table for {things}{advice}", self.family())
    }
}

/// What the rows of probes end with. The row of a lock has a hash byte, then DC# or XDC#.
pub(super) const PROBE: &[u8] = b"?doctor";

/// Error text for a missing table.
pub(super) const NO_TABLE: &str = "does not exist; create it with initialize() or `dlm init`";

/// The newest version of a cell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) value: Vec<u8>,
    /// Server time, in milliseconds since 1970.
    pub(super) written_ms: u64,
}

/// State of the server's write-ahead log (WAL) at which the server answers a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// The log is as durable as the table's settings require.
    UseDefault,
    /// The write is in the log and the log is synced, whatever the table's settings say.
    Sync,
    /// The write is in the log's queue. Only a crash of the server can lose it. A later write to the same region
    /// that is synced makes this one durable too, because the log keeps the order. A transport may sync anyway.
    Async,
}

/// HBase's checkAndPut: writes `value` if the cell holds `expected`.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckAndPut<'a> {
    pub(super) row: &'a [u8],
    pub(super) column: CellColumn,
    /// The value that the cell must hold. Empty matches an empty cell and a missing cell.
    pub(super) expected: &'a [u8],
    pub(super) value: &'a [u8],
    /// Lifetime of the new version.
    pub(super) ttl: Duration,
    /// What to write into the column [`COVER`](super::layout::COVER) too, in the same step. A transport that cannot do that
    /// writes it first.
    pub(super) cover: Option<Duration>,
    pub(super) durability: Durability,
    /// The remaining time is divided into this many equal parts, and one try takes at most one part. If the first
    /// try meets a dead connection, there is still time for another try.
    pub(super) parts: u32,
}

/// A record to put into an empty cell, and the operations that follow it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Take<'a> {
    pub(super) row: &'a [u8],
    pub(super) column: CellColumn,
    pub(super) value: &'a [u8],
    pub(super) ttl: Duration,
    /// The counter to add one to.
    pub(super) count: Option<Count<'a>>,
}

/// A counter and its first value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Count<'a> {
    pub(super) row: &'a [u8],
    pub(super) column: CellColumn,
    /// First number of a new counter. It is above every number that the counter can have returned before it
    /// expired, and at least 2^40.
    pub(super) seed: i64,
    /// The number to add: 1, except over a transport that can add more.
    pub(super) add: i64,
    pub(super) ttl: Duration,
}

/// Result of [`CellStore::take`].
#[derive(Debug)]
pub(super) struct Taken {
    /// Whether the cell was empty and now holds the record.
    pub(super) put: bool,
    /// The new number of the counter; `None` if the caller must still count.
    pub(super) counted: Option<i64>,
    /// The cells after the put; `None` if the caller must still read them.
    pub(super) found: Option<LockCells>,
}

/// The cells of a lock in the layout `java`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LockCells {
    /// Empty or missing means free.
    pub(super) record: Option<Cell>,
    /// See [`COVER`](super::layout::COVER).
    pub(super) cover: Option<Cell>,
    /// Whether the row has a counter too, which earlier versions kept there with `fence=lock_row`.
    pub(super) has_count: bool,
}

/// A table for locks.
pub(super) trait LockTable: Send + Sync + fmt::Debug {
    /// Returns the URI of the table, without credentials.
    fn describe(&self) -> String;

    /// Creates the table with this family (GZ, one version) unless it exists, and waits until it serves requests.
    /// Logs a warning if its schema is different.
    fn ensure_table(&self, family: &'static str, by: Deadline) -> Result<()>;

    /// See [`LockStore::greet`](crate::store::LockStore::greet).
    fn greet(&self, by: Deadline) -> Result<()>;

    /// Returns the version of the servers; `None` if the transport cannot read it.
    fn version(&self, by: Deadline) -> Result<Option<String>>;

    /// Reports as whom the servers know us; `None` if they believe any name.
    fn diagnose_login(&self) -> Option<Diagnostic> {
        None
    }

    /// Lists the faults of the table's schema; `None` if the table does not exist.
    fn diagnose_table(&self, family: &'static str, by: Deadline) -> Result<Option<Vec<SchemaFault>>>;

    /// Returns a row on each RegionServer, with the server's name, for a check of its clock. No lock has these rows. A
    /// transport that does not see the servers returns one row.
    fn probe_rows(&self, by: Deadline) -> Result<Vec<(String, Vec<u8>)>>;

    /// Reads some of the rows of a range that have a cell in a column.
    fn scan(&self, scan: &RowScan<'_>, by: Deadline) -> Result<RowPage>;

    /// Puts a cell, whatever the cell holds. May put it twice, so the row must belong to this value.
    fn put(&self, row: &[u8], column: CellColumn, value: &[u8], ttl: Duration, by: Deadline) -> Result<()>;
}

/// Which rows [`LockTable::scan`] reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowScan<'a> {
    pub(super) column: CellColumn,
    /// A column of the same family to read too.
    pub(super) beside: Option<CellColumn>,
    pub(super) from: &'a [u8],
    /// The first row behind the range. Empty: the range has no end.
    pub(super) to: &'a [u8],
    /// Whether rows whose cell is empty are left out.
    pub(super) filled: bool,
    /// Most rows of the page, at least 1.
    pub(super) most: usize,
}

/// A row with the newest versions of its cells.
#[derive(Debug)]
pub(super) struct ScannedRow {
    pub(super) row: Vec<u8>,
    pub(super) cell: Cell,
    /// The cell of [`RowScan::beside`], if there is one.
    pub(super) beside: Option<Cell>,
}

/// Some rows of a range in their order.
#[derive(Debug, Default)]
pub(super) struct RowPage {
    pub(super) rows: Vec<ScannedRow>,
    /// Where the next page begins; `None` after the last one.
    pub(super) next: Option<Vec<u8>>,
}

/// A difference between a table's schema and the expected one.
#[derive(Debug)]
pub(super) struct SchemaFault {
    pub(super) what: String,
    /// Whether a held lock can become free.
    pub(super) is_unsafe: bool,
    /// What to do about it.
    pub(super) advice: &'static str,
}

impl SchemaFault {
    pub(super) const ALTER: &'static str = "alter the table in the HBase shell, or create it again";
}

/// Says which right a user lacks that HBase's AccessController has refused. What HBase says does not name it always.
pub(super) fn lacks_right(kind: RequestKind, table: &str) -> String {
    let rights = match kind {
        RequestKind::Read => "the right READ",
        // All writes of locks and latches have conditions.
        RequestKind::Write | RequestKind::Repeatable => "the rights READ and WRITE",
    };
    format!(": this takes {rights} on the table {table:?}")
}

/// Single-row operations on one table. They use only the server's clock: no call carries a timestamp.
///
/// # Errors
/// A write that fails with any error but IN_DOUBT was not applied and will not be applied. If the connection is
/// lost, a read is sent again over a new one; a write that may have been applied is not.
pub(super) trait CellStore: LockTable {
    /// Returns the shortest time after which something between this process and the servers may send a write again
    /// by itself, as in [`Capabilities::repeats_after`](crate::store::remote::Capabilities::repeats_after).
    fn repeats_after(&self) -> Option<Duration>;

    fn get(&self, row: &[u8], column: CellColumn, by: Deadline) -> Result<Option<Cell>>;

    /// Reads the cells of a lock.
    fn read_cells(&self, row: &[u8], by: Deadline) -> Result<LockCells>;

    /// Reads this cell of many rows. Calls `report` with the position of each row that was read, and its cell.
    ///
    /// Default: reads none.
    fn get_many(
        &self,
        rows: &[Vec<u8>],
        column: CellColumn,
        by: Deadline,
        report: &mut dyn FnMut(usize, Option<Cell>),
    ) {
        let _ = (rows, column, by, report);
    }

    /// Compares and puts in one atomic step. Returns whether it put the value.
    fn check_and_put(&self, swap: &CheckAndPut<'_>, by: Deadline) -> Result<bool>;

    /// Whether [`check_stamp_and_put`](CellStore::check_stamp_and_put) is possible.
    fn compares_stamps(&self) -> bool {
        false
    }

    /// Like [`check_and_put`](CellStore::check_and_put), and the cell must have been written at this time of the server.
    /// Deletes that version in the same step. Called only if it is possible.
    fn check_stamp_and_put(&self, swap: &CheckAndPut<'_>, written_ms: u64, by: Deadline) -> Result<bool> {
        let _ = (swap, written_ms, by);
        Ok(false)
    }

    /// Adds to an 8-byte counter, or creates the counter with its seed. Returns the new number. The TTL of the
    /// counter starts again.
    fn count(&self, count: Count<'_>, by: Deadline) -> Result<i64>;

    /// Replaces the records of several locks like [`check_and_put`](CellStore::check_and_put), as
    /// [`Register::replace_many`](crate::store::remote::Register::replace_many) describes.
    ///
    /// Default: one after the other.
    fn replace_many<'a>(&self, changes: Vec<Replace<'a>>, by: Deadline, answered: OnReply<'_, 'a>) {
        replace_one_by_one(changes, by, answered, |change| self.replace(change, by));
    }

    /// Replaces the record of a lock.
    fn replace(&self, change: &Replace<'_>, by: Deadline) -> Reply {
        let swap = CheckAndPut {
            row: &lock_row(change.name),
            column: LOCK,
            expected: change.expected.as_bytes(),
            value: change.record.as_bytes(),
            // The longest TTL of any version. If the newest version expired first, HBase would show an older one.
            ttl: change.record.ttl(),
            cover: None,
            durability: Durability::UseDefault,
            parts: RENEW_PARTS,
        };
        Reply::of_bool(self.check_and_put(&swap, by))
    }

    /// Puts a record into an empty cell. A transport that can do so also counts and then reads the lock in the same
    /// call.
    fn take(&self, take: &Take<'_>, by: Deadline) -> Result<Taken> {
        let Take { row, column, value, ttl, .. } = *take;
        let put = self.check_and_put(
            &CheckAndPut {
                row,
                column,
                expected: b"",
                value,
                ttl,
                cover: None,
                durability: Durability::UseDefault,
                parts: 1,
            },
            by,
        )?;
        Ok(Taken { put, counted: None, found: None })
    }
}

/// One try of a renewal takes at most a third of the remaining lease time. If the first try meets a dead
/// connection, there is time to read the record over another connection and to try again.
pub(super) const RENEW_PARTS: u32 = 3;
