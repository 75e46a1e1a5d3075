//! What callers hold: one file for each noun.

pub(crate) mod acquire;
pub(crate) mod acquire_options;
pub(crate) mod break_holder;
pub(crate) mod builder;
mod convert;
pub(crate) mod diagnosis;
pub(crate) mod election;
pub(crate) mod latch;
pub(crate) mod lease;
pub(crate) mod lease_set;
pub(crate) mod lock;
pub(crate) mod locks;
pub(crate) mod manager;
pub(crate) mod pending;
pub(crate) mod pending_call;
pub(crate) mod result_slot;
pub(crate) mod semaphore;
