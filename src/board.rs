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
//! all watches go on when it succeeds.

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::alarm::Alarm;
use crate::error::{Code, Error, Result};
use crate::store::{LatchName, LatchStore, Level, LockStore};
use crate::time::{Deadline, Moment, jittered};
use crate::watcher::{Next, Ticket, Watcher};

/// Latches read in one call.
const BATCH_MAX: usize = 512;
/// The shortest pause between two looks at a latch, unless the poll interval is shorter.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// A watch that is due within this part of its pause is read along with others.
const EARLY: u32 = 8;
/// A table of so many watches is kept, however few there are.
const TABLE_MIN: usize = 64;
/// Pauses after failures double up to so many poll intervals, or to this time where that is less, but
/// are never shorter than one interval.
const BACK_OFF_POLLS: u32 = 8;
const BACK_OFF_MAX: Duration = Duration::from_secs(30);

/// What is watched: a latch, and whether one farm's count or the sum over all.
pub(crate) type Key = (LatchName, Level);

/// The watches of one manager.
pub(crate) struct Board {
    store: Arc<dyn LockStore>,
    watcher: Arc<Watcher>,
    poll: Duration,
    /// For one call to the store.
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    closed: bool,
    entries: HashMap<Key, Entry>,
    due: BTreeMap<Turn, Arc<Watch>>,
    /// The job in the pool that reads what is due next, and its number.
    timer: Option<(Ticket, u64)>,
    /// Turns and timers so far.
    numbers: u64,
    /// Set while the store does not serve.
    outage: Option<Outage>,
}

/// A place in the order of what is due; the number tells apart what is due at one moment.
type Turn = (Moment, u64);

struct Entry {
    watch: Arc<Watch>,
    waiters: usize,
    /// When it is due; `None` while it is being read.
    turn: Option<Turn>,
    /// Look at it again as soon as the read under way is over.
    again: bool,
    /// Looks begun so far.
    looks: u64,
    pause: Duration,
    failures: u32,
    /// What the last look saw, and when.
    seen: Option<(i64, Moment)>,
}

struct Outage {
    failures: u32,
    /// No read before this moment.
    until: Moment,
    /// One read is trying.
    probing: bool,
}

/// What all who wait for one latch share.
pub(crate) struct Watch {
    pub(crate) key: Key,
    state: Mutex<Seen>,
    wake: Condvar,
    /// Made by the first who asks for it, under `state`; goes off at the end.
    alarm: OnceLock<Alarm>,
}

/// What is known to those who wait.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) end: Option<End>,
    /// Looks answered so far.
    pub(crate) looks: u64,
    /// Why the last look saw nothing, if it did not.
    pub(crate) trouble: Option<Arc<Error>>,
    /// Those whose wait is over and who wait for the first look all the same.
    pub(crate) overdue: usize,
}

/// How a watch ends.
#[derive(Debug, Clone)]
pub(crate) enum End {
    Open,
    /// The latch is gone, cannot be asked for, or the read panicked.
    Failed(Arc<Error>),
    Closed,
}

/// A waiter's place on the board. To be given to [`Board::leave`].
pub(crate) struct Joined {
    pub(crate) watch: Arc<Watch>,
    /// The number of the first look that begins after joining.
    pub(crate) first_look: u64,
}

impl Watch {
    pub(crate) fn seen(&self) -> parking_lot::MutexGuard<'_, Seen> {
        self.state.lock()
    }

    pub(crate) fn park(&self, seen: &mut parking_lot::MutexGuard<'_, Seen>, time: Duration) {
        self.wake.wait_for(seen, time);
    }

    /// Lets all who wait look up.
    pub(crate) fn wake_all(&self) {
        // Locked, so that nobody is between looking and parking.
        let _seen = self.state.lock();
        self.wake.notify_all();
    }

    /// A descriptor that is readable once the watch has ended.
    pub(crate) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(alarm) = self.alarm.get() {
            return Ok(alarm.as_fd());
        }
        let seen = self.state.lock();
        let alarm = Alarm::at(if seen.end.is_some() { Moment::OVER } else { Moment::NEVER })?;
        Ok(self.alarm.get_or_init(|| alarm).as_fd())
    }

    fn end(&self, end: End) {
        let mut seen = self.state.lock();
        seen.end.get_or_insert(end);
        if let Some(alarm) = self.alarm.get()
            && let Err(error) = alarm.set(Moment::OVER)
        {
            log::error!("the descriptor of latch {} was not set: {error}", self.key.0);
        }
        drop(seen);
        self.wake.notify_all();
    }

    fn looked(&self, number: u64, trouble: Option<Arc<Error>>) {
        let mut seen = self.state.lock();
        seen.looks = number;
        seen.trouble = trouble;
        if seen.overdue > 0 {
            self.wake.notify_all();
        }
    }
}

