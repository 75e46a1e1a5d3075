//! Waiting inside a process: how many requests the store receives, and in which order the waiters are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::{LockStore, MemoryStore};
use dlm::{AcquireOptions, CancelToken, Code, Deadline, Level, Lock, LockManager, Moment};
use dlm_testkit::{Call, LONG, Spy, until};
use parking_lot::Mutex;

fn manager(store: Arc<dyn LockStore>, retry: Duration) -> LockManager {
    LockManager::builder()
        .store(store)
        .client("waiting")
        .retry(retry)
        .wait(5 * LONG)
        .ttl(30 * LONG)
        .open()
        .unwrap()
}

fn lock(manager: &LockManager) -> Lock {
    manager.lock("a", Level::Xdc).unwrap()
}

fn spawn<T: Send + 'static>(name: &str, job: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::Builder::new().name(format!("dlm-test-{name}")).spawn(job).unwrap()
}

/// Returns how many requests a process may send in `time`: the first, and one per interval. Jitter shortens an
/// interval by at most a tenth.
fn questions_in(time: Duration, retry: Duration) -> usize {
    (time.as_secs_f64() / (0.9 * retry.as_secs_f64())) as usize + 2
}

#[test]
fn a_crowd_of_200_threads_costs_the_store_one_question_per_interval() {
    const RETRY: Duration = Duration::from_millis(100);
    let memory = Arc::new(MemoryStore::new());
    let _held = lock(&manager(memory.clone(), RETRY)).acquire().unwrap();
    let spy = Spy::on(memory);
    let crowd = manager(spy.clone(), RETRY);
    let began = Moment::now();
    let waiters: Vec<_> = (0..200)
        .map(|number| {
            let lock = lock(&crowd);
            spawn(&number.to_string(), move || lock.acquire_within(LONG, 15 * RETRY).map(|_| ()))
        })
        .collect();
    let token = CancelToken::new();
    let last = {
        let (lock, how) = (lock(&crowd), AcquireOptions::new().cancel(&token));
        spawn("last", move || lock.acquire_with(&how).map(|_| ()))
    };
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap().unwrap_err().code(), Code::LockUnavailable);
    }
    until("somebody checks whether the lock is free", || spy.calls() >= 3);
    token.cancel();
    assert_eq!(last.join().unwrap().unwrap_err().code(), Code::Cancelled);
    let took = Moment::now().since(began);
    let most = questions_in(took, RETRY);
    assert!(spy.calls() <= most, "{} requests in {took:?}, {most} are allowed", spy.calls());
    // While the lock is held, only the first request may be an attempt to acquire it. The others are reads.
    assert_eq!(spy.calls_of(Call::Acquire), 1);
}

#[test]
fn a_crowd_is_served_one_by_one_for_one_question_each() {
    const WAITERS: usize = 200;
    // Longer than the test waits, so only the releasing thread can wake the next waiter.
    let retry = Duration::from_secs(3600);
    let spy = Spy::on(Arc::new(MemoryStore::new()));
    let manager = manager(spy.clone(), retry);
    let first = lock(&manager).acquire_with_ttl(Duration::from_secs(24 * 3600)).unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let waiters: Vec<_> = (0..WAITERS)
        .map(|number| {
            let (lock, inside) = (lock(&manager), Arc::clone(&inside));
            spawn(&number.to_string(), move || {
                let lease = lock.acquire().unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
                assert!(lease.release().unwrap());
            })
        })
        .collect();
    until("the first waiter asks", || spy.calls() >= 2);
    assert!(first.release().unwrap());
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    // A thread that joins the queue while the lock is passed on may send one request in vain.
    let asked = spy.calls() - spy.calls_of(Call::Release);
    assert!((WAITERS + 1..=2 * WAITERS + 4).contains(&asked), "{asked} requests");
}

#[test]
fn threads_are_served_in_the_order_in_which_they_came() {
    const WAITERS: usize = 12;
    let spy = Spy::on(Arc::new(MemoryStore::new()));
    let manager = manager(spy.clone(), Duration::from_secs(3600));
    let first = lock(&manager).acquire().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = (0..WAITERS)
        .map(|number| {
            let (lock, order) = (lock(&manager), Arc::clone(&order));
            spawn_in_line(&manager, number, move || {
                let lease = lock.acquire().unwrap();
                order.lock().push(number);
                assert!(lease.release().unwrap());
            })
        })
        .collect();
    assert!(first.release().unwrap());
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    assert_eq!(*order.lock(), (0..WAITERS).collect::<Vec<_>>());
}

/// Starts a thread and returns when it is in the queue, in which so many others wait.
fn spawn_in_line(
    manager: &LockManager,
    others: usize,
    job: impl FnOnce() + Send + 'static,
) -> thread::JoinHandle<()> {
    let thread = spawn(&others.to_string(), job);
    until("the thread waits in the queue", || manager.stats().threads_waiting == others as u64 + 1);
    thread
}

