//! State shared by a manager and its locks, leases and latches: the store, the queues of waiters, the held leases,
//! and whether the manager is closed.

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::events::event::{EventSink, StartedWork, StoreCall};
use crate::events::history_writer::HistoryWriter;
use crate::events::metrics::{ClassGauges, MetricFamily, Metrics};
use crate::events::observed_store::ObservedStore;
use crate::events::sinks::EventSinks;
use crate::latch::poller::{LatchPoller, PollTerms};
use crate::lease::events::LeaseEvents;
use crate::lease::freeing::{Freeing, LockDoubt};
use crate::lease::held_lock::{HeldLock, HeldUntil, Leftover};
use crate::lease::keeper::Keeper;
use crate::lease::linger::{GiveBack, Linger, Retake};
use crate::lease::retake_right::NoRight;
use crate::names::holder::{Holder, Identity};
use crate::names::lock_name::LockName;
use crate::names::waiters::Waiters;
use crate::runtime::background::{Background, Next};
use crate::runtime::process::process_mark;
use crate::runtime::sync::{AtomicBool, HashMap, Mutex};
use crate::runtime::time::{Deadline, Moment};
use crate::settings::config::Settings;
use crate::store::{LatchStore, LivenessStore, LockStore, locks_only};
use crate::wait::asking::{Askers, READ_MAX};
use crate::wait::local_queues::{Answer, LocalQueues};
use crate::wait::notices::{Notices, ask_holders};
use crate::wait::shared_reads::SharedReads;

/// Shortest time-out for creating a table, which takes longer than other calls.
const MAKING_TABLES: Duration = Duration::from_secs(60);

/// Longest time for which the drop of the last handle gives back the locks that stay.
const GIVING_BACK: Duration = Duration::from_secs(2);

/// Held locks by address, which `close` releases. `None` once it has run.
type HeldLocks = Mutex<Option<HashMap<usize, Arc<HeldLock>>>>;

pub(crate) struct Session {
    /// The store, each call of which is reported as an event. Not for calls under a lock: see `under_lock`.
    pub(crate) store: Arc<dyn LockStore>,
    unobserved: Arc<dyn LockStore>,
    pub(crate) events: Arc<EventSinks>,
    /// From the first page on.
    metrics: OnceLock<Arc<Metrics>>,
    pub(crate) settings: Settings,
    pub(crate) queue: Arc<LocalQueues>,
    reads: SharedReads,
    pub(crate) askers: Arc<Askers>,
    pub(crate) poller: Arc<LatchPoller>,
    pub(crate) identity: Identity,
    /// The process that opened the manager, see [`process_mark`].
    process: u64,
    background: Arc<Background>,
    held: Arc<HeldLocks>,
    pub(crate) keeper: Keeper,
    /// `None` if the manager writes no history.
    history: Option<Arc<HistoryWriter>>,
    /// `None` if released locks do not stay.
    pub(crate) linger: Option<Arc<Linger>>,
    closed: AtomicBool,
}

