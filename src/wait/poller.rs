//! The latches that somebody in this process waits for: each is looked at once per pause, however many
//! wait for it, and all that are due at about the same time are read in one call to the store.
//!
//! | a watch is | until | leaves by |
//! |---|---|---|
//! | due | its moment comes, or a newcomer or a local change brings it forward | being read, its last waiter leaving |
//! | being read | the store answers | open or gone: it ends; else due again |
//! | ended | - | its waiters see how, and leave |
//!
//! The pause between two looks at a latch is short at first and after each change of its count, and
//! doubles while nothing changes, up to the poll interval. After a change it is half the time in which
//! the latch would open at the pace seen. So a latch that is far from opening costs little, and the end
//! of a wait is noticed early in proportion to its length.
//!
//! A store that cannot be reached ends no watch: one read at a time goes on trying, ever more rarely, and
//! all watches go on when it succeeds. A store that refuses for good does: no access, a table that is disabled
//! or of another kind, a count that is none.
//!
//! A subscriber receives only changes that happen after it subscribed. A thread that subscribes while a latch is
//! being read may have made the latch, or counted it up, after the read. So subscribers of that time share a watch
//! of their own, which that read does not end.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::{Code, Error, Result};
use crate::latch_name::LatchName;
use crate::name::Level;
use crate::store::{LatchStore, LockStore};
use crate::time::{Deadline, Moment, jittered};
use crate::wait::background::{Background, Next, Ticket};
use crate::wait::watch::{End, LatchKey, Watch};
use crate::wait::watched_latch::{Group, PollTurn, Subscription, WatchedLatch};

/// Latches read in one call.
const BATCH_MAX: usize = 512;
/// A watch that is due within this part of its pause is read along with others.
const EARLY: u32 = 8;
/// A table of so many watches is kept, however few there are.
const TABLE_MIN: usize = 64;
/// Pauses after failures double up to so many poll intervals, or to this time where that is less, but
/// are never shorter than one interval.
const BACK_OFF_POLLS: u32 = 8;
const BACK_OFF_MAX: Duration = Duration::from_secs(30);

/// The watches of one manager.
pub(crate) struct LatchPoller {
    store: Arc<dyn LockStore>,
    background: Arc<Background>,
    poll: Duration,
    /// For one call to the store.
    timeout: Duration,
    state: Mutex<PollerState>,
}

#[derive(Default)]
struct PollerState {
    closed: bool,
    watched: HashMap<Arc<LatchKey>, WatchedLatch>,
    due: BTreeMap<PollTurn, Arc<LatchKey>>,
    /// The job in the pool that reads what is due next, and its number.
    timer: Option<(Ticket, u64)>,
    /// Turns, timers and newcomers so far.
    numbers: u64,
    /// Set while the store does not serve.
    outage: Option<Outage>,
}

struct Outage {
    failures: u32,
    /// Of the last read.
    error: Arc<Error>,
    /// No read before this moment.
    until: Moment,
    /// One read is trying.
    probing: bool,
}

impl LatchPoller {
    pub(crate) fn new(
        store: Arc<dyn LockStore>,
        background: Arc<Background>,
        poll: Duration,
        timeout: Duration,
    ) -> LatchPoller {
        LatchPoller { store, background, poll, timeout, state: Mutex::default() }
    }

