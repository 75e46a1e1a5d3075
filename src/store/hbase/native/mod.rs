//! HBase spoken to directly: masters, hbase:meta and RegionServers, over their own RPC (2.4 and later).
//!
//! ```text
//! latches (exactly once), counts (many at a time)
//! Native (what a request becomes, and what an exception or a lost reply means)
//!   cluster (master, meta, regions)  ->  connection (calls on one socket)  ->  channel (bytes, TLS)
//!   messages, exception, frame: what travels
//! ```

mod channel;
mod cluster;
mod connection;
mod counts;
mod exception;
mod filter;
mod frame;
#[cfg(any(test, fuzzing))]
mod fuzz;
mod latches;
mod messages;
mod options;
mod request;
mod rows;
mod table;

use std::time::Duration;

use self::cluster::{CLIENT_SERVICE, Cluster, Lookup, Region, share};
use self::connection::Failure;
use self::exception::{Exception, Reaction};
use self::frame::FRAME_BYTES_MAX;
use self::messages::{
    Action, Condition, EQUAL, Get, GetRequest, GetResponse, MultiRequest, MultiResponse, MutationProto,
    RegionAction, RegionActionResult,
};
use self::request::{changing, check, conditional, counted, in_turn, logged, processed, reading};
use super::rows::{Cell, Column, Content, Count, Log, NO_TABLE, Rows, Swap, Take, Taken, part};
use crate::config::Options;
use crate::error::{Error, Result};
use crate::store_option;
use crate::time::{Deadline, jittered};
use options::Setup;

pub(super) use self::latches::Latches;
pub(super) use self::rows::Rows as ApplicationRows;

/// Pauses between looks at a region that is moving, a server that starts, a queue that is full.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);
/// As soon as a pause is this long, a region that nobody serves may be one of a table that is disabled.
const PAUSE_BEFORE_DOUBT: Duration = Duration::from_millis(80);

/// See `tests/fuzz`.
#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    fuzz::read_all(bytes);
}

#[derive(Debug)]
pub(super) struct Native {
    place: String,
    table: String,
    content: Content,
    cluster: Cluster,
}

/// What is wrong with a table that an administrator has taken out of service.
const DISABLED: &str = "is disabled; enable it in the HBase shell";

/// Whether it is time to ask if a table is disabled: once in a call, when its region has been away for a while.
#[derive(Default)]
struct StateDoubts {
    asked: bool,
}

impl StateDoubts {
    fn arise(&mut self, pause: Duration) -> bool {
        pause >= PAUSE_BEFORE_DOUBT && !std::mem::replace(&mut self.asked, true)
    }
}

/// Whether a request changes anything: decides what a lost reply means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// A write that has no further effect when it is run again.
    Repeatable,
}

/// Why one send of a request has no result.
enum Trouble {
    Lookup(Lookup),
    Call(Failure),
}

impl Trouble {
    /// Whether the region is served by nobody, or by a server that is not known.
    fn is_away(&self) -> bool {
        match self {
            Trouble::Lookup(lookup) => matches!(lookup, Lookup::NotServed),
            Trouble::Call(Failure::Exception(exception)) => {
                matches!(exception.reaction(), Reaction::Elsewhere(_))
            }
            Trouble::Call(_) => false,
        }
    }

    /// Whether the time was over before the request itself had been sent.
    fn is_out_of_time_unsent(&self) -> bool {
        let error = match self {
            Trouble::Lookup(Lookup::Call(_, Failure::NotSent(error) | Failure::Lost(error))) => error,
            Trouble::Call(Failure::NotSent(error)) => error,
            Trouble::Lookup(_) | Trouble::Call(_) => return false,
        };
        error.kind() == std::io::ErrorKind::TimedOut
    }
}

impl From<Exception> for Trouble {
    fn from(exception: Exception) -> Trouble {
        Trouble::Call(Failure::Exception(exception))
    }
}

impl Native {
    /// No I/O until the first call, but for reading the files that the TLS options name.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an unknown option or a value out of its limits.
    pub(super) fn new(masters: &str, table: &str, options: Options) -> Result<Native> {
        let Setup { masters, place, user, security, connect_timeout } =
            Setup::read(masters, table, options, &store_option::HBASE)?;
        let cluster = Cluster::new(masters, table, user, security, connect_timeout, FRAME_BYTES_MAX);
        Ok(Native { place, table: table.to_owned(), content: Content::Locks, cluster })
    }

