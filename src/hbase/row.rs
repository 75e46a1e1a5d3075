//! One row: creation, reads, changes and deletion.

use std::fmt;
use std::sync::Arc;

use super::cells::{Cells, Column, RowCells, Select, check_key};
use super::change::{ChangeOutcome, HIDDEN_PAUSE, RowChange};
use super::fence::{self, RowFence};
use super::row_id::RowId;
use super::table::Table;
use crate::error::{Error, Result};
use crate::handles::lease::Lease;
use crate::handles::lock::Lock;
use crate::handles::manager::LockManager;
use crate::names::fence::Fence;
use crate::names::lock_name::Level;
use crate::runtime::time;
use crate::store::hbase::steps::{
    CellTest, CellWrite, ColumnName, Repeat, Request, RowAnswer, RowStep, Rule, Which,
};

/// A row of a table: its key, and how changes of it are made. Making this handle does no I/O. Many threads may
/// use it at the same time.
///
/// All calls that use HBase block, for at most the table's `timeout`. [`delete_if`](Row::delete_if), a
/// [`compare_and_set`](Row::compare_and_set) that deletes, and [`modify`](Row::modify) read the row first, and may
/// take twice that time.
///
/// # Errors of every call
/// * [`Code::InvalidArgument`](crate::Code::InvalidArgument), before any I/O: a key, column, value or TTL is not
///   allowed. After a read: the row has the fence of another lock. The call had no effect.
/// * [`Code::TableCreationError`](crate::Code::TableCreationError): the table does not exist, is disabled, or lacks
///   the family.
/// * [`Code::ConnectionError`](crate::Code::ConnectionError),
///   [`Code::RetriesExhausted`](crate::Code::RetriesExhausted),
///   [`Code::InternalError`](crate::Code::InternalError), [`Code::Forked`](crate::Code::Forked): the call did not
///   happen and will not happen.
/// * [`Code::InDoubt`](crate::Code::InDoubt): the call may have happened, or may yet happen. A row from
///   [`exactly_once`](Row::exactly_once) returns this only if the `timeout` was too short to find out, or if a
///   server replied with an error that leaves the outcome open.
/// * [`Code::StaleFence`](crate::Code::StaleFence), only for a row from [`Lease::row`](crate::Lease::row): a later
///   holder of the lock has changed the row through its own fenced row, or raised its fence.
#[derive(Clone)]
pub struct Row {
    pub(super) id: RowId,
    once: bool,
    fence: Option<Arc<RowFence>>,
}

impl Table {
    /// Returns a handle of the row with this key, 1 to 32,000 bytes. No I/O. The calls of the row refuse a key that
    /// is not allowed.
    pub fn row(&self, key: impl AsRef<[u8]>) -> Row {
        Row::new(self.clone(), key.as_ref().to_vec())
    }
}

impl Lease {
    /// Returns a fenced row: each of its changes carries the fence of this lease. Once a later holder of the lock
    /// has changed the row through its own fenced row, or raised its fence, the servers refuse our changes with
    /// [`Code::StaleFence`](crate::Code::StaleFence). No I/O.
    ///
    /// The table's option `family` names the column family of the fences. The table and the lock may be in
    /// different clusters. Changes do not call [`check`](Lease::check), because the servers decide.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the key is not allowed, if the table has no
    /// `family`, or if the lease has no fence. [`Code::Forked`](crate::Code::Forked).
    pub fn row(&self, table: &Table, key: impl AsRef<[u8]>) -> Result<Row> {
        Row::fenced(table, key.as_ref(), self.fence_for_writes()?, self.name().key())
    }
}

/// Result of [`Row::create`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Creation {
    /// The row did not exist, and this call created it.
    Created,
    /// The row exists. Nothing was written.
    AlreadyExists,
}

/// Result of [`Row::update`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// The row exists, and now has the cells.
    Updated,
    /// The row does not exist. Nothing was written.
    NotFound,
}

impl Row {
    fn new(table: Table, key: Vec<u8>) -> Row {
        Row { id: RowId { table, key }, once: false, fence: None }
    }

    /// Makes a row whose changes carry the fence of a lease.
    fn fenced(table: &Table, key: &[u8], fence: Fence, lock: &str) -> Result<Row> {
        if table.inner.fences.is_none() {
            let allowed = "a column family for the fences of rows, such as ?family=d in the table's URI";
            return Err(Error::invalid("family", "", allowed));
        }
        check_key(key)?;
        let fence = Some(Arc::new(RowFence::new(fence, lock)));
        Ok(Row { fence, ..Row::new(table.clone(), key.to_vec()) })
    }

