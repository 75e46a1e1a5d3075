//! One granted lock as this process holds it: the state behind a [`Lease`](crate::Lease), which the session
//! releases when it is closed.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::lease::broken::find_break;
use crate::lease::freeing::LockDoubt;
use crate::lease::life::{Life, UNKNOWN};
use crate::lease::linger::{LingeringLock, Retaken};
use crate::lease::reported::Reported;
use crate::lease::retake_right::{RecordWrite, SpareFences};
use crate::lease::token::{LeaseToken, StoreId, TokenEnd};
use crate::names::fence::Fence;
use crate::names::lease_state::{LeaseState, LostReason};
use crate::names::lock_name::LockName;
use crate::names::owner::OwnerRecord;
use crate::runtime::slow_mutex::SlowMutex;
use crate::runtime::sync::{AtomicBool, AtomicU64};
use crate::runtime::time::{Deadline, Moment};
use crate::settings::config::Settings;
use crate::store::{Grant, LockStore, Released};

/// Shortest time for a renewal, even if the lease expires sooner.
const RENEW_AT_LEAST: Duration = Duration::from_millis(100);

const RELEASED: &str = "it was released or turned into a token before";
/// For a lease from a token: only its record shows whether it was released.
const RELEASED_BEFORE: &str =
    "it was released before: the store has no record of it, although its time is not over";
const GONE: &str = "it was released before, or the store lost its record; another may hold the lock";
const EXPIRED: &str = "it has expired, or was released before";
const CLOSED: &str = "its manager was closed, which has released it";
const REVIVED: &str = "it expired before it was renewed, and another may have held the lock since then";

pub(crate) struct HeldLock {
    name: LockName,
    fence: Option<Fence>,
    /// TTL with which it was granted or last renewed, in nanoseconds. Changed under `ownership`.
    ttl: AtomicU64,
    /// See [`Grant::may_reappear`].
    may_reappear: bool,
    /// It comes from a token.
    is_adopted: bool,
    notices: Option<u64>,
    /// Fences for when the lock is taken again. `None` for a lease from a token, which never stays.
    spare: Option<SpareFences>,
    /// The lock was released here and its record stays: its notices go on.
    stays: AtomicBool,
    /// When the time of staying ends that began before this lease. `None` if the lock has not stayed since others could
    /// have it.
    stay_ends: Option<Moment>,
    /// Who broke the lock and why, once this is known.
    broken: OnceLock<String>,
    /// The manager was closed while it held the lock.
    closed: AtomicBool,
    /// A moment before the grant. Of an adopted lease, when it was adopted.
    since: Moment,
    pub(crate) reported: Reported,
    ownership: SlowMutex<Ownership>,
    /// Changed under `ownership`, except by the clock.
    pub(crate) life: Life,
}

struct Ownership {
    /// The record that renews and releases the lock. `None` once this process no longer owns the lock.
    record: Option<OwnerRecord>,
    /// The record that the store did not have any more.
    lost: Option<OwnerRecord>,
    /// Longest TTL that was requested for this lease. The store may keep the record for this long.
    longest_ttl: Duration,
    /// When the lease expires if it is not released before.
    ends: Moment,
    /// End of the lease in the token that it was adopted from, until the first renewal here.
    token_end: Option<TokenEnd>,
    /// The store that granted the lease, if it comes from a token that says so.
    granted_by: Option<StoreId>,
    /// The lock stays held until then, even if it is released.
    hold_until: Moment,
    /// A release failed, so the lock may or may not be free.
    release_failed: bool,
    /// The last write of the record that the store has confirmed. `None` while another one may be under way.
    write: Option<RecordWrite>,
    /// The record is marked: see [`LivenessStore`](crate::store::LivenessStore).
    dies_with_process: bool,
}

