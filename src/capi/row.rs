use std::ffi::c_void;
use std::time::Duration;

use super::answer::{answer, status};
use super::arguments::{DLM_FOREVER, output, slice};
use super::bytes::{dlm_bytes, list};
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::guard::{freeing, write};
use super::handles::HandleTable;
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::row_cells::{Read, dlm_row_cells};
use super::status::dlm_status;
use super::structs::{Versioned, read_array};
use super::texts::{TextList, dlm_texts};
#[cfg(not(feature = "hbase"))]
use super::without_hbase as hbase;
#[cfg(feature = "hbase")]
use crate::hbase;
use hbase::{Cells, Changes, Column, Commit, Creation, Row, Update};

/// One row of a table: its key, and how its changes are made. Every change of a row from dlm_lease_row() carries
/// the lease's fence. HBase refuses the change after a later holder of the lock has changed the row through its own
/// fenced row, or raised its fence. A row from dlm_row_exactly_once() sends a change again if its reply was lost.
///
/// Calls that read or change the row in HBase block, at most for the table's option timeout. dlm_row_delete_if(),
/// and a dlm_row_compare_and_set() that deletes, read the row first and may take twice that time. Their errors:
/// * DLM_INVALID_ARGUMENT before any I/O: a column, value or TTL is not allowed. After a read: the row has the fence
///   of another lock. The call had no effect.
/// * DLM_TABLE_CREATION_ERROR: the table does not exist, is disabled, or lacks the family.
/// * DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_INTERNAL_ERROR, DLM_CLOSED: the call had no effect.
/// * DLM_IN_DOUBT, for changes only: the change may have taken effect, or may still take effect. For a row from
///   dlm_row_exactly_once() this happens only if the timeout was too short to find out, or if a server answered
///   with an error that does not say whether the change was made.
/// * DLM_STALE_FENCE, for changes of a row from dlm_lease_row(): a later holder of the lock has changed the row
///   through its own fenced row, or raised its fence. The change had no effect.
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

/// A cell to write. A column is a family, a colon and a qualifier of any bytes. Calls copy column and value. With
/// DLM_TEXT: {DLM_TEXT("d:state"), DLM_TEXT("new"), DLM_FOREVER}. Later versions append fields.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct dlm_cell {
    /// The column, as family:qualifier.
    pub column: *const c_void,
    /// Size of the column in bytes.
    pub column_size: usize,
    /// The value. Must not be NULL, even for an empty value.
    pub value: *const c_void,
    /// Size of the value in bytes, up to the table's option max_value.
    pub value_size: usize,
    /// DLM_FOREVER, or the time in milliseconds, 1 or more, after which the server drops the cell. It must not be
    /// shorter than the remaining time of an older version of the cell: HBase would then return that version again.
    pub ttl_ms: i64,
}

/// Kind of a change that writes a cell, see dlm_cell.
pub const DLM_CHANGE_PUT: i64 = 1;
/// Kind of a change that adds to an 8-byte counter, like dlm_row_increment().
pub const DLM_CHANGE_ADD: i64 = 2;
/// Kind of a change that deletes a column with all its versions. The column must be one of those that were read. If
/// it did not exist then, the change does nothing.
pub const DLM_CHANGE_DELETE: i64 = 3;

/// One of the changes that dlm_row_commit_if_unchanged() makes. Fields that its kind does not use must be NULL or 0.
/// Later versions append fields.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct dlm_change {
    /// DLM_CHANGE_PUT, DLM_CHANGE_ADD or DLM_CHANGE_DELETE.
    pub kind: i64,
    /// The column, as family:qualifier. Each column may occur once.
    pub column: *const c_void,
    /// Size of the column in bytes.
    pub column_size: usize,
    /// PUT: the value, as in dlm_cell.
    pub value: *const c_void,
    /// PUT: size of the value in bytes.
    pub value_size: usize,
    /// PUT: the cell's TTL, as in dlm_cell.
    pub ttl_ms: i64,
    /// ADD: the number to add.
    pub by: i64,
}

// SAFETY: numbers and pointers.
unsafe impl Versioned for dlm_cell {
    const NAME: &str = "dlm_cell";
    const FIRST: usize = 40;
}

// SAFETY: numbers and pointers.
unsafe impl Versioned for dlm_change {
    const NAME: &str = "dlm_change";
    const FIRST: usize = 56;
}

/// A cell's TTL. `None`: the cell does not expire.
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
/// `bytes` and `size` are as [`slice`] asks.
unsafe fn column(bytes: *const c_void, size: usize) -> Outcome<Column> {
    // SAFETY: the caller guarantees it.
    Ok(Column::parse(unsafe { slice("bytes of the column", bytes.cast::<u8>(), size) }?))
}

