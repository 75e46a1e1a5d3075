//! A store whose calls are reported as events. No store knows of it. The session puts it around its store.

use std::fmt;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::events::event::{Event, StartedWork, StoreCall, StoreOutcome};
use crate::events::sinks::{EventSinks, OpenSpans};
use crate::names::diagnostic::Diagnostic;
use crate::names::history_entry::HistoryEntry;
use crate::names::holder::Holder;
use crate::names::latch_name::LatchName;
use crate::names::lock_name::{Level, LockName};
use crate::names::mode::Mode;
use crate::names::notice_endpoint::LatchListener;
use crate::names::owner::OwnerRecord;
use crate::names::promise::Promise;
use crate::runtime::time::{Deadline, Moment};
use crate::store::{
    Acquired, AcquiredPermits, Attempt, Conversion, Converted, HistoryOf, HistoryStore, Inspection, Intent,
    IntentId, LatchNote, LatchPage, LatchQuery, LatchStore, ListCursor, LivenessStore, LockHold, LockPage,
    LockQuery, LockStore, ModeStore, ModeTerms, NewLatch, OnRenewed, PermitTerms, Released, Renewal, Roster,
    SemaphoreState, SemaphoreStore, Step, Stepped, StoreCounters, locks_only,
};

pub(crate) struct ObservedStore {
    store: Arc<dyn LockStore>,
    events: Arc<EventSinks>,
}

impl ObservedStore {
    pub(crate) fn new(store: Arc<dyn LockStore>, events: Arc<EventSinks>) -> ObservedStore {
        ObservedStore { store, events }
    }

    fn start(&self, call: StoreCall, lock: Option<&LockName>) -> OpenSpans {
        self.events.start(&StartedWork::StoreCall { call, lock })
    }

