//! The threads that ask the store for waiters without a thread of their own.
//!
//! A waiter without a thread is an [`Inquiry`]. At most [`THREADS_MAX`] threads serve any number of inquiries. They do
//! two things:
//!
//! | work | when | takes |
//! |---|---|---|
//! | look: ask the inquiry what is next | it is new, was woken, or its moment has come | microseconds |
//! | ask: send a request to the store | `next_step` said so, and its shard has room | up to the store time-out |
//! | read: one request for many inquiries | at least [`READ_FROM`] of them wait to ask | the same, or [`READ_MAX`] |
//!
//! One thread fewer than all may ask at one time, so looks are never late, even when every request hangs.
//!
//! Requests are of two kinds: a **call** renews or releases a lease that is held, and a **poll** asks for a lock. Calls go
//! first, because a lease ends while they wait. Each kind may use all threads but two, so one is always left to the other
//! kind. A read counts as a poll. It shows most waiters that their lock is held. A waiter whose lock is free asks for it alone.
//!
//! A shard is a part of the store that may fail while the others work: the first byte of an HBase row, and a hash
//! elsewhere. So that a shard that hangs leaves threads for the others,
//!
//! * a shard has at most [`SHARD_MAX`] requests of each kind at one time;
//! * shards that fail have at most [`FAILING_POLLS`] and [`FAILING_CALLS`] requests at one time, all together. A shard fails
//!   from a request that the store did not serve, or that has taken longer than [`STUCK`], until one is answered;
//! * no read includes a shard that fails.
//!
//! Threads are started when there is work for them, end when they have had none for a while, and are joined by `stop`.
//! No thread is started before the first inquiry. An inquiry may hold the last handle of the manager, so it is never
//! dropped under the lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::names::holder::Holder;
use crate::names::lock_name::LockName;
use crate::runtime::process::threads::{SharedWithThreads, WorkerThread};
use crate::runtime::sync::{AtomicU64, HashMap};
use crate::runtime::sync::{Condvar, Mutex, MutexGuard};
use crate::runtime::time::{LONGEST_PARK, Moment};

/// Highest number of threads of one manager.
const THREADS_MAX: usize = 8;
/// Highest number of requests at one time.
const ASKS_MAX: usize = THREADS_MAX - 1;
/// The same for requests of one kind.
const KIND_MAX: usize = ASKS_MAX - 1;
/// The same for polls of one lock each. If all of them hang, one more request can still read for the others.
const POLLS_ALONE_MAX: usize = KIND_MAX - 1;
/// Highest number of requests of one kind to one shard at one time.
const SHARD_MAX: usize = 2;
/// Highest numbers of requests to failing shards at one time. Together they leave a thread to the other shards.
const FAILING_POLLS: usize = 4;
const FAILING_CALLS: usize = 2;
/// From so many polls that wait for a thread on, one request reads for all of them. At most so many are read together.
const READ_FROM: usize = 8;
const READ_MANY: usize = 512;
/// Threads that read for many at one time.
const READERS_MAX: usize = 2;
/// Time limit of a read for many.
pub(crate) const READ_MAX: Duration = Duration::from_secs(2);
/// After a read for many that reported nothing, each asks alone for so long: the store cannot read several locks at once,
/// or does not answer.
const APART: Duration = Duration::from_secs(10);
/// How long a request may take before its shard counts as failing.
const STUCK: Duration = Duration::from_secs(1);
/// A thread without work ends after this time.
const IDLE: Duration = Duration::from_secs(5);
/// A waiter that the threads serve.
pub(crate) trait Inquiry: Send + Sync {
    /// Says what to do next. Never blocks.
    fn next_step(&self) -> NextStep;

    /// Sends one request to the store. Afterwards the inquiry is looked at again.
    fn ask(&self) -> Served;

    /// Called when the threads were stopped before they were done with the inquiry. Never blocks.
    fn stopped(&self) {}

    /// Returns the lock to be read instead of a request. After it, [`end_read`](Inquiry::end_read) is called once. `None` if
    /// the inquiry asks alone. Never blocks.
    fn begin_read(&self) -> Option<LockName> {
        None
    }

    /// Ends what [`begin_read`](Inquiry::begin_read) has begun. `None` if the lock was not read. Never blocks.
    fn end_read(&self, seen: Option<Option<Holder>>) {
        let _ = seen;
    }
}

/// Reads several locks, and reports the position and the holder of each that it has read.
pub(crate) type ReadTogether = Box<dyn Fn(&[LockName], &mut dyn FnMut(usize, Option<Holder>)) + Send + Sync>;