    /// A table of an application. See [`Native::new`].
    fn for_rows(masters: &str, table: &str, options: Options, reply_max: u32) -> Result<Native> {
        let Setup { masters, place, user, security, connect_timeout } =
            Setup::read(masters, table, options, &store_option::TABLE)?;
        let cluster = Cluster::new(masters, table, user, security, connect_timeout, reply_max);
        Ok(Native { place, table: table.to_owned(), content: Content::Rows, cluster })
    }

    /// Another table of the same cluster, over the same connections.
    fn beside(&self, table: &str, content: Content) -> Native {
        let masters = self.place.strip_suffix(&self.table).unwrap_or(&self.place);
        Native {
            place: format!("{masters}{table}"),
            table: table.to_owned(),
            content,
            cluster: self.cluster.beside(table),
        }
    }

    /// Has `request` made of the region that holds `row`, sent to its server, and `read` from the answer;
    /// and again wherever the request was surely not applied, until `by`.
    fn on_region<T>(
        &self,
        kind: Kind,
        what: &str,
        row: &[u8],
        by: Deadline,
        request: impl Fn(&Region, Deadline) -> Result<T, Trouble>,
    ) -> Result<T> {
        let (mut pause, mut followed, mut before) = (PAUSE_FIRST, false, None);
        let mut doubts = StateDoubts::default();
        loop {
            let (trouble, told) = match self.cluster.region(row, by) {
                Ok(region) => match request(&region, by) {
                    Ok(answer) => return Ok(answer),
                    Err(trouble) => {
                        let told = self.learn(&region, &trouble, !followed);
                        (trouble, told)
                    }
                },
                Err(lookup) => (Trouble::Lookup(lookup), false),
            };
            // A try that the deadline cut short tells less than the one before it.
            let cut_short = trouble.is_out_of_time_unsent();
            if by.passed() || !may_be_sent_again(kind, &trouble) || by.remaining() <= pause {
                let telling = before.filter(|_| cut_short).unwrap_or(trouble);
                return Err(self.explain(kind, what, telling));
            }
            if trouble.is_away() && doubts.arise(pause) && self.is_disabled(by) {
                return Err(self.of_table(DISABLED));
            }
            if !cut_short {
                before = Some(trouble);
            }
            if told {
                followed = true;
                continue;
            }
            std::thread::sleep(jittered(pause));
            pause = (pause * 2).min(PAUSE_LONGEST);
        }
    }

    /// Whether the table is known to be disabled. Where that cannot be learned, the next call may learn it.
    fn is_disabled(&self, by: Deadline) -> bool {
        self.cluster.is_disabled(share(by, 2)).unwrap_or(false)
    }

    /// What a failure tells about where the region is; whether it was told where to ask at once.
    ///
    /// Only one server's word is taken for that in a call. Of a region that was split after it moved to
    /// and fro, two servers say of each other that it went there, and only meta knows better.
    fn learn(&self, region: &Region, trouble: &Trouble, believe: bool) -> bool {
        match trouble {
            Trouble::Call(Failure::Exception(exception)) => match exception.reaction() {
                Reaction::Elsewhere(Some(to)) if believe => {
                    self.cluster.moved(region, to);
                    return true;
                }
                Reaction::Elsewhere(_) | Reaction::Leave => self.cluster.forget(region),
                Reaction::Busy | Reaction::Refused | Reaction::Unknown => {}
            },
            // Slow, and there: it would say so if it had the region no more. All threads would have to look it
            // up again for one call's sake, and wait for that.
            Trouble::Call(Failure::NotSent(error) | Failure::Lost(error))
                if error.kind() == std::io::ErrorKind::TimedOut && self.cluster.answers(&region.server) => {}
            Trouble::Call(Failure::NotSent(_) | Failure::Lost(_) | Failure::Unwelcome(_)) => {
                self.cluster.forget(region);
            }
            Trouble::Call(Failure::TooLong(..)) | Trouble::Lookup(_) => {}
        }
        false
    }

