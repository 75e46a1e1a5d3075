//! Processes that exclude each other, and processes that are killed. This program starts itself again as the other
//! processes, see [`worker`].
#![cfg(any(feature = "aerospike", feature = "embedded", feature = "gateway"))]

use std::io::{BufRead as _, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, fs, thread};

use dlm::{Fence, Level, Lock, LockManager, Moment};
use dlm_fixtures::role::test_in;
use dlm_testkit::{LONG, LONGEST};

const RETRY: Duration = Duration::from_millis(300);
/// How late a thread on a busy machine may be, at any time.
const SLACK: Duration = LONG;
/// How late it may be in the best of some rounds. Machines are not busy all the time.
const BEST_SLACK: Duration = Duration::from_secs(1);
/// Rounds that are made in any case, and rounds after which no better one is waited for.
const ROUNDS: [usize; 2] = [4, 20];

/// The store and the client name that the processes of one test share.
struct Place {
    uri: String,
    client: String,
    /// How much longer than its TTL the store may keep a lease.
    rounding: Duration,
}

impl Place {
    fn new(uri: String) -> Place {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        Place { uri, client: format!("processes-{since}"), rounding: Duration::ZERO }
    }

    fn lock(&self) -> Lock {
        let builder = LockManager::builder().store_uri(&self.uri).client(&self.client).timeout(LONG);
        let manager = builder.ttl(10 * LONG).wait(LONGEST).retry(RETRY).open().unwrap();
        manager.lock("a", Level::Xdc).unwrap()
    }

