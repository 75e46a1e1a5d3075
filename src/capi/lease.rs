use std::os::fd::AsRawFd;

use super::answer::{answer, status};
use super::arguments::{millis, ttl};
use super::error::dlm_error;
use super::guard::{freeing, value, write};
use super::handles::HandleTable;
use super::process::{Handle, PerProcess, find, free};
use super::status::dlm_status;
use crate::Lease;

/// A held lock. It ends by itself after its TTL, counted from before it was asked for, unless renewed;
/// then somebody else may hold the lock.
pub struct dlm_lease(());

static LEASES: PerProcess<HandleTable<Lease>> = PerProcess::new();

impl Handle for dlm_lease {
    type Object = Lease;
    const NAME: &str = "dlm_lease";
    const KIND: u8 = 6;
    fn table() -> &'static PerProcess<HandleTable<Lease>> {
        &LEASES
    }
}

/// Whether the lease lasts still, by this machine's clock: ask before each step that needs the lock. No
/// I/O, some tens of nanoseconds. It cannot know that this thread will be paused right after; that is what
/// the fence is for.
///
/// DLM_LEASE_LOST when the time is over, or the lease was released or found lost
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_check(
    lease: *const dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(lease)?.check()?)) }
}

/// The number to send along with every write that the lock guards: it grows with every grant, so that a
/// receiver can refuse numbers lower than it has seen. 0 where fencing is switched off, and for NULL.
/// Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_fence(lease: *const dlm_lease) -> u64 {
    value(0, || Ok(find(lease)?.fence().map_or(0, |fence| fence.0)))
}

/// Milliseconds that the lease has left, rounded down; 0 when it is over, and for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_remaining_ms(lease: *const dlm_lease) -> i64 {
    value(0, || Ok(millis(find(lease)?.remaining())))
}

/// A descriptor for poll() and the like, readable as soon as dlm_lease_check() would fail: the time is
/// over, or the lease was released or found lost. A renewal puts it off.
///
/// It belongs to the lease, is the same in each call, and is closed by dlm_lease_free(): take it out of
/// the event loop before. Poll it; do not read or close it. The first call waits for a renewal or release
/// under way. `*fd_out` is -1 on failure.
///
/// DLM_INTERNAL_ERROR when the process has no descriptor left
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_lost_fd(
    lease: *const dlm_lease,
    fd_out: *mut i32,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer(fd_out, error_out, || Ok(find(lease)?.lost_fd()?.as_raw_fd())) }
}

/// Lets the lease end `ttl_ms` from now (DLM_DEFAULT: for as long as it was last granted). Blocks for one
/// call to the store, for no longer than the lease has left. After a shorter TTL than before the lock stays
/// taken for the longer time, unless it is released.
///
/// DLM_LEASE_LOST when it had run out or another holds the lock: it is over. After any other failure the
/// lease ends when it would have: DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_IN_DOUBT, DLM_CLOSED,
/// DLM_INVALID_ARGUMENT
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_renew(
    lease: *const dlm_lease,
    ttl_ms: i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            let lease = find(lease)?;
            match ttl(ttl_ms)? {
                None => lease.renew()?,
                Some(ttl) => lease.renew_for(ttl)?,
            }
            Ok(())
        })
    }
}

/// Gives the lock up. The handle must still be freed. Blocks for one call to the store, and never touches
/// another holder's record. `freed_out` may be NULL: true when the lock was ours and is free now; false
/// when it had been released before, and the store was not asked.
///
/// DLM_LEASE_LOST when it had run out or another holds the lock by now. Any other failure leaves open
/// whether the lock is free: call again, or free the handle, which goes on trying in the background:
/// DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_IN_DOUBT
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_release(
    lease: *const dlm_lease,
    freed_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(freed_out, false);
        status(error_out, || {
            let freed = find(lease)?.release()?;
            write(freed_out, freed);
            Ok(())
        })
    }
}

/// Frees a lease. NULL is allowed. One that is not released yet is released first: that takes two seconds
/// at the most, and goes on in the background if it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_free(lease: *mut dlm_lease) {
    freeing(|| free(lease));
}
