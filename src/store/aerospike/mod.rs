//! Locks, latches and an application's records in Aerospike: one record each, changed by one conditional request
//! at a time.
//!
//! ```text
//! create    create the lock's record, with a TTL       refused where there is one
//! count     fence = max(fence + 1, the clock)          in a record of its own
//! replace   update if the token in it is ours          with a new TTL, if that is no shorter
//! remove    delete if the token in it is ours
//! ```
//!
//! * The fence has a record of its own because Java clients delete the lock's. It follows the clock, so
//!   that a server that lost its latest writes, or all of them, does not give out a number twice.
//! * A record lives a little longer than its TTL, never shorter: servers count whole seconds.
//! * What acquire, renew and release make of this is in [`remote`](crate::store::remote).

pub(crate) mod client;
mod diagnose;
pub(crate) mod keys;
mod latches;
mod locks;
pub(crate) mod options;
mod pool;
mod ready;

pub use self::locks::AerospikeStore;
