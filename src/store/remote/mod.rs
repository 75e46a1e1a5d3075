//! The lock protocol for stores across a network, written once over a [`Register`].
//!
//! A [`Register`] creates, replaces, removes and reads one record for each lock, and counts. Each change is one
//! atomic step under a condition. [`RemoteStore`] turns a register into a [`LockStore`](crate::store::LockStore).
//! The stores for HBase and Aerospike are registers. `docs/stores.md` shows how to write another one.
//!
//! # Which reply a network event means
//!
//! A wrong reply breaks exclusion, or reports a lock as held that nobody holds. The store chooses the reply in the
//! code that reads its socket.
//!
//! | event | reply to a change | error of a read or count |
//! |---|---|---|
//! | the server answered that the condition held | Yes | - |
//! | the server answered that the condition did not hold | No | - |
//! | connection refused, name not resolved, TLS or login failed | Down: CONNECTION_ERROR | CONNECTION_ERROR |
//! | the deadline passed before the first byte was written | Down: CONNECTION_ERROR | CONNECTION_ERROR |
//! | connection cut while writing, even after one byte | Lost | CONNECTION_ERROR; a count: IN_DOUBT |
//! | connection cut, or time-out, while waiting for the answer | Lost | CONNECTION_ERROR; a count: IN_DOUBT |
//! | an answer that cannot be read | Lost | INTERNAL_ERROR; a count: IN_DOUBT |
//! | an error of a class that says "not applied" (busy, moved elsewhere, not here) | Down, after a few retries: RETRIES_EXHAUSTED | RETRIES_EXHAUSTED |
//! | an error of any other class | Lost | RETRIES_EXHAUSTED; a count: IN_DOUBT |
//! | an error that every retry would meet (no table, no permission, bad request) | Down: TABLE_CREATION_ERROR, INTERNAL_ERROR or INVALID_ARGUMENT | the same |
//! | a redirect to another server | follow it, within the deadline | follow it |
//!
//! # What the library does for every register
//!
//! It draws a new token for each attempt and reads the lock after a lost reply. It releases a lock whose fence
//! could not be counted. It handles hidden records, deadlines and pauses. It decides which records the background
//! threads must release later.

mod answers;
mod lock;
mod mode_register;
mod modes;
mod permit_register;
mod permits;
mod record;
mod register;
pub(crate) mod resolve;
#[cfg(test)]
mod tests;

#[cfg(any(feature = "hbase", feature = "aerospike"))]
pub(crate) use answers::Settled;
pub use answers::{Found, Reply, Standing};
pub use lock::RemoteStore;
#[cfg(feature = "hbase")]
pub(crate) use lock::{CLEAN_UP, ROUNDS, contended};
pub use mode_register::{ChangeMode, Join, ModeRegister, NotChanged, StoredHolds, StoredIntent};
pub use permit_register::{GrantPermits, NotGranted, PermitRegister};
pub use record::Record;
#[cfg(feature = "hbase")]
pub(crate) use register::replace_one_by_one;
pub use register::{Capabilities, Compares, Create, Created, OnReply, ReadBack, Register, Replace};
