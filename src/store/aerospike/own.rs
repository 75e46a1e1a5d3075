//! The layout `own`: token, time and fence of a lock in one record, which stays when the lock is released.
//!
//! ```text
//! create   missing, or older than lasts_ms             -> token, lasts_ms, who, fence = max(fence + 1, clock)
//! replace  token ours, not older, not lasting longer   -> lasts_ms
//! remove   token ours, not older                       -> lasts_ms = -1
//! ```
//!
//! Each change is one request. "Older" compares the time since the last write of the record with `lasts_ms`, in the
//! server, with its clock and in milliseconds. No lease depends on the expiry of the record, which is 30 days after its
//! last write. The answer to a creation contains token and fence as they stand after it.
//!
//! The record has the set and the key of the layout `java`, whose clients create a lock's record only if there is none.
//! So each layout refuses the locks of the other one.
//!
//! Holds in other modes than exclusive have more bins in the same record: see [`modes`], and [`permits`] for semaphores.
//!
//! A fence must also be above those of the layout `java`, which a separate record keeps for 30 days. While the set of
//! these records is not empty, the first fence of a new record is negative. It is then raised above the fence of the
//! layout `java` and becomes positive, before the lock is granted. If that fails, the next grant does it.

mod conditions;
mod intents;
mod modes;
mod permits;

use std::sync::Arc;
use std::time::Duration;

use self::conditions::Packed;
use super::client::{
    BinOperation, BinValue, Client, OwnLease, RecordExistsAction, Sign, When, Write, Written,
};
use super::diagnose::look_over;
use super::history;
use super::keys::own_bins::{FENCE, HOLDS, LASTS_MS, NAME, RELEASED, TOKEN, WHO};
use super::keys::{self, FENCE_TTL, LockKeys, RecordKey, fence_key, fence_set, whole_seconds};
use super::latches::AerospikeLatches;
use super::list;
use super::namespace_check::{Checked, NamespaceCheck, judged};
use super::nodes::Node;
use super::options::Setup;
use super::promises;
use super::ready::wait_until_ready;
use super::replaces::{self, ReplaceParts};
use super::standing::{STANDING_READS, holds, own as standing};
use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::names::history_entry::HistoryEntry;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::owner::OwnerToken;
use crate::names::promise::Promise;
use crate::runtime::time::Deadline;
use crate::settings::options::Options;
use crate::store::counters::{LiveCounters, StoreCounters};
use crate::store::layout::Layout;
use crate::store::remote::{
    Capabilities, Compares, Create, Created, Found, ModeRegister, OnReply, PermitRegister, ReadBack, Record,
    Register, Replace, Reply, Settled, Standing,
};
use crate::store::{HistoryOf, HistoryStore, LatchStore, ListCursor, LockPage, LockQuery};

/// The slack of a single node: its clock may be adjusted.
const SLACK_ALONE: Duration = Duration::from_millis(20);
/// The slack of several nodes: after one has failed, another one compares its clock with the record's time.
pub(super) const SLACK: Duration = Duration::from_secs(1);
const SLACK_MAX: Duration = Duration::from_secs(60);

/// A [`Register`] in a namespace of Aerospike with the layout `own`. URI:
/// `aerospike://host:3000,host2/namespace/setSuffix?layout=own`. Only this library can use such locks.
#[derive(Debug)]
pub(crate) struct AerospikeOwnStore {
    client: Arc<Client>,
    suffix: String,
    /// `None` if it depends on the number of nodes.
    slack: Option<Duration>,
    check: NamespaceCheck,
    /// Whether this is the part of the layout `both`: see [`both`](super::both).
    beside_java: bool,
    packed: Packed,
    counters: LiveCounters,
    latches: AerospikeLatches,
}

impl AerospikeOwnStore {
    /// Creates a store. See [`AerospikeStore::open`](super::AerospikeStore).
    pub(crate) fn open(
        hosts: &str,
        namespace: &str,
        suffix: &str,
        mut options: Options,
    ) -> Result<AerospikeOwnStore> {
        let slack = take_slack(&mut options)?;
        refuse_fence(&mut options, Layout::Own)?;
        let setup = Setup::read(hosts, namespace, suffix, options)?;
        Ok(AerospikeOwnStore::over(Arc::new(Client::new(&setup)), setup.suffix, slack, false))
    }

