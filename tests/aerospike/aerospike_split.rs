//! A cluster of two nodes that is split, and healed again. Each half of a Community cluster goes on alone, so both may
//! grant one lock at the same time. Only the fences are promised: they rise on each side, and after the split they are
//! above those of both sides. The test counts how often the holds of the two sides overlapped.
#![cfg(feature = "aerospike")]

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use dlm::{Code, Fence, Level, LockManager, Moment};
use dlm_fixtures::aerospike::{IN_MEMORY, Server, SplitCluster};
use dlm_testkit::LONG;

const LOCKS: usize = 4;
/// Grants of each thread during the split.
const GRANTS: usize = 60;
/// A TTL that does not end during the test.
const TTL: Duration = Duration::from_secs(1800);

/// A client of one node. During the split it sees that node only.
fn manager(server: &Server) -> LockManager {
    let builder = LockManager::builder().store_uri(&server.place().uri()).client("split").ttl(TTL);
    builder.wait(2 * LONG).retry(Duration::from_millis(5)).timeout(LONG / 2).open().unwrap()
}

fn id(number: usize) -> String {
    format!("contended {number}")
}

/// One grant during the split.
struct Hold {
    side: usize,
    lock: usize,
    asked: Moment,
    granted: Moment,
    /// Before the release was sent.
    over: Moment,
    fence: Fence,
}

fn contend(side: usize, manager: &LockManager) -> Vec<Hold> {
    let hold = |_| {
        let (lock, asked) = (fastrand::usize(..LOCKS), Moment::now());
        let lease = manager.lock(&id(lock), Level::Xdc).unwrap().acquire();
        let lease = lease.unwrap_or_else(|error| panic!("side {side}: {}", error.chain()));
        let granted = Moment::now();
        thread::sleep(Duration::from_millis(2));
        let over = Moment::now();
        assert!(lease.release().unwrap());
        Hold { side, lock, asked, granted, over, fence: lease.fence().unwrap() }
    };
    (0..GRANTS).map(hold).collect()
}

/// Acquires one lock on both sides, and then releases it on both.
fn held_on_both_sides(alone: &[LockManager; 2]) -> Vec<Hold> {
    const LOCK: usize = 0;
    let granted = [0, 1].map(|side: usize| {
        let asked = Moment::now();
        let lease = alone[side].lock(&id(LOCK), Level::Xdc).unwrap().acquire();
        let lease = lease.unwrap_or_else(|error| panic!("side {side}: {}", error.chain()));
        (side, lease, asked, Moment::now())
    });
    let over = Moment::now();
    let holds = granted.map(|(side, lease, asked, granted)| {
        assert!(lease.release().unwrap());
        Hold { side, lock: LOCK, asked, granted, over, fence: lease.fence().unwrap() }
    });
    holds.into()
}

#[test]
fn in_a_split_fences_rise_on_each_side_and_afterwards_above_both() {
    let namespace = IN_MEMORY.replace("replication-factor 1", "replication-factor 2");
    let namespace = format!("{namespace}conflict-resolution-policy last-update-time\n");
    let Some(cluster) = SplitCluster::start_or_skip(&namespace) else { return };
    let both = &cluster.nodes;
    let sides = [manager(&both[0]), manager(&both[1])];
    let kept = sides[0].lock("kept", Level::Xdc).unwrap().acquire().unwrap();
    let before: Vec<_> = (0..LOCKS)
        .map(|lock| {
            let lease = sides[0].lock(&id(lock), Level::Xdc).unwrap().acquire().unwrap();
            assert!(lease.release().unwrap());
            lease.fence().unwrap()
        })
        .collect();

    cluster.split();
    // New clients: each of them asks one node, and hears of no other.
    let alone = [manager(&both[0]), manager(&both[1])];
    // Both sides have a copy of a record from before the split.
    for (side, manager) in alone.iter().enumerate() {
        let refused = manager.lock("kept", Level::Xdc).unwrap().try_acquire().expect_err("held since before");
        assert_eq!(refused.code(), Code::LockUnavailable, "side {side}: {}", refused.chain());
    }
    // Side 1 grants a lock that side 0 has granted. So the overlap below does not depend on the speed of this machine.
    let mut holds = held_on_both_sides(&alone);
    holds.extend(thread::scope(|scope| -> Vec<Hold> {
        let work = |number: usize| {
            let (side, manager) = (number % 2, &alone[number % 2]);
            let thread = thread::Builder::new().name(format!("dlm-test-side-{side}"));
            thread.spawn_scoped(scope, move || contend(side, manager)).unwrap()
        };
        let threads: Vec<_> = (0..4).map(work).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }));
    cluster.heal();

    let mut highest: HashMap<usize, Fence> = before.iter().copied().enumerate().collect();
    for hold in &holds {
        let Hold { side, lock, fence, .. } = hold;
        assert!(*fence > before[*lock], "side {side}: {fence} after {}", before[*lock]);
        for later in holds.iter().filter(|it| (it.side, it.lock) == (*side, *lock)) {
            // Exclusion within a side, as of any cluster.
            assert!(
                later.fence == *fence || later.granted >= hold.over || hold.granted >= later.over,
                "side {side} granted lock {lock} twice"
            );
            assert!(later.asked <= hold.granted || later.fence > *fence, "{} after {fence}", later.fence);
        }
        let known = highest.entry(*lock).or_insert(*fence);
        *known = (*known).max(*fence);
    }
    let overlap = |hold: &&Hold| {
        holds.iter().any(|it| {
            (it.side, it.lock) != (hold.side, hold.lock)
                && it.lock == hold.lock
                && it.granted < hold.over
                && hold.granted < it.over
        })
    };
    let overlaps = holds.iter().filter(overlap).count();
    eprintln!("{overlaps} of {} grants during the split overlapped a grant of the other side", holds.len());
    // Otherwise the cluster was not split, and the test has shown nothing.
    assert!(overlaps > 0, "no two grants overlapped");

    // The copies of one side have replaced those of the other.
    let together = manager(&both[1]);
    for (lock, highest) in &highest {
        let lease = together.lock(&id(*lock), Level::Xdc).unwrap().acquire().unwrap();
        assert!(lease.fence() > Some(*highest), "{:?} after {highest}", lease.fence());
        assert!(lease.release().unwrap());
    }
    kept.renew().unwrap();
    assert!(kept.release().unwrap());
}
