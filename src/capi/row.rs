use std::ffi::c_void;
use std::time::Duration;

use super::answer::{answer, status};
use super::arguments::{DLM_FOREVER, slice};
use super::bytes::{dlm_bytes, list};
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::guard::{freeing, write};
use super::handles::HandleTable;
use super::names::{Names, dlm_names};
use super::process::{Handle, PerProcess, find, free, keep};
use super::row_cells::{Read, dlm_row_cells};
use super::status::dlm_status;
#[cfg(not(feature = "hbase"))]
use super::without_hbase as hbase;
#[cfg(feature = "hbase")]
use crate::hbase;
use hbase::{Cells, Changes, Column, Commit, Creation, Row, Update};

/// One row: a key and how its changes are made. A row from dlm_lease_row() carries the fence of the lease with
/// each change, and HBase refuses the change once a later holder of the lock was here. One from
/// dlm_row_exactly_once() can send a change again whose reply was lost.
///
/// Calls that ask HBase block, for the table's option timeout at the most. They fail with
/// * DLM_INVALID_ARGUMENT before any I/O: a column, value or TTL that is not allowed;
/// * DLM_TABLE_CREATION_ERROR: no such table, it is disabled, or it lacks the family;
/// * DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_INTERNAL_ERROR, DLM_CLOSED: it did not happen;
/// * DLM_IN_DOUBT, where they change something: it may have happened, or may yet happen. Rows from
///   dlm_row_exactly_once() answer so only when all of the timeout was not enough to find out, or a
///   server answered with an error that says neither;
/// * DLM_STALE_FENCE, where they change a row from dlm_lease_row(): a later holder was here. It did not happen.
pub struct dlm_row(());

static ROWS: PerProcess<HandleTable<Row>> = PerProcess::new();

impl Handle for dlm_row {
    type Object = Row;
    const NAME: &str = "dlm_row";
    const KIND: u8 = 13;
    fn table() -> &'static PerProcess<HandleTable<Row>> {
        &ROWS
    }
}

/// A cell to be written. The call copies what it points to. A column is the family, a colon and the qualifier, which
/// may be any bytes. With DLM_TEXT: {DLM_TEXT("d:state"), DLM_TEXT("new"), DLM_FOREVER}.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct dlm_cell {
    /// The column, as family:qualifier.
    pub column: *const c_void,
    /// Bytes of the column.
    pub column_size: usize,
    /// Not NULL, also for an empty value.
    pub value: *const c_void,
    /// Bytes of the value: up to the table's option max_value.
    pub value_size: usize,
    /// DLM_FOREVER, or after how many milliseconds the server drops the cell, 1 or more. It must not be shorter
    /// than what an older version of the cell still has: HBase would then show that one again.
    pub ttl_ms: i64,
}

/// A change that writes a cell, as dlm_cell has it.
pub const DLM_CHANGE_PUT: i32 = 1;
/// A change that adds to an 8-byte counter, as dlm_row_increment() does.
pub const DLM_CHANGE_ADD: i32 = 2;
/// A change that deletes a column with all its versions. It must be one of those that were read. Where it was not
/// there, it is left alone.
pub const DLM_CHANGE_DELETE: i32 = 3;

/// One of the changes that dlm_row_commit_if_unchanged() makes. What its kind does not use is NULL and 0.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct dlm_change {
    /// DLM_CHANGE_PUT, DLM_CHANGE_ADD or DLM_CHANGE_DELETE.
    pub kind: i32,
    /// The column, as family:qualifier. No column may come twice.
    pub column: *const c_void,
    /// Bytes of the column.
    pub column_size: usize,
    /// PUT: as in dlm_cell.
    pub value: *const c_void,
    /// PUT: bytes of the value.
    pub value_size: usize,
    /// PUT: as in dlm_cell.
    pub ttl_ms: i64,
    /// ADD: what is added.
    pub by: i64,
}

/// A cell's TTL; `None` stays.
fn cell_ttl(ms: i64) -> Outcome<Option<Duration>> {
    match u64::try_from(ms) {
        Ok(ms @ 1..) => Ok(Some(Duration::from_millis(ms))),
        _ if ms == DLM_FOREVER => Ok(None),
        _ => {
            Err(Failure::invalid(format!("ttl_ms {ms} of a cell is not allowed: 1 or more, or DLM_FOREVER")))
        }
    }
}

/// # Safety
/// As of [`slice`].
unsafe fn column(bytes: *const c_void, size: usize) -> Outcome<Column> {
    // SAFETY: passed on.
    Ok(Column::parse(unsafe { slice("bytes of the column", bytes.cast::<u8>(), size) }?))
}

/// `None` for NULL, which has no bytes.
///
/// # Safety
/// As of [`slice`].
unsafe fn value_or_none<'a>(what: &str, bytes: *const c_void, size: usize) -> Outcome<Option<&'a [u8]>> {
    if !bytes.is_null() {
        // SAFETY: passed on.
        return unsafe { slice(what, bytes.cast::<u8>(), size) }.map(Some);
    }
    match size {
        0 => Ok(None),
        size => Err(Failure::invalid(format!("the {what} are NULL, which has no {size} bytes"))),
    }
}

