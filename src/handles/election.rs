//! Elections: one of several candidates leads at a time.
//!
//! An election is a lock. To lead is to hold its lease, which the background threads keep alive. The leader's work gets
//! a [`Leadership`], whose [`guard`](Leadership::guard) is the only way to ask whether it still leads: the answer is a
//! fence, or the reason why not.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{Code, Error, Result};
use crate::handles::acquire_options::AcquireOptions;
use crate::handles::lease::Lease;
use crate::handles::lock::Lock;
use crate::names::fence::Fence;
use crate::names::holder::{Holder, Identity};
use crate::names::lease_state::LeaseState;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::runtime::cancel::CancelToken;
use crate::runtime::sync::{Condvar, Mutex};
use crate::runtime::time::{Deadline, Moment, jittered, sleep};
use crate::store::Inspection;

/// Longest pause of a candidate after a store has failed, and of an observer between two reads. After it, a manager that
/// was closed is noticed.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// An election, by its name. Making this handle does no I/O, and any number of threads may share it. See
/// [`LockManager::election`](crate::LockManager::election).
#[derive(Clone)]
pub struct Election {
    lock: Lock,
}

/// Who leads, as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The leader's process, the remaining time of its lease, and when that was granted or last renewed.
    pub holder: Holder,
    /// The fence of its term, which is higher than those of all earlier terms. `None` if the store counts none.
    pub fence: Option<Fence>,
}

/// What an [`Observer`] has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    /// This leader, or this leader again in a new term.
    Leads(Leader),
    /// Nobody leads.
    Nobody,
}

/// A term as the leader: a lease that is kept alive until it is resigned, dropped or lost.
///
/// Several threads may use it. Dropping it resigns.
#[must_use = "dropping it resigns"]
pub struct Leadership {
    lease: Lease,
}

/// Reports the leader, and each change. Made by [`Election::observe`].
#[derive(Debug)]
pub struct Observer {
    election: Election,
    /// What the last call returned.
    reported: Option<Option<Term>>,
    /// When to read the store next.
    next_read: Moment,
    cancel: Option<CancelToken>,
}

/// What distinguishes two terms.
pub(crate) type Term = (Option<Fence>, Option<Identity>);

impl Election {
    pub(crate) fn new(lock: Lock) -> Election {
        Election { lock }
    }

    /// Returns the full name of the lock, as stored.
    pub fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// Waits until this process leads. The wait of `options` has no limit unless it is set. Their longest hold limits
    /// the term, and their minimum hold keeps others from leading after a short term.
    ///
    /// Blocks until this process leads, the wait is over or an error ends it. If the store does not answer, the candidate
    /// tries again until the wait is over, once per retry interval.
    ///
    /// # Errors
    /// * [`Code::LockUnavailable`] if the wait is over; with [`Code::ConnectionError`], [`Code::RetriesExhausted`] or
    ///   [`Code::InDoubt`] if the last attempt has failed so.
    /// * [`Code::Cancelled`], [`Code::InvalidArgument`], [`Code::TableCreationError`], [`Code::InternalError`],
    ///   [`Code::Closed`], [`Code::Forked`].
    pub fn campaign(&self, options: &AcquireOptions) -> Result<Leadership> {
        options.check_not_reentrant("an election")?;
        let mode = options.mode.unwrap_or(self.lock.mode());
        if mode != Mode::Exclusive {
            return Err(Error::invalid(
                "mode",
                mode.name(),
                "EXCLUSIVE for an election, which has one leader",
            ));
        }
        let began = Moment::now();
        let by = Deadline::after(options.wait.unwrap_or(Duration::MAX));
        let max_hold = options.max_hold.unwrap_or(Duration::MAX);
        loop {
            let attempt = options.clone().keep(max_hold).wait(by.remaining());
            match self.lock.acquire_with(&attempt) {
                Ok(lease) => return Ok(Leadership { lease }),
                Err(error)
                    if error.is_retryable() && error.code() != Code::LockUnavailable && !by.passed() =>
                {
                    log::warn!("the candidate for {} tries again: {}", self.name(), error.chain());
                    let longest = jittered(self.lock.retry()).min(PAUSE_MAX);
                    pause(by.remaining().min(longest), options.cancel.as_ref());
                }
                Err(error) => return Err(error),
            }
            if options.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
                return Err(Error::Cancelled { waited: Moment::now().since(began) });
            }
        }
    }

    /// Waits until this process leads, does the work, and resigns. The work gets the term: call its
    /// [`guard`](Leadership::guard) before each step, and return when that fails.
    ///
    /// ```
    /// # use dlm::{AcquireOptions, Fence, Level, LockManager, Result};
    /// # let manager = LockManager::builder().store_uri("memory:?client=docs").open()?;
    /// # fn write(_: u32, _: Fence) {}
    /// let election = manager.election("scheduler", Level::Xdc)?;
    /// let led: Result<()> = election.lead(&AcquireOptions::new(), |term| {
    ///     for step in 0..3 {
    ///         write(step, term.guard()?);
    ///     }
    ///     Ok(())
    /// })?;
    /// led?;
    /// # Ok::<(), dlm::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`campaign`](Election::campaign). A failure to resign is not reported: the background threads try again.
    pub fn lead<T>(&self, options: &AcquireOptions, work: impl FnOnce(&Leadership) -> T) -> Result<T> {
        let term = self.campaign(options)?;
        Ok(work(&term))
    }

    /// Returns who leads now; `None` if nobody does. Blocks for one or two reads of the store.
    ///
    /// # Errors
    /// Those of [`Lock::inspect`].
    pub fn leader(&self) -> Result<Option<Leader>> {
        let found = self.lock.inspect()?;
        Ok(found.holder.map(|holder| Leader { holder, fence: found.fence }))
    }

    /// Returns an observer, which reports the leader and each change. No I/O and no thread.
    pub fn observe(&self) -> Observer {
        Observer { election: self.clone(), reported: None, next_read: Moment::OVER, cancel: None }
    }

    /// Returns an observer that has reported this term already.
    #[cfg(feature = "capi")]
    pub(crate) fn observe_after(&self, reported: Option<Term>) -> Observer {
        Observer { reported: Some(reported), ..self.observe() }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election").field("name", self.name()).finish_non_exhaustive()
    }
}

