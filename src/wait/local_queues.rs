//! Waiting for a lock inside one process: a queue for each lock, first come first served.
//!
//! Only the waiter at the front asks the store. The others park. So any number of threads causes one request to the
//! store per retry interval, and a lock that is released in this process goes straight to the next waiter.
//!
//! A waiter is a thread that blocks in [`LocalQueues::wait`], or a pending acquisition without a thread: see
//! [`asking`](crate::wait::asking). Both are in one queue and follow one rule, [`QueueTicket::step`].
//!
//! | waiter | waits for | leaves when |
//! |---|---|---|
//! | front | `next_ask`, or a local release, which makes it earlier | granted, failed, deadline, cancelled, closed |
//! | others | becoming the front | deadline, cancelled, closed, or an error of the front that concerns all |
//!
//! A process that passes a lock from thread to thread would keep it from every other process for ever. So the queue
//! yields for one retry interval after its fairness quantum of [`QUANTUM`] intervals. A single thread that acquires
//! a lock in a loop yields as well, after longer: see [`fairness`](crate::wait::fairness). A wait that would end
//! while the queue yields, or while nobody is known to be in its way, asks the store all the same.
//!
//! Waiters for different modes are in one queue. When the front has got the lock for reading, the readers behind it ask at once,
//! up to the next writer: one after the other, or all at one time if the store puts their requests together.
//! Readers behind a writer go before it when one of them has waited for [`QUANTUM`] intervals, and then others wait behind it
//! as long. A reader that waits only behind those who want to update goes before them. A wait only behind those that can have
//! the lock at the same time asks in the end: a request of one of them may hang.
//! A reader that this process has released frees nothing for other processes, so the quantum is that of exclusive holds. Who
//! wants to raise its own hold comes before all others.
//!
//! With [`notices`](crate::wait::notices) the queues of several processes form one queue, and the quantum is that of the
//! whole queue: a lock that is released goes to the process whose first waiter has waited longest. It yields only if somebody
//! may wait without notices, as far as the store knows: who is refused and is not in that queue notes it in the store, and so
//! does who ends without the lock.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::runtime::cancel::CancelToken;
use crate::runtime::sync::{AtomicBool, Condvar, HashMap, Mutex, MutexGuard};
use crate::runtime::time::{Deadline, LONGEST_PARK, Moment, jittered};
use crate::store::LockStore;
use crate::wait::fairness::{LOOP_QUANTUM, Past, Recent, others_turn};
use crate::wait::notices::{ANSWER, Arrival, LocalQueueAtRelease, LocalWaiters, NextTurn, Notices};

/// Fairness quantum of a queue: the number of retry intervals for which a lock may be passed on within this
/// process. Then the queue yields for one interval. Other processes ask once per interval and find the lock free.
const QUANTUM: u32 = 10;

/// From so many queues on, their reads fall together: see [`shared_reads`](crate::wait::shared_reads).
const MANY: usize = 8;
/// In one retry interval, so many moments at which reads fall together.
const POLLS: u64 = 8;

/// How often a writer that has announced itself asks after half an interval.
const ASKS_BESIDE_READERS: u8 = 6;

/// Answer of the store to the front of the queue.
pub(crate) enum Answer<T> {
    /// The lock was granted.
    Got(T),
    /// Another holder has the lock.
    Busy(Option<Holder>),
}

/// How to ask the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// The lock is probably free: try to acquire it.
    Attempt,
    /// The lock was held a moment ago: read it first, because a refusal then costs the store only a read.
    Read,
}

/// Why a wait ended without the lock.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The deadline passed.
    Unavailable(Option<Box<Holder>>),
    /// The caller's token was cancelled.
    Cancelled,
    /// The manager was closed, or the store failed.
    Failed(Error),
}

/// The terms of one wait.
pub(crate) struct Terms<'a> {
    pub(crate) by: Deadline,
    pub(crate) retry: Duration,
    pub(crate) mode: Mode,
    /// It raises a hold of its own, or reads within one: it comes before all others.
    pub(crate) is_within: bool,
    /// Whether readers at the front ask at the same time: see
    /// [`ModeStore::joins_together`](crate::store::ModeStore::joins_together).
    pub(crate) joins_together: bool,
    pub(crate) cancel: Option<&'a CancelToken>,
    /// Whether a failure to reach the store concerns the whole queue. It does not if this waiter gives the store
    /// less time than the others do.
    pub(crate) speaks_for_all: bool,
}

/// Whether a waiter wants more than one for `than`, so that it may be passed. Who raises an update hold is passed by readers
/// only: another updater would wait for that hold.
fn is_more(waiter: &Waiter, than: Mode) -> bool {
    match waiter.mode {
        Mode::Exclusive if waiter.is_within => than == Mode::Shared,
        Mode::Exclusive => than != Mode::Exclusive,
        Mode::Update => than == Mode::Shared,
        Mode::Shared | Mode::Permit => false,
    }
}

