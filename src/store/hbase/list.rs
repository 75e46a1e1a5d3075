//! Lists of the locks in a table.
//!
//! The first byte of a row is a hash of the name, so the names that begin with one prefix are in 256 ranges. The rows of
//! fences and histories have other prefixes and are not read. A row is in one range only and ranges are read in their
//! order, so no lock is read twice.

use super::cell_store::{LockTable, RowPage, RowScan, ScannedRow};
use super::layout::CellColumn;
use crate::error::Result;
use crate::names::lock_name::LockName;
use crate::runtime::time::Deadline;
use crate::store::hbase::row_keys::lock_row;
use crate::store::remote::Standing;
use crate::store::{ListCursor, ListedLock, LockPage, LockQuery};

/// What the names of locks begin with.
const LEVELS: [&[u8]; 2] = [b"DC#", b"XDC#"];

/// Reads the locks from `after` on, at most `most`. `column` has the record. `standing` decodes the cells.
pub(super) fn page(
    table: &dyn LockTable,
    (column, beside): (CellColumn, Option<CellColumn>),
    standing: impl Fn(&mut ScannedRow) -> Standing,
    query: &LockQuery,
    after: Option<&ListCursor>,
    most: usize,
    by: Deadline,
) -> Result<LockPage> {
    let filled = query.is_held_only();
    let (locks, next) =
        in_ranges(ranges(query.prefix_text().as_bytes()), after, most, by, |from, to, most| {
            let RowPage { rows, next } =
                table.scan(&RowScan { column, beside, from, to, filled, most }, by)?;
            let listed = |mut row: ScannedRow| {
                let standing = standing(&mut row);
                listed(&row.row, standing).filter(|lock| !filled || lock.holder.is_some())
            };
            Ok((rows.into_iter().filter_map(listed).collect(), next))
        })?;
    Ok(LockPage::new(locks, next))
}

/// Reads what is listed in these ranges of rows from `after` on, about `most`. `read` reads a part of one range: its
/// arguments are the first row, the first row behind, and how much. It also returns where the rest begins.
pub(super) fn in_ranges<T>(
    ranges: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
    after: Option<&ListCursor>,
    most: usize,
    by: Deadline,
    read: impl Fn(&[u8], &[u8], usize) -> Result<(Vec<T>, Option<Vec<u8>>)>,
) -> Result<(Vec<T>, Option<ListCursor>)> {
    let mut at = after.map(|cursor| cursor.as_bytes().to_vec()).unwrap_or_default();
    let (mut listed, mut has_read) = (Vec::new(), false);
    for (from, to) in ranges {
        if to <= at {
            continue;
        }
        let mut next = Some(if at > from { at.clone() } else { from });
        while let Some(from) = next.take().filter(|from| *from < to) {
            // A page that has used up its time is shorter, so that the caller gets on.
            if listed.len() >= most || (has_read && by.passed()) {
                return Ok((listed, Some(ListCursor::from_bytes(from))));
            }
            let (part, further) = read(&from, &to, most - listed.len())?;
            has_read = true;
            listed.extend(part);
            next = further;
        }
        at = to;
    }
    Ok((listed, None))
}

/// Returns the ranges of rows whose names begin with the prefix, in the order of rows: first row, and first row behind.
fn ranges(prefix: &[u8]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let begins = LEVELS.map(|level| match (prefix.starts_with(level), level.starts_with(prefix)) {
        (true, _) => Some(prefix.to_vec()),
        (_, true) => Some(level.to_vec()),
        _ => None,
    });
    of_each_hash(begins.into_iter().flatten().collect())
}

/// Returns the ranges of rows whose keys begin so, in the order of rows.
pub(super) fn of_each_hash(begins: Vec<Vec<u8>>) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..=u8::MAX).flat_map(move |hash| {
        begins.clone().into_iter().map(move |begin| {
            let from = [&[hash][..], &begin].concat();
            (from.clone(), behind(from))
        })
    })
}

/// Returns the first row that sorts behind all rows with this beginning. It is text, so no byte after the hash is 0xff.
fn behind(mut begin: Vec<u8>) -> Vec<u8> {
    if let Some(last) = begin.last_mut() {
        *last = last.saturating_add(1);
    }
    begin
}

/// Returns `None` for a row that is not one of a lock.
fn listed(row: &[u8], standing: Standing) -> Option<ListedLock> {
    let key = std::str::from_utf8(row.get(1..)?).ok()?;
    let name = LockName::from_key(key).ok().filter(|name| lock_row(name) == row)?;
    let lock = ListedLock::new(name);
    Some(match standing {
        Standing::Free => lock,
        Standing::Held(found) => {
            let fence = found.record.as_ref().and_then(|record| record.number()).map(crate::Fence);
            ListedLock { holder: Some(found.holder()), fence, ..lock }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::hbase::row_keys::fence_row;

    #[test]
    fn the_ranges_of_a_prefix_are_in_order_and_have_no_row_in_common() {
        for (prefix, per_hash) in
            [("", 2), ("D", 1), ("XDC#orders#", 1), ("DC#eu", 1), ("lock", 0), ("DCX", 0)]
        {
            let all: Vec<_> = ranges(prefix.as_bytes()).collect();
            assert_eq!(all.len(), 256 * per_hash, "{prefix}");
            assert!(all.iter().all(|(from, to)| from < to));
            assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{prefix}");
        }
    }

    #[test]
    fn a_row_that_is_not_that_of_a_lock_is_not_listed() {
        let name = LockName::from_key("XDC#orders#7").unwrap();
        let row = lock_row(&name);
        assert_eq!(listed(&row, Standing::Free).unwrap().name, Some(name.clone()));
        let wrong_hash = [&[row[0] ^ 1][..], &row[1..]].concat();
        for other in [&b""[..], b"x", &wrong_hash, &fence_row(&name), b"\xd2XDC#\xff#a"] {
            assert_eq!(listed(other, Standing::Free), None, "{other:?}");
        }
    }
}
