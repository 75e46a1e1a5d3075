//! The lock's record and the lock's counter as records of Aerospike.

use std::sync::Arc;
use std::time::Duration;

use super::client::{BinOperation, BinValue, Client, RecordExistsAction, When, Write, Written};
use super::diagnose::look_over;
use super::history;
use super::keys::java_bins::{NAME, TOKEN, WHO};
use super::keys::{FENCE, FENCE_TTL, LockKeys, fence_key, fence_set, own_bins, whole_seconds};
use super::latches::AerospikeLatches;
use super::list;
use super::options::Setup;
use super::own::SLACK;
use super::promises;
use super::ready::wait_until_ready;
use super::replaces::{self, ReplaceParts};
use super::standing::java as standing;
use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::names::history_entry::HistoryEntry;
use crate::names::lock_name::LockName;
use crate::names::owner::OwnerToken;
use crate::names::promise::Promise;
use crate::runtime::time::{Deadline, wall_ms};
use crate::settings::options::Options;
use crate::store::layout::Layout;
use crate::store::lock_store::no_stamps;
use crate::store::remote::{
    Capabilities, Compares, Create, Created, OnReply, ReadBack, Record, Register, Replace, Reply, Standing,
};
use crate::store::{HistoryOf, HistoryStore, LatchStore, ListCursor, LockPage, LockQuery};

/// The name of an answer: the time of the last write.
const WRITTEN_NS: &str = "written_ns";

/// A [`Register`] in a namespace of Aerospike. URI: `aerospike://host:3000,host2/namespace/setSuffix`.
///
/// The layout is that of PhonePe's DLM 1.0.1. Its clients and this library exclude each other. The faults of those
/// clients (they release a lock that they have lost, and they trust the answer of one master) can also affect the
/// locks of this library.
///
/// A grant is as durable as the namespace. A namespace in memory with one copy forgets all locks when the server
/// restarts. A namespace on disk with one copy forgets the locks of the last second when the server crashes. Fences
/// keep rising in both cases. A cluster needs `conflict-resolution-policy last-update-time`: otherwise a node that
/// comes back may replace the new holder's record with an old holder's record.
#[derive(Debug)]
pub struct AerospikeStore {
    client: Arc<Client>,
    suffix: String,
    fenced: bool,
    /// Whether records of the layout `own` are expected. They are read as held.
    beside_own: bool,
    latches: AerospikeLatches,
}

impl AerospikeStore {
    /// Creates the register for a namespace in the cluster of `hosts`. Reads the files that the options name. No
    /// other I/O until the first call.
    pub(crate) fn open(
        hosts: &str,
        namespace: &str,
        suffix: &str,
        options: Options,
    ) -> Result<AerospikeStore> {
        if options.has("slack") {
            return Err(Error::invalid("slack", "", "only together with layout=own or layout=both"));
        }
        let setup = Setup::read(hosts, namespace, suffix, options)?;
        let client = Arc::new(Client::new(&setup));
        Ok(AerospikeStore {
            latches: AerospikeLatches::new(Arc::clone(&client), &setup.suffix),
            client,
            suffix: setup.suffix,
            fenced: setup.fenced,
            beside_own: false,
        })
    }

    /// Creates a register that reads locks of the layout `own` as held.
    pub(super) fn beside_own(client: Arc<Client>, suffix: String) -> AerospikeStore {
        let latches = AerospikeLatches::new(Arc::clone(&client), &suffix);
        AerospikeStore { latches, client, suffix, fenced: true, beside_own: true }
    }
}

impl HistoryStore for AerospikeStore {
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

impl Register for AerospikeStore {
    fn promises(&self) -> Vec<Promise> {
        promises::beside_java(self.fenced)
    }

    fn describe(&self) -> String {
        self.client.uri().to_owned()
    }

