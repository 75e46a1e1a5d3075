//! Latches in the embedded store: one record each, changed in one transaction. Integers big-endian.
//!
//! | part | bytes |
//! |---|---|
//! | head | version `1`, ends, ttl (8 each), number of farms (2) |
//! | count, for each farm | its id (1 for the length, then the bytes), count (8, signed) |
//! | names, for each farm | those pending, those arrived: how many bytes (4), then those (see `Names`) |
//!
//! The counts stand before the names, because they are what is read most often.

use std::time::Duration;

use super::EmbeddedStore;
use super::record::number;
use crate::error::{Error, Result};
use crate::ffi::lmdb::{Change, Fault, Reader, Writer};
use crate::store::latch_record::{FarmCount, LatchRecord, check_participant, count_of};
use crate::store::names::Names;
use crate::store::{LatchName, LatchStore, Level, NewLatch, Roster, Step, Stepped};
use crate::time::{Deadline, Moment};

const VERSION: u8 = 1;

/// Farms of one latch, as the head counts them.
const FARMS_MAX: usize = u16::MAX as usize;

/// What the keys of latches begin with. Those of locks go on with `DC#` or `XDC#`, the ledger's with NUL.
const PREFIX: &[u8] = b"LATCH#";

pub(super) fn is_key(key: &[u8]) -> bool {
    key.starts_with(PREFIX)
}

/// `LATCH#<client>#<id>`.
fn key(name: &LatchName) -> Vec<u8> {
    [PREFIX, name.client().as_bytes(), b"#", name.id().as_bytes()].concat()
}

fn not_found(name: &LatchName) -> Error {
    Error::NotFound { name: name.to_string() }
}

impl LatchStore for EmbeddedStore {
    fn initialize_latches(&self, _by: Deadline) -> Result<()> {
        self.check()
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        new.roster.iter().try_for_each(|name| check_participant(name))?;
        self.change_latch(new.name, new.by, |writer, record, now| {
            if !record.create(new, now) {
                return Ok(Ok(Change::Abandon(false)));
            }
            if record.farms.len() > FARMS_MAX {
                let allowed = format!("one of at most {FARMS_MAX} that have a count in latch {}", new.name);
                return Ok(Err(Error::invalid("farm id", new.name.farm(), allowed)));
            }
            Ok(self.sweep(writer, now)?.map(|()| Change::Commit(true)))
        })
    }

    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        step.participant.map_or(Ok(()), check_participant)?;
        self.change_latch(step.name, step.by, |_, record, now| {
            Ok(Ok(match record.step(step, now) {
                None => return Ok(Err(not_found(step.name))),
                Some(Stepped::Already) => Change::Abandon(Stepped::Already),
                Some(counted) => Change::Commit(counted),
            }))
        })
    }

    /// All of one consistent state of the file.
    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>> {
        let keys: Vec<_> = asked.iter().map(|(name, _)| key(name)).collect();
        self.environment.read(by, |reader| {
            let now = Moment::now();
            let counts = asked.iter().zip(&keys).map(|((name, level), key)| {
                let found = reader.get(key)?;
                Ok(self.latch(name, found.map(Head::decode)).map(|head| {
                    let (head, _) = head.filter(|(head, _)| head.is_live(now))?;
                    count_of(head.counts.into_iter(), name.farm(), *level)
                }))
            });
            counts.collect()
        })
    }

    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster> {
        let key = key(name);
        let look = |reader: &Reader<'_>| Ok(self.latch(name, reader.get(&key)?.map(decode)));
        let record = self.environment.read(by, look)??;
        let live = record.filter(|record| record.is_live(Moment::now()));
        live.and_then(|record| record.roster(name.farm())).ok_or_else(|| not_found(name))
    }
}

impl EmbeddedStore {
    /// What was found, if anything; an error, and never "no such latch", where it cannot be read.
    fn latch<T>(&self, name: &LatchName, found: Option<Option<T>>) -> Result<Option<T>> {
        found.map(|read| read.ok_or_else(|| self.unreadable(format!("latch {name}")))).transpose()
    }

    /// Runs `change` on the record of `name` as one transaction, and writes the record if it commits.
    fn change_latch<T>(
        &self,
        name: &LatchName,
        by: Deadline,
        change: impl FnOnce(&mut Writer<'_>, &mut LatchRecord, Moment) -> Result<Result<Change<T>>, Fault>,
    ) -> Result<T> {
        let key = key(name);
        self.environment.write(by, |writer| {
            let mut record = match self.latch(name, writer.get(&key)?.map(decode)) {
                Ok(found) => found.unwrap_or_else(LatchRecord::absent),
                Err(error) => return Ok(Change::Abandon(Err(error))),
            };
            // Read here, behind the wait for other writers: the latch lives its whole TTL from now.
            Ok(match change(writer, &mut record, Moment::now())? {
                Ok(Change::Commit(answer)) => {
                    writer.put(&key, &encode(&record))?;
                    Change::Commit(Ok(answer))
                }
                Ok(Change::Abandon(answer)) => Change::Abandon(Ok(answer)),
                Err(error) => Change::Abandon(Err(error)),
            })
        })?
    }
}

/// A record without its names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    ends: Moment,
    ttl: Duration,
    counts: Vec<(&'a str, i64)>,
}

impl Head<'_> {
    pub(super) fn is_live(&self, now: Moment) -> bool {
        now < self.ends
    }

