//! Tests for whoever writes a store for `dlm`, and tools that make a store misbehave.
//!
//! | What | For |
//! |---|---|
//! | [`contract!`], [`latch_contract!`] | what every store promises, and what locks and latches promise over every store |
//! | [`losses!`] | what must be true when messages are lost, late or cut: for stores on a network |
//! | [`Proxy`], [`Fault`], [`Gate`] | loses, delays, cuts or replaces chosen messages to a real server |
//! | [`Spy`] | counts the calls that reach a store, and runs a hook before an answer is returned |
//! | [`Scripted`] | a store that answers what the test says |
//! | [`until`], [`LONG`] | waiting for what another thread or process does, without hanging |
//! | [`skipped`], [`left_to_the_long_run`], [`shortened`] | leaving a test or a part of it out, aloud |
//!
//! # A store of your own
//!
//! Implement [`dlm::store::LockStore`], make this crate a development dependency, and write one test program.
//! It has to say only how the store is opened. Here the store is the one behind the URI `memory:`; yours
//! would connect to a server, and return `None` after [`skipped`] where there is none:
//!
//! ```
//! use dlm_testkit::contract::Site;
//!
//! // tests/contract.rs
//! fn site(test: &str) -> Site {
//!     // Each site is a fresh store here. Stores that others use too need not be fresh: sites have names of
//!     // their own.
//!     let store = dlm::store::open("memory:").unwrap();
//!     Site::new(test, 1000, move || store.clone())
//! }
//!
//! dlm_testkit::contract!(site);
//! dlm_testkit::latch_contract!(site);
//! # // A test of this example itself: the macros make functions that only a test harness calls.
//! # let site = site("a_free_lock_is_granted_and_a_held_one_refused_with_its_holder");
//! # dlm_testkit::contract::stores::a_free_lock_is_granted_and_a_held_one_refused_with_its_holder(&site);
//! ```
//!
//! Leave `latch_contract!` out where `LockStore::latches` is `None`. The suites of [`mod@contract`] run in a
//! minute. A store that speaks to a server needs those of [`mod@losses`] as well: most mistakes are made there.
//!
//! # The environment
//!
//! * `DLM_TEST_REQUIRE=hbase,strace`: tools without which a test fails that would be [`skipped`].
//! * `DLM_TEST_LONG=1`: what is [`left_to_the_long_run`] or [`shortened`] runs in full.
//! * `DLM_TEST_LEFT_OUT=file`: the file gets a line for each test that was left out or shortened for want of it.

pub mod contract;
mod dialect;
mod fault;
mod long;
pub mod losses;
mod patience;
mod scripted;
mod skip;
mod spy;

pub use dialect::Dialect;
pub use fault::{Fault, Gate, Proxy, Wire};
pub use long::{is_long, left_to_the_long_run, shortened};
pub use patience::{LONG, until};
pub use scripted::{ReleaseLine, Scripted};
pub use skip::skipped;
pub use spy::{Call, Spy};