impl Session {
    /// Does no I/O; the first call does. `settings` must be checked.
    ///
    /// # Errors
    /// CONNECTION_ERROR if the address for notices cannot be used. INVALID_ARGUMENT if locks should stay that the store
    /// cannot let stay.
    pub(crate) fn new(
        unobserved: Arc<dyn LockStore>,
        settings: Settings,
        identity: Identity,
        mut events: EventSinks,
    ) -> Result<Session> {
        let history = match settings.history.is_zero() {
            true => None,
            false if unobserved.history().is_none() => {
                let allowed = format!("0s for {}, which keeps no history of locks", unobserved.describe());
                return Err(Error::invalid("history", format!("{:?}", settings.history), allowed));
            }
            false => {
                let (store, timeout) = (Arc::clone(&unobserved), settings.timeout);
                Some(Arc::new(HistoryWriter::new(store, identity.clone(), settings.history, timeout)))
            }
        };
        if let Some(history) = &history {
            events.push(Arc::clone(history) as Arc<dyn EventSink>);
        }
        let events = Arc::new(events);
        let observed = ObservedStore::new(Arc::clone(&unobserved), Arc::clone(&events));
        let store: Arc<dyn LockStore> = Arc::new(observed);
        let notices =
            Arc::new(Notices::new(&settings.notices, settings.notices_all, store.shared_directory())?);
        let background = Arc::new(Background::new(settings.background_threads));
        let terms = PollTerms { poll: settings.poll, timeout: settings.timeout };
        let poller =
            LatchPoller::new(Arc::clone(&store), Arc::clone(&background), Arc::clone(&notices), terms);
        let queue = LocalQueues::new(notices);
        let held = Arc::new(Mutex::new(Some(HashMap::default())));
        let keeper = {
            let (background, held, owned) = (Arc::clone(&background), Arc::clone(&held), Arc::clone(&store));
            let on_end = move |lock: &Arc<HeldLock>, leftover: Option<Leftover>| {
                remove(&held, lock);
                if let Some(leftover) = leftover {
                    free(&background, &owned, lock.name().clone(), leftover);
                }
            };
            Keeper::new(Arc::clone(&store), settings.clone(), Arc::clone(&events), on_end)
        };
        let linger = match settings.linger.is_zero() {
            true => None,
            false if !store.reserves_fences() => {
                let allowed =
                    format!("0s for {}, which cannot reserve several fences for one grant", store.describe());
                return Err(Error::invalid("linger", format!("{:?}", settings.linger), allowed));
            }
            false => {
                let (background, queue) = (Arc::clone(&background), Arc::clone(&queue));
                Some(Linger::new(Arc::clone(&store), background, queue, settings.clone()))
            }
        };
        let askers = {
            let (store, limit) = (Arc::clone(&store), settings.timeout.min(READ_MAX));
            Askers::new(Box::new(move |names, report| {
                store.holders(names, Deadline::after(limit), report);
            }))
        };
        Ok(Session {
            linger,
            history,
            store,
            unobserved,
            events,
            metrics: OnceLock::new(),
            settings,
            queue,
            reads: SharedReads::default(),
            askers: Arc::new(askers),
            poller,
            identity,
            process: process_mark::current(),
            background,
            held,
            keeper,
            closed: AtomicBool::new(false),
        })
    }

    /// Fails with CLOSED after `close`, and with FORKED in a forked child.
    pub(crate) fn usable(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { self.not_forked() }
    }

    pub(crate) fn not_forked(&self) -> Result<()> {
        if process_mark::current() == self.process { Ok(()) } else { Err(Error::Forked) }
    }

    pub(crate) fn latches(&self) -> Result<&dyn LatchStore> {
        self.store.latches().ok_or_else(|| locks_only(&*self.store))
    }

    /// Returns the part of the store for leases that die with their process. Does no I/O.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the store has no such part, or if the manager has a lock delay: its successor must wait.
    pub(crate) fn liveness(&self) -> Result<&dyn LivenessStore> {
        if !self.settings.lock_delay.is_zero() {
            let allowed = "for a manager without a lock delay, which others must wait for";
            return Err(Error::invalid("dies_with_process", "true", allowed));
        }
        self.store.liveness().ok_or_else(|| {
            let allowed = format!(
                "for a store that can tell whether a process has died, such as embedded:, and not for {}",
                self.store.describe()
            );
            Error::invalid("dies_with_process", "true", allowed)
        })
    }

    pub(crate) fn by_for_tables(&self) -> Deadline {
        Deadline::after(self.settings.timeout.max(MAKING_TABLES))
    }

