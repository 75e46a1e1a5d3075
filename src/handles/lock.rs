//! The handle of a lock.

use std::cmp::Reverse;
use std::fmt;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::handles::acquire::{self, AcquireTerms};
use crate::handles::acquire_options::AcquireOptions;
use crate::handles::break_holder::Inspected;
use crate::handles::lease::Lease;
use crate::handles::pending::{Pending, PendingWork};
use crate::names::history_entry::HistoryEntry;
use crate::names::holder::Holder;
use crate::names::lock_name::{Level, LockName};
use crate::names::mode::Mode;
use crate::names::waiters::Waiters;
use crate::runtime::time::Deadline;
use crate::session::Session;
use crate::store::{HistoryOf, Inspection, LockHold};
use crate::wait::local_queues::Ask;

/// A lock: a name and a level. Making this handle does no I/O, and any number of threads may share it. Each
/// acquisition is a separate [`Lease`]. Locks are not reentrant: a thread that holds a lock cannot acquire it
/// again, unless both acquisitions name one [owner](AcquireOptions::reentrant).
#[derive(Clone)]
pub struct Lock {
    name: LockName,
    mode: Mode,
    session: Arc<Session>,
}

impl Lock {
    /// See [`LockManager::lock`](crate::LockManager::lock).
    pub(crate) fn new(session: &Arc<Session>, id: &str, level: Level) -> Result<Lock> {
        let settings = &session.settings;
        let name = LockName::new(level, &settings.client, settings.farm.as_deref(), id, settings.names)?;
        Ok(Lock { name, mode: Mode::Exclusive, session: Arc::clone(session) })
    }

    /// See [`LockManager::lock_named`](crate::LockManager::lock_named).
    pub(crate) fn named(session: &Arc<Session>, name: &LockName) -> Lock {
        Lock { name: name.clone(), mode: Mode::Exclusive, session: Arc::clone(session) }
    }

    fn terms(&self, how: &AcquireOptions) -> Result<AcquireTerms> {
        AcquireTerms::new(&self.session, &self.name, self.mode, how)
    }

    /// Returns the full name, as stored.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the mode in which this handle acquires the lock.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns a handle of the same lock that acquires it in mode [`Shared`](Mode::Shared), as one of any number of readers.
    /// No I/O.
    ///
    /// Readers have an [`epoch`](Lease::epoch) instead of a fence. Readers that come after a writer which
    /// waits wait as well: for ten retry intervals, and for half of the time for which the writer has waited. For stores that keep
    /// modes; in others acquiring fails with [`Code::InvalidArgument`](crate::Code::InvalidArgument).
    ///
    /// ```
    /// # let manager = dlm::LockManager::builder().store_uri("memory:?client=docs").open()?;
    /// let lock = manager.lock("prices", dlm::Level::Xdc)?;
    /// let (one, other) = (lock.shared().acquire()?, lock.shared().acquire()?);
    /// assert_eq!(one.epoch(), other.epoch());
    /// assert!(lock.try_acquire().is_err());
    /// # Ok::<(), dlm::Error>(())
    /// ```
    pub fn shared(&self) -> Lock {
        Lock { mode: Mode::Shared, ..self.clone() }
    }

    /// Returns a handle of the same lock that acquires it in mode [`Update`](Mode::Update): beside readers, as the only one that
    /// may then [write](Lease::upgrade). No I/O. See [`shared`](Lock::shared).
    ///
    /// ```
    /// # let manager = dlm::LockManager::builder().store_uri("memory:?client=docs").open()?;
    /// # let wait = std::time::Duration::from_secs(1);
    /// let lock = manager.lock("prices", dlm::Level::Xdc)?;
    /// let reading = lock.update().acquire()?;
    /// // It reads, and finds that it has to write.
    /// let writing = reading.upgrade(wait)?;
    /// assert!(writing.fence().is_some());
    /// # Ok::<(), dlm::Error>(())
    /// ```
    pub fn update(&self) -> Lock {
        Lock { mode: Mode::Update, ..self.clone() }
    }

    /// Returns a handle of the same lock that acquires it in this mode, which is one of [`Mode::OF_LOCKS`].
    #[cfg(feature = "capi")]
    pub(crate) fn in_mode(&self, mode: Mode) -> Lock {
        Lock { mode, ..self.clone() }
    }