    /// Returns the same row with exactly-once changes. Each change writes an idempotency mark in the same atomic
    /// step. A change whose reply was lost is sent again until a reply arrives, for up to the table's `timeout`.
    ///
    /// A mark is a cell of some 100 bytes in the row, in a column that begins with `\0dlm_op_`. It expires after
    /// some minutes, or after two hours if a reply never arrived. Each process leaves about as many marks in a row
    /// as it has threads that change rows at the same time.
    pub fn exactly_once(&self) -> Row {
        Row { once: true, ..self.clone() }
    }

    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        &self.id.key
    }

    /// Returns the table.
    pub fn table(&self) -> &Table {
        &self.id.table
    }

    /// Creates the row unless it exists. If several callers try at once, exactly one gets [`Creation::Created`].
    ///
    /// A row exists if its anchor has a value that is not empty. The anchor is the column that the table's option
    /// `anchor` names, or else the first of `cells`. `cells` must contain the anchor with a value that is not
    /// empty.
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

    /// Writes the cells if the row exists, as defined at [`create`](Row::create). Without the option `anchor`, the
    /// first of `cells` must be a column that the row has. As with [`put`](Row::put), do not write counters that
    /// others add to.
    ///
    /// # Errors
    /// Those of every call, see [`Row`].
    pub fn update(&self, cells: &Cells) -> Result<Update> {
        self.check(cells)?;
        let anchor = self.id.table.inner.anchor.clone().or_else(|| cells.columns().next().cloned());
        let anchor = anchor.ok_or_else(|| Error::invalid("cells", "", "at least one cell"))?;
        match self.change("updating the row", vec![(&anchor.0, Rule::NotEmpty)], cells.writes(), None)? {
            ChangeOutcome::Made(_) => Ok(Update::Updated),
            ChangeOutcome::Refused(_) => Ok(Update::NotFound),
        }
    }

    /// Writes the cells, whether the row exists or not.
    ///
    /// Nothing is compared, so the cells get the timestamp of the server's clock, or of the fence in a fenced
    /// row. A cell with a later timestamp hides them. Such cells are counters that were added to more than once
    /// in a millisecond, and cells from before a clock was set back. If that matters, use
    /// [`modify`](Row::modify).
    ///
    /// # Errors
    /// Those of every call, see [`Row`].
    pub fn put(&self, cells: &Cells) -> Result<()> {
        self.check(cells)?;
        self.change("writing the row", Vec::new(), cells.writes(), None).map(drop)
    }

    /// Reads the whole row, except the library's own columns. `None` if it has no other cells.
    ///
    /// # Errors
    /// Those of every call, see [`Row`], except [`Code::InDoubt`](crate::Code::InDoubt).
    pub fn get(&self) -> Result<Option<RowCells>> {
        self.get_only(&Select::all())
    }

    /// Reads the whole row as [`get`](Row::get) does, for a holder of the lock in any mode: the row's fence is read in the same
    /// request, and the lease is [checked](Lease::check) after the answer. So what is returned is not older than the lease, and
    /// no holder whose fence is in the row has written it since the lease began. The table needs its option `family`.
    ///
    /// It writes nothing. A writer before this reader, whose request is still under way, may write the row later: only a fenced
    /// write stops that, see [`raise_fence`](Row::raise_fence).
    ///
    /// # Errors
    /// Those of every call, see [`Row`], except [`Code::InDoubt`](crate::Code::InDoubt).
    /// [`Code::StaleFence`](crate::Code::StaleFence): a later holder has changed the row, or raised its fence.
    /// [`Code::LeaseLost`](crate::Code::LeaseLost): the lease ended before the answer came.
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the lease has no epoch (`fence=off`), or if the row has the
    /// fence of another lock.
    pub fn get_in(&self, reader: &Lease) -> Result<Option<RowCells>> {
        self.check_key()?;
        let Some(columns) = &self.id.table.inner.fences else {
            let allowed = "the family of the fences, such as ?family=d in the table's URI";
            return Err(Error::invalid("family", "", allowed));
        };
        let epoch = reader.epoch_for_reads()?;
        let answer = self.answer(&Which::default())?;
        fence::check_epoch((epoch, reader.name().key()), columns, &answer, &self.id)?;
        reader.check()?;
        let cells = self.theirs(answer);
        Ok(if cells.is_empty() { None } else { Some(cells) })
    }

    /// Reads the whole row as [`get`](Row::get) does. A row without cells gives empty cells.
    #[cfg(feature = "capi")]
    pub(crate) fn read_whole(&self) -> Result<RowCells> {
        self.check_key()?;
        self.read(&Which::default())
    }

    /// Returns this row if its key is allowed.
    #[cfg(feature = "capi")]
    pub(crate) fn checked(self) -> Result<Row> {
        self.check_key().map(|()| self)
    }

    /// Returns whether both are the same row of the same table, ignoring how changes are made.
    #[cfg(feature = "capi")]
    pub(crate) fn is_same(&self, other: &Row) -> bool {
        Arc::ptr_eq(&self.id.table.inner, &other.id.table.inner) && self.id.key == other.id.key
    }

    /// Reads the selected part of the row. `None` if it has no cells.
    ///
    /// # Errors
    /// Those of every call, see [`Row`], except [`Code::InDoubt`](crate::Code::InDoubt).
    /// [`Code::InternalError`](crate::Code::InternalError) if the reply is longer than sixteen values of the
    /// largest size allowed (at least 4 MiB).
    pub fn get_only(&self, select: &Select) -> Result<Option<RowCells>> {
        self.check_key()?;
        select.check()?;
        let cells = self.read(&select.which())?;
        Ok(if cells.is_empty() { None } else { Some(cells) })
    }

    /// Writes `new` into a column if its value is `expected`. Returns whether it did. `None` means that the cell is
    /// absent, which differs from an empty value. With `None` as `new`, the cell is deleted: see
    /// [`delete_if`](Row::delete_if).
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

    /// Adds `by` to an 8-byte counter and returns the sum. An absent counter starts at 0. The sum wraps around at
    /// the ends of `i64`. A cell with a TTL keeps it, counted from now.
    ///
    /// Returns `None` only for a row from [`exactly_once`](Row::exactly_once): `by` was added once, but the reply
    /// with the sum was lost.
    ///
    /// # Errors
    /// Those of every call, see [`Row`]. [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the cell is
    /// not 8 bytes long.
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

    /// Reads the row and deletes its cells if the value of `column` is `expected`. Returns whether it did. Cells
    /// that others write in the meantime stay, except those written in the same millisecond as the cell that was
    /// read. The library's own cells stay too.
    ///
    /// It sleeps for two milliseconds between its two requests. So no later Put has a timestamp that the Delete
    /// hides.
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

    /// Deletes cells that were read if the value of `column` is still `expected`.
    fn delete(&self, column: &Column, expected: &[u8], found: &RowCells) -> Result<bool> {
        time::sleep(HIDDEN_PAUSE);
        let test = (&column.0, Rule::Is(expected));
        let outcome =
            self.change("deleting", vec![test], vec![CellWrite::Delete(found.stamps())], Some(found))?;
        Ok(matches!(outcome, ChangeOutcome::Made(_)))
    }

    /// Writes the fence of the lease into the row and changes nothing else. Afterwards the servers refuse earlier
    /// holders. Every change of a fenced row also does this. Call it if the first change comes late.
    ///
    /// # Errors
    /// Those of every call, see [`Row`]. [`Code::InvalidArgument`](crate::Code::InvalidArgument) for a row that
    /// is not from [`Lease::row`](crate::Lease::row). After other errors, except
    /// [`Code::StaleFence`](crate::Code::StaleFence), the fence may have been raised. Raising it again is
    /// harmless.
    pub fn raise_fence(&self) -> Result<()> {
        self.check_key()?;
        let (Some(fence), Some(columns)) = (&self.fence, &self.id.table.inner.fences) else {
            return Err(Error::invalid("row", self.id.shown(), "a row of a lease, which has a fence"));
        };
        fence.raise(columns, &self.id, self.id.table.inner.deadline()).map_err(|error| self.about(error))
    }

    /// Returns the fence of the row, and the stored name of its lock. `None` if the row has none. The table needs
    /// its option `family`.
    ///
    /// # Errors
    /// Those of every call, see [`Row`], except [`Code::InDoubt`](crate::Code::InDoubt).
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

    /// Returns a lock for exclusive use of the row across several calls. It is an ordinary lock in the manager's
    /// store, with the id `row/<table>/<key>`, in which bytes of the key that are not printable ASCII are
    /// escaped. No I/O.
    ///
    /// It holds no resource of HBase's servers, and excludes only processes that acquire it. Its lease can
    /// expire, so write through [`Lease::row`](crate::Lease::row): then the servers refuse a holder whose lease
    /// has expired.
    ///
    /// # Errors
    /// Those of [`LockManager::lock`](crate::LockManager::lock), for example
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) for an id over 1,024 bytes.
    pub fn lock(&self, manager: &LockManager, level: Level) -> Result<Lock> {
        self.check_key()?;
        let uri = self.id.table.inner.store.describe();
        let table = uri.rsplit('/').next().unwrap_or(uri);
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

    /// Reads cells, except the library's own. A row that does not exist gives empty cells.
    pub(super) fn read(&self, which: &Which<'_>) -> Result<RowCells> {
        Ok(self.theirs(self.answer(which)?))
    }

    fn answer(&self, which: &Which<'_>) -> Result<RowAnswer> {
        let steps = || vec![RowStep::Read(which.clone())];
        let request =
            Request { what: "reading the row", row: &self.id.key, repeat: Repeat::Read, steps: &steps };
        let answers = self.id.table.inner.store.run(&request, self.id.table.inner.deadline());
        Ok(answers.map_err(|error| self.about(error))?.pop().unwrap_or_default())
    }

    /// Returns the cells that were read, except the library's own.
    fn theirs(&self, answer: RowAnswer) -> RowCells {
        let theirs = |column: &ColumnName| !self.id.table.inner.is_own(column);
        RowCells::new(answer.cells.into_iter().filter(|cell| theirs(&cell.column)).collect())
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
            // These already name the row, or the caller's input.
            Error::StaleFence { .. } | Error::StaleEpoch { .. } | Error::InvalidArgument { .. } => error,
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
