//! What C sees of breaking a lock.

use std::ffi::c_char;

use super::answer::{answer, status};
use super::arguments::{output, text};
use super::error::dlm_error;
use super::guard::{freeing, write};
use super::handles::HandleTable;
use super::inspection::{dlm_inspection, inspected};
use super::lock::dlm_lock;
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::status::dlm_status;
use crate::Inspected;

/// What a process has seen of a lock: the holder, and which grant it is.
pub struct dlm_seen(());

static SEEN: PerProcess<HandleTable<Inspected>> = PerProcess::new();

impl Handle for dlm_seen {
    type Object = Inspected;
    const NAME: &str = "dlm_seen";
    const KIND: u8 = 20;
    fn table() -> &'static PerProcess<HandleTable<Inspected>> {
        &SEEN
    }
}

/// Reads who holds the lock, for dlm_seen_break(). Blocks for one or two reads of the store. On DLM_OK the caller owns
/// `*seen_out`.
///
/// Errors: those of dlm_lock_inspect().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_see(
    lock: *const dlm_lock,
    seen_out: *mut *mut dlm_seen,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe { answer("seen_out", seen_out, error_out, || into_handle(find(lock)?.inspected()?)) }
}

/// Writes what was seen to `*inspection_out`, as dlm_lock_inspect() does. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_seen_inspection(
    seen: *const dlm_seen,
    inspection_out: *mut dlm_inspection,
    inspection_size: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        inspected(inspection_out, inspection_size, error_out, || {
            Ok(dlm_inspection::of(find(seen)?.inspection()))
        })
    }
}

/// Frees what was seen. NULL is allowed. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_seen_free(seen: *mut dlm_seen) {
    freeing(|| free(seen));
}

/// Breaks the lock: takes it from the holder that was seen. For an operator, and a holder that does not release the lock and
/// cannot be reached. `reason` is for the history of the lock and for the holder: 1 to 255 bytes without control
/// characters.
///
/// Breaks just the grant that was seen, and sets `*broken_out` to true. If that grant is over, nothing is changed, and
/// `*broken_out` is false. `*fence_out` is a fence above the old holder's, for the receivers of its writes; 0 if nothing
/// was broken, if fencing is switched off, if another process acquired the lock first, or if the store failed after the
/// break. In the last two cases the fence of the next grant is above the old holder's. `*recorded_out` says whether the
/// history of the lock has an entry for the break. If not, the old holder finds its lease lost without a reason.
/// `recorded_out` may be NULL.
///
/// The old holder may go on working until it renews or releases its lease. That fails with DLM_LEASE_LOST, the reason
/// DLM_LOST_BROKEN, and the text of `reason`. Only receivers that compare fences are safe from it. Blocks for a few calls
/// to the store.
///
/// Errors: DLM_INVALID_ARGUMENT also if the lock was free, and for the lock of a Java client through a Thrift gateway;
/// DLM_IN_DOUBT if the lock may or may not be broken; those of dlm_lock_inspect().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_seen_break(
    seen: *mut dlm_seen,
    reason: *const c_char,
    broken_out: *mut bool,
    fence_out: *mut u64,
    recorded_out: *mut bool,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(broken_out, false);
        write(fence_out, 0);
        write(recorded_out, false);
        status(error_out, || {
            output("broken_out", broken_out)?;
            output("fence_out", fence_out)?;
            let broken = find(seen)?.break_holder(text("reason", reason)?)?;
            if let Some(broken) = broken {
                write(broken_out, true);
                write(fence_out, broken.fence.map_or(0, |fence| fence.0));
                write(recorded_out, broken.is_recorded);
            }
            Ok(())
        })
    }
}
