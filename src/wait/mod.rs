//! Waiting: queues for a lock, the threads that ask for waiters without a thread, and notices between processes.

pub(crate) mod asking;
pub(crate) mod completions;
mod fairness;
pub(crate) mod intents;
pub(crate) mod local_queues;
pub(crate) mod notices;
pub(crate) mod shared_reads;
