//! The defects of a [`LockMutant`] in the modes of its locks.

use std::collections::HashMap;
use std::time::Duration;

use dlm::store::{
    Acquired, Attempt, Conversion, Converted, Epoch, Grant, GrantRecord, INTENT_MAX, Identity, Intent,
    IntentId, LockHold, Mode, ModeStore, ModeTerms, OwnerRecord, OwnerToken, Released, TURN_MAX,
};
use dlm::{Deadline, Fence, Holder, LockName, Moment, Result};
use parking_lot::Mutex;

use super::lock_mutant::{LockMutant, LockMutation, shows};

/// What a mutant remembers of each lock.
pub(super) type Remembered = Mutex<HashMap<LockName, OneLock>>;

#[derive(Debug, Default)]
pub(super) struct OneLock {
    /// Of the last grant.
    number: u64,
    intents: Vec<(IntentId, Identity)>,
    had_turn: bool,
    /// The records that a conversion has left valid, or that share a slot, each with the one that stands for it, in the order
    /// in which that came about.
    replaced: Vec<(OwnerRecord, OwnerRecord)>,
    /// When holds end whose leases were shortened.
    ends: Vec<(OwnerRecord, Moment)>,
    /// Releases of readers.
    released: u64,
    /// How far the numbers of grants are below those that the store counts.
    lowered: u64,
}

impl LockMutant {
    fn mode_store(&self) -> &dyn ModeStore {
        self.inner.modes().expect("the store has modes")
    }

    /// Returns the records of all holds of a lock.
    fn records(&self, name: &LockName, by: Deadline) -> Result<Vec<OwnerRecord>> {
        let Some(modes) = self.inner.modes() else { return Ok(Vec::new()) };
        Ok(modes.holds(name, by)?.into_iter().filter_map(|hold| record(&hold)).collect())
    }

    /// Returns a grant that the store knows nothing of.
    pub(super) fn made_up(&self, name: &LockName, mode: Mode) -> Result<Grant> {
        let owner_record = OwnerRecord::from_bytes(OwnerToken::draw()?.as_bytes().as_slice());
        let number = self.remembered.lock().entry(name.clone()).or_default().number + 1;
        let is_exclusive = mode == Mode::Exclusive;
        Ok(Grant {
            owner_record,
            fence: is_exclusive.then_some(Fence(number)),
            epoch: (!is_exclusive).then_some(Epoch(number)),
            fences: 1,
            since: Moment::now(),
            may_reappear: false,
        })
    }

    /// Returns the grant with which the mutant lets in who was refused.
    pub(super) fn let_in(
        &self,
        name: &LockName,
        terms: &ModeTerms<'_>,
        holder: &Holder,
        is_old: bool,
    ) -> Result<Option<Grant>> {
        let is_exclusive = holder.mode == Mode::Exclusive && !holder.is_waiting;
        let lets_in = match self.mutation {
            LockMutation::SharedBesideExclusive => is_exclusive && terms.mode == Mode::Shared,
            LockMutation::TurnIgnoresWriter => is_exclusive && terms.turn.is_some(),
            LockMutation::OlderVersionBesideReader => is_old && !is_exclusive,
            _ => false,
        };
        lets_in.then(|| self.made_up(name, terms.mode)).transpose()
    }

    /// Remembers a grant. The holds of `others` have been there before it.
    pub(super) fn remember(&self, name: &LockName, grant: &mut Grant, others: &[OwnerRecord], ttl: Duration) {
        let mut remembered = self.remembered.lock();
        let lock = remembered.entry(name.clone()).or_default();
        lower(grant, lock.lowered);
        if let Some(epoch) = &mut grant.epoch {
            match self.mutation {
                LockMutation::FirstReaderKeepsNumber if others.is_empty() && lock.number > 0 => {
                    epoch.0 = lock.number;
                }
                LockMutation::EachReaderBeginsNumber if !others.is_empty() => epoch.0 += 1,
                _ => {}
            }
        }
        let last = grant.fence.map(|fence| fence.0 + grant.fences - 1);
        lock.number = last.or(grant.epoch.map(|epoch| epoch.0)).unwrap_or(lock.number);
        if self.mutation == LockMutation::ShortensOthers {
            lock.shorten(others, ttl);
        }
    }

