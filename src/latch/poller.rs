//! Polls the latches that threads of this process wait for. Each latch is read once per pause for all its waiters.
//! All latches that are due at about the same time are read in one call to the store.
//!
//! | state of a watch | until | next |
//! |---|---|---|
//! | due | its moment has come; a new waiter or a local change makes it due now | being read, or its last waiter left |
//! | being read | the store answers | ended if the latch is open or gone, otherwise due again |
//! | ended | - | its waiters see the result, and leave |
//!
//! The pause between two reads of a latch is short at first and after each change of its count. It doubles while
//! nothing changes, up to the poll interval. After a change it is half the time in which the latch would open at
//! the observed pace. So a latch that is far from opening causes few reads, and the delay at the end of a wait is
//! proportional to the length of the wait.
//!
//! A store that cannot be reached ends no watch. One read at a time tries again, with growing pauses, and all
//! watches continue when it succeeds. A store that refuses for good ends the watch: no access, a table that is
//! disabled or of another kind, or a value that is not a count.
//!
//! With [`notices`](crate::wait::notices) a process that still waits after its first read leaves a note at the latch, and
//! reads after that. So whoever opens the latch either finds the note and notifies this process, which reads at once, or
//! opened it before that read. It polls all the same.
//!
//! Only a read or a local change that begins after a thread subscribed ends its wait. A thread that subscribes
//! while a latch is being read may have created the latch, or counted it up, after the read. So the subscribers of
//! that time share a separate watch, which that read does not end.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::{Code, Error, Result, panic_text};
use crate::latch::notes::{LatchNotes, lasting};
use crate::latch::watch::{End, LatchKey, Watch};
use crate::latch::watched_latch::{Group, PollTurn, Subscription, WatchedLatch};
use crate::names::latch_name::LatchName;
use crate::names::lock_name::Level;
use crate::names::notice_endpoint::LatchListener;
use crate::runtime::background::{Background, JobLane, Next, Ticket};
use crate::runtime::sync::{HashMap, Mutex};
use crate::runtime::time::{Deadline, Moment, jittered};
use crate::store::{LatchNote, LatchStore, LockStore, locks_only};
use crate::wait::notices::{LatchWaits, Notices};

/// Most latches read in one call.
const BATCH_MAX: usize = 512;
/// A watch that is due within its pause divided by this number is read together with others.
const EARLY: u32 = 8;
/// The table of watches is never shrunk below this capacity.
const TABLE_MIN: usize = 64;
/// Pauses after failures double up to this number of poll intervals or to [`BACK_OFF_MAX`], whichever is less. They
/// are never shorter than one interval.
const BACK_OFF_POLLS: u32 = 8;
const BACK_OFF_MAX: Duration = Duration::from_secs(30);

/// No further note is written before a read after this time.
const NOTING: Duration = Duration::from_millis(250);
/// Time limit of writing one note.
const NOTE_TIMEOUT: Duration = Duration::from_secs(1);

/// How latches are polled.
pub(crate) struct PollTerms {
    /// Longest pause between two reads.
    pub(crate) poll: Duration,
    /// Time limit of one call to the store.
    pub(crate) timeout: Duration,
}

/// The watched latches of one manager, and the jobs that read them.
pub(crate) struct LatchPoller {
    store: Arc<dyn LockStore>,
    background: Arc<Background>,
    notices: Arc<Notices>,
    poll: Duration,
    /// Time limit of one call to the store.
    timeout: Duration,
    /// Locked without any mutex of the notices, and they without this one.
    state: Mutex<PollerState>,
}

#[derive(Default)]
struct PollerState {
    closed: bool,
    watched: HashMap<Arc<LatchKey>, WatchedLatch>,
    due: BTreeMap<PollTurn, Arc<LatchKey>>,
    /// The background job that reads what is due next, and its number.
    timer: Option<(Ticket, u64)>,
    /// Count of turns, timers and new waiters, which numbers them.
    numbers: u64,
    /// Set while the store does not serve.
    outage: Option<Outage>,
    notes: LatchNotes,
}

struct Outage {
    failures: u32,
    /// Error of the last read.
    error: Arc<Error>,
    /// No read begins before this moment.
    until: Moment,
    /// A read is in progress.
    probing: bool,
}