    /// Returns the holder of the lock, for a thread that waits for it. If the process waits for many locks, the read is
    /// put together with those of other threads.
    pub(crate) fn read_holder(&self, name: &LockName) -> Result<Option<Holder>> {
        self.usable()?;
        let by = Deadline::after(self.settings.timeout);
        let read_one = || self.store.holder(name, by);
        if !self.queue.waits_for_many() {
            return read_one();
        }
        let read_many = |names: &[LockName], report: &mut dyn FnMut(usize, Option<Holder>)| {
            self.store.holders(names, by, report);
        };
        self.reads.read(name, self.settings.retry, &read_many, read_one)
    }

    /// Takes a lock again that stayed with this process. Releases it in the store if a new lease needs a new record, or if
    /// its time is over: then it is left to others. Otherwise the store must be asked, and a time of staying that began before
    /// goes on.
    pub(crate) fn retake(
        &self,
        name: &LockName,
        ttl: Duration,
        until_death: bool,
        waits: Deadline,
    ) -> ControlFlow<Answer<HeldLock>, Option<Moment>> {
        let Some(linger) = &self.linger else { return ControlFlow::Continue(None) };
        let Some(retake) = linger.retake(name, ttl) else { return ControlFlow::Continue(None) };
        let (lingering, why) = match retake {
            Retake::Retaken(retaken) if !until_death => {
                let ends = self.settings.lease_end(retaken.at, ttl);
                return ControlFlow::Break(Answer::Got(HeldLock::retaken(name.clone(), retaken, ttl, ends)));
            }
            Retake::Retaken(retaken) => (retaken.lingering, NoRight::OtherRecord),
            Retake::Not(lingering, why) => (lingering, why),
        };
        let by = Deadline::after(self.settings.timeout.min(ttl));
        if why == NoRight::TimeIsOver {
            linger.release_or_free(name, lingering, GiveBack::TimeIsOver, by);
            return match self.queue.left_until(name) {
                Some(until) if until < waits.moment() => ControlFlow::Break(Answer::Busy(None)),
                _ => ControlFlow::Continue(None),
            };
        }
        let stay_ends = lingering.stay_ends;
        match self.store.release(name, &lingering.record, by) {
            Ok(_) => lingering.notices.into_iter().for_each(|grant| self.queue.notices().ended(name, grant)),
            Err(_) => linger.free(name, lingering, GiveBack::Otherwise),
        }
        ControlFlow::Continue(Some(stay_ends))
    }

    /// Asks a holder once to give the lock back if it only stays there.
    pub(crate) fn ask_once(&self, holder: Option<&Holder>) {
        if let Some(notices) = holder.and_then(|holder| holder.identity.as_ref()?.notices) {
            self.queue.notices().want(notices);
        }
    }

    /// Whether the lock was released and stays with this process, so that it need not be read.
    pub(crate) fn stays(&self, name: &LockName) -> bool {
        self.linger.as_ref().is_some_and(|linger| linger.has(name))
    }

    /// Returns how often a lock was taken again that stayed with this process.
    pub(crate) fn retaken(&self) -> u64 {
        self.linger.as_ref().map_or(0, |linger| linger.retaken())
    }

    /// Releases a lock here and lets it stay in the store. Returns `false` if it must be released there.
    fn linger_on(&self, lock: &HeldLock, by: Deadline) -> bool {
        let Some(linger) = self.linger.as_ref().filter(|_| !self.closed.load(Ordering::Acquire)) else {
            return false;
        };
        let (name, notices) = (lock.name(), self.queue.notices());
        if notices.is_wanted(name) || self.queue.left_until(name).is_some() || !linger.has_room(name) {
            return false;
        }
        let Some(lingering) = lock.linger(self.settings.linger_of(lock.ttl()), by) else { return false };
        if let Err(lingering) = linger.add(name, lingering) {
            let is_over = lock.has_stayed() && lingering.until <= Moment::now();
            let why = if is_over { GiveBack::TimeIsOver } else { GiveBack::Otherwise };
            // Its time is over, or others have taken the room meanwhile.
            linger.release_or_free(name, lingering, why, by.sooner(Deadline::after(self.settings.timeout)));
            return true;
        }
        let yields = self.queue.stays(name, self.settings.retry);
        // Somebody may have registered in between.
        if yields || notices.is_wanted(name) {
            linger.give_back(name, if yields { GiveBack::Yields } else { GiveBack::Otherwise });
        }
        true
    }