/// A caller's value. `None` for NULL, whose size must be 0.
///
/// # Safety
/// `bytes` and `size` are as [`slice`] asks.
unsafe fn value_or_none<'a>(what: &str, bytes: *const c_void, size: usize) -> Outcome<Option<&'a [u8]>> {
    if !bytes.is_null() {
        // SAFETY: the caller guarantees it.
        return unsafe { slice(what, bytes.cast::<u8>(), size) }.map(Some);
    }
    match size {
        0 => Ok(None),
        size => Err(Failure::invalid(format!("the {what} are NULL, but their size is {size}"))),
    }
}

/// # Safety
/// `items` is as [`read_array`] asks, and the bytes of each item are as [`slice`] asks.
unsafe fn cells(items: *const dlm_cell, count: usize, size: usize) -> Outcome<Cells> {
    let mut cells = Cells::new();
    // SAFETY: the caller guarantees it.
    unsafe {
        for cell in read_array("cells", items, count, size)? {
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
/// `items` is as [`read_array`] asks, and the bytes of each item are as [`slice`] asks.
unsafe fn changes(items: *const dlm_change, count: usize, size: usize) -> Outcome<Changes> {
    let mut changes = Changes::new();
    // SAFETY: the caller guarantees it.
    for change in unsafe { read_array("changes", items, count, size)? } {
        // SAFETY: the caller guarantees it.
        let column = unsafe { column(change.column, change.column_size)? };
        let bare = change.value.is_null() && change.value_size == 0 && change.ttl_ms == 0;
        changes = match change.kind {
            DLM_CHANGE_PUT if change.by == 0 => {
                // SAFETY: the caller guarantees it.
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
                    "a change of kind {kind} has a field that this kind does not use: it must be NULL or 0"
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

/// Creates a handle of the same row that makes each change exactly once. A change also writes an idempotency mark
/// in the same atomic step. A change whose reply was lost is sent again until a server answers, at most for the
/// table's option timeout. A mark is a cell of some 100 bytes in the row. It expires after a few minutes, or after
/// two hours if a request stayed unanswered. Never blocks. On DLM_OK the caller owns `*row_out`. It still owns `row`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_exactly_once(
    row: *const dlm_row,
    row_out: *mut *mut dlm_row,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("row_out", row_out, error_out, || into_handle(find(row)?.exactly_once())) }
}

/// Reads the whole row, except the library's own columns. There are no cells if the row does not exist. On DLM_OK
/// the caller owns `*cells_out`. Blocks and fails as described at dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_get(
    row: *const dlm_row,
    cells_out: *mut *mut dlm_row_cells,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("cells_out", cells_out, error_out, || into_handle(Read::of(&*find(row)?, None)?)) }
}

/// Reads one or more columns, each named family:qualifier. dlm_row_commit_if_unchanged() accepts the result. On
/// DLM_OK the caller owns `*cells_out`. Blocks and fails as described at dlm_row.
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
        answer("cells_out", cells_out, error_out, || {
            let row = find(row)?;
            let columns = list("columns", columns, count)?.into_iter().map(Column::parse).collect();
            into_handle(Read::of(&row, Some(columns))?)
        })
    }
}

/// Creates the row unless it exists. `cell_size` is sizeof(struct dlm_cell). If several clients call this at once, `*created_out` is true for one of them. A
/// row exists if its anchor has a value that is not empty. The anchor is the column that the table's option anchor
/// names, by default the first of `cells`. It must be among `cells`, with a value that is not empty. Blocks and
/// fails as described at dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_create(
    row: *mut dlm_row,
    cells: *const dlm_cell,
    count: usize,
    cell_size: usize,
    created_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("created_out", created_out, error_out, || {
            Ok(find(row)?.create(&self::cells(cells, count, cell_size)?)? == Creation::Created)
        })
    }
}

/// Writes the cells if the row exists, see dlm_row_create(). If it does not, `*updated_out` is false and nothing is
/// written. Without the option anchor, the first of `cells` must be a column that the row has. Blocks and fails as
/// described at dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_update(
    row: *mut dlm_row,
    cells: *const dlm_cell,
    count: usize,
    cell_size: usize,
    updated_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("updated_out", updated_out, error_out, || {
            Ok(find(row)?.update(&self::cells(cells, count, cell_size)?)? == Update::Updated)
        })
    }
}

/// Writes the cells in one atomic step, whether the row exists or not. Blocks and fails as described at dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_put(
    row: *mut dlm_row,
    cells: *const dlm_cell,
    count: usize,
    cell_size: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(row)?.put(&self::cells(cells, count, cell_size)?)?)) }
}

