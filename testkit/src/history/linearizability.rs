//! The search for an order of concurrent calls in which each answer is right: the algorithm of Wing and Gong with the
//! cache of Lowe, as in Porcupine.
//!
//! The search takes calls one by one. The next one may be any call that was made before the first return among the
//! calls that are left. A set of taken calls that leads to the same state needs only one visit, whatever their order.
//!
//! Calls in doubt may be left out, so the cost can double with each of them. They are tried last, a way that took more
//! of them than another way to the same calls and state is not followed, and of calls that do the same only the first is
//! tried.

use std::collections::HashMap;
use std::hash::Hash;

use dlm::Moment;

/// One call, for the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// When it was called. It takes effect then or later.
    pub called: Moment,
    /// When it returned. It takes effect then or before. `None` if it is in doubt: it takes effect later, or never.
    pub returned: Option<Moment>,
}

/// Result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// There is an order.
    Found,
    /// There is none: whatever the order before it, the call of this number cannot be explained.
    Stuck(usize),
    /// The search took too many steps.
    GaveUp,
}

/// Searches for an order of `calls` from the state `initial`, in up to `steps_max` steps. `calls` must be sorted by the
/// time at which they were called. `step` returns the state after the call of this number, or `None` if the answer of
/// the call is wrong for the state before it. `alike` returns whether two calls in doubt do the same.
pub fn search<S: Clone + Eq + Hash>(
    initial: S,
    calls: &[Span],
    step: impl Fn(usize, &S) -> Option<S>,
    alike: impl Fn(usize, usize) -> bool,
    steps_max: usize,
) -> Search {
    let numbers = || calls.iter().enumerate();
    let finished: Vec<(usize, Moment, Moment)> = numbers()
        .filter_map(|(number, call)| call.returned.map(|returned| (number, call.called, returned)))
        .collect();
    let doubtful: Vec<(usize, Moment)> = numbers()
        .filter(|(_, call)| call.returned.is_none())
        .map(|(number, call)| (number, call.called))
        .collect();
    let mut seen: HashMap<(Taken, S), Vec<Vec<usize>>> = HashMap::new();
    let mut path = vec![Visit::new(Taken::default(), Vec::new(), initial, None)];
    let mut stuck = (Moment::from_nanos(0), 0);
    let mut steps = 0;
    while let Some(visit) = path.last_mut() {
        let Some(first) = visit.taken.first_return(&finished) else { return Search::Found };
        stuck = stuck.max(first);
        steps += 1;
        if steps > steps_max {
            return Search::GaveUp;
        }
        let Some(next) = visit.next_of(&finished, &doubtful, first.0, &step, &alike) else {
            path.pop();
            continue;
        };
        let ways = seen.entry((next.taken.clone(), next.state.clone())).or_default();
        let known = |way: &Vec<usize>| way.iter().all(|number| next.doubtful.contains(number));
        if !ways.iter().any(known) {
            ways.push(next.doubtful.clone());
            path.push(next);
        }
    }
    Search::Stuck(stuck.1)
}

/// A set of taken calls that the search visits.
struct Visit<S> {
    /// Among the finished calls.
    taken: Taken,
    /// Among the calls in doubt.
    doubtful: Vec<usize>,
    state: S,
    /// The state before the last taken call, if that was in doubt.
    before: Option<S>,
    /// Positions of the next calls to try.
    next_finished: usize,
    next_doubtful: usize,
}

impl<S: Clone + Eq> Visit<S> {
    fn new(taken: Taken, doubtful: Vec<usize>, state: S, before: Option<S>) -> Visit<S> {
        let next_finished = taken.whole;
        Visit { taken, doubtful, state, before, next_finished, next_doubtful: 0 }
    }

    /// Takes the next call that was made by `limit` and whose answer is right. `None` if there is no other.
    fn next_of(
        &mut self,
        finished: &[(usize, Moment, Moment)],
        doubtful: &[(usize, Moment)],
        limit: Moment,
        step: impl Fn(usize, &S) -> Option<S>,
        alike: impl Fn(usize, usize) -> bool,
    ) -> Option<Visit<S>> {
        while let Some((number, called, _)) = finished.get(self.next_finished)
            && *called <= limit
        {
            let position = self.next_finished;
            self.next_finished += 1;
            if !self.taken.contains(position)
                && let Some(state) = step(*number, &self.state)
            {
                return Some(Visit::new(self.taken.with(position), self.doubtful.clone(), state, None));
            }
        }
        while let Some((number, called)) = doubtful.get(self.next_doubtful)
            && *called <= limit
        {
            let position = self.next_doubtful;
            self.next_doubtful += 1;
            // Of calls that do the same, the first can stand for each other one.
            let stands_in =
                |other: usize| !self.doubtful.contains(&other) && alike(doubtful[other].0, *number);
            if self.doubtful.contains(&position) || (0..position).any(stands_in) {
                continue;
            }
            let Some(state) = step(*number, &self.state) else { continue };
            // If the call hides the effect of the call in doubt before it, that one need not be taken.
            let hides =
                self.before.as_ref().is_some_and(|before| step(*number, before).as_ref() == Some(&state));
            if !hides && state != self.state {
                let taken = [&self.doubtful[..], &[position]].concat();
                return Some(Visit::new(self.taken.clone(), taken, state, Some(self.state.clone())));
            }
        }
        None
    }
}

/// A set of positions: all below `whole`, and the bits. Calls are taken almost in order, so there are few bits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Taken {
    whole: usize,
    /// Bit 0 of the first word is the position `whole`, which is not taken. The last word is not zero.
    bits: Vec<u64>,
}

impl Taken {
    /// Returns the first return among the calls that are left, and the number of the call.
    fn first_return(&self, finished: &[(usize, Moment, Moment)]) -> Option<(Moment, usize)> {
        let mut first: Option<(Moment, usize)> = None;
        for (position, (number, called, returned)) in finished.iter().enumerate().skip(self.whole) {
            if first.is_some_and(|(at, _)| *called > at) {
                break;
            }
            if !self.contains(position) && first.is_none_or(|first| (*returned, *number) < first) {
                first = Some((*returned, *number));
            }
        }
        first
    }

    fn contains(&self, position: usize) -> bool {
        match position.checked_sub(self.whole) {
            None => true,
            Some(bit) => self.bits.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1),
        }
    }

    fn with(&self, position: usize) -> Taken {
        let mut taken = self.clone();
        let bit = position - taken.whole;
        if taken.bits.len() <= bit / 64 {
            taken.bits.resize(bit / 64 + 1, 0);
        }
        taken.bits[bit / 64] |= 1 << (bit % 64);
        while taken.bits.first().is_some_and(|word| word & 1 == 1) {
            taken.drop_first();
        }
        taken
    }

    /// Counts the first bit into `whole`.
    fn drop_first(&mut self) {
        self.whole += 1;
        let mut carry = 0;
        for word in self.bits.iter_mut().rev() {
            let low = *word & 1;
            *word = *word >> 1 | carry << 63;
            carry = low;
        }
        while self.bits.last() == Some(&0) {
            self.bits.pop();
        }
    }
}
