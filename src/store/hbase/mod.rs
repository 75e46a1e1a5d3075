//! Locks, latches and an application's rows in HBase. Locks: compare-and-set only, never a Delete, never a client timestamp.
//!
//! ```text
//! create   D:L  empty -> our record        conditional Put, TTL on the cell, server timestamp
//!          D:F  + 1                        the fence, in a row of its own beside the lock's
//!          D:L  read back                  against peers that delete
//!          (directly: all three in one call; through the gateway: three calls)
//! replace  D:L  our record -> our record   with a new TTL
//! remove   D:L  our record -> empty        an empty cell is free, for the Java library as well
//! ```
//!
//! * A Delete leaves a tombstone that hides a later Put of the same millisecond although the server
//!   said yes to it; the empty cell hides nothing, and the server stamps what overwrites it later.
//! * The fence has a row of its own because Java clients delete the lock's row.
//! * What acquire, renew and release make of this is in [`remote`](crate::store::remote).

pub(crate) mod cell_store;
mod diagnose;
mod latches;
mod layout;
mod locks;
pub(crate) mod marks;
mod native;
mod rules;
pub(crate) mod steps;
mod table_endpoint;
#[cfg(test)]
mod tests;
#[cfg(feature = "gateway")]
mod thrift;

pub use self::locks::HbaseStore;
pub(crate) use self::table_endpoint::{TableEndpoint, open_rows};

/// For `tests/fuzz` alone: everything that reads what a server sent.
#[cfg(fuzzing)]
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    native::fuzz(bytes);
}
