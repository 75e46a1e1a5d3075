//! Latches of the embedded store: processes count one latch down together, also when they are killed, and a sweep
//! deletes expired latches. The processes are this test program, started again with [`ROLE`] set.
#![cfg(feature = "embedded")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, thread};

use dlm::store::{EmbeddedStore, LatchStore, LockStore, NewLatch};
use dlm::{AwaitOptions, Code, Deadline, Latch, LatchKind, LatchName, Level, LockManager, NamePolicy};
use dlm_fixtures::role::test_in;
use dlm_testkit::{LONG, until};

use super::embedded::data_size;

const ROLE: &str = "DLM_TEST_ROLE";
const DIR: &str = "DLM_TEST_STORE";
const NUMBER: &str = "DLM_TEST_NUMBER";

const PROCESSES: usize = 8;
/// Count-downs of each process.
const COUNTS: usize = 1250;

fn latch(dir: &Path) -> Latch {
    let uri = format!("embedded:{}?client=processes&farm=dc1&poll=50ms&timeout=60s", dir.display());
    LockManager::open(&uri).unwrap().latch("a", Level::Dc, LatchKind::CountDown).unwrap()
}

/// Starts this program as a process with this role.
fn start(role: &str, dir: &Path, number: usize) -> Child {
    Command::new(env::current_exe().unwrap())
        .args([&test_in(module_path!(), "worker"), "--ignored", "--exact", "--test-threads=1"])
        .envs([(ROLE, role.to_owned()), (NUMBER, number.to_string())])
        .env(DIR, dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "a process of the tests"]
fn worker() {
    let Ok(role) = env::var(ROLE) else { return };
    let number = env::var(NUMBER).unwrap();
    let latch = latch(Path::new(&env::var_os(DIR).unwrap()));
    for count in 0..COUNTS {
        match role.as_str() {
            "count" => latch.count_down().unwrap(),
            // After a kill, the next process starts again with the first name.
            "name" => _ = latch.count_down_as(&format!("{number}-{count}")).unwrap(),
            other => panic!("no such role: {other}"),
        }
    }
}

#[test]
fn ten_thousand_count_downs_of_eight_processes_open_the_latch_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let latch = latch(dir.path());
    latch.create((PROCESSES * COUNTS + 1) as i64).unwrap();
    let watch = latch.watch().unwrap();
    let workers: Vec<_> = (0..PROCESSES).map(|number| start("count", dir.path(), number)).collect();
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    assert_eq!(latch.count().unwrap(), 1);
    assert!(!watch.is_open().unwrap(), "the latch opened at count 1");
    self::latch(dir.path()).count_down().unwrap();
    assert!(watch.wait(&AwaitOptions::new().wait(LONG)).unwrap());
}

#[test]
fn named_count_downs_are_exact_though_every_process_is_killed_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let latch = latch(dir.path());
    let names = (0..PROCESSES).flat_map(|number| (0..COUNTS).map(move |count| format!("{number}-{count}")));
    let names: Vec<_> = names.collect();
    latch.create_for(&names).unwrap();
    let watch = latch.watch().unwrap();
    let (mut killed_at_it, mut left) = (0, names.len());
    for round in 0..12 {
        let mut workers: Vec<_> = (0..PROCESSES).map(|number| start("name", dir.path(), number)).collect();
        if round % 2 == 0 {
            // In the other rounds, a slow machine may kill them before their first count.
            until("they count", || left == 0 || latch.count().unwrap() < left as i64);
        }
        thread::sleep(Duration::from_millis(fastrand::u64(100..500)));
        for worker in &mut workers {
            worker.kill().unwrap();
            worker.wait().unwrap();
        }
        let pending = latch.pending().unwrap();
        assert_eq!(latch.count().unwrap(), pending.len() as i64, "round {round}");
        killed_at_it += usize::from(pending.len() < left && !pending.is_empty());
        left = pending.len();
    }
    assert!(killed_at_it > 0, "no process was killed between its first count and its last");
    let workers: Vec<_> = (0..PROCESSES).map(|number| start("name", dir.path(), number)).collect();
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }
    assert_eq!((latch.count().unwrap(), latch.pending().unwrap().len()), (0, 0));
    assert!(watch.wait(&AwaitOptions::new().wait(LONG)).unwrap());
}

#[test]
fn expired_latches_nobody_comes_back_to_are_swept_by_later_ones() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(&dir.path().join("store")).unwrap();
    let cycle = |id: u32| {
        let id = format!("{id}-{}", "x".repeat(900));
        let name = LatchName::new("tests", "dc1", &id, NamePolicy::Strict).unwrap();
        let (ttl, by) = (Duration::from_micros(1), Deadline::after(LONG));
        let new = NewLatch { name: &name, count: 1, roster: &[], ttl, by };
        assert!(store.create_latch(&new).unwrap());
    };
    (0..500).for_each(cycle);
    let size = data_size(&dir.path().join("store"));
    (500..5_000).for_each(cycle);
    let grown = data_size(&dir.path().join("store"));
    assert!(grown <= 2 * size, "{size} grew to {grown} bytes");
}

/// The sweep examines records of locks and latches in turn. It must not delete a latch that has not expired.
#[test]
fn the_sweep_leaves_latches_alone_that_live() {
    let dir = tempfile::tempdir().unwrap();
    let latch = latch(dir.path());
    latch.create(3).unwrap();
    let uri = format!("embedded:{}?client=processes&timeout=60s", dir.path().display());
    let manager = LockManager::open(&uri).unwrap();
    for round in 0..50 {
        manager.lock(&round.to_string(), Level::Xdc).unwrap().acquire().unwrap().release().unwrap();
    }
    assert_eq!(latch.count().unwrap(), 3);
    assert_eq!(latch.create(1).unwrap_err().code(), Code::AlreadyExists);
    // The same store serves locks and latches.
    let store = EmbeddedStore::open(dir.path()).unwrap();
    assert_eq!(
        store.latches().unwrap().roster(latch.name(), Deadline::after(LONG)).unwrap().pending.len(),
        0
    );
}
