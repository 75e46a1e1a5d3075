//! Checks whether the HBase version and a server's clock are safe for locks.

use std::time::Duration;

use super::cell_store::{Cell, Content, LockTable};
use crate::diagnostic::Diagnostic;
use crate::error::Result;
use crate::time::{Deadline, wall_ms};

/// The row that is written to read a server's clock. It is not the row of a lock: those have a hash byte, then DC# or
/// XDC#.
pub(super) const PROBE_ROW: &[u8] = b"?doctor";
pub(super) const PROBE_TTL: Duration = Duration::from_secs(60);

/// Checks the version, the table for this content, and a server's clock. `probe` writes the probe's row and returns
/// the cell that it then reads there.
pub(super) fn diagnose<T: LockTable + ?Sized>(
    table: &T,
    content: Content,
    by: Deadline,
    probe: impl FnOnce() -> Result<Option<Cell>>,
) -> Result<Vec<Diagnostic>> {
    let mut found = Vec::new();
    match table.version(by) {
        Ok(version) => found.extend(version.as_deref().map(diagnose_version)),
        // A master may refuse to report its version. Locks do not need it.
        Err(error) => found.push(Diagnostic::warn("version", error.chain(), "see the master's log")),
    }
    let advice = "alter the family in the HBase shell, or create the table again";
    match table.diagnose_table(content.family(), by)? {
        None => {
            let advice = "create it with initialize() or `dlm init`";
            found.push(Diagnostic::fail("table", "does not exist", advice));
            return Ok(found);
        }
        Some(odd) if odd.is_empty() => found.push(Diagnostic::ok("table", "has the expected schema")),
        Some(odd) => found.push(Diagnostic::warn("table", odd.join(", "), advice)),
    }
    // The server's timestamp of the cell shows its clock.
    let before_ms = wall_ms();
    let cell = probe()?;
    let took = Duration::from_millis(wall_ms().saturating_sub(before_ms));
    let stamp_ms = cell.map_or(before_ms, |cell| cell.written_ms);
    found.push(Diagnostic::clocks(Duration::from_millis(stamp_ms.abs_diff(before_ms)), took));
    Ok(found)
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
