use std::ffi::c_char;
use std::ops::Deref;
use std::os::fd::AsRawFd;

use super::answer::{answer, status};
use super::arguments::{millis, min_hold, ttl};
use super::described::KeptText;
use super::error::dlm_error;
use super::guard::{freeing, value, write};
use super::handles::HandleTable;
use super::process::{Handle, PerProcess, find, find_optional, free};
use super::status::dlm_status;
use crate::Lease;

/// A held lock. Unless it is renewed, the lease expires after its TTL, counted from the time before the
/// request was sent. After that, the lock may have another holder.
pub struct dlm_lease(());

static LEASES: PerProcess<HandleTable<DescribedLease>> = PerProcess::new();

/// A lease with its texts.
#[derive(Debug)]
pub(super) struct DescribedLease {
    lease: Lease,
    name: KeptText,
    token: KeptText,
}

impl From<Lease> for DescribedLease {
    fn from(lease: Lease) -> DescribedLease {
        DescribedLease { lease, name: KeptText::default(), token: KeptText::default() }
    }
}

impl Deref for DescribedLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Drop for DescribedLease {
    fn drop(&mut self) {
        // A list of completions may live longer than the lease, whose tag says nothing from now on.
        self.lease.stop_notifying();
    }
}

impl Handle for dlm_lease {
    type Object = DescribedLease;
    const NAME: &str = "dlm_lease";
    const KIND: u8 = 6;
    fn table() -> &'static PerProcess<HandleTable<DescribedLease>> {
        &LEASES
    }
}

/// Checks by this machine's clock that the lease has not expired. Call it before each step that needs the
/// lock. It does no I/O and takes some tens of nanoseconds. It cannot detect that the thread is paused
/// right after the check: use the fence for that. Never blocks.
///
/// Errors: DLM_LEASE_LOST if the lease has expired, was released, or was found lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_check(
    lease: *const dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(lease)?.check()?)) }
}

/// Returns the fence: the number to send with every write that the lock guards. It grows with every grant
/// of the lock, so a receiver can refuse a write whose fence is lower than one it has seen. 0 for a lease in mode DLM_MODE_SHARED
/// or DLM_MODE_UPDATE, see dlm_lease_epoch(), if the store's option fence is off, and for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_fence(lease: *const dlm_lease) -> u64 {
    value(0, || Ok(find(lease)?.fence().map_or(0, |fence| fence.0)))
}

/// Checks the lease like dlm_lease_check(), and then writes its fence to `*fence_out`, or 0 on failure. Call
/// it before each step that the lock guards, and send the fence with the step. One call cannot forget the
/// check or the fence. Never blocks.
///
/// Errors: DLM_LEASE_LOST as for dlm_lease_check(); DLM_INVALID_ARGUMENT for a lease in mode DLM_MODE_SHARED or
/// DLM_MODE_UPDATE, and if the store's option fence is off.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_guard(
    lease: *const dlm_lease,
    fence_out: *mut u64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("fence_out", fence_out, error_out, || Ok(find(lease)?.guard()?.0)) }
}

/// Returns the remaining time of the lease in milliseconds, rounded down; 0 if it has ended, and for NULL.
/// Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_remaining_ms(lease: *const dlm_lease) -> i64 {
    value(0, || Ok(millis(find(lease)?.remaining())))
}

/// Writes a file descriptor for poll() and similar calls to `*fd_out`, or -1 on failure. It becomes
/// readable when dlm_lease_check() would fail: the lease has expired, was released, or was found lost. A
/// renewal postpones this.
///
/// The lease owns the descriptor. Every call writes the same one. Do not read or close it. dlm_lease_free()
/// closes it, so remove it from the event loop first.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_lost_fd(
    lease: *const dlm_lease,
    fd_out: *mut i32,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("fd_out", fd_out, error_out, || Ok(find(lease)?.lost_fd()?.as_raw_fd())) }
}

/// Renews the lease for `ttl_ms` from now. DLM_DEFAULT: for the TTL of the last grant or renewal. Blocks
/// for one call to the store, at most for the store time-out and, while the lease has not expired, about its
/// remaining time. Of several calls at one time, the one that began last says when the lease
/// ends. A TTL shorter than before does not shorten the record in the store: the lock stays held for the longer
/// time, unless it is released.
///
/// Errors: DLM_LEASE_LOST if the lease has expired in the store, the lock has another holder, or the lease
/// was released. After any other error the lease keeps its previous end: DLM_CONNECTION_ERROR,
/// DLM_RETRIES_EXHAUSTED, DLM_IN_DOUBT, DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_renew(
    lease: *mut dlm_lease,
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

