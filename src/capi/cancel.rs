use super::answer::status;
use super::error::dlm_error;
use super::guard::{freeing, value};
use super::handles::HandleTable;
use super::process::{Handle, PerProcess, find, free, keep};
use super::status::dlm_status;
use crate::CancelToken;

/// Ends waits from another thread. Any number of calls may share one. Once triggered it stays triggered, so
/// create a new one for the next call.
pub struct dlm_cancel(());

static CANCELS: PerProcess<HandleTable<CancelToken>> = PerProcess::new();

impl Handle for dlm_cancel {
    type Object = CancelToken;
    const NAME: &str = "dlm_cancel";
    const KIND: u8 = 4;
    fn table() -> &'static PerProcess<HandleTable<CancelToken>> {
        &CANCELS
    }
}

/// Creates a cancel object that is not triggered. Returns NULL only if too many are open. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_cancel_new() -> *mut dlm_cancel {
    value(std::ptr::null_mut(), || keep(CancelToken::new()))
}

/// Ends all current and future waits that were given `cancel`: they fail with DLM_CANCELLED. A wait for a
/// lock first completes a request that it has sent, and releases the lock if the store granted it. This
/// function does not block. It must not be called in a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_cancel_trigger(
    cancel: *const dlm_cancel,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            find(cancel)?.cancel();
            Ok(())
        })
    }
}

/// Frees a cancel object. NULL is allowed. Calls that were given it continue, and can no longer be
/// cancelled. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_cancel_free(cancel: *mut dlm_cancel) {
    freeing(|| free(cancel));
}
