//! Distributed locks and latches on the stores you already run, for blocking, threaded code.
//!
//! A [`Lock`] is a name. Acquiring it returns a [`Lease`], which expires by itself unless it is renewed. The
//! lease carries a [`Fence`]: a number that grows with every grant of the lock. Send it along with each write
//! that the lock guards.
//!
//! ```
//! use dlm::{Level, LockManager};
//! use std::time::Duration;
//!
//! let manager = LockManager::builder()
//!     .store_uri("memory:") // or embedded:, hbase://..., aerospike://...
//!     .client("order-service")
//!     .farm("dc1")
//!     .open()?;
//! manager.initialize()?;
//!
//! let lock = manager.lock("order-42", Level::Dc)?;
//! let lease = lock.acquire_within(Duration::from_secs(30), Duration::from_secs(5))?;
//! lease.check()?; // before each step that needs the lock: nanoseconds, no I/O
//! println!("writing with fence {}", lease.fence().expect("this store fences"));
//! assert!(lease.release()?);
//! # Ok::<(), dlm::Error>(())
//! ```
//!
//! # How a call flows
//!
//! `src/handles/acquire.rs` is the main flow: it shows an acquire from the call to the lease.
//!
//! ```text
//! LockManager --> Lock --> Lease    Latch       what callers hold
//!     |            |         |        |
//!     +---------- session ---+--------+         the held leases; whether it was closed or forked
//!                  |                  |
//!             wait::local_queues       latch::poller   one waiter per lock asks the store; one read of a latch
//!                  |                  |         serves all its waiters; the other threads park
//!          store::LockStore   store::LatchStore each request happened, did not happen, or is in doubt
//!            |        |    |
//!        memory  embedded  store::remote        the lock protocol over a network, written once
//!                             |      |
//!                          hbase  aerospike
//!
//! runtime::background                           the library's threads: read latches for the poller, and
//!                                               free locks that requests in doubt may have acquired
//! wait::asking                                  the library's threads that ask for waiters without a thread
//! ```
//!
//! # What is promised
//!
//! * **Exclusion** by the store's clock: while a lease lasts, the store grants the lock to nobody else. This
//!   process counts the lease from before the request was sent, and makes it a tenth shorter. So the lease
//!   expires here first, also while clocks are being corrected: see [`Builder::clock_margin_ppm`].
//! * **Fences** grow with every grant of a lock, even if requests were lost or late, or processes paused. A
//!   paused process may wake up after its lease has expired. Then only a receiver that compares fences is safe:
//!   no lock service can stop a write that is already on its way. A paused or migrated virtual machine may not
//!   see the pause in any of its clocks, so [`Lease::check`] may not see it either: only a fence helps.
//! * **Exact outcomes**: a request did not happen, happened, or is in doubt ([`Error::is_in_doubt`]). The
//!   library settles a doubt by reading. It never sends a write again blindly.
//! * **Bounded calls**: each call to a store has a deadline. Waiting threads park. A release in this process,
//!   the end of the retry interval, a [`CancelToken`] or [`LockManager::close`] wakes them.
//! * **Latches** count each step once. Creating an existing latch never adds to its count. A missing latch is
//!   reported as [`Code::NotFound`]. A wait ends when the latch opens or disappears; temporary failures of the
//!   store do not end it.
//!
//! The receiver of a write compares its fence. `lease.row(&table, key)` returns a row of HBase (module `hbase`),
//! and `lease.record(&records, key)` a record of Aerospike (module `aerospike`). These servers refuse a stale
//! holder with [`Code::StaleFence`]. Rows can be created once, compared and set, or modified without a lock.
//!
//! [`IdLock`] serves the threads of one process: a lock per id, which exists only while it is used. A
//! [`FenceGate`] compares the fences of processes that write to one file or socket of a machine.
//!
//! All types are `Send + Sync` unless they say otherwise. The API needs no async runtime (Aerospike's client
//! brings its own, which the calling thread drives). No thread is started until one is needed. The library's
//! threads block signals, and no call raises SIGPIPE.

/// The `dlm` command and the helpers of unit tests use the library by its name, as other programs do.
#[cfg(any(feature = "cli", test))]
extern crate self as dlm;

// Interfaces for other languages and for the shell.
#[cfg(feature = "capi")]
mod capi;
#[cfg(feature = "cli")]
pub mod cli;

