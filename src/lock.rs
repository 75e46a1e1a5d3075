//! The handle of a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cancel::CancelToken;
use crate::config::checked_ttl;
use crate::error::{Error, Result};
use crate::holder::Holder;
use crate::lease::{Lease, check_keep, check_min_hold};
use crate::name::{Level, LockName, Mode};
use crate::session::Session;
use crate::store::Inspection;
use crate::time::{Deadline, Moment};
use crate::wait::queue::{Answer, Ask, Ended, Terms};

/// A lock: a name and a level. Making this handle does no I/O, and any number of threads may share it. Each
/// acquisition is a separate [`Lease`]. Locks are not reentrant: a thread that holds a lock cannot acquire it
/// again.
#[derive(Clone)]
pub struct Lock {
    name: LockName,
    session: Arc<Session>,
}

/// Options of one acquisition, which override the manager's defaults. See [`Lock::acquire_with`].
#[derive(Debug, Clone, Default)]
#[must_use = "pass it to acquire_with"]
pub struct AcquireOptions {
    pub(crate) ttl: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) cancel: Option<CancelToken>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
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

impl Lock {
    /// See [`LockManager::lock`](crate::LockManager::lock).
    pub(crate) fn new(session: &Arc<Session>, id: &str, level: Level) -> Result<Lock> {
        let settings = &session.settings;
        let name = LockName::new(level, &settings.client, settings.farm.as_deref(), id, settings.names)?;
        Ok(Lock { name, session: Arc::clone(session) })
    }

    /// Returns the full name, as stored.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns how the lock is held: by one holder at a time.
    pub fn mode(&self) -> Mode {
        Mode::Exclusive
    }

    /// Tries once to acquire the lock, with the manager's default TTL (90 s). Blocks for one call to the store
    /// (10 s at most by default), and up to 2 s longer to undo an attempt that failed halfway. Does not queue
    /// behind waiting threads.
    ///
    /// # Errors
    /// * [`Code::LockUnavailable`](crate::Code::LockUnavailable): another holder has the lock.
    /// * [`Code::ConnectionError`](crate::Code::ConnectionError),
    ///   [`Code::RetriesExhausted`](crate::Code::RetriesExhausted),
    ///   [`Code::TableCreationError`](crate::Code::TableCreationError),
    ///   [`Code::InternalError`](crate::Code::InternalError): the store does not serve. Nothing is held.
    /// * [`Code::InDoubt`](crate::Code::InDoubt): the store did not report in time whether it granted the lock.
    ///   The library frees the lock in the background.
    /// * [`Code::Closed`](crate::Code::Closed), [`Code::Forked`](crate::Code::Forked).
    pub fn try_acquire(&self) -> Result<Lease> {
        self.try_acquire_with_ttl(self.session.settings.ttl)
    }

    /// Tries once to acquire the lock, with this TTL (1 ms to 365 days). See [`try_acquire`](Lock::try_acquire).
    ///
    /// # Errors
    /// Those of `try_acquire`, and [`Code::InvalidArgument`](crate::Code::InvalidArgument) for a TTL that is not
    /// allowed.
    pub fn try_acquire_with_ttl(&self, ttl: Duration) -> Result<Lease> {
        match Lease::attempt(&self.session, &self.name, checked_ttl(ttl)?)? {
            Answer::Got(lease) => Ok(lease),
            Answer::Busy(holder) => Err(self.unavailable(holder, Duration::ZERO)),
        }
    }

    /// Acquires the lock, waiting for it if necessary, with the manager's defaults (TTL 90 s, wait 90 s).
    ///
    /// Blocks until the lock is held, the wait times out or something fails. It also waits for a call to the
    /// store that is under way when the wait times out; the time-out of a call is 10 s by default.
    ///
    /// Threads of one manager acquire the lock in the order of arrival. They yield to other processes: after 50
    /// retry intervals in which one thread acquires the lock in a loop without pauses (10 if several threads
    /// hand it on), this process leaves the lock free for a little over one interval.
    ///
    /// # Errors
    /// * [`Code::LockUnavailable`](crate::Code::LockUnavailable), with the time waited: the wait timed out.
    /// * All others of [`try_acquire`](Lock::try_acquire). They end the wait at once.
    pub fn acquire(&self) -> Result<Lease> {
        self.acquire_with(&AcquireOptions::new())
    }

