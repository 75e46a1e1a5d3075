//! The contract between locks and the stores.

use std::fmt;
use std::time::Duration;

use super::latch_store::LatchStore;
use crate::diagnostic::Diagnostic;
use crate::error::Result;
use crate::fence::Fence;
use crate::holder::{Holder, Identity};
use crate::name::LockName;
use crate::owner::OwnerRecord;
use crate::time::{Deadline, Moment};

/// One attempt to take a lock.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// How long the lease lasts.
    pub ttl: Duration,
    /// Who asks, for the record that `dlm show` reads.
    pub identity: &'a Identity,
    /// When the call must have come back.
    pub by: Deadline,
}

/// A lock that was granted.
#[derive(Debug)]
pub struct Grant {
    /// What renews and releases it.
    pub owner_record: OwnerRecord,
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
    /// The lock was held by this owner, and is free.
    Freed,
    /// This owner did not hold the lock. Nothing was changed.
    NotOurs,
    /// A reply was lost, and by now this owner does not hold the lock: this release freed it, unless
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
    /// The owner record of any request that may still take effect after the call is pushed to `doubtful`,
    /// whatever the call answers; [`release`](LockStore::release) of such a record is always safe.
    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired>;

    /// Lets the lease end `ttl` from now, if `owner_record` still holds the lock. The answer is the record to
    /// use from now on, and `None` when it does not hold the lock any more.
    ///
    /// A store may keep a lease for longer than was asked, never shorter. No request shortens what stands:
    /// where the record lasts longer than `ttl` already, it goes on lasting as long, and the answer is a
    /// success. That holds also for a request that arrives late, behind one for a longer `ttl`.
    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>>;

    /// Frees the lock if `owner_record` holds it; leaves whoever else holds it alone. Repeating a release that
    /// is in doubt is safe.
    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released>;

    /// Who holds the lock right now. The cheapest question there is: what a waiter polls with.
    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>>;

    /// Holder and last fence, for people.
    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection>;

    /// How long after a call has ended a request without an answer may still be applied: for as long the background
    /// looks for its record. Five minutes unless the store knows better: a gateway goes on with a call that its
    /// client has given up.
    fn in_flight_for(&self) -> Duration {
        Duration::from_secs(300)
    }

    /// What the store's version and configuration mean for locks. Changes nothing in the store.
    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        let _ = by;
        Ok(Vec::new())
    }

    /// The latches kept in the same store; `None` where a store has locks only.
    fn latches(&self) -> Option<&dyn LatchStore> {
        None
    }
}
