//! Semaphores. A permit is a lease like any other.

use std::ffi::c_char;

use super::acquire_options::{acquire_options, dlm_acquire_options, without_wait};
use super::answer::answer;
use super::arguments::{level, text};
use super::described::Described;
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::guard::{freeing, value};
use super::handles::HandleTable;
use super::lease::dlm_lease;
use super::lock_list::{LockList, dlm_lock_list};
use super::manager::dlm_manager;
use super::pending::{StartedAcquisition, dlm_pending};
use super::permits::{acquired, counted};
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::status::dlm_status;
use crate::Semaphore;
use crate::store::PERMITS_MAX;

/// A named semaphore: so many permits, of which each has one holder at a time. It may be acquired repeatedly, from any number of
/// threads.
pub struct dlm_semaphore(());

static SEMAPHORES: PerProcess<HandleTable<Described<Semaphore>>> = PerProcess::new();

impl Handle for dlm_semaphore {
    type Object = Described<Semaphore>;
    const NAME: &str = "dlm_semaphore";
    const KIND: u8 = 22;
    fn table() -> &'static PerProcess<HandleTable<Described<Semaphore>>> {
        &SEMAPHORES
    }
}

/// Creates a handle of the semaphore `id` with so many permits, 1 to 256. `level` is DLM_LEVEL_DC or DLM_LEVEL_XDC. Does no I/O and
/// never blocks. On DLM_OK the caller owns `*semaphore_out`.
///
/// All processes must use the same number. The first grant decides it, and a handle with another one is refused: see
/// dlm_semaphore_resize(). A semaphore is kept under the name of a lock, and nobody can acquire that lock while a permit is held. Use
/// the name for one of them only.
///
/// Errors: DLM_INVALID_ARGUMENT also for a number that is not allowed, if the store keeps no semaphores, and for an id and a level
/// that dlm_manager_lock() refuses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_semaphore(
    manager: *const dlm_manager,
    id: *const c_char,
    level: i32,
    permits: i32,
    semaphore_out: *mut *mut dlm_semaphore,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("semaphore_out", semaphore_out, error_out, || {
            let manager = find(manager)?;
            let (id, level) = (text("semaphore id", id)?, self::level(level)?);
            into_handle(manager.semaphore(id, level, size(permits)?)?)
        })
    }
}

/// Tries once to acquire `count` permits, all or none, and writes their leases to `permits_out`, an array of `count` handles, in the
/// order of their numbers: see dlm_lease_permit(). `options` may be NULL. Their `wait_ms` must be 0 or DLM_DEFAULT. Blocks for one call
/// to the store. On DLM_OK the caller owns the leases. On failure all are NULL.
///
/// Each permit is kept alive, lost and released by itself, and has a fence of its own. The fences of one permit rise. Fences of
/// different permits say nothing about each other, so a receiver keeps one highest fence for each permit.
///
/// Errors: DLM_LOCK_UNAVAILABLE if too few permits are free; DLM_INVALID_ARGUMENT also for a count of zero or above the number of
/// permits, if the store knows the semaphore with another number, and for options that permits cannot have (a mode, an outer lease,
/// dies_with_process); the others of dlm_lock_try_acquire().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_semaphore_try_acquire(
    semaphore: *mut dlm_semaphore,
    count: usize,
    options: *const dlm_acquire_options,
    permits_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        acquired(permits_out, count, error_out, || {
            let semaphore = find(semaphore)?;
            let how = without_wait(acquire_options(options)?, "dlm_semaphore_try_acquire")?;
            Ok(Some(semaphore.try_acquire_with(counted(count), &how)?))
        })
    }
}

/// Acquires `count` permits, all or none, as dlm_semaphore_try_acquire() does, and waits for them. `options` may be NULL: then the
/// leases last for the manager's TTL and the call waits for the manager's wait, by default 90 s each.
///
/// Blocks until the permits are acquired, the wait times out or an error occurs. Threads of one manager acquire permits in the
/// order in which they arrived, whatever their counts are. Processes poll: one that asks for many permits may find too few again
/// and again while others ask for fewer.
///
/// Errors: DLM_LOCK_UNAVAILABLE if the wait timed out; DLM_CANCELLED; the others of dlm_semaphore_try_acquire(), which end the wait at
/// once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_semaphore_acquire(
    semaphore: *mut dlm_semaphore,
    count: usize,
    options: *const dlm_acquire_options,
    permits_out: *mut *mut dlm_lease,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        acquired(permits_out, count, error_out, || {
            let semaphore = find(semaphore)?;
            Ok(Some(semaphore.acquire_with(counted(count), &acquire_options(options)?)?))
        })
    }
}

