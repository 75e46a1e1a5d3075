//! The events of a lease. Nothing of the library may be locked when one is reported.

use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::events::event::Event;
use crate::events::sinks::{EventSinks, OpenSpans};
use crate::lease::held_lock::HeldLock;
use crate::names::fence::Fence;
use crate::names::lease_state::{LeaseState, LostReason};
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::runtime::time::Moment;

/// Reports to the sinks of a manager what happens to one lease.
pub(crate) struct LeaseEvents<'a> {
    events: &'a EventSinks,
    lease: &'a HeldLock,
}

impl<'a> LeaseEvents<'a> {
    pub(crate) fn new(events: &'a EventSinks, lease: &'a HeldLock) -> LeaseEvents<'a> {
        LeaseEvents { events, lease }
    }

    /// The caller gets the lease. Remembered also without sinks, because some may come later.
    pub(crate) fn acquired(&self, waited: impl FnOnce() -> Duration, open: OpenSpans) {
        self.lease.reported.begin();
        if self.events.are_open() {
            let (lock, mode, fence) = self.lease();
            self.events.tell_end(&Event::Acquired { lock, mode, fence, waited: waited() }, open);
        }
    }

    /// A renewal has ended, whose answer is `answer`. Whoever finds a lease lost reports that, when its reason is known.
    pub(crate) fn renewal(&self, answer: &Result<()>) {
        match answer {
            Ok(()) => self.renewed(),
            Err(Error::LeaseLost { .. }) => {}
            Err(error) => self.renewal_failed(error.code()),
        }
    }

    pub(crate) fn renewed(&self) {
        // Otherwise it was lost since then, and that is reported.
        let is_valid = || self.lease.life.state().is_valid();
        if self.events.are_open() && is_valid() && self.lease.reported.renew() {
            let (lock, mode, fence) = self.lease();
            self.events.report(&Event::Renewed { lock, mode, fence, left: self.left() });
        }
    }

    pub(crate) fn renewal_failed(&self, code: Code) {
        if self.events.are_open() && self.lease.reported.has_begun() {
            let (lock, mode, fence) = self.lease();
            self.events.report(&Event::RenewalFailed { lock, mode, fence, code, left: self.left() });
        }
    }

    /// A release has ended, whose answer is `answer`. `freed` says whether the store has confirmed it.
    pub(crate) fn release(&self, answer: &Result<bool>, freed: bool) {
        match answer {
            Ok(true) => self.released(freed),
            Err(Error::LeaseLost { reason: Some(reason), .. }) => self.lost(*reason),
            Ok(false) | Err(_) => {}
        }
    }

    pub(crate) fn released(&self, freed: bool) {
        if self.events.are_open() && self.lease.reported.end() {
            let ((lock, mode, fence), held) = (self.lease(), self.held());
            self.events.report(&Event::Released { lock, mode, fence, held, freed });
        }
    }

    /// The lease goes on as `next`, in another mode. If its end was reported during the change, `next` is a new beginning.
    pub(crate) fn mode_changed(&self, next: &HeldLock, waited: impl FnOnce() -> Duration) {
        if !self.lease.reported.end() {
            return LeaseEvents::new(self.events, next).acquired(waited, OpenSpans::default());
        }
        next.reported.begin();
        if self.events.are_open() {
            let (lock, from, held) = (self.lease.name(), self.lease.mode(), self.held());
            let (to, fence, epoch) = (next.mode(), next.fence(), next.epoch());
            self.events.report(&Event::ModeChanged { lock, from, to, fence, epoch, waited: waited(), held });
        }
    }

    pub(crate) fn handed_on(&self) {
        if self.events.are_open() && self.lease.reported.end() {
            let ((lock, mode, fence), held) = (self.lease(), self.held());
            self.events.report(&Event::HandedOn { lock, mode, fence, held });
        }
    }

    pub(crate) fn lost(&self, reason: LostReason) {
        // The end of an adopted lease may be unknown. That is no loss.
        if self.events.are_open() && reason != LostReason::EndUnknown && self.lease.reported.lose() {
            let ((lock, mode, fence), held) = (self.lease(), self.held());
            self.events.report(&Event::Lost { lock, mode, fence, reason, held });
        }
    }

    /// Reports what the clock has changed.
    pub(crate) fn report_state(&self) {
        if !self.events.are_open() || !self.lease.reported.has_begun() {
            return;
        }
        if let Some(reason) = self.lease.life.expired() {
            self.lost(reason);
        } else if self.lease.life.state() == LeaseState::AtRisk && self.lease.reported.risk() {
            let (lock, mode, fence) = self.lease();
            self.events.report(&Event::AtRisk { lock, mode, fence, left: self.left() });
        }
    }

    fn lease(&self) -> (&'a LockName, Mode, Option<Fence>) {
        (self.lease.name(), self.lease.mode(), self.lease.fence())
    }

    fn left(&self) -> Duration {
        self.lease.ends().since(Moment::now())
    }

    fn held(&self) -> Duration {
        Moment::now().since(self.lease.since())
    }
}
