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
//! LockManager --> Lock --> Lease    Latch       what callers hold
//!     |            |         |        |
//!     +---------- session ---+--------+         which leases are held, whether it is closed or was forked
//!                  |                  |
//!             wait::queue       wait::poller    one waiter per lock asks the store, one look serves all
//!                  |                  |         who wait for a latch; the others park
//!          store::LockStore   store::LatchStore each answer: it happened, it did not, or it is in doubt
//!            |        |    |
//!        memory  embedded  store::remote        the lock protocol over a network, written once
//!                             |      |
//!                          hbase  aerospike
//!
//! wait::background                              the library's threads: look at latches for the poller, free
//!                                               what requests in doubt may have taken
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

/// The command knows the library by its name, as other programs do; so do the helpers of unit tests.
#[cfg(any(feature = "cli", test))]
extern crate self as dlm;

// Ways in from other languages and from the shell.
#[cfg(feature = "capi")]
mod capi;
#[cfg(feature = "cli")]
pub mod cli;

// What callers hold, and what they share.
#[cfg(feature = "aerospike")]
pub mod aerospike;
mod builder;
mod diagnosis;
#[cfg(feature = "hbase")]
pub mod hbase;
mod held_lock;
mod latch;
mod lease;
mod lease_token;
mod lock;
mod manager;
mod session;

// For threads and files of one machine.
mod fence_gate;
mod id_lock;

// Waiting for a lock, for a latch, and in the background.
mod wait;

// Where locks and latches are kept.
pub mod store;

// The ground: imports nothing from above.
mod boot;
mod cancel;
mod config;
mod diagnostic;
mod error;
mod fence;
mod holder;
mod latch_name;
mod name;
mod options;
mod owner;
mod process;
mod random;
mod store_option;
mod text;
mod time;

// For unit tests.
#[cfg(test)]
mod patience;

pub use builder::Builder;
pub use cancel::CancelToken;
pub use config::{
    DEFAULT_BACKGROUND_THREADS, DEFAULT_CLOCK_MARGIN_PPM, DEFAULT_LATCH_TTL, DEFAULT_POLL, DEFAULT_RETRY,
    DEFAULT_TIMEOUT, DEFAULT_TTL, DEFAULT_WAIT,
};
pub use diagnostic::{Diagnostic, Severity};
pub use error::{Cause, Code, Error, Result};
pub use fence::Fence;
pub use fence_gate::{FenceGate, Pass};
pub use holder::{Holder, Identity};
pub use id_lock::{IdGuard, IdGuards, IdLock};
pub use latch::{AwaitOptions, Latch, LatchKind, LatchWatch};
pub use latch_name::LatchName;
pub use lease::Lease;
pub use lease_token::LeaseToken;
pub use lock::{AcquireOptions, Lock};
pub use manager::{LockManager, Stats};
pub use name::{Level, LockName, Mode, NamePolicy};
pub use options::parse_duration;
pub use store::{Inspection, Roster};
#[cfg(feature = "hbase")]
pub use store_option::TABLE_OPTIONS;
pub use store_option::{STORE_OPTIONS, StoreOption};
pub use time::{Deadline, Moment};

#[doc(hidden)]
pub use inventory as __inventory;

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

/// Runs the example of the page on latches.
#[cfg(doctest)]
#[doc = include_str!("../docs/latches.md")]
struct Latches;
