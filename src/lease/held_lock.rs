//! One granted lock as this process holds it: the state behind a [`Lease`](crate::Lease). No I/O: a request begins here,
//! its thread asks the store, and the request ends here with the answer. See [`leases`](crate::lease::leases) for the rest.
//!
//! | state | event | next state |
//! |---|---|---|
//! | owned | a renewal begins or ends | owned |
//! | owned | a renewal or a hand-on finds no record of ours | lost |
//! | owned | a change of mode begins, is refused, or fails without an effect | owned |
//! | owned | a change of mode finds no record of ours | lost |
//! | owned | a change of mode is granted, or in doubt | over: a new lease has the lock, or nobody |
//! | owned | the lease is handed on or given up, or its record stays in the store for a while | over |
//! | owned | a release begins before the end of the minimum hold | over |
//! | owned, releasing | a release begins | releasing |
//! | releasing | a release ends: the lock is free, or the record is gone and no other release is under way | over |
//! | releasing | a release ends otherwise | releasing, or over if the lease was given up and this was the last one |
//! | releasing | no release is under way, and the lease is handed on | over |
//! | releasing | the lease is given up | releasing while a release is under way, else over |
//!
//! Nobody waits for a request of another thread, because the store decides about each of them: it changes our record only,
//! so none of them harms the next holder, and a renewal that comes after a release finds no record. Of several renewals by
//! the caller, the one that began last says when the lease ends. Of several releases, the first whose answer shows that we
//! freed the lock is `true`.

pub(crate) mod conversion;
mod errors;
pub(crate) mod requests;
pub(crate) mod shared_hold;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::shared_hold::SharedHold;
use crate::error::Result;
use crate::lease::freeing::LockDoubt;
use crate::lease::life::{Life, UNKNOWN};
use crate::lease::linger::{LingeringLock, Retaken};
use crate::lease::reported::Reported;
use crate::lease::retake_right::{RecordWrite, SpareFences};
use crate::lease::token::{LeaseToken, StoreId, TokenEnd};
use crate::names::fence::{Epoch, Fence};
use crate::names::lease_state::LostReason;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::owner::OwnerRecord;
use crate::runtime::sync::{AtomicBool, AtomicU64, Mutex};
use crate::runtime::time::Moment;
use crate::store::Grant;

pub(crate) struct HeldLock {
    name: LockName,
    mode: Mode,
    fence: Option<Fence>,
    epoch: Option<Epoch>,
    /// Its number, if it is a permit of a semaphore.
    permit: Option<u8>,
    /// TTL with which it was granted or last renewed, in nanoseconds. Changed under `ownership`.
    ttl: AtomicU64,
    /// See [`Grant::may_reappear`].
    may_reappear: bool,
    /// It comes from a token.
    is_adopted: bool,
    /// The record is marked: see [`LivenessStore`](crate::store::LivenessStore).
    pub(crate) dies_with_process: bool,
    notices: Option<u64>,
    /// Fences for when the lock is taken again. `None` for a lease that never stays: one from a token, or after a change of mode.
    spare: Option<SpareFences>,
    /// The lock was released here and its record stays: its notices go on.
    stays: AtomicBool,
    /// When the time of staying ends that began before this lease. `None` if the lock has not stayed since others could
    /// have it.
    stay_ends: Option<Moment>,
    /// Several leases of one owner may share the hold.
    shared: Option<SharedHold>,
    /// Who broke the lock and why, once this is known.
    broken: OnceLock<String>,
    /// A request is under way that takes rights away: others may have them already.
    gives_up_rights: AtomicBool,
    /// The manager was closed while it held the lock.
    closed: AtomicBool,
    /// A moment before the grant. Of an adopted lease, when it was adopted.
    since: Moment,
    pub(crate) reported: Reported,
    /// Never locked for long.
    ownership: Mutex<Ownership>,
    pub(crate) life: Life,
}

/// See the top of the file.
enum Ownership {
    Owned(OwnedRecord),
    /// A release has begun. The lease is over here, and the store may have the record.
    Releasing(OwnedRecord, Releases),
    /// A renewal or a hand-on has found no record of ours.
    Lost,
    /// Released, handed on or given up; or a release has found it lost.
    Over,
}

