//! Waiting for latches: one read of a latch serves all its waiters.

pub(crate) mod notes;
pub(crate) mod poller;
pub(crate) mod watch;
pub(crate) mod watched_latch;
