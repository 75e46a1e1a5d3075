//! The embedded store: the contract, and what many processes, killed processes, full disks and other
//! users do to it. Processes are this test binary, started again with [`ROLE`] set.
#![cfg(feature = "embedded")]

mod support {
    pub(crate) mod patience;
    pub(crate) mod skip;
}

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::{
    Acquired, Attempt, EmbeddedStore, Grant, Holder, Level, LockName, LockStore, NamePolicy, Proof, Released,
    Who,
};
use dlm::{Code, Deadline, Moment, Result};
use support::patience::until;
use support::skip::skipped;

const TTL: Duration = Duration::from_secs(60);
const ROLE: &str = "DLM_TEST_ROLE";
const DIR: &str = "DLM_TEST_STORE";
const COUNT: &str = "DLM_TEST_COUNT";

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn name(id: &str) -> LockName {
    LockName::new(Level::Xdc, "tests", None, id, NamePolicy::Strict).unwrap()
}

fn open() -> (tempfile::TempDir, EmbeddedStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(&dir.path().join("store")).unwrap();
    (dir, store)
}

fn attempt(store: &EmbeddedStore, name: &LockName, ttl: Duration) -> Result<Acquired> {
    let who = Who::this_process("testing").unwrap();
    let mut doubtful = Vec::new();
    let acquired = store.acquire(Attempt { name, ttl, who: &who, by: soon() }, &mut doubtful);
    assert!(doubtful.is_empty());
    acquired
}

fn grant(store: &EmbeddedStore, name: &LockName, ttl: Duration) -> Option<Grant> {
    match attempt(store, name, ttl).unwrap() {
        Acquired::Granted(grant) => Some(grant),
        Acquired::Held(_) => None,
    }
}

/// Takes the lock, looking again until it is free; panics after a minute.
fn wait_for(store: &EmbeddedStore, name: &LockName, ttl: Duration) -> Grant {
    let by = soon();
    loop {
        if let Some(grant) = grant(store, name, ttl) {
            return grant;
        }
        assert!(!by.passed(), "the lock never became free");
        thread::sleep(Duration::from_micros(200));
    }
}

fn fence(grant: &Grant) -> u64 {
    grant.fence.unwrap().0
}

// The contract.

#[test]
fn a_held_lock_is_refused_and_says_who_holds_it_and_for_how_long() {
    let (_dir, store) = open();
    let before = Moment::now();
    let held = grant(&store, &name("a"), TTL).unwrap();
    assert!(held.since >= before && held.since <= Moment::now());
    let Acquired::Held(holder) = attempt(&store, &name("a"), TTL).unwrap() else { panic!("two holders") };
    let check = |holder: Holder| {
        assert_eq!(holder.who.unwrap().pid, std::process::id());
        let remaining = holder.remaining.unwrap();
        assert!(remaining <= TTL && remaining > TTL / 2, "{remaining:?}");
        assert!(holder.since.is_some());
    };
    check(holder);
    check(store.holder(&name("a"), soon()).unwrap().unwrap());
    let inspection = store.inspect(&name("a"), soon()).unwrap();
    assert_eq!(inspection.fence, held.fence);
    check(inspection.holder.unwrap());
    assert!(grant(&store, &name("b"), TTL).is_some(), "another lock is free");
}

#[test]
fn only_the_owner_releases_and_only_once() {
    let (_dir, store) = open();
    let held = grant(&store, &name("a"), TTL).unwrap();
    let forged = Proof::from_bytes([0; 16].as_slice());
    assert_eq!(store.release(&name("a"), &forged, soon()).unwrap(), Released::NotOurs);
    assert!(store.renew(&name("a"), &forged, TTL, soon()).unwrap().is_none());
    assert!(grant(&store, &name("a"), TTL).is_none(), "a forged release freed the lock");
    assert_eq!(store.release(&name("a"), &held.proof, soon()).unwrap(), Released::Freed);
    assert_eq!(store.release(&name("a"), &held.proof, soon()).unwrap(), Released::NotOurs);
    assert!(store.holder(&name("a"), soon()).unwrap().is_none());
    assert!(grant(&store, &name("a"), TTL).is_some());
}

