//! One watched latch: its waiters, and the pause between two reads.

use std::sync::Arc;
use std::time::Duration;

use crate::latch::watch::{LatchKey, Watch};
use crate::runtime::time::Moment;

/// The shortest pause between two reads of a latch, unless the poll interval is shorter.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// Position in the order of due reads. The number distinguishes reads that are due at the same moment.
pub(super) type PollTurn = (Moment, u64);

/// A latch with at least one waiter.
pub(super) struct WatchedLatch {
    /// The address of this `Arc` distinguishes the latch from an earlier one with an equal key.
    pub(super) key: Arc<LatchKey>,
    /// The waiters, by the reads that may end their wait. The newest group is the last.
    pub(super) groups: Vec<Group>,
    /// When the next read is due. `None` while the latch is being read.
    pub(super) turn: Option<PollTurn>,
    /// The latch must be read again as soon as the current read has ended.
    pub(super) again: bool,
    /// The next read is for this latch alone, because a read of several latches panicked.
    pub(super) alone: bool,
    /// A notice has said that the latch is open. The next read is for that.
    pub(super) has_notice: bool,
    /// Number of reads begun.
    pub(super) looks: u64,
    /// Number of the first read that begins after the last waiter joined.
    pub(super) first_look: u64,
    pub(super) pause: Duration,
    pub(super) failures: u32,
    /// The count that the last successful read returned, and when.
    pub(super) seen: Option<(i64, Moment)>,
}

/// The waiters that share a [`Watch`].
pub(super) struct Group {
    pub(super) watch: Arc<Watch>,
    pub(super) waiters: usize,
    /// Number of the first read that may end the watch.
    pub(super) first_look: u64,
    /// When the last waiter joined, as one of the poller's `numbers`.
    pub(super) joined: u64,
}

/// One waiter's part of a watched latch. Pass it to [`LatchPoller::leave`](crate::latch::poller::LatchPoller::leave).
pub(crate) struct Subscription {
    pub(crate) watch: Arc<Watch>,
    /// Number of the first read that begins after the waiter joined.
    pub(crate) first_look: u64,
}

impl WatchedLatch {
    /// `poll` is the longest pause.
    pub(super) fn new(key: Arc<LatchKey>, poll: Duration) -> WatchedLatch {
        WatchedLatch {
            key,
            groups: Vec::new(),
            turn: None,
            again: false,
            alone: false,
            has_notice: false,
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

    /// Adds a waiter. `number` says when it joined.
    pub(super) fn join(&mut self, number: u64) -> Subscription {
        let first_look = self.looks + 1;
        self.first_look = first_look;
        // While no read is in progress, the next read may end the wait of every group.
        let fits = |group: &Group| !self.is_being_read() || group.first_look == first_look;
        if !self.groups.last().is_some_and(fits) {
            let watch = Arc::new(Watch::new(Arc::clone(&self.key)));
            self.groups.push(Group { watch, waiters: 0, first_look, joined: number });
        }
        let group = self.groups.last_mut().expect("a group for the new waiter exists");
        group.waiters += 1;
        group.joined = number;
        Subscription { watch: Arc::clone(&group.watch), first_look }
    }

    pub(super) fn watches(&self) -> impl Iterator<Item = Arc<Watch>> {
        self.groups.iter().map(|group| Arc::clone(&group.watch))
    }

    /// Records that read `number` returned `count`. Returns the pause until the next read.
    pub(super) fn saw(&mut self, number: u64, count: i64, now: Moment, poll: Duration) -> Duration {
        if std::mem::take(&mut self.failures) > 0 {
            log::info!("latch {} can be read again", self.key.0);
        }
        let shortest = poll.min(SHORTEST_PAUSE);
        self.pause = match self.seen {
            // The pauses begin anew for a new waiter, even if others have waited for long.
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
    use crate::names::latch_name::LatchName;
    use crate::names::lock_name::{Level, NamePolicy};

    const POLL: Duration = Duration::from_secs(5);

    fn entry() -> WatchedLatch {
        let name = LatchName::new("tests", "dc1", "board", NamePolicy::Strict).unwrap();
        WatchedLatch::new(Arc::new((name, Level::Dc)), POLL)
    }

    /// Returns the pauses after `looks` reads that see no change, in milliseconds.
    fn pauses(watched: &mut WatchedLatch, looks: usize) -> Vec<u128> {
        let look = |watched: &mut WatchedLatch| {
            watched.looks += 1;
            watched.saw(watched.looks, 7, Moment::now(), POLL).as_millis()
        };
        (0..looks).map(|_| look(watched)).collect()
    }

    /// The documented pauses in the first seconds of a wait hold for every waiter, not only for the first.
    #[test]
    fn a_newcomer_to_an_old_watch_is_looked_after_as_if_it_were_new() {
        let mut watched = entry();
        watched.join(0);
        assert_eq!(pauses(&mut watched, 9), [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        watched.join(1);
        assert_eq!(pauses(&mut watched, 3), [50, 100, 200]);
    }

    #[test]
    fn a_newcomer_during_a_read_has_the_short_pauses_after_its_own_first_read() {
        let mut watched = entry();
        watched.join(0);
        pauses(&mut watched, 9);
        watched.looks += 1;
        watched.join(1);
        watched.saw(watched.looks, 7, Moment::now(), POLL);
        assert_eq!(pauses(&mut watched, 2), [50, 100]);
    }
}
