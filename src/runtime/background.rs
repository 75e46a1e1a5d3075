//! The library's background threads. They run jobs some time after a call has returned.
//!
//! | lane | its jobs | threads at most | open jobs at most |
//! |---|---|---|---|
//! | freed locks | free a lock: after a request in doubt, or at the end of its minimum hold | all but one | 4,096 that wait |
//! | lingering locks | give back locks that stayed | half of those, rounded up | one for each thread, and one more |
//! | latches | read the latches that are due | all | two for each latch poller |
//! | intents | announce again that writers wait for readers | one | one for each manager |
//!
//! A fixed number of threads runs any number of jobs, in the order in which they are due. Threads are started when
//! there are jobs for them, and joined by `stop`. A program without jobs has no such threads.
//!
//! Freed and lingering locks and intents together leave one thread to latches. A server that hangs blocks a job for seconds, and
//! meanwhile the last thread reads latches of other servers. With a pool of one thread, that thread runs all jobs. A job
//! never holds the manager, because the end of the manager stops the threads.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::runtime::process::threads::{SharedWithThreads, WorkerThread};
use crate::runtime::sync::{Condvar, Mutex, MutexGuard};
use crate::runtime::time::{Deadline, LONGEST_PARK, Moment};

/// Time in which a stopping pool runs the open jobs once more.
const LAST_RUN: Duration = Duration::from_secs(2);

/// Limit of locks that wait to be freed. Further locks, as in a long outage with many callers, stay held
/// until their TTL ends.
const FREED_MAX: usize = 4096;

/// Result of one run of a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Run the job again after this time.
    After(Duration),
    /// The job is done.
    Done,
}

type Job = Box<dyn FnMut() -> Next + Send>;

/// What a job touches. See the table at the top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobLane {
    FreedLocks,
    LingeringLocks,
    Latches,
    Intents,
}

impl JobLane {
    const ALL: [JobLane; 4] =
        [JobLane::FreedLocks, JobLane::LingeringLocks, JobLane::Latches, JobLane::Intents];
}

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
    shared: SharedWithThreads<JobsShared>,
}

#[derive(Debug)]
struct JobsShared {
    threads_max: usize,
    state: Mutex<JobsState>,
    /// Wakes one thread for a job, or all threads to stop.
    wake: Condvar,
}

impl JobsShared {
    /// Locks the state. No job runs under the lock.
    fn lock(&self) -> MutexGuard<'_, JobsState> {
        self.state.lock()
    }
}

struct JobsState {
    /// How many threads may work for locks at one time.
    for_locks_max: usize,
    lanes: [LaneJobs; JobLane::ALL.len()],
    tickets: u64,
    threads: Vec<WorkerThread>,
    /// Set when the pool is stopped: the deadline for the last runs of open jobs.
    stopping: Option<Deadline>,
}

#[derive(Default)]
struct LaneJobs {
    jobs: BTreeMap<Ticket, Job>,
    /// Number of threads that run one of these jobs.
    busy: usize,
}

impl LaneJobs {
    fn open(&self) -> usize {
        self.jobs.len() + self.busy
    }
}

impl JobsState {
    fn lane(&mut self, lane: JobLane) -> &mut LaneJobs {
        &mut self.lanes[lane as usize]
    }

    /// Returns how many threads may run jobs for lingering locks at one time.
    fn lingering_max(&self) -> usize {
        self.for_locks_max.div_ceil(2)
    }

    /// Returns whether another thread may run a job of the lane.
    fn has_room(&self, lane: JobLane) -> bool {
        let [freed, lingering, _, intents] = self.lanes.each_ref().map(|lane| lane.busy);
        let has_room_for_locks = freed + lingering + intents < self.for_locks_max;
        self.stopping.is_some()
            || match lane {
                JobLane::FreedLocks => has_room_for_locks,
                JobLane::LingeringLocks => has_room_for_locks && lingering < self.lingering_max(),
                JobLane::Latches => true,
                JobLane::Intents => has_room_for_locks && intents == 0,
            }
    }

    /// Returns the job that a free thread runs next or waits for. If two jobs are due, latches are read first.
    fn next(&self) -> Option<(Ticket, JobLane)> {
        let now = Moment::now();
        let firsts = JobLane::ALL.into_iter().filter(|lane| self.has_room(*lane)).filter_map(|lane| {
            self.lanes[lane as usize].jobs.first_key_value().map(|(ticket, _)| (*ticket, lane))
        });
        firsts.min_by_key(|(ticket, lane)| (*lane != JobLane::Latches || ticket.due > now, *ticket))
    }

    /// Returns how many threads could run an open job at one time.
    fn wanted(&self) -> usize {
        let [freed, lingering, latches, intents] = self.lanes.each_ref().map(LaneJobs::open);
        latches + (freed + lingering.min(self.lingering_max()) + intents.min(1)).min(self.for_locks_max)
    }
}

