//! Locks of readers that stay with the process that has released them, over stores that keep modes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dlm::{AcquireOptions, Builder, Code, Deadline, Epoch, Lease, Level, Lock, LockManager, Mode, Moment};

use super::linger::until_looked_at;
use super::{HELD, LONG, LONGEST, Site, eventually, patiently};
use crate::Spy;

/// Longer than any case.
const STAYS: Duration = HELD;
const STAYS_BRIEFLY: Duration = Duration::from_millis(150);

fn builder(site: &Site, linger: Duration) -> Builder {
    // Nobody polls.
    site.builder().linger(linger).retry(2 * LONGEST)
}

fn manager(site: &Site, linger: Duration) -> LockManager {
    builder(site, linger).store(site.store()).open().unwrap()
}

fn lock(manager: &LockManager) -> Lock {
    manager.lock("stays", Level::Xdc).unwrap()
}

fn holds(lock: &Lock) -> usize {
    lock.holders().unwrap().len()
}

fn epoch(lease: &Lease) -> Epoch {
    lease.epoch().expect("these stores have epochs")
}

pub fn a_reader_that_stays_is_taken_again_without_the_store_in_its_mode_and_epoch(site: &Site) {
    let spy = Spy::on(site.store());
    let ours = builder(site, STAYS).store(spy.clone()).open().unwrap();
    let lock = lock(&ours);
    for mode in [Mode::Shared, Mode::Update] {
        let how = AcquireOptions::new().mode(mode);
        let first = lock.acquire_with(&how).unwrap();
        let before = epoch(&first);
        assert!(first.release().unwrap() && first.check().is_err());
        let (calls, retaken) = (spy.calls(), ours.stats().leases_retaken);
        for _ in 0..10 {
            let again = lock.acquire_with(&how).unwrap();
            assert_eq!((again.mode(), epoch(&again), again.fence()), (mode, before, None));
            again.check().unwrap();
            assert!(again.release().unwrap());
        }
        assert_eq!((spy.calls(), ours.stats().leases_retaken), (calls, retaken + 10));
        assert_eq!(holds(&lock), 1, "in the store it is held");
    }
    // A request for another mode gets a record of its own.
    let reads = lock.shared().acquire().unwrap();
    let before = epoch(&reads);
    assert!(reads.release().unwrap());
    let writes = lock.try_acquire().unwrap();
    assert!(epoch(&writes) > before);
    assert!(writes.release().unwrap());
    let reads = lock.shared().try_acquire().unwrap();
    assert!(epoch(&reads) > before);
    ours.close().unwrap();
}

pub fn a_writer_with_notices_gets_a_lock_that_readers_have_left_at_once(site: &Site) {
    let open = |linger| {
        let with_notices = builder(site, linger).option("notices", "udp://127.0.0.1");
        with_notices.store(site.store()).open().unwrap()
    };
    let (readers, writer) = ([open(STAYS), open(STAYS)], open(Duration::ZERO));
    for manager in &readers {
        assert!(lock(manager).shared().acquire().unwrap().release().unwrap());
    }
    assert_eq!(holds(&lock(&writer)), 2);
    assert!(lock(&writer).acquire().unwrap().release().unwrap());
}

pub fn of_several_readers_of_a_process_one_stays(site: &Site) {
    let ours = manager(site, STAYS);
    let lock = lock(&ours);
    let leases: Vec<_> = (0..3).map(|_| lock.shared().acquire().unwrap()).collect();
    leases.iter().for_each(|lease| assert!(lease.release().unwrap()));
    assert_eq!(holds(&lock), 1);
    // A writer of the same process has it at once.
    assert!(lock.try_acquire().unwrap().release().unwrap());
    ours.close().unwrap();
    assert_eq!(holds(&self::lock(&site.manager())), 0);
}

pub fn what_a_reader_has_left_does_not_keep_an_upgrade_of_its_process_waiting(site: &Site) {
    let ours = manager(site, STAYS);
    let lock = lock(&ours);
    let update = lock.update().acquire().unwrap();
    assert!(lock.shared().acquire().unwrap().release().unwrap());
    assert_eq!(holds(&lock), 2);
    let writes = update.upgrade(Duration::ZERO).unwrap();
    assert!(writes.release().unwrap());
}

pub fn readers_in_a_loop_leave_a_writer_that_polls_its_turn(site: &Site) {
    let (linger, retry) = (Duration::from_millis(50), Duration::from_millis(20));
    let open = |linger| site.builder().linger(linger).retry(retry).store(site.store()).open().unwrap();
    let (readers, writer) = (open(linger), open(Duration::ZERO));
    let is_done = AtomicBool::new(false);
    let began = Moment::now();
    thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let lock = lock(&readers).shared();
            while !is_done.load(Ordering::SeqCst) {
                assert!(lock.acquire().unwrap().release().unwrap());
            }
        });
        let lock = lock(&writer);
        for _ in 0..3 {
            assert!(lock.acquire().unwrap().release().unwrap());
        }
        is_done.store(true, Ordering::SeqCst);
        reads.join().unwrap();
    });
    assert!(Moment::now().since(began) < LONG, "it starved");
    // Its time is over some day, and nobody has it then.
    eventually("it is given back", || holds(&lock(&writer)) == 0);
}

