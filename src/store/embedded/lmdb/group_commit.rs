//! Group commit: threads of one process put their changes into one transaction.
//!
//! A transaction costs several microseconds, whether it makes one change or many. A thread that finds another one writing
//! queues its change and sleeps. The thread that writes next is the leader: it makes the queued changes together with its
//! own, at most [`BATCH_MAX`]. So many threads need fewer transactions, and fewer switches between threads.
//!
//! A queued change owns all that it uses, so the thread that queued it need not stay until it is made:
//!
//! | the deadline of that thread passes | what becomes of its change |
//! |---|---|
//! | before a leader begins to make it | it is never made |
//! | after that | it may be made: IN_DOUBT, if the leader is not done [`GRACE`] later either |
//!
//! A leader always finishes its batch. The changes of a batch take effect together, or none does. If one of them fails,
//! panics, or decides against what it has written, then nothing has happened, and each is made in a transaction of its own.

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::transaction::{Fault, TxnEnd, Writer};
use crate::error::{Error, Result};
use crate::runtime::sync::real::{Condvar, Mutex};
use crate::runtime::time::Deadline;

/// Maximum number of changes in one transaction. After it, the file is free for other processes for a moment.
const BATCH_MAX: usize = 32;
/// How long a thread waits beyond its deadline for a leader that makes its change. A leader needs microseconds unless the
/// machine or the disk stands still.
const GRACE: Duration = Duration::from_millis(100);
/// How often a thread looks for its answer before it sleeps. To sleep and to be woken up takes longer than most transactions.
pub(super) const EAGER_LOOKS: u32 = 10;
/// How long a thread sleeps before it tries to lead although nobody has called it: the thread that was called may not run.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// The changes that wait for a leader, the oldest first.
#[derive(Default)]
pub(super) struct Queue(Mutex<VecDeque<Arc<dyn Queued>>>);

/// A change that any thread of the process may make.
pub(super) trait Queued: Send + Sync {
    /// Makes the change in this transaction and keeps its answer. May be called again if that transaction did not take
    /// effect.
    fn make(&self, writer: &mut Writer<'_>) -> Result<Made, Fault>;

    /// Ends the wait for this change. After `Ok`, what [`make`](Queued::make) kept is the answer.
    fn end(&self, end: Result<()>);

    /// Wakes up the thread that waits for this change, because nobody leads.
    fn call(&self);
}

/// What a change has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    Commit,
    Abandon,
    Panicked,
}

/// A [`Queued`] change and the thread that waits for it.
pub(super) struct Entry<T, F> {
    change: F,
    state: Mutex<EntryState<T>>,
    changed: Condvar,
}

struct EntryState<T> {
    /// A leader has begun to make the change.
    is_begun: bool,
    /// The thread has left before that.
    is_withdrawn: bool,
    answer: Option<thread::Result<T>>,
    end: Option<Result<()>>,
    is_called: bool,
    is_asleep: bool,
}

/// Why a wait for a change is over.
pub(super) enum Woken<T> {
    Ended(Result<T>),
    /// Nobody may be leading.
    Called,
    TimedOut,
}

impl Queue {
    pub(super) fn push(&self, change: Arc<dyn Queued>) {
        self.0.lock().push_back(change);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Takes a change out, unless a leader has taken it.
    pub(super) fn remove(&self, change: &Arc<dyn Queued>) -> bool {
        let mut waiting = self.0.lock();
        let found = waiting.iter().position(|queued| Arc::ptr_eq(queued, change));
        found.and_then(|at| waiting.remove(at)).is_some()
    }

    /// Moves the oldest changes into `batch`.
    pub(super) fn fill(&self, batch: &mut CommitBatch) {
        let mut waiting = self.0.lock();
        let count = waiting.len().min(BATCH_MAX.saturating_sub(batch.0.len()));
        batch.0.extend(waiting.drain(..count));
    }

    /// Wakes up the thread of the oldest change, so that it leads.
    pub(super) fn call_oldest(&self) {
        let oldest = self.0.lock().front().cloned();
        if let Some(oldest) = oldest {
            oldest.call();
        }
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A forked child may have a copy of a queue that was locked.
        f.debug_tuple("Queue").field(&self.0.try_lock().map(|waiting| waiting.len())).finish()
    }
}

/// The changes that one leader has taken. Each of them is ended, whatever happens to the leader.
pub(super) struct CommitBatch(Vec<Arc<dyn Queued>>);

impl CommitBatch {
    pub(super) fn empty() -> CommitBatch {
        CommitBatch(Vec::new())
    }

