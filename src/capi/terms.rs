//! The terms of an acquisition, which several functions take.

use std::time::Duration;

use super::arguments::{ttl, wait, wait_without_default};
use super::cancel::dlm_cancel;
use super::failure::Outcome;
use super::process::find_optional;
use crate::AcquireOptions;

/// Reads the terms of an acquisition. `max_hold_ms`: zero if the lease is not kept alive.
pub(super) fn options(
    ttl_ms: i64,
    wait_ms: i64,
    max_hold_ms: i64,
    cancel: *const dlm_cancel,
) -> Outcome<AcquireOptions> {
    let mut how = AcquireOptions::new();
    if let Some(ttl) = ttl(ttl_ms)? {
        how = how.ttl(ttl);
    }
    if let Some(wait) = wait("wait_ms", wait_ms)? {
        how = how.wait(wait);
    }
    if max_hold_ms != 0 {
        how = how.keep(wait_without_default("max_hold_ms", max_hold_ms)?.unwrap_or(Duration::MAX));
    }
    if let Some(cancel) = find_optional(cancel)? {
        how = how.cancel(&cancel);
    }
    Ok(how)
}
