//! The library's background threads. They run jobs some time after a call has returned.
//!
//! | job | created by | ends when |
//! |---|---|---|
//! | frees a lock that a request in doubt may have acquired | manager, lease | it is free, or the doubt has ended |
//! | gives back locks that stayed | manager | none stays |
//! | reads the latches that are due | latch poller | no thread waits for a latch |
//!
//! A fixed number of threads runs any number of jobs, in the order in which they are due. Threads are started when
//! there are jobs for them, and joined by `stop`. A program without jobs has no such threads.
//!
//! Jobs that free or give back locks never use the last thread, and those that give back locks half of the others at
//! most. A server that hangs blocks such a job for seconds, and meanwhile the last thread reads latches of other servers.
//! With a pool of one thread, that thread runs all jobs. A job never holds the manager, because the end of the manager
//! stops the threads.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::runtime::process::process_mark;
use crate::runtime::process::threads::{self, Thread};
use crate::runtime::sync::{Condvar, Mutex, MutexGuard};
use crate::runtime::time::{Deadline, LONGEST_PARK, Moment};

/// Time in which a stopping pool runs the open jobs once more.
const LAST_RUN: Duration = Duration::from_secs(2);

/// Limit of locks in doubt that wait to be freed. Further locks, as in a long outage with many callers, stay held
/// until their TTL ends.
const JOBS_MAX: usize = 4096;

/// Result of one run of a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Run the job again after this time.
    After(Duration),
    /// The job is done.
    Done,
}

type Job = Box<dyn FnMut() -> Next + Send>;

/// Identifies a waiting job. Ordered by the time when the job is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    due: Moment,
    number: u64,
}

impl Ticket {
    pub(crate) fn due(self) -> Moment {
        self.due
    }
}

/// The pool of background threads. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Background {
    shared: Arc<JobsShared>,
    /// Mark of the process that the threads belong to, see [`process_mark`]. A forked child has the handles but not
    /// the threads, and a mutex that one of them held stays locked.
    process: u64,
}

#[derive(Debug)]
struct JobsShared {
    threads_max: usize,
    limits: JobLimits,
    state: Mutex<JobsState>,
    /// Wakes one thread for a job, or all threads to stop.
    wake: Condvar,
}

/// How many threads may run jobs of a kind at one time.
#[derive(Debug, Clone, Copy)]
struct JobLimits {
    /// Those that free or give back locks, together.
    freeing: usize,
    giving_back: usize,
}

impl JobsShared {
    /// Locks the state. No job runs under the lock.
    fn lock(&self) -> MutexGuard<'_, JobsState> {
        self.state.lock()
    }
}

#[derive(Default)]
struct JobsState {
    freeing: JobShare,
    giving_back: JobShare,
    reading: JobShare,
    tickets: u64,
    threads: Vec<Thread>,
    /// Set when the pool is stopped: the deadline for the last runs of open jobs.
    stopping: Option<Deadline>,
}

/// The jobs of one kind.
#[derive(Default)]
struct JobShare {
    jobs: BTreeMap<Ticket, Job>,
    /// Number of threads that run one of these jobs.
    busy: usize,
}

impl JobShare {
    fn open(&self) -> usize {
        self.jobs.len() + self.busy
    }

