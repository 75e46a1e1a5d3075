//! `dlm doctor`: whether the store is safe for locks.

use dlm::{Diagnostic, Severity};
use serde_json::json;

use crate::cli::args::{Doctor, Global};
use crate::cli::exit::{CONFIG, CommandOutcome};
use crate::cli::{open, output, report};

/// `dlm doctor`
pub(crate) fn doctor(global: &Global, args: &Doctor) -> CommandOutcome {
    // Not reached first: a store that does not answer is a finding.
    let manager = open::manager(global, None, "doctor")?;
    let found = manager.diagnose()?;
    let worst = found.iter().map(|diagnostic| diagnostic.severity).max().unwrap_or(Severity::Ok);
    if args.report {
        output::show(&report::report(&manager, &found, global.json))?;
        return Ok(if worst == Severity::Fail { CONFIG } else { 0 });
    }
    output::show(&if global.json {
        let diagnostics: Vec<_> = found.iter().map(as_json).collect();
        output::json(json!({ "store": manager.store(), "grade": worst.to_string(), "findings": diagnostics }))
    } else {
        let lines: Vec<_> = found.iter().map(ToString::to_string).collect();
        format!("{}\n{}", manager.store(), lines.join("\n"))
    })?;
    Ok(if worst == Severity::Fail { CONFIG } else { 0 })
}

fn as_json(diagnostic: &Diagnostic) -> serde_json::Value {
    json!({
        "topic": diagnostic.topic,
        "grade": diagnostic.severity.to_string(),
        "seen": diagnostic.seen,
        "advice": diagnostic.advice,
    })
}
