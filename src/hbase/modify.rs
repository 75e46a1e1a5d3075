//! Optimistic read-modify-write of several columns of a row.

use std::time::Duration;

use super::cells::{Changes, Column, RowCells};
use super::change::{HIDDEN_PAUSE, Outcome};
use super::row::Row;
use crate::error::{Error, Result};
use crate::store::hbase::steps::{Rule, Test, Which, Write};

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
        self.check_key()?;
        let columns: Vec<Column> = columns.iter().map(|column| column.clone().into()).collect();
        if columns.is_empty() {
            return Err(Error::invalid("columns", "", "one at least, which the changes depend on"));
        }
        columns.iter().try_for_each(Column::check)?;
        let table = &*self.table.inner;
        table.check_not_own(columns.iter())?;
        let which = Which {
            columns: columns.iter().map(|column| &column.0).collect(),
            families: Vec::new(),
            versions: 1,
        };
        let by = table.deadline();
        let (mut pause, mut attempts) = (PAUSE_FIRST, 0);
        let mut cells = self.read(&which)?;
        loop {
            attempts += 1;
            let Some(changes) = change(&cells) else { return Ok(Modified { changed: false, attempts }) };
            changes.check(table.max_value)?;
            table.check_not_own(changes.columns())?;
            if let Some(beside) = changes.deletes_beside(&columns) {
                return Err(Error::invalid(
                    "column",
                    beside.to_string(),
                    "one of those that were read, to be deleted",
                ));
            }
            let as_read = |column: &'_ Column| cells.value(column).map_or(Rule::Missing, Rule::Is);
            let tests: Vec<Test<'_>> = columns.iter().map(|column| (&column.0, as_read(column))).collect();
            let writes = changes.writes(&cells);
            if writes.is_empty() {
                // It deletes what is not there.
                return Ok(Modified { changed: false, attempts });
            }
            if writes.iter().any(|write| matches!(write, Write::Delete(_))) {
                std::thread::sleep(HIDDEN_PAUSE);
            }
            match self.change("modifying the row", tests, writes, Some(&cells))? {
                Outcome::Made(_) => return Ok(Modified { changed: true, attempts }),
                // It has read what the next try begins with.
                Outcome::Refused(look) => {
                    let asked = look.cells.into_iter().filter(|cell| which.columns.contains(&&cell.place));
                    cells = RowCells::new(asked.collect());
                }
            }
            if attempts >= table.attempts || by.remaining() <= pause {
                return Err(Error::RetriesExhausted {
                    store: self.described(),
                    what: format!("others changed it at each of {attempts} tries"),
                    source: None,
                });
            }
            std::thread::sleep(pause.mul_f64(fastrand::f64()));
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }
}
