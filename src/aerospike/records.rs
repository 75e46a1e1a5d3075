//! Records of applications that refuse writes with an old fence: see [`crate::aerospike`].
//!
//! ```text
//! first change   read the record; create it, or change it if it is as it was read
//! next ones      change it if the last change is still ours
//! refused        read: a higher fence or another lock is an error, else again as it is now
//! no answer      read: our mark there, it happened; ruled out, again as it is now; else the same again
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::bins::Bins;
use super::guard::{GuardBins, State};
use crate::config::checked_ttl;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::lease::Lease;
use crate::name::{ID_BYTES_MAX, LockName};
use crate::owner::OwnerToken;
use crate::process::process_mark;
use crate::store::aerospike::client::{
    BinOperation, BinValue, Client, FoundRecord, RecordExistsAction, TTL_KEPT, TTL_NEVER, When, Write,
    Written,
};
use crate::store::aerospike::keys::{RecordKey, checked_bin, whole_seconds};
use crate::store::aerospike::options::Setup;
use crate::store::remote::resolve::{Doubt, Pauses};
use crate::store::uri::Opener;
use crate::text::quoted;
use crate::time::Deadline;

/// What a server takes for a record unless its namespace says otherwise.
const MAX_VALUE_DEFAULT: usize = 1024 * 1024;
/// What a server can be set to.
const MAX_VALUE_MOST: usize = 8 * 1024 * 1024;
/// Rounds of one change; each needs a lost reply, or another writer with the same fence in between.
const ROUNDS: usize = 64;
/// Rounds without a pause.
const ROUNDS_AT_ONCE: usize = 4;

/// The records of one set of a namespace of Aerospike. Cheap to clone: all clones use the same connections.
///
/// Dropping the last clone and the last [`Record`] closes the connections.
#[derive(Clone)]
pub struct Records {
    inner: Arc<Inner>,
    names: Arc<GuardBins>,
    max_value: usize,
}

struct Inner {
    /// `None` only while it is dropped.
    client: Option<Client>,
    set: String,
    timeout: Duration,
    /// The process that opened it, see [`process_mark`].
    process: u64,
}

impl Inner {
    fn client(&self) -> Result<&Client> {
        if process_mark::current() != self.process {
            return Err(Error::Forked);
        }
        Ok(self.client.as_ref().expect("there until dropped"))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if process_mark::current() != self.process {
            // The connections are the parent's, and so is the queue of their events.
            std::mem::forget(self.client.take());
        }
    }
}

impl Records {
    /// The records of `aerospike://host:3000,host2/namespace/set`: the set is the application's own, as it is
    /// written there. No I/O until the first call.
    ///
    /// Options are those of a store in Aerospike that concern connections, and `timeout`, in which each call
    /// comes back.
    ///
    /// # Errors
    /// INVALID_ARGUMENT.
    pub fn open(uri: &str) -> Result<Records> {
        let (hosts, namespace, set, options) = Opener::parse(uri)?.into_aerospike()?;
        let (setup, timeout) = Setup::read_for_records(&hosts, &namespace, &set, options)?;
        let inner =
            Inner { client: Some(Client::new(&setup)), set, timeout, process: process_mark::current() };
        Ok(Records { inner: Arc::new(inner), names: Arc::default(), max_value: MAX_VALUE_DEFAULT })
    }

    /// The same records, which keep the fence in this bin: `_fence` unless given. All who write a record must
    /// agree on the names of its three bins.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when a server would refuse the name, or another of the three has it.
    pub fn fence_bin(self, name: &str) -> Result<Records> {
        self.named(|names| names.fence = name.to_owned())
    }

    /// The same records, which keep the name of the fence's lock in this bin: `_fence_of` unless given.
    ///
    /// # Errors
    /// As [`fence_bin`](Records::fence_bin).
    pub fn lock_bin(self, name: &str) -> Result<Records> {
        self.named(|names| names.of = name.to_owned())
    }

    /// The same records, which keep the marks of their last changes in this bin: `_fence_ops` unless given.
    ///
    /// # Errors
    /// As [`fence_bin`](Records::fence_bin).
    pub fn marks_bin(self, name: &str) -> Result<Records> {
        self.named(|names| names.marks = name.to_owned())
    }

    fn named(mut self, change: impl FnOnce(&mut GuardBins)) -> Result<Records> {
        let mut names = (*self.names).clone();
        change(&mut names);
        self.names = Arc::new(names.checked()?);
        Ok(self)
    }