    /// Remembers a lock that `close` must release.
    pub(crate) fn hold(&self, lock: &Arc<HeldLock>) {
        if let Some(held) = &mut *self.held.lock() {
            held.insert(lock.address(), Arc::clone(lock));
        }
    }

    pub(crate) fn forget(&self, lock: &Arc<HeldLock>) {
        self.forget_lease(lock);
        self.forget_notices(lock);
    }

    /// Neither keeps the lease alive any more nor releases it in `close`.
    pub(crate) fn forget_lease(&self, lock: &Arc<HeldLock>) {
        remove(&self.held, lock);
        self.keeper.forget(lock);
    }

    /// A process that registers for a release of the lease gets the answer that the lock is not here, unless it was released.
    pub(crate) fn forget_notices(&self, lock: &HeldLock) {
        if let Some(grant) = lock.notices() {
            self.queue.notices().ended(lock.name(), grant);
        }
    }

    /// See [`LockManager::waiting`](crate::LockManager::waiting).
    pub(crate) fn waiting(&self, holders: &[Holder]) -> Vec<Option<Waiters>> {
        let endpoint_of = |holder: &Holder| holder.identity.as_ref().and_then(|identity| identity.notices);
        let grants: Vec<_> = holders.iter().map(endpoint_of).collect();
        ask_holders(&grants, self.store.shared_directory())
    }

    /// Returns the number of held leases.
    pub(crate) fn held(&self) -> usize {
        self.held.lock().as_ref().map_or(0, HashMap::len)
    }

    /// Makes a page of metrics. `counts` are those of the manager. The first page begins to count events.
    pub(crate) fn metrics_page(&self, counts: &[(MetricFamily, u64)]) -> String {
        let metrics = self.metrics.get_or_init(|| {
            let metrics = Arc::new(Metrics::new());
            self.events.push_late(Arc::clone(&metrics) as _);
            metrics
        });
        let now = Moment::now();
        let held: Vec<_> =
            self.held.lock().as_ref().map(|held| held.values().cloned().collect()).unwrap_or_default();
        let of_held = held.iter().map(|lock: &Arc<HeldLock>| {
            let longest_hold = now.since(lock.since());
            (lock.name(), ClassGauges { held: 1, longest_hold, ..ClassGauges::default() })
        });
        let waits = self.queue.waits();
        let of_waits = waits.iter().map(|(name, waiting, since)| {
            let (waiting, longest_wait) = (*waiting as u64, now.since(*since));
            (name, ClassGauges { waiting, longest_wait, ..ClassGauges::default() })
        });
        metrics.page(of_held.chain(of_waits), counts)
    }

    /// See [`Lease::renew_for`](crate::Lease::renew_for).
    pub(crate) fn renew_lease(&self, lock: &Arc<HeldLock>, ttl: Duration) -> Result<()> {
        self.usable()?;
        let renewal = self.under_lock(StoreCall::Renew, lock, |store| lock.renew(store, &self.settings, ttl));
        self.forget_if_over(lock);
        self.events_of(lock).renewal(&renewal.answer);
        if renewal.answer.is_ok() {
            // The keeper has dropped a lease that is kept alive if it had expired.
            self.keeper.resume(lock)?;
        }
        if let Some(leftover) = renewal.leftover {
            self.free_in_background(lock.name().clone(), leftover);
        }
        renewal.answer
    }

    /// See [`Lease::release`](crate::Lease::release).
    pub(crate) fn release_lease(&self, lock: &Arc<HeldLock>) -> Result<bool> {
        // A call under way ends after the time-out at the latest.
        let released = self.release(lock, Deadline::after(self.settings.timeout * 2));
        self.forget_if_over(lock);
        released
    }

