//! A server, some processes with threads, and all that goes wrong between them. Everything follows from one seed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlm::simulation::{self, Runtime};
use dlm::store::remote::RemoteStore;
use dlm::store::{INTENT_MAX, LockStore, MemoryStore};
use dlm::{LockManager, Moment};
use dlm_testkit::history::{
    Answer, CallId, Event, History, Operation, Recorder, Rule, Tolerances, Violation, check,
};
use dlm_testkit::mutants::Receiver;
use dlm_testkit::workload::{LatchRounds, LatchWorkload, LockWorkload};
use fastrand::Rng;
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::datagrams::Datagrams;
use crate::engine::{Engine, ProcessNumber, SERVER, Schedule, engine};
use crate::holds::SimulatedHolds;
use crate::network::{Faults, Late, Network};
use crate::register::{Dialect, SimulatedRegister};

/// The first of the processes that things happen to. Process 1 starts them, and looks at the locks or latches in the
/// end. Nothing happens to it.
const FIRST: ProcessNumber = 2;

/// What the processes use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Locks.
    Locks,
    /// Latches.
    Latches,
    /// Locks in all modes, on one machine: in a store that all processes share, with one clock. No request is lost there, and
    /// processes stop and die.
    Modes,
    /// Locks in all modes on a server.
    RemoteModes,
}

impl Subject {
    /// Whether locks are used in all modes.
    pub fn has_modes(self) -> bool {
        matches!(self, Subject::Modes | Subject::RemoteModes)
    }
}

/// Everything that is decided before a run begins.
#[derive(Debug, Clone)]
pub struct World {
    /// The seed that it was drawn from, and that all later choices follow from.
    pub seed: u64,
    /// What the processes use.
    pub subject: Subject,
    /// The store.
    pub dialect: Dialect,
    /// The threads of each process. They share a manager.
    pub threads: Vec<u64>,
    /// Clocks of the server, of the observer and of the processes.
    pub clocks: Vec<Clock>,
    /// How threads take turns.
    pub schedule: Schedule,
    /// What the network does.
    pub faults: Faults,
    /// What happens to the processes and to the server, and when.
    pub events: Vec<(Duration, Mishap)>,
    /// TTL of leases, and of latches that expire.
    pub ttl: Duration,
    /// Time limit of a call.
    pub timeout: Duration,
    /// How long the processes start new work.
    pub lasts: Duration,
}

/// Something that happens to a process or to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    /// The process stands still for this time.
    Stop(ProcessNumber, Duration),
    /// The process is gone.
    Kill(ProcessNumber),
    /// The wall clock of the process is set, by so many milliseconds.
    SetWall(ProcessNumber, i64),
    /// The server serves nothing for this time.
    Down(Duration),
}

/// A run of a world.
#[derive(Debug)]
pub struct Run {
    /// All calls, with times on the clock of the simulation.
    pub history: History,
    /// The logs of all clients, as they wrote them. Equal for two runs of one seed.
    pub text: String,
    /// The broken rules.
    pub violations: Vec<Violation>,
    /// Threads that panicked, or had not ended in the end, and notices to addresses that never answered.
    pub threads: Vec<String>,
    /// Requests, requests without a reply, and requests that the server served too late.
    pub requests: [u64; 3],
    /// Creations that the store refused for a stale number.
    pub stale_numbers: u64,
    /// Datagrams that arrived.
    pub datagrams: u64,
    /// The simulated time that has passed.
    pub time: Duration,
}

impl Run {
    /// Whether everything was as it should be.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.threads.is_empty()
    }
}

/// Prints what was broken.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.threads.iter().try_for_each(|thread| writeln!(f, "thread {thread}"))?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "{violation}"))
    }
}

/// Draws a duration up to `longest`, in whole microseconds.
fn up_to(random: &mut Rng, longest: Duration) -> Duration {
    Duration::from_micros(random.u64(..longest.as_micros() as u64 + 1))
}

fn draw_faults(random: &mut Rng, ttl: Duration) -> Faults {
    if random.u8(..4) == 0 {
        return Faults::NONE;
    }
    let mut share = || if random.bool() { random.f64() * 0.1 } else { 0.0 };
    let [refused, requests_lost, replies_lost, slowed, cut] = [share(), share(), share(), share(), share()];
    Faults { refused, requests_lost, replies_lost, slowed, slow: ttl * 2, cut }
}

