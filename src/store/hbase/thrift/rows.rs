//! Applications' rows through a Thrift1 gateway. Its conditional write compares one column and puts one cell.
//! Operations that need more are only possible with `hbase://`.

use std::collections::BTreeMap;
use std::time::Duration;

use hbase_thrift::hbase::{Mutation, TCell, THbaseSyncClient as _, TRowResult};

use super::gateway::{Gateway, TTL};
use crate::error::{Error, Result};
use crate::runtime::time::{Deadline, Moment};
use crate::settings::options::Options;
use crate::store::hbase::steps::{
    AfterWrite, CellWrite, ColumnName, FoundCell, Repeat, Request, RowAnswer, RowGuard, RowStep, RowStore,
    Rule, Which,
};
use crate::store::request_kind::RequestKind;

/// A "no" that took this long proves nothing. A gateway repeats by itself a request that its server did not answer,
/// and the second request then answers "no" to a change that the first one made. The pause before a repeat is at
/// least 100 ms by default (`hbase.client.pause`).
const REPEATED_AFTER: Duration = Duration::from_millis(90);

#[derive(Debug)]
pub(in crate::store::hbase) struct GatewayRows(Gateway);

impl GatewayRows {
    /// Opens a table of an application. Does no I/O; the first call connects.
    pub(in crate::store::hbase) fn new(address: &str, table: &str, options: Options) -> Result<GatewayRows> {
        Gateway::for_rows(address, table, options).map(GatewayRows)
    }

    fn change(
        &self,
        what: &str,
        row: &[u8],
        guard: &RowGuard<'_>,
        write: &CellWrite<'_>,
        by: Deadline,
    ) -> Result<RowAnswer> {
        let made = |made| RowAnswer { made, ..RowAnswer::default() };
        match (guard, write) {
            (RowGuard::Always, CellWrite::Add(column, amount)) => {
                let sum = self.0.call(RequestKind::Write, what, Some(row), by, |client| {
                    client.atomic_increment(self.0.table(), row.to_vec(), name(column), *amount)
                })?;
                let value = sum.to_be_bytes().to_vec();
                let cells = vec![FoundCell { column: (*column).clone(), value, written_ms: 0 }];
                Ok(RowAnswer { made: true, cells, ..RowAnswer::default() })
            }
            (RowGuard::Always, CellWrite::Put { cells, ttl, .. }) => {
                self.0.call(RequestKind::Write, what, Some(row), by, |client| {
                    let puts = cells.iter().map(|(column, value)| put(column, value)).collect();
                    client.mutate_row(self.0.table(), row.to_vec(), puts, attributes(*ttl))
                })?;
                Ok(made(true))
            }
            (RowGuard::One((tested, rule)), CellWrite::Put { cells, ttl, .. }) if cells.len() == 1 => {
                let expected: &[u8] = match rule {
                    Rule::Is(value) => value,
                    Rule::MissingOrEmpty => b"",
                    _ => return Err(unsupported(what)),
                };
                let [(column, value)] = cells.as_slice() else { return Err(unsupported(what)) };
                let began = Moment::now();
                let done = self.0.call(RequestKind::Write, what, Some(row), by, |client| {
                    let (table, column, put) = (self.0.table(), name(tested), put(column, value));
                    client.check_and_put(
                        table,
                        row.to_vec(),
                        column,
                        expected.to_vec(),
                        put,
                        attributes(*ttl),
                    )
                })?;
                let took = Moment::now().since(began);
                if !done && took >= REPEATED_AFTER {
                    let what = format!(
                        "{}: {what}: the gateway took {took:?} to refuse it: it may have made the change and then repeated it",
                        self.0.uri
                    );
                    return Err(Error::InDoubt { what, source: None });
                }
                Ok(made(done))
            }
            _ => Err(unsupported(what)),
        }
    }

