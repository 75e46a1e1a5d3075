//! The errors of calls on a lease that is over.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use super::HeldLock;
use crate::error::Error;
use crate::names::lease_state::{LeaseState, LostReason};

const RELEASED: &str = "it was released or turned into a token before";
/// For a lease from a token: only its record shows whether it was released.
const RELEASED_BEFORE: &str =
    "it was released before: the store has no record of it, although its time is not over";
const GONE: &str = "it was released before, or the store lost its record; another may hold the lock";
const EXPIRED: &str = "it has expired, or was released before";
const CLOSED: &str = "its manager was closed, which has released it";
const CHANGES: &str = "its mode is being changed; the new lease holds the lock";
const REVIVED: &str = "it expired before it was renewed, and another may have held the lock since then";

impl HeldLock {
    pub(super) fn not_valid(&self) -> Error {
        match self.life.state() {
            LeaseState::Lost(reason) => self.lost(reason, reason.explained()),
            _ => self.over(),
        }
    }

    /// Returns the error of a call while a request is under way that changes the mode.
    pub(crate) fn changes_its_mode(&self) -> Error {
        self.not_held(CHANGES)
    }

    /// Returns the error of a call after the end of the lease.
    pub(crate) fn over(&self) -> Error {
        match self.life.state().lost() {
            Some(reason) => self.lost(reason, reason.explained()),
            None if self.closed.load(Ordering::Acquire) => self.not_held(CLOSED),
            None => self.not_held(RELEASED),
        }
    }

    /// Returns the error of a call on a lease that was released while others share its hold.
    pub(crate) fn left(&self) -> Error {
        self.not_held(RELEASED)
    }

    /// Returns the error of a renewal that was [too late](RenewalEnd::TooLate).
    pub(crate) fn revived(&self) -> Error {
        self.lost(LostReason::Expired, REVIVED)
    }

    /// Returns the error of a release that has found no record, if that shows only that the lock was released before.
    pub(crate) fn released_before(&self, why: LostReason) -> Option<Error> {
        (self.is_adopted && why == LostReason::RecordGone).then(|| self.not_held(RELEASED_BEFORE))
    }

    /// Returns the error of a lease that was not lost: it was released, or is one of another store.
    pub(crate) fn not_held(&self, why: impl Into<Cow<'static, str>>) -> Error {
        Error::LeaseLost { name: self.name.to_string(), why: why.into(), reason: None }
    }

    /// Returns the error of a lease whose record is gone for this reason.
    pub(crate) fn gone_for(&self, reason: LostReason) -> Error {
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