    /// Releases the lock of a lease that is dropped. What is not done by `by` is left to the background threads. If a call is
    /// under way for so long, its thread leaves it to them.
    pub(crate) fn give_up(&self, lock: &Arc<HeldLock>, by: Deadline) {
        self.forget_lease(lock);
        let released = if lock.release_failed() { None } else { Some(self.release(lock, by)) };
        match released {
            Some(Ok(_)) => {}
            Some(Err(error)) if error.code() == Code::LeaseLost => log::warn!("{}", error.chain()),
            Some(Err(_)) | None => {
                log::warn!("lock {} is released in the background", lock.name());
                self.release_later(lock);
                self.events_of(lock).released(false);
            }
        }
        // After the release, which tells those who have registered.
        self.forget_notices(lock);
    }

    /// Leaves the release to the background threads, after the call that is under way.
    fn release_later(&self, lock: &Arc<HeldLock>) {
        let (background, store) = (Arc::clone(&self.background), Arc::clone(&self.store));
        let name = lock.name().clone();
        lock.give_up(Arc::new(move |leftover| free(&background, &store, name.clone(), leftover)));
    }

    pub(crate) fn forget_if_over(&self, lock: &Arc<HeldLock>) {
        if !lock.is_open() {
            self.forget(lock);
        }
    }

    /// Releases a lock. Returns `false` if it was released or found lost before.
    pub(crate) fn release(&self, lock: &HeldLock, by: Deadline) -> Result<bool> {
        let events = self.events_of(lock);
        events.report_state();
        if self.linger_on(lock, by) {
            events.released(false);
            return Ok(true);
        }
        // Others could not find it free, and each registered process gets a notice.
        let is_left = lock.has_stayed() && !self.queue.notices().is_wanted(lock.name());
        if is_left {
            self.queue.leaves(lock.name(), self.settings.retry);
        }
        let timeout = self.settings.timeout;
        let release = self.under_lock(StoreCall::Release, lock, |store| lock.release(store, timeout, by));
        events.release(&release.answer, release.is_over);
        match (release.is_over, is_left) {
            (true, true) => self.queue.left_to_others(lock.name(), lock.notices(), self.settings.retry),
            (true, false) => self.queue.released(lock.name(), lock.notices(), self.settings.retry),
            (false, _) => {}
        }
        if let Some(leftover) = release.leftover {
            self.free_in_background(lock.name().clone(), leftover);
        }
        if let Some(held) = release.held_until {
            self.release_at(lock.name().clone(), held);
        }
        release.answer
    }

    /// Releases the record of a lock at the end of its minimum hold. If the process ends before, the store's TTL does.
    fn release_at(&self, name: LockName, held: HeldUntil) {
        let HeldUntil { moment, leftover: Leftover { record, ttl, doubt }, mut may_reappear, notices } = held;
        let (store, queue, retry) = (Arc::clone(&self.store), Arc::clone(&self.queue), self.settings.retry);
        let (named, line) = (name.clone(), name.clone());
        let freeing =
            move |doubt| Freeing::new(Arc::clone(&store), named.clone(), record.clone(), ttl, doubt);
        let mut current = None;
        let will_run = self.background.run(moment.since(Moment::now()), move || {
            // The manager is closed before the hold is over.
            if Moment::now() < moment {
                return Next::Done;
            }
            let next = current.get_or_insert_with(|| freeing(doubt)).try_once();
            if next == Next::Done {
                queue.released(&name, notices, retry);
            }
            if next == Next::Done && std::mem::take(&mut may_reappear) {
                current = Some(freeing(LockDoubt::MayBeTaken));
                return Next::After(Freeing::FIRST_TRY);
            }
            next
        });
        // Otherwise processes that register would get the answer that a notice of the release will come.
        if let Some(grant) = notices.filter(|_| !will_run) {
            self.queue.notices().ended(&line, grant);
        }
    }

