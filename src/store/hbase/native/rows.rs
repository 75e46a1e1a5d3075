//! Applications' rows over HBase's own RPC. The steps of a request become region actions of one `MultiRequest`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use prost::bytes::Bytes;

use super::address::Address;
use super::bytes::packed;
use super::connection::CallFailure;
use super::filter::FilterTest;
use super::messages::{
    self, Column, EQUAL, Get, GetRequest, GetResponse, MutationProto, NOT_EQUAL, RegionAction,
    RegionActionResult,
};
use super::region::{Lookup, Region};
use super::request::{
    cells, changing, check, comparing, conditional, delete, durable, in_turn, increment, processed, puts,
    reading, stamped_by_the_first, together,
};
use super::rpc::{DISABLED, Native, PAUSE_FIRST, PAUSE_LONGEST, StateDoubts};
use super::send_error::{SendError, may_be_run, may_be_sent_again, protocol_violation};
use super::servers::{CLIENT_SERVICE, share};
use crate::error::{Error, Result};
use crate::runtime::time::{self, Deadline, jittered};
use crate::settings::options::Options;
use crate::store::hbase::steps::{
    AfterWrite, CellTest, CellWrite, ColumnName, FoundCell, Repeat, Request, RowAnswer, RowGuard, RowStep,
    RowStore, Rule, Which, shown,
};
use crate::store::remote::resolve::part;
use crate::store::request_kind::RequestKind;

/// Most rows of one region in one request.
const BATCH_ROWS: usize = 64;
/// Most bytes of values in one request.
const BATCH_BYTES: usize = 1 << 20;

/// Number of parts of the remaining time. One try of a change that may be sent again takes at most one part, so a
/// silent server leaves time for another try.
const TRIES: u32 = 3;

/// A table of an application.
#[derive(Debug)]
pub(in crate::store::hbase) struct NativeRows(Native);

impl NativeRows {
    /// Opens a table of an application. Reads the files of the TLS options. Does no other I/O; the first call
    /// connects. `reply_max` is the largest reply that is read, in bytes.
    pub(in crate::store::hbase) fn new(
        masters: &str,
        table: &str,
        options: Options,
        reply_max: u32,
    ) -> Result<NativeRows> {
        Native::for_rows(masters, table, options, reply_max).map(NativeRows)
    }

    fn get(&self, what: &str, row: &[u8], which: &Which<'_>, by: Deadline) -> Result<RowAnswer> {
        let get = get(&Bytes::copy_from_slice(row), which);
        self.0.on_region(RequestKind::Read, what, row, by, |region, by| {
            let request = GetRequest { region: region.specifier(), get: Some(get.clone()) };
            let answer: GetResponse = self
                .0
                .locator
                .servers()
                .call(&region.server, CLIENT_SERVICE, "Get", &request, by)
                .map_err(SendError::Call)?;
            let cells = answer.result.unwrap_or_default().cell.into_iter().map(found).collect();
            Ok(RowAnswer { cells, ..RowAnswer::default() })
        })
    }
}

impl RowStore for NativeRows {
    fn describe(&self) -> &str {
        &self.0.uri
    }

    fn run(&self, request: &Request<'_>, by: Deadline) -> Result<Vec<RowAnswer>> {
        let Request { what, row, repeat, steps } = *request;
        if let Repeat::Read = repeat
            && let [RowStep::Read(which)] = steps().as_slice()
        {
            return self.get(what, row, which, by).map(|answer| vec![answer]);
        }
        let key = Bytes::copy_from_slice(row);
        let answers = self.0.on_region(kind(repeat), what, row, by, |region, by| {
            let steps = steps();
            let actions = steps.iter().map(|step| action(region, &key, step)).collect();
            let by = if let Repeat::Until(_) = repeat { part(by, TRIES) } else { by };
            let answers = self.0.multi(region, actions, by).and_then(|results| answers(&steps, &results));
            if let (Repeat::Until(unanswered), Err(send_error)) = (repeat, &answers)
                && may_be_run(send_error)
                && !is_refused_input(send_error)
            {
                unanswered.set(unanswered.get() + 1);
            }
            answers
        })?;
        let last = |(answer, step): &(&Option<RowAnswer>, RowStep<'_>)| match (answer, step) {
            (Some(answer), RowStep::Change(..)) => Some(answer.made),
            _ => None,
        };
        let made = answers.iter().zip(steps()).rev().find_map(|it| last(&it)).unwrap_or_default();
        let complete = |(answer, step): (Option<RowAnswer>, RowStep<'_>)| match (answer, step) {
            (Some(answer), _) => Ok(answer),
            (None, RowStep::Read(which)) => match self.get(what, row, &which, by) {
                Ok(answer) => Ok(RowAnswer { read: AfterWrite::Later, ..answer }),
                Err(_) if made => Ok(RowAnswer { read: AfterWrite::Failed, ..RowAnswer::default() }),
                Err(error) => Err(error),
            },
            (None, RowStep::Change(..)) => Ok(RowAnswer::default()),
        };
        answers.into_iter().zip(steps()).map(complete).collect()
    }

