//! One grant of a lock: held, renewed, released, lost.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::config::checked_ttl;
use crate::error::{Code, Error, Result};
use crate::fence::Fence;
use crate::held_lock::HeldLock;
use crate::lease_token::LeaseToken;
use crate::name::LockName;
use crate::session::Session;
use crate::time::{Deadline, Moment};
use crate::wait::queue::Answer;

/// A dropped lease is released in the dropping thread, within this time at the most.
const DROP_TIMEOUT: Duration = Duration::from_secs(2);

/// A held lock. Dropping it releases the lock.
///
/// The lease ends by itself after its TTL, counted from before it was asked for; after that somebody
/// else may hold the lock, so [`check`](Lease::check) before each step that needs it, and send
/// [`fence`](Lease::fence) along with each write.
///
/// | state | `check` | store holds our record | left by |
/// |---|---|---|---|
/// | held | `Ok` | yes | release, renewal, the clock |
/// | over: the clock passed its end | LEASE_LOST | maybe for a moment more | release |
/// | released, or found lost | LEASE_LOST | no | nothing |
///
/// A lease may be used from several threads and released by another one than acquired it. Its renewal
/// and release exclude each other. Drop is best effort: it takes two seconds at the most and hands a
/// failed release to a background thread; call [`release`](Lease::release) to get its errors.
#[must_use = "dropping the lease releases the lock"]
pub struct Lease {
    lock: Arc<HeldLock>,
    session: Arc<Session>,
}

impl Lease {
    /// One attempt at the lock.
    pub(crate) fn attempt(session: &Arc<Session>, name: &LockName, ttl: Duration) -> Result<Answer<Lease>> {
        let lock = match session.attempt(name, ttl)? {
            Answer::Got(lock) => lock,
            Answer::Busy(holder) => return Ok(Answer::Busy(holder)),
        };
        let lease = Lease::of(session, lock)?;
        if lease.check().is_ok() {
            return Ok(Answer::Got(lease));
        }
        session.usable()?;
        Err(Error::RetriesExhausted {
            store: session.store.describe(),
            what: format!("the grant took longer than the lease of {ttl:?}; ask for a longer TTL"),
            source: None,
        })
    }

    /// See [`LockManager::adopt`](crate::LockManager::adopt).
    pub(crate) fn adopt(session: &Arc<Session>, token: LeaseToken) -> Result<Lease> {
        session.usable()?;
        Lease::of(session, HeldLock::adopted(token))
    }

    fn of(session: &Arc<Session>, lock: HeldLock) -> Result<Lease> {
        let lock = Arc::new(lock);
        session.hold(&lock);
        let lease = Lease { lock, session: Arc::clone(session) };
        // Closed while the store was asked: dropping the lease releases it.
        session.usable().map(|()| lease)
    }

    /// The lock's name, as stored.
    pub fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// The number to send along with every write that the lock guards: it grows with every grant.
    /// `None` where fencing is switched off in the store's options, and in a forked child, whose writes the
    /// lock does not guard.
    pub fn fence(&self) -> Option<Fence> {
        if self.session.not_forked().is_ok() { self.lock.fence() } else { None }
    }

    /// The fence for a write that a receiver compares. No question whether the lease lasts: the receiver decides.
    ///
    /// # Errors
    /// FORKED; INVALID_ARGUMENT where fencing is switched off.
    #[cfg(any(feature = "aerospike", feature = "hbase"))]
    pub(crate) fn fence_for_writes(&self) -> Result<Fence> {
        self.session.not_forked()?;
        let allowed = "a lease with a fence: fencing is switched off in the options of its store (fence=off)";
        self.lock.fence().ok_or_else(|| Error::invalid("lease of lock", self.name().key(), allowed))
    }

    /// When the lease is over, on the lease clock; the beginning of time once it is released or lost, and
    /// in a forked child.
    pub fn ends(&self) -> Moment {
        if self.session.not_forked().is_ok() { self.lock.ends() } else { Moment::OVER }
    }

    /// How long the lease has left. Zero when it is over, released or lost. No I/O, no locks.
    pub fn remaining(&self) -> Duration {
        self.ends().since(Moment::now())
    }

    /// For how long the lease was granted or last renewed. No I/O, no locks.
    pub fn ttl(&self) -> Duration {
        self.lock.ttl()
    }