#[test]
fn an_expired_lease_lets_the_next_in_and_its_late_release_leaves_them_alone() {
    let (_dir, store) = open();
    let short = Duration::from_millis(30);
    let late = grant(&store, &name("a"), short).unwrap();
    thread::sleep(2 * short);
    assert!(store.holder(&name("a"), soon()).unwrap().is_none(), "expired, yet shown as held");
    assert!(store.renew(&name("a"), &late.proof, TTL, soon()).unwrap().is_none(), "renewed after its end");
    let next = grant(&store, &name("a"), TTL).expect("an expired lease still bars others");
    assert!(fence(&next) > fence(&late));
    assert_eq!(store.release(&name("a"), &late.proof, soon()).unwrap(), Released::NotOurs);
    assert!(store.renew(&name("a"), &late.proof, TTL, soon()).unwrap().is_none());
    assert!(grant(&store, &name("a"), TTL).is_none(), "a late release freed the successor's lock");
    assert_eq!(store.release(&name("a"), &next.proof, soon()).unwrap(), Released::Freed);
}

#[test]
fn a_renewed_lease_outlasts_its_first_end_and_renewing_never_shortens() {
    let (_dir, store) = open();
    let short = Duration::from_millis(200);
    let held = grant(&store, &name("a"), short).unwrap();
    let proof = store.renew(&name("a"), &held.proof, TTL, soon()).unwrap().expect("still ours");
    thread::sleep(2 * short);
    assert!(grant(&store, &name("a"), TTL).is_none(), "renewal was not kept");
    let proof = store.renew(&name("a"), &proof, short, soon()).unwrap().unwrap();
    let remaining = store.holder(&name("a"), soon()).unwrap().unwrap().remaining.unwrap();
    assert!(remaining > TTL / 2, "a renewal shortened the lease to {remaining:?}");
    assert_eq!(store.release(&name("a"), &proof, soon()).unwrap(), Released::Freed);
}

#[test]
fn fences_rise_over_releases_expiries_and_reopening() {
    let (dir, store) = open();
    let mut last = 0;
    let mut rises = |grant: &Grant| {
        assert!(fence(grant) > last, "{} after {last}", fence(grant));
        last = fence(grant);
    };
    for _ in 0..100 {
        let held = grant(&store, &name("a"), TTL).unwrap();
        rises(&held);
        store.release(&name("a"), &held.proof, soon()).unwrap();
    }
    rises(&grant(&store, &name("a"), Duration::from_millis(1)).unwrap());
    thread::sleep(Duration::from_millis(5));
    rises(&grant(&store, &name("a"), TTL).unwrap());
    drop(store);
    let store = EmbeddedStore::open(&dir.path().join("store")).unwrap();
    assert!(grant(&store, &name("a"), TTL).is_none(), "the lease did not outlive closing the store");
    rises(&grant(&store, &name("b"), TTL).unwrap());
}

#[test]
fn a_released_lock_leaves_nothing_behind() {
    let (dir, store) = open();
    let cycle = |id: u32| {
        let name = name(&format!("{id}-{}", "x".repeat(900)));
        let held = grant(&store, &name, TTL).unwrap();
        assert_eq!(store.release(&name, &held.proof, soon()).unwrap(), Released::Freed);
    };
    (0..200).for_each(cycle);
    let size = data_size(&dir.path().join("store"));
    (200..3_000).for_each(cycle);
    let grown = data_size(&dir.path().join("store"));
    assert!(grown <= size + 256 * 1024, "{size} grew to {grown} bytes");
}

