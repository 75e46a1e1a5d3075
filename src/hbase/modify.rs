//! Optimistic read-modify-write of several columns of a row.

use std::time::Duration;

use super::cells::{Changes, Column, RowCells};
use super::change::{ChangeOutcome, HIDDEN_PAUSE};
use super::row::Row;
use crate::error::{Error, Result};
use crate::runtime::{random, time};
use crate::store::hbase::steps::{CellTest, CellWrite, Rule, Which};

/// Pauses before another attempt: a random part of a time that doubles from the first to the second of these.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_LONGEST: Duration = Duration::from_millis(64);

/// Result of [`Row::modify`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Modified {
    /// Whether the row was changed. False if the closure left it unchanged.
    pub changed: bool,
    /// How often the row was read and the closure called.
    pub attempts: u32,
}

/// Result of one [`commit`](Row::commit).
pub(crate) enum Commit {
    Made,
    /// The changes only delete cells that do not exist, so the store was not asked.
    Needless,
    /// Nothing was written, because a column has changed. These are the current cells of the columns.
    Refused(RowCells),
}

impl Row {
    /// Reads these columns, calls `change` to compute the changes, and makes them in one atomic step if no column
    /// that was read has changed in the meantime. Otherwise it starts again, for at most the table's `attempts`
    /// (100 by default) and `timeout`. `change` may change these columns and others. `None` leaves the row
    /// unchanged.
    ///
    /// A value written to a column that was read is visible at once, even if other clients add to that column, or
    /// if a server's clock was set back. Other columns are written as by [`put`](Row::put).
    ///
    /// `change` must have no side effects, because each attempt calls it. A column that was changed and changed
    /// back counts as unchanged.
    ///
    /// # Errors
    /// Those of every call, see [`Row`].
    /// * [`Code::RetriesExhausted`](crate::Code::RetriesExhausted): other clients changed the columns at each
    ///   attempt. The message has the number of attempts.
    /// * [`Code::InvalidArgument`](crate::Code::InvalidArgument): there are no columns, or no changes.
    pub fn modify<C: Into<Column> + Clone>(
        &self,
        columns: &[C],
        mut change: impl FnMut(&RowCells) -> Option<Changes>,
    ) -> Result<Modified> {
        let columns: Vec<Column> = columns.iter().map(|column| column.clone().into()).collect();
        let table = &*self.id.table.inner;
        let by = table.deadline();
        let (mut pause, mut attempts) = (PAUSE_FIRST, 0);
        let mut cells = self.read_columns(&columns)?;
        loop {
            attempts += 1;
            let Some(changes) = change(&cells) else { return Ok(Modified { changed: false, attempts }) };
            match self.commit(&columns, &cells, &changes)? {
                Commit::Made => return Ok(Modified { changed: true, attempts }),
                Commit::Needless => return Ok(Modified { changed: false, attempts }),
                Commit::Refused(now) => cells = now,
            }
            if attempts >= table.attempts || by.remaining() <= pause {
                return Err(Error::RetriesExhausted {
                    store: self.id.described(),
                    what: format!("others changed it at each of {attempts} tries"),
                    source: None,
                });
            }
            time::sleep(pause.mul_f64(random::fraction()));
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    /// Reads the columns on which a [`commit`](Row::commit) will depend. They may have no cells.
    ///
    /// # Errors
    /// Those of every call, see [`Row`], except IN_DOUBT. INVALID_ARGUMENT if there are no columns.
    pub(crate) fn read_columns(&self, columns: &[Column]) -> Result<RowCells> {
        self.check_key()?;
        if columns.is_empty() {
            return Err(Error::invalid("columns", "", "at least one column, on which the changes depend"));
        }
        columns.iter().try_for_each(Column::check)?;
        self.id.table.inner.check_not_own(columns.iter())?;
        let columns = columns.iter().map(|column| &column.0).collect();
        self.read(&Which { columns, families: Vec::new(), versions: 1 })
    }

    /// Makes the changes if these columns, including absent ones, are as [`read_columns`](Row::read_columns) has
    /// read them.
    ///
    /// # Errors
    /// Those of [`modify`](Row::modify).
    pub(crate) fn commit(&self, columns: &[Column], as_read: &RowCells, changes: &Changes) -> Result<Commit> {
        self.check_key()?;
        let table = &*self.id.table.inner;
        changes.check(table.max_value)?;
        table.check_not_own(changes.columns())?;
        if let Some(beside) = changes.deletes_beside(columns) {
            let allowed = "only columns that were read can be deleted";
            return Err(Error::invalid("column", beside.to_string(), allowed));
        }
        let rule = |column: &Column| as_read.value(column).map_or(Rule::Missing, Rule::Is);
        let tests: Vec<CellTest<'_>> = columns.iter().map(|column| (&column.0, rule(column))).collect();
        let writes = changes.writes(as_read);
        if writes.is_empty() {
            return Ok(Commit::Needless);
        }
        if writes.iter().any(|write| matches!(write, CellWrite::Delete(_))) {
            time::sleep(HIDDEN_PAUSE);
        }
        match self.change("modifying the row", tests, writes, Some(as_read))? {
            ChangeOutcome::Made(_) => Ok(Commit::Made),
            // The reply has the columns with which the next attempt starts, and the library's own columns.
            ChangeOutcome::Refused(answer) => {
                let read =
                    answer.cells.into_iter().filter(|cell| columns.iter().any(|of| of.0 == cell.column));
                Ok(Commit::Refused(RowCells::new(read.collect())))
            }
        }
    }
}
