//! Checks the arguments that C passes.
//!
//! In `SAFETY` comments, "as the header asks" means:
//! * text is NULL or ends with NUL, and no thread changes it during the call;
//! * an output is NULL or writable (aligned or not), and no other thread uses it during the call;
//! * an array is NULL or as long as stated, and no thread changes it during the call.

use std::ffi::{CStr, c_char};
use std::time::Duration;

use super::failure::{Failure, Outcome};
use crate::{Level, Mode};

/// In dlm_acquire_options: the manager's option, ttl or wait. As another TTL: the one that the function's comment names. No
/// other wait has a default: calls refuse it there.
pub const DLM_DEFAULT: i64 = -2;
/// As a wait: no limit. As the TTL of a cell: it does not expire.
pub const DLM_FOREVER: i64 = -1;

/// Fails if the output `name` is NULL.
pub(super) fn output<T>(name: &str, out: *const T) -> Outcome {
    if out.is_null() {
        return Err(Failure::invalid(format!(
            "{name} is NULL: pass the address of a variable for the result"
        )));
    }
    Ok(())
}

/// A caller's text.
///
/// # Safety
/// `text` is as the header asks for the lifetime of the result.
pub(super) unsafe fn text<'a>(what: &str, text: *const c_char) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(Failure::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: it is not NULL, so it ends with NUL.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid(format!("the {what} is not UTF-8")))
}

/// A caller's array.
///
/// # Safety
/// `items` and `count` are as the header asks for the lifetime of the result.
pub(super) unsafe fn slice<'a, T>(what: &str, items: *const T, count: usize) -> Outcome<&'a [T]> {
    if items.is_null() {
        return Err(Failure::invalid(format!("the {what} are NULL")));
    }
    if !items.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        return Err(Failure::invalid(format!("the {what} are misaligned, or {count} are too many")));
    }
    // SAFETY: it is not NULL, aligned, and no longer than memory can be. The rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(items, count) })
}

/// A TTL. `None` means the default.
pub(super) fn ttl(ms: i64) -> Outcome<Option<Duration>> {
    match u64::try_from(ms) {
        Ok(ms) => Ok(Some(Duration::from_millis(ms))),
        Err(_) if ms == DLM_DEFAULT => Ok(None),
        Err(_) => {
            Err(Failure::invalid(format!("ttl_ms {ms} is not allowed: 1 ms to 365 days, or DLM_DEFAULT")))
        }
    }
}

/// A wait, the argument `name`. `None` means the default.
pub(super) fn wait(name: &str, ms: i64) -> Outcome<Option<Duration>> {
    match u64::try_from(ms) {
        Ok(ms) => Ok(Some(Duration::from_millis(ms))),
        Err(_) if ms == DLM_DEFAULT => Ok(None),
        Err(_) if ms == DLM_FOREVER => Ok(Some(Duration::MAX)),
        Err(_) => Err(Failure::invalid(format!(
            "{name} {ms} is not allowed: 0 or more, DLM_FOREVER or DLM_DEFAULT"
        ))),
    }
}

/// A time without a default, the argument `name`. `None` means no limit.
#[inline]
pub(super) fn wait_without_default(name: &str, ms: i64) -> Outcome<Option<Duration>> {
    match u64::try_from(ms) {
        Ok(ms) => Ok(Some(Duration::from_millis(ms))),
        Err(_) if ms == DLM_FOREVER => Ok(None),
        Err(_) if ms == DLM_DEFAULT => Err(Failure::invalid(format!(
            "{name} DLM_DEFAULT is not allowed, because this time has no default: 0 or more, or DLM_FOREVER"
        ))),
        Err(_) => Err(Failure::invalid(format!("{name} {ms} is not allowed: 0 or more, or DLM_FOREVER"))),
    }
}

/// Milliseconds for C. Values that do not fit become `i64::MAX`.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

// Numbers, not an enum: C can pass any number, and an invalid enum value is undefined behaviour in Rust. No
// level is 0: a variable that was not set is often 0.

/// Level DC: the lock's name includes the farm id, so each data centre has its own lock.
pub const DLM_LEVEL_DC: i32 = 1;
/// Level XDC: the lock's name does not include the farm id, so all data centres share one lock.
pub const DLM_LEVEL_XDC: i32 = 2;

pub(super) fn level(number: i32) -> Outcome<Level> {
    match number {
        DLM_LEVEL_DC => Ok(Level::Dc),
        DLM_LEVEL_XDC => Ok(Level::Xdc),
        _ => Err(Failure::invalid(format!("level {number} is not allowed: DLM_LEVEL_DC or DLM_LEVEL_XDC"))),
    }
}

pub(super) fn min_hold(ms: i64) -> Outcome<Duration> {
    let refused = |_| Failure::invalid(format!("min_hold_ms {ms} is not allowed: 0 to the TTL"));
    u64::try_from(ms).map(Duration::from_millis).map_err(refused)
}

/// Held by one holder at a time. In dlm_acquire_options: the mode of the lock's handle, see dlm_lock_in_mode().
pub const DLM_MODE_EXCLUSIVE: i32 = 0;
/// Held by any number of readers, and by one holder in mode DLM_MODE_UPDATE beside them.
pub const DLM_MODE_SHARED: i32 = 1;
/// Held by one reader that may want to write later, beside readers in mode DLM_MODE_SHARED: see dlm_lease_upgrade().
pub const DLM_MODE_UPDATE: i32 = 2;
/// One of the permits of a semaphore: see dlm_semaphore_acquire(). Not for locks.
pub const DLM_MODE_PERMIT: i32 = 3;

/// The mode of a lock with this number.
pub(super) fn mode(number: i32) -> Outcome<Mode> {
    match number {
        DLM_MODE_EXCLUSIVE => Ok(Mode::Exclusive),
        DLM_MODE_SHARED => Ok(Mode::Shared),
        DLM_MODE_UPDATE => Ok(Mode::Update),
        _ => Err(Failure::invalid(format!(
            "mode {number} is not allowed: DLM_MODE_EXCLUSIVE, DLM_MODE_SHARED or DLM_MODE_UPDATE"
        ))),
    }
}

pub(super) fn mode_number(mode: Mode) -> i32 {
    match mode {
        Mode::Exclusive => DLM_MODE_EXCLUSIVE,
        Mode::Shared => DLM_MODE_SHARED,
        Mode::Update => DLM_MODE_UPDATE,
        Mode::Permit => DLM_MODE_PERMIT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_the_numbers_that_the_library_has_for_them() {
        for known in Mode::ALL {
            assert_eq!(mode_number(known), i32::from(known.code()));
            assert_eq!(mode(mode_number(known)).ok(), Some(known).filter(|mode| *mode != Mode::Permit));
        }
        for number in [-1, DLM_MODE_PERMIT, 4, 256, 257] {
            assert!(mode(number).is_err(), "{number}");
        }
    }
}