/// The queues of one manager, one for each lock (a [`LocalQueue`]).
pub(crate) struct LocalQueues {
    closed: AtomicBool,
    by_name: Mutex<HashMap<LockName, Arc<LocalQueue>>>,
    /// What is known about locks without a queue. To lock both, lock `by_name` first.
    recent: Mutex<Recent>,
    /// Called without any mutex of the queues.
    notices: Arc<Notices>,
    /// Knows who polls.
    store: Arc<dyn LockStore>,
    /// Makes the moments of this manager's reads differ from those of others.
    began: Moment,
}

#[cfg(test)]
impl Default for LocalQueues {
    fn default() -> LocalQueues {
        let (closed, by_name, recent) = (AtomicBool::default(), Mutex::default(), Mutex::default());
        let (notices, store) = (Arc::new(Notices::off()), Arc::new(crate::store::MemoryStore::new()));
        LocalQueues { closed, by_name, recent, notices, store, began: Moment::now() }
    }
}

#[derive(Debug)]
struct LocalQueue {
    state: Mutex<QueueState>,
}

#[derive(Debug)]
struct QueueState {
    waiting: VecDeque<Arc<Waiter>>,
    /// When the front asks the store next.
    next_ask: Moment,
    how: Ask,
    /// Whether `next_ask` is later because this process yields to other processes.
    yielding: bool,
    /// Start of the quantum: since then no other process has had a turn.
    ours_since: Option<Moment>,
    /// The holder that the last read of the lock returned.
    holder: Option<Holder>,
    /// When the lease of that holder ends, if it is known.
    holder_ends: Moment,
    /// Whether a notice has made the front wait longer since it last asked the store.
    has_paused: bool,
    /// Whether a thread of this process holds the lock.
    ours: bool,
    /// Number of local releases and notices. One of them while the front asks makes the answer outdated.
    releases: u64,
    /// When the front reads the store if the process that received the last notice does not answer its registration.
    /// The retry interval, after which it reads otherwise.
    unless_acknowledged: Option<Duration>,
    /// Whether a waiter of this process was refused since the last grant.
    was_refused: bool,
    /// Whether the front has read the store early because no notice said who holds the lock.
    has_looked_early: bool,
    /// Since when readers of other processes have had the lock, if they have it.
    away_since: Option<Moment>,
    /// When a waiter of this process last saw a writer hold the lock.
    writer_seen: Moment,
    /// How often a writer has asked after half an interval because readers held the lock.
    asks_beside_readers: u8,
}

/// One waiter.
#[derive(Debug)]
struct Waiter {
    arrived: Moment,
    retry: Duration,
    mode: Mode,
    /// See [`Terms::is_within`].
    is_within: bool,
    /// See [`Terms::joins_together`].
    joins_together: bool,
    /// It asks once without being the front.
    asks_along: AtomicBool,
    wake: Wake,
    /// Set by the front when it got an error that concerns the whole queue.
    failure: Mutex<Option<Error>>,
}

/// How a waiter learns that it should look at the queue again. Used only with the queue's mutex.
enum Wake {
    /// The waiter is a thread that parks.
    Thread(Condvar),
    /// The waiter has no thread. The function must not lock anything of the queues.
    Call(Box<dyn Fn() + Send + Sync>),
}

impl Waiter {
    fn new(terms: &Terms<'_>, wake: Wake) -> Arc<Waiter> {
        let Terms { retry, mode, is_within, joins_together, .. } = *terms;
        Arc::new(Waiter {
            arrived: Moment::now(),
            retry,
            mode,
            is_within,
            joins_together,
            asks_along: AtomicBool::new(false),
            wake,
            failure: Mutex::default(),
        })
    }

    fn arrival(&self) -> Arrival {
        Arrival { at: self.arrived, mode: self.mode }
    }

    /// When a reader goes before writers of this process.
    fn turn_at(&self) -> Moment {
        self.arrived.after(self.retry.saturating_mul(QUANTUM))
    }

    fn wake(&self) {
        match &self.wake {
            Wake::Thread(condvar) => {
                condvar.notify_one();
            }
            Wake::Call(call) => call(),
        }
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wake::Thread(_) => "Thread",
            Wake::Call(_) => "Call",
        })
    }
}

/// What a waiter does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum QueueStep {
    /// It asks the store. The number counts the local releases so far.
    Ask(Ask, u64),
    /// It parks until it is woken, or until this moment.
    Park(Moment),
}

impl LocalQueues {
    pub(crate) fn new(notices: Arc<Notices>, store: Arc<dyn LockStore>) -> Arc<LocalQueues> {
        let (closed, by_name, recent) = (AtomicBool::default(), Mutex::default(), Mutex::default());
        let queues = LocalQueues { closed, by_name, recent, notices, store, began: Moment::now() };
        let queues = Arc::new(queues);
        let waiters: Weak<LocalQueues> = Arc::downgrade(&queues);
        queues.notices.set_waiters(waiters);
        queues
    }

