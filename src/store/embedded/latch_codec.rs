//! The record of a latch as bytes. Integers are big-endian.
//!
//! | part | bytes |
//! |---|---|
//! | head | version `1`, ends, ttl (8 each), number of farms (2) |
//! | count, for each farm | farm id (1 for the length, then the bytes), count (8, signed) |
//! | names, for each farm | pending, then arrived names: each a length in bytes (4), then a `NameSet` |
//!
//! The counts come before the names because they are read most often.

use std::time::Duration;

use super::record::number;
use crate::names::latch_name::LatchName;
use crate::runtime::time::Moment;
use crate::store::latch_record::name_set::NameSet;
use crate::store::latch_record::{FarmCount, LatchRecord};

const VERSION: u8 = 1;

/// Maximum number of farms in one latch: the head stores the number in two bytes.
pub(super) const FARMS_MAX: usize = u16::MAX as usize;

/// The prefix of the keys of latches. Keys of locks begin with `DC#` or `XDC#`, the key of the header with a NUL.
pub(super) const PREFIX: &[u8] = b"LATCH#";

/// Sorts behind all keys with that prefix, and before those of other records. No record has this key.
pub(super) const BEHIND_LATCHES: &[u8] = b"LATCH$";

pub(super) fn is_key(key: &[u8]) -> bool {
    key.starts_with(PREFIX)
}

/// Returns the key `LATCH#<client>#<id>`.
pub(super) fn key(name: &LatchName) -> Vec<u8> {
    [client_prefix(name.client()), name.id().as_bytes().to_vec()].concat()
}

/// Returns how the keys of the client's latches begin.
pub(super) fn client_prefix(client: &str) -> Vec<u8> {
    [PREFIX, client.as_bytes(), b"#"].concat()
}

/// A record without its names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    ends: Moment,
    ttl: Duration,
    pub(super) counts: Vec<(&'a str, i64)>,
}

impl Head<'_> {
    pub(super) fn is_live(&self, now: Moment) -> bool {
        now < self.ends
    }

    /// Decodes the head. Also returns the bytes after it.
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

pub(super) fn encode(record: &LatchRecord) -> Vec<u8> {
    let mut out = vec![VERSION];
    let ttl = u64::try_from(record.ttl.as_nanos()).unwrap_or(u64::MAX);
    for number in [record.ends.as_nanos(), ttl] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    let farms = u16::try_from(record.farms.len()).expect("refused when the latch is created");
    out.extend_from_slice(&farms.to_be_bytes());
    for (name, farm) in &record.farms {
        // At most 255 bytes: checked when the latch's name was created.
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

pub(super) fn decode(bytes: &[u8]) -> Option<LatchRecord> {
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

fn names(bytes: &[u8]) -> Option<(NameSet, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (names, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    Some((NameSet::from_bytes(names)?, rest))
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

    #[test]
    fn no_key_is_that_of_a_lock() {
        let name = LatchName::new("DC", "dc1", "XDC#a#b", crate::NamePolicy::Strict).unwrap();
        assert!(is_key(&key(&name)));
        for lock in ["DC#LATCH#LATCH#LATCH", "XDC#LATCH#LATCH"] {
            assert!(!is_key(lock.as_bytes()), "{lock}");
        }
    }
}