    /// Starts this program as a process with this role.
    fn start(&self, role: &str, settings: &[(&str, String)]) -> Worker {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([
            &test_in(module_path!(), "worker"),
            "--ignored",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env("DLM_TEST_ROLE", role).env("DLM_TEST_URI", &self.uri);
        command.env("DLM_TEST_CLIENT", &self.client).envs(settings.iter().map(|(key, value)| (key, value)));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Worker { child, lines }
    }
}

/// A process of a test. Dropping it kills the process.
struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Reads lines until one contains `word`, and returns the numbers after it.
    fn hear(&mut self, word: &str) -> Vec<u64> {
        let line =
            self.lines.find_map(|line| line.unwrap().split_once(word).map(|(_, rest)| rest.to_owned()));
        let line = line.unwrap_or_else(|| panic!("the worker ended before it printed {word:?}"));
        line.split_whitespace().map(|number| number.parse().unwrap()).collect()
    }

    fn finish(mut self) {
        self.lines.by_ref().for_each(drop);
        assert!(self.child.wait().unwrap().success(), "the worker failed");
    }

    /// Sends SIGKILL: the process cannot even close its connections.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Entry point of the other processes.
#[test]
#[ignore = "a process of the tests"]
fn worker() {
    let Ok(role) = env::var("DLM_TEST_ROLE") else { return };
    let setting = |name: &str| env::var(name).unwrap();
    let place = Place { client: setting("DLM_TEST_CLIENT"), ..Place::new(setting("DLM_TEST_URI")) };
    match role.as_str() {
        "count" => {
            let rounds = setting("DLM_TEST_ROUNDS").parse().unwrap();
            count(&place.lock(), rounds, Path::new(&setting("DLM_TEST_FILE")));
        }
        "hold" => hold(&place.lock(), ttl(&setting("DLM_TEST_TTL_MS"))),
        "churn" => churn(&place.lock(), ttl(&setting("DLM_TEST_TTL_MS"))),
        other => panic!("no such role: {other}"),
    }
}

fn ttl(ms: &str) -> Duration {
    Duration::from_millis(ms.parse().unwrap())
}

/// Adds one to the number in a file `rounds` times, with a separate read and write. The file also contains the last
/// fence.
fn count(lock: &Lock, rounds: usize, file: &Path) {
    for _ in 0..rounds {
        let lease = lock.acquire().unwrap();
        let (counted, fence) = read(file);
        assert!(lease.fence() > Some(Fence(fence)), "fence {:?} after {fence}", lease.fence());
        thread::yield_now();
        fs::write(file, format!("{} {}", counted + 1, lease.fence().unwrap())).unwrap();
        assert!(lease.release().unwrap());
    }
}

fn read(file: &Path) -> (u64, u64) {
    let text = fs::read_to_string(file).unwrap();
    let (counted, fence) = text.split_once(' ').unwrap_or_else(|| panic!("two processes wrote: {text:?}"));
    (counted.parse().unwrap(), fence.parse().unwrap())
}

/// Acquires the lock and holds it until the process is killed.
fn hold(lock: &Lock, ttl: Duration) {
    // On a busy machine the lease may end before the grant arrives.
    let (asked, lease) = loop {
        let asked = Moment::now();
        match lock.acquire_with_ttl(ttl) {
            Ok(lease) => break (asked, lease),
            Err(error) => assert!(error.is_retryable(), "{}", error.chain()),
        }
    };
    println!("\nheld {} {} {}", asked.as_nanos(), lease.ends().as_nanos(), lease.fence().unwrap());
    thread::sleep(LONGEST);
}

/// Acquires and releases the lock until the process is killed.
fn churn(lock: &Lock, ttl: Duration) {
    println!("\nchurning");
    let began = Moment::now();
    while Moment::now().since(began) < LONGEST {
        // On a busy machine a short lease may expire too soon. Then the loop tries again.
        if let Ok(lease) = lock.acquire_with_ttl(ttl) {
            let _ = lease.release();
        }
    }
}

fn processes_count_exactly(place: &Place, rounds: usize) {
    const PROCESSES: usize = 4;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("counter");
    fs::write(&file, "0 0").unwrap();
    let settings =
        [("DLM_TEST_ROUNDS", rounds.to_string()), ("DLM_TEST_FILE", file.to_str().unwrap().to_owned())];
    let workers: Vec<_> = (0..PROCESSES).map(|_| place.start("count", &settings)).collect();
    workers.into_iter().for_each(Worker::finish);
    assert_eq!(read(&file).0, (PROCESSES * rounds) as u64);
}

fn the_lock_of_a_killed_process_is_granted_when_its_ttl_ends(place: &Place) {
    let ttl = Duration::from_millis(2500);
    let lock = place.lock();
    let mut least_late = Duration::MAX;
    let most_late = RETRY + RETRY / 10 + BEST_SLACK + place.rounding;
    for round in 0..ROUNDS[1] {
        if round >= ROUNDS[0] && least_late <= most_late {
            break;
        }
        let mut holder = place.start("hold", &[("DLM_TEST_TTL_MS", ttl.as_millis().to_string())]);
        let told = holder.hear("held ");
        let (asked, ends) = (Moment::from_nanos(told[0]), Moment::from_nanos(told[1]));
        holder.kill();
        let next = lock.acquire().unwrap();
        let granted = Moment::now();
        // All processes of a machine share this clock.
        assert!(granted >= asked.after(ttl), "{:?} early", asked.after(ttl).since(granted));
        let late = granted.since(ends);
        assert!(late <= RETRY + RETRY / 10 + SLACK + place.rounding, "{late:?} late");
        least_late = least_late.min(late);
        assert!(next.fence() > Some(Fence(told[2])));
        assert!(next.release().unwrap());
    }
    assert!(least_late <= most_late, "{least_late:?} late in the best round");
}

fn a_process_killed_at_any_moment_leaves_a_lock_for_its_ttl_at_most(place: &Place) {
    let ttl = Duration::from_millis(600);
    let lock = place.lock();
    let mut last = None;
    for round in 0..6 {
        let mut other = place.start("churn", &[("DLM_TEST_TTL_MS", ttl.as_millis().to_string())]);
        other.hear("churning");
        thread::sleep(Duration::from_micros(fastrand::u64(..30_000)));
        other.kill();
        let killed = Moment::now();
        let lease = lock.acquire().unwrap();
        let late = Moment::now().since(killed.after(ttl));
        assert!(late <= RETRY + RETRY / 10 + SLACK + place.rounding, "{late:?} late in round {round}");
        assert!(lease.fence() > last);
        last = lease.fence();
        assert!(lease.release().unwrap());
    }
}

/// Defines a test for each case. `$with_place` calls the case with its `Place`.
macro_rules! processes {
    ($with_place:ident, $rounds:literal) => {
        #[test]
        fn processes_count_exactly() {
            $with_place(|place| super::processes_count_exactly(place, $rounds));
        }

        #[test]
        fn the_lock_of_a_killed_process_is_granted_when_its_ttl_ends() {
            $with_place(super::the_lock_of_a_killed_process_is_granted_when_its_ttl_ends);
        }

        #[test]
        fn a_process_killed_at_any_moment_leaves_a_lock_for_its_ttl_at_most() {
            $with_place(super::a_process_killed_at_any_moment_leaves_a_lock_for_its_ttl_at_most);
        }
    };
}

#[cfg(feature = "embedded")]
mod embedded {
    use super::Place;

    fn with_place(test: impl FnOnce(&Place)) {
        let directory = tempfile::tempdir().unwrap();
        test(&Place::new(format!("embedded:{}", directory.path().display())));
    }

    processes!(with_place, 500);
}

#[cfg(feature = "gateway")]
mod hbase {
    use super::Place;
    use dlm_fixtures::table;

    /// If this machine cannot run HBase, says so and does nothing.
    fn with_place(test: impl FnOnce(&Place)) {
        if let Some(gateway) = table::gateway() {
            test(&Place::new(table::uri(gateway)));
        }
    }

    processes!(with_place, 100);
}

#[cfg(feature = "aerospike")]
mod aerospike {
    use super::Place;
    use dlm_fixtures::aerospike::aerospike_or_skip;

    /// If this machine has no Aerospike server, says so and does nothing.
    fn with_place(test: impl FnOnce(&Place)) {
        if let Some(server) = aerospike_or_skip() {
            // TTLs are rounded up to whole seconds, and a record disappears up to a second later.
            test(&Place { rounding: std::time::Duration::from_secs(2), ..Place::new(server.uri()) });
        }
    }

    processes!(with_place, 500);
}
