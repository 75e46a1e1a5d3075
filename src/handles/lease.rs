//! A held lock: check, renewal, release and loss.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Receiver;

#[cfg(doc)]
use crate::error::Code;
use crate::error::{Error, Result};
use crate::events::sinks::OpenSpans;
use crate::handles::pending_call::PendingCall;
use crate::lease::events::LeaseEvents;
use crate::lease::held_lock::HeldLock;
use crate::lease::held_lock::shared_hold::{ShareEnd, SharedHold};
use crate::lease::keeper::TTL_MIN as KEPT_TTL_MIN;
use crate::lease::token::LeaseToken;
use crate::names::fence::{Epoch, Fence};
use crate::names::lease_state::LeaseState;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::runtime::time::{Deadline, Moment};
use crate::session::Session;
use crate::settings::limits::checked_ttl;
#[cfg(feature = "capi")]
use crate::wait::completions::Completions;

/// Longest time for which dropping a lease blocks to release it.
const DROP_TIMEOUT: Duration = Duration::from_secs(2);

/// A held lock. Dropping it releases the lock.
///
/// The lease expires after its TTL, which counts from before the request was sent. Then somebody else may hold
/// the lock. So call [`check`](Lease::check) before each step that needs the lock, and send
/// [`fence`](Lease::fence) along with each write.
///
/// | [`state`](Lease::state) | `check` | store has our record | ended by |
/// |---|---|---|---|
/// | held | `Ok` | yes | release, expiry, a renewal that finds it lost |
/// | renewing, at risk: see [`keep`](Lease::keep) | `Ok` | yes | the same |
/// | lost: expired | [`Code::LeaseLost`] | until its TTL ends in the store | release, renewal by the caller |
/// | lost: for another reason | [`Code::LeaseLost`] | no | - |
/// | released | [`Code::LeaseLost`] | no, unless the release failed | - |
///
/// Several threads may use a lease, and any thread may release it. No call waits for that of another thread: a release ends
/// the lease at once, also while it is being renewed.
/// Drop is best effort: it blocks for two seconds at most, and leaves a failed release to a background thread.
/// Call [`release`](Lease::release) to get the errors.
#[must_use = "dropping the lease releases the lock"]
pub struct Lease {
    pub(super) lock: Arc<HeldLock>,
    pub(super) session: Arc<Session>,
    /// It was released, and others share its hold: see [`reentry`](crate::lease::reentry).
    left: Arc<AtomicBool>,
}

impl Lease {
    /// See [`LockManager::adopt`](crate::LockManager::adopt).
    pub(crate) fn adopt(session: &Arc<Session>, token: LeaseToken) -> Result<Lease> {
        session.usable()?;
        Lease::of(session, HeldLock::adopted(token))
    }

    /// Makes the lease of a lock that was granted or adopted.
    ///
    /// # Errors
    /// CLOSED or FORKED. Then the lock is released.
    pub(crate) fn of(session: &Arc<Session>, lock: HeldLock) -> Result<Lease> {
        let lock = Arc::new(lock);
        session.leases.hold(&lock);
        session.leases.reentrant.began(&lock);
        let lease = Lease::sharing(session, lock);
        // The manager was closed during the request. Dropping the lease releases it.
        session.usable().map(|()| lease)
    }

    /// Makes a lease of a hold in which it is counted.
    pub(crate) fn sharing(session: &Arc<Session>, lock: Arc<HeldLock>) -> Lease {
        Lease { lock, session: Arc::clone(session), left: Arc::default() }
    }

    fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Returns for how long a renewal makes the hold last: others may rely on its TTL.
    fn renewed_for(&self, ttl: Duration) -> Duration {
        if self.lock.shared().is_some() { ttl.max(self.ttl()) } else { ttl }
    }

    /// Refuses a lease that was released while others share its hold.
    fn not_left(&self) -> Result<()> {
        if self.has_left() { Err(self.lock.left()) } else { Ok(()) }
    }

    pub(crate) fn held(&self) -> &Arc<HeldLock> {
        &self.lock
    }

    /// Reports to the event sinks that the caller gets the lease.
    pub(crate) fn tell_acquired(&self, waited: impl FnOnce() -> Duration, open: OpenSpans) {
        self.events().acquired(waited, open);
    }

