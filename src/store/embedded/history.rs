//! Histories of locks: a record for each entry.
//!
//! | part | bytes |
//! |---|---|
//! | key | `LATCH#`, two NULs, the name of the lock, a NUL, time and random number of the entry (8 each) |
//! | key of a break of a grant | `LATCH#`, three NULs, the name of the lock, a NUL, the number of the grant, time and random number (8 each) |
//! | head | the head of a latch's record: version `1`, end of the entry, zero (8 each), no farms (2) |
//! | rest | the entry |
//!
//! A record begins like that of a latch, so the sweep deletes it when it has ended. Versions of this library that know no
//! histories delete it too.

use std::time::Duration;

use super::embedded_store::EmbeddedStore;
use super::latch_codec::{self, Head, PREFIX};
use super::room::Room;
use crate::error::Result;
use crate::names::history_entry::{HistoryEntry, HistoryKind};
use crate::runtime::time::{Deadline, Moment};
use crate::store::embedded::lmdb::TxnEnd;
use crate::store::latch_record::LatchRecord;
use crate::store::{HISTORY_MAX, HistoryOf, HistoryStore};

/// Most entries that one append deletes: the oldest, if the lock has more than it may have.
const DELETED_AT_ONCE: usize = 8;
/// Most entries that one transaction passes over.
const READ_AT_ONCE: usize = 10_000;

impl HistoryStore for EmbeddedStore {
    fn append(&self, of: HistoryOf<'_>, entry: &HistoryEntry, lasts: Duration, by: Deadline) -> Result<()> {
        let keys = keys_of(of);
        let key = [&keys[..], &entry.at_ms.to_be_bytes(), &entry.id.to_be_bytes()].concat();
        // A holder must learn why its lock was broken.
        let is_break = matches!(entry.kind, HistoryKind::Broken | HistoryKind::NotBroken);
        let room = if is_break { Room::Held } else { Room::History };
        self.write(room, by, |writer| {
            let now = Moment::now();
            self.records.sweep(writer, now)?;
            let mut value =
                latch_codec::encode(&LatchRecord { ends: now.after(lasts), ..LatchRecord::absent() });
            value.extend(entry.encode());
            writer.put(&key, &value)?;
            let surplus = writer.count(&keys, HISTORY_MAX + DELETED_AT_ONCE)?.saturating_sub(HISTORY_MAX);
            for _ in 0..surplus {
                let oldest = writer.after(&keys)?.map(|(key, _)| key.to_vec());
                writer.delete(&oldest.expect("they were counted"))?;
            }
            Ok(TxnEnd::Commit(()))
        })
    }

    fn entries(
        &self,
        of: HistoryOf<'_>,
        since_ms: u64,
        most: usize,
        by: Deadline,
    ) -> Result<Vec<HistoryEntry>> {
        let (keys, most) = (keys_of(of), most.min(HISTORY_MAX));
        // The entries of one time differ in the random number.
        let from = [&keys[..], &since_ms.saturating_sub(1).to_be_bytes(), &[0xff; 8]].concat();
        let mut newest = std::collections::VecDeque::new();
        let mut at = if since_ms == 0 { keys.clone() } else { from };
        loop {
            let (found, next) = self.environment.read(by, |reader| {
                let (now, mut found, mut key) = (Moment::now(), Vec::new(), at.clone());
                for _ in 0..READ_AT_ONCE {
                    let next = reader.after(&key)?.filter(|(next, _)| next.starts_with(&keys));
                    let Some((next, value)) = next else { return Ok((found, None)) };
                    key = next.to_vec();
                    let entry = Head::decode(value).filter(|(head, _)| head.is_live(now));
                    found.extend(entry.and_then(|(_, entry)| HistoryEntry::decode(entry)));
                }
                Ok((found, Some(key)))
            })?;
            newest.extend(found);
            while newest.len() > most {
                newest.pop_front();
            }
            match next {
                Some(next) => at = next,
                None => return Ok(newest.into_iter().rev().collect()),
            }
        }
    }
}

/// What the keys of these entries begin with. No client id is empty, so no key of a latch's notes begins with two NULs, and
/// no name of a lock with one.
pub(super) fn keys_of(of: HistoryOf<'_>) -> Vec<u8> {
    let zeros: &[u8] = match of {
        HistoryOf::Lock(_) => b"\0\0",
        HistoryOf::Grant(..) => b"\0\0\0",
    };
    [PREFIX, zeros, of.name().key().as_bytes(), b"\0", &of.grant_bytes()].concat()
}
