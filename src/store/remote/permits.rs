//! Semaphores over a [`PermitRegister`]: the meaning of each reply, and the next step.
//!
//! | state | event | next state |
//! |---|---|---|
//! | asking | Yes | confirming |
//! | asking | No | end: held, or another size; reading while an attempt is open |
//! | asking | Lost | reading; the attempt is open |
//! | reading | all permits of one of our attempts are stored | confirming |
//! | reading | they are not, and the last answer was No | end: held, or another size |
//! | reading | they are not, and the last answer was lost | asking with new tokens, after a pause |
//! | confirming | their number is above all others | end: granted |
//! | confirming | it is not | asking with new tokens, after they were released |
//! | confirming | that cannot be found out, or they cannot be released | end: an error; what may be left is released later |
//! | any | no time left, or 16 rounds | IN_DOUBT while a request may still be applied |
//!
//! Renewals and releases of permits are those of `lock.rs`.

use super::answers::{Found, Settled};
use super::lock::{CLEAN_UP, ROUNDS, RemoteStore, contended, least_number};
use super::permit_register::{GrantPermits, PermitRegister};
use super::record::Record;
use super::register::{Capabilities, Register};
use super::resolve::{Doubt, Pauses};
use crate::error::{Error, Result};
use crate::names::fence::{Epoch, Fence};
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::owner::OwnerRecord;
use crate::runtime::time::{Deadline, Moment};
use crate::store::{
    AcquiredPermits, Attempt, Grant, GrantRecord, LockHold, LockStore as _, PermitGrant, PermitTerms,
    SemaphoreState, SemaphoreStore,
};

/// An attempt whose request may still be applied: its records, and a moment before it was sent.
type OpenAttempt = (Vec<Record>, Moment);

fn granted(can: Capabilities, stored: &[Record], since: Moment) -> AcquiredPermits {
    let grant = |stored: &Record| PermitGrant {
        permit: stored.place().unwrap_or_default(),
        grant: Grant {
            owner_record: can.owner_record(stored),
            fence: stored.number().map(Fence),
            epoch: None,
            fences: 1,
            since,
            may_reappear: false,
        },
    };
    AcquiredPermits::Granted(stored.iter().map(grant).collect())
}

impl<R: Register> RemoteStore<R> {
    fn permit_register(&self) -> Result<&dyn PermitRegister> {
        self.register.permits().ok_or_else(|| {
            let what = format!("{} keeps no semaphores", self.register.describe());
            Error::Internal { what, source: None }
        })
    }

    /// Returns the grant of permits that are stored. `None`: they were released, because another layout has counted further.
    fn confirmed(
        &self,
        name: &LockName,
        (stored, since): (Vec<Record>, Moment),
        by: Deadline,
        open: &mut Vec<OpenAttempt>,
    ) -> Result<Option<AcquiredPermits>> {
        let can = self.register.capabilities();
        let confirmed = self.permit_register()?.confirm(name, &stored, by);
        if let Ok(true) = confirmed {
            return Ok(Some(granted(can, &stored, since)));
        }
        let clean_up = Deadline::after(CLEAN_UP);
        let release = |record: &Record| self.release(name, &can.owner_record(record), clean_up).map(drop);
        match (stored.iter().try_for_each(release), confirmed) {
            (Ok(()), Ok(_)) => Ok(None),
            (Ok(()), Err(error)) => {
                let what = "the fence of the permits could not be compared, and they were released".into();
                Err(Error::RetriesExhausted { store: self.describe(), what, source: Some(error.into()) })
            }
            (Err(error), _) => {
                open.push((stored, since));
                let what = "permits have no fence that was compared, and could not be released".into();
                Err(Error::InDoubt { what, source: Some(error.into()) })
            }
        }
    }

    /// Pushes the attempts that may still take effect to `open`.
    fn grant_permits(
        &self,
        attempt: Attempt<'_>,
        PermitTerms { permits, count }: PermitTerms,
        open: &mut Vec<OpenAttempt>,
    ) -> Result<AcquiredPermits> {
        let register = self.permit_register()?;
        let (mut doubt, mut pauses) = (Doubt::none(attempt.by), Pauses::until(attempt.by));
        let (name, by) = (attempt.name, attempt.by);
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            let draw = |_| Ok(Record::draw(attempt.ttl, attempt.identity)?.placed(Mode::Permit, 0));
            let records = (0..count).map(draw).collect::<Result<Vec<_>>>()?;
            let since = Moment::now();
            let grant = GrantPermits { name, permits, records: &records, least: least_number() };
            let refused = match doubt.ask(|| register.grant(&grant, by).settled()) {
                Ok(Settled::Yes(stored)) => match self.confirmed(name, (stored, since), by, open)? {
                    Some(granted) => return Ok(granted),
                    None => continue,
                },
                Ok(Settled::No(why)) if open.is_empty() => return Ok(why.into()),
                Ok(Settled::No(why)) => Some(why),
                Err(error) => {
                    if error.is_in_doubt() {
                        open.push((records, since));
                    }
                    doubt.go_on(error)?;
                    None
                }
            };
            let read = doubt.ask(|| register.read_permits(name, by));
            let (_, stored) = read.map_err(|error| doubt.or(error))?;
            let all_of = |(records, _): &OpenAttempt| GrantPermits::stored(records, &stored);
            let found = open.iter().enumerate().find_map(|(at, attempt)| Some((at, all_of(attempt)?)));
            if let Some((at, own)) = found {
                let (_, since) = open.swap_remove(at);
                match self.confirmed(name, (own, since), by, open)? {
                    Some(granted) => return Ok(granted),
                    None => continue,
                }
            }
            if let Some(why) = refused {
                return Ok(why.into());
            }
        }
        Err(doubt.or(contended(name)))
    }
}

impl<R: Register> SemaphoreStore for RemoteStore<R> {
    fn acquire_permits(
        &self,
        attempt: Attempt<'_>,
        terms: PermitTerms,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<AcquiredPermits> {
        let mut open = Vec::new();
        let answer = self.grant_permits(attempt, terms, &mut open);
        let can = self.register.capabilities();
        let records = open.iter().flat_map(|(records, _)| records);
        doubtful.extend(records.map(|record| can.owner_record(record)));
        answer
    }

    fn semaphore(&self, name: &LockName, by: Deadline) -> Result<Option<SemaphoreState>> {
        let can = self.register.capabilities();
        let (size, stored) = self.permit_register()?.read_permits(name, by)?;
        let hold = |found: Found| {
            let record = found.record.as_ref().filter(|record| record.mode() == Mode::Permit)?;
            let (epoch, grant) = (record.number().map(Epoch), GrantRecord::Ours(can.owner_record(record)));
            Some(LockHold { holder: found.holder(), epoch, grant })
        };
        let held = stored.holds.into_iter().filter_map(hold).collect();
        Ok(size.map(|permits| SemaphoreState { permits, held }))
    }

    fn resize(&self, name: &LockName, permits: u16, by: Deadline) -> Result<Option<u16>> {
        self.permit_register()?.resize(name, permits, by)
    }
}

#[cfg(test)]
mod tests;
