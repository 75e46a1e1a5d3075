use std::ffi::c_char;

use super::acquire_options::{acquire_options, dlm_acquire_options, without_wait};
use super::answer::answer;
use super::arguments::text;
use super::described::Described;
use super::error::dlm_error;
use super::guard::{freeing, value};
use super::handles::HandleTable;
use super::lease::dlm_lease;
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::status::dlm_status;
use crate::Lock;

/// A named lock. It may be acquired repeatedly, from any number of threads. It is not reentrant.
pub struct dlm_lock(());

static LOCKS: PerProcess<HandleTable<Described<Lock>>> = PerProcess::new();

impl Handle for dlm_lock {
    type Object = Described<Lock>;
    const NAME: &str = "dlm_lock";
    const KIND: u8 = 5;
    fn table() -> &'static PerProcess<HandleTable<Described<Lock>>> {
        &LOCKS
    }
}

/// Tries once to acquire the lock. `options` may be NULL. Their `wait_ms` must be 0 or DLM_DEFAULT, and their `cancel` has no
/// effect, because the call does not wait. Blocks for one call to the store, and does not queue behind waiting threads. On
/// DLM_OK the caller owns `*lease_out`. If the lock is held, and this process and the holder have notices, the holder is
/// asked once to give the lock back if it only stays there (the option linger). A later call then finds it free.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the lock is held; DLM_CONNECTION_ERROR, DLM_RETRIES_EXHAUSTED,
/// DLM_TABLE_CREATION_ERROR or DLM_INTERNAL_ERROR if the store does not serve the request; DLM_IN_DOUBT if
/// it is unknown whether the store granted the lock; DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_try_acquire(
    lock: *mut dlm_lock,
    options: *const dlm_acquire_options,
    lease_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("lease_out", lease_out, error_out, || {
            let lock = find(lock)?;
            let how = without_wait(acquire_options(options)?, "dlm_lock_try_acquire")?;
            into_handle(lock.try_acquire_with(&how)?)
        })
    }
}

/// Acquires the lock. `options` may be NULL: then the lease lasts for the manager's TTL and the call waits for the manager's
/// wait, by default 90 s each.
///
/// Blocks until the lock is acquired, the wait times out or an error occurs. When the wait ends, the call
/// first completes a request that it has sent to the store. Waiting threads of one manager acquire the lock
/// in the order in which they arrived. On DLM_OK the caller owns `*lease_out`.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the wait timed out; DLM_CANCELLED; and the other errors of
/// dlm_lock_try_acquire(), which end the wait at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_acquire(
    lock: *mut dlm_lock,
    options: *const dlm_acquire_options,
    lease_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("lease_out", lease_out, error_out, || {
            let lock = find(lock)?;
            into_handle(lock.acquire_with(&acquire_options(options)?)?)
        })
    }
}

/// Takes over a lease from its `token`, see dlm_lease_into_token(). The token must be of this lock, and may be of a lease in any
/// mode: see dlm_lease_mode(). The lease has the end that it had before. If the token comes from another machine, its end is not known here: renew
/// the lease first. The lease can be renewed and released as before. Does no I/O and never blocks. On DLM_OK
/// the caller owns `*lease_out`.
///
/// Errors: DLM_INVALID_ARGUMENT also if the text is not the whole token of a lease of this lock; DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_adopt(
    lock: *mut dlm_lock,
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

/// Returns the name of the lock, as it is stored. "" for NULL. The text lives until `lock` is freed. Never returns NULL. Never
/// blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_name(lock: *const dlm_lock) -> *const c_char {
    value(c"".as_ptr(), || Ok(find(lock)?.text(|lock| lock.name().key().to_owned())))
}

/// Frees a lock. NULL is allowed. Its leases stay valid, and threads that wait for it continue to wait.
/// Blocks only as dlm_manager_free() says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_free(lock: *mut dlm_lock) {
    freeing(|| free(lock));
}
