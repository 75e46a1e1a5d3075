//! A store that records its calls: which methods were called and when.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dlm::store::{
    Acquired, AcquiredPermits, Attempt, Conversion, Converted, HistoryStore, Inspection, Intent, IntentId,
    LatchListener, LatchNote, LatchPage, LatchQuery, LatchStore, ListCursor, LockHold, LockPage, LockQuery,
    LockStore, Mode, ModeStore, ModeTerms, NewLatch, OwnerRecord, PermitTerms, Promise, Released, Roster,
    SemaphoreState, SemaphoreStore, Step, Stepped, StoreCounters,
};
use dlm::{Deadline, Diagnostic, Holder, LatchName, Level, LockName, Moment, Result};
use parking_lot::Mutex;

/// A method of [`LockStore`], [`ModeStore`], [`SemaphoreStore`] or [`LatchStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// [`LockStore::initialize`].
    Initialize,
    /// [`LockStore::acquire`].
    Acquire,
    /// [`LockStore::renew`].
    Renew,
    /// [`LockStore::release`].
    Release,
    /// [`LockStore::holder`].
    Holder,
    /// [`LockStore::holders`], with the number of locks that one call reads.
    Holders(usize),
    /// [`LockStore::inspect`].
    Inspect,
    /// [`LockStore::list`].
    List,
    /// [`ModeStore::acquire_mode`].
    AcquireMode(Mode),
    /// [`ModeStore::convert`], with the new mode.
    Convert(Mode),
    /// [`ModeStore::blocker`].
    Blocker,
    /// [`ModeStore::holds`].
    Holds,
    /// [`ModeStore::announce`].
    Announce,
    /// [`ModeStore::withdraw`].
    Withdraw,
    /// [`SemaphoreStore::acquire_permits`], with how many.
    AcquirePermits(u16),
    /// [`SemaphoreStore::semaphore`].
    Semaphore,
    /// [`SemaphoreStore::resize`].
    Resize,
    /// [`LatchStore::initialize_latches`].
    InitializeLatches,
    /// [`LatchStore::create_latch`].
    CreateLatch,
    /// [`LatchStore::reset_latch`].
    ResetLatch,
    /// [`LatchStore::delete_latch`].
    DeleteLatch,
    /// [`LatchStore::list_latches`].
    ListLatches,
    /// [`LatchStore::step`].
    Step,
    /// [`LatchStore::counts`], with the number of latches that one call reads.
    Counts(usize),
    /// [`LatchStore::roster`].
    Roster,
    /// [`LatchStore::listen`].
    Listen,
    /// [`LatchStore::listeners`].
    Listeners,
}

type Hook = Box<dyn Fn(Call) + Send + Sync>;

/// A store that passes every call on to another store and records it. It may be shared between threads.
pub struct Spy {
    inner: Arc<dyn LockStore>,
    calls: Mutex<Vec<(Call, Moment)>>,
    /// Called after the store has answered and before the caller receives the answer.
    answered: Hook,
}

impl Spy {
    /// Wraps `inner`.
    pub fn on(inner: Arc<dyn LockStore>) -> Arc<Spy> {
        Spy::with_hook(inner, |_| {})
    }

    /// Wraps `inner`, and calls `answered` each time that the store has answered a call and the caller has not
    /// received the answer yet. The hook runs in the calling thread and may block.
    pub fn with_hook(inner: Arc<dyn LockStore>, answered: impl Fn(Call) + Send + Sync + 'static) -> Arc<Spy> {
        Arc::new(Spy { inner, calls: Mutex::default(), answered: Box::new(answered) })
    }

    /// Returns the number of calls so far.
    pub fn calls(&self) -> usize {
        self.calls.lock().len()
    }

    /// Returns the number of calls of one method so far.
    pub fn calls_of(&self, call: Call) -> usize {
        self.calls.lock().iter().filter(|(made, _)| *made == call).count()
    }

    /// Returns the calls so far, each with the time at which it was made.
    pub fn log(&self) -> Vec<(Call, Moment)> {
        self.calls.lock().clone()
    }