    fn observe<T>(
        &self,
        call: StoreCall,
        lock: Option<&LockName>,
        run: impl FnOnce(&dyn LockStore) -> T,
        outcome: impl FnOnce(&T) -> StoreOutcome,
    ) -> T {
        if !self.events.are_open() {
            return run(&*self.store);
        }
        let (open, began) = (self.start(call, lock), Moment::now());
        let answer = catch_unwind(AssertUnwindSafe(|| run(&*self.store)));
        let took = Moment::now().since(began);
        let outcome = answer.as_ref().map_or(StoreOutcome::Failed(Code::Panic), outcome);
        self.report(call, lock, Some((outcome, took)), open);
        if outcome == StoreOutcome::Failed(Code::InDoubt) && lock.is_some() {
            self.report(call, lock, None, OpenSpans::default());
        }
        answer.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Observes a call of which only the error matters.
    fn call<T>(
        &self,
        call: StoreCall,
        lock: Option<&LockName>,
        run: impl FnOnce(&dyn LockStore) -> Result<T>,
    ) -> Result<T> {
        self.observe(call, lock, run, |answer| outcome(answer, |_| StoreOutcome::Ok))
    }

    /// Observes an acquire, of which several requests may be in doubt.
    fn observe_acquire<T>(
        &self,
        name: &LockName,
        doubtful: &mut Vec<OwnerRecord>,
        acquire: impl FnOnce(&mut Vec<OwnerRecord>) -> Result<T>,
        of: impl FnOnce(&T) -> StoreOutcome,
    ) -> Result<T> {
        let before = doubtful.len();
        let answer =
            self.observe(StoreCall::Acquire, Some(name), |_| acquire(doubtful), |answer| outcome(answer, of));
        let is_reported = answer.as_ref().is_err_and(Error::is_in_doubt);
        if self.events.are_open() && doubtful.len() > before && !is_reported {
            self.report(StoreCall::Acquire, Some(name), None, OpenSpans::default());
        }
        answer
    }

    fn observe_release(
        &self,
        name: &LockName,
        release: impl FnOnce(&dyn LockStore) -> Result<Released>,
    ) -> Result<Released> {
        self.observe(StoreCall::Release, Some(name), release, |answer| {
            outcome(answer, |released| ours(*released != Released::NotOurs))
        })
    }

    /// Without an end, the request is in doubt.
    fn report(
        &self,
        call: StoreCall,
        lock: Option<&LockName>,
        ended: Option<(StoreOutcome, Duration)>,
        open: OpenSpans,
    ) {
        match (ended, lock) {
            (Some((outcome, took)), _) => {
                self.events.tell_end(&Event::StoreCall { call, lock, outcome, took }, open);
            }
            (None, Some(lock)) => self.events.report(&Event::InDoubt { lock, call }),
            (None, None) => {}
        }
    }
}

/// Returns a part of the store. The caller has seen it before.
fn liveness_of(store: &dyn LockStore) -> Result<&dyn LivenessStore> {
    let what = "the store does not know any more whether a process lives";
    store.liveness().ok_or_else(|| Error::Internal { what: what.into(), source: None })
}

/// As [`liveness_of`].
fn modes_of(store: &dyn LockStore) -> Result<&dyn ModeStore> {
    let what = "the store does not keep locks in several modes any more";
    store.modes().ok_or_else(|| Error::Internal { what: what.into(), source: None })
}

/// As [`liveness_of`].
fn semaphores_of(store: &dyn LockStore) -> Result<&dyn SemaphoreStore> {
    let what = "the store does not keep semaphores any more";
    store.semaphores().ok_or_else(|| Error::Internal { what: what.into(), source: None })
}

/// As [`liveness_of`].
fn history_of(store: &dyn LockStore) -> Result<&dyn HistoryStore> {
    let what = "the store does not keep histories any more";
    store.history().ok_or_else(|| Error::Internal { what: what.into(), source: None })
}

fn latches_of(store: &dyn LockStore) -> Result<&dyn LatchStore> {
    store.latches().ok_or_else(|| locks_only(store))
}

fn outcome<T>(answer: &Result<T>, of: impl FnOnce(&T) -> StoreOutcome) -> StoreOutcome {
    answer.as_ref().map_or_else(|error| StoreOutcome::Failed(error.code()), of)
}

fn of_acquired(acquired: &Acquired) -> StoreOutcome {
    match acquired {
        Acquired::Granted(_) => StoreOutcome::Ok,
        Acquired::Held(_) => StoreOutcome::Held,
    }
}

fn of_permits(acquired: &AcquiredPermits) -> StoreOutcome {
    match acquired {
        AcquiredPermits::Granted(_) => StoreOutcome::Ok,
        AcquiredPermits::Held(_) => StoreOutcome::Held,
        AcquiredPermits::OtherSize(_) => StoreOutcome::Failed(Code::InvalidArgument),
    }
}

fn ours(is_ours: bool) -> StoreOutcome {
    if is_ours { StoreOutcome::Ok } else { StoreOutcome::NotOurs }
}

/// What the answers of one [`LockStore::renew_many`] say together.
#[derive(Default)]
struct RenewalTally {
    answered: usize,
    failed: Option<Code>,
    is_lost: bool,
    in_doubt: Vec<usize>,
}

impl RenewalTally {
    fn add(&mut self, at: usize, answer: &Result<Option<OwnerRecord>>) {
        self.answered += 1;
        match answer {
            Ok(record) => self.is_lost |= record.is_none(),
            Err(error) => {
                self.failed.get_or_insert(error.code());
                if error.is_in_doubt() {
                    self.in_doubt.push(at);
                }
            }
        }
    }

    fn outcome(&self) -> StoreOutcome {
        match self.failed {
            Some(code) => StoreOutcome::Failed(code),
            None if self.answered == 0 => StoreOutcome::Failed(Code::RetriesExhausted),
            None => ours(!self.is_lost),
        }
    }
}

impl fmt::Debug for ObservedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

// A method that is left to its default would not reach the store.
#[deny(clippy::missing_trait_methods)]
impl LockStore for ObservedStore {
    fn describe(&self) -> String {
        self.store.describe()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.call(StoreCall::Initialize, None, |store| store.initialize(by))
    }

