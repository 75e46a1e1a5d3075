//! Locks that stay with the process that has released them, over stores that reserve fences.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::{Builder, Code, Deadline, Fence, Lease, Level, Lock, LockManager, Moment};

use super::{HELD, LONG, LONGEST, Site, code, eventually, in_time, patiently};
use crate::{Call, Spy};

/// Longer than any case.
const STAYS: Duration = HELD;
const NOTICES: &str = "udp://127.0.0.1";

/// To a store that knows who polls, somebody does.
fn builder(site: &Site, linger: Duration) -> Builder {
    site.store().note_poller(Moment::now().after(2 * NEVER));
    site.builder().linger(linger)
}

fn manager(site: &Site, linger: Duration) -> LockManager {
    builder(site, linger).store(site.store()).open().unwrap()
}

/// A manager over a store that counts calls. Its turn at a lock lasts for any number of rounds on any machine: a turn ends
/// after a number of retry intervals, and the next acquire would ask the store.
fn counted(site: &Site, builder: Builder) -> (LockManager, Arc<Spy>) {
    let spy = Spy::on(site.store());
    (builder.retry(2 * LONGEST).store(spy.clone()).open().unwrap(), spy)
}

fn lock(manager: &LockManager) -> Lock {
    manager.lock("stays", Level::Xdc).unwrap()
}

fn fence(lease: &Lease) -> Fence {
    lease.fence().expect("these stores have fences")
}

pub fn a_lock_that_stays_is_taken_again_without_the_store_and_its_fence_rises(site: &Site) {
    let (ours, spy) = counted(site, builder(site, STAYS));
    let lock = lock(&ours);
    let first = lock.try_acquire().unwrap();
    let mut last = fence(&first);
    assert!(first.release().unwrap());
    assert!(!first.release().unwrap() && first.check().is_err());
    let calls = spy.calls();
    for round in 0..20 {
        let lease = match round % 3 {
            0 => lock.try_acquire().unwrap(),
            1 => lock.acquire().unwrap(),
            _ => {
                let pending = lock.start(&Default::default()).unwrap();
                let mut lease = None;
                eventually("it is taken again", || {
                    lease = pending.take().unwrap();
                    lease.is_some()
                });
                lease.unwrap()
            }
        };
        assert!(fence(&lease) > last);
        last = fence(&lease);
        lease.check().unwrap();
        match round % 2 {
            0 => assert!(lease.release().unwrap()),
            _ => drop(lease),
        }
    }
    assert_eq!((spy.calls(), ours.stats().leases_retaken), (calls, 20));
    let inspection = lock.inspect().unwrap();
    assert!(inspection.holder.is_some() && inspection.fence.is_some_and(|shown| shown >= last));
    // While it is held, nobody else has it, in this process or another.
    let lease = lock.try_acquire().unwrap();
    assert_eq!(code(lock.try_acquire()), Code::LockUnavailable);
    assert_eq!(code(self::lock(&manager(site, STAYS)).try_acquire()), Code::LockUnavailable);
    lease.renew().unwrap();
    assert!(lease.release().unwrap());
    ours.close().unwrap();
}

pub fn another_process_gets_a_lock_that_stays_when_its_time_is_over(site: &Site) {
    let linger = Duration::from_millis(300);
    let (ours, theirs) = (manager(site, linger), manager(site, Duration::ZERO));
    let asked = Moment::now();
    let first = lock(&ours).try_acquire().unwrap();
    let before = fence(&first);
    assert!(first.release().unwrap());
    let theirs = lock(&theirs).acquire().unwrap();
    let got = Moment::now();
    // The machine may have been so slow that the lock did not stay at all.
    assert!(fence(&theirs) > before);
    assert!(got.since(asked) < LONGEST, "it stayed {:?}", got.since(asked));
    assert_eq!(code(lock(&ours).try_acquire()), Code::LockUnavailable);
}

