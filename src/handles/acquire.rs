//! How a lock is acquired: the main flow of the library, from a caller's call to the lease.
//!
//! | step | where | what it adds |
//! |---|---|---|
//! | 1 | [`once`], [`wait`]; [`pending`](crate::handles::pending) for waiters without a thread | a caller asks once, or until its wait is over |
//! | 2 | [`LocalQueues::wait`](crate::wait::local_queues::LocalQueues::wait) | of all waiters of this process for the lock, one asks the store; when it asks: the retry interval, a local release, a notice of another process, the turn of others |
//! | 3 | [`ask`] | reads a lock that was held a moment ago before it asks for it |
//! | 4 | [`attempt`] | takes a lock again that stayed with this process ([`linger`](crate::lease::linger)), or sends one request |
//! | 5 | [`LockStore::acquire`](crate::store::LockStore::acquire) | the request: granted, refused with the holder, failed, or in doubt. `store::remote` has the protocol of the stores over a network |
//! | 6 | [`granted`] | the lease: how long it lasts here; `close` and the keeper know it |
//!
//! A renewal and a release begin and end in [`HeldLock`](crate::lease::held_lock). In between,
//! [`Leases`](crate::lease::leases) calls the store. It then wakes the queue.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use std::{mem, slice};

use crate::error::{Code, Error, Result};
use crate::events::event::{Event, StartedWork};
use crate::events::sinks::OpenSpans;
use crate::handles::acquire_options::AcquireOptions;
use crate::handles::lease::{Lease, no_minimum};
use crate::lease::freeing::LockDoubt;
use crate::lease::held_lock::{HeldLock, LeaseTerms, Leftover};
use crate::names::holder::{Holder, Identity};
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::owner::OwnerRecord;
use crate::runtime::cancel::CancelToken;
use crate::runtime::sync::Mutex;
use crate::runtime::time::{Deadline, Moment};
use crate::session::Session;
use crate::settings::limits::checked_ttl;
use crate::store::{Acquired, Attempt, Grant, ModeTerms};
use crate::wait::intents::ModeWait;
use crate::wait::local_queues::{Answer, Ask, Ended, Terms};

/// Asks the store once, for a caller that does not wait.
pub(crate) fn once(session: &Arc<Session>, name: &LockName, terms: &AcquireTerms) -> Result<Lease> {
    if let Some(lease) = reenter(session, name, terms)? {
        return Ok(lease);
    }
    let attempt = || attempt(session, name, terms, Deadline::at(Moment::OVER));
    once_with(session, name, terms, attempt, slice::from_ref)
}

/// Calls `ask` once, for a caller that does not wait. `leases` returns the leases in what it gets.
pub(crate) fn once_with<T>(
    session: &Arc<Session>,
    name: &LockName,
    terms: &AcquireTerms,
    ask: impl FnOnce() -> Result<Answer<T>>,
    leases: impl Fn(&T) -> &[Lease],
) -> Result<T> {
    session.usable()?;
    let open = start(session, name, terms.mode);
    let answer = match ask() {
        Ok(Answer::Got(got)) => terms.settle(leases(&got)).map(|()| got),
        Ok(Answer::Busy(holder)) => {
            session.ask_once(holder.as_ref());
            Err(unavailable(session, name, holder, Duration::ZERO))
        }
        Err(error) => Err(error),
    };
    report_acquire(session, (name, terms.mode), answer.as_ref().map(leases), || Duration::ZERO, open);
    answer
}

/// Asks the store until it grants the lock or the wait is over. Blocks this thread.
pub(crate) fn wait(session: &Arc<Session>, name: &LockName, terms: &AcquireTerms) -> Result<Lease> {
    // Before it queues: whoever waits there waits for this owner.
    if let Some(lease) = reenter(session, name, terms)? {
        return Ok(lease);
    }
    let look = || session.read_holder(name);
    wait_with(session, name, terms, |how| ask(session, name, how, terms, look), slice::from_ref)
}

