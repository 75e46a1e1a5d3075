//! Histories of locks: a row for each entry, in the region of the lock.
//!
//! A row is the hash of the lock's name, `H#`, the name, a NUL, the time of the entry and its random number. The bits of the
//! time are inverted, so a newer entry sorts before an older one. No name contains a NUL. The cell has a TTL of its own.
//!
//! A break of a grant has a second row: `B#` instead of `H#`, and the number of the grant after the NUL.

use std::time::Duration;

use super::cell_store::{LockTable, RowPage, RowScan};
use super::layout::CellColumn;
use crate::error::Result;
use crate::names::history_entry::HistoryEntry;
use crate::runtime::time::Deadline;
use crate::store::hbase::row_keys::salted;
use crate::store::{HISTORY_MAX, HistoryOf};

/// Puts the entry. The row belongs to the entry, so a repetition changes nothing.
pub(super) fn append(
    table: &dyn LockTable,
    column: CellColumn,
    of: HistoryOf<'_>,
    entry: &HistoryEntry,
    lasts: Duration,
    by: Deadline,
) -> Result<()> {
    let row = [&rows_of(of)[..], &(!entry.at_ms).to_be_bytes(), &entry.id.to_be_bytes()].concat();
    table.put(&row, column, &entry.encode(), lasts, by)
}

/// Reads the newest entries.
pub(super) fn entries(
    table: &dyn LockTable,
    column: CellColumn,
    of: HistoryOf<'_>,
    since_ms: u64,
    most: usize,
    by: Deadline,
) -> Result<Vec<HistoryEntry>> {
    let most = most.min(HISTORY_MAX);
    let rows = rows_of(of);
    let to = [&rows[..], &(!since_ms).to_be_bytes(), &[0xff; 9]].concat();
    let (mut entries, mut next) = (Vec::new(), Some(rows));
    while let Some(from) = next.take().filter(|from| *from < to && entries.len() < most) {
        let scan =
            RowScan { column, beside: None, from: &from, to: &to, filled: false, most: most - entries.len() };
        let RowPage { rows, next: further } = table.scan(&scan, by)?;
        entries.extend(rows.into_iter().filter_map(|row| HistoryEntry::decode(&row.cell.value)));
        next = further;
    }
    Ok(entries)
}

/// What the rows of these entries begin with.
fn rows_of(of: HistoryOf<'_>) -> Vec<u8> {
    let infix = match of {
        HistoryOf::Lock(_) => b"H#",
        HistoryOf::Grant(..) => b"B#",
    };
    let mut rows = salted(of.name().key().as_bytes(), infix);
    rows.push(0);
    rows.extend(of.grant_bytes());
    rows
}
