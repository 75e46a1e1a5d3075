//! The operations of HBase that applications' rows need: the interface between `dlm::hbase` and the transports.
//!
//! A request is a list of steps for one row. They run in order. Each step is atomic; other clients may change the
//! row between two steps.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use super::cell_store::Durability;
use crate::error::Result;
use crate::runtime::time::Deadline;

/// Family and qualifier.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ColumnName {
    pub(crate) family: Vec<u8>,
    pub(crate) qualifier: Vec<u8>,
}

/// `family:qualifier`, with bytes that cannot be printed escaped.
impl fmt::Display for ColumnName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.family.escape_ascii(), self.qualifier.escape_ascii())
    }
}

impl fmt::Debug for ColumnName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Formats a row key for a message. Escapes bytes that cannot be printed, and cuts a long key.
pub(crate) fn shown(key: &[u8]) -> String {
    const SHOWN_BYTES: usize = 80;
    let shown = key[..key.len().min(SHOWN_BYTES)].escape_ascii();
    if key.len() > SHOWN_BYTES { format!("{shown}...") } else { shown.to_string() }
}

/// A condition on one column.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rule<'a> {
    /// The cell exists and has this value, which may be empty.
    Is(&'a [u8]),
    /// The cell does not exist. An empty cell fails the rule.
    Missing,
    /// The cell does not exist, or its value is empty.
    MissingOrEmpty,
    /// The cell exists, and its value is not empty.
    NotEmpty,
    /// The cell exists, and its value does not begin with these bytes.
    BeginsNot(&'a [u8]),
    /// The cell exists, and its value sorts before this one, byte by byte.
    Below(&'a [u8]),
}

/// A rule for a column.
pub(crate) type CellTest<'a> = (&'a ColumnName, Rule<'a>);

/// Condition of a change.
#[derive(Debug, Clone)]
pub(crate) enum RowGuard<'a> {
    Always,
    /// One rule: `Is` with a value that is not empty, `MissingOrEmpty` or `NotEmpty`. It may hold for a row without
    /// cells. The server gives the cells that are put a timestamp that is not older than the compared cell.
    One(CellTest<'a>),
    /// All of these rules. The first one must require a cell that exists, because the server answers "no" if it has
    /// read no cell of the row. The server gives the cells that are put a timestamp that is not older than that
    /// cell.
    All(Vec<CellTest<'a>>),
}

/// One change of a row. A step makes all its changes atomically, or none.
#[derive(Debug, Clone)]
pub(crate) enum CellWrite<'a> {
    Put {
        cells: Vec<(&'a ColumnName, &'a [u8])>,
        ttl: Option<Duration>,
        durability: Durability,
    },
    /// Adds to an 8-byte counter. A new counter begins at 0. An existing counter keeps its TTL, which starts again.
    Add(&'a ColumnName, i64),
    /// Deletes all versions up to this timestamp, which must be the timestamp of a cell that was read.
    Delete(Vec<(&'a ColumnName, u64)>),
}

/// The cells to read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Which<'a> {
    /// Whole families.
    pub(crate) families: Vec<&'a [u8]>,
    pub(crate) columns: Vec<&'a ColumnName>,
    /// Number of newest versions to read of each column.
    pub(crate) versions: u32,
}

#[derive(Debug, Clone)]
pub(crate) enum RowStep<'a> {
    Change(RowGuard<'a>, Vec<CellWrite<'a>>),
    /// Reads the whole row if no columns and families are given.
    Read(Which<'a>),
}

/// A cell that was read.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FoundCell {
    pub(crate) column: ColumnName,
    pub(crate) value: Vec<u8>,
    /// Server time in milliseconds since 1970.
    pub(crate) written_ms: u64,
}

/// Result of a step.
#[derive(Clone, Default)]
pub(crate) struct RowAnswer {
    /// For a change: whether it was made.
    pub(crate) made: bool,
    /// The cells that were read, or the sums after additions.
    pub(crate) cells: Vec<FoundCell>,
    pub(crate) read: AfterWrite,
}

/// How a read that follows a change was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum AfterWrite {
    /// In the same request.
    #[default]
    AtOnce,
    /// In a separate request. Other clients had time to change the row.
    Later,
    /// The read failed. The change was made.
    Failed,
}

impl RowAnswer {
    pub(crate) fn value(&self, column: &ColumnName) -> Option<&[u8]> {
        self.cells.iter().find(|cell| cell.column == *column).map(|cell| cell.value.as_slice())
    }

    pub(crate) fn number(&self, column: &ColumnName) -> Option<i64> {
        self.value(column).and_then(|value| value.try_into().ok()).map(i64::from_be_bytes)
    }
}

/// Whether a request is sent again after a lost reply.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Repeat<'a> {
    /// The request changes nothing. It is sent again.
    Read,
    /// The result is in doubt. The request is not sent again.
    Never,
    /// The request is sent again until it is answered. Its steps must not take effect twice. The cell counts the
    /// requests that may have been run and were not answered.
    Until(&'a Cell<u32>),
}

/// One request for one row.
pub(crate) struct Request<'a> {
    /// Name of the operation, for messages.
    pub(crate) what: &'a str,
    pub(crate) row: &'a [u8],
    pub(crate) repeat: Repeat<'a>,
    /// Called again for each send.
    pub(crate) steps: &'a dyn Fn() -> Vec<RowStep<'a>>,
}

/// A table of an application.
///
/// # Errors
/// As for locks: a change that fails with any error but IN_DOUBT was not applied and will not be applied.
pub(crate) trait RowStore: Send + Sync + fmt::Debug {
    /// Returns the URI of the table, without credentials.
    fn describe(&self) -> &str;

    /// Runs the request. Returns one answer for each step. The answer to the last change is valid even if a read
    /// after it fails: see [`AfterWrite`].
    fn run(&self, request: &Request<'_>, by: Deadline) -> Result<Vec<RowAnswer>>;

    /// Runs one step for each row, independently of the other rows. Returns one answer for each, in order.
    fn run_many(
        &self,
        what: &str,
        repeat: Repeat<'_>,
        rows: &[(&[u8], RowStep<'_>)],
        by: Deadline,
    ) -> Vec<Result<RowAnswer>>;

    /// Creates the table unless it exists, and waits until it serves requests. Each family keeps the given number
    /// of versions of a cell. A new table is split at these keys.
    fn ensure(&self, families: &[(String, u32)], splits: &[Vec<u8>], by: Deadline) -> Result<()>;
}