impl LatchPoller {
    pub(crate) fn new(
        store: Arc<dyn LockStore>,
        background: Arc<Background>,
        notices: Arc<Notices>,
        terms: PollTerms,
    ) -> Arc<LatchPoller> {
        let PollTerms { poll, timeout } = terms;
        let poller = LatchPoller { store, background, notices, poll, timeout, state: Mutex::default() };
        let poller = Arc::new(poller);
        let waits: Weak<LatchPoller> = Arc::downgrade(&poller);
        poller.notices.set_latch_waits(waits);
        poller
    }

    /// Adds a waiter for a latch. The first read that counts for this waiter begins at once, or as soon as a read
    /// in progress has ended.
    ///
    /// # Errors
    /// [`Code::Closed`], and [`Code::InternalError`] when no thread can be started to read latches.
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

    /// Removes a waiter. The last waiter removes the watch with all its data.
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

    /// Returns a number for [`stepped`](LatchPoller::stepped). Call it before this process changes a count.
    pub(crate) fn begin_step(&self) -> u64 {
        self.state.lock().numbers
    }

    /// Records that this process has changed the farm's count of `name`. `count` is the new count if the store
    /// returned it. Ends the waits of level DC if it is zero or less. A waiter that joined since `began` may have
    /// joined after another change, so only a read may end its wait.
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

    /// Returns the error of the last read while the store does not serve.
    pub(crate) fn failure(&self) -> Option<Arc<Error>> {
        self.state.lock().outage.as_ref().map(|outage| Arc::clone(&outage.error))
    }

    /// Ends every wait with [`Code::Closed`]. Later waits fail with it as well.
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

