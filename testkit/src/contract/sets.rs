//! Several locks at once, minimum holds and lock delays, over any store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::{AcquireOptions, Code, Deadline, LeaseState, Level, Lock, LockManager, LostReason, Moment};

use super::{HELD, LONG, LONGEST, Site, acquire_after_drop, code, eventually, in_time, patiently};
use crate::{Call, Spy};

fn locks<const N: usize>(manager: &LockManager, ids: [&str; N]) -> [Lock; N] {
    ids.map(|id| manager.lock(id, Level::Xdc).unwrap())
}

/// The first of the locks, in the order in which a set acquires them, is free again when another one is held.
pub fn of_several_locks_a_caller_gets_all_or_none(site: &Site) {
    let (ours, theirs) = (site.manager(), site.manager());
    let [a, b, c] = locks(&ours, ["a", "b", "c"]);
    let [their_a, their_b, their_c] = locks(&theirs, ["a", "b", "c"]);
    let once = AcquireOptions::new().wait(Duration::ZERO);

    let set = ours.acquire_all(&[&c, &a, &b], &once).unwrap();
    let fences: Vec<_> = set.leases().iter().map(|lease| (lease.name().clone(), lease.fence())).collect();
    let expected: Vec<_> = [&c, &a, &b].map(|lock| lock.name().clone()).into();
    assert_eq!(
        fences.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(),
        expected,
        "the caller's order"
    );
    assert_eq!(set.fences(), fences.iter().map(|(_, fence)| *fence).collect::<Vec<_>>());
    if set.fences()[0].is_some() {
        assert_eq!(set.guard().unwrap().len(), 3);
    }
    assert!(set.leases().iter().all(|lease| lease.state() == LeaseState::Held), "kept after the wait");
    for lock in [&their_a, &their_b, &their_c] {
        assert_eq!(code(lock.try_acquire().map(drop)), Code::LockUnavailable);
    }
    set.renew().unwrap();
    assert!(set.release().unwrap());
    assert!(!set.release().unwrap());
    assert_eq!(code(set.guard()), Code::LeaseLost);

    let held = their_c.try_acquire().unwrap();
    let began = Moment::now();
    assert_eq!(code(ours.acquire_all(&[&b, &c, &a], &once)), Code::LockUnavailable);
    for lock in [&their_a, &their_b] {
        assert!(acquire_after_drop(began, lock).release().unwrap(), "a part of the set was left");
    }
    assert!(held.release().unwrap());
    let set = ours.acquire_all(&[&a, &b, &c], &once).unwrap();
    let began = Moment::now();
    drop(set);
    assert!(acquire_after_drop(began, &their_a).release().unwrap(), "a dropped set is released");
}

/// Callers that want the same locks in opposite orders.
pub fn callers_of_overlapping_sets_do_not_block_each_other(site: &Site) {
    let managers = [site.manager(), site.manager()];
    let rounds = (site.rounds / 20).max(10);
    let inside = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (number, ids) in [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]].iter().enumerate() {
            let (manager, inside) = (&managers[number % 2], &inside);
            scope.spawn(move || {
                let [first, second] = locks(manager, *ids);
                for _ in 0..rounds {
                    let options = AcquireOptions::new().wait(LONGEST);
                    let set = manager.acquire_all(&[&first, &second], &options).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert!(set.release().unwrap());
                }
            });
        }
    });
}

/// The wait for the second lock is longer than the lease of the first.
pub fn the_locks_of_a_set_are_kept_while_others_are_waited_for(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs) = (site.manager(), site.manager());
        let ids = [format!("{ttl:?} a"), format!("{ttl:?} b")];
        let [a, b] = locks(&ours, ids.each_ref().map(String::as_str));
        let [their_a, their_b] = locks(&theirs, ids.each_ref().map(String::as_str));
        let held = their_b.try_acquire().unwrap();
        thread::scope(|scope| {
            let waiter =
                scope.spawn(|| ours.acquire_all(&[&a, &b], &AcquireOptions::new().ttl(ttl).wait(LONGEST)));
            eventually("the first lock is held, or was not kept", || {
                their_a.inspect().unwrap().holder.is_some() || waiter.is_finished()
            });
            let long_enough = Moment::now().after(3 * ttl);
            let mut lost = false;
            while Moment::now() < long_enough && !lost {
                lost = their_a.inspect().unwrap().holder.is_none();
                thread::sleep(ttl / 10);
            }
            held.release().unwrap();
            match waiter.join().unwrap() {
                // The machine was too slow for so short a lease.
                Err(error) if error.code() == Code::LeaseLost => None,
                Err(error) => in_time(Err(error)),
                Ok(_) if lost => None,
                Ok(set) => {
                    let whole = set.leases().iter().all(|lease| lease.state() == LeaseState::Held);
                    assert!(whole || set.check().is_err(), "still kept");
                    set.release().ok().filter(|freed| *freed).map(drop)
                }
            }
        })
    });
}