impl Background {
    /// Creates a pool of at most `threads_max` threads. Starts none.
    pub(crate) fn new(threads_max: usize) -> Background {
        let state = JobsState {
            for_locks_max: threads_max.saturating_sub(1).max(1),
            lanes: Default::default(),
            tickets: 0,
            threads: Vec::new(),
            stopping: None,
        };
        let shared = JobsShared { threads_max, state: Mutex::new(state), wake: Condvar::new() };
        Background { shared: SharedWithThreads::new(shared) }
    }

    /// Runs `job`, which frees a lock, after the time `after`, and again for as long as it returns
    /// [`Next::After`]. The job must limit its own time, because other jobs wait for the thread. A job that panics is
    /// dropped, and the panic is logged.
    ///
    /// If the pool is stopped, the calling thread runs the job once. Returns `false` if the job will never run.
    pub(crate) fn free(&self, after: Duration, mut job: impl FnMut() -> Next + Send + 'static) -> bool {
        let mut state = self.shared.lock();
        if state.stopping.is_some() {
            drop(state);
            if run_one(&mut job) != Next::Done {
                log::warn!("a lock stays held until its TTL ends: the manager is closed");
            }
            return true;
        }
        if state.lane(JobLane::FreedLocks).jobs.len() >= FREED_MAX {
            log::warn!("{FREED_MAX} locks wait to be freed; one more stays held until its TTL ends");
            return false;
        }
        let due = Moment::now().after(after);
        let pushed = self.push(&mut state, JobLane::FreedLocks, due, Box::new(job));
        if let Err(error) = &pushed {
            log::error!("no thread can be started to free a lock, which is held until its TTL ends: {error}");
        }
        pushed.is_ok()
    }

    /// Runs `job` at `due`. Its caller limits how many are open, see the table at the top.
    ///
    /// # Errors
    /// Fails when no thread runs and none can be started, or when the pool is stopped. The job then never runs.
    pub(crate) fn run_at(
        &self,
        lane: JobLane,
        due: Moment,
        job: impl FnMut() -> Next + Send + 'static,
    ) -> io::Result<Ticket> {
        let mut state = self.shared.lock();
        if state.stopping.is_some() {
            return Err(io::Error::other("the background threads have ended"));
        }
        self.push(&mut state, lane, due, Box::new(job))
    }

    /// Cancels a job of [`run_at`](Background::run_at) that has not begun to run.
    pub(crate) fn cancel(&self, ticket: Ticket) {
        let mut state = self.shared.lock();
        let job = state.lanes.iter_mut().find_map(|lane| lane.jobs.remove(&ticket));
        drop(state);
        // Dropped without the lock, because the job may hold much data.
        drop(job);
    }

    fn push(&self, state: &mut JobsState, lane: JobLane, due: Moment, job: Job) -> io::Result<Ticket> {
        let ticket = Ticket { due, number: state.tickets };
        state.lane(lane).jobs.insert(ticket, job);
        if state.threads.len() < state.wanted().min(self.shared.threads_max) {
            let shared = Arc::clone(&self.shared);
            let name = format!("dlm-bg-{}", state.threads.len() + 1);
            match WorkerThread::start(name, "works in the background", move || work(&shared)) {
                Ok(thread) => state.threads.push(thread),
                Err(error) if state.threads.is_empty() => {
                    state.lane(lane).jobs.remove(&ticket);
                    return Err(error);
                }
                Err(error) => log::warn!("a background thread cannot be started, fewer do the work: {error}"),
            }
        }
        state.tickets += 1;
        if state.next().is_some_and(|(first, _)| first == ticket) {
            self.shared.wake.notify_one();
        }
        Ok(ticket)
    }