    fn events(&self) -> LeaseEvents<'_> {
        self.session.leases.events_of(&self.lock)
    }

    /// Returns the name of the lock, as stored.
    pub fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// Returns how the lock is held.
    pub fn mode(&self) -> Mode {
        self.lock.mode()
    }

    /// Returns the number of the period in which the lock is held: all readers of one time have the same, and each exclusive
    /// grant begins a new one. `None` if fencing is switched off in the store's options, and in a forked child.
    ///
    /// It is no fence: it guards no write, because several holders have it. `None` for a permit of a semaphore.
    pub fn epoch(&self) -> Option<Epoch> {
        if self.session.not_forked().is_ok() { self.lock.epoch() } else { None }
    }

    /// Returns the number of the permit, below the size of its [`Semaphore`](crate::Semaphore). `None` if this is the lease of a
    /// lock.
    pub fn permit(&self) -> Option<u8> {
        self.lock.permit()
    }

    /// Returns the number to send along with every write that the lock guards. It grows with every grant.
    /// Each grant of one permit of a semaphore has a higher one than the grants of that permit before.
    /// `None` if other holders may have the same rights, if fencing is switched off in the store's options, and in a forked child,
    /// whose writes the lock does not guard.
    pub fn fence(&self) -> Option<Fence> {
        if self.session.not_forked().is_ok() { self.lock.fence() } else { None }
    }

    /// Returns the fence for a write that a receiver compares. Does not check whether the lease has expired,
    /// because the receiver decides.
    ///
    /// # Errors
    /// FORKED; INVALID_ARGUMENT if fencing is switched off.
    #[cfg(any(feature = "aerospike", feature = "hbase"))]
    pub(crate) fn fence_for_writes(&self) -> Result<Fence> {
        self.session.not_forked()?;
        self.fence_or_refuse()
    }

    /// Returns the epoch that reads carry.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is none. FORKED.
    #[cfg(any(feature = "hbase", feature = "aerospike"))]
    pub(crate) fn epoch_for_reads(&self) -> Result<Epoch> {
        self.session.not_forked()?;
        let allowed =
            "a lease with an epoch: fencing is switched off in the options of its store (fence=off)";
        self.lock.epoch().ok_or_else(|| Error::invalid("lease of lock", self.name().key(), allowed))
    }

    fn fence_or_refuse(&self) -> Result<Fence> {
        if !matches!(self.mode(), Mode::Exclusive | Mode::Permit) {
            let allowed =
                format!("an exclusive lease, and not one in mode {}: only one holder may write", self.mode());
            return Err(Error::invalid("lease of lock", self.name().key(), allowed));
        }
        let allowed = "a lease with a fence: fencing is switched off in the options of its store (fence=off)";
        self.lock.fence().ok_or_else(|| Error::invalid("lease of lock", self.name().key(), allowed))
    }

    /// Returns when the lease expires, on the lease clock. Returns zero once it was released or found lost, and in
    /// a forked child.
    pub fn ends(&self) -> Moment {
        if self.session.not_forked().is_ok() && !self.has_left() { self.lock.ends() } else { Moment::OVER }
    }

    /// Returns the remaining time of the lease: zero once it has expired, or was released or found lost. No
    /// I/O, no locks.
    pub fn remaining(&self) -> Duration {
        self.ends().since(Moment::now())
    }

    /// Returns the TTL with which the lease was granted or last renewed. No I/O, no locks.
    pub fn ttl(&self) -> Duration {
        self.lock.ttl()
    }

    /// Checks by this machine's clock that the lease has not expired. No I/O and no locks; it takes some tens of
    /// nanoseconds, so call it before every step.
    ///
    /// It cannot know that a store lost the record, or that this thread will be paused right afterwards. The
    /// fence protects against both. A virtual machine that is paused or migrated may not see the pause in any of
    /// its clocks; then this check cannot see it either.
    ///
    /// # Errors
    /// * [`Code::LeaseLost`]: the lease has expired, or was released or found lost.
    /// * [`Code::Forked`]: this is a child of the process that acquired the lease, created by `fork` or by a bare
    ///   `clone`. A child that shares its parent's memory (`vfork`) is not detected.
    pub fn check(&self) -> Result<()> {
        self.session.not_forked()?;
        self.not_left()?;
        self.lock.check().inspect_err(|_| self.events().report_state())
    }

    /// Returns the fence for the next write, if the lease has not expired. It is [`check`](Lease::check) and
    /// [`fence`](Lease::fence) in one call, so that no step can forget one of them. No I/O, no locks.
    ///
    /// ```
    /// # let manager = dlm::LockManager::builder().store_uri("memory:?client=docs").open()?;
    /// # let lease = manager.lock("report", dlm::Level::Xdc)?.try_acquire()?;
    /// # fn write(_: &str, _: dlm::Fence) {}
    /// for page in ["one", "two"] {
    ///     write(page, lease.guard()?);
    /// }
    /// # Ok::<(), dlm::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`check`](Lease::check), and [`Code::InvalidArgument`] if the lease is not exclusive, or if fencing is switched
    /// off in the options of the store.
    pub fn guard(&self) -> Result<Fence> {
        self.check()?;
        self.fence_or_refuse()
    }

    /// Returns the state of the lease, by this machine's clock. No I/O. [`check`](Lease::check) is cheaper and says less.
    ///
    /// In a forked child the answer is that of the parent's copy at the fork, and means nothing.
    pub fn state(&self) -> LeaseState {
        if self.has_left() { LeaseState::Released } else { self.lock.life.state() }
    }

    /// Keeps the lease alive: background threads of the manager renew it from now on, for `max_hold` at most. No renewal
    /// makes it last longer than `max_hold` from now; [`Duration::MAX`] sets no limit. A second call sets a new limit. Does
    /// no I/O.
    ///
    /// The lease is renewed after a third of its time, and repeatedly if that fails. If less than a third of it is left,
    /// its state is [`AtRisk`](LeaseState::AtRisk). If every renewal fails until its end, it is lost, and no
    /// renewal brings it back. Use [`changes`](Lease::changes), [`at_risk_fd`](Lease::at_risk_fd) or
    /// [`lost_fd`](Lease::lost_fd) to be told. Still call [`guard`](Lease::guard) before each step: the process may be
    /// stopped at any time, and then nobody renews.
    ///
    /// All kept leases of a manager share at most two threads, and many leases one request.
    ///
    /// # Errors
    /// * [`Code::LeaseLost`] if the lease is not valid.
    /// * [`Code::InvalidArgument`] if `max_hold` is zero, or the TTL of the lease is shorter than 100 ms.
    /// * [`Code::InternalError`] if no thread can be started; [`Code::Closed`], [`Code::Forked`].
    pub fn keep(&self, max_hold: Duration) -> Result<()> {
        self.session.usable()?;
        check_keep(self.ttl(), max_hold)?;
        self.not_left()?;
        self.lock.check()?;
        let until = Moment::now().after(max_hold);
        // It must not end what another lease of the hold relies on.
        let until = self.lock.shared().and(self.lock.life.kept_until()).map_or(until, |kept| kept.max(until));
        self.session.leases.keeper.keep(&self.lock, until)
    }

    /// Goes on with what [`keep`](Lease::keep) of an earlier lease has begun.
    pub(crate) fn keep_until(&self, until: Moment) -> Result<()> {
        self.session.leases.keeper.keep(&self.lock, until)
    }

    /// Returns a channel that gets a message when [`state`](Lease::state) changes, and has one if the lease is over already.
    /// It has room for one message: read the message, then the state. A change by the clock may come up to 200 ms late, and a
    /// second later while the library asks the store why another lease was lost; `state`, `check` and the descriptors are never
    /// late. The channel is disconnected when the lease is dropped.
    ///
    /// # Errors
    /// [`Code::InternalError`] if no thread can be started; [`Code::Closed`], [`Code::Forked`].
    pub fn changes(&self) -> Result<Receiver<()>> {
        self.session.usable()?;
        let changes = self.lock.life.listen();
        self.session.leases.keeper.watch(&self.lock)?;
        Ok(changes)
    }

    /// Adds `tag` to the list each time that the lease becomes at risk, and when it has ended. Nothing is added a second time
    /// while it is in the list.
    #[cfg(feature = "capi")]
    pub(crate) fn notify(&self, completions: &Completions, tag: u64) -> Result<()> {
        self.session.usable()?;
        completions.not_forked()?;
        if self.lock.shared().is_some() {
            let allowed =
                "one whose owner may not enter the lock again: its changes are those of other leases too";
            return Err(Error::invalid("lease of lock", self.name().key(), allowed));
        }
        if !self.lock.life.list_changes(completions, tag) {
            return Err(Error::invalid(
                "lease of lock",
                self.name().key(),
                "one without a list of completions",
            ));
        }
        self.session.leases.keeper.watch(&self.lock).inspect_err(|_| self.lock.life.stop_listing(false))
    }

    /// Takes the tag of [`notify`](Lease::notify) out of its list, for good.
    #[cfg(feature = "capi")]
    pub(crate) fn stop_notifying(&self) {
        if self.session.not_forked().is_ok() && self.lock.shared().is_none() {
            self.lock.life.stop_listing(true);
        }
    }

    /// Returns a descriptor for event loops. It becomes readable when [`check`](Lease::check) starts to fail with
    /// [`Code::LeaseLost`]. A renewal moves that moment.
    ///
    /// Poll the descriptor, but do not read it: a read only clears it for up to 100 ms. The first call creates
    /// it. Later calls return the same descriptor. It belongs to the lease and is closed on exec. Linux only.
    ///
    /// # Errors
    /// [`Code::Forked`]; [`Code::InternalError`] if the process has no descriptor left.
    pub fn lost_fd(&self) -> Result<BorrowedFd<'_>> {
        self.session.not_forked()?;
        self.lock.life.lost_fd().map_err(|error| self.no_descriptor(error))
    }

    /// Returns a descriptor as [`lost_fd`](Lease::lost_fd) does, which is also readable while the lease is at risk: see
    /// [`keep`](Lease::keep). A renewal makes it unreadable again.
    ///
    /// # Errors
    /// Those of `lost_fd`.
    pub fn at_risk_fd(&self) -> Result<BorrowedFd<'_>> {
        self.session.not_forked()?;
        self.lock.life.at_risk_fd().map_err(|error| self.no_descriptor(error))
    }

    /// Returns a descriptor for the processes that this one starts, if the lease
    /// [dies with the process](crate::AcquireOptions::dies_with_process); otherwise `None`. As long as any process has a
    /// copy of it, nobody takes the lock over before its TTL ends. It is closed on exec unless the caller changes that.
    ///
    /// It belongs to all such leases of this manager. Only copy and close it. Blocks for one read of the store.
    ///
    /// # Errors
    /// [`Code::LeaseLost`]; [`Code::InternalError`] if the process has no descriptor left; [`Code::Closed`],
    /// [`Code::Forked`]; those of a store that does not serve.
    pub fn liveness_fd(&self) -> Result<Option<OwnedFd>> {
        self.session.usable()?;
        self.session.leases.liveness_fd(&self.lock)
    }

    fn no_descriptor(&self, error: io::Error) -> Error {
        Error::Internal {
            what: format!("no descriptor for lock {}", self.name()),
            source: Some(error.into()),
        }
    }

    /// Renews the lease: it then expires one TTL from now. Blocks for one call to the store, limited by the store
    /// time-out, the TTL and, while the lease has not expired here, its remaining time (at least 100 ms). Of several
    /// calls at one time, the one that began last says when the lease expires.
    ///
    /// # Errors
    /// * [`Code::LeaseLost`]: the lease had expired in the store, or another holder has the lock, or another thread
    ///   releases the lease.
    /// * Any other error, [`Code::InDoubt`] included, leaves the lease and its end as they were.
    /// * [`Code::Closed`], [`Code::Forked`].
    pub fn renew(&self) -> Result<()> {
        self.session.not_forked()?;
        self.renew_for(self.ttl())
    }

    /// Renews the lease: it then expires `ttl` from now, which may be earlier than before. The earlier end holds
    /// for this lease only. The store never shortens a record: without a release, the lock stays held for the
    /// longer time that was requested before.
    ///
    /// # Errors
    /// Those of [`renew`](Lease::renew), and [`Code::InvalidArgument`] for a TTL outside 1 ms to 365 days.
    pub fn renew_for(&self, ttl: Duration) -> Result<()> {
        let ttl = checked_ttl(ttl)?;
        self.session.usable()?;
        self.not_left()?;
        self.session.leases.renew(&self.lock, self.renewed_for(ttl))
    }

    /// Renews the lease as [`renew_for`](Lease::renew_for) does, for the TTL of the last grant or renewal if `ttl` is `None`.
    /// Returns at once: a thread of the manager makes the call. Starts that thread if none is idle.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for a TTL outside 1 ms to 365 days; [`Code::InternalError`] if no thread can be started;
    /// [`Code::Closed`], [`Code::Forked`]. [`PendingCall::take`] returns all others.
    pub fn start_renewal(&self, ttl: Option<Duration>) -> Result<PendingCall<()>> {
        let ttl = checked_ttl(ttl.unwrap_or(self.ttl()))?;
        self.session.not_forked()?;
        self.not_left()?;
        let ttl = self.renewed_for(ttl);
        let lock = Arc::clone(&self.lock);
        PendingCall::start(&self.session, self.name(), move |session| {
            session.usable()?;
            session.leases.renew(&lock, ttl)
        })
    }

    /// Releases the lock. Blocks for one call to the store. Never touches the record of another holder.
    ///
    /// Returns `true` if the lock was this lease's and is free now. Returns `false` without asking the store if
    /// the lease had been released or found lost before. Of several threads that release it at the same time, at
    /// most one gets `true`. A lease that [shares](crate::AcquireOptions::reentrant) its hold with others returns `true`
    /// without asking the store, and the lock stays held.
    ///
    /// # Errors
    /// * [`Code::LeaseLost`]: the lease had expired in the store, or another holder has the lock.
    /// * [`Code::Forked`].
    /// * After any other error, [`Code::InDoubt`] included, the lock may or may not be free. Call `release`
    ///   again, or drop the lease: then the background threads retry until the TTL ends.
    pub fn release(&self) -> Result<bool> {
        // First, because in a forked child the mutex below may be held by a thread that does not exist there.
        self.session.not_forked()?;
        release(&self.session, &self.lock, &self.left)
    }

    /// Releases the lock as [`release`](Lease::release) does, but returns at once: a thread of the manager makes the call.
    /// Starts that thread if none is idle. The lease is valid until the call begins; it is up to the caller not to use it.
    ///
    /// # Errors
    /// [`Code::InternalError`] if no thread can be started; [`Code::Closed`], [`Code::Forked`]. [`PendingCall::take`] returns
    /// all others.
    pub fn start_release(&self) -> Result<PendingCall<bool>> {
        let (lock, left) = (Arc::clone(&self.lock), Arc::clone(&self.left));
        PendingCall::start(&self.session, self.name(), move |session| release(session, &lock, &left))
    }

    /// Turns the lease into a token, by which any process can renew and release it. The lock stays held, but no
    /// longer by this manager.
    ///
    /// No I/O, except for a lease that [dies with the process](crate::AcquireOptions::dies_with_process). From then on it
    /// does not: first the store records so. Blocks for that one call to the store. If it fails, there is no token and the
    /// lease is dropped.
    ///
    /// # Errors
    /// [`Code::LeaseLost`] if the lease was released or found lost, or is being released; [`Code::Closed`],
    /// [`Code::Forked`]; [`Code::InvalidArgument`] if another lease [shares](crate::AcquireOptions::reentrant) the hold. If the
    /// store has to record it, also those of a store that does not serve.
    pub fn into_token(self) -> Result<LeaseToken> {
        self.hand_on()
    }

    /// See [`into_token`](Lease::into_token). After it, the lease has ended here. After an error it has not, unless it was
    /// lost.
    pub(crate) fn hand_on(&self) -> Result<LeaseToken> {
        self.session.usable()?;
        self.not_left()?;
        match self.lock.shared().map(|shared| shared.end_alone(&self.left)) {
            None | Some(ShareEnd::Last) => {}
            Some(ShareEnd::Before) => return Err(self.lock.left()),
            Some(ShareEnd::Now) => {
                let allowed =
                    "none for a lock that its owner has entered again: a token would end the other leases";
                return Err(Error::invalid("token of lock", self.name().key(), allowed));
            }
        }
        let token = self.session.leases.hand_on(&self.lock);
        match self.lock.shared() {
            Some(shared) if token.is_err() && self.lock.is_open() => shared.goes_on(),
            _ => self.session.leases.reentrant.ended(&self.lock),
        }
        token
    }

    /// Lets the lock stay held for this time from now, even if it is released sooner: at most the TTL. See
    /// [`AcquireOptions::min_hold`](crate::AcquireOptions::min_hold). Zero ends the minimum. No I/O.
    ///
    /// # Errors
    /// Those of [`check`](Lease::check), and [`Code::InvalidArgument`] for a time that is longer than the TTL, and for a
    /// lease that [dies with its process](crate::AcquireOptions::dies_with_process).
    pub fn hold_at_least(&self, min_hold: Duration) -> Result<()> {
        check_min_hold(self.ttl(), min_hold)?;
        self.check()?;
        if self.lock.hold_at_least(min_hold) { Ok(()) } else { Err(no_minimum()) }
    }

    /// Ends what [`keep`](Lease::keep) has begun: the lease then ends at its end, unless the caller renews it. A renewal under
    /// way may still make it longer. Does nothing for a lease that is not kept alive, and while others
    /// [share](crate::AcquireOptions::reentrant) its hold. No I/O.
    ///
    /// # Errors
    /// [`Code::Forked`].
    pub fn stop_keeping(&self) -> Result<()> {
        self.session.not_forked()?;
        if !self.has_left() && !self.lock.shared().is_some_and(SharedHold::is_shared) {
            self.session.leases.keeper.stop_keeping(&self.lock);
        }
        Ok(())
    }
}

