//! All holds of one lock, and the rules of modes. No I/O: the memory store and the embedded store change it as a whole.
//!
//! | asked for | granted unless | number |
//! |---|---|---|
//! | exclusive | anybody holds the lock | the next one |
//! | shared | an exclusive hold, or an intent | that of the holds, or else the next one |
//! | update | an exclusive hold, another update hold, or an intent | that of the holds, or else the next one |
//! | less of an exclusive hold | never refused | the next one |
//! | shared instead of update | never refused | as before |
//! | exclusive instead of update | anybody else holds the lock | the next one |
//! | permits of a semaphore | too few are free, one above the size is held, another hold, or an intent | the next one |
//!
//! An intent of a process that waits exclusively does not stand in the way of a shared attempt of a process that holds the
//! lock, nor during a turn of the readers.

use std::time::{Duration, SystemTime};

use super::grant::{Attempt, Grant, GrantRecord};
use super::mode_store::{Conversion, INTENT_MAX, Intent, IntentId, LockHold, ModeTerms, TURN_MAX};
use super::semaphore_store::{AcquiredPermits, PermitGrant, PermitTerms, SemaphoreState};
use crate::names::fence::{Epoch, Fence};
use crate::names::holder::{Holder, Identity};
use crate::names::mode::Mode;
use crate::names::owner::{OwnerRecord, OwnerToken};
use crate::runtime::time::{self, Deadline, Moment};

/// How long the size of a semaphore is remembered after its last grant.
const SIZE_LASTS: Duration = Duration::from_secs(30 * 24 * 3600);

/// What one lock has. Times of different holds are those of one clock.
#[derive(Debug)]
pub(super) struct LockHolds {
    pub(super) holds: Vec<HoldRecord>,
    pub(super) intents: Vec<IntentRecord>,
    pub(super) turn_ends: Moment,
    /// Of a semaphore.
    pub(super) size: Option<SizeRecord>,
}

/// The number of permits of a semaphore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SizeRecord {
    pub(super) permits: u16,
    /// Until when it is remembered.
    pub(super) ends: Moment,
}

impl Default for LockHolds {
    fn default() -> LockHolds {
        LockHolds { holds: Vec::new(), intents: Vec::new(), turn_ends: Moment::OVER, size: None }
    }
}

/// One hold. It is valid until [`ends`](HoldRecord::ends).
#[derive(Debug, Clone)]
pub(super) struct HoldRecord {
    pub(super) owner: OwnerToken,
    pub(super) mode: Mode,
    /// Of an exclusive hold the last of its fences.
    pub(super) number: u64,
    /// When it was granted or last renewed, by the wall clock. For people only.
    pub(super) since: SystemTime,
    pub(super) ends: Moment,
    pub(super) identity: Identity,
    /// Its number, if it is a permit of a semaphore.
    pub(super) permit: Option<u8>,
}

/// A process that waits for the lock exclusively.
#[derive(Debug)]
pub(super) struct IntentRecord {
    pub(super) id: IntentId,
    /// When it was announced first.
    pub(super) since: Moment,
    pub(super) identity: Identity,
    pub(super) ends: Moment,
}

/// A new hold that is asked for.
pub(super) struct NewHold {
    pub(super) owner: OwnerToken,
    pub(super) mode: Mode,
    pub(super) since: SystemTime,
    pub(super) ends: Moment,
    pub(super) identity: Identity,
}

impl NewHold {
    /// Makes a hold whose TTL begins now.
    pub(super) fn new(owner: OwnerToken, mode: Mode, attempt: &Attempt<'_>, now: Moment) -> NewHold {
        let (ends, identity) = (now.after(attempt.ttl), attempt.identity.clone());
        NewHold { owner, mode, since: time::wall(), ends, identity }
    }

    fn numbered(self, number: u64) -> HoldRecord {
        let NewHold { owner, mode, since, ends, identity } = self;
        HoldRecord { owner, mode, number, since, ends, identity, permit: None }
    }
}

