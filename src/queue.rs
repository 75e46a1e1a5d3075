//! Waiting for a lock inside one process: a line per key, first come first served.
//!
//! Only the waiter at the front asks the store; the others park. So a crowd of threads costs the
//! store one question per retry interval, and a lock released in this process goes straight to the
//! next in line.
//!
//! | who | waits for | leaves when |
//! |---|---|---|
//! | front | `next_ask`, or a local release that brings it forward | granted, failed, deadline, cancelled, closed |
//! | others | becoming the front | deadline, cancelled, closed, or the front met an error that concerns all |
//!
//! A process that hands a lock from thread to thread would keep it from every other process for ever,
//! so after [`TENURE`] retry intervals the line stands back for one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::cancel::CancelToken;
use crate::error::{Code, Error, Result};
use crate::store::{Holder, LockName};
use crate::time::{Deadline, Moment, jittered};

/// How many retry intervals a lock may be passed on within this process before other processes,
/// which ask once per interval, are given one interval in which they find it free.
const TENURE: u32 = 10;

/// Parked threads look up at least this often: their timer stands still while the machine is
/// suspended, the lease clock does not.
const LONGEST_PARK: Duration = Duration::from_secs(10);

/// What the front of the line found out.
pub(crate) enum Answer<T> {
    /// It is ours.
    Got(T),
    /// Someone holds it.
    Busy(Option<Holder>),
}

/// How the store should be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The lock is likely free: try to take it.
    Attempt,
    /// The lock was held a moment ago: look first, so that a refusal costs the store a read only.
    Look,
}

/// How a wait ended without the lock.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The deadline passed.
    Unavailable(Option<Holder>),
    /// The caller's token was cancelled.
    Cancelled,
    /// The manager was closed, or the store failed.
    Failed(Error),
}

/// The terms of one wait.
pub(crate) struct Terms<'a> {
    pub(crate) by: Deadline,
    pub(crate) retry: Duration,
    pub(crate) cancel: Option<&'a CancelToken>,
    /// Whether a failure to reach the store concerns the whole line. Not if this waiter gives the store
    /// less time than the others do.
    pub(crate) speaks_for_all: bool,
}

/// The lines of one manager.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    closed: AtomicBool,
    lines: Mutex<HashMap<LockName, Arc<Line>>>,
}

#[derive(Debug)]
struct Line {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Arc<Place>>,
    /// When the front asks the store next.
    next_ask: Moment,
    how: Ask,
    /// Since when this process has had the lock without anyone else getting a turn.
    ours_since: Option<Moment>,
    /// Who held the lock when it was last looked at.
    holder: Option<Holder>,
    /// Whether a thread of this process has the lock.
    ours: bool,
    /// Local releases so far: one that comes while the front asks makes its answer old.
    releases: u64,
}

/// One waiting thread.
#[derive(Debug, Default)]
struct Place {
    /// Used with the line's mutex only.
    wake: Condvar,
    /// Set by the front when it met an error that concerns everybody in the line.
    failure: Mutex<Option<Error>>,
}

impl Queue {
    /// Waits in line for `name`; at the front, calls `ask` until it gets an answer to leave with.
    /// `ask` runs without any lock of the queue held, and at least once unless others are in front.
    pub(crate) fn wait<T>(
        &self,
        name: &LockName,
        terms: &Terms<'_>,
        mut ask: impl FnMut(Ask) -> Result<Answer<T>>,
    ) -> Result<T, Ended> {
        let ticket = self.join(name);
        let _registration = terms.cancel.map(|token| {
            let (line, place) = (Arc::clone(&ticket.line), Arc::clone(&ticket.place));
            token.on_cancel(Arc::new(move || {
                let _state = line.state.lock();
                place.wake.notify_one();
            }))
        });
        let mut asked = false;
        loop {
            let (how, releases) = ticket.wait_for_turn(terms, asked)?;
            asked = true;
            match ask(how) {
                Ok(Answer::Got(got)) => {
                    ticket.granted(terms.retry);
                    return Ok(got);
                }
                Ok(Answer::Busy(holder)) => ticket.refused(holder, terms.retry, releases),
                Err(error) => return Err(Ended::Failed(ticket.failed(error, terms, releases))),
            }
        }
    }

