//! Waiting: queues of threads for a lock, one poller for all latches, and background threads for later work.

pub(crate) mod background;
mod fairness;
pub(crate) mod freeing;
pub(crate) mod poller;
pub(crate) mod queue;
pub(crate) mod timerfd;
pub(crate) mod watch;
pub(crate) mod watched_latch;
