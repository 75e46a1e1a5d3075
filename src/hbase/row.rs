//! One row: made, read, changed, deleted.

use std::fmt;
use std::sync::Arc;

use super::cells::{Cells, Column, RowCells, Select, check_key};
use super::change::{ChangeOutcome, HIDDEN_PAUSE, RowChange};
use super::fence::{self, RowFence};
use super::row_id::RowId;
use super::table::Table;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::lease::Lease;
use crate::lock::Lock;
use crate::manager::LockManager;
use crate::name::Level;
use crate::store::hbase::steps::{CellPlace, CellTest, CellWrite, Repeat, Request, RowStep, Rule, Which};
use crate::time;

/// A row of a table: a key and how its changes are made. Making one does no I/O. May be used from many threads at
/// once.
///
/// # Errors of every call
/// * INVALID_ARGUMENT, before any I/O: a key, column, value or TTL that is not allowed.
/// * TABLE_CREATION_ERROR: no such table, it is disabled, or it lacks the family.
/// * CONNECTION_ERROR, RETRIES_EXHAUSTED, INTERNAL_ERROR, FORKED: it did not happen and will not.
/// * IN_DOUBT: it may have happened, or may yet happen. Rows from [`exactly_once`](Row::exactly_once) answer so
///   only when the whole `timeout` was not enough to find out, or a server answered with an error that says neither.
/// * STALE_FENCE, of rows from [`Lease::row`](crate::Lease::row): a later holder of the lock was here.
#[derive(Clone)]
pub struct Row {
    pub(super) id: RowId,
    once: bool,
    fence: Option<Arc<RowFence>>,
}

impl Table {
    /// The row with this key, 1 to 32,000 bytes. No I/O; a key that is not allowed is refused by the row's calls.
    pub fn row(&self, key: impl AsRef<[u8]>) -> Row {
        Row::new(self.clone(), key.as_ref().to_vec())
    }
}

impl Lease {
    /// A row whose every change carries this lease's fence: once a later holder of the lock has changed the row, or
    /// raised its fence, the servers refuse ours with STALE_FENCE. The table may be in another cluster than the
    /// lock. Its option `family` says where fences are kept. [`check`](Lease::check) is not asked: a change is the
    /// servers' to refuse. No I/O.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a key that is not allowed, a table without `family`, and a lease without a fence;
    /// FORKED.
    pub fn row(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Row> {
        Row::fenced(table, key.as_ref(), self.fence_for_writes()?, self.name().key())
    }
}

/// Answer of [`Row::create`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Creation {
    /// The row was not there, and this call made it.
    Created,
    /// The row is there. Nothing was written.
    AlreadyExists,
}

/// Answer of [`Row::update`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// The row was there, and has the cells now.
    Updated,
    /// There is no such row. Nothing was written.
    NotFound,
}

impl Row {
    fn new(table: Table, key: Vec<u8>) -> Row {
        Row { id: RowId { table, key }, once: false, fence: None }
    }

    /// A row whose every change carries the fence of a lease.
    fn fenced(table: &Table, key: &[u8], fence: Fence, lock: &str) -> Result<Row> {
        if table.inner.fences.is_none() {
            let allowed = "a column family for the fences of rows, such as ?family=d in the table's URI";
            return Err(Error::invalid("family", "", allowed));
        }
        check_key(key)?;
        let fence = Some(Arc::new(RowFence::new(fence, lock)));
        Ok(Row { fence, ..Row::new(table.clone(), key.to_vec()) })
    }

    /// The same row, whose changes are made exactly once: each writes a mark in the same atomic step, and a change
    /// whose reply was lost is sent again until it is answered, for the table's `timeout`.
    ///
    /// A mark is a cell of some 100 bytes in the row, in a column that begins with `\0dlm_op_`. It goes after
    /// some minutes (two hours where a request is lost for good). A row has as many as this process had threads at work
    /// on rows at once.
    pub fn exactly_once(&self) -> Row {
        Row { once: true, ..self.clone() }
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.id.key
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.id.table
    }