    /// Tells the line that the lock was released in this process.
    pub(crate) fn released(&self, name: &LockName, retry: Duration) {
        let Some(line) = self.lines.lock().get(name).cloned() else { return };
        let mut state = line.state.lock();
        state.releases += 1;
        state.ours = false;
        let now = Moment::now();
        let tenure = state.ours_since.map_or(Duration::ZERO, |since| now.since(since));
        if tenure > retry.saturating_mul(TENURE) {
            state.ours_since = None;
            state.ask_at(now.after(jittered(retry)), Ask::Look);
        } else {
            state.ask_at(now, Ask::Attempt);
            state.wake_front();
        }
    }

    /// How many threads are in line.
    pub(crate) fn waiting(&self) -> usize {
        let lines: Vec<_> = self.lines.lock().values().cloned().collect();
        lines.iter().map(|line| line.state.lock().waiting.len()).sum()
    }

    /// Ends every wait with CLOSED, those to come included.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let lines: Vec<_> = self.lines.lock().values().cloned().collect();
        for line in lines {
            let state = line.state.lock();
            state.waiting.iter().for_each(|place| {
                place.wake.notify_one();
            });
        }
    }

    fn join(&self, name: &LockName) -> Ticket<'_> {
        let place = Arc::new(Place::default());
        let mut lines = self.lines.lock();
        let line = match lines.get(name) {
            Some(line) => Arc::clone(line),
            None => {
                let line = Arc::new(Line { state: Mutex::new(State::new()) });
                lines.insert(name.clone(), Arc::clone(&line));
                line
            }
        };
        // Under the map's lock, so that the line is not taken out as empty in between.
        line.state.lock().waiting.push_back(Arc::clone(&place));
        Ticket { queue: self, name: name.clone(), line, place }
    }
}

impl State {
    fn new() -> State {
        State {
            waiting: VecDeque::new(),
            next_ask: Moment::from_nanos(0),
            how: Ask::Attempt,
            ours_since: None,
            holder: None,
            ours: false,
            releases: 0,
        }
    }

    fn ask_at(&mut self, when: Moment, how: Ask) {
        self.next_ask = when;
        self.how = how;
    }

    fn wake_front(&self) {
        if let Some(front) = self.waiting.front() {
            front.wake.notify_one();
        }
    }
}

/// A thread's place in a line, given back on drop, also when a store call panics.
struct Ticket<'a> {
    queue: &'a Queue,
    name: LockName,
    line: Arc<Line>,
    place: Arc<Place>,
}