    pub(crate) fn notices(&self) -> &Notices {
        &self.notices
    }

    /// Waits in the queue of `name`. At the front, calls `ask` until the lock is granted, a call fails or the wait
    /// ends. `ask` runs without any mutex of the queue, and at least once unless other threads are in front.
    pub(crate) fn wait<T>(
        &self,
        name: &LockName,
        terms: &Terms<'_>,
        mut ask: impl FnMut(Ask) -> Result<Answer<T>>,
    ) -> Result<T, Ended> {
        let ticket = self.join(name, terms);
        let _registration = terms.cancel.map(|token| {
            let (queue, waiter) = (Arc::clone(&ticket.queue), Arc::clone(&ticket.waiter));
            token.on_cancel(Arc::new(move || {
                let _state = queue.state.lock();
                waiter.wake();
            }))
        });
        let mut asked = false;
        loop {
            let (how, releases) = ticket.wait_for_turn(terms, asked)?;
            asked = true;
            match ask(how) {
                Ok(Answer::Got(got)) => {
                    ticket.granted(terms);
                    return Ok(got);
                }
                Ok(Answer::Busy(holder)) => ticket.refused(holder, terms, releases),
                Err(error) => return Err(Ended::Failed(ticket.failed(error, terms, releases))),
            }
        }
    }

    /// Records that the lock was released in this process, and lets the queue's front ask the store, or another process
    /// if that has waited longer. `grant` has the random bits of the grant, if others can register for its release.
    pub(crate) fn released(&self, name: &LockName, grant: Option<u64>, retry: Duration) {
        self.pass_on(name, grant, retry, false);
    }

    /// Records that a holder of this process has left, which was not exclusive. The front asks whether it is its turn, unless
    /// another process has waited longer.
    pub(crate) fn reader_left(&self, name: &LockName, grant: Option<u64>) {
        let queue = self.by_name.lock().get(name).cloned();
        let front = queue.as_ref().and_then(|queue| queue.state.lock().waiting.front().cloned());
        let first =
            front.as_ref().filter(|_| !self.closed.load(Ordering::SeqCst)).map(|front| front.arrival());
        let at_release = LocalQueueAtRelease { front: first, since: None, yield_until: None };
        let turn = grant.map_or(NextTurn::Ours, |grant| self.notices.released(name, grant, at_release));
        let (Some(queue), Some(front)) = (queue, front) else { return };
        let mut state = queue.state.lock();
        if state.yielding {
            return;
        }
        state.releases += 1;
        match turn {
            NextTurn::Theirs => state.ask_at(Moment::now().after(jittered(front.retry)), Ask::Read),
            NextTurn::Ours | NextTurn::Yield => {
                state.ask_at(Moment::now(), Ask::Attempt);
                state.wake_front();
            }
        }
    }

    /// Records that the lock was released in this process and stays here, so that nobody else can have it, and lets the
    /// queue's front take it. Returns whether it must be given back, because it is the turn of others.
    pub(crate) fn stays(&self, name: &LockName, retry: Duration) -> bool {
        self.pass_on(name, None, retry, true)
    }

    /// Records that the lock is free because [`stays`](LocalQueues::stays) has said so. This process leaves it to others for one
    /// interval from now on.
    pub(crate) fn given_back(&self, name: &LockName, grant: Option<u64>, retry: Duration) {
        let until = others_turn(Moment::now(), retry);
        if let Some(grant) = grant {
            let queue = LocalQueueAtRelease { front: None, since: None, yield_until: Some(until) };
            self.notices.released(name, grant, queue);
        }
        let Some(queue) = self.by_name.lock().get(name).cloned() else { return };
        let mut state = queue.state.lock();
        if state.yielding {
            state.yield_until(until);
        }
    }

    /// Records that a lock which stays is about to be released because its time is over: see
    /// [`left_to_others`](LocalQueues::left_to_others), which follows. It may be free before the release is answered.
    pub(crate) fn leaves(&self, name: &LockName, retry: Duration) {
        if !self.nobody_polls() {
            self.recent.lock().leave(name, others_turn(Moment::now(), retry));
        }
    }

    /// Records that a lock which had stayed is free because its time is over. Others who poll could not find it free, so
    /// this process leaves it to them for one interval. Those who have notices ask at once. Does the same as
    /// [`released`](LocalQueues::released) if nobody polls.
    pub(crate) fn left_to_others(&self, name: &LockName, grant: Option<u64>, retry: Duration) {
        // If somebody polled when it was about to be released, this process leaves it to others already.
        if self.nobody_polls() && self.left_until(name).is_none() {
            return self.released(name, grant, retry);
        }
        let until = others_turn(Moment::now(), retry);
        if let Some(grant) = grant {
            let queue = LocalQueueAtRelease { front: None, since: None, yield_until: None };
            self.notices.released(name, grant, queue);
        }
        let queues = self.by_name.lock();
        self.recent.lock().leave(name, until);
        let Some(queue) = queues.get(name).cloned() else { return };
        drop(queues);
        let mut state = queue.state.lock();
        state.releases += 1;
        (state.ours, state.ours_since) = (false, None);
        state.yield_until(until);
    }

