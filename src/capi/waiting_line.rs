//! What C learns of those that wait for a lock.

use super::answer::status;
use super::arguments::{millis, output};
use super::error::dlm_error;
use super::guard::write;
use super::lock::dlm_lock;
use super::process::find;
use super::status::dlm_status;

/// Asks the holder of the lock who waits for it. `*known_out` is false if the lock is free, or if the holder has notices off
/// (the option notices) or does not answer. Then the other outputs are 0.
///
/// `*threads_out` is the number of threads of the holder's process that wait, and `*processes_out` that of other processes,
/// which stops at 40. `*longest_ms_out` is the time that one of them has waited longest, in milliseconds; 0 if nobody
/// waits. Only a hint: processes without notices wait unseen, and a datagram can be forged. This process needs no notices,
/// but an address that the holder can reach. Blocks for one or two reads of the store, and for 200 ms at most for the
/// answer.
///
/// Errors: those of dlm_lock_inspect().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_waiting(
    lock: *const dlm_lock,
    known_out: *mut bool,
    threads_out: *mut u64,
    processes_out: *mut u64,
    longest_ms_out: *mut i64,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        write(known_out, false);
        write(threads_out, 0);
        write(processes_out, 0);
        write(longest_ms_out, 0);
        status(error_out, || {
            output("known_out", known_out)?;
            output("threads_out", threads_out)?;
            output("processes_out", processes_out)?;
            output("longest_ms_out", longest_ms_out)?;
            if let Some(waiters) = find(lock)?.waiting()? {
                write(known_out, true);
                write(threads_out, waiters.threads.into());
                write(processes_out, waiters.processes.len() as u64);
                write(longest_ms_out, waiters.longest().map_or(0, millis));
            }
            Ok(())
        })
    }
}
