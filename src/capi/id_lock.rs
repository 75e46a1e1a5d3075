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
use crate::runtime::time::instant;

/// Locks for the threads of this process, one for each 64-bit id. The lock of an id exists only while
/// threads hold it or wait for it.
///
/// A held id has no handle: any thread may release it by its number. Ids are not reentrant. One dlm_id_lock
/// takes 16 KiB, and more only while threads wait or several hundred ids are locked. Create one and share
/// it.
pub struct dlm_id_lock(());

pub(super) const NAME: &str = "dlm_id_lock";
pub(super) const KIND: u8 = 7;

static ID_LOCKS: PerProcess<LastingTable<IdLock>> = PerProcess::new();

/// Number of open handles.
pub(super) fn open() -> Outcome<u64> {
    Ok(ID_LOCKS.this()?.len())
}

/// The ids of one use of an `IdLock`, which is never dropped: see `LastingTable`. State that another use
/// left behind must not affect this one. Ids are therefore mixed with the handle, which differs for every
/// use. Within one use, different ids stay different.
struct Ids {
    locks: &'static IdLock,
    slot: &'static Lasting<IdLock>,
    usage: u32,
    mix: u64,
}

/// Odd, so every handle gives a different product.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Ids {
    #[inline]
    fn of(handle: *const dlm_id_lock) -> Outcome<Ids> {
        let slot_use = locate(handle, KIND, NAME)?;
        let (locks, slot) = ID_LOCKS.this()?.get(slot_use).map_err(|missing| missing.failure(NAME))?;
        Ok(Ids { locks, slot, usage: slot_use.1, mix: (handle.addr() as u64).wrapping_mul(SPREAD) })
    }

    #[inline]
    fn enter(&self, id: u64, wait: Option<Duration>) -> Outcome {
        let entered = self.locks.enter(&(id ^ self.mix), wait);
        // The handle was freed during the wait. An id that was entered belongs to the ended use: leave it.
        if let Err(missing) = self.slot.check(self.usage) {
            self.locks.leave(&(id ^ self.mix));
            return Err(missing.failure(NAME));
        }
        if entered { Ok(()) } else { Err(held(id)) }
    }

    #[inline]
    fn leave(&self, id: u64) -> Outcome {
        if self.locks.leave(&(id ^ self.mix)) { Ok(()) } else { Err(not_held(id)) }
    }

    /// Enters each id once, in ascending order: callers that lock overlapping sets cannot deadlock.
    fn enter_all(&self, ids: &[u64], wait: Option<Duration>) -> Outcome {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let deadline = wait.and_then(|wait| instant().checked_add(wait));
        for (at, &id) in ids.iter().enumerate() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(instant()));
            if let Err(failure) = self.enter(id, left) {
                for id in &ids[..at] {
                    self.locks.leave(&(id ^ self.mix));
                }
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Leaves all ids that are held, even after one that is not.
    fn leave_all(&self, ids: &[u64]) -> Outcome {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        ids.iter().map(|&id| self.leave(id)).fold(Ok(()), Outcome::and)
    }
}

#[cold]
fn held(id: u64) -> Failure {
    Failure::unavailable(format!("id {id} is locked"))
}

#[cold]
fn not_held(id: u64) -> Failure {
    Failure::invalid(format!("id {id} is not locked"))
}

/// Creates a set of locks with no id locked. Returns NULL only if too many are open. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_id_lock_new() -> *mut dlm_id_lock {
    value(std::ptr::null_mut(), || {
        let slot_use = ID_LOCKS.this()?.insert(IdLock::new).ok_or_else(|| full(NAME))?;
        Ok(handle(KIND, slot_use))
    })
}

/// Locks `id`. Blocks for up to `wait_ms`: 0 tries once, DLM_FOREVER waits without limit. Thousands of
/// threads may wait for an id. Every half millisecond, one release hands the id to the thread that has
/// waited longest.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the id is still locked after the wait; DLM_CLOSED also if `lock` was
/// freed during the wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_id_lock_acquire(
    lock: *mut dlm_id_lock,
    id: u64,
    wait_ms: i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { quick_status(error_out, || Ids::of(lock)?.enter(id, wait_without_default("wait_ms", wait_ms)?)) }
}

/// Releases `id`. Any thread may release it. Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT also if the id is not locked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_id_lock_release(
    lock: *mut dlm_id_lock,
    id: u64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { quick_status(error_out, || Ids::of(lock)?.leave(id)) }
}

/// Locks all of `count` ids, or none. Acquires each id once, in ascending order, even if it is listed more
/// than once. Callers that lock overlapping sets therefore cannot deadlock. `wait_ms` limits the wait for
/// all ids together. Blocks and fails like dlm_id_lock_acquire().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_id_lock_acquire_many(
    lock: *mut dlm_id_lock,
    ids: *const u64,
    count: usize,
    wait_ms: i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        quick_status(error_out, || {
            Ids::of(lock)?.enter_all(slice("ids", ids, count)?, wait_without_default("wait_ms", wait_ms)?)
        })
    }
}

/// Releases each of `count` ids once, even if it is listed more than once. Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT also if one of the ids is not locked. The others are released anyway.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_id_lock_release_many(
    lock: *mut dlm_id_lock,
    ids: *const u64,
    count: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { quick_status(error_out, || Ids::of(lock)?.leave_all(slice("ids", ids, count)?)) }
}

/// Returns the number of ids that are locked or waited for right now; 0 for NULL. Never blocks for long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_id_lock_count(lock: *const dlm_id_lock) -> u64 {
    value(0, || Ok(Ids::of(lock)?.locks.len() as u64))
}

/// Frees the locks. NULL is allowed. Releases all locked ids. Waiting threads fail with DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_id_lock_free(lock: *mut dlm_id_lock) {
    freeing(|| {
        if lock.is_null() {
            return Ok(());
        }
        let slot_use = locate(lock, KIND, NAME)?;
        ID_LOCKS.this()?.remove(slot_use, IdLock::evict).map_err(|missing| missing.failure(NAME))
    });
}
