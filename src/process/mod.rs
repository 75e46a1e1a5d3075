//! What a process is to this library: a fork that is noticed, signals that are not in the way.
//!
//! Each file argues why its calls into the system are sound.
#![allow(unsafe_code)]

#[cfg(test)]
pub(crate) mod fork;
mod identity;
pub(crate) mod process_mark;
pub(crate) mod signals;
pub(crate) mod threads;