    /// Creates a store over `client`. With `beside_java` it creates no records, and deletes a record when it is
    /// released.
    pub(super) fn over(
        client: Arc<Client>,
        suffix: String,
        slack: Option<Duration>,
        beside_java: bool,
    ) -> AerospikeOwnStore {
        let latches = AerospikeLatches::new(Arc::clone(&client), &suffix);
        let (check, counters) = (NamespaceCheck::default(), LiveCounters::default());
        AerospikeOwnStore {
            client,
            suffix,
            slack,
            check,
            beside_java,
            packed: Packed::new(),
            counters,
            latches,
        }
    }

    fn checked(&self, by: Deadline) -> Result<Checked> {
        self.check.checked(by, |by| {
            let nodes = Node::ask_all(&self.client, &[], by)?;
            judged(&nodes, &fence_set(&self.suffix), |what| self.client.unsuitable(what))
        })
    }

    fn slack(&self, is_alone: bool) -> Duration {
        self.slack.unwrap_or(if is_alone { SLACK_ALONE } else { SLACK })
    }

    /// Returns how many milliseconds a lease of `ttl` lasts for others.
    fn lasts_ms(&self, ttl: Duration, is_alone: bool) -> i64 {
        let lasts = ttl + self.slack(is_alone);
        i64::try_from(lasts.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
    }

    fn parts_of(&self, change: &Replace<'_>) -> Result<OwnReplace> {
        let record_key = LockKeys::of(change.name, &self.suffix)?.lock;
        check_ttl(change.record.ttl())?;
        let lasts_ms = self.lasts_ms(change.record.ttl(), self.check.was_alone());
        let (mode, token) = (change.expected.mode(), change.expected.token());
        Ok(OwnReplace { record_key, mode, token, lasts_ms })
    }

    /// Returns the fence, or `None` if it must still be raised.
    fn try_to_create(&self, create: &Create<'_>, by: Deadline) -> Result<Settled<Option<u64>>> {
        let (name, record) = (create.name, create.record);
        check_ttl(record.ttl())?;
        let (key, checked) = (&LockKeys::of(name, &self.suffix)?.lock, self.checked(by)?);
        let lasts_ms = self.lasts_ms(record.ttl(), checked.is_alone);
        let (token, by_numbers) = (record.token(), create.numbers as i64);
        let least = (create.count.unwrap_or_default().max(1) as i64).saturating_add(by_numbers - 1);
        let sign = if checked.has_java_fences { Sign::Kept } else { Sign::Positive };
        let steps = [
            BinOperation::Put(TOKEN, BinValue::Bytes(token.as_bytes().to_vec())),
            BinOperation::Put(LASTS_MS, BinValue::Int(lasts_ms)),
            BinOperation::Put(WHO, BinValue::Bytes(record.identity_bytes().to_vec())),
            BinOperation::Put(NAME, BinValue::Text(name.key().to_owned())),
            BinOperation::Climb { bin: FENCE, by: by_numbers, least, sign },
            BinOperation::Read(TOKEN),
            BinOperation::Read(FENCE),
        ];
        let when = When::Free { lasts_ms: LASTS_MS };
        let exists =
            if self.beside_java { RecordExistsAction::UpdateOnly } else { RecordExistsAction::Update };
        let reply = match self.change(key, exists, when, &steps, by)? {
            Written::Done(reply) => reply,
            Written::Refused => return Ok(Settled::No(None)),
            // The record that stood has gone. The next attempt creates one of the layout `java`.
            Written::Missing => return Ok(Settled::No(Some(Standing::Held(Found::default())))),
        };
        let number = reply.int(FENCE).filter(|_| reply.bytes(TOKEN) == Some(token.as_bytes()));
        if reply.generation == 1 {
            self.counters.fence_seeded();
        }
        match number {
            Some(number) => Ok(Settled::Yes(u64::try_from(number).ok())),
            None => Err(Error::InDoubt {
                what: format!("{}: lock {name}: the answer is that of another request", self.client.uri()),
                source: None,
            }),
        }
    }

    fn over_before_its_number(&self) -> Error {
        Error::RetriesExhausted {
            store: self.client.uri().to_owned(),
            what: "the lease expired before its fence was raised; use a longer TTL".into(),
            source: None,
        }
    }

    /// Ends a hold that is not exclusive.
    fn leave(&self, record_key: &RecordKey, record: &Record, by: Deadline) -> Result<Written> {
        let key = conditions::key(record.mode(), &record.token());
        let steps = [
            BinOperation::Compute(HOLDS, conditions::holds_without(&key)),
            BinOperation::Compute(LASTS_MS, self.packed.lasts_for_all.clone()),
        ];
        let when = When::Meets(conditions::is_held(&key));
        self.change(record_key, RecordExistsAction::UpdateOnly, when, &steps, by)
    }

    /// Raises the fence of the layout `java` to that of the record, which is then deleted.
    fn keep_fence_for_java(&self, name: &LockName, key: &RecordKey, by: Deadline) -> Result<()> {
        let found = self.client.read(key, &[FENCE], by)?;
        let Some(fence) = found.and_then(|found| found.int(FENCE)) else { return Ok(()) };
        let record_key = &fence_key(name, &self.suffix);
        let steps = [BinOperation::Raise(keys::FENCE, (1, fence.saturating_abs()))];
        let (exists, ttl_s) = (RecordExistsAction::Update, whole_seconds(FENCE_TTL));
        let write = Write { record_key, exists, when: None, steps: &steps, ttl_s };
        // A number that was raised once too often is skipped.
        self.client.write(&write, by).map(drop)
    }

    /// Changes the record, if it exists, under the condition `when`.
    fn change(
        &self,
        record_key: &RecordKey,
        exists: RecordExistsAction,
        when: When<'_>,
        steps: &[BinOperation<'_>],
        by: Deadline,
    ) -> Result<Written> {
        let write = Write { record_key, exists, when: Some(when), steps, ttl_s: whole_seconds(FENCE_TTL) };
        self.client.write(&write, by)
    }
}

impl HistoryStore for AerospikeOwnStore {
    fn append(&self, of: HistoryOf<'_>, entry: &HistoryEntry, lasts: Duration, by: Deadline) -> Result<()> {
        history::append(&self.client, &self.suffix, of, entry, lasts, by)
    }

    fn entries(
        &self,
        of: HistoryOf<'_>,
        since_ms: u64,
        most: usize,
        by: Deadline,
    ) -> Result<Vec<HistoryEntry>> {
        history::entries(&self.client, &self.suffix, of, since_ms, most, by)
    }
}

impl Register for AerospikeOwnStore {
    fn promises(&self) -> Vec<Promise> {
        promises::own()
    }

    fn describe(&self) -> String {
        self.client.uri().to_owned()
    }

    fn layout(&self) -> Option<&'static str> {
        Some(Layout::Own.name())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            counts: true,
            counts_in_record: true,
            reserves: true,
            compares: Compares::Token,
            read_back: ReadBack::Never,
            ..Capabilities::default()
        }
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        wait_until_ready(&self.client, format!("XDC#{}", self.suffix), by)?;
        self.checked(by).map(drop)
    }

