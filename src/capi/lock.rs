use super::answer::answer;
use super::arguments::{DLM_DEFAULT, ttl, wait};
use super::cancel::dlm_cancel;
use super::error::dlm_error;
use super::guard::freeing;
use super::handles::HandleTable;
use super::lease::dlm_lease;
use super::process::{Handle, PerProcess, find, find_optional, free, keep};
use super::status::dlm_status;
use crate::{AcquireOptions, Lock};

/// A name that can be locked, any number of times and from any number of threads. Not reentrant.
pub struct dlm_lock(());

static LOCKS: PerProcess<HandleTable<Lock>> = PerProcess::new();

impl Handle for dlm_lock {
    type Object = Lock;
    const NAME: &str = "dlm_lock";
    const KIND: u8 = 5;
    fn table() -> &'static PerProcess<HandleTable<Lock>> {
        &LOCKS
    }
}

/// Tries once. The lease lasts `ttl_ms` unless renewed, 1 ms to 365 days (DLM_DEFAULT: the manager's, 90 s
/// unless set).
/// Blocks for the store's answer only, and does not stand in line behind waiting threads. On DLM_OK the
/// caller owns `*lease_out`.
///
/// DLM_LOCK_UNAVAILABLE when somebody holds the lock; DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED,
/// DLM_TABLE_CREATION_ERROR, DLM_INTERNAL_ERROR when the store does not serve; DLM_IN_DOUBT when it could
/// not be learned whether the lock was granted; DLM_CLOSED; DLM_INVALID_ARGUMENT
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_try_acquire(
    lock: *const dlm_lock,
    ttl_ms: i64,
    lease_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer(lease_out, error_out, || {
            let lock = find(lock)?;
            let lease = match ttl(ttl_ms)? {
                None => lock.try_acquire(),
                Some(ttl) => lock.try_acquire_with_ttl(ttl),
            }?;
            keep(lease)
        })
    }
}

/// Waits for the lock with the manager's TTL and wait, 90 s each unless set. `cancel` may be NULL.
///
/// Blocks until the lock is held, the wait is over or something fails; a request to the store that is
/// under way when the wait ends is waited for. Threads of one manager are served in the order in which
/// they came. On DLM_OK the caller owns `*lease_out`.
///
/// DLM_LOCK_UNAVAILABLE when the wait was over first; DLM_CANCELLED; and those of dlm_lock_try_acquire(),
/// which end the wait at once
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_acquire(
    lock: *const dlm_lock,
    cancel: *const dlm_cancel,
    lease_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { dlm_lock_acquire_within(lock, DLM_DEFAULT, DLM_DEFAULT, cancel, lease_out, error_out) }
}

/// As dlm_lock_acquire(), with this TTL and for this long: `wait_ms` 0 tries once, DLM_FOREVER waits for
/// ever. DLM_DEFAULT stands for the manager's setting in both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_acquire_within(
    lock: *const dlm_lock,
    ttl_ms: i64,
    wait_ms: i64,
    cancel: *const dlm_cancel,
    lease_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer(lease_out, error_out, || {
            let lock = find(lock)?;
            let mut how = AcquireOptions::new();
            if let Some(ttl) = ttl(ttl_ms)? {
                how = how.ttl(ttl);
            }
            if let Some(wait) = wait(wait_ms)? {
                how = how.wait(wait);
            }
            if let Some(cancel) = find_optional(cancel)? {
                how = how.cancel(&cancel);
            }
            keep(lock.acquire_with(&how)?)
        })
    }
}

/// Frees a lock. NULL is allowed. Leases acquired through it, and threads that wait in it, go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_free(lock: *mut dlm_lock) {
    freeing(|| free(lock));
}
