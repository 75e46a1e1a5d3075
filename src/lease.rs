//! One grant of a lock: held, renewed, released, lost.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::alarm::Alarm;
use crate::error::{Error, Result};
use crate::freeing::Doubt;
use crate::lease_token::{LeaseToken, TokenEnd};
use crate::manager::Inner;
use crate::store::{Fence, Grant, LockName, Proof, Released};
use crate::time::{Deadline, Moment};

/// A dropped lease is released in the dropping thread, within this time at the most.
const DROP_TIMEOUT: Duration = Duration::from_secs(2);

/// Stands for the end of a lease from another machine: long over, and told apart from one that was released.
const UNKNOWN: Moment = Moment::from_nanos(1);

/// A renewal of a lease that is almost over is given this time all the same.
const RENEW_AT_LEAST: Duration = Duration::from_millis(100);

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
    core: Arc<Core>,
    manager: Arc<Inner>,
}

/// The part that the manager's `close` reaches as well.
pub(crate) struct Core {
    name: LockName,
    fence: Option<Fence>,
    /// End of the lease in nanoseconds of the lease clock; zero once it is released or found lost.
    ends: AtomicU64,
    /// For how long it was granted or last renewed, in nanoseconds. Changed under `held`.
    ttl: AtomicU64,
    /// See [`Grant::may_reappear`].
    may_reappear: bool,
    held: Mutex<Held>,
    /// Made by the first [`Lease::lost_fd`], under `held`; goes off at `ends`.
    alarm: OnceLock<Alarm>,
}

struct Held {
    /// What renews and releases the lock; `None` once that is no longer ours to do.
    proof: Option<Proof>,
    /// The longest it was ever asked for: the store may keep the record for as long.
    longest_ttl: Duration,
    /// When the lease is over if it is not released before.
    ends: Moment,
    /// What its token said of that, while it is not renewed here.
    told: Option<TokenEnd>,
    /// A release was tried and failed: whether the lock is free is not known.
    release_failed: bool,
}

impl Core {
    pub(crate) fn new(name: LockName, grant: Grant, ttl: Duration, ends: Moment) -> Core {
        Core {
            name,
            fence: grant.fence,
            ends: AtomicU64::new(ends.as_nanos()),
            ttl: AtomicU64::new(nanos(ttl)),
            may_reappear: grant.may_reappear,
            held: Mutex::new(Held {
                proof: Some(grant.proof),
                longest_ttl: ttl,
                ends,
                told: None,
                release_failed: false,
            }),
            alarm: OnceLock::new(),
        }
    }

    /// A lease that another process handed on.
    pub(crate) fn adopted(name: LockName, grant: Grant, ttl: Duration, told: TokenEnd) -> Core {
        // No lease lasts longer than its TTL, whatever its token says.
        let ends = told.here().map(|ends| ends.min(Moment::now().after(ttl)));
        let mut core = Core::new(name, grant, ttl, ends.unwrap_or(UNKNOWN));
        core.held.get_mut().told = Some(told);
        core
    }

    pub(crate) fn ends(&self) -> Moment {
        Moment::from_nanos(self.ends.load(Ordering::Acquire))
    }

    /// For holders of the lock `held` only, so that the alarm agrees with `ends`.
    fn set_ends(&self, ends: Moment) {
        self.ends.store(ends.as_nanos(), Ordering::Release);
        if let Some(alarm) = self.alarm.get()
            && let Err(error) = alarm.set(ends)
        {
            log::error!("the descriptor of lock {} was not set: {error}", self.name);
        }
    }

    /// Gives the lock back to the store. `Ok(false)`: there was nothing to give back.
    pub(crate) fn release(&self, manager: &Inner, by: Deadline) -> Result<bool> {
        let mut held = self.held.lock();
        let Some(proof) = held.proof.clone() else { return Ok(false) };
        // Before the store is asked: from the moment the request arrives another may hold the lock.
        self.set_ends(Moment::OVER);
        match manager.store.release(&self.name, &proof, by) {
            Ok(answer) => {
                held.proof = None;
                manager.queue.released(&self.name, manager.settings.retry);
                if self.may_reappear {
                    let ttl = held.longest_ttl;
                    manager.free_in_background(self.name.clone(), proof, ttl, Doubt::MayBeTaken);
                }
                // A record that is gone before its time, after a request of ours that may have freed it,
                // was freed by that request.
                let asked = answer == Released::Gone || held.release_failed;
                let ours = answer == Released::Freed || (asked && Moment::now() < held.ends);
                if ours {
                    Ok(true)
                } else {
                    Err(self.lost("another holds it, or nobody does since it ran out"))
                }
            }
            Err(error) => {
                held.release_failed = true;
                Err(error.while_(format!("releasing lock {}", self.name)))
            }
        }
    }