    fn greet(&self, by: Deadline) -> Result<()> {
        self.client.greet(by)
    }

    fn create(&self, create: &Create<'_>, by: Deadline) -> Reply<Created> {
        Reply::of(self.try_to_create(create, by), |settled| match settled {
            Settled::Yes(count) => {
                self.end_intent(create.name, create.intent, by);
                Reply::Yes(Created { count, standing: None })
            }
            Settled::No(held) => Reply::No(held),
        })
    }

    fn replace(&self, change: &Replace<'_>, by: Deadline) -> Reply {
        replaces::replace(&self.client, self.parts_of(change), by)
    }

    fn replace_many<'a>(&self, changes: Vec<Replace<'a>>, by: Deadline, answered: OnReply<'_, 'a>) {
        replaces::replace_many(&self.client, &changes, |change| self.parts_of(change), by, answered);
    }

    fn remove(&self, name: &LockName, expected: &Record, by: Deadline) -> Reply {
        let answer = LockKeys::of(name, &self.suffix).and_then(|keys| {
            let token = expected.token();
            if expected.mode() != Mode::Exclusive {
                return self.leave(&keys.lock, expected, by);
            }
            let when = When::Held(lease_of(&token));
            if self.beside_java {
                self.keep_fence_for_java(name, &keys.lock, by)?;
                return self.client.delete(&keys.lock, when, by);
            }
            let steps = [BinOperation::Put(LASTS_MS, BinValue::Int(RELEASED))];
            self.change(&keys.lock, RecordExistsAction::UpdateOnly, when, &steps, by)
        });
        Reply::of_bool(answer.map(|written| matches!(written, Written::Done(_))))
    }

    fn read(&self, name: &LockName, by: Deadline) -> Result<Standing> {
        let found = self.client.read_steps(&LockKeys::of(name, &self.suffix)?.lock, &STANDING_READS, by)?;
        Ok(found.as_ref().map_or(Standing::Free, standing))
    }

    fn read_own(&self, name: &LockName, record: &Record, by: Deadline) -> Result<Standing> {
        let found = self.client.read_steps(&LockKeys::of(name, &self.suffix)?.lock, &STANDING_READS, by)?;
        let holds = found.as_ref().map(holds).unwrap_or_default();
        let is_own = |found: &&Found| found.record.as_ref().is_some_and(|it| it.token() == record.token());
        let own = holds.iter().find(is_own).cloned();
        Ok(own.map_or_else(|| found.as_ref().map_or(Standing::Free, standing), Standing::Held))
    }

    fn read_many(&self, names: &[LockName], by: Deadline, report: &mut dyn FnMut(usize, Standing)) {
        let keys = names.iter().map(|name| LockKeys::of(name, &self.suffix).map(|keys| keys.lock));
        let Ok(keys) = keys.collect::<Result<Vec<_>>>() else { return };
        self.client.read_steps_many(&keys, &STANDING_READS, by, &mut |index, found| {
            report(index, found.as_ref().map_or(Standing::Free, standing));
        });
    }

    fn count(&self, name: &LockName, _: u64, _: Deadline) -> Result<u64> {
        let what = format!("lock {name} is counted only when it is acquired");
        Err(Error::Internal { what, source: None })
    }

    /// Raises the fence of our lease above that of the layout `java`.
    fn number_of(&self, name: &LockName, record: &Record, numbers: u64, by: Deadline) -> Result<u64> {
        let (key, token) = (&LockKeys::of(name, &self.suffix)?.lock, record.token());
        if record.mode() != Mode::Exclusive {
            let number = self.number_of_hold(key, name, record, by)?;
            return number.map(|number| number as u64).ok_or_else(|| self.over_before_its_number());
        }
        let found = self.client.read(&fence_key(name, &self.suffix), &[keys::FENCE], by)?;
        let (java, numbers) =
            (found.and_then(|found| found.int(keys::FENCE)).unwrap_or_default(), numbers as i64);
        let (least, sign) = (java.saturating_add(numbers), Sign::Positive);
        let climb = BinOperation::Climb { bin: FENCE, by: numbers, least, sign };
        let steps = [climb, BinOperation::Read(FENCE)];
        let when = When::Held(lease_of(&token));
        match self.change(key, RecordExistsAction::UpdateOnly, when, &steps, by)? {
            Written::Done(reply) => reply
                .int(FENCE)
                .map(|number| number as u64)
                .ok_or_else(|| Error::Internal { what: "the answer has no fence".into(), source: None }),
            Written::Missing | Written::Refused => Err(self.over_before_its_number()),
        }
    }

    fn last_count(&self, name: &LockName, by: Deadline) -> Result<Option<u64>> {
        let found = self.client.read(&LockKeys::of(name, &self.suffix)?.lock, &[FENCE], by)?;
        Ok(found.and_then(|found| found.int(FENCE)).map(i64::unsigned_abs))
    }

    fn history(&self) -> Option<&dyn HistoryStore> {
        Some(self)
    }

    fn list(
        &self,
        query: &LockQuery,
        after: Option<&ListCursor>,
        most: usize,
        by: Deadline,
    ) -> Result<LockPage> {
        list::page(&self.client, &self.suffix, query, after, most, by)
    }

    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        let layout = if self.beside_java { Layout::Both } else { Layout::Own };
        look_over(&self.client, &self.suffix, layout, |is_alone| self.slack(is_alone), by)
    }

    fn counters(&self) -> StoreCounters {
        self.counters.now()
    }

    fn modes(&self) -> Option<&dyn ModeRegister> {
        // Clients of the layout `java` know no modes, and beside them a released record is deleted.
        (!self.beside_java).then_some(self)
    }

    fn permits(&self) -> Option<&dyn PermitRegister> {
        (!self.beside_java).then_some(self)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(&self.latches)
    }
}

