//! The lock in front of LMDB's own write lock: one writer on the machine at a time, and a wait with a deadline.

use std::fs::File;
use std::hint;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;

use super::group_commit::Queue;
use crate::runtime::sync::real::{TimedGuard, TimedMutex};
use crate::runtime::time::{self, Deadline, instant};

/// How long a thread watches the lock of another process before it lets others run: about as long as a write takes. A switch
/// to another process costs as much.
const SPIN_FOR: Duration = Duration::from_micros(7);
/// Number of pauses of the processor between two looks. Each look is a system call that the writer's own call waits for.
const PAUSES: u32 = 100;
/// How often it lets others run before it sleeps.
const EAGER_LOOKS: u32 = 20;
const SLEEP_FIRST: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_micros(500);

/// A writer lock with deadlines. LMDB's own write lock is a mutex without a time-out. A writer that was stopped
/// (SIGSTOP, a debugger, a frozen container) inside its few microseconds would block every other process beyond its
/// deadline. The holder of this lock finds LMDB's lock free.
///
/// Between threads it is a mutex. Between processes it is a POSIX record lock, because that lock ends with the
/// process that acquired it, even if a forked child lives on. An `flock` would not.
#[derive(Debug)]
pub(super) struct WriterLock {
    threads: TimedMutex<()>,
    file: File,
    /// Changes of threads that do not wait for their own turn.
    pub(super) queue: Queue,
}

/// The right of one thread of the process to wait for the lock. Dropping it wakes up a thread whose change is queued.
#[derive(Debug)]
pub(super) struct WriterTurn<'a> {
    /// `None` only during `drop`.
    thread: Option<TimedGuard<'a, ()>>,
    lock: &'a WriterLock,
}

/// Held while writing. Dropping it releases the lock.
#[derive(Debug)]
pub(super) struct WriterGuard<'a> {
    // Dropped after the file is unlocked.
    turn: WriterTurn<'a>,
}

impl WriterLock {
    /// Opens the lock with the file at `path`, which must exist.
    ///
    /// Open each file at most once in a process: closing any descriptor of the file releases this process's record
    /// locks on it.
    pub(super) fn open(path: &Path) -> io::Result<WriterLock> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(WriterLock { threads: TimedMutex::new(()), file, queue: Queue::default() })
    }

    /// Returns the turn if no other thread has it.
    pub(super) fn try_turn(&self) -> Option<WriterTurn<'_>> {
        let thread = self.threads.try_lock()?;
        Some(WriterTurn { thread: Some(thread), lock: self })
    }

    /// Waits for the turn until `by`. Returns `None` if other threads had it.
    pub(super) fn turn(&self, by: Deadline) -> Option<WriterTurn<'_>> {
        let thread = self.threads.try_lock_for(by.remaining())?;
        Some(WriterTurn { thread: Some(thread), lock: self })
    }

    /// Returns whether the file was deleted. Other processes then use another file.
    pub(super) fn is_deleted(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() == 0)
    }
}

impl<'a> WriterTurn<'a> {
    /// Waits until no other process writes, at most until `by`, but tries at least once.
    pub(super) fn enter(self, by: Deadline) -> io::Result<Option<WriterGuard<'a>>> {
        let (mut since, mut looks, mut sleep) = (None, 0, SLEEP_FIRST);
        loop {
            match fcntl_lock(&self.lock.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(WriterGuard { turn: self })),
                Err(Errno::AGAIN | Errno::ACCESS) if by.passed() => return Ok(None),
                Err(Errno::AGAIN | Errno::ACCESS) => {}
                Err(error) => return Err(error.into()),
            }
            let now = instant();
            if now.duration_since(*since.get_or_insert(now)) < SPIN_FOR {
                (0..PAUSES).for_each(|_| hint::spin_loop());
            } else if looks < EAGER_LOOKS {
                looks += 1;
                thread::yield_now();
            } else {
                time::sleep(sleep.min(by.remaining()));
                sleep = (2 * sleep).min(SLEEP_MAX);
            }
        }
    }
}

impl Drop for WriterTurn<'_> {
    fn drop(&mut self) {
        self.thread = None;
        // A change that was queued since the batch was taken would wait for the next thread that happens to write.
        self.lock.queue.call_oldest();
    }
}

impl Drop for WriterGuard<'_> {
    fn drop(&mut self) {
        // Unlocking a held lock fails only if the descriptor is not open. Closing the file or the end of the
        // process releases the lock then.
        let _ = fcntl_lock(&self.turn.lock.file, FlockOperation::NonBlockingUnlock);
    }
}