#[test]
fn expired_locks_nobody_comes_back_to_are_swept_by_later_grants() {
    let (dir, store) = open();
    let cycle = |id: u32| {
        let abandoned = name(&format!("{id}-{}", "x".repeat(900)));
        grant(&store, &abandoned, Duration::from_micros(1)).unwrap();
    };
    (0..500).for_each(cycle);
    let size = data_size(&dir.path().join("store"));
    (500..5_000).for_each(cycle);
    let grown = data_size(&dir.path().join("store"));
    assert!(grown <= 2 * size, "{size} grew to {grown} bytes");
}

#[test]
fn the_longest_and_oddest_names_are_kept_apart() {
    let (_dir, store) = open();
    let (client, farm) = ("c".repeat(255), "f".repeat(255));
    let odd = ["#", "ü\n", " ", "\u{1F512}", &"i".repeat(1024), &"i".repeat(1023)];
    let named = |id: &str| LockName::new(Level::Dc, &client, Some(&farm), id, NamePolicy::Strict).unwrap();
    let held: Vec<_> = odd.iter().map(|id| grant(&store, &named(id), TTL).expect("names met")).collect();
    for (id, grant) in odd.iter().zip(&held) {
        assert_eq!(store.release(&named(id), &grant.proof, soon()).unwrap(), Released::Freed);
    }
}

#[test]
fn absurd_lease_times_neither_overflow_nor_expire_early() {
    let (_dir, store) = open();
    let held = grant(&store, &name("a"), Duration::MAX).unwrap();
    assert!(grant(&store, &name("a"), TTL).is_none());
    assert!(store.renew(&name("a"), &held.proof, Duration::MAX, soon()).unwrap().is_some());
    assert!(grant(&store, &name("b"), Duration::ZERO).is_some());
    assert!(grant(&store, &name("b"), TTL).is_some(), "a lease of no length is over at once");
}

// Several stores, threads and processes.

#[test]
fn two_stores_of_one_process_in_one_directory_are_one_store() {
    let (dir, first) = open();
    let path = dir.path().join("store");
    std::os::unix::fs::symlink(&path, dir.path().join("alias")).unwrap();
    let second = EmbeddedStore::open(&dir.path().join("alias")).unwrap();
    let held = grant(&first, &name("a"), TTL).unwrap();
    assert!(grant(&second, &name("a"), TTL).is_none(), "two holders");
    drop(first);
    assert_eq!(second.release(&name("a"), &held.proof, soon()).unwrap(), Released::Freed);
    drop(second);
    assert!(grant(&EmbeddedStore::open(&path).unwrap(), &name("a"), TTL).is_some());
}

#[test]
fn opening_and_closing_in_many_threads_loses_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let inside = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let store = EmbeddedStore::open(&path).unwrap();
                    let held = wait_for(&store, &name("a"), TTL);
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(store.release(&name("a"), &held.proof, soon()).unwrap(), Released::Freed);
                }
            });
        }
    });
}

#[test]
fn hundreds_of_polling_threads_need_no_reader_slot_each() {
    let (_dir, store) = open();
    let held = grant(&store, &name("a"), TTL).unwrap();
    let store = Arc::new(store);
    let threads: Vec<_> = (0..500)
        .map(|number| {
            let store = Arc::clone(&store);
            thread::Builder::new()
                .name(format!("dlm-test-polling-{number}"))
                .stack_size(64 * 1024)
                .spawn(move || (0..5).all(|_| store.holder(&name("a"), soon()).unwrap().is_some()))
                .unwrap()
        })
        .collect();
    assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    assert_eq!(store.release(&name("a"), &held.proof, soon()).unwrap(), Released::Freed);
}

#[test]
fn processes_counting_under_the_lock_lose_no_step() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("counter"), "0").unwrap();
    let (processes, cycles) = (6, 700);
    let children: Vec<_> = (0..processes)
        .map(|_| process("count", dir.path()).env(COUNT, cycles.to_string()).spawn().unwrap())
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let counter = fs::read_to_string(dir.path().join("counter")).unwrap();
    assert_eq!(counter, (processes * cycles).to_string());
    // Every grant wrote its fence while it held the lock, so the file is in the order of the grants.
    let fences: Vec<u64> = fs::read_to_string(dir.path().join("fences"))
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert_eq!(fences.len(), processes * cycles);
    assert!(fences.is_sorted_by(|a, b| a < b), "a fence went back or came twice");
}

