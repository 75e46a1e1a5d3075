//! Whether a version of HBase, and its clock, are safe for locks.

use std::time::Duration;

use super::cell_store::{CellStore, CheckAndPut, Durability};
use super::layout::{FREE, LOCK};
use crate::diagnostic::Diagnostic;
use crate::error::Result;
use crate::time::{Deadline, wall_ms};

/// The stamp that a server puts on an empty cell, against our clock.
pub(super) fn diagnose_clocks(rows: &dyn CellStore, by: Deadline) -> Result<Diagnostic> {
    const TTL: Duration = Duration::from_secs(60);
    // No lock's row: those begin with a hash byte and go on with DC# or XDC#.
    let row = b"?doctor";
    let before_ms = wall_ms();
    let swap = CheckAndPut {
        row,
        column: LOCK,
        expected: FREE,
        value: FREE,
        ttl: TTL,
        durability: Durability::Async,
        parts: 1,
    };
    rows.check_and_put(&swap, by)?;
    let took = Duration::from_millis(wall_ms().saturating_sub(before_ms));
    let stamp_ms = rows.get(row, LOCK, by)?.map_or(before_ms, |cell| cell.written_ms);
    Ok(Diagnostic::clocks(Duration::from_millis(stamp_ms.abs_diff(before_ms)), took))
}

/// Tested are 2.4 to 2.6; a master before 2.3 does not say where the regions are.
pub(super) fn diagnose_version(version: &str) -> Diagnostic {
    let mut numbers = version.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let seen = format!("HBase {version}");
    match (numbers.next(), numbers.next()) {
        (Some(2), Some(4..)) => Diagnostic::ok("version", seen),
        (Some(..=2), Some(_)) => {
            Diagnostic::warn("version", seen, "use 2.4 or later: latches need conditions that came with it")
        }
        _ => Diagnostic::warn(
            "version",
            seen,
            "this library was tested with 2.4 to 2.6: try it before you rely on it",
        ),
    }
}