/// How long a granted lock is held.
pub(crate) struct LeaseTerms {
    pub(crate) ttl: Duration,
    /// For how long the store was asked to keep the record: see [`Settings::asked_ttl`].
    pub(crate) asked: Duration,
    /// End of the lease here.
    pub(crate) ends: Moment,
    /// The lease dies with this process.
    pub(crate) until_death: bool,
    /// The random bits in the record, by which others register for the release.
    pub(crate) notices: Option<u64>,
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

/// Result of [`HeldLock::begin_renewal`].
pub(crate) enum Begun {
    Ask(PendingRenewal),
    /// The caller releases or renews the lease just now.
    Busy,
    /// No renewal may make the lease last longer than it does.
    LongEnough,
    /// The lease has ended, or is not kept alive any more.
    Over,
}

/// A renewal that the background threads have begun.
pub(crate) struct PendingRenewal {
    pub(crate) record: OwnerRecord,
    pub(crate) ttl: Duration,
    /// See [`Settings::asked_ttl`].
    pub(crate) asked: Duration,
    /// End of the lease before it.
    pub(crate) ends: Moment,
}

/// Result of [`HeldLock::end_renewal`].
pub(crate) enum Concluded {
    Renewed,
    /// The store renewed the lease, but it had already ended here.
    TooLate,
    /// The lease keeps its end.
    Failed(Error),
    /// The lease was released, or changed by the caller, in the meantime.
    Superseded,
    /// The store has no record of ours. The reason, unless another holder has the lock.
    Lost(LostReason, Option<Leftover>),
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
    /// The record that must be released at the end of the minimum hold.
    pub(crate) held_until: Option<HeldUntil>,
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

impl HeldLock {
    pub(crate) fn new(name: LockName, grant: Grant, terms: LeaseTerms) -> HeldLock {
        let LeaseTerms { ttl, asked, ends, until_death, notices } = terms;
        let write = RecordWrite { sent: grant.since, asked };
        let spare = SpareFences::after(grant.fence, grant.fences);
        let life = Life::new(ends, ends.since(grant.since));
        HeldLock {
            name,
            fence: grant.fence,
            ttl: AtomicU64::new(nanos(ttl)),
            may_reappear: grant.may_reappear,
            is_adopted: false,
            notices,
            spare: Some(spare),
            stays: AtomicBool::new(false),
            stay_ends: None,
            broken: OnceLock::new(),
            closed: AtomicBool::new(false),
            since: grant.since,
            reported: Reported::nothing(),
            ownership: SlowMutex::new(Ownership {
                record: Some(grant.owner_record),
                lost: None,
                longest_ttl: asked,
                ends,
                token_end: None,
                granted_by: None,
                hold_until: Moment::OVER,
                release_failed: false,
                write: Some(write),
                dies_with_process: until_death,
            }),
            life,
        }
    }

    /// Makes the state of a lease that comes from another process.
    pub(crate) fn adopted(token: LeaseToken) -> HeldLock {
        let LeaseToken { name, fence, ends: token_end, ttl, owner_record, store } = token;
        let grant = Grant { owner_record, fence, fences: 1, since: Moment::now(), may_reappear: false };
        // No lease lasts longer than its TTL, even if its token says so.
        let ends = token_end.here().map(|ends| ends.min(Moment::now().after(ttl)));
        let (asked, ends) = (ttl, ends.unwrap_or(UNKNOWN));
        let terms = LeaseTerms { ttl, asked, ends, until_death: false, notices: None };
        let mut held = HeldLock::new(name, grant, terms);
        held.is_adopted = true;
        held.ownership.get_mut().token_end = Some(token_end);
        held.ownership.get_mut().granted_by = store;
        held.spare = None;
        held.reported.begin();
        held
    }

    /// Makes the state of a lease of a lock that stayed with this process.
    pub(crate) fn retaken(name: LockName, retaken: Retaken, ttl: Duration, ends: Moment) -> HeldLock {
        let Retaken { lingering, fence, at } = retaken;
        let LingeringLock { record, write, spare, longest_ttl, notices, stay_ends, .. } = lingering;
        let grant = Grant { owner_record: record, fence, fences: 1, since: at, may_reappear: false };
        let terms = LeaseTerms { ttl, asked: longest_ttl, ends, until_death: false, notices };
        let mut held = HeldLock::new(name, grant, terms);
        held.ownership.get_mut().write = Some(write);
        held.spare = Some(spare);
        held.goes_on_until(stay_ends)
    }

