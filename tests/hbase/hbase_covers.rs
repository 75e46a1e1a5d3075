//! Records that a flush could bring back. HBase keeps old versions of a cell, and a flush keeps only the newest one of
//! those in memory. If that one ends first, the version in an older file is the newest again.
#![cfg(feature = "gateway")]

use std::thread;
use std::time::Duration;

use dlm::store::HbaseStore;
use dlm::store::LockQuery;
use dlm::{Code, Deadline, Fence, Lease, Level, Lock, LockManager, Moment};
use dlm_fixtures::hbase::{self, fresh_table};
use dlm_fixtures::peer::Peer;
use dlm_fixtures::table;
use dlm_testkit::{LONG, LONGEST};

const OWN: &str = "dlm_test_own";

/// Two processes that use one layout.
struct Stage {
    table: &'static str,
    holder: LockManager,
    other: LockManager,
}

/// The layouts `java` and `own`, and `java` through a gateway.
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
            Stage { table, holder: open(), other: open() }
        });
    Some((Peer::start(hbase), stages))
}

impl Stage {
    /// Runs a case with short leases of a second. `None` means that the flush came after the end of the short lease. Then
    /// it has dropped nothing that lasts longer, and the case runs again with another lock and a longer lease.
    fn in_time<T>(&self, mut case: impl FnMut(&Try) -> Option<T>) -> T {
        let run = |seconds: u64| {
            let lock = |manager: &LockManager| manager.lock(&seconds.to_string(), Level::Xdc).unwrap();
            let (held, lock) = (lock(&self.holder), lock(&self.other));
            case(&Try { table: self.table, held, lock, ttl: Duration::from_secs(seconds) })
        };
        [1, 5, 20, 60].into_iter().find_map(run).expect("a flush took longer than a minute")
    }
}

/// One run of a case.
struct Try {
    table: &'static str,
    /// The lock, in the process whose lease is long.
    held: Lock,
    /// The same lock in the other process.
    lock: Lock,
    /// The TTL of short leases.
    ttl: Duration,
}

impl Try {
    fn flush(&self, peer: &mut Peer) {
        peer.flushes(self.table, &HbaseStore::lock_row(self.lock.name()));
    }

    /// Acquires the lock for long, in a file of its own.
    fn long_lease(&self, peer: &mut Peer) -> Lease {
        let lease = self.held.try_acquire().unwrap();
        self.flush(peer);
        lease
    }

    /// Takes a short lease, ends it with `end`, and flushes. Returns its fence, and when all that was written for it is over.
    /// `None` if the flush came after that.
    fn short_lease(&self, peer: &mut Peer, end: impl Fn(Lease)) -> Option<(Option<Fence>, Moment)> {
        let began = Moment::now();
        let lease = self.lock.acquire_within(self.ttl, LONGEST).ok()?;
        let fence = lease.fence();
        end(lease);
        self.flush(peer);
        let flushed = Moment::now();
        (flushed.since(began) < self.ttl).then(|| (fence, flushed.after(self.ttl)))
    }

    /// Checks that nobody holds the lock, until everything that a short lease has written is over.
    #[track_caller]
    fn stays_free(&self, over: Moment) {
        while Moment::now() < over.after(Duration::from_millis(500)) {
            assert_eq!(self.lock.inspect().unwrap().holder, None, "{}", self.table);
            thread::sleep(self.ttl / 10);
        }
    }
}

/// Ends a lease whose time may be over.
fn release(lease: Lease) {
    let _ = lease.release();
}

/// Its holder is gone before its end.
fn crash(lease: Lease) {
    drop(lease.into_token());
}

#[test]
fn a_lock_that_was_released_stays_free_after_a_shorter_lease_and_a_flush() {
    let Some((mut peer, stages)) = stages("cover") else { return };
    for stage in &stages {
        stage.in_time(|it| {
            let long = it.long_lease(&mut peer);
            assert!(long.release().unwrap());
            let (fence, over) = it.short_lease(&mut peer, release)?;
            assert!(fence > long.fence());
            it.stays_free(over);
            assert!(it.lock.try_acquire().unwrap().release().unwrap());
            Some(())
        });
    }
}

/// Its fence is then below what receivers have seen, so its lease must not be valid again.
#[test]
fn a_lease_that_was_broken_is_not_valid_again_after_a_shorter_lease_and_a_flush() {
    let Some((mut peer, stages)) = stages("broken") else { return };
    for stage in &stages {
        stage.in_time(|it| {
            let lease = it.long_lease(&mut peer);
            let raised = it.lock.inspected().unwrap().break_holder("it hangs").unwrap().unwrap();
            assert!(raised.fence > lease.fence());
            let (last, over) = it.short_lease(&mut peer, crash)?;
            assert!(last > raised.fence);
            thread::sleep(over.since(Moment::now()));
            assert_eq!(lease.renew().unwrap_err().code(), Code::LeaseLost, "{}", it.table);
            assert!(it.lock.inspect().unwrap().fence >= last, "{}: the fence fell", it.table);
            Some(())
        });
    }
}

/// The newest version that is left is the record of an earlier grant.
#[test]
fn a_lock_whose_short_lease_ended_is_free_in_the_layout_own() {
    let Some((mut peer, [_, stage, _])) = stages("own") else { return };
    stage.in_time(|it| {
        let long = it.long_lease(&mut peer);
        assert!(long.release().unwrap());
        let (last, over) = it.short_lease(&mut peer, crash)?;
        thread::sleep(over.since(Moment::now()));
        it.stays_free(Moment::now());
        let listed = stage.other.locks(&LockQuery::new().prefix(it.lock.name().key()).held_only());
        assert_eq!(listed.count(), 0);
        let next = it.lock.try_acquire().unwrap();
        assert!(next.fence() > last && next.release().unwrap());
        Some(())
    });
}

/// The TTL of Java's record is not known, so nothing can be written over it that surely lasts longer.
#[test]
fn a_record_of_java_that_was_broken_does_not_come_back() {
    let Some((mut peer, [stage, ..])) = stages("java") else { return };
    stage.in_time(|it| {
        assert!(peer.acquires(it.table, &HbaseStore::lock_row(it.lock.name()), 600_000));
        it.flush(&mut peer);
        assert!(it.lock.inspected().unwrap().break_holder("it hangs").unwrap().is_some());
        let (_, over) = it.short_lease(&mut peer, crash)?;
        thread::sleep(over.since(Moment::now()));
        it.stays_free(Moment::now());
        Some(())
    });
}
