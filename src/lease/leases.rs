//! The leases of one manager, and the requests that they make. Each begins and ends in [`HeldLock`], and nothing is locked
//! while the store is asked. The [`Keeper`] makes renewals of its own.

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::events::sinks::EventSinks;
use crate::lease::events::LeaseEvents;
use crate::lease::freeing::{Freeing, LockDoubt};
use crate::lease::held_lock::conversion::ConversionEnd;
use crate::lease::held_lock::requests::{BegunRelease, HeldUntil, LostRecord, ReleaseEnd, RenewalEnd};
use crate::lease::held_lock::{GivenUp, HeldLock, LeaseTerms, Leftover};
use crate::lease::keeper::Keeper;
use crate::lease::linger::{GiveBack, Linger, Retake};
use crate::lease::loss::{find_reason, is_broken};
use crate::lease::reentry::ReentrantHolds;
use crate::lease::retake_right::NoRight;
use crate::lease::token::{LeaseToken, StoreId};
use crate::names::holder::{Holder, Identity};
use crate::names::lease_state::LostReason;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::runtime::background::{Background, Next};
use crate::runtime::sync::{AtomicBool, HashMap, Mutex};
use crate::runtime::time::{Deadline, Moment};
use crate::settings::manager_options::Settings;
use crate::store::{Attempt, Conversion, IntentId, LockStore, ModeStore};
use crate::wait::local_queues::{Answer, LocalQueues};

/// Shortest time for a renewal, even if the lease expires sooner.
const RENEW_AT_LEAST: Duration = Duration::from_millis(100);

/// Answer to a change of mode.
pub(crate) enum ConvertAnswer {
    Changed(Box<ModeChange>),
    /// Others hold the lock.
    Held(Holder),
}

/// What holds a lock whose mode was changed.
pub(crate) struct ModeChange {
    pub(crate) lock: HeldLock,
    /// It is kept alive until then.
    pub(crate) kept_until: Option<Moment>,
}

/// Held locks by address, which `close` releases. `None` once it has run.
type HeldLocks = Mutex<Option<HashMap<usize, Arc<HeldLock>>>>;

pub(crate) struct Leases {
    store: Arc<dyn LockStore>,
    settings: Settings,
    events: Arc<EventSinks>,
    queue: Arc<LocalQueues>,
    background: Arc<Background>,
    held: Arc<HeldLocks>,
    pub(crate) keeper: Keeper,
    /// `None` if released locks do not stay.
    pub(crate) linger: Option<Arc<Linger>>,
    pub(crate) reentrant: ReentrantHolds,
    is_closed: AtomicBool,
}