    /// Returns until when this process leaves the lock to others: see [`left_to_others`](LocalQueues::left_to_others).
    pub(crate) fn left_until(&self, name: &LockName) -> Option<Moment> {
        self.recent.lock().left_until(name)
    }

    fn pass_on(&self, name: &LockName, grant: Option<u64>, retry: Duration, stays: bool) -> bool {
        let queue = self.by_name.lock().get(name).cloned();
        let (front, since) = match &queue {
            Some(queue) => {
                let state = queue.state.lock();
                (state.waiting.front().map(|front| front.arrival()), state.ours_since)
            }
            None => (None, self.recent.lock().since(name)),
        };
        let now = Moment::now();
        let quantum = retry.saturating_mul(if queue.is_some() { QUANTUM } else { LOOP_QUANTUM });
        let is_over = since.is_some_and(|since| now.since(since) > quantum) && !self.nobody_polls();
        let yield_until = is_over.then(|| others_turn(now, retry));
        let front = front.filter(|_| !self.closed.load(Ordering::SeqCst));
        let released = match grant {
            Some(grant) => {
                self.notices.released(name, grant, LocalQueueAtRelease { front, since, yield_until })
            }
            None => NextTurn::Ours,
        };
        let Some(queue) = queue else {
            match released {
                NextTurn::Ours => {
                    let free_since = (!stays).then_some(now);
                    self.recent.lock().released(name, free_since, retry, yield_until);
                }
                NextTurn::Theirs | NextTurn::Yield => self.recent.lock().handed_on(name, yield_until),
            }
            return yield_until.is_some();
        };
        // Who did not wait asked all the same.
        let left_until = self.left_until(name);
        let mut state = queue.state.lock();
        state.releases += 1;
        state.ours = false;
        match (released, yield_until.or(left_until)) {
            (_, Some(until)) => {
                state.ours_since = None;
                state.yield_until(until);
            }
            (NextTurn::Theirs, None) => state.ask_at(now.after(jittered(retry)), Ask::Read),
            (NextTurn::Ours | NextTurn::Yield, None) => {
                state.ask_at(now, Ask::Attempt);
                state.wake_front();
            }
        }
        yield_until.is_some()
    }

    /// Whether no time must be left to processes that find a free lock only by asking.
    fn nobody_polls(&self) -> bool {
        self.notices.are_all() || self.notices.are_open() && !self.store.may_have_pollers()
    }

    /// Returns when a waiter of this process last saw a writer hold the lock, as far as the queue remembers.
    pub(crate) fn saw_writer(&self, name: &LockName) -> Moment {
        let queue = self.by_name.lock().get(name).cloned();
        queue.map_or(Moment::OVER, |queue| queue.state.lock().writer_seen)
    }

    /// Returns whether this process waits for so many locks that their reads are put together.
    pub(crate) fn waits_for_many(&self) -> bool {
        self.by_name.lock().len() >= MANY
    }

    /// Returns when to read a lock again that was asked for at this time. Locks the queues.
    fn next_poll(&self, asked: Moment, retry: Duration) -> Moment {
        let at = asked.after(jittered(retry));
        let apart = u64::try_from(retry.as_nanos()).unwrap_or(u64::MAX) / POLLS;
        if apart == 0 || !self.waits_for_many() {
            return at;
        }
        let behind = at.as_nanos().saturating_sub(self.began.as_nanos()) % apart;
        let (earlier, later) = (at.as_nanos() - behind, at.as_nanos().saturating_add(apart - behind));
        Moment::from_nanos(if behind < apart / 2 { earlier } else { later })
    }

    /// Returns the number of waiters in all queues.
    pub(crate) fn waiting(&self) -> usize {
        let queues: Vec<_> = self.by_name.lock().values().cloned().collect();
        queues.iter().map(|queue| queue.state.lock().waiting.len()).sum()
    }

    /// Returns the locks that are waited for, each with the number of its waiters and when the first of them came.
    pub(crate) fn waits(&self) -> Vec<(LockName, usize, Moment)> {
        let queues: Vec<_> =
            self.by_name.lock().iter().map(|(name, queue)| (name.clone(), Arc::clone(queue))).collect();
        let wait = |(name, queue): (LockName, Arc<LocalQueue>)| {
            let state = queue.state.lock();
            state.waiting.front().map(|front| (name, state.waiting.len(), front.arrived))
        };
        queues.into_iter().filter_map(wait).collect()
    }

