//! `IdLock` with many threads: its guarantees hold for every order in which the threads run.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::panic;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dlm::{IdGuard, IdGuards, IdLock};

/// Longer than any of these tests takes on any machine, and on Miri.
const HANG: Duration = Duration::from_secs(if cfg!(miri) { 3_600 } else { 600 });

/// Returns the count for this run. Miri runs the same tests about a thousand times slower.
const fn scaled(count: u64, under_miri: u64) -> u64 {
    if cfg!(miri) { under_miri } else { count }
}

#[test]
fn two_threads_never_hold_one_id() {
    for ids in [1, 64, scaled(100_000, 300)] {
        let ledger = Ledger::new(ids);
        let locks = IdLock::<u64>::new();
        run_threads(scaled(64, 4), |random| {
            for _ in 0..scaled(5_000, 20) {
                let id = random.below(ids);
                let _guard = locks.lock(id);
                ledger.book(id, random);
            }
        });
        ledger.check();
        assert!(locks.is_empty(), "{locks:?} with {ids} ids");
    }
}

#[test]
fn no_mix_of_calls_breaks_exclusion() {
    let ids = 20;
    let ledger = Ledger::new(ids);
    let locks = IdLock::<u64>::new();
    run_threads(scaled(32, 4), |random| {
        for _ in 0..scaled(3_000, 20) {
            let (id, other) = (random.below(ids), random.below(ids));
            let wait = Duration::from_micros(random.below(200));
            match random.below(6) {
                0 => drop(locks.try_lock(id).inspect(|_| ledger.book(id, random))),
                1 => drop(locks.try_lock_for(id, wait).inspect(|_| ledger.book(id, random))),
                2 => {
                    let guard = locks.try_lock_until(id, Instant::now() + wait);
                    drop(guard.inspect(|_| ledger.book(id, random)));
                }
                3 => drop(locks.lock_many([id, other]).ids().inspect(|id| ledger.book(**id, random)).count()),
                4 => {
                    if let Some(guards) = locks.try_lock_many_for([id, other], wait) {
                        guards.ids().for_each(|id| ledger.book(*id, random));
                    }
                }
                _ => {
                    let _guard = locks.lock(id);
                    ledger.book(id, random);
                }
            }
        }
    });
    ledger.check();
    assert!(locks.is_empty(), "{locks:?}");
}

#[test]
fn ids_with_equal_hashes_are_different_ids() {
    let ids = 40;
    let ledger = Ledger::new(ids);
    let locks = IdLock::<u64, SameForAll>::default();
    run_threads(scaled(16, 4), |random| {
        for _ in 0..scaled(2_000, 10) {
            let (id, other) = (random.below(ids), random.below(ids));
            let guards = locks.lock_many([id, other, random.below(ids), random.below(ids)]);
            guards.ids().for_each(|id| ledger.book(*id, random));
        }
    });
    ledger.check();
    assert!(locks.is_empty(), "{locks:?}");
}

#[test]
fn keys_can_be_strings_and_bring_their_own_hash() {
    let locks = IdLock::<String, RandomState>::default();
    let ids = scaled(1_000, 20);
    let guards: Vec<_> = (0..ids).map(|i| locks.lock(format!("order {i}"))).collect();
    assert_eq!(guards[17].id(), "order 17");
    assert_eq!(locks.len() as u64, ids);
    for i in 0..ids {
        assert!(locks.try_lock(format!("order {i}")).is_none());
    }
    assert!(locks.try_lock("order 1000".to_owned()).is_some());
    drop(guards);
    assert!(locks.is_empty());
}

#[test]
fn a_panic_under_the_guard_does_not_keep_the_id() {
    let _watchdog = Watchdog::new();
    let locks = IdLock::<u64>::new();
    thread::scope(|scope| {
        let panicking = spawn(scope, 0, || {
            let _guard = locks.lock(1);
            let _guards = locks.lock_many([2, 3]);
            panic::resume_unwind(Box::new("under the guard"));
        });
        let waiting = spawn(scope, 1, || drop(locks.lock(1)));
        assert!(panicking.join().is_err());
        waiting.join().expect("the waiter must get the id after the panic");
    });
    for id in [1, 2, 3] {
        assert!(locks.try_lock_for(id, Duration::ZERO).is_some());
    }
    assert!(locks.is_empty());
}

#[test]
fn trying_does_not_wait() {
    let _watchdog = Watchdog::new();
    let locks = IdLock::<u64>::new();
    let guard = locks.lock(1);
    // A call that waits would hang, because this thread itself holds the id.
    assert!(locks.try_lock(1).is_none());
    assert!(locks.try_lock_for(1, Duration::ZERO).is_none());
    assert!(locks.try_lock_until(1, Instant::now()).is_none());
    assert!(locks.try_lock_many([0, 1]).is_none());
    assert!(locks.try_lock_many_for([0, 1], Duration::ZERO).is_none());
    assert_eq!(locks.len(), 1, "id 0 was not released");
    drop(guard);
    assert!(locks.try_lock(1).is_some());
    assert!(locks.try_lock_for(1, Duration::ZERO).is_some());
    assert!(locks.try_lock_until(1, Instant::now()).is_some());
    assert!(locks.try_lock_many([0, 1]).is_some());
    assert!(locks.try_lock_many_for([0, 1], Duration::ZERO).is_some());
    assert!(locks.is_empty());
}

