//! What lies in a lock's cell `D:L`.
//!
//! | value | meaning |
//! |---|---|
//! | no cell, or an empty one | free |
//! | `M` alone | held by a client of the Java library |
//! | `M` 01 token:16 ttl_ms:u64 who | held by a client of this library |
//! | anything else | held: nobody who wrote it meant "free" |

use std::time::{Duration, UNIX_EPOCH};

use crate::error::Result;
use crate::store::{Holder, OwnerToken, Proof, Who};
use crate::time::wall_ms;

/// The Java library reads a value as "held" by this first byte.
const MARK: u8 = b'M';
const FORMAT: u8 = 1;
const TOKEN_AT: usize = 2;
const TTL_AT: usize = TOKEN_AT + OwnerToken::LEN;
const WHO_AT: usize = TTL_AT + 8;

/// The value of a free lock's cell. Written in place of a Delete, whose tombstone would hide the next
/// holder's record of the same millisecond.
pub(super) const FREE: &[u8] = b"";

/// One of our values, as bytes: comparing it with what is stored is comparing owners.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Record(Box<[u8]>);

impl Record {
    /// The record of a new attempt, with a token of its own.
    pub(super) fn draw(ttl: Duration, who: &Who) -> Result<Record> {
        let mut bytes = vec![MARK, FORMAT];
        bytes.extend_from_slice(OwnerToken::draw()?.as_bytes());
        bytes.extend_from_slice(&ttl_ms(ttl).to_be_bytes());
        who.encode_into(&mut bytes);
        Ok(Record(bytes.into()))
    }

    /// `None` for what is not a record of this library in a format it knows.
    pub(super) fn parse(value: &[u8]) -> Option<Record> {
        let ours = value.len() >= WHO_AT && value.starts_with(&[MARK, FORMAT]);
        ours.then(|| Record(value.into()))
    }

    pub(super) fn from_proof(proof: &Proof) -> Option<Record> {
        Record::parse(proof.as_bytes())
    }

    pub(super) fn to_proof(&self) -> Proof {
        Proof::from_bytes(self.0.clone())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The longest TTL any version of this record was written with. What supersedes it must not expire
    /// sooner, or the older version shows again.
    pub(super) fn ttl(&self) -> Duration {
        let bytes = self.0[TTL_AT..].first_chunk().expect("a record is at least that long");
        Duration::from_millis(u64::from_be_bytes(*bytes))
    }

    /// The same record for a lease of `ttl`, or of what it had if that was longer.
    pub(super) fn renewed(&self, ttl: Duration) -> Record {
        let mut bytes = self.0.clone();
        bytes[TTL_AT..WHO_AT].copy_from_slice(&ttl_ms(self.ttl().max(ttl)).to_be_bytes());
        Record(bytes)
    }

    /// Whether both carry one owner token: two versions of one grant.
    pub(super) fn same_owner(&self, other: &Record) -> bool {
        self.0[TOKEN_AT..TTL_AT] == other.0[TOKEN_AT..TTL_AT]
    }
}

/// What a cell's value and timestamp tell; `None` when the lock is free.
pub(super) fn holder(value: &[u8], written_ms: u64) -> Option<Holder> {
    if value == FREE {
        return None;
    }
    let since = UNIX_EPOCH + Duration::from_millis(written_ms);
    let Some(record) = Record::parse(value) else { return Some(Holder::new(None, None, Some(since))) };
    let ends_ms = written_ms.saturating_add(ttl_ms(record.ttl()));
    let remaining = Duration::from_millis(ends_ms.saturating_sub(wall_ms())).min(record.ttl());
    Some(Holder::new(Who::decode(&value[WHO_AT..]), Some(remaining), Some(since)))
}

fn ttl_ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(90);

    fn draw() -> Record {
        Record::draw(TTL, &Who::this_process("tests").unwrap()).unwrap()
    }

    #[test]
    fn the_java_library_reads_our_record_as_held() {
        assert_eq!(draw().bytes()[0], b'M');
        assert!(!draw().bytes().is_empty() && FREE.is_empty());
    }

    #[test]
    fn a_renewed_record_has_the_same_owner_and_never_a_shorter_ttl() {
        let record = draw();
        assert_eq!(record.ttl(), TTL);
        let longer = record.renewed(2 * TTL);
        assert!(longer.same_owner(&record) && longer != record);
        assert_eq!(longer.ttl(), 2 * TTL);
        assert_eq!(longer.renewed(TTL / 2).ttl(), 2 * TTL);
        assert!(!draw().same_owner(&record));
    }

    #[test]
    fn every_value_but_the_empty_one_is_held_and_none_panics() {
        assert_eq!(holder(FREE, 0), None);
        let bytes = draw().bytes().to_vec();
        for cut in 1..bytes.len() {
            assert!(holder(&bytes[..cut], 0).is_some(), "cut at {cut}");
        }
        assert_eq!(holder(b"M", 5).unwrap().who, None);
        assert_eq!(holder(b"x", u64::MAX).unwrap().who, None);
        let ours = holder(&bytes, wall_ms()).unwrap();
        assert_eq!(ours.who.unwrap().pid, std::process::id());
        assert!(ours.remaining.unwrap() <= TTL);
        assert_eq!(holder(&bytes, u64::MAX).unwrap().remaining, Some(TTL), "a stamp of the far future");
    }
}
