//! Rounds: the processes run for a while under torture, then all locks are used once more, and the logs are judged.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, fs, thread};

use dlm::{AcquireOptions, Deadline, Level, LockManager};
use dlm_testkit::history::{History, Recorder, Tolerances, check};
use dlm_testkit::workload::LockWorkload;
use dlm_testkit::{LONG, is_long, void};
use fastrand::Rng;
use parking_lot::Mutex;

use crate::bites::Tally;
use crate::crew::Crew;
use crate::incidents::Incidents;
use crate::report;
use crate::role::Process;
use crate::subject::Subject;

/// Repeats the choices of a run. The order in which threads and processes run is up to the machine.
const SEED: &str = "DLM_TORTURE_SEED";
/// Length of the torture of each store.
const SECONDS: &str = "DLM_TORTURE_SECONDS";

/// Seconds of a long run of each store. All of them together take an hour, of 90 minutes that the long form may take.
const LONG_RUN: u64 = 120;
/// A round is judged in memory, so its log must not be too long.
const ROUND_MAX: u64 = 60;

/// A machine may be so many times as slow as one that does enough in the time that was asked for. Further rounds follow
/// until enough faults had an effect.
const SLOW_MACHINE: u64 = 20;

/// Most rounds of a run in which the machine was too slow for the [`Tolerances`]. They are void.
const VOID_MAX: u64 = 3;
/// What the machine is forgiven in a void round: for how long a request may be under way, and a thread may be late.
const SLOWEST: Duration = Duration::from_secs(60);

/// Stores are tortured one after another, so that each has the machine for itself.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A round under way.
pub(crate) struct Stage<'a> {
    pub(crate) incidents: &'a Arc<Incidents>,
    /// Part of the names of the locks.
    pub(crate) client_id: &'a str,
    pub(crate) workload: &'a LockWorkload,
    pub(crate) logs: &'a Path,
    /// The end of the round.
    pub(crate) by: Deadline,
}

