//! Processes that tell each other of released locks.
#![cfg(any(feature = "aerospike", feature = "embedded", feature = "hbase"))]

use std::env;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlm::{Code, Level, LockManager, Mode, Moment};
use dlm_fixtures::dialogue::{Dialogue, next_order, say};
use dlm_fixtures::role;
use dlm_testkit::{LONG, LONGEST, unless_stalled};

const URI: &str = "DLM_TEST_URI";
const CLIENT: &str = "DLM_TEST_CLIENT";
const RETRY: &str = "DLM_TEST_RETRY";
const GRANTS: &str = "DLM_TEST_GRANTS";
const MODE: &str = "DLM_TEST_MODE";

const HOLD: Duration = Duration::from_millis(1);
/// Also how long the lock of a process that was killed stays held.
const TTL: Duration = Duration::from_secs(10);

struct Place {
    uri: String,
    client: String,
    /// The option with which processes hear notices.
    notices: &'static str,
}

impl Place {
    fn new(uri: String, notices: &'static str) -> Place {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        Place { uri, client: format!("notices-{since}"), notices }
    }

    /// Starts a process that takes the lock so many times. It waits for an order first.
    fn start(&self, notices: &str, retry: &str, grants: usize) -> Dialogue {
        self.start_in(Mode::Exclusive, notices, retry, grants)
    }

    fn start_in(&self, mode: Mode, notices: &str, retry: &str, grants: usize) -> Dialogue {
        let mut command = role::process(module_path!(), "loop", &env::temp_dir());
        let separator = if self.uri.contains('?') { '&' } else { '?' };
        command.env(URI, format!("{}{separator}notices={notices}", self.uri)).env(CLIENT, &self.client);
        command.env(RETRY, retry).env(GRANTS, grants.to_string()).env(MODE, mode.name());
        let started = Dialogue::start(&mut command);
        started.report("ready");
        started
    }
}

/// Entry point of the processes of these tests.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    if role::asked().is_none() {
        return;
    }
    let setting = |name: &str| env::var(name).unwrap();
    let builder = LockManager::builder().store_uri(&setting(URI)).client(&setting(CLIENT)).wait(LONGEST);
    let manager = builder.timeout(LONG).ttl(TTL).option("retry", &setting(RETRY)).open().unwrap();
    manager.initialize().unwrap();
    let exclusive = manager.lock("passed", Level::Xdc).unwrap();
    let lock = if setting(MODE) == Mode::Shared.name() { exclusive.shared() } else { exclusive };
    say(format_args!("ready"));
    next_order();
    let (grants, mut fences) = (setting(GRANTS).parse::<usize>().unwrap(), Vec::new());
    while fences.len() < grants {
        let asked = Moment::now();
        // On a busy machine, a lease may end before its grant arrives, or before its release.
        let is_late = || Moment::now().since(asked) >= TTL / 2;
        let lease = match lock.acquire() {
            Ok(lease) => lease,
            Err(error) => {
                assert!(error.code() != Code::LockUnavailable && is_late(), "{}", error.chain());
                continue;
            }
        };
        let ends = lease.ends();
        thread::sleep(HOLD);
        match lease.release() {
            Ok(true) => fences.push(lease.epoch().unwrap().0.to_string()),
            other => {
                assert!(Moment::now() >= ends, "{other:?}");
                continue;
            }
        }
        if fences.len() == 1 {
            say(format_args!("granted"));
        }
    }
    manager.close().unwrap();
    say(format_args!("fences {}", fences.join(" ")));
}

/// Returns the process of each grant, in the order of the fences.
fn turns(processes: Vec<Dialogue>) -> Vec<usize> {
    let mut grants: Vec<(u64, usize)> = Vec::new();
    for (number, process) in processes.into_iter().enumerate() {
        let reports = process.finish();
        let fences = reports.iter().find(|report| report[0] == "fences").expect("its fences");
        grants.extend(fences[1..].iter().map(|fence| (fence.parse().unwrap(), number)));
    }
    grants.sort_unstable();
    grants.into_iter().map(|(_, process)| process).collect()
}

/// Without notices, each process would keep the lock for ten retry intervals, which is longer than the test.
fn a_released_lock_goes_to_the_process_that_waits(place: &Place) {
    // A process that does not answer a notice within 50 ms is passed over.
    unless_stalled(Duration::from_millis(50), || turns_are_taken(place));
}

fn turns_are_taken(place: &Place) {
    const PROCESSES: usize = 8;
    const GRANTS: usize = 40;
    let mut processes: Vec<_> = (0..PROCESSES).map(|_| place.start(place.notices, "5s", GRANTS)).collect();
    processes.iter_mut().for_each(|process| process.order("go"));
    let turns = turns(processes);
    assert_eq!(turns.len(), PROCESSES * GRANTS, "each grant has a fence of its own");
    let changes = turns.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes > turns.len() / 2, "the lock went to another process {changes} times only: {turns:?}");
}

/// Without notices, a writer would find the lock free at one of its polls at best, and so would the readers that it keeps out.
fn readers_and_writers_take_turns(place: &Place) {
    // As above.
    unless_stalled(Duration::from_millis(50), || turns_are_taken_with_readers(place));
}