/// The answers to the renewals do not come while the second lock is waited for.
pub fn a_set_that_loses_a_lock_while_it_waits_is_given_back(site: &Site) {
    patiently(|ttl| {
        let (hangs, acquired) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let spy = {
            let (hangs, acquired) = (Arc::clone(&hangs), Arc::clone(&acquired));
            Spy::with_hook(site.store(), move |call| {
                acquired.fetch_add(usize::from(call == Call::Acquire), Ordering::SeqCst);
                // With a limit, so that a failure of this case does not hang.
                let by = Deadline::after(LONGEST);
                while call == Call::Renew && hangs.load(Ordering::SeqCst) && !by.passed() {
                    thread::sleep(Duration::from_millis(5));
                }
            })
        };
        let (ours, theirs) = (site.manager_over(spy), site.manager());
        let ids = [format!("{ttl:?} a"), format!("{ttl:?} b")];
        let [a, b] = locks(&ours, ids.each_ref().map(String::as_str));
        let [their_a, their_b] = locks(&theirs, ids.each_ref().map(String::as_str));
        let held = their_b.try_acquire().unwrap();
        let options = AcquireOptions::new().ttl(ttl).wait(LONGEST);
        let answer = thread::scope(|scope| {
            let waiter = scope.spawn(|| ours.acquire_all(&[&b, &a], &options).map(drop));
            eventually("the first lock was asked for", || acquired.load(Ordering::SeqCst) > 0);
            thread::sleep(2 * ttl);
            assert!(held.release().unwrap());
            waiter.join().unwrap()
        });
        for lock in [their_a, their_b] {
            assert!(lock.acquire().unwrap().release().unwrap(), "not given back");
        }
        hangs.store(false, Ordering::SeqCst);
        match answer {
            Err(error) if error.code() == Code::LeaseLost => Some(()),
            // The machine was too slow for the grant of one of the locks.
            other => {
                assert!(in_time(other).is_none(), "a set without the lock that was lost");
                None
            }
        }
    });
}

pub fn sets_that_make_no_sense_are_refused_before_any_request(site: &Site) {
    let (ours, theirs) = (site.manager(), site.manager());
    let [a, b] = locks(&ours, ["a", "b"]);
    let [their_a] = locks(&theirs, ["a"]);
    let options = AcquireOptions::new();
    for refused in [
        ours.acquire_all(&[], &options),
        ours.acquire_all(&[&a, &b, &a], &options),
        ours.acquire_all(&[&a, &their_a], &options),
        ours.acquire_all(&[&a, &b], &options.clone().ttl(Duration::from_millis(99))),
        ours.acquire_all(&[&a], &options.clone().ttl(LONG).min_hold(2 * LONG)),
    ] {
        assert_eq!(code(refused), Code::InvalidArgument);
    }
    let untouched = a.inspect().unwrap();
    assert!(untouched.fence.is_none() && untouched.holder.is_none(), "the store was asked");
    ours.close().unwrap();
    assert_eq!(code(ours.acquire_all(&[&a, &b], &options)), Code::Closed);
}

pub fn a_lock_with_a_minimum_hold_is_free_when_that_is_over_and_not_before(site: &Site) {
    const MIN: Duration = Duration::from_millis(400);
    let (ours, theirs) = (site.manager(), site.manager());
    let [lock, other] = [&ours, &theirs].map(|manager| manager.lock("a", Level::Xdc).unwrap());
    let before = Moment::now();
    let lease = lock.acquire_with(&AcquireOptions::new().min_hold(MIN)).unwrap();
    let granted = Moment::now();
    assert!(lease.release().unwrap());
    assert_eq!((lease.state(), code(lease.check())), (LeaseState::Released, Code::LeaseLost));
    assert!(!lease.release().unwrap());
    drop(lease);
    let next = other.acquire().unwrap();
    assert!(Moment::now().since(before) >= MIN, "free before the minimum was over");
    assert!(Moment::now().since(granted) < LONGEST, "left to its TTL");
    assert!(next.release().unwrap());

    // The minimum is over before the release.
    let lease = lock.acquire_with(&AcquireOptions::new().min_hold(Duration::from_millis(1))).unwrap();
    thread::sleep(Duration::from_millis(2));
    assert!(lease.release().unwrap());
    assert!(other.try_acquire().unwrap().release().unwrap(), "free at once");

    // A thread of the same process waits for it as well.
    drop(lock.acquire_with(&AcquireOptions::new().min_hold(MIN)).unwrap());
    assert!(lock.acquire().unwrap().release().unwrap());

    let lease = lock.acquire_with(&AcquireOptions::new().ttl(HELD).min_hold(HELD)).unwrap();
    assert!(lease.release().unwrap());
    ours.close().unwrap();
    assert_eq!(code(other.try_acquire().map(drop)), Code::LockUnavailable, "closing ends no minimum");
}

/// The holder dies: it neither renews nor releases.
pub fn after_a_lease_that_expired_nobody_gets_the_lock_during_its_delay(site: &Site) {
    const DELAY: Duration = Duration::from_secs(2);
    patiently(|ttl| {
        let manager = site.builder().store(site.store()).lock_delay(DELAY).open().unwrap();
        let (ours, theirs) = (manager.lock(&format!("{ttl:?}"), Level::Xdc).unwrap(), site.manager());
        let theirs = theirs.lock(&format!("{ttl:?}"), Level::Xdc).unwrap();
        let lease = ours.try_acquire_with_ttl(ttl).ok()?;
        lease.renew().ok()?;
        let renewed = Moment::now();
        assert!(lease.remaining() <= ttl, "the holder counts its TTL only");
        eventually("the lease ends", || !lease.state().is_valid());
        assert_eq!(lease.state(), LeaseState::Lost(LostReason::Expired));
        let next = theirs.acquire().unwrap();
        assert!(Moment::now().since(renewed) >= DELAY, "no delay");
        assert!(next.release().unwrap());
        assert_eq!(code(lease.release()), Code::LeaseLost);
        let next = ours.try_acquire().unwrap();
        let began = Moment::now();
        drop(next);
        assert!(acquire_after_drop(began, &theirs).release().unwrap(), "a release has no delay");
        Some(())
    });
}
