//! The process that the library runs in: its identity, its forks, its signals and the library's threads.
//!
//! Each file states why its calls into the system are sound.
#![allow(unsafe_code)]

#[cfg(feature = "capi")]
pub(crate) mod cancellation;
pub(crate) mod descriptors;
pub(crate) mod fork_pause;
#[cfg(feature = "hbase")]
pub(crate) mod gssapi;
mod identity;
#[cfg(any(feature = "hbase", feature = "aerospike"))]
pub(crate) mod name_lookup;
pub(crate) mod process_mark;
pub(crate) mod signals;
#[cfg(any(feature = "aerospike", feature = "capi"))]
pub(crate) mod stack;
pub(crate) mod threads;
