//! `dlm break`: takes a lock from its holder.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use dlm::Fence;
use serde_json::json;

use crate::cli::args::{Break, Global};
use crate::cli::exit::{CommandFailure, CommandOutcome, UNAVAILABLE};
use crate::cli::ls::held_by;
use crate::cli::show::holder_json;
use crate::cli::{open, output};

/// `dlm break`
pub(crate) fn break_lock(global: &Global, args: &Break) -> CommandOutcome {
    let manager = open::manager(global, None, "break")?;
    let lock = open::named_lock(&manager, global, &args.lock)?;
    let seen = lock.inspected()?;
    let Some(holder) = &seen.inspection().holder else {
        let text = format!("lock {} is free", lock.name());
        output::show(&if global.json {
            output::json(json!({ "lock": lock.name().key(), "broken": false, "held": false }))
        } else {
            text
        })?;
        return Ok(0);
    };
    if !args.yes {
        confirm(&format!("lock {} is held by {}", lock.name(), held_by(holder)))?;
    }
    let Some(broken) = seen.break_holder(&args.reason)? else {
        let what = "the holder that was shown has gone; nothing was broken; see `dlm show`";
        return Err(CommandFailure::new(UNAVAILABLE, what));
    };
    let fence = broken.fence.map(|Fence(number)| number.to_string());
    output::show(&if global.json {
        output::json(json!({
            "lock": lock.name().key(),
            "broken": true,
            "held": true,
            "holder": holder_json(holder),
            "fence": fence,
            "recorded": broken.is_recorded,
        }))
    } else {
        let mut lines = vec![format!("lock {} was broken; it was held by {holder}", lock.name())];
        if let Some(fence) = fence {
            lines.push(format!("fence {fence} shuts out the old holder at receivers that compare fences"));
        }
        if !broken.is_recorded {
            lines.push(
                "the history of the lock has no entry for this: the store keeps none, or failed".into(),
            );
        }
        lines.join("\n")
    })?;
    Ok(0)
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
