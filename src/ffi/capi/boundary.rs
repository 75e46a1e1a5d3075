//! Where C's promises are taken on trust and a panic ends.
//!
//! What the header asks of callers, and the `SAFETY` notes below mean by "as the header asks":
//! * text is NULL or ends with NUL, and nobody changes it during the call;
//! * an output is NULL or can be written (aligned or not), and nobody else uses it during the call;
//! * an array is NULL or as long as said.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::error::{Failure, dlm_error};
pub(super) use super::process::Outcome;
use super::process::keep;
use super::status::dlm_status;
use crate::Level;

/// In place of a TTL or a wait: the manager's setting.
pub const DLM_DEFAULT: i64 = -2;
/// In place of a wait: without an end.
pub const DLM_FOREVER: i64 = -1;

/// A type that can be an output, and what is written when there is nothing to hand out.
pub(super) trait Output: Copy {
    const NOTHING: Self;
}

impl<T> Output for *mut T {
    const NOTHING: Self = std::ptr::null_mut();
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

/// Runs a call that has nothing to hand out.
///
/// # Safety
/// `error_out` is as the header asks.
#[inline]
pub(super) unsafe fn status(error_out: *mut *mut dlm_error, body: impl FnOnce() -> Outcome) -> dlm_status {
    match guarded(body) {
        Ok(()) => {
            // SAFETY: passed on.
            unsafe { write(error_out, std::ptr::null_mut()) };
            dlm_status::DLM_OK
        }
        // SAFETY: passed on.
        Err(failure) => unsafe { report(failure, error_out) },
    }
}

/// Runs a call that hands something out. The output is looked at first: what cannot be handed out must
/// not be acquired.
///
/// # Safety
/// `out` and `error_out` are as the header asks.
pub(super) unsafe fn answer<T: Output>(
    out: *mut T,
    error_out: *mut *mut dlm_error,
    body: impl FnOnce() -> Outcome<T>,
) -> dlm_status {
    let outcome = if out.is_null() { Err(Failure::invalid("the output is NULL")) } else { guarded(body) };
    // SAFETY: passed on.
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

/// Runs a call that only looks something up, and answers `otherwise` where that fails.
pub(super) fn value<T>(otherwise: T, body: impl FnOnce() -> Outcome<T>) -> T {
    guarded(body).unwrap_or(otherwise)
}

/// Runs a `_free`, which has no way to answer.
pub(super) fn freeing(body: impl FnOnce() -> Outcome) {
    if let Err(failure) = guarded(body)
        && failure.status != dlm_status::DLM_FORKED
    {
        let _ = guarded(|| {
            ::log::warn!("nothing was freed: {}", failure.text());
            Ok(())
        });
    }
}

#[inline]
fn guarded<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    // What a panic leaves behind is behind locks and handles, which the library itself has to survive.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(Failure::panic(&*payload)))
}

/// # Safety
/// `error_out` is as the header asks.
#[cold]
unsafe fn report(failure: Failure, error_out: *mut *mut dlm_error) -> dlm_status {
    let status = failure.status;
    if !error_out.is_null() {
        let error = guarded(|| keep::<dlm_error>(failure)).unwrap_or(std::ptr::null_mut());
        // SAFETY: passed on.
        unsafe { write(error_out, error) };
    }
    status
}

/// # Safety
/// `out` is as the header asks.
#[inline]
pub(super) unsafe fn write<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: not NULL, so it can be written, if perhaps not where a T usually lies.
        unsafe { out.write_unaligned(value) };
    }
}

/// A caller's text.
///
/// # Safety
/// `text` is as the header asks, for as long as the answer is used.
pub(super) unsafe fn text<'a>(what: &str, text: *const c_char) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(Failure::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: not NULL, so it ends with NUL.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid(format!("the {what} is not UTF-8")))
}

/// A caller's array.
///
/// # Safety
/// `items` and `count` are as the header asks, for as long as the answer is used.
pub(super) unsafe fn slice<'a, T>(what: &str, items: *const T, count: usize) -> Outcome<&'a [T]> {
    if items.is_null() {
        return Err(Failure::invalid(format!("the {what} are NULL")));
    }
    if !items.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        return Err(Failure::invalid(format!("the {what} are not in an array of {count}")));
    }
    // SAFETY: not NULL, aligned, not longer than memory can be; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(items, count) })
}

/// A TTL; `None` stands for the default.
pub(super) fn ttl(ms: i64) -> Outcome<Option<Duration>> {
    match u64::try_from(ms) {
        Ok(ms) => Ok(Some(Duration::from_millis(ms))),
        Err(_) if ms == DLM_DEFAULT => Ok(None),
        Err(_) => {
            Err(Failure::invalid(format!("ttl_ms {ms} is not allowed: 1 ms to 365 days, or DLM_DEFAULT")))
        }
    }
}

/// A wait; `None` stands for the default.
pub(super) fn wait(ms: i64) -> Outcome<Option<Duration>> {
    match u64::try_from(ms) {
        Ok(ms) => Ok(Some(Duration::from_millis(ms))),
        Err(_) if ms == DLM_DEFAULT => Ok(None),
        Err(_) if ms == DLM_FOREVER => Ok(Some(Duration::MAX)),
        Err(_) => Err(Failure::invalid(format!(
            "wait_ms {ms} is not allowed: 0 or more, DLM_FOREVER or DLM_DEFAULT"
        ))),
    }
}

/// A wait for which no manager has a setting; `None` never ends.
#[inline]
pub(super) fn wait_without_default(ms: i64) -> Outcome<Option<Duration>> {
    match u64::try_from(ms) {
        Ok(ms) => Ok(Some(Duration::from_millis(ms))),
        Err(_) if ms == DLM_FOREVER => Ok(None),
        Err(_) => Err(Failure::invalid(format!("wait_ms {ms} is not allowed: 0 or more, or DLM_FOREVER"))),
    }
}

/// A number for C: as large as it can be said.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

// Numbers, not an enum: whatever C passes must be something that Rust can look at. None is 0, which is
// what a forgotten variable holds.

/// Level of a lock whose name includes the farm id: each data centre has its own.
pub const DLM_LEVEL_DC: i32 = 1;
/// Level of a lock whose name does not include the farm id: one for all data centres.
pub const DLM_LEVEL_XDC: i32 = 2;

pub(super) fn level(number: i32) -> Outcome<Level> {
    match number {
        DLM_LEVEL_DC => Ok(Level::Dc),
        DLM_LEVEL_XDC => Ok(Level::Xdc),
        _ => Err(Failure::invalid(format!("level {number} is not allowed: DLM_LEVEL_DC or DLM_LEVEL_XDC"))),
    }
}
