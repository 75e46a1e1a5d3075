//! The life of a lease: its end, its state, and the listeners that receive its changes.
//!
//! | state | `check` | begins with | ends with |
//! |---|---|---|---|
//! | held | `Ok` | the grant; a renewal by the caller | keep-alive, its end, a loss, a release |
//! | renewing | `Ok` | keep-alive; a renewal | less than a third left, a loss, a release |
//! | at risk | `Ok` | less than a third left | a renewal, its end, a loss, a release |
//! | lost | fails | its end on the lease clock; a renewal or release that finds it lost | a renewal by the caller that the store confirms |
//! | released | fails | a release; `into_token` | - |
//!
//! The state follows from the clock and from a few facts. No thread has to run for it to change, so none can be late.
//! The background threads renew leases, but never one whose end has passed, and so never bring one back.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::names::lease_state::{LeaseState, LostReason};
use crate::runtime::sync::{AtomicU64, Mutex};
use crate::runtime::time::Moment;
use crate::runtime::timerfd::Timerfd;
#[cfg(feature = "capi")]
use crate::wait::completions::{CompletionKind, Completions};

/// End of a lease from another machine: in the past, and different from the end of a released lease.
pub(crate) const UNKNOWN: Moment = Moment::from_nanos(1);

pub(crate) struct Life {
    /// End of the lease in nanoseconds of the lease clock; zero once it is released or found lost. Changed under
    /// `facts`.
    ends: AtomicU64,
    facts: Mutex<Facts>,
    /// Fires at the end of the lease. Created by the first call, under `facts`.
    lost_fd: OnceLock<Timerfd>,
    /// Fires when the lease is at risk, or has ended. Created by the first call, under `facts`.
    at_risk_fd: OnceLock<Timerfd>,
}

struct Facts {
    /// A third of the time from the grant, or the last renewal by the caller, to its end.
    third: Duration,
    kept: Option<Kept>,
    /// Why it was lost, if a request to the store has found it lost.
    lost: Option<LostReason>,
    /// Channels with room for one message: the state has changed since the last message was read.
    listeners: Vec<Sender<()>>,
    /// The list that gets an entry when the lease is at risk or has ended.
    #[cfg(feature = "capi")]
    listed: Option<ListedChanges>,
    /// Whether no list gets an entry any more.
    #[cfg(feature = "capi")]
    is_unlisted: bool,
    /// The state after the last message.
    reported: LeaseState,
}

/// The entries of a lease in a list of completions: at most one of each kind.
#[cfg(feature = "capi")]
struct ListedChanges {
    completions: Completions,
    tag: u64,
    at_risk: Option<u64>,
    ended: Option<u64>,
}

#[cfg(feature = "capi")]
impl ListedChanges {
    /// `was_valid`: whether the lease was valid before. It ends once, and the reason may become known later.
    fn report(&mut self, was_valid: bool, state: LeaseState) {
        let (kind, number) = match state {
            LeaseState::AtRisk => (CompletionKind::AtRisk, &mut self.at_risk),
            LeaseState::Lost(reason) => (CompletionKind::Ended(Some(reason)), &mut self.ended),
            LeaseState::Released => (CompletionKind::Ended(None), &mut self.ended),
            LeaseState::Held | LeaseState::Renewing => return,
        };
        let is_in_list = number.is_some_and(|number| self.completions.replace(number, kind));
        if was_valid && !is_in_list {
            *number = Some(self.completions.push(self.tag, kind));
        }
    }
}

#[derive(Clone, Copy)]
struct Kept {
    /// No renewal makes the lease last longer than this.
    until: Moment,
    /// Whether a renewal has failed since the last one that succeeded.
    is_failing: bool,
}

impl Life {
    /// `length` is the time from the grant to the end.
    pub(crate) fn new(ends: Moment, length: Duration) -> Life {
        let facts = Facts {
            third: length / 3,
            kept: None,
            lost: None,
            listeners: Vec::new(),
            #[cfg(feature = "capi")]
            listed: None,
            #[cfg(feature = "capi")]
            is_unlisted: false,
            reported: LeaseState::Held,
        };
        Life {
            ends: AtomicU64::new(ends.as_nanos()),
            facts: Mutex::new(facts),
            lost_fd: OnceLock::new(),
            at_risk_fd: OnceLock::new(),
        }
    }