/// Calls `ask` when it is the turn of this thread, until the store grants something or the wait is over. `leases` returns the leases
/// in it. Blocks this thread.
pub(crate) fn wait_with<T>(
    session: &Arc<Session>,
    name: &LockName,
    terms: &AcquireTerms,
    ask: impl FnMut(Ask) -> Result<Answer<T>>,
    leases: impl Fn(&T) -> &[Lease],
) -> Result<T> {
    session.usable()?;
    let open = start(session, name, terms.mode);
    let got = session.queue.wait(name, &terms.of_queue(), ask);
    terms.end_wait();
    let waited = terms.waited();
    let answer = match got {
        Ok(got) if !terms.cancel.as_ref().is_some_and(CancelToken::is_cancelled) => {
            // If it cannot be kept alive, dropping the lease releases it.
            terms.settle(leases(&got)).map(|()| got)
        }
        // The lock was granted during the cancellation. Dropping the lease releases it.
        Ok(_) | Err(Ended::Cancelled) => Err(Error::Cancelled { waited }),
        Err(Ended::Unavailable(holder)) => {
            Err(unavailable(session, name, holder.map(|holder| *holder), waited))
        }
        Err(Ended::Failed(error)) => Err(error),
    };
    report_acquire(session, (name, terms.mode), answer.as_ref().map(leases), || waited, open);
    answer
}

/// Shares the lock that this owner holds already. Event sinks receive nothing: the lock was acquired before.
fn reenter(session: &Arc<Session>, name: &LockName, terms: &AcquireTerms) -> Result<Option<Lease>> {
    let Some(owner) = &terms.reentrant else { return Ok(None) };
    session.usable()?;
    if terms.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
        return Err(Error::Cancelled { waited: Duration::ZERO });
    }
    let Some(lock) = session.leases.reentrant.enter(name, owner) else { return Ok(None) };
    // Dropping it leaves the hold.
    let lease = Lease::sharing(session, lock);
    if terms.dies_with_process && !lease.held().dies_with_process {
        let allowed = "as for the lease that the owner holds already";
        return Err(Error::invalid("dies_with_process", "true", allowed));
    }
    let until = Moment::now().after(terms.ttl);
    let is_kept = lease.held().life.kept_until().is_some_and(|kept| kept >= until);
    if !is_kept && lease.ends() < until {
        match lease.renew_for(terms.ttl) {
            // The owner has lost it.
            Err(error) if error.code() == Code::LeaseLost => return Ok(None),
            renewed => renewed.map_err(|error| error.context(format!("entering lock {name} again")))?,
        }
    }
    terms.settle(slice::from_ref(&lease))?;
    Ok(Some(lease))
}

/// Sends one request for the lock to the store. `look` returns the holder of the lock, for an exclusive attempt.
pub(crate) fn ask(
    session: &Arc<Session>,
    name: &LockName,
    ask: Ask,
    terms: &AcquireTerms,
    look: impl FnOnce() -> Result<Option<Holder>>,
) -> Result<Answer<Lease>> {
    if ask == Ask::Read && !session.leases.stays(name) {
        terms.wait.lock().asks();
        let blocker = match terms.mode {
            Mode::Exclusive => look()?,
            mode => session.blocker(name, mode)?,
        };
        if let Some(holder) = blocker {
            terms.note_refusal(session, name, &holder, terms.by);
            if !holder.is_waiting || !terms.passes_intents(session, name) {
                return Ok(Answer::Busy(Some(holder)));
            }
        }
    }
    attempt(session, name, terms, terms.by)
}

