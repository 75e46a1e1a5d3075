//! A store whose calls are reported as events. No store knows of it.
//!
//! The session puts it around its store. A call that is made while a lease is locked is recorded, and reported once the lease is
//! unlocked: see [`ObservedStore::recording`].

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
use crate::names::notice_endpoint::LatchListener;
use crate::names::owner::OwnerRecord;
use crate::runtime::sync::Mutex;
use crate::runtime::time::{Deadline, Moment};
use crate::store::{
    Acquired, Attempt, HistoryOf, HistoryStore, Inspection, LatchNote, LatchStore, ListCursor, LivenessStore,
    LockPage, LockQuery, LockStore, NewLatch, Released, Renewal, Renewed, Roster, Step, Stepped,
    StoreCounters, locks_only,
};

pub(crate) struct ObservedStore {
    store: Arc<dyn LockStore>,
    events: Arc<EventSinks>,
    /// What is reported later. `None`: it is reported at once.
    recorded: Option<Mutex<Vec<RecordedCall>>>,
}

struct RecordedCall {
    call: StoreCall,
    lock: Option<LockName>,
    /// `None`: the request is in doubt.
    ended: Option<(StoreOutcome, Duration)>,
}

impl ObservedStore {
    pub(crate) fn new(store: Arc<dyn LockStore>, events: Arc<EventSinks>) -> ObservedStore {
        ObservedStore { store, events, recorded: None }
    }

    /// Makes a store for calls under a lock of the library. [`report_recorded`](ObservedStore::report_recorded) reports them.
    pub(crate) fn recording(store: Arc<dyn LockStore>, events: Arc<EventSinks>) -> ObservedStore {
        ObservedStore { store, events, recorded: Some(Mutex::default()) }
    }

    /// `open` ends with the first call.
    pub(crate) fn report_recorded(mut self, mut open: OpenSpans) {
        let recorded = self.recorded.as_mut().map(|recorded| std::mem::take(recorded.get_mut()));
        for RecordedCall { call, lock, ended } in recorded.unwrap_or_default() {
            report(&self.events, call, lock.as_ref(), ended, std::mem::take(&mut open));
        }
    }

