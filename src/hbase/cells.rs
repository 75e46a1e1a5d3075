//! Columns, cells to write and cells that were read, with the limits of HBase.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::store::hbase::cell_store::Durability;
use crate::store::hbase::steps::{CellWrite, ColumnName, FoundCell, Which};

/// Longest row key. HBase allows 32,767 bytes, but the keys for region look-ups also contain the table name and
/// more.
const KEY_BYTES_MAX: usize = 32_000;
/// Longest qualifier. Together with the longest row key it fits in a cell's key, whose length has 16 bits.
const QUALIFIER_BYTES_MAX: usize = 16 * 1024;
const FAMILY_BYTES_MAX: usize = 127;
/// Prefix of the library's own columns. Its NUL byte sorts them first in a row.
pub(super) const OWN_PREFIX: &[u8] = b"\0dlm_";

/// A column: a family and a qualifier. `"d:name"` converts into one. The text before the first colon is the family.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Column(pub(super) ColumnName);

impl Column {
    /// Makes a column whose qualifier may be any bytes.
    pub fn new(family: &str, qualifier: impl AsRef<[u8]>) -> Column {
        Column(ColumnName { family: family.into(), qualifier: qualifier.as_ref().to_vec() })
    }

    /// Parses `family:qualifier`, which may be any bytes.
    pub(crate) fn parse(text: &[u8]) -> Column {
        // Without a colon, the family is empty. `check` refuses that.
        let colon = text.iter().position(|byte| *byte == b':');
        let (family, qualifier) = colon.map_or((&[][..], text), |at| (&text[..at], &text[at + 1..]));
        Column(ColumnName { family: family.to_vec(), qualifier: qualifier.to_vec() })
    }

    /// Returns the name of the family.
    pub fn family(&self) -> &[u8] {
        &self.0.family
    }

    /// Returns the name within the family. It may be empty.
    pub fn qualifier(&self) -> &[u8] {
        &self.0.qualifier
    }

    pub(super) fn check(&self) -> Result<()> {
        check_family(&self.0.family, &self.to_string())?;
        if self.0.qualifier.len() > QUALIFIER_BYTES_MAX {
            let allowed = format!("a qualifier of up to {QUALIFIER_BYTES_MAX} bytes");
            return Err(Error::invalid("column", self.to_string(), allowed));
        }
        if self.0.qualifier.starts_with(OWN_PREFIX) {
            let allowed = "a qualifier that does not begin with \"\\0dlm_\", which this library uses";
            return Err(Error::invalid("column", self.to_string(), allowed));
        }
        Ok(())
    }
}

pub(super) fn check_family(family: &[u8], column: &str) -> Result<()> {
    let legal = |byte: &u8| *byte > b' ' && *byte < 0x7f && !b":/\\".contains(byte);
    if (1..=FAMILY_BYTES_MAX).contains(&family.len()) && family[0] != b'.' && family.iter().all(legal) {
        return Ok(());
    }
    Err(Error::invalid("column", column, "family:qualifier, such as \"d:name\""))
}

pub(super) fn check_key(key: &[u8]) -> Result<()> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Ok(());
    }
    let allowed = format!("1 to {KEY_BYTES_MAX} bytes, but it has {}", key.len());
    Err(Error::invalid("row key", key.escape_ascii().to_string(), allowed))
}

impl From<&str> for Column {
    fn from(text: &str) -> Column {
        Column::parse(text.as_bytes())
    }
}

impl From<&Column> for Column {
    fn from(column: &Column) -> Column {
        column.clone()
    }
}

/// Writes `family:qualifier`, with unprintable bytes escaped.
impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Cells to write in one atomic step: columns of one row, in any families, and their values.
#[derive(Clone, Default)]
#[must_use = "pass it to a row"]
pub struct Cells(Vec<NewCell>);

#[derive(Clone)]
struct NewCell {
    column: Column,
    value: Vec<u8>,
    ttl: Option<Duration>,
}

impl Cells {
    /// Makes an empty set of cells.
    pub fn new() -> Cells {
        Cells::default()
    }

    /// Adds a cell. A cell with an empty value exists. A counter is 8 bytes, big-endian: `5i64.to_be_bytes()`.
    pub fn put(mut self, column: impl Into<Column>, value: impl Into<Vec<u8>>) -> Cells {
        self.0.push(NewCell { column: column.into(), value: value.into(), ttl: None });
        self
    }