    /// The same records, of which one [`put`](Record::put) writes so many bytes at the most, names of bins
    /// included: 1 MiB unless given, which is what a server takes for a whole record unless its
    /// `max-record-size` says otherwise.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for 0 and for more than 8 MiB.
    pub fn max_value(mut self, bytes: usize) -> Result<Records> {
        if !(1..=MAX_VALUE_MOST).contains(&bytes) {
            let allowed = format!("1 to {MAX_VALUE_MOST} bytes");
            return Err(Error::invalid("max_value", bytes.to_string(), allowed));
        }
        self.max_value = bytes;
        Ok(self)
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.inner.client.as_ref().map(Client::place);
        f.debug_struct("Records")
            .field("place", &place.unwrap_or_default())
            .field("bins", &self.names.all())
            .field("max_value", &self.max_value)
            .finish_non_exhaustive()
    }
}

impl Lease {
    /// The record with this key, to be written with the fence of this lease: the server refuses the writes as
    /// soon as it has seen a higher fence of the lock. No I/O. The lock may lie in any store.
    ///
    /// The record does not ask whether the lease lasts, and goes on when the lease is released or dropped.
    ///
    /// # Errors
    /// INVALID_ARGUMENT when the lease has no fence (`fence=off`), or for a key that is empty or longer than
    /// 1024 bytes. FORKED.
    pub fn record(&self, records: &Records, key: &str) -> Result<Record> {
        records.inner.client()?;
        Record::new(records.clone(), key, self.name(), self.fence_for_writes()?)
    }
}

/// One record, written with the fence of one lease. Made by [`Lease::record`].
///
/// Every change is one atomic operation of the server, on the condition that the record has no fence yet, or one
/// of the same lock that is not higher than the lease's. The operation writes the lease's fence along.
///
/// All changes may return, besides what they name:
///
/// * STALE_FENCE: a later holder has written the record. Nothing was changed.
/// * INVALID_ARGUMENT: the fence in the record is of another lock, or its bins hold something else.
/// * CONNECTION_ERROR, RETRIES_EXHAUSTED: nothing was changed.
/// * IN_DOUBT: it is not known whether it happened. A request that is still under way then takes effect only
///   if nobody has changed the record with a fence since, so it does not overwrite what is written next.
/// * FORKED: the process was forked after [`Records::open`].
///
/// The record remembers what it looked like after the last call, which saves a request. Keep it for as long as
/// the lease. Calls from several threads go one after another.
#[must_use = "a record that is not used writes nothing"]
pub struct Record {
    records: Records,
    record_key: RecordKey,
    lock: LockName,
    fence: i64,
    /// As it was after our last call, if that is known.
    seen: Mutex<Option<State>>,
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
    /// All bins of the application.
    Clear,
}

impl Record {
    fn new(records: Records, key: &str, lock: &LockName, fence: Fence) -> Result<Record> {
        if !(1..=ID_BYTES_MAX).contains(&key.len()) {
            return Err(Error::invalid("key of a record", key, format!("1 to {ID_BYTES_MAX} bytes")));
        }
        let Ok(number) = i64::try_from(fence.0) else {
            return Err(Error::invalid("fence", fence.to_string(), format!("at most {}", i64::MAX)));
        };
        let record_key = RecordKey { set: records.inner.set.clone(), key: key.to_owned() };
        Ok(Record { records, record_key, lock: lock.clone(), fence: number, seen: Mutex::default() })
    }

    /// The fence that each write carries.
    pub fn fence(&self) -> Fence {
        Fence(self.fence.unsigned_abs())
    }

    /// The record's key.
    pub fn key(&self) -> &str {
        &self.record_key.key
    }

    /// Writes these bins; others stay. The record does not expire from now on.
    ///
    /// # Errors
    /// Those of every change; INVALID_ARGUMENT before any I/O for no bins, more bytes than
    /// [`max_value`](Records::max_value), and names that a server refuses or that are the fence's.
    pub fn put(&self, bins: &Bins) -> Result<()> {
        self.put_until(bins, TTL_NEVER)
    }

    /// As [`put`](Record::put), and the record expires after `ttl`, in whole seconds, rounded up. The fence goes
    /// with it: whoever writes later than that is not refused, however stale. So let it be longer than any
    /// holder may be late.
    ///
    /// # Errors
    /// As for [`put`](Record::put), and INVALID_ARGUMENT unless `ttl` is 1 ms to 365 days. TABLE_CREATION_ERROR where the
    /// namespace refuses TTLs.
    pub fn put_for(&self, bins: &Bins, ttl: Duration) -> Result<()> {
        self.put_until(bins, whole_seconds(checked_ttl(ttl)?))
    }