    /// And the bytes behind it.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Head<'_>, &[u8])> {
        let rest = bytes.strip_prefix(&[VERSION])?;
        let (ends, rest) = number(rest)?;
        let (ttl, rest) = number(rest)?;
        let (farms, mut rest) = rest.split_first_chunk()?;
        let mut counts = Vec::new();
        for _ in 0..u16::from_be_bytes(*farms) {
            let (farm, after) = text(rest)?;
            let (count, after) = number(after)?;
            counts.push((farm, count as i64));
            rest = after;
        }
        Some((Head { ends: Moment::from_nanos(ends), ttl: Duration::from_nanos(ttl), counts }, rest))
    }
}

fn encode(record: &LatchRecord) -> Vec<u8> {
    let mut out = vec![VERSION];
    let ttl = u64::try_from(record.ttl.as_nanos()).unwrap_or(u64::MAX);
    for number in [record.ends.as_nanos(), ttl] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    let farms = u16::try_from(record.farms.len()).expect("refused when the latch is made");
    out.extend_from_slice(&farms.to_be_bytes());
    for (name, farm) in &record.farms {
        // Checked when the latch's name was made: 255 bytes at the most.
        out.push(name.len() as u8);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&farm.count.to_be_bytes());
    }
    for names in record.farms.values().flat_map(|farm| [&farm.pending, &farm.arrived]) {
        out.extend_from_slice(&(names.as_bytes().len() as u32).to_be_bytes());
        out.extend_from_slice(names.as_bytes());
    }
    out
}

fn decode(bytes: &[u8]) -> Option<LatchRecord> {
    let (head, mut rest) = Head::decode(bytes)?;
    let mut record = LatchRecord { ends: head.ends, ttl: head.ttl, farms: Default::default() };
    for (farm, count) in head.counts {
        let (pending, after) = names(rest)?;
        let (arrived, after) = names(after)?;
        record.farms.insert(farm.to_owned(), FarmCount { count, pending, arrived });
        rest = after;
    }
    rest.is_empty().then_some(record)
}

fn text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (&length, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(length.into())?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

fn names(bytes: &[u8]) -> Option<(Names, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (names, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    Some((Names::from_bytes(names)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> LatchRecord {
        let set = |names: &[&str]| names.iter().copied().collect();
        let farm = FarmCount { count: -3, pending: set(&["b", "é"]), arrived: set(&["a"]) };
        let full = FarmCount { count: i64::MAX, pending: set(&[]), arrived: set(&[&"x".repeat(255)]) };
        LatchRecord {
            ends: Moment::from_nanos(123_456_789_012),
            ttl: Duration::from_secs(24 * 3600),
            farms: [("dc1".to_owned(), farm), ("d".repeat(255), full)].into(),
        }
    }

    fn sample_that_lives() -> LatchRecord {
        let ttl = Duration::from_secs(3600);
        LatchRecord { ends: Moment::now().after(ttl), ttl, ..sample() }
    }

    #[test]
    fn a_record_is_read_back_and_any_cut_of_it_is_refused() {
        let bytes = encode(&sample());
        assert_eq!(decode(&bytes), Some(sample()));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None, "cut at {cut}");
        }
        assert_eq!(decode(&[bytes, vec![0]].concat()), None, "something behind it");
    }

    #[test]
    fn counts_are_read_without_the_names() {
        let bytes = encode(&sample());
        let (head, _) = Head::decode(&bytes).unwrap();
        assert_eq!(head.counts, [("dc1", -3), ("d".repeat(255).as_str(), i64::MAX)]);
        assert_eq!((head.ends, head.ttl), (sample().ends, sample().ttl));
    }

    #[test]
    fn a_record_of_another_version_is_refused_rather_than_misread() {
        let mut bytes = encode(&sample());
        bytes[0] = 2;
        assert!(decode(&bytes).is_none() && Head::decode(&bytes).is_none());
    }

    /// Left out, they would open the latch of level XDC too soon.
    #[test]
    fn a_farm_too_many_is_refused_and_none_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path()).unwrap();
        let by = Deadline::after(Duration::from_secs(60));
        let of = |farm: &str| LatchName::new("a", farm, "b", crate::NamePolicy::Strict).unwrap();
        let one = FarmCount { count: 1, ..FarmCount::default() };
        let farms = (0..FARMS_MAX).map(|farm| (format!("f{farm}"), one.clone())).collect();
        let record = LatchRecord { farms, ..sample_that_lives() };
        let put = |writer: &mut Writer<'_>| {
            writer.put(&key(&of("f0")), &encode(&record))?;
            Ok(Change::Commit(()))
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

    #[test]
    fn no_key_is_that_of_a_lock() {
        let name = LatchName::new("DC", "dc1", "XDC#a#b", crate::NamePolicy::Strict).unwrap();
        assert!(is_key(&key(&name)));
        for lock in ["DC#LATCH#LATCH#LATCH", "XDC#LATCH#LATCH"] {
            assert!(!is_key(lock.as_bytes()), "{lock}");
        }
    }
}