    /// The lock stayed before this lease, and others could not have it in between.
    pub(crate) fn goes_on_until(self, stay_ends: Moment) -> HeldLock {
        HeldLock { stay_ends: Some(stay_ends), ..self }
    }

    /// Whether the lock has stayed since others could have it.
    pub(crate) fn has_stayed(&self) -> bool {
        self.stay_ends.is_some()
    }

    /// Releases the lock here and leaves its record in the store, for `linger` after the last write, and after the first
    /// release that did so. `None` if it must be released in the store: the time of staying is over, the lease is over or
    /// from a token, or it is not known what the store has.
    /// Waits for a call under way until `by`.
    pub(crate) fn linger(&self, linger: Duration, by: Deadline) -> Option<LingeringLock> {
        let spare = self.spare.filter(|_| !self.may_reappear)?;
        let mut ownership = self.ownership.lock_by(by)?;
        let now = Moment::now();
        let is_clean = !ownership.release_failed && !ownership.dies_with_process;
        if !is_clean || now < ownership.hold_until || now >= self.ends() {
            return None;
        }
        let write = ownership.write?;
        let stay_ends = self.stay_ends.unwrap_or_else(|| now.after(linger));
        let until = write.sent.after(linger).min(stay_ends);
        if now >= until {
            return None;
        }
        let record = ownership.record.take()?;
        self.stays.store(true, Ordering::Release);
        self.life.released();
        let (longest_ttl, notices) = (ownership.longest_ttl, self.notices);
        Some(LingeringLock { record, write, spare, longest_ttl, notices, until, stay_ends })
    }

    /// Lets the lock stay held for this time from now, even if it is released sooner.
    /// Returns `false` if the lease dies with its process, which others need not wait for.
    #[must_use]
    pub(crate) fn hold_at_least(&self, min_hold: Duration) -> bool {
        let mut ownership = self.ownership.lock();
        if !ownership.dies_with_process {
            ownership.hold_until = Moment::now().after(min_hold);
        }
        !ownership.dies_with_process
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    pub(crate) fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// Returns a moment before the grant. Of an adopted lease, when it was adopted.
    pub(crate) fn since(&self) -> Moment {
        self.since
    }

    /// See [`LeaseTerms::notices`].
    pub(crate) fn notices(&self) -> Option<u64> {
        self.notices.filter(|_| !self.stays.load(Ordering::Acquire))
    }

    /// Returns when the lease expires: zero once it was released or found lost.
    pub(crate) fn ends(&self) -> Moment {
        self.life.ends()
    }

    /// Identifies the lock. It does not move while somebody has it.
    pub(crate) fn address(self: &Arc<HeldLock>) -> usize {
        Arc::as_ptr(self) as usize
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl.load(Ordering::Acquire))
    }

    /// Whether the lock was neither released nor found lost nor handed on. `true` during a call, which may end it. Does not
    /// wait.
    pub(crate) fn is_open(&self) -> bool {
        self.ownership.try_lock().is_none_or(|ownership| ownership.record.is_some())
    }

    /// Takes the record of a lease that is given up. If a call is under way, its thread does so after it, and gives it to
    /// `free`. Does not wait.
    pub(crate) fn give_up(self: &Arc<HeldLock>, free: Arc<dyn Fn(Leftover) + Send + Sync>) {
        let (lock, afterwards) = (Arc::clone(self), Arc::clone(&free));
        let Some(mut ownership) = self.ownership.lock_or_leave(move || lock.give_up(afterwards)) else {
            return self.life.released();
        };
        let leftover = self.leftover_of(&ownership);
        ownership.record = None;
        drop(ownership);
        self.life.released();
        leftover.into_iter().for_each(|leftover| free(leftover));
    }

