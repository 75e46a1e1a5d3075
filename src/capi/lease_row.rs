use std::ffi::c_void;

use super::answer::answer;
use super::arguments::slice;
use super::error::dlm_error;
use super::lease::dlm_lease;
use super::process::{find, keep};
use super::row::dlm_row;
use super::status::dlm_status;
use super::table::dlm_table;

/// A row whose every change carries the fence of `lease`. The table needs its option family. The row may outlive
/// the lease: a change after the lease is over goes through until a later holder of the lock was here, and never
/// after that. Does no I/O; never blocks. On DLM_OK the caller owns `*row_out`.
///
/// DLM_INVALID_ARGUMENT for a key that is not allowed, a table without the option family, and a lease of a store
/// whose option fence is off; DLM_CLOSED
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
        answer(row_out, error_out, || {
            let (lease, table) = (find(lease)?, find(table)?);
            let key = slice("bytes of the key", key.cast::<u8>(), key_size)?;
            keep(lease.row(&table, key)?)
        })
    }
}
