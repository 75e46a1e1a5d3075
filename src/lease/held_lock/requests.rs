//! Requests on a held lock: they begin and end, see the table of [`held_lock`](super).

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{HeldLock, Leftover, OwnedRecord, Ownership, Releases, nanos};
use crate::error::{Error, Result};
use crate::lease::freeing::LockDoubt;
use crate::lease::retake_right::RecordWrite;
use crate::lease::token::StoreId;
use crate::names::lease_state::LostReason;
use crate::names::owner::OwnerRecord;
use crate::runtime::time::Moment;
use crate::settings::manager_options::Settings;
use crate::store::Released;

/// A renewal that has begun. Without an end, it had no answer.
pub(crate) struct Renewing<'a> {
    lock: &'a HeldLock,
    pub(crate) record: OwnerRecord,
    pub(crate) ttl: Duration,
    /// See [`Settings::asked_ttl`].
    pub(crate) asked: Duration,
    /// End of the lease before it.
    pub(crate) ends: Moment,
    number: u64,
    /// Of a renewal by the background threads: the latest one by the caller that the store had confirmed when it began.
    after: Option<u64>,
}

/// What has become of a renewal.
pub(crate) enum RenewalEnd {
    Renewed,
    /// The store renewed the lease, but it had already ended here, and another may have held the lock in between.
    TooLate,
    /// The lease keeps its end.
    Failed(Error),
    /// The lease is over, or was renewed by the caller in the meantime.
    Superseded,
    Lost(LostRecord),
}

/// The store has no record of ours.
pub(crate) struct LostRecord {
    pub(crate) record: OwnerRecord,
    /// Why, unless another holder has the lock.
    pub(crate) why: LostReason,
    /// The store that granted the lease, if only its token says so.
    pub(crate) granted_by: Option<StoreId>,
    /// A record that the background threads must release, if the store has a part of it.
    pub(crate) leftover: Option<Leftover>,
}

/// Result of [`HeldLock::begin_release`].
pub(crate) enum BegunRelease<'a> {
    Ask(Releasing<'a>),
    /// The minimum hold is not over yet.
    Later(HeldUntil),
    /// The lock was released, handed on or found lost before.
    NotHeld,
}

/// A record that the store keeps until a moment, although its holder has released the lock.
pub(crate) struct HeldUntil {
    pub(crate) moment: Moment,
    pub(crate) leftover: Leftover,
    /// See [`Grant::may_reappear`].
    pub(crate) may_reappear: bool,
    /// See [`LeaseTerms::notices`].
    pub(crate) notices: Option<u64>,
}

/// A release that has begun, and must end.
#[must_use]
pub(crate) struct Releasing<'a> {
    lock: &'a HeldLock,
    pub(crate) record: OwnerRecord,
}

/// What has become of a release.
pub(crate) enum ReleaseEnd {
    /// The lock is free. With a record that the background threads must release, if the store has it.
    Freed(Option<Leftover>),
    /// Another release has freed the lock, or is under way and may have.
    NotHeld,
    Lost(LostRecord),
    /// The lock may or may not be free. With its record, if the lease was given up.
    Failed(Error, Option<Leftover>),
}

