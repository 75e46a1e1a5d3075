//! Threads of one process, under thousands of orders in which they may run: `IdLock`, the queue of a lock, the state of
//! a lease, the end of the background threads, and waits for a latch.
//!
//! A lost wake-up without a time limit is a deadlock, which the engine reports. Where threads of the library look again
//! every ten seconds all the same, a wake-up counts as lost when the simulated time reaches that.
#![cfg(dlm_simulation)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dlm::simulation::{sleep, spawn, step};
use dlm::store::{Acquired, Attempt, Inspection, LatchStore, LockStore, MemoryStore, OwnerRecord, Released};
use dlm::{
    AcquireOptions, AwaitOptions, CancelToken, Code, Deadline, Error, Holder, IdLock, LatchKind, Level,
    LockManager, LockName, Moment, Result,
};
use dlm_simulation::engine::engine;
use dlm_simulation::{Clock, Engine, Schedule};

const MS: Duration = Duration::from_millis(1);
/// Longer than any of these tests takes in simulated time.
const HOUR: Duration = Duration::from_secs(3600);
/// Parked threads of the library wake after this time by themselves: a lost wake-up takes as long.
const LOST: Duration = Duration::from_secs(10);

/// Runs `root` with each of so many seeds. No thread may panic or be left, and no wake-up may be lost.
fn explore(seeds: u64, root: impl Fn(u64) + Clone + 'static) {
    let schedules = [4, 64, 128, 224].map(|switches| Schedule { switches, ..Schedule::fair() });
    for seed in 0..seeds {
        let root = root.clone();
        let still = Clock { start: 1 << 40, faster_ppm: 0, wall_ahead_ms: 0 };
        let schedule = schedules[seed as usize % schedules.len()];
        let ended = Engine::run(seed, schedule, vec![still; 2], move || root(seed));
        assert!(ended.panics.is_empty() && ended.left.is_empty(), "seed {seed}: {ended:?}");
        assert!(ended.time < LOST, "seed {seed}: a wake-up was lost: {ended:?}");
    }
}

/// Draws a number below `below`.
fn draw(below: u64) -> u64 {
    engine().draw(|random| random.u64(..below))
}

/// Starts `count` threads and waits for them.
fn in_threads(count: u64, work: impl Fn(u64) + Clone + 'static) {
    let start = |number| {
        let work = work.clone();
        spawn(format!("worker-{number}"), move || work(number))
    };
    let threads: Vec<_> = (0..count).map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a worker panicked"));
}

/// What one thread at a time may be inside of.
#[derive(Debug, Default, Clone)]
struct Room(Rc<Cell<bool>>);

impl Room {
    fn stay(&self) {
        assert!(!self.0.replace(true), "two threads at the same time");
        (0..draw(4)).for_each(|_| step());
        if draw(4) == 0 {
            sleep(MS);
        }
        self.0.set(false);
    }
}

type FixedHash = std::hash::BuildHasherDefault<std::collections::hash_map::DefaultHasher>;

#[test]
fn an_id_lock_excludes_and_loses_no_wake_up() {
    explore(3000, |_| {
        let locks: Rc<IdLock<u64, FixedHash>> = Rc::new(IdLock::with_hasher(FixedHash::default()));
        let rooms = [Room::default(), Room::default()];
        let users = Rc::clone(&locks);
        in_threads(4, move |_| {
            for _ in 0..4 {
                let id = draw(2);
                let room = &rooms[id as usize];
                match draw(4) {
                    0 => {
                        let _both = users.lock_many([0, 1]);
                        rooms.iter().for_each(Room::stay);
                    }
                    1 => {
                        if let Some(_guard) = users.try_lock_for(id, MS * draw(3) as u32) {
                            room.stay();
                        }
                    }
                    _ => {
                        let _guard = users.lock(id);
                        room.stay();
                    }
                }
            }
        });
        assert!(locks.is_empty());
    });
}

fn manager(store: Arc<dyn LockStore>) -> LockManager {
    // Nothing in these tests may depend on asking the store again.
    let builder = LockManager::builder().store(store).client("threads").farm("dc1").retry(HOUR).poll(HOUR);
    builder.ttl(24 * HOUR).open().unwrap()
}

fn wait_up_to(wait: Duration) -> AcquireOptions {
    AcquireOptions::new().wait(wait)
}

