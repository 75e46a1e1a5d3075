//! Functions for the Go package, which sends the first request of an acquisition from the goroutine that waits for it. They are
//! in no header of the library: build.rs writes them into that of the package.

use super::acquire_options::{acquire_options, dlm_acquire_options};
use super::answer::{answer, status};
use super::arguments::output;
use super::error::dlm_error;
use super::guard::write;
use super::lock::dlm_lock;
use super::pending::{StartedAcquisition, dlm_pending};
use super::permits::counted;
use super::process::{find, into_handle};
use super::semaphore::dlm_semaphore;
use super::status::dlm_status;

/// Like dlm_lock_acquire_start(), for callers that can send the first request themselves. This saves a change of threads. If
/// `*turn_out` is true, it is this acquisition's turn: call dlm_pending_ask() soon. Until then nobody asks the store for the
/// lock, and the wait does not end by itself. If it is false, the library does the rest. Never blocks, except that it may
/// start a thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_acquire_start_here(
    lock: *mut dlm_lock,
    options: *const dlm_acquire_options,
    pending_out: *mut *mut dlm_pending,
    turn_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(turn_out, false);
        answer("pending_out", pending_out, error_out, || {
            output("turn_out", turn_out)?;
            let (pending, is_turn) = find(lock)?.start_here(&acquire_options(options)?)?;
            let handle = into_handle(pending)?;
            write(turn_out, is_turn);
            Ok(handle)
        })
    }
}

/// Like dlm_semaphore_acquire_start(), for callers that can send the first request themselves: see dlm_lock_acquire_start_here().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_semaphore_acquire_start_here(
    semaphore: *mut dlm_semaphore,
    count: usize,
    options: *const dlm_acquire_options,
    pending_out: *mut *mut dlm_pending,
    turn_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(turn_out, false);
        answer("pending_out", pending_out, error_out, || {
            output("turn_out", turn_out)?;
            let (semaphore, count) = (find(semaphore)?, counted(count));
            let (pending, is_turn) = semaphore.start_here(count, &acquire_options(options)?)?;
            let handle = into_handle(StartedAcquisition::OfPermits(pending, count))?;
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
    pending: *mut dlm_pending,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(pending)?.ask_here()?)) }
}
