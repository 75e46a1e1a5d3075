//! The options for connections to the gateway, and the limits of the connection pool.
#![cfg(feature = "gateway")]

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use dlm::store::HbaseStore;
use dlm::store::LockStore;
use dlm::{Code, Level, LockManager, LockName, NamePolicy};
use dlm_fixtures::thrift_proxy;
use dlm_fixtures::{hbase, table};
use dlm_testkit::{Fault, Gate, LONG, Proxy, until};

/// Opens a manager for locks of `client` in `store`.
fn manager(store: &Arc<dyn LockStore>, client: &str, timeout: Duration) -> LockManager {
    let builder = LockManager::builder().store(Arc::clone(store)).client(client).timeout(timeout);
    builder.ttl(10 * LONG).open().unwrap()
}

/// A time-out after which no call of these tests has ended. One message may take a third of it.
const PATIENT: Duration = LONG.saturating_mul(10);

/// Opens a store that connects through the proxy, with this `pool=`.
fn store(proxy: &Proxy, pool: usize) -> Arc<dyn LockStore> {
    dlm::store::open(&format!("{}?pool={pool}", table::uri(proxy.address()))).unwrap()
}

#[test]
fn many_threads_share_no_more_connections_than_the_pool_may_have() {
    const THREADS: usize = 8;
    const POOL: usize = 2;
    let Some(gateway) = table::gateway() else { return };
    let proxy = thrift_proxy::before(gateway);
    let manager = manager(&store(&proxy, POOL), &hbase::fresh_table("pool"), PATIENT);
    let begin = &Barrier::new(THREADS);
    thread::scope(|scope| {
        for number in 0..THREADS {
            // Each thread has its own lock, so the threads wait only for connections.
            let lock = manager.lock(&number.to_string(), Level::Xdc).unwrap();
            let work = move || {
                begin.wait();
                (0..20).for_each(|_| assert!(lock.acquire().unwrap().release().unwrap()));
            };
            let name = format!("dlm-test-pool-{number}");
            thread::Builder::new().name(name).spawn_scoped(scope, work).unwrap();
        }
    });
    // The connection of the greeting is closed, which the proxy may see a moment later.
    let at_once = proxy.connections_at_once();
    assert!((POOL..=POOL + 1).contains(&at_once), "{at_once}");
}

#[test]
fn a_pool_that_is_too_small_is_named_in_the_error_and_serves_again() {
    let Some(gateway) = table::gateway() else { return };
    let proxy = thrift_proxy::before(gateway);
    let (store, client) = (store(&proxy, 1), hbase::fresh_table("pool"));
    let patient = manager(&store, &client, PATIENT).lock("a", Level::Xdc).unwrap();
    let hasty = manager(&store, &client, Duration::from_millis(300)).lock("b", Level::Xdc).unwrap();
    let gate = Arc::new(Gate::default());
    proxy.next("checkAndPut", Fault::Keep(Arc::clone(&gate)));
    thread::scope(|scope| {
        let waiter = thread::Builder::new().name("dlm-test-patient".into());
        let waiter = waiter.spawn_scoped(scope, || patient.try_acquire()).unwrap();
        until("the only connection is in use", || proxy.hits() == 1);
        let error = hasty.try_acquire().unwrap_err();
        // Opened before any assertion can fail, because the scope waits for the other thread.
        gate.open();
        assert_eq!(error.code(), Code::RetriesExhausted, "{}", error.chain());
        assert!(error.chain().contains("`pool`"), "{}", error.chain());
        assert!(waiter.join().unwrap().unwrap().release().unwrap());
    });
    assert!(manager(&store, &client, PATIENT).lock("b", Level::Xdc).unwrap().try_acquire().is_ok());
    // As above.
    let at_once = proxy.connections_at_once();
    assert!((1..=2).contains(&at_once), "{at_once}");
}

/// A region that is down has this effect: the gateway keeps its requests for minutes.
#[test]
fn calls_for_a_row_that_does_not_answer_leave_connections_to_other_rows() {
    const POOL: usize = 4;
    let Some(gateway) = table::gateway() else { return };
    let proxy = thrift_proxy::before(gateway);
    let (store, client) = (store(&proxy, POOL), hbase::fresh_table("pool"));
    let patient = manager(&store, &client, PATIENT);
    let dead = patient.lock("dead", Level::Xdc).unwrap();
    let row = HbaseStore::lock_row(dead.name());
    // Returns ids of locks whose rows have the same first byte as the dead row, or another one.
    let ids = |same: bool| -> Vec<String> {
        let is_so = |id: &String| {
            let name = LockName::new(Level::Xdc, &client, None, id, NamePolicy::Strict).unwrap();
            (HbaseStore::lock_row(&name)[0] == row[0]) == same
        };
        (0..).map(|id: u32| id.to_string()).filter(is_so).take(if same { 1 } else { 10 }).collect()
    };
    let gate = Arc::new(Gate::opening_after(PATIENT));
    proxy.naming(&HbaseStore::lock_row(dead.name()), Fault::Keep(Arc::clone(&gate)));
    thread::scope(|scope| {
        // More threads than connections.
        let ask = |number: usize| {
            let name = format!("dlm-test-dead-{number}");
            thread::Builder::new().name(name).spawn_scoped(scope, || drop(dead.try_acquire())).unwrap()
        };
        let asking: Vec<_> = (0..2 * POOL).map(ask).collect();
        until("the share of the dead row is in use", || proxy.hits() == POOL / 2);
        let cycle = |id: &String| patient.lock(id, Level::Xdc)?.try_acquire()?.release();
        let others: Vec<_> = ids(false).iter().map(cycle).collect();
        let still_ask = asking.iter().all(|thread| !thread.is_finished());
        let hasty = manager(&store, &client, Duration::from_millis(300));
        let refused = hasty.lock(&ids(true)[0], Level::Xdc).unwrap().try_acquire();
        let hits = proxy.hits();
        // Opened before any assertion can fail, because the scope waits for the other threads.
        gate.open();
        proxy.heal();
        for other in others {
            assert!(other.unwrap_or_else(|error| panic!("{}", error.chain())));
        }
        assert!(still_ask, "the other rows waited for the dead one");
        assert_eq!(hits, POOL / 2, "the row that does not answer got more than its share");
        let error = refused.unwrap_err();
        assert_eq!(error.code(), Code::RetriesExhausted, "{}", error.chain());
        assert!(error.chain().contains("`pool`") && error.chain().contains("share"), "{}", error.chain());
    });
    until("the row that was dead serves again", || dead.inspect().is_ok());
}

/// No server listens at this address, and opening a store does no I/O.
#[test]
fn an_option_that_is_misspelt_or_out_of_its_limits_is_refused() {
    let open = |options: &str| dlm::store::open(&format!("hbase+thrift://127.0.0.1:1/locks?{options}"));
    for options in ["pool=1", "pool=1024", "connect_timeout=250ms", "pool=3&connect_timeout=1s"] {
        assert!(open(options).is_ok(), "{options}");
    }
    for (options, named) in [
        ("pol=3", "pol"),
        ("pool=0", "pool"),
        ("pool=1025", "pool"),
        ("pool=two", "pool"),
        ("pool=", "pool"),
        ("connect_timeout=0s", "timeout"),
        ("connect_timeout=3", "connect_timeout"),
    ] {
        let error = open(options).expect_err(options);
        assert_eq!(error.code(), Code::InvalidArgument, "{options}: {error}");
        assert!(error.to_string().contains(named), "{options}: {error}");
    }
}