#[test]
fn the_queue_of_a_lock_excludes_and_passes_it_on_at_once() {
    explore(2000, |_| {
        let manager = manager(Arc::new(MemoryStore::new()));
        let (lock, room) = (manager.lock("lock", Level::Xdc).unwrap(), Room::default());
        let cancel = CancelToken::new();
        let (locked, canceled) = (lock.clone(), cancel.clone());
        in_threads(5, move |number| {
            for _ in 0..3 {
                let wait = match draw(4) {
                    0 => wait_up_to(MS * draw(3) as u32),
                    1 => wait_up_to(Duration::MAX).cancel(&canceled),
                    _ => wait_up_to(Duration::MAX),
                };
                match locked.acquire_with(&wait) {
                    Ok(lease) => {
                        room.stay();
                        assert!(lease.release().unwrap());
                    }
                    Err(error) => {
                        let expected = [Code::LockUnavailable, Code::Cancelled];
                        assert!(expected.contains(&error.code()), "{}", error.chain());
                    }
                }
                if number == 0 {
                    canceled.cancel();
                }
            }
        });
        assert!(lock.inspect().unwrap().holder.is_none());
        manager.close().unwrap();
    });
}

#[test]
fn closing_a_manager_ends_all_waits_and_releases_all_leases() {
    explore(2000, |_| {
        let store: Arc<dyn LockStore> = Arc::new(MemoryStore::new());
        let manager = manager(Arc::clone(&store));
        let (closing, lock) = (manager.clone(), manager.lock("lock", Level::Xdc).unwrap());
        let latch = manager.latch("latch", Level::Dc, LatchKind::CountDown).unwrap();
        latch.create(1).unwrap();
        in_threads(5, move |number| match number {
            0 => {
                (0..draw(16)).for_each(|_| step());
                closing.close().unwrap();
            }
            1 => {
                let ended = latch.await_open().unwrap_err();
                assert_eq!(ended.code(), Code::Closed);
            }
            // The lease is dropped, or kept until the manager is closed.
            _ => match lock.acquire_with(&wait_up_to(Duration::MAX)) {
                Ok(lease) if draw(2) == 0 => std::mem::forget(lease),
                Ok(lease) => drop(lease),
                Err(error) => assert_eq!(error.code(), Code::Closed),
            },
        });
        let later = self::manager(store);
        let lock = later.lock("lock", Level::Xdc).unwrap();
        assert!(lock.inspect().unwrap().holder.is_none(), "a lease outlived its manager");
        later.close().unwrap();
    });
}

#[test]
fn a_lease_is_released_once_whatever_other_threads_do_with_it() {
    explore(3000, |_| {
        let manager = manager(Arc::new(MemoryStore::new()));
        let lock = manager.lock("lock", Level::Xdc).unwrap();
        let lease = Rc::new(lock.try_acquire().unwrap());
        let released = Rc::new(Cell::new(0));
        let (used, count) = (Rc::clone(&lease), Rc::clone(&released));
        in_threads(4, move |_| {
            for _ in 0..3 {
                match draw(3) {
                    0 => {
                        let was_over = count.get() > 0;
                        let renewed = used.renew();
                        assert!(renewed.is_err() || !was_over, "renewed after its release");
                    }
                    1 => {
                        let was_over = count.get() > 0;
                        assert!(used.check().is_err() || !was_over, "lasts after its release");
                    }
                    _ => {
                        let freed = used.release().unwrap();
                        count.set(count.get() + u32::from(freed));
                        assert!(used.check().is_err());
                    }
                }
            }
        });
        let was_released = released.get();
        assert!(was_released <= 1, "released {was_released} times");
        assert_eq!(lock.inspect().unwrap().holder.is_none(), was_released == 1);
        drop(lease);
        assert!(lock.inspect().unwrap().holder.is_none());
        manager.close().unwrap();
    });
}