    /// Joins those who wait for a latch. The first look at it that counts for the newcomer begins at once,
    /// or as soon as one under way is over.
    ///
    /// # Errors
    /// CLOSED; INTERNAL_ERROR when there is no thread that could look.
    pub(crate) fn join(self: &Arc<LatchPoller>, key: LatchKey) -> Result<Subscription> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::Closed);
        }
        let number = state.numbers;
        state.numbers += 1;
        let watched = match state.watched.entry(Arc::new(key)) {
            Entry::Occupied(slot) => slot.into_mut(),
            Entry::Vacant(slot) => {
                let watched = WatchedLatch::new(Arc::clone(slot.key()), self.poll);
                slot.insert(watched)
            }
        };
        let subscription = watched.join(number);
        state.bring_forward(&subscription.watch.key, Moment::now());
        if let Err(error) = self.set_timer(&mut state) {
            drop(state);
            self.leave(&subscription);
            return Err(error);
        }
        Ok(subscription)
    }

    /// The last one to leave ends the watch: nothing of it stays behind.
    pub(crate) fn leave(&self, subscription: &Subscription) {
        let mut state = self.state.lock();
        let key = &subscription.watch.key;
        let Some(watched) = state.entry(key) else { return };
        let Some(group) =
            watched.groups.iter_mut().find(|group| Arc::ptr_eq(&group.watch, &subscription.watch))
        else {
            return;
        };
        group.waiters -= 1;
        watched.groups.retain(|group| group.waiters > 0);
        if watched.groups.is_empty() {
            state.remove(key);
            if state.due.is_empty()
                && let Some((ticket, _)) = state.timer.take()
            {
                self.background.cancel(ticket);
            }
        }
    }

    /// To be asked for before this process changes a count, and handed to [`stepped`](LatchPoller::stepped).
    pub(crate) fn begin_step(&self) -> u64 {
        self.state.lock().numbers
    }

    /// This process has changed the farm's count of `name`, to `count` where the store told. Who came
    /// since `began` may have come after another change, so a look must tell.
    pub(crate) fn stepped(self: &Arc<LatchPoller>, name: &LatchName, count: Option<i64>, began: u64) {
        let mut opened = Vec::new();
        let mut state = self.state.lock();
        if state.watched.is_empty() || count.is_some_and(|count| count > 0) {
            return;
        }
        for level in [Level::Dc, Level::Xdc] {
            let Some(watched) = state.watched.get(&(name.clone(), level)) else { continue };
            let key = Arc::clone(&watched.key);
            if level == Level::Dc && count.is_some() {
                opened = state.take_groups(&key, |group| group.joined < began);
            }
            state.bring_forward(&key, Moment::now());
        }
        if let Err(error) = self.set_timer(&mut state) {
            log::warn!("{}", error.chain());
        }
        drop(state);
        opened.iter().for_each(|watch| watch.end(End::Open));
    }

    /// Why the store cannot be asked, while it does not serve.
    pub(crate) fn trouble(&self) -> Option<Arc<Error>> {
        self.state.lock().outage.as_ref().map(|outage| Arc::clone(&outage.error))
    }

    /// Ends every wait with CLOSED, those to come included.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.due.clear();
        let timer = state.timer.take();
        let watched = std::mem::take(&mut state.watched);
        drop(state);
        if let Some((ticket, _)) = timer {
            self.background.cancel(ticket);
        }
        let groups = watched.values().flat_map(|watched| &watched.groups);
        groups.for_each(|group| group.watch.end(End::Closed));
    }

    /// Has the pool run a read when the next watch is due.
    fn set_timer(self: &Arc<LatchPoller>, state: &mut PollerState) -> Result<()> {
        let Some((&(mut due, _), _)) = state.due.first_key_value() else { return Ok(()) };
        match &state.outage {
            // It sets the timer when it is over.
            Some(outage) if outage.probing => return Ok(()),
            Some(outage) => due = due.max(outage.until),
            None => {}
        }
        if let Some((ticket, _)) = state.timer {
            if ticket.due() <= due {
                return Ok(());
            }
            self.background.cancel(ticket);
            state.timer = None;
        }
        let (poller, number): (Weak<LatchPoller>, u64) = (Arc::downgrade(self), state.numbers);
        state.numbers += 1;
        let read = move || {
            if let Some(poller) = poller.upgrade() {
                poller.read_due(number);
            }
            Next::Done
        };
        let ticket = self.background.run_at(due, read).map_err(|error| Error::Internal {
            what: "there is no thread to look at latches".into(),
            source: Some(error.into()),
        })?;
        state.timer = Some((ticket, number));
        Ok(())
    }

    /// The job: reads what is due. `timer`: the number by which it knows this run of it.
    fn read_due(self: &Arc<LatchPoller>, timer: u64) {
        let batch = {
            let mut state = self.state.lock();
            // Another one may have been set while this one was on its way.
            if state.timer.is_some_and(|(_, number)| number == timer) {
                state.timer = None;
            }
            let batch = state.take_due(Moment::now());
            // While this one reads, another thread may read the rest.
            self.set_timer_or_log(&mut state);
            batch
        };
        if batch.is_empty() {
            return;
        }
        let asked: Vec<_> = batch.iter().map(|(key, _)| (&key.0, key.1)).collect();
        let by = Deadline::after(self.timeout);
        let read = || match self.store.latches() {
            Some(store) => counts(store, &asked, by),
            None => Err(locks_only(&*self.store)),
        };
        match catch_unwind(AssertUnwindSafe(read)) {
            Ok(Ok(answers)) => self.settle(&batch, answers),
            Ok(Err(error)) => self.settle_failure(&batch, error),
            Err(panic) => self.settle_panic(&batch, message(&*panic)),
        }
    }

    fn settle(self: &Arc<LatchPoller>, batch: &[(Arc<LatchKey>, u64)], answers: Vec<Result<Option<i64>>>) {
        let now = Moment::now();
        // One for all, so that what was read together is read together again.
        let jitter = jittered(Duration::from_secs(1)).as_secs_f64();
        let mut ended = Vec::new();
        let mut looked = Vec::new();
        let mut state = self.state.lock();
        let served_again = state.outage.take().is_some();
        for ((key, number), answer) in batch.iter().zip(answers) {
            // Left by all meanwhile, or opened by a step of this process.
            let Some(watched) = state.entry(key) else { continue };
            let (pause, trouble) = match outcome(key, answer) {
                PollOutcome::Ends(end) => {
                    let watches = state.take_groups(key, |group| group.first_look <= *number);
                    ended.extend(watches.into_iter().map(|watch| (watch, end.clone())));
                    state.look_again(key, now);
                    continue;
                }
                PollOutcome::Waits(count) => (watched.saw(*number, count, now, self.poll), None),
                PollOutcome::Unknown(error) => {
                    watched.failures += 1;
                    if watched.failures == 1 {
                        log::warn!("latch {} is looked at again: {}", key.0, error.chain());
                    }
                    (back_off(self.poll, watched.failures), Some(Arc::new(error)))
                }
            };
            looked.extend(watched.watches().map(|watch| (watch, *number, trouble.clone())));
            let due = if watched.again { now } else { now.after(pause.mul_f64(jitter)) };
            state.look_again(key, due);
        }
        self.set_timer_or_log(&mut state);
        drop(state);
        if served_again {
            log::info!("{} serves reads of latches again", self.store.describe());
        }
        looked.into_iter().for_each(|(watch, number, trouble)| watch.looked(number, trouble));
        ended.into_iter().for_each(|(watch, end)| watch.end(end));
    }

    /// None of the batch could be read: the store does not serve.
    fn settle_failure(self: &Arc<LatchPoller>, batch: &[(Arc<LatchKey>, u64)], error: Error) {
        if ends_a_watch(error.code()) {
            let error = Arc::new(error);
            let own = || Error::Context { doing: "reading latches".into(), source: Arc::clone(&error) };
            return self.settle(batch, batch.iter().map(|_| Err(own())).collect());
        }
        let now = Moment::now();
        let mut state = self.state.lock();
        let failures = state.outage.as_ref().map_or(0, |outage| outage.failures) + 1;
        if failures == 1 {
            log::warn!("latches are looked at again later: {}", error.chain());
        }
        let until = now.after(jittered(back_off(self.poll, failures)));
        let error = Arc::new(error);
        state.outage = Some(Outage { failures, error: Arc::clone(&error), until, probing: false });
        let mut looked = Vec::new();
        for (key, number) in batch {
            if let Some(watched) = state.entry(key) {
                looked.extend(watched.watches().map(|watch| (watch, *number)));
                state.look_again(key, now);
            }
        }
        self.set_timer_or_log(&mut state);
        drop(state);
        looked.iter().for_each(|(watch, number)| watch.looked(*number, Some(Arc::clone(&error))));
    }

    /// Whose latch the store stumbled over is not known where it was asked for several: each is looked at
    /// again by itself, so that it ends the wait for that one and no other.
    fn settle_panic(self: &Arc<LatchPoller>, batch: &[(Arc<LatchKey>, u64)], message: &str) {
        let what = format!("reading latches panicked: {message}");
        log::error!("{what}");
        if batch.len() == 1 {
            return self.settle(batch, vec![Err(Error::Panic { what })]);
        }
        let now = Moment::now();
        let mut state = self.state.lock();
        // What this read was to find out is left to the next.
        if let Some(outage) = &mut state.outage {
            (outage.probing, outage.until) = (false, now);
        }
        for (key, _) in batch {
            if let Some(watched) = state.entry(key) {
                watched.alone = true;
                state.look_again(key, now);
            }
        }
        self.set_timer_or_log(&mut state);
    }

    /// Where no caller waits for the answer. The pool has a thread: the one that this runs in.
    fn set_timer_or_log(self: &Arc<LatchPoller>, state: &mut PollerState) {
        if state.closed {
            return;
        }
        if let Err(error) = self.set_timer(state) {
            log::error!("{}", error.chain());
        }
    }
}

