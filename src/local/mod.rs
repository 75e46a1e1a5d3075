//! Locks for the threads, and a gate for the files, of one machine. They need no store.

pub(crate) mod fence_gate;
pub(crate) mod id_lock;
