use std::time::{Duration, Instant};

use super::answer::status;
use super::arguments::{slice, wait_without_default};
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::guard::{freeing, value};
use super::handles::{Lasting, LastingTable};
use super::process::{PerProcess, full, handle, locate};
use super::status::dlm_status;
use crate::IdLock;

/// Locks for the threads of this process, one for each 64-bit id: made on demand, gone when unused.
///
/// There is no handle of a held id: the number says what is released, and any thread may release it. An
/// id is not reentrant. One dlm_id_lock takes 16 KiB whatever the number of ids, worth sharing.
pub struct dlm_id_lock(());

pub(super) const NAME: &str = "dlm_id_lock";
pub(super) const KIND: u8 = 7;

static ID_LOCKS: PerProcess<LastingTable<IdLock>> = PerProcess::new();

/// How many of them there are.
pub(super) fn open() -> Outcome<u64> {
    Ok(ID_LOCKS.this()?.len())
}

/// An IdLock is never dropped: see `LastingTable`. What another use of it left behind must mean nothing,
/// so ids are mixed with the handle, which no other use has. Within one use, different ids stay different.
struct Ids {
    locks: &'static IdLock,
    place: &'static Lasting<IdLock>,
    usage: u32,
    mix: u64,
}

/// Odd, so that every handle gives a number of its own.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Ids {
    #[inline]
    fn of(handle: *const dlm_id_lock) -> Outcome<Ids> {
        let slot_use = locate(handle, KIND, NAME)?;
        let (locks, place) = ID_LOCKS.this()?.get(slot_use).map_err(|missing| missing.failure(NAME))?;
        Ok(Ids { locks, place, usage: slot_use.1, mix: (handle.addr() as u64).wrapping_mul(SPREAD) })
    }

    #[inline]
    fn enter(&self, id: u64, wait: Option<Duration>) -> Outcome {
        let entered = self.locks.enter(&(id ^ self.mix), wait);
        // Freed meanwhile: what was entered is the lock as it was before, or nothing at all.
        if let Err(missing) = self.place.check(self.usage) {
            self.locks.leave(&(id ^ self.mix));
            return Err(missing.failure(NAME));
        }
        if entered { Ok(()) } else { Err(held(id)) }
    }

    #[inline]
    fn leave(&self, id: u64) -> Outcome {
        if self.locks.leave(&(id ^ self.mix)) { Ok(()) } else { Err(not_held(id)) }
    }

    /// Ascending, each once: callers that lock overlapping sets cannot deadlock.
    fn enter_all(&self, ids: &[u64], wait: Option<Duration>) -> Outcome {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
        for (at, &id) in ids.iter().enumerate() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if let Err(failure) = self.enter(id, left) {
                for id in &ids[..at] {
                    self.locks.leave(&(id ^ self.mix));
                }
                return Err(failure);
            }
        }
        Ok(())
    }

    /// As many as are held, also after one that is not.
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

/// Locks with no id locked. NULL only when there are millions of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_id_lock_new() -> *mut dlm_id_lock {
    value(std::ptr::null_mut(), || {
        let slot_use = ID_LOCKS.this()?.insert(IdLock::new).ok_or_else(|| full(NAME))?;
        Ok(handle(KIND, slot_use))
    })
}

/// Locks `id`, waiting for up to `wait_ms`: 0 tries once, DLM_FOREVER never gives up. Blocks meanwhile. Up
/// to thousands of threads may wait; every half millisecond the longest waiting one goes first.
///
/// DLM_LOCK_UNAVAILABLE when it was not free in time; DLM_CLOSED when `lock` was freed meanwhile;
/// DLM_INVALID_ARGUMENT
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_id_lock_acquire(
    lock: *const dlm_id_lock,
    id: u64,
    wait_ms: i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ids::of(lock)?.enter(id, wait_without_default(wait_ms)?)) }
}

/// Releases `id`, whichever thread locked it. Never blocks.
///
/// DLM_INVALID_ARGUMENT when it is not locked
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_id_lock_release(
    lock: *const dlm_id_lock,
    id: u64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ids::of(lock)?.leave(id)) }
}

/// Locks all of `count` ids, or none. They are taken in ascending order and each once, however often it
/// is listed, so that callers which lock overlapping sets cannot deadlock. Waits and fails as
/// dlm_id_lock_acquire(); `wait_ms` is for all of them together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_id_lock_acquire_many(
    lock: *const dlm_id_lock,
    ids: *const u64,
    count: usize,
    wait_ms: i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            Ids::of(lock)?.enter_all(slice("ids", ids, count)?, wait_without_default(wait_ms)?)
        })
    }
}

/// Releases all of `count` ids, each once, however often it is listed. Never blocks.
///
/// DLM_INVALID_ARGUMENT when one of them is not locked; the others are released all the same
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_id_lock_release_many(
    lock: *const dlm_id_lock,
    ids: *const u64,
    count: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ids::of(lock)?.leave_all(slice("ids", ids, count)?)) }
}

/// How many ids are locked or waited for right now; 0 for NULL. Never blocks for long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_id_lock_count(lock: *const dlm_id_lock) -> u64 {
    value(0, || Ok(Ids::of(lock)?.locks.len() as u64))
}

/// Frees the locks. NULL is allowed. Ids that are locked are released, and threads that wait return
/// DLM_CLOSED.
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
