//! Checks whether the HBase version, a table and the servers' clocks are safe for locks.

use std::time::Duration;

use super::cell_store::{Cell, Content, LockTable, SchemaFault};
use crate::error::Result;
use crate::names::diagnostic::Diagnostic;
use crate::runtime::time::{Deadline, wall_ms};

pub(super) const PROBE_TTL: Duration = Duration::from_secs(60);

/// Checks the version, the table for this content, and the clocks of all RegionServers that have regions of it. `probe`
/// writes a row and returns the cell that it then reads there.
pub(super) fn diagnose<T: LockTable + ?Sized>(
    table: &T,
    content: Content,
    by: Deadline,
    mut probe: impl FnMut(&[u8]) -> Result<Option<Cell>>,
) -> Result<Vec<Diagnostic>> {
    let mut found = Vec::new();
    match table.version(by) {
        Ok(version) => found.extend(version.as_deref().map(diagnose_version)),
        // A master may refuse to report its version. Locks do not need it.
        Err(error) => found.push(Diagnostic::warn("version", error.chain(), "see the master's log")),
    }
    found.extend(table.diagnose_login());
    let Some(faults) = table.diagnose_table(content.family(), by)? else {
        let advice = "create it with initialize() or `dlm init`";
        found.push(Diagnostic::fail("table", "does not exist", advice));
        return Ok(found);
    };
    found.push(diagnose_schema(&faults));
    let mut clocks = Vec::new();
    for (server, row) in table.probe_rows(by)? {
        // The server's timestamp of the cell shows its clock.
        let before_ms = wall_ms();
        let cell = probe(&row)?;
        let took = Duration::from_millis(wall_ms().saturating_sub(before_ms));
        let stamp_ms = cell.map_or(before_ms, |cell| cell.written_ms);
        clocks.push((Duration::from_millis(stamp_ms.abs_diff(before_ms)), took, server));
    }
    found.extend(diagnose_servers(clocks));
    Ok(found)
}

fn diagnose_schema(faults: &[SchemaFault]) -> Diagnostic {
    let advice = faults.first().map_or("", |fault| fault.advice);
    let seen = faults.iter().map(|fault| fault.what.as_str()).collect::<Vec<_>>().join(", ");
    if faults.is_empty() {
        Diagnostic::ok("table", "has the expected schema")
    } else if faults.iter().any(|fault| fault.is_unsafe) {
        Diagnostic::fail("table", seen, advice)
    } else {
        Diagnostic::warn("table", seen, advice)
    }
}

/// Reports the clock that differs most from this machine's: its difference, how long its measurement took, and its
/// server.
fn diagnose_servers(mut clocks: Vec<(Duration, Duration, String)>) -> Option<Diagnostic> {
    let servers = clocks.len();
    clocks.sort();
    let (difference, took, server) = clocks.pop()?;
    let mut diagnostic = Diagnostic::clocks(difference, took);
    if servers > 1 {
        diagnostic.seen += &format!("; of {servers} RegionServers, {server} differs most");
    }
    Some(diagnostic)
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