    /// Ends the holds whose shortened leases are over.
    pub(super) fn end_shortened(&self, name: &LockName, by: Deadline) -> Result<()> {
        let now = Moment::now();
        let mut over = Vec::new();
        if let Some(lock) = self.remembered.lock().get_mut(name) {
            over.extend(lock.ends.iter().filter(|(_, ends)| *ends <= now).map(|(record, _)| record.clone()));
            lock.ends.retain(|(_, ends)| now < *ends);
        }
        over.iter().try_for_each(|record| self.inner.release(name, record, by).map(drop))
    }

    /// Returns the record that the store knows.
    pub(super) fn current(&self, name: &LockName, owner_record: &OwnerRecord) -> OwnerRecord {
        let remembered = self.remembered.lock();
        let replaced = remembered.get(name).into_iter().flat_map(|lock| &lock.replaced);
        let current =
            replaced.fold(owner_record, |current, (old, new)| if old == current { new } else { current });
        current.clone()
    }

    /// Remembers that a renewal has succeeded.
    pub(super) fn note_renewal(&self, name: &LockName) {
        if self.mutation == LockMutation::RenewalLowersNumber {
            self.remembered.lock().entry(name.clone()).or_default().lowered += 2;
        }
    }

    /// Returns the hold of a reader that shows again once it was released.
    pub(super) fn ghost(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        by: Deadline,
    ) -> Result<Option<Holder>> {
        if self.mutation != LockMutation::ShowsReleasedReader {
            return Ok(None);
        }
        let holds = self.mode_store().holds(name, by)?;
        let own = holds.into_iter().find(|hold| record(hold).as_ref() == Some(owner_record));
        Ok(own.map(|own| own.holder).filter(|holder| {
            let mut remembered = self.remembered.lock();
            let released = &mut remembered.entry(name.clone()).or_default().released;
            *released += u64::from(holder.mode == Mode::Shared);
            holder.mode == Mode::Shared && shows(*released)
        }))
    }

    /// Adds a hold of nobody, which lasts as long as that of this reader would have.
    pub(super) fn show_again(&self, name: &LockName, reader: &Holder, by: Deadline) -> Result<()> {
        let (Some(ttl), Some(identity)) = (reader.remaining, &reader.identity) else { return Ok(()) };
        let terms = ModeTerms { turn: Some(Duration::ZERO), ..ModeTerms::new(reader.mode) };
        self.mode_store().acquire_mode(Attempt { name, ttl, identity, by }, terms, &mut Vec::new())?;
        Ok(())
    }

    /// Gives a new reader the slot of one that is there.
    fn put_in_one_slot(&self, name: &LockName, new: &OwnerRecord, by: Deadline) -> Result<()> {
        let holds = self.mode_store().holds(name, by)?;
        let readers = holds.iter().filter(|hold| hold.holder.mode == Mode::Shared).filter_map(record);
        for other in readers.filter(|other| other != new) {
            self.inner.release(name, &other, by)?;
            self.remembered.lock().entry(name.clone()).or_default().replaced.push((other, new.clone()));
        }
        Ok(())
    }