    /// Whether a call is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.ownership.try_lock().is_none()
    }

    /// Whether the lease was given up during a call.
    pub(crate) fn is_given_up(&self) -> bool {
        self.ownership.is_abandoned()
    }

    pub(crate) fn check(&self) -> Result<()> {
        if Moment::now() < self.ends() { Ok(()) } else { Err(self.not_valid()) }
    }

    /// Renews the lease for `ttl`. See [`Lease::renew_for`](crate::Lease::renew_for).
    pub(crate) fn renew(&self, store: &dyn LockStore, settings: &Settings, ttl: Duration) -> RenewalOutcome {
        let mut ownership = self.ownership.lock();
        let Some(record) = ownership.record.clone().filter(|_| !ownership.release_failed) else {
            return Err(self.over()).into();
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
        let asked = settings.asked_ttl(ttl);
        ownership.write = None;
        let answer = match store.renew(&self.name, &record, asked, by) {
            Ok(Some(record)) if self.may_reappear && Moment::now() >= self.ends() => {
                // A late copy of a request may have brought the record back after another holder released the lock. The
                // record is still released with the lease.
                ownership.keeps(record, asked);
                Err(self.lost(LostReason::Expired, REVIVED))
            }
            Ok(Some(record)) => {
                ownership.keeps(record, asked);
                ownership.write = Some(RecordWrite { sent: since, asked });
                self.ttl.store(nanos(ttl), Ordering::Release);
                ownership.ends = settings.lease_end(since, ttl);
                ownership.token_end = None;
                if self.is_adopted {
                    ownership.granted_by = Some(StoreId::of(&store.describe()));
                }
                self.life.renewed(ownership.ends, ownership.ends.since(since));
                Ok(())
            }
            Ok(None) => {
                let why = self.why_gone(&ownership);
                let elsewhere = self.elsewhere(&ownership, store);
                let leftover = self.gone(&mut ownership, record.clone(), asked, store.may_leave_parts());
                let reason = self.find_reason(store, &record, why, by);
                // The id of another store may be that of this one under another URI, so the lease is lost in any case.
                self.life.lost(reason);
                let elsewhere = elsewhere.filter(|_| reason != LostReason::Broken);
                let error = elsewhere.unwrap_or_else(|| self.gone_for(reason));
                return RenewalOutcome { answer: Err(error), leftover };
            }
            Err(error) => Err(error.context(format!("renewing lock {}", self.name))),
        };
        answer.into()
    }

    /// Begins a renewal by the background threads. The lease is not locked while they ask the store, so that nobody waits
    /// for them. A release or a renewal by the caller may come first; [`end_renewal`](HeldLock::end_renewal) finds out.
    pub(crate) fn begin_renewal(&self, settings: &Settings) -> Begun {
        let Some(mut ownership) = self.ownership.try_lock() else { return Begun::Busy };
        let (now, ends) = (Moment::now(), self.ends());
        let until = self.life.kept_until().filter(|_| now < ends && !ownership.release_failed);
        let (Some(until), Some(record)) = (until, ownership.record.clone()) else { return Begun::Over };
        let mut ttl = self.ttl();
        if settings.lease_end(now, ttl) > until {
            // The TTL whose lease ends at `until`, rounded down.
            let least = settings.ttl_of_lease(until.since(now));
            ttl = Duration::from_millis(u64::try_from(least.as_millis()).unwrap_or(u64::MAX));
            if settings.lease_end(now, ttl) <= ends {
                self.life.longest_reached();
                return Begun::LongEnough;
            }
        }
        // The request may be applied at any later time.
        let asked = settings.asked_ttl(ttl);
        ownership.write = None;
        ownership.longest_ttl = ownership.longest_ttl.max(asked);
        Begun::Ask(PendingRenewal { record, ttl, asked, ends })
    }

    /// Ends a renewal that [`begin_renewal`](HeldLock::begin_renewal) began, with the store's answer.
    pub(crate) fn end_renewal(
        &self,
        sent: &PendingRenewal,
        since: Moment,
        answer: Result<Option<OwnerRecord>>,
        settings: &Settings,
        may_leave_parts: bool,
    ) -> Concluded {
        // The caller releases or renews the lease. It finds out in the store what became of this request.
        let Some(mut ownership) = self.ownership.try_lock() else { return Concluded::Superseded };
        if ownership.record.as_ref() != Some(&sent.record) {
            return Concluded::Superseded;
        }
        match answer {
            Ok(Some(record)) => {
                ownership.keeps(record, sent.asked);
                ownership.write = Some(RecordWrite { sent: since, asked: sent.asked });
                let ends = settings.lease_end(since, sent.ttl);
                if !self.life.renewed_in_time(ends) {
                    return Concluded::TooLate;
                }
                ownership.ends = self.ends();
                ownership.token_end = None;
                Concluded::Renewed
            }
            Ok(None) => {
                let why = self.why_gone(&ownership);
                let leftover = self.gone(&mut ownership, sent.record.clone(), sent.asked, may_leave_parts);
                Concluded::Lost(why, leftover)
            }
            Err(error) => {
                self.life.renewal_failed();
                Concluded::Failed(error)
            }
        }
    }

    /// Finds out why the lease was lost, after [`Concluded::Lost`]. One read of the store.
    pub(crate) fn tell_lost(&self, store: &dyn LockStore, unless_taken: LostReason, by: Deadline) {
        let lost = self.ownership.lock().lost.clone();
        let reason = lost.map_or(unless_taken, |record| self.find_reason(store, &record, unless_taken, by));
        // A release since then changes nothing: it found no record of ours.
        self.life.lost(reason);
    }

    /// Releases the lock in the store, which may take `timeout`. Waits for a call under way. All of this ends by `by`.
    pub(crate) fn release(&self, store: &dyn LockStore, timeout: Duration, by: Deadline) -> Release {
        let Some(mut ownership) = self.ownership.lock_by(by) else {
            let answer = Err(self.busy(store));
            return Release { answer, is_over: false, leftover: None, held_until: None };
        };
        let by = by.sooner(Deadline::after(timeout));
        let Some(record) = ownership.record.clone() else {
            return Release { answer: Ok(false), is_over: false, leftover: None, held_until: None };
        };
        let now = Moment::now();
        if now < ownership.hold_until && now < self.ends() {
            ownership.record = None;
            self.life.released();
            let leftover = Leftover { record, ttl: ownership.longest_ttl, doubt: LockDoubt::MayBeHeld };
            let (moment, may_reappear) = (ownership.hold_until, self.may_reappear);
            // Others can register until the lock is free.
            let notices = self.notices();
            self.stays.store(true, Ordering::Release);
            let held_until = Some(HeldUntil { moment, leftover, may_reappear, notices });
            return Release { answer: Ok(true), is_over: false, leftover: None, held_until };
        }
        let why = self.why_gone(&ownership);
        // Before the request: as soon as it arrives, another holder may acquire the lock.
        self.life.released();
        match store.release(&self.name, &record, by) {
            Ok(answer) => {
                ownership.record = None;
                // A request of ours may have freed the lock without a reply. If the record is gone although the
                // lease has not expired, that request freed it.
                let asked = answer == Released::Gone || ownership.release_failed;
                let ours = answer == Released::Freed || (asked && Moment::now() < ownership.ends);
                let ttl = ownership.longest_ttl;
                let answer = if ours {
                    Ok(true)
                } else {
                    // The time may have run out during the request.
                    let why = if why == LostReason::RecordGone { ownership.why_gone() } else { why };
                    match (self.find_break(store, &record, by), self.elsewhere(&ownership, store)) {
                        (None, Some(elsewhere)) => Err(elsewhere),
                        (None, None) if self.is_adopted && why == LostReason::RecordGone => {
                            Err(self.not_held(RELEASED_BEFORE))
                        }
                        (broken, _) => {
                            let reason = broken.unwrap_or(why);
                            self.life.lost(reason);
                            Err(self.gone_for(reason))
                        }
                    }
                };
                let leftover = Leftover { record, ttl, doubt: LockDoubt::MayBeTaken };
                let leftover = self.may_reappear.then_some(leftover);
                Release { answer, is_over: true, leftover, held_until: None }
            }
            Err(error) => {
                ownership.release_failed = true;
                let answer = Err(error.context(format!("releasing lock {}", self.name)));
                Release { answer, is_over: false, leftover: None, held_until: None }
            }
        }
    }

    /// Whether a release has failed, as far as that is known without waiting.
    pub(crate) fn release_failed(&self) -> bool {
        self.ownership.try_lock().is_some_and(|ownership| ownership.release_failed)
    }

    fn leftover_of(&self, ownership: &Ownership) -> Option<Leftover> {
        // A gateway may send a request twice, which puts the record back after its release.
        let doubt = if self.may_reappear { LockDoubt::MayBeTaken } else { LockDoubt::MayBeHeld };
        let record = ownership.record.clone()?;
        Some(Leftover { record, ttl: ownership.longest_ttl, doubt })
    }

    /// Hands the lock on as a token, without releasing it. The lease of a token does not die with this process, so the
    /// store records it first. Waits for a call under way until `waits`.
    pub(crate) fn hand_on(&self, store: &dyn LockStore, waits: Deadline, by: Deadline) -> Result<LeaseToken> {
        let mut ownership = self.ownership.lock_by(waits).ok_or_else(|| self.busy(store))?;
        let owner_record = ownership.record.clone().ok_or_else(|| self.over())?;
        if let Some(liveness) = store.liveness().filter(|_| ownership.dies_with_process) {
            let outlives = liveness.outlive_process(&self.name, &owner_record, by);
            if !outlives.map_err(|error| error.context(format!("handing on lock {}", self.name)))? {
                let reason = self.why_gone(&ownership);
                self.gone(&mut ownership, owner_record, Duration::ZERO, false);
                self.life.lost(reason);
                return Err(self.gone_for(reason));
            }
        }
        ownership.record = None;
        let ends = ownership.token_end.unwrap_or_else(|| TokenEnd::at(self.ends()));
        self.life.released();
        // A token without an id gets none before a renewal shows that the lease is of this store.
        let store = match self.is_adopted {
            true => ownership.granted_by,
            false => Some(StoreId::of(&store.describe())),
        };
        Ok(LeaseToken {
            name: self.name.clone(),
            fence: self.fence,
            ends,
            ttl: self.ttl(),
            owner_record,
            store,
        })
    }

    /// See [`Lease::liveness_fd`](crate::Lease::liveness_fd).
    pub(crate) fn liveness_fd(&self, store: &dyn LockStore, by: Deadline) -> Result<Option<OwnedFd>> {
        let ownership = self.ownership.lock();
        let record = ownership.record.as_ref().ok_or_else(|| self.over())?;
        match store.liveness().filter(|_| ownership.dies_with_process) {
            Some(liveness) => liveness.liveness_fd(&self.name, record, by),
            None => Ok(None),
        }
    }

    /// Records that the store has no record of ours any more, and that this was not reported yet. Returns what the background
    /// threads must release.
    fn gone(
        &self,
        ownership: &mut Ownership,
        record: OwnerRecord,
        ttl: Duration,
        may_leave_parts: bool,
    ) -> Option<Leftover> {
        ownership.lost = Some(record.clone());
        ownership.record = None;
        self.life.end(self.why_gone(ownership));
        let ttl = ownership.longest_ttl.max(ttl);
        may_leave_parts.then_some(Leftover { record, ttl, doubt: LockDoubt::MayBeHeld })
    }

    /// Finds out why the record is gone. One or two reads of the store.
    fn find_reason(
        &self,
        store: &dyn LockStore,
        record: &OwnerRecord,
        unless_taken: LostReason,
        by: Deadline,
    ) -> LostReason {
        if let Some(broken) = self.find_break(store, record, by) {
            return broken;
        }
        // Others may have acquired the lock because of it.
        if unless_taken == LostReason::ProcessStopped {
            return unless_taken;
        }
        match store.holder(&self.name, by) {
            Ok(Some(_)) => LostReason::TakenOver,
            Ok(None) | Err(_) => unless_taken,
        }
    }

    /// Finds out whether an operator broke the lock, and keeps who and why. One read of the store.
    fn find_break(&self, store: &dyn LockStore, record: &OwnerRecord, by: Deadline) -> Option<LostReason> {
        let _ = self.broken.set(find_break(store, &self.name, record, by)?);
        Some(LostReason::Broken)
    }

    fn not_valid(&self) -> Error {
        match self.life.state() {
            LeaseState::Lost(reason) => self.lost(reason, reason.explained()),
            _ => self.over(),
        }
    }

    fn busy(&self, store: &dyn LockStore) -> Error {
        let what = format!("a call for lock {} was under way all that time", self.name);
        Error::RetriesExhausted { store: store.describe(), what, source: None }
    }

    /// Notes that the manager is closed, for the errors of later calls.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    fn over(&self) -> Error {
        match self.life.state().lost() {
            Some(reason) => self.lost(reason, reason.explained()),
            None if self.closed.load(Ordering::Acquire) => self.not_held(CLOSED),
            None => self.not_held(RELEASED),
        }
    }

