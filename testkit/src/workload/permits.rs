//! What the clients of a [`LockWorkload`](super::LockWorkload) do with semaphores.

use std::io::Write;
use std::time::Duration;

use dlm::{AcquireOptions, Lease, Level, Semaphore};

use super::locks::LockClient;
use crate::history::{Answer, CallId, Operation, Recorder};

/// One in so many acquisitions counts on another number of permits, and one changes it, if clients do so.
const RARELY: u16 = 24;

impl LockClient<'_> {
    /// Acquires a permit of the semaphore `key`.
    pub(super) fn acquire_permit(
        &mut self,
        log: &mut Recorder<impl Write>,
        key: &str,
        wait: Duration,
    ) -> Option<(Lease, CallId)> {
        let permits = self.any_size(key);
        if self.workload.resizes && self.random.u16(..RARELY) == 0 {
            let resize = log.call(key, Operation::Resize { permits });
            let resized = self.semaphore(key, permits).resize(permits);
            log.returned(&resize, resized.map_or_else(|error| Answer::from(&error), |_| Answer::Ok));
        }
        let (semaphore, ttl) = (self.semaphore(key, permits), self.workload.ttl);
        let id = log.call(key, Operation::AcquirePermit { ttl, wait, permits });
        let acquired = semaphore.acquire_with(1, &AcquireOptions::new().ttl(ttl).wait(wait));
        let leases = acquired.map(|set| set.into_leases().into_iter().next());
        let answer = match &leases {
            Ok(lease) => {
                let lease = lease.as_ref().expect("one permit was asked for");
                let (permit, fence) = (lease.permit().expect("a permit"), lease.fence().map(|fence| fence.0));
                Answer::GrantedPermit { permit, fence, ends: lease.ends() }
            }
            Err(error) => Answer::from(error),
        };
        if answer.is_grant() {
            self.granted.insert(key.to_owned());
        }
        log.returned(&id, answer);
        leases.ok().flatten().map(|lease| (lease, id))
    }

    fn semaphore(&self, key: &str, permits: u16) -> Semaphore {
        self.manager.semaphore(key, Level::Xdc, permits).expect("a valid name and size")
    }

    /// Returns the number of permits that an acquisition counts on.
    fn any_size(&mut self, key: &str) -> u16 {
        let permits = self.workload.permits;
        match self.workload.resizes {
            // Each of three numbers has its turn.
            true => self.random.u16(permits.saturating_sub(1).max(1)..=permits + 1),
            // Not before the store knows the right one.
            false if self.granted.contains(key) && self.random.u16(..RARELY) == 0 => permits + 1,
            false => permits,
        }
    }
}
