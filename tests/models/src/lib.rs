//! A model of the lock protocol in `src/store/remote`, for the model checker `stateright`.
//!
//! The checker visits every state that the clients, the network, the clocks and the store can reach within the
//! bounds of a [`Model`], and evaluates the properties in each of them. `docs/model.md` says what is modelled,
//! what is not, and what was found.
//!
//! * [`store`]: the register
//! * [`client`]: one client, with the state tables of `src/store/remote/lock.rs`
//! * [`model`]: clocks, network, receiver, and the properties
//! * [`modes`]: a model of its own, of the modes exclusive, shared and update
//! * [`mod@explore`]: runs the checker

pub mod client;
pub mod explore;
pub mod model;
pub mod modes;
pub mod store;

pub use client::{ReadBack, Rules, Variant};
pub use explore::{Explored, counterexample, explore, is_long};
pub use model::{Action, Model};
pub use store::{Compares, Flaw, Kind};