#[test]
fn a_wait_of_any_length_is_a_valid_wait() {
    let _watchdog = Watchdog::new();
    let locks = IdLock::<u64>::new();
    assert!(locks.try_lock_for(1, Duration::MAX).is_some());
    assert!(locks.try_lock_many_for([1, 2], Duration::MAX).is_some());
    thread::scope(|scope| {
        let guard = locks.lock(1);
        let forever = spawn(scope, 0, || locks.try_lock_for(1, Duration::MAX).is_some());
        let many = spawn(scope, 1, || locks.try_lock_many_for([1, 2], Duration::MAX).is_some());
        thread::sleep(Duration::from_millis(20));
        drop(guard);
        assert!(forever.join().unwrap());
        assert!(many.join().unwrap());
    });
}

#[test]
fn a_wait_that_ran_out_leaves_nothing_behind() {
    let locks = IdLock::<u64>::new();
    let guards = locks.lock_many([1, 2]);
    run_threads(scaled(16, 4), |random| {
        let timeout = Duration::from_millis(1 + random.below(5));
        let before = Instant::now();
        assert!(locks.try_lock_for(1, timeout).is_none());
        assert!(before.elapsed() >= timeout, "gave up early");
        assert!(locks.try_lock_many_for([0, 1, 2], timeout).is_none());
    });
    assert_eq!(locks.len(), 2, "id 0 was not released");
    drop(guards);
    assert!(locks.is_empty());
    assert!(locks.try_lock(1).is_some(), "the id was granted to a waiter that had timed out");
}

/// The holder releases the id at about the moment when a waiter times out. Either that waiter gets the id, or the
/// next one does.
#[test]
fn a_grant_that_meets_a_time_out_is_not_lost() {
    let rounds = scaled(3_000, 15);
    let locks = IdLock::<u64>::new();
    let (held, granted) = (AtomicBool::new(false), AtomicU64::new(0));
    let meet = Barrier::new(3);
    // Each round has one holder, one waiter with a time-out and one without.
    run_threads_with(3, |role, random| {
        for _ in 0..rounds {
            let first = (role == 0).then(|| locks.lock(1));
            meet.wait();
            match role {
                0 => {
                    // At the lower end the waiters still spin. At the upper end they are parked.
                    let until = Instant::now() + Duration::from_micros(random.below(150));
                    while Instant::now() < until {}
                    drop(first);
                }
                1 => {
                    let timeout = Duration::from_micros(random.below(150));
                    if let Some(_guard) = locks.try_lock_for(1, timeout) {
                        assert!(!held.swap(true, SeqCst), "held twice");
                        granted.fetch_add(1, Relaxed);
                        held.store(false, SeqCst);
                    }
                }
                _ => {
                    let _guard = locks.lock(1);
                    assert!(!held.swap(true, SeqCst), "held twice");
                    held.store(false, SeqCst);
                }
            }
            meet.wait();
            assert!(locks.is_empty(), "{locks:?}");
            meet.wait();
        }
    });
    let granted = granted.into_inner();
    if !cfg!(miri) {
        assert!(0 < granted && granted < rounds, "no race: {granted} of {rounds} granted");
    }
}

#[test]
fn overlapping_sets_in_any_order_do_not_deadlock() {
    let ids = 6;
    let ledger = Ledger::new(ids);
    let locks = IdLock::<u64>::new();
    run_threads(scaled(24, 4), |random| {
        for _ in 0..scaled(1_000, 10) {
            let mut set: Vec<u64> = (0..ids).filter(|_| random.below(2) == 0).collect();
            if random.below(2) == 0 {
                set.reverse();
            }
            set.extend_from_within(..set.len() / 2);
            let guards = locks.lock_many(set);
            guards.ids().for_each(|id| ledger.book(*id, random));
        }
    });
    ledger.check();
    assert!(locks.is_empty());
}