impl PollerState {
    /// The entry that `key` is of, if it is still watched.
    fn entry(&mut self, key: &Arc<LatchKey>) -> Option<&mut WatchedLatch> {
        self.watched.get_mut(key).filter(|watched| Arc::ptr_eq(&watched.key, key))
    }

    fn put_due(&mut self, key: &Arc<LatchKey>, due: Moment) {
        let turn = (due, self.numbers);
        self.numbers += 1;
        let Some(watched) = self.entry(key) else { return };
        if let Some(before) = watched.turn.replace(turn) {
            self.due.remove(&before);
        }
        self.due.insert(turn, Arc::clone(key));
    }

    /// The look under way is over, and the next is due then.
    fn look_again(&mut self, key: &Arc<LatchKey>, due: Moment) {
        if let Some(watched) = self.entry(key) {
            watched.again = false;
            self.put_due(key, due);
        }
    }

    /// Has it looked at now, or as soon as the read under way is over: that may have missed what is new.
    fn bring_forward(&mut self, key: &Arc<LatchKey>, now: Moment) {
        let Some(watched) = self.entry(key) else { return };
        match watched.turn {
            Some((due, _)) if due <= now => {}
            None if watched.is_being_read() => watched.again = true,
            _ => self.put_due(key, now),
        }
    }

