//! The only module that knows the crate `aerospike`: single-record requests, and what their answers mean.
//!
//! Nothing is ever sent twice blindly: the crate makes no retries here. What was not sent, and what the
//! servers refused without touching the record, is sent again a few times; a write whose answer was lost
//! is IN_DOUBT, and for the caller to settle.

mod failures;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aerospike::expressions::{self as exp, ExpType, Expression};
use aerospike::operations::exp::{ExpWriteFlags, write_exp};
use aerospike::operations::maps::{self, MapOrder};
use aerospike::operations::{Operation, scalar};
use aerospike::{
    AdminPolicy, AuthMode, BasePolicy, BatchOperation, BatchPolicy, BatchReadPolicy, Bin, Bins, ClientPolicy,
    CommitLevel, Expiration, Host, Key, MapPolicy, MapReturnType, MapWriteFlags, ReadModeAp, ReadModeSc,
    ReadPolicy, Record, RecordExistsAction, Replica, ResultCode, TlsPolicy, Value, WritePolicy,
};

use self::failures::{Failed, Retry, decisive};
use super::lanes::{Lanes, Lent};
use super::options::{Login, Setup};
use super::place::Spot;
use crate::error::{Error, Result};
use crate::time::{Deadline, jittered};

/// A request that surely had no effect is sent this often at the most, where waiting for longer would not
/// change the answer.
const SENDS: usize = 3;
/// Pause before a request is sent again, doubled each time.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);
/// How often the crate looks after the cluster while requests are under way. Five looks in vain, and a
/// node counts as gone.
const TEND_MS: u32 = 500;
/// Records asked for in one request.
const BATCH: usize = 1000;

/// A value in a bin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Datum {
    Int(i64),
    Bytes(Vec<u8>),
    Text(String),
    List(Vec<Datum>),
    Map(Vec<(Datum, Datum)>),
    /// Nothing that we write.
    Other,
}

/// As a [`Write::ttl_s`]: the record lives for as long as it would have.
pub(super) const TTL_KEPT: u32 = u32::MAX - 1;
/// As a [`Write::ttl_s`]: the record does not expire.
pub(super) const TTL_NEVER: u32 = u32::MAX;

/// One change of a record: all of it or nothing.
pub(super) struct Write<'a> {
    pub(super) spot: &'a Spot,
    pub(super) exists: Exists,
    pub(super) when: Option<When<'a>>,
    pub(super) steps: &'a [Change<'a>],
    /// The record's whole life from now on, [`TTL_KEPT`] or [`TTL_NEVER`].
    pub(super) ttl_s: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exists {
    Must,
    MustNot,
    /// Created where it is not there.
    May,
}

