//! Latches in the embedded store. Each is one record, and each change is one transaction.

use std::collections::BTreeMap;
use std::time::Duration;

use super::embedded_store::{EmbeddedStore, SEARCHED_AT_ONCE};
use super::latch_codec::{FARMS_MAX, Head, client_prefix, decode, encode, key};
use super::listener_codec;
use super::records::StoreRecords;
use super::room::{ChangeResult, Room};
use crate::error::{Error, Result};
use crate::names::latch_name::LatchName;
use crate::names::lock_name::{KEY_BYTES_MAX, Level};
use crate::names::notice_endpoint::LatchListener;
use crate::names::text::quoted;
use crate::runtime::time::{Deadline, Moment};
use crate::store::embedded::lmdb::{Reader, TxnEnd, Writer};
use crate::store::latch_record::{LatchRecord, count_of};
use crate::store::latch_store::check_participant;
use crate::store::{
    LatchNote, LatchPage, LatchQuery, LatchStore, ListCursor, ListedLatch, NewLatch, Roster, Step, Stepped,
};

fn not_found(name: &LatchName) -> Error {
    Error::NotFound { name: name.to_string() }
}

impl LatchStore for EmbeddedStore {
    fn initialize_latches(&self, _by: Deadline) -> Result<()> {
        self.check()
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        new.roster.iter().try_for_each(|name| check_participant(name))?;
        self.change_latch(Room::Latch, new.name, new.by, |writer, record, now| {
            if !record.create(new, now) {
                return Ok(TxnEnd::Abandon(false));
            }
            if record.farms.len() > FARMS_MAX {
                let allowed = format!("one of at most {FARMS_MAX} that have a count in latch {}", new.name);
                return Err(Error::invalid("farm id", new.name.farm(), allowed).into());
            }
            self.records.sweep(writer, now)?;
            Ok(TxnEnd::Commit(true))
        })
    }

    /// Other threads' count-downs may be in the same transaction.
    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        step.participant.map_or(Ok(()), check_participant)?;
        let Step { add, ttl, by, .. } = *step;
        let (records, name, key) = (self.records.clone(), step.name.clone(), key(step.name));
        let participant = step.participant.map(str::to_owned);
        let change = move |writer: &mut Writer<'_>| {
            let step = Step { name: &name, add, participant: participant.as_deref(), ttl, by };
            records.change_latch(writer, &name, &key, |_, record, now| {
                match record.step(&step, now).ok_or_else(|| not_found(&name))?? {
                    Stepped::Already => Ok(TxnEnd::Abandon(Stepped::Already)),
                    counted => Ok(TxnEnd::Commit(counted)),
                }
            })
        };
        self.write_in_group(Room::Held, by, change)
    }

    fn reset_latch(&self, new: &NewLatch<'_>) -> Result<()> {
        new.roster.iter().try_for_each(|name| check_participant(name))?;
        self.change_latch(Room::Latch, new.name, new.by, |_, record, now| {
            record.reset(new, now).ok_or_else(|| not_found(new.name))?;
            Ok(TxnEnd::Commit(()))
        })
    }

    /// A call is over before the next one begins, so no late request can reach another incarnation. Notes of processes
    /// that wait stay: they end by themselves.
    fn delete_latch(&self, name: &LatchName, _ttl: Duration, by: Deadline) -> Result<()> {
        self.change_latch(Room::Held, name, by, |_, record, now| {
            record.delete(name.farm(), now).ok_or_else(|| not_found(name))?;
            Ok(TxnEnd::Commit(()))
        })
    }

    /// One read transaction for each page. The cursor is the last key that was read.
    fn list_latches(&self, asked: &LatchQuery<'_>) -> Result<LatchPage> {
        let begin = [client_prefix(asked.client), asked.prefix.as_bytes().to_vec()].concat();
        let after = asked.after.map(ListCursor::as_bytes);
        if let Some(cursor) = asked
            .after
            .filter(|after| !after.as_bytes().starts_with(&begin) || after.as_bytes().len() > KEY_BYTES_MAX)
        {
            return Err(cursor.refused());
        }
        let (found, last) = self.environment.read(asked.by, |reader| {
            let (now, mut found) = (Moment::now(), Vec::new());
            let mut list = |key: &[u8], value: &[u8]| {
                let counts = Head::decode(value).map(|(head, _)| {
                    let counts = head.counts.iter().map(|(farm, count)| ((*farm).to_owned(), *count));
                    head.is_live(now).then(|| counts.collect::<BTreeMap<_, _>>())
                });
                found.push((key.to_vec(), counts));
                found.len()
            };
            let mut key = after.unwrap_or(&begin).to_vec();
            // The first key that begins so may be the beginning itself.
            if after.is_none()
                && let Some(value) = reader.get(&begin)?
            {
                list(&begin, value);
            }
            for _ in 0..SEARCHED_AT_ONCE {
                let next = reader.after(&key)?.filter(|(next, _)| next.starts_with(&begin));
                let Some((next, value)) = next else { return Ok((found, None)) };
                key = next.to_vec();
                if list(next, value) >= asked.most.max(1) {
                    break;
                }
            }
            Ok((found, Some(key)))
        })?;
        let prefix = client_prefix(asked.client).len();
        let mut latches = Vec::with_capacity(found.len());
        for (key, counts) in found {
            let id = String::from_utf8_lossy(&key[prefix..]).into_owned();
            let counts = counts.ok_or_else(|| self.records.unreadable(format!("latch {}", quoted(&id))))?;
            latches.extend(counts.map(|counts| ListedLatch::new(asked.client, &id, counts)));
        }
        Ok(LatchPage::new(latches, last.map(ListCursor::from_bytes)))
    }

    /// All counts come from one consistent state of the file.
    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>> {
        let keys: Vec<_> = asked.iter().map(|(name, _)| key(name)).collect();
        self.environment.read(by, |reader| {
            let now = Moment::now();
            let counts = asked.iter().zip(&keys).map(|((name, level), key)| {
                Ok(self.records.latch(name, reader.get(key)?, Head::decode).map(|head| {
                    let (head, _) = head.filter(|(head, _)| head.is_live(now))?;
                    count_of(head.counts.into_iter(), name.farm(), *level)
                }))
            });
            counts.collect()
        })
    }

    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster> {
        let key = key(name);
        let look = |reader: &Reader<'_>| Ok(self.records.latch(name, reader.get(&key)?, decode));
        let record = self.environment.read(by, look)??;
        let live = record.filter(|record| record.is_live(Moment::now()));
        live.and_then(|record| record.roster(name.farm())).ok_or_else(|| not_found(name))
    }

    fn listen(&self, note: &LatchNote<'_>) -> Result<bool> {
        let LatchNote { name, level, listener, lasts, by } = *note;
        let (latch, listeners) = (key(name), listener_codec::key(name));
        self.write(Room::Latch, by, |writer| {
            let now = Moment::now();
            let head = self.records.latch(name, writer.get(&latch)?, Head::decode)?;
            let head = head.filter(|(head, _)| head.is_live(now));
            if head.and_then(|(head, _)| count_of(head.counts.into_iter(), name.farm(), level)).is_none() {
                return Ok(TxnEnd::Abandon(false));
            }
            // Notes that cannot be read are written anew: they only make a wait shorter.
            let found = writer.get(&listeners)?.and_then(|bytes| listener_codec::decode(bytes, now));
            let mut set = found.unwrap_or_default();
            set.note(listener, now.after(lasts), now);
            writer.put(&listeners, &listener_codec::encode(&set))?;
            Ok(TxnEnd::Commit(true))
        })
    }

    fn listeners(&self, name: &LatchName, by: Deadline) -> Result<Vec<LatchListener>> {
        let key = listener_codec::key(name);
        self.environment.read(by, |reader| {
            let now = Moment::now();
            let found = reader.get(&key)?.and_then(|bytes| listener_codec::decode(bytes, now));
            Ok(found.map(|set| set.live(now)).unwrap_or_default())
        })
    }
}

