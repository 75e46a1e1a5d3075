//! The processes that wait for a lock exclusively: a record of their own, a map from the number of each wait to its end, its
//! begin and the process.
//!
//! A write to the record of the lock would move the time from which an exclusive lease counts.

use std::time::Duration;

use super::conditions::intent_max_ms;
use crate::error::Result;
use crate::names::holder::Identity;
use crate::runtime::time::Deadline;
use crate::store::aerospike::client::{
    BinOperation, BinValue, Client, Expr, FoundRecord, RecordExistsAction, Write,
};
use crate::store::aerospike::keys::{RecordKey, whole_seconds};
use crate::store::aerospike::standing::now_ms;
use crate::store::remote::StoredIntent;
use crate::store::{INTENT_MAX, Intent, IntentId};

pub(super) const INTENTS: &str = "waits";

/// Writes the intent, and removes those that have ended.
pub(super) fn announce(
    client: &Client,
    record_key: &RecordKey,
    intent: Intent<'_>,
    by: Deadline,
) -> Result<()> {
    let mut identity = Vec::new();
    intent.identity.encode_into(&mut identity);
    let (id, intents) = (Expr::int(intent.id.0 as i64), Expr::map_bin(INTENTS));
    let (first, ended) = (Expr::list(&[Expr::int(0)]), Expr::list(&[Expr::now()]));
    let end = Expr::now().plus(&Expr::int(lasts_ms(&intent)));
    let since = intents.has_key(&id).choose(&intents.list_of_key(&id).int_at(1), &Expr::now());
    let entry = Expr::list(&[end, since, Expr::bytes(&identity)]);
    let steps = [
        BinOperation::Compute(INTENTS, stored().without_values(&first, &ended)),
        BinOperation::Compute(INTENTS, intents.with_entry(&id, &entry)),
    ];
    change(client, record_key, RecordExistsAction::Update, &steps, by)
}

/// Removes the intent.
pub(super) fn withdraw(client: &Client, record_key: &RecordKey, id: IntentId, by: Deadline) -> Result<()> {
    let steps = [BinOperation::Compute(INTENTS, stored().without_key(&Expr::int(id.0 as i64)))];
    change(client, record_key, RecordExistsAction::UpdateOnly, &steps, by)
}

/// Returns how long the intent is to last, in milliseconds.
pub(super) fn lasts_ms(intent: &Intent<'_>) -> i64 {
    i64::try_from(intent.lasts.as_millis()).unwrap_or(i64::MAX).min(intent_max_ms())
}

/// Returns the intents that live, from the answers to [`STANDING_READS`](crate::store::aerospike::standing::STANDING_READS)
/// and a read of [`INTENTS`].
pub(super) fn living(found: &FoundRecord) -> Vec<StoredIntent> {
    let now = now_ms(found);
    let intent = |value: &BinValue| match value {
        BinValue::List(parts) => match parts.as_slice() {
            [BinValue::Int(end), BinValue::Int(since), BinValue::Bytes(who), ..] if *end >= now => {
                let millis = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or_default());
                let (waited, left) = (millis(now - since), Some(millis(end - now)));
                Some(StoredIntent { identity: Identity::decode(who), waited, left })
            }
            _ => None,
        },
        _ => None,
    };
    match found.bin(INTENTS) {
        Some(BinValue::Map(entries)) => entries.iter().filter_map(|(_, value)| intent(value)).collect(),
        _ => Vec::new(),
    }
}

fn stored() -> Expr {
    Expr::has_bin(INTENTS).choose(&Expr::map_bin(INTENTS), &Expr::empty_map())
}

fn change(
    client: &Client,
    record_key: &RecordKey,
    exists: RecordExistsAction,
    steps: &[BinOperation<'_>],
    by: Deadline,
) -> Result<()> {
    // The record goes when nobody waits any more.
    let ttl_s = whole_seconds(2 * INTENT_MAX);
    client.write(&Write { record_key, exists, when: None, steps, ttl_s }, by).map(drop)
}