    fn read(&self, what: &str, row: &[u8], which: &Which<'_>, by: Deadline) -> Result<RowAnswer> {
        let columns: Vec<_> = (which.columns.iter().map(|column| name(column)))
            // Without a colon. `family:` would be the column with an empty qualifier.
            .chain(which.families.iter().map(|family| family.to_vec()))
            .collect();
        if which.versions > 1 {
            let ([column], []) = (which.columns.as_slice(), which.families.as_slice()) else {
                return Err(unsupported("reading versions of several columns"));
            };
            let versions = i32::try_from(which.versions).unwrap_or(i32::MAX);
            let cells = self.0.call(RequestKind::Read, what, Some(row), by, |client| {
                client.get_ver(self.0.table(), row.to_vec(), name(column), versions, BTreeMap::new())
            })?;
            let cells = cells.into_iter().map(|cell| found((*column).clone(), cell)).collect();
            return Ok(RowAnswer { cells, ..RowAnswer::default() });
        }
        let rows = self.0.call(RequestKind::Read, what, Some(row), by, |client| {
            let (table, row) = (self.0.table(), row.to_vec());
            if columns.is_empty() {
                client.get_row(table, row, BTreeMap::new())
            } else {
                client.get_row_with_columns(table, row, columns.clone(), BTreeMap::new())
            }
        })?;
        Ok(RowAnswer { cells: rows.into_iter().flat_map(cells).collect(), ..RowAnswer::default() })
    }

    fn step(&self, request: &Request<'_>, step: &RowStep<'_>, by: Deadline) -> Result<RowAnswer> {
        match step {
            RowStep::Read(which) => self.read(request.what, request.row, which, by),
            RowStep::Change(guard, writes) => match writes.as_slice() {
                [write] => self.change(request.what, request.row, guard, write, by),
                _ => Err(unsupported(request.what)),
            },
        }
    }
}

impl RowStore for GatewayRows {
    fn describe(&self) -> &str {
        &self.0.uri
    }

    fn run(&self, request: &Request<'_>, by: Deadline) -> Result<Vec<RowAnswer>> {
        let steps = (request.steps)();
        // All steps are checked before the first change, so an unsupported step leaves nothing half done.
        match (steps.as_slice(), request.repeat) {
            ([RowStep::Read(_)], Repeat::Read) => {}
            ([RowStep::Change(..)] | [RowStep::Change(..), RowStep::Read(_)], Repeat::Never) => {}
            _ => return Err(unsupported(request.what)),
        }
        let mut answers: Vec<RowAnswer> = Vec::new();
        for step in &steps {
            let made = answers.last().map(|change| change.made);
            answers.push(match (self.step(request, step, by), made) {
                (Ok(answer), None) => answer,
                (Ok(answer), Some(_)) => RowAnswer { read: AfterWrite::Later, ..answer },
                (Err(_), Some(true)) => RowAnswer { read: AfterWrite::Failed, ..RowAnswer::default() },
                (Err(error), _) => return Err(error),
            });
        }
        Ok(answers)
    }

    /// Runs the rows one after another.
    fn run_many(
        &self,
        what: &str,
        repeat: Repeat<'_>,
        rows: &[(&[u8], RowStep<'_>)],
        by: Deadline,
    ) -> Vec<Result<RowAnswer>> {
        let one = |(row, step): &(&[u8], RowStep<'_>)| {
            let steps = || vec![step.clone()];
            let answers = self.run(&Request { what, row, repeat, steps: &steps }, by)?;
            Ok(answers.into_iter().next().unwrap_or_default())
        };
        rows.iter().map(one).collect()
    }

    fn ensure(&self, _families: &[(String, u32)], _splits: &[Vec<u8>], _by: Deadline) -> Result<()> {
        Err(unsupported("creating a table"))
    }
}

fn unsupported(what: &str) -> Error {
    Error::invalid("hbase+thrift:// for", what, "use hbase://: Thrift1 cannot do it in one atomic step")
}

fn name(column: &ColumnName) -> Vec<u8> {
    [&column.family[..], b":", &column.qualifier].concat()
}

fn put(column: &ColumnName, value: &[u8]) -> Mutation {
    Mutation::new(false, name(column), value.to_vec(), true)
}

fn attributes(ttl: Option<Duration>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let ttl_ms = ttl.map(|ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX));
    ttl_ms.map(|ms| (TTL.to_vec(), ms.to_be_bytes().to_vec())).into_iter().collect()
}

fn cells(row: TRowResult) -> impl Iterator<Item = FoundCell> {
    row.columns.unwrap_or_default().into_iter().filter_map(|(name, cell)| {
        let colon = name.iter().position(|byte| *byte == b':')?;
        let column = ColumnName { family: name[..colon].to_vec(), qualifier: name[colon + 1..].to_vec() };
        Some(found(column, cell))
    })
}

fn found(column: ColumnName, cell: TCell) -> FoundCell {
    let written_ms = cell.timestamp.and_then(|ms| u64::try_from(ms).ok()).unwrap_or_default();
    FoundCell { column, value: cell.value.unwrap_or_default(), written_ms }
}
