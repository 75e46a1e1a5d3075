//! Locks and latches in the memory of this process: the shortest implementation of the contract, and a store for
//! tests.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::history_store::newest;
use super::latch_record::LatchRecord;
use super::latch_record::listener_set::ListenerSet;
use super::latch_store::check_participant;
use super::lock_holds::{HoldChange, HoldRecord, LockHolds, NewHold, grant_of};
use super::mode_store::check_conversion;
use super::scheme::Scheme;
use super::store_uri::StoreUri;
use super::{
    Acquired, AcquiredPermits, Attempt, Conversion, Converted, GrantRecord, HISTORY_MAX, HistoryOf,
    HistoryStore, Inspection, Intent, IntentId, LatchNote, LatchPage, LatchQuery, LatchStore, ListCursor,
    ListedLatch, ListedLock, LockHold, LockPage, LockQuery, LockStore, ModeStore, ModeTerms, NewLatch,
    PermitTerms, Released, Roster, SemaphoreState, SemaphoreStore, Step, Stepped,
};
use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::names::fence::Fence;
use crate::names::history_entry::HistoryEntry;
use crate::names::holder::Holder;
use crate::names::latch_name::LatchName;
use crate::names::lock_name::{Level, LockName};
use crate::names::mode::Mode;
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
    locks: HashMap<LockName, LockHolds>,
    /// One counter for all locks. The numbers of each lock rise, and a free lock needs no memory.
    fence: u64,
    /// When there are this many locks, the next grant deletes those that nobody holds. Otherwise locks that are
    /// acquired once and never released would fill the memory.
    sweep_at: usize,
}

impl MemoryState {
    /// Returns what the lock has now. Deletes it if it has nothing.
    fn live(&mut self, name: &LockName) -> Option<&mut LockHolds> {
        let holds = self.locks.get_mut(name)?;
        holds.expire(Moment::now());
        if holds.is_empty() {
            self.locks.remove(name);
        }
        self.locks.get_mut(name)
    }

    fn sweep(&mut self) {
        if self.locks.len() >= self.sweep_at {
            let now = Moment::now();
            self.locks.retain(|_, holds| {
                holds.expire(now);
                !holds.is_empty()
            });
            self.sweep_at = SWEEP_AT_LEAST.max(2 * self.locks.len());
        }
    }

    fn owned(&mut self, name: &LockName, owner_record: &OwnerRecord) -> Option<&mut HoldRecord> {
        self.live(name)?.owned(owner_record)
    }
}

#[cfg(dlm_simulation)]
impl MemoryStore {
    /// Returns whether a thread is in the middle of a call.
    pub fn is_busy(&self) -> bool {
        self.state.is_locked() || self.latches.is_locked() || self.histories.is_locked()
    }
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> MemoryStore {
        let state =
            MemoryState { locks: HashMap::default(), fence: time::wall_ms() << 20, sweep_at: SWEEP_AT_LEAST };
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
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        self.acquire_mode(attempt, ModeTerms { fences, ..ModeTerms::new(Mode::Exclusive) }, doubtful)
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
        let freed = state.live(name).is_some_and(|holds| holds.release(owner_record));
        Ok(if freed { Released::Freed } else { Released::NotOurs })
    }

    fn holder(&self, name: &LockName, _by: Deadline) -> Result<Option<Holder>> {
        let mut state = self.state.lock();
        Ok(state.live(name).and_then(|holds| holds.last_to_end()).map(HoldRecord::holder))
    }