    /// A lease that was not lost: it was released, or is one of another store.
    fn not_held(&self, why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
        Error::LeaseLost { name: self.name.to_string(), why: why.into(), reason: None }
    }

    /// Returns the error if the store has no record of the lease, and its token is of another store.
    fn elsewhere(&self, ownership: &Ownership, store: &dyn LockStore) -> Option<Error> {
        let here = store.describe();
        let is_elsewhere = ownership.granted_by.is_some_and(|id| id != StoreId::of(&here));
        is_elsewhere.then(|| {
            self.not_held(format!(
                "{here} has no record of it, and another store granted it, or this one under another URI; use the URI \
                 with which it was acquired"
            ))
        })
    }

    /// Returns why a record that nobody has replaced is gone. The first reason stays: a process that was stopped lost the
    /// lease for that.
    fn why_gone(&self, ownership: &Ownership) -> LostReason {
        match self.life.state().lost() {
            Some(LostReason::ProcessStopped) => LostReason::ProcessStopped,
            _ => ownership.why_gone(),
        }
    }

    /// Returns the error of a lease whose record is gone for this reason.
    fn gone_for(&self, reason: LostReason) -> Error {
        self.lost(
            reason,
            match reason {
                LostReason::RecordGone if self.is_adopted => GONE,
                LostReason::Expired if self.is_adopted => EXPIRED,
                reason => reason.explained(),
            },
        )
    }

