//! `dlm ls`: the locks of a store.

use dlm::store::{ListedLock, LockQuery};
use dlm::{Fence, Holder, Level, LockManager};
use serde_json::json;

use crate::cli::args::{Global, Ls};
use crate::cli::exit::{CommandFailure, CommandOutcome};
use crate::cli::show::{ago, all_holders, holder_json, seconds};
use crate::cli::{exit, names, open, output};

/// `dlm ls`
pub(crate) fn ls(global: &Global, args: &Ls) -> CommandOutcome {
    let manager = open::manager(global, None, "ls")?;
    let queries = queries(&manager, args.prefix.as_deref(), args.held)?;
    open::reach(&manager, None)?;
    let mut listed = 0_u64;
    for lock in queries.iter().flat_map(|query| manager.locks(query)) {
        let lock = lock?;
        listed += 1;
        let holders = holders_of(&manager, &lock)?;
        let line =
            if global.json { output::json(as_json(&lock, &holders)) } else { as_text(&lock, &holders) };
        if !output::line_is_read(&line)? {
            return Ok(0);
        }
    }
    if listed == 0 {
        exit::to_stderr(&silence(&manager, args));
    }
    Ok(0)
}

/// Says why nothing was listed.
fn silence(manager: &LockManager, args: &Ls) -> String {
    let what = if args.held { "holds no lock" } else { "remembers no lock" };
    let store = manager.store();
    match args.prefix.as_deref() {
        None => format!("{store} {what}"),
        Some(prefix) if is_full(&unquoted(prefix)) => {
            format!("{store} {what} whose full name begins with {}", names::shown(&unquoted(prefix)))
        }
        Some(prefix) => format!(
            "{store} {what} of client {} whose name begins with {}; PREFIX of a full name, such as XDC#order-service#, \
             lists those of other clients",
            names::client_of(manager),
            names::shown(prefix)
        ),
    }
}

/// Returns the queries for the locks whose full names begin so. A prefix that no full name has is that of a name of this
/// client, at both levels.
pub(crate) fn queries(
    manager: &LockManager,
    prefix: Option<&str>,
    held: bool,
) -> Result<Vec<LockQuery>, CommandFailure> {
    let prefix = unquoted(prefix.unwrap_or_default());
    let prefixes = if is_full(&prefix) {
        vec![prefix]
    } else {
        let levels = [Level::Dc, Level::Xdc];
        // Without a farm there are no locks of level DC.
        let farm = manager.lock(&prefix, Level::Dc).is_ok();
        let levels = levels.into_iter().filter(|level| farm || *level == Level::Xdc);
        let key = |level| Ok(manager.lock(&prefix, level)?.name().key().to_owned());
        levels.map(key).collect::<Result<Vec<_>, CommandFailure>>()?
    };
    let query = |prefix: String| {
        let query = LockQuery::new().prefix(&prefix);
        if held { query.held_only() } else { query }
    };
    Ok(prefixes.into_iter().map(query).collect())
}

/// Whether full names begin so.
fn is_full(prefix: &str) -> bool {
    ["DC#", "XDC#"].iter().any(|level| prefix.starts_with(level) || level.starts_with(prefix))
}

/// Takes a whole name in the quotes in which it is printed.
fn unquoted(prefix: &str) -> String {
    names::full_name(prefix).map_or_else(|| prefix.to_owned(), |name| name.key().to_owned())
}

/// Returns all that hold a listed lock. Reads those of a lock that is not exclusive.
pub(crate) fn holders_of(manager: &LockManager, lock: &ListedLock) -> Result<Vec<Holder>, dlm::Error> {
    match &lock.name {
        Some(name) => all_holders(&manager.lock_named(name), lock.holder.as_ref()),
        None => Ok(lock.holder.iter().cloned().collect()),
    }
}

fn as_text(lock: &ListedLock, holders: &[Holder]) -> String {
    let key = named(lock);
    match holders {
        [] => format!("{key}  free"),
        holders => {
            let holders: Vec<_> = holders.iter().map(held_by).collect();
            format!("{key}  held by {}", holders.join("; and by "))
        }
    }
}

/// Returns the full name of a lock, escaped, or says which record it is.
pub(crate) fn named(lock: &ListedLock) -> String {
    match &lock.name {
        Some(name) => names::shown(name.key()),
        None => format!("(unnamed record {:?})", lock.key),
    }
}

/// Describes a holder, and since when it holds the lock.
pub(crate) fn held_by(holder: &Holder) -> String {
    let since = holder.since.map(|since| format!(", since {} ago", seconds(ago(since))));
    format!("{holder}{}", since.unwrap_or_default())
}

pub(crate) fn as_json(lock: &ListedLock, holders: &[Holder]) -> serde_json::Value {
    json!({
        "lock": lock.name.as_ref().map(|name| name.key()),
        // A record whose name is not known.
        "record": if lock.name.is_none() { Some(&lock.key) } else { None },
        "held": lock.holder.is_some(),
        "holder": lock.holder.as_ref().map(holder_json),
        "holders": holders.iter().map(holder_json).collect::<Vec<_>>(),
        "fence": lock.fence.map(|Fence(number)| number.to_string()),
        "layout": lock.layout,
    })
}