fn draw_schedule(random: &mut Rng) -> Schedule {
    let switches = [4, 32, 128][random.usize(..3)];
    let stalls_every = [0, 500, 5000][random.usize(..3)];
    Schedule { switches, stalls_every, stall: Duration::from_millis(20) }
}

fn draw_clock(random: &mut Rng) -> Clock {
    let faster_ppm = if random.bool() { random.i64(-30_000..30_000) } else { 0 };
    Clock { start: random.u64(..1 << 50), faster_ppm, wall_ahead_ms: random.i64(-5_000..5_000) }
}

impl World {
    /// Draws a world. Of six, two use latches, two modes, and two locks.
    pub fn of(seed: u64) -> World {
        let subject = match seed % 6 {
            0 | 3 => Subject::Latches,
            4 => Subject::Modes,
            1 => Subject::RemoteModes,
            _ => Subject::Locks,
        };
        World::draw(seed, subject)
    }

    /// Draws a world with this subject.
    pub fn draw(seed: u64, subject: Subject) -> World {
        let random = &mut Rng::with_seed(seed);
        let dialect = Dialect::ALL[random.usize(..Dialect::ALL.len())];
        let threads: Vec<u64> = (0..random.usize(2..5)).map(|_| random.u64(1..4)).collect();
        let ttl = Duration::from_millis(random.u64(1000..3000));
        let lasts = ttl * 20;
        let schedule = draw_schedule(random);
        let faults = draw_faults(random, ttl);
        let mut clocks: Vec<Clock> = (0..FIRST + threads.len()).map(|_| draw_clock(random)).collect();
        if subject == Subject::Modes {
            clocks = vec![clocks[SERVER]; clocks.len()];
        }
        let timeout = ttl.mul_f64(0.5 + random.f64());
        let calm = random.u8(..4) == 0;
        let processes = FIRST..FIRST + threads.len();
        let mishap = |random: &mut Rng| {
            let process = random.usize(processes.clone());
            let mishap = match random.u8(..8) {
                0..3 => Mishap::Stop(process, up_to(random, ttl * 2)),
                3 if subject != Subject::Latches => Mishap::Kill(process),
                4 => Mishap::SetWall(process, random.i64(-3_600_000..3_600_000)),
                5 if random.bool() => Mishap::SetWall(SERVER, random.i64(-2000..2000)),
                _ => Mishap::Down(up_to(random, ttl)),
            };
            (up_to(random, lasts), mishap)
        };
        let count = if calm { 0 } else { random.usize(..6) };
        let events = (0..count).map(|_| mishap(random)).collect();
        World { seed, subject, dialect, threads, clocks, schedule, faults, events, ttl, timeout, lasts }
    }

    /// Runs the world on a store without a defect.
    pub fn run(&self) -> Run {
        self.run_with(|store| store)
    }

    /// Runs the world on the store that `wrap` makes of the simulated one.
    pub fn run_with(&self, wrap: impl Fn(Arc<dyn LockStore>) -> Arc<dyn LockStore> + 'static) -> Run {
        let logs = Rc::new(Logs::default());
        let network = Network::new(self.faults);
        let stage = Stage { world: self.clone(), logs: Rc::clone(&logs), network: Arc::clone(&network) };
        let clocks = self.clocks.clone();
        let ended = Engine::run(self.seed, self.schedule, clocks, move || stage.play(&wrap));
        let texts = logs.texts();
        let history = History::parse(&texts).expect("whole logs");
        let late = network.late.lock();
        let history = self.on_one_clock(&history, &logs.processes.borrow());
        let history = History::new(delays(&late).chain(history.events().iter().cloned()).collect());
        let mut violations = check(&history, &self.tolerances());
        violations.retain(|violation| !self.is_excused(violation));
        let [sent, lost] =
            [&network.counts.requests, &network.counts.lost].map(|count| count.load(Ordering::Relaxed));
        let requests = [sent, lost, late.len() as u64];
        let (datagrams, misdirected) = ended.datagrams;
        let threads = [ended.panics, ended.left, misdirected].concat();
        let stale_numbers = network.counts.stale_numbers.load(Ordering::Relaxed);
        let (text, time) = (texts.concat(), ended.time);
        Run { history, text, violations, threads, requests, stale_numbers, datagrams, time }
    }

