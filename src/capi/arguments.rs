//! What C passes, taken on trust no further than needed.
//!
//! What the header asks of callers, and the `SAFETY` notes below mean by "as the header asks":
//! * text is NULL or ends with NUL, and nobody changes it during the call;
//! * an output is NULL or can be written (aligned or not), and nobody else uses it during the call;
//! * an array is NULL or as long as said.

use std::ffi::{CStr, c_char};
use std::time::Duration;

use super::failure::{Failure, Outcome};
use crate::Level;

/// In place of a TTL or a wait: the manager's setting.
pub const DLM_DEFAULT: i64 = -2;
/// In place of a wait: without an end.
pub const DLM_FOREVER: i64 = -1;

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
