//! Requests to the server and its replies, which the network may lose, delay or refuse.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlm::simulation::Runtime;
use dlm::{Deadline, Error, Result};
use parking_lot::Mutex;

use crate::engine::{SERVER, engine};

/// Shares are probabilities from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Faults {
    /// Share of requests that are refused before they are sent.
    pub refused: f64,
    /// Share of requests that never arrive.
    pub requests_lost: f64,
    /// Share of replies that never arrive.
    pub replies_lost: f64,
    /// Share of messages that take up to [`slow`](Faults::slow).
    pub slowed: f64,
    /// Longest time of a message.
    pub slow: Duration,
    /// Share of exchanges whose connection breaks while the client waits. The request may arrive all the same.
    pub cut: f64,
}

impl Faults {
    /// Nothing is lost, and every message arrives within some milliseconds.
    pub const NONE: Faults = Faults {
        refused: 0.0,
        requests_lost: 0.0,
        replies_lost: 0.0,
        slowed: 0.0,
        slow: Duration::ZERO,
        cut: 0.0,
    };
}

/// How often something went wrong.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests.
    pub requests: AtomicU64,
    /// Requests whose client got no reply, though the server served them in time or late.
    pub lost: AtomicU64,
    /// Creations that the store refused because its number was not below theirs, although the lock was free.
    pub stale_numbers: AtomicU64,
}

/// What a client knows of its request.
#[derive(Debug)]
pub(crate) enum Outcome<T> {
    /// The reply.
    Answered(T),
    /// The request may have been served, or may be served later.
    Lost,
    /// The request was not sent.
    Refused,
}

impl<T> Outcome<T> {
    /// Returns the reply to a request that may change something.
    pub(crate) fn of_change(self) -> Result<T> {
        match self {
            Outcome::Answered(answer) => Ok(answer),
            Outcome::Lost => Err(Error::InDoubt { what: "no reply".into(), source: None }),
            Outcome::Refused => Err(unreachable()),
        }
    }

    /// Returns the reply to a request that changes nothing.
    pub(crate) fn of_read(self) -> Result<T> {
        match self {
            Outcome::Answered(answer) => Ok(answer),
            Outcome::Lost | Outcome::Refused => Err(unreachable()),
        }
    }
}

fn unreachable() -> Error {
    Error::Connection { store: "simulated:".into(), what: "no reply".into(), source: None }
}

/// The network between all processes and the server.
#[derive(Debug)]
pub struct Network {
    faults: Faults,
    /// Ends all faults.
    healed: AtomicBool,
    /// The server is down until this simulated time.
    down_until: AtomicU64,
    /// What happened.
    pub counts: Counts,
    /// Requests that were served after their clients had given up.
    pub(crate) late: Mutex<Vec<Late>>,
}

/// A request that was served after its client had given up. Times are on the clock of the simulation.
#[derive(Debug, Clone)]
pub(crate) struct Late {
    /// The name of the thread that sent it.
    pub(crate) client: String,
    pub(crate) sent: u64,
    pub(crate) given_up: u64,
    pub(crate) served: u64,
}

impl Network {
    /// Makes a network with these faults.
    pub fn new(faults: Faults) -> Arc<Network> {
        let (healed, down_until) = (AtomicBool::new(false), AtomicU64::new(0));
        let (counts, late) = (Counts::default(), Mutex::default());
        Arc::new(Network { faults, healed, down_until, counts, late })
    }

    /// Ends all faults. Requests that are late stay late.
    pub fn heal(&self) {
        self.healed.store(true, Ordering::Relaxed);
        self.down_until.store(0, Ordering::Relaxed);
    }

