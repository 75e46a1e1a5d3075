//! Histories made by hand. Times are milliseconds.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::time::Duration;

use dlm::{Mode, Moment};
use dlm_testkit::history::{Answer, CallId, Event, History, Operation, Rule, Tolerances, Violation, check};

/// TTL of all leases and latches in sketches.
pub(crate) const TTL: Duration = ms(100);

/// Tolerances with which each moment of a rule is exact.
pub(crate) const EXACT: Tolerances = Tolerances {
    older_records: false,
    clock_rate: 0.0,
    epsilon: Duration::ZERO,
    store_slack: Duration::ZERO,
    linger: Duration::ZERO,
    late: ms(1000),
    stall: ms(5),
    shared_answer: ms(20),
    intent: ms(30),
    epoch: Duration::ZERO,
    wake: ms(10),
    search_steps: 10_000,
};

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A time in a sketch.
pub(crate) fn at(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

/// A history that is being made.
#[derive(Default)]
pub(crate) struct Sketch {
    events: Vec<Event>,
    numbers: HashMap<String, u64>,
}

impl Sketch {
    /// Adds a call on the key `k` that returned at the end of `times`.
    pub(crate) fn add(
        &mut self,
        client: &str,
        times: Range<u64>,
        operation: Operation,
        answer: Answer,
    ) -> CallId {
        let number = self.numbers.entry(client.to_owned()).or_default();
        *number += 1;
        let id = CallId { client: client.into(), number: *number };
        let returned = (answer != Answer::Unknown).then(|| at(times.end));
        let (called, key) = (at(times.start), "k".into());
        self.events.push(Event { id: id.clone(), key, called, returned, operation, answer });
        id
    }

    pub(crate) fn grant(&mut self, client: &str, times: Range<u64>, fence: u64) -> CallId {
        let answer = Answer::Granted { fence: Some(fence), ends: at(times.start) };
        self.acquire(client, times, answer)
    }

    pub(crate) fn acquire(&mut self, client: &str, times: Range<u64>, answer: Answer) -> CallId {
        self.acquire_as(client, times, Mode::Exclusive, answer)
    }

    pub(crate) fn grant_as(&mut self, client: &str, times: Range<u64>, mode: Mode, number: u64) -> CallId {
        let answer = Answer::Granted { fence: Some(number), ends: at(times.start) };
        self.acquire_as(client, times, mode, answer)
    }

    pub(crate) fn acquire_as(
        &mut self,
        client: &str,
        times: Range<u64>,
        mode: Mode,
        answer: Answer,
    ) -> CallId {
        self.add(client, times, Operation::Acquire { ttl: TTL, wait: Duration::ZERO, mode }, answer)
    }

    /// Adds a conversion that is granted this number.
    pub(crate) fn convert(
        &mut self,
        client: &str,
        times: Range<u64>,
        lease: &CallId,
        mode: Mode,
        number: u64,
    ) -> CallId {
        let answer = Answer::Granted { fence: Some(number), ends: at(times.start) };
        self.ask_to_convert(client, times, lease, mode, answer)
    }

    pub(crate) fn ask_to_convert(
        &mut self,
        client: &str,
        times: Range<u64>,
        lease: &CallId,
        mode: Mode,
        answer: Answer,
    ) -> CallId {
        let operation = Operation::Convert { lease: lease.clone(), mode, ttl: TTL, wait: Duration::ZERO };
        self.add(client, times, operation, answer)
    }

    pub(crate) fn write(
        &mut self,
        client: &str,
        times: Range<u64>,
        lease: &CallId,
        fence: u64,
        answer: Answer,
    ) {
        self.add(client, times, Operation::Write { lease: lease.clone(), fence }, answer);
    }

    pub(crate) fn read(
        &mut self,
        client: &str,
        times: Range<u64>,
        lease: &CallId,
        epoch: u64,
        answer: Answer,
    ) {
        self.add(client, times, Operation::Read { lease: lease.clone(), epoch }, answer);
    }

    pub(crate) fn release(&mut self, client: &str, times: Range<u64>, lease: &CallId, answer: Answer) {
        self.add(client, times, Operation::Release { lease: lease.clone() }, answer);
    }

    pub(crate) fn renew(&mut self, client: &str, times: Range<u64>, lease: &CallId) {
        let answer = Answer::Renewed { ends: at(times.start) };
        self.add(client, times, Operation::Renew { lease: lease.clone(), ttl: TTL }, answer);
    }

    pub(crate) fn check(&mut self, client: &str, times: Range<u64>, lease: &CallId, answer: Answer) {
        self.add(client, times, Operation::Check { lease: lease.clone() }, answer);
    }

    pub(crate) fn create_latch(&mut self, client: &str, times: Range<u64>, count: i64, answer: Answer) {
        self.add(client, times, Operation::CreateLatch { count, ttl: TTL }, answer);
    }

    pub(crate) fn count_down(&mut self, client: &str, times: Range<u64>, answer: Answer) {
        self.add(client, times, Operation::CountDown { participant: None }, answer);
    }

    pub(crate) fn count_down_as(&mut self, name: &str, times: Range<u64>, answer: Answer) {
        self.add(name, times, Operation::CountDown { participant: Some(name.to_owned()) }, answer);
    }

    pub(crate) fn read_count(&mut self, times: Range<u64>, count: i64) {
        self.add("reader", times, Operation::ReadCount, Answer::Value(Some(count)));
    }

    pub(crate) fn wait(&mut self, client: &str, times: Range<u64>, deadline: u64, answer: Answer) {
        self.add(client, times, Operation::Await { deadline: at(deadline) }, answer);
    }

    /// Adds a delay of the messages of clients whose names begin with `clients`.
    pub(crate) fn delay(&mut self, clients: &str, times: Range<u64>, longest: Duration) {
        self.add("proxy", times, Operation::Delay { longest }, Answer::Ok);
        self.events.last_mut().expect("it was added").key = clients.into();
    }

    pub(crate) fn outage(&mut self, times: Range<u64>) {
        self.add("server", times, Operation::Outage, Answer::Ok);
    }

    pub(crate) fn history(self) -> History {
        History::new(self.events)
    }

    pub(crate) fn violations(self) -> Vec<Violation> {
        check(&self.history(), &EXACT)
    }

    /// The rules that the history breaks.
    pub(crate) fn broken(self) -> Vec<Rule> {
        let rules: BTreeSet<Rule> = self.violations().iter().map(|violation| violation.rule).collect();
        rules.into_iter().collect()
    }
}
