//! The contract of stores that can tell whether the process of a holder still lives.

use std::os::fd::OwnedFd;

use super::lock_store::{Acquired, Attempt};
use crate::error::Result;
use crate::name::LockName;
use crate::owner::OwnerRecord;
use crate::time::Deadline;

/// The part of a store for leases that die with their process. See
/// [`LockStore::liveness`](super::LockStore::liveness).
///
/// The record of such a lease is marked. As soon as the holder's process has died,
/// [`LockStore::acquire`](super::LockStore::acquire) may replace a marked record, with a higher fence, and
/// [`LockStore::holder`](super::LockStore::holder) and [`LockStore::inspect`](super::LockStore::inspect) report the lock
/// as free. The end of the TTL frees the lock as it does without a mark.
///
/// * **The proof** of a death must come from the kernel that runs the process. A process that is stopped, slow or not
///   found has not died. In doubt a process lives.
/// * **Renewals** leave the mark as it is.
/// * **Calls** block, fail and may be used from several threads as those of [`LockStore`](super::LockStore) are.
pub trait LivenessStore: Send + Sync {
    /// Acquires the lock as [`LockStore::acquire`](super::LockStore::acquire) does, and marks the record in the same
    /// atomic step. The lease dies with this process; it also dies with the store object, if that is dropped.
    fn acquire_until_death(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired>;

    /// Removes the mark if `owner_record` holds the lock, in one atomic step. Afterwards only the end of the TTL takes
    /// the lock from a holder that has died. Returns `false` if `owner_record` does not hold the lock. May be repeated.
    fn outlive_process(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<bool>;

    /// Returns a new descriptor of what proves that this process lives. It is closed on exec. While any process has a
    /// copy of it, this process has not died, as far as others can tell. Returns `None` if the record is not marked, or
    /// if `owner_record` does not hold the lock.
    fn liveness_fd(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        by: Deadline,
    ) -> Result<Option<OwnedFd>>;
}
