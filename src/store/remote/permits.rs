//! Semaphores over a [`PermitRegister`]: the meaning of each reply, and the next step.
//!
//! | state | event | next state |
//! |---|---|---|
//! | asking | Yes | end: granted |
//! | asking | No | end: held, or another size; reading while an attempt is open |
//! | asking | Lost | reading; the attempt is open |
//! | reading | all permits of one of our attempts are stored | end: granted |
//! | reading | they are not, and the last answer was No | end: held, or another size |
//! | reading | they are not, and the last answer was lost | asking with new tokens, after a pause |
//! | any | no time left, or 16 rounds | IN_DOUBT while a request may still be applied |
//!
//! Renewals and releases of permits are those of `lock.rs`.

use super::answers::{Found, Settled};
use super::lock::{ROUNDS, RemoteStore, contended, least_number};
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
    AcquiredPermits, Attempt, Grant, GrantRecord, LockHold, PermitGrant, PermitTerms, SemaphoreState,
    SemaphoreStore,
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

    /// Pushes the attempts that may still take effect to `open`.
    fn grant_permits(
        &self,
        attempt: Attempt<'_>,
        PermitTerms { permits, count }: PermitTerms,
        open: &mut Vec<OpenAttempt>,
    ) -> Result<AcquiredPermits> {
        let (register, can) = (self.permit_register()?, self.register.capabilities());
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
                Ok(Settled::Yes(stored)) => return Ok(granted(can, &stored, since)),
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
            let all_of = |records: &[Record]| -> Option<Vec<Record>> {
                let mut own: Vec<_> =
                    records.iter().map(|record| stored.own(record).cloned()).collect::<Option<_>>()?;
                own.sort_by_key(Record::place);
                Some(own)
            };
            let found = open.iter().enumerate().find_map(|(at, (records, _))| Some((at, all_of(records)?)));
            if let Some((at, own)) = found {
                let (_, since) = open.swap_remove(at);
                return Ok(granted(can, &own, since));
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