    /// Ends every wait with [`Code::Closed`]. Later waits fail with it as well.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let queues: Vec<_> = self.by_name.lock().values().cloned().collect();
        for queue in queues {
            let state = queue.state.lock();
            state.waiting.iter().for_each(|waiter| waiter.wake());
        }
    }

    fn join(&self, name: &LockName, terms: &Terms<'_>) -> QueueTicket<&LocalQueues> {
        QueueTicket::join(self, name, Waiter::new(terms, Wake::Thread(Condvar::new())))
    }

    /// Joins the queue of `name` without a thread. `wake` is called, with the queue locked, when the waiter should call
    /// [`step`](QueueTicket::step) again. It must not call back into the queues.
    pub(crate) fn join_without_thread(
        self: &Arc<Self>,
        name: &LockName,
        terms: &Terms<'_>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> QueueTicket<Arc<LocalQueues>> {
        QueueTicket::join(Arc::clone(self), name, Waiter::new(terms, Wake::Call(Box::new(wake))))
    }
}

impl<Q: Deref<Target = LocalQueues>> QueueTicket<Q> {
    fn join(queues: Q, name: &LockName, waiter: Arc<Waiter>) -> QueueTicket<Q> {
        let retry = waiter.retry;
        let is_first = queues.notices.are_open() && !queues.by_name.lock().contains_key(name);
        let is_registered = is_first && queues.notices.joined(name, waiter.mode);
        let mut by_name = queues.by_name.lock();
        let queue = match by_name.get(name) {
            Some(queue) => Arc::clone(queue),
            None => {
                let mut state = QueueState::after(queues.recent.lock().take(name));
                if is_registered {
                    let answered = Moment::now().after(ANSWER.min(jittered(retry)));
                    state.yield_until(state.next_ask.max(answered));
                    state.unless_acknowledged = Some(retry);
                }
                let queue = Arc::new(LocalQueue { state: Mutex::new(state) });
                by_name.insert(name.clone(), Arc::clone(&queue));
                queue
            }
        };
        // Under the map's lock, because the empty queue could be removed in between.
        let mut state = queue.state.lock();
        match waiter.is_within {
            false => state.push_last(Arc::clone(&waiter)),
            true => {
                state.waiting.push_front(Arc::clone(&waiter));
                state.front_has_changed();
            }
        }
        drop(state);
        drop(by_name);
        QueueTicket { queues, name: name.clone(), queue, waiter }
    }
}

impl QueueState {
    /// State of a new queue. Its first waiter asks the store at once, unless this process is yielding.
    fn after(past: Past) -> QueueState {
        let mut state = QueueState {
            waiting: VecDeque::new(),
            next_ask: Moment::from_nanos(0),
            how: Ask::Attempt,
            yielding: false,
            ours_since: None,
            holder: None,
            holder_ends: Moment::NEVER,
            has_paused: false,
            ours: matches!(past, Past::Held(_)),
            releases: 0,
            unless_acknowledged: None,
            was_refused: false,
            has_looked_early: false,
            away_since: None,
            writer_seen: Moment::OVER,
            asks_beside_readers: 0,
        };
        match past {
            Past::Held(since) | Past::GoesOn(since) => state.ours_since = Some(since),
            Past::Yields(until) => state.yield_until(until),
            Past::Nothing => {}
        }
        state
    }

    /// A reader goes before those who wait for another updater, which is not in its way. Each of them lets readers pass for
    /// [`QUANTUM`] of its intervals, so that they do not keep it from ever asking.
    fn push_last(&mut self, waiter: Arc<Waiter>) {
        let is_update = |mode| mode == Mode::Update;
        let waits_for_update = self.holder.as_ref().is_some_and(|holder| is_update(holder.mode));
        let is_passed = |behind: &Arc<Waiter>| {
            is_update(behind.mode) && waits_for_update && Moment::now() < behind.turn_at()
        };
        let is_reader = waiter.mode == Mode::Shared;
        let passed = self.waiting.iter().rev().take_while(|behind| is_reader && is_passed(behind)).count();
        let at = self.waiting.len() - passed;
        self.waiting.insert(at, waiter);
        if at == 0 && passed > 0 {
            self.front_has_changed();
        }
    }

    /// Lets those who want less ask before those who want more, if this reader has waited for its turn: a writer in
    /// front of it waits for readers that wait for each other, or a lock is never free.
    fn take_turn(&mut self, reader: &Waiter) {
        if self.turn_of(reader).is_none_or(|turn| Moment::now() < turn) {
            return;
        }
        // The order among equals stays.
        let mode = reader.mode;
        self.waiting.make_contiguous().sort_by_key(|waiter| is_more(waiter, mode));
        self.front_has_changed();
        self.wake_front();
    }

    /// Returns when a reader goes before those in front of it who want more. It waits for as long as the first of them had
    /// waited when it came, so that the turns come after ever longer times.
    fn turn_of(&self, reader: &Waiter) -> Option<Moment> {
        let first = self.ahead_of(reader).find(|waiter| is_more(waiter, reader.mode))?;
        Some(reader.turn_at().max(reader.arrived.after(reader.arrived.since(first.arrived))))
    }

