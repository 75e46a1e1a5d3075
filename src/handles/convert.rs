//! How a held lock changes its mode: from the lease of one mode to that of another.
//!
//! A change begins and ends in [`HeldLock`](crate::lease::held_lock). In between the store is asked, once for fewer rights. For
//! more rights the caller waits in the queue of the lock, before all others, until the readers have left.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::events::event::Event;
use crate::handles::acquire::unavailable;
use crate::handles::lease::Lease;
use crate::lease::held_lock::HeldLock;
use crate::lease::leases::{ConvertAnswer, ModeChange};
use crate::names::mode::Mode;
use crate::runtime::cancel::CancelToken;
use crate::runtime::time::{Deadline, Moment};
use crate::session::Session;
use crate::store::IntentId;
use crate::wait::intents::ModeWait;
use crate::wait::local_queues::{Answer, Ended, Terms};

impl Lease {
    /// Goes on with fewer rights: from exclusive to update or shared, or from update to shared. Nobody gets the lock in between.
    /// Returns the lease that holds it now, for the TTL of this one; this one is over. Blocks for one call to the store, and
    /// never waits for other holders.
    ///
    /// Others may read as soon as the call has begun. So let no write that the exclusive lease guards be under way then. The
    /// new lease is kept alive as long as this one was to be. Its channels and descriptors are its own. It does not
    /// [die with the process](crate::AcquireOptions::dies_with_process). Event sinks receive one
    /// [`ModeChanged`](crate::events::Event::ModeChanged) or [`ModeNotChanged`](crate::events::Event::ModeNotChanged).
    ///
    /// ```
    /// # let manager = dlm::LockManager::builder().store_uri("memory:?client=docs").open()?;
    /// use dlm::Mode;
    /// let lock = manager.lock("prices", dlm::Level::Xdc)?;
    /// let writing = lock.acquire()?;
    /// let reading = writing.downgrade(Mode::Shared)?;
    /// assert!(writing.check().is_err() && reading.check().is_ok());
    /// let other = lock.shared().try_acquire()?;
    /// assert!(reading.epoch() == other.epoch() && reading.epoch() > writing.epoch());
    /// # Ok::<(), dlm::Error>(())
    /// ```
    ///
    /// # Errors
    /// * [`Code::LeaseLost`]: the lease is over.
    /// * [`Code::InDoubt`]: the store did not say in time whether it made the change. The lease is over, and the library
    ///   releases what is left of it in the background.
    /// * [`Code::InvalidArgument`]: the lease has this mode already, it is to become exclusive, it is that of a permit, another
    ///   thread changes it, or it is [reentrant](crate::AcquireOptions::reentrant).
    ///   [`Code::UnsupportedConversion`]: more rights than those of a reader.
    /// * [`Code::InternalError`]: the new lease cannot be kept alive, because no thread can be started. The lock is released.
    /// * After any other error the lease is as it was. [`Code::Closed`], [`Code::Forked`].
    pub fn downgrade(&self, to: Mode) -> Result<Lease> {
        if to == Mode::Exclusive && self.mode() == Mode::Update {
            return Err(Error::invalid(
                "mode",
                to.name(),
                "fewer rights than those of the lease; see Lease::upgrade",
            ));
        }
        self.check_convertible()?;
        let change = downgrade(&self.session, &self.lock, to);
        let change = change.inspect_err(|error| self.not_changed(to, error.code(), Duration::ZERO))?;
        leased(&self.session, change)
    }

    /// Goes on exclusively, from mode [`Update`](Mode::Update): waits up to `wait` for the readers to leave, before all others
    /// who wait. No new ones come meanwhile, except that readers that have waited for long take turns. Returns the lease that
    /// holds the lock now, for the TTL of this one, with a new fence; this one is over. Zero tries once, [`Duration::MAX`] waits
    /// for ever.
    ///
    /// The wait is outside the order of [`acquire_all`](crate::LockManager::acquire_all): a reader that waits for another lock of
    /// this process makes both wait until one gives up. The lease may end during the wait unless it is
    /// [kept alive](Lease::keep). The new one is kept alive as long as this one was to be.
    ///
    /// # Errors
    /// * [`Code::LockUnavailable`], with the time waited: readers hold the lock. The lease is as it was.
    /// * [`Code::UnsupportedConversion`]: the lease is shared. Two of those would wait for each other.
    /// * [`Code::InvalidArgument`]: the lease is exclusive already.
    /// * All others of [`downgrade`](Lease::downgrade).
    pub fn upgrade(&self, wait: Duration) -> Result<Lease> {
        self.upgrade_unless(wait, None)
    }

