//! The only module that uses the crate `aerospike`: single-record requests, and the meaning of their answers.
//!
//! The retries of the crate are switched off, so no write is sent twice blindly. A request that was not sent, or
//! that the servers refused without a change of the record, is sent again a few times. A write whose answer was
//! lost is IN_DOUBT, and the caller must find out what happened.
//!
//! | what | sent by |
//! |---|---|
//! | requests for one record without lists and maps | [`direct`], over our own connections |
//! | many changes at once, each of one record without lists and maps | [`batch`], over our own connections |
//! | the same with a login, TLS, other addresses of the nodes or strong consistency | the crate |
//! | all others, and finding the nodes | the crate |

mod batch;
mod convert;
mod direct;
mod expr;
mod expression;
mod failures;
mod msgpack;
mod node_sockets;
mod operation;
mod rest;
mod wire;

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aerospike::operations::Operation;
use aerospike::{
    AdminPolicy, AuthMode, BasePolicy, BatchOperation, BatchPolicy, BatchReadPolicy, Bin, Bins, ClientPolicy,
    Host, Key, PartitionFilter, QueryPolicy, ReadModeSc, ReadPolicy, ResultCode, Statement, TlsPolicy, Value,
    WritePolicy,
};

use self::convert::{base_policy, filter, found, operation, plain_put, wanted, write_policy};
use self::direct::{Direct, ManyAsked, NodePartitions};
pub(crate) use self::expr::Expr;
use self::failures::{Failed, Retry, StoreName, decisive, is_decisive};
pub(crate) use self::operation::{
    BinOperation, BinValue, FoundRecord, ManyWrite, OwnLease, RecordExistsAction, SetPart, Sign, TTL_KEPT,
    TTL_NEVER, When, Write, Written,
};
use self::wire::{Asked, RecordReply};
pub(crate) use self::wire::{PARTITIONS, RecordDigest};
use futures_core::Stream as _;

use super::keys::RecordKey;
use super::options::{Login, Setup};
use super::pool::{ClientPool, PooledClient};
use crate::error::{Code, Error, Result};
use crate::runtime::process::fork_pause::ForkPause;
use crate::runtime::time::{self, Deadline, Moment, jittered};
use crate::store::first_contact::{FirstContact, NoAnswer, Service};
use crate::store::request_kind::RequestKind;

/// See `tests/fuzz`.
#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    wire::read_all(bytes);
}

/// How often a request that certainly had no effect is sent at most, if a longer wait would not change the answer.
const SENDS: usize = 3;
/// Pause before a request is sent again, doubled each time.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);
/// Interval at which the crate checks the cluster while requests are in flight. A node that fails five checks
/// counts as gone.
const TEND_MS: u32 = 500;
/// Maximum number of records in one batch read.
const BATCH: usize = 1000;

pub(crate) struct Client {
    name: StoreName,
    strong_consistency: bool,
    seeds: Vec<Host>,
    policy: ClientPolicy,
    pool: ClientPool<aerospike::Client>,
    contact: FirstContact,
    /// `None` if only the crate can speak to the servers.
    direct: Option<Direct>,
}

/// The answer to a request. The inner error is a code that decides the result for the caller.
type Decided<T> = std::result::Result<T, ResultCode>;

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("uri", &self.name.uri).finish_non_exhaustive()
    }
}

