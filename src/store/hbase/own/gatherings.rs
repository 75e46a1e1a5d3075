//! Requests of several threads that are sent as one.
//!
//! A thread that comes first sends its request at once. While it does, others gather. Then the first of them sends one request
//! for all. So a thread rarely waits for more than two requests, and nobody waits for others to come.
//!
//! | thread | waits for | leaves when |
//! |---|---|---|
//! | sends | its own call | the call has ended |
//! | gathers | the request under way | its time is over: nothing was sent for it |
//! | is taken | the thread that sends for it | that call has ended, which has the earliest deadline of all it is for |

use std::collections::VecDeque;
use std::hash::Hash;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::runtime::sync::{Condvar, HashMap, Mutex};
use crate::runtime::time::{Deadline, LONGEST_PARK};
use crate::store::remote::{Record, Settled, Standing};

/// Most requests that are sent as one.
const BATCH_MAX: usize = 32;

/// Requests `R` with answers `A`. Those with one key go together.
#[derive(Debug)]
pub(super) struct Gatherings<K, R, A> {
    /// Those that gather while one is under way. No entry: none is.
    gathering: Mutex<HashMap<K, Seats<R, A>>>,
}

type Seats<R, A> = VecDeque<Arc<Seat<R, A>>>;

/// Why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// Its time was over before anybody sent it.
    NotSent,
    /// The thread that sent it panicked.
    Panicked,
}

/// The request of a thread that gathers.
#[derive(Debug)]
struct Seat<R, A> {
    by: Deadline,
    state: Mutex<SeatState<R, A>>,
    changed: Condvar,
}

#[derive(Debug)]
enum SeatState<R, A> {
    Gathers(R),
    /// Another thread sends it.
    Taken,
    /// Its thread sends it, and those of others.
    Sends(R, Vec<Other<R, A>>),
    Answered(Result<A, Unanswered>),
}

/// The answer to a hold that joins others.
pub(super) type Joined = Settled<Record, Holder>;
/// The answer to a release: what stands in place of the hold, if that was seen.
pub(super) type Left = Settled<(), Option<Standing>>;
/// Readers that join a lock: its name and their turn, and of each its record and its least number.
pub(super) type Joining = Gatherings<(LockName, Option<Duration>), (Record, u64), Result<Joined>>;
/// Holds that leave a lock: its name and their number, and their records.
pub(super) type Leaving = Gatherings<(LockName, u64), Record, Result<Left>>;

/// The request of another thread.
type Other<R, A> = (R, Arc<Seat<R, A>>);

impl<K, R, A> Default for Gatherings<K, R, A> {
    fn default() -> Self {
        Gatherings { gathering: Mutex::default() }
    }
}

impl<K: Hash + Eq + Clone, R, A> Gatherings<K, R, A> {
    /// Sends the request, alone or with those of other threads, and returns the answer. `send` gets requests, and the earliest of
    /// their deadlines, and returns the answer to each. It is called in one of the threads, and not at all in the others.
    pub(super) fn send(
        &self,
        key: &K,
        request: R,
        by: Deadline,
        send: impl FnOnce(&[R], Deadline) -> Vec<A>,
    ) -> Result<A, Unanswered> {
        let (request, others) = match self.take_seat(key, request, by) {
            Ok(request) => (request, Vec::new()),
            Err(seat) => match self.wait(key, &seat) {
                SeatState::Sends(request, others) => (request, others),
                SeatState::Answered(answer) => return answer,
                SeatState::Gathers(_) | SeatState::Taken => return Err(Unanswered::NotSent),
            },
        };
        let earliest = others.iter().fold(by, |earliest, (_, seat)| earliest.sooner(seat.by));
        let (others, seats): (Vec<_>, _) = others.into_iter().unzip();
        let requests: Vec<_> = [request].into_iter().chain(others).collect();
        // Lets the next one send, and leaves nobody without an answer, also if the call panics.
        let mut under_way = SentForSeveral { gatherings: self, key, seats };
        let mut answers = send(&requests, earliest).into_iter();
        let own = answers.next().ok_or(Unanswered::Panicked);
        for answer in answers {
            if let Some(seat) = under_way.seats.pop_front() {
                seat.set(SeatState::Answered(Ok(answer)));
            }
        }
        own
    }

    /// Returns the request if none is under way, so that this thread sends it.
    fn take_seat(&self, key: &K, request: R, by: Deadline) -> Result<R, Arc<Seat<R, A>>> {
        let mut gathering = self.gathering.lock();
        let Some(seats) = gathering.get_mut(key) else {
            gathering.insert(key.clone(), VecDeque::new());
            return Ok(request);
        };
        let (state, changed) = (Mutex::new(SeatState::Gathers(request)), Condvar::new());
        let seat = Arc::new(Seat { by, state, changed });
        seats.push_back(Arc::clone(&seat));
        Err(seat)
    }

