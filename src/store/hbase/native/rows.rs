//! Applications' rows over HBase's own RPC: steps become region actions of one request.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::cluster::{Address, CLIENT_SERVICE, Region, share};
use super::connection::Failure;
use super::filter;
use super::messages::{
    self, ASYNC_WAL, Column, EQUAL, Get, GetRequest, GetResponse, MutationProto, NOT_EQUAL, RegionAction,
    RegionActionResult,
};
use super::request::{
    cells, changing, check, comparing, conditional, delete, in_turn, increment, processed, puts, reading,
    stamped_by_the_first, together,
};
use super::{
    DISABLED, Kind, Native, PAUSE_FIRST, PAUSE_LONGEST, StateDoubts, Trouble, may_be_run, may_be_sent_again,
    protocol_violation,
};
use crate::config::Options;
use crate::error::{Error, Result};
use crate::store::hbase::rows::{Log, part};
use crate::store::hbase::steps::{
    Answer, Found, Guard, Place, ReadBack, Repeat, Request, RowStore, Rule, Step, Test, Which, Write, shown,
};
use crate::time::{Deadline, jittered};

/// Rows in one request of one region, and bytes in one request.
const BATCH_ROWS: usize = 64;
const BATCH_BYTES: usize = 1 << 20;

/// One try of a change that may be sent again takes at most the first of so many parts of the time that is left: a
/// server that has gone silent must leave time for another try.
const TRIES: u32 = 3;

/// A table of an application.
#[derive(Debug)]
pub(in crate::store::hbase) struct Rows(Native);

impl Rows {
    /// No I/O until the first call. Replies up to `reply_max` bytes are read.
    pub(in crate::store::hbase) fn new(
        masters: &str,
        table: &str,
        options: Options,
        reply_max: u32,
    ) -> Result<Rows> {
        Native::for_rows(masters, table, options, reply_max).map(Rows)
    }

    fn get(&self, what: &str, row: &[u8], which: &Which<'_>, by: Deadline) -> Result<Answer> {
        self.0.on_region(Kind::Read, what, row, by, |region, by| {
            let request = GetRequest { region: region.specifier(), get: Some(get(row, which)) };
            let answer: GetResponse = self
                .0
                .cluster
                .call(&region.server, CLIENT_SERVICE, "Get", &request, by)
                .map_err(Trouble::Call)?;
            let cells = answer.result.unwrap_or_default().cell.into_iter().map(found).collect();
            Ok(Answer { cells, ..Answer::default() })
        })
    }
}

impl RowStore for Rows {
    fn describe(&self) -> &str {
        &self.0.place
    }

    fn run(&self, request: &Request<'_>, by: Deadline) -> Result<Vec<Answer>> {
        let Request { what, row, repeat, steps } = *request;
        if let Repeat::Read = repeat
            && let [Step::Read(which)] = steps().as_slice()
        {
            return self.get(what, row, which, by).map(|answer| vec![answer]);
        }
        let answers = self.0.on_region(kind(repeat), what, row, by, |region, by| {
            let steps = steps();
            let actions = steps.iter().map(|step| action(region, row, step)).collect();
            let by = if let Repeat::Until(_) = repeat { part(by, TRIES) } else { by };
            let answers = self.0.multi(region, actions, by).and_then(|results| answers(&steps, &results));
            if let (Repeat::Until(unanswered), Err(trouble)) = (repeat, &answers)
                && may_be_run(trouble)
                && !is_refused_input(trouble)
            {
                unanswered.set(unanswered.get() + 1);
            }
            answers
        })?;
        let last = |(answer, step): &(&Option<Answer>, Step<'_>)| match (answer, step) {
            (Some(answer), Step::Change(..)) => Some(answer.made),
            _ => None,
        };
        let made = answers.iter().zip(steps()).rev().find_map(|it| last(&it)).unwrap_or_default();
        let complete = |(answer, step): (Option<Answer>, Step<'_>)| match (answer, step) {
            (Some(answer), _) => Ok(answer),
            (None, Step::Read(which)) => match self.get(what, row, &which, by) {
                Ok(answer) => Ok(Answer { read: ReadBack::Later, ..answer }),
                Err(_) if made => Ok(Answer { read: ReadBack::Failed, ..Answer::default() }),
                Err(error) => Err(error),
            },
            (None, Step::Change(..)) => Ok(Answer::default()),
        };
        answers.into_iter().zip(steps()).map(complete).collect()
    }

