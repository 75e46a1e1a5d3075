use std::os::fd::{AsRawFd, BorrowedFd};

use super::acquire_options::{acquire_options, dlm_acquire_options};
use super::answer::{answer, status};
use super::completions::dlm_completions;
use super::error::dlm_error;
use super::failure::Failure;
use super::guard::freeing;
use super::handles::HandleTable;
use super::lease::dlm_lease;
use super::lock::dlm_lock;
use super::permits::acquired;
use super::process::{Handle, PerProcess, find, find_optional, free, into_handle};
use super::status::dlm_status;
use crate::{Completions, LeaseSet, Pending, Result};

/// An acquisition that does not block. It waits in the same queue as the threads that block in
/// dlm_lock_acquire(), in the order of arrival, and costs no thread: at most 8 threads of a manager ask the store
/// for all of its pending acquisitions.
pub struct dlm_pending(());

/// An acquisition of a lock, or of so many permits of a semaphore.
pub(super) enum StartedAcquisition {
    OfLock(Pending),
    OfPermits(Pending<LeaseSet>, u16),
}

impl From<Pending> for StartedAcquisition {
    fn from(pending: Pending) -> StartedAcquisition {
        StartedAcquisition::OfLock(pending)
    }
}

/// Does the same with either kind.
macro_rules! either {
    ($acquisition:expr, $pending:ident => $body:expr) => {
        match $acquisition {
            StartedAcquisition::OfLock($pending) => $body,
            StartedAcquisition::OfPermits($pending, _) => $body,
        }
    };
}

impl StartedAcquisition {
    fn fd(&self) -> Result<BorrowedFd<'_>> {
        either!(self, pending => pending.fd())
    }

    pub(super) fn notify(&self, completions: &Completions, tag: u64) -> Result<()> {
        either!(self, pending => pending.notify(completions, tag))
    }

    fn stop_notifying(&self) {
        either!(self, pending => pending.stop_notifying())
    }

    pub(super) fn cancel(&self) {
        either!(self, pending => pending.cancel())
    }

    /// Sends the first request from this thread.
    pub(super) fn ask_here(&self) -> Result<()> {
        either!(self, pending => pending.ask_here())
    }
}

static PENDINGS: PerProcess<HandleTable<StartedAcquisition>> = PerProcess::new();

impl Handle for dlm_pending {
    type Object = StartedAcquisition;
    const NAME: &str = "dlm_pending";
    const KIND: u8 = 15;
    fn table() -> &'static PerProcess<HandleTable<StartedAcquisition>> {
        &PENDINGS
    }
}

/// Starts to acquire the lock as dlm_lock_acquire() does, and returns at once. `options` may be NULL. On DLM_OK the caller
/// owns `*pending_out`. Never blocks, except that it may start a thread.
///
/// Errors: DLM_INTERNAL_ERROR if no thread can be started; DLM_CLOSED. dlm_pending_take() returns all other errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_acquire_start(
    lock: *mut dlm_lock,
    options: *const dlm_acquire_options,
    pending_out: *mut *mut dlm_pending,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("pending_out", pending_out, error_out, || {
            let lock = find(lock)?;
            into_handle(lock.start(&acquire_options(options)?)?)
        })
    }
}

/// Writes the lease to `*lease_out` if the lock was acquired, and NULL if the acquisition has not finished. On
/// DLM_OK the caller owns a lease that is not NULL. Only one call returns the result. Never blocks.
///
/// Errors: those of dlm_lock_acquire(), if that is the result; DLM_INVALID_ARGUMENT also if the result was
/// returned before, and for permits, see dlm_pending_take_permits(). If no thread was free to send even the first request until the
/// wait and the store time-out were over, DLM_RETRIES_EXHAUSTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_pending_take(
    pending: *mut dlm_pending,
    lease_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("lease_out", lease_out, error_out, || match &*find(pending)? {
            StartedAcquisition::OfLock(pending) => match pending.take()? {
                Some(lease) => into_handle(lease),
                None => Ok(std::ptr::null_mut()),
            },
            StartedAcquisition::OfPermits(..) => Err(Failure::invalid(
                "this pending acquisition is one of permits: call dlm_pending_take_permits()",
            )),
        })
    }
}

/// Writes the leases of permits to `permits_out`, an array of `count` handles, if they were acquired, and NULL to each if the
/// acquisition has not finished. `count` is that of dlm_semaphore_acquire_start(). On DLM_OK the caller owns the leases that are not
/// NULL. Only one call returns the result. Never blocks.
///
/// Errors: those of dlm_semaphore_acquire(), if that is the result; DLM_INVALID_ARGUMENT also for another count, for a lock, and if
/// the result was returned before; DLM_RETRIES_EXHAUSTED as for dlm_pending_take().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_pending_take_permits(
    pending: *mut dlm_pending,
    permits_out: *mut *mut dlm_lease,
    count: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        acquired(permits_out, count, error_out, || match &*find(pending)? {
            StartedAcquisition::OfPermits(pending, of) if usize::from(*of) == count => Ok(pending.take()?),
            StartedAcquisition::OfPermits(_, of) => {
                Err(Failure::invalid(format!("a count of {count} is not allowed: {of}")))
            }
            StartedAcquisition::OfLock(_) => {
                Err(Failure::invalid("this pending acquisition is one of a lock: call dlm_pending_take()"))
            }
        })
    }
}

/// Writes a file descriptor for poll() and similar calls to `*fd_out`, or -1 on failure. It becomes readable when
/// the acquisition has finished, and stays so.
///
/// The pending acquisition owns the descriptor. Every call writes the same one. Do not read or close it.
/// dlm_pending_free() closes it, so remove it from the event loop first. Never blocks. Programs with thousands of
/// pending acquisitions use dlm_pending_notify() instead.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_pending_fd(
    pending: *const dlm_pending,
    fd_out: *mut i32,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("fd_out", fd_out, error_out, || Ok(find(pending)?.fd()?.as_raw_fd())) }
}

/// Adds `tag` to `completions` when the acquisition finishes (DLM_COMPLETION_FINISHED), or at once if it has finished. dlm_pending_free() takes
/// the tag out again. Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT also for a second call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_pending_notify(
    pending: *mut dlm_pending,
    completions: *mut dlm_completions,
    tag: u64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            let (pending, completions) = (find(pending)?, find(completions)?);
            Ok(pending.notify(&completions, tag)?)
        })
    }
}

/// Cancels the acquisition: it finishes at once with DLM_CANCELLED. A request to the store that is under way goes
/// on, and the library releases the lock if that request acquires it. Does nothing if the acquisition has finished:
/// then dlm_pending_take() has the result. Never blocks. It must not be called in a signal handler, see
/// dlm_cancel_trigger_fd().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_pending_cancel(
    pending: *mut dlm_pending,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            find(pending)?.cancel();
            Ok(())
        })
    }
}

/// Frees a pending acquisition, and cancels it if it has not finished. NULL is allowed. If it acquired something and
/// nobody took the leases, this releases them, which blocks for at most two seconds each. Otherwise it never blocks,
/// except as dlm_manager_free() says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_pending_free(pending: *mut dlm_pending) {
    freeing(|| {
        // Another thread may be in a call with the pending, and drop it later. An error of it is that of `free`.
        if let Ok(Some(pending)) = find_optional(pending) {
            pending.stop_notifying();
        }
        free(pending)
    });
}
