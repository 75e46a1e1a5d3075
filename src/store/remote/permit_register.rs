//! The store interface of the lock protocol for semaphores: several records for each lock.

#[cfg(any(feature = "hbase", feature = "aerospike"))]
use super::answers::Found;
use super::answers::Reply;
use super::mode_register::StoredHolds;
use super::record::Record;
use crate::error::Result;
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
#[cfg(any(feature = "hbase", feature = "aerospike"))]
use crate::names::mode::Mode;
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
    /// * Yes: the records that are stored, in the same order, which is that of their places.
    /// * No: why there are too few. Nothing was changed, and no request is under way.
    /// * Lost: they may be stored now, or later. The library reads the lock to find out.
    fn grant(&self, grant: &GrantPermits<'_>, by: Deadline) -> Reply<Vec<Record>, NotGranted>;

    /// Returns whether permits that are stored may be granted: their number is above all that other layouts have counted. If not, or if
    /// this fails, the library releases them.
    ///
    /// # Errors
    /// Any. The call may be repeated.
    ///
    /// Default: `true`, without a request.
    fn confirm(&self, name: &LockName, stored: &[Record], by: Deadline) -> Result<bool> {
        let _ = (name, stored, by);
        Ok(true)
    }

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

impl GrantPermits<'_> {
    /// Chooses permits that nobody holds, for a register that has read this. Returns their numbers, or why there are too few.
    #[cfg(any(feature = "hbase", feature = "aerospike"))]
    pub(crate) fn choose(
        &self,
        size: Option<u16>,
        stored: &StoredHolds,
    ) -> std::result::Result<Vec<u8>, Box<NotGranted>> {
        if let Some(stored) = size.filter(|size| *size != self.permits) {
            return Err(Box::new(NotGranted::OtherSize(stored)));
        }
        let held = |found: &Found| {
            let record = found.record.as_ref().filter(|record| record.mode() == Mode::Permit);
            record.and_then(Record::place)
        };
        let is_below = |found: &&Found| held(found).is_some_and(|permit| u16::from(permit) < self.permits);
        let others = stored.holds.iter().filter(|found| !is_below(found)).max_by_key(|found| found.left);
        if let Some(holder) = others.map(Found::holder).or_else(|| stored.intent()) {
            return Err(Box::new(NotGranted::Held(holder)));
        }
        let is_free = |permit: &u8| stored.holds.iter().all(|found| held(found) != Some(*permit));
        let all = (0..self.permits).filter_map(|permit| u8::try_from(permit).ok());
        let free: Vec<u8> = all.filter(is_free).take(self.records.len()).collect();
        if free.len() == self.records.len() {
            return Ok(free);
        }
        let first = stored.holds.iter().min_by_key(|found| found.left).map(Found::holder);
        Err(Box::new(NotGranted::Held(first.unwrap_or_else(Holder::unknown))))
    }

    /// Returns the stored versions of the records, if all of them are stored: the server has run this request.
    pub(crate) fn stored(records: &[Record], holds: &StoredHolds) -> Option<Vec<Record>> {
        records.iter().map(|record| holds.own(record).cloned()).collect()
    }
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