#[test]
fn a_count_down_wakes_all_waiters_of_this_process_at_once() {
    explore(2000, |_| {
        let manager = manager(Arc::new(MemoryStore::new()));
        let latch = manager.latch("latch", Level::Dc, LatchKind::CountUpDown).unwrap();
        latch.create(3).unwrap();
        let woken = Rc::new(Cell::new(0));
        let (used, count, cancel) = (latch.clone(), Rc::clone(&woken), CancelToken::new());
        in_threads(7, move |number| match number {
            0..3 => {
                if draw(2) == 0 {
                    used.count_up().unwrap();
                    used.count_down().unwrap();
                }
                used.count_down().unwrap();
                if number == 0 {
                    cancel.cancel();
                }
            }
            3 => match used.await_open_with(&AwaitOptions::new().cancel(&cancel)) {
                Ok(opened) => assert!(opened),
                Err(error) => assert_eq!(error.code(), Code::Cancelled),
            },
            4 => drop(used.await_open_for(MS * draw(3) as u32)),
            _ => {
                used.await_open().unwrap();
                assert!(used.count().unwrap() <= 0, "woken too early");
                count.set(count.get() + 1);
            }
        });
        assert_eq!(woken.get(), 2);
        manager.close().unwrap();
    });
}

/// Of a lock that stays held, and of a latch that stays closed.
#[test]
fn a_cancelled_wait_ends_at_once() {
    explore(2000, |_| {
        let manager = manager(Arc::new(MemoryStore::new()));
        let lock = manager.lock("lock", Level::Xdc).unwrap();
        let latch = manager.latch("latch", Level::Dc, LatchKind::CountDown).unwrap();
        latch.create(1).unwrap();
        let (lease, cancel) = (lock.try_acquire().unwrap(), CancelToken::new());
        in_threads(4, move |number| match number {
            0 => {
                (0..draw(32)).for_each(|_| step());
                cancel.cancel();
            }
            1 => {
                let ended = latch.await_open_with(&AwaitOptions::new().cancel(&cancel)).unwrap_err();
                assert_eq!(ended.code(), Code::Cancelled);
            }
            _ => {
                let ended = lock.acquire_with(&wait_up_to(Duration::MAX).cancel(&cancel)).unwrap_err();
                assert_eq!(ended.code(), Code::Cancelled);
            }
        });
        assert!(lease.release().unwrap());
        manager.close().unwrap();
    });
}

/// A thread that counts up and then watches must not be told of an opening before its count-up.
#[test]
fn a_watch_is_told_only_of_what_happened_since_it_began() {
    explore(3000, |_| {
        let manager = manager(Arc::new(MemoryStore::new()));
        let latch = manager.latch("latch", Level::Dc, LatchKind::CountUpDown).unwrap();
        latch.create(0).unwrap();
        in_threads(3, move |_| {
            for _ in 0..3 {
                latch.count_up().unwrap();
                let watch = latch.watch().unwrap();
                (0..draw(32)).for_each(|_| step());
                if draw(2) == 0 {
                    sleep(MS * draw(60) as u32);
                }
                assert!(!watch.is_open().unwrap(), "this thread has not counted down");
                latch.count_down().unwrap();
                (0..draw(32)).for_each(|_| step());
                drop(watch);
            }
        });
        manager.close().unwrap();
    });
}

/// Long after the last change, when the pauses between two reads of a latch are long.
#[test]
fn a_change_by_this_process_and_a_new_waiter_are_served_at_once() {
    /// No message takes any time here, so this is much.
    const AT_ONCE: Duration = Duration::from_millis(10);
    explore(1000, |_| {
        let manager = manager(Arc::new(MemoryStore::new()));
        let latch = manager.latch("latch", Level::Xdc, LatchKind::CountDown).unwrap();
        latch.create(2).unwrap();
        let opened = Rc::new(Cell::new(None));
        in_threads(5, move |number| match number {
            0 | 1 => {
                sleep(Duration::from_secs(3));
                latch.count_down().unwrap();
                opened.set(Some(Moment::now()));
            }
            2 => {
                // Half of the time while the others count down.
                let early = MS * draw(900) as u32;
                sleep(Duration::from_secs(3) - if draw(2) == 0 { early } else { Duration::ZERO });
                let began = Moment::now();
                latch.await_open_for(Duration::ZERO).unwrap();
                let waited = Moment::now().since(began);
                assert!(waited < AT_ONCE, "the first read came after {waited:?}");
            }
            _ => {
                latch.await_open().unwrap();
                let woken = Moment::now();
                let late = opened.get().map_or(Duration::ZERO, |opened| woken.since(opened));
                assert!(late < AT_ONCE, "woken {late:?} after the latch had opened");
            }
        });
        manager.close().unwrap();
    });
}

