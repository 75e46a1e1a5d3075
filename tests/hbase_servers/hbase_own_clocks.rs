//! The layout `own` while the clock of a RegionServer is set back, and while regions move to a server whose clock is
//! behind. An older cell must never hide a record: the lock would look free while it is held.
#![cfg(feature = "hbase")]

use std::time::Duration;

use dlm::store::HbaseStore;
use dlm::{Code, Fence, Level, Lock, LockManager, Severity};
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
    let Some(clock) = Clock::new_or_skip() else { return };
    let environment = [
        ("DLM_TEST_PRELOAD", clock.library().into()),
        ("DLM_TEST_PRELOAD_ONLY", "regionserver1".into()),
        clock.environment(),
    ];
    let kind = Kind::Cluster { servers: 2, masters: 1 };
    let Some(hbase) = Hbase::private_in("own-clocks", kind, &environment) else { return };
    let uri = format!("hbase://{}/locks?layout=own&timeout=300s&wait=10m", hbase.masters);
    let managers = ["ours", "theirs"].map(|_| {
        let builder = LockManager::builder().store_uri(&uri).client("clocks");
        builder.ttl(30 * LONG).retry(Duration::from_millis(5)).open().unwrap()
    });
    eventually("the cluster serves", || managers[0].initialize().is_ok());
    let mut stage = Stage { peer: Peer::start(&hbase), locks: Stage::locks(&managers), grants: 0 };
    clock.set_ahead(AHEAD);
    // An answer that took long says little about a clock.
    eventually("the clocks are seen to differ", || {
        let found = managers[0].diagnose().unwrap();
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
        clock.set_ahead(BACK);
        stage.take_turns(|_| clock.set_ahead(Duration::ZERO));
    }
    println!("{} grants", stage.grants);
    assert!(stage.grants >= 1500);
}

struct Stage {
    peer: Peer,
    /// The same locks for two processes.
    locks: Vec<[Lock; 2]>,
    grants: usize,
}

impl Stage {
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

    fn moves(&mut self) {
        let row = hex(&HbaseStore::lock_row(self.locks[0][0].name()));
        let before = self.peer.ask(&format!("where locks {row}"));
        self.peer.ask(&format!("move locks {row}"));
        assert_ne!(self.peer.ask(&format!("where locks {row}")), before, "the region did not move");
    }
}
