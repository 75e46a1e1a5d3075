//! The start: a latch at which the workers meet. No worker contends before all have arrived.

use std::time::Duration;

use dlm::{AwaitOptions, CancelToken, Code, Latch, LatchKind, LatchWatch, Level, LockManager, Moment};

use super::words::letter;
use crate::cli::exit::CommandFailure;
use crate::cli::open;

/// Longest time until all workers have arrived. After it, the demo kills the workers.
pub(crate) const START_MAX: Duration = Duration::from_secs(20);
/// TTL of the latch: longer than the start, but short, because nobody deletes the latch.
const TTL: Duration = Duration::from_secs(120);

/// The start latch in the demo's own process.
#[derive(Debug)]
pub(crate) struct Start {
    latch: Latch,
    watch: LatchWatch,
    began: Moment,
    /// Whether [`opened`](Start::opened) has returned its line.
    is_announced: bool,
}

fn handle(manager: &LockManager, name: &str) -> dlm::Result<Latch> {
    manager.latch(name, Level::Dc, LatchKind::CountDown)?.with_ttl(TTL)
}

impl Start {
    /// Creates the latch. `None` if the store keeps no latches, or if no data centre is named. The demo then tells
    /// the workers when to begin.
    pub(crate) fn create(manager: &LockManager, workers: u8) -> Result<Option<Start>, CommandFailure> {
        let name = format!("demo-start-{}-{}", std::process::id(), open::wall_ms());
        let latch = match handle(manager, &name) {
            Err(error) if error.code() == Code::InvalidArgument => return Ok(None),
            latch => latch?,
        };
        let names: Vec<_> = (0..workers).map(|worker| letter(worker).to_string()).collect();
        match latch.create_for(&names) {
            Err(error) if error.code() == Code::InvalidArgument => return Ok(None),
            made => made?,
        }
        let watch = latch.watch()?;
        Ok(Some(Start { latch, watch, began: Moment::now(), is_announced: false }))
    }

    pub(crate) fn name(&self) -> &str {
        self.latch.name().id()
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.watch.is_open(), Ok(true))
    }

    /// Counts down for a worker that has ended. Otherwise the other workers would wait for it.
    pub(crate) fn excuse(&self, worker: u8) {
        if let Err(error) = self.latch.count_down_as(&letter(worker).to_string()) {
            log::warn!("{}", error.chain());
        }
    }

    /// Returns how many workers have arrived, and a message for the progress bar.
    pub(crate) fn progress(&self) -> (u64, String) {
        match self.latch.roster() {
            Ok(roster) => {
                let (here, missing) = (roster.arrived.len(), roster.pending.join(" "));
                (here as u64, format!("at the start, waiting for {missing}"))
            }
            Err(error) => (0, error.to_string()),
        }
    }

    /// Returns a line about the open latch on the first call, `None` afterwards.
    pub(crate) fn opened(&mut self) -> Option<String> {
        if std::mem::replace(&mut self.is_announced, true) {
            return None;
        }
        let took = Moment::now().since(self.began).as_millis();
        let there = self.latch.roster().map_or_else(|_| "all".into(), |roster| roster.arrived.join(" "));
        Some(format!("{there} met at the latch {} within {took} ms and begin", self.name()))
    }
}

/// Counts down for `worker`, and waits for the others. Runs in the worker's process. `false` if `stop` ended the wait
/// or `longest` has passed.
pub(crate) fn meet(
    manager: &LockManager,
    name: &str,
    worker: char,
    longest: Duration,
    stop: &CancelToken,
) -> Result<bool, CommandFailure> {
    let latch = handle(manager, name)?;
    latch.count_down_as(&worker.to_string())?;
    match latch.await_open_with(&AwaitOptions::new().wait(longest).cancel(stop)) {
        Err(error) if error.code() == Code::Cancelled => Ok(false),
        open => Ok(open?),
    }
}