    fn run_many(
        &self,
        what: &str,
        repeat: Repeat<'_>,
        rows: &[(&[u8], RowStep<'_>)],
        by: Deadline,
    ) -> Vec<Result<RowAnswer>> {
        Batch {
            native: &self.0,
            what,
            kind: kind(repeat),
            rows,
            answers: HashMap::new(),
            why: HashMap::new(),
            away: HashSet::new(),
        }
        .run(by)
    }

    fn ensure(&self, families: &[(String, u32)], splits: &[Vec<u8>], by: Deadline) -> Result<()> {
        self.0.create_rows_table(families, splits, by)
    }
}

/// Returns whether the server refused the input of the change. It checks the input before it writes anything.
fn is_refused_input(send_error: &SendError) -> bool {
    let SendError::Call(CallFailure::Exception(exception)) = send_error else { return false };
    exception.refused_input().is_some()
}

/// Numbers of rows, with their regions.
type LocatedRows = Vec<(usize, Arc<Region>)>;

/// Many rows, sent in few requests: one for each server, unless [`BATCH_ROWS`] or [`BATCH_BYTES`] require more.
struct Batch<'a> {
    native: &'a Native,
    what: &'a str,
    kind: RequestKind,
    rows: &'a [(&'a [u8], RowStep<'a>)],
    answers: HashMap<usize, Result<RowAnswer>>,
    /// Reason why a row has no answer yet.
    why: HashMap<usize, Arc<Error>>,
    /// Rows whose region no server served.
    away: HashSet<usize>,
}

impl Batch<'_> {
    fn run(mut self, by: Deadline) -> Vec<Result<RowAnswer>> {
        let (mut pause, mut doubts) = (PAUSE_FIRST, StateDoubts::default());
        loop {
            self.away.clear();
            let requests = self.requests(by);
            for (sent, request) in requests.iter().enumerate() {
                // A server that hangs must leave time for the servers after it.
                self.send(request, share(by, requests.len() - sent));
            }
            if self.answers.len() == self.rows.len() || by.remaining() <= pause {
                break;
            }
            if !self.away.is_empty() && doubts.arise(pause) && self.native.is_disabled(by) {
                let disabled = Arc::new(self.native.of_table(DISABLED));
                for number in std::mem::take(&mut self.away) {
                    let error = self.about(number, Arc::clone(&disabled));
                    self.answers.insert(number, Err(error));
                }
            }
            time::sleep(jittered(pause));
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
        (0..self.rows.len())
            .map(|row| match (self.answers.remove(&row), self.why.remove(&row)) {
                (Some(answer), _) => answer,
                (None, Some(why)) => Err(self.about(row, why)),
                (None, None) => {
                    Err(Error::Internal { what: format!("{}: a row got no answer", self.what), source: None })
                }
            })
            .collect()
    }

    /// Groups the rows without an answer by server, and divides each group into requests.
    fn requests(&mut self, by: Deadline) -> Vec<LocatedRows> {
        let mut servers: BTreeMap<(String, u16), LocatedRows> = BTreeMap::new();
        // Look-ups may take half of the time. The server of hbase:meta may hang while the other servers answer.
        let mut until = share(by, 2);
        for (number, (row, _)) in self.rows.iter().enumerate() {
            if self.answers.contains_key(&number) {
                continue;
            }
            match self.native.locator.region(row, until) {
                Ok(region) => {
                    let Address { host, port } = region.server.clone();
                    servers.entry((host, port)).or_default().push((number, region));
                }
                Err(lookup) => {
                    if matches!(lookup, Lookup::Call(..)) {
                        // From here on, only known regions are used. They need no time.
                        until = Deadline::after(Duration::ZERO);
                    }
                    self.failed(&[number], SendError::Lookup(lookup));
                }
            }
        }
        let mut requests = Vec::new();
        for rows in servers.into_values() {
            let (mut request, mut bytes, mut in_region) = (Vec::new(), 0, HashMap::<_, usize>::new());
            for (number, region) in rows {
                let size = self.size(number);
                let count = in_region.get(&region.name).copied();
                let full = count.unwrap_or_default() >= BATCH_ROWS || bytes + size > BATCH_BYTES;
                if full && !request.is_empty() {
                    requests.push(std::mem::take(&mut request));
                    in_region.clear();
                    bytes = 0;
                }
                *in_region.entry(region.name.clone()).or_default() += 1;
                bytes += size;
                request.push((number, region));
            }
            requests.push(request);
        }
        requests
    }

    fn size(&self, number: usize) -> usize {
        match &self.rows[number].1 {
            RowStep::Change(_, writes) => writes.iter().map(write_size).sum(),
            RowStep::Read(_) => 0,
        }
    }

    fn send(&mut self, request: &[(usize, Arc<Region>)], by: Deadline) {
        let Some((_, first)) = request.first() else { return };
        let action = |(number, region): &(usize, Arc<Region>)| {
            let (row, step) = &self.rows[*number];
            action(region, &Bytes::copy_from_slice(row), step)
        };
        match self.native.multi(first, request.iter().map(action).collect(), by) {
            Ok(results) => {
                for ((number, region), result) in request.iter().zip(&results) {
                    match answer(&self.rows[*number].1, result) {
                        Ok(answer) => drop(self.answers.insert(*number, Ok(answer))),
                        Err(send_error) => {
                            self.native.learn(region, &send_error, true);
                            self.failed(&[*number], send_error);
                        }
                    }
                }
            }
            // One very long row must not make the others of its request unreadable.
            Err(SendError::Call(CallFailure::TooLong(..)))
                if self.kind == RequestKind::Read && request.len() > 1 =>
            {
                let (one, other) = request.split_at(request.len() / 2);
                self.send(one, share(by, 2));
                self.send(other, by);
            }
            Err(send_error) => {
                for (_, region) in request {
                    self.native.learn(region, &send_error, true);
                }
                let numbers: Vec<_> = request.iter().map(|(number, _)| *number).collect();
                self.failed(&numbers, send_error);
            }
        }
    }

    fn failed(&mut self, numbers: &[usize], send_error: SendError) {
        let (again, away) = (may_be_sent_again(self.kind, &send_error), send_error.is_away());
        let error = Arc::new(self.native.explain(self.kind, self.what, send_error));
        for number in numbers {
            if again {
                self.why.insert(*number, Arc::clone(&error));
                if away {
                    self.away.insert(*number);
                }
            } else {
                let error = self.about(*number, Arc::clone(&error));
                self.answers.insert(*number, Err(error));
            }
        }
    }

    fn about(&self, number: usize, source: Arc<Error>) -> Error {
        let row = self.rows[number].0;
        Error::Context { doing: format!("{} row \"{}\"", self.what, shown(row)), source }
    }
}

fn kind(repeat: Repeat<'_>) -> RequestKind {
    match repeat {
        Repeat::Read => RequestKind::Read,
        Repeat::Never => RequestKind::Write,
        Repeat::Until(_) => RequestKind::Repeatable,
    }
}

fn action(region: &Region, row: &Bytes, step: &RowStep<'_>) -> RegionAction {
    match step {
        RowStep::Read(which) => in_turn(region, vec![reading(get(row, which))]),
        RowStep::Change(guard, writes) => {
            let mut mutations: Vec<_> = writes.iter().map(|write| mutation(row, write)).collect();
            match guard {
                // One mutation is atomic by itself.
                RowGuard::Always if mutations.len() == 1 => {
                    in_turn(region, mutations.drain(..).map(changing).collect())
                }
                RowGuard::Always => together(region, mutations),
                RowGuard::One(test) => conditional(region, one(row, test), mutations),
                RowGuard::All(tests) => {
                    let tests: Vec<_> = tests.iter().map(test).collect();
                    conditional(region, stamped_by_the_first(row, &tests), mutations)
                }
            }
        }
    }
}

fn one(row: &Bytes, (column, rule): &CellTest<'_>) -> messages::Condition {
    let (compare, with): (_, &[u8]) = match rule {
        Rule::Is(value) => (EQUAL, value),
        Rule::MissingOrEmpty => (EQUAL, b""),
        Rule::NotEmpty => (NOT_EQUAL, b""),
        Rule::Missing | Rule::BeginsNot(_) | Rule::Below(_) => {
            unreachable!("a comparison of one column cannot say it")
        }
    };
    let [family, qualifier, with] = packed([&column.family, &column.qualifier, with]);
    comparing(row, &family, &qualifier, compare, &with)
}

fn test((column, rule): &CellTest<'_>) -> FilterTest {
    let with: &[u8] = match rule {
        Rule::Is(with) | Rule::BeginsNot(with) | Rule::Below(with) => with,
        Rule::Missing | Rule::MissingOrEmpty | Rule::NotEmpty => b"",
    };
    let [family, qualifier, with] = &packed([&column.family, &column.qualifier, with]);
    match rule {
        Rule::Is(_) => FilterTest::is(family, qualifier, with),
        Rule::Missing => FilterTest::missing(family, qualifier),
        Rule::MissingOrEmpty => FilterTest::none(family, qualifier),
        Rule::NotEmpty => FilterTest::some(family, qualifier),
        Rule::BeginsNot(_) => FilterTest::there_and_begins_not(family, qualifier, with),
        Rule::Below(_) => FilterTest::below(family, qualifier, with),
    }
}

fn mutation(row: &Bytes, write: &CellWrite<'_>) -> MutationProto {
    match write {
        CellWrite::Put { cells, ttl, durability } => {
            let cell = |(column, value): &(&ColumnName, &[u8])| {
                let [family, qualifier, value] = packed([&column.family, &column.qualifier, value]);
                (family, (qualifier, value))
            };
            durable(*durability, puts(row, by_family(cells.iter().map(cell)), *ttl))
        }
        CellWrite::Add(column, by) => {
            let [family, qualifier] = packed([&column.family, &column.qualifier]);
            increment(row, &family, &qualifier, *by, None)
        }
        CellWrite::Delete(cells) => {
            let cell = |(column, written_ms): &(&ColumnName, u64)| {
                let [family, qualifier] = packed([&column.family, &column.qualifier]);
                (family, (qualifier, *written_ms))
            };
            delete(row, by_family(cells.iter().map(cell)))
        }
    }
}

fn by_family<T>(cells: impl Iterator<Item = (Bytes, T)>) -> BTreeMap<Bytes, Vec<T>> {
    let mut families: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (family, cell) in cells {
        families.entry(family).or_default().push(cell);
    }
    families
}

fn write_size(write: &CellWrite<'_>) -> usize {
    match write {
        CellWrite::Put { cells, .. } => cells.iter().map(|(_, value)| value.len()).sum(),
        CellWrite::Add(..) | CellWrite::Delete(_) => 0,
    }
}

fn get(row: &Bytes, which: &Which<'_>) -> Get {
    let column = |column: &&ColumnName| -> (Bytes, Bytes) {
        let [family, qualifier] = packed([&column.family, &column.qualifier]);
        (family, qualifier)
    };
    let mut families = by_family(which.columns.iter().map(column));
    // A family without qualifiers is read completely.
    families.extend(which.families.iter().map(|family| (Bytes::copy_from_slice(family), Vec::new())));
    let column = |(family, qualifier)| Column { family, qualifier };
    Get {
        row: row.clone(),
        column: families.into_iter().map(column).collect(),
        filter: None,
        max_versions: (which.versions > 1).then_some(which.versions),
    }
}

/// Decodes the answers of a request that was run. The answer to its last change is valid even if other steps
/// failed: the server runs the steps one by one, and a region may close, be busy or open between two of them.
/// `None` means a step that failed; the caller repeats a failed read in a separate request.
fn answers(
    steps: &[RowStep<'_>],
    results: &[RegionActionResult],
) -> Result<Vec<Option<RowAnswer>>, SendError> {
    let last = steps.iter().rposition(|step| matches!(step, RowStep::Change(..)));
    let mut answers: Vec<_> = steps.iter().zip(results).map(|(step, result)| answer(step, result)).collect();
    if let Some(last) = last {
        // If the last change was not made and an earlier step failed, that failure may be the reason: the change
        // may need the cells of the earlier step.
        let failed = match &answers[last] {
            Ok(RowAnswer { made: true, .. }) => None,
            Ok(_) => answers[..last].iter().position(Result::is_err),
            Err(_) => Some(last),
        };
        if let Some(failed) = failed {
            return Err(match answers.swap_remove(failed) {
                Err(send_error) => send_error,
                Ok(_) => protocol_violation(),
            });
        }
        return Ok(answers.into_iter().map(Result::ok).collect());
    }
    answers.into_iter().map(|answer| answer.map(Some)).collect()
}

fn answer(step: &RowStep<'_>, result: &RegionActionResult) -> Result<RowAnswer, SendError> {
    let made = match step {
        RowStep::Change(RowGuard::Always, _) => check(result).map(|()| true)?,
        RowStep::Change(..) => processed(result)?,
        RowStep::Read(_) => {
            check(result)?;
            if result.result_or_exception.is_empty() {
                return Err(protocol_violation());
            }
            false
        }
    };
    let cells = cells(result)?.cloned().map(found).collect();
    Ok(RowAnswer { made, cells, ..RowAnswer::default() })
}

fn found(cell: messages::Cell) -> FoundCell {
    let column = ColumnName { family: cell.family, qualifier: cell.qualifier };
    FoundCell { column, value: cell.value, written_ms: cell.timestamp }
}
