//! The store interface of the lock protocol for semaphores: several records for each lock.

use super::answers::Reply;
use super::mode_register::StoredHolds;
use super::record::Record;
use crate::error::Result;
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::runtime::time::Deadline;
use crate::store::AcquiredPermits;

/// The part of a [`Register`](super::Register) for semaphores: see [`Register::permits`](super::Register::permits).
///
/// A permit is a record of mode [`Permit`](crate::Mode::Permit), whose [place](Record::place) is the number of the permit.
/// [`SemaphoreStore`](crate::store::SemaphoreStore) has the rules. The register must have a part for [modes](super::Register::modes), too, which reads the permits.
///
/// Each change is one atomic step under one condition, as those of a register are.
pub trait PermitRegister: Send + Sync {
    /// Writes the records of permits that are free: all, or none. The register chooses their places and their number.
    ///
    /// * Yes: the records that are stored, in the order of their places.
    /// * No: why there are too few. Nothing was changed, and no request is under way.
    /// * Lost: they may be stored now, or later. The library reads the lock to find out.
    fn grant(&self, grant: &GrantPermits<'_>, by: Deadline) -> Reply<Vec<Record>, NotGranted>;

    /// Reads everything that the semaphore has, and its size. `None` as the size: it has none.
    ///
    /// # Errors
    /// As for [`Register::read`](super::Register::read).
    fn read_permits(&self, name: &LockName, by: Deadline) -> Result<(Option<u16>, StoredHolds)>;

    /// See [`SemaphoreStore::resize`](crate::store::SemaphoreStore::resize).
    ///
    /// # Errors
    /// Any. The call may be repeated.
    fn resize(&self, name: &LockName, permits: u16, by: Deadline) -> Result<Option<u16>>;
}

/// Arguments of [`PermitRegister::grant`].
#[derive(Debug)]
pub struct GrantPermits<'a> {
    /// The semaphore.
    pub name: &'a LockName,
    /// The size that it must have, if it has one.
    pub permits: u16,
    /// The records, without number and place.
    pub records: &'a [Record],
    /// The least number of the grant.
    pub least: u64,
}

/// Why [`PermitRegister::grant`] changed nothing.
#[derive(Debug)]
pub enum NotGranted {
    /// Too few are free, or a lock or an intent stands in the way.
    Held(Holder),
    /// The semaphore has another size.
    OtherSize(u16),
}

impl From<NotGranted> for AcquiredPermits {
    fn from(why: NotGranted) -> AcquiredPermits {
        match why {
            NotGranted::Held(holder) => AcquiredPermits::Held(holder),
            NotGranted::OtherSize(size) => AcquiredPermits::OtherSize(size),
        }
    }
}