/// Tries once to acquire the lock. A call that waits until `waits` leaves a lock that has stayed too long to others first.
fn attempt(
    session: &Arc<Session>,
    name: &LockName,
    terms: &AcquireTerms,
    waits: Deadline,
) -> Result<Answer<Lease>> {
    session.usable()?;
    let AcquireTerms { ttl, mode, .. } = *terms;
    let stay_ends = match session.leases.retake(name, ttl, mode, terms.dies_with_process, waits) {
        ControlFlow::Break(Answer::Got(lock)) => return leased(session, terms.owned(lock)).map(Answer::Got),
        ControlFlow::Break(Answer::Busy(holder)) => return Ok(Answer::Busy(holder)),
        ControlFlow::Continue(stay_ends) => stay_ends,
    };
    // A grant that arrives after its lease has expired is useless.
    let by = Deadline::after(session.settings.timeout.min(ttl));
    let asked = session.settings.asked_ttl(ttl);
    let mut doubtful = Vec::new();
    let notices = session.queue.notices().for_grant(name, mode);
    let with_notices = notices.map(|notices| Identity { notices: Some(notices), ..session.identity.clone() });
    let attempt =
        Attempt { name, ttl: asked, identity: with_notices.as_ref().unwrap_or(&session.identity), by };
    let mut answer = request(session, terms, attempt, &mut doubtful);
    if let Ok(Acquired::Held(holder)) = &answer
        && holder.is_waiting
        && terms.begins_turn(session, name, holder)
    {
        answer = request(session, terms, attempt, &mut doubtful);
    }
    for record in doubtful {
        let ttl = asked;
        session.leases.free(name.clone(), Leftover { record, ttl, doubt: LockDoubt::MayBeTaken });
    }
    match answer {
        Ok(Acquired::Held(holder)) => {
            terms.note_refusal(session, name, &holder, waits);
            Ok(Answer::Busy(Some(holder)))
        }
        Ok(Acquired::Granted(grant)) => {
            let ends = session.settings.lease_end(grant.since, ttl);
            let notices = notices.map(|notices| notices.grant);
            let until_death = terms.dies_with_process;
            let lease_terms = LeaseTerms { mode, ttl, asked, ends, until_death, notices };
            let granted = granted(session, name, grant, lease_terms, stay_ends, terms);
            terms.note_grant();
            granted
        }
        Err(error) => Err(error.context(format!("acquiring lock {name}"))),
    }
}

/// Sends the request.
fn request(
    session: &Session,
    terms: &AcquireTerms,
    attempt: Attempt<'_>,
    doubtful: &mut Vec<OwnerRecord>,
) -> Result<Acquired> {
    let name = attempt.name;
    let fences = session.leases.linger.as_ref().map(|linger| linger.fences(name));
    let (turn, intent) = {
        let mut wait = terms.wait.lock();
        wait.asks();
        (wait.turn(terms.retry), wait.intent())
    };
    let wanted = ModeTerms { turn, intent, ..ModeTerms::new(terms.mode) };
    match (terms.mode, intent, fences) {
        (Mode::Exclusive, ..) if terms.dies_with_process => {
            session.liveness()?.acquire_until_death(attempt, doubtful)
        }
        (Mode::Exclusive, Some(_), fences) => {
            let wanted = ModeTerms { fences: fences.unwrap_or(1), turn: None, ..wanted };
            session.modes(terms.mode)?.acquire_mode(attempt, wanted, doubtful)
        }
        (Mode::Exclusive, None, Some(fences)) => session.store.acquire_with_fences(attempt, fences, doubtful),
        (Mode::Exclusive, None, None) => session.store.acquire(attempt, doubtful),
        (mode, ..) => {
            // If the outer lease is over, this one waits like any other.
            let outer = terms.nested_in.as_ref().and_then(|lock| lock.record().ok());
            let wanted = ModeTerms { nested_in: outer.as_ref(), ..wanted };
            session.modes(mode)?.acquire_mode(attempt, wanted, doubtful)
        }
    }
}

/// Makes the lease of a grant.
fn granted(
    session: &Arc<Session>,
    name: &LockName,
    grant: Grant,
    terms: LeaseTerms,
    stay_ends: Option<Moment>,
    asked: &AcquireTerms,
) -> Result<Answer<Lease>> {
    let may_stay = !terms.until_death && terms.mode == Mode::Exclusive;
    if let Some(linger) = session.leases.linger.as_ref().filter(|_| may_stay) {
        linger.granted(name, grant.fences);
    }
    if let Some(grant) = terms.notices {
        session.queue.notices().granted(name, grant, terms.mode);
    }
    let lock = HeldLock::new(name.clone(), grant, terms);
    let lock = match stay_ends {
        Some(stay_ends) => lock.goes_on_until(stay_ends),
        None => lock,
    };
    leased(session, asked.owned(lock)).map(Answer::Got)
}

