//! Remembers locks that a thread of this process acquired lately while no other thread was in the queue. The queue
//! of such a lock is removed, but a thread that acquires it in a loop would still keep it from other processes.
//!
//! Also remembers locks that had stayed with this process and were given back because their time was over. Others could
//! not find them free all that time, so this process leaves each of them to others for an interval.

use std::collections::VecDeque;
use std::time::Duration;

use crate::names::lock_name::LockName;
use crate::runtime::sync::HashMap;
use crate::runtime::time::Moment;

/// Fairness quantum of one thread: the number of retry intervals for which it may acquire and release a lock in a
/// loop. Then it yields for one interval. It cannot know whether another process wants the lock, so a loop without
/// rivals pays a fiftieth of its time as well. Other processes get a turn within their wait, which is 90 intervals
/// by default.
pub(super) const LOOP_QUANTUM: u32 = 50;

/// A lock that stays free for an interval divided by this number ends the quantum: now and then another process has
/// found it free.
const GAP: u32 = 10;

/// Limit of remembered names. A loop over more locks at a time does not yield.
const NAMES_MAX: usize = 32;

/// Limit of entries for locks that are left to others, one or two for each. Beyond it, the oldest may be taken again a
/// little sooner.
const LEFT_MAX: usize = 65_536;

/// Returns when every other process has had a turn. Each reads the lock once per interval, which jitter lengthens
/// by at most a tenth, and its request takes some time.
pub(super) fn others_turn(now: Moment, retry: Duration) -> Moment {
    now.after(retry + retry / 5)
}

/// The remembered locks, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Recent {
    entries: VecDeque<LoopEntry>,
    /// Until when locks are left to others.
    left: HashMap<LockName, Moment>,
    /// The same in order. May name a lock twice.
    left_in_order: VecDeque<(Moment, LockName)>,
}

#[derive(Debug)]
struct LoopEntry {
    name: LockName,
    /// Start of the quantum: no other process can have had a turn since then.
    since: Moment,
    now: LoopState,
}

#[derive(Debug)]
enum LoopState {
    Held,
    /// Released. A thread that acquires the lock before this moment continues the quantum.
    Released(Moment),
    /// This process yields until this moment.
    Yields(Moment),
}

/// What is known about a lock when a thread wants it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Past {
    Nothing,
    /// A thread of this process holds the lock, in a quantum that began at this moment.
    Held(Moment),
    /// The thread continues the quantum that began at this moment.
    GoesOn(Moment),
    /// The thread must not ask the store before this moment.
    Yields(Moment),
}

impl Recent {
    /// Remembers that a thread of this process holds the lock and that its queue is empty.
    pub(super) fn held(&mut self, name: LockName, since: Moment) {
        if self.entries.len() == NAMES_MAX {
            self.entries.pop_front();
        }
        self.entries.push_back(LoopEntry { name, since, now: LoopState::Held });
    }

    /// Returns the start of the quantum of this lock.
    pub(super) fn since(&self, name: &LockName) -> Option<Moment> {
        self.entries.iter().rfind(|entry| entry.name == *name).map(|entry| entry.since)
    }

    /// `free_since` is `None` if the lock stays with this process. `yield_until` is the end of the pause if the quantum is
    /// over.
    pub(super) fn released(
        &mut self,
        name: &LockName,
        free_since: Option<Moment>,
        retry: Duration,
        yield_until: Option<Moment>,
    ) {
        let Some(entry) = self.entries.iter_mut().rfind(|entry| entry.name == *name) else { return };
        entry.now = match yield_until {
            Some(until) => LoopState::Yields(until),
            None => LoopState::Released(free_since.map_or(Moment::NEVER, |since| since.after(retry / GAP))),
        };
    }

    /// Another process received the notice that the lock is free.
    pub(super) fn handed_on(&mut self, name: &LockName, yield_until: Option<Moment>) {
        let Some(at) = self.entries.iter().rposition(|entry| entry.name == *name) else { return };
        match yield_until {
            Some(until) => self.entries[at].now = LoopState::Yields(until),
            None => drop(self.entries.remove(at)),
        }
    }

    /// This process leaves the lock to others until this moment.
    pub(super) fn leave(&mut self, name: &LockName, until: Moment) {
        self.entries.retain(|entry| entry.name != *name);
        let now = Moment::now();
        while self
            .left_in_order
            .front()
            .is_some_and(|(at, _)| *at <= now || self.left_in_order.len() >= LEFT_MAX)
        {
            let Some((at, oldest)) = self.left_in_order.pop_front() else { break };
            if self.left.get(&oldest) == Some(&at) {
                self.left.remove(&oldest);
            }
        }
        self.left.insert(name.clone(), until);
        self.left_in_order.push_back((until, name.clone()));
    }

