//! How this process waits: for a lock in a queue of threads, for a latch behind one poller, and in the
//! library's own threads for what is done later.

pub(crate) mod background;
mod fairness;
pub(crate) mod freeing;
pub(crate) mod poller;
pub(crate) mod queue;
pub(crate) mod timerfd;
pub(crate) mod watch;
pub(crate) mod watched_latch;