impl Client {
    /// Creates the client. No I/O.
    pub(crate) fn new(setup: &Setup) -> Client {
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
            // Also applies to background work, which pauses between the requests of a rarely used pool member.
            timeout: 10_000,
            connect_timeout: millis(setup.connect_timeout),
            login_timeout: millis(setup.connect_timeout),
            tend_interval: TEND_MS,
            use_services_alternate: setup.services_alternate,
            ..ClientPolicy::default()
        };
        let is_plain = insecure
            && matches!(setup.login, Login::None)
            && !setup.services_alternate
            && !setup.strong_consistency;
        Client {
            direct: is_plain.then(|| Direct::new(&setup.namespace, setup.pool, setup.connect_timeout)),
            name: StoreName { uri: setup.uri.clone(), namespace: setup.namespace.clone() },
            strong_consistency: setup.strong_consistency,
            seeds: setup.seeds.iter().map(host).collect(),
            contact: {
                let peers = setup.seeds.iter().map(|seed| (seed.host.clone(), seed.port));
                FirstContact::new(Service::Aerospike, setup.security.is_some(), peers)
            },
            policy,
            pool: ClientPool::new(setup.pool, setup.security.is_some()),
        }
    }

    pub(crate) fn unsuitable(&self, what: &str) -> Error {
        self.name.of_namespace(what)
    }

    pub(crate) fn uri(&self) -> &str {
        &self.name.uri
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.name.namespace
    }

    /// See [`LockStore::greet`](crate::store::LockStore::greet). One node that answers is enough.
    pub(crate) fn greet(&self, by: Deadline) -> Result<()> {
        self.contact.greet(by, |by| {
            let hello = self.call_once(RequestKind::Read, "info", by, |client, left| async move {
                let (policy, mut answer) = (AdminPolicy { timeout: left }, Ok(()));
                for node in client.nodes() {
                    answer = node.info(&policy, &["build"]).await.map(drop);
                    if answer.is_ok() {
                        break;
                    }
                }
                answer
            });
            match hello {
                Ok(_) => Ok(()),
                // A node of a cluster that is forming, for which the next call waits, or one that refuses the login.
                Err(_) if !self.contact.has_answered() && self.contact.finds_the_store() => Ok(()),
                // Whether an address is wrong for good, the survey says.
                Err(Failed::For(error))
                    if error.code() != Code::ConnectionError
                        && !self.contact.has_answered()
                        && !by.passed() =>
                {
                    Err(NoAnswer::Final(error))
                }
                Err(failed) => Err(NoAnswer::Again(failed.into_error())),
            }
        })
    }

    /// Makes one change of one record.
    pub(crate) fn write(&self, write: &Write<'_>, by: Deadline) -> Result<Written> {
        let record_key = write.record_key;
        let answer = self.ask(RequestKind::Write, "write", record_key, Asked::Write(write), by, || {
            let key = &self.key(record_key)?;
            let puts: &Option<Vec<Bin>> = &write.steps.iter().map(plain_put).collect();
            self.call_once(RequestKind::Write, "write", by, |client, left| async move {
                let mut policy = write_policy(write, left);
                // Without a durable delete, a deleted record may come back from a disk, and a strongly consistent
                // namespace refuses to delete. The Community edition has neither feature.
                policy.durable_delete = client.is_strong_consistency(&self.name.namespace) == Some(true);
                match puts {
                    Some(bins) => client.put(&policy, key, bins).await.map(|()| FoundRecord::default()),
                    None => {
                        let steps: Vec<Operation> = write.steps.iter().map(operation).collect();
                        client.operate(&policy, key, &steps).await.map(|record| found(&record))
                    }
                }
            })
        })?;
        Ok(Client::written(answer))
    }

    fn written(answer: Decided<FoundRecord>) -> Written {
        match answer {
            Ok(reply) => Written::Done(reply),
            Err(ResultCode::KeyNotFoundError) => Written::Missing,
            Err(_) => Written::Refused,
        }
    }

    /// Makes many changes, each of another record. Calls `answered` with the position of each change, a moment before its
    /// request was sent, and its answer, as soon as that is known. None is sent again. One that is not answered was not
    /// sent, because the deadline came first.
    pub(crate) fn write_many(
        &self,
        writes: &[ManyWrite<'_>],
        by: Deadline,
        answered: &mut dyn FnMut(usize, Moment, Result<Written>),
    ) {
        let is_plain = writes.iter().all(|it| Asked::Write(&it.write).is_plain());
        let (kind, what) = (RequestKind::Write, "batch write");
        let rest = match self.direct.as_ref().filter(|_| is_plain) {
            Some(direct) => {
                let all: Vec<_> = writes
                    .iter()
                    .map(|ManyWrite { write, alone }| ManyAsked {
                        record_key: write.record_key,
                        asked: Asked::Write(write),
                        alone: *alone,
                    })
                    .collect();
                direct.ask_many(&all, by, |by| self.ask_nodes(by), &mut |at, since, reply| {
                    let decided = match reply {
                        Ok(reply) => self.decided(kind, what, reply),
                        Err(no_reply) => Err(self.name.without_reply(kind, what, no_reply)),
                    };
                    let answer = match decided {
                        Ok(decided) => Ok(Client::written(decided)),
                        Err(failed) => Err(failed.into_error()),
                    };
                    answered(at, since, answer);
                })
            }
            None => (0..writes.len()).collect(),
        };
        for at in rest {
            if by.passed() {
                return;
            }
            let since = Moment::now();
            answered(at, since, self.write(&writes[at].write, by));
        }
    }

    fn decided(
        &self,
        kind: RequestKind,
        what: &str,
        reply: RecordReply,
    ) -> std::result::Result<Decided<FoundRecord>, Failed> {
        match reply.code {
            0 => Ok(Ok(reply.found)),
            code => match ResultCode::from(code) {
                code if is_decisive(code) => Ok(Err(code)),
                code => Err(self.name.refused(kind, what, code)),
            },
        }
    }

    /// Deletes the record if it matches `when` and has not expired.
    pub(crate) fn delete(&self, record_key: &RecordKey, when: When<'_>, by: Deadline) -> Result<Written> {
        // As a step of a write. A plain delete would also accept a record that has expired but still exists.
        let write = Write {
            record_key,
            exists: RecordExistsAction::UpdateOnly,
            when: Some(when),
            steps: &[BinOperation::Delete],
            ttl_s: 0,
        };
        self.write(&write, by)
    }

    /// Reads these bins of the record, or all bins if `bins` is empty. Lists and maps are [`BinValue::Other`].
    pub(crate) fn read(
        &self,
        record_key: &RecordKey,
        bins: &[&str],
        by: Deadline,
    ) -> Result<Option<FoundRecord>> {
        let answer = self.ask(RequestKind::Read, "read", record_key, Asked::Read(bins), by, || {
            self.get(record_key, bins, by)
        })?;
        Ok(answer.ok())
    }

    /// Like [`read`](Client::read), also for lists and maps.
    pub(crate) fn read_with_collections(
        &self,
        record_key: &RecordKey,
        bins: &[&str],
        by: Deadline,
    ) -> Result<Option<FoundRecord>> {
        Ok(self.until_answered(by, || self.get(record_key, bins, by))?.ok())
    }

    fn get(
        &self,
        record_key: &RecordKey,
        bins: &[&str],
        by: Deadline,
    ) -> std::result::Result<Decided<FoundRecord>, Failed> {
        let key = &self.key(record_key)?;
        self.call_once(RequestKind::Read, "read", by, |client, left| async move {
            let policy = ReadPolicy { base_policy: self.read_policy(&client, left) };
            client.get(&policy, key, wanted(bins)).await.map(|record| found(&record))
        })
    }

    /// Returns the answers to these [`BinOperation::Read`] and [`BinOperation::ReadAge`]. `None` if there is no such
    /// record.
    pub(crate) fn read_steps(
        &self,
        record_key: &RecordKey,
        steps: &[BinOperation<'_>],
        by: Deadline,
    ) -> Result<Option<FoundRecord>> {
        let answer = self.ask(RequestKind::Read, "read", record_key, Asked::ReadSteps(steps), by, || {
            let key = &self.key(record_key)?;
            let steps: &Vec<Operation> = &steps.iter().map(operation).collect();
            self.call_once(RequestKind::Read, "read", by, |client, left| async move {
                let policy =
                    WritePolicy { base_policy: self.read_policy(&client, left), ..WritePolicy::default() };
                client.operate(&policy, key, steps).await.map(|record| found(&record))
            })
        })?;
        Ok(answer.ok())
    }

    /// Asks for [`read_steps`](Client::read_steps) of many records. Calls `answered` with the position of each record whose node
    /// answered, as soon as it did. The others have to be asked for one by one.
    pub(crate) fn read_steps_many(
        &self,
        record_keys: &[RecordKey],
        steps: &[BinOperation<'_>],
        by: Deadline,
        answered: &mut dyn FnMut(usize, Option<FoundRecord>),
    ) {
        let Some(direct) = &self.direct else { return };
        let row = |record_key| ManyAsked { record_key, asked: Asked::ReadSteps(steps), alone: false };
        let all: Vec<_> = record_keys.iter().map(row).collect();
        direct.ask_many(&all, by, |by| self.ask_nodes(by), &mut |at, _, reply| {
            let decided =
                reply.ok().and_then(|reply| self.decided(RequestKind::Read, "batch read", reply).ok());
            if let Some(decided) = decided {
                answered(at, decided.ok());
            }
        });
    }

    /// Reads many records, in the order of `asked`, each with its own bins.
    ///
    /// # Errors
    /// The outer error if none could be read. A failure that may pass is RETRIES_EXHAUSTED or CONNECTION_ERROR:
    /// waiting callers then continue to wait.
    pub(crate) fn read_many(
        &self,
        asked: &[(RecordKey, Vec<&str>)],
        by: Deadline,
    ) -> Result<Vec<Result<Option<FoundRecord>>>> {
        let mut all = Vec::with_capacity(asked.len());
        for part in asked.chunks(BATCH) {
            let keys: Vec<Key> =
                part.iter().map(|(record_key, _)| self.key(record_key)).collect::<Result<_>>()?;
            let keys = &keys;
            let answer = self.call(RequestKind::Read, "batch read", by, |client, left| async move {
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
                .map_err(|error| self.name.not_yet_there(error))?
                .map_err(|code| self.name.odd("batch read", code))?;
            all.extend(rows.iter().map(|row| match (row.record(), row.result_code()) {
                (Some(record), _) => Ok(Some(found(record))),
                (None, Some(ResultCode::KeyNotFoundError)) => Ok(None),
                // The crate reports the failure of one record only in its row, even if a node has gone.
                (None, code) => {
                    Err(self.name.row_failed("batch read", code.unwrap_or(ResultCode::ServerError)))
                }
            }));
        }
        Ok(all)
    }

    /// Counts the records of the set that meet the condition, `most` at most. Also returns the longest remaining life
    /// of those that it counted.
    pub(crate) fn count(
        &self,
        set: &str,
        when: &When<'_>,
        most: u64,
        by: Deadline,
    ) -> Result<(u64, Option<Duration>)> {
        let answer = self.call(RequestKind::Read, "query", by, |client, left| async move {
            let base_policy = base_policy(left, Some(filter(when)));
            let policy = QueryPolicy {
                base_policy,
                max_records: most,
                include_bin_data: false,
                ..QueryPolicy::default()
            };
            let statement = Statement::new(self.name.namespace.as_str(), set, Bins::None);
            let found = client.query(&policy, PartitionFilter::all(), statement).await?;
            let mut records = pin!(found.into_stream());
            let (mut count, mut left) = (0, None);
            while let Some(record) = poll_fn(|context| records.as_mut().poll_next(context)).await {
                count += 1;
                left = left.max(record?.time_to_live());
            }
            Ok((count, left))
        })?;
        answer.map_err(|code| self.name.odd("query", code))
    }

    /// Reads all records of a part of a set that meet the condition, with all their bins and the digests of their keys. A
    /// record is read once, unless its partition moves to another node meanwhile.
    pub(crate) fn read_part(
        &self,
        part: &SetPart<'_>,
        when: &When<'_>,
        by: Deadline,
    ) -> Result<Vec<([u8; 20], FoundRecord)>> {
        let answer = self.call(RequestKind::Read, "query", by, |client, left| async move {
            let policy =
                QueryPolicy { base_policy: base_policy(left, Some(filter(when))), ..QueryPolicy::default() };
            let statement = Statement::new(self.name.namespace.as_str(), part.set, Bins::All);
            let partitions = PartitionFilter::by_range(part.begin, part.count);
            let records = client.query(&policy, partitions, statement).await?;
            let (mut records, mut all) = (pin!(records.into_stream()), Vec::new());
            while let Some(record) = poll_fn(|context| records.as_mut().poll_next(context)).await {
                let record = record?;
                if let Some(key) = &record.key {
                    all.push((key.digest(), found(&record)));
                }
            }
            Ok(all)
        })?;
        answer.map_err(|code| self.name.odd("query", code))
    }

    /// Sends the same info questions to every node. Returns each node's name and its answers in the order of
    /// `questions`.
    pub(crate) fn info(&self, questions: &[&str], by: Deadline) -> Result<Vec<(String, Vec<String>)>> {
        let answer = self.call(RequestKind::Read, "info", by, |client, left| async move {
            let policy = AdminPolicy { timeout: left };
            let mut per_node = Vec::new();
            for node in client.nodes() {
                let answers = node.info(&policy, questions).await?;
                let answers = questions.iter().map(|question| answers.get(*question).cloned());
                per_node.push((node.name().to_owned(), answers.map(Option::unwrap_or_default).collect()));
            }
            Ok(per_node)
        })?;
        answer.map_err(|code| self.name.odd("info", code))
    }

    fn read_policy(&self, client: &aerospike::Client, left_ms: u32) -> BasePolicy {
        let mut policy = base_policy(left_ms, None);
        // Community servers refuse a batch that asks for it.
        if client.is_strong_consistency(&self.name.namespace) == Some(true) {
            policy.read_mode_sc = ReadModeSc::Linearize;
        }
        policy
    }

    fn key(&self, record_key: &RecordKey) -> Result<Key> {
        let key = Key::new(
            self.name.namespace.as_str(),
            record_key.set.as_str(),
            Value::String(record_key.key.clone()),
        );
        key.map_err(|error| Error::Internal { what: "a key was refused".into(), source: Some(error.into()) })
    }

    /// Sends a request for one record over our own connections if they can be used, and otherwise with `by_crate`.
    fn ask(
        &self,
        kind: RequestKind,
        what: &str,
        record_key: &RecordKey,
        asked: Asked<'_>,
        by: Deadline,
        by_crate: impl Fn() -> std::result::Result<Decided<FoundRecord>, Failed>,
    ) -> Result<Decided<FoundRecord>> {
        let direct = self.direct.as_ref().filter(|_| asked.is_plain());
        self.until_answered(by, || {
            let limit =
                Deadline::after(Duration::from_millis(self.limit_ms(kind, what, by)?.into())).sooner(by);
            let reply =
                direct.and_then(|direct| direct.ask(record_key, asked, limit, |by| self.ask_nodes(by)));
            let Some(reply) = reply else { return by_crate() };
            match reply {
                Ok(reply) => self.decided(kind, what, reply),
                Err(no_reply) => Err(self.name.without_reply(kind, what, no_reply)),
            }
        })
    }

    /// Asks each node that the crate knows for its partitions. Leaves out those that do not answer.
    fn ask_nodes(&self, by: Deadline) -> Vec<NodePartitions> {
        let Ok(pooled) = self.pool.lend() else { return Vec::new() };
        let Ok(client) = self.client(&pooled, by) else { return Vec::new() };
        let asked = pooled.drive(async {
            let (nodes, mut per_node, mut all) = (client.nodes(), Vec::new(), true);
            for node in &nodes {
                let left = left_ms(by).unwrap_or(1) / nodes.len() as u32;
                match node.info(&AdminPolicy { timeout: left.max(1) }, &["replicas"]).await {
                    Ok(mut answers) => per_node.push(NodePartitions {
                        address: node.address().to_owned(),
                        replicas: answers.swap_remove("replicas").unwrap_or_default(),
                    }),
                    Err(_) => all = false,
                }
            }
            (per_node, all)
        });
        let (per_node, all) = asked.unwrap_or_default();
        if !all {
            // The client's view of the cluster may be old.
            pooled.discard();
        }
        per_node
    }

    /// Sends one request with the crate. `request` receives a client and its time limit in milliseconds.
    fn call<T: Send, F>(
        &self,
        kind: RequestKind,
        what: &str,
        by: Deadline,
        request: impl Fn(Arc<aerospike::Client>, u32) -> F,
    ) -> Result<Decided<T>>
    where
        F: Future<Output = aerospike::Result<T>> + Send,
    {
        self.until_answered(by, || self.call_once(kind, what, by, &request))
    }

    fn call_once<T: Send, F>(
        &self,
        kind: RequestKind,
        what: &str,
        by: Deadline,
        request: impl Fn(Arc<aerospike::Client>, u32) -> F,
    ) -> std::result::Result<Decided<T>, Failed>
    where
        F: Future<Output = aerospike::Result<T>> + Send,
    {
        let pooled = self.pool.lend()?;
        let client = self.client(&pooled, by)?;
        let limit = self.limit_ms(kind, what, by)?;
        match pooled.drive(request(client, limit)) {
            Some(Ok(answer)) => Ok(Ok(answer)),
            Some(Err(error)) => match decisive(&error) {
                Some(code) => Ok(Err(code)),
                None => Err(self.name.failed(kind, what, error, &pooled)),
            },
            None => {
                pooled.discard();
                Err(Failed::For(self.name.panicked(kind, what)))
            }
        }
    }

    /// Returns the time limit for one request in milliseconds.
    fn limit_ms(&self, kind: RequestKind, what: &str, by: Deadline) -> std::result::Result<u32, Failed> {
        let left = left_ms(by).ok_or_else(|| self.name.late(what))?;
        // A node that lost its partner node holds writes back while it waits for the partner. Keep half of
        // the time to find out what happened to the write.
        Ok(if kind == RequestKind::Write { left.div_ceil(2) } else { left })
    }

    /// Sends a request until it has an answer or may not be sent again.
    fn until_answered<T>(
        &self,
        by: Deadline,
        send: impl Fn() -> std::result::Result<Decided<T>, Failed>,
    ) -> Result<Decided<T>> {
        let (mut sends, mut pause, mut failure) = (1, PAUSE, None);
        loop {
            match send() {
                Ok(answer) => return Ok(answer),
                Err(Failed::For(error)) => return Err(error),
                // Why a try before this one failed says more, and so does what was found at the addresses: the time may
                // have gone by while nodes were asked for their partitions.
                Err(Failed::Late(error)) => return Err(failure.unwrap_or_else(|| self.contact.named(error))),
                Err(Failed::Again { error, retry }) => {
                    if by.remaining() <= pause || (retry == Retry::Soon && sends == SENDS) {
                        return Err(error);
                    }
                    // The first retry after a connection error has no pause: the connection may just be too old.
                    if sends > 1 || retry == Retry::Soon {
                        time::sleep(jittered(pause));
                        pause = (pause * 2).min(PAUSE_LONGEST);
                    }
                    (sends, failure) = (sends + 1, Some(error));
                }
            }
        }
    }

    /// Returns the member's client. Connects if it has none.
    fn client(
        &self,
        pooled: &PooledClient<'_, aerospike::Client>,
        by: Deadline,
    ) -> std::result::Result<Arc<aerospike::Client>, Failed> {
        let client = match pooled.client() {
            Some(client) => client,
            None => {
                let left =
                    Duration::from_millis(left_ms(by).ok_or_else(|| self.name.late("connect"))?.into());
                let connect = async {
                    let mut connect = pin!(aerospike::Client::new(&self.policy, &self.seeds));
                    // While it connects, the crate fills `static` variables of its own.
                    let connect = poll_fn(|context| {
                        let _pause = ForkPause::new();
                        connect.as_mut().poll(context)
                    });
                    tokio::time::timeout(left, connect).await
                };
                let connected = pooled.drive(connect);
                match connected {
                    Some(Ok(Ok(client))) => {
                        self.contact.answered();
                        pooled.adopt(client)
                    }
                    Some(Ok(Err(error))) => {
                        return Err(self.contact.named(self.name.unreachable(&error)).into());
                    }
                    Some(Err(_)) => return Err(self.contact.named(self.name.unconnected()).into()),
                    None => return Err(self.name.panicked(RequestKind::Read, "connect").into()),
                }
            }
        };
        if self.strong_consistency && client.is_strong_consistency(&self.name.namespace) == Some(false) {
            return Err(self.name.of_namespace(
                "is not strongly consistent, but strong_consistency=require needs that: set \
                 `strong-consistency true` in its configuration (Enterprise edition), or leave the option out",
            )
            .into());
        }
        Ok(client)
    }
}

/// Returns the time left in milliseconds, at least one. `None` if no time is left.
fn left_ms(by: Deadline) -> Option<u32> {
    let left = by.remaining();
    (!left.is_zero()).then(|| u32::try_from(left.as_millis()).unwrap_or(u32::MAX / 2).max(1))
}
