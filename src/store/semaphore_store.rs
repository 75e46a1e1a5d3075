//! The contract between semaphores and the stores that keep them.

use super::grant::{Attempt, Grant};
use super::mode_store::LockHold;
use crate::error::{Error, Result};
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::names::owner::OwnerRecord;
use crate::runtime::time::Deadline;

/// Most permits of one semaphore.
pub const PERMITS_MAX: u16 = 256;

/// The part of a store for semaphores. See [`LockStore::semaphores`](super::LockStore::semaphores).
///
/// A semaphore is kept under the name of a lock, and has a size: its number of permits, which are numbered from 0. Each permit
/// that is held is a hold of that lock in mode [`Permit`](crate::Mode::Permit), with an owner record and an end of its own.
/// [`LockStore::renew`](super::LockStore::renew), `renew_many`, `release` and `release_broken` take the owner record of any permit,
/// and touch no other. [`ModeStore::holds`](super::ModeStore::holds) returns all permits that are held.
///
/// * **Size**: the first grant decides it. The store remembers it at least while a permit is held.
/// * **Grants**: a permit goes to one holder at a time. No permit is granted while one with a number at or above the size is held,
///   which happens after [`resize`](SemaphoreStore::resize), while the lock is held in any other mode, or while a process
///   [waits](super::ModeStore::announce) for the lock exclusively.
/// * **Fences**: each grant has a fence that is higher than all before. So the fences of one permit rise.
/// * **Unknown holds** and **versions without semaphores**: as for other modes.
/// * **Calls** block, fail and may be used from several threads as those of [`LockStore`](super::LockStore) are. The check of all
///   conditions and the write are one atomic step.
pub trait SemaphoreStore: Send + Sync {
    /// Acquires several permits in one step, or none. Never waits.
    ///
    /// Fails, answers and uses `doubtful` as [`LockStore::acquire`](super::LockStore::acquire) does.
    fn acquire_permits(
        &self,
        attempt: Attempt<'_>,
        terms: PermitTerms,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<AcquiredPermits>;

    /// Returns the size and the permits that are held. `None` if the store knows no semaphore of this name.
    fn semaphore(&self, name: &LockName, by: Deadline) -> Result<Option<SemaphoreState>>;

    /// Changes the size. Permits that are held stay so. Returns the size before, or `None` and changes nothing if the store knows
    /// no semaphore of this name. May be repeated, also if it is in doubt. A request that arrives late may
    /// undo a later one.
    fn resize(&self, name: &LockName, permits: u16, by: Deadline) -> Result<Option<u16>>;
}

/// What is asked for in [`SemaphoreStore::acquire_permits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermitTerms {
    /// The size: 1 to [`PERMITS_MAX`].
    pub permits: u16,
    /// How many are acquired: 1 to the size.
    pub count: u16,
}

/// Answer of [`SemaphoreStore::acquire_permits`].
#[derive(Debug)]
pub enum AcquiredPermits {
    /// The caller holds these permits: as many as it asked for, in the order of their numbers.
    Granted(Vec<PermitGrant>),
    /// Too few are free. One of those that hold the others, or what else stands in the way.
    Held(Holder),
    /// The semaphore has another size.
    OtherSize(u16),
}

/// One permit that was granted.
#[derive(Debug)]
pub struct PermitGrant {
    /// Its number, below the size.
    pub permit: u8,
    /// The grant, with a fence.
    pub grant: Grant,
}

/// A semaphore as it was read.
#[derive(Debug)]
pub struct SemaphoreState {
    /// The number of permits.
    pub permits: u16,
    /// Those that are held, each with [its number](Holder::permit).
    pub held: Vec<LockHold>,
}

/// Checks the size of a semaphore before any I/O.
pub(crate) fn checked_size(permits: u16) -> Result<u16> {
    match permits {
        1..=PERMITS_MAX => Ok(permits),
        _ => Err(Error::invalid("permits", permits.to_string(), format!("1 to {PERMITS_MAX}"))),
    }
}