pub fn another_process_with_notices_gets_a_lock_that_stays_at_once(site: &Site) {
    // Longer than the wait.
    let never = 2 * LONGEST;
    let open =
        || builder(site, STAYS).retry(never).option("notices", NOTICES).store(site.store()).open().unwrap();
    let (ours, theirs) = (open(), open());
    // First it waits for a holder, then for a lock that nobody holds.
    for is_held in [true, false] {
        let held = lock(&ours).acquire().unwrap();
        let mut held = Some(held);
        if !is_held {
            held = None;
        }
        thread::scope(|scope| {
            let theirs = scope.spawn(|| lock(&theirs).acquire().unwrap());
            if let Some(lease) = held.take() {
                eventually("it has registered", || theirs_is_waiting(&ours, &lease));
                assert!(lease.release().unwrap());
            }
            let lease = theirs.join().unwrap();
            assert_eq!(code(lock(&ours).try_acquire()), Code::LockUnavailable);
            assert!(lease.release().unwrap());
        });
    }
}

/// Whether the other process was answered: it has registered with the holder.
fn theirs_is_waiting(ours: &LockManager, lease: &Lease) -> bool {
    lease.check().unwrap();
    ours.stats().notices_sent > 0
}

pub fn fences_rise_over_all_grants_of_all_processes(site: &Site) {
    let managers = [STAYS, Duration::ZERO, Duration::from_millis(50)]
        .map(|linger| builder(site, linger).option("notices", NOTICES).store(site.store()).open().unwrap());
    let rounds = site.rounds.clamp(20, 200);
    let mut fences: Vec<(Fence, Moment)> = thread::scope(|scope| {
        let threads = managers.iter().map(|manager| {
            scope.spawn(move || {
                let lock = lock(manager);
                let taken = (0..rounds).map(|_| {
                    let lease = lock.acquire().unwrap();
                    let at = Moment::now();
                    (fence(&lease), at)
                });
                taken.collect::<Vec<_>>()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    fences.sort_by_key(|(fence, _)| *fence);
    assert!(fences.windows(2).all(|pair| pair[0].0 < pair[1].0), "a fence was given twice");
    assert!(fences.windows(2).all(|pair| pair[0].1 <= pair[1].1), "a later grant has a lower fence");
}

pub fn a_block_that_is_used_up_is_followed_by_a_higher_one(site: &Site) {
    let (ours, spy) = counted(site, builder(site, STAYS));
    let lock = lock(&ours);
    let mut last = Fence(0);
    // The first block has 64 fences, the second 512.
    for _ in 0..700 {
        let lease = lock.acquire().unwrap();
        assert!(fence(&lease) > last);
        last = fence(&lease);
        assert!(lease.release().unwrap());
    }
    assert_eq!((spy.calls_of(Call::Acquire), spy.calls_of(Call::Release)), (3, 2));
    assert_eq!(ours.stats().leases_retaken, 697);
    let theirs = manager(site, Duration::ZERO);
    ours.close().unwrap();
    assert!(fence(&self::lock(&theirs).acquire().unwrap()) > last);
}

pub fn a_lock_does_not_stay_after_a_token_a_loss_or_a_minimum_hold(site: &Site) {
    let (ours, theirs) = (manager(site, STAYS), manager(site, STAYS));
    let (lock, other) = (lock(&ours), lock(&theirs));
    // A token carries no right, and an adopted lease has none.
    let first = lock.acquire().unwrap();
    assert!(first.release().unwrap());
    let token = lock.acquire().unwrap().into_token().unwrap();
    assert_eq!(code(lock.try_acquire()), Code::LockUnavailable);
    let adopted = theirs.adopt(token).unwrap();
    assert!(adopted.release().unwrap());
    assert!(other.try_acquire().unwrap().release().unwrap());
    assert_eq!(code(lock.try_acquire()), Code::LockUnavailable, "it stays with the other process");
    theirs.close().unwrap();
    // A lease that has ended leaves nothing, whatever its record does.
    patiently(|ttl| {
        // A grant that came too late may still hold the lock for a moment.
        let lease = in_time(lock.acquire_with_ttl(ttl))?;
        eventually("it ends", || lease.check().is_err());
        let _ = lease.release();
        let calls = ours.stats().leases_retaken;
        let again = lock.acquire().unwrap();
        assert_eq!(ours.stats().leases_retaken, calls);
        assert!(again.release().unwrap());
        Some(())
    });
}

pub fn a_lease_of_another_length_has_a_record_of_its_own(site: &Site) {
    let (ours, spy) = counted(site, builder(site, STAYS));
    let lock = lock(&ours);
    assert!(lock.acquire_with_ttl(2 * HELD).unwrap().release().unwrap());
    // If this process dies now, others wait for the end of the longer one.
    let shorter = lock.acquire_with_ttl(HELD).unwrap();
    assert_eq!((spy.calls_of(Call::Acquire), spy.calls_of(Call::Release)), (2, 1));
    assert!(shorter.release().unwrap());
    let longer = lock.acquire_with_ttl(4 * HELD).unwrap();
    assert_eq!((spy.calls_of(Call::Acquire), spy.calls_of(Call::Release)), (3, 2));
    assert!(longer.release().unwrap());
}

pub fn closing_and_the_last_handle_give_back_what_stays(site: &Site) {
    for is_closed in [true, false] {
        let given_back = (0..5).any(|round| given_back(site, is_closed, round));
        assert!(given_back, "the drop of the last handle was too slow each time");
    }
}

/// Returns `false` if the drop of the last handle took so long that it may not have given back all: it does so for two
/// seconds at most.
fn given_back(site: &Site, is_closed: bool, round: usize) -> bool {
    let (ours, theirs) = (manager(site, STAYS), manager(site, Duration::ZERO));
    let ids = ["a", "b", "c"].map(|id| format!("{id} {is_closed} {round}"));
    for id in &ids {
        assert!(ours.lock(id, Level::Xdc).unwrap().acquire().unwrap().release().unwrap());
        assert_eq!(code(theirs.lock(id, Level::Xdc).unwrap().try_acquire()), Code::LockUnavailable);
    }
    if is_closed {
        ours.close().unwrap();
    }
    let began = Moment::now();
    drop(ours);
    if Moment::now().since(began) >= Duration::from_millis(500) {
        return false;
    }
    for id in &ids {
        assert!(theirs.lock(id, Level::Xdc).unwrap().try_acquire().unwrap().release().unwrap());
    }
    true
}

/// Each thread acquires once: one that came back while another has the lock and nobody waits would ask the store.
pub fn threads_pass_on_a_lock_that_stays_without_the_store(site: &Site) {
    const THREADS: usize = 20;
    let (ours, spy) = counted(site, builder(site, STAYS));
    let lock = lock(&ours);
    let first = lock.acquire().unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let lock = &lock;
            scope.spawn(move || assert!(lock.acquire().unwrap().release().unwrap()));
        }
        eventually("they wait", || ours.stats().threads_waiting == THREADS as u64);
        // The first of them has asked the store once.
        eventually("it was refused", || spy.calls_of(Call::Acquire) == 2);
        assert!(first.release().unwrap());
    });
    assert_eq!((spy.calls_of(Call::Acquire), spy.calls_of(Call::Release)), (2, 0));
    assert_eq!(ours.stats().leases_retaken, THREADS as u64);
}

/// Others poll. Without turns they would wait for as long as the lock stays.
pub fn a_loop_over_a_lock_that_stays_leaves_turns_to_others(site: &Site) {
    let (ours, theirs) = (manager(site, STAYS), manager(site, Duration::ZERO));
    // Also ends a run in which the others get no turn.
    let (is_over, by) = (AtomicBool::new(false), Deadline::after(2 * LONG));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) && !by.passed() {
                assert!(lock(&ours).acquire().unwrap().release().unwrap());
            }
        });
        eventually("the loop runs", || ours.stats().leases_retaken > 0);
        for _ in 0..2 {
            assert!(lock(&theirs).acquire().unwrap().release().unwrap());
        }
        assert!(!by.passed(), "the loop had ended");
        is_over.store(true, Ordering::SeqCst);
    });
}