/// # Safety
/// As of [`slice`], and so are the bytes of each.
unsafe fn cells(items: *const dlm_cell, count: usize) -> Outcome<Cells> {
    let mut cells = Cells::new();
    // SAFETY: passed on.
    unsafe {
        for cell in slice("cells", items, count)? {
            let column = column(cell.column, cell.column_size)?;
            let value = slice("bytes of the value", cell.value.cast::<u8>(), cell.value_size)?;
            cells = match cell_ttl(cell.ttl_ms)? {
                None => cells.put(column, value),
                Some(ttl) => cells.put_for(column, value, ttl),
            };
        }
    }
    Ok(cells)
}

/// # Safety
/// As of [`slice`], and so are the bytes of each.
unsafe fn changes(items: *const dlm_change, count: usize) -> Outcome<Changes> {
    let mut changes = Changes::new();
    // SAFETY: passed on.
    for change in unsafe { slice("changes", items, count)? } {
        // SAFETY: passed on.
        let column = unsafe { column(change.column, change.column_size)? };
        let bare = change.value.is_null() && change.value_size == 0 && change.ttl_ms == 0;
        changes = match change.kind {
            DLM_CHANGE_PUT if change.by == 0 => {
                // SAFETY: passed on.
                let value =
                    unsafe { slice("bytes of the value", change.value.cast::<u8>(), change.value_size)? };
                match cell_ttl(change.ttl_ms)? {
                    None => changes.put(column, value),
                    Some(ttl) => changes.put_for(column, value, ttl),
                }
            }
            DLM_CHANGE_ADD if bare => changes.add(column, change.by),
            DLM_CHANGE_DELETE if bare && change.by == 0 => changes.delete(column),
            kind @ (DLM_CHANGE_PUT | DLM_CHANGE_ADD | DLM_CHANGE_DELETE) => {
                return Err(Failure::invalid(format!(
                    "a change of kind {kind} has more than that kind uses: NULL and 0 are allowed in the rest"
                )));
            }
            kind => {
                return Err(Failure::invalid(format!(
                    "kind {kind} is not allowed: DLM_CHANGE_PUT, DLM_CHANGE_ADD or DLM_CHANGE_DELETE"
                )));
            }
        };
    }
    Ok(changes)
}

/// The same row, whose changes are made exactly once: each writes a mark in the same atomic step, and a change
/// whose reply was lost is sent again until it is answered, for the table's option timeout. A mark is a cell of
/// some 100 bytes in the row, which goes after a minute (two hours where a request is lost for good). Never
/// blocks. On DLM_OK the caller owns `*row_out`, and `row` still.
///
/// DLM_CLOSED
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_exactly_once(
    row: *const dlm_row,
    row_out: *mut *mut dlm_row,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer(row_out, error_out, || keep(find(row)?.exactly_once())) }
}

/// Reads the whole row, but for the library's own columns. There are no cells where there is no such row. On DLM_OK
/// the caller owns `*cells_out`. Blocks and fails as all calls of dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_get(
    row: *const dlm_row,
    cells_out: *mut *mut dlm_row_cells,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer(cells_out, error_out, || keep(Read::of(&*find(row)?, None)?)) }
}

/// Reads these columns, one or more, each given as family:qualifier. On DLM_OK the caller owns `*cells_out`, which
/// can be given to dlm_row_commit_if_unchanged(). Blocks and fails as all calls of dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_get_columns(
    row: *const dlm_row,
    columns: *const dlm_bytes,
    count: usize,
    cells_out: *mut *mut dlm_row_cells,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer(cells_out, error_out, || {
            let row = find(row)?;
            let columns = list("columns", columns, count)?.into_iter().map(Column::parse).collect();
            keep(Read::of(&row, Some(columns))?)
        })
    }
}

/// Makes the row unless it is there: of all who try at once, one has `*created_out` true. A row is there when its
/// anchor has a value that is not empty. The anchor is the column that the table's option anchor names, or else the
/// first of `cells`. It must be among them, and its value not empty. Blocks and fails as all calls of dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_create(
    row: *const dlm_row,
    cells: *const dlm_cell,
    count: usize,
    created_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer(created_out, error_out, || {
            Ok(find(row)?.create(&self::cells(cells, count)?)? == Creation::Created)
        })
    }
}

/// Writes the cells if the row is there; `*updated_out` is false where it is not, and nothing was written. See
/// dlm_row_create() for what that means; without the option anchor, the first of `cells` must be a column that the
/// row has. Blocks and fails as all calls of dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_update(
    row: *const dlm_row,
    cells: *const dlm_cell,
    count: usize,
    updated_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer(updated_out, error_out, || {
            Ok(find(row)?.update(&self::cells(cells, count)?)? == Update::Updated)
        })
    }
}

/// Writes the cells in one atomic step, whether the row is there or not. Blocks and fails as all calls of dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_put(
    row: *const dlm_row,
    cells: *const dlm_cell,
    count: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(row)?.put(&self::cells(cells, count)?)?)) }
}