    /// Adds a cell that the server drops after `ttl`: at least 1 ms, rounded down to milliseconds. `ttl` must not
    /// be shorter than the remaining TTL of an older version of the cell. Otherwise HBase shows that version
    /// again.
    pub fn put_for(mut self, column: impl Into<Column>, value: impl Into<Vec<u8>>, ttl: Duration) -> Cells {
        self.0.push(NewCell { column: column.into(), value: value.into(), ttl: Some(ttl) });
        self
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = &Column> {
        self.0.iter().map(|cell| &cell.column)
    }

    pub(super) fn value(&self, column: &Column) -> Option<&[u8]> {
        self.0.iter().find(|cell| cell.column == *column).map(|cell| cell.value.as_slice())
    }

    pub(super) fn check(&self, max_value: usize) -> Result<()> {
        if self.0.is_empty() {
            return Err(Error::invalid("cells", "", "at least one cell"));
        }
        for NewCell { column, value, ttl } in &self.0 {
            column.check()?;
            if value.len() > max_value {
                let value = format!("of {} bytes in column {column}", value.len());
                return Err(Error::invalid("value", value, format!("up to {max_value} bytes (max_value)")));
            }
            if ttl.is_some_and(|ttl| ttl.as_millis() == 0 || i64::try_from(ttl.as_millis()).is_err()) {
                return Err(Error::invalid("cell TTL", format!("{ttl:?}"), "1 ms or more"));
            }
        }
        all_differ(self.columns())
    }

    /// Makes one Put for each TTL, because the TTL is an attribute of the whole Put.
    pub(super) fn writes(&self) -> Vec<CellWrite<'_>> {
        let mut writes: Vec<CellWrite<'_>> = Vec::new();
        for new in &self.0 {
            let cell = (&new.column.0, new.value.as_slice());
            let same = writes.iter_mut().find_map(|write| match write {
                CellWrite::Put { cells, ttl, .. } if *ttl == new.ttl => Some(cells),
                _ => None,
            });
            match same {
                Some(cells) => cells.push(cell),
                None => writes.push(CellWrite::Put {
                    cells: vec![cell],
                    ttl: new.ttl,
                    durability: Durability::UseDefault,
                }),
            }
        }
        writes
    }
}

/// Writes only the column names, because values may be secret.
impl fmt::Debug for Cells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.columns()).finish()
    }
}

/// Changes that [`Row::modify`](super::Row::modify) makes in one atomic step. Each column may occur once.
#[derive(Debug, Clone, Default)]
#[must_use = "return it from the closure of modify"]
pub struct Changes {
    puts: Cells,
    adds: Vec<(Column, i64)>,
    deletes: Vec<Column>,
}

impl Changes {
    /// Makes an empty set of changes.
    pub fn new() -> Changes {
        Changes::default()
    }

    /// Adds a cell, like [`Cells::put`].
    pub fn put(mut self, column: impl Into<Column>, value: impl Into<Vec<u8>>) -> Changes {
        self.puts = self.puts.put(column, value);
        self
    }

    /// Adds a cell with a TTL, like [`Cells::put_for`].
    pub fn put_for(mut self, column: impl Into<Column>, value: impl Into<Vec<u8>>, ttl: Duration) -> Changes {
        self.puts = self.puts.put_for(column, value, ttl);
        self
    }

    /// Adds `by` to an 8-byte counter. See [`Row::increment`](super::Row::increment).
    pub fn add(mut self, column: impl Into<Column>, by: i64) -> Changes {
        self.adds.push((column.into(), by));
        self
    }

    /// Deletes all versions of a column. It must be one of the columns that were read. Does nothing if it had no
    /// cell. A cell that another client writes in the meantime, with the same value, stays.
    pub fn delete(mut self, column: impl Into<Column>) -> Changes {
        self.deletes.push(column.into());
        self
    }

    pub(super) fn check(&self, max_value: usize) -> Result<()> {
        let rest = || self.adds.iter().map(|(column, _)| column).chain(&self.deletes);
        if !self.puts.0.is_empty() {
            self.puts.check(max_value)?;
        } else if rest().next().is_none() {
            return Err(Error::invalid("changes", "", "at least one change; `None` changes nothing"));
        }
        rest().try_for_each(Column::check)?;
        all_differ(self.puts.columns().chain(rest()))
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = &Column> {
        self.puts.columns().chain(self.adds.iter().map(|(column, _)| column)).chain(&self.deletes)
    }

    /// Returns the writes of these changes. `read`: the cells from which they were computed.
    pub(super) fn writes<'a>(&'a self, read: &'a RowCells) -> Vec<CellWrite<'a>> {
        let mut writes = self.puts.writes();
        writes.extend(self.adds.iter().map(|(column, by)| CellWrite::Add(&column.0, *by)));
        let deletes: Vec<_> = self.deletes.iter().filter_map(|column| read.stamp(column)).collect();
        if !deletes.is_empty() {
            writes.push(CellWrite::Delete(deletes));
        }
        writes
    }

    /// Returns the first column to delete that is not in `columns`.
    pub(super) fn deletes_beside(&self, columns: &[Column]) -> Option<&Column> {
        self.deletes.iter().find(|column| !columns.contains(column))
    }
}

/// Refuses a column that occurs twice, because the server decides the order of changes within one step.
fn all_differ<'a>(columns: impl Iterator<Item = &'a Column>) -> Result<()> {
    let mut seen = HashSet::new();
    for column in columns {
        if !seen.insert(column) {
            return Err(Error::invalid("column", column.to_string(), "each column once"));
        }
    }
    Ok(())
}

