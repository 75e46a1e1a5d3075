//! The embedded store's records for locks: one for each held lock, and one header. Integers are big-endian. For
//! latches see `latch_codec`.
//!
//! | record | bytes |
//! |---|---|
//! | lock | version `1`, owner token (16), fence, ends, since, ttl (8 each), holder (see `Identity`) |
//! | header | version `1`, fence, limit (8 each), sweep key (the rest) |

use std::time::{Duration, UNIX_EPOCH};

use crate::fence::Fence;
use crate::holder::{Holder, Identity};
use crate::owner::{OwnerRecord, OwnerToken};
use crate::time::{Deadline, Moment};

const VERSION: u8 = 1;

/// A held lock. It is valid until [`ends`](Record::ends).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) owner: OwnerToken,
    pub(super) fence: Fence,
    pub(super) ends: Moment,
    /// When it was granted, in milliseconds since 1970. For people only.
    pub(super) since_ms: u64,
    /// The TTL that was requested last. For people only.
    pub(super) ttl: Duration,
    pub(super) identity: Identity,
}

/// The state of the whole store.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The last fence of all locks.
    pub(super) fence: u64,
    /// The highest fence that the fence-floor file reserves. No fence may be above it.
    pub(super) limit: u64,
    /// The sweep for expired records continues after this key.
    pub(super) swept: Vec<u8>,
}

impl Header {
    /// The key of the header. No lock name begins with a NUL.
    pub(super) const KEY: &'static [u8] = b"\0ledger";

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(17 + self.swept.len());
        out.push(VERSION);
        out.extend_from_slice(&self.fence.to_be_bytes());
        out.extend_from_slice(&self.limit.to_be_bytes());
        out.extend_from_slice(&self.swept);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Header> {
        let rest = bytes.strip_prefix(&[VERSION])?;
        let (fence, rest) = number(rest)?;
        let (limit, swept) = number(rest)?;
        Some(Header { fence, limit, swept: swept.to_vec() })
    }
}

impl Record {
    pub(super) fn is_live(&self, now: Moment) -> bool {
        now < self.ends
    }

    pub(super) fn is_owner(&self, owner_record: &OwnerRecord) -> bool {
        self.owner.as_bytes() == owner_record.as_bytes()
    }

    pub(super) fn holder(&self) -> Holder {
        let remaining = Deadline::at(self.ends).remaining();
        let since = UNIX_EPOCH.checked_add(Duration::from_millis(self.since_ms));
        Holder::new(Some(self.identity.clone()), Some(remaining), since)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.identity.host.len() + self.identity.purpose.len());
        out.push(VERSION);
        out.extend_from_slice(self.owner.as_bytes());
        let ttl = u64::try_from(self.ttl.as_nanos()).unwrap_or(u64::MAX);
        for number in [self.fence.0, self.ends.as_nanos(), self.since_ms, ttl] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        self.identity.encode_into(&mut out);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Record> {
        let rest = bytes.strip_prefix(&[VERSION])?;
        let (owner, rest) = rest.split_first_chunk()?;
        let (fence, rest) = number(rest)?;
        let (ends, rest) = number(rest)?;
        let (since_ms, rest) = number(rest)?;
        let (ttl, rest) = number(rest)?;
        Some(Record {
            owner: OwnerToken::from_bytes(*owner),
            fence: Fence(fence),
            ends: Moment::from_nanos(ends),
            since_ms,
            ttl: Duration::from_nanos(ttl),
            identity: Identity::decode(rest)?,
        })
    }
}

pub(super) fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        Record {
            owner: OwnerToken::from_bytes([7; OwnerToken::LEN]),
            fence: Fence(u64::MAX - 1),
            ends: Moment::from_nanos(123_456_789_012),
            since_ms: 1_700_000_000_123,
            ttl: Duration::from_secs(90),
            identity: Identity { host: "höst".into(), pid: 42, start_ms: 5, purpose: "nightly".into() },
        }
    }

    #[test]
    fn a_record_is_read_back_and_any_cut_of_it_is_refused() {
        let bytes = sample().encode();
        assert_eq!(Record::decode(&bytes), Some(sample()));
        for cut in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_record_of_another_version_is_refused_rather_than_misread() {
        let mut bytes = sample().encode();
        bytes[0] = 2;
        assert_eq!(Record::decode(&bytes), None);
        let mut bytes = Header { fence: 1, limit: 2, swept: vec![3] }.encode();
        bytes[0] = 2;
        assert_eq!(Header::decode(&bytes), None);
    }

    #[test]
    fn the_ledger_is_read_back_and_a_cut_one_is_refused() {
        let header = Header { fence: 1 << 60, limit: u64::MAX, swept: b"XDC#a#b".to_vec() };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for cut in 0..17 {
            assert_eq!(Header::decode(&bytes[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_record_with_absurd_times_shows_without_a_panic() {
        let record = Record { since_ms: u64::MAX, ends: Moment::from_nanos(u64::MAX), ..sample() };
        assert!(record.holder().remaining.is_some());
    }
}
