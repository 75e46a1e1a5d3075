//! Starts the threads of the library. They have names, and block signals, which belong to the program.

use std::io;
#[cfg(any(not(dlm_simulation), feature = "aerospike"))]
use std::thread::Builder;
#[cfg(feature = "aerospike")]
use std::thread::{Scope, ScopedJoinHandle};

use super::signals::blocked_in_new_threads;
#[cfg(dlm_simulation)]
use crate::runtime::simulation;

/// A thread that can be joined.
#[cfg(not(dlm_simulation))]
pub(crate) type Thread = std::thread::JoinHandle<()>;
#[cfg(dlm_simulation)]
pub(crate) type Thread = simulation::JoinHandle;

/// Starts a thread. Linux cuts the name after 15 bytes.
pub(crate) fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    #[cfg(not(dlm_simulation))]
    return blocked_in_new_threads(|| Builder::new().name(name).spawn(run)).map_err(refused);
    #[cfg(dlm_simulation)]
    return blocked_in_new_threads(|| Ok(simulation::spawn(name, run)));
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

/// Returns whether this thread is the one that was started with `spawn`.
pub(crate) fn is_current(thread: &Thread) -> bool {
    #[cfg(not(dlm_simulation))]
    return thread.thread().id() == std::thread::current().id();
    #[cfg(dlm_simulation)]
    return thread.is_current();
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