    /// Makes the row unless it is there: of all who try at once, one is told that it was created.
    ///
    /// A row is there when its anchor has a value that is not empty. The anchor is the column that the table's
    /// option `anchor` names, or else the first of `cells`. It must be among them, and its value not empty.
    ///
    /// # Errors
    /// Those of every call, see [`Row`].
    pub fn create(&self, cells: &Cells) -> Result<Creation> {
        self.check(cells)?;
        let anchor = self.id.table.inner.anchor_among(cells)?;
        let tests = vec![(&anchor.0, Rule::MissingOrEmpty)];
        match self.change("creating the row", tests, cells.writes(), None)? {
            ChangeOutcome::Made(_) => Ok(Creation::Created),
            ChangeOutcome::Refused(_) => Ok(Creation::AlreadyExists),
        }
    }

    /// Writes the cells if the row is there. See [`create`](Row::create) for what that means; without the option
    /// `anchor`, the first of `cells` must be a column that the row has. As with [`put`](Row::put), counters that
    /// others add to should not be among the cells.
    ///
    /// # Errors
    /// Those of every call, see [`Row`].
    pub fn update(&self, cells: &Cells) -> Result<Update> {
        self.check(cells)?;
        let anchor = self.id.table.inner.anchor.clone().or_else(|| cells.columns().next().cloned());
        let anchor = anchor.ok_or_else(|| Error::invalid("cells", "", "one cell at least"))?;
        match self.change("updating the row", vec![(&anchor.0, Rule::NotEmpty)], cells.writes(), None)? {
            ChangeOutcome::Made(_) => Ok(Update::Updated),
            ChangeOutcome::Refused(_) => Ok(Update::NotFound),
        }
    }

    /// Writes the cells, whether the row is there or not.
    ///
    /// Nothing is compared, so the server stamps the cells with its time, or a fenced row's with that of the fence. A
    /// cell with a later timestamp hides what is written: one of a counter that was added to more than once in a
    /// millisecond, or one from before a clock was set back. Where that matters, use [`modify`](Row::modify).
    ///
    /// # Errors
    /// Those of every call, see [`Row`].
    pub fn put(&self, cells: &Cells) -> Result<()> {
        self.check(cells)?;
        self.change("writing the row", Vec::new(), cells.writes(), None).map(drop)
    }

    /// Reads the whole row, but for the library's own columns; `None` where there is nothing else.
    ///
    /// # Errors
    /// Those of every call, see [`Row`]; never IN_DOUBT.
    pub fn get(&self) -> Result<Option<RowCells>> {
        self.get_only(&Select::all())
    }

    /// As [`get`](Row::get), without cells where there is nothing.
    #[cfg(feature = "capi")]
    pub(crate) fn read_whole(&self) -> Result<RowCells> {
        self.check_key()?;
        self.read(&Which::default())
    }

    /// The row, unless its key is not allowed.
    #[cfg(feature = "capi")]
    pub(crate) fn checked(self) -> Result<Row> {
        self.check_key().map(|()| self)
    }

    /// Whether it is the same row of the same table, however it is changed.
    #[cfg(feature = "capi")]
    pub(crate) fn is_same(&self, other: &Row) -> bool {
        Arc::ptr_eq(&self.id.table.inner, &other.id.table.inner) && self.id.key == other.id.key
    }

    /// Reads some of the row; `None` where there is nothing of it.
    ///
    /// # Errors
    /// Those of every call, see [`Row`]; never IN_DOUBT. INTERNAL_ERROR where the answer is longer than sixteen of
    /// the largest values allowed.
    pub fn get_only(&self, select: &Select) -> Result<Option<RowCells>> {
        self.check_key()?;
        select.check()?;
        let cells = self.read(&select.which())?;
        Ok(if cells.is_empty() { None } else { Some(cells) })
    }

