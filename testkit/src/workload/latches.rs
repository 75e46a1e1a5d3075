//! Clients that create latches, count them down and up, read them and wait for them.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use dlm::store::LockStore;
use dlm::{Deadline, Latch, LatchKind, Level, LockManager, Moment};
use fastrand::Rng;
use parking_lot::Mutex;

use super::party::{self, Log};
use crate::history::{Answer, History, Operation, Recorder};
use crate::patience::sleep;

/// A workload of latches. Each round uses a new latch: most of them open, some expire before they open, some stay
/// closed until all waits have timed out, and some are reset and deleted by one of the clients while the others count.
#[derive(Debug, Clone)]
pub struct LatchWorkload {
    /// Seed of all choices.
    pub seed: u64,
    /// Number of clients: threads, each with a manager of its own, like processes.
    pub clients: u64,
    /// TTL of latches that expire before they open.
    pub ttl: Duration,
    /// Wait for latches that open or expire.
    pub wait: Duration,
    /// How long the clients start new rounds. The last round may take one wait longer.
    pub lasts: Duration,
    /// Whether there are rounds with resets.
    pub resets: bool,
}

impl LatchWorkload {
    /// Four clients for 1.5 s, with a TTL of 300 ms and waits of 20 s.
    pub fn new(seed: u64) -> LatchWorkload {
        let [ttl, wait, lasts] = [300, 20_000, 1500].map(Duration::from_millis);
        LatchWorkload { seed, clients: 4, ttl, wait, lasts, resets: true }
    }

    /// Runs the clients. In the end, the count of every latch is read once more.
    ///
    /// # Panics
    /// If a call fails that cannot fail on a store that serves.
    pub fn run(&self, store: &Arc<dyn LockStore>) -> History {
        // Names of their own, so that workloads may share a store.
        let client_id = format!("history-{}", fastrand::u64(..));
        let rounds = LatchRounds::default();
        let clients = (0..self.clients).map(|number| {
            let (rounds, manager) = (&rounds, manager(store, &client_id));
            move |log: &mut Log| self.run_thread(&manager, number, rounds, log)
        });
        party::run(clients.collect(), |log| self.read_all(&manager(store, &client_id), &rounds, log))
    }

    /// Runs one client in this thread, with this manager. All clients need different numbers and names in the log, and
    /// the same `rounds`.
    ///
    /// # Panics
    /// See [`run`](LatchWorkload::run).
    pub fn run_thread(
        &self,
        manager: &LockManager,
        number: u64,
        rounds: &LatchRounds,
        log: &mut Recorder<impl Write>,
    ) {
        let by = Deadline::after(self.lasts);
        let mut client = self.client(manager, number);
        for number in (0..).take_while(|number| rounds.starts(*number, by)) {
            client.play(log, &Round::new(self, number));
        }
    }

    /// Reads the count of every latch once more, after all clients have ended.
    ///
    /// # Panics
    /// See [`run`](LatchWorkload::run).
    pub fn read_all(&self, manager: &LockManager, rounds: &LatchRounds, log: &mut Recorder<impl Write>) {
        let client = self.client(manager, self.clients);
        for number in 0..*rounds.started.lock() {
            let round = Round::new(self, number);
            client.read(log, &round, &client.latch(&round));
        }
    }

    fn client(&self, manager: &LockManager, number: u64) -> LatchClient {
        LatchClient { manager: manager.clone(), random: Rng::with_seed(self.seed << 8 | number), number }
    }
}

/// The rounds that were started. A round that one client has started is played by all, because its latch opens for all
/// or none.
#[derive(Debug, Default)]
pub struct LatchRounds {
    started: Mutex<u64>,
}

impl LatchRounds {
    /// Whether a client plays this round.
    fn starts(&self, number: u64, by: Deadline) -> bool {
        let over = by.passed();
        let mut started = self.started.lock();
        let starts = number < *started || !over;
        if starts {
            *started = (number + 1).max(*started);
        }
        starts
    }
}

fn manager(store: &Arc<dyn LockStore>, client: &str) -> LockManager {
    let builder = LockManager::builder().store(Arc::clone(store)).client(client).farm("dc1");
    builder.poll(Duration::from_millis(20)).open().expect("these settings are allowed")
}

/// What all clients do with one latch.
struct Round {
    key: String,
    count: i64,
    kind: LatchKind,
    /// Steps of each client. One if the clients count as participants.
    downs: u64,
    named: bool,
    ttl: Duration,
    wait: Duration,
    /// Nobody waits: one client resets the latch while the others count.
    resets: bool,
}

