//! Records that a flush could bring back. HBase keeps old versions of a cell, and a flush keeps only the newest one of
//! those in memory. If that one ends first, the version in an older file is the newest again.
#![cfg(feature = "gateway")]

use std::thread;
use std::time::Duration;

use dlm::{Code, Deadline, Lease, Level, Lock, LockManager, LockQuery, Moment};
use dlm_fixtures::hbase::{self, fresh_table};
use dlm_fixtures::peer::Peer;
use dlm_fixtures::table;
use dlm_testkit::{LONG, LONGEST, eventually};

const OWN: &str = "dlm_test_own";
const SHORT: Duration = Duration::from_millis(1_000);

/// A lock in one layout.
struct Stage {
    table: &'static str,
    lock: Lock,
    holder: LockManager,
}

/// The lock `a` of a new client in the layouts `java` and `own`, and in `java` through a gateway.
fn stages(test: &str) -> Option<(Peer, [Stage; 3])> {
    let gateway = table::gateway()?;
    let hbase = hbase::hbase();
    let own = format!("hbase://{}/{OWN}?layout=own", hbase.master);
    dlm::store::open(&own).unwrap().initialize(Deadline::after(LONGEST)).unwrap();
    let java = format!("hbase://{}/{}", hbase.master, table::TABLE);
    let stages =
        [(table::TABLE, java), (OWN, own), (table::TABLE, table::uri(gateway))].map(|(table, uri)| {
            let client = fresh_table(test);
            let open = || {
                let builder = LockManager::builder().store_uri(&uri).client(&client).timeout(LONG);
                builder.ttl(10 * LONG).wait(LONGEST).retry(Duration::from_millis(5)).open().unwrap()
            };
            Stage { table, lock: open().lock("a", Level::Xdc).unwrap(), holder: open() }
        });
    Some((Peer::start(hbase), stages))
}

impl Stage {
    fn flush(&self, peer: &mut Peer) {
        peer.flushes(self.table, &self.lock.name().hbase_row());
    }

    fn long_lease(&self) -> Lease {
        self.holder.lock("a", Level::Xdc).unwrap().try_acquire().unwrap()
    }

    /// A lease that ends soon. On a slow machine it may end before it is known.
    fn short_lease(&self) -> Lease {
        (1..=30).find_map(|factor| self.lock.acquire_within(factor * SHORT, LONGEST).ok()).unwrap()
    }
}

/// Checks that nobody holds the locks, until everything that a short lease has written is over.
#[track_caller]
fn stay_free(stages: &[Stage]) {
    let began = Moment::now();
    while Moment::now().since(began) < 3 * SHORT {
        for Stage { table, lock, .. } in stages {
            assert_eq!(lock.inspect().unwrap().holder, None, "{table}");
        }
        thread::sleep(SHORT / 10);
    }
}

#[test]
fn a_lock_that_was_released_stays_free_after_a_shorter_lease_and_a_flush() {
    let Some((mut peer, stages)) = stages("cover") else { return };
    for stage in &stages {
        let long = stage.long_lease();
        stage.flush(&mut peer);
        assert!(long.release().unwrap());
        let short = stage.short_lease();
        assert!(short.fence() > long.fence());
        // Its end may have come, which is as good.
        let _ = short.release();
        stage.flush(&mut peer);
    }
    stay_free(&stages);
    for stage in &stages {
        assert!(stage.lock.try_acquire().unwrap().release().unwrap());
    }
}

/// Its fence is then below what receivers have seen, so its lease must not be valid again.
#[test]
fn a_lease_that_was_broken_is_not_valid_again_after_a_shorter_lease_and_a_flush() {
    let Some((mut peer, stages)) = stages("broken") else { return };
    let mut broken = Vec::new();
    for stage in &stages {
        let lease = stage.long_lease();
        stage.flush(&mut peer);
        let raised = stage.lock.see().unwrap().break_holder("it hangs").unwrap().unwrap();
        assert!(raised.fence > lease.fence());
        let short = stage.short_lease();
        assert!(short.fence() > raised.fence);
        let _ = short.release();
        // Its holder is gone before the end.
        let crashed = stage.short_lease();
        let last = crashed.fence();
        drop(crashed.into_token());
        stage.flush(&mut peer);
        broken.push((lease, last));
    }
    thread::sleep(3 * SHORT);
    for (stage, (lease, last)) in stages.iter().zip(broken) {
        assert_eq!(lease.renew().unwrap_err().code(), Code::LeaseLost, "{}", stage.table);
        assert!(stage.lock.inspect().unwrap().fence >= last, "{}: the fence fell", stage.table);
    }
}

/// The newest version that is left is the record of an earlier grant.
#[test]
fn a_lock_whose_short_lease_ended_is_free_in_the_layout_own() {
    let Some((mut peer, [_, stage, _])) = stages("own") else { return };
    let long = stage.long_lease();
    stage.flush(&mut peer);
    assert!(long.release().unwrap());
    let short = stage.short_lease();
    let last = short.fence();
    drop(short.into_token());
    stage.flush(&mut peer);
    eventually("the lease ends", || stage.lock.inspect().unwrap().holder.is_none());
    let listed = stage.holder.locks(&LockQuery::new().prefix(stage.lock.name().key()).held_only());
    assert_eq!(listed.count(), 0);
    let next = stage.lock.try_acquire().unwrap();
    assert!(next.fence() > last && next.release().unwrap());
}

/// The TTL of Java's record is not known, so nothing can be written over it that surely lasts longer.
#[test]
fn a_record_of_java_that_was_broken_does_not_come_back() {
    let Some((mut peer, [stage, ..])) = stages("java") else { return };
    let row = stage.lock.name().hbase_row();
    assert!(peer.acquires(stage.table, &row, 600_000));
    stage.flush(&mut peer);
    assert!(stage.lock.see().unwrap().break_holder("it hangs").unwrap().is_some());
    let _ = stage.short_lease().release();
    stage.flush(&mut peer);
    stay_free(&[stage]);
}
