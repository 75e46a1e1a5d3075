//! Checks whether the servers look at every cell of a row, as the changes of locks in several modes require.

use super::HbaseOwnStore;
use super::requests;
use crate::error::Result;
use crate::names::diagnostic::Diagnostic;
use crate::runtime::random;
use crate::runtime::time::Deadline;
use crate::store::hbase::cell_store::{Durability, PROBE};
use crate::store::hbase::diagnose::PROBE_TTL;
use crate::store::hbase::layout::FREE;
use crate::store::hbase::own_store::{LockRowChange, LockRowChanged};

/// What a server does with a change while the row has a cell of an unknown kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probed {
    Refuses,
    Makes,
    /// It refused the change without such a cell, too. Another process may check the same row.
    NotKnown,
}

impl HbaseOwnStore {
    /// Makes a change in each of these rows, of which no lock has any, and tries it again beside a cell of an unknown kind.
    pub(super) fn diagnose_conditions(&self, rows: &[Vec<u8>], by: Deadline) -> Result<Option<Diagnostic>> {
        let probed = rows.iter().map(|row| self.probe_conditions(row, by)).collect::<Result<Vec<_>>>()?;
        let count = |wanted| probed.iter().filter(|it| **it == wanted).count();
        let (servers, makes, not_known) = (probed.len(), count(Probed::Makes), count(Probed::NotKnown));
        Ok(match (servers, makes, not_known) {
            (0, ..) => None,
            (_, 0, 0) => Some(Diagnostic::ok("conditions", "the servers look at every cell of a lock")),
            (_, 0, _) => Some(Diagnostic::warn(
                "conditions",
                format!("could not be checked on {not_known} of {servers} RegionServers"),
                "check again in a minute: another check may be under way",
            )),
            _ => Some(Diagnostic::fail(
                "conditions",
                format!(
                    "{makes} of {servers} RegionServers made a change that a cell of an unknown kind must prevent: \
                     they ignore a SkipFilter"
                ),
                "hold no lock in a shared or update mode there; this library was tested with HBase 2.4 to 2.6",
            )),
        })
    }

    fn probe_conditions(&self, row: &[u8], by: Deadline) -> Result<Probed> {
        let Some(number) = self.cells.read_cells(row, by)?.number else { return Ok(Probed::NotKnown) };
        let is_made = || {
            let steps = vec![requests::probe(number, PROBE_TTL)];
            let change = LockRowChange { row, steps, reads: false, durability: Durability::Async, parts: 1 };
            Ok(matches!(self.cells.change(&change, by)?, LockRowChanged::Made(..)))
        };
        // One that no other check uses: it would remove ours. It sorts behind the number.
        let unknown =
            [&b"unknown"[..], PROBE, &random::secret_number().unwrap_or_default().to_be_bytes()].concat();
        let put = |value| self.cells.put_beside(row, &unknown, value, PROBE_TTL, by);
        if !is_made()? {
            return Ok(Probed::NotKnown);
        }
        put(b"M")?;
        let makes = is_made();
        put(FREE)?;
        Ok(if makes? { Probed::Makes } else { Probed::Refuses })
    }
}
