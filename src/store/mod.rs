//! The contract between the lock protocol's users (manager, queue, leases) and the stores.
//!
//! A store answers each question with one of three outcomes, and never mixes them up: it *did not
//! happen*, it *happened*, or it is *in doubt* because a reply was lost. The suite in
//! `tests/contract` states the contract as tests and runs over every store.
//!
//! The module is public so that a program can wrap a store, for example to inject faults into its own
//! tests. It follows the library's needs: expect additions in minor versions.

#[cfg(feature = "aerospike")]
pub(crate) mod aerospike;
#[cfg(any(feature = "aerospike", feature = "hbase"))]
pub(crate) mod doubt;
#[cfg(feature = "embedded")]
mod embedded;
mod finding;
#[cfg(feature = "hbase")]
pub(crate) mod hbase;
mod holder;
mod key;
mod latch;
mod latch_record;
mod memory;
mod names;
mod proof;
#[cfg(any(feature = "aerospike", feature = "hbase"))]
mod tls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::time::{Deadline, Moment};
use crate::uri::StoreUri;

#[cfg(feature = "aerospike")]
pub use self::aerospike::AerospikeStore;
#[cfg(feature = "embedded")]
pub use embedded::EmbeddedStore;
pub use finding::{Finding, Grade};
#[cfg(feature = "hbase")]
pub use hbase::HbaseStore;
#[cfg(all(feature = "hbase", fuzzing))]
#[doc(hidden)]
pub use hbase::fuzz;
pub use holder::{Holder, Who};
pub(crate) use key::check_part;
pub use key::{CLIENT_BYTES_MAX, ID_BYTES_MAX, Level, LockName, Mode, NamePolicy};
pub use latch::{LatchName, LatchStore, NewLatch, PARTICIPANT_BYTES_MAX, Roster, Step, Stepped};
pub(crate) use latch_record::check_participant;
pub use memory::MemoryStore;
pub use proof::{OwnerToken, Proof};

/// Number that grows with every grant of a lock: send it along with each write that the lock guards,
/// and let the receiver refuse numbers lower than the highest it has seen.
///
/// It is public knowledge and proves nothing about who holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One attempt to take a lock.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// How long the lease lasts.
    pub ttl: Duration,
    /// Who asks, for the record that `dlm show` reads.
    pub who: &'a Who,
    /// When the call must have come back.
    pub by: Deadline,
}

/// A lock that was granted.
#[derive(Debug)]
pub struct Grant {
    /// What renews and releases it.
    pub proof: Proof,
    /// Its fence; `None` only where fencing is switched off in the store's options.
    pub fence: Option<Fence>,
    /// A moment before the request that took effect was sent: the lease counts from here.
    pub since: Moment,
    /// Whether a request that was sent twice on the way may put the record back after its release. The
    /// library then looks for it for a while.
    pub may_reappear: bool,
}

/// Answer of [`LockStore::acquire`].
#[derive(Debug)]
pub enum Acquired {
    /// The lock is the caller's.
    Granted(Grant),
    /// The lock is someone else's.
    Held(Holder),
}

/// Answer of [`LockStore::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The lock was held by the proof, and is free.
    Freed,
    /// The proof did not hold the lock. Nothing was changed.
    NotOurs,
    /// A reply was lost, and by now the proof does not hold the lock: this release freed it, unless
    /// the lease had run out.
    Gone,
}

/// What [`LockStore::inspect`] found.
#[derive(Debug)]
pub struct Inspection {
    /// Who holds the lock, if anyone.
    pub holder: Option<Holder>,
    /// The fence given out last, where the store still knows.
    pub fence: Option<Fence>,
}

/// Opens the store at `uri`, such as `embedded:/path`, for a program that wraps it or asks it without
/// a manager. Takes the store's own options; those of a manager (`client`, `ttl`, ...) are refused.
///
/// # Errors
/// INVALID_ARGUMENT before any I/O; then what the store says, as for
/// [`Builder::open`](crate::Builder::open).
pub fn open(uri: &str) -> Result<Arc<dyn LockStore>> {
    let uri = StoreUri::parse(uri)?;
    uri.options.refuse_managers()?;
    uri.open()
}

/// Where locks are kept.
///
/// Methods block until they have an answer or `by` has passed, and an acquire for two seconds more where
/// it has to undo what it half did; a store adds no threads of its own to
/// the caller's. They may be called from many threads at once.
///
/// # Errors of every method
/// * CONNECTION_ERROR, RETRIES_EXHAUSTED, TABLE_CREATION_ERROR, INTERNAL_ERROR, CLOSED: the request
///   did not happen and will not happen later.
/// * IN_DOUBT: it may have happened, or may yet happen, and asking the store did not settle it before
///   `by`.
pub trait LockStore: Send + Sync + fmt::Debug + 'static {
    /// What this store is, for messages: a URI without credentials.
    fn describe(&self) -> String;

    /// Creates what the store needs (a table, a file), and checks that it answers. Safe to repeat and
    /// to race with another creator.
    fn initialize(&self, by: Deadline) -> Result<()>;

    /// Takes the lock if it is free. Never waits for a holder.
    ///
    /// A lost reply is settled by reading: the answer says what is true of the lock afterwards.
    /// The proof of any request that may still take effect after the call is pushed to `doubtful`,
    /// whatever the call answers; [`release`](LockStore::release) of such a proof is always safe.
    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<Proof>) -> Result<Acquired>;

    /// Lets the lease end `ttl` from now, if `proof` still holds the lock. The answer is the proof to
    /// use from now on, and `None` when it does not hold the lock any more.
    ///
    /// A store may keep a lease for longer than was asked, never shorter. No request shortens what stands:
    /// where the record lasts longer than `ttl` already, it goes on lasting as long, and the answer is a
    /// success. That holds also for a request that arrives late, behind one for a longer `ttl`.
    fn renew(&self, name: &LockName, proof: &Proof, ttl: Duration, by: Deadline) -> Result<Option<Proof>>;

    /// Frees the lock if `proof` holds it; leaves whoever else holds it alone. Repeating a release that
    /// is in doubt is safe.
    fn release(&self, name: &LockName, proof: &Proof, by: Deadline) -> Result<Released>;

    /// Who holds the lock right now. The cheapest question there is: what a waiter polls with.
    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>>;

    /// Holder and last fence, for people.
    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection>;

    /// What the store's version and configuration mean for locks. Changes nothing in the store.
    fn examine(&self, by: Deadline) -> Result<Vec<Finding>> {
        let _ = by;
        Ok(Vec::new())
    }

    /// The latches kept in the same store; `None` where a store has locks only.
    fn latches(&self) -> Option<&dyn LatchStore> {
        None
    }
}