    fn put_until(&self, bins: &Bins, ttl_s: u32) -> Result<()> {
        let data = bins.checked(self.records.max_value)?;
        data.iter().try_for_each(|(name, _)| self.records.names.not_ours(name).map(drop))?;
        self.change("put", &Task::Put(data), ttl_s).map(drop)
    }

    /// The application's bins; `None` where there is no record, or nothing in it but the fence. Reading is not
    /// fenced: a stale holder may read.
    ///
    /// # Errors
    /// CONNECTION_ERROR, RETRIES_EXHAUSTED, FORKED.
    pub fn get(&self) -> Result<Option<Bins>> {
        let by = Deadline::after(self.records.inner.timeout);
        let found = self.records.inner.client()?.read(&self.record_key, &[], by)?;
        let ours = self.records.names.all();
        let bins = found
            .map(|found| Bins::of(found.bins.into_iter().filter(|(name, _)| !ours.contains(&name.as_str()))));
        Ok(bins.filter(|bins| !bins.is_empty()))
    }

    /// Adds to the integer in a bin, which is 0 where it is not there; the sum. When the record expires stays
    /// as it is.
    ///
    /// It adds once, whatever was lost or late. Where a reply was lost the sum was read afterwards, and may
    /// include what others with this fence or a higher one have added since.
    ///
    /// # Errors
    /// Those of every change; INVALID_ARGUMENT when the bin holds no integer, or the sum would be none.
    pub fn add(&self, bin: &str, by: i64) -> Result<i64> {
        let bin = self.records.names.not_ours(checked_bin(bin)?)?;
        self.change("add", &Task::Add(bin, by), TTL_KEPT)
    }

    /// Removes bins. Those that are not there are left out. When the record expires stays as it is.
    ///
    /// # Errors
    /// Those of every change; INVALID_ARGUMENT before any I/O for no bins, and names that a server refuses or
    /// that are the fence's.
    pub fn delete_bins(&self, bins: &[&str]) -> Result<()> {
        if bins.is_empty() {
            return Err(Error::invalid("bins", "", "at least one"));
        }
        bins.iter().try_for_each(|name| self.records.names.not_ours(checked_bin(name)?).map(drop))?;
        self.change("delete bins", &Task::Drop(bins.to_vec()), TTL_KEPT).map(drop)
    }

    /// Removes all bins but those of the fence. The record itself stays, and so does when it expires: with the
    /// record the fence would go, and a stale holder could write again.
    ///
    /// # Errors
    /// Those of every change.
    pub fn clear(&self) -> Result<()> {
        self.change("clear", &Task::Clear, TTL_KEPT).map(drop)
    }

    /// Writes the fence alone: from now on holders with a lower one are refused. Call it before reading what
    /// the lock guards: until the first write with the new fence, the server does not know it, and a stale
    /// holder may still write. Makes the record where there is none.
    ///
    /// # Errors
    /// Those of every change.
    pub fn raise_fence(&self) -> Result<()> {
        self.change("raise fence", &Task::Drop(Vec::new()), TTL_KEPT).map(drop)
    }

