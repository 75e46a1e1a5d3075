//! Optimistic read-modify-write of several columns of a row.

use std::time::Duration;

use super::cells::{Changes, Column, RowCells};
use super::change::{ChangeOutcome, HIDDEN_PAUSE};
use super::row::Row;
use crate::error::{Error, Result};
use crate::store::hbase::steps::{CellTest, CellWrite, Rule, Which};
use crate::{random, time};

/// Pauses before another try: a random part of a time that doubles from the first to the last of these.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_LONGEST: Duration = Duration::from_millis(64);

/// Answer of [`Row::modify`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Modified {
    /// Whether the row was changed; false where the closure left it as it was.
    pub changed: bool,
    /// How often the row was read and the closure called.
    pub attempts: u32,
}

/// What became of the changes of one [`commit`](Row::commit).
pub(crate) enum Commit {
    Made,
    /// They delete what is not there: the store was not asked.
    Needless,
    /// Nothing was written: a column was changed. This is what they all hold now.
    Refused(RowCells),
}

impl Row {
    /// Reads these columns, lets `change` compute what is to be done with the row, and does it if none of them was
    /// changed meanwhile; otherwise once more, up to the table's `attempts` (100 unless set) and `timeout`. What
    /// `change` writes may be in these columns or in others. `None` leaves the row as it is.
    ///
    /// What it writes into a column that it has read can be seen at once, also where that one is a counter that others
    /// add to, and where the clock of a server was set back. Columns that it writes and has not read are written as
    /// by [`put`](Row::put).
    ///
    /// `change` must have no effects of its own: it is called for each try. A column that was changed and changed
    /// back counts as unchanged.
    ///
    /// # Errors
    /// Those of every call, see [`Row`]. RETRIES_EXHAUSTED, which says how many tries were made: others changed the
    /// columns each time. INVALID_ARGUMENT for no columns or none to change.
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

    /// Reads the columns that a [`commit`](Row::commit) is to depend on. There may be nothing of them.
    ///
    /// # Errors
    /// Those of every call, see [`Row`]; never IN_DOUBT. INVALID_ARGUMENT for no columns.
    pub(crate) fn read_columns(&self, columns: &[Column]) -> Result<RowCells> {
        self.check_key()?;
        if columns.is_empty() {
            return Err(Error::invalid("columns", "", "one at least, which the changes depend on"));
        }
        columns.iter().try_for_each(Column::check)?;
        self.id.table.inner.check_not_own(columns.iter())?;
        let columns = columns.iter().map(|column| &column.0).collect();
        self.read(&Which { columns, families: Vec::new(), versions: 1 })
    }

    /// Makes the changes if these columns are as [`read_columns`](Row::read_columns) has read them, also those
    /// that were not there.
    ///
    /// # Errors
    /// Those of [`modify`](Row::modify).
    pub(crate) fn commit(&self, columns: &[Column], as_read: &RowCells, changes: &Changes) -> Result<Commit> {
        self.check_key()?;
        let table = &*self.id.table.inner;
        changes.check(table.max_value)?;
        table.check_not_own(changes.columns())?;
        if let Some(beside) = changes.deletes_beside(columns) {
            let allowed = "one of those that were read, to be deleted";
            return Err(Error::invalid("column", beside.to_string(), allowed));
        }
        let rule = |column: &Column| as_read.value(column).map_or(Rule::Missing, Rule::Is);
        let tests: Vec<CellTest<'_>> = columns.iter().map(|column| (&column.0, rule(column))).collect();
        let writes = changes.writes(as_read);
        if writes.is_empty() {
            // It deletes what is not there.
            return Ok(Commit::Needless);
        }
        if writes.iter().any(|write| matches!(write, CellWrite::Delete(_))) {
            time::sleep(HIDDEN_PAUSE);
        }
        match self.change("modifying the row", tests, writes, Some(as_read))? {
            ChangeOutcome::Made(_) => Ok(Commit::Made),
            // It has read what the next try begins with, and the library's own columns besides.
            ChangeOutcome::Refused(look) => {
                let read = look.cells.into_iter().filter(|cell| columns.iter().any(|of| of.0 == cell.place));
                Ok(Commit::Refused(RowCells::new(read.collect())))
            }
        }
    }
}
