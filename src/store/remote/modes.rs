//! Locks in several modes over a [`ModeRegister`]: the meaning of each reply, and the next step.
//!
//! | state | event | next state |
//! |---|---|---|
//! | joining | Yes | end: granted |
//! | joining | No | end: held; reading while an attempt is open |
//! | joining | Lost | reading; the attempt is open |
//! | reading | the record of one of our attempts is stored | end: granted |
//! | reading | none is, and the last answer was No | end: held |
//! | reading | none is, and the last answer was lost | joining with a new token, after a pause |
//! | changing | Yes | end: granted |
//! | changing | No or Lost | looking |
//! | looking | the new record is stored | end: granted |
//! | looking | neither record is stored | end: not ours. The change requires the old record, so it will not be made later |
//! | looking | the old record is stored, and others stood in the way | end: held, unless an answer was lost |
//! | looking | the old record is stored | changing again, with the same new token |
//! | any | no time left, or 16 rounds | IN_DOUBT while a request may still be applied |
//!
//! Renewals and releases of all modes are those of `lock.rs`. While a change has no answer, the caller may count on the weaker
//! of both modes only: it may have been made, and may still be.

use super::answers::{Found, Settled};
use super::lock::{CLEAN_UP, ROUNDS, RemoteStore, contended, least_number};
use super::mode_register::{ChangeMode, Join, ModeRegister, NotChanged};
use super::record::Record;
use super::register::{Capabilities, Register};
use super::resolve::{Doubt, Pauses};
use crate::error::{Error, Result};
use crate::names::fence::{Epoch, Fence};
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::owner::OwnerRecord;
use crate::runtime::time::{Deadline, Moment};
use crate::store::mode_store::check_conversion;
use crate::store::{
    Acquired, Attempt, Conversion, Converted, Grant, GrantRecord, Intent, IntentId, LockHold, LockStore as _,
    ModeStore, ModeTerms,
};

impl<R: Register> RemoteStore<R> {
    fn mode_register(&self) -> Result<&dyn ModeRegister> {
        self.register.modes().ok_or_else(|| {
            let what = format!("{} keeps exclusive locks only", self.describe());
            Error::Internal { what, source: None }
        })
    }

    fn grant_of(&self, can: Capabilities, stored: &Record, since: Moment) -> Grant {
        let number = stored.number().unwrap_or_default();
        let (fence, epoch) = match stored.mode() {
            Mode::Exclusive => (Some(Fence(number)), None),
            _ => (None, Some(Epoch(number))),
        };
        Grant { owner_record: can.owner_record(stored), fence, epoch, fences: 1, since, may_reappear: false }
    }

    /// Returns the grant of a hold that is stored. Asks for its number if it was stored without one. If that fails, the hold is
    /// released, or pushed to `open`.
    fn grant_stored(
        &self,
        attempt: Attempt<'_>,
        (stored, since): (&Record, Moment),
        open: &mut Vec<(Record, Moment)>,
    ) -> Result<Acquired> {
        let can = self.register.capabilities();
        let number = match stored.number() {
            Some(number) => Ok(number),
            None => self.number_of(attempt.name, stored, 1, attempt.by),
        };
        let error = match number {
            Ok(number) => {
                let grant = self.grant_of(can, &stored.numbered(number), since);
                return Ok(Acquired::Granted(grant));
            }
            Err(error) => error,
        };
        if self.release(attempt.name, &can.owner_record(stored), Deadline::after(CLEAN_UP)).is_ok() {
            let (store, what) = (self.describe(), "the hold has no number, and was released".into());
            return Err(Error::RetriesExhausted { store, what, source: Some(error.into()) });
        }
        open.push((stored.clone(), since));
        let what = "the hold has no number, and could not be released".into();
        Err(Error::InDoubt { what, source: Some(error.into()) })
    }