    /// Returns when the lease expires: zero once it was released or found lost. No locks.
    pub(crate) fn ends(&self) -> Moment {
        Moment::from_nanos(self.ends.load(Ordering::Acquire))
    }

    pub(crate) fn state(&self) -> LeaseState {
        self.facts.lock().state(self.ends(), Moment::now())
    }

    /// Renewals by the background threads begin, and end at `until`.
    pub(crate) fn keep(&self, until: Moment) {
        let mut facts = self.facts.lock();
        facts.kept = Some(Kept { until, is_failing: false });
        self.notify(&mut facts);
    }

    /// Records that a renewal by the background threads would make the lease last hardly longer than it does.
    pub(crate) fn longest_reached(&self) {
        if let Some(kept) = &mut self.facts.lock().kept {
            kept.until = self.ends();
        }
    }

    /// No renewal by the background threads begins any more.
    pub(crate) fn stop_keeping(&self) {
        let mut facts = self.facts.lock();
        facts.kept = None;
        self.notify(&mut facts);
    }

    /// Returns why the lease was lost, if its time has run out. `None` if a request has found it lost: whoever sent that
    /// request finds it so.
    pub(crate) fn expired(&self) -> Option<LostReason> {
        let facts = self.facts.lock();
        let reason = facts.state(self.ends(), Moment::now()).lost()?;
        (facts.lost.is_none() && reason != LostReason::EndUnknown).then_some(reason)
    }

    /// Returns the moment that no renewal by the background threads may pass. `None` if the lease is not kept alive.
    pub(crate) fn kept_until(&self) -> Option<Moment> {
        self.facts.lock().kept.map(|kept| kept.until)
    }

    /// Records a renewal by the caller. It may bring back a lease that had expired here.
    pub(crate) fn renewed(&self, ends: Moment, length: Duration) {
        let mut facts = self.facts.lock();
        facts.third = length / 3;
        self.extend(&mut facts, ends);
    }

    /// Records a renewal by the background threads. Returns `false` if the lease had ended before: then it stays lost.
    pub(crate) fn renewed_in_time(&self, ends: Moment) -> bool {
        let mut facts = self.facts.lock();
        let in_time = Moment::now() < self.ends();
        if in_time {
            // Its TTL was right when the renewal began, but the request may have been sent later.
            let ends = facts.kept.map_or(ends, |kept| ends.min(kept.until));
            self.extend(&mut facts, ends.max(self.ends()));
        }
        in_time
    }

    fn extend(&self, facts: &mut Facts, ends: Moment) {
        facts.lost = None;
        if let Some(kept) = &mut facts.kept {
            kept.is_failing = false;
        }
        self.ends.store(ends.as_nanos(), Ordering::Release);
        self.notify(facts);
    }

    /// Records that a renewal by the background threads failed, and the lease keeps its end.
    pub(crate) fn renewal_failed(&self) {
        let mut facts = self.facts.lock();
        // Later, it says nothing about why the lease ended: the process may have been stopped during the request.
        let in_time = Moment::now() < self.ends();
        if let Some(kept) = facts.kept.as_mut().filter(|_| in_time) {
            kept.is_failing = true;
        }
    }

    /// Ends the lease at once. [`lost`](Life::lost) signals the descriptors and listeners, when the reason is certain.
    pub(crate) fn end(&self, likely: LostReason) {
        let mut facts = self.facts.lock();
        facts.lost = Some(likely);
        self.ends.store(Moment::OVER.as_nanos(), Ordering::Release);
    }

    pub(crate) fn lost(&self, reason: LostReason) {
        self.over(Some(reason));
    }

    pub(crate) fn released(&self) {
        self.over(None);
    }

    fn over(&self, lost: Option<LostReason>) {
        let mut facts = self.facts.lock();
        facts.lost = lost;
        facts.kept = None;
        self.ends.store(Moment::OVER.as_nanos(), Ordering::Release);
        self.notify(&mut facts);
    }

    /// Returns a channel that gets a message when the state changes, and has one if the lease is over already: its state
    /// changes no more, and whoever waits for a message would never learn of the loss.
    pub(crate) fn listen(&self) -> Receiver<()> {
        let (listener, changes) = bounded(1);
        let mut facts = self.facts.lock();
        // The earlier listeners receive a change up to now.
        self.notify(&mut facts);
        if !facts.reported.is_valid() {
            listener.send(()).expect("there is room for one");
        }
        facts.listeners.push(listener);
        changes
    }

