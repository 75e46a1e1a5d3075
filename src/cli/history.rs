//! `dlm history` and `dlm why`: what happened to a lock.

use std::time::{Duration, SystemTime};

use dlm::store::Identity;
use dlm::{Fence, HistoryEntry, HistoryKind, Holder, Mode, Waiters, WaitingProcess};
use serde_json::{Value, json};

use crate::cli::args::{Global, HistoryArgs, Why};
use crate::cli::exit::CommandOutcome;
use crate::cli::ls::held_by;
use crate::cli::show::{ago, all_holders, holder_json, seconds};
use crate::cli::{names, open, output};

/// Most entries that are read.
const ENTRIES: usize = 256;
/// The holds that `dlm why` shows.
const HOLDS: usize = 10;

/// `dlm history`
pub(crate) fn history(global: &Global, args: &HistoryArgs) -> CommandOutcome {
    let manager = open::manager(global, None, "history")?;
    let lock = open::named_lock(&manager, global, &args.lock)?;
    let since = args.since.and_then(|since| SystemTime::now().checked_sub(since));
    let mut entries = lock.history(since, ENTRIES)?;
    // The newest last, as in a log.
    entries.reverse();
    for entry in &entries {
        let line = if global.json {
            output::json(entry_json(entry))
        } else {
            format!("{} ago  {entry}", seconds(ago(entry.at())))
        };
        output::show(&line)?;
    }
    Ok(0)
}

/// `dlm why`
pub(crate) fn why(global: &Global, args: &Why) -> CommandOutcome {
    let manager = open::manager(global, None, "why")?;
    let lock = open::named_lock(&manager, global, &args.lock)?;
    let found = lock.inspect()?;
    let holders = all_holders(&lock, found.holder.as_ref())?;
    let waiters = manager.waiting(found.holder.as_slice())?.pop().flatten();
    let entries = lock.history(None, ENTRIES)?;
    // A change of mode ends the hold in the mode before.
    let is_end = |entry: &&HistoryEntry| {
        matches!(entry.kind, HistoryKind::Released | HistoryKind::Lost | HistoryKind::ModeChanged)
    };
    let holds: Vec<_> = entries.iter().filter(is_end).take(HOLDS).collect();
    let waits: Vec<Duration> = entries
        .iter()
        .filter(|entry| entry.kind == HistoryKind::Acquired)
        .filter_map(|entry| entry.took)
        .take(HOLDS)
        .collect();
    output::show(&if global.json {
        output::json(json!({
            "lock": lock.name().key(),
            "holder": found.holder.as_ref().map(holder_json),
            "holders": holders.iter().map(holder_json).collect::<Vec<_>>(),
            "fence": found.fence.map(|Fence(number)| number.to_string()),
            "waiting": waiters.as_ref().map(waiting_json),
            "holds": holds.iter().map(|entry| entry_json(entry)).collect::<Vec<_>>(),
            "waits_ms": waits.iter().copied().map(millis).collect::<Vec<_>>(),
        }))
    } else {
        let mut lines = vec![format!("lock  {}", names::shown(lock.name().key()))];
        lines.push(format!("state {}", holders.first().map_or_else(|| "free".into(), held)));
        lines.extend(holders.iter().skip(1).map(|holder| format!("also  {}", held(holder))));
        if found.holder.is_some() {
            lines.extend(waiting(waiters.as_ref()).into_iter().map(|line| format!("waits {line}")));
        }
        lines.extend(waits.iter().max().map(|longest| {
            format!("waits the last {} grants were waited for up to {}", waits.len(), seconds(*longest))
        }));
        lines.extend(holds.iter().map(|entry| format!("hold  {} ago: {entry}", seconds(ago(entry.at())))));
        if entries.is_empty() {
            lines.push("hold  no history: open the managers of its holders with history=7d".into());
        }
        lines.join("\n")
    })?;
    Ok(0)
}

/// Says who waits, by what the holder has answered.
fn waiting(waiters: Option<&Waiters>) -> Vec<String> {
    let Some(waiters) = waiters else {
        return vec!["unknown: the holder has notices off, or cannot be reached from here".into()];
    };
    let mut lines = Vec::new();
    match waiters.threads {
        0 => {}
        1 => {
            lines.push(format!("1 thread of the holder's process, since {}", seconds(waiters.threads_waited)))
        }
        count => lines.push(format!(
            "{count} threads of the holder's process, the first since {}",
            seconds(waiters.threads_waited)
        )),
    }
    for WaitingProcess { endpoint, waited, .. } in &waiters.processes {
        lines.push(format!("the process at {endpoint}, since {}", seconds(*waited)));
    }
    if lines.is_empty() {
        lines.push("nobody with notices".into());
    }
    lines
}

fn waiting_json(waiters: &Waiters) -> Value {
    let process = |process: &WaitingProcess| json!({ "endpoint": process.endpoint.to_string(), "waited_ms": millis(process.waited) });
    json!({
        "threads": waiters.threads,
        "threads_waited_ms": millis(waiters.threads_waited),
        "processes": waiters.processes.iter().map(process).collect::<Vec<_>>(),
    })
}

fn held(holder: &Holder) -> String {
    format!("held by {}", held_by(holder))
}

fn entry_json(entry: &HistoryEntry) -> Value {
    json!({
        "kind": entry.kind.name(),
        "mode": entry.mode.name(),
        "mode_before": entry.mode_before.map(Mode::name),
        "at_ms": entry.at_ms,
        "fence": entry.fence.map(|Fence(number)| number.to_string()),
        "took_ms": entry.took.map(millis),
        "text": entry.text,
        "by": identity_json(&entry.by),
        "victim": entry.victim.as_ref().map(identity_json),
    })
}

fn identity_json(identity: &Identity) -> Value {
    json!({ "host": identity.host, "pid": identity.pid, "purpose": identity.purpose })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
