//! Lock stores with a known defect.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dlm::store::{
    Acquired, Attempt, Grant, Inspection, LatchStore, ListCursor, LockPage, LockQuery, LockStore, Mode,
    ModeStore, ModeTerms, OwnerRecord, Promise, Released, SemaphoreStore, StoreCounters,
};
use dlm::{Deadline, Diagnostic, Fence, Holder, LockName, Result};
use parking_lot::Mutex;

use super::mode_defects::Remembered;

/// One grant in so many of a lock shows the defect of a mutant that does not break every grant.
const GRANT_EVERY: u64 = 4;

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
    /// Some grants of a lock that was released are hidden under the older cell of that release, so the lock seems free.
    HidesGrant,
    /// Some grants have a lower fence than the one before, from a clock that is behind.
    LowersFence,
    /// Some grants are overwritten by the record of the holder before, from a server that was away. It stands for half
    /// of the TTL.
    RestoresOldRecord,
    /// A renewal for a shorter TTL arrives after each renewal, and takes back what that one has added.
    ShortensLate,
    /// Records end after two thirds of the time that was asked for.
    EndsBeforeItsTime,
    /// The fences that a grant has reserved are granted again.
    GivesBlockTwice,
    /// A reader is let in beside a writer.
    SharedBesideExclusive,
    /// Several holders have [`Mode::Update`] at one time.
    UpdateBesideUpdate,
    /// [`LockStore::acquire`] does not see holds that are not exclusive.
    OlderVersionBesideReader,
    /// The epoch after a step down is the fence before it.
    StepDownKeepsNumber,
    /// The fence after an upgrade is the epoch before it.
    UpgradeKeepsNumber,
    /// The first reader after a writer has the writer's number.
    FirstReaderKeepsNumber,
    /// Each reader has a number of its own.
    EachReaderBeginsNumber,
    /// Intents do not stand in the way of readers.
    IgnoresIntent,
    /// An intent that was announced stands until it is withdrawn or served.
    IntentNeverEnds,
    /// A withdrawal does not end an intent.
    IgnoresWithdrawal,
    /// A withdrawal ends all intents.
    WithdrawalEndsAll,
    /// A grant does not end the intent of its process.
    GrantKeepsIntent,
    /// A reader that holds the lock already is refused because of an intent.
    RefusesNested,
    /// Any record lets a reader pass intents.
    NestsInAnything,
    /// A turn lets readers in beside a writer.
    TurnIgnoresWriter,
    /// Once readers had a turn, intents do not stand in their way any more.
    TurnNeverEnds,
    /// The record before a conversion still renews and releases.
    ConversionKeepsOldRecord,
    /// A converted hold ends when it would have ended without the conversion.
    ConversionKeepsEnd,
    /// A conversion releases the lock and acquires it again.
    ConvertsInTwoSteps,
    /// An upgrade does not wait for readers.
    UpgradesBesideReaders,
    /// A release of one hold ends all.
    ReleaseEndsAll,
    /// Breaking one hold ends all.
    BreakEndsAll,
    /// A renewal of any hold renews the first one instead.
    RenewsFirst,
    /// A renewal of one hold renews all, also those of the dead.
    RenewsAll,
    /// A grant or a renewal ends the other holds together with this one.
    ShortensOthers,
    /// The records of some readers that were released show again, until their leases would have ended.
    ShowsReleasedReader,
    /// A reader gets the slot of another one. Each of them then renews and releases the record of both.
    TwoInOneSlot,
    /// A renewal writes the number of the lock as it was before, so the next grants begin below it.
    RenewalLowersNumber,
    /// Intents stand in the way of readers also in their turn.
    IgnoresTurn,
    /// A semaphore has one permit more than its holders count on.
    PermitBeyondSize,
    /// A permit that is held is granted once more.
    PermitHasTwoHolders,
    /// A permit whose holder has died stays held.
    PermitNeverEnds,
    /// All grants of a permit have the same fence.
    PermitKeepsFence,
    /// Callers who count on different numbers of permits get permits of one semaphore.
    IgnoresSize,
    /// A change of the number of permits is reported as successful, and changes nothing.
    IgnoresResize,
}

/// A store that passes every call on to another store, and has one defect. It may be shared between threads.
#[derive(Debug)]
pub struct LockMutant {
    pub(super) inner: Arc<dyn LockStore>,
    pub(super) mutation: LockMutation,
    last: Mutex<HashMap<LockName, LastGrant>>,
    pub(super) remembered: Remembered,
}

#[derive(Debug)]
struct LastGrant {
    /// Number of this grant of the lock.
    number: u64,
    owner_record: OwnerRecord,
    /// The fence that was returned.
    fence: Option<Fence>,
    released: bool,
    /// The record of the holder before stands in its place.
    overwritten: bool,
}

/// Whether the grant or the release of a lock with this number shows the defect of a mutant that breaks only some.
pub(super) fn shows(number: u64) -> bool {
    number % GRANT_EVERY == GRANT_EVERY - 1
}

