//! The processes that wait for a latch, as a record beside the record of the latch. Integers are big-endian.
//!
//! | part | bytes |
//! |---|---|
//! | head | the head of a latch's record: version `1`, end of the last note, zero (8 each), no farms (2) |
//! | each note | end (8), random bits (8), endpoint |
//!
//! The record begins like that of a latch, so the sweep deletes it when the last note has ended. Versions of this
//! library that know no such notes delete it too.

use super::latch_codec::{self, Head, PREFIX};
use super::record::number;
use crate::names::latch_name::LatchName;
use crate::names::notice_endpoint::{LatchListener, NoticeEndpoint};
use crate::runtime::time::Moment;
use crate::store::latch_record::LatchRecord;
use crate::store::latch_record::listener_set::ListenerSet;

/// Returns the key `LATCH#` NUL `<client>#<id>`. No client id contains a NUL.
pub(super) fn key(name: &LatchName) -> Vec<u8> {
    [PREFIX, b"\0", name.client().as_bytes(), b"#", name.id().as_bytes()].concat()
}

pub(super) fn encode(set: &ListenerSet) -> Vec<u8> {
    let mut out = latch_codec::encode(&LatchRecord { ends: set.ends(), ..LatchRecord::absent() });
    for (ends, listener) in set.notes() {
        out.extend_from_slice(&ends.as_nanos().to_be_bytes());
        out.extend_from_slice(&listener.nonce.to_be_bytes());
        listener.endpoint.encode_into(&mut out);
    }
    out
}

pub(super) fn decode(bytes: &[u8], now: Moment) -> Option<ListenerSet> {
    let (_, mut rest) = Head::decode(bytes)?;
    let mut set = ListenerSet::default();
    while !rest.is_empty() {
        let (ends, after) = number(rest)?;
        let (nonce, after) = number(after)?;
        let (endpoint, after) = NoticeEndpoint::split(after)?;
        set.note(LatchListener { endpoint, nonce }, Moment::from_nanos(ends), now);
        rest = after;
    }
    Some(set)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::names::lock_name::NamePolicy;
    use crate::store::latch_store::LISTENERS_MAX;

    fn listener(number: u64) -> LatchListener {
        LatchListener { endpoint: NoticeEndpoint::Local(number), nonce: !number }
    }

    #[test]
    fn notes_are_read_back_and_a_cut_record_is_refused_or_shorter() {
        let now = Moment::now();
        let mut set = ListenerSet::default();
        for number in 0..LISTENERS_MAX as u64 {
            set.note(listener(number), now.after(Duration::from_secs(1 + number)), now);
        }
        let bytes = encode(&set);
        assert_eq!(decode(&bytes, now), Some(set.clone()));
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut], now).is_none_or(|read| read != set), "cut at {cut}");
        }
    }

    /// Earlier versions take the record for that of a latch without counts, and delete it at its end.
    #[test]
    fn the_record_begins_like_that_of_a_latch_and_has_a_key_of_its_own() {
        let now = Moment::now();
        let mut set = ListenerSet::default();
        set.note(listener(1), now.after(Duration::from_secs(2)), now);
        let bytes = encode(&set);
        let (head, _) = Head::decode(&bytes).unwrap();
        assert!(head.is_live(now) && !head.is_live(now.after(Duration::from_secs(2))));
        assert!(head.counts.is_empty());
        let name = LatchName::new("a", "dc1", "b", NamePolicy::Compat).unwrap();
        assert!(latch_codec::is_key(&key(&name)) && key(&name) != latch_codec::key(&name));
    }
}
