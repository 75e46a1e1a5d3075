//! What applications' rows need of HBase: the seam between `dlm::hbase` and the transports.
//!
//! A request is a list of steps about one row, run in order. Each step is atomic by itself, and other clients
//! may come in between two steps.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use super::cell_store::Durability;
use crate::error::Result;
use crate::time::Deadline;

/// Family and qualifier.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CellPlace {
    pub(crate) family: Vec<u8>,
    pub(crate) qualifier: Vec<u8>,
}

/// As people write it, with what cannot be printed escaped.
impl fmt::Display for CellPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.family.escape_ascii(), self.qualifier.escape_ascii())
    }
}

impl fmt::Debug for CellPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A row's key for people: bytes that cannot be printed are escaped, and a long key is cut.
pub(crate) fn shown(key: &[u8]) -> String {
    const SHOWN_BYTES: usize = 80;
    let shown = key[..key.len().min(SHOWN_BYTES)].escape_ascii();
    if key.len() > SHOWN_BYTES { format!("{shown}...") } else { shown.to_string() }
}

/// What one column must be like.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rule<'a> {
    /// It has this value, also an empty one.
    Is(&'a [u8]),
    /// There is no such cell. An empty one does not pass.
    Missing,
    /// There is no such cell, or it is empty.
    MissingOrEmpty,
    /// There is such a cell, and its value is not empty.
    NotEmpty,
    /// There is such a cell, and its value begins otherwise.
    BeginsNot(&'a [u8]),
    /// There is such a cell, and its value sorts before this one, byte by byte.
    Below(&'a [u8]),
}

/// A rule for a column.
pub(crate) type CellTest<'a> = (&'a CellPlace, Rule<'a>);

/// When a change is made.
#[derive(Debug, Clone)]
pub(crate) enum RowGuard<'a> {
    Always,
    /// One rule, of these: `Is` with a value that is not empty, `MissingOrEmpty`, `NotEmpty`. It may hold for
    /// a row without cells. What is put is stamped no older than the cell that was compared.
    One(CellTest<'a>),
    /// All of them. The first of them must ask for a cell that is there: the server answers "no" for a row
    /// of which it has read no cell. What is put is stamped no older than that cell.
    All(Vec<CellTest<'a>>),
}

/// One change of a row. All changes of a step are made in one atomic step, or none.
#[derive(Debug, Clone)]
pub(crate) enum CellWrite<'a> {
    Put {
        cells: Vec<(&'a CellPlace, &'a [u8])>,
        ttl: Option<Duration>,
        durability: Durability,
    },
    /// Adds to an 8-byte counter, which begins at 0. It keeps its TTL, which begins anew.
    Add(&'a CellPlace, i64),
    /// Deletes the versions up to a timestamp, which is that of a cell that was read.
    Delete(Vec<(&'a CellPlace, u64)>),
}

/// Which cells are read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Which<'a> {
    /// Whole families.
    pub(crate) families: Vec<&'a [u8]>,
    pub(crate) columns: Vec<&'a CellPlace>,
    /// Of each column, the newest so many.
    pub(crate) versions: u32,
}

#[derive(Debug, Clone)]
pub(crate) enum RowStep<'a> {
    Change(RowGuard<'a>, Vec<CellWrite<'a>>),
    /// Without columns and families, the whole row.
    Read(Which<'a>),
}

/// A cell that was read.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FoundCell {
    pub(crate) place: CellPlace,
    pub(crate) value: Vec<u8>,
    /// Server time in milliseconds since 1970.
    pub(crate) written_ms: u64,
}

/// What became of a step.
#[derive(Clone, Default)]
pub(crate) struct RowAnswer {
    /// Of a change: whether it was made.
    pub(crate) made: bool,
    /// What was read, or what additions came to.
    pub(crate) cells: Vec<FoundCell>,
    pub(crate) read: AfterWrite,
}

/// When a read behind a change was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum AfterWrite {
    /// In the same request.
    #[default]
    AtOnce,
    /// In a request of its own: others had time to change the row.
    Later,
    /// Not at all; the change was made.
    Failed,
}

impl RowAnswer {
    pub(crate) fn value(&self, place: &CellPlace) -> Option<&[u8]> {
        self.cells.iter().find(|cell| cell.place == *place).map(|cell| cell.value.as_slice())
    }

    pub(crate) fn number(&self, place: &CellPlace) -> Option<i64> {
        self.value(place).and_then(|value| value.try_into().ok()).map(i64::from_be_bytes)
    }
}

/// What a lost reply means.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Repeat<'a> {
    /// Nothing is changed: it is sent again.
    Read,
    /// It is in doubt, and not sent again.
    Never,
    /// It is sent again until it is answered: what was made once is not made again. Counts the requests that may
    /// have been run and were not answered.
    Until(&'a Cell<u32>),
}

/// One request for one row.
pub(crate) struct Request<'a> {
    /// What is done, for messages.
    pub(crate) what: &'a str,
    pub(crate) row: &'a [u8],
    pub(crate) repeat: Repeat<'a>,
    /// Asked anew for each send.
    pub(crate) steps: &'a dyn Fn() -> Vec<RowStep<'a>>,
}

/// A table of an application.
///
/// # Errors
/// As for locks: what fails with anything but IN_DOUBT was not applied and will not be.
pub(crate) trait RowStore: Send + Sync + fmt::Debug {
    /// The table, as a URI without credentials.
    fn describe(&self) -> &str;

    /// An answer for each step. What the last change was answered stands, also where the read behind it fails:
    /// see [`AfterWrite`].
    fn run(&self, request: &Request<'_>, by: Deadline) -> Result<Vec<RowAnswer>>;

    /// Of each row one step, by itself. An answer for each, in order.
    fn run_many(
        &self,
        what: &str,
        repeat: Repeat<'_>,
        rows: &[(&[u8], RowStep<'_>)],
        by: Deadline,
    ) -> Vec<Result<RowAnswer>>;

    /// Creates the table with these families, each with so many versions of a cell, unless it exists; split at these keys, and waits until it serves.
    fn ensure(&self, families: &[(String, u32)], splits: &[Vec<u8>], by: Deadline) -> Result<()>;
}
