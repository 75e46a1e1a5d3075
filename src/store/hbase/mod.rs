//! Locks, latches and the rows of applications in HBase. Locks use compare-and-set only. They never use a Delete
//! and never a client timestamp.
//!
//! ```text
//! create   D:L  empty -> our record        conditional Put, TTL on the cell, server timestamp
//!          D:F  + 1                        the fence, in a separate row beside the lock's row
//!          D:L  read-back                  detects the Delete of a peer
//!          (hbase://: all three in one call; through the gateway: three calls)
//! replace  D:L  our record -> our record   with a new TTL
//! remove   D:L  our record -> empty        an empty cell means "free", for the Java library too
//! ```
//!
//! * A Delete leaves a tombstone. The tombstone hides a later Put of the same millisecond, although the server
//!   answered yes to that Put. An empty cell hides nothing: the server gives the Put that overwrites it a
//!   timestamp that is not older.
//! * The fence has a separate row because Java clients delete the lock's row.
//! * This is the layout `java`. The layout `own` is in `own.rs`, and `both` in `both.rs`.
//! * [`remote`](crate::store::remote) builds acquire, renew and release from these operations.

mod both;
pub(crate) mod cell_store;
mod diagnose;
mod history;
mod latches;
mod layout;
mod list;
mod locks;
pub(crate) mod marks;
mod native;
pub(crate) mod options;
mod own;
mod own_store;
mod promises;
mod row_hints;
pub(crate) mod row_keys;
mod rules;
mod scheme;
pub(crate) mod steps;
mod table_endpoint;
mod table_name;
#[cfg(test)]
mod tests;
#[cfg(feature = "gateway")]
mod thrift;

pub(crate) use self::both::HbaseBridge;
pub use self::locks::HbaseStore;
pub(crate) use self::own::HbaseOwnStore;
#[cfg(feature = "gateway")]
pub(in crate::store) use self::scheme::GATEWAY_SCHEME;
pub(in crate::store) use self::scheme::SCHEME;
pub(crate) use self::table_endpoint::{TableEndpoint, open_rows};

/// Passes `bytes` to every parser of server replies. Only for `tests/fuzz`.
#[cfg(fuzzing)]
#[doc(hidden)]
pub fn fuzz_hbase(bytes: &[u8]) {
    native::fuzz(bytes);
}