    /// Writes `new` into a column if it holds `expected`; whether it did. `None` is the absence of the cell, which
    /// is not the same as an empty value: with `new` as `None`, the cell is deleted, see [`delete_if`](Row::delete_if).
    ///
    /// # Errors
    /// Those of every call, see [`Row`].
    pub fn compare_and_set(
        &self,
        column: impl Into<Column>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        let column = column.into();
        self.check_key()?;
        column.check()?;
        let Some(new) = new else { return self.delete_cell_if(&column, expected) };
        let cells = Cells::new().put(&column, new);
        self.check(&cells)?;
        let (test, writes) = ((&column.0, expected.map_or(Rule::Missing, Rule::Is)), cells.writes());
        let outcome = self.change("comparing and setting a column", vec![test], writes, None)?;
        Ok(matches!(outcome, ChangeOutcome::Made(_)))
    }

    /// Adds to an 8-byte counter, which begins at 0, and answers the sum. It wraps around at the ends of `i64`. A
    /// cell with a TTL keeps it, counted from now.
    ///
    /// `None` only from rows of [`exactly_once`](Row::exactly_once): it was added once, and the reply with the sum
    /// was lost.
    ///
    /// # Errors
    /// Those of every call, see [`Row`]. INVALID_ARGUMENT where the cell is not 8 bytes long.
    pub fn increment(&self, column: impl Into<Column>, by: i64) -> Result<Option<i64>> {
        let column = column.into();
        self.check_key()?;
        column.check()?;
        match self.change("adding to a counter", Vec::new(), vec![CellWrite::Add(&column.0, by)], None)? {
            ChangeOutcome::Made(answer) => Ok(answer.and_then(|answer| answer.number(&column.0))),
            ChangeOutcome::Refused(_) => {
                Err(Error::Internal { what: "an addition was refused".into(), source: None })
            }
        }
    }

    /// Deletes all cells of the row that it finds, if `column` holds `expected`; whether it did. Cells that others
    /// write meanwhile stay, unless they write in the millisecond of the cell that was read. The library's own cells
    /// stay as well. It takes two milliseconds more than its two requests, so that nothing that is put later can carry
    /// a timestamp that the Delete hides.
    ///
    /// # Errors
    /// Those of every call, see [`Row`].
    pub fn delete_if(&self, column: impl Into<Column>, expected: &[u8]) -> Result<bool> {
        let column = column.into();
        self.check_key()?;
        column.check()?;
        let found = self.read(&Which::default())?;
        if found.value(&column) != Some(expected) {
            return Ok(false);
        }
        self.delete(&column, expected, &found)
    }

    fn delete_cell_if(&self, column: &Column, expected: Option<&[u8]>) -> Result<bool> {
        let found = self.read(&Which { columns: vec![&column.0], families: Vec::new(), versions: 1 })?;
        match expected {
            None => Ok(found.is_empty()),
            Some(expected) if found.value(column) == Some(expected) => self.delete(column, expected, &found),
            Some(_) => Ok(false),
        }
    }

    /// Deletes cells that were read if `column` holds `expected` still.
    fn delete(&self, column: &Column, expected: &[u8], found: &RowCells) -> Result<bool> {
        time::sleep(HIDDEN_PAUSE);
        let test = (&column.0, Rule::Is(expected));
        let outcome =
            self.change("deleting", vec![test], vec![CellWrite::Delete(found.stamps())], Some(found))?;
        Ok(matches!(outcome, ChangeOutcome::Made(_)))
    }

    /// Writes the lease's fence into the row without changing anything else. From then on earlier holders are
    /// refused. Every change of a fenced row does that as well; call this where the first change comes late.
    ///
    /// # Errors
    /// Those of every call, see [`Row`]. After any error but STALE_FENCE and INVALID_ARGUMENT the fence may have been
    /// raised; to raise it again does no harm.
    /// INVALID_ARGUMENT for a row that is not from [`Lease::row`](crate::Lease::row).
    pub fn raise_fence(&self) -> Result<()> {
        self.check_key()?;
        let (Some(fence), Some(columns)) = (&self.fence, &self.id.table.inner.fences) else {
            return Err(Error::invalid("row", self.id.shown(), "a row from Lease::row, which has a fence"));
        };
        fence.raise(columns, &self.id, self.id.table.inner.deadline()).map_err(|error| self.about(error))
    }

