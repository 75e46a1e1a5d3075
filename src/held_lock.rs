//! One granted lock as this process holds it: the state behind a [`Lease`](crate::Lease), which the session
//! releases when it is closed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::config::Settings;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::lease_token::{LeaseToken, TokenEnd};
use crate::name::LockName;
use crate::owner::OwnerRecord;
use crate::store::{Grant, LockStore, Released};
use crate::sync::{AtomicU64, Mutex};
use crate::time::{Deadline, Moment};
use crate::wait::freeing::LockDoubt;
use crate::wait::timerfd::Timerfd;

/// End of a lease from another machine: in the past, and different from the end of a released lease.
const UNKNOWN: Moment = Moment::from_nanos(1);

/// Shortest time for a renewal, even if the lease expires sooner.
const RENEW_AT_LEAST: Duration = Duration::from_millis(100);

const RELEASED: &str = "it was released, found lost or turned into a token before";
const REVIVED: &str = "it expired before it was renewed, and another may have held the lock since then";
const GONE: &str = "the store no longer has its record; another may hold the lock";

pub(crate) struct HeldLock {
    name: LockName,
    fence: Option<Fence>,
    /// End of the lease in nanoseconds of the lease clock; zero once it is released or found lost.
    ends: AtomicU64,
    /// TTL with which it was granted or last renewed, in nanoseconds. Changed under `ownership`.
    ttl: AtomicU64,
    /// See [`Grant::may_reappear`].
    may_reappear: bool,
    ownership: Mutex<Ownership>,
    /// Created by the first [`lost_fd`](HeldLock::lost_fd), under `ownership`. Fires at `ends`.
    timerfd: OnceLock<Timerfd>,
}

struct Ownership {
    /// The record that renews and releases the lock. `None` once this process no longer owns the lock.
    record: Option<OwnerRecord>,
    /// Longest TTL that was requested for this lease. The store may keep the record for this long.
    longest_ttl: Duration,
    /// When the lease expires if it is not released before.
    ends: Moment,
    /// End of the lease in the token that it was adopted from, until the first renewal here.
    told: Option<TokenEnd>,
    /// A release failed, so the lock may or may not be free.
    release_failed: bool,
}

/// A record that the store may still have, for `ttl` at most.
pub(crate) struct Leftover {
    pub(crate) record: OwnerRecord,
    pub(crate) ttl: Duration,
    pub(crate) doubt: LockDoubt,
}

/// Result of [`HeldLock::renew`].
pub(crate) struct RenewalOutcome {
    /// See [`Lease::renew_for`](crate::Lease::renew_for).
    pub(crate) answer: Result<()>,
    /// A record that the background threads must release, if the store has a part of it.
    pub(crate) leftover: Option<Leftover>,
}

impl From<Result<()>> for RenewalOutcome {
    fn from(answer: Result<()>) -> RenewalOutcome {
        RenewalOutcome { answer, leftover: None }
    }
}

/// Result of [`HeldLock::release`].
pub(crate) struct Release {
    /// See [`Lease::release`](crate::Lease::release).
    pub(crate) answer: Result<bool>,
    /// The store answered, so the next waiter may try to acquire the lock.
    pub(crate) is_over: bool,
    /// A record that the background threads must release, if the store has it.
    pub(crate) leftover: Option<Leftover>,
}

impl HeldLock {
    pub(crate) fn new(name: LockName, grant: Grant, ttl: Duration, ends: Moment) -> HeldLock {
        HeldLock {
            name,
            fence: grant.fence,
            ends: AtomicU64::new(ends.as_nanos()),
            ttl: AtomicU64::new(nanos(ttl)),
            may_reappear: grant.may_reappear,
            ownership: Mutex::new(Ownership {
                record: Some(grant.owner_record),
                longest_ttl: ttl,
                ends,
                told: None,
                release_failed: false,
            }),
            timerfd: OnceLock::new(),
        }
    }

    /// Makes the state of a lease that comes from another process.
    pub(crate) fn adopted(token: LeaseToken) -> HeldLock {
        let LeaseToken { name, fence, ends: told, ttl, owner_record } = token;
        let grant = Grant { owner_record, fence, since: Moment::now(), may_reappear: false };
        // No lease lasts longer than its TTL, even if its token says so.
        let ends = told.here().map(|ends| ends.min(Moment::now().after(ttl)));
        let mut held = HeldLock::new(name, grant, ttl, ends.unwrap_or(UNKNOWN));
        held.ownership.get_mut().told = Some(told);
        held
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    pub(crate) fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// Returns when the lease expires: zero once it was released or found lost.
    pub(crate) fn ends(&self) -> Moment {
        Moment::from_nanos(self.ends.load(Ordering::Acquire))
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl.load(Ordering::Acquire))
    }

    /// Whether the lock was neither released nor found lost nor handed on.
    pub(crate) fn is_open(&self) -> bool {
        self.ownership.lock().record.is_some()
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.ends() {
            ends if Moment::now() < ends => Ok(()),
            Moment::OVER => Err(self.lost(RELEASED)),
            UNKNOWN => Err(self.lost(
                "its end is not known here (it comes from another machine, from before a restart, from another \
                 time namespace, or from an older version); renew it",
            )),
            _ => Err(self.lost("it has expired")),
        }
    }

