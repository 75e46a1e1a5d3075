use std::ffi::c_void;

use super::answer::answer;
use super::arguments::slice;
use super::error::dlm_error;
use super::lease::dlm_lease;
use super::process::{find, into_handle};
use super::row::dlm_row;
use super::status::dlm_status;
use super::table::dlm_table;

/// Creates a row whose changes all carry the fence of `lease`. The table needs its option family. The row may
/// outlive the lease. After the lease has ended, changes still succeed until a later holder of the lock has
/// changed the row through its own fenced row, or raised its fence. From then on they fail with DLM_STALE_FENCE.
/// Does no I/O and never blocks. On DLM_OK the caller owns `*row_out`.
///
/// Errors: DLM_INVALID_ARGUMENT also if the key is not 1 to 32000 bytes, the table lacks the option family, or
/// the lease has no fence because the option fence of its store is off.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_row(
    lease: *const dlm_lease,
    table: *const dlm_table,
    key: *const c_void,
    key_size: usize,
    row_out: *mut *mut dlm_row,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("row_out", row_out, error_out, || {
            let (lease, table) = (find(lease)?, find(table)?);
            let key = slice("bytes of the key", key.cast::<u8>(), key_size)?;
            into_handle(lease.row(&table, key)?)
        })
    }
}