/// The lease is taken again when the record is old.
pub fn a_lease_of_a_lock_that_stays_ends_before_its_record(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs) = (builder(site, ttl).ttl(ttl), manager(site, Duration::ZERO));
        let ours = ours.store(site.store()).open().unwrap();
        let (lock, other) = (lock(&ours), lock(&theirs));
        let began = Moment::now();
        let first = in_time(lock.acquire())?;
        if !first.release().ok()? {
            return None;
        }
        thread::sleep(ttl / 2);
        let retaken = ours.stats().leases_retaken;
        let lease = in_time(lock.acquire())?;
        if ours.stats().leases_retaken == retaken {
            // The machine was too slow.
            drop(lease);
            return None;
        }
        // It ends later than a lease from the beginning would have.
        assert!(lease.ends() > began.after(ttl));
        while lease.check().is_ok() {
            if let Ok(theirs) = other.try_acquire() {
                assert!(lease.check().is_err(), "two valid leases: {theirs:?}");
                break;
            }
            thread::sleep(ttl / 50);
        }
        drop(lease);
        Some(())
    });
}

/// Longer than any case.
const NEVER: Duration = LONGEST.saturating_mul(2);
/// How long a lock stays in the cases about the end of that time.
const BRIEF: Duration = Duration::from_millis(100);