impl Leases {
    /// # Errors
    /// INVALID_ARGUMENT if locks should stay that the store cannot let stay.
    pub(crate) fn new(
        store: Arc<dyn LockStore>,
        settings: Settings,
        events: Arc<EventSinks>,
        queue: Arc<LocalQueues>,
        background: Arc<Background>,
    ) -> Result<Leases> {
        let held = Arc::new(Mutex::new(Some(HashMap::default())));
        let keeper = {
            let (background, held, owned) = (Arc::clone(&background), Arc::clone(&held), Arc::clone(&store));
            let queue = Arc::clone(&queue);
            let on_end = move |lock: &Arc<HeldLock>, leftover: Option<Leftover>| {
                remove(&held, lock);
                forget_notices(&queue, lock);
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
        let is_closed = AtomicBool::new(false);
        let reentrant = ReentrantHolds::default();
        Ok(Leases { store, settings, events, queue, background, held, keeper, linger, reentrant, is_closed })
    }

    pub(crate) fn events_of<'a>(&'a self, lock: &'a HeldLock) -> LeaseEvents<'a> {
        LeaseEvents::new(&self.events, lock)
    }

    /// Remembers a lock that `close` must release.
    pub(crate) fn hold(&self, lock: &Arc<HeldLock>) {
        if let Some(held) = &mut *self.held.lock() {
            held.insert(lock.address(), Arc::clone(lock));
        }
    }

    /// Returns the held locks.
    pub(crate) fn held(&self) -> Vec<Arc<HeldLock>> {
        self.held.lock().as_ref().map(|held| held.values().cloned().collect()).unwrap_or_default()
    }

    /// Returns the number of held locks.
    pub(crate) fn count(&self) -> usize {
        self.held.lock().as_ref().map_or(0, HashMap::len)
    }

    /// Neither keeps the lease alive any more nor releases it in `close`.
    fn forget(&self, lock: &Arc<HeldLock>) {
        remove(&self.held, lock);
        self.keeper.forget(lock);
    }

    fn forget_if_over(&self, lock: &Arc<HeldLock>) {
        if lock.is_over() {
            self.forget(lock);
        }
    }

    /// See [`Lease::renew_for`](crate::Lease::renew_for).
    pub(crate) fn renew(&self, lock: &Arc<HeldLock>, ttl: Duration) -> Result<()> {
        let answer = self.renew_in_store(lock, ttl);
        self.forget_if_over(lock);
        let events = self.events_of(lock);
        events.renewal(&answer);
        match &answer {
            // The keeper has dropped a lease that is kept alive if it had expired.
            Ok(()) => self.keeper.resume(lock)?,
            Err(_) => events.report_state(),
        }
        answer
    }

    fn renew_in_store(&self, lock: &HeldLock, ttl: Duration) -> Result<()> {
        let renewing = lock.begin_renewal(ttl, &self.settings)?;
        let since = Moment::now();
        // A reply after the end of the lease is useless, so a store that hangs does not block the caller longer. If the
        // lease has expired here, or its end is unknown because it comes from another machine, the store decides.
        let useful = match renewing.ends.since(since) {
            Duration::ZERO => Duration::MAX,
            left => left.max(RENEW_AT_LEAST),
        };
        let by = Deadline::after(self.settings.timeout.min(ttl).min(useful));
        let answer = self.store.renew(lock.name(), &renewing.record, renewing.asked, by);
        match renewing.end(since, answer, &self.settings, self.store.may_leave_parts()) {
            RenewalEnd::Renewed => Ok(()),
            RenewalEnd::TooLate => {
                self.events_of(lock).lost(LostReason::Expired);
                Err(lock.revived())
            }
            RenewalEnd::Superseded if lock.is_converting() => Err(lock.changes_its_mode()),
            RenewalEnd::Superseded => Err(lock.over()),
            RenewalEnd::Failed(error) => Err(error.context(format!("renewing lock {}", lock.name()))),
            RenewalEnd::Lost(LostRecord { record, why, granted_by, leftover }) => {
                let reason = find_reason(&*self.store, lock, &record, why, by);
                // The id of another store may be that of this one under another URI, so the lease is lost in any case.
                lock.life.lost(reason);
                forget_notices(&self.queue, lock);
                self.free_rest(lock, leftover);
                match self.elsewhere(lock, granted_by).filter(|_| reason != LostReason::Broken) {
                    Some(elsewhere) => Err(elsewhere),
                    None => {
                        self.events_of(lock).lost(reason);
                        Err(lock.gone_for(reason))
                    }
                }
            }
        }
    }

    /// Returns the error if the store has no record of the lease, and its token is of another store.
    fn elsewhere(&self, lock: &HeldLock, granted_by: Option<StoreId>) -> Option<Error> {
        let here = self.store.describe();
        granted_by.filter(|id| *id != StoreId::of(&here)).map(|_| {
            lock.not_held(format!(
                "{here} has no record of it, and another store granted it, or this one under another URI; use the URI \
                 with which it was acquired"
            ))
        })
    }

    /// See [`Lease::release`](crate::Lease::release).
    pub(crate) fn release(&self, lock: &Arc<HeldLock>) -> Result<bool> {
        let released = self.release_by(lock, Deadline::after(self.settings.timeout));
        self.forget_if_over(lock);
        released
    }

    /// Releases the lock of a lease that is dropped. What is not done by `by` is left to the background threads.
    pub(crate) fn give_up(&self, lock: &Arc<HeldLock>, by: Deadline) {
        self.forget(lock);
        if !lock.is_releasing()
            && let Err(error) = self.release_by(lock, by)
            && error.code() == Code::LeaseLost
        {
            log::warn!("{}", error.chain());
        }
        match lock.give_up() {
            GivenUp::Free(leftover) => self.release_later(lock, leftover),
            GivenUp::Left | GivenUp::Over => {}
        }
    }

    /// Leaves a failed release to the background threads.
    fn release_later(&self, lock: &HeldLock, leftover: Leftover) {
        log::warn!("lock {} is released in the background", lock.name());
        forget_notices(&self.queue, lock);
        self.free(lock.name().clone(), leftover);
        self.events_of(lock).released(false);
    }

    /// Releases a lock. Returns `false` if it was released or found lost before.
    fn release_by(&self, lock: &HeldLock, by: Deadline) -> Result<bool> {
        let events = self.events_of(lock);
        events.report_state();
        if self.lets_stay(lock, by) {
            events.released(false);
            return Ok(true);
        }
        // Others could not find it free, and each registered process gets a notice.
        let is_left =
            lock.has_stayed() && lock.mode() != Mode::Shared && !self.queue.notices().is_wanted(lock.name());
        if is_left {
            self.queue.leaves(lock.name(), self.settings.retry);
        }
        let (answer, has_answered) = self.release_in_store(lock, by);
        events.release(&answer, has_answered);
        match (has_answered, is_left) {
            (true, true) => self.queue.left_to_others(lock.name(), lock.notices(), self.settings.retry),
            (true, false) => self.left(lock),
            (false, _) => {}
        }
        answer
    }

    /// Returns the answer, and whether the store says that the lease does not have the lock any more.
    fn release_in_store(&self, lock: &HeldLock, by: Deadline) -> (Result<bool>, bool) {
        let by = by.sooner(Deadline::after(self.settings.timeout));
        let releasing = match lock.begin_release() {
            BegunRelease::Ask(releasing) => releasing,
            BegunRelease::Later(held) => {
                self.release_at(lock.name().clone(), lock.mode(), held);
                return (Ok(true), false);
            }
            BegunRelease::NotHeld => return (Ok(false), false),
        };
        let in_parts = self.store.may_leave_parts();
        let ask = AssertUnwindSafe(|| self.store.release(lock.name(), &releasing.record, by));
        let answer = match catch_unwind(ask) {
            Ok(answer) => answer,
            Err(panic) => {
                // The release must end.
                let error = Error::Internal { what: "the store panicked".into(), source: None };
                if let ReleaseEnd::Failed(_, Some(leftover)) = releasing.end(Err(error), in_parts) {
                    self.release_later(lock, leftover);
                }
                resume_unwind(panic)
            }
        };
        match releasing.end(answer, in_parts) {
            ReleaseEnd::Freed(leftover) => {
                self.free_rest(lock, leftover);
                (Ok(true), true)
            }
            ReleaseEnd::NotHeld => (Ok(false), false),
            ReleaseEnd::Lost(LostRecord { record, why, granted_by, leftover }) => {
                self.free_rest(lock, leftover);
                let broken = is_broken(&*self.store, lock, &record, by);
                let elsewhere = self.elsewhere(lock, granted_by).or_else(|| lock.released_before(why));
                let error = elsewhere.filter(|_| !broken).unwrap_or_else(|| {
                    let reason = if broken { LostReason::Broken } else { why };
                    lock.life.lost(reason);
                    lock.gone_for(reason)
                });
                (Err(error), true)
            }
            ReleaseEnd::Failed(error, leftover) => {
                leftover.into_iter().for_each(|leftover| self.release_later(lock, leftover));
                (Err(error.context(format!("releasing lock {}", lock.name()))), false)
            }
        }
    }

    /// Changes the mode of a lease. `waited` returns for how long the caller has waited.
    pub(crate) fn convert(
        &self,
        modes: &dyn ModeStore,
        lock: &Arc<HeldLock>,
        to: Mode,
        intent: Option<IntentId>,
        identity: &Identity,
        waited: impl FnOnce() -> Duration,
    ) -> Result<ConvertAnswer> {
        let changed = self.convert_in_store(modes, lock, to, intent, identity, waited);
        self.forget_if_over(lock);
        self.events_of(lock).report_state();
        changed
    }

    fn convert_in_store(
        &self,
        modes: &dyn ModeStore,
        lock: &HeldLock,
        to: Mode,
        intent: Option<IntentId>,
        identity: &Identity,
        waited: impl FnOnce() -> Duration,
    ) -> Result<ConvertAnswer> {
        lock.check()?;
        if to == Mode::Exclusive {
            // What another thread has left is a reader like any other.
            let _ = self.retake(lock.name(), lock.ttl(), to, true, Deadline::at(Moment::now()));
        }
        let converting = lock.begin_conversion(to)?;
        let (name, from, ttl) = (lock.name(), lock.mode(), lock.ttl());
        let asked = self.settings.asked_ttl(ttl);
        let notices = self.queue.notices().for_grant(name, to);
        let identity = Identity { notices, ..identity.clone() };
        let by = Deadline::after(self.settings.timeout.min(ttl));
        let attempt = Attempt { name, ttl: asked, identity: &identity, by };
        let record = converting.record.clone();
        let conversion = Conversion { owner_record: &record, from, to, intent };
        let mut doubtful = Vec::new();
        let answer = catch_unwind(AssertUnwindSafe(|| modes.convert(attempt, conversion, &mut doubtful)));
        for record in doubtful {
            self.free(name.clone(), Leftover { record, ttl: asked, doubt: LockDoubt::MayBeTaken });
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(panic) => {
                // The change must end, and nobody knows whether the store made it.
                let error = Error::InDoubt { what: "the store panicked".into(), source: None };
                if let ConversionEnd::InDoubt(_, leftover) = converting.end(Err(error)) {
                    self.release_later(lock, leftover);
                }
                resume_unwind(panic)
            }
        };
        match converting.end(answer) {
            ConversionEnd::Granted(grant, goes_over) => {
                let ends = self.settings.lease_end(grant.since, ttl);
                let notices = notices.map(|notices| notices.grant);
                if let Some(grant) = notices {
                    self.queue.notices().granted(name, grant, to);
                }
                let terms = LeaseTerms { mode: to, ttl, asked, ends, until_death: false, notices };
                let next = HeldLock::new(name.clone(), grant, terms).takes_over(&goes_over);
                // Before others get the lock.
                self.events_of(lock).mode_changed(&next, waited);
                self.left(lock);
                let change = ModeChange { lock: next, kept_until: goes_over.kept_until };
                Ok(ConvertAnswer::Changed(Box::new(change)))
            }
            ConversionEnd::Held(holder) => Ok(ConvertAnswer::Held(holder)),
            ConversionEnd::Superseded => Err(lock.over()),
            ConversionEnd::Failed(error) => {
                Err(error.context(format!("changing the mode of lock {name} from {from} to {to}")))
            }
            ConversionEnd::InDoubt(error, leftover) => {
                self.release_later(lock, leftover);
                Err(error.context(format!("changing the mode of lock {name} from {from} to {to}")))
            }
            ConversionEnd::Lost(LostRecord { record, why, leftover, .. }) => {
                let reason = find_reason(&*self.store, lock, &record, why, by);
                lock.life.lost(reason);
                forget_notices(&self.queue, lock);
                self.free_rest(lock, leftover);
                self.events_of(lock).lost(reason);
                Err(lock.gone_for(reason))
            }
        }
    }

    /// Lets those who wait know that the lock was released here.
    fn left(&self, lock: &HeldLock) {
        match lock.mode() {
            Mode::Exclusive => self.queue.released(lock.name(), lock.notices(), self.settings.retry),
            _ => self.queue.reader_left(lock.name(), lock.notices()),
        }
    }

    /// Releases the record of a lock at the end of its minimum hold. If the process ends before, the store's TTL does.
    fn release_at(&self, name: LockName, mode: Mode, held: HeldUntil) {
        let HeldUntil { moment, leftover: Leftover { record, ttl, doubt }, mut may_reappear, notices } = held;
        let (store, queue, retry) = (Arc::clone(&self.store), Arc::clone(&self.queue), self.settings.retry);
        let (named, waited_for) = (name.clone(), name.clone());
        let freeing =
            move |doubt| Freeing::new(Arc::clone(&store), named.clone(), record.clone(), ttl, doubt);
        let mut current = None;
        let will_run = self.background.free(moment.since(Moment::now()), move || {
            // The manager is closed before the hold is over.
            if Moment::now() < moment {
                return Next::Done;
            }
            let next = current.get_or_insert_with(|| freeing(doubt)).try_once();
            match mode {
                _ if next != Next::Done => {}
                Mode::Exclusive => queue.released(&name, notices, retry),
                _ => queue.reader_left(&name, notices),
            }
            if next == Next::Done && std::mem::take(&mut may_reappear) {
                current = Some(freeing(LockDoubt::MayBeTaken));
                return Next::After(Freeing::FIRST_TRY);
            }
            next
        });
        // Otherwise processes that register would get the answer that a notice of the release will come.
        if let Some(grant) = notices.filter(|_| !will_run) {
            self.queue.notices().ended(&waited_for, grant);
        }
    }

    /// See [`Lease::into_token`](crate::Lease::into_token). The lease of a token does not die with this process, so the store
    /// records it first.
    pub(crate) fn hand_on(&self, lock: &Arc<HeldLock>) -> Result<LeaseToken> {
        let token = self.hand_on_in_store(lock);
        self.forget_if_over(lock);
        if token.is_ok() {
            forget_notices(&self.queue, lock);
            self.events_of(lock).handed_on();
        }
        token
    }

    fn hand_on_in_store(&self, lock: &HeldLock) -> Result<LeaseToken> {
        let record = lock.record()?;
        if let Some(liveness) = self.store.liveness().filter(|_| lock.dies_with_process) {
            let by = Deadline::after(self.settings.timeout);
            let outlives = liveness.outlive_process(lock.name(), &record, by);
            if !outlives.map_err(|error| error.context(format!("handing on lock {}", lock.name())))? {
                let Some(reason) = lock.lose() else { return Err(lock.over()) };
                forget_notices(&self.queue, lock);
                self.events_of(lock).lost(reason);
                return Err(lock.gone_for(reason));
            }
        }
        lock.hand_on(StoreId::of(&self.store.describe()))
    }

    /// See [`Lease::liveness_fd`](crate::Lease::liveness_fd).
    pub(crate) fn liveness_fd(&self, lock: &HeldLock) -> Result<Option<OwnedFd>> {
        let record = lock.record()?;
        match self.store.liveness().filter(|_| lock.dies_with_process) {
            Some(liveness) => {
                liveness.liveness_fd(lock.name(), &record, Deadline::after(self.settings.timeout))
            }
            None => Ok(None),
        }
    }

    /// Takes a lock again that stayed with this process. Releases it in the store if a new lease needs a new record, or if
    /// its time is over: then it is left to others, unless a reader had it. Otherwise the store must be asked, and a time of
    /// staying that began before goes on.
    pub(crate) fn retake(
        &self,
        name: &LockName,
        ttl: Duration,
        mode: Mode,
        needs_new_record: bool,
        waits: Deadline,
    ) -> ControlFlow<Answer<HeldLock>, Option<Moment>> {
        let Some(linger) = &self.linger else { return ControlFlow::Continue(None) };
        let Some(retake) = linger.retake(name, ttl, mode, needs_new_record) else {
            return ControlFlow::Continue(None);
        };
        let (lingering, why) = match retake {
            Retake::Retaken(retaken) => {
                let ends = self.settings.lease_end(retaken.at, ttl);
                return ControlFlow::Break(Answer::Got(HeldLock::retaken(name.clone(), retaken, ttl, ends)));
            }
            Retake::Not(lingering, why) => (lingering, why),
        };
        let by = Deadline::after(self.settings.timeout.min(ttl));
        if why == NoRight::TimeIsOver && lingering.mode != Mode::Shared {
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

    /// Whether the lock was released and stays with this process, so that it need not be read.
    pub(crate) fn stays(&self, name: &LockName) -> bool {
        self.linger.as_ref().is_some_and(|linger| linger.has(name))
    }

    /// Returns how often a lock was taken again that stayed with this process.
    pub(crate) fn retaken(&self) -> u64 {
        self.linger.as_ref().map_or(0, |linger| linger.retaken())
    }

    /// Releases a lock here and lets it stay in the store. Returns `false` if it must be released there.
    fn lets_stay(&self, lock: &HeldLock, by: Deadline) -> bool {
        let Some(linger) = self.linger.as_ref().filter(|_| !self.is_closed.load(Ordering::Acquire)) else {
            return false;
        };
        let (name, notices) = (lock.name(), self.queue.notices());
        if notices.is_wanted(name) || self.queue.left_until(name).is_some() || !linger.has_room(name) {
            return false;
        }
        let Some(lingering) = lock.linger(self.settings.linger_of(lock.ttl())) else { return false };
        if let Err(lingering) = linger.add(name, lingering) {
            let is_over = lock.has_stayed() && lingering.until <= Moment::now();
            let why = if is_over { GiveBack::TimeIsOver } else { GiveBack::Otherwise };
            // Its time is over, or others have taken the room meanwhile.
            linger.release_or_free(name, *lingering, why, by.sooner(Deadline::after(self.settings.timeout)));
            return true;
        }
        let yields = match lock.mode() {
            Mode::Exclusive => self.queue.stays(name, self.settings.retry),
            _ => {
                self.queue.reader_left(name, None);
                false
            }
        };
        // Somebody may have registered in between.
        if yields || notices.is_wanted(name) {
            linger.give_back(name, if yields { GiveBack::Yields } else { GiveBack::Otherwise });
        }
        true
    }

    fn free_rest(&self, lock: &HeldLock, leftover: Option<Leftover>) {
        leftover.into_iter().for_each(|leftover| self.free(lock.name().clone(), leftover));
    }

    /// Releases a record that the store may still have, as soon as the store answers.
    pub(crate) fn free(&self, name: LockName, leftover: Leftover) {
        free(&self.background, &self.store, name, leftover);
    }

    /// Releases all held locks, and those that stay. Returns the first error.
    pub(crate) fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
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
            match self.release_by(&lock, by.sooner(Deadline::after(share))) {
                Err(error) if error.code() != Code::LeaseLost => _ = first_failure.get_or_insert(error),
                Ok(_) | Err(_) => {}
            }
        }
        self.give_back(by);
        first_failure.map_or(Ok(()), Err)
    }

    /// Gives back the locks that stay.
    pub(crate) fn give_back(&self, by: Deadline) {
        if let Some(linger) = &self.linger {
            linger.close(by);
        }
    }
}

fn remove(held: &HeldLocks, lock: &Arc<HeldLock>) {
    if let Some(held) = &mut *held.lock() {
        held.remove(&lock.address());
    }
}

/// A process that registers for a release of the lease gets the answer that the lock is not here, unless it was released.
/// For the thread that has ended the lease, and only if it does not report a release.
fn forget_notices(queue: &LocalQueues, lock: &HeldLock) {
    if let Some(grant) = lock.notices() {
        queue.notices().ended(lock.name(), grant);
    }
}

fn free(background: &Background, store: &Arc<dyn LockStore>, name: LockName, leftover: Leftover) {
    let Leftover { record, ttl, doubt } = leftover;
    let mut freeing = Freeing::new(Arc::clone(store), name, record, ttl, doubt);
    background.free(Freeing::FIRST_TRY, move || freeing.try_once());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::held_lock::LeaseTerms;
    use crate::lease::token::TokenEnd;
    use crate::names::holder::Identity;
    use crate::names::lease_state::LeaseState;
    use crate::names::lock_name::{Level, NamePolicy};
    use crate::names::mode::Mode;
    use crate::names::owner::OwnerRecord;
    use crate::runtime::time::sleep;
    use crate::store::{Acquired, Attempt, Grant, MemoryStore};
    use crate::wait::notices::Notices;

    const LONG: Duration = Duration::from_secs(60);

    fn leases(store: &Arc<MemoryStore>) -> Leases {
        let (settings, background) = (Settings::default(), Arc::new(Background::new(1)));
        let notices = Notices::new(&settings.notices, settings.notices_all, None).unwrap();
        let events = Arc::new(EventSinks::default());
        let queue = LocalQueues::new(Arc::new(notices), Arc::clone(store) as _);
        Leases::new(Arc::clone(store) as _, settings, events, queue, background).unwrap()
    }

    fn name() -> LockName {
        LockName::new(Level::Xdc, "t", None, "a", NamePolicy::Strict).unwrap()
    }

    fn granted(store: &MemoryStore) -> Grant {
        let identity =
            Identity { host: "h".into(), pid: 1, start_ms: 7, purpose: String::new(), notices: None };
        let attempt = Attempt { name: &name(), ttl: LONG, identity: &identity, by: Deadline::after(LONG) };
        let Acquired::Granted(grant) = store.acquire(attempt, &mut Vec::new()).unwrap() else {
            panic!("held")
        };
        grant
    }

    /// The id may be that of this store under another URI.
    #[test]
    fn a_renewal_at_a_store_without_the_record_ends_the_lease_whatever_the_id_in_its_token() {
        let store = Arc::new(MemoryStore::new());
        let leases = leases(&store);
        for (id, said) in
            [("elsewhere:", "another store granted it"), (&*store.describe(), "lost its record")]
        {
            let lock = Arc::new(HeldLock::adopted(LeaseToken {
                mode: Mode::Exclusive,
                epoch: None,
                permit: None,
                name: name(),
                fence: None,
                ends: TokenEnd::at(Moment::now().after(LONG)),
                ttl: LONG,
                owner_record: OwnerRecord::from_bytes([7; 16]),
                store: Some(StoreId::of(id)),
            }));
            assert!(lock.life.state().is_valid());
            let error = leases.renew(&lock, LONG).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
            assert_eq!(lock.life.state(), LeaseState::Lost(LostReason::RecordGone), "{id}");
            assert!(lock.check().is_err());
        }
    }

    #[test]
    fn the_reason_of_a_process_that_was_stopped_stays_whatever_is_called_afterwards() {
        let settings = Settings::default();
        for call in ["release", "renew", "keep"] {
            let store = Arc::new(MemoryStore::new());
            let leases = leases(&store);
            // A lease that is kept alive until this process does not run, and whose lock another holder has then.
            let grant = granted(&store);
            store.release(&name(), &grant.owner_record, Deadline::after(LONG)).unwrap();
            granted(&store);
            let ends = Moment::now().after(LONG);
            let terms = LeaseTerms {
                mode: Mode::Exclusive,
                ttl: LONG,
                asked: LONG,
                ends,
                until_death: false,
                notices: None,
            };
            let lock = Arc::new(HeldLock::new(name(), grant, terms));
            lock.life.keep(Moment::now().after(LONG));
            let kept = lock.begin_kept_renewal(&settings).unwrap();
            lock.life.renewed(Moment::now().after(Duration::from_millis(5)), LONG);
            while lock.life.state().is_valid() {
                sleep(Duration::from_millis(1));
            }
            assert_eq!(lock.life.state(), LeaseState::Lost(LostReason::ProcessStopped));
            let error = match call {
                "release" => leases.release(&lock).unwrap_err(),
                "renew" => leases.renew(&lock, LONG).unwrap_err(),
                _ => {
                    let RenewalEnd::Lost(lost) = kept.end(Moment::now(), Ok(None), &settings, false) else {
                        panic!("it was not lost")
                    };
                    let by = Deadline::after(LONG);
                    lock.life.lost(find_reason(&*store, &lock, &lost.record, lost.why, by));
                    lock.check().unwrap_err()
                }
            };
            assert_eq!(error.lost_reason(), Some(LostReason::ProcessStopped), "{call}: {error}");
            assert_eq!(lock.life.state(), LeaseState::Lost(LostReason::ProcessStopped), "{call}");
            assert_eq!(lock.check().unwrap_err().lost_reason(), Some(LostReason::ProcessStopped), "{call}");
        }
    }
}