    /// Removes those whose wait is over, and with the last of them the latch.
    fn take_groups(&mut self, key: &Arc<LatchKey>, is_over: impl Fn(&Group) -> bool) -> Vec<Arc<Watch>> {
        let Some(watched) = self.entry(key) else { return Vec::new() };
        let over = watched.groups.extract_if(.., |group| is_over(group)).map(|group| group.watch).collect();
        if watched.groups.is_empty() {
            self.remove(key);
        }
        over
    }

    fn remove(&mut self, key: &Arc<LatchKey>) {
        if self.entry(key).is_none() {
            return;
        }
        let removed = self.watched.remove(key);
        if let Some(turn) = removed.and_then(|watched| watched.turn) {
            self.due.remove(&turn);
        }
        // What a crowd needed is not kept for the few.
        if self.watched.capacity() > TABLE_MIN.max(8 * self.watched.len()) {
            self.watched.shrink_to(2 * self.watched.len());
        }
    }

    /// What is to be read now, each with the number of the look.
    fn take_due(&mut self, now: Moment) -> Vec<(Arc<LatchKey>, u64)> {
        if self.outage.as_ref().is_some_and(|outage| outage.probing || now < outage.until) {
            return Vec::new();
        }
        let mut batch = Vec::new();
        while batch.len() < BATCH_MAX {
            let Some(((due, _), key)) = self.due.first_key_value() else { break };
            let (due, key) = (*due, Arc::clone(key));
            let Some(watched) = self.watched.get_mut(&key) else {
                debug_assert!(false, "what is due is watched");
                self.due.pop_first();
                continue;
            };
            if due > now.after(watched.pause / EARLY) || watched.alone && !batch.is_empty() {
                break;
            }
            self.due.pop_first();
            watched.turn = None;
            watched.looks += 1;
            batch.push((key, watched.looks));
            if std::mem::take(&mut watched.alone) {
                break;
            }
        }
        if let Some(outage) = &mut self.outage {
            outage.probing = !batch.is_empty();
        }
        batch
    }
}

impl fmt::Debug for LatchPoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatchPoller").field("poll", &self.poll).finish_non_exhaustive()
    }
}

fn counts(
    store: &dyn LatchStore,
    asked: &[(&LatchName, Level)],
    by: Deadline,
) -> Result<Vec<Result<Option<i64>>>> {
    let answers = store.counts(asked, by)?;
    if answers.len() == asked.len() {
        return Ok(answers);
    }
    let what = format!("the store answered for {} latches of {}", answers.len(), asked.len());
    Err(Error::Internal { what, source: None })
}

pub(crate) fn locks_only(store: &dyn LockStore) -> Error {
    Error::invalid("store", store.describe(), "one that keeps latches: this one has locks only")
}

/// What a look means for those who wait.
enum PollOutcome {
    Ends(End),
    Waits(i64),
    Unknown(Error),
}

fn outcome(key: &LatchKey, answer: Result<Option<i64>>) -> PollOutcome {
    match answer {
        Ok(Some(count)) if count <= 0 => PollOutcome::Ends(End::Open),
        Ok(Some(count)) => PollOutcome::Waits(count),
        Ok(None) => PollOutcome::Ends(End::Failed(Arc::new(Error::NotFound { name: key.0.to_string() }))),
        Err(error) if ends_a_watch(error.code()) => PollOutcome::Ends(End::Failed(Arc::new(error))),
        Err(error) => PollOutcome::Unknown(error),
    }
}

/// Whether waiting does not help against it. Somebody has to change something first.
fn ends_a_watch(code: Code) -> bool {
    match code {
        Code::NotFound
        | Code::InvalidArgument
        | Code::TableCreationError
        | Code::InternalError
        | Code::Closed
        | Code::Forked
        | Code::Panic
        | Code::StaleFence => true,
        Code::ConnectionError
        | Code::RetriesExhausted
        | Code::InDoubt
        | Code::LockUnavailable
        | Code::Cancelled
        | Code::LeaseLost
        | Code::AlreadyExists => false,
    }
}

fn back_off(poll: Duration, failures: u32) -> Duration {
    let most = poll.saturating_mul(BACK_OFF_POLLS).min(BACK_OFF_MAX).max(poll);
    poll.saturating_mul(1 << failures.min(8).saturating_sub(1)).min(most)
}

/// What a panic said.
fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