impl Board {
    pub(crate) fn new(
        store: Arc<dyn LockStore>,
        watcher: Arc<Watcher>,
        poll: Duration,
        timeout: Duration,
    ) -> Board {
        Board { store, watcher, poll, timeout, state: Mutex::default() }
    }

    /// Joins those who wait for a latch. The first look at it that counts for the newcomer begins at once,
    /// or as soon as one under way is over.
    ///
    /// # Errors
    /// CLOSED; INTERNAL_ERROR when there is no thread that could look.
    pub(crate) fn join(self: &Arc<Board>, key: Key) -> Result<Joined> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::Closed);
        }
        let entry = match state.entries.entry(key) {
            Slot::Occupied(slot) => slot.into_mut(),
            Slot::Vacant(slot) => {
                let key = slot.key().clone();
                let watch =
                    Watch { key, state: Mutex::default(), wake: Condvar::new(), alarm: OnceLock::new() };
                slot.insert(Entry::new(Arc::new(watch), self.shortest_pause()))
            }
        };
        entry.waiters += 1;
        let joined = Joined { watch: Arc::clone(&entry.watch), first_look: entry.looks + 1 };
        state.bring_forward(&joined.watch, Moment::now());
        if let Err(error) = self.set_timer(&mut state) {
            drop(state);
            self.leave(&joined);
            return Err(error);
        }
        Ok(joined)
    }

    /// The last one to leave ends the watch: nothing of it stays behind.
    pub(crate) fn leave(&self, joined: &Joined) {
        let mut state = self.state.lock();
        let Some(entry) = state.entries.get_mut(&joined.watch.key) else { return };
        if !Arc::ptr_eq(&entry.watch, &joined.watch) {
            return;
        }
        entry.waiters -= 1;
        if entry.waiters == 0 {
            state.remove(&joined.watch);
            if state.due.is_empty()
                && let Some((ticket, _)) = state.timer.take()
            {
                self.watcher.cancel(ticket);
            }
        }
    }

    /// This process has changed the farm's count of `name`, to `count` where the store told.
    pub(crate) fn stepped(self: &Arc<Board>, name: &LatchName, count: Option<i64>) {
        let mut opened = None;
        let mut state = self.state.lock();
        if state.entries.is_empty() || count.is_some_and(|count| count > 0) {
            return;
        }
        for level in [Level::Dc, Level::Xdc] {
            let Some(entry) = state.entries.get(&(name.clone(), level)) else { continue };
            let watch = Arc::clone(&entry.watch);
            if level == Level::Dc && count.is_some() {
                state.remove(&watch);
                opened = Some(watch);
            } else {
                state.bring_forward(&watch, Moment::now());
            }
        }
        if let Err(error) = self.set_timer(&mut state) {
            log::warn!("{}", error.chain());
        }
        drop(state);
        if let Some(watch) = opened {
            watch.end(End::Open);
        }
    }

    /// Ends every wait with CLOSED, those to come included.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.due.clear();
        let timer = state.timer.take();
        let entries = std::mem::take(&mut state.entries);
        drop(state);
        if let Some((ticket, _)) = timer {
            self.watcher.cancel(ticket);
        }
        entries.values().for_each(|entry| entry.watch.end(End::Closed));
    }

    fn shortest_pause(&self) -> Duration {
        self.poll.min(SHORTEST_PAUSE)
    }

    /// Has the pool run a read when the next watch is due.
    fn set_timer(self: &Arc<Board>, state: &mut State) -> Result<()> {
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
            self.watcher.cancel(ticket);
            state.timer = None;
        }
        let (board, number): (Weak<Board>, u64) = (Arc::downgrade(self), state.numbers);
        state.numbers += 1;
        let read = move || {
            if let Some(board) = board.upgrade() {
                board.read_due(number);
            }
            Next::Done
        };
        let ticket = self.watcher.run_at(due, read).map_err(|error| Error::Internal {
            what: "there is no thread to look at latches".into(),
            source: Some(error.into()),
        })?;
        state.timer = Some((ticket, number));
        Ok(())
    }

    /// The job: reads what is due. `timer`: the number by which the board knows this run of it.
    fn read_due(self: &Arc<Board>, timer: u64) {
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
        let asked: Vec<_> = batch.iter().map(|(watch, _)| (&watch.key.0, watch.key.1)).collect();
        let by = Deadline::after(self.timeout);
        let latches = self.store.latches();
        let read =
            || latches.map_or_else(|| Err(locks_only(&*self.store)), |store| counts(store, &asked, by));
        match catch_unwind(AssertUnwindSafe(read)) {
            Ok(Ok(answers)) => self.settle(&batch, answers),
            Ok(Err(error)) => self.settle_failure(&batch, error),
            Err(panic) => {
                let what = format!("reading latches panicked: {}", message(&*panic));
                log::error!("{what}");
                let answers = batch.iter().map(|_| Err(Error::Panic { what: what.clone() }));
                self.settle(&batch, answers.collect());
            }
        }
    }

    fn settle(self: &Arc<Board>, batch: &[(Arc<Watch>, u64)], answers: Vec<Result<Option<i64>>>) {
        let now = Moment::now();
        // One for all, so that what was read together is read together again.
        let jitter = jittered(Duration::from_secs(1)).as_secs_f64();
        let mut ended = Vec::new();
        let mut looked = Vec::new();
        let mut state = self.state.lock();
        if state.outage.take().is_some() {
            log::info!("{} serves reads of latches again", self.store.describe());
        }
        for ((watch, number), answer) in batch.iter().zip(answers) {
            // Left by all meanwhile, or opened by a step of this process.
            let Some(entry) = state.entry(watch) else { continue };
            let (pause, trouble) = match answer {
                Ok(Some(count)) if count <= 0 => {
                    ended.push((watch, End::Open));
                    continue;
                }
                Ok(None) => {
                    let error = Error::NotFound { name: watch.key.0.to_string() };
                    ended.push((watch, End::Failed(Arc::new(error))));
                    continue;
                }
                Err(error) if ends_a_watch(error.code()) => {
                    ended.push((watch, End::Failed(Arc::new(error))));
                    continue;
                }
                Ok(Some(count)) => (entry.saw(count, now, self.poll), None),
                Err(error) => {
                    entry.failures += 1;
                    if entry.failures == 1 {
                        log::warn!("latch {} is looked at again: {}", watch.key.0, error.chain());
                    }
                    (back_off(self.poll, entry.failures), Some(Arc::new(error)))
                }
            };
            looked.push((watch, *number, trouble));
            let again = std::mem::take(&mut entry.again);
            let due = if again { now } else { now.after(pause.mul_f64(jitter)) };
            state.put_due(watch, due);
        }
        for (watch, _) in &ended {
            state.remove(watch);
        }
        self.set_timer_or_log(&mut state);
        drop(state);
        looked.into_iter().for_each(|(watch, number, trouble)| watch.looked(number, trouble));
        ended.into_iter().for_each(|(watch, end)| watch.end(end));
    }

    /// None of the batch could be read: the store does not serve.
    fn settle_failure(self: &Arc<Board>, batch: &[(Arc<Watch>, u64)], error: Error) {
        if ends_a_watch(error.code()) {
            let error = Arc::new(error);
            let own = || Error::While { doing: "reading latches".into(), source: Arc::clone(&error) };
            return self.settle(batch, batch.iter().map(|_| Err(own())).collect());
        }
        let now = Moment::now();
        let mut state = self.state.lock();
        let failures = state.outage.as_ref().map_or(0, |outage| outage.failures) + 1;
        if failures == 1 {
            log::warn!("latches are looked at again later: {}", error.chain());
        }
        let until = now.after(jittered(back_off(self.poll, failures)));
        state.outage = Some(Outage { failures, until, probing: false });
        for (watch, _) in batch {
            if let Some(entry) = state.entry(watch) {
                entry.again = false;
                state.put_due(watch, now);
            }
        }
        self.set_timer_or_log(&mut state);
        drop(state);
        let error = Arc::new(error);
        batch.iter().for_each(|(watch, number)| watch.looked(*number, Some(Arc::clone(&error))));
    }

    /// Where no caller waits for the answer. The pool has a thread: the one that this runs in.
    fn set_timer_or_log(self: &Arc<Board>, state: &mut State) {
        if state.closed {
            return;
        }
        if let Err(error) = self.set_timer(state) {
            log::error!("{}", error.chain());
        }
    }
}

