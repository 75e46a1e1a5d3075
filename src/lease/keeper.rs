//! Keeps leases alive: renews them in the background, many in few requests.
//!
//! A lease is renewed after a third of its length, and again after a fifteenth while renewals fail. Two threads do
//! this, each started when there is work for it:
//!
//! | thread | leases | waits for an answer |
//! |---|---|---|
//! | `dlm-keep-1` | those whose last renewal was answered quickly | [`QUICKLY`] at most |
//! | `dlm-keep-2` | those whose last renewal failed, or took longer | up to the store time-out, and a sixth of the lease |
//!
//! So a server that hangs delays the leases of other servers by [`QUICKLY`] once (if the store asks for one lease after the
//! other: a few times, each time for less), and then keeps only the second thread
//! busy. A renewal without an answer is repeated, which is always safe. The first thread also notifies listeners of
//! changes that the clock makes.
//!
//! No lease is locked during a request, and no thread holds the manager. A renewal never begins after the end of its
//! lease, and one that is answered after that end does not bring it back.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::events::sinks::EventSinks;
use crate::lease::events::LeaseEvents;
use crate::lease::held_lock::requests::{LostRecord, RenewalEnd, Renewing};
use crate::lease::held_lock::{HeldLock, Leftover};
use crate::lease::loss::find_reason;
use crate::names::owner::OwnerRecord;
use crate::runtime::process::threads::{SharedWithThreads, WorkerThread};
use crate::runtime::sync::{AtomicBool, HashMap};
use crate::runtime::sync::{Condvar, Mutex, MutexGuard};
use crate::runtime::time::{Deadline, LONGEST_PARK, Moment, jittered};
use crate::settings::manager_options::Settings;
use crate::store::{LockStore, Renewal};

/// Longest wait of the first thread for the answers to its requests.
const QUICKLY: Duration = Duration::from_millis(200);
/// The same after several rounds that got no answer in time. A store that asks for one lease after the other finds out
/// about one that hangs in each round, and others must not wait for all of these rounds.
const QUICKLY_MIN: Duration = Duration::from_millis(20);
/// Leases that are due within this time are renewed together.
const TOGETHER: Duration = Duration::from_millis(100);
/// Highest number of leases that are renewed together.
const TOGETHER_MAX: usize = 1024;
/// Limits of the pause after a failed renewal.
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Pause if the caller has renewed the lease meanwhile, or if there was no time for its request.
const SOON: Duration = Duration::from_millis(20);
/// Time limit of the read that finds out who has taken a lost lock.
const REASON: Duration = Duration::from_secs(1);
/// Shortest TTL of a lease that is kept alive. Renewals of a shorter one would be late on a busy machine.
pub(crate) const TTL_MIN: Duration = Duration::from_millis(100);

/// Called when a lease has ended because of a renewal, with what the background must release.
type OnEnd = Box<dyn Fn(&Arc<HeldLock>, Option<Leftover>) + Send + Sync>;

pub(crate) struct Keeper {
    shared: SharedWithThreads<KeeperShared>,
    /// Whether a lease was ever kept or watched. Most managers do neither, and forget their leases without the mutex.
    is_used: AtomicBool,
}

struct KeeperShared {
    store: Arc<dyn LockStore>,
    settings: Settings,
    events: Arc<EventSinks>,
    on_end: OnEnd,
    state: Mutex<KeeperState>,
    /// Wakes both threads.
    wake: Condvar,
}

#[derive(Default)]
struct KeeperState {
    /// Leases by the address of their lock, which does not move while it is in here.
    members: HashMap<usize, Member>,
    quick: Agenda,
    patient: Agenda,
    /// When the clock changes the state of a lease that somebody listens to.
    notices: Agenda,
    /// Leases whose state the clock may have changed, for the event sinks. The first thread reports them.
    changed: Vec<Arc<HeldLock>>,
    tickets: u64,
    threads: [Option<WorkerThread>; 2],
    is_stopping: bool,
}

/// Addresses of members, ordered by the time when they are due.
type Agenda = BTreeMap<Due, usize>;

/// When something is due, and a number that makes it unique.
type Due = (Moment, u64);