    /// Adds the tag to the list when the lease is at risk, or has ended. Returns `false` if it has a list already.
    #[cfg(feature = "capi")]
    pub(crate) fn list_changes(&self, completions: &Completions, tag: u64) -> bool {
        let mut facts = self.facts.lock();
        self.notify(&mut facts);
        if facts.is_unlisted || facts.listed.as_ref().is_some_and(|it| !it.completions.is_closed()) {
            return false;
        }
        let completions = completions.clone();
        let mut listed = ListedChanges { completions, tag, at_risk: None, ended: None };
        listed.report(true, facts.reported);
        facts.listed = Some(listed);
        true
    }

    /// Takes the tag out of the list, which gets no more of this lease. `for_good`: nor does any other list.
    #[cfg(feature = "capi")]
    pub(crate) fn stop_listing(&self, for_good: bool) {
        let mut facts = self.facts.lock();
        facts.is_unlisted |= for_good;
        let listed = facts.listed.take();
        drop(facts);
        if let Some(ListedChanges { completions, at_risk, ended, .. }) = listed {
            at_risk.into_iter().chain(ended).for_each(|number| completions.remove(number));
        }
    }

    /// Notifies the listeners of a change by the clock. Returns when the clock will change the state next; `None` if it
    /// will not, or if nobody listens. If there are event sinks, they listen to a lease that is kept alive.
    pub(crate) fn notice(&self, has_sinks: bool) -> Option<Moment> {
        let mut facts = self.facts.lock();
        // One reading of the clock: a change between two readings would never be reported.
        let (now, ends) = (Moment::now(), self.ends());
        self.tell_at(&mut facts, now);
        let at_risk = facts.at_risk(ends);
        let next = if now < at_risk { at_risk } else { ends };
        let is_heard = facts.has_listeners() || (has_sinks && facts.kept.is_some());
        (now < next && is_heard).then_some(next)
    }

    /// Returns a descriptor that is readable once the lease has ended.
    pub(crate) fn lost_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.fd(&self.lost_fd, |_, ends| ends)
    }

    /// Returns a descriptor that is readable while the lease is at risk, and once it has ended.
    pub(crate) fn at_risk_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.fd(&self.at_risk_fd, Facts::at_risk)
    }

    fn fd<'a>(
        &'a self,
        cell: &'a OnceLock<Timerfd>,
        at: impl Fn(&Facts, Moment) -> Moment,
    ) -> io::Result<BorrowedFd<'a>> {
        if let Some(timerfd) = cell.get() {
            return Ok(timerfd.as_fd());
        }
        let facts = self.facts.lock();
        let timerfd = Timerfd::at(at(&facts, self.ends()))?;
        Ok(cell.get_or_init(|| timerfd).as_fd())
    }

    pub(crate) fn has_listeners(&self) -> bool {
        self.facts.lock().has_listeners()
    }

    fn notify(&self, facts: &mut Facts) {
        self.tell_at(facts, Moment::now());
    }

    fn tell_at(&self, facts: &mut Facts, now: Moment) {
        let ends = self.ends();
        let timers = [(&self.lost_fd, ends), (&self.at_risk_fd, facts.at_risk(ends))];
        for (timerfd, at) in timers {
            if let Some(Err(error)) = timerfd.get().map(|timerfd| timerfd.set(at)) {
                log::error!("the timer of a lease could not be set: {error}");
            }
        }
        let state = facts.state(ends, now);
        if facts.reported != state {
            #[cfg(feature = "capi")]
            let was_valid = facts.reported.is_valid();
            facts.reported = state;
            // A full channel has a message that was not read yet. A listener that is gone is removed.
            facts
                .listeners
                .retain(|listener| !matches!(listener.try_send(()), Err(TrySendError::Disconnected(()))));
            #[cfg(feature = "capi")]
            if let Some(listed) = &mut facts.listed {
                listed.report(was_valid, state);
            }
        }
    }
}

impl Facts {
    fn has_listeners(&self) -> bool {
        #[cfg(feature = "capi")]
        if self.listed.is_some() {
            return true;
        }
        !self.listeners.is_empty()
    }

