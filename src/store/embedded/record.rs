//! The embedded store's records for locks: one for each held lock, and one header. Integers are big-endian. For
//! latches see `latch_codec`.
//!
//! | record | bytes |
//! |---|---|
//! | lock | version `1`, owner token (16), fence, ends, since, ttl (8 each), holder (see `Identity`), mark |
//! | mark of a lease that dies with its process | `1`, the liveness file's id (16), device and inode (8 each) |
//! | mark of a base | `2`, the code of the mode in which its holder holds the lock |
//! | no mark | nothing |
//! | header | version `1` or `2`, fence, limit (8 each), sweep key (the rest) |
//!
//! Versions of this library without marks ignore what is after the holder. To them a marked lease ends with its TTL. If
//! they write the record again, it has no mark, and to all versions the lease ends with its TTL. So a mark needs no new
//! version. A later version may append to a mark, or use another first byte: this version then sees no mark.
//!
//! **The header has version `2`** if transactions change the file through the memory map. Versions of this library that write it
//! by write(2) alone cannot read the header, and refuse the store.
//!
//! **A base** is the record of a lock that is held in another mode than exclusive. It describes the hold that ends last, and
//! its owner token is that of nobody: see `hold_codec`. Versions without modes see no mark, so to them it is an exclusive
//! hold of somebody else. They write a record again only if they own it, and nobody owns a base. So a base never loses its
//! mark. They may delete it: when it has expired, and when they break the lock.

use std::time::{Duration, UNIX_EPOCH};

use super::liveness::{DeathProof, LivenessRef};
use crate::names::fence::Fence;
use crate::names::holder::{Holder, Identity};
use crate::names::mode::Mode;
use crate::names::owner::{OwnerRecord, OwnerToken};
use crate::runtime::time::{Deadline, Moment};
use crate::store::embedded::lmdb::Engine;

const VERSION: u8 = 1;
const VERSION_MAPPED: u8 = 2;
const MARKED: u8 = 1;
const BASE: u8 = 2;

/// A held lock. It is valid until [`ends`](Record::ends).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) owner: OwnerToken,
    pub(super) fence: Fence,
    pub(super) ends: Moment,
    /// When it was granted, in milliseconds since 1970. For people only.
    pub(super) since_ms: u64,
    /// The TTL that was requested last. For people only.
    pub(super) ttl: Duration,
    pub(super) identity: Identity,
    /// Set if the lease dies with its process.
    pub(super) mark: Option<LivenessRef>,
    /// Set if the record is a base: the code of the mode of the hold that it describes.
    pub(super) base: Option<u8>,
}

/// A holder whose process has died, and the proof.
pub(super) type DeadHolder = (Record, DeathProof);

/// The state of the whole store.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) engine: Engine,
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
        out.push(match self.engine {
            Engine::Calls => VERSION,
            Engine::Map => VERSION_MAPPED,
        });
        out.extend_from_slice(&self.fence.to_be_bytes());
        out.extend_from_slice(&self.limit.to_be_bytes());
        out.extend_from_slice(&self.swept);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Header> {
        let (version, rest) = bytes.split_first()?;
        let engine = match *version {
            VERSION => Engine::Calls,
            VERSION_MAPPED => Engine::Map,
            _ => return None,
        };
        let (fence, rest) = number(rest)?;
        let (limit, swept) = number(rest)?;
        Some(Header { engine, fence, limit, swept: swept.to_vec() })
    }
}

impl Record {
    pub(super) fn is_live(&self, now: Moment) -> bool {
        now < self.ends
    }

    /// Whether the lock is held, and not exclusively.
    pub(super) fn is_live_base(&self, now: Moment) -> bool {
        self.base.is_some() && self.is_live(now)
    }

    pub(super) fn is_owner(&self, owner_record: &OwnerRecord) -> bool {
        self.owner.as_bytes() == owner_record.as_bytes()
    }