    /// Waits until this thread is to send, or has an answer. [`SeatState::Gathers`]: its time is over.
    fn wait(&self, key: &K, seat: &Arc<Seat<R, A>>) -> SeatState<R, A> {
        loop {
            let mut state = seat.state.lock();
            match mem::replace(&mut *state, SeatState::Taken) {
                SeatState::Taken => {
                    seat.changed.wait_for(&mut state, LONGEST_PARK);
                }
                SeatState::Gathers(request) if seat.by.passed() => {
                    *state = SeatState::Gathers(request);
                    drop(state);
                    if let Some(left) = self.leave(key, seat) {
                        return left;
                    }
                }
                SeatState::Gathers(request) => {
                    *state = SeatState::Gathers(request);
                    seat.changed.wait_for(&mut state, seat.by.remaining().min(LONGEST_PARK));
                }
                ended => return ended,
            }
        }
    }

    /// Takes the request back, unless another thread has taken it.
    fn leave(&self, key: &K, seat: &Arc<Seat<R, A>>) -> Option<SeatState<R, A>> {
        let mut gathering = self.gathering.lock();
        let seats = gathering.get_mut(key)?;
        let at = seats.iter().position(|other| Arc::ptr_eq(other, seat))?;
        seats.remove(at);
        Some(mem::replace(&mut *seat.state.lock(), SeatState::Taken))
    }

    /// Lets the first of those that have gathered send for all.
    fn pass_on(&self, key: &K) {
        let mut gathering = self.gathering.lock();
        let Some(seats) = gathering.get_mut(key) else { return };
        let Some(first) = seats.pop_front() else {
            gathering.remove(key);
            return;
        };
        let (mut others, mut left) = (Vec::new(), VecDeque::new());
        for seat in seats.drain(..) {
            let goes_along = others.len() + 1 < BATCH_MAX && are_near(first.by, seat.by);
            match goes_along.then(|| seat.take()).flatten() {
                Some(request) => others.push((request, seat)),
                None => left.push_back(seat),
            }
        }
        *seats = left;
        // Nobody else takes the request of a seat that gathers.
        if let Some(request) = first.take() {
            first.set(SeatState::Sends(request, others));
        }
    }
}

/// Whether neither has much less time than the other one, so that they can share a request.
fn are_near(one: Deadline, other: Deadline) -> bool {
    let (one, other) = (one.remaining(), other.remaining());
    one.max(other) <= one.min(other).saturating_mul(2)
}

impl<R, A> Seat<R, A> {
    fn set(&self, new: SeatState<R, A>) {
        *self.state.lock() = new;
        self.changed.notify_one();
    }

    fn take(&self) -> Option<R> {
        match mem::replace(&mut *self.state.lock(), SeatState::Taken) {
            SeatState::Gathers(request) => Some(request),
            _ => None,
        }
    }
}

/// A request under way for several threads.
struct SentForSeveral<'a, K: Hash + Eq + Clone, R, A> {
    gatherings: &'a Gatherings<K, R, A>,
    key: &'a K,
    /// Of the threads that have no answer yet.
    seats: Seats<R, A>,
}