/// Makes the lease of a lock that this process has.
///
/// # Errors
/// RETRIES_EXHAUSTED if the lease is over already. Then the lock is released.
pub(crate) fn leased(session: &Arc<Session>, lock: HeldLock) -> Result<Lease> {
    let ttl = lock.ttl();
    let lease = Lease::of(session, lock)?;
    if lease.check().is_ok() {
        return Ok(lease);
    }
    session.usable()?;
    Err(Error::RetriesExhausted {
        store: session.store.describe(),
        what: format!("the grant took longer than the lease of {ttl:?}; ask for a longer TTL"),
        source: None,
    })
}

/// The terms of one acquisition: its options, checked, and the manager's defaults.
pub(crate) struct AcquireTerms {
    pub(crate) ttl: Duration,
    pub(crate) mode: Mode,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
    dies_with_process: bool,
    pub(crate) began: Moment,
    pub(crate) by: Deadline,
    pub(crate) retry: Duration,
    pub(crate) cancel: Option<CancelToken>,
    speaks_for_all: bool,
    joins_together: bool,
    /// A lease of the same lock within which a reader reads once more.
    nested_in: Option<Arc<HeldLock>>,
    reentrant: Option<Arc<str>>,
    wait: Mutex<ModeWait>,
}

impl AcquireTerms {
    /// Checks the options, for a lock whose handle has this mode.
    pub(crate) fn new(
        session: &Session,
        name: &LockName,
        mode: Mode,
        how: &AcquireOptions,
    ) -> Result<AcquireTerms> {
        let settings = &session.settings;
        let ttl = checked_ttl(how.ttl.unwrap_or(settings.ttl))?;
        how.check(ttl)?;
        let mode = how.mode_of(mode)?;
        let is_of_readers = matches!(mode, Mode::Shared | Mode::Update);
        let joins_together = is_of_readers && session.modes(mode)?.joins_together();
        how.check_nested(name, mode)?;
        how.check_reentrant(mode)?;
        // The manager's option is for the locks that can have it.
        let by_default = settings.dies_with_process && mode == Mode::Exclusive;
        let dies_with_process = how.dies_with_process || by_default;
        if dies_with_process {
            if mode != Mode::Exclusive {
                let allowed = format!("for an exclusive lock, and not for one in mode {mode}");
                return Err(Error::invalid("dies_with_process", "true", allowed));
            }
            session.liveness()?;
            how.min_hold.map_or(Ok(()), |_| Err(no_minimum()))?;
        }
        let began = Moment::now();
        Ok(AcquireTerms {
            ttl,
            mode,
            max_hold: how.max_hold,
            min_hold: how.min_hold,
            dies_with_process,
            began,
            by: Deadline::at(began.after(how.wait.unwrap_or(settings.wait))),
            retry: settings.retry,
            cancel: how.cancel.clone(),
            speaks_for_all: ttl >= settings.timeout,
            joins_together,
            nested_in: how.nested_in.clone(),
            reentrant: how.reentrant.clone(),
            wait: Mutex::new(ModeWait::since(began)),
        })
    }

    /// Lets the owner enter the lock again.
    fn owned(&self, lock: HeldLock) -> HeldLock {
        match &self.reentrant {
            Some(owner) => lock.of_owner(Arc::clone(owner)),
            None => lock,
        }
    }

    /// Remembers what stood in the way. A writer that waits for readers, until `waits`, announces itself.
    pub(crate) fn note_refusal(&self, session: &Session, name: &LockName, holder: &Holder, waits: Deadline) {
        let must_announce = self.wait.lock().refused(self.mode, holder);
        if must_announce && !waits.passed() {
            let writer = session.intents.announce(name);
            self.wait.lock().announced(writer);
        }
    }

    /// Remembers the writer that keeps a reader out. Returns whether the reader may pass it now and could not before.
    fn begins_turn(&self, session: &Session, name: &LockName, writer: &Holder) -> bool {
        let had_turn = self.wait.lock().turn(self.retry).is_some();
        self.wait.lock().refused(self.mode, writer);
        !had_turn && self.has_turn(session, name)
    }