    /// Makes the change once. The sum, of an [`Task::Add`].
    fn change(&self, what: &str, task: &Task<'_>, ttl_s: u32) -> Result<i64> {
        let client = self.records.inner.client()?;
        let by = Deadline::after(self.records.inner.timeout);
        let Some(mut seen) = self.seen.try_lock_for(by.remaining()) else {
            return Err(self.busy(what, "other threads are changing it"));
        };
        let mark = OwnerToken::draw()?;
        // What is to be removed is not known without a look.
        let known = seen.take().filter(|_| !matches!(task, Task::Clear));
        let mut now = match known {
            Some(state) => (state, None),
            None => self.look(client, task, by)?,
        };
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        for round in 0..ROUNDS {
            let (state, found) = &now;
            match doubt.ask(|| self.write(client, state, found.as_ref(), task, &mark, ttl_s, by)) {
                Ok(Written::Done(sum)) => {
                    *seen = Some(State::Guarded(state.changed(self.lock.key(), self.fence, &mark)));
                    return sum.or((!matches!(task, Task::Add(..))).then_some(0)).ok_or_else(|| {
                        Error::Internal {
                            what: format!("{what} of {}: no sum in the answer", self.place()),
                            source: None,
                        }
                    });
                }
                Ok(Written::Refused | Written::Missing) => {}
                Err(error) => doubt.go_on(error)?,
            }
            let next = doubt.ask(|| self.look(client, task, by)).map_err(|error| doubt.or(error))?;
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
            // The same request is sent again only while the record is as it was made for.
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
        let error = self.busy(what, "it changed under each look at it");
        Err(doubt.or(error))
    }

    /// The record, with the bins that matter to the task.
    fn look(&self, client: &Client, task: &Task<'_>, by: Deadline) -> Result<(State, Option<FoundRecord>)> {
        let names = &self.records.names;
        let mut bins = names.all().to_vec();
        match task {
            Task::Add(bin, _) => bins.push(bin),
            // All.
            Task::Clear => bins.clear(),
            Task::Put(_) | Task::Drop(_) => {}
        }
        let found = client.read(&self.record_key, &bins, by)?;
        match State::of(found.as_ref(), names) {
            Ok(state) => Ok((state, found)),
            Err(bin) => {
                let allowed = format!(
                    "what a fenced write leaves there, or no such bin: {} has something else in it, or has lost one of {}. \
                     See Records::fence_bin, lock_bin and marks_bin",
                    self.place(),
                    names.all().join(", "),
                );
                Err(Error::invalid("content of bin", bin, allowed))
            }
        }
    }

    /// One request, which takes effect if the record is in this state.
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
                steps.extend([BinOperation::Add(bin, *by), BinOperation::Tell(bin)]);
                when = when.map(|when| When::Both(Box::new([when, When::CanAdd(bin, *by)])));
            }
            Task::Drop(bins) => steps.extend(bins.iter().map(|bin| BinOperation::Drop(bin))),
            Task::Clear => {
                let all = found.into_iter().flat_map(|found| &found.bins).map(|(name, _)| name.as_str());
                steps.extend(all.filter(|name| !names.all().contains(name)).map(BinOperation::Drop));
            }
        }
        // A record that is made by a change that keeps its end has none.
        let (exists, ttl_s) = match state {
            State::Absent if ttl_s == TTL_KEPT => (RecordExistsAction::CreateOnly, TTL_NEVER),
            State::Absent => (RecordExistsAction::CreateOnly, ttl_s),
            State::Plain | State::Guarded(_) => (RecordExistsAction::UpdateOnly, ttl_s),
        };
        client.write(&Write { record_key: &self.record_key, exists, when, steps: &steps, ttl_s }, by)
    }

    /// Why a record that looks so is not changed, unless it only was another one a moment ago.
    fn verdict(&self, state: &State, found: Option<&FoundRecord>, task: &Task<'_>) -> Result<()> {
        if let State::Guarded(guard) = state {
            if guard.of != self.lock.key() {
                let allowed = format!(
                    "lock {}, whose fence {} has: one record is guarded by one lock",
                    quoted(&guard.of),
                    self.place()
                );
                return Err(Error::invalid("lock", self.lock.key(), allowed));
            }
            if guard.fence > self.fence {
                let stored = Fence(guard.fence.unsigned_abs());
                return Err(Error::StaleFence { place: self.place(), fence: self.fence(), stored });
            }
        }
        if let Task::Add(bin, by) = task {
            match found.and_then(|found| found.bin(bin)) {
                None => {}
                Some(BinValue::Int(number)) if number.checked_add(*by).is_some() => {}
                Some(BinValue::Int(_)) => {
                    let allowed = "a number whose sum with the bin's is 64 bits with a sign";
                    return Err(Error::invalid("number to be added", by.to_string(), allowed));
                }
                Some(_) => {
                    return Err(Error::invalid("bin", bin, "one that holds an integer, to be added to"));
                }
            }
        }
        Ok(())
    }

    /// As in messages.
    fn place(&self) -> String {
        let place = self.records.inner.client.as_ref().map(Client::place);
        format!("record {} of {}", quoted(&self.record_key.key), place.unwrap_or_default())
    }

    fn busy(&self, what: &str, why: &str) -> Error {
        let store = self.records.inner.client.as_ref().map(Client::place).unwrap_or_default().to_owned();
        Error::RetriesExhausted { store, what: format!("{what} of {}: {why}", self.place()), source: None }
    }

    fn in_doubt(&self, what: &str, lost: Error) -> Error {
        let what =
            format!("{what} of {} was not answered, and by now the record does not tell", self.place());
        Error::InDoubt { what, source: Some(lost.into()) }
    }
}
