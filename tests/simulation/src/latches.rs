//! The latches of a simulated server: those of the library's store in memory, behind the network.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dlm::store::{LatchStore, MemoryStore, NewLatch, Roster, Step, Stepped};
use dlm::{Code, Deadline, Error, LatchName, Level, Result, simulation};
use parking_lot::Mutex;

use crate::engine::engine;
use crate::network::Network;

/// Pause before a request is sent again.
const PAUSE: Duration = Duration::from_millis(5);

/// A [`LatchStore`] on a simulated server, which all processes share.
#[derive(Debug)]
pub struct SimulatedLatches {
    network: Arc<Network>,
    server: Arc<LatchServer>,
    /// Requests have numbers, and a request whose reply was lost is sent again. Otherwise it is in doubt.
    repeats: bool,
}

#[derive(Debug, Default)]
struct LatchServer {
    latches: MemoryStore,
    /// The answers to all requests that changed something, by their numbers.
    answers: Mutex<HashMap<u64, Answer>>,
}

/// An answer that can be returned again. An error is `NotFound`: the server has no other.
type Answer = std::result::Result<Stepped, ()>;

impl LatchServer {
    fn once(&self, number: u64, change: impl Fn(&MemoryStore) -> Answer) -> Answer {
        if let Some(answer) = self.answers.lock().get(&number) {
            return *answer;
        }
        let answer = change(&self.latches);
        self.answers.lock().insert(number, answer);
        answer
    }
}

impl SimulatedLatches {
    pub(crate) fn new(network: &Arc<Network>, repeats: bool) -> SimulatedLatches {
        SimulatedLatches { network: Arc::clone(network), server: Arc::default(), repeats }
    }

    /// Asks the server for a change, which it makes at most once.
    fn change(
        &self,
        by: Deadline,
        change: impl Fn(&MemoryStore) -> Answer + Clone + 'static,
    ) -> Result<Answer> {
        let number = engine().draw(|random| random.u64(..));
        let mut lost = None;
        loop {
            let (server, change) = (Arc::clone(&self.server), change.clone());
            let error = match self.network.call(by, move || server.once(number, &change)).of_change() {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if error.is_in_doubt() {
                lost.get_or_insert(error);
            } else if lost.is_none() {
                return Err(error);
            }
            if !self.repeats || by.remaining() <= PAUSE {
                return Err(lost.expect("the first reply was lost"));
            }
            simulation::sleep(PAUSE);
        }
    }
}

fn not_found(name: &LatchName) -> Error {
    Error::NotFound { name: name.to_string() }
}

/// The server's own calls have no time limit.
fn no_limit() -> Deadline {
    Deadline::after(Duration::MAX)
}

impl LatchStore for SimulatedLatches {
    fn initialize_latches(&self, _by: Deadline) -> Result<()> {
        Ok(())
    }

    fn create_latch(&self, new: &NewLatch<'_>) -> Result<bool> {
        let (name, roster, count, ttl) = (new.name.clone(), new.roster.to_vec(), new.count, new.ttl);
        let created = self.change(new.by, move |server| {
            let new = NewLatch { name: &name, count, roster: &roster, ttl, by: no_limit() };
            let created = server.create_latch(&new).map_err(drop)?;
            Ok(if created { Stepped::Counted(None) } else { Stepped::Already })
        })?;
        Ok(created == Ok(Stepped::Counted(None)))
    }

    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        let (name, participant) = (step.name.clone(), step.participant.map(str::to_owned));
        let (add, ttl) = (step.add, step.ttl);
        let stepped = self.change(step.by, move |server| {
            let participant = participant.as_deref();
            let step = Step { name: &name, add, participant, ttl, by: no_limit() };
            server.step(&step).map_err(|error| debug_assert_eq!(error.code(), Code::NotFound))
        })?;
        stepped.map_err(|()| not_found(step.name))
    }

    fn counts(&self, asked: &[(&LatchName, Level)], by: Deadline) -> Result<Vec<Result<Option<i64>>>> {
        let asked: Vec<(LatchName, Level)> =
            asked.iter().map(|(name, level)| ((*name).clone(), *level)).collect();
        let server = Arc::clone(&self.server);
        let counts = self.network.call(by, move || {
            let asked: Vec<(&LatchName, Level)> = asked.iter().map(|(name, level)| (name, *level)).collect();
            server.latches.counts(&asked, no_limit())
        });
        counts.of_read()?
    }

    fn roster(&self, name: &LatchName, by: Deadline) -> Result<Roster> {
        let (server, asked) = (Arc::clone(&self.server), name.clone());
        self.network.call(by, move || server.latches.roster(&asked, no_limit())).of_read()?
    }
}
