//! A name that can be locked.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cancel::CancelToken;
use crate::config::checked_ttl;
use crate::error::{Error, Result};
use crate::holder::Holder;
use crate::lease::Lease;
use crate::name::{Level, LockName, Mode};
use crate::session::Session;
use crate::store::Inspection;
use crate::time::{Deadline, Moment};
use crate::wait::queue::{Answer, Ask, Ended, Terms};

/// A lock: a name and a level. Making one does no I/O, and any number of threads may share it; each
/// acquisition is a [`Lease`] of its own, also within one thread (locks are not reentrant).
#[derive(Clone)]
pub struct Lock {
    name: LockName,
    session: Arc<Session>,
}

/// How one acquisition differs from the manager's defaults. See [`Lock::acquire_with`].
#[derive(Debug, Clone, Default)]
#[must_use = "hand it to acquire_with"]
pub struct AcquireOptions {
    ttl: Option<Duration>,
    wait: Option<Duration>,
    cancel: Option<CancelToken>,
}

impl AcquireOptions {
    /// The manager's defaults.
    pub fn new() -> AcquireOptions {
        AcquireOptions::default()
    }

    /// How long the lease lasts unless renewed: 1 ms to 365 days, rounded up to what the store keeps.
    pub fn ttl(mut self, ttl: Duration) -> AcquireOptions {
        self.ttl = Some(ttl);
        self
    }

    /// How long to wait for the lock: zero tries once, [`Duration::MAX`] waits for ever.
    pub fn wait(mut self, wait: Duration) -> AcquireOptions {
        self.wait = Some(wait);
        self
    }

    /// Lets another thread end the wait.
    pub fn cancel(mut self, token: &CancelToken) -> AcquireOptions {
        self.cancel = Some(token.clone());
        self
    }
}

impl Lock {
    /// See [`LockManager::lock`](crate::LockManager::lock).
    pub(crate) fn new(session: &Arc<Session>, id: &str, level: Level) -> Result<Lock> {
        let settings = &session.settings;
        let name = LockName::new(level, &settings.client, settings.farm.as_deref(), id, settings.names)?;
        Ok(Lock { name, session: Arc::clone(session) })
    }

    /// The full name, as stored.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// How the lock is held: by one at a time.
    pub fn mode(&self) -> Mode {
        Mode::Exclusive
    }

    /// One attempt, with the manager's default TTL (90 s unless set). Blocks for the store's answer
    /// only; does not stand in line behind waiting threads.
    ///
    /// # Errors
    /// LOCK_UNAVAILABLE when somebody holds the lock; CONNECTION_ERROR, RETRIES_EXHAUSTED,
    /// TABLE_CREATION_ERROR, INTERNAL_ERROR when the store does not serve; IN_DOUBT when it could not
    /// be learned in time whether the lock was granted (the library then frees it in the background);
    /// CLOSED, FORKED.
    pub fn try_acquire(&self) -> Result<Lease> {
        self.try_acquire_with_ttl(self.session.settings.ttl)
    }

    /// One attempt, with this TTL. See [`try_acquire`](Lock::try_acquire).
    ///
    /// # Errors
    /// As `try_acquire`, and INVALID_ARGUMENT for a TTL that is not allowed.
    pub fn try_acquire_with_ttl(&self, ttl: Duration) -> Result<Lease> {
        match Lease::attempt(&self.session, &self.name, checked_ttl(ttl)?)? {
            Answer::Got(lease) => Ok(lease),
            Answer::Busy(holder) => Err(self.unavailable(holder, Duration::ZERO)),
        }
    }

    /// Waits for the lock with the manager's defaults: TTL 90 s, wait 90 s, unless set.
    ///
    /// Blocks until the lock is held, the wait is over or something fails; a call to the store that is
    /// under way when the wait ends is waited for (its own time-out is 10 s unless set). Threads of
    /// one manager are served in the order in which they came. One that takes a lock in a loop, without a
    /// pause and for 50 retry intervals (10 if threads pass it on), waits for a little over one, so that
    /// other processes find it free.
    ///
    /// # Errors
    /// LOCK_UNAVAILABLE, with the time waited, when the wait was over first; CANCELLED; and all of
    /// [`try_acquire`](Lock::try_acquire), which end the wait at once.
    pub fn acquire(&self) -> Result<Lease> {
        self.acquire_with(&AcquireOptions::new())
    }

    /// Waits for the lock with this TTL and the manager's default wait.
    ///
    /// # Errors
    /// As [`acquire`](Lock::acquire).
    pub fn acquire_with_ttl(&self, ttl: Duration) -> Result<Lease> {
        self.acquire_with(&AcquireOptions::new().ttl(ttl))
    }

    /// Waits for the lock with this TTL and for this long.
    ///
    /// # Errors
    /// As [`acquire`](Lock::acquire).
    pub fn acquire_within(&self, ttl: Duration, wait: Duration) -> Result<Lease> {
        self.acquire_with(&AcquireOptions::new().ttl(ttl).wait(wait))
    }

    /// Waits for the lock under these terms.
    ///
    /// # Errors
    /// As [`acquire`](Lock::acquire).
    pub fn acquire_with(&self, how: &AcquireOptions) -> Result<Lease> {
        let settings = &self.session.settings;
        let ttl = checked_ttl(how.ttl.unwrap_or(settings.ttl))?;
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
            Ok(lease) if !how.cancel.as_ref().is_some_and(CancelToken::is_cancelled) => Ok(lease),
            // Granted while it was being cancelled: dropping the lease releases it.
            Ok(_) | Err(Ended::Cancelled) => Err(Error::Cancelled { waited }),
            Err(Ended::Unavailable(holder)) => Err(self.unavailable(holder, waited)),
            Err(Ended::Failed(error)) => Err(error),
        }
    }

    /// Who holds the lock and which fence was given out last. One or two reads of the store.
    ///
    /// # Errors
    /// What [`try_acquire`](Lock::try_acquire) says of a store that does not serve; never IN_DOUBT.
    pub fn inspect(&self) -> Result<Inspection> {
        self.session.usable()?;
        self.session.store.inspect(&self.name, Deadline::after(self.session.settings.timeout))
    }

    fn ask(&self, ask: Ask, ttl: Duration) -> Result<Answer<Lease>> {
        if ask == Ask::Look
            && let Some(holder) = self.holder()?
        {
            return Ok(Answer::Busy(Some(holder)));
        }
        Lease::attempt(&self.session, &self.name, ttl)
    }

    /// Who holds the lock. One read of the store.
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