    /// Whether the lease lasts still, by this machine's clock. No I/O, no locks, some tens of
    /// nanoseconds: cheap enough to ask before every step.
    ///
    /// It cannot know that a store lost the record, or that this thread will be paused right after:
    /// that is what the fence is for. A virtual machine that is paused or migrated may not see the pause in any
    /// of its clocks; this cannot see it then either.
    ///
    /// # Errors
    /// LEASE_LOST when the time is over, or when it was released or found lost. FORKED in a child of the
    /// process that acquired it, made by `fork` or by a bare `clone`; a child that shares its parent's
    /// memory (`vfork`) is not told from its parent.
    pub fn check(&self) -> Result<()> {
        self.session.not_forked()?;
        self.lock.check()
    }

    /// A descriptor for event loops: readable as soon as [`check`](Lease::check) answers LEASE_LOST, because
    /// the time is over or the lease was released or found lost. A renewal puts it off.
    ///
    /// It is made by the first call, belongs to the lease, is the same in each call, and is closed on
    /// exec. Poll it, do not read it: the kernel's timer behind it goes on meaning the same. The first
    /// call waits for a renewal or release under way. Linux only.
    ///
    /// # Errors
    /// FORKED; INTERNAL_ERROR when the process has no descriptor left.
    pub fn lost_fd(&self) -> Result<BorrowedFd<'_>> {
        self.session.not_forked()?;
        self.lock.lost_fd().map_err(|error| Error::Internal {
            what: format!("no descriptor for lock {}", self.name()),
            source: Some(error.into()),
        })
    }

    /// Lets the lease end its TTL from now. Blocks for one call to the store, for no longer than the
    /// lease has left.
    ///
    /// # Errors
    /// LEASE_LOST when it had run out or another holds the lock: the lease is over. Any other error,
    /// IN_DOUBT included, leaves the lease as it was, ending when it would have. CLOSED, FORKED.
    pub fn renew(&self) -> Result<()> {
        self.session.not_forked()?;
        self.renew_for(self.ttl())
    }

    /// Lets the lease end `ttl` from now, which may be sooner than before. That is the end which
    /// [`check`](Lease::check) knows. The store never shortens a record: after a shorter renewal the lock
    /// stays taken for the longer time that was asked for before. A release frees it at once.
    ///
    /// # Errors
    /// As [`renew`](Lease::renew), and INVALID_ARGUMENT for a TTL that is not allowed.
    pub fn renew_for(&self, ttl: Duration) -> Result<()> {
        self.session.usable()?;
        let session = &self.session;
        let renewed = self.lock.renew(&*session.store, &session.settings, checked_ttl(ttl)?);
        self.forget_if_over();
        renewed
    }

    /// Gives the lock up. Blocks for one call to the store.
    ///
    /// `true`: it was ours and is free now. `false`: it had been released before, and the store was
    /// not asked. Another holder's record is never touched.
    ///
    /// # Errors
    /// LEASE_LOST when it had run out or another holds the lock by now. Any other error, IN_DOUBT
    /// included, leaves open whether the lock is free: call again, or drop the lease, which lets the
    /// background threads go on trying until the TTL ends it. FORKED.
    pub fn release(&self) -> Result<bool> {
        // First: in a forked child the lock below may be held by a thread that is not there.
        self.session.not_forked()?;
        if !self.lock.is_open() {
            return Ok(false);
        }
        let released = self.session.release(&self.lock, Deadline::after(self.session.settings.timeout));
        self.forget_if_over();
        released
    }

    /// Turns the lease into a text that renews and releases it from any process, and lets go of it
    /// here without releasing.
    ///
    /// # Errors
    /// LEASE_LOST when it was released or found lost; CLOSED, FORKED.
    pub fn into_token(self) -> Result<LeaseToken> {
        self.session.usable()?;
        let token = self.lock.hand_on()?;
        self.session.forget(&self.lock);
        Ok(token)
    }

    fn forget_if_over(&self) {
        if !self.lock.is_open() {
            self.session.forget(&self.lock);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A forked child has a copy of the parent's lease, which is not the child's to release; and the
        // lock below may be held by a thread that is not there.
        if self.session.not_forked().is_err() || !self.lock.is_open() {
            return;
        }
        self.session.forget(&self.lock);
        let by = Deadline::after(DROP_TIMEOUT.min(self.session.settings.timeout));
        let failed_before = self.lock.release_failed();
        let released = if failed_before { None } else { Some(self.session.release(&self.lock, by)) };
        match released {
            Some(Ok(_)) => {}
            Some(Err(error)) if error.code() == Code::LeaseLost => log::warn!("{}", error.chain()),
            Some(Err(_)) | None => {
                log::warn!("lock {} is released in the background", self.name());
                if let Some(leftover) = self.lock.leftover() {
                    self.session.free_in_background(self.name().clone(), leftover);
                }
            }
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("fence", &self.fence())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