/// Writes `new_value` into a column if it holds `expected`. `*set_out` is true if it did. Either value may be NULL
/// with size 0. NULL means that there is no cell, which differs from an empty value. A NULL `new_value` deletes the
/// cell. Blocks and fails as described at dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_compare_and_set(
    row: *mut dlm_row,
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
        answer("set_out", set_out, error_out, || {
            let row = find(row)?;
            let column = self::column(column, column_size)?;
            let expected = value_or_none("bytes of the value expected", expected, expected_size)?;
            let new_value = value_or_none("bytes of the new value", new_value, new_size)?;
            Ok(row.compare_and_set(column, expected, new_value)?)
        })
    }
}

/// Adds `by` to an 8-byte big-endian counter and writes the sum to `*sum_out`. A counter starts at 0 and wraps around
/// at the limits of int64_t. For a row from dlm_row_exactly_once(), `*known_out` may be false on DLM_OK: the number
/// was added once, but the reply with the sum was lost, and `*sum_out` is 0. Blocks and fails as described at
/// dlm_row. DLM_INVALID_ARGUMENT also if the cell is not 8 bytes long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_increment(
    row: *mut dlm_row,
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
        answer("known_out", known_out, error_out, || {
            output("sum_out", sum_out)?;
            let sum = find(row)?.increment(self::column(column, column_size)?, by)?;
            write(sum_out, sum.unwrap_or_default());
            Ok(sum.is_some())
        })
    }
}

/// Deletes the cells of the row if `column` holds `expected`. `*deleted_out` is true if it did. Cells that other
/// clients write during the call stay. The library's own cells stay too. Blocks and fails as described at dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_delete_if(
    row: *mut dlm_row,
    column: *const c_void,
    column_size: usize,
    expected: *const c_void,
    expected_size: usize,
    deleted_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("deleted_out", deleted_out, error_out, || {
            let row = find(row)?;
            let column = self::column(column, column_size)?;
            let expected = slice("bytes of the value expected", expected.cast::<u8>(), expected_size)?;
            Ok(row.delete_if(column, expected)?)
        })
    }
}

/// Makes the changes in one atomic step if the columns of `as_read` are unchanged. These are all columns that were passed to
/// dlm_row_get_columns(), even those that did not exist. The changes may be in these columns or in others. `change_size` is
/// sizeof(struct dlm_change).
/// A column that was changed and changed back counts as unchanged.
///
/// `*committed_out` is false if a column was changed. Then nothing is written: read the columns again and compute the
/// changes again. Limit the number of tries, and wait for a random time between them. `*committed_out` is also true
/// if there is nothing to do because the changes only delete columns that do not exist.
///
/// Blocks and fails as described at dlm_row. DLM_INVALID_ARGUMENT also if `as_read` is from another row, or from
/// dlm_row_get(), which does not say which columns the changes depend on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_commit_if_unchanged(
    row: *mut dlm_row,
    as_read: *const dlm_row_cells,
    changes: *const dlm_change,
    count: usize,
    change_size: usize,
    committed_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("committed_out", committed_out, error_out, || {
            let (row, read) = (find(row)?, find(as_read)?);
            if !read.row.is_same(&row) {
                return Err(Failure::invalid("these cells were read from another row"));
            }
            let Some(columns) = &read.columns else {
                let what = "these cells are from dlm_row_get(): read them with dlm_row_get_columns()";
                return Err(Failure::invalid(what));
            };
            let committed = row.commit(columns, &read.cells, &self::changes(changes, count, change_size)?)?;
            Ok(!matches!(committed, Commit::Refused(_)))
        })
    }
}

/// Writes the lease's fence into a row from dlm_lease_row() and changes nothing else. From then on, HBase refuses
/// changes by earlier holders. Every change of such a row also raises the fence. Call this function if the first
/// change comes late. Blocks and fails as described at dlm_row. DLM_INVALID_ARGUMENT also for other rows. After
/// DLM_IN_DOUBT it is safe to call again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_raise_fence(
    row: *mut dlm_row,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(row)?.raise_fence()?)) }
}

/// Reads the fence of the row, the highest so far. `*fence_out` is 0 if the row has none. `names_out` may be NULL. On
/// DLM_OK the caller owns `*names_out`. It has the stored name of the fence's lock, or no name if there is no fence.
/// The table needs its option family. Blocks and fails as described at dlm_row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_fence(
    row: *const dlm_row,
    fence_out: *mut u64,
    names_out: *mut *mut dlm_texts,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(names_out, std::ptr::null_mut());
        answer("fence_out", fence_out, error_out, || {
            let (fence, lock) = find(row)?.fence()?.unzip();
            if !names_out.is_null() {
                write(names_out, into_handle(TextList::new(lock.into_iter().collect()))?);
            }
            Ok(fence.map_or(0, |fence| fence.0))
        })
    }
}

/// Frees the handle of a row. The row in HBase is unchanged. NULL is allowed. Calls in progress continue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_row_free(row: *mut dlm_row) {
    freeing(|| free(row));
}
