//! The sweep: deletes records that have expired, a few at a time.

use super::latch_codec::{Head, is_key};
use super::record::{Header, Record};
use crate::runtime::time::Moment;
use crate::store::embedded::lmdb::{Fault, Writer};

/// Checks the next `most` records after the key `swept`, deletes expired ones of locks and latches, and advances
/// `swept`. Returns whether there are no more.
pub(super) fn sweep(
    writer: &mut Writer<'_>,
    swept: &mut Vec<u8>,
    now: Moment,
    most: usize,
) -> Result<bool, Fault> {
    for _ in 0..most {
        let from = swept.as_slice().max(Header::KEY);
        let Some((key, value)) = writer.after(from)? else {
            swept.clear();
            return Ok(true);
        };
        // A record that cannot be decoded is not deleted.
        let expired = if is_key(key) {
            Head::decode(value).is_some_and(|(head, _)| !head.is_live(now))
        } else {
            Record::decode(value).is_some_and(|record| !record.is_live(now))
        };
        *swept = key.to_vec();
        if expired {
            writer.delete(swept)?;
        }
    }
    Ok(false)
}