    fn explain(&self, kind: Kind, what: &str, trouble: Trouble) -> Error {
        let store = self.place.clone();
        match trouble {
            Trouble::Lookup(Lookup::NoTable) => self.of_table(NO_TABLE),
            Trouble::Lookup(Lookup::Call(step, Failure::Exception(exception))) if !exception.may_pass() => {
                self.explain_exception(Kind::Read, step, exception)
            }
            Trouble::Lookup(Lookup::Call(step, failure @ Failure::TooLong(..))) => {
                Error::Internal { what: format!("{store}: {step}"), source: Some(failure.into()) }
            }
            Trouble::Lookup(Lookup::Call(step, failure)) if !matches!(failure, Failure::Exception(_)) => {
                Error::Connection { store, what: step.into(), source: Some(failure.into()) }
            }
            Trouble::Lookup(lookup) => {
                Error::RetriesExhausted { store, what: what.into(), source: Some(lookup.into()) }
            }
            Trouble::Call(Failure::Exception(exception)) => self.explain_exception(kind, what, exception),
            Trouble::Call(failure @ Failure::Lost(_)) if kind != Kind::Read => {
                Error::InDoubt { what: format!("{store}: {what}: no answer"), source: Some(failure.into()) }
            }
            // It was served: asked again it would be answered in the same way.
            Trouble::Call(failure @ Failure::TooLong(..)) => match kind {
                Kind::Read => {
                    Error::Internal { what: format!("{store}: {what}"), source: Some(failure.into()) }
                }
                Kind::Write | Kind::Repeatable => {
                    Error::InDoubt { what: format!("{store}: {what}"), source: Some(failure.into()) }
                }
            },
            Trouble::Call(failure) => {
                Error::Connection { store, what: what.into(), source: Some(failure.into()) }
            }
        }
    }

    fn explain_exception(&self, kind: Kind, what: &str, exception: Exception) -> Error {
        let store = self.place.clone();
        match exception.class.as_str() {
            "TableNotFoundException" => {
                return self.of_table(NO_TABLE);
            }
            "TableNotEnabledException" => return self.of_table(DISABLED),
            "NoSuchColumnFamilyException" => {
                return self.of_table(&self.content.lacking());
            }
            _ => {}
        }
        // A latch looks at its cell instead, and names it.
        if self.content == Content::Rows
            && let Some(told) = exception.refused_input()
        {
            return Error::invalid("row", told, "counters of 8 bytes, and cells within the server's limit");
        }
        match exception.reaction() {
            Reaction::Unknown if kind != Kind::Read => {
                Error::InDoubt { what: format!("{store}: {what}"), source: Some(exception.into()) }
            }
            Reaction::Refused => {
                Error::Internal { what: format!("{store}: {what}"), source: Some(exception.into()) }
            }
            _ => Error::RetriesExhausted { store, what: what.into(), source: Some(exception.into()) },
        }
    }

    fn of_table(&self, what: &str) -> Error {
        Error::TableCreation { table: self.table.clone(), what: what.into(), source: None }
    }

    fn multi(
        &self,
        region: &Region,
        actions: Vec<RegionAction>,
        by: Deadline,
    ) -> Result<Vec<RegionActionResult>, Trouble> {
        let expected = actions.len();
        let request = MultiRequest { region_action: actions };
        let answer: MultiResponse = self
            .cluster
            .call(&region.server, CLIENT_SERVICE, "Multi", &request, by)
            .map_err(Trouble::Call)?;
        if answer.region_action_result.len() == expected {
            Ok(answer.region_action_result)
        } else {
            Err(protocol_violation())
        }
    }
}

/// The ways to take a lock. Each is decided by its Put: what fails behind that is `None`, and asked for
/// again by itself.
impl Native {
    fn take_alone(
        &self,
        region: &Region,
        take: &Take<'_>,
        prove: bool,
        by: Deadline,
    ) -> Result<Taken, Trouble> {
        let put = one_put(take.row, take.column, take.value, take.ttl);
        let mut actions = vec![conditional(region, holding(take.row, take.column, b""), vec![put])];
        if prove {
            actions.push(in_turn(region, vec![read(take)]));
        }
        let mut results = self.multi(region, actions, by)?.into_iter();
        let put = processed(&results.next().ok_or_else(protocol_violation)?)?;
        Ok(Taken { put, counted: None, found: results.next().and_then(|result| found(&result).ok()) })
    }

