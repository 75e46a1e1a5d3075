use super::answer::status;
use super::error::dlm_error;
use super::guard::{freeing, value};
use super::handles::HandleTable;
use super::process::{Handle, PerProcess, find, free, keep};
use super::status::dlm_status;
use crate::CancelToken;

/// Ends waits from another thread. One may be given to any number of calls, and stays triggered: make a
/// new one for the next call.
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

/// A cancel object that is not triggered. NULL only when there are millions of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_cancel_new() -> *mut dlm_cancel {
    value(std::ptr::null_mut(), || keep(CancelToken::new()))
}

/// Ends every wait that was given `cancel`, now or later, with DLM_CANCELLED. A request already on its way
/// to the store is waited for, and what it was granted is released. Returns at once. Not for signal
/// handlers.
///
/// DLM_INVALID_ARGUMENT
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

/// Frees a cancel object. NULL is allowed. Calls that were given it go on, and cannot be cancelled any
/// more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_cancel_free(cancel: *mut dlm_cancel) {
    freeing(|| free(cancel));
}
