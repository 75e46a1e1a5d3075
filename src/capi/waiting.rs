//! For callers that wait in a way of their own: programs whose threads must not be held for long, such as
//! those in Go. They ask, and come back when it is time to ask again.

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

/// Reads whether somebody holds the lock, and takes nothing: a read costs a store less than a try that is
/// refused. DLM_OK: it was free. Blocks for the store's answer.
///
/// DLM_LOCK_UNAVAILABLE when it is held, see dlm_error_holder_left_ms(); DLM_CONNECTION_ERROR,
/// DLM_RETRIES_EXHAUSTED, DLM_TABLE_CREATION_ERROR, DLM_INTERNAL_ERROR when the store does not serve;
/// DLM_CLOSED
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_look(lock: *const dlm_lock, error_out: *mut *mut dlm_error) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            let lock = find(lock)?;
            match lock.holder()? {
                None => Ok(()),
                holder => Err(lock.unavailable(holder, Duration::ZERO).into()),
            }
        })
    }
}

/// Remaining lease time of the current holder, in milliseconds, rounded up: when it is worth asking again. The
/// holder may renew or release it. A hint, as it compares clocks of two machines. -1 where the store does not
/// say, for errors other than DLM_LOCK_UNAVAILABLE, and for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_holder_left_ms(error: *const dlm_error) -> i64 {
    value(-1, || Ok(find(error)?.holder_left.map_or(-1, |left| millis(left.saturating_add(ROUND_UP)))))
}

const ROUND_UP: Duration = Duration::from_nanos(999_999);

/// A setting of the manager in milliseconds, whether it was given or is the default: "ttl", "wait",
/// "retry" or "timeout", as for dlm_options_set(). A wait without an end is DLM_FOREVER. Never blocks.
///
/// DLM_INVALID_ARGUMENT for other keys
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_setting_ms(
    manager: *const dlm_manager,
    key: *const c_char,
    ms_out: *mut i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer(ms_out, error_out, || {
            let manager = find(manager)?;
            let settings = manager.settings();
            let setting = match text("key", key)? {
                "ttl" => settings.ttl,
                "wait" => settings.wait,
                "retry" => settings.retry,
                "timeout" => settings.timeout,
                _ => return Err(Failure::invalid("the key is not allowed: ttl, wait, retry or timeout")),
            };
            Ok(if setting == Duration::MAX { DLM_FOREVER } else { millis(setting) })
        })
    }
}
