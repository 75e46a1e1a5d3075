//! A worker process of the demo: acquires a lock, holds it for some milliseconds, releases it, and reports that.

use std::io::{BufRead as _, Read as _};
use std::time::Duration;

use dlm::{AcquireOptions, CancelToken, Code, Deadline, Fence, Lease, Level, Lock, LockManager, Moment};

use super::start::{self, START_MAX};
use super::words::Word;
use crate::cli::args::{DemoWorker, Global};
use crate::cli::exit::{CommandFailure, CommandOutcome};
use crate::cli::{open, output};

/// Short: a user who kills a worker sees how the next one gets the lock.
pub(crate) const TTL: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(10);
const POLL: Duration = Duration::from_millis(20);
/// Pause before a worker arrives at the start. It lets the user watch the progress bar.
const ARRIVAL_MS: std::ops::Range<u64> = 50..600;
/// Pause between a release and the next acquire.
const PAUSE_MS: std::ops::Range<u64> = 0..15;
/// Time for which a lock is held.
const HOLD_MS: std::ops::Range<u64> = 10..80;
/// Failures in a row that a worker tolerates, and the pause after each. One more ends the worker.
const TROUBLES_MAX: u32 = 5;
const TROUBLE_PAUSE: Duration = Duration::from_millis(200);

/// `dlm __demo-worker`. Ends when its time is over, its rounds are done, or standard input is closed.
pub(crate) fn work(global: &Global, args: &DemoWorker) -> CommandOutcome {
    let worked = Worker::new(global, args).and_then(|mut worker| worker.work());
    if let Err(failure) = worked {
        say(&Word::Failed(failure.status(), failure.line().to_owned()));
        // The demo reports the message to the user.
        return Ok(failure.status());
    }
    Ok(0)
}

struct Worker {
    manager: LockManager,
    letter: char,
    /// The latch at which all meet.
    start: Option<String>,
    locks: Vec<Lock>,
    rounds: Option<u32>,
    longest: Duration,
    stop: CancelToken,
    troubles: u32,
}

/// Returns the name of a lock. The locks have level XDC, which needs no farm id.
fn name_of(lock: u8) -> String {
    format!("demo-{}", lock + 1)
}

impl Worker {
    fn new(global: &Global, args: &DemoWorker) -> Result<Worker, CommandFailure> {
        let builder = open::builder(global, &format!("demo, worker {}", args.letter));
        let manager = builder.ttl(TTL).retry(RETRY).poll(POLL).open()?;
        let locks = (0..args.locks).map(|lock| manager.lock(&name_of(lock), Level::Xdc));
        Ok(Worker {
            locks: locks.collect::<dlm::Result<_>>()?,
            manager,
            letter: args.letter,
            start: args.start.clone(),
            rounds: args.rounds,
            longest: Duration::from_secs(args.seconds.into()),
            stop: CancelToken::new(),
            troubles: 0,
        })
    }

    fn work(&mut self) -> Result<(), CommandFailure> {
        if !self.begin()? {
            return Ok(());
        }
        let by = Deadline::after(self.longest);
        let mut done = 0;
        while !by.passed() && !self.stop.is_cancelled() && self.rounds.is_none_or(|rounds| done < rounds) {
            done += u32::from(self.round(by)?);
        }
        Ok(())
    }

    /// Waits until all may begin. `false` if the demo has ended before.
    fn begin(&self) -> Result<bool, CommandFailure> {
        let Some(name) = &self.start else {
            say(&Word::Ready);
            let started = started();
            return cancel_at_end_of_input(&self.stop).map(|()| started);
        };
        cancel_at_end_of_input(&self.stop)?;
        pause(ARRIVAL_MS);
        start::meet(&self.manager, name, self.letter, START_MAX, &self.stop)
    }

    /// Acquires and releases one lock. Returns whether it was granted.
    fn round(&mut self, by: Deadline) -> Result<bool, CommandFailure> {
        pause(PAUSE_MS);
        let lock = fastrand::usize(..self.locks.len());
        let asked = Moment::now();
        let terms = AcquireOptions::new().wait(by.remaining()).cancel(&self.stop);
        let granted = match self.locks[lock].acquire_with(&terms) {
            Ok(lease) => {
                hold(lock as u8, asked, &lease);
                lease.release().map(|_| true)
            }
            Err(error) if matches!(error.code(), Code::LockUnavailable | Code::Cancelled) => Ok(false),
            Err(error) => Err(error),
        };
        match granted {
            Ok(granted) => {
                self.troubles = 0;
                Ok(granted)
            }
            // The lease ended while the lock was held. `hold` has reported that.
            Err(error) if error.code() == Code::LeaseLost => Ok(true),
            Err(error) if error.is_retryable() && self.troubles < TROUBLES_MAX => {
                self.troubles += 1;
                say(&Word::Trouble(error.chain()));
                std::thread::sleep(TROUBLE_PAUSE);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Holds the lock for a while, and reports that. The hold counts from now to the end of the lease.
fn hold(lock: u8, asked: Moment, lease: &Lease) {
    let granted = Moment::now();
    let ends = lease.ends();
    if granted >= ends {
        return;
    }
    let fence = lease.fence().map(|Fence(number)| number);
    say(&Word::Got { lock, fence, asked, granted, ends });
    pause(HOLD_MS);
    let at = Moment::now();
    say(&Word::Put { at, lost: at >= ends });
}

fn pause(ms: std::ops::Range<u64>) {
    std::thread::sleep(Duration::from_millis(fastrand::u64(ms)));
}

/// Sends a message to the demo. Ignores errors: if the demo has ended, standard input is closed and the worker ends.
fn say(word: &Word) {
    let _ = output::line(&word.to_string());
}

/// Waits for the line `go` from the demo. `false` if standard input is closed instead.
fn started() -> bool {
    let mut line = String::new();
    std::io::stdin().lock().take(16).read_line(&mut line).is_ok_and(|read| read > 0)
}

/// Starts the thread `dlm-demo-input`, which cancels `stop` when standard input is closed.
fn cancel_at_end_of_input(stop: &CancelToken) -> Result<(), CommandFailure> {
    let stop = stop.clone();
    let watch = move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        stop.cancel();
    };
    std::thread::Builder::new()
        .name("dlm-demo-input".into())
        .spawn(watch)
        .map(drop)
        .map_err(|error| CommandFailure::internal(format!("a thread cannot be started: {error}")))
}