    fn run_many(
        &self,
        what: &str,
        repeat: Repeat<'_>,
        rows: &[(&[u8], Step<'_>)],
        by: Deadline,
    ) -> Vec<Result<Answer>> {
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

/// Whether the server said that it cannot make the change, which it looks at before it writes.
fn is_refused_input(trouble: &Trouble) -> bool {
    let Trouble::Call(Failure::Exception(exception)) = trouble else { return false };
    exception.refused_input().is_some()
}

/// Many rows, in as few requests as their servers and [`BATCH_ROWS`] allow.
struct Batch<'a> {
    native: &'a Native,
    what: &'a str,
    kind: Kind,
    rows: &'a [(&'a [u8], Step<'a>)],
    answers: HashMap<usize, Result<Answer>>,
    /// Why a row has no answer yet.
    why: HashMap<usize, Arc<Error>>,
    /// Rows whose region was served by nobody.
    away: HashSet<usize>,
}

impl Batch<'_> {
    fn run(mut self, by: Deadline) -> Vec<Result<Answer>> {
        let (mut pause, mut doubts) = (PAUSE_FIRST, StateDoubts::default());
        loop {
            self.away.clear();
            let requests = self.requests(by);
            for (sent, request) in requests.iter().enumerate() {
                // A server that hangs must leave time for those behind it.
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
            std::thread::sleep(jittered(pause));
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

    /// The rows without an answer, by server, in pieces of one request.
    fn requests(&mut self, by: Deadline) -> Vec<Vec<(usize, Region)>> {
        let mut servers: BTreeMap<(String, u16), Vec<(usize, Region)>> = BTreeMap::new();
        for (number, (row, _)) in self.rows.iter().enumerate() {
            if self.answers.contains_key(&number) {
                continue;
            }
            match self.native.cluster.region(row, by) {
                Ok(region) => {
                    let Address { host, port } = region.server.clone();
                    servers.entry((host, port)).or_default().push((number, region));
                }
                Err(lookup) => self.failed(&[number], Trouble::Lookup(lookup)),
            }
        }
        let mut requests = Vec::new();
        for rows in servers.into_values() {
            let (mut request, mut bytes, mut in_region) = (Vec::new(), 0, HashMap::<_, usize>::new());
            for (number, region) in rows {
                let size = self.size(number);
                let count = in_region.get(&region.specifier().unwrap_or_default().value).copied();
                let full = count.unwrap_or_default() >= BATCH_ROWS || bytes + size > BATCH_BYTES;
                if full && !request.is_empty() {
                    requests.push(std::mem::take(&mut request));
                    in_region.clear();
                    bytes = 0;
                }
                *in_region.entry(region.specifier().unwrap_or_default().value).or_default() += 1;
                bytes += size;
                request.push((number, region));
            }
            requests.push(request);
        }
        requests
    }

    fn size(&self, number: usize) -> usize {
        match &self.rows[number].1 {
            Step::Change(_, writes) => writes.iter().map(write_size).sum(),
            Step::Read(_) => 0,
        }
    }

    fn send(&mut self, request: &[(usize, Region)], by: Deadline) {
        let Some((_, first)) = request.first() else { return };
        let action = |(number, region): &(usize, Region)| {
            let (row, step) = &self.rows[*number];
            action(region, row, step)
        };
        match self.native.multi(first, request.iter().map(action).collect(), by) {
            Ok(results) => {
                for ((number, region), result) in request.iter().zip(&results) {
                    match answer(&self.rows[*number].1, result) {
                        Ok(answer) => drop(self.answers.insert(*number, Ok(answer))),
                        Err(trouble) => {
                            self.native.learn(region, &trouble, true);
                            self.failed(&[*number], trouble);
                        }
                    }
                }
            }
            // One very long row must not hide all that are read along with it.
            Err(Trouble::Call(Failure::TooLong(..))) if self.kind == Kind::Read && request.len() > 1 => {
                let (one, other) = request.split_at(request.len() / 2);
                self.send(one, by);
                self.send(other, by);
            }
            Err(trouble) => {
                for (_, region) in request {
                    self.native.learn(region, &trouble, true);
                }
                let numbers: Vec<_> = request.iter().map(|(number, _)| *number).collect();
                self.failed(&numbers, trouble);
            }
        }
    }

    fn failed(&mut self, numbers: &[usize], trouble: Trouble) {
        let (again, away) = (may_be_sent_again(self.kind, &trouble), trouble.is_away());
        let error = Arc::new(self.native.explain(self.kind, self.what, trouble));
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
        Error::While { doing: format!("{} row \"{}\"", self.what, shown(row)), source }
    }
}

fn kind(repeat: Repeat<'_>) -> Kind {
    match repeat {
        Repeat::Read => Kind::Read,
        Repeat::Never => Kind::Write,
        Repeat::Until(_) => Kind::Repeatable,
    }
}

fn action(region: &Region, row: &[u8], step: &Step<'_>) -> RegionAction {
    match step {
        Step::Read(which) => in_turn(region, vec![reading(get(row, which))]),
        Step::Change(guard, writes) => {
            let mut mutations: Vec<_> = writes.iter().map(|write| mutation(row, write)).collect();
            match guard {
                // One mutation is atomic by itself.
                Guard::Always if mutations.len() == 1 => {
                    in_turn(region, mutations.drain(..).map(changing).collect())
                }
                Guard::Always => together(region, mutations),
                Guard::One(test) => conditional(region, one(row, test), mutations),
                Guard::All(tests) => {
                    let tests: Vec<_> = tests.iter().map(test).collect();
                    conditional(region, stamped_by_the_first(row, &tests), mutations)
                }
            }
        }
    }
}

fn one(row: &[u8], (place, rule): &Test<'_>) -> messages::Condition {
    let (compare, with): (_, &[u8]) = match rule {
        Rule::Is(value) => (EQUAL, value),
        Rule::MissingOrEmpty => (EQUAL, b""),
        Rule::NotEmpty => (NOT_EQUAL, b""),
        Rule::Missing | Rule::BeginsNot(_) | Rule::Below(_) => {
            unreachable!("a comparison of one column cannot say it")
        }
    };
    comparing(row, &place.family, &place.qualifier, compare, with)
}

fn test((place, rule): &Test<'_>) -> filter::Test {
    let Place { family, qualifier } = place;
    match rule {
        Rule::Is(value) => filter::Test::is(family, qualifier, value),
        Rule::Missing => filter::Test::missing(family, qualifier),
        Rule::MissingOrEmpty => filter::Test::none(family, qualifier),
        Rule::NotEmpty => filter::Test::some(family, qualifier),
        Rule::BeginsNot(with) => filter::Test::there_and_begins_not(family, qualifier, with),
        Rule::Below(with) => filter::Test::below(family, qualifier, with),
    }
}

fn mutation(row: &[u8], write: &Write<'_>) -> MutationProto {
    match write {
        Write::Put { cells, ttl, log } => {
            let put = puts(row, by_family(cells.iter().map(|(place, value)| (*place, value.to_vec()))), *ttl);
            MutationProto { durability: (*log == Log::Lazy).then_some(ASYNC_WAL), ..put }
        }
        Write::Add(place, by) => increment(row, &place.family, &place.qualifier, *by, None),
        Write::Delete(cells) => delete(row, by_family(cells.iter().copied())),
    }
}

fn by_family<'a, T>(cells: impl Iterator<Item = (&'a Place, T)>) -> BTreeMap<Vec<u8>, Vec<(Vec<u8>, T)>> {
    let mut families: BTreeMap<Vec<u8>, Vec<_>> = BTreeMap::new();
    for (place, what) in cells {
        families.entry(place.family.clone()).or_default().push((place.qualifier.clone(), what));
    }
    families
}

fn write_size(write: &Write<'_>) -> usize {
    match write {
        Write::Put { cells, .. } => cells.iter().map(|(_, value)| value.len()).sum(),
        Write::Add(..) | Write::Delete(_) => 0,
    }
}

fn get(row: &[u8], which: &Which<'_>) -> Get {
    let mut families = by_family(which.columns.iter().map(|place| (*place, ())));
    // A family without qualifiers is read as a whole.
    families.extend(which.families.iter().map(|family| (family.to_vec(), Vec::new())));
    let column = |(family, columns): (Vec<u8>, Vec<(Vec<u8>, ())>)| Column {
        family,
        qualifier: columns.into_iter().map(|(qualifier, ())| qualifier).collect(),
    };
    Get {
        row: row.to_vec(),
        column: families.into_iter().map(column).collect(),
        filter: None,
        max_versions: (which.versions > 1).then_some(which.versions),
    }
}

/// The answers of a request that was run. Its last change decides: the server runs the steps one by one, and a
/// region may close, be busy or come back between two of them. What the last change was answered stands, whatever
/// became of the steps around it. `None`: a read behind it that failed, to be made by itself.
fn answers(steps: &[Step<'_>], results: &[RegionActionResult]) -> Result<Vec<Option<Answer>>, Trouble> {
    let last = steps.iter().rposition(|step| matches!(step, Step::Change(..)));
    let mut answers: Vec<_> = steps.iter().zip(results).map(|(step, result)| answer(step, result)).collect();
    if let Some(last) = last {
        // Not made, and perhaps for want of what a step before it should have put.
        let failed = match &answers[last] {
            Ok(Answer { made: true, .. }) => None,
            Ok(_) => answers[..last].iter().position(Result::is_err),
            Err(_) => Some(last),
        };
        if let Some(failed) = failed {
            return Err(match answers.swap_remove(failed) {
                Err(trouble) => trouble,
                Ok(_) => protocol_violation(),
            });
        }
        return Ok(answers.into_iter().map(Result::ok).collect());
    }
    answers.into_iter().map(|answer| answer.map(Some)).collect()
}

fn answer(step: &Step<'_>, result: &RegionActionResult) -> Result<Answer, Trouble> {
    let made = match step {
        Step::Change(Guard::Always, _) => check(result).map(|()| true)?,
        Step::Change(..) => processed(result)?,
        Step::Read(_) => {
            check(result)?;
            if result.result_or_exception.is_empty() {
                return Err(protocol_violation());
            }
            false
        }
    };
    let cells = cells(result)?.cloned().map(found).collect();
    Ok(Answer { made, cells, ..Answer::default() })
}

fn found(cell: messages::Cell) -> Found {
    let place = Place { family: cell.family, qualifier: cell.qualifier };
    Found { place, value: cell.value, written_ms: cell.timestamp }
}
