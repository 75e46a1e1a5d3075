//! Where threads that wait for a latch park, and what they are told.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::Error;
use crate::latch_name::LatchName;
use crate::name::Level;
use crate::time::Moment;
use crate::wait::timerfd::Timerfd;

/// What is watched: a latch, and whether one farm's count or the sum over all.
pub(crate) type LatchKey = (LatchName, Level);

/// What those share who wait for one latch.
pub(crate) struct Watch {
    pub(crate) key: Arc<LatchKey>,
    state: Mutex<Seen>,
    wake: Condvar,
    /// Made by the first who asks for it, under `state`; goes off at the end.
    timerfd: OnceLock<Timerfd>,
}

/// What is known to those who wait.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) end: Option<End>,
    /// Looks answered so far.
    pub(crate) looks: u64,
    /// Why the last look saw nothing, if it did not.
    pub(crate) trouble: Option<Arc<Error>>,
    /// Those whose wait is over and who wait for the first look all the same.
    pub(crate) overdue: usize,
}

/// How a watch ends.
#[derive(Debug, Clone)]
pub(crate) enum End {
    Open,
    /// The latch is gone, cannot be asked for, or the read panicked.
    Failed(Arc<Error>),
    Closed,
}

impl Watch {
    pub(super) fn new(key: Arc<LatchKey>) -> Watch {
        Watch { key, state: Mutex::default(), wake: Condvar::new(), timerfd: OnceLock::new() }
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.state.lock()
    }

    pub(crate) fn park(&self, seen: &mut MutexGuard<'_, Seen>, time: Duration) {
        self.wake.wait_for(seen, time);
    }

    /// Lets all who wait look up.
    pub(crate) fn wake_all(&self) {
        // Locked, so that nobody is between looking and parking.
        let _seen = self.state.lock();
        self.wake.notify_all();
    }

    /// A descriptor that is readable once the watch has ended.
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
            log::error!("the descriptor of latch {} was not set: {error}", self.key.0);
        }
        drop(seen);
        self.wake.notify_all();
    }

    /// Look `number` has been answered, and did not end it.
    pub(super) fn looked(&self, number: u64, trouble: Option<Arc<Error>>) {
        let mut seen = self.state.lock();
        seen.looks = number;
        seen.trouble = trouble;
        if seen.overdue > 0 {
            self.wake.notify_all();
        }
    }
}
