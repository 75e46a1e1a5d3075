//! The lock in front of LMDB's own write lock: one writer on the machine at a time, and a wait with a deadline.

use std::fs::File;
use std::hint;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock, fstat};
use rustix::io::Errno;

use super::group_commit::Queue;
use super::shared_words::SharedWords;
use crate::runtime::sync::real::{TimedGuard, TimedMutex};
use crate::runtime::time::{self, Deadline, instant};

/// How long a thread watches the lock of another process before it lets others run: about as long as a write takes. A switch
/// to another process costs as much.
const SPIN_FOR: Duration = Duration::from_micros(7);
/// Number of pauses of the processor between two looks. A look at `gate` is a system call that the writer's own call waits for.
const PAUSES: u32 = 100;
/// How often it lets others run before it sleeps.
const EAGER_LOOKS: u32 = 20;
const SLEEP_FIRST: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_micros(500);

/// A writer lock with deadlines. LMDB's own write lock is a mutex without a time-out. A writer that was stopped
/// (SIGSTOP, a debugger, a frozen container) inside its few microseconds would block every other process beyond its
/// deadline. The holder of this lock finds LMDB's lock free.
///
/// Between threads it is a mutex. Between processes it is one of the [`SharedWords`] if they change the file through the memory map.
/// Otherwise it is a POSIX record lock on `gate`, because that lock ends with the process that acquired it, even if a forked
/// child lives on. An `flock` would not.
#[derive(Debug)]
pub(super) struct WriterLock {
    threads: TimedMutex<()>,
    gate: File,
    words: Option<SharedWords>,
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
    // Dropped after the lock between processes is free.
    turn: WriterTurn<'a>,
}

impl WriterLock {
    /// Opens the lock with its files, which must exist.
    ///
    /// Open each file at most once in a process: closing any descriptor of the file releases this process's record
    /// locks on it.
    pub(super) fn open(gate: &Path, words: Option<&Path>) -> io::Result<WriterLock> {
        let gate = File::options().read(true).write(true).open(gate)?;
        let words = words.map(SharedWords::open).transpose()?;
        Ok(WriterLock { threads: TimedMutex::new(()), gate, words, queue: Queue::default() })
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

    /// Returns whether the files were deleted. Other processes then use other files.
    pub(super) fn is_deleted(&self) -> io::Result<bool> {
        Ok(fstat(&self.gate)?.st_nlink == 0)
    }

    /// `None` if the file is changed by calls.
    pub(super) fn words(&self) -> Option<&SharedWords> {
        self.words.as_ref()
    }

    /// Takes the lock between processes if no other has it. With `is_late`, also if the one that has it has ended: that costs a
    /// system call.
    fn try_enter(&self, is_late: bool) -> io::Result<bool> {
        if let Some(words) = &self.words {
            return Ok(words.try_enter() || is_late && words.try_follow()?);
        }
        match fcntl_lock(&self.gate, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl<'a> WriterTurn<'a> {
    /// Waits until no other process writes, at most until `by`, but tries at least once.
    pub(super) fn enter(self, by: Deadline) -> io::Result<Option<WriterGuard<'a>>> {
        let (mut since, mut looks, mut sleep) = (None, 0, SLEEP_FIRST);
        loop {
            let is_last = by.passed();
            if self.lock.try_enter(is_last || looks == EAGER_LOOKS)? {
                return Ok(Some(WriterGuard { turn: self }));
            }
            if is_last {
                return Ok(None);
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
        if let Some(words) = &self.turn.lock.words {
            return words.leave();
        }
        // Unlocking a held lock fails only if the descriptor is not open. Closing the file or the end of the
        // process releases the lock then.
        let _ = fcntl_lock(&self.turn.lock.gate, FlockOperation::NonBlockingUnlock);
    }
}