    /// Schedules a job that reads when the next watch is due.
    fn set_timer(self: &Arc<LatchPoller>, state: &mut PollerState) -> Result<()> {
        let Some((&(mut due, _), _)) = state.due.first_key_value() else { return Ok(()) };
        match &state.outage {
            // The read in progress sets the timer when it ends.
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
        let ticket =
            self.background.run_at(JobLane::Latches, due, read).map_err(|error| Error::Internal {
                what: "no thread can be started to read latches".into(),
                source: Some(error.into()),
            })?;
        state.timer = Some((ticket, number));
        Ok(())
    }

    /// Runs as a background job and reads the latches that are due. `timer` is the number of this job.
    fn read_due(self: &Arc<LatchPoller>, timer: u64) {
        let batch = {
            let mut state = self.state.lock();
            // Another job may have been scheduled since this one.
            if state.timer.is_some_and(|(_, number)| number == timer) {
                state.timer = None;
            }
            let batch = state.take_due(Moment::now());
            // Another thread may read the rest at the same time.
            self.set_timer_or_log(&mut state);
            batch
        };
        if batch.is_empty() {
            return;
        }
        let asked: Vec<_> = batch.iter().map(|(key, _)| (&key.0, key.1)).collect();
        let read = || match self.store.latches() {
            Some(store) => {
                self.note(store, &batch);
                counts(store, &asked, Deadline::after(self.timeout))
            }
            None => Err(locks_only(&*self.store)),
        };
        match catch_unwind(AssertUnwindSafe(read)) {
            Ok(Ok(answers)) => self.settle(&batch, answers),
            Ok(Err(error)) => self.settle_failure(&batch, error),
            Err(panic) => self.settle_panic(&batch, panic_text(&*panic)),
        }
    }

    /// Leaves notes at the latches of the batch that need one.
    fn note(&self, store: &dyn LatchStore, batch: &[(Arc<LatchKey>, u64)]) {
        if !self.notices.are_open() {
            return;
        }
        let (began, lasts) = (Moment::now(), lasting(self.poll));
        let due = self.state.lock().take_due_notes(batch, began);
        for key in due {
            let (name, level) = (&key.0, key.1);
            if Moment::now().since(began) >= NOTING {
                return;
            }
            let Some(drawn) = self.notices.for_latch() else { return };
            let nonce = {
                let mut state = self.state.lock();
                // Both levels share a note.
                if !state.notes.is_due(name, began) {
                    continue;
                }
                // Before the note is written: it may be answered at once.
                state.notes.write(name, drawn.nonce)
            };
            let by = Deadline::after(self.timeout.min(NOTE_TIMEOUT));
            let listener = LatchListener { nonce, ..drawn };
            match store.listen(&LatchNote { name, level, listener, lasts, by }) {
                Ok(true) => self.state.lock().notes.written(name, Moment::now().after(lasts / 2)),
                Ok(false) => {}
                Err(error) => return log::debug!("latch {name} is polled: {}", error.chain()),
            }
        }
    }

    fn settle(self: &Arc<LatchPoller>, batch: &[(Arc<LatchKey>, u64)], answers: Vec<Result<Option<i64>>>) {
        let now = Moment::now();
        // One jitter for the whole batch, so the next read is a batch as well.
        let jitter = jittered(Duration::from_secs(1)).as_secs_f64();
        let mut ended = Vec::new();
        let mut has_read = Vec::new();
        let mut state = self.state.lock();
        let served_again = state.outage.take().is_some();
        for ((key, number), answer) in batch.iter().zip(answers) {
            // All waiters may have left, or a step of this process may have opened the latch.
            let Some(watched) = state.entry(key) else { continue };
            let (pause, failure) = match outcome(key, answer) {
                PollOutcome::Ends(end) => {
                    let watches = state.take_groups(key, |group| group.first_look <= *number);
                    ended.extend(watches.into_iter().map(|watch| (watch, end.clone())));
                    state.read_again(key, now);
                    continue;
                }
                PollOutcome::Waits(count) => (watched.saw(*number, count, now, self.poll), None),
                PollOutcome::Unknown(error) => {
                    watched.failures += 1;
                    if watched.failures == 1 {
                        log::warn!("latch {} is read again later: {}", key.0, error.chain());
                    }
                    (back_off(self.poll, watched.failures), Some(Arc::new(error)))
                }
            };
            has_read.extend(watched.watches().map(|watch| (watch, *number, failure.clone())));
            let due = if watched.again { now } else { now.after(pause.mul_f64(jitter)) };
            state.read_again(key, due);
        }
        self.set_timer_or_log(&mut state);
        drop(state);
        if served_again {
            log::info!("{} serves reads of latches again", self.store.describe());
        }
        has_read.into_iter().for_each(|(watch, number, failure)| watch.has_read(number, failure));
        ended.into_iter().for_each(|(watch, end)| watch.end(end));
    }

    /// Handles a read that failed for the whole batch, because the store does not serve.
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
            log::warn!("latches are read again later: {}", error.chain());
        }
        let until = now.after(jittered(back_off(self.poll, failures)));
        let error = Arc::new(error);
        state.outage = Some(Outage { failures, error: Arc::clone(&error), until, probing: false });
        let mut has_read = Vec::new();
        for (key, number) in batch {
            if let Some(watched) = state.entry(key) {
                has_read.extend(watched.watches().map(|watch| (watch, *number)));
                state.read_again(key, now);
            }
        }
        self.set_timer_or_log(&mut state);
        drop(state);
        has_read.iter().for_each(|(watch, number)| watch.has_read(*number, Some(Arc::clone(&error))));
    }

    /// Handles a read that panicked. If it was for several latches, the one that caused the panic is unknown. Then
    /// each of them is read alone, and the panic ends the wait for one latch only.
    fn settle_panic(self: &Arc<LatchPoller>, batch: &[(Arc<LatchKey>, u64)], message: &str) {
        let what = format!("reading latches panicked: {message}");
        log::error!("{what}");
        if batch.len() == 1 {
            return self.settle(batch, vec![Err(Error::Panic { what })]);
        }
        let now = Moment::now();
        let mut state = self.state.lock();
        // The next read finds out whether the store serves again.
        if let Some(outage) = &mut state.outage {
            (outage.probing, outage.until) = (false, now);
        }
        for (key, _) in batch {
            if let Some(watched) = state.entry(key) {
                watched.alone = true;
                state.read_again(key, now);
            }
        }
        self.set_timer_or_log(&mut state);
    }

    /// Like `set_timer`, but logs an error, because no caller waits for the result. An error is unlikely: the pool
    /// has at least the thread that runs this.
    fn set_timer_or_log(self: &Arc<LatchPoller>, state: &mut PollerState) {
        if state.closed {
            return;
        }
        if let Err(error) = self.set_timer(state) {
            log::error!("{}", error.chain());
        }
    }
}