/// What an inquiry asks for. Calls go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AskKind {
    /// A call on a lease that is held.
    Call,
    /// A request for a lock.
    Poll,
}

impl AskKind {
    fn failing_max(self) -> usize {
        match self {
            AskKind::Call => FAILING_CALLS,
            AskKind::Poll => FAILING_POLLS,
        }
    }
}

/// What to do with an inquiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Ask the store as soon as there is room. Look again at this moment if there was none.
    Ask(Moment),
    /// Look again at this moment, or when woken.
    LookAt(Moment),
    /// Nothing. The inquiry is forgotten.
    Done,
}

/// What a request says about its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    Yes,
    No,
    /// The store was not asked.
    Unknown,
}

impl Served {
    /// Returns what an answer says about the part of the store that gave it.
    pub(crate) fn of<T>(answer: &Result<T>) -> Served {
        match answer.as_ref().map_err(Error::code) {
            Err(
                Code::ConnectionError | Code::RetriesExhausted | Code::TableCreationError | Code::InDoubt,
            ) => Served::No,
            Err(Code::InvalidArgument | Code::Closed | Code::Forked | Code::Panic) => Served::Unknown,
            Ok(_) | Err(_) => Served::Yes,
        }
    }
}

/// Identifies an inquiry.
pub(crate) type InquiryNumber = u64;

/// The threads of one manager. Dropping it stops them.
pub(crate) struct Askers {
    shared: SharedWithThreads<AskersShared>,
    numbers: AtomicU64,
}

struct AskersShared {
    read_many: ReadTogether,
    state: Mutex<AskersState>,
    /// Wakes one thread for work, or all to stop.
    wake: Condvar,
}

impl AskersShared {
    /// Locks the state. No inquiry is called or dropped under the lock.
    fn lock(&self) -> MutexGuard<'_, AskersState> {
        self.state.lock()
    }
}

#[derive(Default)]
struct AskersState {
    inquiries: HashMap<InquiryNumber, OpenInquiry>,
    /// Inquiries to look at, in order.
    ready: VecDeque<InquiryNumber>,
    /// Inquiries that wait for room to ask, in order: calls first.
    asks: BTreeMap<AskPosition, InquiryNumber>,
    /// When to look at inquiries.
    timers: BTreeMap<TimerKey, InquiryNumber>,
    under_way: Vec<UnderWay>,
    /// Number of threads that read for many.
    readers: usize,
    /// Until then each asks alone.
    apart_until: Option<Moment>,
    /// Places whose last request was not served.
    failing: BTreeSet<u8>,
    /// Numbers drawn for timers, shards in `asks`, and threads.
    drawn: u64,
    threads: Vec<(u64, WorkerThread)>,
    /// Threads that have ended by themselves, to be joined.
    ended: Vec<u64>,
    /// Number of threads that wait for work.
    idle: usize,
    /// The earliest timer for which an idle thread waits.
    watched: Option<TimerKey>,
    is_stopping: bool,
}

/// A number that grows, after the kind.
type AskPosition = (AskKind, u64);

/// A moment, and a number that makes it unique.
type TimerKey = (Moment, u64);

struct OpenInquiry {
    inquiry: Arc<dyn Inquiry>,
    kind: AskKind,
    /// The part of the store that answers it.
    shard: u8,
    /// It has just been read together with others, and asks alone now.
    is_alone: bool,
    is_ready: bool,
    /// Whether a thread looks at it just now. A second thread leaves it to that one.
    is_looked_at: bool,
    is_asking: bool,
    /// Its position in `asks`.
    ask: Option<AskPosition>,
    timer: Option<TimerKey>,
}

/// A request to the store.
struct UnderWay {
    number: InquiryNumber,
    kind: AskKind,
    shard: u8,
    began: Moment,
}

impl AskersState {
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    fn make_ready(&mut self, number: InquiryNumber) {
        if let Some(open) = self.inquiries.get_mut(&number).filter(|open| !open.is_ready) {
            open.is_ready = true;
            self.ready.push_back(number);
        }
    }

    fn make_due_ready(&mut self) {
        let now = Moment::now();
        while let Some((&due, &number)) = self.timers.first_key_value() {
            if due.0 > now {
                return;
            }
            self.timers.remove(&due);
            if let Some(open) = self.inquiries.get_mut(&number) {
                open.timer = None;
            }
            self.make_ready(number);
        }
    }