impl LockMutant {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn LockStore>, mutation: LockMutation) -> LockMutant {
        LockMutant { inner, mutation, last: Mutex::default(), remembered: Mutex::default() }
    }

    fn lasts(&self, ttl: Duration) -> Duration {
        match self.mutation {
            LockMutation::ExpiresEarly => ttl / 3,
            LockMutation::EndsBeforeItsTime => ttl * 2 / 3,
            _ => ttl,
        }
    }

    /// Returns whether the next grant of a lock shows the defect of [`LockMutation::HidesGrant`] or
    /// [`LockMutation::RestoresOldRecord`].
    fn loses_next(&self, name: &LockName) -> bool {
        let loses = matches!(self.mutation, LockMutation::HidesGrant | LockMutation::RestoresOldRecord);
        loses && self.last.lock().get(name).is_some_and(|last| last.released && shows(last.number + 1))
    }

    fn granted(&self, name: &LockName, grant: &mut Grant, overwritten: bool) {
        let mut last = self.last.lock();
        let before = last.get(name);
        let number = before.map_or(0, |before| before.number + 1);
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
            LockMutation::LowersFence if shows(number) => {
                let counted = before.and_then(|before| before.fence);
                grant.fence = counted.map(|fence| Fence(fence.0.saturating_sub(1 << 20)));
            }
            _ => {}
        }
        let owner_record = grant.owner_record.clone();
        let grant = LastGrant { number, owner_record, fence: grant.fence, released: false, overwritten };
        last.insert(name.clone(), grant);
    }

    /// Returns whether the record of this owner was overwritten.
    fn is_overwritten(&self, name: &LockName, owner_record: &OwnerRecord) -> bool {
        let last = self.last.lock();
        last.get(name).is_some_and(|last| last.overwritten && last.owner_record == *owner_record)
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

    fn reserves_fences(&self) -> bool {
        self.inner.reserves_fences()
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.acquire_with_fences(attempt, 1, doubtful)
    }

    fn acquire_with_fences(
        &self,
        attempt: Attempt<'_>,
        fences: u64,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        let loses = self.loses_next(attempt.name);
        let overwritten = loses && self.mutation == LockMutation::RestoresOldRecord;
        // The record that the store then keeps is that of the holder before.
        let ttl = if overwritten { attempt.ttl / 2 } else { self.lasts(attempt.ttl) };
        let gives_twice = self.mutation == LockMutation::GivesBlockTwice;
        let reserved = if gives_twice { 1 } else { fences };
        self.end_shortened(attempt.name, attempt.by)?;
        let mut acquired = self.inner.acquire_with_fences(Attempt { ttl, ..attempt }, reserved, doubtful)?;
        if let Acquired::Held(holder) = &acquired {
            let terms = ModeTerms::new(Mode::Exclusive);
            if let Some(grant) = self.let_in(attempt.name, &terms, holder, true)? {
                return Ok(Acquired::Granted(grant));
            }
        }
        if let Acquired::Granted(grant) = &mut acquired {
            grant.fences = fences;
            self.granted(attempt.name, grant, overwritten);
            self.remember(attempt.name, grant, &[], attempt.ttl);
            match self.mutation {
                LockMutation::DatesGrantLater => grant.since = grant.since.after(attempt.ttl),
                // If this fails, the grant is a good one.
                LockMutation::HidesGrant if loses => {
                    let _ = self.inner.release(attempt.name, &grant.owner_record, attempt.by);
                }
                _ => {}
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
        if self.is_overwritten(name, owner_record) {
            return Ok(None);
        }
        let ttl = if self.mutation == LockMutation::ShortensLate { ttl / 4 } else { self.lasts(ttl) };
        self.end_shortened(name, by)?;
        let current = self.current(name, owner_record);
        let instead = self.renewed_instead(name, &current, ttl, by)?;
        let renewed = self.inner.renew(name, &instead, ttl, by)?;
        if renewed.is_some() {
            self.note_renewal(name);
        }
        // The caller goes on with its own record.
        let renewed =
            renewed.map(|renewed| if instead == *owner_record { renewed } else { owner_record.clone() });
        let lies = self.mutation == LockMutation::RenewsLostLease;
        Ok(renewed.or_else(|| lies.then(|| owner_record.clone())))
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        if self.is_overwritten(name, owner_record) {
            return Ok(Released::NotOurs);
        }
        match self.mutation {
            LockMutation::LeaksRelease => return Ok(Released::Freed),
            LockMutation::ReleasesWithoutOwner => {
                let holder = self.last.lock().get(name).map(|last| last.owner_record.clone());
                return self.inner.release(name, holder.as_ref().unwrap_or(owner_record), by);
            }
            _ => {}
        }
        self.end_shortened(name, by)?;
        let ghost = self.ghost(name, owner_record, by)?;
        let released = self.inner.release(name, &self.current(name, owner_record), by)?;
        self.released(name, owner_record);
        if let Some(ghost) = ghost.filter(|_| released == Released::Freed) {
            self.show_again(name, &ghost, by)?;
        }
        if self.mutation == LockMutation::ReleaseEndsAll {
            self.end_all(name, released, by)?;
        }
        Ok(if self.mutation == LockMutation::ReleaseAlwaysTrue { Released::Freed } else { released })
    }

    fn release_broken(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        let released = self.release(name, owner_record, by)?;
        if self.mutation == LockMutation::BreakEndsAll {
            self.end_all(name, released, by)?;
        }
        Ok(released)
    }

    fn grant_number(&self, owner_record: &OwnerRecord) -> Option<u64> {
        self.inner.grant_number(owner_record)
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        self.inner.holder(name, by)
    }

    fn list(
        &self,
        query: &LockQuery,
        after: Option<&ListCursor>,
        most: usize,
        by: Deadline,
    ) -> Result<LockPage> {
        self.inner.list(query, after, most, by)
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
        self.inner.modes().map(|_| self as &dyn ModeStore)
    }

    fn semaphores(&self) -> Option<&dyn SemaphoreStore> {
        self.inner.semaphores().map(|_| self as &dyn SemaphoreStore)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        self.inner.latches()
    }
}