    fn layout(&self) -> Option<&'static str> {
        Some(Layout::Java.name())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            counts: self.fenced,
            reserves: true,
            compares: Compares::Token,
            read_back: ReadBack::Never,
            ..Capabilities::default()
        }
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        wait_until_ready(&self.client, fence_set(&self.suffix), by)
    }

    fn greet(&self, by: Deadline) -> Result<()> {
        self.client.greet(by)
    }

    fn create(&self, create: &Create<'_>, by: Deadline) -> Reply<Created> {
        let keys = match LockKeys::of(create.name, &self.suffix) {
            Ok(keys) => keys,
            Err(error) => return Reply::Down(error),
        };
        let (data, updated, record) = (keys.data_bin(), keys.updated_bin(), create.record);
        let steps = [
            BinOperation::Put(&data, BinValue::Int(1)),
            BinOperation::Put(&updated, BinValue::Int(wall_ms() as i64)),
            BinOperation::Put(TOKEN, BinValue::Bytes(record.token().as_bytes().to_vec())),
            BinOperation::Put(WHO, BinValue::Bytes(record.identity_bytes().to_vec())),
            BinOperation::Put(NAME, BinValue::Text(create.name.key().to_owned())),
        ];
        let ttl_s = whole_seconds(record.ttl());
        let write = Write {
            record_key: &keys.lock,
            exists: RecordExistsAction::CreateOnly,
            when: None,
            steps: &steps,
            ttl_s,
        };
        Reply::of(self.client.write(&write, by), |written| match written {
            Written::Done(_) => Reply::Yes(Created::default()),
            Written::Missing | Written::Refused => Reply::No(None),
        })
    }

    fn replace(&self, change: &Replace<'_>, by: Deadline) -> Reply {
        replaces::replace(&self.client, JavaReplace::of(change, &self.suffix), by)
    }

    fn replace_many<'a>(&self, changes: Vec<Replace<'a>>, by: Deadline, answered: OnReply<'_, 'a>) {
        let parts_of = |change: &Replace<'a>| JavaReplace::of(change, &self.suffix);
        replaces::replace_many(&self.client, &changes, parts_of, by, answered);
    }

    fn remove(&self, name: &LockName, expected: &Record, by: Deadline) -> Reply {
        let keys = match LockKeys::of(name, &self.suffix) {
            Ok(keys) => keys,
            Err(error) => return Reply::Down(error),
        };
        let deleted = self.client.delete(&keys.lock, When::Is(TOKEN, expected.token().as_bytes()), by);
        Reply::of_bool(deleted.map(|written| matches!(written, Written::Done(_))))
    }

    fn read(&self, name: &LockName, by: Deadline) -> Result<Standing> {
        let keys = LockKeys::of(name, &self.suffix)?;
        let found = self.client.read(&keys.lock, &[], by)?;
        if !self.beside_own && found.as_ref().is_some_and(|found| found.bin(own_bins::LASTS_MS).is_some()) {
            let what = format!(
                "keeps lock {name} in the layout {}, and this client uses the layout {}: see `layout` in the store's \
                 options",
                Layout::Own.name(),
                Layout::Java.name()
            );
            return Err(self.client.unsuitable(&what));
        }
        Ok(found.as_ref().map_or(Standing::Free, standing))
    }

    /// Without the time of the last change, because the name of its bin varies. It is only for people.
    fn read_many(&self, names: &[LockName], by: Deadline, report: &mut dyn FnMut(usize, Standing)) {
        let keys = names.iter().map(|name| LockKeys::of(name, &self.suffix).map(|keys| keys.lock));
        let Ok(keys) = keys.collect::<Result<Vec<_>>>() else { return };
        let steps = [TOKEN, WHO, own_bins::LASTS_MS].map(BinOperation::Read);
        self.client.read_steps_many(&keys, &steps, by, &mut |index, found| {
            // A record of the other layout is left to `read`, which explains it.
            let is_own = found.as_ref().is_some_and(|found| found.bin(own_bins::LASTS_MS).is_some());
            if self.beside_own || !is_own {
                report(index, found.as_ref().map_or(Standing::Free, standing));
            }
        });
    }

    fn count(&self, name: &LockName, least: u64, by: Deadline) -> Result<u64> {
        self.reserve(name, least, 1, by)
    }

    fn reserve(&self, name: &LockName, least: u64, numbers: u64, by: Deadline) -> Result<u64> {
        let record_key = fence_key(name, &self.suffix);
        let least = least.saturating_add(numbers - 1);
        let steps = [BinOperation::Raise(FENCE, (numbers as i64, least as i64)), BinOperation::Read(FENCE)];
        let ttl_s = whole_seconds(FENCE_TTL);
        let write = Write {
            record_key: &record_key,
            exists: RecordExistsAction::Update,
            when: None,
            steps: &steps,
            ttl_s,
        };
        let answer = self.client.write(&write, by)?;
        let number = if let Written::Done(reply) = &answer { reply.int(FENCE) } else { None };
        number.map(|number| number as u64).ok_or_else(|| {
            let what = format!("counting the fence of lock {name} returned {answer:?}");
            Error::Internal { what, source: None }
        })
    }

    fn last_count(&self, name: &LockName, by: Deadline) -> Result<Option<u64>> {
        let found = self.client.read(&fence_key(name, &self.suffix), &[FENCE], by)?;
        Ok(found.and_then(|found| found.int(FENCE)).map(|number| number as u64))
    }

    /// The time of the last write, by the clock of the record's node.
    fn stamp(&self, name: &LockName, by: Deadline) -> Result<Option<Box<[u8]>>> {
        let keys = LockKeys::of(name, &self.suffix)?;
        let found = self.client.read_steps(&keys.lock, &[BinOperation::ReadWritten(WRITTEN_NS)], by)?;
        Ok(found.and_then(|found| found.int(WRITTEN_NS)).map(|ns| ns.to_be_bytes().into()))
    }

    fn remove_stamped(&self, name: &LockName, stamp: &[u8], by: Deadline) -> Reply {
        let (keys, written) = match (LockKeys::of(name, &self.suffix), stamp.try_into()) {
            (Ok(keys), Ok(written)) => (keys, i64::from_be_bytes(written)),
            (Err(error), _) => return Reply::Down(error),
            (_, Err(_)) => return Reply::Down(no_stamps(name, &self.describe())),
        };
        let is_foreign = When::LacksAll([TOKEN, own_bins::TOKEN, own_bins::LASTS_MS]);
        let when = When::Both(Box::new([is_foreign, When::WrittenAt(written)]));
        let deleted = self.client.delete(&keys.lock, when, by);
        Reply::of_bool(deleted.map(|written| matches!(written, Written::Done(_))))
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
        look_over(&self.client, &self.suffix, Layout::Java, |_| SLACK, by)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(&self.latches)
    }
}

/// A [`Replace`] in the layout `java`.
struct JavaReplace {
    keys: LockKeys,
    updated: String,
    token: OwnerToken,
    ttl_s: u32,
}

impl JavaReplace {
    fn of(change: &Replace<'_>, suffix: &str) -> Result<JavaReplace> {
        let keys = LockKeys::of(change.name, suffix)?;
        let (updated, token) = (keys.updated_bin(), change.expected.token());
        Ok(JavaReplace { keys, updated, token, ttl_s: whole_seconds(change.record.ttl()) })
    }
}

impl ReplaceParts for JavaReplace {
    fn steps(&self) -> Vec<BinOperation<'_>> {
        vec![BinOperation::Put(&self.updated, BinValue::Int(wall_ms() as i64))]
    }

    fn write<'a>(&'a self, steps: &'a [BinOperation<'a>]) -> Write<'a> {
        let (exists, ttl_s) = (RecordExistsAction::UpdateOnly, self.ttl_s);
        // A request that arrives late must not shorten a longer renewal.
        let when = When::IsNoLonger { bin: TOKEN, bytes: self.token.as_bytes(), left_s: ttl_s };
        Write { record_key: &self.keys.lock, exists, when: Some(when), steps, ttl_s }
    }
}
