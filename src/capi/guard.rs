//! Where a panic ends, and where outputs are written.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::failure::{Failure, Outcome};
use super::status::dlm_status;

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
pub(super) fn guarded<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    // What a panic leaves behind is behind locks and handles, which the library itself has to survive.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(Failure::panic(&*payload)))
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