/// The record in the store that renews and releases the lock, and what this process knows of it.
struct OwnedRecord {
    record: OwnerRecord,
    /// Longest TTL that was requested for this lease. The store may keep the record for this long.
    longest_ttl: Duration,
    /// The last write of the record that the store has confirmed. `None` while another one may be under way.
    write: Option<RecordWrite>,
    /// When the lease expires if it is not released before.
    ends: Moment,
    /// The lock stays held until then, even if it is released.
    hold_until: Moment,
    /// A request is under way that changes the mode. Until it ends, a renewal that finds no record says nothing.
    is_converting: bool,
    /// Until the first renewal here.
    from_token: Option<FromToken>,
    /// Renewals under way.
    renewing: u32,
    /// Number of the last renewal that has begun, and of the latest ones that the store has confirmed: of all, and of those
    /// by the caller.
    begun: u64,
    confirmed: u64,
    confirmed_by_caller: u64,
}

/// What the token of an adopted lease says.
#[derive(Clone, Copy)]
struct FromToken {
    ends: TokenEnd,
    /// The store that granted the lease, if the token says so.
    store: Option<StoreId>,
}

struct Releases {
    under_way: u32,
    /// Why the record is gone, if the store did not have it when the first one began.
    why: LostReason,
    /// One began while another one was under way.
    has_overlapped: bool,
    /// One got no answer, so the lock may or may not be free.
    has_failed: bool,
    /// The thread of the last release leaves a failed one to the background threads.
    is_given_up: bool,
}

/// How long a granted lock is held.
pub(crate) struct LeaseTerms {
    pub(crate) mode: Mode,
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

/// Result of [`HeldLock::give_up`].
pub(crate) enum GivenUp {
    /// The record must be released.
    Free(Leftover),
    /// A release is under way. Its thread does what is left.
    Left,
    Over,
}

impl HeldLock {
    pub(crate) fn new(name: LockName, grant: Grant, terms: LeaseTerms) -> HeldLock {
        let LeaseTerms { mode, ttl, asked, ends, until_death, notices } = terms;
        let write = RecordWrite { sent: grant.since, asked };
        let spare = SpareFences::after(grant.fence, grant.fences);
        let life = Life::new(ends, ends.since(grant.since));
        HeldLock {
            name,
            mode,
            fence: grant.fence,
            epoch: grant.epoch,
            permit: None,
            ttl: AtomicU64::new(nanos(ttl)),
            may_reappear: grant.may_reappear,
            is_adopted: false,
            dies_with_process: until_death,
            notices,
            spare: Some(spare),
            stays: AtomicBool::new(false),
            stay_ends: None,
            shared: None,
            broken: OnceLock::new(),
            gives_up_rights: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            since: grant.since,
            reported: Reported::nothing(),
            ownership: Mutex::new(Ownership::Owned(OwnedRecord {
                record: grant.owner_record,
                longest_ttl: asked,
                write: Some(write),
                ends,
                hold_until: Moment::OVER,
                is_converting: false,
                from_token: None,
                renewing: 0,
                begun: 0,
                confirmed: 0,
                confirmed_by_caller: 0,
            })),
            life,
        }
    }

    /// Makes the state of a lease that comes from another process.
    pub(crate) fn adopted(token: LeaseToken) -> HeldLock {
        let LeaseToken { name, mode, fence, epoch, permit, ends: token_end, ttl, owner_record, store } =
            token;
        let grant =
            Grant { owner_record, fence, epoch, fences: 1, since: Moment::now(), may_reappear: false };
        // No lease lasts longer than its TTL, even if its token says so.
        let ends = token_end.here().map(|ends| ends.min(Moment::now().after(ttl)));
        let (asked, ends) = (ttl, ends.unwrap_or(UNKNOWN));
        let terms = LeaseTerms { mode, ttl, asked, ends, until_death: false, notices: None };
        let mut held = HeldLock::new(name, grant, terms);
        held.is_adopted = true;
        held.change(|owned| owned.from_token = Some(FromToken { ends: token_end, store }));
        (held.spare, held.permit) = (None, permit);
        held.reported.begin();
        held
    }

    /// Makes the state of a lease of a lock that stayed with this process.
    pub(crate) fn retaken(name: LockName, retaken: Retaken, ttl: Duration, ends: Moment) -> HeldLock {
        let Retaken { lingering, fence, at } = retaken;
        let LingeringLock { record, mode, epoch, write, spare, longest_ttl, notices, stay_ends, .. } =
            lingering;
        let grant = Grant { owner_record: record, fence, epoch, fences: 1, since: at, may_reappear: false };
        let terms = LeaseTerms { mode, ttl, asked: longest_ttl, ends, until_death: false, notices };
        let mut held = HeldLock::new(name, grant, terms);
        held.change(|owned| owned.write = Some(write));
        held.spare = Some(spare);
        held.goes_on_until(stay_ends)
    }