/// A [`Replace`] in the layout `own`.
struct OwnReplace {
    record_key: RecordKey,
    mode: Mode,
    token: OwnerToken,
    lasts_ms: i64,
}

impl ReplaceParts for OwnReplace {
    fn steps(&self) -> Vec<BinOperation<'static>> {
        if self.mode == Mode::Exclusive {
            return vec![BinOperation::Put(LASTS_MS, BinValue::Int(self.lasts_ms))];
        }
        let key = conditions::key(self.mode, &self.token);
        let renewed = match self.mode {
            Mode::Permit => conditions::permit_renewed(&key, self.lasts_ms),
            _ => conditions::holds_renewed(&key, self.lasts_ms),
        };
        vec![
            BinOperation::Compute(HOLDS, renewed),
            BinOperation::Compute(LASTS_MS, conditions::lasts_for_all()),
        ]
    }

    fn write<'a>(&'a self, steps: &'a [BinOperation<'a>]) -> Write<'a> {
        let when = Some(match self.mode {
            // A request that arrives late must not shorten a longer renewal.
            Mode::Exclusive => When::HeldNoLonger(lease_of(&self.token), self.lasts_ms),
            mode => When::Meets(conditions::is_held(&conditions::key(mode, &self.token))),
        });
        let (exists, ttl_s) = (RecordExistsAction::UpdateOnly, whole_seconds(FENCE_TTL));
        Write { record_key: &self.record_key, exists, when, steps, ttl_s }
    }
}

