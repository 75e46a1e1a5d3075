//! Latch stores with a known defect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlm::store::{
    Acquired, Attempt, Inspection, LatchPage, LatchQuery, LatchStore, LockStore, ModeStore, NewLatch,
    OwnerRecord, Promise, Released, Roster, SemaphoreStore, Step, Stepped, StoreCounters,
};
use dlm::{Deadline, Holder, LatchName, Level, LockName, Result};

/// One step in so many shows the defect of a mutant that miscounts.
const MISCOUNT_EVERY: u64 = 4;

/// A defect of a latch store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatchMutation {
    /// Some steps count twice.
    CountsTwice,
    /// Some steps do not count.
    LosesCount,
    /// A latch appears to be open when one count-down is missing.
    OpensEarly,
    /// A latch never appears to be open.
    NeverOpens,
    /// Creating an existing latch is reported as successful.
    CreatesTwice,
    /// Latches expire after a third of their TTL.
    ExpiresEarly,
    /// Latches do not expire.
    NeverExpires,
    /// A count-down that was answered before a reset counts after it.
    CountsLate,
    /// A reset leaves the count as it is.
    LosesReset,
}

/// A store that passes every call on to another store, whose latches have one defect. It may be shared between
/// threads.
#[derive(Debug)]
pub struct LatchMutant {
    inner: Arc<dyn LockStore>,
    mutation: LatchMutation,
    steps: AtomicU64,
}

impl LatchMutant {
    /// Wraps `inner`, which must have latches.
    pub fn new(inner: Arc<dyn LockStore>, mutation: LatchMutation) -> LatchMutant {
        LatchMutant { inner, mutation, steps: AtomicU64::new(0) }
    }

    fn latch_store(&self) -> &dyn LatchStore {
        self.inner.latches().expect("the store has latches")
    }

    fn shown(&self, count: i64) -> i64 {
        match self.mutation {
            LatchMutation::OpensEarly if count == 1 => 0,
            LatchMutation::NeverOpens => count.max(1),
            _ => count,
        }
    }
}

impl LatchStore for LatchMutant {
    fn initialize_latches(&self, by: Deadline) -> Result<()> {
        self.latch_store().initialize_latches(by)
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        let ttl = match self.mutation {
            LatchMutation::ExpiresEarly => new.ttl / 3,
            LatchMutation::NeverExpires => new.ttl.max(Duration::from_secs(3600)),
            _ => new.ttl,
        };
        let created = self.latch_store().create_latch(&NewLatch { ttl, ..*new })?;
        Ok(created || self.mutation == LatchMutation::CreatesTwice)
    }

    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        let number = self.steps.fetch_add(1, Ordering::Relaxed);
        let miscounts = number % MISCOUNT_EVERY == MISCOUNT_EVERY - 1;
        match self.mutation {
            LatchMutation::LosesCount if miscounts => return Ok(Stepped::Counted(None)),
            LatchMutation::CountsTwice if miscounts => {
                self.latch_store().step(&Step { participant: None, ..*step })?;
            }
            _ => {}
        }
        Ok(match self.latch_store().step(step)? {
            Stepped::Counted(count) => Stepped::Counted(count.map(|count| self.shown(count))),
            Stepped::Already => Stepped::Already,
        })
    }

    fn reset_latch(&self, new: &NewLatch<'_>) -> Result<()> {
        if self.mutation == LatchMutation::LosesReset {
            return Ok(());
        }
        self.latch_store().reset_latch(new)?;
        if self.mutation == LatchMutation::CountsLate {
            let NewLatch { name, ttl, by, .. } = *new;
            self.latch_store().step(&Step { name, add: -1, participant: None, ttl, by })?;
        }
        Ok(())
    }

    fn delete_latch(&self, name: &LatchName, ttl: Duration, by: Deadline) -> Result<()> {
        self.latch_store().delete_latch(name, ttl, by)
    }

    fn list_latches(&self, asked: &LatchQuery<'_>) -> Result<LatchPage> {
        self.latch_store().list_latches(asked)
    }

    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>> {
        let counts = self.latch_store().counts(asked, by)?;
        let shown = |count: Result<Option<i64>>| count.map(|count| count.map(|count| self.shown(count)));
        Ok(counts.into_iter().map(shown).collect())
    }

    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster> {
        self.latch_store().roster(name, by)
    }
}

impl LockStore for LatchMutant {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.inner.initialize(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.inner.acquire(attempt, doubtful)
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        self.inner.renew(name, owner_record, ttl, by)
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.inner.release(name, owner_record, by)
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        self.inner.holder(name, by)
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        self.inner.inspect(name, by)
    }

    fn shard(&self, name: &LockName) -> u8 {
        self.inner.shard(name)
    }

    fn promises(&self) -> Vec<Promise> {
        self.inner.promises()
    }

    fn counters(&self) -> StoreCounters {
        self.inner.counters()
    }

    fn modes(&self) -> Option<&dyn ModeStore> {
        self.inner.modes()
    }

    fn semaphores(&self) -> Option<&dyn SemaphoreStore> {
        self.inner.semaphores()
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(self)
    }
}
