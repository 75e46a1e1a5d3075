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

/// Single-row operations on one table, by the server's clock alone: no call carries a timestamp.
///
/// # Errors
/// A write that fails with anything but IN_DOUBT was not applied and will not be. Reads are repeated
/// on a fresh connection where one was lost, writes never.
pub(super) trait Rows: Send + Sync + fmt::Debug {
    /// The place, as a URI without credentials.
    fn describe(&self) -> String;

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

    /// Adds one to an 8-byte counter and answers the sum. A counter that is not there begins at zero;
    /// the TTL of one that is starts anew.
    fn increment(&self, row: &[u8], column: Column, by: Deadline) -> Result<i64>;

    /// Creates the table with this family (GZ, one version) unless it exists, waits until it serves,
    /// and logs a warning where its schema is another.
    fn ensure_table(&self, family: &'static str, by: Deadline) -> Result<()>;
}