    fn has_turn(&self, session: &Session, name: &LockName) -> bool {
        let seen = session.queue.saw_writer(name);
        let mut wait = self.wait.lock();
        wait.saw_writer(seen);
        wait.turn(self.retry).is_some()
    }

    /// Whether the store must be asked although a writer waits.
    fn passes_intents(&self, session: &Session, name: &LockName) -> bool {
        self.nested_in.is_some() || self.has_turn(session, name)
    }

    fn note_grant(&self) {
        // A lease that dies with its process is granted without regard to its intent.
        if !self.dies_with_process {
            self.wait.lock().granted();
        }
    }

    /// Ends what the wait has left in the store.
    pub(crate) fn end_wait(&self) {
        let writer = self.wait.lock().end();
        drop(writer);
    }

    /// Applies the terms to granted leases. If that fails, drop the leases, which releases them.
    pub(crate) fn settle(&self, leases: &[Lease]) -> Result<()> {
        leases.iter().try_for_each(|lease| {
            self.max_hold.map_or(Ok(()), |max_hold| lease.keep(max_hold))?;
            self.min_hold.map_or(Ok(()), |min_hold| lease.hold_at_least(min_hold))
        })
    }

    /// Returns how long the acquisition has waited: zero if it was to try once.
    pub(crate) fn waited(&self) -> Duration {
        if self.by.moment() <= self.began { Duration::ZERO } else { Moment::now().since(self.began) }
    }

    pub(crate) fn of_queue(&self) -> Terms<'_> {
        Terms {
            by: self.by,
            retry: self.retry,
            mode: self.mode,
            is_within: self.nested_in.is_some(),
            joins_together: self.joins_together,
            cancel: self.cancel.as_ref(),
            speaks_for_all: self.speaks_for_all,
        }
    }
}

/// Reports to the event sinks that the thread begins to acquire the lock.
pub(crate) fn start(session: &Session, name: &LockName, mode: Mode) -> OpenSpans {
    match session.events.are_open() {
        true => session.events.start(&StartedWork::Acquire { lock: name, mode }),
        false => OpenSpans::default(),
    }
}

/// Reports to the event sinks how an acquisition has ended. Nothing of the library may be locked.
fn report_acquire(
    session: &Session,
    wanted: (&LockName, Mode),
    answer: Result<&[Lease], &Error>,
    waited: impl Fn() -> Duration,
    mut open: OpenSpans,
) {
    match answer {
        Ok(leases) => leases.iter().for_each(|lease| lease.tell_acquired(&waited, mem::take(&mut open))),
        Err(error) => tell_unavailable(session, wanted, error.code(), waited, open),
    }
}

pub(crate) fn tell_unavailable(
    session: &Session,
    (lock, mode): (&LockName, Mode),
    code: Code,
    waited: impl FnOnce() -> Duration,
    open: OpenSpans,
) {
    if session.events.are_open() && code != Code::Forked {
        session.events.tell_end(&Event::Unavailable { lock, mode, code, waited: waited() }, open);
    }
}

/// Returns the holder of the lock. One read of the store.
pub(crate) fn holder(session: &Session, name: &LockName) -> Result<Option<Holder>> {
    session.usable()?;
    session.store.holder(name, Deadline::after(session.settings.timeout))
}

/// Until when a caller may come back that has not got the lock. It has no place in any queue then.
const COMES_BACK: Duration = Duration::from_secs(120);

/// Returns the error of an acquisition that found the lock held. It says if this process holds it. Notes that the caller may
/// ask again.
pub(crate) fn unavailable(
    session: &Session,
    name: &LockName,
    holder: Option<Holder>,
    waited: Duration,
) -> Error {
    session.store.note_poller(Moment::now().after(COMES_BACK));
    let is_here = holder
        .as_ref()
        .is_some_and(|holder| !holder.is_waiting && holder.identity.as_ref() == Some(&session.identity));
    Error::LockUnavailable { name: name.to_string(), waited, holder: holder.map(Box::new), is_here }
}