impl Observer {
    /// Sets a token by which another thread can end the waits.
    pub fn cancel(mut self, token: &CancelToken) -> Observer {
        self.cancel = Some(token.clone());
        self
    }

    /// Waits for a change, for up to `wait`. Returns `None` if nothing has changed. The first call returns at once who
    /// leads.
    ///
    /// Reads the store once per retry interval, and when the lease of the leader would end. Changes between two reads are
    /// reported as one. Blocks until the wait is over, and for a read under way.
    ///
    /// # Errors
    /// Those of [`Election::leader`]; the next call reads again. [`Code::Cancelled`].
    pub fn wait_for_change(&mut self, wait: Duration) -> Result<Option<Observed>> {
        let found = self.wait_for(wait)?;
        Ok(found.map(|Inspection { holder, fence, .. }| match holder {
            Some(holder) => Observed::Leads(Leader { holder, fence }),
            None => Observed::Nobody,
        }))
    }

    /// Returns what has changed, as the store reports it.
    pub(crate) fn wait_for(&mut self, wait: Duration) -> Result<Option<Inspection>> {
        let (began, by) = (Moment::now(), Deadline::after(wait));
        loop {
            if self.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
                return Err(Error::Cancelled { waited: Moment::now().since(began) });
            }
            let now = Moment::now();
            if now < self.next_read {
                if now >= by.moment() {
                    return Ok(None);
                }
                let until = self.next_read.min(by.moment());
                pause(until.since(now).min(PAUSE_MAX), self.cancel.as_ref());
                continue;
            }
            let interval = jittered(self.election.lock.retry()).min(PAUSE_MAX);
            self.next_read = now.after(interval);
            let found = self.election.lock.inspect()?;
            let holder = found.holder.as_ref();
            if let Some(left) = holder.and_then(|holder| holder.remaining) {
                // Not in a tight loop, if the clocks disagree.
                self.next_read = self.next_read.min(Moment::now().after(left.max(interval / 20)));
            }
            let term = holder.map(|holder| (found.fence, holder.identity.clone()));
            if self.reported.as_ref() != Some(&term) {
                self.reported = Some(term);
                return Ok(Some(found));
            }
        }
    }
}

impl Leadership {
    /// Returns the fence of this term, if it has not ended. Call it before each step, and send the fence along with each
    /// write. No I/O, no locks.
    ///
    /// # Errors
    /// Those of [`Lease::guard`]: [`Code::LeaseLost`] with the reason if this process does not lead any more.
    pub fn guard(&self) -> Result<Fence> {
        self.lease.guard()
    }

    /// Returns the state of the lease. [`LeaseState::AtRisk`] warns early that the term may end. No I/O.
    pub fn state(&self) -> LeaseState {
        self.lease.state()
    }

    /// Returns a channel that gets a message when the state changes. See [`Lease::changes`].
    ///
    /// # Errors
    /// Those of [`Lease::changes`].
    pub fn changes(&self) -> Result<Receiver<()>> {
        self.lease.changes()
    }

    /// Returns a descriptor that becomes readable when the term ends. See [`Lease::lost_fd`].
    ///
    /// # Errors
    /// Those of [`Lease::lost_fd`].
    pub fn lost_fd(&self) -> Result<BorrowedFd<'_>> {
        self.lease.lost_fd()
    }

    /// Resigns: releases the lock. A candidate may lead from now on. Blocks for one call to the store.
    ///
    /// # Errors
    /// Those of [`Lease::release`].
    pub fn resign(self) -> Result<bool> {
        self.lease.release()
    }

    /// Returns the lease of this term, which is still kept alive.
    pub fn into_lease(self) -> Lease {
        self.lease
    }

    /// Returns the lease of this term.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership").field("lease", &self.lease).finish()
    }
}

/// Pauses until the time is over or the token is cancelled.
fn pause(pause: Duration, cancel: Option<&CancelToken>) {
    let Some(cancel) = cancel else { return sleep(pause) };
    let by = Deadline::after(pause);
    let woken = Arc::new((Mutex::new(()), Condvar::new()));
    let _registration = cancel.on_cancel({
        let woken = Arc::clone(&woken);
        Arc::new(move || {
            let _state = woken.0.lock();
            woken.1.notify_one();
        })
    });
    let mut state = woken.0.lock();
    while !cancel.is_cancelled() && !by.passed() {
        woken.1.wait_for(&mut state, by.remaining());
    }
}