/// A store whose answers to acquisitions are lost: each leaves a lock that the background threads must free.
#[derive(Debug, Default)]
struct Doubtful {
    store: MemoryStore,
}

impl LockStore for Doubtful {
    fn describe(&self) -> String {
        "doubtful:".into()
    }

    fn initialize(&self, _by: Deadline) -> Result<()> {
        Ok(())
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        match self.store.acquire(attempt, doubtful)? {
            Acquired::Granted(grant) => {
                doubtful.push(grant.owner_record);
                Err(Error::InDoubt { what: "lost".into(), source: None })
            }
            held => Ok(held),
        }
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        self.store.renew(name, owner_record, ttl, by)
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        sleep(MS * draw(3) as u32);
        self.store.release(name, owner_record, by)
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        self.store.holder(name, by)
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        self.store.inspect(name, by)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        self.store.latches()
    }
}

/// Also when several threads close the manager, or drop its last handles, while others still create jobs.
#[test]
fn background_threads_free_every_lock_in_doubt_before_they_end() {
    explore(2000, |_| {
        let store: Arc<dyn LockStore> = Arc::new(Doubtful::default());
        let managers = Rc::new(RefCell::new(vec![manager(Arc::clone(&store)), manager(Arc::clone(&store))]));
        in_threads(4, move |number| {
            let manager = managers.borrow().get(number as usize % 2).cloned();
            let Some(manager) = manager else { return };
            for id in 0..2 {
                let lock = manager.lock(&format!("lock-{number}-{id}"), Level::Xdc).unwrap();
                let code = lock.try_acquire().unwrap_err().code();
                assert!([Code::InDoubt, Code::Closed].contains(&code), "{code:?}");
                if draw(2) == 0 {
                    sleep(MS * draw(600) as u32);
                }
            }
            if draw(3) == 0 {
                manager.close().unwrap();
            }
            // The last handle may be dropped here.
            if draw(2) == 0 {
                let dropped = std::mem::take(&mut *managers.borrow_mut());
                drop(dropped);
            }
        });
        let later = manager(store);
        for (number, id) in (0..4).flat_map(|number| [(number, 0), (number, 1)]) {
            let lock = later.lock(&format!("lock-{number}-{id}"), Level::Xdc).unwrap();
            assert!(lock.inspect().unwrap().holder.is_none(), "lock-{number}-{id} is held");
        }
        later.close().unwrap();
    });
}

/// One process uses locks again and again, and they stay with it. Another process polls.
#[test]
fn a_lock_that_stays_is_had_by_who_polls_after_its_time_and_an_interval() {
    const LINGER: Duration = Duration::from_millis(200);
    const RETRY: Duration = Duration::from_millis(50);
    explore(400, |seed| {
        let store = Arc::new(MemoryStore::new());
        let open = |linger| {
            let builder =
                LockManager::builder().store(store.clone()).client("simulated").ttl(HOUR).wait(HOUR);
            builder.retry(RETRY).linger(linger).open().unwrap()
        };
        let (ours, theirs) = (open(LINGER), open(Duration::ZERO));
        // More than the queue remembers of locks that are free.
        let ids: Vec<_> = (0..if seed % 8 == 0 { 40 } else { 1 }).map(|id| format!("{id}")).collect();
        let is_over = Rc::new(Cell::new(false));
        let (user, used, done) = (ours.clone(), ids.clone(), Rc::clone(&is_over));
        let uses = spawn("user", move || {
            while !done.get() {
                for id in &used {
                    let lease = user.lock(id, Level::Xdc).unwrap().acquire().unwrap();
                    sleep(Duration::from_micros(500));
                    assert!(lease.release().unwrap());
                    sleep(Duration::from_micros(draw(9_000)));
                }
            }
        });
        sleep(LINGER / 2);
        for id in ids.iter().take(4) {
            let began = Moment::now();
            let lease = theirs.lock(id, Level::Xdc).unwrap().acquire().unwrap();
            let waited = Moment::now().since(began);
            assert!(waited < LINGER + RETRY * 3, "lock {id}: {waited:?}");
            assert!(lease.release().unwrap());
        }
        is_over.set(true);
        uses.join().unwrap();
        ours.close().unwrap();
        theirs.close().unwrap();
    });
}
