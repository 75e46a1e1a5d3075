//! Processes that are killed or stopped while they use the locks of a store: what they have logged breaks no rule.

use std::env;
use std::fs;
use std::path::Path;
use std::process;
use std::thread;
use std::time::Duration;

use dlm::Deadline;
use dlm_fixtures::role::{self, Running};
use dlm_testkit::history::{Answer, History, Operation, Recorder, Tolerances, check};
use dlm_testkit::workload::LockWorkload;
use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};

const PROCESSES: usize = 4;
const URI: &str = "DLM_TEST_URI";
const TTL_MS: &str = "DLM_TEST_TTL_MS";

/// Longest time that the processes of these tests live.
const LASTS_MAX: Duration = Duration::from_secs(600);

/// What a process of the tests does until it is killed.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((client, directory)) = role::asked() else { return };
    let store = dlm::store::open(&env::var(URI).unwrap()).unwrap();
    let ttl = Duration::from_millis(env::var(TTL_MS).unwrap().parse().unwrap());
    let number = u64::from(process::id());
    let name = format!("process-{number}");
    let mut log = Recorder::append(&name, directory.join(&name)).unwrap();
    let workload = LockWorkload { ttl, lasts: LASTS_MAX, ..LockWorkload::new(number) };
    workload.run_client(&store, &client, number, None, &mut log);
}

/// A store, and how its leases are used.
struct Subject<'a> {
    uri: &'a str,
    ttl: Duration,
    /// How much longer than its TTL the store may keep a lease.
    store_slack: Duration,
    lasts: Duration,
}

impl Subject<'_> {
    fn start(&self, client: &str, logs: &Path) -> Running {
        let mut command = role::process(module_path!(), client, logs);
        command.env(URI, self.uri).env(TTL_MS, self.ttl.as_millis().to_string());
        command.spawn().map(Running).unwrap()
    }

    /// Kills and stops the processes again and again, and then checks what they have logged.
    fn torture(&self) {
        let directory = tempfile::tempdir().unwrap();
        let logs = directory.path();
        let client = format!("killed-{}", fastrand::u64(..));
        let mut random = Rng::with_seed(1);
        let mut running: Vec<Running> = (0..PROCESSES).map(|_| self.start(&client, logs)).collect();
        let (mut kills, mut stops) = (0, 0);
        let by = Deadline::after(self.lasts);
        while !by.passed() {
            thread::sleep(self.ttl.mul_f64(0.3 + 1.7 * random.f64()));
            let chosen = &mut running[random.usize(..PROCESSES)];
            if random.bool() {
                // Dropping it kills the process before.
                *chosen = self.start(&client, logs);
                kills += 1;
            } else {
                let pid = Pid::from_child(&chosen.0);
                kill_process(pid, Signal::STOP).unwrap();
                thread::sleep(self.ttl.mul_f64(0.2 + 2.3 * random.f64()));
                kill_process(pid, Signal::CONT).unwrap();
                stops += 1;
            }
        }
        drop(running);
        let history = History::read(fs::read_dir(logs).unwrap().map(|entry| entry.unwrap().path())).unwrap();
        let tolerances = Tolerances { store_slack: self.store_slack, ..Tolerances::default() };
        let violations: Vec<_> = check(&history, &tolerances).iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "{}", violations.join("\n"));

        let count =
            |wanted: fn(&Answer) -> bool| history.events().iter().filter(|it| wanted(&it.answer)).count();
        let granted = count(|answer| matches!(answer, Answer::Granted { .. }));
        let unknown = count(|answer| *answer == Answer::Unknown);
        let lost = history.events().iter().filter(|it| {
            matches!(it.operation, Operation::Renew { .. } | Operation::Release { .. })
                && it.answer == Answer::Lost
        });
        let (calls, lost) = (history.events().len(), lost.count());
        println!(
            "{}: {calls} calls, {granted} grants, {kills} kills, {stops} stops, {unknown} calls without an answer, \
             {lost} leases found lost",
            self.uri
        );
        // Too few would prove nothing.
        assert!(
            granted > PROCESSES && kills > 0 && stops > 0,
            "{granted} grants, {kills} kills, {stops} stops"
        );
    }
}

/// Long enough for a few dozen faults, and in the long run for many.
fn lasts(short: Duration) -> Duration {
    if dlm_testkit::shortened("a few seconds of kills and stops") { short } else { short * 20 }
}

#[cfg(feature = "embedded")]
#[test]
fn killed_and_stopped_processes_break_no_rule_on_the_embedded_store() {
    let directory = tempfile::tempdir().unwrap();
    let uri = format!("embedded:{}", directory.path().display());
    let [ttl, short] = [60, 3000].map(Duration::from_millis);
    Subject { uri: &uri, ttl, store_slack: Duration::ZERO, lasts: lasts(short) }.torture();
}

#[cfg(all(feature = "hbase", feature = "gateway"))]
#[test]
fn killed_and_stopped_processes_break_no_rule_on_hbase() {
    let (Some(_), Some(hbase)) = (dlm_fixtures::table::gateway(), dlm_fixtures::hbase::hbase_or_skip())
    else {
        return;
    };
    let uri = format!("hbase://{}/{}", hbase.master, dlm_fixtures::table::TABLE);
    let [ttl, short] = [400, 8000].map(Duration::from_millis);
    Subject { uri: &uri, ttl, store_slack: Duration::ZERO, lasts: lasts(short) }.torture();
}

#[cfg(feature = "gateway")]
#[test]
fn killed_and_stopped_processes_break_no_rule_through_a_gateway() {
    let Some(gateway) = dlm_fixtures::table::gateway() else { return };
    let uri = dlm_fixtures::table::uri(gateway);
    let [ttl, short] = [600, 8000].map(Duration::from_millis);
    Subject { uri: &uri, ttl, store_slack: Duration::ZERO, lasts: lasts(short) }.torture();
}

/// Its leases last for whole seconds, and for up to one more.
#[cfg(feature = "aerospike")]
#[test]
fn killed_and_stopped_processes_break_no_rule_on_aerospike() {
    let Some(place) = dlm_fixtures::aerospike::aerospike_or_skip() else { return };
    let [ttl, store_slack, short] = [1, 2, 15].map(Duration::from_secs);
    Subject { uri: &place.uri(), ttl, store_slack, lasts: lasts(short) }.torture();
}