    fn change(&mut self, change: impl FnOnce(&mut OwnedRecord)) {
        if let Some(owned) = self.ownership.get_mut().owned_mut() {
            change(owned);
        }
    }

    /// The lock stayed before this lease, and others could not have it in between.
    pub(crate) fn goes_on_until(self, stay_ends: Moment) -> HeldLock {
        HeldLock { stay_ends: Some(stay_ends), ..self }
    }

    /// Leases of this owner may share it.
    pub(crate) fn of_owner(self, owner: Arc<str>) -> HeldLock {
        HeldLock { shared: Some(SharedHold::new(owner)), ..self }
    }

    pub(crate) fn shared(&self) -> Option<&SharedHold> {
        self.shared.as_ref()
    }

    /// It is this permit of a semaphore, which never stays.
    pub(crate) fn of_permit(self, permit: u8) -> HeldLock {
        HeldLock { permit: Some(permit), spare: None, ..self }
    }

    /// Whether the lock has stayed since others could have it.
    pub(crate) fn has_stayed(&self) -> bool {
        self.stay_ends.is_some()
    }

    /// Releases the lock here and leaves its record in the store, for `linger` after the last write, and after the first
    /// release that did so. `None` if it must be released in the store: the time of staying is over, the lease is over or
    /// from a token, or it is not known what the store has.
    pub(crate) fn linger(&self, linger: Duration) -> Option<LingeringLock> {
        let spare = self.spare.filter(|_| !self.may_reappear && !self.dies_with_process)?;
        let mut ownership = self.ownership.lock();
        let Ownership::Owned(owned) = &*ownership else { return None };
        let now = Moment::now();
        if owned.is_converting || now < owned.hold_until || now >= self.ends() {
            return None;
        }
        let write = owned.write?;
        let stay_ends = self.stay_ends.unwrap_or_else(|| now.after(linger));
        let until = write.sent.after(linger).min(stay_ends);
        if now >= until {
            return None;
        }
        let (record, longest_ttl, notices) = (owned.record.clone(), owned.longest_ttl, self.notices);
        *ownership = Ownership::Over;
        self.stays.store(true, Ordering::Release);
        self.life.released();
        let (mode, epoch) = (self.mode, self.epoch);
        Some(LingeringLock { record, mode, epoch, write, spare, longest_ttl, notices, until, stay_ends })
    }

    /// Lets the lock stay held for this time from now, even if it is released sooner.
    /// Returns `false` if the lease dies with its process, which others need not wait for.
    #[must_use]
    pub(crate) fn hold_at_least(&self, min_hold: Duration) -> bool {
        if let Some(owned) = self.ownership.lock().owned_mut().filter(|_| !self.dies_with_process) {
            owned.hold_until = Moment::now().after(min_hold);
        }
        !self.dies_with_process
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// Returns the epoch, which an exclusive lease has begun with its fence. `None` for a permit.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        let begun = self.fence.filter(|_| self.mode == Mode::Exclusive);
        self.epoch.or(begun.map(Epoch::from))
    }