    fn lost(&self, why: &'static str) -> Error {
        Error::LeaseLost { name: self.name.to_string(), why }
    }
}

impl Lease {
    pub(crate) fn new(core: Arc<Core>, manager: Arc<Inner>) -> Lease {
        Lease { core, manager }
    }

    /// The lock's name, as stored.
    pub fn name(&self) -> &LockName {
        &self.core.name
    }

    /// The number to send along with every write that the lock guards: it grows with every grant.
    /// `None` where fencing is switched off in the store's options, and in a forked child, whose writes the
    /// lock does not guard.
    pub fn fence(&self) -> Option<Fence> {
        if self.manager.not_forked().is_ok() { self.core.fence } else { None }
    }

    /// A row whose every change carries this lease's fence: once a later holder of the lock has changed the row, or
    /// raised its fence, the servers refuse ours with STALE_FENCE. The table may be in another cluster than the
    /// lock. Its option `family` says where fences are kept. [`check`](Lease::check) is not asked: a change is the
    /// servers' to refuse. No I/O.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a key that is not allowed, a table without `family`, and a lease without a fence;
    /// FORKED.
    #[cfg(feature = "hbase")]
    pub fn row(&self, table: &crate::hbase::Table, key: impl AsRef<[u8]>) -> Result<crate::hbase::Row> {
        crate::hbase::Row::fenced(table, key.as_ref(), self.fence_for_writes()?, self.name().key())
    }

    /// The fence for a write that a receiver compares. No question whether the lease lasts: the receiver decides.
    ///
    /// # Errors
    /// FORKED; INVALID_ARGUMENT where fencing is switched off.
    #[cfg(any(feature = "aerospike", feature = "hbase"))]
    pub(crate) fn fence_for_writes(&self) -> Result<Fence> {
        self.manager.not_forked()?;
        let allowed = "a lease with a fence: fencing is switched off in the options of its store (fence=off)";
        self.core.fence.ok_or_else(|| Error::invalid("lease of lock", self.core.name.key(), allowed))
    }

    /// When the lease is over, on the lease clock; the beginning of time once it is released or lost, and
    /// in a forked child.
    pub fn ends(&self) -> Moment {
        if self.manager.not_forked().is_ok() { self.core.ends() } else { Moment::OVER }
    }

    /// How long the lease has left. Zero when it is over, released or lost. No I/O, no locks.
    pub fn remaining(&self) -> Duration {
        self.ends().since(Moment::now())
    }

    /// For how long the lease was granted or last renewed. No I/O, no locks.
    pub fn ttl(&self) -> Duration {
        Duration::from_nanos(self.core.ttl.load(Ordering::Acquire))
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
        self.manager.not_forked()?;
        match self.core.ends() {
            ends if Moment::now() < ends => Ok(()),
            Moment::OVER => Err(self.core.lost("it was released, or found lost before")),
            UNKNOWN => {
                Err(self.core.lost("its end is not known here (another machine, an earlier start of this one, or an older version); renew it"))
            }
            _ => Err(self.core.lost("its time is over")),
        }
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
        self.manager.not_forked()?;
        if let Some(alarm) = self.core.alarm.get() {
            return Ok(alarm.as_fd());
        }
        let _held = self.core.held.lock();
        let alarm = Alarm::at(self.ends()).map_err(|error| Error::Internal {
            what: format!("no descriptor for lock {}", self.name()),
            source: Some(error.into()),
        })?;
        Ok(self.core.alarm.get_or_init(|| alarm).as_fd())
    }

    /// Lets the lease end its TTL from now. Blocks for one call to the store, for no longer than the
    /// lease has left.
    ///
    /// # Errors
    /// LEASE_LOST when it had run out or another holds the lock: the lease is over. Any other error,
    /// IN_DOUBT included, leaves the lease as it was, ending when it would have. CLOSED, FORKED.
    pub fn renew(&self) -> Result<()> {
        self.manager.not_forked()?;
        self.renew_for(self.ttl())
    }

