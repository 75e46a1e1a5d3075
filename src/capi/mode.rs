//! The modes of locks: locks that are acquired in a mode, and leases that change theirs.

use std::time::Duration;

use super::answer::answer;
use super::arguments::{DLM_MODE_EXCLUSIVE, mode, mode_number, wait_without_default};
use super::cancel::dlm_cancel;
use super::error::dlm_error;
use super::guard::value;
use super::lease::dlm_lease;
use super::lock::dlm_lock;
use super::process::{find, find_optional, into_handle};
use super::status::dlm_status;

/// Creates another handle of the same lock, by which it is acquired in this mode: DLM_MODE_EXCLUSIVE, DLM_MODE_SHARED or
/// DLM_MODE_UPDATE. The handle of dlm_manager_lock() acquires it exclusively. So dlm_manager_acquire_all() can read one lock and
/// write another. Does no I/O and never blocks. On DLM_OK the caller owns `*lock_out`.
///
/// Readers that come after a writer that waits let it pass, and take turns with writers. A store that keeps exclusive locks only
/// refuses other modes when the lock is acquired.
///
/// Errors: DLM_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_in_mode(
    lock: *const dlm_lock,
    mode: i32,
    lock_out: *mut *mut dlm_lock,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("lock_out", lock_out, error_out, || {
            let lock = find(lock)?;
            into_handle(lock.in_mode(self::mode(mode)?))
        })
    }
}

/// Returns how the lock is held: one of the numbers DLM_MODE_*. DLM_MODE_EXCLUSIVE for NULL. Later versions may add some. Never
/// blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_mode(lease: *const dlm_lease) -> i32 {
    value(DLM_MODE_EXCLUSIVE, || Ok(mode_number(find(lease)?.mode())))
}

/// Returns the number of the period in which the lock is held: all readers of one time have the same, and each exclusive grant
/// begins a new, higher one, which is its fence. A receiver may refuse a reader whose epoch is below the highest fence that it has
/// seen: a writer came since. It is no fence and guards no write, because several holders have it. 0 if the store's option fence
/// is off, for a permit of a semaphore, and for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_epoch(lease: *const dlm_lease) -> u64 {
    value(0, || Ok(find(lease)?.epoch().map_or(0, |epoch| epoch.0)))
}

/// Returns the number of the permit, from 0 on and below the size of its semaphore; -1 for the lease of a lock, and for NULL.
/// Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_permit(lease: *const dlm_lease) -> i32 {
    value(-1, || Ok(find(lease)?.permit().map_or(-1, i32::from)))
}

/// Goes on with fewer rights: from DLM_MODE_EXCLUSIVE to DLM_MODE_UPDATE or DLM_MODE_SHARED, or from DLM_MODE_UPDATE to
/// DLM_MODE_SHARED. Nobody gets the lock in between. On DLM_OK the caller owns `*lease_out`, which holds the lock now, for the TTL of
/// `lease`. `lease` is over then, and must still be freed. Blocks for one call to the store, and never waits for other holders.
///
/// Others may read as soon as the call has begun. So let no write that the exclusive lease guards be under way then. The new lease
/// is kept alive as long as `lease` was to be. Its descriptors are its own, and dlm_lease_notify() has to be called for it. It does
/// not die with its process.
///
/// Errors: DLM_LEASE_LOST if `lease` is over; DLM_IN_DOUBT if the store did not say in time whether it made the change: `lease` is
/// over then, and the library releases what is left of it; DLM_INVALID_ARGUMENT also for the mode that the lease has, for
/// DLM_MODE_EXCLUSIVE, for a permit, and if another thread changes it; DLM_UNSUPPORTED_CONVERSION for more rights than those of a
/// reader; DLM_INTERNAL_ERROR if the new lease cannot be kept alive: the lock is released. After any other error the lease is as it
/// was: DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED, DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_downgrade(
    lease: *mut dlm_lease,
    mode: i32,
    lease_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("lease_out", lease_out, error_out, || {
            let lease = find(lease)?;
            into_handle(lease.downgrade(self::mode(mode)?)?)
        })
    }
}

/// Goes on exclusively, from DLM_MODE_UPDATE: waits up to `wait_ms` for the readers to leave, before all others who wait. No new ones
/// come meanwhile, except that readers that have waited for long take turns. On DLM_OK the caller owns `*lease_out`, which holds
/// the lock now, with a new fence. `lease` is over then, and must still be freed. 0 tries once, DLM_FOREVER waits without limit.
/// `cancel` may be NULL.
///
/// The lease may end during the wait unless it is kept alive: see dlm_lease_keep(). A reader that waits for another lock of this
/// process makes both wait until one gives up.
///
/// Errors: DLM_LOCK_UNAVAILABLE if readers hold the lock: `lease` is as it was; DLM_UNSUPPORTED_CONVERSION for a shared lease, because
/// two of those would wait for each other; DLM_CANCELLED; those of dlm_lease_downgrade().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_upgrade(
    lease: *mut dlm_lease,
    wait_ms: i64,
    cancel: *const dlm_cancel,
    lease_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("lease_out", lease_out, error_out, || {
            let lease = find(lease)?;
            let wait = wait_without_default("wait_ms", wait_ms)?.unwrap_or(Duration::MAX);
            into_handle(match find_optional(cancel)? {
                Some(cancel) => lease.upgrade_with(wait, &cancel)?,
                None => lease.upgrade(wait)?,
            })
        })
    }
}