    pub(crate) fn permit(&self) -> Option<u8> {
        self.permit
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

    /// Whether the lock was neither released nor found lost nor handed on nor given up. `true` during a release, which may
    /// fail.
    pub(crate) fn is_open(&self) -> bool {
        match &*self.ownership.lock() {
            Ownership::Owned(_) => true,
            Ownership::Releasing(_, releases) => !releases.is_given_up,
            Ownership::Lost | Ownership::Over => false,
        }
    }

    /// Whether no request can change what has become of the lease.
    pub(crate) fn is_over(&self) -> bool {
        matches!(&*self.ownership.lock(), Ownership::Lost | Ownership::Over)
    }

    /// Whether a release is under way or has failed.
    pub(crate) fn is_releasing(&self) -> bool {
        matches!(&*self.ownership.lock(), Ownership::Releasing(..))
    }

    /// Ends a lease whose lock the caller does not release any more.
    pub(crate) fn give_up(&self) -> GivenUp {
        let mut ownership = self.ownership.lock();
        let leftover = match &mut *ownership {
            Ownership::Releasing(_, releases) if releases.under_way > 0 => {
                releases.is_given_up = true;
                return GivenUp::Left;
            }
            Ownership::Owned(owned) | Ownership::Releasing(owned, _) => self.leftover_of(owned),
            Ownership::Lost | Ownership::Over => return GivenUp::Over,
        };
        *ownership = Ownership::Over;
        self.life.released();
        GivenUp::Free(leftover)
    }

    fn leftover_of(&self, owned: &OwnedRecord) -> Leftover {
        // A gateway may send a request twice, which puts the record back after its release.
        owned.leftover(if self.may_reappear { LockDoubt::MayBeTaken } else { LockDoubt::MayBeHeld })
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.gives_up_rights.load(Ordering::Acquire) {
            return Err(self.changes_its_mode());
        }
        if Moment::now() < self.ends() { Ok(()) } else { Err(self.not_valid()) }
    }

    /// Returns the record that holds the lock.
    ///
    /// # Errors
    /// LEASE_LOST if the lease was released, handed on or found lost, or is being released.
    pub(crate) fn record(&self) -> Result<OwnerRecord> {
        self.ownership.lock().at_rest().map(|owned| owned.record.clone()).ok_or_else(|| self.over())
    }

    /// Ends the lease here and hands the lock on as a token. `here` is the id of the store.
    ///
    /// # Errors
    /// As for [`record`](HeldLock::record).
    pub(crate) fn hand_on(&self, here: StoreId) -> Result<LeaseToken> {
        let mut ownership = self.ownership.lock();
        let Some(owned) = ownership.at_rest() else { return Err(self.over()) };
        let (ends, store) = match owned.from_token {
            // It gets no id before a renewal shows that the lease is of this store.
            Some(FromToken { ends, store }) => (ends, store),
            None => (TokenEnd::at(self.ends()), Some(here)),
        };
        let (name, owner_record) = (self.name.clone(), owned.record.clone());
        *ownership = Ownership::Over;
        self.life.released();
        let (mode, fence, epoch, ttl) = (self.mode, self.fence, self.epoch, self.ttl());
        Ok(LeaseToken { name, mode, fence, epoch, permit: self.permit, ends, ttl, owner_record, store })
    }

    /// A call other than a renewal or a release has found no record of ours in the store. Returns why. `None` if the lease
    /// was over before.
    pub(crate) fn lose(&self) -> Option<LostReason> {
        let mut ownership = self.ownership.lock();
        let reason = self.why_gone(ownership.at_rest()?);
        *ownership = Ownership::Lost;
        self.life.lost(reason);
        Some(reason)
    }

    /// Remembers who broke the lock, and why.
    pub(crate) fn broken(&self, by: String) {
        let _ = self.broken.set(by);
    }

    /// Notes that the manager is closed, for the errors of later calls.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Returns why a record that nobody has replaced is gone. The first reason stays: a process that was stopped lost the
    /// lease for that.
    fn why_gone(&self, owned: &OwnedRecord) -> LostReason {
        match self.life.state().lost() {
            Some(LostReason::ProcessStopped) => LostReason::ProcessStopped,
            _ => owned.why_gone(),
        }
    }
}

/// Without its record, which is secret.
impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, mode) = (&self.name, &self.mode);
        f.debug_struct("HeldLock").field("name", name).field("mode", mode).finish_non_exhaustive()
    }
}

impl Ownership {
    /// Returns the record that this process has, unless a release is under way.
    fn at_rest(&self) -> Option<&OwnedRecord> {
        match self {
            Ownership::Owned(owned) => Some(owned).filter(|owned| !owned.is_converting),
            Ownership::Releasing(owned, releases) => {
                Some(owned).filter(|owned| releases.under_way == 0 && !owned.is_converting)
            }
            Ownership::Lost | Ownership::Over => None,
        }
    }

    fn owned_mut(&mut self) -> Option<&mut OwnedRecord> {
        match self {
            Ownership::Owned(owned) | Ownership::Releasing(owned, _) => Some(owned),
            Ownership::Lost | Ownership::Over => None,
        }
    }
}

impl Releases {
    /// Returns the state before the first one.
    fn of(why: LostReason) -> Releases {
        Releases { under_way: 0, why, has_overlapped: false, has_failed: false, is_given_up: false }
    }
}

impl OwnedRecord {
    fn leftover(&self, doubt: LockDoubt) -> Leftover {
        Leftover { record: self.record.clone(), ttl: self.longest_ttl, doubt }
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
mod tests;
