//! Tests for authors of a `dlm` store, and tools that make a store misbehave.
//!
//! | Item | Purpose |
//! |---|---|
//! | [`contract!`], [`latch_contract!`], [`modes_contract!`] | tests of every store's promises, and of locks, latches and modes over that store |
//! | [`losses!`] | tests of a store on a network whose messages are lost, late or cut |
//! | [`mod@history`] | logs of calls by many clients, and rules that every such log must satisfy |
//! | [`workload`] | clients that use a store in random ways, and log what they did |
//! | [`mutants`] | stores with a known defect, to test the rules |
//! | [`Proxy`], [`Fault`], [`Gate`] | lose, delay, cut or replace chosen messages to a real server |
//! | [`Spy`] | counts the calls that reach a store, and runs a hook before an answer is returned |
//! | [`Scripted`] | a store whose answers the test chooses |
//! | [`until`], [`LONG`], [`eventually`], [`LONGEST`] | wait for another thread or process without hanging |
//! | [`unless_stalled`], [`void`](fn@void) | repeat a case about real time if the machine stood still during it |
//! | [`skipped`], [`left_to_the_long_run`], [`shortened`] | leave out a test or a part of it, and say so |
//!
//! # A store of your own
//!
//! Implement [`dlm::store::LockStore`], make this crate a development dependency, and write one test program.
//! The program only says how to open the store. The store below is the one behind the URI `memory:`. A store
//! on a network would connect to a server here, and call [`skipped`] and return `None` when there is none:
//!
//! ```
//! use dlm_testkit::contract::Site;
//!
//! // tests/contract.rs
//! fn site(test: &str) -> Site {
//!     // Here each site has a new store. Sites may also share a store with others, because each site uses its
//!     // own names.
//!     let store = dlm::store::open("memory:").unwrap();
//!     Site::new(test, 1000, move || store.clone())
//! }
//!
//! dlm_testkit::contract!(site);
//! dlm_testkit::latch_contract!(site);
//! # // This tests the example itself: the macros make functions that only a test harness calls.
//! # let site = site("a_free_lock_is_granted_and_a_held_one_refused_with_its_holder");
//! # dlm_testkit::contract::stores::a_free_lock_is_granted_and_a_held_one_refused_with_its_holder(&site);
//! ```
//!
//! Omit `latch_contract!` when `LockStore::latches` returns `None`. Add `modes_contract!` when `LockStore::modes` does
//! not. The suites of [`mod@contract`] take one minute. A store that talks to a server also needs the suite of
//! [`mod@losses`]: that is where most mistakes are made.
//!
//! # Environment variables
//!
//! * `DLM_TEST_REQUIRE=hbase,strace`: tools that must exist. A test that would be [`skipped`] for want of one
//!   fails instead.
//! * `DLM_TEST_LONG=1`: tests that are [`left_to_the_long_run`] or [`shortened`] run in full.
//! * `DLM_TEST_LEFT_OUT=file`: the file gets one line for each test that was left out or shortened without
//!   `DLM_TEST_LONG`.
//! * `DLM_TEST_VOID=file`: the file gets one line for each time that [`unless_stalled`] repeated a case.

pub mod contract;
mod dialect;
mod fault;
pub mod history;
mod long;
pub mod losses;
pub mod mutants;
mod notes;
mod patience;
mod scripted;
mod skip;
mod spy;
mod void;
pub mod workload;

pub use dialect::Dialect;
pub use fault::{Fault, Gate, Proxy, Wire};
pub use long::{is_long, left_to_the_long_run, shortened};
pub use patience::{LONG, LONGEST, eventually, until};
pub use scripted::{ReleaseLine, Scripted};
pub use skip::skipped;
pub use spy::{Call, Spy};
pub use void::{unless_stalled, void};