    pub(crate) fn lost_fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(timerfd) = self.timerfd.get() {
            return Ok(timerfd.as_fd());
        }
        let _ownership = self.ownership.lock();
        let timerfd = Timerfd::at(self.ends())?;
        Ok(self.timerfd.get_or_init(|| timerfd).as_fd())
    }

    /// Renews the lease for `ttl`. See [`Lease::renew_for`](crate::Lease::renew_for).
    pub(crate) fn renew(&self, store: &dyn LockStore, settings: &Settings, ttl: Duration) -> RenewalOutcome {
        let mut ownership = self.ownership.lock();
        let Some(record) = ownership.record.clone().filter(|_| !ownership.release_failed) else {
            return Err(self.lost(RELEASED)).into();
        };
        let since = Moment::now();
        // A reply after the end of the lease is useless, so a store that hangs does not block the caller longer.
        // If the lease has expired here, or its end is unknown because it comes from another machine, the store
        // decides.
        let useful = match self.ends().since(since) {
            Duration::ZERO => Duration::MAX,
            left => left.max(RENEW_AT_LEAST),
        };
        let by = Deadline::after(settings.timeout.min(ttl).min(useful));
        let answer = match store.renew(&self.name, &record, ttl, by) {
            // A late copy of a request may have brought the record back after another holder released the lock. The
            // record is still released with the lease.
            Ok(Some(record)) if self.may_reappear && Moment::now() >= self.ends() => {
                ownership.record = Some(record);
                ownership.longest_ttl = ownership.longest_ttl.max(ttl);
                Err(self.lost(REVIVED))
            }
            Ok(Some(record)) => {
                ownership.record = Some(record);
                self.ttl.store(nanos(ttl), Ordering::Release);
                ownership.longest_ttl = ownership.longest_ttl.max(ttl);
                ownership.ends = settings.lease_end(since, ttl);
                ownership.told = None;
                self.set_ends(ownership.ends);
                Ok(())
            }
            Ok(None) => {
                ownership.record = None;
                self.set_ends(Moment::OVER);
                let ttl = ownership.longest_ttl.max(ttl);
                let leftover = Leftover { record, ttl, doubt: LockDoubt::MayBeHeld };
                let leftover = store.may_leave_parts().then_some(leftover);
                return RenewalOutcome { answer: Err(self.lost(GONE)), leftover };
            }
            Err(error) => Err(error.context(format!("renewing lock {}", self.name))),
        };
        answer.into()
    }

    /// Releases the lock in the store.
    pub(crate) fn release(&self, store: &dyn LockStore, by: Deadline) -> Release {
        let mut ownership = self.ownership.lock();
        let Some(record) = ownership.record.clone() else {
            return Release { answer: Ok(false), is_over: false, leftover: None };
        };
        // Before the request: as soon as it arrives, another holder may acquire the lock.
        self.set_ends(Moment::OVER);
        match store.release(&self.name, &record, by) {
            Ok(answer) => {
                ownership.record = None;
                // A request of ours may have freed the lock without a reply. If the record is gone although the
                // lease has not expired, that request freed it.
                let asked = answer == Released::Gone || ownership.release_failed;
                let ours = answer == Released::Freed || (asked && Moment::now() < ownership.ends);
                let ttl = ownership.longest_ttl;
                let leftover = Leftover { record, ttl, doubt: LockDoubt::MayBeTaken };
                Release {
                    answer: if ours { Ok(true) } else { Err(self.lost(GONE)) },
                    is_over: true,
                    leftover: self.may_reappear.then_some(leftover),
                }
            }
            Err(error) => {
                ownership.release_failed = true;
                let answer = Err(error.context(format!("releasing lock {}", self.name)));
                Release { answer, is_over: false, leftover: None }
            }
        }
    }

    /// Whether a release has failed.
    pub(crate) fn release_failed(&self) -> bool {
        self.ownership.lock().release_failed
    }

    /// Returns the record that must be released in the background once the lease is dropped.
    pub(crate) fn leftover(&self) -> Option<Leftover> {
        let ownership = self.ownership.lock();
        // A gateway may send a request twice, which puts the record back after its release.
        let doubt = if self.may_reappear { LockDoubt::MayBeTaken } else { LockDoubt::MayBeHeld };
        let record = ownership.record.clone()?;
        Some(Leftover { record, ttl: ownership.longest_ttl, doubt })
    }

    /// Hands the lock on as a token, without releasing it.
    pub(crate) fn hand_on(&self) -> Result<LeaseToken> {
        let mut ownership = self.ownership.lock();
        let owner_record = ownership.record.take().ok_or_else(|| self.lost(RELEASED))?;
        let ends = ownership.told.unwrap_or_else(|| TokenEnd::at(self.ends()));
        self.set_ends(Moment::OVER);
        Ok(LeaseToken { name: self.name.clone(), fence: self.fence, ends, ttl: self.ttl(), owner_record })
    }

    /// Call it only with the mutex `ownership` held, which keeps the descriptor consistent with `ends`.
    fn set_ends(&self, ends: Moment) {
        self.ends.store(ends.as_nanos(), Ordering::Release);
        if let Some(timerfd) = self.timerfd.get()
            && let Err(error) = timerfd.set(ends)
        {
            log::error!("the timer of lock {} could not be set: {error}", self.name);
        }
    }

    fn lost(&self, why: &'static str) -> Error {
        Error::LeaseLost { name: self.name.to_string(), why }
    }
}

/// A TTL is at most a year, which fits in 64 bits.
fn nanos(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX)
}
