//! The permit register of the layout `own`: which changes of [`permit_requests`](super::permit_requests) are sent, and what follows a
//! refusal.
//!
//! A change needs the row, which a refused one brings along. The base is remembered for the next renewal.

use super::own_row::OwnRow;
use super::permit_requests::{PermitsStep, grant, release_permit, renew_permit, resize};
use super::{HbaseOwnStore, TRIES, checked};
use crate::error::Result;
use crate::names::lock_name::LockName;
use crate::runtime::time::Deadline;
use crate::store::hbase::cell_store::{Durability, RENEW_PARTS};
use crate::store::hbase::locks::LAZY_RELEASE_TTL;
use crate::store::hbase::own_store::{LockRowChange, LockRowChanged, NumberTest};
use crate::store::hbase::row_keys::lock_row;
use crate::store::remote::{GrantPermits, NotGranted, PermitRegister, Record, Reply, Settled, StoredHolds};

impl HbaseOwnStore {
    fn try_to_grant(
        &self,
        asked: &GrantPermits<'_>,
        by: Deadline,
    ) -> Result<Settled<Vec<Record>, NotGranted>> {
        asked.records.iter().try_for_each(|record| checked(record.ttl()))?;
        let row = &lock_row(asked.name);
        let mut read = self.read_row(row, by)?;
        for _ in 0..TRIES {
            let PermitsStep { step, records, base } = match grant(&read, asked) {
                Ok(step) => step,
                Err(why) => return Ok(Settled::No(*why)),
            };
            let is_first = step.condition.number == NumberTest::Absent;
            match self.make(row, vec![step.clone()], 1, by)? {
                Settled::Yes(_) => {
                    if is_first {
                        self.counters.fence_seeded();
                    }
                    self.made(row, &step, None);
                    self.hints.saw_permits(row, Some((base, Some(asked.permits))));
                    return Ok(Settled::Yes(records));
                }
                Settled::No(again) => read = again,
            }
            // The server ran an earlier copy of this request.
            if let Some(own) = GrantPermits::stored(asked.records, &read.stored) {
                return Ok(Settled::Yes(own));
            }
        }
        Err(self.contended(asked.name))
    }

    pub(super) fn renew_one_permit(
        &self,
        name: &LockName,
        stored: &Record,
        renewed: &Record,
        by: Deadline,
    ) -> Reply {
        let row = &lock_row(name);
        let renew = || {
            checked(renewed.ttl())?;
            let mut seen = self.hints.permits(row);
            for _ in 0..TRIES {
                let read = match &seen {
                    Some(permits) => {
                        match self.make(row, vec![renew_permit(stored, renewed, permits)], RENEW_PARTS, by)? {
                            Settled::Yes(_) => {
                                let (base, size) = permits;
                                self.hints.saw_permits(row, Some((base.renewed(renewed.ttl()), *size)));
                                return Ok(Reply::Yes(()));
                            }
                            Settled::No(read) => read,
                        }
                    }
                    None => self.read_row(row, by)?,
                };
                match (read.permits_seen(), read.stored.own(stored)) {
                    (Some(permits), Some(own)) if own == stored => seen = Some(permits),
                    _ => return Ok(Reply::No(Some(read.standing_of(stored)))),
                }
            }
            Err(self.contended(name))
        };
        Reply::of(renew(), |reply| reply)
    }

    pub(super) fn release_one_permit(&self, name: &LockName, stored: &Record, by: Deadline) -> Reply {
        let row = &lock_row(name);
        let durability = if stored.ttl() <= LAZY_RELEASE_TTL { Durability::Async } else { Durability::Sync };
        let release = || {
            let mut number = self.hints.permits(row).and_then(|(base, _)| base.number());
            for _ in 0..TRIES {
                let read = match number {
                    Some(number) => {
                        let steps = release_permit(stored, number);
                        let change = LockRowChange { row, steps, reads: true, durability, parts: 1 };
                        match self.cells.change(&change, by)? {
                            LockRowChanged::Made(step, cells) => {
                                if step == 0 {
                                    self.hints.saw_permits(row, None);
                                } else if let Some(cells) = cells {
                                    self.free_deserted(row, &OwnRow::of(cells), durability, by);
                                }
                                return Ok(Reply::Yes(()));
                            }
                            LockRowChanged::Refused(Some(cells)) => OwnRow::of(cells),
                            LockRowChanged::Refused(None) => self.read_row(row, by)?,
                        }
                    }
                    None => self.read_row(row, by)?,
                };
                self.saw(row, &read);
                match read.stored.own(stored) {
                    Some(own) if own == stored => number = read.number,
                    _ => return Ok(Reply::No(Some(read.standing_of(stored)))),
                }
            }
            Err(self.contended(name))
        };
        Reply::of(release(), |reply| reply)
    }
}

impl PermitRegister for HbaseOwnStore {
    fn grant(&self, asked: &GrantPermits<'_>, by: Deadline) -> Reply<Vec<Record>, NotGranted> {
        self.try_to_grant(asked, by).into()
    }

    fn read_permits(&self, name: &LockName, by: Deadline) -> Result<(Option<u16>, StoredHolds)> {
        let read = self.read_row(&lock_row(name), by)?;
        Ok((read.size, read.stored))
    }

    fn resize(&self, name: &LockName, permits: u16, by: Deadline) -> Result<Option<u16>> {
        let row = &lock_row(name);
        let mut read = self.read_row(row, by)?;
        for _ in 0..TRIES {
            let (Some(size), Some(number)) = (read.size, read.number) else { return Ok(None) };
            match self.make(row, vec![resize(number, size, permits)], 1, by)? {
                Settled::Yes(_) => return Ok(Some(size)),
                Settled::No(again) => read = again,
            }
        }
        Err(self.contended(name))
    }
}