    fn first(&self) -> Option<Ticket> {
        self.jobs.first_key_value().map(|(ticket, _)| *ticket)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobKind {
    /// Frees a lock in doubt.
    Freeing,
    /// Gives back locks that stayed.
    GivingBack,
    /// Reads latches.
    Reading,
}

impl JobsState {
    fn share(&mut self, kind: JobKind) -> &mut JobShare {
        match kind {
            JobKind::Freeing => &mut self.freeing,
            JobKind::GivingBack => &mut self.giving_back,
            JobKind::Reading => &mut self.reading,
        }
    }

    /// Returns the job that a free thread runs next or waits for. If two jobs are due, latches are read first.
    fn next(&self, limits: JobLimits) -> Option<(Ticket, JobKind)> {
        let reading = self.reading.first().map(|ticket| (ticket, JobKind::Reading));
        let has_room = self.freeing.busy + self.giving_back.busy < limits.freeing || self.stopping.is_some();
        let may_give = self.giving_back.busy < limits.giving_back || self.stopping.is_some();
        let freeing = self.freeing.first().map(|ticket| (ticket, JobKind::Freeing));
        let giving_back = self.giving_back.first().map(|ticket| (ticket, JobKind::GivingBack));
        let freeing = freeing.into_iter().chain(giving_back.filter(|_| may_give)).min_by_key(|(it, _)| *it);
        let now = Moment::now();
        match (reading, freeing.filter(|_| has_room)) {
            (Some(reading), Some(freeing)) if reading.0.due > now && freeing.0 < reading.0 => Some(freeing),
            (reading, freeing) => reading.or(freeing),
        }
    }
}

impl Background {
    /// Creates a pool of at most `threads_max` threads. Starts none.
    pub(crate) fn new(threads_max: usize) -> Background {
        let freeing = threads_max.saturating_sub(1).max(1);
        let limits = JobLimits { freeing, giving_back: freeing.div_ceil(2) };
        let shared = JobsShared { threads_max, limits, state: Mutex::default(), wake: Condvar::new() };
        Background { shared: Arc::new(shared), process: process_mark::current() }
    }

    /// Runs `job`, which frees a lock, after the time `after`, and again for as long as it returns [`Next::After`].
    /// The job must limit its own time, because other jobs of its kind wait for the thread. A job that panics is
    /// dropped, and the panic is logged.
    ///
    /// If the pool is stopped, the calling thread runs the job once. Returns `false` if the job will never run.
    pub(crate) fn run(&self, after: Duration, mut job: impl FnMut() -> Next + Send + 'static) -> bool {
        let mut state = self.shared.lock();
        if state.stopping.is_some() {
            drop(state);
            if run_one(&mut job) != Next::Done {
                log::warn!("a lock in doubt stays held until its TTL ends: the manager is closed");
            }
            return true;
        }
        if state.freeing.jobs.len() >= JOBS_MAX {
            log::warn!("{JOBS_MAX} locks in doubt wait to be freed; one more stays held until its TTL ends");
            return false;
        }
        let pushed = self.push(&mut state, JobKind::Freeing, Moment::now().after(after), Box::new(job));
        if let Err(error) = &pushed {
            log::error!("no thread can be started to free a lock, which is held until its TTL ends: {error}");
        }
        pushed.is_ok()
    }

    /// Runs `job`, which reads latches, at `due`. A caller has at most two such jobs open, so their number is not
    /// limited here.
    ///
    /// # Errors
    /// Fails when no thread runs and none can be started, or when the pool is stopped. The job then never runs.
    pub(crate) fn run_at(
        &self,
        due: Moment,
        job: impl FnMut() -> Next + Send + 'static,
    ) -> io::Result<Ticket> {
        self.push_open(JobKind::Reading, due, Box::new(job))
    }

    /// Runs `job`, which gives back locks, at `due`. A caller has at most one such job open for each thread, and one more.
    ///
    /// # Errors
    /// Those of [`run_at`](Background::run_at).
    pub(crate) fn give_back_at(
        &self,
        due: Moment,
        job: impl FnMut() -> Next + Send + 'static,
    ) -> io::Result<Ticket> {
        self.push_open(JobKind::GivingBack, due, Box::new(job))
    }

    fn push_open(&self, kind: JobKind, due: Moment, job: Job) -> io::Result<Ticket> {
        let mut state = self.shared.lock();
        if state.stopping.is_some() {
            return Err(io::Error::other("the background threads have ended"));
        }
        self.push(&mut state, kind, due, job)
    }

    /// Cancels a job of [`run_at`](Background::run_at) or [`give_back_at`](Background::give_back_at) that has not begun to
    /// run.
    pub(crate) fn cancel(&self, ticket: Ticket) {
        let mut state = self.shared.lock();
        let job = state.reading.jobs.remove(&ticket).or_else(|| state.giving_back.jobs.remove(&ticket));
        drop(state);
        // Dropped without the lock, because the job may hold much data.
        drop(job);
    }

    fn push(&self, state: &mut JobsState, kind: JobKind, due: Moment, job: Job) -> io::Result<Ticket> {
        let ticket = Ticket { due, number: state.tickets };
        state.share(kind).jobs.insert(ticket, job);
        let limits = self.shared.limits;
        let freeing = state.freeing.open() + state.giving_back.open().min(limits.giving_back);
        let wanted = state.reading.open() + freeing.min(limits.freeing);
        if state.threads.len() < wanted.min(self.shared.threads_max) {
            let shared = Arc::clone(&self.shared);
            let name = format!("dlm-bg-{}", state.threads.len() + 1);
            match threads::spawn(name, move || work(&shared)) {
                Ok(thread) => state.threads.push(thread),
                Err(error) if state.threads.is_empty() => {
                    state.share(kind).jobs.remove(&ticket);
                    return Err(error);
                }
                Err(error) => log::warn!("a background thread cannot be started, fewer do the work: {error}"),
            }
        }
        state.tickets += 1;
        if state.next(limits).is_some_and(|(first, _)| first == ticket) {
            self.shared.wake.notify_one();
        }
        Ok(ticket)
    }

    /// Stops the pool: runs the open jobs once more and joins the threads. Takes at most two seconds plus the time
    /// of two jobs. Drops the jobs that have not run by then, and accepts no later ones. A second call does nothing.
    pub(crate) fn stop(&self) {
        if self.process != process_mark::current() {
            // In a forked child. Joining a thread that this process does not have panics or hangs.
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        let threads = {
            let mut state = self.shared.lock();
            if state.stopping.is_some() {
                // The threads may still run the jobs, and the call that stopped them waits for that.
                return;
            }
            state.stopping = Some(Deadline::after(LAST_RUN));
            std::mem::take(&mut state.threads)
        };
        self.shared.wake.notify_all();
        for thread in threads {
            // A job may hold the last handle of the manager, and so run in a thread that it stops.
            if !threads::is_current(&thread) && thread.join().is_err() {
                log::error!("a background thread panicked");
            }
        }
        let mut state = self.shared.lock();
        let left = [JobKind::Freeing, JobKind::GivingBack, JobKind::Reading]
            .map(|kind| std::mem::take(&mut state.share(kind).jobs));
        drop(state);
        drop(left);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for JobsState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("freeing", &self.freeing.jobs.len())
            .field("giving_back", &self.giving_back.jobs.len())
            .field("reading", &self.reading.jobs.len())
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

/// Runs in each thread. Sleeps until a job is due or added. Returns when the pool is stopped.
fn work(shared: &JobsShared) {
    let mut state = shared.lock();
    loop {
        let stopping = state.stopping;
        if stopping.is_some_and(Deadline::passed) {
            return;
        }
        let next = state.next(shared.limits);
        let now = Moment::now();
        match next {
            Some((ticket, kind)) if ticket.due <= now || stopping.is_some() => {
                let Some(job) = state.share(kind).jobs.remove(&ticket) else { continue };
                state = run_taken(shared, state, kind, job);
            }
            None if stopping.is_some() => return,
            None => shared.wake.wait(&mut state),
            Some((ticket, _)) => {
                let pause = ticket.due.since(now).min(LONGEST_PARK);
                shared.wake.wait_for(&mut state, pause);
            }
        }
    }
}

fn run_taken<'a>(
    shared: &'a JobsShared,
    mut state: MutexGuard<'a, JobsState>,
    kind: JobKind,
    mut job: Job,
) -> MutexGuard<'a, JobsState> {
    state.share(kind).busy += 1;
    if state.next(shared.limits).is_some() {
        // Another thread must wake for the next job, because this one is busy now.
        shared.wake.notify_one();
    }
    drop(state);
    // Dropped without the lock, because a job may hold the last handle of the manager, which stops the pool.
    let again = match run_one(&mut job) {
        Next::After(pause) => Some((pause, job)),
        Next::Done => {
            drop(job);
            None
        }
    };
    let mut state = shared.lock();
    state.share(kind).busy -= 1;
    match again {
        Some((pause, job)) if state.stopping.is_none() => {
            let ticket = Ticket { due: Moment::now().after(pause), number: state.tickets };
            state.tickets += 1;
            state.share(kind).jobs.insert(ticket, job);
            state
        }
        Some(_) => {
            drop(state);
            drop(again);
            shared.lock()
        }
        None => state,
    }
}

fn run_one(job: &mut dyn FnMut() -> Next) -> Next {
    catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|_| {
        log::error!("a background job panicked and was dropped");
        Next::Done
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::testing::patience;

    fn counting(counter: &Arc<AtomicUsize>, runs: usize) -> impl FnMut() -> Next + Send + 'static {
        let counter = Arc::clone(counter);
        move || {
            if counter.fetch_add(1, Ordering::SeqCst) + 1 < runs {
                Next::After(Duration::ZERO)
            } else {
                Next::Done
            }
        }
    }

    #[track_caller]
    fn until(done: impl FnMut() -> bool) {
        patience::until("the jobs go on", done);
    }

    /// Runs `case`, which stops a pool and returns whether all ran that should. Repeats it if the pool had no time for that:
    /// it gives the last runs two seconds, and a slow machine may take longer to wake a thread.
    #[track_caller]
    fn unless_late(threads: usize, case: impl Fn(&Background) -> bool) {
        let by = Deadline::after(patience::LONG);
        loop {
            let background = Background::new(threads);
            if case(&background) {
                return;
            }
            let late = background.shared.lock().stopping.is_some_and(Deadline::passed);
            assert!(late && !by.passed(), "a job did not run");
        }
    }

    #[test]
    fn a_job_that_panics_does_not_stop_the_others() {
        let background = Background::new(1);
        let counter = Arc::new(AtomicUsize::new(0));
        background.run(Duration::ZERO, || panic!("planted"));
        background.run(Duration::ZERO, counting(&counter, 3));
        until(|| counter.load(Ordering::SeqCst) == 3);
    }

    /// Freeing locks of a server that hangs takes 2 s each, and there may be thousands. One of two threads does it.
    #[test]
    fn freeing_locks_of_a_server_that_hangs_does_not_keep_latches_from_being_read() {
        let background = Background::new(2);
        let (read, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let begun = Arc::new(AtomicUsize::new(0));
        for _ in 0..10 {
            let (stuck, begun) = (Arc::clone(&go_on), Arc::clone(&begun));
            background.run(Duration::ZERO, move || {
                begun.fetch_add(1, Ordering::SeqCst);
                until(|| stuck.load(Ordering::SeqCst) > 0);
                Next::Done
            });
        }
        until(|| begun.load(Ordering::SeqCst) > 0);
        for reads in 1..=3 {
            background.run_at(Moment::now(), counting(&read, 1)).unwrap();
            until(|| read.load(Ordering::SeqCst) == reads);
        }
        assert_eq!(begun.load(Ordering::SeqCst), 1, "one thread is kept for reading");
        go_on.store(1, Ordering::SeqCst);
        until(|| begun.load(Ordering::SeqCst) == 10);
    }

    /// Lets jobs go on when a test ends, also when it fails: otherwise the pool would wait for them.
    struct JobsGoOn(Arc<AtomicUsize>);

    impl Drop for JobsGoOn {
        fn drop(&mut self) {
            self.0.store(1, Ordering::SeqCst);
        }
    }

    /// Those that hang leave a thread to those that free locks, and one to those that read latches.
    #[test]
    fn giving_back_locks_uses_half_of_the_threads_that_free_locks() {
        for (threads, most) in [(2, 1), (3, 1), (4, 2), (5, 2)] {
            let background = Background::new(threads);
            let (begun, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let _opened = JobsGoOn(Arc::clone(&go_on));
            for _ in 0..10 {
                let (stuck, begun) = (Arc::clone(&go_on), Arc::clone(&begun));
                let job = move || {
                    begun.fetch_add(1, Ordering::SeqCst);
                    until(|| stuck.load(Ordering::SeqCst) > 0);
                    Next::Done
                };
                background.give_back_at(Moment::OVER, job).unwrap();
            }
            until(|| begun.load(Ordering::SeqCst) >= most);
            let others = Arc::new(AtomicUsize::new(0));
            background.run_at(Moment::now(), counting(&others, 1)).unwrap();
            if threads > 2 {
                background.run(Duration::ZERO, counting(&others, 1));
            }
            until(|| others.load(Ordering::SeqCst) == if threads > 2 { 2 } else { 1 });
            assert_eq!(begun.load(Ordering::SeqCst), most, "{threads} threads");
            go_on.store(1, Ordering::SeqCst);
            until(|| begun.load(Ordering::SeqCst) == 10);
        }
    }

    #[test]
    fn a_pool_of_one_thread_frees_and_reads() {
        let background = Background::new(1);
        let (freed, read) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        background.run(Duration::ZERO, counting(&freed, 3));
        background.run_at(Moment::now(), counting(&read, 3)).unwrap();
        until(|| freed.load(Ordering::SeqCst) == 3 && read.load(Ordering::SeqCst) == 3);
    }

    #[test]
    fn a_job_that_takes_long_does_not_keep_the_others_waiting() {
        let background = Background::new(3);
        let (counter, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let stuck = Arc::clone(&go_on);
        background.run(Duration::ZERO, move || {
            until(|| stuck.load(Ordering::SeqCst) > 0);
            Next::Done
        });
        assert!((0..100).all(|_| background.run(Duration::ZERO, counting(&counter, 3))));
        // The jobs run three times each. The test ends only if a second thread runs them.
        until(|| counter.load(Ordering::SeqCst) >= 100);
        go_on.store(1, Ordering::SeqCst);
    }

    #[test]
    fn jobs_run_when_they_are_due_and_a_cancelled_one_never() {
        let background = Background::new(1);
        let order = Arc::new(Mutex::new(Vec::new()));
        let (planted, all_planted) = std::sync::mpsc::channel::<()>();
        // Keeps the thread until all the others are there.
        let keeps = move || {
            let _ = all_planted.recv();
            Next::Done
        };
        background.run_at(Moment::OVER, keeps).unwrap();
        let (mut tickets, now) = (Vec::new(), Moment::now());
        for ms in [60, 20, 0, 40] {
            let order = Arc::clone(&order);
            let due = now.after(Duration::from_millis(ms));
            let job = move || {
                order.lock().push((ms, Moment::now() >= due));
                Next::Done
            };
            tickets.push(background.run_at(due, job).unwrap());
        }
        background.cancel(tickets[3]);
        drop(planted);
        until(|| order.lock().len() == 3);
        background.stop();
        assert_eq!(*order.lock(), [(0, true), (20, true), (60, true)]);
        assert!(background.run_at(now, || Next::Done).is_err());
    }

    #[test]
    fn threads_are_started_for_jobs_and_no_more_than_are_allowed() {
        let background = Background::new(3);
        let threads = || background.shared.lock().threads.len();
        assert_eq!(threads(), 0);
        for many in [1, 2, 3, 3, 3] {
            background.run_at(Moment::now().after(Duration::from_secs(3600)), || Next::Done).unwrap();
            assert_eq!(threads(), many);
        }
        let background = Background::new(3);
        for many in [1, 2, 2] {
            background.run(Duration::from_secs(3600), || Next::Done);
            assert_eq!(background.shared.lock().threads.len(), many, "more could not free locks");
        }
        let wait = || background.run(Duration::from_secs(3600), || Next::Done);
        assert!((3..JOBS_MAX).all(|_| wait()) && !wait(), "so many and no more");
    }

    #[test]
    fn stopping_does_not_wait_for_all_that_is_due() {
        let background = Background::new(2);
        let counter = Arc::new(AtomicUsize::new(0));
        let (began, pause) = (Moment::now(), LAST_RUN / 8);
        for _ in 0..200 {
            let counter = Arc::clone(&counter);
            background.run(Duration::ZERO, move || {
                counter.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(pause);
                Next::After(Duration::ZERO)
            });
        }
        until(|| counter.load(Ordering::SeqCst) > 0);
        background.stop();
        let ran = counter.load(Ordering::SeqCst);
        let end = background.shared.lock().stopping.unwrap().moment();
        let most = 2 * (end.since(began).as_nanos() / pause.as_nanos() + 1);
        assert!(ran as u128 <= most, "{ran} jobs ran before the threads ended");
    }

    /// Two threads may close one manager at the same time.
    #[test]
    fn a_second_stop_drops_no_job_that_the_first_one_waits_for() {
        unless_late(1, |background| {
            let counter = Arc::new(AtomicUsize::new(0));
            let (let_go, may_go) = std::sync::mpsc::channel::<()>();
            background.run(Duration::ZERO, move || {
                let _ = may_go.recv();
                Next::Done
            });
            background.run(Duration::from_secs(3600), counting(&counter, 1));
            std::thread::scope(|scope| {
                scope.spawn(|| background.stop());
                until(|| background.shared.lock().stopping.is_some());
                background.stop();
                drop(let_go);
            });
            counter.load(Ordering::SeqCst) == 1
        });
    }

    #[test]
    fn stopping_runs_what_is_open_once_more_and_what_comes_later_once() {
        unless_late(2, |background| {
            let counter = Arc::new(AtomicUsize::new(0));
            background.run(Duration::from_secs(3600), counting(&counter, 100));
            assert_eq!(Arc::strong_count(&background.shared), 2, "the thread holds one");
            background.stop();
            assert_eq!(Arc::strong_count(&background.shared), 1, "the thread was not waited for");
            let once = counter.load(Ordering::SeqCst);
            assert!(once <= 1, "it ran {once} times");
            background.run(Duration::ZERO, counting(&counter, 100));
            assert_eq!(counter.load(Ordering::SeqCst), once + 1, "run once by the caller");
            background.stop();
            assert_eq!(counter.load(Ordering::SeqCst), once + 1);
            once == 1
        });
    }
}
