//! Histories of locks: a record for each lock, and one for each grant that was broken, with a map from the random number of each entry to its time and bytes.
//!
//! The map keeps the newest entries. The record expires as a whole, when nothing was added for the time that the last
//! entry should be kept.

use std::time::Duration;

use super::client::{BinOperation, BinValue, Client, RecordExistsAction, Write};
use super::keys::{history_key, whole_seconds};
use crate::error::Result;
use crate::names::history_entry::HistoryEntry;
use crate::runtime::time::Deadline;
use crate::store::history_store::newest;
use crate::store::{HISTORY_MAX, HistoryOf};

const ENTRIES: &str = "entries";

/// Adds the entry. Its key in the map belongs to it, so a repetition changes nothing.
pub(super) fn append(
    client: &Client,
    suffix: &str,
    of: HistoryOf<'_>,
    entry: &HistoryEntry,
    lasts: Duration,
    by: Deadline,
) -> Result<()> {
    let at_ms = i64::try_from(entry.at_ms).unwrap_or(i64::MAX);
    let value = BinValue::List(vec![BinValue::Int(at_ms), BinValue::Bytes(entry.encode())]);
    let steps = [
        BinOperation::MapPut(ENTRIES, BinValue::Int(entry.id as i64), value),
        BinOperation::MapKeepHighest(ENTRIES, HISTORY_MAX),
    ];
    let record_key = &history_key(of, suffix);
    let (exists, ttl_s) = (RecordExistsAction::Update, whole_seconds(lasts));
    client.write(&Write { record_key, exists, when: None, steps: &steps, ttl_s }, by).map(drop)
}

/// Reads the newest entries.
pub(super) fn entries(
    client: &Client,
    suffix: &str,
    of: HistoryOf<'_>,
    since_ms: u64,
    most: usize,
    by: Deadline,
) -> Result<Vec<HistoryEntry>> {
    let found = client.read_with_collections(&history_key(of, suffix), &[ENTRIES], by)?;
    let Some(BinValue::Map(pairs)) = found.as_ref().and_then(|found| found.bin(ENTRIES)) else {
        return Ok(Vec::new());
    };
    let entry = |value: &BinValue| match value {
        BinValue::List(parts) => match parts.as_slice() {
            [_, BinValue::Bytes(bytes)] => HistoryEntry::decode(bytes),
            _ => None,
        },
        _ => None,
    };
    Ok(newest(pairs.iter().filter_map(|(_, value)| entry(value)).collect(), since_ms, most))
}
