//! The library's own thread: jobs that must be done some time after a call has returned.
//!
//! Today that is one kind: freeing locks that a request in doubt may have taken. The thread is started
//! by the first job, so that a program without doubts has none, and joined by `stop`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;

use crate::time::{Deadline, Moment};

/// Jobs still open when the watcher is stopped are run once more, as far as this time allows.
const LAST_RUN: Duration = Duration::from_secs(2);

/// Jobs at one time. Beyond that, as in a long outage with many callers, locks are left to their TTL.
const JOBS_MAX: usize = 4096;

/// What a job wants after it ran.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Run it again after this time.
    After(Duration),
    /// It is done.
    Done,
}

type Job = Box<dyn FnMut() -> Next + Send>;

#[derive(Debug, Default)]
pub(crate) struct Watcher {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Running {
        jobs: Sender<Entry>,
        thread: JoinHandle<()>,
        /// The process the thread lives in: a forked child has the handle and no thread.
        pid: u32,
    },
    Stopped,
}

struct Entry {
    due: Moment,
    job: Job,
}

impl Watcher {
    /// Has `job` run `after` that time, and again as often as it asks for it. The job must bound its
    /// own time: the others wait for it. A job that panics is dropped and reported to the log.
    pub(crate) fn run(&self, after: Duration, job: impl FnMut() -> Next + Send + 'static) {
        let mut entry = Entry { due: Moment::now().after(after), job: Box::new(job) };
        let mut state = self.state.lock();
        if let State::Idle = *state {
            let (jobs, inbox) = bounded(JOBS_MAX);
            match std::thread::Builder::new().name("dlm-watcher".into()).spawn(move || work(&inbox)) {
                Ok(thread) => *state = State::Running { jobs, thread, pid: std::process::id() },
                Err(error) => log::error!("no thread for background work, which is left undone: {error}"),
            }
        }
        if let State::Running { jobs, .. } = &*state {
            // The thread ends only after this sender is gone.
            if jobs.try_send(entry).is_err() {
                log::warn!("{JOBS_MAX} locks in doubt wait to be freed; one more is left to its TTL");
            }
        } else {
            // Stopped, by a close that overtook the caller: one try, in the caller's time.
            drop(state);
            if run_one(&mut entry) != Next::Done {
                log::warn!("a lock in doubt is left to its TTL: the manager is closed");
            }
        }
    }

    /// Ends the thread: open jobs run once more, within two seconds and the time of two jobs, and no job
    /// is taken on afterwards.
    pub(crate) fn stop(&self) {
        let state = std::mem::replace(&mut *self.state.lock(), State::Stopped);
        let State::Running { jobs, thread, pid } = state else { return };
        if pid != std::process::id() {
            // Joining a thread that this process never had panics or hangs.
            std::mem::forget((jobs, thread));
            return;
        }
        drop(jobs);
        // A job may own the last handle of the manager that stops this watcher.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            log::error!("the watcher thread panicked");
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("due", &self.due).finish_non_exhaustive()
    }
}

/// The thread: sleeps until a job is due or comes in, and ends when the watcher lets go of the channel.
fn work(inbox: &Receiver<Entry>) {
    // Jobs are few: one for each lock in doubt. A list is searched faster than a heap is kept.
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let now = Moment::now();
        let next = entries.iter().map(|entry| entry.due).min();
        let pause = next.map_or(Duration::from_secs(3600), |due| due.since(now));
        match inbox.recv_timeout(pause) {
            Ok(entry) if entries.len() < JOBS_MAX => entries.push(entry),
            Ok(_) => log::warn!("{JOBS_MAX} locks in doubt wait to be freed; one more is left to its TTL"),
            Err(RecvTimeoutError::Timeout) => run_next(&mut entries),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let last = Deadline::after(LAST_RUN);
    for mut entry in entries {
        if last.passed() {
            break;
        }
        run_one(&mut entry);
    }
}

/// Runs the job that is due longest: one, so that the end of the watcher is noticed between two.
fn run_next(entries: &mut Vec<Entry>) {
    let next = (0..entries.len()).min_by_key(|&at| entries[at].due);
    let Some(at) = next.filter(|&at| entries[at].due <= Moment::now()) else { return };
    match run_one(&mut entries[at]) {
        Next::After(pause) => entries[at].due = Moment::now().after(pause),
        Next::Done => drop(entries.swap_remove(at)),
    }
}

fn run_one(entry: &mut Entry) -> Next {
    catch_unwind(AssertUnwindSafe(|| (entry.job)())).unwrap_or_else(|_| {
        log::error!("a background job panicked and is dropped");
        Next::Done
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

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

    fn until(mut done: impl FnMut() -> bool) {
        let deadline = Deadline::after(Duration::from_secs(30));
        while !done() {
            assert!(!deadline.passed());
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_job_that_panics_does_not_stop_the_others() {
        let watcher = Watcher::default();
        let counter = Arc::new(AtomicUsize::new(0));
        watcher.run(Duration::ZERO, || panic!("planted"));
        watcher.run(Duration::ZERO, counting(&counter, 3));
        until(|| counter.load(Ordering::SeqCst) == 3);
    }

    #[test]
    fn stopping_does_not_wait_for_all_that_is_due() {
        let watcher = Watcher::default();
        let counter = Arc::new(AtomicUsize::new(0));
        for _ in 0..50 {
            let counter = Arc::clone(&counter);
            watcher.run(Duration::ZERO, move || {
                counter.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(LAST_RUN / 8);
                Next::After(Duration::ZERO)
            });
        }
        until(|| counter.load(Ordering::SeqCst) > 0);
        watcher.stop();
        let ran = counter.load(Ordering::SeqCst);
        assert!(ran < 20, "{ran} jobs ran before the watcher ended");
    }

    #[test]
    fn stopping_runs_what_is_open_once_more_and_what_comes_later_once() {
        let watcher = Watcher::default();
        let counter = Arc::new(AtomicUsize::new(0));
        watcher.run(Duration::from_secs(3600), counting(&counter, 100));
        watcher.stop();
        assert_eq!(counter.load(Ordering::SeqCst), 1);
        watcher.run(Duration::ZERO, counting(&counter, 100));
        assert_eq!(counter.load(Ordering::SeqCst), 2, "run once by the caller");
        watcher.stop();
        assert_eq!(counter.load(Ordering::SeqCst), 2);
    }
}
