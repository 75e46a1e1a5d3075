//! `dlm doctor`: whether the store does for locks.

use dlm::{Finding, Grade};
use serde_json::json;

use crate::cli::Global;
use crate::exit::{CONFIG, Outcome};
use crate::{open, output};

/// `dlm doctor`
pub(crate) fn doctor(global: &Global) -> Outcome {
    let manager = open::manager(global, None, "doctor")?;
    let found = manager.examine()?;
    let worst = found.iter().map(|finding| finding.grade).max().unwrap_or(Grade::Ok);
    output::show(&if global.json {
        let findings: Vec<_> = found.iter().map(as_json).collect();
        json!({ "store": manager.store(), "grade": worst.to_string(), "findings": findings }).to_string()
    } else {
        let lines: Vec<_> = found.iter().map(ToString::to_string).collect();
        format!("{}\n{}", manager.store(), lines.join("\n"))
    })?;
    Ok(if worst == Grade::Fail { CONFIG } else { 0 })
}

fn as_json(finding: &Finding) -> serde_json::Value {
    json!({
        "topic": finding.topic,
        "grade": finding.grade.to_string(),
        "seen": finding.seen,
        "advice": finding.advice,
    })
}