impl HeldLock {
    /// Begins a renewal by the caller, for `ttl`.
    ///
    /// # Errors
    /// LEASE_LOST if the lease was released, handed on or found lost.
    pub(crate) fn begin_renewal(&self, ttl: Duration, settings: &Settings) -> Result<Renewing<'_>> {
        let mut ownership = self.ownership.lock();
        let Ownership::Owned(owned) = &mut *ownership else { return Err(self.over()) };
        Ok(self.renewing(owned, ttl, settings, None))
    }

    /// Begins a renewal by the background threads. `None` if the lease has ended or is not kept alive any more, or if no
    /// renewal may make it last longer than it does.
    pub(crate) fn begin_kept_renewal(&self, settings: &Settings) -> Option<Renewing<'_>> {
        let mut ownership = self.ownership.lock();
        let Ownership::Owned(owned) = &mut *ownership else { return None };
        let (now, ends) = (Moment::now(), self.ends());
        let until = self.life.kept_until().filter(|_| now < ends)?;
        let mut ttl = self.ttl();
        if settings.lease_end(now, ttl) > until {
            // The TTL whose lease ends at `until`, rounded down.
            let least = settings.ttl_of_lease(until.since(now));
            ttl = Duration::from_millis(u64::try_from(least.as_millis()).unwrap_or(u64::MAX));
            if settings.lease_end(now, ttl) <= ends {
                self.life.longest_reached();
                return None;
            }
        }
        let after = Some(owned.confirmed_by_caller);
        Some(self.renewing(owned, ttl, settings, after))
    }

    fn renewing(
        &self,
        owned: &mut OwnedRecord,
        ttl: Duration,
        settings: &Settings,
        after: Option<u64>,
    ) -> Renewing<'_> {
        let asked = settings.asked_ttl(ttl);
        // The request may be applied at any later time.
        owned.write = None;
        owned.longest_ttl = owned.longest_ttl.max(asked);
        owned.renewing += 1;
        owned.begun += 1;
        let (record, ends, number) = (owned.record.clone(), self.ends(), owned.begun);
        Renewing { lock: self, record, ttl, asked, ends, number, after }
    }

    /// Begins a release.
    pub(crate) fn begin_release(&self) -> BegunRelease<'_> {
        let mut ownership = self.ownership.lock();
        let (owned, mut releases) = match std::mem::replace(&mut *ownership, Ownership::Over) {
            Ownership::Owned(owned) => {
                let releases = Releases::of(self.why_gone(&owned));
                (owned, releases)
            }
            Ownership::Releasing(owned, releases) => (owned, releases),
            over => {
                *ownership = over;
                return BegunRelease::NotHeld;
            }
        };
        let now = Moment::now();
        if now < owned.hold_until && now < self.ends() {
            self.life.released();
            let leftover = owned.leftover(LockDoubt::MayBeHeld);
            // Others can register until the lock is free.
            let notices = self.notices();
            self.stays.store(true, Ordering::Release);
            let (moment, may_reappear) = (owned.hold_until, self.may_reappear);
            return BegunRelease::Later(HeldUntil { moment, leftover, may_reappear, notices });
        }
        let record = owned.record.clone();
        releases.has_overlapped |= releases.under_way > 0;
        releases.under_way += 1;
        *ownership = Ownership::Releasing(owned, releases);
        // Before the request: as soon as it arrives, another holder may acquire the lock.
        self.life.released();
        BegunRelease::Ask(Releasing { lock: self, record })
    }

    /// A release under way got no answer. Returns the record if the lease was given up.
    fn release_failed(&self, ownership: &mut Ownership) -> Option<Leftover> {
        let Ownership::Releasing(owned, releases) = ownership else { return None };
        releases.under_way -= 1;
        releases.has_failed = true;
        if !releases.is_given_up || releases.under_way > 0 {
            return None;
        }
        let leftover = self.leftover_of(owned);
        *ownership = Ownership::Over;
        Some(leftover)
    }
}

