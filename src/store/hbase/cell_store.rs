//! What the lock protocol needs of HBase, and no more: the seam between protocol and transport.

use std::fmt;
use std::time::Duration;

use crate::error::Result;
use crate::time::Deadline;

/// A column, family and qualifier of one byte each as the Java library has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CellColumn {
    pub(super) family: &'static str,
    pub(super) qualifier: &'static str,
}

/// What a table is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Content {
    Locks,
    Latches,
    /// What an application makes of it.
    Rows,
}

impl Content {
    /// The one family of such a table; empty for an application's, which has its own.
    pub(super) fn family(self) -> &'static str {
        match self {
            Content::Locks => "D",
            Content::Latches => "C",
            Content::Rows => "",
        }
    }

    /// What is wrong with a table that lacks it.
    pub(super) fn lacking(self) -> String {
        let things = match self {
            Content::Locks => "locks",
            Content::Latches => "latches",
            Content::Rows => return "lacks a column family that was asked for".into(),
        };
        format!("has no family {}: it is not a table for {things}", self.family())
    }
}

/// What is wrong where there is no table.
pub(super) const NO_TABLE: &str = "does not exist; create it with initialize() or `dlm init`";

/// The newest version of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) value: Vec<u8>,
    /// Server time, in milliseconds since 1970.
    pub(super) written_ms: u64,
}

/// When a server answers a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// When its log is as safe as the table's settings want it.
    UseDefault,
    /// When it is in the log's queue: a crash of the server may lose it, nothing else does. Whatever is
    /// written to the region afterwards and synced makes it safe as well, for a log keeps its order.
    /// A transport may sync all the same.
    Async,
}

/// HBase's checkAndPut: writes `value` if the cell holds `expected`.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckAndPut<'a> {
    pub(super) row: &'a [u8],
    pub(super) column: CellColumn,
    /// Empty stands for no cell and for an empty one alike.
    pub(super) expected: &'a [u8],
    pub(super) value: &'a [u8],
    /// How long the new version lives.
    pub(super) ttl: Duration,
    pub(super) durability: Durability,
    /// One try may take the first of so many equal parts of the time that is left. A try over a connection
    /// on which nothing comes any more then leaves time for another one.
    pub(super) parts: u32,
}

/// A record to be put where the cell is empty, and what is to be done after it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Take<'a> {
    pub(super) row: &'a [u8],
    pub(super) column: CellColumn,
    pub(super) value: &'a [u8],
    pub(super) ttl: Duration,
    /// The counter to add one to.
    pub(super) count: Option<Count<'a>>,
    /// Whether to read the cell at the end.
    pub(super) verify: bool,
}

/// A counter, and what it begins with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Count<'a> {
    pub(super) row: &'a [u8],
    pub(super) column: CellColumn,
    /// Above all that the counter can have given out before it expired, and not below 2^40.
    pub(super) seed: i64,
    pub(super) ttl: Duration,
}

/// What became of it.
#[derive(Debug)]
pub(super) struct Taken {
    /// Whether the cell was empty, and has the record now.
    pub(super) put: bool,
    /// The sum; `None` if the counter is still to be counted.
    pub(super) counted: Option<i64>,
    /// The cell afterwards; `None` if it is still to be read.
    pub(super) found: Option<Option<Cell>>,
}

/// Single-row operations on one table, by the server's clock alone: no call carries a timestamp.
///
/// # Errors
/// A write that fails with anything but IN_DOUBT was not applied and will not be. Reads are repeated
/// on a fresh connection where one was lost, writes never.
pub(super) trait CellStore: Send + Sync + fmt::Debug {
    /// The place, as a URI without credentials.
    fn describe(&self) -> String;

    /// Whether what stands between us and the servers may send a write twice by itself: then `false`
    /// may be the answer to the second of two, of which the first was applied.
    fn repeats_writes(&self) -> bool;

    fn get(&self, row: &[u8], column: CellColumn, by: Deadline) -> Result<Option<Cell>>;

    /// Compares and puts in one atomic step; whether it did.
    fn check_and_put(&self, swap: &CheckAndPut<'_>, by: Deadline) -> Result<bool>;

    /// Adds one to an 8-byte counter, or makes it with its seed, and answers the sum. Its TTL starts anew.
    fn count(&self, count: Count<'_>, by: Deadline) -> Result<i64>;

    /// Puts a record into an empty cell, and in the same call as much of what follows as the transport
    /// can: count, then read the cell.
    fn take(&self, take: &Take<'_>, by: Deadline) -> Result<Taken> {
        let Take { row, column, value, ttl, .. } = *take;
        let put = self.check_and_put(
            &CheckAndPut {
                row,
                column,
                expected: b"",
                value,
                ttl,
                durability: Durability::UseDefault,
                parts: 1,
            },
            by,
        )?;
        Ok(Taken { put, counted: None, found: None })
    }

    /// Creates the table with this family (GZ, one version) unless it exists, waits until it serves,
    /// and logs a warning where its schema is another.
    fn ensure_table(&self, family: &'static str, by: Deadline) -> Result<()>;

    /// The servers' version; `None` where what stands between us and them does not tell.
    fn version(&self, by: Deadline) -> Result<Option<String>>;

    /// What is not as it should be in the table's schema; `None` where there is no table.
    fn diagnose_table(&self, family: &'static str, by: Deadline) -> Result<Option<Vec<String>>>;
}
