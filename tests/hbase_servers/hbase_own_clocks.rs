//! The layout `own` while the clock of a RegionServer is set back, and while regions move to a server whose clock is
//! behind. An older cell must never hide a record: the lock would look free while it is held.
#![cfg(feature = "hbase")]

use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::HbaseStore;
use dlm::{Code, Fence, Level, Lock, LockManager, Mode, Severity};
use dlm_fixtures::clock::Clock;
use dlm_fixtures::hbase::{Hbase, Kind};
use dlm_fixtures::peer::{Peer, hex};
use dlm_testkit::{LONG, eventually, left_to_the_long_run};

/// How far the clock of the first RegionServer is ahead of that of the second one.
const AHEAD: Duration = Duration::from_secs(2);
/// By how much it is set back.
const BACK: Duration = Duration::from_secs(3);
/// Locks that are released before a change and acquired after it. All are in one region.
const LOCKS: usize = 75;
const ROUNDS: usize = 10;

#[test]
fn no_grant_is_hidden_after_a_clock_was_set_back_or_a_region_came_to_a_server_whose_clock_is_behind() {
    if left_to_the_long_run() {
        return;
    }
    let Some(mut stage) = Stage::start("own-clocks") else { return };
    stage.clock.set_ahead(AHEAD);
    // An answer that took long says little about a clock.
    eventually("the clocks are seen to differ", || {
        let found = stage.managers[0].diagnose().unwrap();
        let clocks = found.iter().find(|diagnostic| diagnostic.topic == "clocks").expect("no clocks");
        clocks.severity == Severity::Warn && clocks.seen.contains("of 2 RegionServers")
    });
    for _ in 0..ROUNDS {
        // To the server that is ahead, and back to the one that is behind.
        for _ in 0..2 {
            stage.take_turns(|stage| stage.moves());
        }
    }
    for _ in 0..ROUNDS {
        stage.clock.set_ahead(BACK);
        stage.take_turns(|stage| stage.clock.set_ahead(Duration::ZERO));
    }
    println!("{} grants", stage.grants);
    assert!(stage.grants >= 1500);
}

/// The same with readers, updaters and writers, some of whom hold a lock meanwhile. At the end a server crashes.
#[test]
fn no_hold_of_any_mode_is_hidden_and_none_excludes_anybody_too_little_while_clocks_and_regions_change() {
    if left_to_the_long_run() {
        return;
    }
    let Some(mut stage) = Stage::start("own-mode-clocks") else { return };
    stage.locks.truncate(10);
    stage.clock.set_ahead(AHEAD);
    for round in 0..4 {
        stage.take_turns_in_modes(|stage| stage.moves());
        if round % 2 == 0 {
            stage.clock.set_ahead(AHEAD + BACK);
        }
        stage.take_turns_in_modes(|stage| stage.clock.set_ahead(AHEAD));
    }
    let work = Work::default();
    thread::scope(|scope| {
        for (at, mode) in [Mode::Shared, Mode::Shared, Mode::Update, Mode::Exclusive].into_iter().enumerate()
        {
            let (work, lock) = (&work, stage.locks[0][at % 2].clone());
            let run = move || work.run(&lock, mode);
            thread::Builder::new().name(format!("dlm-test-{at}")).spawn_scoped(scope, run).unwrap();
        }
        for _ in 0..4 {
            stage.moves();
            stage.clock.set_ahead(AHEAD + BACK);
            work.until_granted(10);
            stage.clock.set_ahead(AHEAD);
            work.until_granted(10);
        }
        stage.hbase.kill_region_server(1);
        work.until_granted(10);
        stage.hbase.start();
        work.until_granted(10);
        work.stop.store(true, Ordering::SeqCst);
    });
    println!("{work:?}");
    assert!(!work.has_overlapped.load(Ordering::SeqCst), "two held the lock who exclude each other");
    // What a crash left in doubt is released in the background.
    let lease = stage.locks[0][0].acquire().unwrap();
    assert!(lease.release().unwrap());
}

/// Threads that hold one lock in their modes, and who holds it now.
#[derive(Debug, Default)]
struct Work {
    stop: AtomicBool,
    /// The number of readers; -1: a writer.
    holders: AtomicIsize,
    has_overlapped: AtomicBool,
    grants: [AtomicUsize; 3],
}

impl Work {
    fn run(&self, lock: &Lock, mode: Mode) {
        let lock = match mode {
            Mode::Shared => lock.shared(),
            Mode::Update => lock.update(),
            _ => lock.clone(),
        };
        while !self.stop.load(Ordering::SeqCst) {
            // A call may be in doubt while a server crashes.
            let Ok(lease) = lock.acquire() else { continue };
            let overlaps = match mode {
                Mode::Exclusive => {
                    self.holders.compare_exchange(0, -1, Ordering::SeqCst, Ordering::SeqCst).is_err()
                }
                _ => self.holders.fetch_add(1, Ordering::SeqCst) < 0,
            };
            self.has_overlapped.fetch_or(overlaps, Ordering::SeqCst);
            self.grants[usize::from(mode.code())].fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(5));
            self.holders.fetch_add(if mode == Mode::Exclusive { 1 } else { -1 }, Ordering::SeqCst);
            let _ = lease.release();
        }
    }

    /// Waits until each mode was granted so many times more.
    fn until_granted(&self, times: usize) {
        let now = || [0, 1, 2].map(|mode: usize| self.grants[mode].load(Ordering::SeqCst));
        let before = now();
        eventually("all modes are granted", || {
            now().into_iter().zip(before).all(|(now, before)| now >= before + times)
        });
    }
}