impl Entry {
    fn new(watch: Arc<Watch>, pause: Duration) -> Entry {
        Entry { watch, waiters: 0, turn: None, again: false, looks: 0, pause, failures: 0, seen: None }
    }

    /// The pause after a look that saw `count`.
    fn saw(&mut self, count: i64, now: Moment, poll: Duration) -> Duration {
        if std::mem::take(&mut self.failures) > 0 {
            log::info!("latch {} can be read again", self.watch.key.0);
        }
        self.pause = match self.seen {
            None => self.pause,
            Some((before, _)) if before == count => (self.pause * 2).min(poll),
            Some((before, at)) => {
                let pace = now.since(at).as_secs_f64() / before.abs_diff(count) as f64;
                let opens = if count < before { pace * count as f64 } else { f64::MAX };
                let half = Duration::try_from_secs_f64(opens / 2.0).unwrap_or(poll);
                half.clamp(poll.min(SHORTEST_PAUSE), poll)
            }
        };
        self.seen = Some((count, now));
        self.pause
    }
}

impl State {
    /// The entry of `watch`, if that is the one on the board.
    fn entry(&mut self, watch: &Arc<Watch>) -> Option<&mut Entry> {
        self.entries.get_mut(&watch.key).filter(|entry| Arc::ptr_eq(&entry.watch, watch))
    }