    /// Returns until when this process leaves the lock to others, if it does so now.
    pub(super) fn left_until(&self, name: &LockName) -> Option<Moment> {
        self.left.get(name).copied().filter(|until| Moment::now() < *until)
    }

    /// Forgets the lock, because a queue is created for it, and returns what was known.
    pub(super) fn take(&mut self, name: &LockName) -> Past {
        if let Some(until) = self.left_until(name) {
            return Past::Yields(until);
        }
        let found = self.entries.iter().rposition(|entry| entry.name == *name);
        let Some(LoopEntry { since, now: state, .. }) = found.and_then(|at| self.entries.remove(at)) else {
            return Past::Nothing;
        };
        let now = Moment::now();
        match state {
            LoopState::Held => Past::Held(since),
            LoopState::Released(until) if now < until => Past::GoesOn(since),
            LoopState::Yields(until) if now < until => Past::Yields(until),
            LoopState::Released(_) | LoopState::Yields(_) => Past::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::lock_name::{Level, NamePolicy};

    const RETRY: Duration = Duration::from_secs(3600);

    fn name(id: usize) -> LockName {
        LockName::new(Level::Xdc, "tests", None, &id.to_string(), NamePolicy::Strict).unwrap()
    }

    #[test]
    fn a_loop_goes_on_until_its_quantum_is_over_and_yields_then() {
        let (mut recent, now) = (Recent::default(), Moment::now());
        recent.held(name(1), now);
        recent.released(&name(1), Some(now), RETRY, None);
        assert_eq!(recent.take(&name(1)), Past::GoesOn(now));
        assert_eq!(recent.take(&name(1)), Past::Nothing);
        // With an interval of a year, a quantum that began at the start of the machine is not over.
        recent.held(name(1), Moment::from_nanos(0));
        recent.released(&name(1), Some(now), Duration::from_secs(3600 * 24 * 365), None);
        assert_eq!(recent.take(&name(1)), Past::GoesOn(Moment::from_nanos(0)));
        recent.held(name(1), now);
        assert_eq!(recent.since(&name(1)), Some(now));
        let until = others_turn(now, RETRY);
        assert!(until >= now.after(RETRY.mul_f64(1.1)), "others may not have looked");
        recent.released(&name(1), Some(now), RETRY, Some(until));
        assert_eq!(recent.take(&name(1)), Past::Yields(until));
    }

    #[test]
    fn a_lock_that_was_free_for_a_while_begins_a_new_quantum() {
        let mut recent = Recent::default();
        recent.held(name(1), Moment::now());
        recent.released(&name(1), Some(Moment::now()), Duration::from_millis(1), None);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(recent.take(&name(1)), Past::Nothing);
    }

    /// No other process can find it free, however long the thread pauses.
    #[test]
    fn a_lock_that_stays_does_not_begin_a_new_quantum() {
        let (mut recent, now) = (Recent::default(), Moment::now());
        recent.held(name(1), now);
        recent.released(&name(1), None, Duration::from_millis(1), None);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(recent.take(&name(1)), Past::GoesOn(now));
    }

    #[test]
    fn locks_are_left_to_others_until_their_time_however_many_there_are() {
        let (mut recent, far) = (Recent::default(), Moment::now().after(RETRY));
        recent.held(name(1), Moment::now());
        (0..1000).for_each(|id| recent.leave(&name(id), far));
        assert!((0..1000).all(|id| recent.left_until(&name(id)) == Some(far)));
        // It stays so, however often somebody asks all the same.
        assert_eq!([recent.take(&name(1)), recent.take(&name(1))], [Past::Yields(far), Past::Yields(far)]);
        assert_eq!(recent.since(&name(1)), None, "the quantum is over");
        // What is over is forgotten.
        recent.leave(&name(1000), Moment::now());
        (0..LEFT_MAX).for_each(|id| recent.leave(&name(id % 4), far));
        recent.leave(&name(5), far);
        assert!(recent.left_in_order.len() <= LEFT_MAX);
        assert_eq!(recent.take(&name(1000)), Past::Nothing);
    }

    /// A service may take millions of locks once each.
    #[test]
    fn names_do_not_pile_up_and_the_latest_are_kept() {
        let mut recent = Recent::default();
        let now = Moment::now();
        (0..1000).for_each(|id| recent.held(name(id), now));
        assert_eq!(recent.entries.len(), NAMES_MAX);
        assert_eq!(recent.take(&name(999)), Past::Held(now));
        assert_eq!(recent.take(&name(0)), Past::Nothing);
    }
}
