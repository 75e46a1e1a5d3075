//! `dlm show` and `dlm init`.

use std::time::{Duration, SystemTime};

use dlm::store::Inspection;
use dlm::{Fence, Holder, Lock, LockManager, LockName, Mode};
use serde_json::json;

use crate::cli::args::{self, Global, LockArg};
use crate::cli::exit::CommandOutcome;
use crate::cli::{names, open, output};

/// `dlm show`
pub(crate) fn show(global: &Global, args: &args::Show) -> CommandOutcome {
    let manager = open::manager(global, None, "show")?;
    let lock = open::named_lock(&manager, global, &args.lock)?;
    let mut found = lock.inspect()?;
    let holders = all_holders(&lock, found.holder.as_ref())?;
    // One of several is described in full only among all.
    found.holder = holders.first().cloned();
    output::show(&if global.json {
        output::json(as_json(lock.name(), &found, &holders))
    } else {
        let mut text = as_text(lock.name(), &found, &holders);
        if let (None, Some(note)) = (&found.holder, note(&manager, global, &args.lock)) {
            text += &format!("\nnote  {note}");
        }
        text
    })?;
    Ok(0)
}

/// Says of a free lock which other lock may have been meant.
fn note(manager: &LockManager, global: &Global, named: &LockArg) -> Option<String> {
    let client = names::client_of(manager);
    if names::full_name(&named.name).is_none() {
        let is_default = global.client.is_none() && !open::in_uri(&global.store, "client");
        return is_default.then(|| {
            format!("the lock of client {client}, the default; `dlm ls` lists the locks of all clients")
        });
    }
    if named.full {
        return None;
    }
    // An id may look like a full name.
    let own = manager.lock(&named.name, open::lock_level(global, named.level).ok()?).ok()?;
    Some(format!(
        "read as a full name; a lock of client {client} that is called so is {}",
        names::shown(own.name().key())
    ))
}

/// `dlm init`
pub(crate) fn init(global: &Global, args: &args::Init) -> CommandOutcome {
    let mut builder = open::builder(global, "init");
    if let Some(layout) = &args.layout {
        builder = builder.option("layout", layout);
    }
    let manager = builder.open()?;
    open::reach(&manager, None)?;
    manager.initialize()?;
    if args.latches {
        manager.initialize_latches()?;
    }
    let store = manager.store();
    output::show(&if global.json {
        output::json(json!({ "store": store }))
    } else {
        format!("{store} is ready")
    })?;
    Ok(0)
}

/// Returns all that hold a lock, of which one is known.
pub(crate) fn all_holders(lock: &Lock, known: Option<&Holder>) -> Result<Vec<Holder>, dlm::Error> {
    // Several only if they are not exclusive.
    let several = match known {
        Some(holder) if holder.mode != Mode::Exclusive => lock.holders()?,
        _ => Vec::new(),
    };
    // All may have gone in the meantime.
    Ok(if several.is_empty() { known.cloned().into_iter().collect() } else { several })
}

fn as_text(name: &LockName, found: &Inspection, holders: &[Holder]) -> String {
    let mut rows = vec![("lock", names::shown(name.key()))];
    match &found.holder {
        None => rows.push(("state", "free".into())),
        Some(holder) => {
            rows.push(("state", "held".into()));
            if holder.mode != Mode::Exclusive {
                let permit = holder.permit.map(|permit| format!(" {permit}")).unwrap_or_default();
                rows.push(("mode", format!("{}{permit}", holder.mode)));
            }
            let identity = holder.identity.as_ref().map(ToString::to_string);
            rows.push(("by", identity.unwrap_or_else(|| "a client that does not identify itself".into())));
            if let Some(since) = holder.since {
                rows.push(("since", format!("{} ago", seconds(ago(since)))));
            }
            if let Some(left) = holder.remaining {
                rows.push(("left", format!("{}, unless renewed", seconds(left))));
            }
            rows.extend(holders.iter().skip(1).map(|holder| ("also", holder.to_string())));
        }
    }
    if let Some(Fence(fence)) = found.fence {
        rows.push(("fence", fence.to_string()));
    }
    if let Some(layout) = found.layout {
        rows.push(("kept", format!("in the layout {layout}")));
    }
    rows.iter().map(|(key, value)| format!("{key:<6}{value}")).collect::<Vec<_>>().join("\n")
}

fn as_json(name: &LockName, found: &Inspection, holders: &[Holder]) -> serde_json::Value {
    json!({
        "lock": name.key(),
        "held": found.holder.is_some(),
        "holder": found.holder.as_ref().map(holder_json),
        "holders": holders.iter().map(holder_json).collect::<Vec<_>>(),
        "fence": found.fence.map(|Fence(number)| number.to_string()),
        "layout": found.layout,
    })
}

pub(crate) fn holder_json(holder: &Holder) -> serde_json::Value {
    let identity = holder.identity.as_ref();
    json!({
        "host": identity.map(|identity| &identity.host),
        "pid": identity.map(|identity| identity.pid),
        "purpose": identity.map(|identity| &identity.purpose),
        "mode": holder.mode.name(),
        "permit": holder.permit,
        "since_ms": holder.since.map(since_ms),
        "remaining_ms": holder.remaining.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
    })
}

fn since_ms(since: SystemTime) -> u64 {
    let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time since `since`. The clocks of two machines may differ: a time in the future counts as now.
pub(crate) fn ago(since: SystemTime) -> Duration {
    SystemTime::now().duration_since(since).unwrap_or_default()
}

pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