    /// Not reported: the call that follows is.
    fn greet(&self, by: Deadline) -> Result<()> {
        self.store.greet(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        let acquire = |doubtful: &mut Vec<OwnerRecord>| self.store.acquire(attempt, doubtful);
        self.observe_acquire(attempt.name, doubtful, acquire, of_acquired)
    }

    fn acquire_with_fences(
        &self,
        attempt: Attempt<'_>,
        fences: u64,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        let acquire =
            |doubtful: &mut Vec<OwnerRecord>| self.store.acquire_with_fences(attempt, fences, doubtful);
        self.observe_acquire(attempt.name, doubtful, acquire, of_acquired)
    }

    fn reserves_fences(&self) -> bool {
        self.store.reserves_fences()
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        let renew = |store: &dyn LockStore| store.renew(name, owner_record, ttl, by);
        self.observe(StoreCall::Renew, Some(name), renew, |answer| {
            outcome(answer, |record| ours(record.is_some()))
        })
    }

    fn renew_many(&self, renewals: &[Renewal<'_>], by: Deadline, report: OnRenewed<'_>) {
        if !self.events.are_open() {
            return self.store.renew_many(renewals, by, report);
        }
        let renew = |store: &dyn LockStore| {
            let mut tally = RenewalTally::default();
            store.renew_many(renewals, by, &mut |at, since, answer| {
                tally.add(at, &answer);
                report(at, since, answer);
            });
            tally
        };
        let tally = self.observe(StoreCall::RenewMany, None, renew, RenewalTally::outcome);
        for renewal in tally.in_doubt.iter().filter_map(|index| renewals.get(*index)) {
            self.report(StoreCall::RenewMany, Some(renewal.name), None, OpenSpans::default());
        }
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.observe_release(name, |store| store.release(name, owner_record, by))
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        self.call(StoreCall::Holder, Some(name), |store| store.holder(name, by))
    }

    /// A store that reads locks one by one reports none. That is no event.
    fn holders(&self, names: &[LockName], by: Deadline, report: &mut dyn FnMut(usize, Option<Holder>)) {
        if !self.events.are_open() {
            return self.store.holders(names, by, report);
        }
        let open = self.start(StoreCall::Holders, None);
        let (began, mut reported) = (Moment::now(), 0_usize);
        self.store.holders(names, by, &mut |index, holder| {
            reported += 1;
            report(index, holder);
        });
        if reported > 0 {
            let took = Moment::now().since(began);
            self.report(StoreCall::Holders, None, Some((StoreOutcome::Ok, took)), open);
        }
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        self.call(StoreCall::Inspect, Some(name), |store| store.inspect(name, by))
    }

    fn list(
        &self,
        query: &LockQuery,
        after: Option<&ListCursor>,
        most: usize,
        by: Deadline,
    ) -> Result<LockPage> {
        self.call(StoreCall::List, None, |store| store.list(query, after, most, by))
    }

    fn grant_number(&self, owner_record: &OwnerRecord) -> Option<u64> {
        self.store.grant_number(owner_record)
    }

    fn release_broken(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        self.observe_release(name, |store| store.release_broken(name, owner_record, by))
    }

    fn release_stamped(&self, name: &LockName, stamp: &[u8], by: Deadline) -> Result<Released> {
        self.observe_release(name, |store| store.release_stamped(name, stamp, by))
    }

    fn history(&self) -> Option<&dyn HistoryStore> {
        self.store.history().map(|_| self as &dyn HistoryStore)
    }

    fn in_flight_for(&self) -> Duration {
        self.store.in_flight_for()
    }

    fn may_leave_parts(&self) -> bool {
        self.store.may_leave_parts()
    }

    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        self.call(StoreCall::Diagnose, None, |store| store.diagnose(by))
    }

    fn promises(&self) -> Vec<Promise> {
        self.store.promises()
    }

    fn shard(&self, name: &LockName) -> u8 {
        self.store.shard(name)
    }

    fn counters(&self) -> StoreCounters {
        self.store.counters()
    }

    fn modes(&self) -> Option<&dyn ModeStore> {
        self.store.modes().map(|_| self as &dyn ModeStore)
    }

    fn semaphores(&self) -> Option<&dyn SemaphoreStore> {
        self.store.semaphores().map(|_| self as &dyn SemaphoreStore)
    }

    fn liveness(&self) -> Option<&dyn LivenessStore> {
        self.store.liveness().map(|_| self as &dyn LivenessStore)
    }

    fn shared_directory(&self) -> Option<&Path> {
        self.store.shared_directory()
    }

    fn note_poller(&self, until: Moment) {
        self.store.note_poller(until);
    }

    fn may_have_pollers(&self) -> bool {
        self.store.may_have_pollers()
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        self.store.latches().map(|_| self as &dyn LatchStore)
    }
}

#[deny(clippy::missing_trait_methods)]
impl HistoryStore for ObservedStore {
    fn append(&self, of: HistoryOf<'_>, entry: &HistoryEntry, lasts: Duration, by: Deadline) -> Result<()> {
        self.call(StoreCall::Append, Some(of.name()), |store| history_of(store)?.append(of, entry, lasts, by))
    }