impl LatchWaits for LatchPoller {
    fn opened(self: Arc<Self>, nonce: u64, count: &dyn Fn()) -> bool {
        let mut state = self.state.lock();
        let Some(name) = state.notes.take(nonce) else { return false };
        let keys: Vec<_> = state.keys_of(&name).collect();
        if !keys.is_empty() {
            count();
        }
        for key in &keys {
            if let Some(watched) = state.entry(key) {
                watched.has_notice = true;
            }
            state.bring_forward(key, Moment::now());
        }
        self.set_timer_or_log(&mut state);
        !keys.is_empty()
    }
}

impl PollerState {
    /// Returns the latch that has this very `key`, if it is still watched.
    fn entry(&mut self, key: &Arc<LatchKey>) -> Option<&mut WatchedLatch> {
        self.watched.get_mut(key).filter(|watched| Arc::ptr_eq(&watched.key, key))
    }

    /// Returns the latches of the batch that need a note before they are read. A latch is read once without a note,
    /// because many waits find it open. After a notice nothing must delay the read.
    fn take_due_notes(&mut self, batch: &[(Arc<LatchKey>, u64)], now: Moment) -> Vec<Arc<LatchKey>> {
        let mut has_notice = false;
        for (key, _) in batch {
            has_notice |= self.entry(key).is_some_and(|watched| std::mem::take(&mut watched.has_notice));
        }
        if has_notice || self.outage.is_some() {
            return Vec::new();
        }
        let due = batch.iter().filter(|(key, number)| *number > 1 && self.notes.is_due(&key.0, now));
        due.map(|(key, _)| Arc::clone(key)).collect()
    }

    /// Returns the watched latches of this name, one for each level.
    fn keys_of(&self, name: &LatchName) -> impl Iterator<Item = Arc<LatchKey>> {
        let watched =
            |level| self.watched.get(&(name.clone(), level)).map(|watched| Arc::clone(&watched.key));
        [Level::Dc, Level::Xdc].into_iter().filter_map(watched)
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

    /// Ends the read in progress. The next one is due at `due`.
    fn read_again(&mut self, key: &Arc<LatchKey>, due: Moment) {
        if let Some(watched) = self.entry(key) {
            watched.again = false;
            self.put_due(key, due);
        }
    }

    /// Makes a read due now, or as soon as the read in progress has ended, which may have missed the latest change.
    fn bring_forward(&mut self, key: &Arc<LatchKey>, now: Moment) {
        let Some(watched) = self.entry(key) else { return };
        match watched.turn {
            Some((due, _)) if due <= now => {}
            None if watched.is_being_read() => watched.again = true,
            _ => self.put_due(key, now),
        }
    }

    /// Removes the groups whose wait is over, and the latch with the last of them. Returns their watches.
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
        if self.notes.has(&key.0) && self.keys_of(&key.0).next().is_none() {
            self.notes.forget(&key.0);
        }
        if let Some(turn) = removed.and_then(|watched| watched.turn) {
            self.due.remove(&turn);
        }
        // Free the memory that many watches needed when few are left.
        if self.watched.capacity() > TABLE_MIN.max(8 * self.watched.len()) {
            self.watched.shrink_to(2 * self.watched.len());
        }
    }

    /// Returns the latches to be read now, each with the number of the read.
    fn take_due(&mut self, now: Moment) -> Vec<(Arc<LatchKey>, u64)> {
        if self.outage.as_ref().is_some_and(|outage| outage.probing || now < outage.until) {
            return Vec::new();
        }
        let mut batch = Vec::new();
        while batch.len() < BATCH_MAX {
            let Some(((due, _), key)) = self.due.first_key_value() else { break };
            let (due, key) = (*due, Arc::clone(key));
            let Some(watched) = self.watched.get_mut(&key) else {
                debug_assert!(false, "every due latch is watched");
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
    let what = format!("the store returned {} counts for {} latches", answers.len(), asked.len());
    Err(Error::Internal { what, source: None })
}

/// What a read means for the waiters.
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

/// Whether an error with this code ends a watch, because waiting does not help: something has to be changed first.
fn ends_a_watch(code: Code) -> bool {
    match code {
        Code::NotFound
        | Code::InvalidArgument
        | Code::TableCreationError
        | Code::InternalError
        | Code::Closed
        | Code::Forked
        | Code::Panic
        | Code::StaleFence
        | Code::UnsupportedConversion => true,
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