    pub(crate) fn events_of<'a>(&'a self, lock: &'a HeldLock) -> LeaseEvents<'a> {
        LeaseEvents::new(&self.events, lock)
    }

    /// Makes calls to the store that lock the lease, the first of which is `first`. Afterwards, they are reported as events.
    pub(crate) fn under_lock<T>(
        &self,
        first: StoreCall,
        lock: &HeldLock,
        calls: impl FnOnce(&dyn LockStore) -> T,
    ) -> T {
        if !self.events.are_open() {
            return calls(&*self.unobserved);
        }
        let open = self.events.start(&StartedWork::StoreCall { call: first, lock: Some(lock.name()) });
        let store = ObservedStore::recording(Arc::clone(&self.unobserved), Arc::clone(&self.events));
        let answer = calls(&store);
        store.report_recorded(open);
        answer
    }

    /// Releases a record that the store may still have, as soon as the store answers.
    pub(crate) fn free_in_background(&self, name: LockName, leftover: Leftover) {
        free(&self.background, &self.store, name, leftover);
    }

    /// See [`LockManager::close`](crate::LockManager::close).
    pub(crate) fn close(&self) -> Result<()> {
        self.not_forked()?;
        self.closed.store(true, Ordering::Release);
        self.queue.close();
        self.poller.close();
        self.keeper.begin_stop();
        let held = self.held.lock().take().unwrap_or_default();
        let mut held: Vec<Arc<HeldLock>> = held.into_values().collect();
        // A lease that is not released in time delays others until it expires, so the longest go first.
        held.sort_by_key(|lock| Reverse(lock.ends()));
        let by = Deadline::after(self.settings.timeout);
        let mut first_failure = None;
        let mut left = held.len() as u32;
        for lock in held {
            // A release that hangs must leave time for the others.
            let share = by.remaining() / left;
            left -= 1;
            lock.close();
            match self.release(&lock, by.sooner(Deadline::after(share))) {
                Err(error) if error.code() != Code::LeaseLost => {
                    if lock.is_busy() {
                        self.release_later(&lock);
                    }
                    first_failure.get_or_insert(error);
                }
                Ok(_) | Err(_) => {}
            }
        }
        if let Some(linger) = &self.linger {
            linger.close(by);
        }
        self.askers.stop();
        self.keeper.stop();
        self.background.stop();
        self.queue.notices().stop();
        if let Some(history) = &self.history {
            history.stop(Deadline::after(self.settings.timeout));
        }
        first_failure.map_or(Ok(()), |error| Err(error.context("closing the lock manager")))
    }
}

impl Drop for Session {
    /// Stops the threads here and not in the drop of `Background`, whose last handle one of its own threads may
    /// have.
    fn drop(&mut self) {
        if let Some(linger) = self.linger.as_ref().filter(|_| self.not_forked().is_ok()) {
            linger.close(Deadline::after(self.settings.timeout.min(GIVING_BACK)));
        }
        self.askers.stop();
        self.keeper.stop();
        self.background.stop();
        self.queue.notices().stop();
        if let Some(history) = &self.history {
            history.stop(Deadline::after(self.settings.timeout.min(GIVING_BACK)));
        }
        if self.not_forked().is_err() {
            // A thread that does not exist in this child may have been changing the poller.
            std::mem::forget(Arc::clone(&self.poller));
        }
    }
}

fn remove(held: &HeldLocks, lock: &Arc<HeldLock>) {
    if let Some(held) = &mut *held.lock() {
        held.remove(&lock.address());
    }
}

fn free(background: &Background, store: &Arc<dyn LockStore>, name: LockName, leftover: Leftover) {
    let Leftover { record, ttl, doubt } = leftover;
    let mut freeing = Freeing::new(Arc::clone(store), name, record, ttl, doubt);
    background.run(Freeing::FIRST_TRY, move || freeing.try_once());
}