// What callers hold.
#[cfg(feature = "aerospike")]
pub mod aerospike;
mod handles;
#[cfg(feature = "hbase")]
pub mod hbase;

// What is held, closed and forked, and what happens to a lease or to those who wait.
pub mod events;
mod latch;
mod lease;
mod session;
mod wait;

// Stores of locks and latches.
pub mod store;

// For the threads and files of one machine.
mod local;

// The ground. It imports nothing from the modules above.
mod error;
mod names;
mod runtime;
mod settings;

#[cfg(test)]
mod testing;

pub use error::{Cause, Code, Error, Result};
pub use handles::acquire_options::AcquireOptions;
pub use handles::break_holder::{Broken, Inspected};
pub use handles::builder::Builder;
pub use handles::election::{Election, Leader, Leadership, Observed, Observer};
pub use handles::latch::{AwaitOptions, Latch, LatchKind, LatchWatch};
pub use handles::lease::Lease;
pub use handles::lease_set::LeaseSet;
pub use handles::lock::Lock;
pub use handles::locks::{Latches, Locks};
pub use handles::manager::{LockManager, Stats};
pub use handles::pending::Pending;
pub use handles::pending_call::PendingCall;
pub use handles::semaphore::Semaphore;
pub use lease::token::LeaseToken;
pub use local::fence_gate::{FenceGate, Pass, ReadPass};
pub use local::id_lock::{IdGuard, IdGuards, IdLock};
pub use names::diagnostic::{Diagnostic, Severity};
pub use names::fence::{Epoch, Fence};
pub use names::history_entry::{HistoryEntry, HistoryKind};
pub use names::holder::Holder;
pub use names::latch_name::LatchName;
pub use names::lease_state::{LeaseState, LostReason};
pub use names::lock_name::{Level, LockName, NamePolicy};
pub use names::mode::Mode;
pub use names::waiters::{Waiters, WaitingProcess};
pub use runtime::cancel::CancelToken;
pub use runtime::time::{Deadline, Moment};
pub use settings::manager_options::{DEFAULTS, Defaults};
pub use settings::options::parse_duration;
pub use wait::completions::Completions;

#[cfg(dlm_simulation)]
pub use runtime::simulation;

#[doc(hidden)]
pub use inventory as __inventory;
/// For the `dlm` command.
#[cfg(feature = "cli")]
#[doc(hidden)]
pub use runtime::process::signals::receive_signals_after as __receive_signals_after;

/// Checks what the documentation says about threads.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<LockManager>();
    shared::<Lock>();
    shared::<Latches>();
    shared::<Locks>();
    shared::<Semaphore>();
    shared::<Pending>();
    shared::<Completions>();
    shared::<Lease>();
    shared::<Latch>();
    shared::<LatchWatch>();
    shared::<LeaseToken>();
    shared::<CancelToken>();
    shared::<Builder>();
    shared::<FenceGate>();
    shared::<Error>();
    #[cfg(feature = "aerospike")]
    shared::<aerospike::Records>();
    #[cfg(feature = "aerospike")]
    shared::<aerospike::Record>();
    #[cfg(feature = "hbase")]
    shared::<hbase::Table>();
    #[cfg(feature = "hbase")]
    shared::<hbase::Row>();
};

/// Runs the README's Rust example.
#[cfg(all(doctest, feature = "embedded"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles the example of the page on rows.
#[cfg(all(doctest, feature = "hbase"))]
#[doc = include_str!("../docs/rows.md")]
struct Rows;

/// Runs the Rust examples of the page on fencing.
#[cfg(all(doctest, feature = "embedded"))]
#[doc = include_str!("../docs/fencing.md")]
struct Fencing;

/// Runs the example of the page on modes.
#[cfg(doctest)]
#[doc = include_str!("../docs/modes.md")]
struct Modes;

/// Compiles the example of fenced records.
#[cfg(all(doctest, feature = "aerospike"))]
#[doc = include_str!("../docs/aerospike.md")]
struct FencedRecords;

/// Runs the future of the page on event loops.
#[cfg(doctest)]
#[doc = include_str!("../docs/event_loops.md")]
struct EventLoops;

/// Runs the endpoint of the page on metrics.
#[cfg(doctest)]
#[doc = include_str!("../docs/metrics.md")]
struct MetricsPage;

/// Runs the example of the page on latches.
#[cfg(doctest)]
#[doc = include_str!("../docs/latches.md")]
struct LatchesPage;