    fn ahead_of<'a>(&'a self, waiter: &'a Waiter) -> impl Iterator<Item = &'a Arc<Waiter>> {
        self.waiting.iter().take_while(move |other| !std::ptr::eq(&***other, waiter))
    }

    /// The new front asks at once, unless it is the turn of other processes. An answer to the earlier one says nothing about
    /// when.
    fn front_has_changed(&mut self) {
        self.releases += 1;
        if !self.yielding {
            self.ask_at(Moment::now(), Ask::Attempt);
        }
        // When others have their turn may have changed.
        self.waiting.iter().filter(|waiter| waiter.mode != Mode::Exclusive).for_each(|waiter| waiter.wake());
    }

    fn ask_at(&mut self, when: Moment, how: Ask) {
        self.next_ask = when;
        self.how = how;
        self.yielding = false;
        self.unless_acknowledged = None;
    }

    fn yield_until(&mut self, until: Moment) {
        self.ask_at(until, Ask::Read);
        self.yielding = true;
    }

    /// After the front has got the lock for reading, the readers behind it ask at the same time, up to the next writer.
    fn let_readers_ask(&self, front: &Arc<Waiter>) {
        let joins = |waiter: &Waiter| waiter.mode == Mode::Shared && waiter.joins_together;
        let behind = self.waiting.iter().filter(|waiter| !Arc::ptr_eq(waiter, front));
        for reader in behind.take_while(|waiter| joins(front) && joins(waiter)) {
            reader.asks_along.store(true, Ordering::Relaxed);
            reader.wake();
        }
    }

    fn wake_front(&self) {
        if let Some(front) = self.waiting.front() {
            front.wake();
        }
    }
}

/// Whether an acquisition in this mode may be granted although the store has named this holder to another one.
fn lets_in(holder: &Holder, mode: Mode) -> bool {
    !holder.is_waiting && holder.mode.is_compatible_with(mode)
}

/// A waiter's slot in a queue. Dropping it leaves the queue, also when a call to the store panics.
pub(crate) struct QueueTicket<Q: Deref<Target = LocalQueues>> {
    queues: Q,
    name: LockName,
    queue: Arc<LocalQueue>,
    waiter: Arc<Waiter>,
}

impl QueueTicket<&LocalQueues> {
    /// Parks until it is this thread's turn to ask the store.
    fn wait_for_turn(&self, terms: &Terms<'_>, asked: bool) -> Result<(Ask, u64), Ended> {
        let mut state = self.queue.state.lock();
        loop {
            state.take_turn(&self.waiter);
            let until = match self.step_in(&state, terms, asked)? {
                QueueStep::Ask(how, releases) => return Ok((how, releases)),
                QueueStep::Park(until) => until.since(Moment::now()).min(LONGEST_PARK),
            };
            match &self.waiter.wake {
                Wake::Thread(condvar) => condvar.wait_for(&mut state, until),
                Wake::Call(_) => unreachable!("a ticket that borrows its queue belongs to a thread"),
            };
        }
    }
}

impl<Q: Deref<Target = LocalQueues>> QueueTicket<Q> {
    /// Returns what the waiter does next. `asked` says whether it has asked before: even a wait of zero asks once.
    pub(crate) fn step(&self, terms: &Terms<'_>, asked: bool) -> Result<QueueStep, Ended> {
        let mut state = self.queue.state.lock();
        state.take_turn(&self.waiter);
        self.step_in(&state, terms, asked)
    }

    fn step_in(&self, state: &QueueState, terms: &Terms<'_>, asked: bool) -> Result<QueueStep, Ended> {
        if let Some(error) = self.waiter.failure.lock().take() {
            return Err(Ended::Failed(error));
        }
        if self.queues.closed.load(Ordering::SeqCst) {
            return Err(Ended::Failed(Error::Closed));
        }
        if terms.cancel.is_some_and(CancelToken::is_cancelled) {
            return Err(Ended::Cancelled);
        }
        let now = Moment::now();
        let front = self.is_front(state);
        let brief = state.yielding && !asked && terms.by.moment() <= state.next_ask;
        let asks_along = terms.joins_together && self.waiter.asks_along.swap(false, Ordering::Relaxed);
        let may_ask = !asked || now < terms.by.moment();
        if front && (brief || now >= state.next_ask) && may_ask {
            return Ok(QueueStep::Ask(state.how, state.releases));
        }
        if asks_along && may_ask {
            return Ok(QueueStep::Ask(Ask::Attempt, state.releases));
        }
        let mode = self.waiter.mode;
        let is_unhindered = || match front {
            // The one before it had no answer, or was refused because of somebody who is not in the way of this one: a reader
            // beside another, or a permit, of which it may have wanted more.
            true => !state.ours && state.holder.as_ref().is_none_or(|holder| lets_in(holder, mode)),
            // It has waited only for those that are not in its way.
            false => state.ahead_of(&self.waiter).all(|ahead| ahead.mode.is_compatible_with(mode)),
        };
        if !asked && now >= terms.by.moment() && is_unhindered() {
            return Ok(QueueStep::Ask(Ask::Attempt, state.releases));
        }
        if now >= terms.by.moment() {
            return Err(Ended::Unavailable(state.holder.clone().map(Box::new)));
        }
        let until = match front {
            true => state.next_ask,
            false => state.turn_of(&self.waiter).unwrap_or(Moment::NEVER),
        };
        Ok(QueueStep::Park(terms.by.moment().min(until)))
    }

