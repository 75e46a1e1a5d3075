//! The result of something under way: one caller takes it, and a descriptor tells of it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::names::lock_name::LockName;
use crate::runtime::sync::Mutex;
use crate::runtime::time::Moment;
use crate::runtime::timerfd::Timerfd;

pub(crate) struct ResultSlot<T> {
    /// Stands before a lock's name in messages.
    what: &'static str,
    state: Mutex<SlotState<T>>,
    /// Created by the first call of [`ResultSlot::fd`], under `state`.
    timerfd: OnceLock<Timerfd>,
}

enum SlotState<T> {
    Open,
    Finished(Result<T>),
    Taken,
}

impl<T> ResultSlot<T> {
    pub(crate) fn open(what: &'static str) -> ResultSlot<T> {
        ResultSlot { what, state: Mutex::new(SlotState::Open), timerfd: OnceLock::new() }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(*self.state.lock(), SlotState::Open)
    }

    /// Sets the result. It must be open.
    pub(crate) fn finish(&self, name: &LockName, result: Result<T>) {
        let mut state = self.state.lock();
        *state = SlotState::Finished(result);
        if let Some(Err(error)) = self.timerfd.get().map(|timerfd| timerfd.set(Moment::OVER)) {
            log::error!("the timer of the {} {name} could not be set: {error}", self.what);
        }
    }

    /// Returns the result once, and `Ok(None)` before there is one.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it was taken before.
    pub(crate) fn take(&self, name: &LockName) -> Result<Option<T>> {
        let mut state = self.state.lock();
        if matches!(*state, SlotState::Open) {
            return Ok(None);
        }
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Finished(result) => result.map(Some),
            _ => Err(Error::invalid(self.what, name.key(), "one whose result was not taken before")),
        }
    }

    /// Returns a descriptor that is readable when there is a result.
    ///
    /// # Errors
    /// INTERNAL_ERROR if the process has no descriptor left.
    pub(crate) fn fd(&self, name: &LockName) -> Result<BorrowedFd<'_>> {
        if let Some(timerfd) = self.timerfd.get() {
            return Ok(timerfd.as_fd());
        }
        let state = self.state.lock();
        let when = if matches!(*state, SlotState::Open) { Moment::NEVER } else { Moment::OVER };
        let timerfd = Timerfd::at(when).map_err(|error| Error::Internal {
            what: format!("no descriptor for the {} {name}", self.what),
            source: Some(error.into()),
        })?;
        Ok(self.timerfd.get_or_init(|| timerfd).as_fd())
    }
}