/// Takes the option `slack`.
pub(super) fn take_slack(options: &mut Options) -> Result<Option<Duration>> {
    options.take_checked("slack", |slack| match slack > SLACK_MAX {
        true => Err(Error::invalid("slack", format!("{slack:?}"), "0ms to 1m")),
        false => Ok(slack),
    })
}

/// Refuses the option `fence`, which belongs to the layout `java`.
pub(super) fn refuse_fence(options: &mut Options, layout: Layout) -> Result<()> {
    match options.take("fence") {
        Some(value) => {
            let allowed = format!("no such option with layout={}: every lock has a fence", layout.name());
            Err(Error::invalid("fence", value, allowed))
        }
        None => Ok(()),
    }
}

/// Refuses a lease that the fence would not outlast.
fn check_ttl(ttl: Duration) -> Result<()> {
    if ttl <= FENCE_TTL {
        return Ok(());
    }
    let allowed = "at most 30 days with layout=own: the fence is kept that long";
    Err(Error::invalid("ttl", format!("{ttl:?}"), allowed))
}

fn lease_of(token: &OwnerToken) -> OwnLease<'_> {
    OwnLease { token: (TOKEN, token.as_bytes()), lasts_ms: LASTS_MS }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record that was released is deleted there, and clients of the layout `java` know no modes.
    #[test]
    fn the_part_of_the_layout_both_has_no_modes() {
        let setup = Setup::read("127.0.0.1:1", "test", "tests", Options::default()).unwrap();
        let client = Arc::new(Client::new(&setup));
        let has_modes = |beside_java| {
            let store = AerospikeOwnStore::over(Arc::clone(&client), "tests".into(), None, beside_java);
            store.modes().is_some()
        };
        assert_eq!([false, true].map(has_modes), [true, false]);
    }
}