    pub(super) fn holder(&self) -> Holder {
        let remaining = Deadline::at(self.ends).remaining();
        let since = UNIX_EPOCH.checked_add(Duration::from_millis(self.since_ms));
        // A mode of a later version looks like the one that excludes everybody.
        let mode = self.base.and_then(Mode::from_code).unwrap_or(Mode::Exclusive);
        Holder::new(Some(self.identity.clone()), Some(remaining), since).with_mode(mode)
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
        if let Some(LivenessRef { id, device, inode }) = &self.mark {
            out.push(MARKED);
            out.extend_from_slice(id);
            out.extend_from_slice(&device.to_be_bytes());
            out.extend_from_slice(&inode.to_be_bytes());
        } else if let Some(mode) = self.base {
            out.extend_from_slice(&[BASE, mode]);
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Record> {
        let rest = bytes.strip_prefix(&[VERSION])?;
        let (owner, rest) = rest.split_first_chunk()?;
        let (fence, rest) = number(rest)?;
        let (ends, rest) = number(rest)?;
        let (since_ms, rest) = number(rest)?;
        let (ttl, rest) = number(rest)?;
        let (identity, rest) = Identity::split(rest)?;
        let (mark, base) = match rest.split_first() {
            Some((&MARKED, rest)) => (Some(mark(rest)?), None),
            Some((&BASE, rest)) => (None, Some(*rest.first()?)),
            _ => (None, None),
        };
        Some(Record {
            owner: OwnerToken::from_bytes(*owner),
            fence: Fence(fence),
            ends: Moment::from_nanos(ends),
            since_ms,
            ttl: Duration::from_nanos(ttl),
            identity,
            mark,
            base,
        })
    }
}

fn mark(bytes: &[u8]) -> Option<LivenessRef> {
    let (id, rest) = bytes.split_first_chunk()?;
    let (device, rest) = number(rest)?;
    let (inode, _) = number(rest)?;
    Some(LivenessRef { id: *id, device, inode })
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
            identity: Identity {
                host: "höst".into(),
                pid: 42,
                start_ms: 5,
                purpose: "nightly".into(),
                notices: None,
            },
            mark: None,
            base: None,
        }
    }

    fn marked() -> Record {
        let mark = LivenessRef { id: [9; 16], device: 0x0102, inode: u64::MAX - 7 };
        Record { mark: Some(mark), ..sample() }
    }

    /// The bytes of a record that a version without marks has written.
    const FROM_BEFORE_MARKS: &str = "0107070707070707070707070707070707fffffffffffffffe0000001cbe991a140000018bcfe5687b\
                                     00000014f46b04000000002a00000000000000050568c3b67374076e696768746c79";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_record_without_a_mark_is_the_one_of_versions_that_know_no_marks() {
        assert_eq!(hex(&sample().encode()), FROM_BEFORE_MARKS);
    }

    /// Those versions read the holder and ignore the rest. So they see the same lease, and wait for its TTL.
    #[test]
    fn a_mark_is_after_all_that_versions_without_marks_read() {
        let bytes = marked().encode();
        assert_eq!(Record::decode(&bytes), Some(marked()));
        let mark = format!("01{}0000000000000102fffffffffffffff8", "09".repeat(16));
        assert_eq!(hex(&bytes), format!("{FROM_BEFORE_MARKS}{mark}"));
        let holder_at = 1 + OwnerToken::LEN + 4 * 8;
        assert_eq!(Identity::decode(&bytes[holder_at..]), Some(marked().identity));
    }

    #[test]
    fn a_cut_mark_is_refused_and_one_of_a_later_version_is_no_mark() {
        let (bytes, unmarked) = (marked().encode(), sample().encode().len());
        for cut in unmarked + 1..bytes.len() {
            assert_eq!(Record::decode(&bytes[..cut]), None, "cut at {cut}");
        }
        let mut later = bytes.clone();
        later.push(7);
        assert_eq!(Record::decode(&later), Some(marked()), "later versions may append");
        let mut later = bytes;
        later[unmarked] = 3;
        assert_eq!(Record::decode(&later), Some(sample()));
    }

    /// What versions without modes read of a base is what they read of an exclusive hold.
    #[test]
    fn a_base_is_a_held_lock_with_two_bytes_behind_it() {
        let base = Record { base: Some(1), ..sample() };
        let bytes = base.encode();
        assert_eq!(hex(&bytes), format!("{FROM_BEFORE_MARKS}0201"));
        assert_eq!(Record::decode(&bytes), Some(base.clone()));
        assert_eq!(base.holder().mode, Mode::Shared);
        assert_eq!(Record::decode(&[&bytes[..], &[7]].concat()), Some(base), "later versions may append");
        assert_eq!(Record::decode(&bytes[..bytes.len() - 1]), None, "cut");
        let later = Record { base: Some(200), ..sample() };
        assert_eq!(Record::decode(&later.encode()), Some(later.clone()));
        assert_eq!(later.holder().mode, Mode::Exclusive, "a mode that is not known excludes everybody");
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
        let mut bytes = Header { engine: Engine::Map, fence: 1, limit: 2, swept: vec![3] }.encode();
        assert_ne!(bytes[0], VERSION, "versions that know one engine would read it");
        bytes[0] = 3;
        assert_eq!(Header::decode(&bytes), None);
    }

    #[test]
    fn the_ledger_is_read_back_and_a_cut_one_is_refused() {
        for engine in [Engine::Calls, Engine::Map] {
            let header = Header { engine, fence: 1 << 60, limit: u64::MAX, swept: b"XDC#a#b".to_vec() };
            let bytes = header.encode();
            assert_eq!(Header::decode(&bytes), Some(header));
            for cut in 0..17 {
                assert_eq!(Header::decode(&bytes[..cut]), None, "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_record_with_absurd_times_shows_without_a_panic() {
        let record = Record { since_ms: u64::MAX, ends: Moment::from_nanos(u64::MAX), ..sample() };
        assert!(record.holder().remaining.is_some());
    }
}