/// One file read, changed and written back per grant: not atomic but for the lock.
fn count(dir: &Path) {
    let store = EmbeddedStore::open(&dir.join("store")).unwrap();
    let mut fences = File::options().create(true).append(true).open(dir.join("fences")).unwrap();
    let cycles: usize = env::var(COUNT).unwrap().parse().unwrap();
    for _ in 0..cycles {
        let held = wait_for(&store, &name("counter"), TTL);
        let counter: u64 = fs::read_to_string(dir.join("counter")).unwrap().parse().unwrap();
        fs::write(dir.join("counter"), (counter + 1).to_string()).unwrap();
        writeln!(fences, "{}", fence(&held)).unwrap();
        assert_eq!(store.release(&name("counter"), &held.proof, soon()).unwrap(), Released::Freed);
    }
}

/// Children hammer the store from its opening on and are killed at random moments.
#[test]
fn killed_processes_leave_a_store_that_opens_locks_that_end_and_fences_that_rise() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (mut highest, mut grants) = (0, 0);
    // Long enough for some grants, which depends on the machine.
    let mut kill_within_us = 12_000;
    for round in 0..50 {
        let grants_before = grants;
        let mut children: Vec<Running> = (0..3)
            .map(|_| Running(process("hammer", dir.path()).stdout(Stdio::piped()).spawn().unwrap()))
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
            kill_within_us = (2 * kill_within_us).min(200_000);
        }
        let store =
            EmbeddedStore::open(&path).unwrap_or_else(|error| panic!("round {round}: {}", error.chain()));
        let held = wait_for(&store, &name("hammered"), TTL);
        assert!(fence(&held) > highest, "round {round}: fence {} after {highest}", fence(&held));
        highest = fence(&held);
        assert_eq!(store.release(&name("hammered"), &held.proof, soon()).unwrap(), Released::Freed);
    }
    assert!(grants > 0, "every process was killed before its first grant: nothing was tested");
    assert!(!has_half_made(&path));
}

/// Tells each fence it is given.
fn hammer(dir: &Path) {
    let store = EmbeddedStore::open(&dir.join("store")).unwrap();
    let mut out = std::io::stdout().lock();
    for round in 0..1_000_000 {
        let held = wait_for(&store, &name("hammered"), Duration::from_millis(20));
        writeln!(out, "{}.", fence(&held)).unwrap();
        if round % 3 != 0 {
            // `false` when this machine was too slow for the lease.
            store.release(&name("hammered"), &held.proof, soon()).unwrap();
        }
        grant(&store, &name(&format!("other-{}", fastrand::u8(..))), Duration::from_millis(1));
    }
}

/// SIGKILL at each system call in turn, from making the store to releasing a lock.
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
            assert_eq!(store.release(&name("stepped"), &held.proof, soon()).unwrap(), Released::Freed);
            assert!(!has_half_made(&path), "{at}: what was half made is left");
            if to_its_end {
                break;
            }
            killed += 1;
        }
    }
    assert!(killed > 50, "killed only {killed} times");
}

/// Those that change files or locks. One at a time: strace counts each for itself.
const CALLS: [&str; 12] = [
    "openat",
    "pwrite64",
    "writev",
    "write",
    "ftruncate",
    "fcntl",
    "mkdir",
    "rename",
    "fsync",
    "mmap",
    "munmap",
    "close",
];

fn steps(dir: &Path) {
    let store = EmbeddedStore::open(&dir.join("store")).unwrap();
    let mut told = File::options().append(true).open(dir.join("told")).unwrap();
    for _ in 0..3 {
        let held = wait_for(&store, &name("stepped"), Duration::from_millis(20));
        told.write_all(format!("{}\n", fence(&held)).as_bytes()).unwrap();
        store.release(&name("stepped"), &held.proof, soon()).unwrap();
    }
}

