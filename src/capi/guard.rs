//! Catches panics, keeps `pthread_cancel` away, and writes outputs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::failure::{Failure, Outcome};
use super::status::dlm_status;
use crate::runtime::process::cancellation::CancellationPause;

/// Runs a call that has no status. Returns `otherwise` if it fails.
pub(super) fn value<T>(otherwise: T, body: impl FnOnce() -> Outcome<T>) -> T {
    guarded(body).unwrap_or(otherwise)
}

/// Runs a `_free`, which cannot report a failure. It logs one instead.
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
    // The unwinding of a cancelled thread would end the program at `catch_unwind`.
    let _pause = CancellationPause::new();
    caught(body)
}

/// Like [`guarded`], for calls of a few nanoseconds that reach no cancellation point: no I/O, no log. They need no pause,
/// which takes as long as the call.
#[inline]
pub(super) fn caught<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    // State that a panic leaves half changed is behind locks and handles, and the library must survive that
    // in Rust programs as well.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(Failure::panic(&*payload)))
}

/// # Safety
/// `out` is as the header asks.
#[inline]
pub(super) unsafe fn write<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: it is not NULL, so it is writable, but it may be misaligned for a T.
        unsafe { out.write_unaligned(value) };
    }
}
