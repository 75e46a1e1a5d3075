//! Elections. The candidates share a lock, and the leader holds its lease.

use super::acquire_options::{acquire_options, dlm_acquire_options};
use super::answer::{answer, status};
use super::arguments::{output, wait_without_default};
use super::cancel::dlm_cancel;
use super::error::dlm_error;
use super::guard::write;
use super::inspection::dlm_inspection;
use super::lease::dlm_lease;
use super::lock::dlm_lock;
use super::process::{find, find_optional, into_handle};
use super::status::dlm_status;
use super::structs::{read, write_struct};
use crate::Election;

/// Waits until this process leads: until it has acquired the lock. All candidates of an election use the lock of the
/// same name. The lease is kept alive, see dlm_lease_keep(), until it is released (which resigns), freed or lost, or for the
/// `max_hold_ms` of the options. Call dlm_lease_guard() before each step of the leader's work. `options` may be NULL. A
/// candidate that should wait until it leads sets their `wait_ms` to DLM_FOREVER. On DLM_OK the caller owns `*lease_out`.
///
/// Blocks until this process leads, the wait is over or an error ends it. If the store does not answer, the call tries
/// again until the wait is over.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the wait is over, or DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED or DLM_IN_DOUBT if
/// the last attempt has failed so; DLM_CANCELLED; DLM_TABLE_CREATION_ERROR; DLM_INTERNAL_ERROR; DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_campaign(
    lock: *mut dlm_lock,
    options: *const dlm_acquire_options,
    lease_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("lease_out", lease_out, error_out, || {
            let lock = find(lock)?;
            let mut how = acquire_options(options)?;
            how.wait.get_or_insert(lock.wait());
            into_handle(Election::new((**lock).clone()).campaign(&how)?.into_lease())
        })
    }
}

/// Waits until the holder of the lock, such as the leader of an election, is not the one that `*inspection` describes,
/// and writes the new one there. A struct of zeros describes a lock that nobody holds. `*changed_out` is false if the
/// wait timed out; then `*inspection` is as before. `inspection_size` is sizeof(struct dlm_inspection).
/// `cancel` may be NULL.
///
/// Blocks for up to `wait_ms`, and for a read under way. DLM_FOREVER waits without limit. Reads the store once per retry interval, and when the lease would end. Changes between two reads count as one.
///
/// Errors: those of dlm_lock_inspect(); DLM_CANCELLED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_observe(
    lock: *const dlm_lock,
    wait_ms: i64,
    cancel: *const dlm_cancel,
    inspection: *mut dlm_inspection,
    inspection_size: usize,
    changed_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(changed_out, false);
        status(error_out, || {
            output("inspection", inspection)?;
            output("changed_out", changed_out)?;
            let lock = find(lock)?;
            let before = read::<dlm_inspection>(inspection, inspection_size)?.checked()?.term();
            let wait = wait_without_default("wait_ms", wait_ms)?.unwrap_or(std::time::Duration::MAX);
            let cancel = find_optional(cancel)?;
            let mut observer = Election::new((**lock).clone()).observe_after(before);
            if let Some(cancel) = cancel {
                observer = observer.cancel(&cancel);
            }
            if let Some(found) = observer.wait_for(wait)? {
                write_struct(inspection, inspection_size, &dlm_inspection::of(&found));
                write(changed_out, true);
            }
            Ok(())
        })
    }
}
