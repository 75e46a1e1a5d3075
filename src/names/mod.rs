//! Names and values that every layer uses. They do no I/O.

pub(crate) mod diagnostic;
pub(crate) mod fence;
pub(crate) mod fnv;
pub(crate) mod history_entry;
pub(crate) mod holder;
pub(crate) mod latch_name;
pub(crate) mod lease_state;
pub(crate) mod lock_name;
pub(crate) mod mode;
pub(crate) mod notice_endpoint;
pub(crate) mod owner;
pub(crate) mod promise;
pub(crate) mod text;
pub(crate) mod waiters;
