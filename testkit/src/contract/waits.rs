//! Waiting for a lock over any store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::{AcquireOptions, CancelToken, Code, Error, Level, Moment};
use parking_lot::Mutex;

use super::{HELD, LONG, LONGEST, Site, acquire_after_drop, code, eventually, patiently, spawn};
use crate::{Call, Spy};

/// A retry interval that is longer than any wait, so the waiter must be woken.
const NEVER: Duration = Duration::from_secs(3600);

pub fn acquire_waits_for_a_release_in_another_process(site: &Site) {
    let lease = site.manager().lock("a", Level::Xdc).unwrap().acquire().unwrap();
    let spy = Spy::on(site.store());
    let lock = site.manager_over(spy.clone()).lock("a", Level::Xdc).unwrap();
    let waiter = spawn("waiter", move || lock.acquire().unwrap());
    eventually("the waiter is refused", || spy.calls() >= 3);
    assert!(lease.release().unwrap());
    let next = waiter.join().unwrap();
    next.check().unwrap();
    assert!(next.fence() > lease.fence());
}

pub fn threads_that_wait_for_many_locks_read_them_together(site: &Site) {
    let theirs = site.manager();
    let held: Vec<_> =
        (0..24).map(|id| theirs.lock(&id.to_string(), Level::Xdc).unwrap().acquire().unwrap()).collect();
    let spy = Spy::on(site.store());
    let ours = site.builder().store(spy.clone()).retry(Duration::from_millis(100)).open().unwrap();
    let waiters: Vec<_> = (0..24)
        .map(|id| {
            let lock = ours.lock(&id.to_string(), Level::Xdc).unwrap();
            spawn(&format!("waiter-{id}"), move || lock.acquire_within(HELD, LONGEST).unwrap())
        })
        .collect();
    let together = |call: &(Call, Moment)| matches!(call.0, Call::Holders(locks) if locks > 1);
    eventually("several locks are read with one call", || spy.log().iter().any(together));
    if site.reads_many {
        // After a call without any answer, the locks would be read alone for a while.
        let many = || spy.log().iter().filter(|call| together(call)).count();
        let before = many();
        eventually("they are read together again", || many() >= before + 8);
    }
    held.into_iter().for_each(|lease| assert!(lease.release().unwrap()));
    for waiter in waiters {
        waiter.join().unwrap().check().unwrap();
    }
}

pub fn acquire_waits_for_a_release_in_this_process(site: &Site) {
    let spy = Spy::on(site.store());
    // Only a release in this process can wake the waiter.
    let manager = site.builder().store(spy.clone()).retry(NEVER).open().unwrap();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let lease = lock.acquire_with_ttl(Duration::from_secs(24 * 3600)).unwrap();
    let waiter = spawn("waiter", move || lock.acquire().unwrap());
    eventually("the waiter is refused", || spy.calls() >= 2);
    assert!(lease.release().unwrap());
    assert!(waiter.join().unwrap().release().unwrap());
}

pub fn a_wait_that_is_over_says_how_long_it_was_and_who_has_the_lock(site: &Site) {
    let _lease = site.manager().lock("a", Level::Xdc).unwrap().acquire().unwrap();
    let lock = site.manager().lock("a", Level::Xdc).unwrap();
    let (began, wait) = (Moment::now(), Duration::from_millis(300));
    let answer = lock.acquire_within(LONG, wait);
    let took = Moment::now().since(began);
    match answer {
        Err(Error::LockUnavailable { waited, holder, .. }) => {
            assert!(waited >= wait && waited <= took, "{waited:?} of {took:?}");
            let identity = holder.expect("it was read").identity.expect("our record says who");
            assert_eq!(identity.purpose, "contract");
        }
        other => panic!("{other:?}"),
    }
}

pub fn a_wait_of_zero_asks_once(site: &Site) {
    let spy = Spy::on(site.store());
    let lock = site.manager_over(spy.clone()).lock("a", Level::Xdc).unwrap();
    let lease = lock.acquire_within(HELD, Duration::ZERO).unwrap();
    let calls = spy.calls();
    assert_eq!(code(lock.acquire_within(HELD, Duration::ZERO)), Code::LockUnavailable);
    assert_eq!(spy.calls(), calls + 1);
    assert!(lease.release().unwrap());
}

