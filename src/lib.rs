//! Distributed locks and latches on the stores you already run, for blocking, threaded code.
//!
//! A [`Lock`] is a name; holding it is a [`Lease`], which ends by itself unless it is renewed, and which
//! carries a [`Fence`]: a number that grows with every holder, to be sent along with each write that the
//! lock guards.
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
//! ```text
//! LockManager --> Lock --> Lease     Latch       what callers hold
//!     |            |        |          |
//!     |          queue      |        board       one waiter per lock asks the store, one look serves all
//!     |            |        |          |         who wait for a latch; the others park
//!     |     store::LockStore  store::LatchStore  each answer: it happened, it did not, or it is in doubt
//!     |        |       |        |
//!     |     memory  embedded  hbase  aerospike
//!     |
//!     +--> watcher                               the library's threads: look at latches for the board, free
//!                                                what requests in doubt may have taken
//! ```
//!
//! # What is promised
//!
//! * **Exclusion** by the store's clock: while a lease lasts, nobody else is granted the lock. A lease is
//!   counted here from before the request was sent, and a tenth short, so that it ends here first also while
//!   clocks are being corrected: see [`DEFAULT_CLOCK_MARGIN_PPM`].
//! * **Fences** rise with every grant of a lock, whatever was lost, late or paused. Where a paused
//!   process may wake up after its lease has ended, only a receiver that compares fences is safe: no
//!   lock service can stop a write that is already on its way. A paused or migrated virtual machine may not
//!   see the pause in any of its clocks, so [`Lease::check`] may not see it either: only a fence helps.
//! * **No error is mistaken for another**: a request did not happen, happened, or is in doubt
//!   ([`Error::is_in_doubt`]); doubts are settled by reading, never by sending a write again blindly.
//! * **Bounded calls**: each call to a store has a deadline. Waiting threads are parked, and woken by a
//!   release in this process, a look at the store once per retry interval, a [`CancelToken`] or `close`.
//! * **A latch** counts each step once, is never added to by being made again, and answers NOT_FOUND when it
//!   is not there; who waits for it is woken by its opening or its end, however often the store fails.
//!
//! The fence is compared where the write arrives: `lease.row(&table, key)` gives a row of HBase (module `hbase`), and
//! `lease.record(&records, key)` a record of Aerospike (module `aerospike`), whose servers refuse a stale holder with
//! STALE_FENCE. Rows need no lock to be created once, compared and set, or modified.
//!
//! For the threads of one process there is [`IdLock`]: a lock per id, made on demand, gone when unused. A
//! [`FenceGate`] compares the fences of those who write to one file or socket of a machine.
//!
//! All types are `Send + Sync` unless they say otherwise. There is no async runtime to be seen
//! (Aerospike's client brings one, which is driven by the calling thread), and no thread until
//! one is needed. The library's threads block signals, and no call raises SIGPIPE.

#[cfg(feature = "aerospike")]
pub mod aerospike;
mod alarm;
mod board;
mod boot;
mod builder;
mod cancel;
mod config;
mod error;
mod fence_gate;
mod ffi;
mod freeing;
#[cfg(feature = "hbase")]
pub mod hbase;
mod id_lock;
mod latch;
mod lease;
mod lease_token;
mod lock;
mod manager;
mod queue;
pub mod store;
mod store_option;
mod time;
mod uri;
mod watcher;

/// Unit tests wait and watch as the tests outside do, which know the library by its name.
#[cfg(test)]
#[path = "../tests/support/patience.rs"]
mod patience;
#[cfg(test)]
#[path = "../tests/support/spy.rs"]
mod spy;
#[cfg(test)]
extern crate self as dlm;

pub use builder::Builder;
pub use cancel::CancelToken;
pub use config::{
    DEFAULT_CLOCK_MARGIN_PPM, DEFAULT_LATCH_TTL, DEFAULT_POLL, DEFAULT_RETRY, DEFAULT_TIMEOUT, DEFAULT_TTL,
    DEFAULT_WAIT, DEFAULT_WATCHERS, parse_duration,
};
pub use error::{Cause, Code, Error, Result};
pub use fence_gate::{FenceGate, Pass};
pub use id_lock::{IdGuard, IdGuards, IdLock};
pub use latch::{Await, Latch, LatchKind, LatchWatch};
pub use lease::Lease;
pub use lease_token::LeaseToken;
pub use lock::{Acquire, Lock};
pub use manager::{LockManager, Stats};
pub use store::{
    Fence, Finding, Grade, Holder, Inspection, LatchName, Level, LockName, Mode, NamePolicy, Roster, Who,
};
#[cfg(feature = "hbase")]
pub use store_option::TABLE_OPTIONS;
pub use store_option::{STORE_OPTIONS, StoreOption};
pub use time::{Deadline, Moment};

/// What the documentation says of threads, checked.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<LockManager>();
    shared::<Lock>();
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

/// Compiles the example of fenced records.
#[cfg(all(doctest, feature = "aerospike"))]
#[doc = include_str!("../docs/aerospike.md")]
struct FencedRecords;