/// Ends a lease, and its hold if no other lease shares it. See [`Lease::release`].
fn release(session: &Session, lock: &Arc<HeldLock>, left: &AtomicBool) -> Result<bool> {
    if !lock.is_open() {
        return Ok(false);
    }
    match leave(session, lock, left) {
        ShareEnd::Last => session.leases.release(lock),
        ShareEnd::Now => lock.check().map(|()| true),
        ShareEnd::Before => Ok(false),
    }
}

/// Ends a lease if others share its hold.
fn leave(session: &Session, lock: &Arc<HeldLock>, left: &AtomicBool) -> ShareEnd {
    let leaving = lock.shared().map_or(ShareEnd::Last, |shared| shared.leave(left));
    if leaving == ShareEnd::Last {
        session.leases.reentrant.ended(lock);
    }
    leaving
}

pub(crate) fn no_minimum() -> Error {
    let allowed = "none for a lease that dies with its process, because others must wait for the minimum";
    Error::invalid("minimum hold", "any", allowed)
}

/// Checks the terms of [`Lease::hold_at_least`].
pub(crate) fn check_min_hold(ttl: Duration, min_hold: Duration) -> Result<()> {
    if min_hold > ttl {
        return Err(Error::invalid("min_hold", format!("{min_hold:?}"), format!("at most the TTL, {ttl:?}")));
    }
    Ok(())
}

/// Checks the terms of [`Lease::keep`].
pub(crate) fn check_keep(ttl: Duration, max_hold: Duration) -> Result<()> {
    if max_hold.is_zero() {
        return Err(Error::invalid("max_hold", "0", "more than zero"));
    }
    if ttl < KEPT_TTL_MIN {
        let allowed = format!("{KEPT_TTL_MIN:?} or more for a lease that is kept alive");
        return Err(Error::invalid("ttl", format!("{ttl:?}"), allowed));
    }
    Ok(())
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A forked child has a copy of its parent's lease and must not release it. Also, the mutex below may be
        // held by a thread that does not exist in the child.
        if self.session.not_forked().is_err() {
            return;
        }
        let is_last = leave(&self.session, &self.lock, &self.left) == ShareEnd::Last;
        if !is_last || !self.lock.is_open() {
            return;
        }
        self.session
            .leases
            .give_up(&self.lock, Deadline::after(DROP_TIMEOUT.min(self.session.settings.timeout)));
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("mode", &self.mode())
            .field("fence", &self.fence())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