/// Answer of [`LockHolds::convert`].
pub(super) enum HoldChange {
    /// The number of the changed hold.
    Made(u64),
    Refused(Holder),
    NotOurs,
}

impl HoldRecord {
    pub(super) fn holder(&self) -> Holder {
        let remaining = Deadline::at(self.ends).remaining();
        let holder = Holder::new(Some(self.identity.clone()), Some(remaining), Some(self.since));
        match self.permit {
            Some(permit) => holder.with_permit(permit),
            None => holder.with_mode(self.mode),
        }
    }

    pub(super) fn is_owner(&self, owner_record: &OwnerRecord) -> bool {
        self.owner.as_bytes() == owner_record.as_bytes()
    }

    pub(super) fn hold(&self) -> LockHold {
        let (holder, grant) = (self.holder(), GrantRecord::Ours(self.owner_record()));
        LockHold { holder, epoch: Some(Epoch(self.number)), grant }
    }

    pub(super) fn owner_record(&self) -> OwnerRecord {
        OwnerRecord::from_bytes(self.owner.as_bytes().as_slice())
    }
}

/// Makes the grant of a hold, whose last number is `last` of so many.
pub(super) fn grant_of(owner: &OwnerToken, mode: Mode, last: u64, fences: u64, since: Moment) -> Grant {
    let (fence, epoch) = match mode {
        Mode::Exclusive | Mode::Permit => (Some(Fence(last - (fences - 1))), None),
        _ => (None, Some(Epoch(last))),
    };
    let owner_record = OwnerRecord::from_bytes(owner.as_bytes().as_slice());
    Grant { owner_record, fence, epoch, fences, since, may_reappear: false }
}

impl LockHolds {
    /// Forgets what has ended. Call it before anything else.
    pub(super) fn expire(&mut self, now: Moment) {
        self.holds.retain(|hold| now < hold.ends);
        self.intents.retain(|intent| now < intent.ends);
        if self.turn_ends <= now {
            self.turn_ends = Moment::OVER;
        }
        let is_used = self.holds.iter().any(|hold| hold.permit.is_some());
        self.size = self.size.filter(|size| is_used || now < size.ends);
    }