    /// Whether a documented limit explains the violation. When the server's clock is set forward, leases end early by
    /// as much, before their holders know. When it is set back, an expired record may be there again. Fences must
    /// still rise, and stale requests must still be refused.
    fn is_excused(&self, violation: &Violation) -> bool {
        let called = violation.events.iter().map(|event| event.called.as_nanos()).min().unwrap_or_default();
        let returned =
            violation.events.iter().map(|event| event.last_seen().as_nanos()).max().unwrap_or_default();
        let is_back = |mishap: &Mishap| matches!(mishap, Mishap::SetWall(SERVER, ..0));
        let mut back = self.events.iter().filter(|(_, mishap)| is_back(mishap));
        if violation.rule == Rule::NoPhantomHolder && back.any(|(at, _)| at.as_nanos() as u64 <= returned) {
            return true;
        }
        let steps = self.events.iter().filter(|(_, mishap)| matches!(mishap, Mishap::SetWall(SERVER, 1..)));
        let times: Vec<_> = steps.map(|(at, _)| at.as_nanos() as u64).collect();
        let has_step = |from: u64, to: u64| times.iter().any(|time| (from..=to).contains(time));
        let is_granted_across = |event: &Event| {
            matches!(event.operation, Operation::Acquire { .. })
                && has_step(event.called.as_nanos(), event.last_seen().as_nanos())
        };
        match violation.rule {
            Rule::Exclusion | Rule::NoOverlap => has_step(called, returned),
            // A check that succeeds after the next grant, or a release without a reply: as the lease is not over by its holder's
            // clock, the holder concludes that it has freed the lock.
            Rule::LeaseEnds | Rule::NoStaleRelease => {
                violation.events.len() == 3 && has_step(called, returned)
            }
            // In the layout `java` a lock gets its number after its record. If the record has ended in between, the next grant has a
            // lower one, and its holder renews what it holds.
            Rule::NoStaleRenewal => violation.events.iter().any(is_granted_across),
            _ => false,
        }
    }

    fn retry(&self) -> Duration {
        self.ttl / 12
    }

    /// How long released locks stay with their processes: in half of the worlds in which the server keeps its wall clock and
    /// can reserve fences. A server whose clock is set forward ends records early, and the next fence of a lock that stays
    /// is then below that of another holder.
    pub fn linger(&self) -> Duration {
        let forward = |mishap: &Mishap| matches!(mishap, Mishap::SetWall(SERVER, by) if *by > 0);
        let may = self.subject != Subject::Latches
            && (self.dialect != Dialect::Gateway || self.subject.has_modes())
            && !self.events.iter().any(|(_, mishap)| forward(mishap));
        if may && (self.seed / 7).is_multiple_of(2) { self.ttl / 2 } else { Duration::ZERO }
    }

    /// What happens to the datagrams of notices. `None` in half of the worlds, in which processes only poll.
    pub fn notices(&self) -> Option<Datagrams> {
        if self.subject == Subject::Latches || (self.seed / 5).is_multiple_of(2) {
            return None;
        }
        let lost = if self.faults == Faults::NONE { 0 } else { 10 };
        Some(Datagrams { lost, forged: (self.seed / 10).is_multiple_of(2) })
    }

    fn poll(&self) -> Duration {
        Duration::from_millis(20)
    }

    /// What the rules must forgive because of what happens in this world.
    pub fn tolerances(&self) -> Tolerances {
        let sum =
            |of: fn(&Mishap) -> Duration| self.events.iter().map(|(_, mishap)| of(mishap)).sum::<Duration>();
        let stopped = sum(|mishap| match mishap {
            Mishap::Stop(_, time) => *time,
            _ => Duration::ZERO,
        });
        let down = sum(|mishap| match mishap {
            Mishap::Down(time) => *time,
            _ => Duration::ZERO,
        });
        // A server whose clock is set forward ends leases earlier, and one that is set back ends them later.
        let forward = sum(|mishap| match mishap {
            Mishap::SetWall(SERVER, by) => Duration::from_millis(u64::try_from(*by).unwrap_or(0)),
            _ => Duration::ZERO,
        });
        let back = sum(|mishap| match mishap {
            Mishap::SetWall(SERVER, by) => Duration::from_millis(u64::try_from(-by).unwrap_or(0)),
            _ => Duration::ZERO,
        });
        let slow = self.faults.slow + Duration::from_millis(10);
        // The workload renews for up to twice the TTL.
        let brings_back = self.dialect.brings_back() && !self.subject.has_modes();
        let older = if brings_back { 2 * self.ttl } else { Duration::ZERO };
        let stalls = if self.schedule.stalls_every > 0 { self.schedule.stall * 20 } else { Duration::ZERO };
        let delays = stopped + stalls + slow + 2 * self.timeout;
        // With background threads that wait for a server, a read waits for its turn. Pauses grow after failures.
        let wake = Duration::from_millis(200) + 2 * delays + down + 16 * self.poll();
        // A background thread announces a writer again, and its request may be served late.
        let announced = if self.subject == Subject::RemoteModes { delays } else { Duration::ZERO };
        Tolerances {
            intent: INTENT_MAX + announced,
            clock_rate: 0.035,
            epsilon: Duration::from_millis(5) + forward,
            store_slack: self.dialect.slack() + back + older,
            older_records: brings_back,
            linger: self.linger(),
            // A client that was killed may have sent its last request one wait and one time-out after its call.
            late: delays + 2 * self.ttl + down,
            stall: Duration::ZERO,
            shared_answer: 3 * self.retry() + delays,
            wake: if self.faults == Faults::NONE { wake - 2 * self.timeout } else { wake },
            ..Tolerances::default()
        }
    }