    fn inspect(&self, name: &LockName, _by: Deadline) -> Result<Inspection> {
        let mut state = self.state.lock();
        let hold = state.live(name).and_then(|holds| holds.last_to_end());
        Ok(Inspection {
            fence: hold.map(|hold| Fence(hold.number)),
            grant: hold.map(|hold| GrantRecord::Ours(hold.owner_record())),
            holder: hold.map(HoldRecord::holder),
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
        let (mut state, now) = (self.state.lock(), Moment::now());
        state.locks.values_mut().for_each(|holds| holds.expire(now));
        let after = after.map(ListCursor::as_bytes);
        let is_wanted = |name: &LockName| {
            name.key().starts_with(query.prefix_text())
                && after.is_none_or(|after| name.key().as_bytes() > after)
        };
        let wanted = state.locks.iter().filter(|(name, _)| is_wanted(name));
        let mut found: Vec<_> =
            wanted.filter_map(|(name, holds)| Some((name, holds.last_to_end()?))).collect();
        found.sort_unstable_by_key(|(name, _)| name.key());
        let most = most.max(1);
        let next = if found.len() > most { Some(found[most - 1].0) } else { None };
        let next = next.map(|name| ListCursor::from_bytes(name.key().as_bytes()));
        let listed = |(name, hold): (&LockName, &HoldRecord)| {
            let (holder, fence) = (Some(hold.holder()), Some(Fence(hold.number)));
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

    fn modes(&self) -> Option<&dyn ModeStore> {
        Some(self)
    }

    fn semaphores(&self) -> Option<&dyn SemaphoreStore> {
        Some(self)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(self)
    }
}

impl ModeStore for MemoryStore {
    fn acquire_mode(
        &self,
        attempt: Attempt<'_>,
        terms: ModeTerms<'_>,
        _doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        let owner = OwnerToken::draw()?;
        let mut state = self.state.lock();
        if let Some(blocker) = state.live(attempt.name).and_then(|holds| holds.blocker(&terms)) {
            return Ok(Acquired::Held(blocker));
        }
        state.sweep();
        let (now, mode) = (Moment::now(), terms.mode);
        let new = NewHold::new(owner, mode, &attempt, now);
        let MemoryState { locks, fence, .. } = &mut *state;
        let holds = locks.entry(attempt.name.clone()).or_default();
        let Ok(last) = holds.grant(new, &terms, now, || count(fence, terms.fences));
        Ok(Acquired::Granted(grant_of(&owner, mode, last, terms.fences, now)))
    }

    fn convert(
        &self,
        attempt: Attempt<'_>,
        conversion: Conversion<'_>,
        _doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Converted> {
        check_conversion(attempt.name, &conversion)?;
        let owner = OwnerToken::draw()?;
        let mut state = self.state.lock();
        if state.live(attempt.name).is_none() {
            return Ok(Converted::NotOurs);
        }
        let (now, mode) = (Moment::now(), conversion.to);
        let new = NewHold::new(owner, mode, &attempt, now);
        let MemoryState { locks, fence, .. } = &mut *state;
        let Some(holds) = locks.get_mut(attempt.name) else { return Ok(Converted::NotOurs) };
        let Ok(change) = holds.convert(new, &conversion, || count(fence, 1));
        Ok(match change {
            HoldChange::Made(number) => Converted::Granted(grant_of(&owner, mode, number, 1, now)),
            HoldChange::Refused(holder) => Converted::Held(holder),
            HoldChange::NotOurs => Converted::NotOurs,
        })
    }

    fn blocker(&self, name: &LockName, mode: Mode, _by: Deadline) -> Result<Option<Holder>> {
        let mut state = self.state.lock();
        Ok(state.live(name).and_then(|holds| holds.blocker(&ModeTerms::new(mode))))
    }

    fn holds(&self, name: &LockName, _by: Deadline) -> Result<Vec<LockHold>> {
        let mut state = self.state.lock();
        let holds = state.live(name).map_or(&[][..], |holds| &holds.holds);
        Ok(holds.iter().map(HoldRecord::hold).collect())
    }

    fn announce(&self, name: &LockName, intent: Intent<'_>, _by: Deadline) -> Result<()> {
        let mut state = self.state.lock();
        state.sweep();
        let holds = state.locks.entry(name.clone()).or_default();
        holds.announce(&intent, Moment::now());
        Ok(())
    }

    fn withdraw(&self, name: &LockName, intent: IntentId, _by: Deadline) -> Result<()> {
        if let Some(holds) = self.state.lock().live(name) {
            holds.withdraw(Some(intent));
        }
        Ok(())
    }
}

impl SemaphoreStore for MemoryStore {
    fn acquire_permits(
        &self,
        attempt: Attempt<'_>,
        terms: PermitTerms,
        _doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<AcquiredPermits> {
        let owners: Vec<_> = (0..terms.count).map(|_| OwnerToken::draw()).collect::<Result<_>>()?;
        let mut state = self.state.lock();
        state.sweep();
        // Forgets what has ended.
        state.live(attempt.name);
        let MemoryState { locks, fence, .. } = &mut *state;
        let holds = locks.entry(attempt.name.clone()).or_default();
        let free = match holds.free_permits(terms) {
            Ok(free) => free,
            Err(refused) => return Ok(*refused),
        };
        let new: Vec<_> = free.into_iter().zip(owners).collect();
        let Ok(grants) =
            holds.grant_permits(&new, terms.permits, (&attempt, Moment::now()), || count(fence, 1));
        Ok(AcquiredPermits::Granted(grants))
    }

    fn semaphore(&self, name: &LockName, _by: Deadline) -> Result<Option<SemaphoreState>> {
        let mut state = self.state.lock();
        Ok(state.live(name).and_then(|holds| holds.semaphore(HoldRecord::hold)))
    }

    fn resize(&self, name: &LockName, permits: u16, _by: Deadline) -> Result<Option<u16>> {
        let mut state = self.state.lock();
        Ok(state.live(name).and_then(|holds| holds.resize(permits, Moment::now())))
    }
}

/// Returns the last of the next numbers.
fn count(fence: &mut u64, numbers: u64) -> std::result::Result<u64, Infallible> {
    *fence += numbers;
    Ok(*fence)
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

    fn reset_latch(&self, new: &NewLatch<'_>) -> Result<()> {
        new.roster.iter().try_for_each(|name| check_participant(name))?;
        let (mut latches, now) = (self.latches.lock(), Moment::now());
        let reset = latches.live(new.name, now).and_then(|record| record.reset(new, now));
        reset.ok_or_else(|| not_found(new.name))
    }

    fn delete_latch(&self, name: &LatchName, _ttl: Duration, _by: Deadline) -> Result<()> {
        let (mut latches, now) = (self.latches.lock(), Moment::now());
        let record = latches.live(name, now).ok_or_else(|| not_found(name))?;
        record.delete(name.farm(), now).ok_or_else(|| not_found(name))?;
        if record.farms.is_empty() {
            latches.by_name.remove(&key(name));
        }
        Ok(())
    }

    fn list_latches(&self, asked: &LatchQuery<'_>) -> Result<LatchPage> {
        let (latches, now) = (self.latches.lock(), Moment::now());
        let after = asked.after.map(ListCursor::as_bytes);
        let is_wanted =
            |id: &String| id.starts_with(asked.prefix) && after.is_none_or(|after| id.as_bytes() > after);
        let live = latches.by_name.iter().filter(|(_, record)| record.is_live(now));
        let mut found: Vec<_> =
            live.filter(|((client, id), _)| client == asked.client && is_wanted(id)).collect();
        found.sort_unstable_by_key(|((_, id), _)| id);
        let most = asked.most.max(1);
        let next = (found.len() > most).then(|| ListCursor::from_bytes(found[most - 1].0.1.as_bytes()));
        let listed = found.into_iter().take(most).map(|((client, id), record)| {
            let counts = record.farms.iter().map(|(farm, count)| (farm.clone(), count.count));
            ListedLatch::new(client, id, counts.collect())
        });
        Ok(LatchPage::new(listed.collect(), next))
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