impl EmbeddedStore {
    /// Runs `change` on the record of `name` as one transaction, and writes the record if it commits.
    fn change_latch<T>(
        &self,
        room: Room,
        name: &LatchName,
        by: Deadline,
        mut change: impl FnMut(&mut Writer<'_>, &mut LatchRecord, Moment) -> ChangeResult<TxnEnd<T>>,
    ) -> Result<T> {
        let key = key(name);
        self.write(room, by, |writer| self.records.change_latch(writer, name, &key, &mut change))
    }
}

impl StoreRecords {
    /// Returns the record, or `None` if there was none. A record that cannot be decoded is an error, and never "no
    /// such latch".
    fn latch<'b, T>(
        &self,
        name: &LatchName,
        bytes: Option<&'b [u8]>,
        decode: impl Fn(&'b [u8]) -> Option<T>,
    ) -> Result<Option<T>> {
        bytes.map(|bytes| decode(bytes).ok_or_else(|| self.unreadable(format!("latch {name}")))).transpose()
    }

    /// Makes a change of the record of `name`, and writes the record if it commits.
    fn change_latch<T>(
        &self,
        writer: &mut Writer<'_>,
        name: &LatchName,
        key: &[u8],
        change: impl FnOnce(&mut Writer<'_>, &mut LatchRecord, Moment) -> ChangeResult<TxnEnd<T>>,
    ) -> ChangeResult<TxnEnd<T>> {
        let found = self.latch(name, writer.get(key)?, decode)?;
        let mut record = found.unwrap_or_else(LatchRecord::absent);
        // Read the clock here, after the wait for other writers: the latch's whole TTL starts now.
        let end = change(writer, &mut record, Moment::now())?;
        if let TxnEnd::Commit(_) = &end {
            match record.farms.is_empty() {
                true => writer.delete(key)?,
                false => writer.put(key, &encode(&record))?,
            }
        }
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::latch_record::FarmCount;

    const TTL: Duration = Duration::from_secs(3600);

    /// If a farm were left out, the latch of level XDC would open too soon.
    #[test]
    fn a_farm_too_many_is_refused_and_none_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path()).unwrap();
        let by = Deadline::after(Duration::from_secs(60));
        let of = |farm: &str| LatchName::new("a", farm, "b", crate::NamePolicy::Strict).unwrap();
        let one = FarmCount { count: 1, ..FarmCount::default() };
        let farms = (0..FARMS_MAX).map(|farm| (format!("f{farm}"), one.clone())).collect();
        let record = LatchRecord { ends: Moment::now().after(TTL), ttl: TTL, farms };
        let put = |writer: &mut Writer<'_>| {
            writer.put(&key(&of("f0")), &encode(&record))?;
            Ok(TxnEnd::Commit(()))
        };
        store.environment.write(by, put).unwrap();
        let name = of("one-more");
        let new = NewLatch { name: &name, count: 1, roster: &[], ttl: record.ttl, by };
        let refused = store.create_latch(&new).unwrap_err();
        assert_eq!(refused.code(), crate::Code::InvalidArgument, "{refused}");
        assert!(!store.create_latch(&NewLatch { name: &of("f7"), ..new }).unwrap());
        let counts = store.counts(&[(&name, Level::Xdc), (&name, Level::Dc)], by).unwrap();
        let counts: Vec<_> = counts.into_iter().map(Result::unwrap).collect();
        assert_eq!(counts, [Some(FARMS_MAX as i64), None]);
    }
}