/// One write after the other fails once: with the new pages nothing has changed, with the page that
/// completes a change it is in doubt; either way the next call works.
#[test]
fn a_failed_write_is_told_right_and_the_store_goes_on() {
    if !has_strace() {
        return skipped("strace", NO_STRACE);
    }
    let dir = tempfile::tempdir().unwrap();
    drop(EmbeddedStore::open(&dir.path().join("store")).unwrap());
    let mut codes = Vec::new();
    for (call, error) in
        [("pwrite64", "EIO"), ("pwrite64", "ENOSPC"), ("writev", "EIO"), ("writev", "ENOSPC")]
    {
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
    let store = EmbeddedStore::open(&dir.join("store")).unwrap();
    let who = Who::this_process("").unwrap();
    let (mut codes, mut highest) = (Vec::new(), 0);
    for id in 0..10 {
        let name = name(&format!("{}-{id}", std::process::id()));
        let mut doubtful = Vec::new();
        match store.acquire(Attempt { name: &name, ttl: TTL, who: &who, by: soon() }, &mut doubtful) {
            Ok(Acquired::Granted(held)) => {
                assert!(fence(&held) > highest);
                highest = fence(&held);
                if let Err(error) = store.release(&name, &held.proof, soon()) {
                    codes.push(error.code());
                    if !error.is_in_doubt() {
                        assert!(store.holder(&name, soon()).unwrap().is_some(), "a failed release released");
                    }
                    store.release(&name, &held.proof, soon()).unwrap();
                }
            }
            Ok(Acquired::Held(_)) => panic!("nobody else is here"),
            Err(error) => {
                codes.push(error.code());
                assert_eq!(doubtful.len(), usize::from(error.is_in_doubt()));
                let held = store.holder(&name, soon()).unwrap().is_some();
                assert!(!held || error.is_in_doubt(), "a failed grant granted");
                for proof in doubtful {
                    store.release(&name, &proof, soon()).unwrap();
                }
            }
        }
        assert!(store.holder(&name, soon()).unwrap().is_none());
    }
    assert_eq!(codes.len(), 1, "one write fails, the others work");
    fs::write(dir.join("codes"), codes[0].name()).unwrap();
}

const NO_STRACE: &str = "strace is not there, or may not trace";

fn has_strace() -> bool {
    Command::new("strace").args(["-o", "/dev/null", "true"]).status().is_ok_and(|status| status.success())
}

/// Runs `role` with failures injected; whether it came to its end.
fn traced(role: &str, dir: &Path, inject: &str) -> bool {
    let traced = process(role, dir);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-o", "/dev/null", "-e", inject]).arg(traced.get_program()).args(traced.get_args());
    strace.env(ROLE, role).env(DIR, dir).current_dir(dir).stdout(Stdio::null());
    strace.status().unwrap().success()
}

// Machine trouble.

#[test]
fn a_directory_others_may_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sto\nre");
    fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
    let error = EmbeddedStore::open(&path).unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError);
    assert!(error.to_string().contains("chmod"), "{error}");
    assert!(!error.chain().contains('\n'), "a path forged a line: {error}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    EmbeddedStore::open(&path).unwrap();
}

#[test]
fn what_is_made_is_for_the_owner_only() {
    let (dir, _store) = open();
    let mut seen = 0;
    let mut pending = vec![dir.path().join("store")];
    while let Some(path) = pending.pop() {
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{path:?}");
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        seen += 1;
    }
    assert!(seen >= 7, "only {seen} files looked at");
}

