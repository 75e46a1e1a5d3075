//! Locks and latches across crashes of HBase and restarts of its gateways. Each test starts its own server.
#![cfg(feature = "gateway")]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dlm::store::LockStore;
use dlm::{Code, LatchKind, Lease, Level, Lock, LockManager};
use dlm_fixtures::hbase::Hbase;
use dlm_fixtures::table;
use dlm_testkit::{LONGEST, Spy, eventually, left_to_the_long_run};

/// A TTL that is longer than any restart takes. Tests of expiry use shorter ones.
const TTL: Duration = Duration::from_secs(1800);

/// A TTL that is short enough for a release that does not wait for the server's log: see docs/hbase.md.
const BRIEF: Duration = Duration::from_secs(60);

/// Opens a manager as one process would.
fn manager(uri: &str) -> LockManager {
    let builder = LockManager::builder().store_uri(uri).client("restarts");
    builder.ttl(TTL).wait(TTL).retry(Duration::from_millis(200)).timeout(LONGEST).open().unwrap()
}

fn lock(manager: &LockManager, id: &str) -> Lock {
    manager.lock(id, Level::Xdc).unwrap()
}

#[track_caller]
fn assert_fails<T: std::fmt::Debug>(answer: dlm::Result<T>, with: Code) {
    let error = answer.expect_err("this must fail");
    assert_eq!(error.code(), with, "{error:?}");
}

/// The state before the crash, made over one transport.
struct Before {
    ours: LockManager,
    theirs: LockManager,
    long: Lease,
    short: Lease,
}

impl Before {
    fn set_up(uri: &str) -> Before {
        let (ours, theirs) = (manager(uri), manager(uri));
        ours.initialize().unwrap();
        // A grant that comes after the end of its lease is an error.
        let ttls = [2, 8, 30].map(Duration::from_secs);
        let short = ttls.into_iter().find_map(|ttl| lock(&ours, "short").acquire_with_ttl(ttl).ok()).unwrap();
        assert!(lock(&ours, "released").acquire().unwrap().release().unwrap());
        // This is the last write, so no later one syncs the log for it.
        let long = lock(&ours, "long").acquire().unwrap();
        Before { ours, theirs, long, short }
    }

    fn check_after_crash(self) {
        let Before { ours: _ours, theirs, long, short } = self;
        // Each lock has its own region, and the server opens them one after another. A renewal waits no longer than its
        // TTL. A gateway may learn only from a failed call that the server was replaced.
        for id in ["long", "short", "released"] {
            eventually("the holder of the lock is read", || lock(&theirs, id).inspect().is_ok());
        }
        assert_fails(lock(&theirs, "long").try_acquire(), Code::LockUnavailable);
        long.renew().expect("a lease was lost in the crash");
        assert_fails(lock(&theirs, "long").try_acquire(), Code::LockUnavailable);
        assert!(long.release().unwrap());
        let next = lock(&theirs, "long").acquire().unwrap();
        assert!(next.fence() > long.fence(), "{:?} after {:?}", next.fence(), long.fence());

        // A lock whose lease has ended or was released is free.
        assert_fails(short.renew(), Code::LeaseLost);
        let next = lock(&theirs, "short").try_acquire().unwrap();
        assert!(next.fence() > short.fence(), "{:?} after {:?}", next.fence(), short.fence());
        drop(lock(&theirs, "released").try_acquire().expect("a release was forgotten"));
    }
}

#[test]
fn a_crash_of_hbase_frees_no_lock_early_and_lets_no_fence_fall() {
    if left_to_the_long_run() {
        return;
    }
    let Some(hbase) = Hbase::private("crash") else { return };
    let (gateway, direct) = (table::uri(hbase.thrift), format!("hbase://{}/{}", hbase.master, table::TABLE));
    crash_in_between(
        &hbase,
        &gateway,
        || {
            let direct = manager(&direct);
            let brief = lock(&direct, "brief").acquire_with_ttl(BRIEF).unwrap();
            // The server answers without waiting for its log.
            assert!(brief.release().unwrap());
            (direct, brief)
        },
        |(direct, brief)| {
            let wait = BRIEF + LONGEST;
            let next = lock(&direct, "brief").acquire_within(TTL, wait).expect("held beyond its TTL");
            assert!(next.fence() > brief.fence(), "{:?} after {:?}", next.fence(), brief.fence());
        },
    );
    crash_in_between(&hbase, &direct, || (), |()| ());
    let own = format!("hbase://{}/own?layout=own", hbase.master);
    crash_in_between(&hbase, &own, || (), |()| ());
}

