//! One latch that is watched: who waits for it, and how long to pause between two looks.

use std::sync::Arc;
use std::time::Duration;

use crate::time::Moment;
use crate::wait::watch::{LatchKey, Watch};

/// The shortest pause between two looks at a latch, unless the poll interval is shorter.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// A place in the order of what is due; the number tells apart what is due at one moment.
pub(super) type PollTurn = (Moment, u64);

/// A latch that somebody waits for.
pub(super) struct WatchedLatch {
    /// Tells it from one of the same key that was there before.
    pub(super) key: Arc<LatchKey>,
    /// Those who wait, by what may end their wait; the last are the newest.
    pub(super) groups: Vec<Group>,
    /// When it is due; `None` while it is being read.
    pub(super) turn: Option<PollTurn>,
    /// Look at it again as soon as the read under way is over.
    pub(super) again: bool,
    /// The next look is at it alone, as one at several panicked.
    pub(super) alone: bool,
    /// Looks begun so far.
    pub(super) looks: u64,
    /// The first that begins after the last newcomer.
    pub(super) first_look: u64,
    pub(super) pause: Duration,
    pub(super) failures: u32,
    /// What the last look saw, and when.
    pub(super) seen: Option<(i64, Moment)>,
}

/// Those who share a watch.
pub(super) struct Group {
    pub(super) watch: Arc<Watch>,
    pub(super) waiters: usize,
    /// The first look that may end it.
    pub(super) first_look: u64,
    /// When the last one joined, as a number of the poller's.
    pub(super) joined: u64,
}

/// What a waiter has of a watched latch. To be given to [`LatchPoller::leave`](crate::wait::poller::LatchPoller::leave).
pub(crate) struct Subscription {
    pub(crate) watch: Arc<Watch>,
    /// The number of the first look that begins after joining.
    pub(crate) first_look: u64,
}

impl WatchedLatch {
    /// `poll`: the longest pause.
    pub(super) fn new(key: Arc<LatchKey>, poll: Duration) -> WatchedLatch {
        WatchedLatch {
            key,
            groups: Vec::new(),
            turn: None,
            again: false,
            alone: false,
            looks: 0,
            first_look: 0,
            pause: poll.min(SHORTEST_PAUSE),
            failures: 0,
            seen: None,
        }
    }

    pub(super) fn is_being_read(&self) -> bool {
        self.turn.is_none() && self.looks > 0
    }

    /// One more who waits; `number`: when they came.
    pub(super) fn join(&mut self, number: u64) -> Subscription {
        let first_look = self.looks + 1;
        self.first_look = first_look;
        // While nobody looks, the next look is the first that may end any of the groups.
        let fits = |group: &Group| !self.is_being_read() || group.first_look == first_look;
        if !self.groups.last().is_some_and(fits) {
            let watch = Arc::new(Watch::new(Arc::clone(&self.key)));
            self.groups.push(Group { watch, waiters: 0, first_look, joined: number });
        }
        let group = self.groups.last_mut().expect("there is one for the newcomer");
        group.waiters += 1;
        group.joined = number;
        Subscription { watch: Arc::clone(&group.watch), first_look }
    }

    pub(super) fn watches(&self) -> impl Iterator<Item = Arc<Watch>> {
        self.groups.iter().map(|group| Arc::clone(&group.watch))
    }

    /// The pause after look `number`, which saw `count`.
    pub(super) fn saw(&mut self, number: u64, count: i64, now: Moment, poll: Duration) -> Duration {
        if std::mem::take(&mut self.failures) > 0 {
            log::info!("latch {} can be read again", self.key.0);
        }
        let shortest = poll.min(SHORTEST_PAUSE);
        self.pause = match self.seen {
            // For a newcomer the wait begins, however long others have been waiting.
            _ if number <= self.first_look => shortest,
            None => self.pause,
            Some((before, _)) if before == count => (self.pause * 2).min(poll),
            Some((before, at)) => {
                let pace = now.since(at).as_secs_f64() / before.abs_diff(count) as f64;
                let opens = if count < before { pace * count as f64 } else { f64::MAX };
                let half = Duration::try_from_secs_f64(opens / 2.0).unwrap_or(poll);
                half.clamp(shortest, poll)
            }
        };
        self.seen = Some((count, now));
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latch_name::LatchName;
    use crate::name::{Level, NamePolicy};

    const POLL: Duration = Duration::from_secs(5);

    fn entry() -> WatchedLatch {
        let name = LatchName::new("tests", "dc1", "board", NamePolicy::Strict).unwrap();
        WatchedLatch::new(Arc::new((name, Level::Dc)), POLL)
    }

    /// The pauses after so many looks that see no change, in milliseconds.
    fn pauses(watched: &mut WatchedLatch, looks: usize) -> Vec<u128> {
        let look = |watched: &mut WatchedLatch| {
            watched.looks += 1;
            watched.saw(watched.looks, 7, Moment::now(), POLL).as_millis()
        };
        (0..looks).map(|_| look(watched)).collect()
    }

    /// What is documented of a wait's first seconds holds for all who wait, not for the first alone.
    #[test]
    fn a_newcomer_to_an_old_watch_is_looked_after_as_if_it_were_new() {
        let mut watched = entry();
        watched.join(0);
        assert_eq!(pauses(&mut watched, 9), [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        watched.join(1);
        assert_eq!(pauses(&mut watched, 3), [50, 100, 200]);
    }

    #[test]
    fn a_newcomer_during_a_look_has_the_short_pauses_after_its_own_first_look() {
        let mut watched = entry();
        watched.join(0);
        pauses(&mut watched, 9);
        watched.looks += 1;
        watched.join(1);
        watched.saw(watched.looks, 7, Moment::now(), POLL);
        assert_eq!(pauses(&mut watched, 2), [50, 100]);
    }
}
