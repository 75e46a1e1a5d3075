//! Waiters for a row do not block its holder. HBase's own row locks had this deadlock: a RegionServer held them,
//! and clients that waited occupied its handlers until the holder could neither write nor unlock.
#![cfg(feature = "gateway")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlm::hbase::{Cells, Table};
use dlm::{AcquireOptions, CancelToken, Code, Deadline, Level, LockManager};
use dlm_fixtures::hbase::{Hbase, Kind, fresh_table};
use dlm_testkit::{LONGEST, eventually, left_to_the_long_run};

/// Number of calls that the RegionServer runs at the same time.
const HANDLERS: usize = 5;
/// Each waiter has its own manager, because the threads of one manager poll together.
const WAITERS: usize = 200;
const TTL: Duration = Duration::from_secs(1800);
/// If waiters occupied the handlers, no call would be answered until they give up, and they never do.
const BOUND: Duration = Duration::from_secs(120);
const ROUNDS: usize = 20;

#[test]
fn waiters_for_a_row_hold_up_neither_the_holders_writes_nor_its_release() {
    if left_to_the_long_run() {
        return;
    }
    let environment = [("DLM_TEST_HANDLERS", HANDLERS.to_string().into())];
    let Some(hbase) = Hbase::private_in("handlers", Kind::Single, &environment) else { return };
    let (locks, name) = (fresh_table("handlers"), fresh_table("handled"));
    // A gateway creates a table with one region. 257 regions would take a minute.
    let gateway = dlm::store::open(&format!("hbase+thrift://{}/{locks}", hbase.thrift)).unwrap();
    gateway.initialize(Deadline::after(LONGEST)).unwrap();
    let table = Table::open(&format!("hbase://{}/{name}?family=d&timeout=10m", hbase.masters)).unwrap();
    table.create_if_missing(&super::families(), &[]).unwrap();
    let manager = || {
        let uri = format!("hbase://{}/{locks}?client=rows&farm=dc1", hbase.masters);
        let builder = LockManager::builder().store_uri(&uri).ttl(TTL).wait(TTL);
        builder.timeout(LONGEST).retry(Duration::from_millis(200)).open().unwrap()
    };
    let lock = |manager: &LockManager| manager.lock(&format!("row/{name}/r"), Level::Dc).unwrap();
    // A lease, three writes and the release.
    let mine = manager();
    let turn = || {
        let lease = lock(&mine).acquire().unwrap();
        let began = Instant::now();
        let row = lease.row(&table, "r").unwrap();
        row.put(&Cells::new().put("d:a", "1")).unwrap();
        row.increment("d:n", 1).unwrap();
        row.exactly_once().increment("d:n", 1).unwrap();
        let written = began.elapsed();
        let began = Instant::now();
        assert!(lease.release().unwrap());
        (written, began.elapsed())
    };
    let mut alone: Vec<_> = (0..ROUNDS).map(|_| turn()).collect();

    let held = lock(&mine).acquire().unwrap();
    let (cancel, granted) = (CancelToken::new(), AtomicUsize::new(0));
    let mut beside = Vec::new();
    let managers: Vec<_> = (0..WAITERS).map(|_| manager()).collect();
    thread::scope(|scope| {
        for manager in &managers {
            let (lock, cancel, granted) = (lock(manager), &cancel, &granted);
            let wait = move || {
                loop {
                    match lock.acquire_with(&AcquireOptions::new().cancel(cancel)) {
                        Ok(lease) => {
                            granted.fetch_add(1, Ordering::SeqCst);
                            assert!(lease.release().unwrap());
                        }
                        Err(error) if error.code() == Code::Cancelled => break,
                        Err(error) => assert!(error.is_retryable(), "{}", error.chain()),
                    }
                }
                manager.close().unwrap();
            };
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, wait).unwrap();
        }
        eventually("all waiters wait", || {
            managers.iter().all(|manager| manager.stats().threads_waiting == 1)
        });
        assert_eq!(granted.load(Ordering::SeqCst), 0);
        // Writes of the holder while all others wait.
        let row = held.row(&table, "r").unwrap();
        for _ in 0..ROUNDS {
            let began = Instant::now();
            row.increment("d:n", 1).unwrap();
            beside.push(began.elapsed());
        }
        let began = Instant::now();
        assert!(held.release().unwrap());
        let took = began.elapsed();
        println!("released in {took:?} with {WAITERS} waiters");
        assert!(took < BOUND, "{took:?}");
        eventually("waiters are granted the lock", || granted.load(Ordering::SeqCst) >= 20);
        cancel.cancel();
    });
    alone.sort_unstable();
    beside.sort_unstable();
    println!(
        "without waiters: three writes {:?}, release {:?}; with {WAITERS}: one write {:?}, the slowest {:?}",
        alone[ROUNDS / 2].0,
        alone[ROUNDS / 2].1,
        beside[ROUNDS / 2],
        beside[ROUNDS - 1]
    );
    assert!(beside[ROUNDS - 1] < BOUND, "{beside:?}");
}