impl<K: Hash + Eq + Clone, R, A> Drop for SentForSeveral<'_, K, R, A> {
    fn drop(&mut self) {
        for seat in self.seats.drain(..) {
            seat.set(SeatState::Answered(Err(Unanswered::Panicked)));
        }
        self.gatherings.pass_on(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    type Numbers = Gatherings<&'static str, u32, u32>;

    /// Answers with ten times the request.
    fn answers(requests: &[u32]) -> Vec<u32> {
        requests.iter().map(|request| 10 * request).collect()
    }

    /// Sends a request that says when it is under way, and ends when it is told.
    fn hold(gatherings: &Numbers, begun: &Sender<()>, end: &Receiver<()>) -> Result<u32, Unanswered> {
        gatherings.send(&"a", 1, Deadline::after(LONG), |requests, _| {
            begun.send(()).unwrap();
            end.recv().unwrap();
            answers(requests)
        })
    }

    fn gathered(gatherings: &Numbers) -> usize {
        gatherings.gathering.lock().get("a").map_or(0, VecDeque::len)
    }

    fn wait_until(is_true: impl Fn() -> bool) {
        while !is_true() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs `work` while a request is under way, which ends after it.
    fn beside_one<'env>(
        gatherings: &'env Numbers,
        work: impl for<'scope> FnOnce(&'scope thread::Scope<'scope, 'env>),
    ) {
        let ((begun, has_begun), (end, ends)) = (channel(), channel());
        thread::scope(|scope| {
            let holder = scope.spawn(move || hold(gatherings, &begun, &ends));
            has_begun.recv().unwrap();
            thread::scope(|scope| {
                work(scope);
                end.send(()).unwrap();
            });
            assert_eq!(holder.join().unwrap(), Ok(10));
        });
    }

    #[test]
    fn those_that_come_while_one_is_under_way_are_sent_as_one() {
        let (gatherings, sent) = (Numbers::default(), Mutex::new(Vec::new()));
        beside_one(&gatherings, |scope| {
            // Another key waits for nobody.
            let other = gatherings.send(&"b", 7, Deadline::after(LONG), |requests, _| answers(requests));
            assert_eq!(other, Ok(70));
            let (gatherings, sent) = (&gatherings, &sent);
            for request in 2..=9 {
                scope.spawn(move || {
                    let by = Deadline::after(LONG + Duration::from_secs(request.into()));
                    let answer = gatherings.send(&"a", request, by, |requests, earliest| {
                        sent.lock()
                            .push((requests.len(), earliest.remaining() < LONG + Duration::from_secs(3)));
                        answers(requests)
                    });
                    assert_eq!(answer, Ok(10 * request), "each has the answer to its own request");
                });
            }
            wait_until(|| gathered(gatherings) == 8);
        });
        assert_eq!(*sent.lock(), [(8, true)], "one request, with the earliest deadline");
        assert!(gatherings.gathering.lock().is_empty(), "nothing is left of it");
    }

    #[test]
    fn no_request_is_for_more_than_the_limit() {
        let (gatherings, sent) = (Numbers::default(), Mutex::new(Vec::new()));
        beside_one(&gatherings, |scope| {
            let (gatherings, sent) = (&gatherings, &sent);
            let count = BATCH_MAX + 3;
            for _ in 0..count {
                scope.spawn(move || {
                    let answer = gatherings.send(&"a", 1, Deadline::after(LONG), |requests, _| {
                        sent.lock().push(requests.len());
                        answers(requests)
                    });
                    assert_eq!(answer, Ok(10));
                });
            }
            wait_until(|| gathered(gatherings) == count);
        });
        assert_eq!(*sent.lock(), [BATCH_MAX, 3]);
    }

    /// It would be cut short for the others, or a long one would keep it waiting.
    #[test]
    fn a_request_with_much_less_time_goes_alone() {
        let (gatherings, sent) = (Numbers::default(), Mutex::new(Vec::new()));
        beside_one(&gatherings, |scope| {
            let (gatherings, sent) = (&gatherings, &sent);
            for (at, times) in [1, 4, 1, 4].into_iter().enumerate() {
                let by = Deadline::after(times * LONG);
                scope.spawn(move || {
                    let answer = gatherings.send(&"a", times, by, |requests, _| {
                        sent.lock().push(requests.to_vec());
                        answers(requests)
                    });
                    assert_eq!(answer, Ok(10 * times));
                });
                wait_until(|| gathered(gatherings) == at + 1);
            }
        });
        assert_eq!(*sent.lock(), [[1, 1], [4, 4]]);
    }

    #[test]
    fn a_thread_whose_time_is_over_leaves_and_nothing_is_sent_for_it() {
        let gatherings = Numbers::default();
        beside_one(&gatherings, |_| {
            let by = Deadline::after(Duration::from_millis(5));
            let answer = gatherings.send(&"a", 2, by, |_, _| panic!("it is sent"));
            assert_eq!(answer, Err(Unanswered::NotSent));
            assert_eq!(gathered(&gatherings), 0);
        });
    }

    #[test]
    fn a_panic_leaves_those_it_was_for_without_an_answer_and_stops_nobody_else() {
        let gatherings = Numbers::default();
        let outcomes = Mutex::new(Vec::new());
        beside_one(&gatherings, |scope| {
            let (gatherings, outcomes) = (&gatherings, &outcomes);
            for request in 2..=4 {
                scope.spawn(move || {
                    let send = || {
                        gatherings.send(&"a", request, Deadline::after(LONG), |_, _| -> Vec<u32> {
                            panic!("planted")
                        })
                    };
                    let outcome = catch_unwind(AssertUnwindSafe(send)).ok();
                    outcomes.lock().push(outcome);
                });
            }
            wait_until(|| gathered(gatherings) == 3);
        });
        let mut outcomes = outcomes.lock().clone();
        outcomes.sort_by_key(Option::is_some);
        assert_eq!(outcomes, [None, Some(Err(Unanswered::Panicked)), Some(Err(Unanswered::Panicked))]);
        let next = gatherings.send(&"a", 5, Deadline::after(LONG), |requests, _| answers(requests));
        assert_eq!(next, Ok(50));
    }

    /// Threads that come and go while others send: each gets its own answer, and none is forgotten.
    #[test]
    fn every_thread_gets_the_answer_to_its_own_request() {
        let gatherings = Numbers::default();
        thread::scope(|scope| {
            for thread in 0..8 {
                let gatherings = &gatherings;
                scope.spawn(move || {
                    for turn in 0..500 {
                        let request = 1000 * thread + turn;
                        let by = Deadline::after(Duration::from_micros(u64::from(turn % 7) * 50));
                        let answer = gatherings.send(&"a", request, by, |requests, _| answers(requests));
                        assert!(answer == Ok(10 * request) || answer == Err(Unanswered::NotSent));
                    }
                });
            }
        });
        assert!(gatherings.gathering.lock().is_empty());
    }
}