    /// Takes the next inquiry to look at.
    fn take_ready(&mut self) -> Option<(InquiryNumber, Arc<dyn Inquiry>)> {
        while let Some(number) = self.ready.pop_front() {
            let Some(open) = self.inquiries.get_mut(&number) else { continue };
            if open.is_looked_at {
                // Still marked as ready: the other thread looks again.
                continue;
            }
            open.is_ready = false;
            open.is_looked_at = true;
            return Some((number, Arc::clone(&open.inquiry)));
        }
        None
    }

    /// Records the result of a look. The caller drops what this returns, without the lock.
    fn has_decided(&mut self, number: InquiryNumber, next: NextStep) -> Option<OpenInquiry> {
        let again = self.inquiries.get_mut(&number).map(|open| {
            open.is_looked_at = false;
            std::mem::take(&mut open.is_ready)
        });
        match next {
            NextStep::Done => return self.remove(number),
            NextStep::Ask(or_look) => {
                self.set_timer(number, or_look);
                let position = self.draw();
                if let Some(open) = self.inquiries.get_mut(&number)
                    && !open.is_asking
                    && open.ask.is_none()
                {
                    let position = (open.kind, position);
                    open.ask = Some(position);
                    self.asks.insert(position, number);
                }
            }
            NextStep::LookAt(at) => {
                self.set_timer(number, at);
                let position = self.inquiries.get_mut(&number).and_then(|open| open.ask.take());
                position.map(|position| self.asks.remove(&position));
            }
        }
        if again == Some(true) {
            self.make_ready(number);
        }
        None
    }

    fn set_timer(&mut self, number: InquiryNumber, at: Moment) {
        let due = (at, self.draw());
        let Some(open) = self.inquiries.get_mut(&number) else { return };
        let before = open.timer.take();
        if at != Moment::NEVER {
            open.timer = Some(due);
            self.timers.insert(due, number);
        }
        before.map(|before| self.timers.remove(&before));
    }

    fn remove(&mut self, number: InquiryNumber) -> Option<OpenInquiry> {
        let open = self.inquiries.remove(&number)?;
        open.timer.map(|due| self.timers.remove(&due));
        open.ask.map(|position| self.asks.remove(&position));
        Some(open)
    }

    /// Returns the shards that fail.
    fn failing_now(&self) -> BTreeSet<u8> {
        let now = Moment::now();
        let stuck = self.under_way.iter().filter(|it| now.since(it.began) > STUCK).map(|it| it.shard);
        self.failing.iter().copied().chain(stuck).collect()
    }

    /// Returns whether another request of this kind may be sent.
    fn has_room(&self, kind: AskKind) -> bool {
        let reads = if kind == AskKind::Poll { self.readers } else { 0 };
        let of_kind = self.under_way.iter().filter(|it| it.kind == kind).count() + reads;
        of_kind < KIND_MAX && self.under_way.len() + self.readers < ASKS_MAX
    }

    /// Takes the first inquiry whose kind and shard have room for a request.
    fn take_ask(&mut self) -> Option<(InquiryNumber, Arc<dyn Inquiry>)> {
        let polls = self.under_way.iter().filter(|it| it.kind == AskKind::Poll).count();
        let may_poll = polls < POLLS_ALONE_MAX && self.has_room(AskKind::Poll);
        let rooms = [self.has_room(AskKind::Call), may_poll];
        if self.is_stopping || self.asks.is_empty() || rooms == [false, false] {
            return None;
        }
        let failing = self.failing_now();
        let has_room = |open: &OpenInquiry| {
            let of_kind = || self.under_way.iter().filter(|it| it.kind == open.kind);
            let here = of_kind().filter(|it| it.shard == open.shard).count();
            let of_failing = of_kind().filter(|it| failing.contains(&it.shard)).count();
            let fails = failing.contains(&open.shard);
            rooms[open.kind as usize] && here < SHARD_MAX && !(fails && of_failing >= open.kind.failing_max())
        };
        let (&position, &number) = self.asks.iter().find(|(_, number)| has_room(&self.inquiries[*number]))?;
        self.asks.remove(&position);
        let open = self.inquiries.get_mut(&number)?;
        open.ask = None;
        open.is_asking = true;
        open.is_alone = false;
        let inquiry = Arc::clone(&open.inquiry);
        self.under_way.push(UnderWay { number, kind: open.kind, shard: open.shard, began: Moment::now() });
        Some((number, inquiry))
    }

