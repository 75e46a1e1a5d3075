use std::ffi::c_char;
use std::time::{SystemTime, UNIX_EPOCH};

use super::answer::{answer, status};
use super::arguments::{DLM_DEFAULT, millis, text, ttl, wait};
use super::cancel::dlm_cancel;
use super::error::dlm_error;
use super::failure::Failure;
use super::guard::freeing;
use super::handles::HandleTable;
use super::lease::dlm_lease;
use super::process::{Handle, PerProcess, find, find_optional, free, keep};
use super::status::dlm_status;
use crate::store::Inspection;
use crate::{AcquireOptions, Lock};

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
/// threads. On DLM_OK the caller owns `*lease_out`.
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
        answer(lease_out, error_out, || {
            let lock = find(lock)?;
            keep(lock.adopt(text("token", token)?.parse()?)?)
        })
    }
}

/// Who holds a lock. Later versions append fields. Texts end with NUL.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct dlm_inspection {
    /// 1 if somebody holds the lock, otherwise 0.
    pub is_held: u64,
    /// The fence that was counted last; 0 if the store does not know it.
    pub fence: u64,
    /// Remaining time of the holder's lease in milliseconds, or -1 if it is not known. The holder may renew the
    /// lease. Only a hint, because it compares clocks of two machines.
    pub left_ms: i64,
    /// When the lock was granted or last renewed, by the store's clock, in milliseconds since 1970. -1 if it is
    /// not known.
    pub since_ms: i64,
    /// Process id of the holder, or -1 if the record does not describe the holder, such as one of the Java
    /// library.
    pub pid: i64,
    /// When the holder opened its manager, in milliseconds since 1970, or -1.
    pub start_ms: i64,
    /// Host name of the holder, or "".
    pub host: [c_char; 256],
    /// What the holder uses its locks for (the option purpose), or "".
    pub purpose: [c_char; 256],
    /// The layout in which the store keeps the lock, or "" if it has only one.
    pub layout: [c_char; 16],
}

/// Writes who holds the lock to `*inspection_out`. `size` must be sizeof(struct dlm_inspection). Fields that
/// the library does not know are set to 0. On failure all fields are 0. Blocks for one or two reads of the
/// store.
///
/// Errors: those of dlm_lock_try_acquire() for a store that does not serve the request, never DLM_IN_DOUBT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_inspect(
    lock: *const dlm_lock,
    inspection_out: *mut dlm_inspection,
    size: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    const FIRST: usize = size_of::<dlm_inspection>();
    // SAFETY: all pointers are as the header asks.
    unsafe {
        // Before anything can fail. A size that no version of the struct can have is not used.
        if !inspection_out.is_null() {
            let size = if (FIRST..=INSPECTION_SIZE_MAX).contains(&size) { size } else { FIRST };
            inspection_out.cast::<u8>().write_bytes(0, size);
        }
        status(error_out, || {
            if inspection_out.is_null() {
                return Err(Failure::invalid("the output is NULL"));
            }
            if !(FIRST..=INSPECTION_SIZE_MAX).contains(&size) {
                return Err(Failure::invalid(format!(
                    "a size of {size} bytes is not allowed: sizeof(struct dlm_inspection), {FIRST}"
                )));
            }
            let inspection = find(lock)?.inspect()?;
            super::guard::write(inspection_out, dlm_inspection::of(&inspection));
            Ok(())
        })
    }
}

const INSPECTION_SIZE_MAX: usize = 8192;

impl dlm_inspection {
    fn of(inspection: &Inspection) -> dlm_inspection {
        let since_1970 = |time: SystemTime| millis(time.duration_since(UNIX_EPOCH).unwrap_or_default());
        let holder = inspection.holder.as_ref();
        let identity = holder.and_then(|holder| holder.identity.as_ref());
        dlm_inspection {
            is_held: holder.is_some().into(),
            fence: inspection.fence.map_or(0, |fence| fence.0),
            left_ms: holder.and_then(|holder| holder.remaining).map_or(-1, millis),
            since_ms: holder.and_then(|holder| holder.since).map_or(-1, since_1970),
            pid: identity.map_or(-1, |identity| i64::from(identity.pid)),
            start_ms: identity.map_or(-1, |it| i64::try_from(it.start_ms).unwrap_or(i64::MAX)),
            host: c_text(identity.map_or("", |identity| &identity.host)),
            purpose: c_text(identity.map_or("", |identity| &identity.purpose)),
            layout: c_text(inspection.layout.unwrap_or_default()),
        }
    }
}

/// Returns the text up to its first NUL, cut to the length of the array. The last byte is NUL.
fn c_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    let bytes = text.bytes().take_while(|byte| *byte != 0);
    chars[..N - 1].iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte as c_char);
    chars
}

/// Frees a lock. NULL is allowed. Its leases stay valid, and threads that wait for it continue to wait.
/// Blocks only as dlm_manager_free() says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_free(lock: *mut dlm_lock) {
    freeing(|| free(lock));
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_text_is_cut_to_its_array_and_ends_with_nul() {
        let shown = |chars: &[c_char]| {
            // SAFETY: `c_text` ends with NUL.
            unsafe { CStr::from_ptr(chars.as_ptr()) }.to_str().unwrap().to_owned()
        };
        assert_eq!(shown(&c_text::<8>("own")), "own");
        assert_eq!(shown(&c_text::<4>("java")), "jav");
        assert_eq!(shown(&c_text::<8>("a\0b")), "a");
        assert_eq!(shown(&c_text::<1>("")), "");
    }
}
