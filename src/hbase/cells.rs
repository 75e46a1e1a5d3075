//! Columns, the cells to write and the cells that were read; and what HBase allows of them.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::store::hbase::cell_store::Durability;
use crate::store::hbase::steps::{CellPlace, CellWrite, FoundCell, Which};

/// HBase takes 32,767, and the keys by which regions are looked up have the table's name and more before it.
const KEY_BYTES_MAX: usize = 32_000;
/// What the longest key leaves of a cell's key, which has 16 bits for its length.
const QUALIFIER_BYTES_MAX: usize = 16 * 1024;
const FAMILY_BYTES_MAX: usize = 127;
/// The library's own columns begin so. A NUL byte comes first in the order of a row.
pub(super) const OWN_PREFIX: &[u8] = b"\0dlm_";

/// A column: a family and a qualifier. `"d:name"` converts into one; what is before the first colon is the
/// family.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Column(pub(super) CellPlace);

impl Column {
    /// For qualifiers that are no text.
    pub fn new(family: &str, qualifier: impl AsRef<[u8]>) -> Column {
        Column(CellPlace { family: family.into(), qualifier: qualifier.as_ref().to_vec() })
    }

    /// `family:qualifier` of any bytes.
    pub(crate) fn parse(text: &[u8]) -> Column {
        // Without a colon there is no family, which `check` refuses.
        let colon = text.iter().position(|byte| *byte == b':');
        let (family, qualifier) = colon.map_or((&[][..], text), |at| (&text[..at], &text[at + 1..]));
        Column(CellPlace { family: family.to_vec(), qualifier: qualifier.to_vec() })
    }

    /// The family's name.
    pub fn family(&self) -> &[u8] {
        &self.0.family
    }

    /// The name within the family. It may be empty.
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
            let allowed = "a qualifier that does not begin with \"\\0dlm_\", which is this library's";
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
    let allowed = format!("1 to {KEY_BYTES_MAX} bytes, and it has {}", key.len());
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

/// As `family:qualifier`, with bytes that cannot be printed escaped.
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

/// Cells to be written in one atomic step: columns of one row, of any families, and their values.
#[derive(Clone, Default)]
#[must_use = "hand it to a row"]
pub struct Cells(Vec<NewCell>);

#[derive(Clone)]
struct NewCell {
    column: Column,
    value: Vec<u8>,
    ttl: Option<Duration>,
}

impl Cells {
    /// None yet.
    pub fn new() -> Cells {
        Cells::default()
    }

    /// Adds a cell. An empty value is a value: the cell is there. A counter is 8 bytes, big-endian:
    /// `5i64.to_be_bytes()`.
    pub fn put(mut self, column: impl Into<Column>, value: impl Into<Vec<u8>>) -> Cells {
        self.0.push(NewCell { column: column.into(), value: value.into(), ttl: None });
        self
    }

    /// Adds a cell that the server drops after this time, 1 ms or more, rounded down to milliseconds. It must not
    /// be shorter than what an older version of the cell still has: HBase would then show that one again.
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
            return Err(Error::invalid("cells", "", "one cell at least"));
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

    /// One Put for each TTL: the server takes it from the whole Put.
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

/// Column names alone: values may be secrets.
impl fmt::Debug for Cells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.columns()).finish()
    }
}

/// What [`Row::modify`](super::Row::modify) is to do with a row, in one atomic step. No column twice.
#[derive(Debug, Clone, Default)]
#[must_use = "return it from the closure of modify"]
pub struct Changes {
    puts: Cells,
    adds: Vec<(Column, i64)>,
    deletes: Vec<Column>,
}

impl Changes {
    /// None yet.
    pub fn new() -> Changes {
        Changes::default()
    }

    /// As [`Cells::put`].
    pub fn put(mut self, column: impl Into<Column>, value: impl Into<Vec<u8>>) -> Changes {
        self.puts = self.puts.put(column, value);
        self
    }

    /// As [`Cells::put_for`].
    pub fn put_for(mut self, column: impl Into<Column>, value: impl Into<Vec<u8>>, ttl: Duration) -> Changes {
        self.puts = self.puts.put_for(column, value, ttl);
        self
    }

    /// Adds to an 8-byte counter. See [`Row::increment`](super::Row::increment).
    pub fn add(mut self, column: impl Into<Column>, by: i64) -> Changes {
        self.adds.push((column.into(), by));
        self
    }

    /// Deletes a column, with all its versions. It must be one of those that were read. One that was not there is
    /// left alone, and one that somebody writes again meanwhile, with the same value, stays.
    pub fn delete(mut self, column: impl Into<Column>) -> Changes {
        self.deletes.push(column.into());
        self
    }