struct Stage {
    peer: Peer,
    clock: Clock,
    managers: [LockManager; 2],
    /// The same locks for two processes.
    locks: Vec<[Lock; 2]>,
    grants: usize,
    hbase: Hbase,
}

impl Stage {
    /// Starts two servers. The clock of the first one can be set.
    fn start(name: &str) -> Option<Stage> {
        let clock = Clock::new_or_skip()?;
        let environment = [
            ("DLM_TEST_PRELOAD", clock.library().into()),
            ("DLM_TEST_PRELOAD_ONLY", "regionserver1".into()),
            clock.environment(),
        ];
        let kind = Kind::Cluster { servers: 2, masters: 1 };
        let hbase = Hbase::private_in(name, kind, &environment)?;
        let uri = format!("hbase://{}/locks?layout=own&timeout=300s&wait=10m", hbase.masters);
        let managers = ["ours", "theirs"].map(|_| {
            let builder = LockManager::builder().store_uri(&uri).client("clocks");
            builder.ttl(30 * LONG).retry(Duration::from_millis(5)).open().unwrap()
        });
        eventually("the cluster serves", || managers[0].initialize().is_ok());
        let (peer, locks) = (Peer::start(&hbase), Stage::locks(&managers));
        Some(Stage { peer, clock, managers, locks, grants: 0, hbase })
    }

    /// Returns locks whose rows begin with one byte, so one region has all of them.
    fn locks(managers: &[LockManager; 2]) -> Vec<[Lock; 2]> {
        let lock = |manager: &LockManager, id: usize| manager.lock(&id.to_string(), Level::Xdc).unwrap();
        let first = |lock: &Lock| HbaseStore::lock_row(lock.name())[0];
        let wanted = first(&lock(&managers[0], 0));
        (0..)
            .map(|id| [0, 1].map(|manager| lock(&managers[manager], id)))
            .filter(|[lock, _]| first(lock) == wanted)
            .take(LOCKS)
            .collect()
    }

    /// Acquires and releases all locks, lets `change` happen, and acquires and releases them again.
    fn take_turns(&mut self, change: impl FnOnce(&mut Stage)) {
        let mut last: Vec<Option<Fence>> = Vec::new();
        for [ours, _] in &self.locks {
            let lease = ours.acquire().unwrap();
            last.push(lease.fence());
            assert!(lease.release().unwrap());
        }
        change(self);
        for ([ours, theirs], last) in self.locks.iter().zip(last) {
            let lease = ours.acquire().unwrap();
            assert!(lease.fence() > last, "{:?} after {last:?}", lease.fence());
            let found = theirs.inspect().unwrap();
            assert!(found.holder.is_some(), "the record is hidden");
            assert_eq!(found.fence, lease.fence(), "the number is hidden");
            assert_eq!(theirs.try_acquire().unwrap_err().code(), Code::LockUnavailable);
            lease.renew().expect("our record is hidden");
            assert!(lease.release().unwrap());
            assert!(theirs.inspect().unwrap().holder.is_none(), "the release is hidden");
            self.grants += 1;
        }
    }

    /// Holds and releases all locks in all modes, lets `change` happen while each has a reader of one process, and holds them
    /// again.
    fn take_turns_in_modes(&mut self, change: impl FnOnce(&mut Stage)) {
        let mut held = Vec::new();
        for [ours, theirs] in &self.locks {
            let writer = theirs.acquire().unwrap();
            let reader = writer.downgrade(Mode::Shared).unwrap();
            assert!(reader.release().unwrap());
            held.push(ours.shared().acquire().unwrap());
        }
        change(self);
        for ([ours, theirs], reader) in self.locks.iter().zip(held) {
            reader.renew().expect("the reader is hidden");
            assert_eq!(theirs.try_acquire().unwrap_err().code(), Code::LockUnavailable, "beside a reader");
            let update = theirs.update().try_acquire().unwrap();
            assert_eq!(update.epoch(), reader.epoch(), "the base is hidden");
            assert_eq!(ours.update().try_acquire().unwrap_err().code(), Code::LockUnavailable);
            assert!(reader.release().unwrap());
            let writer = update.upgrade(Duration::ZERO).expect("the release is hidden");
            assert!(writer.fence().map(|it| it.0) > update.epoch().map(|it| it.0));
            assert_eq!(ours.shared().try_acquire().unwrap_err().code(), Code::LockUnavailable);
            writer.renew().expect("the writer is hidden");
            let reader = writer.downgrade(Mode::Shared).unwrap();
            let beside = ours.shared().try_acquire().expect("the step down is hidden");
            assert_eq!(beside.epoch(), reader.epoch());
            assert!(reader.release().unwrap() && beside.release().unwrap());
            assert!(theirs.inspect().unwrap().holder.is_none(), "the last release is hidden");
        }
    }

    fn moves(&mut self) {
        let row = hex(&HbaseStore::lock_row(self.locks[0][0].name()));
        let before = self.peer.ask(&format!("where locks {row}"));
        self.peer.ask(&format!("move locks {row}"));
        assert_ne!(self.peer.ask(&format!("where locks {row}")), before, "the region did not move");
    }
}