    /// Acquires the lock with this TTL, waiting for up to the manager's default wait.
    ///
    /// # Errors
    /// Those of [`acquire`](Lock::acquire), and [`Code::InvalidArgument`](crate::Code::InvalidArgument) for a TTL
    /// that is not allowed.
    pub fn acquire_with_ttl(&self, ttl: Duration) -> Result<Lease> {
        self.acquire_with(&AcquireOptions::new().ttl(ttl))
    }

    /// Acquires the lock with this TTL, waiting for up to `wait`: zero tries once, [`Duration::MAX`] waits for
    /// ever.
    ///
    /// # Errors
    /// Those of [`acquire_with_ttl`](Lock::acquire_with_ttl).
    pub fn acquire_within(&self, ttl: Duration, wait: Duration) -> Result<Lease> {
        self.acquire_with(&AcquireOptions::new().ttl(ttl).wait(wait))
    }

    /// Acquires the lock with these options, waiting for it if necessary.
    ///
    /// # Errors
    /// Those of [`acquire_with_ttl`](Lock::acquire_with_ttl), and [`Code::Cancelled`](crate::Code::Cancelled)
    /// if the [`CancelToken`] was cancelled. Then nothing is held.
    pub fn acquire_with(&self, how: &AcquireOptions) -> Result<Lease> {
        let settings = &self.session.settings;
        let ttl = checked_ttl(how.ttl.unwrap_or(settings.ttl))?;
        how.check(ttl)?;
        self.session.usable()?;
        let began = Moment::now();
        let terms = Terms {
            by: Deadline::at(began.after(how.wait.unwrap_or(settings.wait))),
            retry: settings.retry,
            cancel: how.cancel.as_ref(),
            speaks_for_all: ttl >= settings.timeout,
        };
        let got = self.session.queue.wait(&self.name, &terms, |ask| self.ask(ask, ttl));
        let waited = Moment::now().since(began);
        match got {
            Ok(lease) if !how.cancel.as_ref().is_some_and(CancelToken::is_cancelled) => {
                // If it cannot be kept alive, dropping the lease releases it.
                how.max_hold.map_or(Ok(()), |max_hold| lease.keep(max_hold))?;
                how.min_hold.map_or(Ok(()), |min_hold| lease.hold_at_least(min_hold))?;
                Ok(lease)
            }
            // The lock was granted during the cancellation. Dropping the lease releases it.
            Ok(_) | Err(Ended::Cancelled) => Err(Error::Cancelled { waited }),
            Err(Ended::Unavailable(holder)) => Err(self.unavailable(holder, waited)),
            Err(Ended::Failed(error)) => Err(error),
        }
    }

    /// Returns the holder of the lock and the last fence granted. Blocks for one or two reads of the store.
    ///
    /// # Errors
    /// Those of [`try_acquire`](Lock::try_acquire) for a store that does not serve, never
    /// [`Code::InDoubt`](crate::Code::InDoubt). [`Code::Closed`](crate::Code::Closed),
    /// [`Code::Forked`](crate::Code::Forked).
    pub fn inspect(&self) -> Result<Inspection> {
        self.session.usable()?;
        self.session.store.inspect(&self.name, Deadline::after(self.session.settings.timeout))
    }

    /// Makes the lease of a token of this lock. No I/O. See [`LockManager::adopt`](crate::LockManager::adopt).
    #[cfg(feature = "capi")]
    pub(crate) fn adopt(&self, token: crate::LeaseToken) -> Result<Lease> {
        if *token.name() != self.name {
            let allowed = format!("a token of the lock {}", self.name);
            return Err(Error::invalid("lease of the lock", token.name().to_string(), allowed));
        }
        Lease::adopt(&self.session, token)
    }

    pub(crate) fn retry(&self) -> Duration {
        self.session.settings.retry
    }

    pub(crate) fn is_of(&self, session: &Arc<Session>) -> bool {
        Arc::ptr_eq(&self.session, session)
    }

    fn ask(&self, ask: Ask, ttl: Duration) -> Result<Answer<Lease>> {
        if ask == Ask::Look
            && let Some(holder) = self.holder()?
        {
            return Ok(Answer::Busy(Some(holder)));
        }
        Lease::attempt(&self.session, &self.name, ttl)
    }

    /// Returns the holder of the lock. One read of the store.
    pub(crate) fn holder(&self) -> Result<Option<Holder>> {
        self.session.usable()?;
        self.session.store.holder(&self.name, Deadline::after(self.session.settings.timeout))
    }

    pub(crate) fn unavailable(&self, holder: Option<Holder>, waited: Duration) -> Error {
        Error::LockUnavailable { name: self.name.to_string(), waited, holder: holder.map(Box::new) }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.name).finish_non_exhaustive()
    }
}
