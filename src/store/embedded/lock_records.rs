//! The two records of one lock, as the holds that they mean. Reads them, and writes them back after a change.
//!
//! | record of the lock | record beside it (see `hold_codec`) | holds |
//! |---|---|---|
//! | none, or expired | any | none |
//! | exclusive | any | that one |
//! | base | quotes the base | those that it contains |
//! | base | none, or quotes another one | one of somebody unknown, until the end of the base |
//!
//! The last line cannot happen, unless a later version keeps holds elsewhere. So a base that lasts longer than the holds
//! which were found means a hold that is not known. It is compatible with nothing, and has the token of the base.

use super::hold_codec::{self, LaterParts, wall_at, wall_ms_of};
use super::record::Record;
use super::room::ChangeResult;
use crate::names::fence::Fence;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::owner::{OwnerRecord, OwnerToken};
use crate::runtime::time::Moment;
use crate::store::LockHold;
use crate::store::embedded::lmdb::Writer;
use crate::store::lock_holds::{HoldRecord, LockHolds};

/// What the file has of one lock.
pub(super) struct LockRecords {
    /// The record of the lock, while it lives.
    primary: Option<Record>,
    pub(super) holds: LockHolds,
    later: LaterParts,
    /// Whether there is a record beside that of the lock.
    has_second: bool,
}

impl LockRecords {
    /// Reads the record of the lock and the bytes of the record beside it. `None` if those cannot be decoded: that is never
    /// a free lock.
    pub(super) fn read(primary: Option<Record>, second: Option<&[u8]>, now: Moment) -> Option<LockRecords> {
        let primary = primary.filter(|record| record.is_live(now));
        let has_second = second.is_some();
        let mut found = match second {
            Some(bytes) => hold_codec::decode(bytes)?,
            None => Default::default(),
        };
        let base = primary.as_ref().filter(|record| record.base.is_some());
        if base.is_none_or(|base| found.base != Some(base.owner)) {
            (found.of.holds, found.later) = Default::default();
        }
        found.later.expire(now);
        if let Some(base) = base {
            let last = found.of.holds.iter().map(|hold| hold.ends).max();
            let is_longer = last.is_none_or(|last| last < base.ends);
            let ends = if is_longer { Some(base.ends) } else { found.later.ends() };
            found.of.holds.extend(ends.map(|ends| HoldRecord { ends, ..exclusive(base) }));
        } else if let Some(record) = &primary {
            found.of.holds.push(exclusive(record));
        }
        let mut holds = found.of;
        holds.expire(now);
        Some(LockRecords { primary, holds, later: found.later, has_second })
    }

    /// Returns the record of the lock, while it lives.
    pub(super) fn primary(&self) -> Option<&Record> {
        self.primary.as_ref()
    }

    /// Takes the exclusive hold away, whose process has died.
    pub(super) fn without_primary(mut self) -> LockRecords {
        if let Some(record) = self.primary.take() {
            self.holds.release(&OwnerRecord::from_bytes(record.owner.as_bytes().as_slice()));
        }
        self
    }

    /// Describes a hold. That of a mode which is not known has no number, because it may be no fence.
    pub(super) fn describe(&self, hold: &HoldRecord) -> LockHold {
        let described = hold.hold();
        let epoch = described.epoch.filter(|_| !self.is_unknown(hold));
        LockHold { epoch, ..described }
    }

    /// Writes both records, so that they mean these holds.
    pub(super) fn put(&self, writer: &mut Writer<'_>, name: &LockName, now: Moment) -> ChangeResult<()> {
        let Some(last) = self.holds.last_to_end() else {
            writer.delete(name.key().as_bytes())?;
            return self.put_second(writer, name, None);
        };
        let base = self.base().map(|base| base.owner);
        let is_exclusive = last.mode == Mode::Exclusive && !self.is_unknown(last);
        let (owner, mode) = match base {
            _ if is_exclusive => (last.owner, None),
            Some(base) => (base, Some(self.mode_code(last))),
            None => (OwnerToken::draw()?, Some(self.mode_code(last))),
        };
        // Later versions may have holds with numbers of their own.
        let numbers = self.holds.holds.iter().map(|hold| hold.number);
        let number = numbers.chain(self.base().map(|base| base.fence.0)).max().unwrap_or_default();
        let record = Record {
            owner,
            fence: Fence(number),
            ends: last.ends,
            since_ms: wall_ms_of(last.since),
            ttl: last.ends.since(now),
            identity: last.identity.clone(),
            mark: None,
            base: mode,
        };
        writer.put(name.key().as_bytes(), &record.encode())?;
        self.put_second(writer, name, mode.map(|_| owner))
    }

    /// Writes the intents and the turn only.
    pub(super) fn put_waiting(&self, writer: &mut Writer<'_>, name: &LockName) -> ChangeResult<()> {
        self.put_second(writer, name, self.base().map(|base| base.owner))
    }

    fn put_second(
        &self,
        writer: &mut Writer<'_>,
        name: &LockName,
        base: Option<OwnerToken>,
    ) -> ChangeResult<()> {
        let key = hold_codec::key(name);
        let LockHolds { intents, turn_ends, size, .. } = &self.holds;
        let is_needed = base.is_some() || !intents.is_empty() || *turn_ends != Moment::OVER || size.is_some();
        if is_needed {
            writer.put(&key, &hold_codec::encode(base.as_ref(), &self.holds, &self.later))?;
        } else if self.has_second {
            writer.delete(&key)?;
        }
        Ok(())
    }

    /// Whether the record beside that of the lock was not there.
    pub(super) fn is_second_new(&self) -> bool {
        !self.has_second
    }

    fn base(&self) -> Option<&Record> {
        self.primary.as_ref().filter(|record| record.base.is_some())
    }

    fn is_unknown(&self, hold: &HoldRecord) -> bool {
        self.stands_for_unknown(hold) || self.later.mode_of(hold).is_some()
    }

    /// Whether this hold stands for something that is not known.
    fn stands_for_unknown(&self, hold: &HoldRecord) -> bool {
        self.base().is_some_and(|base| base.owner == hold.owner)
    }

    fn mode_code(&self, hold: &HoldRecord) -> u8 {
        let of_base = self.base().and_then(|base| base.base).filter(|_| self.stands_for_unknown(hold));
        of_base.or_else(|| self.later.mode_of(hold)).unwrap_or(hold.mode.code())
    }
}

/// Returns what this record means to everybody who knows only exclusive holds.
fn exclusive(record: &Record) -> HoldRecord {
    HoldRecord {
        owner: record.owner,
        mode: Mode::Exclusive,
        number: record.fence.0,
        since: wall_at(record.since_ms),
        ends: record.ends,
        identity: record.identity.clone(),
        permit: None,
    }
}