    /// Returns the holder that the last read of the lock returned.
    pub(crate) fn holder(&self) -> Option<Holder> {
        self.queue.state.lock().holder.clone()
    }

    pub(crate) fn granted(&self, terms: &Terms<'_>) {
        let now = Moment::now();
        let next = self.queues.next_poll(now, terms.retry);
        let mut state = self.queue.state.lock();
        state.holder = None;
        (state.holder_ends, state.has_paused, state.asks_beside_readers) = (Moment::NEVER, false, 0);
        state.was_refused = false;
        if terms.mode == Mode::Exclusive {
            // Readers had the lock for so short a time that others of them did not find it.
            let is_away = state.away_since.take().is_some_and(|since| now.since(since) >= terms.retry);
            state.ours_since = state.ours_since.filter(|_| !is_away).or(Some(now));
            state.ours = true;
            state.writer_seen = now;
        }
        if terms.mode != Mode::Exclusive && !self.is_front(&state) {
            return;
        }
        let behind = state.waiting.iter().find(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
        match behind.is_some_and(|behind| behind.mode.is_compatible_with(terms.mode)) {
            true => {
                state.ask_at(now, Ask::Attempt);
                state.let_readers_ask(&self.waiter);
            }
            // The next waiter need not ask while a thread of this process holds the lock. The release makes
            // `next_ask` earlier.
            false => state.ask_at(next, Ask::Read),
        }
    }

    /// Records that the lock is held. `releases` is the number of local releases when the store was asked.
    pub(crate) fn refused(&self, holder: Option<Holder>, terms: &Terms<'_>, releases: u64) {
        let retry = terms.retry;
        let now = Moment::now();
        let mut next = self.queues.next_poll(now, retry);
        // Locks the queues, so before the state of this one.
        let early = self.queues.next_poll(now, retry / 2);
        let mut state = self.queue.state.lock();
        state.has_paused = false;
        if holder.as_ref().is_some_and(|holder| holder.mode == Mode::Exclusive && !holder.is_waiting) {
            state.writer_seen = state.writer_seen.max(now);
        }
        if state.releases != releases || !self.is_front(&state) {
            // The lock was released meanwhile, and the release or its notice has set `next_ask`; or this waiter does not
            // ask for the others.
            return;
        }
        let notices = holder.as_ref().and_then(|holder| holder.identity.as_ref()?.notices);
        let is_known = notices.is_some() || !self.queues.notices.are_open();
        if !is_known && !std::mem::replace(&mut state.has_looked_early, true) {
            // The lock may have been released before the store could say who holds it. If the next holder has
            // notices, this waiter need not poll.
            next = next.min(now.after(ANSWER));
        }
        let is_of_readers = |holder: &Holder| holder.mode != Mode::Exclusive || holder.is_waiting;
        let has_readers = holder.as_ref().is_some_and(is_of_readers);
        if has_readers
            && notices.is_none()
            && terms.mode == Mode::Exclusive
            && state.asks_beside_readers < ASKS_BESIDE_READERS
        {
            // It has announced itself, so no new ones come, and those that are there may leave soon.
            state.asks_beside_readers += 1;
            next = next.min(early);
        }
        let left = holder.as_ref().and_then(|holder| holder.remaining);
        // Ask when the lease ends at the latest, but not in a tight loop if the clocks disagree.
        state.holder_ends = left.map_or(Moment::NEVER, |left| now.after(left.max(retry / 20)));
        next = next.min(state.holder_ends);
        // If a thread of this process holds the lock, no other process has had a turn.
        if !state.ours && has_readers {
            state.away_since.get_or_insert(now);
        } else if !state.ours {
            state.ours_since = None;
        }
        state.holder = holder;
        state.ask_at(next, Ask::Read);
        let somebody_stays = state.waiting.len() > 1 || !terms.by.passed();
        let (is_first, is_ours) = (!std::mem::replace(&mut state.was_refused, true), state.ours);
        drop(state);
        self.note_poller(is_first || is_ours, retry);
        match notices {
            notices if somebody_stays => {
                self.queues.notices.refused(&self.name, notices, has_readers, self.waiter.arrival())
            }
            Some(holder) => self.queues.notices.want(holder),
            None => {}
        }
    }

    /// Notes in the store that this process polls, if it does. `is_early`: the next holder may still get its registration, or a
    /// thread of this process has the lock.
    fn note_poller(&self, is_early: bool, retry: Duration) {
        let LocalQueues { notices, store, .. } = &*self.queues;
        if !notices.are_open() || !is_early && !notices.are_expected(&self.name) {
            // Until the next look, and for a whole quantum of those that pass the lock on.
            store.note_poller(Moment::now().after(retry.saturating_mul(QUANTUM + 2)));
        }
    }

    /// Records that the lock was read and is free. The front asks for it now. While this process yields, it asks only if it
    /// must not wait.
    pub(crate) fn found_free(&self, releases: u64) {
        let mut state = self.queue.state.lock();
        if state.releases == releases && !state.yielding {
            state.ask_at(Moment::now(), Ask::Attempt);
        }
    }

    /// Handles an error of the front. If the store does not serve the front, it serves no other waiter, so all
    /// leave with that error. A doubt about the front's own request concerns only the front.
    pub(crate) fn failed(&self, error: Error, terms: &Terms<'_>, releases: u64) -> Error {
        // Before the others leave: their turn may go to another process.
        self.queues.notices.failed(&self.name);
        let mut state = self.queue.state.lock();
        state.has_paused = false;
        if state.releases == releases {
            state.ask_at(Moment::now().after(jittered(terms.retry)), Ask::Read);
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
        let own = || Error::shared(&shared);
        for waiter in state.waiting.iter().filter(|waiter| !Arc::ptr_eq(waiter, &self.waiter)) {
            *waiter.failure.lock() = Some(own());
            waiter.wake();
        }
        state.waiting.retain(|waiter| Arc::ptr_eq(waiter, &self.waiter));
        own()
    }

    fn is_front(&self, state: &QueueState) -> bool {
        state.waiting.front().is_some_and(|waiter| Arc::ptr_eq(waiter, &self.waiter))
    }

    fn leave(&self, mut state: MutexGuard<'_, QueueState>) -> bool {
        let was_front = self.is_front(&state);
        state.waiting.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
        if was_front {
            state.wake_front();
        }
        state.waiting.is_empty()
    }
}

impl<Q: Deref<Target = LocalQueues>> Drop for QueueTicket<Q> {
    fn drop(&mut self) {
        let mut by_name = self.queues.by_name.lock();
        let empty = self.leave(self.queue.state.lock());
        // A queue that was emptied by a failure may already have been replaced by a new one.
        if empty && by_name.get(&self.name).is_some_and(|queue| Arc::ptr_eq(queue, &self.queue)) {
            let name = by_name.remove_entry(&self.name).map(|(name, _)| name);
            let state = self.queue.state.lock();
            if let (Some(name), Some(since), true) = (name, state.ours_since, state.ours) {
                self.queues.recent.lock().held(name, since);
            }
            drop(state);
            drop(by_name);
            self.queues.notices.left(&self.name);
        }
    }
}

/// What notices do to the queues.
impl LocalWaiters for LocalQueues {
    fn ask_now(&self, name: &LockName, age: Duration) -> bool {
        let Some(queue) = self.by_name.lock().get(name).cloned() else { return false };
        let mut state = queue.state.lock();
        let now = Moment::now();
        state.releases += 1;
        let nanos = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        state.ours_since = Some(Moment::from_nanos(now.as_nanos().saturating_sub(nanos)));
        state.ask_at(now, Ask::Attempt);
        state.wake_front();
        !state.waiting.is_empty()
    }

    fn read_now(&self, name: &LockName) {
        let Some(queue) = self.by_name.lock().get(name).cloned() else { return };
        let mut state = queue.state.lock();
        let now = Moment::now();
        if now < state.next_ask {
            state.ask_at(now, Ask::Read);
            state.wake_front();
        }
    }

    fn pause(&self, name: &LockName, until: Moment) {
        let Some(queue) = self.by_name.lock().get(name).cloned() else { return };
        let mut state = queue.state.lock();
        let Some(retry) = state.waiting.front().map(|front| front.retry) else { return };
        // Any number may come with a datagram, and any number of them.
        let until = until.min(others_turn(Moment::now(), retry)).min(state.holder_ends);
        if state.next_ask < until && !std::mem::replace(&mut state.has_paused, true) {
            state.yield_until(until);
        }
    }

    fn waiting_for(&self, name: &LockName) -> (usize, Duration) {
        let Some(queue) = self.by_name.lock().get(name).cloned() else { return (0, Duration::ZERO) };
        let state = queue.state.lock();
        let waited = state.waiting.front().map(|front| Moment::now().since(front.arrived));
        (state.waiting.len(), waited.unwrap_or_default())
    }

    fn acknowledged(&self, name: &LockName) {
        let Some(queue) = self.by_name.lock().get(name).cloned() else { return };
        let mut state = queue.state.lock();
        if let Some(retry) = state.unless_acknowledged {
            let polls = Moment::now().after(jittered(retry));
            let next = state.next_ask.max(polls);
            state.yield_until(next);
        }
    }
}