#[test]
fn an_id_listed_twice_is_locked_once() {
    let locks = IdLock::<u64>::new();
    let guards = locks.try_lock_many([3, 1, 3, 2, 1]).expect("the call blocked itself");
    assert_eq!(guards.ids().copied().collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(format!("{guards:?}"), "[1, 2, 3]");
    assert_eq!(locks.len(), 3);
    drop(guards);
    assert!(locks.is_empty());
    assert_eq!(locks.lock_many([]).ids().len(), 0);
}

#[test]
fn a_guard_can_end_on_another_thread() {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<IdLock<String>>();
    is_send_and_sync::<IdGuard<'_, String>>();
    is_send_and_sync::<IdGuards<'_, String>>();

    let _watchdog = Watchdog::new();
    let locks = IdLock::<u64>::new();
    thread::scope(|scope| {
        let guard = locks.lock(1);
        let waiting = spawn(scope, 0, || drop(locks.lock(1)));
        spawn(scope, 1, move || drop(guard));
        waiting.join().unwrap();
    });
    assert!(locks.is_empty());
}

/// `IdLock` does not drop a key under the shard's mutex, so the `Drop` of a key may use the lock.
#[test]
fn a_key_may_use_the_lock_while_it_is_dropped() {
    #[derive(Clone)]
    struct Key(u64, Weak<IdLock<Key>>);
    impl PartialEq for Key {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }
    impl Eq for Key {}
    impl std::hash::Hash for Key {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }
    impl Drop for Key {
        fn drop(&mut self) {
            if let Some(locks) = self.1.upgrade() {
                assert!(locks.len() <= 1_000);
            }
        }
    }
    let _watchdog = Watchdog::new();
    let locks = Arc::new(IdLock::<Key>::new());
    let key = |id| Key(id, Arc::downgrade(&locks));
    // Enough keys for both places that store them: the shards themselves and their tables.
    let guards: Vec<_> = (0..scaled(1_000, 10)).map(|id| locks.lock(key(id))).collect();
    assert!(locks.try_lock(key(1)).is_none());
    assert!(locks.try_lock_for(key(1), Duration::from_millis(5)).is_none());
    drop(guards);
    assert!(locks.is_empty());
}

#[test]
fn a_panic_can_be_caught_around_the_lock() {
    let locks = IdLock::<u64>::new();
    // This must compile without AssertUnwindSafe, because a panic leaves nothing half done.
    let caught = panic::catch_unwind(|| {
        let _guard = locks.lock(1);
        panic::resume_unwind(Box::new("caught"));
    });
    assert!(caught.is_err());
    assert!(locks.is_empty());
}

/// Counts the operations under each id's lock, with a separate read and write. Without the lock, counts would be
/// lost.
struct Ledger {
    under_lock: Vec<AtomicU64>,
    expected: Vec<AtomicU64>,
}

impl Ledger {
    fn new(ids: u64) -> Self {
        let zeros = || (0..ids).map(|_| AtomicU64::new(0)).collect();
        Self { under_lock: zeros(), expected: zeros() }
    }

    fn book(&self, id: u64, random: &Random) {
        let slot = &self.under_lock[id as usize];
        let value = slot.load(Relaxed);
        if random.below(16) == 0 {
            thread::yield_now();
        }
        slot.store(value + 1, Relaxed);
        self.expected[id as usize].fetch_add(1, Relaxed);
    }

    fn check(&self) {
        for (id, (counted, expected)) in self.under_lock.iter().zip(&self.expected).enumerate() {
            assert_eq!(counted.load(Relaxed), expected.load(Relaxed), "id {id}");
        }
    }
}

struct Random(std::cell::Cell<u64>);

impl Random {
    fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).into())
    }

    fn below(&self, bound: u64) -> u64 {
        let mut random = self.0.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.0.set(random);
        (random >> 11) % bound
    }
}

#[derive(Default)]
struct SameForAll;

impl BuildHasher for SameForAll {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self
    }
}

impl Hasher for SameForAll {
    fn finish(&self) -> u64 {
        0
    }

    fn write(&mut self, _: &[u8]) {}
}

fn run_threads(threads: u64, work: impl Fn(&Random) + Sync) {
    run_threads_with(threads, |_, random| work(random));
}

/// Runs `work` on `threads` threads at once and waits for all of them.
fn run_threads_with(threads: u64, work: impl Fn(u64, &Random) + Sync) {
    let _watchdog = Watchdog::new();
    let begin = Barrier::new(threads as usize);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (begin, work) = (&begin, &work);
            spawn(scope, thread, move || {
                begin.wait();
                work(thread, &Random::new(thread));
            });
        }
    });
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    number: u64,
    work: impl FnOnce() -> T + Send + 'scope,
) -> thread::ScopedJoinHandle<'scope, T> {
    let name = format!("dlm-test-{number}");
    thread::Builder::new().name(name).spawn_scoped(scope, work).expect("a thread")
}

/// Aborts the whole program if a test hangs. Threads in a deadlock cannot be joined, so the test could not fail by
/// itself.
struct Watchdog {
    over: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watchdog {
    fn new() -> Self {
        let test = thread::current().name().unwrap_or("a test").to_owned();
        let (over, waits) = mpsc::channel();
        let watch = move || {
            if waits.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Written directly to stderr, because the abort below would lose output that the harness captures.
                let _ = writeln!(io::stderr(), "{test} hangs: a deadlock or a lost wake-up");
                process::abort();
            }
        };
        let thread = thread::Builder::new().name("dlm-test-watchdog".to_owned()).spawn(watch);
        Self { over: Some(over), thread: Some(thread.expect("a thread")) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.over = None;
        self.thread.take().map(thread::JoinHandle::join);
    }
}
