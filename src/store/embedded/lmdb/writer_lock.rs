//! The lock in front of LMDB's own write lock: one writer of the machine at a time, and a wait that ends.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;

use crate::time::{self, Deadline};

/// A writer is done after some ten microseconds, so the first looks come right after each other.
const EAGER_LOOKS: u32 = 20;
const SLEEP_FIRST: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_micros(500);

/// Why it is there: LMDB's own write lock is a mutex without a time-out, and a writer that was stopped
/// (SIGSTOP, a debugger, a frozen container) inside its few microseconds would hang every other
/// process of the machine beyond all deadlines. Whoever holds this lock finds LMDB's lock free.
///
/// Between threads it is a mutex; between processes a POSIX record lock, because that one ends with
/// the process that took it, also when a forked child lives on (an `flock` would not).
#[derive(Debug)]
pub(super) struct WriterLock {
    threads: Mutex<()>,
    file: File,
}

/// Held while writing. Dropping it gives the lock back.
#[derive(Debug)]
pub(super) struct WriterGuard<'a> {
    file: &'a File,
    _thread: MutexGuard<'a, ()>,
}

impl WriterLock {
    /// The lock whose file is at `path`, which must exist.
    ///
    /// At most one per process and file: closing any descriptor of the file gives up this process's
    /// record locks on it.
    pub(super) fn open(path: &Path) -> io::Result<WriterLock> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(WriterLock { threads: Mutex::new(()), file })
    }

    /// Waits for the lock until `by`; looks at least once. `None` when it stayed locked.
    pub(super) fn enter(&self, by: Deadline) -> io::Result<Option<WriterGuard<'_>>> {
        let Some(thread) = self.threads.try_lock_for(by.remaining()) else { return Ok(None) };
        let (mut looks, mut sleep) = (0, SLEEP_FIRST);
        loop {
            match fcntl_lock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(WriterGuard { file: &self.file, _thread: thread })),
                Err(Errno::AGAIN | Errno::ACCESS) if by.passed() => return Ok(None),
                Err(Errno::AGAIN | Errno::ACCESS) => {}
                Err(error) => return Err(error.into()),
            }
            looks += 1;
            if looks < EAGER_LOOKS {
                thread::yield_now();
            } else {
                time::sleep(sleep.min(by.remaining()));
                sleep = (2 * sleep).min(SLEEP_MAX);
            }
        }
    }

    /// Whether someone deleted the file under us, and with it the place where others would look.
    pub(super) fn is_deleted(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() == 0)
    }
}

impl Drop for WriterGuard<'_> {
    fn drop(&mut self) {
        // Unlocking a lock one holds fails only for a descriptor that is not open; closing the file,
        // or the end of the process, would release it then.
        let _ = fcntl_lock(self.file, FlockOperation::NonBlockingUnlock);
    }
}
