//! Locks and latches in the memory of this process: the shortest implementation of the contract, and a store for
//! tests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::history_store::newest;
use super::latch_record::LatchRecord;
use super::latch_record::listener_set::ListenerSet;
use super::latch_store::check_participant;
use super::scheme::Scheme;
use super::store_uri::StoreUri;
use super::{
    Acquired, Attempt, Grant, GrantRecord, HISTORY_MAX, HistoryOf, HistoryStore, Inspection, LatchNote,
    LatchStore, ListCursor, ListedLock, LockPage, LockQuery, LockStore, NewLatch, Released, Roster, Step,
    Stepped,
};
use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::names::fence::Fence;
use crate::names::history_entry::HistoryEntry;
use crate::names::holder::{Holder, Identity};
use crate::names::latch_name::LatchName;
use crate::names::lock_name::{Level, LockName};
use crate::names::notice_endpoint::LatchListener;
use crate::names::owner::{OwnerRecord, OwnerToken};
use crate::names::promise::{Promise, PromiseTopic, Verdict, of_any_store, suite};
use crate::runtime::sync::{HashMap, Mutex};
use crate::runtime::time::{self, Deadline, Moment};

const SWEEP_AT_LEAST: usize = 1024;
/// With so many histories, a new one first drops those that have ended.
const HISTORIES_MAX: usize = 1024;

/// `memory:`
pub(super) const SCHEME: Scheme = Scheme::new("memory:", &[], open).of_paths();

fn open(uri: &mut StoreUri) -> Result<Arc<dyn LockStore>> {
    match uri.path() {
        "" => Ok(Arc::new(MemoryStore::new())),
        _ => Err(uri.invalid("memory: without anything after the colon, except options")),
    }
}

/// A [`LockStore`] and [`LatchStore`] in the memory of this process. Other processes do not see it. URI: `memory:`.
#[derive(Debug)]
pub struct MemoryStore {
    state: Mutex<MemoryState>,
    latches: Mutex<MemoryLatches>,
    /// Of locks, and of grants that were broken.
    histories: Mutex<HashMap<(LockName, Vec<u8>), MemoryHistory>>,
}

/// Entries, each with the moment when it ends.
type MemoryHistory = VecDeque<(Moment, HistoryEntry)>;

#[derive(Debug)]
struct MemoryLatches {
    by_name: HashMap<(String, String), LatchRecord>,
    listeners: HashMap<(String, String), ListenerSet>,
    /// Like [`MemoryState::sweep_at`].
    sweep_at: usize,
}

#[derive(Debug)]
struct MemoryState {
    held: HashMap<LockName, Record>,
    /// One counter for all locks. The fences of each lock rise, and a free lock needs no memory.
    fence: u64,
    /// When there are this many records, the next grant deletes the expired ones. Otherwise locks that are
    /// acquired once and never released would fill the memory.
    sweep_at: usize,
}

#[derive(Debug)]
struct Record {
    owner: OwnerToken,
    identity: Identity,
    fence: Fence,
    since: SystemTime,
    ends: Moment,
}

impl MemoryState {
    /// Returns the record of `name` while its lease lasts. Deletes an expired record.
    fn live(&mut self, name: &LockName) -> Option<&mut Record> {
        if self.held.get(name).is_some_and(|record| Moment::now() >= record.ends) {
            self.held.remove(name);
        }
        self.held.get_mut(name)
    }

    fn sweep(&mut self) {
        if self.held.len() >= self.sweep_at {
            let now = Moment::now();
            self.held.retain(|_, record| now < record.ends);
            self.sweep_at = SWEEP_AT_LEAST.max(2 * self.held.len());
        }
    }

    fn owned(&mut self, name: &LockName, owner_record: &OwnerRecord) -> Option<&mut Record> {
        self.live(name).filter(|record| record.owner.as_bytes() == owner_record.as_bytes())
    }
}

