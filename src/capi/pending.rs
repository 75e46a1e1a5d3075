use std::os::fd::AsRawFd;

use super::answer::{answer, status};
use super::arguments::output;
use super::cancel::dlm_cancel;
use super::error::dlm_error;
use super::guard::{freeing, value, write};
use super::handles::HandleTable;
use super::lease::dlm_lease;
use super::lock::dlm_lock;
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::status::dlm_status;
use super::terms::options;
use crate::{Completions, Pending};

/// An acquisition that does not block. It waits in the same queue as the threads that block in
/// dlm_lock_acquire(), in the order of arrival, and costs no thread: at most 8 threads of a manager ask the store
/// for all of its pending acquisitions.
pub struct dlm_pending(());

static PENDINGS: PerProcess<HandleTable<Pending>> = PerProcess::new();

impl Handle for dlm_pending {
    type Object = Pending;
    const NAME: &str = "dlm_pending";
    const KIND: u8 = 15;
    fn table() -> &'static PerProcess<HandleTable<Pending>> {
        &PENDINGS
    }
}

/// A list of the pending acquisitions that have finished, for programs with many of them: one descriptor serves
/// any number of them, of any managers.
pub struct dlm_completions(());

static COMPLETIONS: PerProcess<HandleTable<Completions>> = PerProcess::new();

impl Handle for dlm_completions {
    type Object = Completions;
    const NAME: &str = "dlm_completions";
    const KIND: u8 = 16;
    fn table() -> &'static PerProcess<HandleTable<Completions>> {
        &COMPLETIONS
    }
}

/// Starts to acquire the lock as dlm_lock_acquire_within() does, and returns at once. `cancel` may be NULL. If
/// `max_hold_ms` is not 0, the lease is kept alive from the grant on, for that time at most or without limit
/// (DLM_FOREVER): see dlm_lease_keep(). On DLM_OK the caller owns `*pending_out`. Never blocks, except that it may
/// start a thread.
///
/// Errors: DLM_INTERNAL_ERROR if no thread can be started; DLM_CLOSED. dlm_pending_take() returns all other errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_acquire_start(
    lock: *const dlm_lock,
    ttl_ms: i64,
    wait_ms: i64,
    max_hold_ms: i64,
    cancel: *const dlm_cancel,
    pending_out: *mut *mut dlm_pending,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("pending_out", pending_out, error_out, || {
            let lock = find(lock)?;
            into_handle(lock.start(&options(ttl_ms, wait_ms, max_hold_ms, cancel)?)?)
        })
    }
}

/// Like dlm_lock_acquire_start(), for callers that can send the first request themselves, such as Go programs. This
/// saves a change of threads. If `*turn_out` is true, it is this acquisition's turn: call dlm_pending_ask() soon.
/// Until then nobody asks the store for the lock, and the wait does not end by itself. If it is false, the library
/// does the rest. Never blocks, except that it may start a thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_acquire_start_here(
    lock: *const dlm_lock,
    ttl_ms: i64,
    wait_ms: i64,
    max_hold_ms: i64,
    cancel: *const dlm_cancel,
    pending_out: *mut *mut dlm_pending,
    turn_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(turn_out, false);
        answer("pending_out", pending_out, error_out, || {
            output("turn_out", turn_out)?;
            let lock = find(lock)?;
            let (pending, is_turn) = lock.start_here(&options(ttl_ms, wait_ms, max_hold_ms, cancel)?)?;
            let handle = into_handle(pending)?;
            write(turn_out, is_turn);
            Ok(handle)
        })
    }
}

/// Sends the first request of an acquisition from this thread, see dlm_lock_acquire_start_here(). Blocks for one
/// call to the store. Afterwards dlm_pending_take() has the result, or the library goes on. Does nothing if the
/// acquisition has finished.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_pending_ask(
    pending: *const dlm_pending,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(pending)?.ask_here()?)) }
}

/// Writes the lease to `*lease_out` if the lock was acquired, and NULL if the acquisition has not finished. On
/// DLM_OK the caller owns a lease that is not NULL. Only one call returns the result. Never blocks.
///
/// Errors: those of dlm_lock_acquire_within(), if that is the result; DLM_INVALID_ARGUMENT also if the result was
/// returned before. If no thread was free to send even the first request until the wait and the store time-out were
/// over, DLM_RETRIES_EXHAUSTED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_pending_take(
    pending: *const dlm_pending,
    lease_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("lease_out", lease_out, error_out, || match find(pending)?.take()? {
            Some(lease) => into_handle(lease),
            None => Ok(std::ptr::null_mut()),
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

/// Adds `tag` to `completions` when the acquisition finishes, or at once if it has finished. dlm_pending_free() takes
/// the tag out again. Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT also for a second call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_pending_notify(
    pending: *const dlm_pending,
    completions: *const dlm_completions,
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
    pending: *const dlm_pending,
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

/// Frees a pending acquisition, and cancels it if it has not finished. NULL is allowed. If it acquired the lock and
/// nobody took the lease, this releases the lock, which blocks for at most two seconds. Otherwise it never blocks,
/// except as dlm_manager_free() says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_pending_free(pending: *mut dlm_pending) {
    freeing(|| free(pending));
}

/// Creates an empty list. Returns NULL only if too many are open. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_completions_new() -> *mut dlm_completions {
    value(std::ptr::null_mut(), || into_handle(Completions::new()))
}

/// Writes a file descriptor for poll() and similar calls to `*fd_out`, or -1 on failure. It is readable while the
/// list is not empty. The list owns the descriptor. Every call writes the same one. Do not read or close it.
/// dlm_completions_free() closes it. Never blocks.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_completions_fd(
    completions: *const dlm_completions,
    fd_out: *mut i32,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("fd_out", fd_out, error_out, || Ok(find(completions)?.fd()?.as_raw_fd())) }
}

/// Takes the tag of the acquisition that finished first out of the list and writes it to `*tag_out`. Returns false
/// and writes 0 if the list is empty. Call it until it returns false: then the descriptor is not readable. Never
/// blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_completions_next(
    completions: *const dlm_completions,
    tag_out: *mut u64,
) -> bool {
    let tag = value(None, || if tag_out.is_null() { Ok(None) } else { Ok(find(completions)?.next()) });
    // SAFETY: the pointer is as the header asks.
    unsafe { write(tag_out, tag.unwrap_or_default()) };
    tag.is_some()
}

/// Frees a list. NULL is allowed. Pending acquisitions that were given it continue. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_completions_free(completions: *mut dlm_completions) {
    freeing(|| free(completions));
}
