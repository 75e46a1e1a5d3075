//! Hands the leases of permits out to C.

use super::answer::status;
use super::arguments::output;
use super::error::dlm_error;
use super::failure::Outcome;
use super::guard::write;
use super::lease::dlm_lease;
use super::process::{free, into_handle};
use super::status::dlm_status;
use crate::LeaseSet;

/// More permits than any semaphore has: the limit of a `count` that is wrong.
const COUNT_MAX: usize = 1 << 8;

/// A count of permits. One that does not fit is above that of every semaphore.
pub(super) fn counted(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// Writes the leases of permits to an array of the caller. `take` returns `None` if there are none yet.
///
/// # Safety
/// `permits_out` is NULL or writable for `count` handles, and `error_out` is as the header asks.
pub(super) unsafe fn acquired(
    permits_out: *mut *mut dlm_lease,
    count: usize,
    error_out: *mut *mut dlm_error,
    take: impl FnOnce() -> Outcome<Option<LeaseSet>>,
) -> dlm_status {
    // SAFETY: the caller guarantees it.
    unsafe {
        let put = |at: usize, lease| write(permits_out.wrapping_add(at), lease);
        if !permits_out.is_null() {
            (0..count.min(COUNT_MAX)).for_each(|at| put(at, std::ptr::null_mut()));
        }
        status(error_out, || {
            // First, because leases that cannot be returned must not be acquired.
            output("permits_out", permits_out)?;
            let Some(leases) = take()? else { return Ok(()) };
            handles(leases)?.into_iter().enumerate().for_each(|(at, lease)| put(at, lease));
            Ok(())
        })
    }
}

/// Makes a handle of each lease. If one of them fails, all are released.
fn handles(leases: LeaseSet) -> Outcome<Vec<*mut dlm_lease>> {
    let made: Vec<Outcome<*mut dlm_lease>> = leases.into_leases().into_iter().map(into_handle).collect();
    if made.iter().any(Result::is_err) {
        made.iter().flatten().try_for_each(|lease| free(*lease))?;
    }
    made.into_iter().collect()
}