/// Ends the lease here without releasing the lock, and writes its token to `*token_out`, a text that lives until `lease` is
/// freed. Any process that reaches the same store can take the lease over with the token, see dlm_lock_adopt(). The handle
/// must still be freed. Does not block and does no I/O, except for a lease that dies with its process (the option
/// dies_with_process): the store records first that it does not any more. If that fails, the lease stays as it was.
///
/// The token is one line of text that proves ownership. Treat it like a password, and do not log it.
///
/// Errors: DLM_LEASE_LOST if the lease was released or found lost, or is being released; DLM_CLOSED. For a lease that dies
/// with its process also those of a store that does not serve.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_into_token(
    lease: *mut dlm_lease,
    token_out: *mut *const c_char,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("token_out", token_out, error_out, || {
            let lease = find(lease)?;
            // It succeeds once.
            let token = lease.hand_on()?;
            Ok(lease.token.get(|| token.to_string()))
        })
    }
}

/// Lets the lock stay held for `min_hold_ms` from now, even if it is released sooner: at most the TTL of the lease. So a
/// job that takes a second runs only once, although the clocks of the machines that start it differ by some seconds.
/// Never blocks for long.
///
/// A release then ends the lease at once and sends nothing. The library releases the lock when the time is over. If the
/// manager is closed or the process ends before, the lock is free when its TTL ends.
///
/// Errors: DLM_INVALID_ARGUMENT if the time is longer than the TTL; DLM_LEASE_LOST if the lease is not valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_hold_at_least(
    lease: *mut dlm_lease,
    min_hold_ms: i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            let lease = find(lease)?;
            Ok(lease.hold_at_least(min_hold(min_hold_ms)?)?)
        })
    }
}

/// Returns the name of the lock, as it is stored. "" for NULL. The text lives until `lease` is freed. Never returns NULL.
/// Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_name(lease: *const dlm_lease) -> *const c_char {
    value(c"".as_ptr(), || {
        let lease = find(lease)?;
        Ok(lease.name.get(|| lease.name().key().to_owned()))
    })
}

/// Returns the TTL in milliseconds with which the lease was granted or last renewed; 0 for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_ttl_ms(lease: *const dlm_lease) -> i64 {
    value(0, || Ok(millis(find(lease)?.ttl())))
}

/// Returns when the lease ends, in nanoseconds of the clock CLOCK_BOOTTIME; 0 once it was released or found lost, and
/// for NULL. A renewal changes it. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_ends_ns(lease: *const dlm_lease) -> i64 {
    value(0, || Ok(i64::try_from(find(lease)?.ends().as_nanos()).unwrap_or(i64::MAX)))
}

/// Releases the lock. Blocks for one call to the store. Never changes another holder's record. The handle
/// must still be freed. `freed_out` may be NULL. `*freed_out` is true if the lock was this lease's and is
/// free now. It is false if the lease was released or found lost before: then the call sends nothing to the
/// store. Of several threads that release it at the same time, at most one gets true. Of leases that share the hold of one
/// owner, see dlm_acquire_options.owner, the lock is free when the last one is released; the others get true without a call
/// to the store.
///
/// Errors: DLM_LEASE_LOST if the lease has expired in the store or the lock has another holder. After any
/// other error the lock may or may not be free: DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_IN_DOUBT.
/// Call again, or free the handle: the library then keeps trying in the background.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_release(
    lease: *mut dlm_lease,
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

/// Frees a lease. NULL is allowed. Releases the lock first if it is still held. This blocks for at most two
/// seconds. If it fails, the library keeps trying in the background. Freeing the last handle of a manager
/// blocks as dlm_manager_free() says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_free(lease: *mut dlm_lease) {
    freeing(|| {
        // Another thread may be in a call with the lease, and drop it later. An error of it is that of `free`.
        if let Ok(Some(lease)) = find_optional(lease) {
            lease.stop_notifying();
        }
        free(lease)
    });
}