    /// The Put need not be synced: the count is written to the same log behind it, and is.
    fn take_with_count_beside(
        &self,
        region: &Region,
        take: &Take<'_>,
        count: Count<'_>,
        by: Deadline,
    ) -> Result<Taken, Trouble> {
        let put = logged(Log::Lazy, one_put(take.row, take.column, take.value, take.ttl));
        let mut behind = vec![changing(add_one(count))];
        behind.extend(take.prove.then(|| read(take)));
        let actions = vec![
            conditional(region, holding(take.row, take.column, b""), vec![put]),
            begin_counting(region, count),
            in_turn(region, behind),
        ];
        let results: [_; 3] =
            self.multi(region, actions, by)?.try_into().map_err(|_| protocol_violation())?;
        let [first, _, behind] = results;
        let put = processed(&first)?;
        let sum = counted(&behind).ok();
        Ok(Taken { put, counted: sum, found: if take.prove { found(&behind).ok() } else { None } })
    }

    fn take_with_count_within(
        &self,
        region: &Region,
        take: &Take<'_>,
        count: Count<'_>,
        by: Deadline,
    ) -> Result<Taken, Trouble> {
        let put = one_put(take.row, take.column, take.value, take.ttl);
        let both = vec![put, add_one(count)];
        let mut actions = vec![
            begin_counting(region, count),
            conditional(region, holding(take.row, take.column, b""), both),
        ];
        if take.prove {
            actions.push(in_turn(region, vec![read(take)]));
        }
        let mut results = self.multi(region, actions, by)?.into_iter().skip(1);
        let first = results.next().ok_or_else(protocol_violation)?;
        let put = processed(&first)?;
        let sum = if put { counted(&first).ok() } else { None };
        Ok(Taken { put, counted: sum, found: results.next().and_then(|result| found(&result).ok()) })
    }
}

impl Rows for Native {
    fn describe(&self) -> String {
        self.place.clone()
    }

    fn repeats_writes(&self) -> bool {
        false
    }

    fn get(&self, row: &[u8], column: Column, by: Deadline) -> Result<Option<Cell>> {
        self.on_region(Kind::Read, "Get", row, by, |region, by| {
            let request = GetRequest { region: region.specifier(), get: Some(one_get(row, column)) };
            let answer: GetResponse = self
                .cluster
                .call(&region.server, CLIENT_SERVICE, "Get", &request, by)
                .map_err(Trouble::Call)?;
            Ok(answer.result.and_then(|result| result.cell.first().map(cell)))
        })
    }

    fn check_and_put(&self, swap: &Swap<'_>, by: Deadline) -> Result<bool> {
        let Swap { row, column, expected, value, ttl, log, parts } = *swap;
        self.on_region(Kind::Write, "conditional Put", row, by, |region, by| {
            let by = part(by, parts);
            let put = logged(log, one_put(row, column, value, ttl));
            let results =
                self.multi(region, vec![conditional(region, holding(row, column, expected), vec![put])], by)?;
            let result = results.into_iter().next().ok_or_else(protocol_violation)?;
            processed(&result)
        })
    }

    fn count(&self, count: Count<'_>, by: Deadline) -> Result<i64> {
        self.on_region(Kind::Write, "counting", count.row, by, |region, by| {
            let actions =
                vec![begin_counting(region, count), in_turn(region, vec![changing(add_one(count))])];
            let results = self.multi(region, actions, by)?;
            counted(results.get(1).ok_or_else(protocol_violation)?)
        })
    }

    fn take(&self, take: &Take<'_>, by: Deadline) -> Result<Taken> {
        self.on_region(Kind::Write, "conditional Put with count and proof", take.row, by, |region, by| {
            match take.count {
                Some(count) if count.row == take.row => self.take_with_count_within(region, take, count, by),
                Some(count) if region.holds(count.row) => {
                    self.take_with_count_beside(region, take, count, by)
                }
                // A counter that a split has put into another region is counted by a call of its own, and
                // a proof from before the count would prove nothing.
                Some(_) => self.take_alone(region, take, false, by),
                None => self.take_alone(region, take, take.prove, by),
            }
        })
    }

