//! Records of applications that refuse writes with a stale fence: see [`crate::aerospike`].
//!
//! ```text
//! first change   read the record; create it, or change it if it is still as read
//! later changes  change it if the last change is still ours
//! refused        read: fail on a higher fence or another lock, otherwise retry with the new state
//! no reply       read: with our mark, it happened; if ruled out, retry with the new state; else resend
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::bins::Bins;
use super::guard::{Guard, GuardBins, State};
use crate::error::{Error, Result};
use crate::handles::lease::Lease;
use crate::names::fence::Fence;
use crate::names::lock_name::{ID_BYTES_MAX, LockName};
use crate::names::owner::OwnerToken;
use crate::names::text::quoted;
use crate::runtime::process::process_mark::ProcessMark;
use crate::runtime::sync::real::TimedMutex;
use crate::runtime::time::Deadline;
use crate::settings::limits::checked_ttl;
use crate::store::aerospike::SetEndpoint;
use crate::store::aerospike::client::{
    BinOperation, BinValue, Client, FoundRecord, RecordExistsAction, TTL_KEPT, TTL_NEVER, When, Write,
    Written,
};
use crate::store::aerospike::keys::{RecordKey, checked_bin, whole_seconds};
use crate::store::aerospike::options::Setup;
use crate::store::remote::resolve::{Doubt, Pauses};
use crate::store::uri::Opener;

/// Default `max-record-size` of a server.
const MAX_VALUE_DEFAULT: usize = 1024 * 1024;
/// Highest `max-record-size` of a server.
const MAX_VALUE_MOST: usize = 8 * 1024 * 1024;
/// Most rounds of one change. A round fails only on a lost reply, or if another writer changes the record in
/// between.
const ROUNDS: usize = 64;
/// Rounds without a pause.
const ROUNDS_AT_ONCE: usize = 4;

/// The records of one set in an Aerospike namespace. Cheap to clone. Clones share their connections, which are
/// closed when the last clone and the last [`Record`] are dropped.
#[derive(Clone)]
pub struct Records {
    inner: Arc<Inner>,
    names: Arc<GuardBins>,
    max_value: usize,
}

struct Inner {
    /// `None` only during the drop.
    client: Option<Client>,
    set: String,
    timeout: Duration,
    /// The process that opened these records.
    process: ProcessMark,
}

impl Inner {
    fn client(&self) -> Result<&Client> {
        self.process.check()?;
        Ok(self.client.as_ref().expect("present until drop"))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The connections and their event queue belong to the parent.
            std::mem::forget(self.client.take());
        }
    }
}

impl Records {
    /// Opens the records of `aerospike://host:3000,host2/namespace/set`. The set belongs to the application, and is
    /// used exactly as in the URI. Reads the files that the options name. No other I/O until the first call.
    ///
    /// The options are those of an Aerospike store that concern connections, and `timeout`: how long one call may
    /// take, 10 s by default.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the URI or an option is not allowed.
    pub fn open(uri: &str) -> Result<Records> {
        let mut uri = Opener::parse(uri)?.into_uri();
        let SetEndpoint { hosts, namespace, set } = SetEndpoint::of(&uri)?;
        let (setup, timeout) = Setup::read_for_records(&hosts, &namespace, &set, uri.take_options())?;
        let inner =
            Inner { client: Some(Client::new(&setup)), set, timeout, process: ProcessMark::current() };
        Ok(Records { inner: Arc::new(inner), names: Arc::default(), max_value: MAX_VALUE_DEFAULT })
    }

    /// Returns the same records, with the fence in this bin. Default: `_fence`. All writers of a record must use
    /// the same names for its three bins.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if a server would refuse the name, or if another of
    /// the three bins has it.
    pub fn fence_bin(self, name: &str) -> Result<Records> {
        self.named(|names| names.fence = name.to_owned())
    }

