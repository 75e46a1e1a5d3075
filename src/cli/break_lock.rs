//! `dlm break`: takes a lock from its holder, or from one of its holders.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use dlm::{Broken, Fence, Holder, Inspected, LockName};
use serde_json::json;

use crate::cli::args::{Break, Global};
use crate::cli::exit::{CommandFailure, CommandOutcome, UNAVAILABLE};
use crate::cli::ls::held_by;
use crate::cli::show::holder_json;
use crate::cli::{open, output};

/// A hold that was seen.
struct SeenHold {
    hold: Inspected,
    holder: Holder,
}

/// `dlm break`
pub(crate) fn break_lock(global: &Global, args: &Break) -> CommandOutcome {
    let manager = open::manager(global, None, "break")?;
    let lock = open::named_lock(&manager, global, &args.lock)?;
    let seen: Vec<SeenHold> = lock.inspected_holds()?.into_iter().filter_map(SeenHold::new).collect();
    if seen.is_empty() {
        let text = format!("lock {} is free", lock.name());
        output::show(&if global.json {
            output::json(json!({ "lock": lock.name().key(), "broken": false, "held": false }))
        } else {
            text
        })?;
        return Ok(0);
    }
    let held = seen.len();
    let chosen = chosen(lock.name(), seen, args)?;
    if !args.yes {
        let holders: Vec<_> = chosen.iter().map(|seen| held_by(&seen.holder)).collect();
        confirm(&format!("lock {} is held by {}", lock.name(), holders.join(",\n  and by ")))?;
    }
    let others = held - chosen.len();
    let (mut broken, mut failed) = (Vec::new(), None);
    for SeenHold { hold, holder } in chosen {
        match hold.break_holder(&args.reason) {
            Ok(answer) => broken.extend(answer.map(|answer| (holder, answer))),
            // What was broken before is shown.
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    if !broken.is_empty() {
        let is_lone = held == 1;
        output::show(&if global.json {
            as_json(lock.name(), &broken)
        } else {
            as_text(lock.name(), &broken, is_lone, others)
        })?;
    }
    match failed {
        Some(error) => Err(error.into()),
        None if broken.is_empty() => {
            let what = "the holder that was shown has gone; nothing was broken; see `dlm show`";
            Err(CommandFailure::new(UNAVAILABLE, what))
        }
        None => Ok(0),
    }
}

impl SeenHold {
    fn new(hold: Inspected) -> Option<SeenHold> {
        let holder = hold.inspection().holder.clone()?;
        Some(SeenHold { hold, holder })
    }

    fn is_of(&self, pid: u32, host: &str) -> bool {
        self.holder.identity.as_ref().is_some_and(|it| it.pid == pid && it.host == host)
    }
}

/// Returns the holds to break.
fn chosen(name: &LockName, seen: Vec<SeenHold>, args: &Break) -> Result<Vec<SeenHold>, CommandFailure> {
    let list = |seen: &[SeenHold]| {
        let line = |SeenHold { holder, .. }: &SeenHold| {
            let by =
                holder.identity.as_ref().map(|it| format!("--holder {}@{}", it.pid, it.host.escape_debug()));
            format!("\n  {}  {}", by.unwrap_or_else(|| "--all".into()), held_by(holder))
        };
        seen.iter().map(line).collect::<String>()
    };
    match &args.holder {
        Some(process) => {
            let (chosen, others): (Vec<_>, Vec<_>) =
                seen.into_iter().partition(|seen| seen.is_of(process.pid, &process.host));
            if chosen.is_empty() {
                let what = format!(
                    "pid {} on {} does not hold lock {name}; nothing was broken; these do:{}",
                    process.pid,
                    process.host.escape_debug(),
                    list(&others)
                );
                return Err(CommandFailure::new(UNAVAILABLE, what));
            }
            Ok(chosen)
        }
        None if seen.len() > 1 && !args.all => Err(CommandFailure::usage(format!(
            "lock {name} has {} holds; choose those of one process with --holder, or all with --all:{}",
            seen.len(),
            list(&seen)
        ))),
        None => Ok(seen),
    }
}

fn as_json(name: &LockName, broken: &[(Holder, Broken)]) -> String {
    output::json(json!({
        "lock": name.key(),
        "broken": true,
        "held": true,
        "holder": broken.first().map(|(holder, _)| holder_json(holder)),
        "holders": broken.iter().map(|(holder, _)| holder_json(holder)).collect::<Vec<_>>(),
        "fence": fence(broken),
        "recorded": broken.iter().all(|(_, broken)| broken.is_recorded),
    }))
}

fn as_text(name: &LockName, broken: &[(Holder, Broken)], is_lone: bool, others: usize) -> String {
    let line = |(holder, _): &(Holder, Broken)| match is_lone {
        true => format!("lock {name} was broken; it was held by {holder}"),
        false => format!("a hold of lock {name} was broken: that of {holder}"),
    };
    let mut lines: Vec<_> = broken.iter().map(line).collect();
    match others {
        0 => {}
        1 => lines.push("one other hold goes on".into()),
        _ => lines.push(format!("{others} other holds go on")),
    }
    if let Some(fence) = fence(broken) {
        lines.push(format!("fence {fence} shuts out the old holder at receivers that compare fences"));
    }
    if broken.iter().any(|(_, broken)| !broken.is_recorded) {
        lines.push("the history of the lock has no entry for this: the store keeps none, or failed".into());
    }
    lines.join("\n")
}

/// Returns the fence that shuts out the old holders: the last break found the lock free.
fn fence(broken: &[(Holder, Broken)]) -> Option<String> {
    broken.last()?.1.fence.map(|Fence(number)| number.to_string())
}

/// Asks whether to go on.
fn confirm(what: &str) -> Result<(), CommandFailure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        let line = format!("{what}; break it with --yes: there is no terminal to ask");
        return Err(CommandFailure::usage(line));
    }
    let mut answer = String::new();
    let asked =
        write!(std::io::stderr(), "{what}\nIt may go on working until it notices. Break the lock? [y/N] ")
            .and_then(|()| stdin.lock().read_line(&mut answer));
    match asked {
        Ok(_) if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) => Ok(()),
        _ => Err(CommandFailure::new(UNAVAILABLE, "nothing was broken")),
    }
}
