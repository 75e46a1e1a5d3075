//! Processes that share an embedded store. They count without losing a step, are killed at any moment and at any
//! system call, are stopped while they write, and have failing writes.
#![cfg(feature = "embedded")]

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use dlm::store::{Acquired, Attempt, EmbeddedStore, Identity, LockStore, Released};
use dlm::{Code, Deadline};
use dlm_fixtures::role::{self, DIR, ROLE, Running, process};
use dlm_testkit::{LONG, skipped};

use super::embedded::{TTL, data_file, fence, grant, has_half_made, name, soon, wait_for};

const COUNT: &str = "DLM_TEST_COUNT";

/// Entry point of the processes of these tests.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((role, dir)) = role::asked() else { return };
    match role.as_str() {
        "count" => count(&dir),
        "hammer" => hammer(&dir),
        "steps" => steps(&dir),
        "trouble" => trouble(&dir),
        "shared-trouble" => shared_trouble(&dir),
        "write" => write(&dir),
        role => panic!("no role {role:?}"),
    }
}

#[test]
fn processes_counting_under_the_lock_lose_no_step() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("counter"), "0").unwrap();
    let (processes, cycles) = (6, 700);
    let children: Vec<_> = (0..processes)
        .map(|_| process(module_path!(), "count", dir.path()).env(COUNT, cycles.to_string()).spawn().unwrap())
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let counter = fs::read_to_string(dir.path().join("counter")).unwrap();
    assert_eq!(counter, (processes * cycles).to_string());
    // Each holder appended its fence while it held the lock, so the file is in the order of the grants.
    let fences: Vec<u64> = fs::read_to_string(dir.path().join("fences"))
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert_eq!(fences.len(), processes * cycles);
    assert!(fences.is_sorted_by(|a, b| a < b), "a fence was lower than or equal to the one before");
}

/// Reads, changes and writes back one file for each grant. Only the lock makes this atomic.
fn count(dir: &Path) {
    let store = EmbeddedStore::open(&dir.join("store")).unwrap();
    let mut fences = File::options().create(true).append(true).open(dir.join("fences")).unwrap();
    let cycles: usize = env::var(COUNT).unwrap().parse().unwrap();
    for _ in 0..cycles {
        let held = wait_for(&store, &name("counter"), TTL);
        let counter: u64 = fs::read_to_string(dir.join("counter")).unwrap().parse().unwrap();
        fs::write(dir.join("counter"), (counter + 1).to_string()).unwrap();
        writeln!(fences, "{}", fence(&held)).unwrap();
        assert_eq!(store.release(&name("counter"), &held.owner_record, soon()).unwrap(), Released::Freed);
    }
}

/// Child processes open the store, use it without a pause and are killed at random moments.
#[test]
fn killed_processes_leave_a_store_that_opens_locks_that_end_and_fences_that_rise() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (mut highest, mut grants) = (0, 0);
    // Long enough for some grants. How long that is depends on the machine, so the value may grow below.
    let mut kill_within_us = 12_000;
    let by = Deadline::after(5 * LONG);
    for round in 0.. {
        // On a slow machine it may take more rounds until something was tested.
        if round >= 50 && (grants > 0 || by.passed()) {
            break;
        }
        let grants_before = grants;
        let mut children: Vec<Running> = (0..3)
            .map(|_| {
                Running(process(module_path!(), "hammer", dir.path()).stdout(Stdio::piped()).spawn().unwrap())
            })
            .collect();
        for child in &mut children {
            thread::sleep(Duration::from_micros(fastrand::u64(0..kill_within_us)));
            child.0.kill().unwrap();
        }
        for mut child in children {
            child.0.wait().unwrap();
            let told = BufReader::new(child.0.stdout.take().unwrap()).lines();
            // The last line may be cut by the kill.
            for fence in told
                .map_while(std::result::Result::ok)
                .filter_map(|line| line.strip_suffix('.')?.parse().ok())
            {
                highest = highest.max(fence);
                grants += 1;
            }
        }
        if grants == grants_before {
            kill_within_us = (2 * kill_within_us).min(10_000_000);
        }
        let store =
            EmbeddedStore::open(&path).unwrap_or_else(|error| panic!("round {round}: {}", error.chain()));
        let held = wait_for(&store, &name("hammered"), TTL);
        assert!(fence(&held) > highest, "round {round}: fence {} after {highest}", fence(&held));
        highest = fence(&held);
        assert_eq!(store.release(&name("hammered"), &held.owner_record, soon()).unwrap(), Released::Freed);
    }
    assert!(grants > 0, "every process was killed before its first grant: nothing was tested");
    assert!(!has_half_made(&path));
}