    /// Stops the pool: runs the open jobs once more and joins the threads. Takes at most two seconds plus the time
    /// of two jobs. Drops the jobs that have not run by then, and accepts no later ones. A second call does nothing.
    pub(crate) fn stop(&self) {
        let Some(shared) = self.shared.in_its_process() else { return };
        let threads = {
            let mut state = shared.lock();
            if state.stopping.is_some() {
                // The threads may still run the jobs, and the call that stopped them waits for that.
                return;
            }
            state.stopping = Some(Deadline::after(LAST_RUN));
            std::mem::take(&mut state.threads)
        };
        shared.wake.notify_all();
        threads.into_iter().for_each(WorkerThread::join);
        let left = shared.lock().lanes.each_mut().map(|lane| std::mem::take(&mut lane.jobs));
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
        let open = JobLane::ALL.map(|lane| (lane, self.lanes[lane as usize].open()));
        f.debug_struct("State")
            .field("open", &open)
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
        let next = state.next();
        let now = Moment::now();
        match next {
            Some((ticket, lane)) if ticket.due <= now || stopping.is_some() => {
                let Some(job) = state.lane(lane).jobs.remove(&ticket) else { continue };
                state = run_taken(shared, state, lane, job);
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
    lane: JobLane,
    mut job: Job,
) -> MutexGuard<'a, JobsState> {
    state.lane(lane).busy += 1;
    if state.next().is_some() {
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
    state.lane(lane).busy -= 1;
    match again {
        Some((pause, job)) if state.stopping.is_none() => {
            let ticket = Ticket { due: Moment::now().after(pause), number: state.tickets };
            state.tickets += 1;
            state.lane(lane).jobs.insert(ticket, job);
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
        background.free(Duration::ZERO, || panic!("planted"));
        background.free(Duration::ZERO, counting(&counter, 3));
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
            background.free(Duration::ZERO, move || {
                begun.fetch_add(1, Ordering::SeqCst);
                until(|| stuck.load(Ordering::SeqCst) > 0);
                Next::Done
            });
        }
        until(|| begun.load(Ordering::SeqCst) > 0);
        for reads in 1..=3 {
            background.run_at(JobLane::Latches, Moment::now(), counting(&read, 1)).unwrap();
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
                background.run_at(JobLane::LingeringLocks, Moment::OVER, job).unwrap();
            }
            until(|| begun.load(Ordering::SeqCst) >= most);
            let others = Arc::new(AtomicUsize::new(0));
            background.run_at(JobLane::Latches, Moment::now(), counting(&others, 1)).unwrap();
            if threads > 2 {
                background.free(Duration::ZERO, counting(&others, 1));
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
        background.free(Duration::ZERO, counting(&freed, 3));
        background.run_at(JobLane::Latches, Moment::now(), counting(&read, 3)).unwrap();
        until(|| freed.load(Ordering::SeqCst) == 3 && read.load(Ordering::SeqCst) == 3);
    }

    #[test]
    fn a_job_that_takes_long_does_not_keep_the_others_waiting() {
        let background = Background::new(3);
        let (counter, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let stuck = Arc::clone(&go_on);
        background.free(Duration::ZERO, move || {
            until(|| stuck.load(Ordering::SeqCst) > 0);
            Next::Done
        });
        assert!((0..100).all(|_| background.free(Duration::ZERO, counting(&counter, 3))));
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
        background.run_at(JobLane::Latches, Moment::OVER, keeps).unwrap();
        let (mut tickets, now) = (Vec::new(), Moment::now());
        for ms in [60, 20, 0, 40] {
            let order = Arc::clone(&order);
            let due = now.after(Duration::from_millis(ms));
            let job = move || {
                order.lock().push((ms, Moment::now() >= due));
                Next::Done
            };
            tickets.push(background.run_at(JobLane::Latches, due, job).unwrap());
        }
        background.cancel(tickets[3]);
        drop(planted);
        until(|| order.lock().len() == 3);
        background.stop();
        assert_eq!(*order.lock(), [(0, true), (20, true), (60, true)]);
        assert!(background.run_at(JobLane::Latches, now, || Next::Done).is_err());
    }

    #[test]
    fn threads_are_started_for_jobs_and_no_more_than_are_allowed() {
        let background = Background::new(3);
        let threads = || background.shared.lock().threads.len();
        assert_eq!(threads(), 0);
        for many in [1, 2, 3, 3, 3] {
            background
                .run_at(JobLane::Latches, Moment::now().after(Duration::from_secs(3600)), || Next::Done)
                .unwrap();
            assert_eq!(threads(), many);
        }
        let background = Background::new(3);
        for many in [1, 2, 2] {
            background.free(Duration::from_secs(3600), || Next::Done);
            assert_eq!(background.shared.lock().threads.len(), many, "more could not free locks");
        }
        let wait = || background.free(Duration::from_secs(3600), || Next::Done);
        assert!((3..FREED_MAX).all(|_| wait()) && !wait(), "so many and no more");
    }

    #[test]
    fn stopping_does_not_wait_for_all_that_is_due() {
        let background = Background::new(2);
        let counter = Arc::new(AtomicUsize::new(0));
        let (began, pause) = (Moment::now(), LAST_RUN / 8);
        for _ in 0..200 {
            let counter = Arc::clone(&counter);
            background.free(Duration::ZERO, move || {
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
            background.free(Duration::ZERO, move || {
                let _ = may_go.recv();
                Next::Done
            });
            background.free(Duration::from_secs(3600), counting(&counter, 1));
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
            background.free(Duration::from_secs(3600), counting(&counter, 100));
            assert_eq!(Arc::strong_count(&background.shared), 2, "the thread holds one");
            background.stop();
            assert_eq!(Arc::strong_count(&background.shared), 1, "the thread was not waited for");
            let once = counter.load(Ordering::SeqCst);
            assert!(once <= 1, "it ran {once} times");
            background.free(Duration::ZERO, counting(&counter, 100));
            assert_eq!(counter.load(Ordering::SeqCst), once + 1, "run once by the caller");
            background.stop();
            assert_eq!(counter.load(Ordering::SeqCst), once + 1);
            once == 1
        });
    }
}
