use std::ffi::c_char;

use super::failure::Failure;
use super::guard::{freeing, value, write};
use super::handles::HandleTable;
use super::lost_reason::{DLM_LOST_NOT, reason_number};
use super::process::{Handle, PerProcess, find, free};
use super::status::dlm_status;

/// The reason why a call failed. A failed call creates it if `error_out` is not NULL. It depends on no
/// other handle.
pub struct dlm_error(());

static ERRORS: PerProcess<HandleTable<Failure>> = PerProcess::new();

impl Handle for dlm_error {
    type Object = Failure;
    const NAME: &str = "dlm_error";
    const KIND: u8 = 1;
    fn table() -> &'static PerProcess<HandleTable<Failure>> {
        &ERRORS
    }
}

/// Returns the status of the failed call, or DLM_INVALID_ARGUMENT for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_status(error: *const dlm_error) -> dlm_status {
    value(dlm_status::DLM_INVALID_ARGUMENT, || Ok(find(error)?.status))
}

/// Returns one line for people: what was wrong, with which value, and what to do. Never returns NULL. The
/// text lives until `error` is freed. It may contain names of locks, hosts and tables, but no passwords.
/// Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_message(error: *const dlm_error) -> *const c_char {
    // The text does not move while the table holds the error.
    value(c"no error".as_ptr(), || Ok(find(error)?.message().as_ptr()))
}

/// Returns true if the same call may succeed later without a change by the caller: the lock may become
/// free, or the store may recover. False for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_is_retryable(error: *const dlm_error) -> bool {
    value(false, || Ok(find(error)?.retryable))
}

/// Writes the two fences of a DLM_STALE_FENCE: `*fence_out` is the fence of the refused write,
/// `*stored_out` the higher fence that the receiver had seen. Either pointer may be NULL. Returns false and
/// writes 0 for any other error and for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_fences(
    error: *const dlm_error,
    fence_out: *mut u64,
    stored_out: *mut u64,
) -> bool {
    let fences = value(None, || Ok(find(error)?.fences));
    let (fence, stored) = fences.unwrap_or_default();
    // SAFETY: the caller guarantees it.
    unsafe {
        write(fence_out, fence);
        write(stored_out, stored);
    }
    fences.is_some()
}

/// Returns why the lease was lost, for a DLM_LEASE_LOST: one of the numbers DLM_LOST_*. DLM_LOST_NOT if the lease was
/// released, for any other error, and for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_lost_reason(error: *const dlm_error) -> i32 {
    value(DLM_LOST_NOT, || Ok(find(error)?.lost_reason.map_or(DLM_LOST_NOT, reason_number)))
}

/// Frees an error. NULL is allowed. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_free(error: *mut dlm_error) {
    freeing(|| free(error));
}
