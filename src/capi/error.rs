use std::ffi::c_char;

use super::failure::Failure;
use super::guard::{freeing, value, write};
use super::handles::HandleTable;
use super::process::{Handle, PerProcess, find, free};
use super::status::dlm_status;

/// Why a call failed. Made where a call is given an `error_out`, and independent of everything else.
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

/// The status of the call that failed. DLM_INVALID_ARGUMENT for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_status(error: *const dlm_error) -> dlm_status {
    value(dlm_status::DLM_INVALID_ARGUMENT, || Ok(find(error)?.status))
}

/// What was wrong, with which value, and what to do: one line for people. Never NULL; lives as long as
/// `error`. It may hold names of locks, hosts and tables, never passwords. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_message(error: *const dlm_error) -> *const c_char {
    // The text stays where it is for as long as the table has the error.
    value(c"no error".as_ptr(), || Ok(find(error)?.message().as_ptr()))
}

/// Whether the same call may succeed later without anyone changing anything: the lock may become free,
/// the store may come back. False for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_is_retryable(error: *const dlm_error) -> bool {
    value(false, || Ok(find(error)?.retryable))
}

/// The two numbers of a DLM_STALE_FENCE: that of the refused write, and the higher one that the receiver had
/// seen. Either pointer may be NULL. False, and both are 0, for NULL and for every other error. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_fences(
    error: *const dlm_error,
    fence_out: *mut u64,
    stored_out: *mut u64,
) -> bool {
    let fences = value(None, || Ok(find(error)?.fences));
    let (fence, stored) = fences.unwrap_or_default();
    // SAFETY: passed on.
    unsafe {
        write(fence_out, fence);
        write(stored_out, stored);
    }
    fences.is_some()
}

/// Frees an error. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_free(error: *mut dlm_error) {
    freeing(|| free(error));
}
