//! The threads and processes that wait for a lock, as far as its holder knows them.

use std::time::Duration;

use crate::names::notice_endpoint::NoticeEndpoint;

/// The threads and processes that wait for a lock, as far as its holder knows them, returned by
/// [`Lock::waiting`](crate::Lock::waiting). The holder does not know of processes without [notices](crate::Builder::notices).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiters {
    /// The number of threads of the holder's process that wait.
    pub threads: u32,
    /// For how long the first of these threads has waited, in whole milliseconds.
    pub threads_waited: Duration,
    /// Other processes, in order of arrival; 40 at most.
    pub processes: Vec<WaitingProcess>,
}

/// A process that waits for a lock of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingProcess {
    /// Where it receives notices.
    pub endpoint: NoticeEndpoint,
    /// For how long it has waited, in whole milliseconds.
    pub waited: Duration,
}

impl Waiters {
    /// Returns how long the longest wait has lasted; `None` if nobody waits.
    pub fn longest(&self) -> Option<Duration> {
        let threads = (self.threads > 0).then_some(self.threads_waited);
        self.processes.iter().map(|process| process.waited).chain(threads).max()
    }
}