    /// Joins the holds of a lock. Pushes the attempts that may still take effect to `open`.
    fn join(
        &self,
        attempt: Attempt<'_>,
        terms: &ModeTerms<'_>,
        open: &mut Vec<(Record, Moment)>,
    ) -> Result<Acquired> {
        let (modes, can) = (self.mode_register()?, self.register.capabilities());
        let nested_in = terms.nested_in.map(|outer| can.own_record(outer)).transpose()?;
        let (mut doubt, mut pauses) = (Doubt::none(attempt.by), Pauses::until(attempt.by));
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            let record = Record::draw(attempt.ttl, attempt.identity)?.placed(terms.mode, 0);
            let since = Moment::now();
            let (name, turn, nested_in) = (attempt.name, terms.turn, nested_in.as_ref());
            let join = Join { name, record: &record, least: least_number(), nested_in, turn };
            let refused = match doubt.ask(|| modes.join(&join, attempt.by).settled()) {
                Ok(Settled::Yes(stored)) => return self.grant_stored(attempt, (&stored, since), open),
                Ok(Settled::No(holder)) if open.is_empty() => return Ok(Acquired::Held(holder)),
                Ok(Settled::No(holder)) => Some(holder),
                Err(error) => {
                    if error.is_in_doubt() {
                        open.push((record.clone(), since));
                    }
                    doubt.go_on(error)?;
                    None
                }
            };
            let stored = doubt.ask(|| modes.read_holds(attempt.name, attempt.by));
            let stored = stored.map_err(|error| doubt.or(error))?;
            let ours = open.iter().position(|(record, _)| stored.own(record).is_some());
            if let Some((record, since)) = ours.map(|at| open.swap_remove(at)) {
                let stored = stored.own(&record).unwrap_or(&record);
                return self.grant_stored(attempt, (stored, since), open);
            }
            if let Some(holder) = refused {
                return Ok(Acquired::Held(holder));
            }
        }
        Err(doubt.or(contended(attempt.name)))
    }

    /// Replaces the record of a hold. All requests carry the same new record.
    fn change_mode(
        &self,
        attempt: Attempt<'_>,
        mut held: Record,
        record: &Record,
        intent: Option<IntentId>,
    ) -> Result<Converted> {
        let (modes, can) = (self.mode_register()?, self.register.capabilities());
        let (name, by, since) = (attempt.name, attempt.by, Moment::now());
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            let change = ChangeMode { name, held: &held, record, least: least_number(), intent };
            match doubt.ask(|| modes.change_mode(&change, by).settled()) {
                Ok(Settled::Yes(stored)) => {
                    return Ok(Converted::Granted(self.grant_of(can, &stored, since)));
                }
                Ok(Settled::No(NotChanged::Held(holder))) if !doubt.is_open() => {
                    return Ok(Converted::Held(holder));
                }
                Ok(Settled::No(_)) => {}
                Err(error) => doubt.go_on(error)?,
            }
            let stored = doubt.ask(|| modes.read_holds(name, by)).map_err(|error| doubt.or(error))?;
            match (stored.own(record), stored.own(&held)) {
                (Some(stored), _) => return Ok(Converted::Granted(self.grant_of(can, stored, since))),
                (None, Some(stored)) => held = stored.clone(),
                (None, None) => return Ok(Converted::NotOurs),
            }
        }
        Err(doubt.or(contended(name)))
    }
}

impl<R: Register> ModeStore for RemoteStore<R> {
    fn acquire_mode(
        &self,
        attempt: Attempt<'_>,
        terms: ModeTerms<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        if terms.mode == Mode::Exclusive {
            return self.acquire_numbers(attempt, None, (terms.fences, terms.intent), doubtful);
        }
        let mut open = Vec::new();
        let answer = self.join(attempt, &terms, &mut open);
        let can = self.register.capabilities();
        doubtful.extend(open.iter().map(|(record, _)| can.owner_record(record)));
        answer
    }

    fn joins_together(&self) -> bool {
        self.register.modes().is_some_and(ModeRegister::joins_together)
    }

    fn convert(
        &self,
        attempt: Attempt<'_>,
        conversion: Conversion<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Converted> {
        check_conversion(attempt.name, &conversion)?;
        let can = self.register.capabilities();
        let held = can.own_record(conversion.owner_record)?;
        if held.mode() != conversion.from {
            return Ok(Converted::NotOurs);
        }
        let record = Record::draw(attempt.ttl, attempt.identity)?.placed(conversion.to, 0);
        let answer = self.change_mode(attempt, held, &record, conversion.intent);
        if answer.as_ref().is_err_and(Error::is_in_doubt) {
            doubtful.push(can.owner_record(&record));
        }
        answer
    }

    fn blocker(&self, name: &LockName, mode: Mode, by: Deadline) -> Result<Option<Holder>> {
        if mode == Mode::Exclusive {
            return self.holder(name, by);
        }
        Ok(self.mode_register()?.read_holds(name, by)?.blocker(mode, None, false))
    }

    fn holds(&self, name: &LockName, by: Deadline) -> Result<Vec<LockHold>> {
        let can = self.register.capabilities();
        let hold = |found: Found| {
            let grant = match &found.record {
                Some(record) => GrantRecord::Ours(can.owner_record(record)),
                None => GrantRecord::Stamped(Box::default()),
            };
            let epoch = found.record.as_ref().and_then(Record::number).map(Epoch);
            LockHold { holder: found.holder(), epoch, grant }
        };
        Ok(self.mode_register()?.read_holds(name, by)?.holds.into_iter().map(hold).collect())
    }

    fn announce(&self, name: &LockName, intent: Intent<'_>, by: Deadline) -> Result<()> {
        self.mode_register()?.announce(name, intent, by)
    }

    fn withdraw(&self, name: &LockName, intent: IntentId, by: Deadline) -> Result<()> {
        self.mode_register()?.withdraw(name, intent, by)
    }
}

#[cfg(test)]
mod tests;