    fn lost(&self, reason: LostReason, why: &'static str) -> Error {
        let broken = self.broken.get().filter(|_| reason == LostReason::Broken);
        let why = broken.map_or(why.into(), |broken| broken.clone().into());
        Error::LeaseLost { name: self.name.to_string(), why, reason: Some(reason) }
    }
}

impl Ownership {
    fn keeps(&mut self, record: OwnerRecord, ttl: Duration) {
        self.record = Some(record);
        self.longest_ttl = self.longest_ttl.max(ttl);
    }

    /// Returns why a record that nobody has replaced is gone.
    fn why_gone(&self) -> LostReason {
        if Moment::now() < self.ends { LostReason::RecordGone } else { LostReason::Expired }
    }
}

/// A TTL is at most a year, which fits in 64 bits.
fn nanos(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::holder::Identity;
    use crate::names::lock_name::{Level, NamePolicy};
    use crate::runtime::time::sleep;
    use crate::store::{Acquired, Attempt, MemoryStore};

    const LONG: Duration = Duration::from_secs(60);

    type Call<'a> = &'a dyn Fn(&HeldLock, &MemoryStore) -> Result<()>;

    /// Returns a lease that was kept alive until this process did not run, and whose lock another holder has now.
    fn stopped(store: &MemoryStore, name: &LockName) -> HeldLock {
        let identity =
            Identity { host: "h".into(), pid: 1, start_ms: 7, purpose: String::new(), notices: None };
        let by = Deadline::after(LONG);
        let attempt = Attempt { name, ttl: LONG, identity: &identity, by };
        let Acquired::Granted(grant) = store.acquire(attempt, &mut Vec::new()).unwrap() else {
            panic!("held")
        };
        store.release(name, &grant.owner_record, by).unwrap();
        store.acquire(attempt, &mut Vec::new()).unwrap();
        let ends = Moment::now().after(Duration::from_millis(5));
        let terms = LeaseTerms { ttl: LONG, asked: LONG, ends, until_death: false, notices: None };
        let lock = HeldLock::new(name.clone(), grant, terms);
        lock.life.keep(Moment::now().after(LONG));
        while lock.life.state().is_valid() {
            sleep(Duration::from_millis(1));
        }
        lock
    }

    /// The id may be that of this store under another URI.
    #[test]
    fn a_renewal_at_a_store_without_the_record_ends_the_lease_whatever_the_id_in_its_token() {
        let store = MemoryStore::new();
        let name = LockName::new(Level::Xdc, "t", None, "a", NamePolicy::Strict).unwrap();
        for (id, said) in
            [("elsewhere:", "another store granted it"), (&*store.describe(), "lost its record")]
        {
            let lock = HeldLock::adopted(LeaseToken {
                name: name.clone(),
                fence: None,
                ends: TokenEnd::at(Moment::now().after(LONG)),
                ttl: LONG,
                owner_record: OwnerRecord::from_bytes([7; 16]),
                store: Some(StoreId::of(id)),
            });
            assert!(lock.life.state().is_valid());
            let error = lock.renew(&store, &Settings::default(), LONG).answer.unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
            assert_eq!(lock.life.state(), LeaseState::Lost(LostReason::RecordGone), "{id}");
            assert!(lock.check().is_err());
        }
    }

    #[test]
    fn the_reason_of_a_process_that_was_stopped_stays_whatever_is_called_afterwards() {
        let settings = Settings::default();
        let by = || Deadline::after(LONG);
        let calls: [Call<'_>; 3] = [
            &|lock, store| lock.release(store, LONG, by()).answer.map(drop),
            &|lock, store| lock.renew(store, &settings, LONG).answer,
            &|lock, store| {
                let record = lock.ownership.lock().record.clone().expect("it was not released");
                let sent = PendingRenewal { record, ttl: LONG, asked: LONG, ends: lock.ends() };
                match lock.end_renewal(&sent, Moment::now(), Ok(None), &settings, false) {
                    Concluded::Lost(why, _) => lock.tell_lost(store, why, by()),
                    _ => panic!("it was not lost"),
                }
                lock.check()
            },
        ];
        for (at, call) in calls.into_iter().enumerate() {
            let store = MemoryStore::new();
            let name = LockName::new(Level::Xdc, "t", None, "a", NamePolicy::Strict).unwrap();
            let lock = stopped(&store, &name);
            assert_eq!(lock.life.state(), LeaseState::Lost(LostReason::ProcessStopped));
            let error = call(&lock, &store).unwrap_err();
            assert_eq!(error.lost_reason(), Some(LostReason::ProcessStopped), "{at}: {error}");
            assert_eq!(lock.life.state(), LeaseState::Lost(LostReason::ProcessStopped), "{at}");
            assert_eq!(lock.check().unwrap_err().lost_reason(), Some(LostReason::ProcessStopped), "{at}");
        }
    }
}
