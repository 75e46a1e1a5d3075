//! Many rows in few requests. A request has at most 64 rows of each region.

use super::cells::{Cells, RowCells, Select, check_key};
use super::row::Creation;
use super::table::Table;
use crate::error::{Error, Result};
use crate::store::hbase::steps::{Repeat, RowAnswer, RowGuard, RowStep, Rule};

/// Batches. Each method returns an outcome for each row, in the order of its rows. A batch is not atomic: each row
/// succeeds or fails by itself. Batches have no marks and no fences; for these, use [`Row`](super::Row).
///
/// # Errors
/// The outer error is [`Code::InvalidArgument`](crate::Code::InvalidArgument), before any I/O, or
/// [`Code::Forked`](crate::Code::Forked). The inner errors are those of [`Row`](super::Row).
impl Table {
    /// Reads these rows. `None` for a row without cells.
    ///
    /// # Errors
    /// Those of batches, see above.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        select: &Select,
    ) -> Result<Vec<Result<Option<RowCells>>>> {
        self.inner.usable()?;
        select.check()?;
        let mut rows = Vec::with_capacity(keys.len());
        for key in keys {
            check_key(key.as_ref())?;
            rows.push((key.as_ref(), RowStep::Read(select.which())));
        }
        let answers = self.run_many("reading", Repeat::Read, &rows);
        let theirs = |answer: RowAnswer| {
            let cells = answer.cells.into_iter().filter(|cell| !self.inner.is_own(&cell.column));
            let cells = RowCells::new(cells.collect());
            if cells.is_empty() { None } else { Some(cells) }
        };
        Ok(answers.into_iter().map(|answer| answer.map(theirs)).collect())
    }

    /// Writes these rows, whether they exist or not. See [`Row::put`](super::Row::put).
    ///
    /// # Errors
    /// Those of batches, see above.
    pub fn put_many<K: AsRef<[u8]>>(&self, rows: &[(K, Cells)]) -> Result<Vec<Result<()>>> {
        self.check_many(rows)?;
        let rows: Vec<_> = rows
            .iter()
            .map(|(key, cells)| (key.as_ref(), RowStep::Change(RowGuard::Always, cells.writes())))
            .collect();
        Ok(self
            .run_many("writing", Repeat::Never, &rows)
            .into_iter()
            .map(|answer| answer.map(drop))
            .collect())
    }

    /// Creates the rows that do not exist. See [`Row::create`](super::Row::create). Unlike that method, it does not
    /// read back the cells, which a Delete of the same millisecond may hide.
    ///
    /// # Errors
    /// Those of batches, see above.
    pub fn create_many<K: AsRef<[u8]>>(&self, rows: &[(K, Cells)]) -> Result<Vec<Result<Creation>>> {
        self.check_many(rows)?;
        let anchors = rows.iter().map(|(_, cells)| self.inner.anchor_among(cells));
        let anchors = anchors.collect::<Result<Vec<_>>>()?;
        let steps = rows.iter().zip(&anchors).map(|((key, cells), anchor)| {
            let guard = RowGuard::One((&anchor.0, Rule::MissingOrEmpty));
            (key.as_ref(), RowStep::Change(guard, cells.writes()))
        });
        let steps: Vec<_> = steps.collect();
        let creation =
            |answer: RowAnswer| if answer.made { Creation::Created } else { Creation::AlreadyExists };
        let answers = self.run_many("creating", Repeat::Never, &steps);
        Ok(answers.into_iter().map(|answer| answer.map(creation)).collect())
    }

    fn run_many(
        &self,
        what: &str,
        repeat: Repeat<'_>,
        rows: &[(&[u8], RowStep<'_>)],
    ) -> Vec<Result<RowAnswer>> {
        self.inner.store.run_many(what, repeat, rows, self.inner.deadline())
    }

    fn check_many<K: AsRef<[u8]>>(&self, rows: &[(K, Cells)]) -> Result<()> {
        self.inner.usable()?;
        let mut seen = std::collections::HashSet::new();
        for (key, cells) in rows {
            check_key(key.as_ref())?;
            cells.check(self.inner.max_value)?;
            self.inner.check_not_own(cells.columns())?;
            if !seen.insert(key.as_ref()) {
                let key = key.as_ref().escape_ascii().to_string();
                return Err(Error::invalid("row key", key, "each row once, because a batch has no order"));
            }
        }
        Ok(())
    }
}