    pub(super) fn check(&self, max_value: usize) -> Result<()> {
        let rest = || self.adds.iter().map(|(column, _)| column).chain(&self.deletes);
        if !self.puts.0.is_empty() {
            self.puts.check(max_value)?;
        } else if rest().next().is_none() {
            return Err(Error::invalid("changes", "", "one change at least; `None` leaves the row as it is"));
        }
        rest().try_for_each(Column::check)?;
        all_differ(self.puts.columns().chain(rest()))
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = &Column> {
        self.puts.columns().chain(self.adds.iter().map(|(column, _)| column)).chain(&self.deletes)
    }

    /// `read`: what the changes were computed from.
    pub(super) fn writes<'a>(&'a self, read: &'a RowCells) -> Vec<CellWrite<'a>> {
        let mut writes = self.puts.writes();
        writes.extend(self.adds.iter().map(|(column, by)| CellWrite::Add(&column.0, *by)));
        let deletes: Vec<_> = self.deletes.iter().filter_map(|column| read.stamp(column)).collect();
        if !deletes.is_empty() {
            writes.push(CellWrite::Delete(deletes));
        }
        writes
    }

    /// The first column to be deleted that is not among these.
    pub(super) fn deletes_beside(&self, columns: &[Column]) -> Option<&Column> {
        self.deletes.iter().find(|column| !columns.contains(column))
    }
}

/// The order of changes to one column in one step is the server's business: none may come twice.
fn all_differ<'a>(columns: impl Iterator<Item = &'a Column>) -> Result<()> {
    let mut seen = HashSet::new();
    for column in columns {
        if !seen.insert(column) {
            return Err(Error::invalid("column", column.to_string(), "each column once"));
        }
    }
    Ok(())
}

/// What [`Row::get_only`](super::Row::get_only) reads.
#[derive(Debug, Clone)]
#[must_use = "hand it to get_only"]
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
    /// The whole row, the newest version of each cell.
    pub fn all() -> Select {
        Select::default()
    }

    /// This column, and what else is named.
    pub fn column(mut self, column: impl Into<Column>) -> Select {
        self.columns.push(column.into());
        self
    }

    /// All columns of this family, and what else is named.
    pub fn family(mut self, family: &str) -> Select {
        self.families.push(family.to_owned());
        self
    }

    /// So many versions of each cell, the newest first. A family keeps as many as it was created with.
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

/// Cells of a row as they were read: all at one moment.
#[derive(Clone, PartialEq, Eq)]
pub struct RowCells(Vec<FoundCell>);

/// One version of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CellVersion<'a> {
    /// Its value.
    pub value: &'a [u8],
    /// When the server stamped it, in milliseconds since 1970 by its clock.
    pub written_ms: u64,
}

/// Without the value, which may be a secret.
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

    /// The newest value of a column; `None` where there is no such cell. An empty value is one.
    pub fn value(&self, column: impl Into<Column>) -> Option<&[u8]> {
        let column = column.into();
        self.0.iter().find(|cell| cell.place == column.0).map(|cell| cell.value.as_slice())
    }

    /// The value of a counter; `None` where there is no such cell, or it is not 8 bytes long.
    pub fn counter(&self, column: impl Into<Column>) -> Option<i64> {
        self.value(column).and_then(|value| value.try_into().ok()).map(i64::from_be_bytes)
    }

    /// The versions of a column that were read, newest first.
    pub fn versions(&self, column: impl Into<Column>) -> impl Iterator<Item = CellVersion<'_>> {
        let column = column.into();
        let of_column = self.0.iter().filter(move |cell| cell.place == column.0);
        of_column.map(|cell| CellVersion { value: &cell.value, written_ms: cell.written_ms })
    }

    /// The columns that were read, in the order of the row, each with its newest value.
    pub fn iter(&self) -> impl Iterator<Item = (Column, &[u8])> {
        let mut before = None;
        let newest = self.0.iter().filter(move |cell| before.replace(&cell.place) != Some(&cell.place));
        newest.map(|cell| (Column(cell.place.clone()), cell.value.as_slice()))
    }

    /// Whether nothing was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The timestamp of the newest version of a column.
    pub(super) fn written_ms(&self, place: &CellPlace) -> Option<u64> {
        self.0.iter().find(|cell| cell.place == *place).map(|cell| cell.written_ms)
    }

    /// All versions of all columns.
    #[cfg(feature = "capi")]
    pub(crate) fn found(&self) -> &[FoundCell] {
        &self.0
    }

    /// The newest version of a column, as a Delete needs it.
    fn stamp<'a>(&'a self, column: &'a Column) -> Option<(&'a CellPlace, u64)> {
        let newest = self.0.iter().find(|cell| cell.place == column.0)?;
        Some((&newest.place, newest.written_ms))
    }

    /// All columns, as a Delete needs them.
    pub(super) fn stamps(&self) -> Vec<(&CellPlace, u64)> {
        self.0.iter().map(|cell| (&cell.place, cell.written_ms)).collect()
    }
}

/// Column names alone: values may be secrets.
impl fmt::Debug for RowCells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|(column, _)| column)).finish()
    }
}