    /// Returns the number of latches in each read of counts so far.
    pub fn reads(&self) -> Vec<usize> {
        let asked = |call: &(Call, Moment)| match call.0 {
            Call::Counts(asked) => Some(asked),
            _ => None,
        };
        self.calls.lock().iter().filter_map(asked).collect()
    }

    fn pass<T>(&self, call: Call, to: impl FnOnce(&dyn LockStore) -> T) -> T {
        self.calls.lock().push((call, Moment::now()));
        let answer = to(&*self.inner);
        (self.answered)(call);
        answer
    }
}

impl fmt::Debug for Spy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spy").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl LockStore for Spy {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.pass(Call::Initialize, |store| store.initialize(by))
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.pass(Call::Acquire, |store| store.acquire(attempt, doubtful))
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        self.pass(Call::Renew, |store| store.renew(name, owner_record, ttl, by))
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.pass(Call::Release, |store| store.release(name, owner_record, by))
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        self.pass(Call::Holder, |store| store.holder(name, by))
    }

    fn holders(&self, names: &[LockName], by: Deadline, report: &mut dyn FnMut(usize, Option<Holder>)) {
        self.pass(Call::Holders(names.len()), |store| store.holders(names, by, report));
    }

    fn release_broken(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.pass(Call::Release, |store| store.release_broken(name, owner_record, by))
    }

    fn release_stamped(&self, name: &LockName, stamp: &[u8], by: Deadline) -> Result<Released> {
        self.pass(Call::Release, |store| store.release_stamped(name, stamp, by))
    }

    fn grant_number(&self, owner_record: &OwnerRecord) -> Option<u64> {
        self.inner.grant_number(owner_record)
    }

    fn history(&self) -> Option<&dyn HistoryStore> {
        self.inner.history()
    }

    fn list(
        &self,
        query: &LockQuery,
        after: Option<&ListCursor>,
        most: usize,
        by: Deadline,
    ) -> Result<LockPage> {
        self.pass(Call::List, |store| store.list(query, after, most, by))
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        self.pass(Call::Inspect, |store| store.inspect(name, by))
    }

    fn acquire_with_fences(
        &self,
        attempt: Attempt<'_>,
        fences: u64,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        self.pass(Call::Acquire, |store| store.acquire_with_fences(attempt, fences, doubtful))
    }

    fn reserves_fences(&self) -> bool {
        self.inner.reserves_fences()
    }

    fn in_flight_for(&self) -> Duration {
        self.inner.in_flight_for()
    }

    fn may_leave_parts(&self) -> bool {
        self.inner.may_leave_parts()
    }

    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        self.inner.diagnose(by)
    }

    fn promises(&self) -> Vec<Promise> {
        self.inner.promises()
    }

    fn shard(&self, name: &LockName) -> u8 {
        self.inner.shard(name)
    }

    fn counters(&self) -> StoreCounters {
        self.inner.counters()
    }

    fn shared_directory(&self) -> Option<&Path> {
        self.inner.shared_directory()
    }

    fn note_poller(&self, until: Moment) {
        self.inner.note_poller(until);
    }

    fn may_have_pollers(&self) -> bool {
        self.inner.may_have_pollers()
    }

    fn modes(&self) -> Option<&dyn ModeStore> {
        self.inner.modes().map(|_| self as &dyn ModeStore)
    }

    fn semaphores(&self) -> Option<&dyn SemaphoreStore> {
        self.inner.semaphores().map(|_| self as &dyn SemaphoreStore)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        self.inner.latches().map(|_| self as &dyn LatchStore)
    }
}

impl Spy {
    fn pass_modes<T>(&self, call: Call, to: impl FnOnce(&dyn ModeStore) -> T) -> T {
        self.pass(call, |store| to(store.modes().expect("the store has modes")))
    }

    fn pass_semaphores<T>(&self, call: Call, to: impl FnOnce(&dyn SemaphoreStore) -> T) -> T {
        self.pass(call, |store| to(store.semaphores().expect("the store keeps semaphores")))
    }
}