impl Renewing<'_> {
    /// Ends the renewal with the store's answer. `since` is a moment before the request was sent.
    pub(crate) fn end(
        self,
        since: Moment,
        answer: Result<Option<OwnerRecord>>,
        settings: &Settings,
        may_leave_parts: bool,
    ) -> RenewalEnd {
        let lock = self.lock;
        let mut ownership = lock.ownership.lock();
        let renewed = match answer {
            Ok(Some(record)) => record,
            Ok(None) => {
                let owned = match &*ownership {
                    Ownership::Owned(owned) if !owned.is_converting => owned,
                    _ => return RenewalEnd::Superseded,
                };
                let why = lock.why_gone(owned);
                let leftover = may_leave_parts.then(|| owned.leftover(LockDoubt::MayBeHeld));
                let lost = owned.lost(why, leftover);
                *ownership = Ownership::Lost;
                lock.life.end(why);
                return RenewalEnd::Lost(lost);
            }
            Err(error) => {
                let Ownership::Owned(owned) = &*ownership else { return RenewalEnd::Superseded };
                match self.after {
                    Some(after) if after != owned.confirmed_by_caller => return RenewalEnd::Superseded,
                    Some(_) => lock.life.renewal_failed(),
                    None => {}
                }
                return RenewalEnd::Failed(error);
            }
        };
        let is_released = matches!(&*ownership, Ownership::Releasing(..));
        let Some(owned) = ownership.owned_mut() else { return RenewalEnd::Superseded };
        // No other one is under way.
        if owned.renewing == 1 {
            owned.write = Some(RecordWrite { sent: since, asked: self.asked });
        }
        if self.number > owned.confirmed {
            owned.record = renewed;
            owned.confirmed = self.number;
            owned.from_token = None;
        }
        let ends = settings.lease_end(since, self.ttl);
        if is_released {
            owned.ends = owned.ends.max(ends);
            return RenewalEnd::Superseded;
        }
        match self.after {
            // The caller has said since then when the lease ends.
            Some(after) if after != owned.confirmed_by_caller => RenewalEnd::Superseded,
            Some(_) if !lock.life.renewed_in_time(ends) => RenewalEnd::TooLate,
            Some(_) => {
                owned.ends = lock.ends();
                RenewalEnd::Renewed
            }
            // A late copy of a request may have brought the record back after another holder released the lock. The record is
            // still released with the lease.
            None if lock.may_reappear && Moment::now() >= lock.ends() => RenewalEnd::TooLate,
            // One that began later says when the lease ends.
            None if self.number < owned.confirmed_by_caller => RenewalEnd::Renewed,
            None => {
                owned.confirmed_by_caller = self.number;
                lock.ttl.store(nanos(self.ttl), Ordering::Release);
                owned.ends = ends;
                lock.life.renewed(ends, ends.since(since));
                RenewalEnd::Renewed
            }
        }
    }
}

impl Drop for Renewing<'_> {
    fn drop(&mut self) {
        if let Some(owned) = self.lock.ownership.lock().owned_mut() {
            owned.renewing -= 1;
        }
    }
}

impl Releasing<'_> {
    /// Ends the release with the store's answer. `in_parts`: the store keeps each lock in several places, so that two requests
    /// may each have freed one of them.
    pub(crate) fn end(self, answer: Result<Released>, in_parts: bool) -> ReleaseEnd {
        let lock = self.lock;
        let mut ownership = lock.ownership.lock();
        let Ownership::Releasing(owned, releases) = &mut *ownership else { return ReleaseEnd::NotHeld };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return ReleaseEnd::Failed(error, lock.release_failed(&mut ownership)),
        };
        releases.under_way -= 1;
        // A request of ours may have freed the lock without a reply. If the record is gone although the lease has not
        // expired, that request freed it.
        let asked = answer == Released::Gone || releases.has_failed || (in_parts && releases.has_overlapped);
        let is_ours = answer == Released::Freed || (asked && Moment::now() < owned.ends);
        // A change of mode under way has replaced the record.
        if !is_ours && (releases.under_way > 0 || owned.is_converting) {
            return ReleaseEnd::NotHeld;
        }
        let leftover = lock.may_reappear.then(|| owned.leftover(LockDoubt::MayBeTaken));
        // The time may have run out during the request.
        let why = || if releases.why == LostReason::RecordGone { owned.why_gone() } else { releases.why };
        let end = match is_ours {
            true => ReleaseEnd::Freed(leftover),
            false => ReleaseEnd::Lost(owned.lost(why(), leftover)),
        };
        *ownership = Ownership::Over;
        end
    }
}

impl OwnedRecord {
    pub(super) fn lost(&self, why: LostReason, leftover: Option<Leftover>) -> LostRecord {
        let granted_by = self.from_token.and_then(|token| token.store);
        LostRecord { record: self.record.clone(), why, granted_by, leftover }
    }
}
