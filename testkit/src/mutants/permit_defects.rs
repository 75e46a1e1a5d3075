//! The defects of a [`LockMutant`] in semaphores.

use std::time::Duration;

use dlm::store::{
    AcquiredPermits, Attempt, Mode, OwnerRecord, PermitGrant, PermitTerms, SemaphoreState, SemaphoreStore,
};
use dlm::{Deadline, Fence, LockName, Result};

use super::lock_mutant::{LockMutant, LockMutation};

/// Longer than any test lasts.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

impl LockMutant {
    fn semaphore_store(&self) -> &dyn SemaphoreStore {
        self.inner.semaphores().expect("the store keeps semaphores")
    }

    /// Returns how long the store keeps a permit.
    fn keeps_permit(&self, ttl: Duration) -> Duration {
        if self.mutation == LockMutation::PermitNeverEnds { FOR_EVER } else { ttl }
    }
}

impl SemaphoreStore for LockMutant {
    fn acquire_permits(
        &self,
        attempt: Attempt<'_>,
        terms: PermitTerms,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<AcquiredPermits> {
        let (inner, name) = (self.semaphore_store(), attempt.name);
        let attempt = Attempt { ttl: self.keeps_permit(attempt.ttl), ..attempt };
        let beyond = u16::from(self.mutation == LockMutation::PermitBeyondSize);
        let mut asked = PermitTerms { permits: terms.permits + beyond, ..terms };
        let mut acquired = inner.acquire_permits(attempt, asked, doubtful)?;
        if let (AcquiredPermits::OtherSize(stored), LockMutation::IgnoresSize) = (&acquired, self.mutation) {
            asked.permits = *stored;
            acquired = inner.acquire_permits(attempt, asked, doubtful)?;
        }
        match (&mut acquired, self.mutation) {
            (AcquiredPermits::Granted(grants), LockMutation::PermitKeepsFence) => {
                for PermitGrant { permit, grant } in grants {
                    grant.fence = grant.fence.map(|fence| Fence(fence.0.min(u64::from(*permit) + 1)));
                }
            }
            // The permit of somebody else, as if it were free.
            (AcquiredPermits::Held(_), LockMutation::PermitHasTwoHolders) => {
                let held = inner.semaphore(name, attempt.by)?.map(|state| state.held).unwrap_or_default();
                let grants = held.into_iter().filter_map(|hold| {
                    let grant = self.made_up(name, Mode::Exclusive).ok()?;
                    Some(PermitGrant { permit: hold.holder.permit?, grant })
                });
                let grants: Vec<_> = grants.take(usize::from(terms.count)).collect();
                if grants.len() == usize::from(terms.count) {
                    acquired = AcquiredPermits::Granted(grants);
                }
            }
            _ => {}
        }
        Ok(acquired)
    }

    fn semaphore(&self, name: &LockName, by: Deadline) -> Result<Option<SemaphoreState>> {
        self.semaphore_store().semaphore(name, by)
    }

    fn resize(&self, name: &LockName, permits: u16, by: Deadline) -> Result<Option<u16>> {
        match self.mutation {
            LockMutation::IgnoresResize => Ok(self.semaphore(name, by)?.map(|state| state.permits)),
            _ => self.semaphore_store().resize(name, permits, by),
        }
    }
}
