//! The state that threads share while they wait for a latch, and on which they park.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::Error;
use crate::names::latch_name::LatchName;
use crate::names::lock_name::Level;
use crate::runtime::sync::{Condvar, Mutex, MutexGuard};
use crate::runtime::time::Moment;
use crate::runtime::timerfd::Timerfd;

/// A watched latch, and the level of its count: one farm's, or the sum over all.
pub(crate) type LatchKey = (LatchName, Level);

/// State shared by the waiters of one latch.
pub(crate) struct Watch {
    pub(crate) key: Arc<LatchKey>,
    state: Mutex<WatchState>,
    wake: Condvar,
    /// Created by the first call of [`fd`](Watch::fd), under `state`. Becomes readable when the watch ends.
    timerfd: OnceLock<Timerfd>,
}

/// What the waiters know about the latch.
#[derive(Default)]
pub(crate) struct WatchState {
    pub(crate) end: Option<End>,
    /// Number of the last read that was answered.
    pub(crate) looks: u64,
    /// Error of the last read, if it failed.
    pub(crate) failure: Option<Arc<Error>>,
    /// Number of waiters whose time is over but who still wait for their first read.
    pub(crate) overdue: usize,
}

/// How a watch ends.
#[derive(Debug, Clone)]
pub(crate) enum End {
    Open,
    /// The latch does not exist, the store refuses the read for good, or the read panicked.
    Failed(Arc<Error>),
    Closed,
}

impl Watch {
    pub(super) fn new(key: Arc<LatchKey>) -> Watch {
        Watch { key, state: Mutex::default(), wake: Condvar::new(), timerfd: OnceLock::new() }
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock()
    }

    pub(crate) fn park(&self, seen: &mut MutexGuard<'_, WatchState>, time: Duration) {
        self.wake.wait_for(seen, time);
    }

    /// Wakes all waiters.
    pub(crate) fn wake_all(&self) {
        // With the lock held, no waiter is between its check and parking.
        let _seen = self.state.lock();
        self.wake.notify_all();
    }

    /// Returns a descriptor that is readable once the watch has ended.
    pub(crate) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(timerfd) = self.timerfd.get() {
            return Ok(timerfd.as_fd());
        }
        let seen = self.state.lock();
        let timerfd = Timerfd::at(if seen.end.is_some() { Moment::OVER } else { Moment::NEVER })?;
        Ok(self.timerfd.get_or_init(|| timerfd).as_fd())
    }

    pub(super) fn end(&self, end: End) {
        let mut seen = self.state.lock();
        seen.end.get_or_insert(end);
        if let Some(timerfd) = self.timerfd.get()
            && let Err(error) = timerfd.set(Moment::OVER)
        {
            log::error!("the timer of latch {} could not be set: {error}", self.key.0);
        }
        drop(seen);
        self.wake.notify_all();
    }

    /// Records that read `number` was answered, and did not end the watch.
    pub(super) fn has_read(&self, number: u64, failure: Option<Arc<Error>>) {
        let mut seen = self.state.lock();
        seen.looks = number;
        seen.failure = failure;
        if seen.overdue > 0 {
            self.wake.notify_all();
        }
    }
}
