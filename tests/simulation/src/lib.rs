//! The library over a simulated clock, scheduler, network and store. One seed fixes a whole run.
//!
//! * `engine`: threads, processes and their clocks, and which thread runs next
//! * `network`: requests and replies that are lost, late or refused
//! * `datagrams`: notices between processes, and those that somebody forges
//! * `register`: the locks of a server, in the dialects of the real stores
//! * `holds`: locks in all modes of a server
//! * `latches`: the latches of a server
//! * `world`: some processes, a server, faults, and the history of all calls
//!
//! `docs/simulation.md` says how to run it, and what it shows. Without `--cfg dlm_simulation` this crate is empty.
#![cfg(dlm_simulation)]

mod clock;
mod coroutine;
pub mod datagrams;
pub mod engine;
pub mod holds;
pub mod latches;
pub mod network;
pub mod register;
pub mod world;

pub use clock::Clock;
pub use engine::{Engine, Schedule};
