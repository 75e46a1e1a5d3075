//! What the record of a lock says, in each layout.

use std::time::Duration;

use super::client::{BinOperation, BinValue, FoundRecord};
use super::keys::{is_updated, java_bins, own_bins};
use crate::names::owner::OwnerToken;
use crate::store::remote::{Found, Record, Standing};

/// The name of an answer: milliseconds since the record was written.
const AGE_MS: &str = "age_ms";
/// What a read of a lock asks for.
pub(super) const STANDING_READS: [BinOperation<'static>; 5] = [
    BinOperation::Read(own_bins::TOKEN),
    BinOperation::Read(own_bins::LASTS_MS),
    BinOperation::Read(own_bins::FENCE),
    BinOperation::Read(own_bins::WHO),
    BinOperation::ReadAge(AGE_MS),
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

/// Returns the state of a lock with these answers to [`STANDING_READS`].
pub(super) fn own(found: &FoundRecord) -> Standing {
    let age_ms = found.int(AGE_MS).unwrap_or_default();
    let Some(lasts_ms) = found.int(own_bins::LASTS_MS) else {
        // A record of the layout `java`.
        return Standing::Held(Found { left: found.left, ..Found::default() });
    };
    if age_ms > lasts_ms {
        return Standing::Free;
    }
    let millis = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or_default());
    let token =
        found.bytes(own_bins::TOKEN).and_then(|bytes| bytes.try_into().ok()).map(OwnerToken::from_bytes);
    let record = token.map(|token| {
        let number =
            found.int(own_bins::FENCE).and_then(|number| u64::try_from(number).ok()).unwrap_or_default();
        Record::of_parts(&token, millis(lasts_ms), found.bytes(own_bins::WHO).unwrap_or_default())
            .numbered(number)
    });
    // The record may be from the future, if another node's clock is ahead.
    let left = millis(lasts_ms - age_ms).min(millis(lasts_ms));
    Standing::Held(Found::lasting(record, left))
}
