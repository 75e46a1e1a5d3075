//! The lock protocol for stores across a network, written once over a [`Register`].
//!
//! A store is a [`Register`]: it creates, replaces, removes and reads one record for each lock, each change in one
//! atomic step under a condition, and it counts. [`RemoteStore`] makes a [`LockStore`](crate::store::LockStore) of it.
//! HBase and Aerospike are two of them, and `docs/stores.md` shows how to write another.
//!
//! # What a network event means
//!
//! A wrong line in this table breaks exclusion, or reports a lock as held that nobody holds. A store decides it where
//! it reads its socket.
//!
//! | event | reply to a change | error of a read or count |
//! |---|---|---|
//! | the server answered that the condition held | Yes | - |
//! | the server answered that it did not | No | - |
//! | connection refused, name not resolved, TLS or login failed | Down: CONNECTION_ERROR | CONNECTION_ERROR |
//! | the deadline passed before the first byte was written | Down: CONNECTION_ERROR | CONNECTION_ERROR |
//! | connection cut while writing, however few bytes | Lost | CONNECTION_ERROR; a count: IN_DOUBT |
//! | connection cut, or time-out, while waiting for the answer | Lost | CONNECTION_ERROR; a count: IN_DOUBT |
//! | an answer that cannot be read | Lost | INTERNAL_ERROR; a count: IN_DOUBT |
//! | an error of a class that says "not applied" (busy, moved elsewhere, not here) | Down, after bounded repeats: RETRIES_EXHAUSTED | RETRIES_EXHAUSTED |
//! | an error of any other class | Lost | RETRIES_EXHAUSTED; a count: IN_DOUBT |
//! | an error that every repeat would meet (no table, no permission, bad request) | Down: TABLE_CREATION_ERROR, INTERNAL_ERROR or INVALID_ARGUMENT | the same |
//! | a redirect to another server | follow it, within the deadline | follow it |
//!
//! # What is written here once
//!
//! Fresh tokens for each attempt, settling of lost replies by reading, hand-back of a lock whose fence could not be
//! counted, records that were hidden, deadlines and pauses, and which records are left to the background.

mod lock;
mod record;
mod register;
pub(crate) mod resolve;
#[cfg(test)]
mod tests;

pub use lock::RemoteStore;
pub use record::Record;
pub use register::{
    Capabilities, Compares, Create, Created, Found, ReadBack, Register, Replace, Reply, Standing,
};