    /// Replaces the times of each process by those of the simulation.
    fn on_one_clock(&self, history: &History, processes: &HashMap<String, ProcessNumber>) -> History {
        let on_one_clock = |event: &Event| {
            let clock = self.clocks[processes[&*event.id.client]];
            let mut event = event.clone();
            event.called = clock.true_moment(event.called);
            event.returned = event.returned.map(|at| clock.true_moment(at));
            if let Operation::Await { deadline } = &mut event.operation {
                *deadline = clock.true_moment(*deadline);
            }
            if let Answer::Granted { ends, .. } | Answer::Renewed { ends } = &mut event.answer {
                // Zero means that the lease was lost between the answer and the log.
                *ends = if *ends == Moment::from_nanos(0) { *ends } else { clock.true_moment(*ends) };
            }
            event
        };
        History::new(history.events().iter().map(on_one_clock).collect())
    }
}

/// Returns what tells the rules which calls may have taken effect after they had returned.
fn delays(late: &[Late]) -> impl Iterator<Item = Event> {
    late.iter().zip(1..).map(|(late, number)| Event {
        id: CallId { client: "network".into(), number },
        key: late.client.as_str().into(),
        called: Moment::from_nanos(late.sent),
        returned: Some(Moment::from_nanos(late.given_up)),
        operation: Operation::Delay { longest: Duration::from_nanos(late.served - late.given_up) },
        answer: Answer::Ok,
    })
}

/// The logs of all clients. A client that is killed leaves what it has written.
#[derive(Debug, Default)]
struct Logs {
    texts: RefCell<Vec<Arc<Mutex<Vec<u8>>>>>,
    /// The process of each client.
    processes: RefCell<HashMap<String, ProcessNumber>>,
}

impl Logs {
    fn start(&self, client: &str) -> Recorder<SharedLog> {
        let text = Arc::new(Mutex::new(Vec::new()));
        self.texts.borrow_mut().push(Arc::clone(&text));
        self.processes.borrow_mut().insert(client.to_owned(), engine().process());
        Recorder::new(client, SharedLog(text))
    }

    fn texts(&self) -> Vec<String> {
        let text =
            |text: &Arc<Mutex<Vec<u8>>>| String::from_utf8(text.lock().clone()).expect("a log is text");
        self.texts.borrow().iter().map(text).collect()
    }
}

#[derive(Debug)]
struct SharedLog(Arc<Mutex<Vec<u8>>>);

impl Write for SharedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A world that runs.
#[derive(Clone)]
struct Stage {
    world: World,
    logs: Rc<Logs>,
    network: Arc<Network>,
}

/// Kills a process, but not in the middle of a call to a store in memory. That takes the place of a server, which serves a
/// request to its end although the client was killed.
fn kill(process: ProcessNumber, memory: Arc<MemoryStore>) {
    if memory.is_busy() {
        engine().after(Duration::from_micros(1), move || kill(process, memory));
    } else {
        engine().kill(process);
    }
}

impl Stage {
    /// Runs in the observer.
    fn play(&self, wrap: &dyn Fn(Arc<dyn LockStore>) -> Arc<dyn LockStore>) {
        let memory = Arc::new(MemoryStore::new());
        let register = || SimulatedRegister::new(self.world.dialect, &self.network);
        let store: Arc<dyn LockStore> = match self.world.subject {
            Subject::Modes => Arc::clone(&memory) as _,
            Subject::RemoteModes => Arc::new(RemoteStore::new(SimulatedHolds::new(&self.network))),
            Subject::Locks | Subject::Latches => Arc::new(RemoteStore::new(register())),
        };
        let store = wrap(store);
        engine().set_datagrams(self.world.notices().unwrap_or_default());
        self.world.events.iter().for_each(|(at, mishap)| self.schedule(*at, *mishap, &memory));
        match self.world.subject {
            Subject::Locks | Subject::Modes | Subject::RemoteModes => self.use_locks(&store),
            Subject::Latches => self.use_latches(&store),
        }
    }

