//! One process of the demo: takes a lock, holds it for some milliseconds, gives it back, and tells.

use std::io::{BufRead as _, Read as _};
use std::time::Duration;

use dlm::{AcquireOptions, CancelToken, Code, Deadline, Fence, Lease, Level, Lock, LockManager, Moment};

use super::start::{self, START_MAX};
use super::words::Word;
use crate::cli::args::{DemoWorker, Global};
use crate::cli::exit::{CommandFailure, CommandOutcome};
use crate::cli::{open, output};

/// Short, so that whoever kills a worker sees the next one get its lock.
pub(crate) const TTL: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_millis(10);
const POLL: Duration = Duration::from_millis(20);
/// Time until a worker comes to the start, so that one can watch.
const ARRIVAL_MS: std::ops::Range<u64> = 50..600;
/// Time between giving one lock back and asking for the next, and time a lock is held.
const PAUSE_MS: std::ops::Range<u64> = 0..15;
const HOLD_MS: std::ops::Range<u64> = 10..80;
/// So many failures in a row, so long apart, are too many.
const TROUBLES_MAX: u32 = 5;
const TROUBLE_PAUSE: Duration = Duration::from_millis(200);

/// `dlm __demo-worker`. Ends when its time is over, its rounds are done, or standard input ends.
pub(crate) fn work(global: &Global, args: &DemoWorker) -> CommandOutcome {
    let worked = Worker::new(global, args).and_then(|mut worker| worker.work());
    if let Err(failure) = worked {
        say(&Word::Failed(failure.status(), failure.line().to_owned()));
        // Told to the demo, which tells the user.
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

/// What a lock is called; level XDC, so that no data centre has to be named.
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

    /// Waits until all may begin; `false` when the demo has ended before.
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

    /// One lock taken and given back; whether it was granted.
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
            // It was held for longer than it lasts, and told so.
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

/// Has the lock for a while, and tells of it. Only what lies between here and the lease's end counts.
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

/// A demo that has gone does not hear it, and ends this process through standard input.
fn say(word: &Word) {
    let _ = output::line(&word.to_string());
}

/// Waits for the demo's line that says go.
fn started() -> bool {
    let mut line = String::new();
    std::io::stdin().lock().take(16).read_line(&mut line).is_ok_and(|read| read > 0)
}

/// The thread `dlm-demo-input` ends with the input, or with the process.
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
        .map_err(|error| CommandFailure::internal(format!("no thread to watch the input: {error}")))
}