/// What a record that is there must look like for the change to happen.
pub(super) enum When<'a> {
    Is(&'a str, &'a [u8]),
    /// As `Is`, and the record has at the most `left_s` seconds left, so that giving it as many does not
    /// make its life shorter.
    IsNoLonger {
        bin: &'a str,
        bytes: &'a [u8],
        left_s: u32,
    },
    Lacks(&'a str),
    /// The bin `has` is there, and the bin `lacks` is not.
    HasLacks {
        has: &'a str,
        lacks: &'a str,
    },
    /// The bin `has` is there, the bin `is` holds these bytes, and the map in the bin `map` has no such
    /// `key`.
    LacksKey {
        has: &'a str,
        is: (&'a str, &'a [u8]),
        map: &'a str,
        key: &'a Datum,
    },
    /// None of these bins is there.
    LacksAll([&'a str; 3]),
    /// The bin `of` holds this text, the bin `fence` this number or a lower one, and the bin `marks` these
    /// bytes.
    Guarded {
        of: (&'a str, &'a str),
        fence: (&'a str, i64),
        marks: (&'a str, &'a [u8]),
    },
    /// The bin is not there, or holds an integer to which so much can be added.
    CanAdd(&'a str, i64),
    Both(Box<[When<'a>; 2]>),
}

pub(super) enum Change<'a> {
    Put(&'a str, Datum),
    Add(&'a str, i64),
    /// The bin becomes one more, and at the least so much.
    Raise(&'a str, i64),
    MapPut(&'a str, Datum, Datum),
    MapDrop(&'a str, Vec<Datum>),
    /// Answer the number in this bin, as it is after the changes before.
    Tell(&'a str),
    /// The bin goes.
    Drop(&'a str),
    /// The record goes.
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// It happened; what [`Change::Tell`] asked for.
    Done(Option<i64>),
    /// There is no such record.
    Missing,
    /// The record is there, and was to be new or to look otherwise. Nothing was changed.
    Refused,
}

/// A record that was read.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) bins: Vec<(String, Datum)>,
    /// How long it has left, in whole seconds, by our clock.
    pub(super) left: Option<Duration>,
}

impl Found {
    pub(super) fn bin(&self, name: &str) -> Option<&Datum> {
        self.bins.iter().find(|(bin, _)| bin == name).map(|(_, datum)| datum)
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        match self.bin(name) {
            Some(&Datum::Int(number)) => Some(number),
            _ => None,
        }
    }

    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        match self.bin(name) {
            Some(Datum::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

/// Whether a request changes anything: decides what a lost answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

pub(super) struct Client {
    namespace: String,
    place: String,
    strong_consistency: bool,
    seeds: Vec<Host>,
    policy: ClientPolicy,
    lanes: Lanes<aerospike::Client>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Client {
    /// No I/O.
    pub(super) fn new(setup: &Setup) -> Client {
        let host = |seed: &super::options::Seed| match (&setup.security, &setup.tls_name) {
            (None, _) => Host::new(&seed.host, seed.port),
            (Some(_), name) => Host::new_tls(&seed.host, name.as_deref().unwrap_or(&seed.host), seed.port),
        };
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let insecure = setup.security.is_none();
        let policy = ClientPolicy {
            auth_mode: match setup.login.clone() {
                Login::None => AuthMode::None,
                Login::Internal(user, password) => AuthMode::Internal(user, password),
                Login::External(user, password) if insecure => AuthMode::ExternalInsecure(user, password),
                Login::External(user, password) => AuthMode::External(user, password),
                Login::Certificate => AuthMode::Pki,
            },
            tls_policy: setup.security.as_ref().map(|config| TlsPolicy::new(Arc::clone(config))),
            // Also of what goes on between two requests of a lane that is little used.
            timeout: 10_000,
            connect_timeout: millis(setup.connect_timeout),
            login_timeout: millis(setup.connect_timeout),
            tend_interval: TEND_MS,
            use_services_alternate: setup.services_alternate,
            ..ClientPolicy::default()
        };
        Client {
            namespace: setup.namespace.clone(),
            place: setup.place.clone(),
            strong_consistency: setup.strong_consistency,
            seeds: setup.seeds.iter().map(host).collect(),
            policy,
            lanes: Lanes::new(setup.lanes, setup.security.is_some()),
        }
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Makes one change of one record.
    pub(super) fn write(&self, write: &Write<'_>, by: Deadline) -> Result<Written> {
        let key = self.key(write.spot)?;
        let puts: Option<Vec<Bin>> = write.steps.iter().map(plain_put).collect();
        let steps: Vec<Operation> =
            if puts.is_some() { Vec::new() } else { write.steps.iter().map(operation).collect() };
        let (key, puts, steps) = (&key, &puts, &steps);
        let answer = self.call(Kind::Write, "write", by, |client, left| async move {
            let mut policy = write_policy(write, left);
            // Without it a deleted record may come back from a disk, and a strongly consistent
            // namespace refuses to delete. The Community edition has neither.
            policy.durable_delete = client.is_strong_consistency(&self.namespace) == Some(true);
            match puts {
                Some(bins) => client.put(&policy, key, bins).await.map(|()| None),
                None => client.operate(&policy, key, steps).await.map(|record| told(&record, write.steps)),
            }
        })?;
        match answer {
            Ok(told) => Ok(Written::Done(told)),
            Err(ResultCode::KeyNotFoundError) => Ok(Written::Missing),
            Err(_) => Ok(Written::Refused),
        }
    }

    /// Deletes the record if it looks so and has not expired.
    pub(super) fn delete(&self, spot: &Spot, when: When<'_>, by: Deadline) -> Result<Written> {
        // As a step of a write: a plain delete takes also what has expired and was not swept out yet.
        let write =
            Write { spot, exists: Exists::Must, when: Some(when), steps: &[Change::Delete], ttl_s: 0 };
        self.write(&write, by)
    }

    /// Reads these bins of the record; all of them if none are named.
    pub(super) fn read(&self, spot: &Spot, bins: &[&str], by: Deadline) -> Result<Option<Found>> {
        let key = &self.key(spot)?;
        let answer = self.call(Kind::Read, "read", by, |client, left| async move {
            let policy = ReadPolicy { base_policy: self.read_policy(&client, left) };
            client.get(&policy, key, wanted(bins)).await
        })?;
        match answer {
            Ok(record) => Ok(Some(found(&record))),
            Err(_) => Ok(None),
        }
    }

    /// Reads many records, in their order: each with the bins wanted of it.
    ///
    /// # Errors
    /// The outer one when none could be read. A failure that may pass is RETRIES_EXHAUSTED or
    /// CONNECTION_ERROR: callers that wait go on then.
    pub(super) fn read_many(
        &self,
        asked: &[(Spot, Vec<&str>)],
        by: Deadline,
    ) -> Result<Vec<Result<Option<Found>>>> {
        let mut all = Vec::with_capacity(asked.len());
        for part in asked.chunks(BATCH) {
            let keys: Vec<Key> = part.iter().map(|(spot, _)| self.key(spot)).collect::<Result<_>>()?;
            let keys = &keys;
            let answer = self.call(Kind::Read, "batch read", by, |client, left| async move {
                let policy =
                    BatchPolicy { base_policy: self.read_policy(&client, left), ..BatchPolicy::default() };
                let each = BatchReadPolicy::default();
                let rows = keys.iter().zip(part);
                let mut rows: Vec<_> = rows
                    .map(|(key, (_, bins))| BatchOperation::read(&each, key.clone(), wanted(bins)))
                    .collect();
                client.batch(&policy, &mut rows).await.map(|()| rows)
            });
            let rows = answer
                .map_err(|error| self.not_yet_there(error))?
                .map_err(|code| self.odd("batch read", code))?;
            all.extend(rows.iter().map(|row| match (row.record(), row.result_code()) {
                (Some(record), _) => Ok(Some(found(record))),
                (None, Some(ResultCode::KeyNotFoundError)) => Ok(None),
                // The crate leaves failures of single rows to them, also that a node has gone.
                (None, code) => Err(self.row_failed("batch read", code.unwrap_or(ResultCode::ServerError))),
            }));
        }
        Ok(all)
    }

    /// Asks every node for the same facts: its name, then its answers in the order of `questions`.
    pub(super) fn info(&self, questions: &[&str], by: Deadline) -> Result<Vec<(String, Vec<String>)>> {
        let answer = self.call(Kind::Read, "info", by, |client, left| async move {
            let policy = AdminPolicy { timeout: left };
            let mut told = Vec::new();
            for node in client.nodes() {
                let answers = node.info(&policy, questions).await?;
                let answers = questions.iter().map(|question| answers.get(*question).cloned());
                told.push((node.name().to_owned(), answers.map(Option::unwrap_or_default).collect()));
            }
            Ok(told)
        })?;
        answer.map_err(|code| self.odd("info", code))
    }

    fn read_policy(&self, client: &aerospike::Client, left_ms: u32) -> BasePolicy {
        let mut policy = base_policy(left_ms, None);
        // Community servers refuse a batch that asks for it.
        if client.is_strong_consistency(&self.namespace) == Some(true) {
            policy.read_mode_sc = ReadModeSc::Linearize;
        }
        policy
    }

    fn key(&self, spot: &Spot) -> Result<Key> {
        let key = Key::new(self.namespace.as_str(), spot.set.as_str(), Value::String(spot.key.clone()));
        key.map_err(|error| Error::Internal { what: "a key was refused".into(), source: Some(error.into()) })
    }

    /// Makes one request, and gives the codes on which its caller decides as the inner answer. The
    /// closure gets the milliseconds it has.
    fn call<T: Send, F>(
        &self,
        kind: Kind,
        what: &str,
        by: Deadline,
        request: impl Fn(Arc<aerospike::Client>, u32) -> F,
    ) -> Result<std::result::Result<T, ResultCode>>
    where
        F: Future<Output = aerospike::Result<T>> + Send,
    {
        let (mut sends, mut pause) = (1, PAUSE);
        loop {
            let lent = self.lanes.lend()?;
            let client = self.client(&lent, by)?;
            let Some(left) = left_ms(by) else { return Err(self.late(what)) };
            // A node that lost its partner holds writes back for as long as it waits for that one: time must
            // be left to find out what became of them.
            let left = if kind == Kind::Write { left.div_ceil(2) } else { left };
            let failed = match lent.drive(request(client, left)) {
                Some(Ok(answer)) => return Ok(Ok(answer)),
                Some(Err(error)) => match decisive(&error) {
                    Some(code) => return Ok(Err(code)),
                    None => self.failed(kind, what, error, &lent),
                },
                None => {
                    lent.discard();
                    Failed::For(self.panicked(kind, what))
                }
            };
            drop(lent);
            match failed {
                Failed::For(error) => return Err(error),
                Failed::Again { error, retry } => {
                    if by.remaining() <= pause || (retry == Retry::Soon && sends == SENDS) {
                        return Err(error);
                    }
                    // A connection that had only grown old is replaced at once.
                    if sends > 1 || retry == Retry::Soon {
                        std::thread::sleep(jittered(pause));
                        pause = (pause * 2).min(PAUSE_LONGEST);
                    }
                    sends += 1;
                }
            }
        }
    }

    /// The lane's client; a new one where there is none.
    fn client(&self, lent: &Lent<'_, aerospike::Client>, by: Deadline) -> Result<Arc<aerospike::Client>> {
        let client = match lent.client() {
            Some(client) => client,
            None => {
                let left = Duration::from_millis(left_ms(by).ok_or_else(|| self.late("connect"))?.into());
                let connect = async { aerospike::Client::new(&self.policy, &self.seeds).await };
                let connected = lent.drive(async { tokio::time::timeout(left, connect).await });
                match connected {
                    Some(Ok(Ok(client))) => lent.adopt(client),
                    Some(Ok(Err(error))) => return Err(self.unreachable(&error)),
                    Some(Err(_)) => return Err(self.late("connect")),
                    None => return Err(self.panicked(Kind::Read, "connect")),
                }
            }
        };
        if self.strong_consistency && client.is_strong_consistency(&self.namespace) == Some(false) {
            return Err(self.of_namespace(
                "is not strongly consistent, and strong_consistency=require was asked for: set \
                 `strong-consistency true` in its configuration (Enterprise edition), or leave the option out",
            ));
        }
        Ok(client)
    }
}

/// What is left, as the crate wants it: at least one millisecond. `None`: nothing.
fn left_ms(by: Deadline) -> Option<u32> {
    let left = by.remaining();
    (!left.is_zero()).then(|| u32::try_from(left.as_millis()).unwrap_or(u32::MAX / 2).max(1))
}

/// Reads see what the last acknowledged write left; nothing is retried inside the crate.
fn base_policy(left_ms: u32, filter: Option<Expression>) -> BasePolicy {
    BasePolicy {
        read_mode_ap: ReadModeAp::All,
        replica: Replica::Master,
        socket_timeout: left_ms,
        total_timeout: left_ms,
        max_retries: 0,
        filter_expression: filter,
        ..BasePolicy::default()
    }
}

fn write_policy(write: &Write<'_>, left_ms: u32) -> WritePolicy {
    WritePolicy {
        base_policy: base_policy(left_ms, write.when.as_ref().map(filter)),
        record_exists_action: match write.exists {
            Exists::Must => RecordExistsAction::UpdateOnly,
            Exists::MustNot => RecordExistsAction::CreateOnly,
            Exists::May => RecordExistsAction::Update,
        },
        commit_level: CommitLevel::CommitAll,
        expiration: match write.ttl_s {
            TTL_KEPT => Expiration::DontUpdate,
            TTL_NEVER => Expiration::Never,
            seconds => Expiration::Seconds(seconds),
        },
        ..WritePolicy::default()
    }
}

fn filter(when: &When<'_>) -> Expression {
    match when {
        When::Is(bin, bytes) => exp::eq(exp::blob_bin(*bin), exp::blob_val(bytes.to_vec())),
        When::IsNoLonger { bin, bytes, left_s } => exp::and(vec![
            filter(&When::Is(bin, bytes)),
            // Whole seconds by the clock that the write will count from: equal ones give the end that
            // stands already. Below zero is a record that never expires.
            exp::ge(exp::ttl(), exp::int_val(0)),
            exp::le(exp::ttl(), exp::int_val(i64::from(*left_s))),
        ]),
        When::Lacks(bin) => exp::not(exp::bin_exists(*bin)),
        When::HasLacks { has, lacks } => exp::and(vec![exp::bin_exists(*has), filter(&When::Lacks(lacks))]),
        When::LacksKey { has, is: (marked, mark), map, key } => {
            let key = match key {
                Datum::Text(text) => exp::string_val(text.as_str()),
                Datum::Bytes(bytes) => exp::blob_val(bytes.clone()),
                other => unreachable!("no map has such keys: {other:?}"),
            };
            let bin = exp::map_bin(*map);
            let found =
                aerospike::expressions::maps::get_by_key(MapReturnType::COUNT, ExpType::Int, key, bin, &[]);
            let lacks = exp::or(vec![exp::not(exp::bin_exists(*map)), exp::eq(found, exp::int_val(0))]);
            exp::and(vec![exp::bin_exists(*has), filter(&When::Is(marked, mark)), lacks])
        }
        When::LacksAll(bins) => exp::and(bins.iter().map(|bin| filter(&When::Lacks(bin))).collect()),
        When::Guarded { of: (of, name), fence: (fence, number), marks: (marks, bytes) } => exp::and(vec![
            exp::eq(exp::string_bin(*of), exp::string_val(*name)),
            exp::le(exp::int_bin(*fence), exp::int_val(*number)),
            filter(&When::Is(marks, bytes)),
        ]),
        When::CanAdd(bin, by) => {
            // The servers wrap around. In a bin of another type neither comparison holds.
            let bounded = match i64::MAX.checked_sub(*by) {
                Some(most) if *by >= 0 => exp::le(exp::int_bin(*bin), exp::int_val(most)),
                _ => exp::ge(exp::int_bin(*bin), exp::int_val(i64::MIN - *by)),
            };
            exp::or(vec![filter(&When::Lacks(bin)), bounded])
        }
        When::Both(both) => exp::and(both.iter().map(filter).collect()),
    }
}

fn plain_put(step: &Change<'_>) -> Option<Bin> {
    match step {
        Change::Put(bin, datum) => Some(Bin::new(*bin, value(datum))),
        Change::Drop(bin) => Some(Bin::new(*bin, Value::Nil)),
        _ => None,
    }
}

fn operation(step: &Change<'_>) -> Operation {
    const IN_KEY_ORDER: MapPolicy = MapPolicy::new(MapOrder::KeyOrdered, MapWriteFlags::DEFAULT);
    match step {
        Change::Put(bin, datum) => scalar::put(&Bin::new(*bin, value(datum))),
        Change::Add(bin, number) => scalar::add(&Bin::new(*bin, Value::Int(*number))),
        Change::Raise(bin, least) => {
            let next = exp::num_add(vec![exp::int_bin(*bin), exp::int_val(1)]);
            let raised = exp::max(vec![next, exp::int_val(*least)]);
            let first = exp::int_val(*least);
            let number = exp::cond(vec![exp::bin_exists(*bin), raised, first]);
            write_exp(*bin, number, ExpWriteFlags::DEFAULT)
        }
        Change::MapPut(bin, key, datum) => maps::put(&IN_KEY_ORDER, *bin, value(key), value(datum)),
        Change::MapDrop(bin, keys) => {
            maps::remove_by_key_list(*bin, keys.iter().map(value).collect(), MapReturnType::NONE)
        }
        Change::Tell(bin) => scalar::get_bin(*bin),
        Change::Drop(bin) => scalar::put(&Bin::new(*bin, Value::Nil)),
        Change::Delete => scalar::delete(),
    }
}

/// The number in the bin that was asked about: of several answers for one bin, the last.
fn told(record: &Record, steps: &[Change<'_>]) -> Option<i64> {
    let asked = steps.iter().find_map(|step| match step {
        Change::Tell(bin) => Some(*bin),
        _ => None,
    })?;
    let number = |answer: &Value| match answer {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    match record.bins.get(asked)? {
        Value::MultiResult(answers) => answers.iter().rev().find_map(number),
        answer => number(answer),
    }
}

fn wanted(bins: &[&str]) -> Bins {
    if bins.is_empty() { Bins::All } else { Bins::from(bins) }
}

fn found(record: &Record) -> Found {
    Found {
        bins: record.bins.iter().map(|(name, value)| (name.clone(), datum(value))).collect(),
        left: record.time_to_live(),
    }
}

fn value(datum: &Datum) -> Value {
    match datum {
        Datum::Int(number) => Value::Int(*number),
        Datum::Bytes(bytes) => Value::Blob(bytes.clone()),
        Datum::Text(text) => Value::String(text.clone()),
        Datum::List(items) => Value::List(items.iter().map(value).collect()),
        Datum::Map(entries) => {
            Value::SortedMap(entries.iter().map(|(key, item)| (value(key), value(item))).collect())
        }
        Datum::Other => Value::Nil,
    }
}

fn datum(value: &Value) -> Datum {
    let pair = |(key, item): (&Value, &Value)| (datum(key), datum(item));
    match value {
        Value::Int(number) => Datum::Int(*number),
        Value::Blob(bytes) => Datum::Bytes(bytes.clone()),
        Value::String(text) => Datum::Text(text.clone()),
        Value::List(items) => Datum::List(items.iter().map(datum).collect()),
        Value::HashMap(map) => Datum::Map(map.iter().map(pair).collect()),
        Value::OrderedMap(map) => Datum::Map(map.iter().map(pair).collect()),
        Value::SortedMap(map) => Datum::Map(map.iter().map(pair).collect()),
        _ => Datum::Other,
    }
}
