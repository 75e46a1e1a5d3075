//! Locks, latches and an application's records in Aerospike. Each is one record, and each change is one conditional
//! request.
//!
//! ```text
//! create    create the lock's record, with a TTL       refused if a record exists
//! count     fence = max(fence + 1, the clock)          in a separate record
//! replace   update if the token in it is ours          with a new TTL, unless that is shorter
//! remove    delete if the token in it is ours
//! ```
//!
//! * The fence has a separate record because Java clients delete the lock's record. The fence follows the clock, so
//!   a server that lost its latest writes, or all of them, does not return a number twice.
//! * A record lives a little longer than its TTL, never shorter: servers count whole seconds.
//! * [`remote`](crate::store::remote) builds acquire, renew and release from these requests.

mod both;
pub(crate) mod client;
mod diagnose;
mod diagnose_layout;
mod history;
pub(crate) mod keys;
mod latches;
mod list;
mod locks;
mod namespace_check;
mod nodes;
pub(crate) mod options;
mod own;
mod pool;
mod promises;
mod ready;
mod replaces;
mod scheme;
mod standing;

/// Passes `bytes` to the parser of replies. Only for `tests/fuzz`.
#[cfg(fuzzing)]
#[doc(hidden)]
pub fn fuzz_aerospike(bytes: &[u8]) {
    client::fuzz(bytes);
}

pub(crate) use self::both::AerospikeBothStore;
pub use self::locks::AerospikeStore;
pub(crate) use self::own::AerospikeOwnStore;
pub(in crate::store) use self::scheme::SCHEME;
pub(crate) use self::scheme::SetEndpoint;
