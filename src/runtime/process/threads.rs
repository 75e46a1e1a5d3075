//! The threads of the library. They have names, and block signals, which belong to the program. Each is joined by its
//! owner, and belongs to the process that started it.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
#[cfg(any(not(dlm_simulation), feature = "aerospike"))]
use std::thread::Builder;
#[cfg(feature = "aerospike")]
use std::thread::{Scope, ScopedJoinHandle};

use super::process_mark::ProcessMark;
use super::signals::blocked_in_new_threads;
#[cfg(dlm_simulation)]
use crate::runtime::simulation;

#[cfg(not(dlm_simulation))]
type Thread = std::thread::JoinHandle<()>;
#[cfg(dlm_simulation)]
type Thread = simulation::JoinHandle;

/// A thread. Its owner makes it end, and then joins it.
pub(crate) struct WorkerThread {
    thread: Thread,
    /// For the log.
    does: &'static str,
}

impl WorkerThread {
    /// Starts a thread, which for example `renews leases`. Linux cuts the name after 15 bytes.
    pub(crate) fn start(
        name: impl Into<String>,
        does: &'static str,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<WorkerThread> {
        #[cfg(not(dlm_simulation))]
        let thread =
            blocked_in_new_threads(|| Builder::new().name(name.into()).spawn(work)).map_err(refused)?;
        #[cfg(dlm_simulation)]
        let thread = blocked_in_new_threads(|| Ok::<_, io::Error>(simulation::spawn(name.into(), work)))?;
        Ok(WorkerThread { thread, does })
    }

    /// Waits for its end. Returns at once in the thread itself: what it runs may drop the last handle of its owner.
    pub(crate) fn join(self) {
        #[cfg(not(dlm_simulation))]
        let is_this = self.thread.thread().id() == std::thread::current().id();
        #[cfg(dlm_simulation)]
        let is_this = self.thread.is_current();
        if !is_this && self.thread.join().is_err() {
            log::error!("a thread that {} panicked", self.does);
        }
    }
}

/// What the threads of one owner share. A forked child has a copy of it and none of the threads, and a thread that it does
/// not have may hold the mutex in it.
#[derive(Debug)]
pub(crate) struct SharedWithThreads<S> {
    shared: Arc<S>,
    process: ProcessMark,
}

impl<S> SharedWithThreads<S> {
    pub(crate) fn new(shared: S) -> SharedWithThreads<S> {
        SharedWithThreads { shared: Arc::new(shared), process: ProcessMark::current() }
    }

    /// Returns what is shared, for the end of the threads. `None` in a forked child, where it is never dropped.
    pub(crate) fn in_its_process(&self) -> Option<&Arc<S>> {
        if self.process.is_current() {
            return Some(&self.shared);
        }
        std::mem::forget(Arc::clone(&self.shared));
        None
    }
}

impl<S> Deref for SharedWithThreads<S> {
    type Target = Arc<S>;

    fn deref(&self) -> &Arc<S> {
        &self.shared
    }
}

/// Says what the system's error means: its own words are that a resource is temporarily unavailable.
#[cfg(any(not(dlm_simulation), feature = "aerospike"))]
fn refused(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            error.kind(),
            format!(
                "the system starts no more threads for this user or container: raise the limit (ulimit -u, pids.max) or \
                 end other processes ({error})"
            ),
        ),
        _ => error,
    }
}

/// Lets other threads run.
#[inline]
pub(crate) fn yield_now() {
    #[cfg(not(dlm_simulation))]
    std::thread::yield_now();
    #[cfg(dlm_simulation)]
    simulation::step();
}

/// Starts a thread that ends before `scope` does.
#[cfg(feature = "aerospike")]
pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
    name: &str,
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    blocked_in_new_threads(|| Builder::new().name(name.into()).spawn_scoped(scope, run)).map_err(refused)
}