#[test]
fn the_default_place_is_the_users_own_and_never_one_that_someone_else_prepared() {
    let dir = tempfile::tempdir().unwrap();
    let ran = |role: &str, runtime_dir: Option<&Path>| {
        let mut command = process(role, dir.path());
        command.env("TMPDIR", dir.path()).env_remove("XDG_RUNTIME_DIR");
        runtime_dir.map(|dir| command.env("XDG_RUNTIME_DIR", dir));
        command.status().unwrap().success()
    };
    let taken = dir.path().join(format!("dlm-{}", rustix::process::geteuid().as_raw()));
    assert!(ran("default in temp", None));
    assert_eq!(fs::metadata(&taken).unwrap().permissions().mode() & 0o7777, 0o700);
    assert!(ran("default in temp", Some(Path::new("relative"))));
    assert!(ran("default in temp", Some(&dir.path().join("missing"))));
    let runtime_dir = dir.path().join("run");
    fs::create_dir(&runtime_dir).unwrap();
    assert!(ran("default in run", Some(&runtime_dir)));
    fs::set_permissions(&taken, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(ran("default refused", None));
    fs::remove_dir_all(&taken).unwrap();
    std::os::unix::fs::symlink(&runtime_dir, &taken).unwrap();
    assert!(ran("default refused", None));
    fs::remove_file(&taken).unwrap();
    fs::write(&taken, "").unwrap();
    assert!(ran("default refused", None));
}

fn open_default() -> Result<PathBuf> {
    let path = EmbeddedStore::default_path()?;
    EmbeddedStore::open(&path)?;
    Ok(path)
}

#[test]
fn a_file_in_place_of_the_directory_is_an_error_not_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("store"), "").unwrap();
    assert_eq!(EmbeddedStore::open(&dir.path().join("store")).unwrap_err().code(), Code::ConnectionError);
}

#[test]
fn another_users_directory_is_refused() {
    if !is_root() {
        return skipped("root", "only root can become another user");
    }
    let (dir, store) = open();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The binary may lie where the other user cannot reach it. Copied by a process: the children that
    // other tests are starting would keep a file open that is written here, and then it cannot be run.
    let binary = dir.path().join("test");
    let copied = Command::new("cp").arg(env::current_exe().unwrap()).arg(&binary).status().unwrap();
    assert!(copied.success());
    let as_nobody = |role: &str, dir: &Path| {
        let mut command = process_of(&binary, role, dir);
        command.uid(65_534).gid(65_534).status().unwrap().success()
    };
    assert!(as_nobody("be refused", dir.path()));
    drop(store);
    let theirs = dir.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(65_534), Some(65_534)).unwrap();
    assert!(as_nobody("be served", &theirs));
    let error = EmbeddedStore::open(&theirs.join("store")).unwrap_err();
    assert!(error.to_string().contains("belongs to user 65534"), "{error}");
}

fn be_refused(dir: &Path) {
    let error = EmbeddedStore::open(&dir.join("store")).unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError, "{error}");
    assert!(error.to_string().contains("belongs to user 0"), "{error}");
}

fn be_served(dir: &Path) {
    let store = EmbeddedStore::open(&dir.join("store")).unwrap();
    assert!(grant(&store, &name("a"), TTL).is_some());
}

#[test]
fn a_full_disk_refuses_grants_clearly_and_recovers() {
    let Some(disk) = SmallDisk::mount("size=1m") else {
        return skipped("tmpfs", NO_DISK);
    };
    let store = EmbeddedStore::open(&disk.path.join("store")).unwrap();
    let held = grant(&store, &name("first"), TTL).unwrap();
    let mut granted = Vec::new();
    let error = (0..10_000)
        .find_map(|id| {
            let name = name(&format!("{id}-{}", "x".repeat(1000)));
            match attempt(&store, &name, TTL) {
                Ok(Acquired::Granted(grant)) => granted.push((name, grant)),
                Ok(Acquired::Held(_)) => panic!("nobody else is here"),
                Err(error) => return Some((name, error)),
            }
            None
        })
        .expect("1 MiB is never full");
    assert_eq!(error.1.code(), Code::RetriesExhausted, "{}", error.1.chain());
    assert!(error.1.to_string().contains("free space"), "{}", error.1);
    assert!(store.holder(&error.0, soon()).unwrap().is_none(), "a failed grant was written");
    assert!(store.holder(&name("first"), soon()).unwrap().is_some(), "a held lock was lost");
    // Even a release needs room; what was held runs out, or someone makes room.
    assert!(
        Command::new("mount").args(["-o", "remount,size=4m"]).arg(&disk.path).status().unwrap().success()
    );
    for (name, grant) in &granted {
        assert_eq!(store.release(name, &grant.proof, soon()).unwrap(), Released::Freed);
    }
    let next = grant(&store, &name("next"), TTL).unwrap();
    assert!(fence(&next) > fence(&held));
    drop(store);
    EmbeddedStore::open(&disk.path.join("store")).unwrap();
}

