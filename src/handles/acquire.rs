//! The options of an acquisition, and one request for a lock.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::events::event::{Event, StartedWork};
use crate::events::sinks::OpenSpans;
use crate::handles::lease::{Lease, check_keep, check_min_hold, no_minimum};
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::runtime::cancel::CancelToken;
use crate::runtime::time::{Deadline, Moment};
use crate::session::Session;
use crate::settings::config::checked_ttl;
use crate::wait::queue::{Answer, Ask, Terms};

/// Options of one acquisition, which override the manager's defaults. See [`Lock::acquire_with`](crate::Lock::acquire_with) and
/// [`Lock::start`](crate::Lock::start).
#[derive(Debug, Clone, Default)]
#[must_use = "pass it to acquire_with or start"]
pub struct AcquireOptions {
    pub(crate) ttl: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) cancel: Option<CancelToken>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) dies_with_process: bool,
}

impl AcquireOptions {
    /// Returns the manager's defaults.
    pub fn new() -> AcquireOptions {
        AcquireOptions::default()
    }

    /// Sets how long the lease lasts unless it is renewed: 1 ms to 365 days, rounded up to the resolution of
    /// the store.
    pub fn ttl(mut self, ttl: Duration) -> AcquireOptions {
        self.ttl = Some(ttl);
        self
    }

    /// Sets how long to wait for the lock: zero tries once, [`Duration::MAX`] waits for ever.
    pub fn wait(mut self, wait: Duration) -> AcquireOptions {
        self.wait = Some(wait);
        self
    }

    /// Keeps the lease alive from the beginning, for `max_hold` at most: see [`Lease::keep`]. [`Duration::MAX`] sets no
    /// limit.
    pub fn keep(mut self, max_hold: Duration) -> AcquireOptions {
        self.max_hold = Some(max_hold);
        self
    }

    /// Sets for how long the lock stays held at least, counted from the end of the acquire, even if it is released sooner:
    /// at most the TTL. So a job that takes a second runs only once, although the clocks of the machines that start it
    /// differ by some seconds.
    ///
    /// A release then ends the lease at once, does no I/O and returns `true`. The background threads release the lock
    /// when the time is over. If the manager is closed or the process ends before, the lock is free when its TTL ends. A
    /// token does not carry the minimum.
    pub fn min_hold(mut self, min_hold: Duration) -> AcquireOptions {
        self.min_hold = Some(min_hold);
        self
    }

    /// Lets the lease die with this process: if the process ends in any way, others may have the lock at once, with a
    /// higher fence, and need not wait for the TTL. For the embedded store only.
    ///
    /// The proof is the kernel's, and a process that is only stopped or slow keeps its lease until the TTL ends. The
    /// process keeps a file of the store open and locked. Whoever has a copy of that descriptor counts as the process:
    /// see [`Lease::liveness_fd`]. A child that was forked has one until it ends or executes a program, so the lease may
    /// last until its TTL ends. The program must not close descriptors that it does not know.
    ///
    /// Renewals change nothing about it. A token does: see [`Lease::into_token`].
    ///
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) for another store, for a manager with a lock delay, and
    /// together with a minimum hold, both of which make others wait.
    pub fn dies_with_process(mut self) -> AcquireOptions {
        self.dies_with_process = true;
        self
    }

    /// Sets a token by which another thread can end the wait.
    pub fn cancel(mut self, token: &CancelToken) -> AcquireOptions {
        self.cancel = Some(token.clone());
        self
    }

    /// `ttl` is the checked TTL of the lease.
    pub(crate) fn check(&self, ttl: Duration) -> Result<()> {
        self.min_hold.map_or(Ok(()), |min_hold| check_min_hold(ttl, min_hold))?;
        self.max_hold.map_or(Ok(()), |max_hold| check_keep(ttl, max_hold))
    }
}

/// The terms of one acquisition: its options, checked, and the manager's defaults.
pub(crate) struct AcquireTerms {
    pub(crate) ttl: Duration,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
    dies_with_process: bool,
    pub(crate) began: Moment,
    pub(crate) by: Deadline,
    pub(crate) retry: Duration,
    pub(crate) cancel: Option<CancelToken>,
    speaks_for_all: bool,
}