    /// Returns the record that a renewal of this one renews.
    pub(super) fn renewed_instead(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<OwnerRecord> {
        let all = match self.mutation {
            LockMutation::RenewsFirst | LockMutation::RenewsAll | LockMutation::ShortensOthers => {
                self.records(name, by)?
            }
            _ => return Ok(owner_record.clone()),
        };
        if !all.contains(owner_record) {
            return Ok(owner_record.clone());
        }
        match self.mutation {
            LockMutation::RenewsFirst => return Ok(all[0].clone()),
            LockMutation::RenewsAll => {
                for other in &all {
                    self.inner.renew(name, other, ttl, by)?;
                }
            }
            _ => {
                let others: Vec<_> = all.into_iter().filter(|other| other != owner_record).collect();
                self.remembered.lock().entry(name.clone()).or_default().shorten(&others, ttl);
            }
        }
        Ok(owner_record.clone())
    }

    /// Ends all other holds after one has ended.
    pub(super) fn end_all(&self, name: &LockName, released: Released, by: Deadline) -> Result<()> {
        if released == Released::Freed {
            for other in self.records(name, by)? {
                self.inner.release(name, &other, by)?;
            }
        }
        Ok(())
    }

    fn forget_intent(&self, name: &LockName, intent: IntentId) {
        if let Some(lock) = self.remembered.lock().get_mut(name) {
            lock.intents.retain(|(id, _)| *id != intent);
        }
    }

    /// Converts by a release and another grant.
    fn convert_in_two_steps(
        &self,
        attempt: Attempt<'_>,
        conversion: &Conversion<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Converted> {
        if self.inner.release(attempt.name, conversion.owner_record, attempt.by)? != Released::Freed {
            return Ok(Converted::NotOurs);
        }
        std::thread::sleep(Duration::from_millis(1));
        let terms = ModeTerms { intent: conversion.intent, ..ModeTerms::new(conversion.to) };
        Ok(match self.mode_store().acquire_mode(attempt, terms, doubtful)? {
            Acquired::Granted(grant) => Converted::Granted(grant),
            Acquired::Held(_) => Converted::NotOurs,
        })
    }
}

impl OneLock {
    fn shorten(&mut self, others: &[OwnerRecord], ttl: Duration) {
        let ends = Moment::now().after(ttl);
        self.ends.extend(others.iter().map(|other| (other.clone(), ends)));
    }
}

/// Lowers the number of a grant.
fn lower(grant: &mut Grant, by: u64) {
    grant.fence = grant.fence.map(|fence| Fence(fence.0 - by));
    grant.epoch = grant.epoch.map(|epoch| Epoch(epoch.0 - by));
}

fn record(hold: &LockHold) -> Option<OwnerRecord> {
    match &hold.grant {
        GrantRecord::Ours(owner_record) => Some(owner_record.clone()),
        GrantRecord::Stamped(_) => None,
    }
}

impl ModeStore for LockMutant {
    fn acquire_mode(
        &self,
        attempt: Attempt<'_>,
        asked: ModeTerms<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        let (name, mut terms) = (attempt.name, asked);
        self.end_shortened(name, attempt.by)?;
        let others = self.records(name, attempt.by)?;
        let passes = Some(Duration::ZERO);
        let is_reader = terms.mode != Mode::Exclusive;
        match self.mutation {
            LockMutation::GivesBlockTwice => terms.fences = 1,
            LockMutation::GrantKeepsIntent => terms.intent = None,
            LockMutation::RefusesNested => terms.nested_in = None,
            LockMutation::IgnoresIntent if is_reader => terms.turn = terms.turn.or(passes),
            LockMutation::IgnoresTurn => terms.turn = None,
            LockMutation::NestsInAnything if terms.nested_in.is_some() => terms.turn = terms.turn.or(passes),
            LockMutation::TurnNeverEnds if is_reader => {
                let mut remembered = self.remembered.lock();
                let lock = remembered.entry(name.clone()).or_default();
                lock.had_turn |= terms.turn.is_some();
                terms.turn = lock.had_turn.then_some(TURN_MAX);
            }
            LockMutation::IntentNeverEnds if is_reader => {
                let intents = self.remembered.lock().get(name).map(|lock| lock.intents.clone());
                for (id, identity) in intents.iter().flatten() {
                    let intent = Intent { id: *id, identity, lasts: INTENT_MAX };
                    self.mode_store().announce(name, intent, attempt.by)?;
                }
            }
            _ => {}
        }
        let mut acquired = self.mode_store().acquire_mode(attempt, terms, doubtful)?;
        if let Acquired::Held(holder) = &acquired {
            if let Some(grant) = self.let_in(name, &asked, holder, false)? {
                return Ok(Acquired::Granted(grant));
            }
            let is_second = terms.mode == Mode::Update && holder.mode == Mode::Update;
            if is_second && self.mutation == LockMutation::UpdateBesideUpdate {
                let terms = ModeTerms { mode: Mode::Shared, ..terms };
                acquired = self.mode_store().acquire_mode(attempt, terms, doubtful)?;
            }
        }
        if let Acquired::Granted(grant) = &mut acquired {
            grant.fences = asked.fences;
            self.remember(name, grant, &others, attempt.ttl);
            if terms.mode == Mode::Shared && self.mutation == LockMutation::TwoInOneSlot {
                self.put_in_one_slot(name, &grant.owner_record, attempt.by)?;
            }
            if let Some(intent) = terms.intent {
                self.forget_intent(name, intent);
            }
        }
        Ok(acquired)
    }

    fn convert(
        &self,
        mut attempt: Attempt<'_>,
        mut conversion: Conversion<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Converted> {
        let (name, from, to) = (attempt.name, conversion.from, conversion.to);
        self.end_shortened(name, attempt.by)?;
        let old = conversion.owner_record;
        let found = self.mode_store().holds(name, attempt.by)?;
        let before = found.into_iter().find(|hold| record(hold).as_ref() == Some(old));
        match self.mutation {
            LockMutation::GrantKeepsIntent => conversion.intent = None,
            LockMutation::ConversionKeepsEnd => {
                let remaining = before.as_ref().and_then(|hold| hold.holder.remaining);
                attempt.ttl = remaining.unwrap_or(attempt.ttl);
            }
            LockMutation::ConvertsInTwoSteps if from.converts_to(to) => {
                return self.convert_in_two_steps(attempt, &conversion, doubtful);
            }
            _ => {}
        }
        let mut converted = self.mode_store().convert(attempt, conversion, doubtful)?;
        match &mut converted {
            Converted::Granted(grant) => {
                let number = before.and_then(|hold| hold.epoch).map_or(0, |epoch| epoch.0);
                match (self.mutation, &mut grant.fence, &mut grant.epoch) {
                    (LockMutation::StepDownKeepsNumber, _, Some(epoch)) if from == Mode::Exclusive => {
                        epoch.0 = number;
                    }
                    (LockMutation::UpgradeKeepsNumber, Some(fence), _) => fence.0 = number,
                    (LockMutation::EachReaderBeginsNumber, _, Some(epoch)) if from == Mode::Update => {
                        epoch.0 += 1;
                    }
                    _ => {}
                }
                let mut remembered = self.remembered.lock();
                let lock = remembered.entry(name.clone()).or_default();
                lower(grant, lock.lowered);
                let last = grant.fence.map(|fence| fence.0).or(grant.epoch.map(|epoch| epoch.0));
                lock.number = last.unwrap_or(lock.number);
                if self.mutation == LockMutation::ConversionKeepsOldRecord {
                    lock.replaced.push((old.clone(), grant.owner_record.clone()));
                }
            }
            Converted::Held(_) if self.mutation == LockMutation::UpgradesBesideReaders => {
                return Ok(Converted::Granted(self.made_up(name, to)?));
            }
            _ => {}
        }
        if let (Converted::Granted(_), Some(intent)) = (&converted, conversion.intent) {
            self.forget_intent(name, intent);
        }
        Ok(converted)
    }

    fn blocker(&self, name: &LockName, mode: Mode, by: Deadline) -> Result<Option<Holder>> {
        self.mode_store().blocker(name, mode, by)
    }

    fn holds(&self, name: &LockName, by: Deadline) -> Result<Vec<LockHold>> {
        self.end_shortened(name, by)?;
        self.mode_store().holds(name, by)
    }

    fn announce(&self, name: &LockName, intent: Intent<'_>, by: Deadline) -> Result<()> {
        self.mode_store().announce(name, intent, by)?;
        self.forget_intent(name, intent.id);
        let mut remembered = self.remembered.lock();
        let lock = remembered.entry(name.clone()).or_default();
        lock.intents.push((intent.id, intent.identity.clone()));
        Ok(())
    }

    fn withdraw(&self, name: &LockName, intent: IntentId, by: Deadline) -> Result<()> {
        let ended = match self.mutation {
            LockMutation::IgnoresWithdrawal => Vec::new(),
            LockMutation::WithdrawalEndsAll => {
                let remembered = self.remembered.lock();
                remembered.get(name).into_iter().flat_map(|lock| &lock.intents).map(|(id, _)| *id).collect()
            }
            _ => vec![intent],
        };
        for intent in ended {
            self.mode_store().withdraw(name, intent, by)?;
            self.forget_intent(name, intent);
        }
        Ok(())
    }
}