/// Writes `new_value` into a column if it holds `expected`; `*set_out` tells whether it did. Either may be NULL with
/// size 0, which is the absence of the cell and not an empty value: with NULL for `new_value` the cell is deleted.
/// Blocks and fails as all calls of dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_compare_and_set(
    row: *const dlm_row,
    column: *const c_void,
    column_size: usize,
    expected: *const c_void,
    expected_size: usize,
    new_value: *const c_void,
    new_size: usize,
    set_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer(set_out, error_out, || {
            let row = find(row)?;
            let column = self::column(column, column_size)?;
            let expected = value_or_none("bytes of the value expected", expected, expected_size)?;
            let new_value = value_or_none("bytes of the new value", new_value, new_size)?;
            Ok(row.compare_and_set(column, expected, new_value)?)
        })
    }
}

/// Adds `by` to an 8-byte big-endian counter, which begins at 0, and writes the sum to `*sum_out`. It wraps around
/// at the ends of int64_t. `*known_out` is false only on DLM_OK for rows from dlm_row_exactly_once(): it was added
/// once, and the reply with the sum was lost; `*sum_out` is then 0. Blocks and fails as all calls of dlm_row,
/// DLM_INVALID_ARGUMENT also where the cell is not 8 bytes long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_increment(
    row: *const dlm_row,
    column: *const c_void,
    column_size: usize,
    by: i64,
    sum_out: *mut i64,
    known_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(sum_out, 0);
        answer(known_out, error_out, || {
            if sum_out.is_null() {
                return Err(Failure::invalid("the output is NULL"));
            }
            let sum = find(row)?.increment(self::column(column, column_size)?, by)?;
            write(sum_out, sum.unwrap_or_default());
            Ok(sum.is_some())
        })
    }
}

/// Deletes the cells of the row if `column` holds `expected`; `*deleted_out` tells whether it did. Cells that others
/// write meanwhile stay, and so do the library's own. Blocks and fails as all calls of dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_delete_if(
    row: *const dlm_row,
    column: *const c_void,
    column_size: usize,
    expected: *const c_void,
    expected_size: usize,
    deleted_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer(deleted_out, error_out, || {
            let row = find(row)?;
            let column = self::column(column, column_size)?;
            let expected = slice("bytes of the value expected", expected.cast::<u8>(), expected_size)?;
            Ok(row.delete_if(column, expected)?)
        })
    }
}

/// Makes the changes in one atomic step if all the columns that were asked for in the dlm_row_get_columns() which
/// answered `as_read` are what it has read, also those that were not there. `*committed_out` is false where one was
/// changed: nothing was written, read again and compute again, for a bounded number of times and with a random pause
/// in between. It is true, too, where there is nothing to do: the changes delete what is not there. What is changed
/// may be in these columns or in others. A column that was changed and changed back counts as unchanged.
///
/// Blocks and fails as all calls of dlm_row, DLM_INVALID_ARGUMENT also for cells from dlm_row_get(), which do not
/// tell what the changes depend on, and for those of another row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_commit_if_unchanged(
    row: *const dlm_row,
    as_read: *const dlm_row_cells,
    changes: *const dlm_change,
    count: usize,
    committed_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer(committed_out, error_out, || {
            let (row, read) = (find(row)?, find(as_read)?);
            if !read.row.is_same(&row) {
                return Err(Failure::invalid("these cells are of another row than the one that is changed"));
            }
            let Some(columns) = &read.columns else {
                let what = "cells of a whole row cannot be committed against: use dlm_row_get_columns()";
                return Err(Failure::invalid(what));
            };
            let committed = row.commit(columns, &read.cells, &self::changes(changes, count)?)?;
            Ok(!matches!(committed, Commit::Refused(_)))
        })
    }
}

/// Writes the lease's fence into a row from dlm_lease_row() without changing anything else: from then on earlier
/// holders are refused. Every change of such a row does that as well; call this where the first change comes late.
/// Blocks and fails as all calls of dlm_row, DLM_INVALID_ARGUMENT also for other rows. After DLM_IN_DOUBT it is safe
/// to call again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_raise_fence(
    row: *const dlm_row,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(row)?.raise_fence()?)) }
}

/// Reads the highest fence that was in the row; `*fence_out` is 0 where there is none. `names_out` may be NULL; on
/// DLM_OK the caller owns `*names_out`, which has the stored name of the fence's lock, or no name where there is no
/// fence. The table needs its option family. Blocks and fails as all calls of dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_fence(
    row: *const dlm_row,
    fence_out: *mut u64,
    names_out: *mut *mut dlm_names,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(names_out, std::ptr::null_mut());
        answer(fence_out, error_out, || {
            let (fence, lock) = find(row)?.fence()?.unzip();
            if !names_out.is_null() {
                write(names_out, keep(Names::new(lock.into_iter().collect()))?);
            }
            Ok(fence.map_or(0, |fence| fence.0))
        })
    }
}

/// Frees a row, not what is in HBase. NULL is allowed. Calls that are under way go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_free(row: *mut dlm_row) {
    freeing(|| free(row));
}