    fn entries(
        &self,
        of: HistoryOf<'_>,
        since_ms: u64,
        most: usize,
        by: Deadline,
    ) -> Result<Vec<HistoryEntry>> {
        self.call(StoreCall::Entries, Some(of.name()), |store| {
            history_of(store)?.entries(of, since_ms, most, by)
        })
    }
}

#[deny(clippy::missing_trait_methods)]
impl ModeStore for ObservedStore {
    fn acquire_mode(
        &self,
        attempt: Attempt<'_>,
        terms: ModeTerms<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        let acquire =
            |doubtful: &mut Vec<OwnerRecord>| modes_of(&*self.store)?.acquire_mode(attempt, terms, doubtful);
        self.observe_acquire(attempt.name, doubtful, acquire, of_acquired)
    }

    fn joins_together(&self) -> bool {
        self.store.modes().is_some_and(ModeStore::joins_together)
    }

    fn convert(
        &self,
        attempt: Attempt<'_>,
        conversion: Conversion<'_>,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Converted> {
        let convert = |store: &dyn LockStore| modes_of(store)?.convert(attempt, conversion, doubtful);
        self.observe(StoreCall::Convert, Some(attempt.name), convert, |answer| {
            outcome(answer, |converted| match converted {
                Converted::Granted(_) => StoreOutcome::Ok,
                Converted::Held(_) => StoreOutcome::Held,
                Converted::NotOurs => StoreOutcome::NotOurs,
            })
        })
    }

    fn blocker(&self, name: &LockName, mode: Mode, by: Deadline) -> Result<Option<Holder>> {
        self.call(StoreCall::Blocker, Some(name), |store| modes_of(store)?.blocker(name, mode, by))
    }

    fn holds(&self, name: &LockName, by: Deadline) -> Result<Vec<LockHold>> {
        self.call(StoreCall::Holds, Some(name), |store| modes_of(store)?.holds(name, by))
    }

    fn announce(&self, name: &LockName, intent: Intent<'_>, by: Deadline) -> Result<()> {
        self.call(StoreCall::Announce, Some(name), |store| modes_of(store)?.announce(name, intent, by))
    }