#[test]
fn a_disk_without_room_for_the_files_is_an_error_and_leaves_no_half_made_store() {
    let Some(disk) = SmallDisk::mount("size=64k") else {
        return skipped("tmpfs", NO_DISK);
    };
    for _ in 0..3 {
        let error = EmbeddedStore::open(&disk.path.join("store")).unwrap_err();
        assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
        assert!(error.chain().contains("No space"), "{}", error.chain());
    }
    assert!(
        Command::new("mount").args(["-o", "remount,size=4m"]).arg(&disk.path).status().unwrap().success()
    );
    let store = EmbeddedStore::open(&disk.path.join("store")).unwrap();
    assert!(grant(&store, &name("a"), TTL).is_some());
}

#[test]
fn a_read_only_disk_is_an_error_at_opening_and_harmless_once_it_is_writable_again() {
    let Some(disk) = SmallDisk::mount("size=4m") else {
        return skipped("tmpfs", NO_DISK);
    };
    let remount =
        |how: &str| Command::new("mount").args(["-o", how]).arg(&disk.path).status().unwrap().success();
    drop(EmbeddedStore::open(&disk.path.join("store")).unwrap());
    // Busy for as long as children that other tests are starting have its files open.
    until("the disk is read-only", || remount("remount,ro"));
    let error = EmbeddedStore::open(&disk.path.join("store")).unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
    assert!(error.chain().contains("Read-only"), "{}", error.chain());
    assert!(remount("remount,rw"));
    assert!(grant(&EmbeddedStore::open(&disk.path.join("store")).unwrap(), &name("a"), TTL).is_some());
}

#[test]
fn damaged_files_are_an_error_not_a_crash() {
    type Damage = (&'static str, fn(&Path));
    let damage: [Damage; 4] = [
        ("garbage", |file| fs::write(file, vec![0xa5; 64 * 1024]).unwrap()),
        ("cut within the header", |file| {
            File::options().write(true).open(file).unwrap().set_len(100).unwrap()
        }),
        ("cut behind the header", |file| {
            File::options().write(true).open(file).unwrap().set_len(8192).unwrap()
        }),
        ("empty", |file| File::create(file).unwrap().set_len(0).unwrap()),
    ];
    for (what, damage) in damage {
        let (dir, store) = open();
        grant(&store, &name("a"), TTL).unwrap();
        drop(store);
        damage(&data_file(&dir.path().join("store")));
        let error = EmbeddedStore::open(&dir.path().join("store")).expect_err(what);
        assert_eq!(error.code(), Code::InternalError, "{what}: {}", error.chain());
        assert!(error.to_string().contains("damaged"), "{what}: {error}");
    }
}

#[test]
fn deleted_files_are_noticed_before_two_processes_hold_one_lock() {
    let (dir, store) = open();
    let held = grant(&store, &name("a"), TTL).unwrap();
    fs::remove_dir_all(dir.path().join("store")).unwrap();
    let error = attempt(&store, &name("b"), TTL).unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError);
    assert!(error.to_string().contains("deleted"), "{error}");
    assert!(store.renew(&name("a"), &held.proof, TTL, soon()).is_err(), "renewed where nobody else looks");
    let anew = EmbeddedStore::open(&dir.path().join("store")).unwrap();
    assert!(grant(&anew, &name("a"), TTL).is_some());
}

