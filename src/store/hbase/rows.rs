//! What the lock protocol needs of HBase, and no more: the seam between protocol and transport.

use std::fmt;
use std::time::Duration;

use crate::error::Result;
use crate::time::Deadline;

/// A column, family and qualifier of one byte each as the Java library has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) family: &'static str,
    pub(super) qualifier: &'static str,
}

/// The newest version of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) value: Vec<u8>,
    /// Server time, in milliseconds since 1970.
    pub(super) written_ms: u64,
}

/// A record to be put where the cell is empty, and what is to be done after it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Take<'a> {
    pub(super) row: &'a [u8],
    pub(super) column: Column,
    pub(super) value: &'a [u8],
    pub(super) ttl: Duration,
    /// The counter to add one to.
    pub(super) count: Option<Count<'a>>,
    /// Whether to read the cell at the end.
    pub(super) prove: bool,
}

/// A counter, and what it begins with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Count<'a> {
    pub(super) row: &'a [u8],
    pub(super) column: Column,
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
pub(super) trait Rows: Send + Sync + fmt::Debug {
    /// The place, as a URI without credentials.
    fn describe(&self) -> String;

    /// Whether what stands between us and the servers may send a write twice by itself: then `false`
    /// may be the answer to the second of two, of which the first was applied.
    fn repeats_writes(&self) -> bool;

    fn get(&self, row: &[u8], column: Column, by: Deadline) -> Result<Option<Cell>>;

    /// Writes `value` if the cell holds `expected`, in one atomic step; whether it did. An empty
    /// `expected` stands for no cell and for an empty one alike. The new version lives for `ttl`.
    fn check_and_put(
        &self,
        row: &[u8],
        column: Column,
        expected: &[u8],
        value: &[u8],
        ttl: Duration,
        by: Deadline,
    ) -> Result<bool>;

    /// Adds one to an 8-byte counter, or makes it with its seed, and answers the sum. Its TTL starts anew.
    fn count(&self, count: Count<'_>, by: Deadline) -> Result<i64>;

    /// Puts a record into an empty cell, and in the same call as much of what follows as the transport
    /// can: count, then read the cell.
    fn take(&self, take: &Take<'_>, by: Deadline) -> Result<Taken> {
        let put = self.check_and_put(take.row, take.column, b"", take.value, take.ttl, by)?;
        Ok(Taken { put, counted: None, found: None })
    }

    /// Creates the table with this family (GZ, one version) unless it exists, waits until it serves,
    /// and logs a warning where its schema is another.
    fn ensure_table(&self, family: &'static str, by: Deadline) -> Result<()>;

    /// What is not as it should be in the table's schema; `None` where there is no table.
    fn examine_table(&self, family: &'static str, by: Deadline) -> Result<Option<Vec<String>>>;
}