impl Ticket<'_> {
    /// Parks until it is this thread's turn to ask the store. `asked`: whether it did already, so that
    /// even a wait of zero asks once.
    fn wait_for_turn(&self, terms: &Terms<'_>, asked: bool) -> Result<(Ask, u64), Ended> {
        let mut state = self.line.state.lock();
        loop {
            if let Some(error) = self.place.failure.lock().take() {
                return Err(Ended::Failed(error));
            }
            if self.queue.closed.load(Ordering::SeqCst) {
                return Err(Ended::Failed(Error::Closed));
            }
            if terms.cancel.is_some_and(CancelToken::is_cancelled) {
                return Err(Ended::Cancelled);
            }
            let now = Moment::now();
            let front = state.waiting.front().is_some_and(|place| Arc::ptr_eq(place, &self.place));
            if front && now >= state.next_ask && (!asked || now < terms.by.moment()) {
                return Ok((state.how, state.releases));
            }
            if now >= terms.by.moment() {
                return Err(Ended::Unavailable(state.holder.clone()));
            }
            let until = if front { terms.by.moment().min(state.next_ask) } else { terms.by.moment() };
            self.place.wake.wait_for(&mut state, until.since(now).min(LONGEST_PARK));
        }
    }

    fn granted(&self, retry: Duration) {
        let mut state = self.line.state.lock();
        let now = Moment::now();
        state.ours_since.get_or_insert(now);
        state.holder = None;
        state.ours = true;
        // The next in line need not ask while a thread of this process holds the lock: its release
        // brings the question forward.
        state.ask_at(now.after(jittered(retry)), Ask::Look);
    }

    /// `releases`: their number when the store was asked.
    fn refused(&self, holder: Option<Holder>, retry: Duration, releases: u64) {
        let mut state = self.line.state.lock();
        if state.releases != releases {
            // Released here meanwhile: the next question is due as the release has set it.
            return;
        }
        let mut pause = jittered(retry);
        if let Some(left) = holder.as_ref().and_then(|holder| holder.remaining) {
            // Not after the lease has ended; and not in a tight loop when clocks disagree about that.
            pause = pause.min(left.max(retry / 20));
        }
        // Refused by a thread of this process is no turn of another's.
        if !state.ours {
            state.ours_since = None;
        }
        state.holder = holder;
        state.ask_at(Moment::now().after(pause), Ask::Look);
    }

    /// A store that does not serve the front serves none of the line: all leave with that error. A
    /// doubt about the front's own request is its own.
    fn failed(&self, error: Error, terms: &Terms<'_>, releases: u64) -> Error {
        let mut state = self.line.state.lock();
        if state.releases == releases {
            state.ask_at(Moment::now().after(jittered(terms.retry)), Ask::Look);
        }
        if !terms.speaks_for_all
            || !matches!(
                error.code(),
                Code::ConnectionError | Code::RetriesExhausted | Code::TableCreationError
            )
        {
            return error;
        }
        let shared = Arc::new(error);
        let own = || Error::While { doing: "waiting in line".into(), source: Arc::clone(&shared) };
        for place in state.waiting.iter().filter(|place| !Arc::ptr_eq(place, &self.place)) {
            *place.failure.lock() = Some(own());
            place.wake.notify_one();
        }
        state.waiting.retain(|place| Arc::ptr_eq(place, &self.place));
        own()
    }

    fn leave(&self, mut state: MutexGuard<'_, State>) -> bool {
        let was_front = state.waiting.front().is_some_and(|place| Arc::ptr_eq(place, &self.place));
        state.waiting.retain(|place| !Arc::ptr_eq(place, &self.place));
        if was_front {
            state.wake_front();
        }
        state.waiting.is_empty()
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut lines = self.queue.lines.lock();
        let empty = self.leave(self.line.state.lock());
        // A line emptied by a failure may have been replaced by a new one already.
        if empty && lines.get(&self.name).is_some_and(|line| Arc::ptr_eq(line, &self.line)) {
            lines.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;
    use crate::patience::until;
    use crate::store::{Level, NamePolicy};

    const RETRY: Duration = Duration::from_millis(20);

    fn name() -> LockName {
        LockName::new(Level::Xdc, "tests", None, "queue", NamePolicy::Strict).unwrap()
    }

    fn terms(wait: Duration) -> Terms<'static> {
        Terms { by: Deadline::after(wait), retry: RETRY, cancel: None, speaks_for_all: true }
    }

    fn in_line(queue: &Queue) -> usize {
        queue.lines.lock().values().map(|line| line.state.lock().waiting.len()).sum()
    }

    #[test]
    fn a_wait_of_zero_asks_once_and_leaves_no_line_behind() {
        let queue = Queue::default();
        let mut asked = 0;
        let ended = queue.wait::<()>(&name(), &terms(Duration::ZERO), |_| {
            asked += 1;
            Ok(Answer::Busy(None))
        });
        assert!(matches!(ended, Err(Ended::Unavailable(None))), "{ended:?}");
        assert_eq!((asked, queue.lines.lock().len()), (1, 0));
    }

    #[test]
    fn only_the_front_asks_and_each_release_goes_to_the_next_in_order() {
        let queue = Queue::default();
        let free = AtomicBool::new(false);
        let refusals = AtomicUsize::new(0);
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for number in 0..50 {
                let (queue, free, refusals, order) = (&queue, &free, &refusals, &order);
                scope.spawn(move || {
                    let terms = Terms { retry: Duration::from_secs(3600), ..terms(Duration::from_secs(60)) };
                    queue
                        .wait(&name(), &terms, |_| {
                            if free.swap(false, Ordering::SeqCst) {
                                return Ok(Answer::Got(()));
                            }
                            refusals.fetch_add(1, Ordering::SeqCst);
                            Ok(Answer::Busy(None))
                        })
                        .unwrap();
                    order.lock().push(number);
                    free.store(true, Ordering::SeqCst);
                    queue.released(&name(), Duration::from_secs(3600));
                });
                until("the thread joins the line", || in_line(queue) == number + 1);
            }
            until("the front asks", || refusals.load(Ordering::SeqCst) == 1);
            free.store(true, Ordering::SeqCst);
            queue.released(&name(), Duration::from_secs(3600));
        });
        assert_eq!(*order.lock(), (0..50).collect::<Vec<_>>());
        assert_eq!(refusals.load(Ordering::SeqCst), 1, "the crowd must not reach the store");
        assert!(queue.lines.lock().is_empty());
    }

    #[test]
    fn a_cancelled_or_panicking_front_makes_way_for_the_next() {
        let queue = Queue::default();
        let token = CancelToken::new();
        let free = AtomicBool::new(false);
        thread::scope(|scope| {
            let front = scope.spawn(|| {
                let terms = Terms { cancel: Some(&token), ..terms(Duration::MAX) };
                queue.wait::<()>(&name(), &terms, |_| Ok(Answer::Busy(None)))
            });
            until("the front is in line", || in_line(&queue) == 1);
            let panicking =
                scope.spawn(|| queue.wait::<()>(&name(), &terms(Duration::MAX), |_| panic!("planted")));
            until("the second is in line", || in_line(&queue) == 2);
            let last = scope.spawn(|| {
                queue.wait(&name(), &terms(Duration::MAX), |_| {
                    Ok(if free.load(Ordering::SeqCst) { Answer::Got(7) } else { Answer::Busy(None) })
                })
            });
            until("the third is in line", || in_line(&queue) == 3);
            token.cancel();
            assert!(matches!(front.join().unwrap(), Err(Ended::Cancelled)));
            assert!(panicking.join().is_err());
            free.store(true, Ordering::SeqCst);
            assert_eq!(last.join().unwrap().unwrap(), 7);
        });
        assert!(queue.lines.lock().is_empty());
    }

    #[test]
    fn a_store_that_fails_the_front_fails_the_line_and_a_doubt_does_not() {
        let queue = Queue::default();
        let down = AtomicBool::new(false);
        let ask = |_| -> Result<Answer<()>> {
            if down.load(Ordering::SeqCst) {
                return Err(Error::Connection { store: "s".into(), what: "refused".into(), source: None });
            }
            Ok(Answer::Busy(None))
        };
        thread::scope(|scope| {
            let waiters: Vec<_> =
                (0..20).map(|_| scope.spawn(|| queue.wait(&name(), &terms(Duration::MAX), ask))).collect();
            until("all are in line", || in_line(&queue) == 20);
            down.store(true, Ordering::SeqCst);
            for waiter in waiters {
                match waiter.join().unwrap() {
                    Err(Ended::Failed(error)) => assert_eq!(error.code(), Code::ConnectionError),
                    other => panic!("{other:?}"),
                }
            }
        });
        assert!(queue.lines.lock().is_empty());

        let hurried = AtomicBool::new(true);
        let ask = |_| match hurried.swap(false, Ordering::SeqCst) {
            true => {
                Err(Error::Connection { store: "s".into(), what: "no answer in 1 ms".into(), source: None })
            }
            false => Ok(Answer::Got(())),
        };
        thread::scope(|scope| {
            let front = scope.spawn(|| {
                let terms = Terms { speaks_for_all: false, ..terms(Duration::MAX) };
                queue.wait(&name(), &terms, |how| {
                    until("another is in line", || in_line(&queue) == 2);
                    ask(how)
                })
            });
            until("the front is in line", || in_line(&queue) == 1);
            let other = scope.spawn(|| queue.wait(&name(), &terms(Duration::MAX), ask));
            assert!(front.join().unwrap().is_err());
            assert!(other.join().unwrap().is_ok(), "a waiter in a hurry fails for itself alone");
        });

        let doubts = AtomicUsize::new(0);
        let ask = |_| match doubts.fetch_add(1, Ordering::SeqCst) {
            0 => Err(Error::InDoubt { what: "lost".into(), source: None }),
            _ => Ok(Answer::Got(())),
        };
        let wait = || queue.wait(&name(), &terms(Duration::MAX), ask);
        let granted = thread::scope(|scope| {
            let both = [scope.spawn(wait), scope.spawn(wait)];
            both.into_iter().filter_map(|waiter| waiter.join().unwrap().ok()).count()
        });
        assert_eq!(granted, 1, "the doubt concerns the one who asked");
    }

    #[test]
    fn closing_wakes_every_waiter() {
        let queue = Queue::default();
        thread::scope(|scope| {
            let waiters: Vec<_> = (0..10)
                .map(|_| {
                    let terms = Terms { retry: Duration::from_secs(3600), ..terms(Duration::MAX) };
                    let queue = &queue;
                    scope.spawn(move || queue.wait::<()>(&name(), &terms, |_| Ok(Answer::Busy(None))))
                })
                .collect();
            until("all are in line", || in_line(&queue) == 10);
            queue.close();
            for waiter in waiters {
                assert!(matches!(waiter.join().unwrap(), Err(Ended::Failed(Error::Closed))));
            }
        });
    }

    /// Without it a process with two busy threads would keep the lock from all others for ever.
    #[test]
    fn after_its_tenure_the_line_stands_back_for_one_interval() {
        let queue = Queue::default();
        let ticket = queue.join(&name());
        ticket.granted(RETRY);
        queue.released(&name(), Duration::from_secs(60));
        assert!(ticket.line.state.lock().next_ask <= Moment::now(), "a hand-over is immediate");
        let long_ago = Moment::now().as_nanos() - (RETRY * (TENURE + 1)).as_nanos() as u64;
        ticket.line.state.lock().ours_since = Some(Moment::from_nanos(long_ago));
        let before = Moment::now();
        queue.released(&name(), RETRY);
        let state = ticket.line.state.lock();
        assert!(state.next_ask >= before.after(RETRY.mul_f64(0.9)), "others get one interval");
        assert!(state.ours_since.is_none());
    }

    /// The front hears "busy" for a lock that is released here before it hears it.
    #[test]
    fn a_release_while_the_front_asks_is_not_lost() {
        let queue = Queue::default();
        let ticket = queue.join(&name());
        let seen = ticket.line.state.lock().releases;
        queue.released(&name(), Duration::from_secs(60));
        ticket.refused(None, Duration::from_secs(60), seen);
        let state = ticket.line.state.lock();
        assert!(state.next_ask <= Moment::now() && state.how == Ask::Attempt);
    }

    #[test]
    fn holds_longer_than_the_interval_end_the_tenure_too() {
        let queue = Queue::default();
        let ticket = queue.join(&name());
        ticket.granted(RETRY);
        ticket.refused(None, RETRY, 0);
        assert!(ticket.line.state.lock().ours_since.is_some(), "refused by ourselves");
        ticket.line.state.lock().ours = false;
        ticket.refused(None, RETRY, 0);
        assert!(ticket.line.state.lock().ours_since.is_none(), "refused by another");
    }

    #[test]
    fn the_next_question_comes_no_later_than_the_lease_it_waits_for() {
        let queue = Queue::default();
        let ticket = queue.join(&name());
        let before = Moment::now();
        let holder = |left| Some(Holder::new(None, Some(left), None));
        ticket.refused(holder(Duration::from_secs(5)), Duration::from_secs(60), 0);
        let wait = ticket.line.state.lock().next_ask.since(before);
        assert!(wait >= Duration::from_secs(5) && wait < Duration::from_secs(50), "{wait:?}");
        ticket.refused(holder(Duration::ZERO), Duration::from_secs(60), 0);
        let wait = ticket.line.state.lock().next_ask.since(before);
        assert!(wait >= Duration::from_secs(3), "clocks that disagree must not make it spin: {wait:?}");
    }
}
