//! Waiting: queues for a lock, the threads that ask for waiters without a thread, one poller for all latches, and
//! background threads for later work.

pub(crate) mod asking;
pub(crate) mod background;
pub(crate) mod completions;
mod fairness;
pub(crate) mod freeing;
pub(crate) mod latch_notes;
pub(crate) mod looks;
pub(crate) mod notices;
pub(crate) mod poller;
pub(crate) mod queue;
pub(crate) mod slow_mutex;
pub(crate) mod timerfd;
pub(crate) mod watch;
pub(crate) mod watched_latch;