    /// Lets the lease end `ttl` from now, which may be sooner than before. That is the end which
    /// [`check`](Lease::check) knows. The store never shortens a record: after a shorter renewal the lock
    /// stays taken for the longer time that was asked for before. A release frees it at once.
    ///
    /// # Errors
    /// As [`renew`](Lease::renew), and INVALID_ARGUMENT for a TTL that is not allowed.
    pub fn renew_for(&self, ttl: Duration) -> Result<()> {
        self.manager.usable()?;
        let ttl = crate::config::checked_ttl(ttl)?;
        let mut held = self.core.held.lock();
        let Some(proof) = held.proof.clone().filter(|_| !held.release_failed) else {
            return Err(self.core.lost("it was released, or found lost before"));
        };
        let since = Moment::now();
        // An answer after the lease has ended is of no use, and a store that hangs must not keep the
        // caller from trying again before.
        // Where it is over already (or not known: it came from another machine), the store decides.
        let useful = match self.remaining() {
            Duration::ZERO => Duration::MAX,
            left => left.max(RENEW_AT_LEAST),
        };
        let by = Deadline::after(self.manager.settings.timeout.min(ttl).min(useful));
        match self.manager.store.renew(self.name(), &proof, ttl, by) {
            Ok(Some(proof)) => {
                held.proof = Some(proof);
                self.core.ttl.store(nanos(ttl), Ordering::Release);
                held.longest_ttl = held.longest_ttl.max(ttl);
                held.ends = self.manager.settings.lease_end(since, ttl);
                held.told = None;
                self.core.set_ends(held.ends);
                Ok(())
            }
            Ok(None) => {
                held.proof = None;
                self.core.set_ends(Moment::OVER);
                self.manager.forget(&self.core);
                Err(self.core.lost("another holds it, or nobody does since it ran out"))
            }
            Err(error) => Err(error.while_(format!("renewing lock {}", self.name()))),
        }
    }

    /// Gives the lock up. Blocks for one call to the store.
    ///
    /// `true`: it was ours and is free now. `false`: it had been released before, and the store was
    /// not asked. Another holder's record is never touched.
    ///
    /// # Errors
    /// LEASE_LOST when it had run out or another holds the lock by now. Any other error, IN_DOUBT
    /// included, leaves open whether the lock is free: call again, or drop the lease, which lets the
    /// watcher thread go on trying until the TTL ends it. FORKED.
    pub fn release(&self) -> Result<bool> {
        // First: in a forked child the lock below may be held by a thread that is not there.
        self.manager.not_forked()?;
        if self.core.held.lock().proof.is_none() {
            return Ok(false);
        }
        let by = Deadline::after(self.manager.settings.timeout);
        let released = self.core.release(&self.manager, by);
        if self.core.held.lock().proof.is_none() {
            self.manager.forget(&self.core);
        }
        released
    }

    /// Turns the lease into a text that renews and releases it from any process, and lets go of it
    /// here without releasing.
    ///
    /// # Errors
    /// LEASE_LOST when it was released or found lost; CLOSED, FORKED.
    pub fn into_token(self) -> Result<LeaseToken> {
        self.manager.usable()?;
        let mut held = self.core.held.lock();
        let token = LeaseToken {
            name: self.core.name.clone(),
            fence: self.core.fence,
            ends: held.told.unwrap_or_else(|| TokenEnd::at(self.core.ends())),
            ttl: self.ttl(),
            proof: held
                .proof
                .clone()
                .ok_or_else(|| self.core.lost("it was released, or found lost before"))?,
        };
        held.proof = None;
        drop(held);
        self.manager.forget(&self.core);
        Ok(token)
    }
}

/// A TTL has a year of them at the most, which fits.
fn nanos(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX)
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A forked child has a copy of the parent's lease, which is not the child's to release; and the
        // lock below may be held by a thread that is not there.
        if self.manager.not_forked().is_err() {
            return;
        }
        let (failed_before, open) = {
            let held = self.core.held.lock();
            (held.release_failed, held.proof.is_some())
        };
        if !open {
            return;
        }
        self.manager.forget(&self.core);
        let by = Deadline::after(DROP_TIMEOUT.min(self.manager.settings.timeout));
        let released = if failed_before { None } else { Some(self.core.release(&self.manager, by)) };
        match released {
            Some(Ok(_)) => {}
            Some(Err(error)) if error.code() == crate::Code::LeaseLost => log::warn!("{}", error.chain()),
            Some(Err(_)) | None => {
                log::warn!("lock {} is released in the background", self.core.name);
                let held = self.core.held.lock();
                if let Some(proof) = held.proof.clone() {
                    // A request that was sent twice may put the record back after its release.
                    let doubt = if self.core.may_reappear { Doubt::MayBeTaken } else { Doubt::MayBeHeld };
                    let (name, ttl) = (self.core.name.clone(), held.longest_ttl);
                    self.manager.free_in_background(name, proof, ttl, doubt);
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