    /// Returns the same records, with the name of the fence's lock in this bin. Default: `_fence_of`.
    ///
    /// # Errors
    /// Those of [`fence_bin`](Records::fence_bin).
    pub fn lock_bin(self, name: &str) -> Result<Records> {
        self.named(|names| names.of = name.to_owned())
    }

    /// Returns the same records, with the marks of the last changes in this bin. Default: `_fence_ops`.
    ///
    /// # Errors
    /// Those of [`fence_bin`](Records::fence_bin).
    pub fn marks_bin(self, name: &str) -> Result<Records> {
        self.named(|names| names.marks = name.to_owned())
    }

    fn named(mut self, change: impl FnOnce(&mut GuardBins)) -> Result<Records> {
        let mut names = (*self.names).clone();
        change(&mut names);
        self.names = Arc::new(names.checked()?);
        Ok(self)
    }

    /// Returns the same records, with another limit for the bytes that one [`put`](Record::put) writes, including
    /// the names of bins. Default: 1 MiB, which is a server's default limit for a whole record
    /// (`max-record-size`).
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) for 0 and for more than 8 MiB.
    pub fn max_value(mut self, bytes: usize) -> Result<Records> {
        if !(1..=MAX_VALUE_MOST).contains(&bytes) {
            let allowed = format!("1 to {MAX_VALUE_MOST} bytes");
            return Err(Error::invalid("max_value", bytes.to_string(), allowed));
        }
        self.max_value = bytes;
        Ok(self)
    }
}

impl Records {
    /// Reads the application's bins of a record, for a holder of the lock in any mode: the fence is in the same record, and the
    /// lease is [checked](Lease::check) after the answer. So what is returned is not older than the lease, and no holder whose
    /// fence is in the record has written it since the lease began. `None` if the record does not exist, or has only the fence.
    /// Blocks for one read.
    ///
    /// It writes nothing. A writer before this reader, whose request is still under way, may write the record later: only a
    /// fenced write stops that, see [`Record::raise_fence`].
    ///
    /// # Errors
    /// [`Code::StaleFence`](crate::Code::StaleFence): a later holder has changed the record, or raised its fence.
    /// [`Code::LeaseLost`](crate::Code::LeaseLost): the lease ended before the answer came.
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument): the lease has no epoch (`fence=off`), the key is empty or longer
    /// than 1024 bytes, the fence in the record belongs to another lock, or a bin of the fence has another content.
    /// [`Code::ConnectionError`](crate::Code::ConnectionError),
    /// [`Code::RetriesExhausted`](crate::Code::RetriesExhausted), [`Code::Forked`](crate::Code::Forked).
    pub fn get_in(&self, reader: &Lease, key: &str) -> Result<Option<Bins>> {
        let (client, epoch) = (self.inner.client()?, reader.epoch_for_reads()?);
        let record_key = self.record_key(key)?;
        let found = client.read(&record_key, &[], Deadline::after(self.inner.timeout))?;
        if let State::Guarded(guard) = self.state_of(found.as_ref(), key)? {
            self.check_lock(&guard, reader.name(), key)?;
            let stored = Fence(guard.fence.unsigned_abs());
            if epoch.is_before(stored) {
                return Err(Error::StaleEpoch { receiver: self.label(key), epoch, stored });
            }
        }
        reader.check()?;
        Ok(self.theirs(found))
    }

    fn record_key(&self, key: &str) -> Result<RecordKey> {
        if !(1..=ID_BYTES_MAX).contains(&key.len()) {
            return Err(Error::invalid("key of a record", key, format!("1 to {ID_BYTES_MAX} bytes")));
        }
        Ok(RecordKey { set: self.inner.set.clone(), key: key.to_owned() })
    }

    /// Returns the application's bins.
    fn theirs(&self, found: Option<FoundRecord>) -> Option<Bins> {
        let ours = self.names.all();
        let bins = found?.bins.into_iter().filter(|(name, _)| !ours.contains(&name.as_str()));
        Some(Bins::of(bins)).filter(|bins| !bins.is_empty())
    }

    fn state_of(&self, found: Option<&FoundRecord>, key: &str) -> Result<State> {
        State::of(found, &self.names).map_err(|bin| {
            let allowed = format!(
                "what a fenced write stores there, or no such bin: in {} it has another content, or one of {} is \
                 missing. See Records::fence_bin, lock_bin and marks_bin",
                self.label(key),
                self.names.all().join(", "),
            );
            Error::invalid("content of bin", bin, allowed)
        })
    }

    fn check_lock(&self, guard: &Guard, lock: &LockName, key: &str) -> Result<()> {
        if guard.of == lock.key() {
            return Ok(());
        }
        let (of, label) = (quoted(&guard.of), self.label(key));
        let allowed = format!("lock {of}, whose fence is in {label}; only one lock may guard a record");
        Err(Error::invalid("lock", lock.key(), allowed))
    }

    /// Returns the name of a record for messages.
    fn label(&self, key: &str) -> String {
        let uri = self.inner.client.as_ref().map(Client::uri);
        format!("record {} of {}", quoted(key), uri.unwrap_or_default())
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uri = self.inner.client.as_ref().map(Client::uri);
        f.debug_struct("Records")
            .field("uri", &uri.unwrap_or_default())
            .field("bins", &self.names.all())
            .field("max_value", &self.max_value)
            .finish_non_exhaustive()
    }
}

