//! Checks that a cluster accepts records with a TTL, before the first lock or latch.

use std::time::Duration;

use super::client::{BinOperation, BinValue, Client, RecordExistsAction, When, Write};
use super::keys::RecordKey;
use crate::error::Result;
use crate::names::owner::OwnerToken;
use crate::runtime::time::{self, Deadline};

/// Pause between two tries while the cluster is not ready.
const READY_POLL: Duration = Duration::from_millis(100);

/// Waits until `by` for the cluster to form. Verifies with a test record that records with a TTL can be written and
/// deleted. The store needs nothing else. The record's key is no lock's: it has no `#`.
pub(super) fn wait_until_ready(client: &Client, set: String, by: Deadline) -> Result<()> {
    let token = OwnerToken::draw()?;
    let key = token.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let record_key = RecordKey { set, key };
    let steps = [BinOperation::Put("dlm_token", BinValue::Bytes(token.as_bytes().to_vec()))];
    let write = Write {
        record_key: &record_key,
        exists: RecordExistsAction::Update,
        when: None,
        steps: &steps,
        ttl_s: 1,
    };
    loop {
        match client.write(&write, by) {
            // If the delete fails, the test record expires.
            Ok(_) => {
                return client.delete(&record_key, When::Is("dlm_token", token.as_bytes()), by).map(drop);
            }
            Err(error) if error.is_retryable() && by.remaining() > READY_POLL => time::sleep(READY_POLL),
            Err(error) => return Err(error),
        }
    }
}
