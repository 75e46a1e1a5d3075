//! Lock stores with a known defect.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dlm::store::{Acquired, Attempt, Grant, LatchStore, LockStore, OwnerRecord, Released};
use dlm::{Deadline, Diagnostic, Fence, Holder, Inspection, LockName, Result};
use parking_lot::Mutex;

/// A defect of a lock store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMutation {
    /// Leases end after a third of their TTL.
    ExpiresEarly,
    /// A release frees the lock, whoever holds it.
    ReleasesWithoutOwner,
    /// All grants of a lock have the same fence.
    RepeatsFence,
    /// Fences start again at 1 after a lease that was not released.
    ForgetsFenceAtExpiry,
    /// A renewal of a lost lease succeeds.
    RenewsLostLease,
    /// Every release is reported as successful.
    ReleaseAlwaysTrue,
    /// A release is reported as successful, and changes nothing.
    LeaksRelease,
    /// A grant is dated one TTL later than it was made, so that the library counts on it for too long.
    DatesGrantLater,
}

/// A store that passes every call on to another store, and has one defect. It may be shared between threads.
#[derive(Debug)]
pub struct LockMutant {
    inner: Arc<dyn LockStore>,
    mutation: LockMutation,
    last: Mutex<HashMap<LockName, LastGrant>>,
}

#[derive(Debug)]
struct LastGrant {
    owner_record: OwnerRecord,
    /// The fence that was returned.
    fence: Option<Fence>,
    released: bool,
}

impl LockMutant {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn LockStore>, mutation: LockMutation) -> LockMutant {
        LockMutant { inner, mutation, last: Mutex::default() }
    }

    fn lasts(&self, ttl: Duration) -> Duration {
        if self.mutation == LockMutation::ExpiresEarly { ttl / 3 } else { ttl }
    }

    fn granted(&self, name: &LockName, grant: &mut Grant) {
        let mut last = self.last.lock();
        let before = last.get(name);
        match self.mutation {
            LockMutation::RepeatsFence => {
                if let Some(before) = before {
                    grant.fence = before.fence;
                }
            }
            LockMutation::ForgetsFenceAtExpiry => {
                let counted = before.filter(|before| before.released).and_then(|before| before.fence);
                grant.fence = Some(Fence(counted.map_or(1, |fence| fence.0 + 1)));
            }
            _ => {}
        }
        let owner_record = grant.owner_record.clone();
        last.insert(name.clone(), LastGrant { owner_record, fence: grant.fence, released: false });
    }

    fn released(&self, name: &LockName, owner_record: &OwnerRecord) {
        if let Some(last) = self.last.lock().get_mut(name)
            && last.owner_record == *owner_record
        {
            last.released = true;
        }
    }
}

impl LockStore for LockMutant {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.inner.initialize(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        let ttl = self.lasts(attempt.ttl);
        let mut acquired = self.inner.acquire(Attempt { ttl, ..attempt }, doubtful)?;
        if let Acquired::Granted(grant) = &mut acquired {
            self.granted(attempt.name, grant);
            if self.mutation == LockMutation::DatesGrantLater {
                grant.since = grant.since.after(attempt.ttl);
            }
        }
        Ok(acquired)
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        let renewed = self.inner.renew(name, owner_record, self.lasts(ttl), by)?;
        let lies = self.mutation == LockMutation::RenewsLostLease;
        Ok(renewed.or_else(|| lies.then(|| owner_record.clone())))
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        match self.mutation {
            LockMutation::LeaksRelease => return Ok(Released::Freed),
            LockMutation::ReleasesWithoutOwner => {
                let holder = self.last.lock().get(name).map(|last| last.owner_record.clone());
                return self.inner.release(name, holder.as_ref().unwrap_or(owner_record), by);
            }
            _ => {}
        }
        let released = self.inner.release(name, owner_record, by)?;
        self.released(name, owner_record);
        Ok(if self.mutation == LockMutation::ReleaseAlwaysTrue { Released::Freed } else { released })
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        self.inner.holder(name, by)
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        self.inner.inspect(name, by)
    }

    fn in_flight_for(&self) -> Duration {
        self.inner.in_flight_for()
    }

    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        self.inner.diagnose(by)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        self.inner.latches()
    }
}