impl SemaphoreStore for Spy {
    fn acquire_permits(
        &self,
        attempt: Attempt<'_>,
        terms: PermitTerms,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<AcquiredPermits> {
        self.pass_semaphores(Call::AcquirePermits(terms.count), |store| {
            store.acquire_permits(attempt, terms, doubtful)
        })
    }

    fn semaphore(&self, name: &LockName, by: Deadline) -> Result<Option<SemaphoreState>> {
        self.pass_semaphores(Call::Semaphore, |store| store.semaphore(name, by))
    }

    fn resize(&self, name: &LockName, permits: u16, by: Deadline) -> Result<Option<u16>> {
        self.pass_semaphores(Call::Resize, |store| store.resize(name, permits, by))
    }
}

impl ModeStore for Spy {
    fn acquire_mode(
        &self,
        attempt: Attempt<'_>,
        terms: ModeTerms<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        self.pass_modes(Call::AcquireMode(terms.mode), |store| store.acquire_mode(attempt, terms, doubtful))
    }

    fn joins_together(&self) -> bool {
        self.inner.modes().is_some_and(ModeStore::joins_together)
    }

    fn convert(
        &self,
        attempt: Attempt<'_>,
        conversion: Conversion<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Converted> {
        self.pass_modes(Call::Convert(conversion.to), |store| store.convert(attempt, conversion, doubtful))
    }

    fn blocker(&self, name: &LockName, mode: Mode, by: Deadline) -> Result<Option<Holder>> {
        self.pass_modes(Call::Blocker, |store| store.blocker(name, mode, by))
    }

    fn holds(&self, name: &LockName, by: Deadline) -> Result<Vec<LockHold>> {
        self.pass_modes(Call::Holds, |store| store.holds(name, by))
    }

    fn announce(&self, name: &LockName, intent: Intent<'_>, by: Deadline) -> Result<()> {
        self.pass_modes(Call::Announce, |store| store.announce(name, intent, by))
    }

    fn withdraw(&self, name: &LockName, intent: IntentId, by: Deadline) -> Result<()> {
        self.pass_modes(Call::Withdraw, |store| store.withdraw(name, intent, by))
    }
}

impl Spy {
    fn pass_latch<T>(&self, call: Call, to: impl FnOnce(&dyn LatchStore) -> T) -> T {
        self.pass(call, |store| to(store.latches().expect("the store has latches")))
    }
}

impl LatchStore for Spy {
    fn initialize_latches(&self, by: Deadline) -> Result<()> {
        self.pass_latch(Call::InitializeLatches, |store| store.initialize_latches(by))
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        self.pass_latch(Call::CreateLatch, |store| store.create_latch(new))
    }

    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        self.pass_latch(Call::Step, |store| store.step(step))
    }

    fn reset_latch(&self, new: &NewLatch<'_>) -> Result<()> {
        self.pass_latch(Call::ResetLatch, |store| store.reset_latch(new))
    }

    fn delete_latch(&self, name: &LatchName, ttl: Duration, by: Deadline) -> Result<()> {
        self.pass_latch(Call::DeleteLatch, |store| store.delete_latch(name, ttl, by))
    }

    fn list_latches(&self, asked: &LatchQuery<'_>) -> Result<LatchPage> {
        self.pass_latch(Call::ListLatches, |store| store.list_latches(asked))
    }

    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>> {
        self.pass_latch(Call::Counts(asked.len()), |store| store.counts(asked, by))
    }

    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster> {
        self.pass_latch(Call::Roster, |store| store.roster(name, by))
    }

    fn listen(&self, note: &LatchNote<'_>) -> Result<bool> {
        self.pass_latch(Call::Listen, |store| store.listen(note))
    }

    fn listeners(&self, name: &LatchName, by: Deadline) -> Result<Vec<LatchListener>> {
        self.pass_latch(Call::Listeners, |store| store.listeners(name, by))
    }
}
