//! The history of the holders of each lock, and the checks of locks and fences.

use std::time::Duration;

use dlm::Moment;

use super::words::{Word, letter};

/// One grant, as its holder saw it.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) lock: u8,
    pub(crate) worker: u8,
    pub(crate) fence: Option<u64>,
    pub(crate) asked: Moment,
    /// When the call returned with the lock.
    pub(crate) granted: Moment,
    /// The moment just before the call to release, or the end of the lease if that was earlier. A holder that checks
    /// its lease stops at that end.
    pub(crate) ended: Moment,
    /// The lease ended before it was released.
    pub(crate) ran_out: bool,
}

/// All reports of the workers.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) locks: u8,
    pub(crate) workers: u8,
    holds: Vec<Hold>,
    /// By worker: the grant that is not released yet.
    open: Vec<Option<Hold>>,
    failures: Vec<(char, u8, String)>,
    troubles: Vec<String>,
    deaths: Vec<String>,
}

/// Result of the demo.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Check {
    /// Grants of a lock while another worker held it.
    pub(crate) overlaps: usize,
    /// Grants whose fence was not higher than that of the grant before.
    pub(crate) fences_fell: usize,
    /// Grants without a fence.
    pub(crate) unfenced: usize,
    /// Leases that ended before they were released.
    pub(crate) run_out: usize,
    pub(crate) longest_wait: Duration,
}

impl History {
    pub(crate) fn new(locks: u8, workers: u8) -> History {
        History {
            locks,
            workers,
            holds: Vec::new(),
            open: vec![None; workers.into()],
            failures: Vec::new(),
            troubles: Vec::new(),
            deaths: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, worker: u8, word: Word) {
        match word {
            Word::Ready => {}
            Word::Got { lock, fence, asked, granted, ends } => {
                let hold = Hold { lock, worker, fence, asked, granted, ended: ends, ran_out: true };
                self.open[usize::from(worker)] = Some(hold);
            }
            Word::Put { at, lost } => {
                if let Some(mut hold) = self.open[usize::from(worker)].take() {
                    hold.ended = hold.ended.min(at);
                    hold.ran_out = lost;
                    self.holds.push(hold);
                }
            }
            Word::Trouble(what) => self.troubles.push(format!("worker {}: {what}", letter(worker))),
            Word::Failed(status, line) => self.failures.push((letter(worker), status, line)),
        }
    }

    /// Records that the worker ended, at `at` or before. `how` says how it died, if it did.
    pub(crate) fn end(&mut self, worker: u8, at: Moment, how: Option<String>) {
        if let Some(mut hold) = self.open[usize::from(worker)].take() {
            // The store keeps the lock until the lease ends, but a dead worker no longer uses it.
            hold.ended = hold.ended.min(at);
            self.holds.push(hold);
        }
        self.deaths.extend(how.map(|how| format!("worker {} {how}", letter(worker))));
    }

    pub(crate) fn grants(&self) -> usize {
        self.holds.len() + self.open.iter().flatten().count()
    }

    pub(crate) fn holds(&self) -> &[Hold] {
        &self.holds
    }

    /// Returns the letter, exit status and reason of workers that gave up.
    pub(crate) fn failures(&self) -> &[(char, u8, String)] {
        &self.failures
    }

    pub(crate) fn troubles(&self) -> &[String] {
        &self.troubles
    }

    pub(crate) fn deaths(&self) -> &[String] {
        &self.deaths
    }

    /// Returns the grants of one lock in order of time.
    pub(crate) fn of_lock(&self, lock: u8) -> Vec<&Hold> {
        let mut holds: Vec<&Hold> = self.holds.iter().filter(|hold| hold.lock == lock).collect();
        holds.sort_by_key(|hold| hold.granted);
        holds
    }

    pub(crate) fn check(&self) -> Check {
        let mut check = Check::default();
        for lock in 0..self.locks {
            let mut held_until = Moment::from_nanos(0);
            let mut highest = 0;
            for hold in self.of_lock(lock) {
                check.overlaps += usize::from(hold.granted < held_until);
                held_until = held_until.max(hold.ended);
                match hold.fence {
                    Some(fence) => check.fences_fell += usize::from(fence <= highest),
                    None => check.unfenced += 1,
                }
                highest = highest.max(hold.fence.unwrap_or(0));
                check.run_out += usize::from(hold.ran_out);
                check.longest_wait = check.longest_wait.max(hold.granted.since(hold.asked));
            }
        }
        check
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(grants: &[(u8, u8, u64, u64, u64)]) -> History {
        let at = Moment::from_nanos;
        let mut history = History::new(2, 3);
        for &(worker, lock, fence, granted, put) in grants {
            let got = Word::Got {
                lock,
                fence: Some(fence),
                asked: at(granted - 1),
                granted: at(granted),
                ends: at(1000),
            };
            history.add(worker, got);
            history.add(worker, Word::Put { at: at(put), lost: false });
        }
        history
    }

    #[test]
    fn two_holders_at_one_time_are_counted_whatever_the_order_of_their_reports() {
        let clean = history(&[(0, 0, 1, 10, 20), (1, 0, 2, 20, 30), (2, 1, 1, 15, 25)]);
        assert_eq!(clean.check(), Check { longest_wait: Duration::from_nanos(1), ..Check::default() });
        let overlapping = history(&[(1, 0, 2, 19, 30), (0, 0, 1, 10, 20)]);
        assert_eq!(overlapping.check().overlaps, 1);
        // One long hold overlaps two short ones that follow each other.
        let long = history(&[(0, 0, 1, 10, 100), (1, 0, 2, 20, 30), (2, 0, 3, 40, 50)]);
        assert_eq!(long.check().overlaps, 2);
    }

    #[test]
    fn a_fence_that_repeats_or_falls_is_counted() {
        assert_eq!(history(&[(0, 0, 5, 10, 20), (1, 0, 5, 20, 30)]).check().fences_fell, 1);
        assert_eq!(history(&[(0, 0, 5, 10, 20), (1, 0, 4, 20, 30)]).check().fences_fell, 1);
    }

    #[test]
    fn a_holder_that_dies_holds_until_it_is_gone_and_counts_as_run_out() {
        let at = Moment::from_nanos;
        let mut history = History::new(1, 2);
        history.add(0, Word::Got { lock: 0, fence: Some(1), asked: at(1), granted: at(10), ends: at(50) });
        history.end(0, at(30), Some("died".into()));
        history.add(1, Word::Got { lock: 0, fence: Some(2), asked: at(1), granted: at(29), ends: at(90) });
        history.add(1, Word::Put { at: at(60), lost: false });
        let check = history.check();
        assert_eq!(
            (check.overlaps, check.run_out, history.deaths()),
            (1, 1, &["worker A died".to_owned()][..])
        );
    }
}