/// Acquires locks through `uri`, calls `last`, crashes and restarts the server, checks the locks, and calls `then`.
fn crash_in_between<T>(hbase: &Hbase, uri: &str, last: impl FnOnce() -> T, then: impl FnOnce(T)) {
    let before = Before::set_up(uri);
    let done = last();
    hbase.kill();
    eventually("the short lease ends", || before.short.check().is_err());
    hbase.start();
    before.check_after_crash();
    then(done);
}

/// One wait is direct and one goes through a gateway. Each has its own latch.
#[test]
fn a_wait_for_a_latch_outlasts_thirty_seconds_without_hbase() {
    if left_to_the_long_run() {
        return;
    }
    const OUTAGE: Duration = Duration::from_secs(30);
    let Some(hbase) = Hbase::private("latch") else { return };
    let manager = |store: Arc<dyn LockStore>, timeout| -> LockManager {
        let builder = LockManager::builder().store(store).client("restarts").farm("dc1");
        builder.poll(Duration::from_millis(500)).timeout(timeout).open().unwrap()
    };
    let open = |uri: &str| dlm::store::open(uri).unwrap();
    let latch =
        |uri: &str, id| manager(open(uri), LONGEST).latch(id, Level::Dc, LatchKind::CountDown).unwrap();
    let direct = format!("hbase://{}/{}", hbase.master, table::TABLE);
    let ways = [(direct.clone(), "direct"), (table::uri(hbase.thrift), "gateway")];
    manager(open(&direct), LONGEST).initialize_latches().unwrap();
    let waiters = ways.clone().map(|(uri, id)| {
        let ours = latch(&uri, id);
        ours.create(2).unwrap();
        ours.count_down().unwrap();
        // Its polls fail during the outage.
        let spy = Spy::on(open(&uri));
        let ours = manager(spy.clone(), OUTAGE / 3).latch(id, Level::Dc, LatchKind::CountDown).unwrap();
        let waiter = thread::Builder::new().name(format!("dlm-test-{id}"));
        let waiter = waiter.spawn(move || ours.await_open()).unwrap();
        eventually("the latch is polled", || spy.reads().len() >= 3);
        waiter
    });
    hbase.kill();
    thread::sleep(OUTAGE);
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "a wait ended during the outage");
    hbase.start();
    for ((_, id), waiter) in ways.into_iter().zip(waiters) {
        let theirs = latch(&direct, id);
        eventually("HBase serves again", || theirs.count().is_ok());
        assert_eq!(theirs.count().unwrap(), 1, "a crash lost a count-down");
        assert!(!waiter.is_finished(), "{id}: a wait ended, but the latch is closed");
        theirs.count_down().unwrap();
        eventually("the wait ends", || waiter.is_finished());
        waiter.join().unwrap().unwrap();
    }
}

#[test]
fn gateways_that_go_away_end_a_wait_and_leave_no_dead_connection_behind() {
    if left_to_the_long_run() {
        return;
    }
    let Some(hbase) = Hbase::private("gateways") else { return };
    let uri = table::uri(hbase.thrift);
    let (ours, theirs) = (manager(&uri), manager(&uri));
    ours.initialize().unwrap();
    let lease = lock(&theirs, "a").acquire().unwrap();
    fill_pool(&ours);
    let waiting = lock(&ours, "a");
    let waiter = thread::Builder::new().name("dlm-test-waiter".into());
    let waiter = waiter.spawn(move || waiting.acquire().map(|_| ())).unwrap();
    eventually("it waits for the lock", || ours.stats().threads_waiting == 1);
    // Enough time for some polls of the lock.
    thread::sleep(Duration::from_secs(1));
    assert!(!waiter.is_finished(), "it did not wait");

    hbase.stop_gateways();
    eventually("the wait ends", || waiter.is_finished());
    assert_fails(waiter.join().unwrap(), Code::ConnectionError);
    lease.check().expect("the lease was lost");

    hbase.start_gateways();
    // Each call succeeds at the first try. There are more calls than old connections.
    for number in 0..2 * POOLED {
        let id = number.to_string();
        let lease = lock(&ours, &id).try_acquire().unwrap_or_else(|error| panic!("{}", error.chain()));
        assert!(lease.release().unwrap());
    }
    assert!(lease.release().unwrap());
    assert!(lock(&ours, "a").acquire().unwrap().release().unwrap());
}

const POOLED: usize = 8;

/// Fills the manager's pool with idle connections.
fn fill_pool(manager: &LockManager) {
    thread::scope(|scope| {
        for number in 0..POOLED {
            let name = format!("dlm-test-pooled-{number}");
            let work = move || drop(lock(manager, &number.to_string()).acquire().unwrap());
            thread::Builder::new().name(name).spawn_scoped(scope, work).unwrap();
        }
    });
}
