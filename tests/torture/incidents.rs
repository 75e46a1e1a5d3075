//! What was done to the processes, their messages and the servers, and when.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dlm::Moment;
use dlm_testkit::history::{Answer, CallId, Operation, Recorder};
use parking_lot::Mutex;

/// A broken connection takes other calls with it. A client may notice that so much later.
const NOTICED_AFTER: Duration = Duration::from_millis(100);

/// What was done to one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The server carried out the request, and the reply was lost.
    Reply,
    /// The server did not receive the request.
    Request,
    /// The server received the request late.
    Late,
    /// The server carried out the request in time, and the client received the reply late.
    LateReply,
}

/// A message that was lost or late.
#[derive(Debug, Clone)]
pub(crate) struct LostMessage {
    /// Beginning of the names of the clients whose message it was.
    pub(crate) clients: String,
    pub(crate) at: Moment,
    pub(crate) loss: Loss,
    /// Whether the request changes something.
    pub(crate) writes: bool,
}

/// A process that was killed.
#[derive(Debug, Clone)]
pub(crate) struct Kill {
    /// Beginning of the names of its clients.
    pub(crate) clients: String,
    pub(crate) at: Moment,
}

/// A process that was stopped and continued.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    /// Beginning of the names of its clients.
    pub(crate) clients: String,
    pub(crate) from: Moment,
    pub(crate) to: Moment,
}

/// All of one round. Delays and outages are also logged for the rules.
#[derive(Debug)]
pub(crate) struct Incidents {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    log: Recorder<File>,
    /// Delays whose end is not logged yet.
    delays: VecDeque<(Moment, CallId)>,
    lost: Vec<LostMessage>,
    kills: Vec<Kill>,
    stops: Vec<Stop>,
    counts: BTreeMap<&'static str, usize>,
}

impl State {
    fn delayed(&mut self, clients: &str, longest: Duration) {
        self.end_delays(NOTICED_AFTER);
        let id = self.log.call(clients, Operation::Delay { longest });
        self.delays.push_back((Moment::now(), id));
    }

    /// Logs the end of delays that are so old.
    fn end_delays(&mut self, age: Duration) {
        while let Some((since, _)) = self.delays.front()
            && Moment::now().since(*since) >= age
        {
            let (_, id) = self.delays.pop_front().expect("it was there");
            self.log.returned(&id, Answer::Ok);
        }
    }
}

impl Incidents {
    pub(crate) fn logged_in(logs: &Path) -> Arc<Incidents> {
        let state = State {
            log: Recorder::append("incidents", logs.join("incidents")).unwrap(),
            delays: VecDeque::new(),
            lost: Vec::new(),
            kills: Vec::new(),
            stops: Vec::new(),
            counts: BTreeMap::new(),
        };
        Arc::new(Incidents { state: Mutex::new(state) })
    }

    pub(crate) fn message(&self, clients: &str, loss: Loss, writes: bool, longest: Duration) {
        let mut state = self.state.lock();
        state.delayed(clients, longest);
        state.lost.push(LostMessage { clients: clients.to_owned(), at: Moment::now(), loss, writes });
    }

    /// All connections of these clients were cut.
    pub(crate) fn cut(&self, clients: &str) {
        self.state.lock().delayed(clients, Duration::ZERO);
        self.count("cuts");
    }

    pub(crate) fn kill(&self, kill: Kill) {
        self.state.lock().kills.push(kill);
    }

    pub(crate) fn stop(&self, stop: Stop) {
        self.state.lock().stops.push(stop);
    }

    pub(crate) fn count(&self, what: &'static str) {
        *self.state.lock().counts.entry(what).or_default() += 1;
    }

    /// Logs an outage of a server for the time of `work`. Messages of all clients may be late by `longest`.
    pub(crate) fn outage<T>(&self, longest: Duration, work: impl FnOnce() -> T) -> T {
        let begin = |operation| self.state.lock().log.call("", operation);
        let ids = [begin(Operation::Outage), begin(Operation::Delay { longest })];
        let done = work();
        ids.iter().for_each(|id| self.state.lock().log.returned(id, Answer::Ok));
        done
    }

    /// Ends the log.
    pub(crate) fn end(&self) {
        self.state.lock().end_delays(Duration::ZERO);
    }

    pub(crate) fn lost(&self) -> Vec<LostMessage> {
        self.state.lock().lost.clone()
    }

    pub(crate) fn kills(&self) -> Vec<Kill> {
        self.state.lock().kills.clone()
    }

    pub(crate) fn stops(&self) -> Vec<Stop> {
        self.state.lock().stops.clone()
    }

    pub(crate) fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.state.lock().counts.clone()
    }
}
