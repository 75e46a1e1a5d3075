use std::os::fd::{AsRawFd, BorrowedFd};

use super::answer::{answer, status};
use super::error::dlm_error;
use super::guard::{freeing, value};
use super::handles::HandleTable;
use super::process::{Handle, PerProcess, find, free, into_handle};
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
    value(std::ptr::null_mut(), || into_handle(CancelToken::new()))
}

/// Ends all current and future waits that were given `cancel`: they fail with DLM_CANCELLED. A wait for a
/// lock first completes a request that it has sent, and releases the lock if the store granted it. This
/// function does not block. It must not be called in a signal handler: see dlm_cancel_trigger_fd().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_cancel_trigger(
    cancel: *mut dlm_cancel,
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

/// Writes a file descriptor for dlm_cancel_trigger_fd() to `*fd_out`, or -1 on failure. The first call starts a
/// thread, which waits for the trigger. Every call writes the same descriptor. The cancel object owns it:
/// dlm_cancel_free() closes it and ends the thread, once no call uses the object. Prevent the handler from running
/// before that. Never blocks.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left, or the thread cannot be started.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_cancel_signal_fd(
    cancel: *const dlm_cancel,
    fd_out: *mut i32,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("fd_out", fd_out, error_out, || Ok(find(cancel)?.signal_fd()?.as_raw_fd())) }
}

/// Triggers the cancel object of a descriptor from dlm_cancel_signal_fd(), as dlm_cancel_trigger() does, a moment
/// later. This function is async-signal-safe: a signal handler may call it. It is the only such function of the
/// library. It makes one write() to the descriptor and leaves errno unchanged. In a child process after fork(), it
/// triggers the parent's object. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_cancel_trigger_fd(fd: i32) {
    if fd >= 0 {
        // SAFETY: the descriptor is borrowed for one write. A closed one fails with EBADF.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // The kernel is called directly, so errno stays. The only failure is a descriptor that is none.
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    }
}

/// Frees a cancel object. NULL is allowed. Calls that were given it continue, and can no longer be
/// cancelled. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_cancel_free(cancel: *mut dlm_cancel) {
    freeing(|| free(cancel));
}
