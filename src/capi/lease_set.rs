use super::acquire_options::{acquire_options, dlm_acquire_options};
use super::answer::{answer, status};
use super::arguments::{millis, output, slice, wait_without_default};
use super::error::dlm_error;
use super::failure::{Failure, Outcome};
use super::guard::{freeing, value, write};
use super::handles::HandleTable;
use super::lock::dlm_lock;
use super::manager::dlm_manager;
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::status::dlm_status;
use crate::LeaseSet;

/// The leases of several locks that were acquired together. It is valid while all of them are.
pub struct dlm_lease_set(());

/// More locks than any set has: the limit of a `count` that is wrong.
const COUNT_MAX: usize = 1 << 20;

static LEASE_SETS: PerProcess<HandleTable<LeaseSet>> = PerProcess::new();

impl Handle for dlm_lease_set {
    type Object = LeaseSet;
    const NAME: &str = "dlm_lease_set";
    const KIND: u8 = 17;
    fn table() -> &'static PerProcess<HandleTable<LeaseSet>> {
        &LEASE_SETS
    }
}

/// Acquires `count` locks of this manager together: all of them or none. The wait of the options is that for all of
/// them together. `options` may be NULL. On DLM_OK the caller owns `*leases_out`.
///
/// The locks are acquired one after the other in one order, whatever the order of `locks` is. So callers of this
/// function never wait for each other in a circle. A caller that already holds a lock which it acquired otherwise
/// may. While it waits, the library renews the leases that it has. At the end all are checked, and have about the
/// whole TTL left. If one was lost, or a lock cannot be acquired, all are released.
///
/// Errors: those of dlm_lock_acquire() for the first lock that cannot be acquired; DLM_LEASE_LOST if a lease
/// was lost while others were waited for; DLM_INVALID_ARGUMENT also for no lock, for a lock twice, for a lock of
/// another manager, and for several locks with a TTL below 100 ms.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_acquire_all(
    manager: *mut dlm_manager,
    locks: *const *mut dlm_lock,
    count: usize,
    options: *const dlm_acquire_options,
    leases_out: *mut *mut dlm_lease_set,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("leases_out", leases_out, error_out, || {
            let manager = find(manager)?;
            let handles = slice("locks", locks, count)?;
            let locks: Vec<_> = handles.iter().map(|lock| find(*lock)).collect::<Outcome<_>>()?;
            let how = acquire_options(options)?;
            let locks: Vec<_> = locks.iter().map(|lock| &***lock).collect();
            into_handle(manager.acquire_all(&locks, &how)?)
        })
    }
}

/// Checks all leases like dlm_lease_guard(), and then writes their fences to `fences_out`, an array of `count`
/// numbers in the order in which the locks were passed. `count` must be the number of locks. On failure all are 0. Never
/// blocks.
///
/// Errors: those of dlm_lease_guard() for the first lease that is not valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_set_guard(
    set: *const dlm_lease_set,
    fences_out: *mut u64,
    count: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        for at in 0..if fences_out.is_null() { 0 } else { count.min(COUNT_MAX) } {
            write(fences_out.wrapping_add(at), 0);
        }
        status(error_out, || {
            let set = find(set)?;
            output("fences_out", fences_out)?;
            if count != set.leases().len() {
                let what = format!("a count of {count} is not allowed: {}", set.leases().len());
                return Err(Failure::invalid(what));
            }
            for (at, fence) in set.guard()?.into_iter().enumerate() {
                write(fences_out.wrapping_add(at), fence.0);
            }
            Ok(())
        })
    }
}

/// Checks that no lease of the set has expired. See dlm_lease_check(). Never blocks.
///
/// Errors: DLM_LEASE_LOST for the first lease that is not valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_set_check(
    set: *const dlm_lease_set,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(set)?.check()?)) }
}

/// Returns the remaining time in milliseconds of the lease that ends first, rounded down; 0 if one has ended, and
/// for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_set_remaining_ms(set: *const dlm_lease_set) -> i64 {
    value(0, || Ok(millis(find(set)?.remaining())))
}

/// Keeps all leases of the set alive. See dlm_lease_keep(), whose errors it has for the first lease that is not
/// valid. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_set_keep(
    set: *mut dlm_lease_set,
    max_hold_ms: i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            let set = find(set)?;
            let max_hold =
                wait_without_default("max_hold_ms", max_hold_ms)?.unwrap_or(std::time::Duration::MAX);
            Ok(set.keep(max_hold)?)
        })
    }
}

/// Renews all leases of the set for their TTL from now, one after the other. Blocks for one call to the store for
/// each, see dlm_lease_renew().
///
/// Errors: those of dlm_lease_renew(), for the first lease that could not be renewed. The others are renewed
/// nevertheless.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_set_renew(
    set: *mut dlm_lease_set,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { status(error_out, || Ok(find(set)?.renew()?)) }
}

/// Releases all locks of the set. Blocks for one call to the store for each, see dlm_lease_release(). The handle
/// must still be freed. `freed_out` may be NULL. `*freed_out` is true if all locks were these leases' and are free
/// now.
///
/// Errors: those of dlm_lease_release(), for the first release that failed. The others are released nevertheless.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_set_release(
    set: *mut dlm_lease_set,
    freed_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(freed_out, false);
        status(error_out, || {
            let freed = find(set)?.release()?;
            write(freed_out, freed);
            Ok(())
        })
    }
}

/// Frees a set of leases. NULL is allowed. Releases the locks first that are still held, as dlm_lease_free() does for
/// each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_set_free(set: *mut dlm_lease_set) {
    freeing(|| free(set));
}