fn turns_are_taken_with_readers(place: &Place) {
    const GRANTS: usize = 30;
    let modes = [Mode::Shared, Mode::Shared, Mode::Shared, Mode::Shared, Mode::Exclusive, Mode::Exclusive];
    let start = |mode| place.start_in(mode, place.notices, "5s", GRANTS);
    let mut processes: Vec<_> = modes.into_iter().map(start).collect();
    let began = Moment::now();
    processes.iter_mut().for_each(|process| process.order("go"));
    let turns = turns(processes);
    let took = Moment::now().since(began);
    assert_eq!(turns.len(), modes.len() * GRANTS);
    let is_writer = |process: usize| modes[process] == Mode::Exclusive;
    let writers = turns.iter().filter(|process| is_writer(**process)).count();
    assert_eq!(writers, 2 * GRANTS, "each grant of a writer has a number of its own");
    // One turn in five may be found by a poll.
    assert!(took < Duration::from_secs(5) * GRANTS as u32 / 5, "{took:?}");
}

fn a_process_without_notices_among_eight_gets_turns(place: &Place) {
    let mut others: Vec<_> = (0..7).map(|_| place.start(place.notices, "100ms", usize::MAX)).collect();
    others.iter_mut().for_each(|process| process.order("go"));
    others.iter().for_each(|process| drop(process.report("granted")));
    let mut alone = place.start("off", "100ms", 3);
    alone.order("go");
    alone.report("granted");
    alone.report("fences");
}

/// The others have all their grants within the limit of a report, though the line was lost with a process, or the next
/// one in it does not answer.
#[cfg(feature = "embedded")]
fn processes_that_are_killed_are_passed_over(place: &Place) {
    let mut processes: Vec<_> = (0..4).map(|_| place.start(place.notices, "200ms", 200)).collect();
    let mut killed: Vec<_> = (0..3).map(|_| place.start(place.notices, "200ms", usize::MAX)).collect();
    processes.iter_mut().chain(&mut killed).for_each(|process| process.order("go"));
    killed.iter().for_each(|process| drop(process.report("granted")));
    killed.into_iter().for_each(drop);
    assert_eq!(turns(processes).len(), 800);
}

#[cfg(feature = "embedded")]
mod embedded {
    use super::*;

    fn place() -> (Place, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        (Place::new(format!("embedded:{}", directory.path().join("store").display()), "local"), directory)
    }

    #[test]
    fn a_released_lock_goes_to_the_process_that_waits() {
        super::a_released_lock_goes_to_the_process_that_waits(&place().0);
    }

    #[test]
    fn a_process_without_notices_among_eight_gets_turns() {
        super::a_process_without_notices_among_eight_gets_turns(&place().0);
    }

    #[test]
    fn readers_and_writers_take_turns() {
        super::readers_and_writers_take_turns(&place().0);
    }

    #[test]
    fn processes_that_are_killed_are_passed_over() {
        super::processes_that_are_killed_are_passed_over(&place().0);
    }
}

#[cfg(feature = "hbase")]
mod hbase {
    use super::*;
    use dlm_fixtures::{hbase, table};

    fn place() -> Option<Place> {
        table::gateway()?;
        let uri = format!("hbase://{}/{}", hbase::hbase().masters, table::TABLE);
        Some(Place::new(uri, "udp://127.0.0.1"))
    }

    #[test]
    fn readers_and_writers_take_turns() {
        if table::gateway().is_none() {
            return;
        }
        let uri = format!("hbase://{}/dlm_test_notices_own?layout=own", hbase::hbase().masters);
        super::readers_and_writers_take_turns(&Place::new(uri, "udp://127.0.0.1"));
    }

    #[test]
    fn a_released_lock_goes_to_the_process_that_waits() {
        let Some(place) = place() else { return };
        super::a_released_lock_goes_to_the_process_that_waits(&place);
    }

    #[test]
    fn a_process_without_notices_among_eight_gets_turns() {
        let Some(place) = place() else { return };
        super::a_process_without_notices_among_eight_gets_turns(&place);
    }
}

#[cfg(feature = "aerospike")]
mod aerospike {
    use super::*;
    use dlm_fixtures::aerospike::aerospike_or_skip;

    #[test]
    fn readers_and_writers_take_turns() {
        let Some(server) = aerospike_or_skip() else { return };
        let uri = format!("{}?layout=own", server.uri());
        super::readers_and_writers_take_turns(&Place::new(uri, "udp://127.0.0.1"));
    }

    #[test]
    fn a_released_lock_goes_to_the_process_that_waits() {
        let Some(server) = aerospike_or_skip() else { return };
        let place = Place::new(server.uri(), "udp://127.0.0.1");
        super::a_released_lock_goes_to_the_process_that_waits(&place);
    }

    #[test]
    fn a_process_without_notices_among_eight_gets_turns() {
        let Some(server) = aerospike_or_skip() else { return };
        let place = Place::new(server.uri(), "udp://127.0.0.1");
        super::a_process_without_notices_among_eight_gets_turns(&place);
    }
}