impl Record {
    fn holder(&self) -> Holder {
        Holder::new(Some(self.identity.clone()), Some(Deadline::at(self.ends).remaining()), Some(self.since))
    }
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> MemoryStore {
        let state =
            MemoryState { held: HashMap::default(), fence: time::wall_ms() << 20, sweep_at: SWEEP_AT_LEAST };
        let latches = MemoryLatches {
            by_name: HashMap::default(),
            listeners: HashMap::default(),
            sweep_at: SWEEP_AT_LEAST,
        };
        let histories = Mutex::new(HashMap::default());
        MemoryStore { state: Mutex::new(state), latches: Mutex::new(latches), histories }
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl LockStore for MemoryStore {
    fn describe(&self) -> String {
        "memory:".into()
    }

    fn promises(&self) -> Vec<Promise> {
        const TESTS: &str = "memory_contract";
        let mut promises = of_any_store(TESTS);
        promises.extend([
            Promise::new(
                PromiseTopic::Exclusion,
                Verdict::Holds,
                "one mutex; only threads of this process use it",
                suite(TESTS, "waits"),
            ),
            Promise::new(
                PromiseTopic::Durability,
                Verdict::Fails,
                "the locks end with the process",
                suite(TESTS, "stores"),
            ),
            Promise::new(
                PromiseTopic::Outcomes,
                Verdict::Holds,
                "there is no reply that could be lost",
                suite(TESTS, "stores"),
            ),
            Promise::new(
                PromiseTopic::DeadHolder,
                Verdict::Limited,
                "the locks end with the process; a lease that it has forgotten ends with its TTL",
                suite(TESTS, "waits::a_holder_that_vanished"),
            ),
        ]);
        promises
    }

    fn initialize(&self, _by: Deadline) -> Result<()> {
        Ok(())
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.acquire_with_fences(attempt, 1, doubtful)
    }

    fn reserves_fences(&self) -> bool {
        true
    }

    fn acquire_with_fences(
        &self,
        attempt: Attempt<'_>,
        fences: u64,
        _doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        let owner = OwnerToken::draw()?;
        let mut state = self.state.lock();
        if let Some(record) = state.live(attempt.name) {
            return Ok(Acquired::Held(record.holder()));
        }
        state.sweep();
        let (fence, since) = (Fence(state.fence + 1), Moment::now());
        state.fence += fences;
        let record = Record {
            owner,
            identity: attempt.identity.clone(),
            fence: Fence(state.fence),
            since: time::wall(),
            ends: since.after(attempt.ttl),
        };
        state.held.insert(attempt.name.clone(), record);
        let owner_record = OwnerRecord::from_bytes(owner.as_bytes().as_slice());
        Ok(Acquired::Granted(Grant { owner_record, fence: Some(fence), fences, since, may_reappear: false }))
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        _by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        let mut state = self.state.lock();
        Ok(state.owned(name, owner_record).map(|record| {
            record.ends = record.ends.max(Moment::now().after(ttl));
            record.since = time::wall();
            owner_record.clone()
        }))
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, _by: Deadline) -> Result<Released> {
        let mut state = self.state.lock();
        let owned = state.owned(name, owner_record).is_some();
        if owned {
            state.held.remove(name);
        }
        Ok(if owned { Released::Freed } else { Released::NotOurs })
    }

    fn holder(&self, name: &LockName, _by: Deadline) -> Result<Option<Holder>> {
        Ok(self.state.lock().live(name).map(|record| record.holder()))
    }

    fn inspect(&self, name: &LockName, _by: Deadline) -> Result<Inspection> {
        let mut state = self.state.lock();
        let record = state.live(name);
        Ok(Inspection {
            fence: record.as_ref().map(|record| record.fence),
            grant: record
                .as_ref()
                .map(|record| GrantRecord::Ours(OwnerRecord::from_bytes(record.owner.as_bytes().as_slice()))),
            holder: record.map(|record| record.holder()),
            layout: None,
        })
    }

    /// Free locks have no record. The cursor is the last name of the page before.
    fn list(
        &self,
        query: &LockQuery,
        after: Option<&ListCursor>,
        most: usize,
        _by: Deadline,
    ) -> Result<LockPage> {
        let (state, now) = (self.state.lock(), Moment::now());
        let after = after.map(ListCursor::as_bytes);
        let is_wanted = |name: &LockName| {
            name.key().starts_with(query.prefix_text())
                && after.is_none_or(|after| name.key().as_bytes() > after)
        };
        let mut found: Vec<_> =
            state.held.iter().filter(|(name, record)| now < record.ends && is_wanted(name)).collect();
        found.sort_unstable_by_key(|(name, _)| name.key());
        let most = most.max(1);
        let next = if found.len() > most { Some(found[most - 1].0) } else { None };
        let next = next.map(|name| ListCursor::from_bytes(name.key().as_bytes()));
        let listed = |(name, record): (&LockName, &Record)| {
            let (holder, fence) = (Some(record.holder()), Some(record.fence));
            ListedLock { holder, fence, ..ListedLock::new(name.clone()) }
        };
        Ok(LockPage::new(found.into_iter().take(most).map(listed).collect(), next))
    }

    fn diagnose(&self, _by: Deadline) -> Result<Vec<Diagnostic>> {
        let advice = "for tests: other processes do not see these locks";
        Ok(vec![Diagnostic::warn("reach", "only this process", advice)])
    }

    fn grant_number(&self, owner_record: &OwnerRecord) -> Option<u64> {
        owner_record.as_bytes().try_into().ok().map(|token| OwnerToken::from_bytes(token).hash())
    }

    fn history(&self) -> Option<&dyn HistoryStore> {
        Some(self)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(self)
    }
}

impl HistoryStore for MemoryStore {
    fn append(&self, of: HistoryOf<'_>, entry: &HistoryEntry, lasts: Duration, _by: Deadline) -> Result<()> {
        let key = (of.name().clone(), of.grant_bytes());
        let (mut histories, now) = (self.histories.lock(), Moment::now());
        if histories.len() >= HISTORIES_MAX && !histories.contains_key(&key) {
            histories.retain(|_, entries| entries.back().is_some_and(|(ends, _)| now < *ends));
        }
        let entries = histories.entry(key).or_default();
        entries.retain(|(ends, kept)| now < *ends && kept.id != entry.id);
        entries.push_back((now.after(lasts), entry.clone()));
        if entries.len() > HISTORY_MAX {
            entries.pop_front();
        }
        Ok(())
    }

    fn entries(
        &self,
        of: HistoryOf<'_>,
        since_ms: u64,
        most: usize,
        _by: Deadline,
    ) -> Result<Vec<HistoryEntry>> {
        let key = (of.name().clone(), of.grant_bytes());
        let (histories, now) = (self.histories.lock(), Moment::now());
        let kept = histories.get(&key).into_iter().flatten().filter(|(ends, _)| now < *ends);
        Ok(newest(kept.map(|(_, entry)| entry.clone()).collect(), since_ms, most))
    }
}

impl MemoryLatches {
    /// Returns the record of `name` while it lives. Deletes an expired record.
    fn live(&mut self, name: &LatchName, now: Moment) -> Option<&mut LatchRecord> {
        let key = key(name);
        if self.by_name.get(&key).is_some_and(|record| !record.is_live(now)) {
            self.by_name.remove(&key);
            self.listeners.remove(&key);
        }
        self.by_name.get_mut(&key)
    }

    fn sweep(&mut self, now: Moment) {
        if self.by_name.len() >= self.sweep_at {
            self.by_name.retain(|_, record| record.is_live(now));
            self.listeners.retain(|_, set| now < set.ends());
            self.sweep_at = SWEEP_AT_LEAST.max(2 * self.by_name.len());
        }
    }
}

fn key(name: &LatchName) -> (String, String) {
    (name.client().to_owned(), name.id().to_owned())
}

fn not_found(name: &LatchName) -> Error {
    Error::NotFound { name: name.to_string() }
}

impl LatchStore for MemoryStore {
    fn initialize_latches(&self, _by: Deadline) -> Result<()> {
        Ok(())
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        new.roster.iter().try_for_each(|name| check_participant(name))?;
        let (mut latches, now) = (self.latches.lock(), Moment::now());
        latches.sweep(now);
        let record = latches.by_name.entry(key(new.name)).or_insert_with(LatchRecord::absent);
        Ok(record.create(new, now))
    }

    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        step.participant.map_or(Ok(()), check_participant)?;
        let (mut latches, now) = (self.latches.lock(), Moment::now());
        let record = latches.live(step.name, now).ok_or_else(|| not_found(step.name))?;
        record.step(step, now).unwrap_or_else(|| Err(not_found(step.name)))
    }

    fn counts(&self, asked: &[(&LatchName, Level)], _by: Deadline) -> Result<Vec<Result<Option<i64>>>> {
        let (mut latches, now) = (self.latches.lock(), Moment::now());
        let count = |(name, level): &(&LatchName, Level)| {
            Ok(latches.live(name, now).and_then(|record| record.count(name.farm(), *level)))
        };
        Ok(asked.iter().map(count).collect())
    }

    fn roster(&self, name: &LatchName, _by: Deadline) -> Result<Roster> {
        let (mut latches, now) = (self.latches.lock(), Moment::now());
        let record = latches.live(name, now).and_then(|record| record.roster(name.farm()));
        record.ok_or_else(|| not_found(name))
    }

    fn listen(&self, note: &LatchNote<'_>) -> Result<bool> {
        let (mut latches, now) = (self.latches.lock(), Moment::now());
        let record = latches.live(note.name, now);
        if record.and_then(|record| record.count(note.name.farm(), note.level)).is_none() {
            return Ok(false);
        }
        let listeners = latches.listeners.entry(key(note.name)).or_default();
        listeners.note(note.listener, now.after(note.lasts), now);
        Ok(true)
    }

    fn listeners(&self, name: &LatchName, _by: Deadline) -> Result<Vec<LatchListener>> {
        let (latches, now) = (self.latches.lock(), Moment::now());
        Ok(latches.listeners.get(&key(name)).map(|set| set.live(now)).unwrap_or_default())
    }
}
