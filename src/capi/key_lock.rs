use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use super::answer::quick_status;
use super::arguments::{slice, wait_without_default};
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::guard::{freeing, value};
use super::handles::{Lasting, LastingTable};
use super::process::{PerProcess, full, handle, locate};
use super::status::dlm_status;
use crate::IdLock;

/// Like dlm_id_lock, for keys of any bytes: NUL is allowed, and so is the empty key. One dlm_key_lock takes
/// 32 KiB.
pub struct dlm_key_lock(());

const NAME: &str = "dlm_key_lock";
const KIND: u8 = 8;

static KEY_LOCKS: PerProcess<LastingTable<Keys>> = PerProcess::new();

/// Number of open handles.
pub(super) fn open() -> Outcome<u64> {
    Ok(KEY_LOCKS.this()?.len())
}

/// Longer keys are refused: every call copies its key, though not while it holds a lock.
const KEY_BYTES_MAX: usize = 64 * 1024;

type Keys = IdLock<Arc<[u8]>>;

/// One key of one use of an `IdLock`: see `Ids` in id_lock.rs. Here the handle is put in front of the key.
struct Key {
    locks: &'static Keys,
    slot: &'static Lasting<Keys>,
    usage: u32,
    bytes: Arc<[u8]>,
}

impl Key {
    fn of(lock: *const dlm_key_lock, key: &[u8]) -> Outcome<Key> {
        let slot_use = locate(lock, KIND, NAME)?;
        let (locks, slot) = KEY_LOCKS.this()?.get(slot_use).map_err(|missing| missing.failure(NAME))?;
        if key.len() > KEY_BYTES_MAX {
            let size = key.len();
            return Err(Failure::invalid(format!(
                "a key of {size} bytes is not allowed: up to {KEY_BYTES_MAX}"
            )));
        }
        let mut bytes = Vec::with_capacity(8 + key.len());
        bytes.extend_from_slice(&(lock.addr() as u64).to_ne_bytes());
        bytes.extend_from_slice(key);
        Ok(Key { locks, slot, usage: slot_use.1, bytes: bytes.into() })
    }

    fn enter(&self, wait: Option<Duration>) -> Outcome {
        let entered = self.locks.enter(&self.bytes, wait);
        if let Err(missing) = self.slot.check(self.usage) {
            self.locks.leave(&self.bytes);
            return Err(missing.failure(NAME));
        }
        if entered { Ok(()) } else { Err(Failure::unavailable("the key is locked")) }
    }

    fn leave(&self) -> Outcome {
        if self.locks.leave(&self.bytes) { Ok(()) } else { Err(Failure::invalid("the key is not locked")) }
    }
}

/// Creates a set of locks with no key locked. Returns NULL only if too many are open. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_key_lock_new() -> *mut dlm_key_lock {
    value(std::ptr::null_mut(), || {
        let slot_use = KEY_LOCKS.this()?.insert(IdLock::default).ok_or_else(|| full(NAME))?;
        Ok(handle(KIND, slot_use))
    })
}

/// Locks the key of `size` bytes at `key`, at most 64 KiB. Blocks and fails like dlm_id_lock_acquire().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_key_lock_acquire(
    lock: *mut dlm_key_lock,
    key: *const c_void,
    size: usize,
    wait_ms: i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        quick_status(error_out, || {
            Key::of(lock, slice("bytes of the key", key.cast::<u8>(), size)?)?
                .enter(wait_without_default("wait_ms", wait_ms)?)
        })
    }
}

/// Releases a key. Any thread may release it. Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT also if the key is not locked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_key_lock_release(
    lock: *mut dlm_key_lock,
    key: *const c_void,
    size: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        quick_status(error_out, || Key::of(lock, slice("bytes of the key", key.cast::<u8>(), size)?)?.leave())
    }
}

/// Returns the number of keys that are locked or waited for right now; 0 for NULL. Never blocks for long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_key_lock_count(lock: *const dlm_key_lock) -> u64 {
    value(0, || Ok(Key::of(lock, &[])?.locks.len() as u64))
}

/// Frees the locks, like dlm_id_lock_free(). NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_key_lock_free(lock: *mut dlm_key_lock) {
    freeing(|| {
        if lock.is_null() {
            return Ok(());
        }
        let slot_use = locate(lock, KIND, NAME)?;
        KEY_LOCKS.this()?.remove(slot_use, IdLock::evict).map_err(|missing| missing.failure(NAME))
    });
}
