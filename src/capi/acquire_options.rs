use std::ffi::c_char;
use std::mem::offset_of;
use std::time::Duration;

use super::arguments::{DLM_MODE_EXCLUSIVE, millis, min_hold, mode, text, ttl, wait, wait_without_default};
use super::cancel::dlm_cancel;
use super::failure::{Failure, Outcome};
use super::lease::dlm_lease;
use super::process::find_optional;
use super::structs::{Versioned, read};
use crate::AcquireOptions;

/// How to acquire a lock, for dlm_lock_acquire() and the like. Begin with DLM_ACQUIRE_OPTIONS, and change what should differ:
/// `struct dlm_acquire_options how = DLM_ACQUIRE_OPTIONS; how.wait_ms = 5000;`
///
/// Calls read it and do not keep it. NULL in its place means DLM_ACQUIRE_OPTIONS. Later versions append fields, and 0 in them
/// changes nothing.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct dlm_acquire_options {
    /// sizeof(struct dlm_acquire_options).
    pub size: usize,
    /// How long the lease lasts unless it is renewed: 1 ms to 365 days. DLM_DEFAULT: the manager's option ttl.
    pub ttl_ms: i64,
    /// How long to wait for the lock at most. 0 tries once, DLM_FOREVER waits without limit. DLM_DEFAULT: the manager's
    /// option wait.
    pub wait_ms: i64,
    /// 0, or for how long the lease is kept alive from the grant on: see dlm_lease_keep(). DLM_FOREVER sets no limit.
    pub max_hold_ms: i64,
    /// 0, or for how long the lock stays held at least: see dlm_lease_hold_at_least().
    pub min_hold_ms: i64,
    /// NULL, or an object that ends the wait with DLM_CANCELLED.
    pub cancel: *const dlm_cancel,
    /// How the lock is held: DLM_MODE_SHARED or DLM_MODE_UPDATE. 0: in the mode of the lock's handle, which is
    /// DLM_MODE_EXCLUSIVE unless it comes from dlm_lock_in_mode().
    pub mode: i32,
    /// If it is true, others get the lock at once when this process ends in any way. For embedded stores only. Not together
    /// with `min_hold_ms`. False: the manager's option dies_with_process.
    pub dies_with_process: bool,
    /// Must be 0.
    pub reserved: [u8; 3],
    /// NULL, or a lease of the same lock within which the caller reads once more, in mode DLM_MODE_SHARED: writers that wait do not
    /// keep the acquisition out, because they wait for that lease. Release the new one before it.
    pub nested_in: *const dlm_lease,
    /// NULL, or a text of 1 to 255 bytes, which is read during the call: a key of the caller's, such as the id of an order.
    /// While this process holds the lock for that key, through this manager, the same key acquires it once more, in any
    /// thread. The leases share one hold with one fence. Each is released by itself, and the lock is free when the last one
    /// is. Blocks for one renewal at most. For DLM_MODE_EXCLUSIVE, dlm_lock_acquire() and dlm_lock_try_acquire(), without
    /// `min_hold_ms`.
    pub owner: *const c_char,
}

// SAFETY: numbers and pointers, which any bytes may be, and one bool, which is listed.
unsafe impl Versioned for dlm_acquire_options {
    const NAME: &str = "dlm_acquire_options";
    const FIRST: usize = 56;
    const BOOLS: &[usize] = &[offset_of!(dlm_acquire_options, dies_with_process)];
    const LATER_POINTERS: &[usize] =
        &[offset_of!(dlm_acquire_options, nested_in), offset_of!(dlm_acquire_options, owner)];
}

/// A caller's options.
///
/// # Safety
/// `options` is NULL or points to its size, and is readable for that size.
pub(super) unsafe fn acquire_options(options: *const dlm_acquire_options) -> Outcome<AcquireOptions> {
    let mut how = AcquireOptions::new();
    if options.is_null() {
        return Ok(how);
    }
    if !options.is_aligned() {
        return Err(Failure::invalid("the options are misaligned"));
    }
    // SAFETY: the caller guarantees it.
    let given = unsafe {
        let size = (*options).size;
        if size < dlm_acquire_options::FIRST {
            return Err(Failure::invalid(format!(
                "options of size {size} are not allowed: begin with DLM_ACQUIRE_OPTIONS"
            )));
        }
        read(options, size)?
    };
    if let Some(ttl) = ttl(given.ttl_ms)? {
        how = how.ttl(ttl);
    }
    if let Some(wait) = wait("wait_ms", given.wait_ms)? {
        how = how.wait(wait);
    }
    if given.max_hold_ms != 0 {
        let max_hold = wait_without_default("max_hold_ms", given.max_hold_ms)?;
        how = how.keep(max_hold.unwrap_or(Duration::MAX));
    }
    if given.min_hold_ms != 0 {
        how = how.min_hold(min_hold(given.min_hold_ms)?);
    }
    if let Some(cancel) = find_optional(given.cancel)? {
        how = how.cancel(&cancel);
    }
    if given.mode != DLM_MODE_EXCLUSIVE {
        how = how.mode(mode(given.mode)?);
    }
    if let Some(outer) = find_optional(given.nested_in)? {
        how = how.nested_in(&outer);
    }
    if !given.owner.is_null() {
        // SAFETY: the caller guarantees it.
        how = how.reentrant(unsafe { text("owner", given.owner) }?);
    }
    if given.dies_with_process {
        how = how.dies_with_process();
    }
    match given.reserved {
        [0, 0, 0] => Ok(how),
        other => Err(Failure::invalid(format!("reserved {other:?} is not allowed: 0"))),
    }
}

/// The options of a call that does not wait.
pub(super) fn without_wait(how: AcquireOptions, call: &str) -> Outcome<AcquireOptions> {
    match how.wait.filter(|wait| !wait.is_zero()) {
        None => Ok(how),
        Some(wait) => {
            let given = if wait == Duration::MAX { "DLM_FOREVER".into() } else { millis(wait).to_string() };
            Err(Failure::invalid(format!(
                "wait_ms {given} is not allowed: 0 or DLM_DEFAULT, because {call}() does not wait"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_size_and_no_padding() {
        assert_eq!(offset_of!(dlm_acquire_options, reserved) + 3, dlm_acquire_options::FIRST);
        assert_eq!(offset_of!(dlm_acquire_options, nested_in), dlm_acquire_options::FIRST);
        assert_eq!(size_of::<dlm_acquire_options>(), dlm_acquire_options::FIRST + 16);
    }
}