    /// Tries once to acquire the lock, with the manager's default TTL (90 s). Blocks for one call to the store
    /// (10 s at most by default), and up to 2 s longer to undo an attempt that failed halfway. Does not queue
    /// behind waiting threads.
    ///
    /// If the lock is not free, and this process and the holder have [notices](crate::Builder::notices), the holder is
    /// asked once to give the lock back if it only stays there: see [`Builder::linger`](crate::Builder::linger). A later
    /// call then finds it free.
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
        self.try_acquire_with(&AcquireOptions::new().ttl(ttl))
    }

    /// Tries once to acquire the lock, with these options, of which those of the wait have no effect.
    pub(crate) fn try_acquire_with(&self, how: &AcquireOptions) -> Result<Lease> {
        acquire::once(&self.session, &self.name, &self.terms(how)?)
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
    /// if the [`CancelToken`](crate::CancelToken) was cancelled. Then nothing is held.
    pub fn acquire_with(&self, how: &AcquireOptions) -> Result<Lease> {
        acquire::wait(&self.session, &self.name, &self.terms(how)?)
    }

    /// Starts to acquire the lock with these options, and returns at once. The [`Pending`] waits in the same queue as
    /// threads that block in [`acquire_with`](Lock::acquire_with), and on the same terms. It costs no thread: at most 8
    /// threads of the manager ask the store for all its pendings. At most 2 of them ask at one time for locks in one
    /// region of HBase, so that a region which hangs leaves threads for the others.
    ///
    /// Never blocks, except that its first call starts a thread.
    ///
    /// ```
    /// # let manager = dlm::LockManager::builder().store_uri("memory:?client=docs").open()?;
    /// let lock = manager.lock("report", dlm::Level::Xdc)?;
    /// let pending = lock.start(&dlm::AcquireOptions::new())?;
    /// let lease = loop {
    ///     // A program would poll `pending.fd()?` along with its other descriptors.
    ///     # std::thread::yield_now();
    ///     if let Some(lease) = pending.take()? {
    ///         break lease;
    ///     }
    /// };
    /// assert!(lease.release()?);
    /// # Ok::<(), dlm::Error>(())
    /// ```
    ///
    /// # Errors
    /// * [`Code::InvalidArgument`](crate::Code::InvalidArgument) for options that are not allowed.
    /// * [`Code::InternalError`](crate::Code::InternalError) if no thread can be started.
    /// * [`Code::Closed`](crate::Code::Closed), [`Code::Forked`](crate::Code::Forked).
    ///
    /// [`Pending::take`] returns all other errors. If no thread was free for the first request until the wait was over,
    /// and for the store time-out at least, it returns
    /// [`Code::RetriesExhausted`](crate::Code::RetriesExhausted).
    pub fn start(&self, how: &AcquireOptions) -> Result<Pending> {
        how.check_not_reentrant("a pending acquisition")?;
        Pending::start(&self.session, &self.name, self.terms(how)?, self.pending_work())
    }

    /// See [`Pending::start_here`].
    #[cfg(feature = "capi")]
    pub(crate) fn start_here(&self, how: &AcquireOptions) -> Result<(Pending, bool)> {
        how.check_not_reentrant("a pending acquisition")?;
        Pending::start_here(&self.session, &self.name, self.terms(how)?, self.pending_work())
    }

    fn pending_work(&self) -> PendingWork<Lease> {
        let (session, name) = (Arc::clone(&self.session), self.name.clone());
        let ask = move |how: Ask, terms: &AcquireTerms| {
            // Not together with others: many that wait for a thread are read together before.
            acquire::ask(&session, &name, how, terms, || acquire::holder(&session, &name))
        };
        PendingWork { ask: Box::new(ask), leases: slice::from_ref }
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

    /// Returns all that hold the lock: one exclusive holder, or any number of others. Blocks for one or two reads of the store.
    ///
    /// # Errors
    /// Those of [`inspect`](Lock::inspect).
    pub fn holders(&self) -> Result<Vec<Holder>> {
        self.session.usable()?;
        let by = Deadline::after(self.session.settings.timeout);
        match self.session.store.modes() {
            Some(modes) => {
                let mut holds = modes.holds(&self.name, by)?;
                holds.sort_by_key(|hold| Reverse(hold.holder.remaining));
                Ok(holds.into_iter().map(|hold| hold.holder).collect())
            }
            None => Ok(self.session.store.holder(&self.name, by)?.into_iter().collect()),
        }
    }

    /// Reads who holds the lock, for [`Inspected::break_holder`]. Of several, the one whose lease ends last: see
    /// [`inspected_holds`](Lock::inspected_holds). Blocks for one or two reads of the store.
    ///
    /// # Errors
    /// Those of [`inspect`](Lock::inspect).
    pub fn inspected(&self) -> Result<Inspected> {
        Ok(Inspected::new(&self.session, &self.name, self.inspect()?))
    }

    /// Reads all that hold the lock, for [`Inspected::break_holder`] of one hold or of several. The one whose lease ends last is
    /// the first. Empty if the lock is free. Blocks for a few reads of the store.
    ///
    /// ```
    /// # let manager = dlm::LockManager::builder().store_uri("memory:?client=docs").open()?;
    /// let lock = manager.lock("prices", dlm::Level::Xdc)?;
    /// let (_one, other) = (lock.shared().acquire()?, lock.shared().acquire()?);
    /// let holds = lock.inspected_holds()?;
    /// assert!(holds.len() == 2 && holds[0].break_holder("it hangs")?.is_some());
    /// assert_eq!(lock.holders()?.len(), 1);
    /// # drop(other);
    /// # Ok::<(), dlm::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`inspect`](Lock::inspect).
    pub fn inspected_holds(&self) -> Result<Vec<Inspected>> {
        let found = self.inspect()?;
        let has_several = found.holder.as_ref().is_some_and(|holder| holder.mode != Mode::Exclusive);
        let inspections = match self.session.store.modes().filter(|_| has_several) {
            None => Vec::from_iter(found.holder.is_some().then_some(found)),
            Some(modes) => {
                let mut holds = modes.holds(&self.name, Deadline::after(self.session.settings.timeout))?;
                holds.sort_by_key(|hold| Reverse(hold.holder.remaining));
                let Inspection { fence, layout, .. } = found;
                let of = |LockHold { holder, grant, .. }| Inspection {
                    holder: Some(holder),
                    fence,
                    layout,
                    grant: Some(grant),
                };
                holds.into_iter().map(of).collect()
            }
        };
        Ok(inspections.into_iter().map(|it| Inspected::new(&self.session, &self.name, it)).collect())
    }

    /// Asks the holder of the lock who waits for it. `None` if the lock is free, or if the holder has no
    /// [notices](crate::Builder::notices) or does not answer. This process needs no notices, but an address that the holder
    /// can reach. Only a hint: processes without notices wait unseen, and a datagram can be forged. Blocks for one or two
    /// reads of the store and 200 ms at most for the answer. See [`LockManager::waiting`](crate::LockManager::waiting) for
    /// many locks.
    ///
    /// # Errors
    /// Those of [`inspect`](Lock::inspect).
    pub fn waiting(&self) -> Result<Option<Waiters>> {
        let holder = self.inspect()?.holder;
        Ok(self.session.waiting(holder.as_slice()).pop().flatten())
    }

    /// Returns the newest entries of the lock's history that are not older than `since`, at most `most` (256 at most), the
    /// newest first. `None`: of any age. Entries are there only if the holders have a manager with a
    /// [history](crate::Builder::history), except those about breaks. Times are those of the processes' clocks. Blocks for
    /// one or a few reads of the store.
    ///
    /// # Errors
    /// Those of [`inspect`](Lock::inspect), and [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the store keeps no
    /// history.
    pub fn history(&self, since: Option<SystemTime>, most: usize) -> Result<Vec<HistoryEntry>> {
        self.session.usable()?;
        let history = self.session.store.history().ok_or_else(|| {
            Error::invalid("history", self.session.store.describe(), "a store that keeps histories of locks")
        })?;
        let since = since.and_then(|since| since.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let by = Deadline::after(self.session.settings.timeout);
        history.entries(HistoryOf::Lock(&self.name), since_ms, most, by)
    }

    /// Makes the lease of a token of this lock, in whatever mode. No I/O. See [`LockManager::adopt`](crate::LockManager::adopt).
    #[cfg(feature = "capi")]
    pub(crate) fn adopt(&self, token: crate::LeaseToken) -> Result<Lease> {
        if *token.name() != self.name {
            let allowed = format!("a token of the lock {}", self.name);
            return Err(Error::invalid("lease of the lock", token.name().to_string(), allowed));
        }
        Lease::adopt(&self.session, token)
    }

    /// Returns the manager's wait.
    #[cfg(feature = "capi")]
    pub(crate) fn wait(&self) -> Duration {
        self.session.settings.wait
    }

    pub(crate) fn retry(&self) -> Duration {
        self.session.settings.retry
    }

    pub(crate) fn is_of(&self, session: &Arc<Session>) -> bool {
        Arc::ptr_eq(&self.session, session)
    }

    /// Returns the error of an attempt that found the lock held.
    #[cfg(feature = "capi")]
    pub(crate) fn held_by(&self, holder: Option<Holder>) -> crate::Error {
        acquire::unavailable(&self.session, &self.name, holder, Duration::ZERO)
    }

    /// Returns the holder of the lock. One read of the store.
    #[cfg(feature = "capi")]
    pub(crate) fn holder(&self) -> Result<Option<Holder>> {
        acquire::holder(&self.session, &self.name)
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.name).finish_non_exhaustive()
    }
}