    fn ensure_table(&self, family: &'static str, by: Deadline) -> Result<()> {
        self.create_table(family, by)
    }

    fn version(&self, by: Deadline) -> Result<Option<String>> {
        self.asked_version(by).map(Some)
    }

    fn examine_table(&self, family: &'static str, by: Deadline) -> Result<Option<Vec<String>>> {
        self.examined(family, by)
    }
}

/// A write may be sent again only if it was surely not applied, a read always.
fn may_be_sent_again(kind: Kind, trouble: &Trouble) -> bool {
    // Looking up is reading, whatever it is for.
    let (kind, failure) = match trouble {
        Trouble::Lookup(Lookup::NoTable) => return false,
        Trouble::Lookup(Lookup::NotServed | Lookup::Garbage) => return true,
        Trouble::Lookup(Lookup::Call(_, failure)) => (Kind::Read, failure),
        Trouble::Call(failure) => (kind, failure),
    };
    match failure {
        Failure::NotSent(_) => true,
        Failure::Lost(_) => kind != Kind::Write,
        Failure::Unwelcome(_) | Failure::TooLong(..) => false,
        Failure::Exception(exception) => match exception.reaction() {
            Reaction::Unknown => kind != Kind::Write && exception.may_pass(),
            _ => exception.may_pass(),
        },
    }
}

/// Whether the server may have run what it was sent, or may yet.
fn may_be_run(trouble: &Trouble) -> bool {
    match trouble {
        Trouble::Call(Failure::Lost(_) | Failure::TooLong(..)) => true,
        Trouble::Call(Failure::Exception(exception)) => exception.reaction() == Reaction::Unknown,
        Trouble::Call(Failure::NotSent(_) | Failure::Unwelcome(_)) | Trouble::Lookup(_) => false,
    }
}

/// The server did what it should not: nobody knows what it did besides.
fn protocol_violation() -> Trouble {
    let error =
        std::io::Error::new(std::io::ErrorKind::InvalidData, "an answer that does not fit the request");
    Trouble::Call(Failure::Lost(error))
}

fn one_get(row: &[u8], column: Column) -> Get {
    request::get(row, column.family.as_bytes(), &[column.qualifier.as_bytes()])
}

fn one_put(row: &[u8], column: Column, value: &[u8], ttl: Duration) -> MutationProto {
    let cell = (column.qualifier.as_bytes().to_vec(), value.to_vec());
    request::put(row, column.family.as_bytes(), [cell], Some(ttl))
}

/// The column holds `value`. An empty one stands for no cell as well.
fn holding(row: &[u8], column: Column, value: &[u8]) -> Condition {
    request::comparing(row, column.family.as_bytes(), column.qualifier.as_bytes(), EQUAL, value)
}

/// Makes the counter where there is none, one below its seed: whoever makes it counts right behind, and
/// that is synced.
fn begin_counting(region: &Region, count: Count<'_>) -> RegionAction {
    let below = count.seed.wrapping_sub(1).to_be_bytes();
    let put = logged(Log::Lazy, one_put(count.row, count.column, &below, count.ttl));
    conditional(region, holding(count.row, count.column, b""), vec![put])
}

fn add_one(count: Count<'_>) -> MutationProto {
    let Column { family, qualifier } = count.column;
    request::increment(count.row, family.as_bytes(), qualifier.as_bytes(), 1, Some(count.ttl))
}

fn read(take: &Take<'_>) -> Action {
    reading(one_get(take.row, take.column))
}

fn found(result: &RegionActionResult) -> Result<Option<Cell>, Trouble> {
    check(result)?;
    let last = result.result_or_exception.last().and_then(|part| part.result.as_ref());
    Ok(last.and_then(|result| result.cell.first()).map(cell))
}

fn cell(cell: &messages::Cell) -> Cell {
    Cell { value: cell.value.clone(), written_ms: cell.timestamp }
}