fn is_free(lock: &Lock) -> bool {
    lock.inspect().unwrap().holder.is_none()
}

/// Nobody else can find a lock free that its process takes again at once.
/// Waits until the threads that ask have looked at all pendings of the manager, in order: one more, for another lock, has been
/// granted. That costs one acquire, and its lease must be held until the calls were counted.
pub(super) fn until_looked_at(manager: &LockManager) -> Lease {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let id = format!("looked at {}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let last = manager.lock(&id, Level::Xdc).unwrap().start(&Default::default()).unwrap();
    let mut lease = None;
    eventually("the last pending is granted", || {
        lease = last.take().unwrap();
        lease.is_some()
    });
    // Another thread may be at work for one of those before it.
    thread::sleep(BRIEF);
    lease.unwrap()
}

pub fn locks_whose_time_of_staying_is_over_are_left_to_those_who_poll(site: &Site) {
    patiently(|linger| {
        let (ours, spy) = counted(site, builder(site, linger).retry(NEVER).wait(2 * NEVER));
        let theirs = manager(site, Duration::ZERO);
        let id = |number| format!("stays {linger:?} {number}");
        let mut locks: Vec<_> = (0..site.rounds.clamp(3, 40))
            .map(|number| [&ours, &theirs].map(|manager| manager.lock(&id(number), Level::Xdc).unwrap()))
            .collect();
        // On a slow machine, the time of some is over before they can be taken again.
        locks.retain(|[lock, _]| {
            let before = ours.stats().leases_retaken;
            for _ in 0..2 {
                assert!(lock.acquire_within(HELD, Duration::ZERO).unwrap().release().unwrap());
            }
            ours.stats().leases_retaken > before
        });
        let [lock, _] = locks.first()?;
        for [lock, _] in &locks {
            eventually("it is given back", || is_free(lock));
        }
        let asked = spy.calls_of(Call::Acquire);
        let pendings: Vec<_> =
            locks.iter().map(|[lock, _]| lock.start(&Default::default()).unwrap()).collect();
        let _last = until_looked_at(&ours);
        assert_eq!(spy.calls_of(Call::Acquire), asked + 1, "they are left to others");
        for [_, lock] in &locks {
            assert!(lock.try_acquire().unwrap().release().unwrap());
        }
        drop(pendings);
        // Who does not wait asks all the same. Then the lock does not stay.
        for wait in [Duration::ZERO, BRIEF] {
            assert!(lock.acquire_within(HELD, wait).unwrap().release().unwrap());
            assert!(is_free(lock));
        }
        assert!(lock.try_acquire().unwrap().release().unwrap());
        assert!(is_free(lock));
        ours.close().unwrap();
        Some(())
    });
}

/// It was taken again, and the time ended while it was held.
pub fn a_release_after_the_time_of_staying_leaves_the_lock_to_others(site: &Site) {
    patiently(|linger| {
        let (ours, spy) = counted(site, builder(site, linger).retry(NEVER).wait(2 * NEVER));
        let lock = ours.lock(&format!("stays {linger:?}"), Level::Xdc).unwrap();
        assert!(lock.acquire().unwrap().release().unwrap());
        let again = lock.try_acquire().unwrap();
        if ours.stats().leases_retaken == 0 {
            // The machine was so slow that the lock did not stay.
            return None;
        }
        thread::sleep(linger);
        assert!(again.release().unwrap());
        let asked = spy.calls_of(Call::Acquire);
        let pending = lock.start(&Default::default()).unwrap();
        let _last = until_looked_at(&ours);
        assert!(pending.take().unwrap().is_none());
        assert_eq!((spy.calls_of(Call::Acquire), spy.calls_of(Call::Release)), (asked + 1, 1));
        Some(())
    });
}

/// The time of staying begins with the first release, however often the record is written since.
pub fn renewals_and_other_lengths_do_not_make_a_lock_stay_longer(site: &Site) {
    for renews in [true, false] {
        let linger = 3 * BRIEF;
        let (ours, spy) = counted(site, builder(site, linger).retry(NEVER).wait(2 * NEVER));
        let lock = ours.lock(&format!("stays {renews}"), Level::Xdc).unwrap();
        let (mut round, mut is_left, by) = (0, false, Deadline::after(LONG));
        while !is_left {
            assert!(!by.passed(), "it stays for ever");
            let began = Moment::now();
            round += 1;
            let ttl = if renews { HELD } else { HELD * (1 + round % 2) };
            let Ok(lease) = lock.acquire_within(ttl, Duration::ZERO) else { continue };
            if renews {
                lease.renew().unwrap();
            }
            assert!(lease.release().unwrap());
            // On a machine that stands still, a lock is left that nobody has asked for.
            is_left = is_free(&lock) && Moment::now().since(began) < linger;
        }
        assert!(spy.calls_of(Call::Release) > 0);
        ours.close().unwrap();
    }
}

/// The interval passes, and nobody else wants the lock.
pub fn a_lock_that_was_left_to_others_is_taken_again_after_an_interval(site: &Site) {
    let retry = Duration::from_millis(100);
    for all in [false, true] {
        patiently(|linger| {
            let builder = builder(site, linger).retry(if all { NEVER } else { retry }).wait(NEVER);
            let builder = match all {
                true => builder.option("notices", NOTICES).option("notices_all", "true"),
                false => builder,
            };
            let ours = builder.store(site.store()).open().unwrap();
            let lock = ours.lock(&format!("stays {all} {linger:?}"), Level::Xdc).unwrap();
            for _ in 0..2 {
                assert!(lock.acquire().unwrap().release().unwrap());
            }
            if ours.stats().leases_retaken == 0 {
                // The machine was so slow that the lock did not stay.
                return None;
            }
            let mut was_held = Moment::now();
            eventually("it is given back", || {
                let at = Moment::now();
                let is_free = is_free(&lock);
                was_held = if is_free { was_held } else { at };
                is_free
            });
            let lease = lock.acquire().unwrap();
            let got = Moment::now();
            // If all have notices, nobody polls, and the next is at once.
            assert!(all || got.since(was_held) > retry, "after {:?}", got.since(was_held));
            assert!(lease.release().unwrap());
            ours.close().unwrap();
            Some(())
        });
    }
}

/// A program that tries once now and then would find a lock held that nobody uses.
pub fn a_try_that_is_refused_ends_the_staying(site: &Site) {
    let open =
        || builder(site, STAYS).retry(NEVER).option("notices", NOTICES).store(site.store()).open().unwrap();
    let (ours, theirs) = (open(), open());
    for is_try in [true, false] {
        assert!(lock(&ours).acquire().unwrap().release().unwrap());
        let other = lock(&theirs);
        let refused = match is_try {
            true => other.try_acquire(),
            false => other.acquire_within(HELD, Duration::ZERO),
        };
        assert_eq!(code(refused), Code::LockUnavailable);
        eventually("it is given back", || is_free(&other));
        assert!(other.try_acquire().unwrap().release().unwrap());
        // It stays with them now.
        assert_eq!(code(lock(&ours).try_acquire()), Code::LockUnavailable);
        eventually("it is given back", || is_free(&other));
    }
}