impl Round {
    fn new(workload: &LatchWorkload, number: u64) -> Round {
        let mut random = Rng::with_seed(workload.seed << 32 | number);
        let named = random.u8(..4) == 0;
        let downs = if named { 1 } else { random.u64(1..4) };
        let kind = if random.bool() { LatchKind::CountUpDown } else { LatchKind::CountDown };
        let long = workload.wait * 10;
        let short = Duration::from_millis(50);
        let (missing, ttl, wait) = match random.u8(..8) {
            0 => (1, workload.ttl, workload.wait),
            1 => (1, long, short),
            _ => (0, long, workload.wait),
        };
        let count = (workload.clients * downs + missing) as i64;
        let resets = workload.resets && ttl == long && random.u8(..4) == 0;
        Round { key: format!("latch-{number}"), count, kind, downs, named, ttl, wait, resets }
    }
}

struct LatchClient {
    manager: LockManager,
    random: Rng,
    number: u64,
}

impl LatchClient {
    fn latch(&self, round: &Round) -> Latch {
        let latch = self.manager.latch(&round.key, Level::Dc, round.kind).expect("a valid name");
        latch.with_ttl(round.ttl).expect("an allowed TTL")
    }

    fn play(&mut self, log: &mut Recorder<impl Write>, round: &Round) {
        let latch = self.latch(round);
        let create = Operation::CreateLatch { count: round.count, ttl: round.ttl };
        called(log, round, create, || latch.create(round.count));
        if round.resets {
            return self.play_with_resets(log, round, &latch);
        }
        for _ in 0..round.downs {
            self.pause();
            if round.kind == LatchKind::CountUpDown && self.random.bool() {
                called(log, round, Operation::CountUp, || latch.count_up());
                self.count_down(log, round, &latch, None);
            }
            let participant = round.named.then(|| format!("participant-{}", self.number));
            if round.named && self.random.bool() {
                self.count_down(log, round, &latch, participant.clone());
            }
            self.count_down(log, round, &latch, participant);
            self.read(log, round, &latch);
        }
        self.wait(log, round, &latch);
    }

    fn play_with_resets(&mut self, log: &mut Recorder<impl Write>, round: &Round, latch: &Latch) {
        const STEPS: usize = 8;
        for _ in 0..STEPS {
            self.pause();
            let (resets, choice) = (self.number == 0, self.random.u8(..8));
            let (count, ttl) = (round.count, round.ttl);
            match choice {
                0 if resets => {
                    called(log, round, Operation::DeleteLatch, || latch.delete());
                    called(log, round, Operation::CreateLatch { count, ttl }, || latch.create(count));
                }
                1..=4 if resets => {
                    let count = count + i64::from(choice) * 100;
                    called(log, round, Operation::ResetLatch { count, ttl }, || latch.reset(count));
                }
                0..=3 => self.count_down(log, round, latch, None),
                4 => self.count_down(log, round, latch, Some(format!("participant-{}", self.number))),
                5 if round.kind == LatchKind::CountUpDown => {
                    called(log, round, Operation::CountUp, || latch.count_up());
                }
                _ => {}
            }
            self.read(log, round, latch);
        }
    }

    fn count_down(
        &self,
        log: &mut Recorder<impl Write>,
        round: &Round,
        latch: &Latch,
        participant: Option<String>,
    ) {
        let operation = Operation::CountDown { participant: participant.clone() };
        let id = log.call(&round.key, operation);
        let counted = match participant {
            Some(participant) => latch.count_down_as(&participant),
            None => latch.count_down().map(|()| true),
        };
        log.returned(&id, yes_or_no(counted));
    }

    fn read(&self, log: &mut Recorder<impl Write>, round: &Round, latch: &Latch) {
        let id = log.call(&round.key, Operation::ReadCount);
        let count = latch.count();
        log.returned(
            &id,
            count.map_or_else(|error| Answer::from(&error), |count| Answer::Value(Some(count))),
        );
    }

    fn wait(&self, log: &mut Recorder<impl Write>, round: &Round, latch: &Latch) {
        let deadline = Moment::now().after(round.wait);
        let id = log.call(&round.key, Operation::Await { deadline });
        log.returned(&id, yes_or_no(latch.await_open_for(round.wait)));
    }

    fn pause(&mut self) {
        sleep(Duration::from_millis(5).mul_f64(self.random.f64()));
    }
}

fn called(
    log: &mut Recorder<impl Write>,
    round: &Round,
    operation: Operation,
    call: impl FnOnce() -> dlm::Result<()>,
) {
    let id = log.call(&round.key, operation);
    log.returned(&id, yes_or_no(call().map(|()| true)));
}

fn yes_or_no(answer: dlm::Result<bool>) -> Answer {
    match answer {
        Ok(true) => Answer::Ok,
        Ok(false) => Answer::No,
        Err(error) => Answer::from(&error),
    }
}