#[test]
fn a_process_stopped_while_it_writes_does_not_hang_the_others_beyond_their_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(&dir.path().join("store")).unwrap();
    let mut child = Running(process("write", dir.path()).spawn().unwrap());
    let ready = soon();
    while !dir.path().join("ready").exists() {
        assert!(!ready.passed() && child.0.try_wait().unwrap().is_none(), "the writer did not start");
        thread::sleep(Duration::from_millis(1));
    }
    // It writes all the time, so it is soon stopped in the middle of a write.
    let who = Who::this_process("").unwrap();
    let mut stopped = 0;
    for id in 0..200 {
        signal(&child.0, "STOP");
        let by = Deadline::after(Duration::from_millis(100));
        let name = name(&format!("mine-{id}"));
        match store.acquire(Attempt { name: &name, ttl: TTL, who: &who, by }, &mut Vec::new()) {
            Ok(answer) => assert!(matches!(answer, Acquired::Granted(_))),
            Err(error) => {
                assert_eq!(error.code(), Code::RetriesExhausted, "{}", error.chain());
                stopped += 1;
            }
        }
        signal(&child.0, "CONT");
        if stopped == 3 {
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
            store.release(&name, &held.proof, soon()).unwrap();
        }
    }
}

fn signal(child: &Child, signal: &str) {
    let pid = rustix::process::Pid::from_child(child);
    let signal = if signal == "STOP" { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
    rustix::process::kill_process(pid, signal).unwrap();
}

// Processes.

/// Where a process of these tests starts.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Ok(role) = env::var(ROLE) else { return };
    let dir = PathBuf::from(env::var_os(DIR).unwrap());
    match role.as_str() {
        "count" => count(&dir),
        "hammer" => hammer(&dir),
        "default in temp" => assert_eq!(open_default().unwrap().parent(), Some(dir.as_path())),
        "default in run" => assert_eq!(open_default().unwrap(), dir.join("run/dlm")),
        "default refused" => assert_eq!(open_default().unwrap_err().code(), Code::ConnectionError),
        "steps" => steps(&dir),
        "trouble" => trouble(&dir),
        "write" => write(&dir),
        "be refused" => be_refused(&dir),
        "be served" => be_served(&dir),
        role => panic!("no role {role:?}"),
    }
}

fn process(role: &str, dir: &Path) -> Command {
    process_of(&env::current_exe().unwrap(), role, dir)
}

fn process_of(binary: &Path, role: &str, dir: &Path) -> Command {
    let mut command = Command::new(binary);
    command
        .args(["--ignored", "--exact", "role", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(DIR, dir);
    command.current_dir(dir).stdout(Stdio::null());
    command
}

/// A process that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails when it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn has_half_made(store: &Path) -> bool {
    fs::read_dir(store).unwrap().any(|entry| entry.unwrap().file_name().to_str().unwrap().starts_with("new-"))
}

fn data_file(store: &Path) -> PathBuf {
    let generation =
        fs::read_dir(store).unwrap().flatten().map(|entry| entry.path()).find(|path| path.is_dir());
    generation.unwrap().join("locks")
}

fn data_size(store: &Path) -> u64 {
    fs::metadata(data_file(store)).unwrap().len()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

const NO_DISK: &str = "a file system in memory cannot be mounted";

/// A file system in memory, unmounted in the end.
struct SmallDisk {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(options: &str) -> Option<SmallDisk> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        fs::create_dir(&path).unwrap();
        let options = format!("mode=0700,{options}");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "dlm-test"]).arg(&path).status();
        let mounted = is_root() && mount.is_ok_and(|status| status.success());
        mounted.then_some(SmallDisk { path, _dir: dir })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a failed test may still have it open.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