struct Member {
    lock: Arc<HeldLock>,
    renewal: MemberRenewal,
    notice: Option<Due>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MemberRenewal {
    /// Nothing is to be renewed.
    None,
    Waits(KeeperLane, Due),
    /// A thread asks the store, in this round.
    Asks(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeeperLane {
    /// The first thread.
    Quick,
    /// The second thread.
    Patient,
}

/// What follows for a lease after its turn.
enum After {
    Renew(KeeperLane, Moment),
    Nothing,
}

impl KeeperShared {
    fn lock(&self) -> MutexGuard<'_, KeeperState> {
        self.state.lock()
    }

    /// Returns how long one request for this lease may take.
    fn patience(&self, lock: &HeldLock) -> Duration {
        self.settings.timeout.min(self.length(lock) / 6)
    }

    /// Returns how long the lease lasts here after a renewal.
    fn length(&self, lock: &HeldLock) -> Duration {
        self.settings.lease_end(Moment::OVER, lock.ttl()).since(Moment::OVER)
    }

    /// Returns when to renew a lease that ends at `ends`: after a third of its length, or sooner by up to a tenth of that.
    fn renewal_due(&self, lock: &HeldLock, ends: Moment) -> Moment {
        let length = self.length(lock);
        let early = jittered(length / 3).mul_f64(1.0 / 1.1);
        Moment::from_nanos(ends.as_nanos().saturating_sub((length - early).as_nanos() as u64))
    }
}

impl KeeperState {
    fn agenda(&mut self, lane: KeeperLane) -> &mut Agenda {
        match lane {
            KeeperLane::Quick => &mut self.quick,
            KeeperLane::Patient => &mut self.patient,
        }
    }

    fn ticket(&mut self, at: Moment) -> Due {
        self.tickets += 1;
        (at, self.tickets)
    }

    fn member(&mut self, lock: &Arc<HeldLock>) -> &mut Member {
        let new = || Member { lock: Arc::clone(lock), renewal: MemberRenewal::None, notice: None };
        self.members.entry(lock.address()).or_insert_with(new)
    }

    /// Sets when a member is renewed next. Does nothing if it was forgotten.
    fn schedule(&mut self, address: usize, after: After) {
        let due = self.ticket(if let After::Renew(_, at) = after { at } else { Moment::OVER });
        let Some(member) = self.members.get_mut(&address) else { return };
        let before = member.renewal;
        member.renewal = match after {
            After::Renew(lane, _) => MemberRenewal::Waits(lane, due),
            After::Nothing => MemberRenewal::None,
        };
        if let MemberRenewal::Waits(lane, due) = before {
            self.agenda(lane).remove(&due);
        }
        if let After::Renew(lane, _) = after {
            self.agenda(lane).insert(due, address);
        }
        self.drop_if_idle(address);
    }

    /// Notifies the listeners of a lease if its state has changed, and sets when to do that next.
    fn notify(&mut self, address: usize, events: &EventSinks) {
        let Some(member) = self.members.get_mut(&address) else { return };
        let before = member.notice.take();
        let next = member.lock.life.notice(events.are_open());
        if events.are_open() {
            let changed = Arc::clone(&member.lock);
            self.changed.push(changed);
        }
        if let Some(due) = before {
            self.notices.remove(&due);
        }
        if let Some(at) = next {
            let due = self.ticket(at);
            self.notices.insert(due, address);
            self.members.get_mut(&address).expect("it is in there").notice = Some(due);
        }
        self.drop_if_idle(address);
    }

    /// Whether nothing was scheduled for the lease since this round has taken it.
    fn is_asked(&self, address: usize, round: u64) -> bool {
        self.members.get(&address).is_some_and(|member| member.renewal == MemberRenewal::Asks(round))
    }

    fn drop_if_idle(&mut self, address: usize) {
        let idle = |member: &Member| member.renewal == MemberRenewal::None && member.notice.is_none();
        if self.members.get(&address).is_some_and(idle) {
            self.members.remove(&address);
        }
    }

    /// Returns when this lane has something to do next.
    fn next(&self, lane: KeeperLane) -> Option<Moment> {
        let first = |agenda: &Agenda| agenda.first_key_value().map(|((at, _), _)| *at);
        match lane {
            KeeperLane::Quick => first(&self.quick).into_iter().chain(first(&self.notices)).min(),
            KeeperLane::Patient => first(&self.patient),
        }
    }

    /// Takes the leases of a lane that are due, and those that are due soon and may wait as long for an answer. Returns the
    /// number of the round as well.
    fn take_due(
        &mut self,
        lane: KeeperLane,
        patience: impl Fn(&HeldLock) -> Duration,
    ) -> (u64, Vec<(usize, Arc<HeldLock>)>) {
        let now = Moment::now();
        self.tickets += 1;
        let round = self.tickets;
        let first = self.agenda(lane).first_key_value().map(|(due, address)| (*due, *address));
        let Some((_, first)) = first.filter(|((at, _), _)| *at <= now) else { return (round, Vec::new()) };
        let class = |lock: &HeldLock| patience(lock).as_millis().max(1).ilog2();
        let wanted = class(&self.members[&first].lock);
        let until = (now.after(TOGETHER.min(patience(&self.members[&first].lock) / 4)), u64::MAX);
        let due: Vec<_> = self.agenda(lane).range(..=until).map(|(due, address)| (*due, *address)).collect();
        let mut taken = Vec::new();
        for (due, address) in due {
            let member = self.members.get_mut(&address).expect("the agenda names members");
            if class(&member.lock) == wanted && taken.len() < TOGETHER_MAX {
                member.renewal = MemberRenewal::Asks(round);
                taken.push((address, Arc::clone(&member.lock)));
                self.agenda(lane).remove(&due);
            }
        }
        (round, taken)
    }
}

impl Keeper {
    /// Starts no thread.
    pub(crate) fn new(
        store: Arc<dyn LockStore>,
        settings: Settings,
        events: Arc<EventSinks>,
        on_end: impl Fn(&Arc<HeldLock>, Option<Leftover>) + Send + Sync + 'static,
    ) -> Keeper {
        let shared = KeeperShared {
            store,
            settings,
            events,
            on_end: Box::new(on_end),
            state: Mutex::default(),
            wake: Condvar::new(),
        };
        Keeper { shared: SharedWithThreads::new(shared), is_used: AtomicBool::new(false) }
    }

    /// Renews the lease in the background from now on, and never beyond `until`.
    ///
    /// # Errors
    /// INTERNAL_ERROR if no thread can be started; CLOSED.
    pub(crate) fn keep(&self, lock: &Arc<HeldLock>, until: Moment) -> Result<()> {
        let mut state = self.start(KeeperLane::Quick)?;
        lock.life.keep(until);
        let due = self.shared.renewal_due(lock, lock.ends());
        state.member(lock);
        state.schedule(lock.address(), After::Renew(KeeperLane::Quick, due));
        state.notify(lock.address(), &self.shared.events);
        drop(state);
        self.shared.wake.notify_all();
        Ok(())
    }

    /// Goes on with a lease that is kept alive or listened to, after a renewal by the caller, which may have moved its end in
    /// either direction.
    ///
    /// # Errors
    /// As for [`keep`](Keeper::keep).
    pub(crate) fn resume(&self, lock: &Arc<HeldLock>) -> Result<()> {
        match lock.life.kept_until() {
            Some(until) => self.keep(lock, until),
            None => {
                if lock.life.has_listeners() {
                    // The renewal has succeeded. While the manager closes, its end notifies them.
                    let _ = self.watch(lock);
                }
                Ok(())
            }
        }
    }

    /// Ends the renewals. Listeners receive later changes as before.
    pub(crate) fn stop_keeping(&self, lock: &Arc<HeldLock>) {
        lock.life.stop_keeping();
        if self.is_used.load(Ordering::Acquire) {
            let mut state = self.shared.lock();
            state.schedule(lock.address(), After::Nothing);
            state.notify(lock.address(), &self.shared.events);
        }
    }

    /// Notifies the listeners of the lease of changes by the clock from now on.
    ///
    /// # Errors
    /// As for [`keep`](Keeper::keep).
    pub(crate) fn watch(&self, lock: &Arc<HeldLock>) -> Result<()> {
        let mut state = self.start(KeeperLane::Quick)?;
        state.member(lock);
        state.notify(lock.address(), &self.shared.events);
        drop(state);
        self.shared.wake.notify_all();
        Ok(())
    }

    /// Forgets a lease that has ended, or whose owner has dropped it.
    pub(crate) fn forget(&self, lock: &Arc<HeldLock>) {
        // Set before the caller's thread could know the lease.
        if !self.is_used.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.shared.lock();
        let Some(member) = state.members.remove(&lock.address()) else { return };
        if let MemberRenewal::Waits(lane, due) = member.renewal {
            state.agenda(lane).remove(&due);
        }
        if let Some(due) = member.notice {
            state.notices.remove(&due);
        }
        drop(state);
        // Without the lock, because it may be the last handle.
        drop(member);
    }

    /// Begins to stop: no renewal begins after this call. See [`stop`](Keeper::stop).
    pub(crate) fn begin_stop(&self) {
        if let Some(shared) = self.shared.in_its_process() {
            shared.lock().is_stopping = true;
            shared.wake.notify_all();
        }
    }

    /// Joins the threads. Waits for the requests under way, each at most for the store time-out.
    pub(crate) fn stop(&self) {
        let Some(shared) = self.shared.in_its_process() else { return };
        let mut state = shared.lock();
        state.is_stopping = true;
        let threads = std::mem::take(&mut state.threads);
        let members = std::mem::take(&mut state.members);
        drop(state);
        shared.wake.notify_all();
        drop(members);
        threads.into_iter().flatten().for_each(WorkerThread::join);
    }

    fn start(&self, lane: KeeperLane) -> Result<MutexGuard<'_, KeeperState>> {
        let mut state = self.shared.lock();
        if state.is_stopping {
            return Err(Error::Closed);
        }
        start(&self.shared, &mut state, lane)?;
        self.is_used.store(true, Ordering::Release);
        Ok(state)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts the thread of a lane unless it runs.
fn start(shared: &Arc<KeeperShared>, state: &mut KeeperState, lane: KeeperLane) -> Result<()> {
    let thread_slot = &mut state.threads[lane as usize];
    if thread_slot.is_none() {
        let (name, own) = (format!("dlm-keep-{}", lane as usize + 1), Arc::clone(shared));
        let thread =
            WorkerThread::start(name, "renews leases", move || work(&own, lane)).map_err(|error| {
                Error::Internal {
                    what: "no thread can be started to renew leases".into(),
                    source: Some(error.into()),
                }
            })?;
        *thread_slot = Some(thread);
    }
    Ok(())
}

fn work(shared: &Arc<KeeperShared>, lane: KeeperLane) {
    // Number of rounds in a row whose answers did not come in time.
    let mut hung = 0;
    let mut state = shared.lock();
    while !state.is_stopping {
        if lane == KeeperLane::Quick {
            state = notify_due(shared, state);
        }
        let (round, taken) = state.take_due(lane, |lock| shared.patience(lock));
        if taken.is_empty() {
            let now = Moment::now();
            let pause = state.next(lane).map_or(LONGEST_PARK, |at| at.since(now).min(LONGEST_PARK));
            if !pause.is_zero() {
                shared.wake.wait_for(&mut state, pause);
            }
            continue;
        }
        drop(state);
        let renewals = RenewalRound::new(shared, lane, &taken, hung);
        let began = Moment::now();
        let results = renewals.run();
        hung = if Moment::now().since(began) < renewals.wait { 0 } else { hung.saturating_add(1) };
        state = shared.lock();
        for (address, after) in results {
            // Otherwise the caller has renewed or forgotten the lease meanwhile.
            if !state.is_asked(address, round) {
                continue;
            }
            // If the second thread cannot be started, the first one goes on with the lease.
            let after = match after {
                After::Renew(KeeperLane::Patient, at)
                    if !state.is_stopping && start(shared, &mut state, KeeperLane::Patient).is_err() =>
                {
                    After::Renew(KeeperLane::Quick, at)
                }
                after => after,
            };
            state.schedule(address, after);
            state.notify(address, &shared.events);
        }
        drop(state);
        shared.wake.notify_all();
        // These may be the last handles of the leases.
        drop(taken);
        state = shared.lock();
    }
}

/// Notifies the listeners of the leases whose state the clock has changed.
fn notify_due<'a>(
    shared: &'a KeeperShared,
    mut state: MutexGuard<'a, KeeperState>,
) -> MutexGuard<'a, KeeperState> {
    let now = Moment::now();
    while let Some((&(at, _), &address)) = state.notices.first_key_value()
        && at <= now
    {
        state.notify(address, &shared.events);
    }
    let changed = std::mem::take(&mut state.changed);
    if changed.is_empty() {
        return state;
    }
    drop(state);
    changed.iter().for_each(|lock| LeaseEvents::new(&shared.events, lock).report_state());
    // These may be the last handles of the leases.
    drop(changed);
    shared.lock()
}

/// The renewal of the leases that are due.
struct RenewalRound<'a> {
    shared: &'a Arc<KeeperShared>,
    lane: KeeperLane,
    /// Time limit of the answers.
    wait: Duration,
    taken: &'a [(usize, Arc<HeldLock>)],
}

