use std::os::fd::AsRawFd;

use super::answer::{answer, status};
use super::arguments::{output, ttl};
use super::error::dlm_error;
use super::failure::Outcome;
use super::guard::{freeing, write};
use super::handles::HandleTable;
use super::lease::dlm_lease;
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::status::dlm_status;
use crate::PendingCall;

/// A release or a renewal that does not block. At most 8 threads of a manager make all such calls. They go before requests
/// for locks that wait for a thread, and one thread is left to them.
pub struct dlm_call(());

pub(super) enum LeaseCall {
    Release(PendingCall<bool>),
    Renewal(PendingCall<()>),
}

static CALLS: PerProcess<HandleTable<LeaseCall>> = PerProcess::new();

impl Handle for dlm_call {
    type Object = LeaseCall;
    const NAME: &str = "dlm_call";
    const KIND: u8 = 18;
    fn table() -> &'static PerProcess<HandleTable<LeaseCall>> {
        &CALLS
    }
}

/// Starts to release the lock as dlm_lease_release() does, and returns at once. Do not use the lease any more, and free it
/// after dlm_call_take() has returned the result: freeing it before that blocks. On DLM_OK the caller owns `*call_out`.
/// Never blocks, except that it may start a thread.
///
/// Errors: DLM_INTERNAL_ERROR if no thread can be started; DLM_CLOSED. dlm_call_take() returns all others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_release_start(
    lease: *mut dlm_lease,
    call_out: *mut *mut dlm_call,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("call_out", call_out, error_out, || {
            into_handle(LeaseCall::Release(find(lease)?.start_release()?))
        })
    }
}

/// Starts to renew the lease as dlm_lease_renew() does, and returns at once. On DLM_OK the caller owns `*call_out`. Never
/// blocks, except that it may start a thread.
///
/// Errors: DLM_INTERNAL_ERROR if no thread can be started; DLM_CLOSED. dlm_call_take() returns all others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_renew_start(
    lease: *mut dlm_lease,
    ttl_ms: i64,
    call_out: *mut *mut dlm_call,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("call_out", call_out, error_out, || {
            let lease = find(lease)?;
            into_handle(LeaseCall::Renewal(lease.start_renewal(ttl(ttl_ms)?)?))
        })
    }
}

/// Writes to `*done_out` whether the call has finished. Only one call of this function returns the result. Of a release,
/// `*freed_out` is what dlm_lease_release() would have written there; otherwise it is false. `freed_out` may be NULL. Never
/// blocks.
///
/// Errors: those of dlm_lease_release() or dlm_lease_renew(), if that is the result: then the call has finished, although
/// `*done_out` is false. DLM_CLOSED if the manager was closed before the call began; DLM_INVALID_ARGUMENT also if the result
/// was returned before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_call_take(
    call: *mut dlm_call,
    done_out: *mut bool,
    freed_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(done_out, false);
        write(freed_out, false);
        status(error_out, || {
            output("done_out", done_out)?;
            let taken = match &*find(call)? {
                LeaseCall::Release(release) => release.take()?,
                LeaseCall::Renewal(renewal) => renewal.take()?.map(|()| false),
            };
            write(done_out, taken.is_some());
            write(freed_out, taken.unwrap_or_default());
            Ok(())
        })
    }
}

/// Writes a file descriptor for poll() and similar calls to `*fd_out`, or -1 on failure. It becomes readable when the call
/// has finished. The call owns it: do not read or close it. dlm_call_free() closes it.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_call_fd(
    call: *const dlm_call,
    fd_out: *mut i32,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("fd_out", fd_out, error_out, || -> Outcome<i32> {
            Ok(match &*find(call)? {
                LeaseCall::Release(release) => release.fd()?.as_raw_fd(),
                LeaseCall::Renewal(renewal) => renewal.fd()?.as_raw_fd(),
            })
        })
    }
}

/// Frees a call. NULL is allowed. A call that has not finished goes on. Freeing the last handle of a manager blocks as
/// dlm_manager_free() says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_call_free(call: *mut dlm_call) {
    freeing(|| free(call));
}