pub fn a_cancelled_wait_ends_and_holds_nothing(site: &Site) {
    let lease = site.manager().lock("a", Level::Xdc).unwrap().acquire().unwrap();
    let spy = Spy::on(site.store());
    let manager = site.builder().store(spy.clone()).retry(NEVER).open().unwrap();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let tokens = [CancelToken::new(), CancelToken::new()];
    let waiters = tokens.clone().map(|token| {
        let (lock, how) = (lock.clone(), AcquireOptions::new().cancel(&token));
        spawn("waiter", move || lock.acquire_with(&how))
    });
    eventually("a waiter is refused", || spy.calls() >= 1);
    for (token, waiter) in tokens.iter().zip(waiters) {
        token.cancel();
        match waiter.join().unwrap() {
            Err(Error::Cancelled { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    let before = spy.calls_of(Call::Acquire);
    let cancelled = lock.acquire_with(&AcquireOptions::new().cancel(&tokens[0]));
    assert_eq!(code(cancelled), Code::Cancelled, "a token stays cancelled");
    assert_eq!(spy.calls_of(Call::Acquire), before);
    assert!(lease.release().unwrap());
    assert!(lock.try_acquire().unwrap().release().unwrap());
}

pub fn a_grant_that_comes_after_the_cancellation_is_given_back(site: &Site) {
    let token = CancelToken::new();
    let spy = {
        let token = token.clone();
        Spy::with_hook(site.store(), move |call| {
            if call == Call::Acquire {
                token.cancel();
            }
        })
    };
    let lock = site.manager_over(spy).lock("a", Level::Xdc).unwrap();
    let began = Moment::now();
    assert_eq!(code(lock.acquire_with(&AcquireOptions::new().cancel(&token))), Code::Cancelled);
    let other = site.manager().lock("a", Level::Xdc).unwrap();
    assert!(acquire_after_drop(began, &other).release().unwrap());
}

pub fn closing_wakes_every_waiter(site: &Site) {
    let _lease = site.manager().lock("a", Level::Xdc).unwrap().acquire().unwrap();
    let spy = Spy::on(site.store());
    let manager = site.builder().store(spy.clone()).retry(NEVER).open().unwrap();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let waiters: Vec<_> = (0..8)
        .map(|_| {
            let lock = lock.clone();
            spawn("waiter", move || lock.acquire())
        })
        .collect();
    eventually("the first waiter is refused", || spy.calls() >= 1);
    manager.close().unwrap();
    for waiter in waiters {
        assert_eq!(code(waiter.join().unwrap()), Code::Closed);
    }
    let calls = spy.calls();
    thread::sleep(Duration::from_millis(100));
    assert_eq!(spy.calls(), calls, "somebody still polls for a closed manager");
}

pub fn a_holder_that_vanished_is_followed_when_its_ttl_ends(site: &Site) {
    patiently(|ttl| {
        let id = format!("{ttl:?}");
        // A killed process leaves a record that nobody releases.
        let gone = site.manager().lock(&id, Level::Xdc).unwrap().try_acquire_with_ttl(ttl).ok()?;
        let ends = gone.ends();
        std::mem::forget(gone);
        // The retry interval is longer than the wait. The store says when the lease ends, and the waiter asks then.
        let manager = site.builder().store(site.store()).retry(LONGEST + LONG).open().unwrap();
        let next = manager.lock(&id, Level::Xdc).unwrap().acquire().unwrap();
        assert!(Moment::now() >= ends, "granted while the first lease was still valid");
        assert!(next.release().unwrap());
        Some(())
    });
}

/// A counter that loses counts when two threads hold the lock. It also checks the order of the fences.
#[derive(Default)]
struct Guarded {
    count: AtomicU64,
    inside: AtomicUsize,
    last_fence: Mutex<Option<dlm::Fence>>,
}

impl Guarded {
    fn step(&self, fence: Option<dlm::Fence>) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two threads hold one lock");
        let seen = self.count.load(Ordering::SeqCst);
        thread::yield_now();
        self.count.store(seen + 1, Ordering::SeqCst);
        let before = std::mem::replace(&mut *self.last_fence.lock(), fence);
        assert!(fence > before, "fence {fence:?} after {before:?}");
        assert_eq!(self.inside.fetch_sub(1, Ordering::SeqCst), 1, "two threads hold one lock");
    }
}

pub fn threads_of_several_managers_never_overlap(site: &Site) {
    const MANAGERS: usize = 3;
    const THREADS: usize = 4;
    const LOCKS: usize = 2;
    let guarded: Arc<Vec<Guarded>> = Arc::new((0..LOCKS).map(|_| Guarded::default()).collect());
    let rounds = site.rounds.div_ceil(THREADS);
    let mut threads = Vec::new();
    for number in 0..MANAGERS {
        let manager = site.builder().store(site.store()).retry(Duration::from_millis(5)).open().unwrap();
        for thread in 0..THREADS {
            let (manager, guarded) = (manager.clone(), Arc::clone(&guarded));
            threads.push(spawn(&format!("{number}-{thread}"), move || {
                for round in 0..rounds {
                    let at = (thread + round) % LOCKS;
                    let lock = manager.lock(&at.to_string(), Level::Xdc).unwrap();
                    let lease = lock.acquire().unwrap();
                    guarded[at].step(lease.fence());
                    assert!(lease.release().unwrap());
                }
            }));
        }
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let counted: u64 = guarded.iter().map(|guarded| guarded.count.load(Ordering::SeqCst)).sum();
    assert_eq!(counted, (MANAGERS * THREADS * rounds) as u64);
}