    fn put_due(&mut self, watch: &Arc<Watch>, due: Moment) {
        let turn = (due, self.numbers);
        self.numbers += 1;
        let Some(entry) = self.entry(watch) else { return };
        if let Some(before) = entry.turn.replace(turn) {
            self.due.remove(&before);
        }
        self.due.insert(turn, Arc::clone(watch));
    }

    /// Has it looked at now, or as soon as the read under way is over: that may have missed what is new.
    fn bring_forward(&mut self, watch: &Arc<Watch>, now: Moment) {
        let Some(entry) = self.entry(watch) else { return };
        match entry.turn {
            Some((due, _)) if due <= now => {}
            None if entry.looks > 0 => entry.again = true,
            _ => self.put_due(watch, now),
        }
    }

    fn remove(&mut self, watch: &Arc<Watch>) {
        if self.entry(watch).is_none() {
            return;
        }
        let removed = self.entries.remove(&watch.key);
        if let Some(turn) = removed.and_then(|entry| entry.turn) {
            self.due.remove(&turn);
        }
        // What a crowd needed is not kept for the few.
        if self.entries.capacity() > TABLE_MIN.max(8 * self.entries.len()) {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }

    /// What is to be read now, each with the number of the look.
    fn take_due(&mut self, now: Moment) -> Vec<(Arc<Watch>, u64)> {
        if self.outage.as_ref().is_some_and(|outage| outage.probing || now < outage.until) {
            return Vec::new();
        }
        let mut batch = Vec::new();
        while batch.len() < BATCH_MAX {
            let Some(((due, _), watch)) = self.due.first_key_value() else { break };
            let (due, watch) = (*due, Arc::clone(watch));
            let Some(entry) = self.entries.get_mut(&watch.key) else {
                debug_assert!(false, "what is due is on the board");
                self.due.pop_first();
                continue;
            };
            if due > now.after(entry.pause / EARLY) {
                break;
            }
            self.due.pop_first();
            entry.turn = None;
            entry.looks += 1;
            batch.push((watch, entry.looks));
        }
        if let Some(outage) = &mut self.outage {
            outage.probing = !batch.is_empty();
        }
        batch
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("poll", &self.poll).finish_non_exhaustive()
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

/// Whether waiting does not help against it.
fn ends_a_watch(code: Code) -> bool {
    matches!(code, Code::NotFound | Code::InvalidArgument | Code::Closed | Code::Forked | Code::Panic)
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
