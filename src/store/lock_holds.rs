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
//!
//! An intent of a process that waits exclusively does not stand in the way of a shared attempt of a process that holds the
//! lock, nor during a turn of the readers.

use std::time::SystemTime;

use super::grant::{Attempt, Grant, GrantRecord};
use super::mode_store::{Conversion, INTENT_MAX, Intent, IntentId, LockHold, ModeTerms, TURN_MAX};
use crate::names::fence::{Epoch, Fence};
use crate::names::holder::{Holder, Identity};
use crate::names::mode::Mode;
use crate::names::owner::{OwnerRecord, OwnerToken};
use crate::runtime::time::{self, Deadline, Moment};

/// What one lock has. Times of different holds are those of one clock.
#[derive(Debug)]
pub(super) struct LockHolds {
    holds: Vec<HoldRecord>,
    intents: Vec<IntentRecord>,
    turn_ends: Moment,
}

impl Default for LockHolds {
    fn default() -> LockHolds {
        LockHolds { holds: Vec::new(), intents: Vec::new(), turn_ends: Moment::OVER }
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
        HoldRecord { owner, mode, number, since, ends, identity }
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
        Holder::new(Some(self.identity.clone()), Some(remaining), Some(self.since)).with_mode(self.mode)
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
        Mode::Exclusive => (Some(Fence(last - (fences - 1))), None),
        _ => (None, Some(Epoch(last))),
    };
    let owner_record = OwnerRecord::from_bytes(owner.as_bytes().as_slice());
    Grant { owner_record, fence, epoch, fences, since, may_reappear: false }
}

impl LockHolds {
    /// Makes what a lock has from what was stored. It may contain what has ended.
    #[cfg(feature = "embedded")]
    pub(super) fn from_parts(
        holds: Vec<HoldRecord>,
        intents: Vec<IntentRecord>,
        turn_ends: Moment,
    ) -> LockHolds {
        LockHolds { holds, intents, turn_ends }
    }

    /// Returns the processes that wait exclusively.
    #[cfg(feature = "embedded")]
    pub(super) fn intents(&self) -> &[IntentRecord] {
        &self.intents
    }

    /// Returns the end of the turn of the readers; [`Moment::OVER`] if they have none.
    #[cfg(feature = "embedded")]
    pub(super) fn turn_ends(&self) -> Moment {
        self.turn_ends
    }

    /// Forgets what has ended. Call it before anything else.
    pub(super) fn expire(&mut self, now: Moment) {
        self.holds.retain(|hold| now < hold.ends);
        self.intents.retain(|intent| now < intent.ends);
        if self.turn_ends <= now {
            self.turn_ends = Moment::OVER;
        }
    }

    /// Whether nothing is left to remember.
    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.intents.is_empty() && self.turn_ends == Moment::OVER
    }

    pub(super) fn holds(&self) -> &[HoldRecord] {
        &self.holds
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
