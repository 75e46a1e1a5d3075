//! Locks that a thread of this process took lately with nobody in line behind it. Such a thread leaves no
//! line, and in a loop it would keep the lock from other processes all the same.

use std::collections::VecDeque;
use std::time::Duration;

use crate::name::LockName;
use crate::time::Moment;

/// How many retry intervals one thread may take and release a lock in a loop before it yields for
/// one. Whether anybody else wants the lock cannot be seen, so a loop that is alone pays for it as well:
/// a fiftieth of its time. And others get in before their wait is over, which is 90 intervals by default.
const QUANTUM: u32 = 50;

/// A lock that was free for so much of an interval has been found free by others now and then.
const GAP: u32 = 10;

/// Names at the most. Loops over more of them at one time do not yield.
const NAMES_MAX: usize = 32;

/// When others have had their turn: all look once per interval, which jitter lengthens by a tenth, and
/// need some time to ask.
pub(super) fn others_turn(now: Moment, retry: Duration) -> Moment {
    now.after(retry + retry / 5)
}

/// The names, those longest here first.
#[derive(Debug, Default)]
pub(super) struct Recent {
    entries: VecDeque<LoopEntry>,
}

#[derive(Debug)]
struct LoopEntry {
    name: LockName,
    /// Since when nobody else can have had a turn.
    since: Moment,
    now: LoopState,
}

#[derive(Debug)]
enum LoopState {
    Held,
    /// Whoever takes it again before this moment goes on with the quantum.
    Released(Moment),
    /// Others' turn until then.
    Yields(Moment),
}

/// What there is to know for the thread that wants the lock next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Past {
    Nothing,
    /// A thread of this process has it, in a quantum since then.
    Held(Moment),
    /// It goes on with the quantum since then.
    GoesOn(Moment),
    /// It is to look at the lock then, and not before.
    Yields(Moment),
}

impl Recent {
    /// A thread has the lock, and nobody stands in line.
    pub(super) fn held(&mut self, name: LockName, since: Moment) {
        if self.entries.len() == NAMES_MAX {
            self.entries.pop_front();
        }
        self.entries.push_back(LoopEntry { name, since, now: LoopState::Held });
    }

    pub(super) fn released(&mut self, name: &LockName, retry: Duration) {
        let Some(entry) = self.entries.iter_mut().rev().find(|entry| entry.name == *name) else { return };
        let now = Moment::now();
        entry.now = if now.since(entry.since) > retry.saturating_mul(QUANTUM) {
            LoopState::Yields(others_turn(now, retry))
        } else {
            LoopState::Released(now.after(retry / GAP))
        };
    }

    /// Forgets the name, as a line is made for it.
    pub(super) fn take(&mut self, name: &LockName) -> Past {
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
    use crate::name::{Level, NamePolicy};

    const RETRY: Duration = Duration::from_secs(3600);

    fn name(id: usize) -> LockName {
        LockName::new(Level::Xdc, "tests", None, &id.to_string(), NamePolicy::Strict).unwrap()
    }

    #[test]
    fn a_loop_goes_on_until_its_quantum_is_over_and_yields_then() {
        let (mut recent, now) = (Recent::default(), Moment::now());
        recent.held(name(1), now);
        recent.released(&name(1), RETRY);
        assert_eq!(recent.take(&name(1)), Past::GoesOn(now));
        assert_eq!(recent.take(&name(1)), Past::Nothing);
        // Longer ago than intervals of a nanosecond count.
        recent.held(name(1), Moment::from_nanos(0));
        recent.released(&name(1), Duration::from_secs(3600 * 24 * 365));
        assert_eq!(recent.take(&name(1)), Past::GoesOn(Moment::from_nanos(0)));
        let retry = Duration::from_nanos(now.as_nanos() / u64::from(QUANTUM) - 1);
        recent.held(name(1), Moment::from_nanos(0));
        recent.released(&name(1), retry);
        match recent.take(&name(1)) {
            Past::Yields(until) => {
                assert!(until >= now.after(retry.mul_f64(1.1)), "others may not have looked")
            }
            past => panic!("{past:?}"),
        }
    }

    #[test]
    fn a_lock_that_was_free_for_a_while_begins_a_new_quantum() {
        let mut recent = Recent::default();
        recent.held(name(1), Moment::now());
        recent.released(&name(1), Duration::from_millis(1));
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(recent.take(&name(1)), Past::Nothing);
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