    fn withdraw(&self, name: &LockName, intent: IntentId, by: Deadline) -> Result<()> {
        self.call(StoreCall::Withdraw, Some(name), |store| modes_of(store)?.withdraw(name, intent, by))
    }
}

#[deny(clippy::missing_trait_methods)]
impl SemaphoreStore for ObservedStore {
    fn acquire_permits(
        &self,
        attempt: Attempt<'_>,
        terms: PermitTerms,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<AcquiredPermits> {
        let acquire = |doubtful: &mut Vec<OwnerRecord>| {
            semaphores_of(&*self.store)?.acquire_permits(attempt, terms, doubtful)
        };
        self.observe_acquire(attempt.name, doubtful, acquire, of_permits)
    }

    fn semaphore(&self, name: &LockName, by: Deadline) -> Result<Option<SemaphoreState>> {
        self.call(StoreCall::Semaphore, Some(name), |store| semaphores_of(store)?.semaphore(name, by))
    }

    fn resize(&self, name: &LockName, permits: u16, by: Deadline) -> Result<Option<u16>> {
        self.call(StoreCall::Resize, Some(name), |store| semaphores_of(store)?.resize(name, permits, by))
    }
}

#[deny(clippy::missing_trait_methods)]
impl LivenessStore for ObservedStore {
    fn acquire_until_death(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        let acquire = |doubtful: &mut Vec<OwnerRecord>| {
            liveness_of(&*self.store)?.acquire_until_death(attempt, doubtful)
        };
        self.observe_acquire(attempt.name, doubtful, acquire, of_acquired)
    }

    fn outlive_process(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<bool> {
        let outlive = |store: &dyn LockStore| liveness_of(store)?.outlive_process(name, owner_record, by);
        self.observe(StoreCall::OutliveProcess, Some(name), outlive, |answer| {
            outcome(answer, |is_ours| ours(*is_ours))
        })
    }

    fn liveness_fd(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        by: Deadline,
    ) -> Result<Option<OwnedFd>> {
        self.call(StoreCall::LivenessFd, Some(name), |store| {
            liveness_of(store)?.liveness_fd(name, owner_record, by)
        })
    }
}

#[deny(clippy::missing_trait_methods)]
impl LatchStore for ObservedStore {
    fn initialize_latches(&self, by: Deadline) -> Result<()> {
        self.call(StoreCall::InitializeLatches, None, |store| latches_of(store)?.initialize_latches(by))
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        self.call(StoreCall::CreateLatch, None, |store| latches_of(store)?.create_latch(new))
    }

    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        self.call(StoreCall::Step, None, |store| latches_of(store)?.step(step))
    }

    fn reset_latch(&self, new: &NewLatch<'_>) -> Result<()> {
        self.call(StoreCall::ResetLatch, None, |store| latches_of(store)?.reset_latch(new))
    }

    fn delete_latch(&self, name: &LatchName, ttl: Duration, by: Deadline) -> Result<()> {
        self.call(StoreCall::DeleteLatch, None, |store| latches_of(store)?.delete_latch(name, ttl, by))
    }

    fn list_latches(&self, asked: &LatchQuery<'_>) -> Result<LatchPage> {
        self.call(StoreCall::ListLatches, None, |store| latches_of(store)?.list_latches(asked))
    }

    /// The first latch that could not be read decides the outcome.
    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>> {
        let read = |store: &dyn LockStore| latches_of(store)?.counts(asked, by);
        self.observe(StoreCall::Counts, None, read, |answer| {
            outcome(answer, |counts| {
                let failed = counts.iter().find_map(|count| count.as_ref().err());
                failed.map_or(StoreOutcome::Ok, |error| StoreOutcome::Failed(error.code()))
            })
        })
    }

    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster> {
        self.call(StoreCall::Roster, None, |store| latches_of(store)?.roster(name, by))
    }

    fn listen(&self, note: &LatchNote<'_>) -> Result<bool> {
        self.call(StoreCall::Listen, None, |store| latches_of(store)?.listen(note))
    }

    fn listeners(&self, name: &LatchName, by: Deadline) -> Result<Vec<LatchListener>> {
        self.call(StoreCall::Listeners, None, |store| latches_of(store)?.listeners(name, by))
    }
}
