use std::ffi::c_char;

use super::answer::{answer, text_answer};
use super::arguments::{DLM_DEFAULT, text, ttl};
use super::cancel::dlm_cancel;
use super::error::dlm_error;
use super::guard::freeing;
use super::handles::HandleTable;
use super::lease::dlm_lease;
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::status::dlm_status;
use super::terms::options;
use crate::Lock;

/// A named lock. It may be acquired repeatedly, from any number of threads. It is not reentrant.
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

/// Tries once to acquire the lock. Unless renewed, the lease lasts `ttl_ms`, 1 ms to 365 days. DLM_DEFAULT:
/// the manager's TTL, 90 s by default. Blocks for one call to the store, and does not queue behind waiting
/// threads. On DLM_OK the caller owns `*lease_out`. If the lock is held, and this process and the holder have notices, the
/// holder is asked once to give the lock back if it only stays there (the option linger). A later call then finds it free.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the lock is held; DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED,
/// DLM_TABLE_CREATION_ERROR or DLM_INTERNAL_ERROR if the store does not serve the request; DLM_IN_DOUBT if
/// it is unknown whether the store granted the lock; DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_try_acquire(
    lock: *const dlm_lock,
    ttl_ms: i64,
    lease_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("lease_out", lease_out, error_out, || {
            let lock = find(lock)?;
            let lease = match ttl(ttl_ms)? {
                None => lock.try_acquire(),
                Some(ttl) => lock.try_acquire_with_ttl(ttl),
            }?;
            into_handle(lease)
        })
    }
}

/// Acquires the lock with the manager's TTL and wait, by default 90 s each. `cancel` may be NULL.
///
/// Blocks until the lock is acquired, the wait times out or an error occurs. When the wait ends, the call
/// first completes a request that it has sent to the store. Waiting threads of one manager acquire the lock
/// in the order in which they arrived. On DLM_OK the caller owns `*lease_out`.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the wait timed out; DLM_CANCELLED; and the other errors of
/// dlm_lock_try_acquire(), which end the wait at once.
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

/// Like dlm_lock_acquire(), with this TTL and this wait. A `wait_ms` of 0 tries once, DLM_FOREVER waits
/// without limit. DLM_DEFAULT means the manager's setting, for both.
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
        answer("lease_out", lease_out, error_out, || {
            let lock = find(lock)?;
            let how = options(ttl_ms, wait_ms, 0, cancel)?;
            into_handle(lock.acquire_with(&how)?)
        })
    }
}

/// Takes over a lease from its `token`, see dlm_lease_into_token(). The token must be of this lock. The lease
/// has the end that it had before. If the token comes from another machine, its end is not known here: renew
/// the lease first. The lease can be renewed and released as before. Does no I/O and never blocks. On DLM_OK
/// the caller owns `*lease_out`.
///
/// Errors: DLM_INVALID_ARGUMENT also if the text is not the whole token of a lease of this lock; DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_adopt(
    lock: *const dlm_lock,
    token: *const c_char,
    lease_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("lease_out", lease_out, error_out, || {
            let lock = find(lock)?;
            into_handle(lock.adopt(text("token", token)?.parse()?)?)
        })
    }
}

/// Writes the name of the lock to `name_out`, an array of `size` bytes, as it is stored. DLM_NAME_SIZE bytes are enough
/// for every name. On failure the text is "". Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_name(
    lock: *const dlm_lock,
    name_out: *mut c_char,
    size: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        text_answer("name_out", name_out, size, 0, error_out, || Ok(find(lock)?.name().key().to_owned()))
    }
}

/// Frees a lock. NULL is allowed. Its leases stay valid, and threads that wait for it continue to wait.
/// Blocks only as dlm_manager_free() says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_free(lock: *mut dlm_lock) {
    freeing(|| free(lock));
}