#[test]
fn a_waiter_that_leaves_does_not_take_the_turn_of_the_next() {
    let manager = manager(Arc::new(MemoryStore::new()), Duration::from_secs(3600));
    let first = lock(&manager).acquire().unwrap();
    let token = CancelToken::new();
    let mut waiters = Vec::new();
    for number in 0..6 {
        let lock = lock(&manager);
        let leaves = (number % 2 == 0).then(|| AcquireOptions::new().cancel(&token));
        let waiter = spawn_in_line(&manager, number, move || match leaves {
            Some(how) => assert_eq!(lock.acquire_with(&how).unwrap_err().code(), Code::Cancelled),
            None => assert!(lock.acquire().unwrap().release().unwrap()),
        });
        waiters.push(waiter);
    }
    token.cancel();
    first.release().unwrap();
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
}

/// Threads of each of two processes pass the lock on among themselves. Neither process may keep it for ever.
#[test]
fn two_busy_processes_both_get_their_turn() {
    const TURNS: usize = 5;
    let retry = Duration::from_millis(20);
    let memory = Arc::new(MemoryStore::new());
    let (stop, log) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let mut threads = Vec::new();
    for process in 0..2 {
        let manager = manager(memory.clone(), retry);
        for number in 0..3 {
            let (lock, stop, log) = (lock(&manager), Arc::clone(&stop), Arc::clone(&log));
            threads.push(spawn(&format!("{process}-{number}"), move || {
                while !stop.load(Ordering::SeqCst) {
                    let lease = lock.acquire().unwrap();
                    log.lock().push(process);
                    thread::sleep(Duration::from_millis(1));
                    assert!(lease.release().unwrap());
                }
            }));
        }
    }
    let changes = || log.lock().windows(2).filter(|pair| pair[0] != pair[1]).count();
    let deadline = Deadline::after(3 * LONG);
    while changes() < 2 * TURNS && !deadline.passed() {
        thread::sleep(retry);
    }
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let grants = [0, 1].map(|process| log.lock().iter().filter(|by| **by == process).count());
    assert!(changes() >= 2 * TURNS, "the lock changed only {} times; grants: {grants:?}", changes());
}

/// Other processes check a lock once per interval. If one process acquires it again and again without a pause, they
/// never find it free.
#[test]
fn a_process_that_keeps_taking_a_lock_stands_back_for_an_interval_now_and_then() {
    stands_back(3);
    // A single thread leaves no waiter in the queue when it releases the lock.
    stands_back(1);
}

fn stands_back(threads: usize) {
    let retry = Duration::from_millis(50);
    let spy = Spy::on(Arc::new(MemoryStore::new()));
    let manager = manager(spy.clone(), retry);
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..threads)
        .map(|number| {
            let (lock, stop) = (lock(&manager), Arc::clone(&stop));
            spawn(&number.to_string(), move || {
                while !stop.load(Ordering::SeqCst) {
                    let lease = lock.acquire().unwrap();
                    thread::sleep(Duration::from_millis(1));
                    assert!(lease.release().unwrap());
                }
            })
        })
        .collect();
    let pauses = || {
        let log = spy.log();
        let handed_on = log.windows(2).filter(|pair| pair[0].0 == Call::Release);
        handed_on.filter(|pair| pair[1].1.since(pair[0].1) >= retry.mul_f64(0.9)).count()
    };
    let deadline = Deadline::after(3 * LONG);
    while pauses() < 2 && !deadline.passed() {
        thread::sleep(retry);
    }
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(pauses() >= 2, "{} pauses in {} calls", pauses(), spy.calls());
}

#[test]
fn a_crowd_that_nobody_serves_leaves_when_its_time_is_over() {
    let memory = Arc::new(MemoryStore::new());
    let _held = lock(&manager(memory.clone(), LONG)).acquire().unwrap();
    let crowd = manager(memory, Duration::from_secs(3600));
    let waits = [1, 400, 200].map(Duration::from_millis);
    let waiters = waits.map(|wait| {
        let lock = lock(&crowd);
        spawn("waiter", move || {
            let began = Moment::now();
            let error = lock.acquire_within(LONG, wait).unwrap_err();
            assert_eq!(error.code(), Code::LockUnavailable);
            assert!(Moment::now().since(began) >= wait, "the wait ended too early");
        })
    });
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
}

/// A lease that is not released in time delays others until it expires.
#[test]
fn closing_a_manager_releases_the_longest_leases_first() {
    const HOUR: Duration = Duration::from_secs(3600);
    fn id(hours: u32) -> String {
        format!("lock-{hours}")
    }
    let store: Arc<dyn LockStore> = Arc::new(MemoryStore::new());
    let observer = manager(Arc::clone(&store), HOUR);
    let held = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&held);
    let is_held = move |hours: &u32| {
        observer.lock(&id(*hours), Level::Xdc).unwrap().inspect().unwrap().holder.is_some()
    };
    let spy = Spy::with_hook(store, move |call| {
        if call == Call::Release {
            seen.lock().push((1..=6).filter(&is_held).collect::<Vec<u32>>());
        }
    });
    let closed = manager(spy, HOUR);
    let acquire =
        |hours: u32| closed.lock(&id(hours), Level::Xdc).unwrap().try_acquire_with_ttl(hours * HOUR).unwrap();
    let _leases = [3, 6, 1, 5, 2, 4].map(acquire);
    closed.close().unwrap();
    assert_eq!(*held.lock(), [5, 4, 3, 2, 1, 0].map(|longest| (1..=longest).collect::<Vec<u32>>()));
}
