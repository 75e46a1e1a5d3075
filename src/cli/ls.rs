//! `dlm ls`: the locks of a store.

use std::io::ErrorKind;

use dlm::{Fence, Holder, ListedLock, LockQuery};
use serde_json::json;

use crate::cli::args::{Global, Ls};
use crate::cli::exit::{CommandFailure, CommandOutcome};
use crate::cli::show::{ago, holder_json, seconds};
use crate::cli::{open, output};

/// `dlm ls`
pub(crate) fn ls(global: &Global, args: &Ls) -> CommandOutcome {
    let manager = open::manager(global, None, "ls")?;
    for lock in manager.locks(&query(args.prefix.as_deref(), args.held)) {
        let lock = lock?;
        let line = if global.json { as_json(&lock).to_string() } else { as_text(&lock) };
        match output::line(&line) {
            // The reader needs no more.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(0),
            Err(error) => {
                let what = format!("standard output cannot be written: {error}; check where it goes");
                return Err(CommandFailure::internal(what));
            }
            Ok(()) => {}
        }
    }
    Ok(0)
}

/// Returns the query for locks whose full names begin so.
pub(crate) fn query(prefix: Option<&str>, held: bool) -> LockQuery {
    let query = LockQuery::new().prefix(prefix.unwrap_or_default());
    if held { query.held_only() } else { query }
}

fn as_text(lock: &ListedLock) -> String {
    let key = named(lock);
    match &lock.holder {
        None => format!("{key}  free"),
        Some(holder) => format!("{key}  held by {}", held_by(holder)),
    }
}

/// Returns the full name of a lock, escaped, or says which record it is.
pub(crate) fn named(lock: &ListedLock) -> String {
    match &lock.name {
        Some(name) => name.to_string(),
        None => format!("(unnamed record {:?})", lock.key),
    }
}

/// Describes a holder, and since when it holds the lock.
pub(crate) fn held_by(holder: &Holder) -> String {
    let since = holder.since.map(|since| format!(", since {} ago", seconds(ago(since))));
    format!("{holder}{}", since.unwrap_or_default())
}

pub(crate) fn as_json(lock: &ListedLock) -> serde_json::Value {
    json!({
        "lock": lock.key,
        "named": lock.name.is_some(),
        "held": lock.holder.is_some(),
        "holder": lock.holder.as_ref().map(holder_json),
        "fence": lock.fence.map(|Fence(number)| number.to_string()),
        "layout": lock.layout,
    })
}
