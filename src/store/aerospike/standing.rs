//! What the record of a lock says, in each layout.

use std::time::Duration;

use super::client::{BinOperation, BinValue, FoundRecord};
use super::keys::{BASE, is_updated, java_bins, own_bins};
use crate::names::mode::Mode;
use crate::names::owner::OwnerToken;
use crate::store::remote::{Found, Record, Standing};

/// The name of an answer: milliseconds since the record was written.
const AGE_MS: &str = "age_ms";
/// The name of an answer: when the record was written, in nanoseconds since 1970.
const WRITTEN_NS: &str = "written_ns";
/// What a read of a lock asks for.
pub(super) const STANDING_READS: [BinOperation<'static>; 7] = [
    BinOperation::Read(own_bins::TOKEN),
    BinOperation::Read(own_bins::LASTS_MS),
    BinOperation::Read(own_bins::FENCE),
    BinOperation::Read(own_bins::WHO),
    BinOperation::ReadAge(AGE_MS),
    BinOperation::ReadWritten(WRITTEN_NS),
    BinOperation::Read(own_bins::HOLDS),
];

/// Returns the state of a lock with this record of the layout `java`. Any record means that the lock is held.
pub(super) fn java(found: &FoundRecord) -> Standing {
    Standing::Held(java_record(found))
}

/// Describes a record of the layout `java`.
pub(super) fn java_record(found: &FoundRecord) -> Found {
    // In a lock of level XDC the name of this bin may begin with the holder's farm.
    let updated =
        found.bins.iter().find(|(bin, _)| is_updated(bin)).and_then(|(_, bin_value)| match bin_value {
            BinValue::Int(ms) => u64::try_from(*ms).ok(),
            _ => None,
        });
    let token =
        found.bytes(java_bins::TOKEN).and_then(|bytes| bytes.try_into().ok()).map(OwnerToken::from_bytes);
    let left = found.left;
    let record = token.map(|token| {
        Record::of_parts(&token, left.unwrap_or_default(), found.bytes(java_bins::WHO).unwrap_or_default())
    });
    Found { record, written_ms: updated, left, beneath: None }
}

/// Returns the state of a lock with these answers to [`STANDING_READS`]: of several holds the one that ends last.
pub(super) fn own(found: &FoundRecord) -> Standing {
    let last = holds(found).into_iter().max_by_key(|found| found.left);
    last.map_or(Standing::Free, Standing::Held)
}

/// Returns the holds of a lock with these answers to [`STANDING_READS`].
pub(super) fn holds(found: &FoundRecord) -> Vec<Found> {
    let age_ms = found.int(AGE_MS).unwrap_or_default();
    let Some(lasts_ms) = found.int(own_bins::LASTS_MS) else {
        // A record of the layout `java`.
        return vec![Found { left: found.left, ..Found::default() }];
    };
    if age_ms > lasts_ms {
        return Vec::new();
    }
    // The record may be from the future, if another node's clock is ahead.
    let left = millis(lasts_ms - age_ms).min(millis(lasts_ms));
    let number = found.int(own_bins::FENCE).and_then(|number| u64::try_from(number).ok()).unwrap_or_default();
    let token = found.bytes(own_bins::TOKEN);
    if token != Some(BASE.as_slice()) {
        let token = token.and_then(|bytes| bytes.try_into().ok()).map(OwnerToken::from_bytes);
        let record = token.map(|token| {
            Record::of_parts(&token, millis(lasts_ms), found.bytes(own_bins::WHO).unwrap_or_default())
                .numbered(number)
        });
        return vec![Found::lasting(record, left)];
    }
    let entries = match found.bin(own_bins::HOLDS) {
        Some(BinValue::Map(entries)) => entries.as_slice(),
        _ => &[],
    };
    let now = now_ms(found);
    let holds: Vec<_> =
        entries.iter().filter_map(|(key, value)| hold((key, value), now, number, left)).collect();
    // A base without a hold that this version can see is that of a kind to come.
    if holds.is_empty() { vec![Found { left: Some(left), ..Found::default() }] } else { holds }
}

/// Returns whether a turn of the readers lasts, by these answers to [`STANDING_READS`] and a read of its bin.
pub(super) fn has_turn(found: &FoundRecord) -> bool {
    found.int(own_bins::TURN).is_some_and(|end| end >= now_ms(found))
}

/// Returns the time of the answers to [`STANDING_READS`], by the server's clock, in milliseconds since 1970.
pub(super) fn now_ms(found: &FoundRecord) -> i64 {
    found.int(WRITTEN_NS).unwrap_or_default() / 1_000_000 + found.int(AGE_MS).unwrap_or_default()
}

/// Returns an entry that lives, without a record if it is of an unknown kind. `base`: how long the record lasts.
fn hold((key, value): (&BinValue, &BinValue), now: i64, number: u64, base: Duration) -> Option<Found> {
    let unknown = |left| Some(Found { left: Some(left), ..Found::default() });
    let BinValue::List(parts) = value else { return unknown(base) };
    let Some(BinValue::Int(end)) = parts.first() else { return unknown(base) };
    if *end < now {
        return None;
    }
    let left = millis(end - now);
    let mode = match key {
        BinValue::Bytes(key) => key.split_first().and_then(|(code, token)| {
            let mode = Mode::from_code(*code).filter(|mode| *mode != Mode::Exclusive)?;
            Some((mode, OwnerToken::from_bytes(token.try_into().ok()?)))
        }),
        _ => None,
    };
    let int = |at: usize| match parts.get(at) {
        Some(BinValue::Int(number)) => Some(*number),
        _ => None,
    };
    // Of a permit its number and its fence.
    let of_permit = || Some((u8::try_from(int(3)?).ok()?, u64::try_from(int(4)?).ok()?));
    let (place, number) = match mode {
        Some((Mode::Permit, _)) => match of_permit() {
            Some(of_permit) => of_permit,
            None => return unknown(left),
        },
        _ => (0, number),
    };
    match (mode, parts.get(1), parts.get(2)) {
        (Some((mode, token)), Some(BinValue::Int(lasts_ms)), Some(BinValue::Bytes(who))) => {
            let record =
                Record::of_parts(&token, millis(*lasts_ms), who).numbered(number).placed(mode, place);
            Some(Found::lasting(Some(record), left))
        }
        _ => unknown(left),
    }
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}