    pub(super) fn of(own: Arc<dyn Queued>) -> CommitBatch {
        CommitBatch(vec![own])
    }

    pub(super) fn changes(&self) -> &[Arc<dyn Queued>] {
        &self.0
    }

    /// Ends the changes in their order.
    pub(super) fn end(mut self, ends: Vec<Result<()>>) {
        debug_assert_eq!(self.0.len(), ends.len(), "one end for each change");
        for (change, end) in self.0.drain(..ends.len()).zip(ends) {
            change.end(end);
        }
    }
}

impl Drop for CommitBatch {
    fn drop(&mut self) {
        for change in self.0.drain(..) {
            let what = "the thread that was making this change panicked".to_owned();
            change.end(Err(Error::InDoubt { what, source: None }));
        }
    }
}

impl<T, F> Entry<T, F>
where
    T: Send,
    F: Fn(&mut Writer<'_>) -> Result<TxnEnd<T>, Fault> + Send + Sync,
{
    pub(super) fn new(change: F) -> Entry<T, F> {
        let state = EntryState {
            is_begun: false,
            is_withdrawn: false,
            answer: None,
            end: None,
            is_called: false,
            is_asleep: false,
        };
        Entry { change, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits until the change is made, or until this thread should lead. Looks `eager` times before it sleeps.
    pub(super) fn wait(&self, by: Deadline, eager: &mut u32) -> Woken<T> {
        let mut state = self.state.lock();
        loop {
            if state.end.is_some() {
                return Woken::Ended(state.take());
            }
            if state.is_called {
                state.is_called = false;
                return Woken::Called;
            }
            if by.passed() {
                return Woken::TimedOut;
            }
            if *eager > 0 {
                *eager -= 1;
                drop(state);
                thread::yield_now();
                state = self.state.lock();
            } else {
                state.is_asleep = true;
                let slept = self.changed.wait_for(&mut state, by.remaining().min(SLEEP_MAX));
                state.is_asleep = false;
                state.is_called |= slept.timed_out() && !by.passed();
            }
        }
    }

    /// Takes the change back after the deadline, although a leader has taken it. Returns `false` if it has begun to make it.
    pub(super) fn withdraw(&self) -> bool {
        let mut state = self.state.lock();
        state.is_withdrawn = !state.is_begun;
        state.is_withdrawn
    }

    /// Waits for a leader that makes the change. `None` if it is not done [`GRACE`] after the deadline.
    pub(super) fn wait_for_leader(&self, by: Deadline) -> Option<Result<T>> {
        let by = Deadline::after(by.remaining().saturating_add(GRACE));
        loop {
            match self.wait(by, &mut 0) {
                Woken::Ended(answer) => return Some(answer),
                Woken::Called => {}
                Woken::TimedOut => return None,
            }
        }
    }

    /// The answer, after the change was ended in this thread.
    pub(super) fn answer(&self) -> Result<T> {
        self.state.lock().take()
    }

    /// Changes the state, and wakes up the thread that waits if it sleeps.
    fn update(&self, change: impl FnOnce(&mut EntryState<T>)) {
        let mut state = self.state.lock();
        change(&mut state);
        let is_asleep = state.is_asleep;
        drop(state);
        if is_asleep {
            self.changed.notify_one();
        }
    }
}

impl<T> EntryState<T> {
    /// A panic of the change goes on in the thread that asked for it.
    fn take(&mut self) -> Result<T> {
        self.end.take().expect("it has ended")?;
        match self.answer.take().expect("it was made") {
            Ok(answer) => Ok(answer),
            Err(panic) => panic::resume_unwind(panic),
        }
    }
}

impl<T, F> Queued for Entry<T, F>
where
    T: Send,
    F: Fn(&mut Writer<'_>) -> Result<TxnEnd<T>, Fault> + Send + Sync,
{
    fn make(&self, writer: &mut Writer<'_>) -> Result<Made, Fault> {
        let mut state = self.state.lock();
        if state.is_withdrawn {
            return Ok(Made::Abandon);
        }
        state.is_begun = true;
        drop(state);
        // The transaction of a change that panicked is aborted.
        let (answer, made) = match panic::catch_unwind(AssertUnwindSafe(|| (self.change)(writer))) {
            Ok(Ok(TxnEnd::Commit(answer))) => (Ok(answer), Made::Commit),
            Ok(Ok(TxnEnd::Abandon(answer))) => (Ok(answer), Made::Abandon),
            Ok(Err(fault)) => return Err(fault),
            Err(panic) => (Err(panic), Made::Panicked),
        };
        self.state.lock().answer = Some(answer);
        Ok(made)
    }

    fn end(&self, end: Result<()>) {
        self.update(|state| state.end = Some(end));
    }

    fn call(&self) {
        self.update(|state| state.is_called = true);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::ScopedJoinHandle;

    use super::*;
    use crate::error::Code;
    use crate::store::EmbeddedStore;
    use crate::store::embedded::lmdb::{Environment, Reader, is_full};
    use crate::testing::patience::{LONG, until};

    const SMALL: usize = 1 << 20;

    struct Site {
        _dir: tempfile::TempDir,
        store: EmbeddedStore,
    }

    fn site() -> Site {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open_small(dir.path(), SMALL).unwrap();
        Site { _dir: dir, store }
    }

    fn soon() -> Deadline {
        Deadline::after(LONG)
    }

    fn key(number: usize) -> String {
        format!("record {number}")
    }

    type Change = Box<dyn Fn(&mut Writer<'_>) -> Result<TxnEnd<usize>, Fault> + Send + Sync>;

    /// Puts a record with this number.
    fn put(number: usize) -> Change {
        Box::new(move |writer| {
            writer.put(key(number).as_bytes(), b"")?;
            Ok(TxnEnd::Commit(number))
        })
    }

    impl Site {
        fn environment(&self) -> &Environment {
            &self.store.environment
        }

        fn has(&self, number: usize) -> bool {
            self.environment()
                .read(soon(), |reader| Ok(reader.get(key(number).as_bytes())?.is_some()))
                .unwrap()
        }

        fn queue(&self) -> &Queue {
            &self.environment().inner().writer_lock.queue
        }

        fn queued(&self) -> usize {
            self.queue().0.lock().len()
        }

        /// The number of the last transaction.
        fn last_txn(&self) -> usize {
            self.environment().inner().open.read().as_ref().unwrap().env.info().last_txn_id
        }

        /// Lets threads queue these changes in this order while another thread writes. Returns what they got.
        fn together(&self, changes: Vec<Change>) -> Vec<thread::Result<Result<usize>>> {
            thread::scope(|scope| {
                let (busy, end) = self.busy(scope);
                let threads: Vec<_> = changes
                    .into_iter()
                    .enumerate()
                    .map(|(at, change)| {
                        let queued = scope.spawn(move || self.environment().write_in_group(soon(), change));
                        until("the change is queued", || self.queued() == at + 1);
                        queued
                    })
                    .collect();
                drop(end);
                busy.join().unwrap();
                threads.into_iter().map(ScopedJoinHandle::join).collect()
            })
        }

        /// Starts a thread that writes until the sender is dropped.
        fn busy<'scope>(
            &'scope self,
            scope: &'scope thread::Scope<'scope, '_>,
        ) -> (ScopedJoinHandle<'scope, ()>, mpsc::Sender<()>) {
            let (end, ended) = mpsc::channel();
            let (began, begin) = mpsc::channel();
            let busy = scope.spawn(move || {
                let wait = |_: &mut Writer<'_>| {
                    began.send(()).unwrap();
                    let _ = ended.recv();
                    Ok(TxnEnd::Abandon(()))
                };
                self.environment().write(soon(), wait).unwrap();
            });
            begin.recv().unwrap();
            (busy, end)
        }
    }

    #[test]
    fn changes_that_wait_share_a_transaction_until_it_has_enough() {
        let site = site();
        let before = site.last_txn();
        let answers = site.together((0..BATCH_MAX + 8).map(put).collect());
        for (number, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer.unwrap().unwrap(), number);
            assert!(site.has(number));
        }
        assert_eq!(site.last_txn() - before, 2);
    }

    #[test]
    fn a_change_sees_those_before_it_in_its_transaction() {
        let site = site();
        let count: fn() -> Change = || {
            Box::new(|writer| {
                let count = writer.get(b"count")?.map_or(0, |bytes| bytes[0]) + 1;
                writer.put(b"count", &[count])?;
                Ok(TxnEnd::Commit(usize::from(count)))
            })
        };
        let answers = site.together((0..10).map(|_| count()).collect());
        let mut counts: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().unwrap()).collect();
        counts.sort_unstable();
        assert_eq!(counts, (1..=10).collect::<Vec<_>>());
    }

    #[test]
    fn one_change_that_fails_panics_or_is_given_up_harms_no_other() {
        const TOO_LARGE: usize = 4 * SMALL;
        let given_up = || -> Change {
            Box::new(|writer| {
                writer.put(key(1).as_bytes(), b"")?;
                Ok(TxnEnd::Abandon(1))
            })
        };
        let too_large = || -> Change {
            Box::new(|writer| {
                writer.put(key(1).as_bytes(), &[0; TOO_LARGE])?;
                Ok(TxnEnd::Commit(1))
            })
        };
        let panics = || -> Change {
            Box::new(|writer| {
                writer.put(key(1).as_bytes(), b"")?;
                panic!("planted");
            })
        };
        for bad in [given_up(), too_large(), panics()] {
            let site = site();
            let mut answers = site.together(vec![put(0), bad, put(2)]);
            match answers.remove(1) {
                Ok(Ok(number)) => assert_eq!(number, 1),
                Ok(Err(error)) => assert!(is_full(&error), "{}", error.chain()),
                Err(panic) => assert_eq!(panic.downcast_ref(), Some(&"planted")),
            }
            for answer in answers {
                answer.unwrap().unwrap();
            }
            assert_eq!([0, 1, 2].map(|number| site.has(number)), [true, false, true]);
            // The writer is free, and the environment can be used.
            site.environment().write_in_group(soon(), put(3)).unwrap();
        }
    }

    #[test]
    fn a_change_leaves_the_queue_with_its_deadline_and_is_never_made() {
        let site = site();
        thread::scope(|scope| {
            let (busy, end) = site.busy(scope);
            let by = Deadline::after(Duration::from_millis(20));
            let error = site.environment().write_in_group(by, put(0)).unwrap_err();
            assert_eq!(error.code(), Code::RetriesExhausted);
            assert_eq!(site.queued(), 0);
            drop(end);
            busy.join().unwrap();
        });
        site.environment().write_in_group(soon(), put(1)).unwrap();
        assert_eq!([0, 1].map(|number| site.has(number)), [false, true]);
    }

    /// Two changes whose deadline passes while a leader stands still: one before it and one behind it in the batch.
    #[test]
    fn only_a_change_that_a_stopped_leader_has_begun_is_in_doubt() {
        // In the first round, and on a busy machine in others, the deadline passes before the changes are taken.
        let is_shown = [0, 200, 2_000, 20_000].into_iter().any(|ms| {
            let site = &site();
            let (end, ended) = mpsc::channel::<()>();
            let ended = Mutex::new(ended);
            let patience = Duration::from_millis(2 * ms);
            let stopped: Change = Box::new(move |_| {
                let _ = ended.lock().recv_timeout(patience);
                Ok(TxnEnd::Abandon(0))
            });
            let codes = thread::scope(|scope| {
                let (busy, free) = site.busy(scope);
                let by = Deadline::after(Duration::from_millis(ms));
                let queue = |change: Change, until_by, queued| {
                    let thread = scope.spawn(move || site.environment().write_in_group(until_by, change));
                    // Those with that deadline leave the queue.
                    until("it is queued, or the round shows nothing", || {
                        site.queued() >= queued || by.passed()
                    });
                    thread
                };
                let leader = queue(put(0), soon(), 1);
                let begun = queue(put(1), by, 2);
                let stopped = queue(stopped, soon(), 3);
                let behind = queue(put(2), by, 4);
                drop(free);
                let codes =
                    [begun, behind].map(|thread| thread.join().unwrap().map_err(|error| error.code()));
                drop(end);
                busy.join().unwrap();
                for thread in [leader, stopped] {
                    thread.join().unwrap().unwrap();
                }
                codes
            });
            let is_shown = codes == [Err(Code::InDoubt), Err(Code::RetriesExhausted)];
            assert!(!is_shown || [0, 1, 2].map(|number| site.has(number)) == [true, true, false]);
            is_shown
        });
        assert!(is_shown);
    }

    /// The oldest thread is called and does not run. Before, all others slept until their deadlines.
    #[test]
    fn a_thread_that_does_not_run_when_it_is_called_keeps_nobody_waiting() {
        let site = site();
        let idle: Arc<dyn Queued> = Arc::new(Entry::new(put(0)));
        thread::scope(|scope| {
            // Its end calls the oldest, and nothing else: whoever writes makes the queued changes too.
            let turn = site.environment().inner().writer_lock.try_turn();
            site.queue().push(idle);
            let (site, by) = (&site, soon());
            let other = scope.spawn(move || site.environment().write_in_group(by, put(1)));
            until("the other one waits", || site.queued() == 2);
            drop(turn);
            other.join().unwrap().unwrap();
            assert!(!by.passed(), "it has waited until its deadline");
        });
        assert_eq!([0, 1].map(|number| site.has(number)), [true, true]);
    }

    #[test]
    fn the_end_of_a_turn_calls_the_oldest_change() {
        let site = site();
        let waiting = [0, 1].map(|number| Arc::new(Entry::new(put(number))));
        waiting.iter().for_each(|entry| site.queue().push(Arc::clone(entry) as _));
        drop(site.environment().inner().writer_lock.try_turn());
        assert_eq!(waiting.map(|entry| entry.state.lock().is_called), [true, false]);
    }

    /// Threads that write by themselves hand the writer on to each other, and a queued change would never find it free.
    #[test]
    fn whoever_writes_alone_makes_the_changes_that_wait() {
        let site = site();
        let idle = Arc::new(Entry::new(put(0)));
        site.queue().push(Arc::clone(&idle) as _);
        site.environment().write(soon(), |_| Ok(TxnEnd::Abandon(()))).unwrap();
        assert_eq!(idle.answer().unwrap(), 0);
        assert!(site.has(0));
    }

    /// With deadlines that often pass in the queue.
    #[test]
    fn no_change_of_many_threads_is_lost_or_made_twice() {
        const THREADS: usize = 12;
        const ROUNDS: usize = 300;
        let site = site();
        let [sure, doubtful] = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let site = &site;
                    scope.spawn(move || {
                        let mut counts = [0, 0];
                        for round in 0..ROUNDS {
                            // Some batches are made together, others one by one.
                            let is_given_up = round % 50 < 10 && (thread + round) % 5 == 0;
                            let count = move |writer: &mut Writer<'_>| {
                                let count = writer
                                    .get(b"count")?
                                    .map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().unwrap()));
                                writer.put(b"count", &(count + 1).to_be_bytes())?;
                                Ok(if is_given_up { TxnEnd::Abandon(()) } else { TxnEnd::Commit(()) })
                            };
                            let by = match round % 3 {
                                0 => Deadline::after(Duration::from_micros(50)),
                                _ => soon(),
                            };
                            let answer = match round % 7 {
                                6 => site.environment().write(by, count),
                                _ => site.environment().write_in_group(by, count),
                            };
                            match answer {
                                Ok(()) => counts[0] += u64::from(!is_given_up),
                                Err(error) if error.is_in_doubt() => counts[1] += u64::from(!is_given_up),
                                Err(error) => assert_eq!(error.code(), Code::RetriesExhausted),
                            }
                        }
                        counts
                    })
                })
                .collect();
            let counts = threads.into_iter().map(|thread| thread.join().unwrap());
            counts.fold([0, 0], |sum, counts| [sum[0] + counts[0], sum[1] + counts[1]])
        });
        let read =
            |reader: &Reader<'_>| Ok(u64::from_be_bytes(reader.get(b"count")?.unwrap().try_into().unwrap()));
        let made = site.environment().read(soon(), read).unwrap();
        assert!(
            sure > 0 && sure <= made && made <= sure + doubtful,
            "{sure} to {} and {made}",
            sure + doubtful
        );
        assert_eq!(site.queued(), 0);
    }
}
