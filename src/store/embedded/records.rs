//! What the changes of the embedded store read and write within their transactions.

use std::sync::Arc;
use std::time::Duration;

use super::hold_codec;
use super::lock_records::LockRecords;
use super::record::{Header, Record};
use super::room::{ChangeError, ChangeResult};
use super::sweep::sweep;
use crate::error::{Error, Result};
use crate::names::fence::Fence;
use crate::names::lock_name::LockName;
use crate::names::owner::OwnerRecord;
use crate::names::text::quoted;
use crate::runtime::time::Moment;
use crate::store::embedded::lmdb::{TxnEnd, Writer};
use crate::store::{IntentId, Released};

/// Number of records that the sweep checks with each grant and each new latch. With only one, records of locks that
/// are acquired once and never released, and of latches, would pile up.
const SWEPT_AT_ONCE: usize = 2;

/// The records of one store. A change has a copy, because another thread may make it.
#[derive(Debug, Clone)]
pub(super) struct StoreRecords {
    /// The name of the store in messages.
    pub(super) store: Arc<str>,
}

impl StoreRecords {
    pub(super) fn header(&self, bytes: Option<&[u8]>) -> Result<Header> {
        bytes.and_then(Header::decode).ok_or_else(|| self.unreadable("the header".into()))
    }

    /// Decodes `bytes`, the record of `name`. A record that cannot be decoded is an error, and never a free lock.
    pub(super) fn record(&self, name: &LockName, bytes: Option<&[u8]>) -> Result<Option<Record>> {
        bytes
            .map(|bytes| {
                Record::decode(bytes).ok_or_else(|| self.unreadable(format!("lock {}", quoted(name.key()))))
            })
            .transpose()
    }

    /// Reads both records of a lock. `primary` is the first one.
    pub(super) fn lock(
        &self,
        name: &LockName,
        primary: Option<Record>,
        second: Option<&[u8]>,
        now: Moment,
    ) -> Result<LockRecords> {
        LockRecords::read(primary, second, now)
            .ok_or_else(|| self.unreadable(format!("the holds of lock {}", quoted(name.key()))))
    }

    pub(super) fn unreadable(&self, what: String) -> Error {
        Error::Internal {
            what: format!(
                "{}: the record of {what} cannot be read: it is damaged, or from another version of this library",
                self.store
            ),
            source: None,
        }
    }

    /// Makes a part of a change of a lock whose record is `found`, and writes both records if it commits.
    pub(super) fn change_found<T>(
        &self,
        writer: &mut Writer<'_>,
        name: &LockName,
        found: Option<Record>,
        change: impl FnOnce(&mut Writer<'_>, &mut LockRecords, Moment) -> ChangeResult<TxnEnd<T>>,
    ) -> ChangeResult<TxnEnd<T>> {
        // Read the clock here, after the wait for other writers, which must not shorten the lease.
        let now = Moment::now();
        let mut records = self.lock(name, found, writer.get(&hold_codec::key(name))?, now)?;
        let end = change(writer, &mut records, now)?;
        if let TxnEnd::Commit(_) = &end {
            records.put(writer, name, now)?;
        }
        Ok(end)
    }

    /// Renews a hold of a lock whose record, `found`, is a base.
    pub(super) fn renew_beside(
        &self,
        writer: &mut Writer<'_>,
        name: &LockName,
        found: Option<Record>,
        owner_record: &OwnerRecord,
        ttl: Duration,
    ) -> ChangeResult<TxnEnd<Option<OwnerRecord>>> {
        self.change_found(writer, name, found, |_, records, now| {
            let Some(hold) = records.holds.owned(owner_record) else { return Ok(TxnEnd::Abandon(None)) };
            hold.ends = hold.ends.max(now.after(ttl));
            Ok(TxnEnd::Commit(Some(owner_record.clone())))
        })
    }

    /// Releases a hold of a lock whose record, `found`, is a base.
    pub(super) fn release_beside(
        &self,
        writer: &mut Writer<'_>,
        name: &LockName,
        found: Option<Record>,
        owner_record: &OwnerRecord,
    ) -> ChangeResult<TxnEnd<Released>> {
        self.change_found(writer, name, found, |_, records, _| {
            Ok(match records.holds.release(owner_record) {
                true => TxnEnd::Commit(Released::Freed),
                false => TxnEnd::Abandon(Released::NotOurs),
            })
        })
    }

    /// Returns whether this record holds a lock whose record, `found`, is a base.
    pub(super) fn is_beside(
        &self,
        writer: &mut Writer<'_>,
        name: &LockName,
        found: Option<Record>,
        owner_record: &OwnerRecord,
    ) -> ChangeResult<bool> {
        let second = writer.get(&hold_codec::key(name))?;
        let mut records = self.lock(name, found, second, Moment::now())?;
        Ok(records.holds.owned(owner_record).is_some())
    }

    /// Ends an intent, if there is one with this id. Returns whether there was one. `found` is the record of the lock.
    pub(super) fn end_intent(
        &self,
        writer: &mut Writer<'_>,
        name: &LockName,
        found: Option<Record>,
        intent: IntentId,
    ) -> ChangeResult<bool> {
        let second = writer.get(&hold_codec::key(name))?;
        let mut records = self.lock(name, found, second, Moment::now())?;
        let before = records.holds.intents.len();
        records.holds.withdraw(Some(intent));
        let ended = records.holds.intents.len() < before;
        if ended {
            records.put_waiting(writer, name)?;
        }
        Ok(ended)
    }

    /// Returns the last of the next fences and runs the sweep for this grant. Returns `None` if too few are reserved.
    pub(super) fn next_fence(
        &self,
        writer: &mut Writer<'_>,
        fences: u64,
        now: Moment,
    ) -> ChangeResult<Option<Fence>> {
        let mut header = self.header(writer.get(Header::KEY)?)?;
        if header.limit.saturating_sub(header.fence) < fences {
            return Ok(None);
        }
        header.fence += fences;
        sweep(writer, &mut header.swept, now, SWEPT_AT_ONCE)?;
        writer.put(Header::KEY, &header.encode())?;
        Ok(Some(Fence(header.fence)))
    }

    /// Returns the next number. The error is `None` if none is left of those that are reserved.
    pub(super) fn next_number(
        &self,
        writer: &mut Writer<'_>,
        now: Moment,
    ) -> Result<u64, Option<ChangeError>> {
        match self.next_fence(writer, 1, now) {
            Ok(Some(fence)) => Ok(fence.0),
            Ok(None) => Err(None),
            Err(error) => Err(Some(error)),
        }
    }

    /// Runs the sweep in a change that adds a record but needs no fence.
    pub(super) fn sweep(&self, writer: &mut Writer<'_>, now: Moment) -> ChangeResult<()> {
        let mut header = self.header(writer.get(Header::KEY)?)?;
        sweep(writer, &mut header.swept, now, SWEPT_AT_ONCE)?;
        writer.put(Header::KEY, &header.encode())?;
        Ok(())
    }
}
