//! The options of an acquisition.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::handles::lease::{Lease, check_keep, check_min_hold};
use crate::lease::held_lock::HeldLock;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::runtime::cancel::CancelToken;

/// Longest key of an owner, in bytes.
const OWNER_BYTES_MAX: usize = 255;

/// Options of one acquisition, which override the manager's defaults. See [`Lock::acquire_with`](crate::Lock::acquire_with) and
/// [`Lock::start`](crate::Lock::start).
#[derive(Debug, Clone, Default)]
#[must_use = "pass it to acquire_with or start"]
pub struct AcquireOptions {
    pub(crate) mode: Option<Mode>,
    pub(crate) nested_in: Option<Arc<HeldLock>>,
    pub(crate) reentrant: Option<Arc<str>>,
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

    /// Sets how the lock is held: see [`Mode`]. Default: the mode of the [`Lock`](crate::Lock).
    ///
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if the store keeps exclusive locks only.
    pub fn mode(mut self, mode: Mode) -> AcquireOptions {
        self.mode = Some(mode);
        self
    }

    /// Reads once more what the caller reads already with the lease `outer` of the same lock. Writers that wait do not keep it
    /// out: they wait for `outer`. The caller should release this lease before `outer`. For a shared acquisition.
    ///
    /// Without this a reader that needs the lock again waits for its [turn](crate::Lock::shared).
    ///
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) for another mode, and for a lease of another lock. If `outer` is
    /// over, the acquisition waits like any other.
    pub fn nested_in(mut self, outer: &Lease) -> AcquireOptions {
        self.nested_in = Some(Arc::clone(outer.held()));
        self
    }

    /// Lets whoever uses the same key acquire the lock once more while this process holds it for that key: through this manager,
    /// in any thread. The leases share one hold of the lock, with one fence. Each is released by itself, and the lock is free
    /// when the last one is released or dropped. `owner` is a key of the caller's, 1 to 255 bytes, such as the id of an order;
    /// the store does not see it. It is never the thread, because one thread may work for many.
    ///
    /// To enter once more blocks for one renewal at most, and asks for no lock: if the hold has less left than the TTL of this
    /// acquisition and is not kept alive for that long, it is renewed. What keeps the hold alive goes on until the last of
    /// its leases is released. A renewal of one of them asks for the TTL of the hold at least, a [`keep`](Lease::keep) never
    /// makes it end sooner, and [`stop_keeping`](Lease::stop_keeping) does nothing while there are several. If the hold is
    /// lost, all its leases are. Descriptors and channels of a lease report what happens to the hold. An acquisition that
    /// waits already when the owner gets the lock waits until it is free.
    ///
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) for another mode than exclusive, together with a minimum hold, for
    /// several locks together, for elections, and for [`Lock::start`](crate::Lock::start). A lease that was acquired so changes
    /// no mode, and becomes a token only if no other shares its hold.
    pub fn reentrant(mut self, owner: &str) -> AcquireOptions {
        self.reentrant = Some(owner.into());
        self
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

    /// Keeps the lease alive from the beginning, for `max_hold` at most: see [`Lease::keep`](crate::Lease::keep). [`Duration::MAX`] sets no
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
    /// see [`Lease::liveness_fd`](crate::Lease::liveness_fd). A child that was forked has one until it ends or executes a program, so the lease may
    /// last until its TTL ends. The program must not close descriptors that it does not know.
    ///
    /// Renewals change nothing about it. A token does: see [`Lease::into_token`](crate::Lease::into_token).
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

    /// Returns the mode of an acquisition by a handle that has this one.
    pub(crate) fn mode_of(&self, of_handle: Mode) -> Result<Mode> {
        let mode = self.mode.unwrap_or(of_handle);
        if (mode == Mode::Permit) == (of_handle == Mode::Permit) {
            return Ok(mode);
        }
        Err(Error::invalid(
            "mode",
            mode.name(),
            "EXCLUSIVE, SHARED or UPDATE for a lock, and PERMIT for a semaphore",
        ))
    }

    /// Checks the outer lease of an acquisition of this lock in this mode.
    pub(crate) fn check_nested(&self, name: &LockName, mode: Mode) -> Result<()> {
        let Some(outer) = &self.nested_in else { return Ok(()) };
        if mode != Mode::Shared {
            return Err(Error::invalid("mode", mode.name(), "SHARED within another lease"));
        }
        if outer.name() != name || outer.mode() == Mode::Exclusive {
            let allowed = format!("a lease of the lock {name} that is not exclusive");
            return Err(Error::invalid("outer lease, of the lock", outer.name().key(), allowed));
        }
        Ok(())
    }

    /// Checks the owner of an acquisition in this mode.
    pub(crate) fn check_reentrant(&self, mode: Mode) -> Result<()> {
        let Some(owner) = &self.reentrant else { return Ok(()) };
        if !(1..=OWNER_BYTES_MAX).contains(&owner.len()) {
            return Err(Error::invalid("owner", &**owner, format!("1 to {OWNER_BYTES_MAX} bytes")));
        }
        if mode != Mode::Exclusive {
            return Err(Error::invalid(
                "mode",
                mode.name(),
                "EXCLUSIVE for a lock that its owner may enter again",
            ));
        }
        match self.min_hold {
            None => Ok(()),
            Some(min_hold) => Err(Error::invalid(
                "min_hold",
                format!("{min_hold:?}"),
                "none for a lock that its owner may enter again",
            )),
        }
    }

    /// Refuses an owner, for an acquisition that cannot enter a lock again.
    pub(crate) fn check_not_reentrant(&self, what: &str) -> Result<()> {
        let Some(owner) = &self.reentrant else { return Ok(()) };
        Err(Error::invalid("owner", &**owner, format!("none for {what}, which cannot enter a lock again")))
    }

    /// `ttl` is the checked TTL of the lease.
    pub(crate) fn check(&self, ttl: Duration) -> Result<()> {
        self.min_hold.map_or(Ok(()), |min_hold| check_min_hold(ttl, min_hold))?;
        self.max_hold.map_or(Ok(()), |max_hold| check_keep(ttl, max_hold))
    }
}