/// Another updater polls, and nothing in the store keeps those out that come back. A writer announces itself.
pub fn an_updater_leaves_a_lock_that_has_stayed_to_others_and_a_reader_does_not(site: &Site) {
    site.store().note_poller(Moment::now().after(8 * LONGEST));
    for (mode, is_held) in
        [(Mode::Update, false), (Mode::Update, true), (Mode::Shared, false), (Mode::Shared, true)]
    {
        patiently(|linger| {
            let ours = builder(site, linger).wait(4 * LONGEST).store(site.store()).open().unwrap();
            let id = format!("stays {mode} {is_held} {linger:?}");
            let [lock, theirs] =
                [&ours, &site.manager()].map(|manager| manager.lock(&id, Level::Xdc).unwrap());
            let how = AcquireOptions::new().mode(mode);
            assert!(lock.acquire_with(&how).unwrap().release().unwrap());
            let again = lock.acquire_with(&how).unwrap();
            if ours.stats().leases_retaken == 0 {
                // The machine was so slow that the lock did not stay.
                return None;
            }
            if is_held {
                thread::sleep(linger);
            }
            assert!(again.release().unwrap());
            eventually("its time is over", || holds(&lock) == 0);
            let pending = lock.start(&how).unwrap();
            match mode {
                Mode::Shared => {
                    eventually("it reads again", || match pending.take().unwrap() {
                        Some(lease) => lease.release().unwrap(),
                        None => false,
                    });
                    if holds(&lock) == 0 {
                        // It did not stay again, or not for long enough.
                        return None;
                    }
                }
                _ => {
                    let _last = until_looked_at(&ours);
                    assert!(pending.take().unwrap().is_none(), "{is_held}: it is left to others");
                    assert!(theirs.update().try_acquire().unwrap().release().unwrap());
                }
            }
            drop(pending);
            ours.close().unwrap();
            Some(())
        });
    }
}

/// Those who poll cannot find it free, whatever its mode is.
pub fn modes_by_turns_do_not_make_a_lock_stay_longer(site: &Site) {
    for (one, other) in
        [(Mode::Exclusive, Mode::Shared), (Mode::Exclusive, Mode::Update), (Mode::Update, Mode::Shared)]
    {
        let ours = manager(site, STAYS_BRIEFLY);
        let lock = ours.lock(&format!("stays {one} {other}"), Level::Xdc).unwrap();
        let (mut round, by) = (0, Deadline::after(LONG));
        while round == 0 || holds(&lock) > 0 {
            assert!(!by.passed(), "in modes {one} and {other} it stays for ever");
            round += 1;
            let mode = if round % 2 == 0 { one } else { other };
            let how = AcquireOptions::new().mode(mode).wait(Duration::ZERO);
            match lock.acquire_with(&how) {
                Ok(lease) => assert!(lease.release().unwrap()),
                // Its time is over, and a background thread gives it back just now.
                Err(error) => {
                    assert_eq!(error.code(), Code::LockUnavailable, "{error}");
                    eventually("it is given back", || holds(&lock) == 0);
                }
            }
        }
        ours.close().unwrap();
    }
}

/// It would not ask again for long.
pub fn a_writer_of_a_process_gets_what_its_reader_leaves(site: &Site) {
    let ours = builder(site, STAYS).wait(4 * LONGEST).store(site.store()).open().unwrap();
    let lock = lock(&ours);
    let reads = lock.shared().acquire().unwrap();
    let pending = lock.start(&Default::default()).unwrap();
    let _last = until_looked_at(&ours);
    assert!(pending.take().unwrap().is_none(), "a reader holds it");
    assert!(reads.release().unwrap());
    eventually("the writer has it", || pending.take().unwrap().is_some());
}

/// What was given back for a request in another mode is held no more, so the last release notifies others.
pub fn a_writer_is_notified_by_a_process_that_has_held_the_lock_in_several_modes(site: &Site) {
    let open = |linger| {
        let with_notices = builder(site, linger).wait(4 * LONGEST).option("notices", "udp://127.0.0.1");
        with_notices.store(site.store()).open().unwrap()
    };
    let (ours, theirs) = (open(STAYS), open(Duration::ZERO));
    let (ours, theirs) = (lock(&ours), lock(&theirs));
    assert!(ours.shared().acquire().unwrap().release().unwrap());
    assert!(ours.update().acquire().unwrap().release().unwrap());
    let reads = ours.shared().acquire().unwrap();
    assert_eq!(holds(&ours), 1);
    let pending = theirs.start(&Default::default()).unwrap();
    let is_registered = || ours.waiting().unwrap().is_some_and(|waiters| !waiters.processes.is_empty());
    eventually("it waits", is_registered);
    assert!(reads.release().unwrap());
    eventually("it is notified", || pending.take().unwrap().is_some());
}