    /// Lets the server serve no request for this time.
    pub fn take_down(&self, time: Duration) {
        self.down_until.store(engine().time() + time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn faults(&self) -> Faults {
        if self.healed.load(Ordering::Relaxed) { Faults::NONE } else { self.faults }
    }

    fn is_down(&self) -> bool {
        engine().time() < self.down_until.load(Ordering::Relaxed)
    }

    /// Sends a copy of a request, whose reply nobody waits for. Half of the copies arrive within `soon`, others up to
    /// the longest delay later.
    fn send_copy(self: &Arc<Network>, soon: Duration, serve: impl FnOnce() + 'static) {
        let (engine, network) = (engine(), Arc::clone(self));
        let client = engine.name_of(engine.current().expect("a thread calls"));
        let longest = soon + self.faults().slow;
        let (sent, is_soon) = (engine.time(), engine.draw(|random| random.bool()));
        let delay =
            engine.draw(|random| random.u64(..if is_soon { soon } else { longest }.as_nanos() as u64));
        engine.at(sent + delay, move || {
            if network.is_down() {
                return;
            }
            serve();
            network.late.lock().push(Late { client, sent, given_up: sent, served: sent + delay });
        });
    }

    /// Sends a request and waits for the reply. `serve` is what the server does when the request arrives.
    pub(crate) fn call<T: 'static>(
        self: &Arc<Network>,
        by: Deadline,
        serve: impl Fn() -> T + 'static,
    ) -> Outcome<T> {
        self.call_through(by, None, Rc::new(serve))
    }

    /// Sends a request and waits for the reply. If there is a `pause`, a gateway gets no answer to a first copy of the
    /// request, and sends it again after that time.
    pub(crate) fn call_through<T: 'static>(
        self: &Arc<Network>,
        by: Deadline,
        pause: Option<Duration>,
        serve: Rc<dyn Fn() -> T>,
    ) -> Outcome<T> {
        let engine = engine();
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        let mut plan = Plan::draw(&self.faults());
        plan.there += pause.unwrap_or_default().as_nanos() as u64;
        let clock = engine.clock(engine.process());
        // A socket sees the end of its time a little later.
        let by = clock.time_of(by.moment().as_nanos()).max(engine.time() + 1);
        if plan.refused || self.is_down() && engine.draw(|random| random.bool()) {
            self.wait(by.min(engine.time() + plan.there / 2), &|| false);
            return Outcome::Refused;
        }
        let reply = Rc::new(RefCell::new(None));
        let given_up = Rc::new(Cell::new(None));
        let client = engine.current().expect("a thread calls");
        if let Some(pause) = pause {
            let copy = Rc::clone(&serve);
            self.send_copy(pause, move || drop(copy()));
        }
        if !plan.request_lost {
            let exchange = Exchange {
                network: Arc::clone(self),
                reply: Rc::clone(&reply),
                given_up: Rc::clone(&given_up),
                client,
                sent: engine.time(),
                reply_lost: plan.reply_lost,
                back: plan.back,
            };
            engine.at(engine.time() + plan.there, move || exchange.serve(&*serve));
        }
        let until = plan.cut_after.map_or(by, |cut| by.min(engine.time() + cut));
        self.wait(until, &|| reply.borrow().is_some());
        given_up.set(Some(engine.time()));
        match reply.take() {
            Some(answer) => Outcome::Answered(answer),
            None => {
                self.counts.lost.fetch_add(1, Ordering::Relaxed);
                Outcome::Lost
            }
        }
    }

    /// Waits until `done`, or until this simulated time.
    fn wait(&self, until: u64, done: &dyn Fn() -> bool) {
        let engine = engine();
        let clock = engine.clock(engine.process());
        while !done() && engine.time() < until {
            engine.park(Some(clock.shows(until)));
        }
    }
}

/// What will happen to one request and its reply. Times are in nanoseconds.
struct Plan {
    refused: bool,
    request_lost: bool,
    reply_lost: bool,
    there: u64,
    back: u64,
    cut_after: Option<u64>,
}

impl Plan {
    fn draw(faults: &Faults) -> Plan {
        engine().draw(|random| {
            let mut happens = |share: f64| random.f64() < share;
            let (refused, request_lost) = (happens(faults.refused), happens(faults.requests_lost));
            let (reply_lost, cut) = (happens(faults.replies_lost), happens(faults.cut));
            let slowed = [happens(faults.slowed), happens(faults.slowed)];
            let mut time = |slowed: bool| {
                let usual = random.u64(50_000..2_000_000);
                if slowed { random.u64(..faults.slow.as_nanos() as u64 + 1) + usual } else { usual }
            };
            let (there, back) = (time(slowed[0]), time(slowed[1]));
            let cut_after = cut.then(|| random.u64(..there + back));
            Plan { refused, request_lost, reply_lost, there, back, cut_after }
        })
    }
}

/// A request that is on its way.
struct Exchange<T> {
    network: Arc<Network>,
    reply: Rc<RefCell<Option<T>>>,
    /// When the client gave up or got its reply.
    given_up: Rc<Cell<Option<u64>>>,
    client: u64,
    sent: u64,
    reply_lost: bool,
    back: u64,
}

impl<T: 'static> Exchange<T> {
    /// Runs when the request arrives at the server.
    fn serve(self, serve: &dyn Fn() -> T) {
        if self.network.is_down() {
            return;
        }
        if let Some(given_up) = self.given_up.get() {
            let (client, served) = (engine().name_of(self.client), engine().time());
            self.network.late.lock().push(Late { client, sent: self.sent, given_up, served });
        }
        debug_assert_eq!(engine().process(), SERVER);
        let answer = serve();
        if !self.reply_lost {
            let (reply, client) = (self.reply, self.client);
            engine().after(Duration::from_nanos(self.back), move || {
                *reply.borrow_mut() = Some(answer);
                engine().unpark(client);
            });
        }
    }
}