    fn state(&self, ends: Moment, now: Moment) -> LeaseState {
        if now < ends {
            return match self.kept {
                None => LeaseState::Held,
                Some(_) if now < self.at_risk(ends) => LeaseState::Renewing,
                Some(_) => LeaseState::AtRisk,
            };
        }
        match (ends, self.lost) {
            (_, Some(reason)) => LeaseState::Lost(reason),
            (Moment::OVER, None) => LeaseState::Released,
            (UNKNOWN, None) => LeaseState::Lost(LostReason::EndUnknown),
            (_, None) => LeaseState::Lost(self.why_expired(ends)),
        }
    }

    /// The background threads begin early and give up each request before the end of the lease. So if no renewal failed,
    /// they did not run.
    fn why_expired(&self, ends: Moment) -> LostReason {
        match self.kept {
            Some(kept) if !kept.is_failing && ends < kept.until => LostReason::ProcessStopped,
            _ => LostReason::Expired,
        }
    }

    /// Returns when the lease is at risk: at its end, if it is not kept alive.
    fn at_risk(&self, ends: Moment) -> Moment {
        let ahead = if self.kept.is_some() { self.third } else { Duration::ZERO };
        Moment::from_nanos(ends.since(Moment::OVER).saturating_sub(ahead).as_nanos() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_that_was_sent_late_does_not_pass_the_longest_time() {
        let (now, length) = (Moment::now(), Duration::from_secs(90));
        let life = Life::new(now.after(length), length);
        life.keep(now.after(length * 2));
        assert!(life.renewed_in_time(now.after(length * 3)));
        assert_eq!(life.ends(), now.after(length * 2));
        assert_eq!(life.state(), LeaseState::Renewing);
    }

    /// A busy machine lost a lease between the call that kept it and the one that listened, and nobody was told.
    #[test]
    fn who_listens_to_a_lease_that_is_over_is_told_at_once() {
        let (now, length) = (Moment::now(), Duration::from_secs(90));
        let valid = Life::new(now.after(length), length);
        let changes = valid.listen();
        assert!(changes.is_empty(), "nothing has changed");
        valid.released();
        assert_eq!((changes.len(), valid.listen().len()), (1, 1));
        assert_eq!(Life::new(now, length).listen().len(), 1, "it has expired");
    }

    #[cfg(feature = "capi")]
    #[test]
    fn a_list_gets_the_end_of_a_lease_once_with_the_last_reason_and_nothing_after_it_was_stopped() {
        let (now, length) = (Moment::now(), Duration::from_secs(90));
        let completions = Completions::new();
        let kinds =
            || std::iter::from_fn(|| completions.next_completion()).map(|it| it.kind).collect::<Vec<_>>();
        let expired = Life::new(now, length);
        assert!(expired.list_changes(&completions, 7));
        assert!(!expired.list_changes(&completions, 8), "it has a list");
        assert_eq!(kinds(), [CompletionKind::Ended(Some(LostReason::Expired))]);
        // The clean-up after a loss.
        expired.released();
        assert_eq!(kinds(), []);

        let valid = Life::new(now.after(length), length);
        assert!(valid.list_changes(&completions, 7));
        valid.released();
        valid.lost(LostReason::TakenOver);
        assert_eq!(kinds(), [CompletionKind::Ended(Some(LostReason::TakenOver))], "the reason came later");

        let stopped = Life::new(now.after(length), length);
        assert!(stopped.list_changes(&completions, 7));
        stopped.stop_listing(true);
        stopped.released();
        assert_eq!(kinds(), []);
        assert!(!stopped.list_changes(&completions, 7), "a call that was under way");

        let closed = Completions::new();
        let moved = Life::new(now.after(length), length);
        assert!(moved.list_changes(&closed, 7));
        closed.close();
        assert!(moved.list_changes(&completions, 7), "the other list is gone");
    }

    #[test]
    fn no_renewal_in_the_background_makes_a_lease_shorter() {
        let (now, length) = (Moment::now(), Duration::from_secs(90));
        let life = Life::new(now.after(length), length);
        life.keep(now.after(length / 2));
        assert!(life.renewed_in_time(now.after(length / 3)));
        assert_eq!(life.ends(), now.after(length));
    }
}