/// A lease in a round whose renewal has begun.
struct AskedRenewal<'a> {
    address: usize,
    lock: &'a Arc<HeldLock>,
    /// `None` after its end.
    sent: Option<Renewing<'a>>,
    after: Option<After>,
    lost: Option<LostRecord>,
    /// The answer, for the event sinks, except for a loss.
    answer: Option<Result<(), Code>>,
}

impl<'a> RenewalRound<'a> {
    fn new(
        shared: &'a Arc<KeeperShared>,
        lane: KeeperLane,
        taken: &'a [(usize, Arc<HeldLock>)],
        hung: u32,
    ) -> RenewalRound<'a> {
        let patience = taken.iter().map(|(_, lock)| shared.patience(lock)).min().unwrap_or_default();
        let wait = match lane {
            KeeperLane::Quick => patience.min((QUICKLY / 2_u32.pow(hung.min(8))).max(QUICKLY_MIN)),
            KeeperLane::Patient => patience,
        };
        RenewalRound { shared, lane, wait, taken }
    }

    fn run(&self) -> Vec<(usize, After)> {
        let (shared, mut results) = (self.shared, Vec::with_capacity(self.taken.len()));
        let mut asked = Vec::with_capacity(self.taken.len());
        for (address, lock) in self.taken {
            match lock.begin_kept_renewal(&shared.settings) {
                None => results.push((*address, After::Nothing)),
                sent => {
                    let (after, lost, answer) = (None, None, None);
                    asked.push(AskedRenewal { address: *address, lock, sent, after, lost, answer });
                }
            }
        }
        self.ask(&mut asked);
        for AskedRenewal { address, lock, after, lost, answer, .. } in asked {
            let events = LeaseEvents::new(&shared.events, lock);
            if let Some(LostRecord { record, why, leftover, .. }) = lost {
                let by = Deadline::after(REASON.min(shared.settings.timeout));
                let reason = find_reason(&*shared.store, lock, &record, why, by);
                if self.lane == KeeperLane::Quick {
                    // Many reads of a store that hangs must not keep other leases waiting for their notice.
                    drop(notify_due(shared, shared.lock()));
                }
                // A release since then changes nothing: it found no record of ours.
                lock.life.lost(reason);
                (shared.on_end)(lock, leftover);
                events.lost(reason);
            }
            match answer {
                Some(Ok(())) => events.renewed(),
                Some(Err(code)) => events.renewal_failed(code),
                None => {}
            }
            let after = after.unwrap_or_else(|| {
                // No request was sent for it, because the store had no answer to those before it.
                lock.life.renewal_failed();
                After::Renew(self.lane, Moment::now().after(SOON))
            });
            results.push((address, after));
        }
        results
    }

    fn ask(&self, asked: &mut [AskedRenewal<'_>]) {
        let (shared, by) = (self.shared, Deadline::after(self.wait));
        let begun = asked.iter().filter_map(|asked| Some((asked.lock, asked.sent.as_ref()?)));
        let inputs: Vec<_> =
            begun.map(|(lock, sent)| (lock, sent.record.clone(), sent.asked, sent.ends)).collect();
        let renewals: Vec<_> = inputs
            .iter()
            .map(|(lock, owner_record, ttl, ends)| {
                let alone = ends.since(Moment::now()) < shared.patience(lock) * 2;
                Renewal { name: lock.name(), owner_record, ttl: *ttl, alone }
            })
            .collect();
        let mut report = |at: usize, since, answer| {
            if let Some(asked) = asked.get_mut(at) {
                self.conclude(asked, since, answer);
            }
        };
        let asking = AssertUnwindSafe(|| shared.store.renew_many(&renewals, by, &mut report));
        if catch_unwind(asking).is_err() {
            log::error!("a store panicked while it renewed leases");
            for asked in asked.iter_mut().filter(|asked| asked.after.is_none()) {
                asked.lock.life.renewal_failed();
                asked.answer = Some(Err(Code::Panic));
                asked.after = Some(self.retry(asked.lock));
            }
        }
    }

    fn conclude(&self, asked: &mut AskedRenewal<'_>, since: Moment, answer: Result<Option<OwnerRecord>>) {
        let (shared, lock) = (self.shared, asked.lock);
        let Some(sent) = asked.sent.take() else { return };
        let after = match sent.end(since, answer, &shared.settings, shared.store.may_leave_parts()) {
            RenewalEnd::Renewed => {
                asked.answer = Some(Ok(()));
                let lane = if Moment::now().since(since) < QUICKLY {
                    KeeperLane::Quick
                } else {
                    KeeperLane::Patient
                };
                After::Renew(lane, shared.renewal_due(lock, lock.ends()))
            }
            RenewalEnd::Superseded => After::Renew(self.lane, Moment::now().after(SOON)),
            RenewalEnd::TooLate => After::Nothing,
            RenewalEnd::Failed(error) => {
                log::warn!(
                    "lock {} is not renewed yet, and its lease ends in {:.1} s: {}",
                    lock.name(),
                    lock.ends().since(Moment::now()).as_secs_f64(),
                    error.chain()
                );
                asked.answer = Some(Err(error.code()));
                self.retry(lock)
            }
            RenewalEnd::Lost(lost) => {
                asked.lost = Some(lost);
                After::Nothing
            }
        };
        asked.after = Some(after);
    }

    fn retry(&self, lock: &HeldLock) -> After {
        let pause = jittered((self.shared.length(lock) / 15).clamp(RETRY_MIN, RETRY_MAX));
        After::Renew(KeeperLane::Patient, Moment::now().after(pause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::held_lock::LeaseTerms;
    use crate::names::lock_name::{Level, LockName, NamePolicy};
    use crate::names::mode::Mode;
    use crate::store::Grant;

    const LONG: Duration = Duration::from_secs(60);

    /// The caller may keep a lease again while a round has its result, and the other thread may take it at once.
    #[test]
    fn a_round_changes_nothing_for_a_lease_that_was_scheduled_since_it_took_it() {
        let name = LockName::new(Level::Xdc, "t", None, "a", NamePolicy::Strict).unwrap();
        let (owner_record, since) = (OwnerRecord::from_bytes([1; 16]), Moment::now());
        let grant = Grant { owner_record, fence: None, epoch: None, fences: 1, since, may_reappear: false };
        let ends = since.after(LONG);
        let terms = LeaseTerms {
            mode: Mode::Exclusive,
            ttl: LONG,
            asked: LONG,
            ends,
            until_death: false,
            notices: None,
        };
        let lock = Arc::new(HeldLock::new(name, grant, terms));
        let (mut state, address) = (KeeperState::default(), lock.address());
        state.member(&lock);
        state.schedule(address, After::Renew(KeeperLane::Patient, Moment::OVER));
        let (first, taken) = state.take_due(KeeperLane::Patient, |_| LONG);
        assert!(taken.len() == 1 && state.is_asked(address, first));
        state.schedule(address, After::Renew(KeeperLane::Quick, Moment::OVER));
        assert!(!state.is_asked(address, first));
        let (second, taken) = state.take_due(KeeperLane::Quick, |_| LONG);
        assert_eq!(taken.len(), 1);
        assert!(state.is_asked(address, second) && !state.is_asked(address, first));
    }
}