    fn schedule(&self, at: Duration, mishap: Mishap, memory: &Arc<MemoryStore>) {
        let (network, memory) = (Arc::clone(&self.network), Arc::clone(memory));
        engine().after(at, move || match mishap {
            Mishap::Stop(process, time) => engine().stop(process, time),
            Mishap::Kill(process) => kill(process, memory),
            Mishap::SetWall(process, by_ms) => engine().set_wall(process, by_ms),
            Mishap::Down(time) => network.take_down(time),
        });
    }

    fn manager(&self, store: &Arc<dyn LockStore>) -> LockManager {
        let world = &self.world;
        let builder = LockManager::builder().store(Arc::clone(store)).client("simulated").farm("dc1");
        let builder = builder.ttl(world.ttl).retry(world.retry()).timeout(world.timeout).poll(world.poll());
        let builder = match world.notices() {
            Some(_) => builder.notices(&format!("udp://10.0.0.{}:7", engine().process())),
            None => builder,
        };
        builder.linger(world.linger()).open().expect("these settings are allowed")
    }

    /// Runs `work` in all threads of all processes. The threads of a process share a manager, which is closed in the
    /// end. Then all faults end, and all messages arrive.
    fn in_all_processes(
        &self,
        store: &Arc<dyn LockStore>,
        work: impl Fn(LockManager, u64, &mut Recorder<SharedLog>) + Clone + 'static,
    ) {
        let mut mains = Vec::new();
        let mut number = 0;
        for (process, threads) in (FIRST..).zip(self.world.threads.clone()) {
            let (stage, store, work) = (self.clone(), Arc::clone(store), work.clone());
            let first = number;
            number += threads;
            let main = move || {
                let manager = stage.manager(&store);
                let threads: Vec<_> = (first..first + threads)
                    .map(|number| {
                        let (stage, manager, work) = (stage.clone(), manager.clone(), work.clone());
                        simulation::spawn(format!("client-{number}"), move || {
                            let mut log = stage.logs.start(&format!("client-{number}"));
                            work(manager, number, &mut log);
                        })
                    })
                    .collect();
                for thread in threads {
                    // The engine reports panics.
                    let _ = thread.join();
                }
                // What cannot be released expires.
                let _ = manager.close();
            };
            mains.push(engine().spawn_in(process, "main".to_owned(), Box::new(main)));
        }
        for main in mains {
            engine().join(main);
        }
        self.network.heal();
        simulation::sleep(self.world.faults.slow * 2);
    }

    fn use_locks(&self, store: &Arc<dyn LockStore>) {
        let World { seed, ttl, lasts, .. } = self.world;
        let clients = self.world.threads.iter().sum();
        let locks = 1 + seed % 3;
        let modes = self.world.subject.has_modes();
        let workload =
            LockWorkload { clients, locks, ttl, lasts, other_ttls: true, modes, ..LockWorkload::new(seed) };
        let receiver = Arc::new(Receiver::new());
        let drained = workload.clone();
        self.in_all_processes(store, move |manager, number, log| {
            workload.run_thread(&manager, number, Some(&receiver), log);
        });
        let manager = self.manager(store);
        drained.drain(&manager, &mut self.logs.start("last"));
        let _ = manager.close();
    }

    fn use_latches(&self, store: &Arc<dyn LockStore>) {
        let World { seed, ttl, .. } = self.world;
        let clients = self.world.threads.iter().sum();
        let (wait, lasts) = (Duration::from_secs(60), Duration::from_secs(2));
        let workload = LatchWorkload { seed, clients, ttl, wait, lasts, resets: true };
        let rounds = Arc::new(LatchRounds::default());
        let (read, started) = (workload.clone(), Arc::clone(&rounds));
        self.in_all_processes(store, move |manager, number, log| {
            workload.run_thread(&manager, number, &rounds, log);
        });
        let manager = self.manager(store);
        read.read_all(&manager, &started, &mut self.logs.start("last"));
        let _ = manager.close();
    }
}
