//! What C sees of a list of completions.

use std::os::fd::AsRawFd;

use super::answer::{answer, status};
use super::arguments::{output, wait_without_default};
use super::error::dlm_error;
use super::guard::{freeing, value, write};
use super::handles::HandleTable;
use super::lease::dlm_lease;
use super::lost_reason::{DLM_LOST_NOT, reason_number};
use super::process::{Handle, PerProcess, find, find_optional, free, into_handle};
use super::status::dlm_status;
use super::structs::{Versioned, check_size, found_struct, write_struct, zero};
use crate::Completions;
use crate::wait::completions::{Completion, CompletionKind};

/// A list of what has happened to pending acquisitions and leases, for programs with many of them: one list serves any number
/// of them, of any managers. A program waits for it with dlm_completions_wait(), or polls its descriptor.
pub struct dlm_completions(());

static COMPLETIONS: PerProcess<HandleTable<Completions>> = PerProcess::new();

impl Handle for dlm_completions {
    type Object = Completions;
    const NAME: &str = "dlm_completions";
    const KIND: u8 = 16;
    fn table() -> &'static PerProcess<HandleTable<Completions>> {
        &COMPLETIONS
    }
}

/// Kind of a completion: the pending acquisition has finished, see dlm_pending_notify().
pub const DLM_COMPLETION_FINISHED: i32 = 1;
/// Kind of a completion: the lease is at risk, see DLM_STATE_AT_RISK and dlm_lease_notify().
pub const DLM_COMPLETION_AT_RISK: i32 = 2;
/// Kind of a completion: the lease is not valid any more, see dlm_lease_notify().
pub const DLM_COMPLETION_ENDED: i32 = 3;

/// One thing that has happened. Later versions append fields and kinds.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct dlm_completion {
    /// The tag that was given to dlm_pending_notify() or dlm_lease_notify().
    pub tag: u64,
    /// What has happened: one of the numbers DLM_COMPLETION_*.
    pub kind: i32,
    /// For DLM_COMPLETION_ENDED: why the lease was lost, one of the numbers DLM_LOST_*. DLM_LOST_NOT if it was released, and
    /// for other kinds.
    pub lost_reason: i32,
}

// SAFETY: numbers.
unsafe impl Versioned for dlm_completion {
    const NAME: &str = "dlm_completion";
    const FIRST: usize = 16;
}

impl From<Completion> for dlm_completion {
    fn from(completion: Completion) -> dlm_completion {
        let (kind, lost) = match completion.kind {
            CompletionKind::Finished => (DLM_COMPLETION_FINISHED, None),
            CompletionKind::AtRisk => (DLM_COMPLETION_AT_RISK, None),
            CompletionKind::Ended(lost) => (DLM_COMPLETION_ENDED, lost),
        };
        dlm_completion { tag: completion.tag, kind, lost_reason: lost.map_or(DLM_LOST_NOT, reason_number) }
    }
}

/// Creates an empty list. Returns NULL only if too many are open. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_completions_new() -> *mut dlm_completions {
    value(std::ptr::null_mut(), || into_handle(Completions::new()))
}

/// Writes a file descriptor for poll() and similar calls to `*fd_out`, or -1 on failure. It is readable while the
/// list is not empty. The list owns the descriptor. Every call writes the same one. Do not read or close it.
/// dlm_completions_free() closes it. Never blocks.
///
/// Errors: DLM_INTERNAL_ERROR if the process has no descriptor left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_completions_fd(
    completions: *const dlm_completions,
    fd_out: *mut i32,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("fd_out", fd_out, error_out, || Ok(find(completions)?.fd()?.as_raw_fd())) }
}

/// Takes what happened first out of the list and writes it to `*completion_out`. `completion_size` is sizeof(struct
/// dlm_completion). Returns false and writes zeros if the list is empty, was freed or is that of another process, and if the size
/// is not allowed. Call it until it returns false: an empty list's descriptor is not readable. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_completions_next(
    completions: *mut dlm_completions,
    completion_out: *mut dlm_completion,
    completion_size: usize,
) -> bool {
    // SAFETY: the output is as the header asks.
    unsafe {
        found_struct(completion_out, completion_size, || {
            output("completion_out", completion_out)?;
            Ok(find(completions)?.next_completion().map(dlm_completion::from))
        })
    }
}

/// Waits until the list is not empty, takes what happened first out of it and writes it to `*completion_out`.
/// `completion_size` is sizeof(struct dlm_completion). `*found_out` is false if the wait timed out. For programs that cannot
/// poll a descriptor. Several threads may wait for one list, and each gets something else.
///
/// Blocks for up to `wait_ms`: 0 does not wait, DLM_FOREVER waits without limit. dlm_completions_free() ends the wait.
///
/// Errors: DLM_CLOSED if the list was freed during the wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_completions_wait(
    completions: *mut dlm_completions,
    wait_ms: i64,
    completion_out: *mut dlm_completion,
    completion_size: usize,
    found_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        zero(completion_out, completion_size);
        write(found_out, false);
        status(error_out, || {
            output("completion_out", completion_out)?;
            output("found_out", found_out)?;
            let completions = find(completions)?;
            check_size::<dlm_completion>(completion_size)?;
            let found = completions.wait(wait_without_default("wait_ms", wait_ms)?)?;
            if let Some(found) = found {
                write_struct(completion_out, completion_size, &found.into());
                write(found_out, true);
            }
            Ok(())
        })
    }
}

/// Frees a list. NULL is allowed. Ends the waits for it. Pending acquisitions and leases that were given it continue. Never
/// blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_completions_free(completions: *mut dlm_completions) {
    freeing(|| {
        // An error of it is that of `free`.
        if let Ok(Some(list)) = find_optional(completions) {
            list.close();
        }
        free(completions)
    });
}

/// Adds `tag` to `completions` each time that the lease becomes at risk (DLM_COMPLETION_AT_RISK), and when it is not valid any
/// more (DLM_COMPLETION_ENDED), or at once if that is so already. A renewal by the program may bring back a lease that had
/// expired. Then it may end again. The list has each of the two at most once. The program that takes one reads the state of the lease.
/// dlm_lease_free() takes the tag out again, and adds nothing.
///
/// A change by the clock may be in the list up to 200 ms late, and a second later while the library asks the store why another
/// lease was lost. dlm_lease_check() is never late. All leases of a manager share
/// one thread for this, and need no descriptor. Never blocks, except that it may start that thread.
///
/// Errors: DLM_INVALID_ARGUMENT also for a second call; DLM_INTERNAL_ERROR if no thread can be started; DLM_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lease_notify(
    lease: *mut dlm_lease,
    completions: *mut dlm_completions,
    tag: u64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        status(error_out, || {
            let (lease, completions) = (find(lease)?, find(completions)?);
            Ok(lease.notify(&completions, tag)?)
        })
    }
}