    /// The highest fence that was in the row, and the stored name of its lock; `None` where there is none. The
    /// table needs its option `family`.
    ///
    /// # Errors
    /// Those of every call, see [`Row`]; never IN_DOUBT.
    pub fn fence(&self) -> Result<Option<(Fence, String)>> {
        self.check_key()?;
        let Some(columns) = &self.id.table.inner.fences else {
            return Err(Error::invalid(
                "family",
                "",
                "the family of the fences, such as ?family=d in the table's URI",
            ));
        };
        let found = fence::read(&self.id, columns, self.id.table.inner.deadline())
            .map_err(|error| self.about(error))?;
        Ok(found.map(|(fence, lock)| (fence, String::from_utf8_lossy(&lock).into_owned())))
    }

    /// A lock for those who must hold the row across several calls, in the manager's store: an ordinary lock named
    /// after table and row, `row/<table>/<key>`, with bytes of the key that are no printable ASCII escaped. It holds
    /// nothing in HBase's servers, and binds only those who take it. Its lease ends by itself; write through
    /// [`Lease::row`](crate::Lease::row), so that a holder whose lease has ended is refused. No I/O.
    ///
    /// # Errors
    /// INVALID_ARGUMENT as of [`LockManager::lock`](crate::LockManager::lock), for a name over 1,024 bytes among
    /// others.
    pub fn lock(&self, manager: &LockManager, level: Level) -> Result<Lock> {
        self.check_key()?;
        let place = self.id.table.inner.store.describe();
        let table = place.rsplit('/').next().unwrap_or(place);
        manager.lock(&format!("row/{table}/{}", self.id.key.escape_ascii()), level)
    }

    pub(super) fn change<'a>(
        &'a self,
        what: &'static str,
        tests: Vec<CellTest<'a>>,
        writes: Vec<CellWrite<'a>>,
        read: Option<&'a RowCells>,
    ) -> Result<ChangeOutcome> {
        let by = self.id.table.inner.deadline();
        RowChange {
            row: &self.id,
            once: self.once,
            fence: self.fence.as_deref(),
            what,
            tests,
            writes,
            read,
            by,
        }
        .run()
        .map_err(|error| self.about(error))
    }

    /// Cells of applications; none where there is no row.
    pub(super) fn read(&self, which: &Which<'_>) -> Result<RowCells> {
        let steps = || vec![RowStep::Read(which.clone())];
        let request =
            Request { what: "reading the row", row: &self.id.key, repeat: Repeat::Read, steps: &steps };
        let answers = self.id.table.inner.store.run(&request, self.id.table.inner.deadline());
        let answer = answers.map_err(|error| self.about(error))?.pop().unwrap_or_default();
        let theirs = |place: &CellPlace| !self.id.table.inner.is_own(place);
        Ok(RowCells::new(answer.cells.into_iter().filter(|cell| theirs(&cell.place)).collect()))
    }

    pub(super) fn check_key(&self) -> Result<()> {
        self.id.table.inner.usable()?;
        check_key(&self.id.key)
    }

    fn check(&self, cells: &Cells) -> Result<()> {
        self.check_key()?;
        cells.check(self.id.table.inner.max_value)?;
        self.id.table.inner.check_not_own(cells.columns())
    }

    fn about(&self, error: Error) -> Error {
        match error {
            // They name the row themselves, or the caller's input.
            Error::StaleFence { .. } | Error::InvalidArgument { .. } => error,
            error => error.context(format!("row \"{}\"", self.id.shown())),
        }
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field("table", &self.id.table)
            .field("key", &self.id.shown())
            .field("exactly_once", &self.once)
            .field("fenced", &self.fence.is_some())
            .finish()
    }
}