    /// Takes the inquiries for which one request reads, if many wait.
    fn take_reads(&mut self) -> Vec<(InquiryNumber, Arc<dyn Inquiry>)> {
        if self.asks.len() < READ_FROM
            || self.is_stopping
            || self.readers >= READERS_MAX
            || !self.has_room(AskKind::Poll)
            || self.apart_until.is_some_and(|until| Moment::now() < until)
        {
            return Vec::new();
        }
        let failing = self.failing_now();
        let is_read = |number: &InquiryNumber| {
            let open = &self.inquiries[number];
            !open.is_alone && !failing.contains(&open.shard)
        };
        let polls = self.asks.range((AskKind::Poll, 0)..);
        let read: Vec<_> = polls
            .filter(|(_, number)| is_read(number))
            .map(|(position, number)| (*position, *number))
            .take(READ_MANY)
            .collect();
        if read.len() < READ_FROM {
            return Vec::new();
        }
        self.readers += 1;
        let take = |(position, number): (AskPosition, InquiryNumber)| {
            self.asks.remove(&position);
            let open = self.inquiries.get_mut(&number)?;
            open.ask = None;
            open.is_asking = true;
            Some((number, Arc::clone(&open.inquiry)))
        };
        read.into_iter().filter_map(take).collect()
    }

    /// Records the end of a read for many. Those that are named ask alone, the others were refused.
    fn read(&mut self, numbers: &[InquiryNumber], alone: &[InquiryNumber], is_silent: bool) {
        self.readers -= 1;
        if is_silent {
            self.apart_until = Some(Moment::now().after(APART));
        }
        for number in numbers {
            if let Some(open) = self.inquiries.get_mut(number) {
                open.is_asking = false;
                open.is_alone = alone.contains(number);
            }
            self.make_ready(*number);
        }
    }

    /// Returns the first timer, unless an idle thread waits for it.
    fn unwatched_timer(&self) -> Option<TimerKey> {
        let first = self.timers.first_key_value().map(|(due, _)| *due);
        first.filter(|first| self.watched.is_none_or(|watched| *first < watched))
    }

    fn has_work_for_another(&self) -> bool {
        !self.ready.is_empty() || !self.asks.is_empty() || self.unwatched_timer().is_some()
    }

    fn asked(&mut self, number: InquiryNumber, served: Served) {
        if let Some(at) = self.under_way.iter().position(|it| it.number == number) {
            let shard = self.under_way.swap_remove(at).shard;
            match served {
                Served::Yes => drop(self.failing.remove(&shard)),
                Served::No => drop(self.failing.insert(shard)),
                Served::Unknown => {}
            }
        }
        if let Some(open) = self.inquiries.get_mut(&number) {
            open.is_asking = false;
        }
        self.make_ready(number);
    }
}

impl Askers {
    /// Starts no thread. `read_many` reads locks for many inquiries.
    pub(crate) fn new(read_many: ReadTogether) -> Askers {
        let shared = AskersShared { read_many, state: Mutex::default(), wake: Condvar::new() };
        Askers { shared: SharedWithThreads::new(shared), numbers: AtomicU64::new(0) }
    }

