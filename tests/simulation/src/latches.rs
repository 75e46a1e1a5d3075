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
    incarnations: Mutex<HashMap<LatchName, u64>>,
}

/// An answer that can be returned again.
type Answer = std::result::Result<Stepped, Refused>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    NotFound,
    /// The latch was reset or deleted since the caller has read it.
    OtherIncarnation,
}

impl LatchServer {
    /// Returns a number that changes with each reset and deletion. A caller reads it before its first request.
    fn incarnation(&self, name: &LatchName) -> u64 {
        self.incarnations.lock().get(name).copied().unwrap_or(0)
    }

    /// Makes a change if the latch is still in this incarnation.
    fn in_incarnation(
        &self,
        name: &LatchName,
        incarnation: u64,
        change: impl FnOnce(&MemoryStore) -> Result<Stepped>,
    ) -> Answer {
        if self.incarnation(name) != incarnation {
            return Err(Refused::OtherIncarnation);
        }
        change(&self.latches).map_err(|error| {
            debug_assert_eq!(error.code(), Code::NotFound);
            Refused::NotFound
        })
    }

    /// Makes a change that ends the incarnation.
    fn ends_incarnation(
        &self,
        name: &LatchName,
        incarnation: u64,
        change: impl FnOnce(&MemoryStore) -> Result<()>,
    ) -> Answer {
        let answer =
            self.in_incarnation(name, incarnation, |server| change(server).map(|()| Stepped::Counted(None)));
        if answer.is_ok() {
            self.incarnations.lock().insert(name.clone(), incarnation + 1);
        }
        answer
    }

    fn once(&self, number: u64, change: impl Fn(&LatchServer) -> Answer) -> Answer {
        if let Some(answer) = self.answers.lock().get(&number) {
            return *answer;
        }
        let answer = change(self);
        self.answers.lock().insert(number, answer);
        answer
    }
}

impl SimulatedLatches {
    pub(crate) fn new(network: &Arc<Network>, repeats: bool) -> SimulatedLatches {
        SimulatedLatches { network: Arc::clone(network), server: Arc::default(), repeats }
    }

    /// Asks the server for a change of the incarnation that it has now, and again for the next one if that ends meanwhile.
    fn in_current(
        &self,
        name: &LatchName,
        by: Deadline,
        change: impl Fn(&LatchServer, u64) -> Answer + Clone + 'static,
    ) -> Result<Stepped> {
        loop {
            let (incarnation, change) = (self.server.incarnation(name), change.clone());
            match self.change(by, move |server| change(server, incarnation))? {
                Ok(stepped) => return Ok(stepped),
                Err(Refused::NotFound) => return Err(not_found(name)),
                Err(Refused::OtherIncarnation) => {}
            }
        }
    }

    /// Asks the server for a change, which it makes at most once.
    fn change(
        &self,
        by: Deadline,
        change: impl Fn(&LatchServer) -> Answer + Clone + 'static,
    ) -> Result<Answer> {
        let number = engine().draw(|random| random.u64(..));
        let mut lost = None;
        loop {
            let (server, change) = (Arc::clone(&self.server), change.clone());
            let error = match self.network.call(by, move || server.once(number, &change)).of_change() {
                // An earlier request that was not answered may have been carried out in the old incarnation.
                Ok(Err(Refused::OtherIncarnation)) if lost.is_some() => {
                    return Err(lost.expect("a reply was lost"));
                }
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
            let created = server.latches.create_latch(&new).map_err(|_| Refused::NotFound)?;
            Ok(if created { Stepped::Counted(None) } else { Stepped::Already })
        })?;
        Ok(created == Ok(Stepped::Counted(None)))
    }

    fn reset_latch(&self, new: &NewLatch<'_>) -> Result<()> {
        let (name, roster, count, ttl) = (new.name.clone(), new.roster.to_vec(), new.count, new.ttl);
        self.in_current(new.name, new.by, move |server, incarnation| {
            let new = NewLatch { name: &name, count, roster: &roster, ttl, by: no_limit() };
            server.ends_incarnation(&name, incarnation, |latches| latches.reset_latch(&new))
        })?;
        Ok(())
    }

    fn delete_latch(&self, name: &LatchName, ttl: Duration, by: Deadline) -> Result<()> {
        let asked = name.clone();
        self.in_current(name, by, move |server, incarnation| {
            let delete = |latches: &MemoryStore| latches.delete_latch(&asked, ttl, no_limit());
            server.ends_incarnation(&asked, incarnation, delete)
        })?;
        Ok(())
    }

    fn step(&self, step: &Step<'_>) -> Result<Stepped> {
        let (name, participant) = (step.name.clone(), step.participant.map(str::to_owned));
        let (add, ttl) = (step.add, step.ttl);
        self.in_current(step.name, step.by, move |server, incarnation| {
            let participant = participant.as_deref();
            let step = Step { name: &name, add, participant, ttl, by: no_limit() };
            server.in_incarnation(&name, incarnation, |latches| latches.step(&step))
        })
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
