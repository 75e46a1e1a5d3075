//! The results of a call: a status, an output, and an error if the caller asks for one.

use super::arguments::output;
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::guard::{caught, guarded, write};
use super::process::into_handle;
use super::status::dlm_status;
use crate::runtime::process::stack;

/// A thread that has less stack left would crash in the call. A build without optimizations needs more.
const STACK_LEAST: usize = if cfg!(debug_assertions) { 96 << 10 } else { 16 << 10 };

/// A type of outputs, and the value that a failed call writes.
pub(super) trait Output: Copy {
    const NOTHING: Self;
}

impl<T> Output for *mut T {
    const NOTHING: Self = std::ptr::null_mut();
}

impl<T> Output for *const T {
    const NOTHING: Self = std::ptr::null();
}

impl Output for i64 {
    const NOTHING: Self = 0;
}

impl Output for u64 {
    const NOTHING: Self = 0;
}

impl Output for bool {
    const NOTHING: Self = false;
}

impl Output for i32 {
    const NOTHING: Self = -1;
}

/// Runs a call that has no output but the error.
///
/// # Safety
/// `error_out` is as the header asks.
#[inline]
pub(super) unsafe fn status(error_out: *mut *mut dlm_error, body: impl FnOnce() -> Outcome) -> dlm_status {
    // SAFETY: the caller guarantees it.
    unsafe { conclude(on_enough_stack(body), error_out) }
}

/// Like [`status`], for calls that reach no cancellation point: see [`caught`].
///
/// # Safety
/// `error_out` is as the header asks.
#[inline]
pub(super) unsafe fn quick_status(
    error_out: *mut *mut dlm_error,
    body: impl FnOnce() -> Outcome,
) -> dlm_status {
    // SAFETY: the caller guarantees it.
    unsafe { conclude(caught(body), error_out) }
}

/// # Safety
/// `error_out` is as the header asks.
#[inline]
unsafe fn conclude(outcome: Outcome, error_out: *mut *mut dlm_error) -> dlm_status {
    match outcome {
        Ok(()) => {
            // SAFETY: the caller guarantees it.
            unsafe { write(error_out, std::ptr::null_mut()) };
            dlm_status::DLM_OK
        }
        // SAFETY: the caller guarantees it.
        Err(failure) => unsafe { report(failure, error_out) },
    }
}

/// Runs a call that has an output, the argument `name`. Checks first that the output is not NULL: a lease that cannot be
/// returned must not be acquired.
///
/// # Safety
/// `out` and `error_out` are as the header asks.
pub(super) unsafe fn answer<T: Output>(
    name: &str,
    out: *mut T,
    error_out: *mut *mut dlm_error,
    body: impl FnOnce() -> Outcome<T>,
) -> dlm_status {
    let outcome = on_enough_stack(|| output(name, out).and_then(|()| body()));
    // SAFETY: the caller guarantees it.
    unsafe {
        match outcome {
            Ok(value) => {
                write(out, value);
                write(error_out, std::ptr::null_mut());
                dlm_status::DLM_OK
            }
            Err(failure) => {
                write(out, T::NOTHING);
                report(failure, error_out)
            }
        }
    }
}

#[inline]
fn on_enough_stack<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    match stack::left() {
        Some(left) if left < STACK_LEAST => Err(too_little_stack(left)),
        _ => guarded(body),
    }
}

#[cold]
fn too_little_stack(left: usize) -> Failure {
    Failure::internal(format!(
        "this thread has {} KiB of stack left, and a call needs {}: start it with 128 KiB (pthread_attr_setstacksize)",
        left >> 10,
        STACK_LEAST >> 10
    ))
}

/// # Safety
/// `error_out` is as the header asks.
#[cold]
unsafe fn report(failure: Failure, error_out: *mut *mut dlm_error) -> dlm_status {
    let status = failure.status;
    if !error_out.is_null() {
        let error = guarded(|| into_handle::<dlm_error>(failure)).unwrap_or(std::ptr::null_mut());
        // SAFETY: the caller guarantees it.
        unsafe { write(error_out, error) };
    }
    status
}