/// Starts to acquire `count` permits as dlm_semaphore_acquire() does, and returns at once. dlm_pending_take_permits() has the result.
/// `options` may be NULL. On DLM_OK the caller owns `*pending_out`. Never blocks, except that it may start a thread.
///
/// Errors: DLM_INTERNAL_ERROR if no thread can be started; DLM_INVALID_ARGUMENT as for dlm_semaphore_acquire(), except for a number
/// of permits that the store does not know; DLM_CLOSED. dlm_pending_take_permits() returns all other errors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_semaphore_acquire_start(
    semaphore: *mut dlm_semaphore,
    count: usize,
    options: *const dlm_acquire_options,
    pending_out: *mut *mut dlm_pending,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("pending_out", pending_out, error_out, || {
            let (semaphore, count) = (find(semaphore)?, counted(count));
            let pending = semaphore.start(count, &acquire_options(options)?)?;
            into_handle(StartedAcquisition::OfPermits(pending, count))
        })
    }
}

/// Writes how many permits are free to `*available_out`, or -1 on failure: a hint, because others may take them meanwhile. Blocks for
/// one or two reads of the store.
///
/// Errors: those of dlm_lock_inspect().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_semaphore_available(
    semaphore: *const dlm_semaphore,
    available_out: *mut i32,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("available_out", available_out, error_out, || Ok(i32::from(find(semaphore)?.available()?)))
    }
}

/// Reads who holds permits, ordered by their numbers: a list whose elements are inspections of one permit each, see
/// dlm_lock_list_inspection(). All have the name of the semaphore. Blocks for one or two reads of the store. On DLM_OK the caller
/// owns `*list_out`.
///
/// Errors: those of dlm_lock_inspect().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_semaphore_holders(
    semaphore: *const dlm_semaphore,
    list_out: *mut *mut dlm_lock_list,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("list_out", list_out, error_out, || {
            let semaphore = find(semaphore)?;
            into_handle(LockList::of_holders(semaphore.name(), semaphore.holders()?))
        })
    }
}

/// Changes the number of permits in the store, 1 to 256, and creates a handle with this number. Permits that are held stay so: if
/// there are fewer now, none is granted before those with higher numbers are free. Other handles keep their number, and are refused
/// from now on. Blocks for one call to the store. On DLM_OK the caller owns `*semaphore_out`.
///
/// Errors: DLM_NOT_FOUND if the store knows no semaphore of this name, whose number the first grant decides then; DLM_IN_DOUBT if it
/// may be changed: call again; those of dlm_lock_inspect().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_semaphore_resize(
    semaphore: *mut dlm_semaphore,
    permits: i32,
    semaphore_out: *mut *mut dlm_semaphore,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("semaphore_out", semaphore_out, error_out, || {
            let semaphore = find(semaphore)?;
            into_handle(semaphore.resize(size(permits)?)?)
        })
    }
}

/// Returns the number of permits of this handle; 0 for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_semaphore_permits(semaphore: *const dlm_semaphore) -> i32 {
    value(0, || Ok(i32::from(find(semaphore)?.permits())))
}

/// Returns the name of the semaphore, as it is stored. "" for NULL. The text lives until `semaphore` is freed. Never returns NULL.
/// Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_semaphore_name(semaphore: *const dlm_semaphore) -> *const c_char {
    value(c"".as_ptr(), || Ok(find(semaphore)?.text(|semaphore| semaphore.name().key().to_owned())))
}

/// Frees a semaphore. NULL is allowed. Its permits stay held, and threads that wait for it continue to wait. Blocks only as
/// dlm_manager_free() says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_semaphore_free(semaphore: *mut dlm_semaphore) {
    freeing(|| free(semaphore));
}

/// A number of permits of a semaphore.
fn size(permits: i32) -> Outcome<u16> {
    let known = u16::try_from(permits).ok().filter(|permits| (1..=PERMITS_MAX).contains(permits));
    known.ok_or_else(|| Failure::invalid(format!("permits {permits} is not allowed: 1 to {PERMITS_MAX}")))
}