    /// Draws the number of an inquiry that is added later.
    pub(crate) fn number(&self) -> InquiryNumber {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds an inquiry to `shard` of the store. A thread looks at it soon.
    ///
    /// # Errors
    /// Fails when no thread runs and none can be started, or when the threads were stopped.
    pub(crate) fn add(
        &self,
        number: InquiryNumber,
        kind: AskKind,
        shard: u8,
        inquiry: Arc<dyn Inquiry>,
    ) -> io::Result<()> {
        let mut state = self.shared.lock();
        if state.is_stopping {
            return Err(io::Error::other("the threads have ended"));
        }
        let open = OpenInquiry {
            inquiry,
            kind,
            shard,
            is_alone: false,
            is_ready: false,
            is_looked_at: false,
            is_asking: false,
            ask: None,
            timer: None,
        };
        state.inquiries.insert(number, open);
        state.make_ready(number);
        match call_thread(&self.shared, &mut state) {
            Err(error) if state.threads.len() == state.ended.len() => {
                let open = state.remove(number);
                drop(state);
                drop(open);
                Err(error)
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Has a thread look at the inquiry. Does nothing for an inquiry that is not open.
    pub(crate) fn wake(&self, number: InquiryNumber) {
        let mut state = self.shared.lock();
        if state.inquiries.get(&number).is_some_and(|open| !open.is_ready) {
            state.make_ready(number);
            // The threads there are take the work if no other can be started.
            let _ = call_thread(&self.shared, &mut state);
        }
    }

    /// Forgets the inquiry. A request under way goes on.
    pub(crate) fn remove(&self, number: InquiryNumber) {
        let open = self.shared.lock().remove(number);
        drop(open);
    }

    /// Ends the threads: looks at the inquiries that are ready, joins the threads, and forgets all other inquiries.
    /// Waits for requests under way. A second call does nothing.
    pub(crate) fn stop(&self) {
        let Some(shared) = self.shared.in_its_process() else { return };
        let threads = {
            let mut state = shared.lock();
            state.is_stopping = true;
            state.ended.clear();
            std::mem::take(&mut state.threads)
        };
        shared.wake.notify_all();
        threads.into_iter().for_each(|(_, thread)| thread.join());
        let left = std::mem::take(&mut shared.lock().inquiries);
        left.values().for_each(|open| open.inquiry.stopped());
        drop(left);
    }

    /// Returns the number of threads, for tests.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        let state = self.shared.lock();
        state.threads.len() - state.ended.len()
    }
}

impl Drop for Askers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Wakes or starts a thread, if another one may work.
fn call_thread(shared: &Arc<AskersShared>, state: &mut AskersState) -> io::Result<()> {
    if state.idle > 0 {
        shared.wake.notify_one();
        return Ok(());
    }
    if state.is_stopping || state.threads.len() - state.ended.len() >= THREADS_MAX {
        return Ok(());
    }
    for ended in std::mem::take(&mut state.ended) {
        if let Some(at) = state.threads.iter().position(|(number, _)| *number == ended) {
            // It has left its loop, so it ends without the lock.
            state.threads.swap_remove(at).1.join();
        }
    }
    let (number, name) = (state.draw(), format!("dlm-ask-{}", state.threads.len() + 1));
    let own = Arc::clone(shared);
    let thread = WorkerThread::start(name, "asks the store", move || work(&own, number))?;
    state.threads.push((number, thread));
    Ok(())
}

/// Another thread goes on with looks, timers and requests. If none can be started, looks are late.
fn call_another(shared: &Arc<AskersShared>, state: &mut AskersState) {
    if state.has_work_for_another()
        && let Err(error) = call_thread(shared, state)
    {
        log::warn!("a thread that asks the store cannot be started: {error}");
    }
}

/// Reads for many inquiries with one request. Returns their numbers, those that ask alone now, and whether the store has
/// reported nothing.
fn read_for_many(
    read_many: &ReadTogether,
    inquiries: Vec<(InquiryNumber, Arc<dyn Inquiry>)>,
) -> (Vec<InquiryNumber>, Vec<InquiryNumber>, bool) {
    let numbers = inquiries.iter().map(|(number, _)| *number).collect();
    let (mut alone, mut names, mut begun) = (Vec::new(), Vec::new(), Vec::new());
    for (number, inquiry) in inquiries {
        match inquiry.begin_read() {
            Some(name) => {
                names.push(name);
                begun.push(Some((number, inquiry)));
            }
            None => alone.push(number),
        }
    }
    let mut is_silent = !names.is_empty();
    let reading = AssertUnwindSafe(|| {
        read_many(&names, &mut |index, holder| {
            is_silent = false;
            if let Some((number, inquiry)) = begun.get_mut(index).and_then(Option::take) {
                if holder.is_none() {
                    alone.push(number);
                }
                inquiry.end_read(Some(holder));
            }
        });
    });
    if catch_unwind(reading).is_err() {
        log::error!("a store panicked while it read locks");
    }
    for (number, inquiry) in begun.into_iter().flatten() {
        alone.push(number);
        inquiry.end_read(None);
    }
    (numbers, alone, is_silent)
}

/// Runs in each thread.
fn work(shared: &Arc<AskersShared>, own_number: u64) {
    let mut state = shared.lock();
    let mut idle_since = None;
    loop {
        state.make_due_ready();
        if let Some((number, inquiry)) = state.take_ready() {
            idle_since = None;
            drop(state);
            let next = catch_unwind(AssertUnwindSafe(|| inquiry.next_step())).unwrap_or_else(|_| {
                log::error!("a pending acquisition panicked and was dropped");
                NextStep::Done
            });
            drop(inquiry);
            state = shared.lock();
            if let Some(over) = state.has_decided(number, next) {
                drop(state);
                drop(over);
                state = shared.lock();
            }
            continue;
        }
        let read = state.take_reads();
        if !read.is_empty() {
            idle_since = None;
            call_another(shared, &mut state);
            drop(state);
            let (numbers, alone, is_silent) = read_for_many(&shared.read_many, read);
            state = shared.lock();
            state.read(&numbers, &alone, is_silent);
            continue;
        }
        if let Some((number, inquiry)) = state.take_ask() {
            idle_since = None;
            call_another(shared, &mut state);
            drop(state);
            let served = catch_unwind(AssertUnwindSafe(|| inquiry.ask())).unwrap_or(Served::Unknown);
            drop(inquiry);
            state = shared.lock();
            state.asked(number, served);
            continue;
        }
        if state.is_stopping {
            return;
        }
        let now = Moment::now();
        let mut idle_end = idle_since.get_or_insert(now).after(IDLE);
        if now >= idle_end {
            if state.inquiries.is_empty() || state.idle > 0 {
                state.ended.push(own_number);
                shared.wake.notify_one();
                return;
            }
            idle_since = Some(now);
            idle_end = now.after(IDLE);
        }
        let watches = state.unwatched_timer();
        let until = watches.map_or(idle_end, |due| due.0.min(idle_end));
        if watches.is_some() {
            state.watched = watches;
        }
        state.idle += 1;
        shared.wake.wait_for(&mut state, until.since(now).min(LONGEST_PARK));
        state.idle -= 1;
        if watches.is_some() && state.watched == watches {
            state.watched = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::testing::patience::until;

    /// An inquiry that asks once, and is done when the gate is open.
    struct Planted {
        gate: Arc<Gate>,
        answer: Served,
        asked: AtomicUsize,
    }

    #[derive(Default)]
    struct Gate {
        open: AtomicUsize,
        asking: AtomicUsize,
        asked: AtomicUsize,
        reads: AtomicUsize,
    }

    impl Gate {
        fn asking(&self) -> usize {
            self.asking.load(Ordering::SeqCst)
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::SeqCst)
        }
    }

    /// Opens a gate when a test ends, also when it fails: otherwise the threads that ask would be waited for.
    struct OpenedAtEnd<'a>(&'a Gate);

    impl Drop for OpenedAtEnd<'_> {
        fn drop(&mut self) {
            self.0.open.store(1, Ordering::SeqCst);
        }
    }

    impl Inquiry for Planted {
        fn next_step(&self) -> NextStep {
            self.gate.reads.fetch_add(1, Ordering::SeqCst);
            match self.asked.load(Ordering::SeqCst) {
                0 => NextStep::Ask(Moment::NEVER),
                _ => NextStep::Done,
            }
        }

        fn ask(&self) -> Served {
            self.gate.asking.fetch_add(1, Ordering::SeqCst);
            until("the gate opens", || self.gate.open.load(Ordering::SeqCst) > 0);
            self.gate.asking.fetch_sub(1, Ordering::SeqCst);
            self.asked.store(1, Ordering::SeqCst);
            self.gate.asked.fetch_add(1, Ordering::SeqCst);
            self.answer
        }
    }

    fn plant(askers: &Askers, gate: &Arc<Gate>, shard: u8, answer: Served) {
        plant_as(AskKind::Poll, askers, gate, shard, answer);
    }

    fn plant_as(kind: AskKind, askers: &Askers, gate: &Arc<Gate>, shard: u8, answer: Served) {
        let inquiry = Planted { gate: Arc::clone(gate), answer, asked: AtomicUsize::new(0) };
        askers.add(askers.number(), kind, shard, Arc::new(inquiry)).unwrap();
    }

    /// Over a store that reads one lock at a time.
    fn askers() -> Askers {
        Askers::new(Box::new(|_, _| {}))
    }

    /// An inquiry that looks every millisecond.
    struct Ticking(AtomicUsize);

    impl Inquiry for Ticking {
        fn next_step(&self) -> NextStep {
            self.0.fetch_add(1, Ordering::SeqCst);
            NextStep::LookAt(Moment::now().after(Duration::from_millis(1)))
        }

        fn ask(&self) -> Served {
            unreachable!("it never asks")
        }
    }

    #[test]
    fn places_that_hang_leave_threads_for_others_and_timers_are_kept() {
        let askers = askers();
        let (hung, served) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
        let _opened = OpenedAtEnd(&hung);
        served.open.store(1, Ordering::SeqCst);
        let ticking = Arc::new(Ticking(AtomicUsize::new(0)));
        (0..20).for_each(|_| plant(&askers, &hung, 7, Served::No));
        until("the shard has all it may have", || hung.asking() == SHARD_MAX);
        for shard in 0..100 {
            plant(&askers, &served, shard, Served::Yes);
        }
        // One of them is to the shard that hangs.
        until("the others are served", || served.asked() == 99);
        assert_eq!((hung.asking(), served.asked()), (SHARD_MAX, 99));
        (100..200).for_each(|shard| plant(&askers, &hung, shard, Served::No));
        until("all may ask but three", || hung.asking() == POLLS_ALONE_MAX);
        askers.add(askers.number(), AskKind::Poll, 0, ticking.clone()).unwrap();
        until("the timers go on", || ticking.0.load(Ordering::SeqCst) >= 5);
        assert!(hung.asking() == POLLS_ALONE_MAX && askers.threads() > POLLS_ALONE_MAX);
        // Calls to other shards go on, and one of those that hang leaves a thread to looks.
        (0..100).for_each(|shard| plant_as(AskKind::Call, &askers, &served, shard, Served::Yes));
        until("the calls are served", || served.asked() == 199);
        (0..5).for_each(|_| plant_as(AskKind::Call, &askers, &hung, 200, Served::No));
        until("a call hangs", || hung.asking() == ASKS_MAX);
        let looks = ticking.0.load(Ordering::SeqCst);
        until("the timers go on", || ticking.0.load(Ordering::SeqCst) >= looks + 5);
        assert_eq!((hung.asking(), askers.threads()), (ASKS_MAX, THREADS_MAX));
        hung.open.store(1, Ordering::SeqCst);
        until("all are asked", || hung.asked() == 125 && served.asked() == 200);
        askers.stop();
        assert_eq!(askers.threads(), 0);
    }

    #[test]
    fn places_that_failed_have_few_requests_together_until_one_answers() {
        let askers = askers();
        let (quick, hung) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
        let _opened = OpenedAtEnd(&hung);
        quick.open.store(1, Ordering::SeqCst);
        (0..10).for_each(|shard| plant(&askers, &quick, shard, Served::No));
        until("all have failed", || askers.shared.lock().failing.len() == 10);
        (0..10).for_each(|shard| plant(&askers, &hung, shard, Served::Yes));
        until("the failing shards have all they may have", || hung.asking() == FAILING_POLLS);
        plant(&askers, &quick, 200, Served::Yes);
        until("another shard is served", || quick.asked() == 11);
        assert_eq!(hung.asking(), FAILING_POLLS);
        hung.open.store(1, Ordering::SeqCst);
        until("they answer again", || askers.shared.lock().failing.is_empty());
        assert_eq!(hung.asked(), 10);
    }

    /// A lease ends while its renewal waits, and a lock is only taken later.
    #[test]
    fn calls_overtake_polls_that_wait() {
        let askers = askers();
        let gate = Arc::new(Gate::default());
        let _opened = OpenedAtEnd(&gate);
        (0..100).for_each(|_| plant(&askers, &gate, 0, Served::Yes));
        until("the shard has all it may have", || gate.asking() == SHARD_MAX);
        plant_as(AskKind::Call, &askers, &gate, 0, Served::Yes);
        until("the call is sent", || gate.asking() == SHARD_MAX + 1);
        let state = askers.shared.lock();
        assert!(state.under_way.iter().any(|it| it.kind == AskKind::Call));
    }

    #[test]
    fn a_call_is_taken_before_polls_that_came_first() {
        let mut state = AskersState::default();
        let gate = Arc::new(Gate::default());
        for (number, kind) in [(1, AskKind::Poll), (2, AskKind::Call), (3, AskKind::Poll), (4, AskKind::Call)]
        {
            let inquiry =
                Arc::new(Planted { gate: gate.clone(), answer: Served::Yes, asked: AtomicUsize::new(0) });
            let open = OpenInquiry {
                inquiry,
                kind,
                shard: number as u8,
                is_alone: false,
                is_ready: false,
                is_looked_at: false,
                is_asking: false,
                ask: None,
                timer: None,
            };
            state.inquiries.insert(number, open);
            state.has_decided(number, NextStep::Ask(Moment::NEVER));
        }
        let order: Vec<_> = std::iter::from_fn(|| state.take_ask()).map(|(number, _)| number).collect();
        assert_eq!(order, [2, 4, 1, 3]);
    }

    /// An inquiry for a lock that is held, or free from the second request on.
    struct Reading {
        name: LockName,
        reads: Arc<AtomicUsize>,
        asks: Arc<AtomicUsize>,
        is_over: AtomicUsize,
    }

    impl Inquiry for Reading {
        fn next_step(&self) -> NextStep {
            match self.is_over.load(Ordering::SeqCst) {
                0 => NextStep::Ask(Moment::NEVER),
                _ => NextStep::Done,
            }
        }

        fn ask(&self) -> Served {
            self.asks.fetch_add(1, Ordering::SeqCst);
            self.is_over.store(1, Ordering::SeqCst);
            Served::Yes
        }

        fn begin_read(&self) -> Option<LockName> {
            Some(self.name.clone())
        }

        fn end_read(&self, seen: Option<Option<Holder>>) {
            self.reads.fetch_add(1, Ordering::SeqCst);
            if matches!(seen, Some(Some(_))) {
                self.is_over.store(1, Ordering::SeqCst);
            }
        }
    }

    #[test]
    fn many_that_wait_are_read_together_and_those_that_are_free_or_unknown_ask_alone() {
        use crate::names::lock_name::{Level, NamePolicy};
        for store_reads in [true, false] {
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&calls);
            let askers = Askers::new(Box::new(move |names, report| {
                counted.fetch_add(1, Ordering::SeqCst);
                // A third is held, a third is free, and a third is not reported.
                for index in (0..names.len()).filter(|index| store_reads && index % 3 > 0) {
                    report(index, (index % 3 == 1).then(|| Holder::new(None, None, None)));
                }
            }));
            let (reads, asks) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let adds: Vec<_> = (0..300_u16)
                .map(|id| {
                    let name = LockName::new(Level::Xdc, "tests", None, &id.to_string(), NamePolicy::Strict)
                        .unwrap();
                    let (reads, asks) = (Arc::clone(&reads), Arc::clone(&asks));
                    Arc::new(Reading { name, reads, asks, is_over: AtomicUsize::new(0) })
                })
                .collect();
            for (id, inquiry) in adds.into_iter().enumerate() {
                askers.add(askers.number(), AskKind::Poll, id as u8, inquiry).unwrap();
            }
            until("all are served", || askers.shared.lock().inquiries.is_empty());
            let [calls, reads, asks] = [&calls, &reads, &asks].map(|it| it.load(Ordering::SeqCst));
            // How many waited at one time depends on when the threads ran.
            assert!(calls <= 300 / READ_FROM && asks + reads >= 300, "{calls} {reads} {asks}");
            match store_reads {
                true => assert!(asks >= reads / 3 && asks <= 300),
                false => {
                    assert!(asks == 300 && calls <= READERS_MAX, "{calls}: nobody reads for many for a while")
                }
            }
        }
    }

    #[test]
    fn a_question_that_was_removed_is_neither_looked_at_nor_kept() {
        let askers = askers();
        let ticking = Arc::new(Ticking(AtomicUsize::new(0)));
        let number = askers.number();
        askers.add(number, AskKind::Poll, 0, ticking.clone()).unwrap();
        until("it is looked at", || ticking.0.load(Ordering::SeqCst) >= 2);
        askers.remove(number);
        askers.wake(number);
        until("nothing is left", || Arc::strong_count(&ticking) == 1);
        let state = askers.shared.lock();
        assert!(state.inquiries.is_empty() && state.timers.is_empty() && state.asks.is_empty());
    }

    #[test]
    fn a_woken_question_is_looked_at_and_one_that_panics_is_dropped() {
        struct Sleeping(AtomicUsize);
        impl Inquiry for Sleeping {
            fn next_step(&self) -> NextStep {
                match self.0.fetch_add(1, Ordering::SeqCst) {
                    0 => NextStep::LookAt(Moment::NEVER),
                    _ => panic!("planted"),
                }
            }
            fn ask(&self) -> Served {
                unreachable!("it never asks")
            }
        }
        let askers = askers();
        let sleeping = Arc::new(Sleeping(AtomicUsize::new(0)));
        let number = askers.number();
        askers.add(number, AskKind::Poll, 0, sleeping.clone()).unwrap();
        until("it is looked at", || sleeping.0.load(Ordering::SeqCst) == 1);
        askers.wake(number);
        until("it is dropped", || Arc::strong_count(&sleeping) == 1);
        assert_eq!(sleeping.0.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_stopped_pool_takes_no_questions() {
        let askers = askers();
        askers.stop();
        let inquiry = Arc::new(Ticking(AtomicUsize::new(0)));
        assert!(askers.add(askers.number(), AskKind::Call, 0, inquiry).is_err());
    }
}