/// Prints each fence that it receives.
fn hammer(dir: &Path) {
    let store = EmbeddedStore::open(&dir.join("store")).unwrap();
    let mut out = std::io::stdout().lock();
    for round in 0..1_000_000 {
        let held = wait_for(&store, &name("hammered"), Duration::from_millis(20));
        writeln!(out, "{}.", fence(&held)).unwrap();
        if round % 3 != 0 {
            // Not always `Freed`: this machine may have been too slow for the lease.
            store.release(&name("hammered"), &held.owner_record, soon()).unwrap();
        }
        grant(&store, &name(&format!("other-{}", fastrand::u8(..))), Duration::from_millis(1));
    }
}

/// Sends SIGKILL at each system call in turn, from creating the store to releasing a lock.
#[test]
fn a_process_killed_at_any_system_call_leaves_a_store_that_works() {
    if !has_strace() {
        return skipped("strace", NO_STRACE);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (mut killed, mut highest) = (0, 0);
    for (call, fresh) in CALLS.iter().flat_map(|call| [(call, true), (call, false)]) {
        for when in 1..500 {
            if fresh && path.exists() {
                fs::remove_dir_all(&path).unwrap();
                highest = 0;
            }
            fs::write(dir.path().join("told"), "").unwrap();
            let to_its_end = traced("steps", dir.path(), &format!("inject={call}:signal=KILL:when={when}"));
            for fence in fs::read_to_string(dir.path().join("told")).unwrap().lines() {
                highest = highest.max(fence.parse().unwrap());
            }
            let at = format!("killed at {call} number {when}, fresh {fresh}");
            let store = EmbeddedStore::open(&path).unwrap_or_else(|error| panic!("{at}: {}", error.chain()));
            let held = wait_for(&store, &name("stepped"), TTL);
            assert!(fence(&held) > highest, "{at}: fence {} after {highest}", fence(&held));
            highest = fence(&held);
            assert_eq!(store.release(&name("stepped"), &held.owner_record, soon()).unwrap(), Released::Freed);
            assert!(!has_half_made(&path), "{at}: an incomplete generation is left");
            if to_its_end {
                break;
            }
            killed += 1;
        }
    }
    assert!(killed > 50, "killed only {killed} times");
    // The next process that creates a liveness file deletes those of the killed ones. It checks at most 32 at once.
    for number in 0..killed {
        let store = EmbeddedStore::open(&path).unwrap();
        let identity = Identity::this_process("").unwrap();
        let name = name(&format!("last-{number}"));
        let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: soon() };
        store.liveness().unwrap().acquire_until_death(attempt, &mut Vec::new()).unwrap();
    }
    let generation = data_file(&path).parent().unwrap().to_owned();
    let left = fs::read_dir(generation).unwrap().flatten().map(|file| file.file_name());
    let left: Vec<_> = left.filter(|name| name.to_str().unwrap().starts_with("alive-")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// System calls that change files or locks. Each is injected alone, because strace counts each call separately.
const CALLS: [&str; 15] = [
    "openat",
    "pwrite64",
    "writev",
    "write",
    "ftruncate",
    "fcntl",
    "flock",
    "mkdir",
    "rename",
    "fsync",
    "fchmod",
    "unlink",
    "mmap",
    "munmap",
    "close",
];

fn steps(dir: &Path) {
    let store = EmbeddedStore::open(&dir.join("store")).unwrap();
    let mut told = File::options().append(true).open(dir.join("told")).unwrap();
    let identity = Identity::this_process("").unwrap();
    for round in 0..3 {
        let (name, ttl) = (name("stepped"), Duration::from_millis(20));
        let until_death = || {
            let attempt = Attempt { name: &name, ttl, identity: &identity, by: soon() };
            match store.liveness().unwrap().acquire_until_death(attempt, &mut Vec::new()).unwrap() {
                Acquired::Granted(held) => Some(held),
                Acquired::Held(_) => None,
            }
        };
        let held = match round {
            1 => until_death().unwrap_or_else(|| wait_for(&store, &name, ttl)),
            _ => wait_for(&store, &name, ttl),
        };
        told.write_all(format!("{}\n", fence(&held)).as_bytes()).unwrap();
        store.release(&name, &held.owner_record, soon()).unwrap();
    }
}

/// Each write in turn fails once. If a write of new pages fails, nothing has changed. If the write of the page that
/// completes the change fails, the change is in doubt. In both cases the next call works.
#[test]
fn a_failed_write_is_told_right_and_the_store_goes_on() {
    if !has_strace() {
        return skipped("strace", NO_STRACE);
    }
    let dir = tempfile::tempdir().unwrap();
    // Only stores of groups are sure to be written by calls.
    drop(EmbeddedStore::open_group(&dir.path().join("store")).unwrap());
    let mut codes = Vec::new();
    for (call, error) in [
        ("pwrite64", "EIO"),
        ("pwrite64", "ENOSPC"),
        ("writev", "EIO"),
        ("writev", "ENOSPC"),
        ("writev", "EDQUOT"),
    ] {
        for when in 1..=12 {
            let inject = format!("inject={call}:error={error}:when={when}");
            assert!(traced("trouble", dir.path(), &inject), "{inject}");
            codes.extend(fs::read_to_string(dir.path().join("codes")).unwrap().lines().map(str::to_owned));
        }
    }
    codes.sort();
    codes.dedup();
    assert_eq!(codes, ["IN_DOUBT", "RETRIES_EXHAUSTED"]);
}

fn trouble(dir: &Path) {
    let store = EmbeddedStore::open_group(&dir.join("store")).unwrap();
    let identity = Identity::this_process("").unwrap();
    let (mut codes, mut highest) = (Vec::new(), 0);
    for id in 0..10 {
        let name = name(&format!("{}-{id}", std::process::id()));
        let mut doubtful = Vec::new();
        match store.acquire(Attempt { name: &name, ttl: TTL, identity: &identity, by: soon() }, &mut doubtful)
        {
            Ok(Acquired::Granted(held)) => {
                assert!(fence(&held) > highest);
                highest = fence(&held);
                if let Err(error) = store.release(&name, &held.owner_record, soon()) {
                    codes.push(error.code());
                    if !error.is_in_doubt() {
                        assert!(store.holder(&name, soon()).unwrap().is_some(), "a failed release released");
                    }
                    store.release(&name, &held.owner_record, soon()).unwrap();
                }
            }
            Ok(Acquired::Held(_)) => panic!("nobody else is here"),
            Err(error) => {
                codes.push(error.code());
                assert_eq!(doubtful.len(), usize::from(error.is_in_doubt()));
                let held = store.holder(&name, soon()).unwrap().is_some();
                assert!(!held || error.is_in_doubt(), "a failed grant granted");
                for owner_record in doubtful {
                    store.release(&name, &owner_record, soon()).unwrap();
                }
            }
        }
        assert!(store.holder(&name, soon()).unwrap().is_none());
    }
    assert_eq!(codes.len(), 1, "one write fails, the others work");
    fs::write(dir.join("codes"), codes[0].name()).unwrap();
}

/// Like the case above, for threads whose changes share a transaction: each of them is told right what has become of its own.
#[test]
fn a_failed_write_of_a_shared_transaction_is_told_right_to_each_thread() {
    if !has_strace() {
        return skipped("strace", NO_STRACE);
    }
    let dir = tempfile::tempdir().unwrap();
    // Only stores of groups are sure to be written by calls.
    drop(EmbeddedStore::open_group(&dir.path().join("store")).unwrap());
    let codes = |call, error, when| {
        let inject = format!("inject={call}:error={error}:when={when}");
        assert!(traced("shared-trouble", dir.path(), &inject), "{inject}");
        let codes = fs::read_to_string(dir.path().join("codes")).unwrap();
        let count = |code| codes.lines().filter(|line| *line == code).count();
        [count("IN_DOUBT"), count("RETRIES_EXHAUSTED")]
    };
    let failed: Vec<_> = (1..=8).map(|when| codes("pwrite64", "EIO", when)).collect();
    // A write fails once in each thread. So there are more doubts than that only if threads share one.
    assert!(failed.iter().any(|[in_doubt, _]| *in_doubt > SHARING_THREADS), "{failed:?}");
    let full: Vec<_> = (1..=8).map(|when| codes("writev", "ENOSPC", when)).collect();
    assert!(full.iter().any(|[_, refused]| *refused > 0), "{full:?}");
}

/// Threads that write at the same time.
const SHARING_THREADS: usize = 6;

fn shared_trouble(dir: &Path) {
    const ROUNDS: usize = 20;
    let store = EmbeddedStore::open_group(&dir.join("store")).unwrap();
    let identity = Identity::this_process("").unwrap();
    // A failed write of another thread may refuse the second try as well.
    let is_released =
        |name: &_, owner_record: &_| (0..100).any(|_| store.release(name, owner_record, soon()).is_ok());
    let one = |id: &str| {
        let (name, mut codes) = (name(id), Vec::new());
        for _ in 0..ROUNDS {
            let mut doubtful = Vec::new();
            let attempt = Attempt { name: &name, ttl: TTL, identity: &identity, by: soon() };
            let owner_record = match store.acquire(attempt, &mut doubtful) {
                Ok(Acquired::Granted(held)) => held.owner_record,
                Ok(Acquired::Held(holder)) => panic!("held by {holder}"),
                Err(error) => {
                    codes.push(error.code());
                    assert_eq!(doubtful.len(), usize::from(error.is_in_doubt()));
                    let held = store.holder(&name, soon()).unwrap().is_some();
                    assert!(!held || error.is_in_doubt(), "a failed grant granted");
                    let Some(owner_record) = doubtful.pop() else { continue };
                    owner_record
                }
            };
            if let Err(error) = store.release(&name, &owner_record, soon()) {
                codes.push(error.code());
                assert!(is_released(&name, &owner_record));
            }
            assert!(store.holder(&name, soon()).unwrap().is_none());
        }
        codes
    };
    let codes: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..SHARING_THREADS)
            .map(|thread| {
                let one = &one;
                scope.spawn(move || one(&format!("{}-{thread}", std::process::id())))
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let codes: Vec<_> = codes.iter().map(|code| code.name()).collect();
    fs::write(dir.join("codes"), codes.join("\n")).unwrap();
}

const NO_STRACE: &str = "strace is not installed, or may not trace";

fn has_strace() -> bool {
    Command::new("strace").args(["-o", "/dev/null", "true"]).status().is_ok_and(|status| status.success())
}

/// Runs `role` with injected failures. Returns whether it succeeded.
fn traced(role: &str, dir: &Path, inject: &str) -> bool {
    let traced = process(module_path!(), role, dir);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-o", "/dev/null", "-e", inject]).arg(traced.get_program()).args(traced.get_args());
    strace.env(ROLE, role).env(DIR, dir).current_dir(dir).stdout(Stdio::null());
    strace.status().unwrap().success()
}

#[test]
fn a_process_stopped_while_it_writes_does_not_hang_the_others_beyond_their_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(&dir.path().join("store")).unwrap();
    let mut child = Running(process(module_path!(), "write", dir.path()).spawn().unwrap());
    let ready = soon();
    while !dir.path().join("ready").exists() {
        assert!(!ready.passed() && child.0.try_wait().unwrap().is_none(), "the writer did not start");
        thread::sleep(Duration::from_millis(1));
    }
    // The child writes all the time, so after a few attempts it is stopped in the middle of a write.
    let identity = Identity::this_process("").unwrap();
    let (mut stopped, stops) = (0, soon());
    for id in 0.. {
        signal(&child.0, "STOP");
        let by = Deadline::after(Duration::from_millis(100));
        let name = name(&format!("mine-{id}"));
        match store.acquire(Attempt { name: &name, ttl: TTL, identity: &identity, by }, &mut Vec::new()) {
            Ok(answer) => assert!(matches!(answer, Acquired::Granted(_))),
            Err(error) => {
                assert_eq!(error.code(), Code::RetriesExhausted, "{}", error.chain());
                stopped += 1;
            }
        }
        signal(&child.0, "CONT");
        // On a busy machine it may take long until the child runs and is stopped within a write.
        if stopped == 3 || stops.passed() {
            break;
        }
        thread::sleep(Duration::from_micros(fastrand::u64(100..3_000)));
    }
    assert!(stopped > 0, "the writer was never stopped while writing: nothing was tested");
    assert!(grant(&store, &name("after"), TTL).is_some(), "the store did not recover");
}

fn write(dir: &Path) {
    let store = EmbeddedStore::open(&dir.join("store")).unwrap();
    fs::write(dir.join("ready"), "").unwrap();
    for id in 0..10_000_000 {
        let name = name(&format!("theirs-{}", id % 8));
        if let Some(held) = grant(&store, &name, TTL) {
            store.release(&name, &held.owner_record, soon()).unwrap();
        }
    }
}

fn signal(child: &Child, signal: &str) {
    let pid = rustix::process::Pid::from_child(child);
    let signal = if signal == "STOP" { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
    rustix::process::kill_process(pid, signal).unwrap();
}