    /// Whether nothing is left to remember.
    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty()
            && self.intents.is_empty()
            && self.turn_ends == Moment::OVER
            && self.size.is_none()
    }

    /// Returns the hold that ends last.
    pub(super) fn last_to_end(&self) -> Option<&HoldRecord> {
        self.holds.iter().max_by_key(|hold| hold.ends)
    }

    /// Returns the number of all holds.
    pub(super) fn number(&self) -> Option<u64> {
        self.holds.first().map(|hold| hold.number)
    }

    /// Returns what stands in the way of an attempt.
    pub(super) fn blocker(&self, terms: &ModeTerms<'_>) -> Option<Holder> {
        let is_in_the_way = |hold: &&HoldRecord| !terms.mode.is_compatible_with(hold.mode);
        let hold = self.holds.iter().filter(is_in_the_way).max_by_key(|hold| hold.ends);
        hold.map(HoldRecord::holder).or_else(|| self.intent_before(terms))
    }

    /// Returns a process that waits exclusively, and that this attempt must let pass.
    fn intent_before(&self, terms: &ModeTerms<'_>) -> Option<Holder> {
        let is_turn = terms.turn.is_some() || self.turn_ends != Moment::OVER;
        let is_nested = terms.mode == Mode::Shared
            && terms.nested_in.is_some_and(|outer| self.holds.iter().any(|hold| hold.is_owner(outer)));
        if terms.mode == Mode::Exclusive || is_turn || is_nested {
            return None;
        }
        let first = self.intents.iter().min_by_key(|intent| intent.since)?;
        let ends = self.intents.iter().map(|intent| intent.ends).max()?;
        let remaining = Deadline::at(ends).remaining();
        let waited = Moment::now().since(first.since);
        Some(Holder::new(Some(first.identity.clone()), Some(remaining), None).waiting(waited))
    }

    /// Adds a hold that nothing stands in the way of, and returns its number. `next` begins a new number. If that fails,
    /// nothing has changed.
    pub(super) fn grant<E>(
        &mut self,
        new: NewHold,
        terms: &ModeTerms<'_>,
        now: Moment,
        next: impl FnOnce() -> Result<u64, E>,
    ) -> Result<u64, E> {
        let joined = self.number().filter(|_| new.mode != Mode::Exclusive);
        let number = joined.map_or_else(next, Ok)?;
        if new.mode == Mode::Exclusive {
            self.withdraw(terms.intent);
        } else if let Some(turn) = terms.turn.filter(|turn| !turn.is_zero() && self.turn_ends <= now) {
            self.turn_ends = now.after(turn.min(TURN_MAX));
        }
        self.holds.push(new.numbered(number));
        Ok(number)
    }

    /// Changes the mode of a hold. `next` begins a new number. If that fails, nothing has changed.
    pub(super) fn convert<E>(
        &mut self,
        new: NewHold,
        conversion: &Conversion<'_>,
        next: impl FnOnce() -> Result<u64, E>,
    ) -> Result<HoldChange, E> {
        let Conversion { owner_record, from, to, intent } = *conversion;
        let found = self.holds.iter().position(|hold| hold.is_owner(owner_record) && hold.mode == from);
        let Some(at) = found else { return Ok(HoldChange::NotOurs) };
        let others = self.holds.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, hold)| hold);
        // A hold with fewer rights is compatible with all others, also with those of a later version.
        let in_the_way = others.filter(|_| to == Mode::Exclusive).max_by_key(|hold| hold.ends);
        if let Some(hold) = in_the_way {
            return Ok(HoldChange::Refused(hold.holder()));
        }
        let keeps_number = from == Mode::Update && to == Mode::Shared;
        let number = if keeps_number { self.holds[at].number } else { next()? };
        if to == Mode::Exclusive {
            self.withdraw(intent);
        }
        self.holds[at] = new.numbered(number);
        Ok(HoldChange::Made(number))
    }

    /// Returns the numbers of the permits that an attempt can have, or the answer that it gets none.
    pub(super) fn free_permits(&self, terms: PermitTerms) -> Result<Vec<u8>, Box<AcquiredPermits>> {
        let PermitTerms { permits, count } = terms;
        if let Some(size) = self.size.filter(|size| size.permits != permits) {
            return Err(Box::new(AcquiredPermits::OtherSize(size.permits)));
        }
        let is_below = |hold: &HoldRecord| hold.permit.is_some_and(|permit| u16::from(permit) < permits);
        let others = self.holds.iter().filter(|hold| !is_below(hold));
        if let Some(hold) = others.max_by_key(|hold| hold.ends) {
            return Err(Box::new(AcquiredPermits::Held(hold.holder())));
        }
        if let Some(waits) = self.intent_before(&ModeTerms::new(Mode::Permit)) {
            return Err(Box::new(AcquiredPermits::Held(waits)));
        }
        let is_free = |permit: &u8| self.holds.iter().all(|hold| hold.permit != Some(*permit));
        let all = (0..permits).filter_map(|permit| u8::try_from(permit).ok());
        let free: Vec<u8> = all.filter(is_free).take(count.into()).collect();
        match self.holds.iter().min_by_key(|hold| hold.ends) {
            Some(first) if free.len() < usize::from(count) => {
                Err(Box::new(AcquiredPermits::Held(first.holder())))
            }
            _ => Ok(free),
        }
    }

    /// Adds permits that are free. `next` begins a new number. If that fails, nothing has changed.
    pub(super) fn grant_permits<E>(
        &mut self,
        new: &[(u8, OwnerToken)],
        permits: u16,
        (attempt, now): (&Attempt<'_>, Moment),
        next: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Vec<PermitGrant>, E> {
        let number = next()?;
        let grant = |(permit, owner): &(u8, OwnerToken)| {
            let hold = NewHold::new(*owner, Mode::Permit, attempt, now).numbered(number);
            self.holds.push(HoldRecord { permit: Some(*permit), ..hold });
            PermitGrant { permit: *permit, grant: grant_of(owner, Mode::Permit, number, 1, now) }
        };
        let grants = new.iter().map(grant).collect();
        self.set_size(permits, now);
        Ok(grants)
    }

    /// Changes the number of permits. Returns that before. `None` if there is no semaphore.
    pub(super) fn resize(&mut self, permits: u16, now: Moment) -> Option<u16> {
        let before = self.size?.permits;
        self.set_size(permits, now);
        Some(before)
    }

    fn set_size(&mut self, permits: u16, now: Moment) {
        let last = self.last_to_end().map_or(now, |hold| hold.ends);
        self.size = Some(SizeRecord { permits, ends: now.max(last).after(SIZE_LASTS) });
    }

    /// Returns the semaphore. `None` if there is none.
    pub(super) fn semaphore(&self, hold: impl Fn(&HoldRecord) -> LockHold) -> Option<SemaphoreState> {
        let held = self.holds.iter().filter(|hold| hold.permit.is_some()).map(hold).collect();
        self.size.map(|SizeRecord { permits, .. }| SemaphoreState { permits, held })
    }

    pub(super) fn owned(&mut self, owner_record: &OwnerRecord) -> Option<&mut HoldRecord> {
        self.holds.iter_mut().find(|hold| hold.is_owner(owner_record))
    }

    /// Ends a hold. Returns whether there was one with this record.
    pub(super) fn release(&mut self, owner_record: &OwnerRecord) -> bool {
        let before = self.holds.len();
        self.holds.retain(|hold| !hold.is_owner(owner_record));
        self.holds.len() < before
    }

    pub(super) fn announce(&mut self, intent: &Intent<'_>, now: Moment) {
        let before = self.intents.iter().find(|other| other.id == intent.id).map(|other| other.since);
        self.withdraw(Some(intent.id));
        let (since, ends) = (before.unwrap_or(now), now.after(intent.lasts.min(INTENT_MAX)));
        self.intents.push(IntentRecord { id: intent.id, since, identity: intent.identity.clone(), ends });
    }

    pub(super) fn withdraw(&mut self, intent: Option<IntentId>) {
        self.intents.retain(|other| Some(other.id) != intent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Permits may be renewed for longer than a size is remembered.
    #[test]
    fn the_size_of_a_semaphore_is_known_while_a_permit_is_held() {
        let (owner, now) = (OwnerToken::from_bytes([1; OwnerToken::LEN]), Moment::now());
        let name = crate::names::lock_name::LockName::from_key("XDC#tests#a").unwrap();
        let identity = Identity::this_process("tests").unwrap();
        let attempt =
            Attempt { name: &name, ttl: 2 * SIZE_LASTS, identity: &identity, by: Deadline::at(now) };
        let mut holds = LockHolds::default();
        let granted: Result<_, std::convert::Infallible> =
            holds.grant_permits(&[(0, owner)], 3, (&attempt, now), || Ok(1));
        assert_eq!(granted.unwrap().len(), 1);
        holds.size = holds.size.map(|size| SizeRecord { ends: now, ..size });
        let later = now.after(SIZE_LASTS);
        holds.expire(later);
        let other = PermitTerms { permits: 4, count: 1 };
        assert!(matches!(holds.free_permits(other), Err(it) if matches!(*it, AcquiredPermits::OtherSize(3))));
        holds.release(&OwnerRecord::from_bytes(owner.as_bytes().as_slice()));
        holds.expire(later);
        assert!(holds.size.is_none() && holds.is_empty());
    }
}