    fn start(&self, call: StoreCall, lock: Option<&LockName>) -> OpenSpans {
        match self.recorded {
            Some(_) => OpenSpans::default(),
            None => self.events.start(&StartedWork::StoreCall { call, lock }),
        }
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
    fn observe_plain<T>(
        &self,
        call: StoreCall,
        lock: Option<&LockName>,
        run: impl FnOnce(&dyn LockStore) -> Result<T>,
    ) -> Result<T> {
        self.observe(call, lock, run, |answer| outcome(answer, |_| StoreOutcome::Ok))
    }

    fn observe_latch<T>(
        &self,
        call: StoreCall,
        run: impl FnOnce(&dyn LatchStore) -> Result<T>,
        first: impl FnOnce(&T) -> StoreOutcome,
    ) -> Result<T> {
        let run = |store: &dyn LockStore| store.latches().ok_or_else(|| locks_only(store)).and_then(run);
        self.observe(call, None, run, |answer| outcome(answer, first))
    }

    fn observe_liveness<T>(
        &self,
        call: StoreCall,
        lock: &LockName,
        run: impl FnOnce(&dyn LivenessStore) -> Result<T>,
        first: impl FnOnce(&T) -> StoreOutcome,
    ) -> Result<T> {
        let run = |store: &dyn LockStore| store.liveness().ok_or_else(no_liveness).and_then(run);
        self.observe(call, Some(lock), run, |answer| outcome(answer, first))
    }

    /// Observes an acquire, of which several requests may be in doubt.
    fn observe_acquire(
        &self,
        name: &LockName,
        doubtful: &mut Vec<OwnerRecord>,
        acquire: impl FnOnce(&mut Vec<OwnerRecord>) -> Result<Acquired>,
    ) -> Result<Acquired> {
        let before = doubtful.len();
        let answer = self.observe(
            StoreCall::Acquire,
            Some(name),
            |_| acquire(doubtful),
            |answer| outcome(answer, of_acquired),
        );
        let is_reported = answer.as_ref().is_err_and(Error::is_in_doubt);
        if self.events.are_open() && doubtful.len() > before && !is_reported {
            self.report(StoreCall::Acquire, Some(name), None, OpenSpans::default());
        }
        answer
    }

    fn report(
        &self,
        call: StoreCall,
        lock: Option<&LockName>,
        ended: Option<(StoreOutcome, Duration)>,
        open: OpenSpans,
    ) {
        match &self.recorded {
            Some(recorded) => recorded.lock().push(RecordedCall { call, lock: lock.cloned(), ended }),
            None => report(&self.events, call, lock, ended, open),
        }
    }
}

fn report(
    events: &EventSinks,
    call: StoreCall,
    lock: Option<&LockName>,
    ended: Option<(StoreOutcome, Duration)>,
    open: OpenSpans,
) {
    match (ended, lock) {
        (Some((outcome, took)), _) => events.tell_end(&Event::StoreCall { call, lock, outcome, took }, open),
        (None, Some(lock)) => events.report(&Event::InDoubt { lock, call }),
        (None, None) => {}
    }
}

/// The caller has seen the part before.
fn no_liveness() -> Error {
    Error::Internal { what: "the store does not know any more whether a process lives".into(), source: None }
}

/// The caller has seen the part before.
fn no_history() -> Error {
    Error::Internal { what: "the store does not keep histories any more".into(), source: None }
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
    fn add(&mut self, renewed: &Renewed) {
        self.answered += 1;
        match &renewed.answer {
            Ok(record) => self.is_lost |= record.is_none(),
            Err(error) => {
                self.failed.get_or_insert(error.code());
                if error.is_in_doubt() {
                    self.in_doubt.push(renewed.index);
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

impl LockStore for ObservedStore {
    fn describe(&self) -> String {
        self.store.describe()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.observe_plain(StoreCall::Initialize, None, |store| store.initialize(by))
    }

    /// Not reported: the call that follows is.
    fn greet(&self, by: Deadline) -> Result<()> {
        self.store.greet(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.observe_acquire(attempt.name, doubtful, |doubtful| self.store.acquire(attempt, doubtful))
    }

    fn acquire_with_fences(
        &self,
        attempt: Attempt<'_>,
        fences: u64,
        doubtful: &mut Vec<OwnerRecord>,
    ) -> Result<Acquired> {
        self.observe_acquire(attempt.name, doubtful, |doubtful| {
            self.store.acquire_with_fences(attempt, fences, doubtful)
        })
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

    fn renew_many(&self, renewals: &[Renewal<'_>], by: Deadline, report: &mut dyn FnMut(Renewed)) {
        if !self.events.are_open() {
            return self.store.renew_many(renewals, by, report);
        }
        let renew = |store: &dyn LockStore| {
            let mut tally = RenewalTally::default();
            store.renew_many(renewals, by, &mut |renewed| {
                tally.add(&renewed);
                report(renewed);
            });
            tally
        };
        let tally = self.observe(StoreCall::RenewMany, None, renew, RenewalTally::outcome);
        for renewal in tally.in_doubt.iter().filter_map(|index| renewals.get(*index)) {
            self.report(StoreCall::RenewMany, Some(renewal.name), None, OpenSpans::default());
        }
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        let release = |store: &dyn LockStore| store.release(name, owner_record, by);
        self.observe(StoreCall::Release, Some(name), release, |answer| {
            outcome(answer, |released| ours(*released != Released::NotOurs))
        })
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        self.observe_plain(StoreCall::Holder, Some(name), |store| store.holder(name, by))
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
        self.observe_plain(StoreCall::Inspect, Some(name), |store| store.inspect(name, by))
    }

    fn list(
        &self,
        query: &LockQuery,
        after: Option<&ListCursor>,
        most: usize,
        by: Deadline,
    ) -> Result<LockPage> {
        self.observe_plain(StoreCall::List, None, |store| store.list(query, after, most, by))
    }

    fn grant_number(&self, owner_record: &OwnerRecord) -> Option<u64> {
        self.store.grant_number(owner_record)
    }

    fn release_broken(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        let release = |store: &dyn LockStore| store.release_broken(name, owner_record, by);
        self.observe(StoreCall::Release, Some(name), release, |answer| {
            outcome(answer, |released| ours(*released != Released::NotOurs))
        })
    }

    fn release_stamped(&self, name: &LockName, stamp: &[u8], by: Deadline) -> Result<Released> {
        let release = |store: &dyn LockStore| store.release_stamped(name, stamp, by);
        self.observe(StoreCall::Release, Some(name), release, |answer| {
            outcome(answer, |released| ours(*released != Released::NotOurs))
        })
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
        self.observe_plain(StoreCall::Diagnose, None, |store| store.diagnose(by))
    }

    fn counters(&self) -> StoreCounters {
        self.store.counters()
    }

    fn liveness(&self) -> Option<&dyn LivenessStore> {
        self.store.liveness().map(|_| self as &dyn LivenessStore)
    }

    fn shared_directory(&self) -> Option<&Path> {
        self.store.shared_directory()
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        self.store.latches().map(|_| self as &dyn LatchStore)
    }
}

impl HistoryStore for ObservedStore {
    fn append(&self, of: HistoryOf<'_>, entry: &HistoryEntry, lasts: Duration, by: Deadline) -> Result<()> {
        self.observe_plain(StoreCall::Append, Some(of.name()), |store| {
            store.history().ok_or_else(no_history)?.append(of, entry, lasts, by)
        })
    }

    fn entries(
        &self,
        of: HistoryOf<'_>,
        since_ms: u64,
        most: usize,
        by: Deadline,
    ) -> Result<Vec<HistoryEntry>> {
        self.observe_plain(StoreCall::Entries, Some(of.name()), |store| {
            store.history().ok_or_else(no_history)?.entries(of, since_ms, most, by)
        })
    }
}

impl LivenessStore for ObservedStore {
    fn acquire_until_death(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.observe_acquire(attempt.name, doubtful, |doubtful| {
            self.store.liveness().ok_or_else(no_liveness)?.acquire_until_death(attempt, doubtful)
        })
    }

    fn outlive_process(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<bool> {
        let outlive = |liveness: &dyn LivenessStore| liveness.outlive_process(name, owner_record, by);
        self.observe_liveness(StoreCall::OutliveProcess, name, outlive, |is_ours| ours(*is_ours))
    }

    fn liveness_fd(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        by: Deadline,
    ) -> Result<Option<OwnedFd>> {
        let read = |liveness: &dyn LivenessStore| liveness.liveness_fd(name, owner_record, by);
        self.observe_liveness(StoreCall::LivenessFd, name, read, |_| StoreOutcome::Ok)
    }
}

impl LatchStore for ObservedStore {
    fn initialize_latches(&self, by: Deadline) -> Result<()> {
        let initialize = |latches: &dyn LatchStore| latches.initialize_latches(by);
        self.observe_latch(StoreCall::InitializeLatches, initialize, |()| StoreOutcome::Ok)
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        let create = |latches: &dyn LatchStore| latches.create_latch(new);
        self.observe_latch(StoreCall::CreateLatch, create, |_| StoreOutcome::Ok)
    }

    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        self.observe_latch(StoreCall::Step, |latches| latches.step(step), |_| StoreOutcome::Ok)
    }

    /// The first latch that could not be read decides the outcome.
    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>> {
        let read = |latches: &dyn LatchStore| latches.counts(asked, by);
        self.observe_latch(StoreCall::Counts, read, |answers| {
            let failed = answers.iter().find_map(|answer| answer.as_ref().err());
            failed.map_or(StoreOutcome::Ok, |error| StoreOutcome::Failed(error.code()))
        })
    }

    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster> {
        self.observe_latch(StoreCall::Roster, |latches| latches.roster(name, by), |_| StoreOutcome::Ok)
    }

    fn listen(&self, note: &LatchNote<'_>) -> Result<bool> {
        self.observe_latch(StoreCall::Listen, |latches| latches.listen(note), |_| StoreOutcome::Ok)
    }

    fn listeners(&self, name: &LatchName, by: Deadline) -> Result<Vec<LatchListener>> {
        let read = |latches: &dyn LatchStore| latches.listeners(name, by);
        self.observe_latch(StoreCall::Listeners, read, |_| StoreOutcome::Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// Returns the names of the functions between two lines of a source.
    fn functions<'a>(source: &'a str, from: &str, to: &str) -> BTreeSet<&'a str> {
        let at = source.find(from).unwrap_or_else(|| panic!("no {from}"));
        let rest = &source[at..];
        let rest = &rest[..rest.find(to).unwrap_or(rest.len())];
        let names = rest.lines().filter_map(|line| line.strip_prefix("    fn "));
        names.map(|line| line.split(['(', '<']).next().expect("a name")).collect()
    }

    /// A method that is left to its default does not reach the store.
    #[test]
    fn every_method_of_a_store_is_passed_on() {
        const END: &str = "\n}\n";
        let (locks, latches) =
            (include_str!("../store/lock_store.rs"), include_str!("../store/latch_store.rs"));
        let histories = include_str!("../store/history_store.rs");
        let own = include_str!("observed_store.rs");
        for (source, name, least) in [
            (locks, "LockStore", 15),
            (locks, "LivenessStore", 3),
            (histories, "HistoryStore", 2),
            (latches, "LatchStore", 7),
        ] {
            let wanted = functions(source, &format!("pub trait {name}: "), END);
            assert!(wanted.len() >= least, "{name}: {wanted:?}");
            assert_eq!(functions(own, &format!("impl {name} for ObservedStore"), END), wanted, "{name}");
        }
    }
}