impl Lease {
    /// Returns a handle of the record with this key. Its writes carry the fence of this lease. The server refuses
    /// them as soon as the record has a higher fence of the lock. The lock may be in any store. No I/O.
    ///
    /// The record does not check whether the lease has expired. It stays usable when the lease is released or
    /// dropped.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the lease has no fence (`fence=off`), or if the
    /// key is empty or longer than 1024 bytes. [`Code::Forked`](crate::Code::Forked).
    pub fn record(&self, records: &Records, key: &str) -> Result<Record> {
        records.inner.client()?;
        Record::new(records.clone(), key, self.name(), self.fence_for_writes()?)
    }
}

/// One record, written with the fence of one lease. Made by [`Lease::record`].
///
/// Every change is one atomic operation of the server. Its condition is that the record has no fence yet, or a
/// fence of the same lock that is not higher than the lease's. The operation also writes the lease's fence. All
/// calls block, for at most the `timeout` of the records.
///
/// # Errors of every change
/// * [`Code::StaleFence`](crate::Code::StaleFence): a later holder has written the record. Nothing was changed.
/// * [`Code::InvalidArgument`](crate::Code::InvalidArgument): the fence in the record belongs to another lock, or a
///   bin of the fence has another content.
/// * [`Code::ConnectionError`](crate::Code::ConnectionError),
///   [`Code::RetriesExhausted`](crate::Code::RetriesExhausted): nothing was changed.
/// * [`Code::InDoubt`](crate::Code::InDoubt): the change may or may not have happened. A request that is still on
///   its way takes effect only if nobody has changed the record with a fence since, so it does not overwrite
///   later writes.
/// * [`Code::Forked`](crate::Code::Forked): the process was forked after [`Records::open`].
///
/// This handle remembers the state of the record after the last call, which saves a request. Keep it as long as the
/// lease. Several threads may use it; their changes run one after another.
#[must_use = "a record that is not used writes nothing"]
pub struct Record {
    records: Records,
    record_key: RecordKey,
    lock: LockName,
    fence: i64,
    /// State after our last call, if known.
    seen: TimedMutex<Option<State>>,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("records", &self.records)
            .field("key", &self.record_key.key)
            .field("lock", &self.lock)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

/// What one call changes in the application's bins.
enum Task<'a> {
    Put(Vec<(&'a str, BinValue)>),
    Add(&'a str, i64),
    Drop(Vec<&'a str>),
    /// Drops all bins of the application.
    Clear,
}

impl Record {
    fn new(records: Records, key: &str, lock: &LockName, fence: Fence) -> Result<Record> {
        let record_key = records.record_key(key)?;
        let Ok(number) = i64::try_from(fence.0) else {
            return Err(Error::invalid("fence", fence.to_string(), format!("at most {}", i64::MAX)));
        };
        Ok(Record { records, record_key, lock: lock.clone(), fence: number, seen: TimedMutex::default() })
    }

    /// Returns the fence that each write carries.
    pub fn fence(&self) -> Fence {
        Fence(self.fence.unsigned_abs())
    }

    /// Returns the key of the record.
    pub fn key(&self) -> &str {
        &self.record_key.key
    }

    /// Writes these bins and keeps all others. Afterwards the record does not expire.
    ///
    /// # Errors
    /// Those of every change, see [`Record`]. [`Code::InvalidArgument`](crate::Code::InvalidArgument) before any
    /// I/O for no bins, for more bytes than [`max_value`](Records::max_value), for names that a server refuses,
    /// and for the names of the fence's bins.
    pub fn put(&self, bins: &Bins) -> Result<()> {
        self.put_until(bins, TTL_NEVER)
    }

    /// Writes these bins as [`put`](Record::put) does. The record expires after `ttl`, rounded up to whole
    /// seconds. The fence expires with it, and then the server does not refuse stale holders. So choose a `ttl`
    /// that is longer than any holder may be delayed.
    ///
    /// # Errors
    /// Those of [`put`](Record::put). [`Code::InvalidArgument`](crate::Code::InvalidArgument) also if `ttl` is
    /// not 1 ms to 365 days. [`Code::TableCreationError`](crate::Code::TableCreationError) if the namespace
    /// refuses TTLs.
    pub fn put_for(&self, bins: &Bins, ttl: Duration) -> Result<()> {
        self.put_until(bins, whole_seconds(checked_ttl(ttl)?))
    }

    fn put_until(&self, bins: &Bins, ttl_s: u32) -> Result<()> {
        let data = bins.checked(self.records.max_value)?;
        data.iter().try_for_each(|(name, _)| self.records.names.not_ours(name).map(drop))?;
        self.change("put", &Task::Put(data), ttl_s).map(drop)
    }

    /// Returns the application's bins. `None` if the record does not exist, or has only the fence. Reads are not
    /// fenced: a stale holder may read.
    ///
    /// # Errors
    /// [`Code::ConnectionError`](crate::Code::ConnectionError),
    /// [`Code::RetriesExhausted`](crate::Code::RetriesExhausted), [`Code::Forked`](crate::Code::Forked).
    pub fn get(&self) -> Result<Option<Bins>> {
        let by = Deadline::after(self.records.inner.timeout);
        let found = self.records.inner.client()?.read(&self.record_key, &[], by)?;
        Ok(self.records.theirs(found))
    }

    /// Adds `by` to the integer in a bin, and returns the sum. An absent bin counts as 0. The expiry of the
    /// record does not change.
    ///
    /// It adds exactly once, even if requests or replies are lost or late. If a reply was lost, the sum was read
    /// afterwards and may include later additions by writers with this fence or a higher one.
    ///
    /// # Errors
    /// Those of every change, see [`Record`]. [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the bin
    /// does not have an integer, or if the sum exceeds 64 bits.
    pub fn add(&self, bin: &str, by: i64) -> Result<i64> {
        let bin = self.records.names.not_ours(checked_bin(bin)?)?;
        self.change("add", &Task::Add(bin, by), TTL_KEPT)
    }

    /// Deletes bins. Ignores bins that do not exist. The expiry of the record does not change.
    ///
    /// # Errors
    /// Those of every change, see [`Record`]. [`Code::InvalidArgument`](crate::Code::InvalidArgument) before any
    /// I/O for no bins, for names that a server refuses, and for the names of the fence's bins.
    pub fn delete_bins(&self, bins: &[&str]) -> Result<()> {
        if bins.is_empty() {
            return Err(Error::invalid("bins", "", "at least one"));
        }
        bins.iter().try_for_each(|name| self.records.names.not_ours(checked_bin(name)?).map(drop))?;
        self.change("delete bins", &Task::Drop(bins.to_vec()), TTL_KEPT).map(drop)
    }

    /// Deletes all bins except those of the fence. The record stays, because a stale holder could write again if
    /// the fence disappeared with the record. The expiry of the record does not change.
    ///
    /// # Errors
    /// Those of every change, see [`Record`].
    pub fn clear(&self) -> Result<()> {
        self.change("clear", &Task::Clear, TTL_KEPT).map(drop)
    }

    /// Writes only the fence. Afterwards the server refuses holders with a lower one. Creates the record if it does
    /// not exist. Call it before you read the data that the lock guards: the server learns the new fence from the
    /// first write, and a stale holder may write until then.
    ///
    /// # Errors
    /// Those of every change, see [`Record`].
    pub fn raise_fence(&self) -> Result<()> {
        self.change("raise fence", &Task::Drop(Vec::new()), TTL_KEPT).map(drop)
    }

    /// Makes the change once. Returns the sum of a [`Task::Add`], otherwise 0.
    fn change(&self, what: &str, task: &Task<'_>, ttl_s: u32) -> Result<i64> {
        let client = self.records.inner.client()?;
        let by = Deadline::after(self.records.inner.timeout);
        let Some(mut seen) = self.seen.try_lock_for(by.remaining()) else {
            return Err(self.busy(what, "other threads are changing it"));
        };
        let mark = OwnerToken::draw()?;
        // The bins to delete are only known after a read.
        let known = seen.take().filter(|_| !matches!(task, Task::Clear));
        let mut now = match known {
            Some(state) => (state, None),
            None => self.read_again(client, task, by)?,
        };
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        for round in 0..ROUNDS {
            let (state, found) = &now;
            match doubt.ask(|| self.write(client, state, found.as_ref(), task, &mark, ttl_s, by)) {
                Ok(Written::Done(reply)) => {
                    let sum = match task {
                        Task::Add(bin, _) => reply.int(bin),
                        _ => Some(0),
                    };
                    *seen = Some(State::Guarded(state.changed(self.lock.key(), self.fence, &mark)));
                    return sum.ok_or_else(|| Error::Internal {
                        what: format!("{what} of {}: the reply has no sum", self.label()),
                        source: None,
                    });
                }
                Ok(Written::Refused | Written::Missing) => {}
                Err(error) => doubt.go_on(error)?,
            }
            let next = doubt.ask(|| self.read_again(client, task, by)).map_err(|error| doubt.or(error))?;
            if next.0.has(&mark) {
                let sum = match task {
                    Task::Add(bin, _) => next.1.as_ref().and_then(|found| found.int(bin)).unwrap_or_default(),
                    _ => 0,
                };
                *seen = Some(next.0);
                return Ok(sum);
            }
            if doubt.is_open() && now.0 != next.0 {
                if !now.0.rules_out(&next.0) {
                    return Err(self.in_doubt(what, doubt.or(self.busy(what, "it has changed since"))));
                }
                doubt = Doubt::none(by);
            }
            // The same request is sent again only while the record is in the state for which it was made.
            now = next;
            if !doubt.is_open()
                && let Err(error) = self.verdict(&now.0, now.1.as_ref(), task)
            {
                *seen = Some(now.0);
                return Err(error);
            }
            if round >= ROUNDS_AT_ONCE && !pauses.rest() {
                break;
            }
        }
        let error = self.busy(what, "it changed after each read");
        Err(doubt.or(error))
    }

    /// Reads the record, with the bins that the task needs.
    fn read_again(
        &self,
        client: &Client,
        task: &Task<'_>,
        by: Deadline,
    ) -> Result<(State, Option<FoundRecord>)> {
        let names = &self.records.names;
        let mut bins = names.all().to_vec();
        match task {
            Task::Add(bin, _) => bins.push(bin),
            // No names: reads all bins.
            Task::Clear => bins.clear(),
            Task::Put(_) | Task::Drop(_) => {}
        }
        let found = client.read_with_collections(&self.record_key, &bins, by)?;
        Ok((self.records.state_of(found.as_ref(), self.key())?, found))
    }

    /// Sends one request, which takes effect if the record is in this state.
    #[expect(clippy::too_many_arguments, reason = "each is used once, in one place")]
    fn write(
        &self,
        client: &Client,
        state: &State,
        found: Option<&FoundRecord>,
        task: &Task<'_>,
        mark: &OwnerToken,
        ttl_s: u32,
        by: Deadline,
    ) -> Result<Written> {
        let names = &self.records.names;
        let after = state.changed(self.lock.key(), self.fence, mark);
        let mut steps = vec![
            BinOperation::Put(&names.fence, BinValue::Int(self.fence)),
            BinOperation::Put(&names.marks, BinValue::Bytes(after.marks().to_vec())),
            BinOperation::Put(&names.of, BinValue::Text(after.of)),
        ];
        let mut when = state.condition(names, self.lock.key(), self.fence);
        match task {
            Task::Put(data) => {
                steps.extend(data.iter().map(|(name, bin_value)| BinOperation::Put(name, bin_value.clone())));
            }
            Task::Add(bin, by) => {
                steps.extend([BinOperation::Add(bin, *by), BinOperation::Read(bin)]);
                when = when.map(|when| When::Both(Box::new([when, When::CanAdd(bin, *by)])));
            }
            Task::Drop(bins) => steps.extend(bins.iter().map(|bin| BinOperation::Drop(bin))),
            Task::Clear => {
                let all = found.into_iter().flat_map(|found| &found.bins).map(|(name, _)| name.as_str());
                steps.extend(all.filter(|name| !names.all().contains(name)).map(BinOperation::Drop));
            }
        }
        // A new record has no expiry to keep, so it gets none.
        let (exists, ttl_s) = match state {
            State::Absent if ttl_s == TTL_KEPT => (RecordExistsAction::CreateOnly, TTL_NEVER),
            State::Absent => (RecordExistsAction::CreateOnly, ttl_s),
            State::Plain | State::Guarded(_) => (RecordExistsAction::UpdateOnly, ttl_s),
        };
        client.write(&Write { record_key: &self.record_key, exists, when, steps: &steps, ttl_s }, by)
    }

    /// Returns the reason why a record in this state cannot be changed. `Ok` if the change may be tried again.
    fn verdict(&self, state: &State, found: Option<&FoundRecord>, task: &Task<'_>) -> Result<()> {
        if let State::Guarded(guard) = state {
            self.records.check_lock(guard, &self.lock, self.key())?;
            if guard.fence > self.fence {
                let stored = Fence(guard.fence.unsigned_abs());
                return Err(Error::StaleFence { receiver: self.label(), fence: self.fence(), stored });
            }
        }
        if let Task::Add(bin, by) = task {
            match found.and_then(|found| found.bin(bin)) {
                None => {}
                Some(BinValue::Int(number)) if number.checked_add(*by).is_some() => {}
                Some(BinValue::Int(_)) => {
                    let allowed = "a number whose sum with the bin fits in signed 64 bits";
                    return Err(Error::invalid("number to be added", by.to_string(), allowed));
                }
                Some(_) => {
                    return Err(Error::invalid("bin", bin, "a bin with an integer"));
                }
            }
        }
        Ok(())
    }

    /// Returns the name of the record for messages.
    fn label(&self) -> String {
        self.records.label(self.key())
    }

    fn busy(&self, what: &str, why: &str) -> Error {
        let store = self.records.inner.client.as_ref().map(Client::uri).unwrap_or_default().to_owned();
        Error::RetriesExhausted { store, what: format!("{what} of {}: {why}", self.label()), source: None }
    }

    fn in_doubt(&self, what: &str, lost: Error) -> Error {
        let what =
            format!("{what} of {} got no reply, and the record no longer shows the outcome", self.label());
        Error::InDoubt { what, source: Some(lost.into()) }
    }
}
