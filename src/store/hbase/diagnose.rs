//! Checks whether the HBase version and a server's clock are safe for locks.

use std::time::Duration;

use super::cell_store::{CellStore, CheckAndPut, Durability};
use super::layout::{FREE, LOCK};
use crate::diagnostic::Diagnostic;
use crate::error::Result;
use crate::time::{Deadline, wall_ms};

/// Writes an empty cell and compares the server's timestamp of that cell with the clock of this machine.
pub(super) fn diagnose_clocks(rows: &dyn CellStore, by: Deadline) -> Result<Diagnostic> {
    const TTL: Duration = Duration::from_secs(60);
    // Not the row of a lock. Those have a hash byte, then DC# or XDC#.
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

/// Rates the HBase version. Versions 2.4 to 2.6 are tested. A master before 2.3 does not report the location of
/// hbase:meta.
pub(super) fn diagnose_version(version: &str) -> Diagnostic {
    let mut numbers = version.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let seen = format!("HBase {version}");
    match (numbers.next(), numbers.next()) {
        (Some(2), Some(4..)) => Diagnostic::ok("version", seen),
        (Some(..=2), Some(_)) => {
            Diagnostic::warn("version", seen, "use 2.4 or later: latches need conditions that 2.4 introduced")
        }
        _ => Diagnostic::warn(
            "version",
            seen,
            "this library was tested with 2.4 to 2.6: test it with this version before you rely on it",
        ),
    }
}
