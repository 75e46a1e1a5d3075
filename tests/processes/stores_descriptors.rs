//! A process that has no file descriptor left. Calls that need one fail with a clear error, and work again when there
//! are descriptors. No thread runs in a busy loop meanwhile. This program starts itself again as that process.
#![cfg(any(feature = "aerospike", feature = "embedded", feature = "hbase"))]

use std::env;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use dlm::{Code, Error, FenceGate, LatchKind, Level, LockManager, Moment};
use dlm_fixtures::dialogue::{Dialogue, say};
use dlm_fixtures::role;
use dlm_testkit::{LONG, until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

const URI: &str = "DLM_TEST_URI";
/// Words of the system's error for a process that has no descriptor left.
const NONE_LEFT: &str = "Too many open files";
/// How long a thread waits for a lock while there is no descriptor.
const WAIT: Duration = Duration::from_secs(2);

/// Entry point of the process without descriptors.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((role, directory)) = role::asked() else { return };
    let uri = env::var(URI).unwrap();
    match role.as_str() {
        "network" => without_sockets(&uri),
        "embedded" => without_files(&uri, &directory),
        other => panic!("no such role: {other}"),
    }
    say(format_args!("done"));
}

/// All descriptors that this process may have are open while this lives.
struct NoneLeft {
    before: Rlimit,
}

impl NoneLeft {
    fn take() -> NoneLeft {
        let before = getrlimit(Resource::Nofile);
        // The next descriptor would get the lowest free number.
        let mut fillers = Vec::new();
        let free = loop {
            let file = File::open("/dev/null").unwrap();
            let number = std::os::fd::AsRawFd::as_raw_fd(&file) as u64;
            if fillers.len() >= 64 {
                break number;
            }
            fillers.push(file);
        };
        // From here on the highest number that may be used is taken by a filler, and the fillers stay open.
        setrlimit(Resource::Nofile, Rlimit { current: Some(free), maximum: before.maximum }).unwrap();
        std::mem::forget(fillers);
        assert!(File::open("/dev/null").is_err(), "a descriptor is left");
        NoneLeft { before }
    }

    fn give_back(self) {
        setrlimit(Resource::Nofile, self.before).unwrap();
    }
}

#[track_caller]
fn clear(error: &Error, codes: &[Code]) {
    assert!(codes.contains(&error.code()), "{}: {}", error.code().name(), error.chain());
    assert!(error.chain().contains(NONE_LEFT), "{}", error.chain());
}

/// Returns the processor time of this process.
fn busy() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn manager(uri: &str, timeout: Duration) -> LockManager {
    let builder = LockManager::builder().store_uri(uri).client("descriptors").farm("f").ttl(10 * LONG);
    let pause = Duration::from_millis(100);
    builder.wait(timeout).retry(pause).poll(pause).timeout(timeout).open().unwrap()
}

/// Runs calls that fail, and checks that no thread of this process was in a busy loop meanwhile.
#[track_caller]
fn calmly(calls: impl FnOnce()) {
    let (began, busy_before) = (Moment::now(), busy());
    calls();
    let (took, busy) = (Moment::now().since(began), busy() - busy_before);
    assert!(busy < took / 20 + Duration::from_millis(100), "{busy:?} of processor time in {took:?}");
}

/// A store that needs a socket for its first call.
fn without_sockets(uri: &str) {
    let codes = [Code::ConnectionError, Code::RetriesExhausted];
    let none_left = NoneLeft::take();
    let manager = manager(uri, WAIT);
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let latch = manager.latch("a", Level::Dc, LatchKind::CountDown).unwrap();
    calmly(|| clear(&lock.try_acquire().unwrap_err(), &codes));
    calmly(|| clear(&lock.acquire().unwrap_err(), &codes));
    calmly(|| clear(&lock.inspect().unwrap_err(), &codes));
    calmly(|| clear(&latch.create(1).unwrap_err(), &codes));
    // A wait for a latch goes on during an outage. When it is over, it reports the outage.
    let began = Moment::now();
    calmly(|| clear(&latch.await_open_for(2 * WAIT).unwrap_err(), &codes));
    assert!(Moment::now().since(began) >= 2 * WAIT);
    assert_eq!(manager.stats().leases_held, 0);
    none_left.give_back();
    // The time-out is short, and this machine may be busy.
    let mut lease = None;
    until("the lock is granted", || {
        lease = lock.acquire().ok();
        lease.is_some()
    });
    let lease = lease.unwrap();
    until("the lease is renewed", || lease.renew().is_ok());
    until("the lock is released", || lease.release().is_ok_and(|released| released));
}

/// A store whose files are open already goes on. What needs a new descriptor fails.
fn without_files(uri: &str, directory: &Path) {
    let manager = manager(uri, LONG);
    let lock = manager.lock("a", Level::Xdc).unwrap();
    assert!(lock.acquire().unwrap().release().unwrap());
    let gate = FenceGate::open(directory.join("gate")).unwrap();
    let none_left = NoneLeft::take();
    let lease = lock.acquire().unwrap();
    lease.renew().unwrap();
    clear(&lease.lost_fd().unwrap_err(), &[Code::InternalError]);
    let fence = lease.fence().unwrap();
    clear(&gate.pass(fence).unwrap_err(), &[Code::RetriesExhausted]);
    let other = format!("embedded:{}", directory.join("other").display());
    clear(&dlm::store::open(&other).unwrap_err(), &[Code::ConnectionError, Code::RetriesExhausted]);
    lease.check().unwrap();
    none_left.give_back();
    lease.lost_fd().unwrap();
    drop(gate.pass(fence).unwrap());
    dlm::store::open(&other).unwrap();
    assert!(lease.release().unwrap());
}

fn in_a_process(role: &str, uri: &str, directory: &Path) {
    let process = Dialogue::start(role::process(module_path!(), role, directory).env(URI, uri));
    process.report("done");
    process.finish();
}

#[cfg(feature = "embedded")]
#[test]
fn the_embedded_store_goes_on_without_descriptors_and_says_what_needs_one() {
    let directory = tempfile::tempdir().unwrap();
    let uri = format!("embedded:{}", directory.path().join("store").display());
    in_a_process("embedded", &uri, directory.path());
}

#[cfg(feature = "hbase")]
#[test]
fn hbase_without_descriptors_is_a_clear_error_and_serves_again() {
    let fake = dlm_fixtures::fake::Fake::honest();
    let directory = tempfile::tempdir().unwrap();
    in_a_process("network", &format!("hbase://{}/locks", fake.address), directory.path());
}

#[cfg(feature = "gateway")]
#[test]
fn a_gateway_without_descriptors_is_a_clear_error_and_serves_again() {
    let Some(gateway) = dlm_fixtures::table::gateway() else { return };
    let directory = tempfile::tempdir().unwrap();
    in_a_process("network", &dlm_fixtures::table::uri(gateway), directory.path());
}

#[cfg(feature = "aerospike")]
#[test]
fn aerospike_without_descriptors_is_a_clear_error_and_serves_again() {
    let Some(server) = dlm_fixtures::aerospike::aerospike_or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    in_a_process("network", &server.uri(), directory.path());
}
