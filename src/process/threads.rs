//! Starts the threads of the library. They have names, and block signals, which belong to the program.

use std::io;
use std::thread::{Builder, JoinHandle};
#[cfg(feature = "aerospike")]
use std::thread::{Scope, ScopedJoinHandle};

use super::signals::blocked_in_new_threads;

/// Starts a thread. Linux cuts the name after 15 bytes.
pub(crate) fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    blocked_in_new_threads(|| Builder::new().name(name).spawn(run))
}

/// Starts a thread that ends before `scope` does.
#[cfg(feature = "aerospike")]
pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
    name: &str,
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    blocked_in_new_threads(|| Builder::new().name(name.into()).spawn_scoped(scope, run))
}