impl Stage<'_> {
    /// Sleeps for about this time, and returns whether the round goes on.
    pub(crate) fn goes_on_after(&self, pause: Duration, random: &mut Rng) -> bool {
        let pause = pause.mul_f64(0.2 + 1.6 * random.f64());
        thread::sleep(pause.min(self.by.remaining()));
        !self.by.passed()
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// Returns the length that the environment asks for.
pub(crate) fn asked_seconds() -> Option<u64> {
    setting(SECONDS).or(is_long().then_some(LONG_RUN))
}

/// Runs rounds, and fails if a rule is broken or too few faults had an effect.
pub(crate) fn torture(subject: &Subject<'_>) {
    let _one = ONE_AT_A_TIME.lock();
    let seconds = asked_seconds().unwrap_or(subject.short);
    let first = setting(SEED).unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!(
        "{}: {seconds} s, {SEED}={first} repeats the choices, but not the order of the threads",
        subject.name
    );
    let mut tally = Tally::default();
    let rounds = seconds.div_ceil(ROUND_MAX);
    let lasts = Duration::from_secs(seconds).div_f64(rounds as f64);
    let missing = |tally: &Tally| tally.missing(&subject.least, seconds as f64);
    let (mut number, mut void) = (0, 0);
    while number < rounds || number < rounds * SLOW_MACHINE && !missing(&tally).is_empty() {
        let Some(done) = round(subject, first + number + void, lasts, void < VOID_MAX) else {
            void += 1;
            continue;
        };
        number += 1;
        println!("{}, round {number}: {done}", subject.name);
        tally.add(&done);
    }
    if number > 1 {
        println!("{}, {number} rounds: {tally}", subject.name);
    }
    let missing = missing(&tally);
    assert!(missing.is_empty(), "{}: this run proves nothing: {}", subject.name, missing.join(", "));
}

/// Runs a round. Returns `None` if it is void, which is a failure unless it `may_be_void`.
fn round(subject: &Subject<'_>, seed: u64, lasts: Duration, may_be_void: bool) -> Option<Tally> {
    let logs = report::directory(subject.name, seed);
    let client_id = format!("torture-{:x}", fastrand::u64(..));
    let clients = subject.processes * subject.clients;
    let workload = LockWorkload { seed, clients, lasts, ..subject.workload.clone() };
    let incidents = Incidents::logged_in(&logs);
    let late = run(subject, &workload, &client_id, &logs, &incidents);
    drain(subject, &workload, &client_id, &logs);
    incidents.end();

    let history = History::read(fs::read_dir(&logs).unwrap().map(|entry| entry.unwrap().path())).unwrap();
    let violations = check(&history, &subject.tolerances);
    // Rules about how late a request may be. No rule about exclusion, fences or lost locks depends on these times.
    let usual = &subject.tolerances;
    let slowest = Tolerances {
        late: usual.late.max(SLOWEST),
        stall: usual.stall.max(SLOWEST),
        shared_answer: usual.shared_answer.max(SLOWEST),
        ..usual.clone()
    };
    if may_be_void && !violations.is_empty() && check(&history, &slowest).is_empty() {
        void(&format!("of seed {seed} of {}: the machine was too slow: {}", subject.name, violations[0]));
        fs::remove_dir_all(&logs).unwrap();
        return None;
    }
    if !violations.is_empty() {
        report::fail(&logs, seed, &history, &subject.tolerances, &violations);
    }
    let tally = Tally::of(&history, &subject.tolerances, &incidents, late);
    // Kept if anything before has failed.
    fs::remove_dir_all(&logs).unwrap();
    Some(tally)
}

/// Returns how many requests the servers received late.
fn run(
    subject: &Subject<'_>,
    workload: &LockWorkload,
    client_id: &str,
    logs: &Path,
    incidents: &Arc<Incidents>,
) -> usize {
    let template = Process {
        uri: subject.uri.clone(),
        client_id: client_id.to_owned(),
        number: 0,
        incarnation: 0,
        clients: subject.clients,
        workload: workload.clone(),
    };
    let blows = Arc::new(AtomicBool::new(true));
    let crew = Crew::start(subject, &template, logs, incidents, &blows);
    let stage = Stage { incidents, client_id, workload, logs, by: Deadline::after(workload.lasts) };
    let (stage, ttl) = (&stage, workload.ttl);
    thread::scope(|scope| {
        let random = |number: u64| Rng::with_seed(workload.seed << 8 | 0x80 | number);
        let again = |number: u64, pause: Duration, fault: fn(&Crew<'_>, &mut Rng, Duration)| {
            let (crew, mut random) = (&crew, random(number));
            scope.spawn(move || {
                while stage.goes_on_after(pause, &mut random) {
                    fault(crew, &mut random, ttl);
                }
            });
        };
        again(0, subject.pause, |crew, random, _| crew.kill_one(random));
        again(1, subject.pause * 4, |crew, random, _| crew.cut_one(random));
        for stopper in 0..subject.stoppers {
            let stop = |crew: &Crew<'_>, random: &mut Rng, ttl: Duration| {
                let lasts = ttl.mul_f64(1.2 + 1.8 * random.f64());
                crew.stop_one(random, lasts);
            };
            again(2 + stopper, subject.pause, stop);
        }
        for other in &subject.others {
            scope.spawn(move || other(stage));
        }
    });
    blows.store(false, Ordering::Release);
    crew.end()
}

/// Uses each lock once more, without faults. A lock that nobody can have left behind must be free.
fn drain(subject: &Subject<'_>, workload: &LockWorkload, client_id: &str, logs: &Path) {
    let store = dlm::store::open(&subject.uri).unwrap();
    let mut log = Recorder::append("last", logs.join("last")).unwrap();
    let manager = workload.manager(&store, client_id);
    workload.drain(&manager, &mut log);
    if workload.permits > 0 {
        (0..workload.locks).for_each(|number| all_permits_are_free(&manager, &workload.key(number)));
    }
}

/// Acquires all permits at once: whoever asks for one does not miss another that is lost.
fn all_permits_are_free(manager: &LockManager, key: &str) {
    let semaphore = |permits| manager.semaphore(key, Level::Xdc, permits).unwrap();
    // A store that remembers no number has no permit that is held.
    let Some(size) = semaphore(1).size().unwrap() else { return };
    let all = semaphore(size).acquire_with(size, &AcquireOptions::new().ttl(LONG).wait(LONG));
    let all = all.unwrap_or_else(|error| panic!("a permit of {key} stays held: {error}"));
    assert!(all.release().unwrap(), "{key}");
}
