//! For callers that wait in their own way, because they must not block threads for long, such as Go programs. They
//! try once, and try again after a pause.

use std::ffi::c_char;
use std::time::Duration;

use super::answer::{answer, status};
use super::arguments::{DLM_FOREVER, millis, text};
use super::error::dlm_error;
use super::failure::Failure;
use super::guard::value;
use super::lock::dlm_lock;
use super::manager::dlm_manager;
use super::process::find;
use super::status::dlm_status;
use crate::names::text::quoted;

/// Reads the lock in the store, without acquiring it. DLM_OK means that it was free. This read costs a
/// store less than an unsuccessful dlm_lock_try_acquire(). Blocks for one read of the store.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the lock is held, see dlm_error_holder_left_ms(); DLM_CONNECTION_ERROR,
/// DLM_RETRIES_EXHAUSTED, DLM_TABLE_CREATION_ERROR or DLM_INTERNAL_ERROR if the store does not serve the
/// request; DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_look(lock: *const dlm_lock, error_out: *mut *mut dlm_error) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            let lock = find(lock)?;
            match lock.holder()? {
                None => Ok(()),
                holder => Err(lock.held_by(holder).into()),
            }
        })
    }
}

/// Returns the remaining lease time of the current holder in milliseconds, rounded up. Try again after this
/// time. The holder may renew or release the lease. It is a hint, because it compares the clocks of two
/// machines. -1 if the store does not report it, for errors other than DLM_LOCK_UNAVAILABLE, and for NULL.
/// Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_holder_left_ms(error: *const dlm_error) -> i64 {
    value(-1, || Ok(find(error)?.holder_left.map_or(-1, |left| millis(left.saturating_add(ROUND_UP)))))
}

const ROUND_UP: Duration = Duration::from_nanos(999_999);

/// Writes a setting of the manager in milliseconds, either the value that was set or the default, to
/// `*ms_out`: "ttl", "wait", "retry" or "timeout", see dlm_options_set(). A wait without limit is
/// DLM_FOREVER. Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT also for other keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_setting_ms(
    manager: *const dlm_manager,
    key: *const c_char,
    ms_out: *mut i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("ms_out", ms_out, error_out, || {
            let manager = find(manager)?;
            let settings = manager.settings();
            let setting = match text("key", key)? {
                "ttl" => settings.ttl,
                "wait" => settings.wait,
                "retry" => settings.retry,
                "timeout" => settings.timeout,
                key => {
                    let what = format!("key {} is not allowed: ttl, wait, retry or timeout", quoted(key));
                    return Err(Failure::invalid(what));
                }
            };
            Ok(if setting == Duration::MAX { DLM_FOREVER } else { millis(setting) })
        })
    }
}