    /// Like [`upgrade`](Lease::upgrade), with a token by which another thread can end the wait.
    ///
    /// # Errors
    /// Those of `upgrade`, and [`Code::Cancelled`]: the lease is as it was.
    pub fn upgrade_with(&self, wait: Duration, cancel: &CancelToken) -> Result<Lease> {
        self.upgrade_unless(wait, Some(cancel))
    }

    fn upgrade_unless(&self, wait: Duration, cancel: Option<&CancelToken>) -> Result<Lease> {
        self.check_convertible()?;
        let began = Moment::now();
        let change = upgrade(&self.session, &self.lock, wait, cancel).inspect_err(|error| {
            let waited = if wait.is_zero() { Duration::ZERO } else { Moment::now().since(began) };
            self.not_changed(Mode::Exclusive, error.code(), waited);
        })?;
        leased(&self.session, change)
    }

    fn check_convertible(&self) -> Result<()> {
        self.session.usable()?;
        match self.lock.shared() {
            None => Ok(()),
            Some(_) => Err(Error::invalid(
                "lease of lock",
                self.name().key(),
                "one whose owner may not enter the lock again: others may share its hold",
            )),
        }
    }

    /// Reports a change that was not made. The end of a lease has an event of its own.
    fn not_changed(&self, to: Mode, code: Code, waited: Duration) {
        let is_none = matches!(code, Code::InvalidArgument | Code::UnsupportedConversion | Code::LeaseLost);
        if !is_none && self.session.events.are_open() {
            let (lock, from) = (self.lock.name(), self.lock.mode());
            self.session.events.report(&Event::ModeNotChanged { lock, from, to, code, waited });
        }
    }
}

/// Asks the store once for fewer rights.
fn downgrade(session: &Session, lock: &Arc<HeldLock>, to: Mode) -> Result<ModeChange> {
    match ask(session, lock, to, None, || Duration::ZERO)? {
        ConvertAnswer::Changed(change) => Ok(*change),
        ConvertAnswer::Held(holder) => {
            let what = format!("the store refused fewer rights for lock {}: held by {holder}", lock.name());
            Err(Error::Internal { what, source: None })
        }
    }
}

fn ask(
    session: &Session,
    lock: &Arc<HeldLock>,
    to: Mode,
    intent: Option<IntentId>,
    waited: impl FnOnce() -> Duration,
) -> Result<ConvertAnswer> {
    session.leases.convert(session.modes(to)?, lock, to, intent, &session.identity, waited)
}

/// Asks the store until the readers have left or the wait is over. Blocks this thread.
fn upgrade(
    session: &Arc<Session>,
    lock: &Arc<HeldLock>,
    wait: Duration,
    cancel: Option<&CancelToken>,
) -> Result<ModeChange> {
    let (began, name) = (Moment::now(), lock.name());
    let by = Deadline::at(began.after(wait));
    let mut waits = ModeWait::since(began);
    let terms = Terms {
        by,
        retry: session.settings.retry,
        mode: Mode::Exclusive,
        is_within: true,
        joins_together: false,
        cancel,
        // Only this lease is concerned.
        speaks_for_all: false,
    };
    let waited = || if wait.is_zero() { Duration::ZERO } else { Moment::now().since(began) };
    let got = session.queue.wait(name, &terms, |_| {
        session.usable()?;
        match ask(session, lock, Mode::Exclusive, waits.intent(), waited)? {
            ConvertAnswer::Changed(change) => {
                waits.granted();
                Ok(Answer::Got(*change))
            }
            ConvertAnswer::Held(holder) => {
                if waits.refused(Mode::Exclusive, &holder) && !by.passed() {
                    waits.announced(session.intents.announce(name));
                }
                Ok(Answer::Busy(Some(holder)))
            }
        }
    });
    drop(waits.end());
    match got {
        Ok(change) => Ok(change),
        Err(Ended::Unavailable(holder)) => {
            Err(unavailable(session, name, holder.map(|holder| *holder), waited()))
        }
        Err(Ended::Cancelled) => Err(Error::Cancelled { waited: waited() }),
        Err(Ended::Failed(error)) => Err(error),
    }
}

/// Makes the lease that goes on.
fn leased(session: &Arc<Session>, change: ModeChange) -> Result<Lease> {
    let ModeChange { lock, kept_until } = change;
    let lease = Lease::of(session, lock)?;
    if let Some(until) = kept_until {
        lease.keep_until(until)?;
    }
    Ok(lease)
}