impl AcquireTerms {
    /// Checks the options.
    pub(crate) fn new(session: &Session, how: &AcquireOptions) -> Result<AcquireTerms> {
        let settings = &session.settings;
        let ttl = checked_ttl(how.ttl.unwrap_or(settings.ttl))?;
        how.check(ttl)?;
        let dies_with_process = how.dies_with_process || settings.dies_with_process;
        if dies_with_process {
            session.liveness()?;
            how.min_hold.map_or(Ok(()), |_| Err(no_minimum()))?;
        }
        let began = Moment::now();
        Ok(AcquireTerms {
            ttl,
            max_hold: how.max_hold,
            min_hold: how.min_hold,
            dies_with_process,
            began,
            by: Deadline::at(began.after(how.wait.unwrap_or(settings.wait))),
            retry: settings.retry,
            cancel: how.cancel.clone(),
            speaks_for_all: ttl >= settings.timeout,
        })
    }

    /// Applies the terms to a granted lease. If that fails, drop the lease, which releases it.
    pub(crate) fn settle(&self, lease: &Lease) -> Result<()> {
        self.max_hold.map_or(Ok(()), |max_hold| lease.keep(max_hold))?;
        self.min_hold.map_or(Ok(()), |min_hold| lease.hold_at_least(min_hold))
    }

    /// Returns how long the acquisition has waited: zero if it was to try once.
    pub(crate) fn waited(&self) -> Duration {
        if self.by.moment() <= self.began { Duration::ZERO } else { Moment::now().since(self.began) }
    }

    pub(crate) fn of_queue(&self) -> Terms<'_> {
        Terms {
            by: self.by,
            retry: self.retry,
            cancel: self.cancel.as_ref(),
            speaks_for_all: self.speaks_for_all,
        }
    }
}

/// Sends one request for the lock to the store. `look` returns the holder of the lock.
pub(crate) fn ask(
    session: &Arc<Session>,
    name: &LockName,
    ask: Ask,
    terms: &AcquireTerms,
    look: impl FnOnce() -> Result<Option<Holder>>,
) -> Result<Answer<Lease>> {
    if ask == Ask::Look
        && !session.stays(name)
        && let Some(holder) = look()?
    {
        return Ok(Answer::Busy(Some(holder)));
    }
    Lease::attempt(session, name, terms.ttl, terms.dies_with_process, terms.by)
}

/// Tells the event sinks that the thread begins to acquire the lock.
pub(crate) fn start(session: &Session, name: &LockName) -> OpenSpans {
    match session.events.are_open() {
        true => session.events.start(&StartedWork::Acquire { lock: name }),
        false => OpenSpans::default(),
    }
}

/// Tells the event sinks how an acquisition has ended. Nothing of the library may be locked.
pub(crate) fn tell(
    session: &Session,
    name: &LockName,
    answer: &Result<Lease>,
    waited: impl FnOnce() -> Duration,
    open: OpenSpans,
) {
    match answer {
        Ok(lease) => lease.tell_acquired(waited, open),
        Err(error) => tell_unavailable(session, name, error.code(), waited, open),
    }
}

pub(crate) fn tell_unavailable(
    session: &Session,
    name: &LockName,
    code: Code,
    waited: impl FnOnce() -> Duration,
    open: OpenSpans,
) {
    if session.events.are_open() && code != Code::Forked {
        session.events.tell_end(&Event::Unavailable { lock: name, code, waited: waited() }, open);
    }
}

/// Returns the holder of the lock. One read of the store.
pub(crate) fn holder(session: &Session, name: &LockName) -> Result<Option<Holder>> {
    session.usable()?;
    session.store.holder(name, Deadline::after(session.settings.timeout))
}

pub(crate) fn unavailable(name: &LockName, holder: Option<Holder>, waited: Duration) -> Error {
    Error::LockUnavailable { name: name.to_string(), waited, holder: holder.map(Box::new) }
}