/// The columns, families and versions that [`Row::get_only`](super::Row::get_only) reads.
#[derive(Debug, Clone)]
#[must_use = "pass it to get_only"]
pub struct Select {
    families: Vec<String>,
    columns: Vec<Column>,
    versions: u32,
}

impl Default for Select {
    fn default() -> Select {
        Select { families: Vec::new(), columns: Vec::new(), versions: 1 }
    }
}

impl Select {
    /// Selects the whole row, with the newest version of each cell.
    pub fn all() -> Select {
        Select::default()
    }

    /// Selects this column, besides the other columns and families that are named.
    pub fn column(mut self, column: impl Into<Column>) -> Select {
        self.columns.push(column.into());
        self
    }

    /// Selects all columns of this family, besides the other columns and families that are named.
    pub fn family(mut self, family: &str) -> Select {
        self.families.push(family.to_owned());
        self
    }

    /// Selects up to this number of versions of each cell, newest first. A family keeps the number of versions that
    /// it was created with.
    pub fn versions(mut self, versions: u32) -> Select {
        self.versions = versions;
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.versions == 0 {
            return Err(Error::invalid("versions", "0", "1 or more"));
        }
        self.families.iter().try_for_each(|family| check_family(family.as_bytes(), family))?;
        self.columns.iter().try_for_each(Column::check)
    }

    pub(super) fn which(&self) -> Which<'_> {
        Which {
            families: self.families.iter().map(String::as_bytes).collect(),
            columns: self.columns.iter().map(|column| &column.0).collect(),
            versions: self.versions,
        }
    }
}

/// Cells of a row, all read at the same moment.
#[derive(Clone, PartialEq, Eq)]
pub struct RowCells(Vec<FoundCell>);

/// One version of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CellVersion<'a> {
    /// The value.
    pub value: &'a [u8],
    /// The timestamp that the server gave it, in milliseconds since 1970 by the server's clock.
    pub written_ms: u64,
}

/// Omits the value, which may be secret.
impl fmt::Debug for CellVersion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CellVersion")
            .field("bytes", &self.value.len())
            .field("written_ms", &self.written_ms)
            .finish()
    }
}

impl RowCells {
    pub(super) fn new(cells: Vec<FoundCell>) -> RowCells {
        RowCells(cells)
    }

    /// Returns the newest value of a column, which may be empty. `None` if there is no such cell.
    pub fn value(&self, column: impl Into<Column>) -> Option<&[u8]> {
        let column = column.into();
        self.0.iter().find(|cell| cell.column == column.0).map(|cell| cell.value.as_slice())
    }

    /// Returns the value of a counter. `None` if there is no such cell, or it is not 8 bytes long.
    pub fn counter(&self, column: impl Into<Column>) -> Option<i64> {
        self.value(column).and_then(|value| value.try_into().ok()).map(i64::from_be_bytes)
    }

    /// Returns the versions of a column that were read, newest first.
    pub fn versions(&self, column: impl Into<Column>) -> impl Iterator<Item = CellVersion<'_>> {
        let column = column.into();
        let of_column = self.0.iter().filter(move |cell| cell.column == column.0);
        of_column.map(|cell| CellVersion { value: &cell.value, written_ms: cell.written_ms })
    }

    /// Returns the columns that were read, in the order of the row, each with its newest value.
    pub fn iter(&self) -> impl Iterator<Item = (Column, &[u8])> {
        let mut before = None;
        let newest = self.0.iter().filter(move |cell| before.replace(&cell.column) != Some(&cell.column));
        newest.map(|cell| (Column(cell.column.clone()), cell.value.as_slice()))
    }

    /// Returns whether no cell was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the timestamp of the newest version of a column.
    pub(super) fn written_ms(&self, column: &ColumnName) -> Option<u64> {
        self.0.iter().find(|cell| cell.column == *column).map(|cell| cell.written_ms)
    }

    /// Returns all versions of all columns.
    #[cfg(feature = "capi")]
    pub(crate) fn found(&self) -> &[FoundCell] {
        &self.0
    }

    /// Returns the newest version of a column, for a Delete.
    fn stamp<'a>(&'a self, column: &'a Column) -> Option<(&'a ColumnName, u64)> {
        let newest = self.0.iter().find(|cell| cell.column == column.0)?;
        Some((&newest.column, newest.written_ms))
    }

    /// Returns all columns with their timestamps, for a Delete.
    pub(super) fn stamps(&self) -> Vec<(&ColumnName, u64)> {
        self.0.iter().map(|cell| (&cell.column, cell.written_ms)).collect()
    }
}

/// Writes only the column names, because values may be secret.
impl fmt::Debug for RowCells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|(column, _)| column)).finish()
    }
}
