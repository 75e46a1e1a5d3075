//! Workloads: clients that use a store in random ways, and log what they did as a
//! [`History`](crate::history::History).
//!
//! A seed makes the choices of each client repeatable. The order in which the clients run is up to the machine.

mod latches;
mod locks;
mod modes;
mod party;
mod permits;
mod rows;

pub use latches::{LatchRounds, LatchWorkload};
pub use locks::LockWorkload;
pub use rows::RowWorkload;
