//! Acquisitions that do not block, over any store.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::LockStore;
use dlm::{
    AcquireOptions, CancelToken, Code, Completions, Lease, LeaseState, Level, Lock, LockManager, Moment,
    Pending,
};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use super::{LONGEST, Site, acquire_after_drop, code, eventually, patiently, spawn};
use crate::{Call, Spy};

/// An interval that no test waits for.
const NEVER: Duration = Duration::from_secs(3600);

fn lock(manager: &LockManager) -> Lock {
    manager.lock("a", Level::Xdc).unwrap()
}

fn manager(site: &Site, store: Arc<dyn LockStore>, retry: Duration) -> LockManager {
    site.builder().store(store).retry(retry).open().unwrap()
}

fn start(lock: &Lock) -> Pending {
    lock.start(&AcquireOptions::new()).unwrap()
}

/// Waits for the result by polling the descriptor.
fn result(pending: &Pending) -> dlm::Result<Lease> {
    readable(&pending.fd().unwrap());
    pending.take().map(|lease| lease.expect("its descriptor is readable"))
}

fn readable(fd: &impl AsFd) {
    let limit = LONGEST.try_into().unwrap();
    assert_eq!(
        poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)).unwrap(),
        1,
        "nothing in {LONGEST:?}"
    );
}

pub fn a_pending_acquires_a_free_lock_and_gives_its_result_once(site: &Site) {
    let pending = start(&lock(&site.manager()));
    let lease = result(&pending).unwrap();
    lease.check().unwrap();
    readable(&pending.fd().unwrap());
    assert_eq!(code(pending.take()), Code::InvalidArgument);
    pending.cancel();
    drop(pending);
    lease.check().unwrap();
    assert!(lease.release().unwrap());
}

pub fn a_pending_waits_for_a_release_in_another_process(site: &Site) {
    let lease = lock(&site.manager()).acquire().unwrap();
    let spy = Spy::on(site.store());
    let manager = site.manager_over(spy.clone());
    let pending = start(&lock(&manager));
    eventually("the pending asks repeatedly", || spy.calls() >= 3);
    assert!(pending.take().unwrap().is_none(), "the lock is held");
    assert_eq!(spy.calls_of(Call::Acquire), 1, "a held lock is read, not acquired again");
    let fence = lease.fence();
    assert!(lease.release().unwrap());
    let next = result(&pending).unwrap();
    assert!(next.fence() > fence);
    assert!(next.release().unwrap());
}

pub fn pendings_and_threads_are_one_line_in_order_of_arrival(site: &Site) {
    const WAITERS: usize = 12;
    let manager = manager(site, site.store(), NEVER);
    let lock = lock(&manager);
    let held = lock.acquire().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let (completions, mut pendings, mut threads) = (Completions::new(), Vec::new(), Vec::new());
    for number in 0..WAITERS {
        if number % 2 == 0 {
            let pending = start(&lock);
            pending.notify(&completions, number as u64).unwrap();
            pendings.push(Some(pending));
        } else {
            let (lock, order) = (lock.clone(), Arc::clone(&order));
            threads.push(spawn("waiter", move || {
                let lease = lock.acquire().unwrap();
                order.lock().push(number);
                assert!(lease.release().unwrap());
            }));
        }
        eventually("the waiter is in line", || manager.stats().threads_waiting == number as u64 + 1);
    }
    assert!(held.release().unwrap());
    for _ in 0..WAITERS / 2 {
        readable(&completions.fd().unwrap());
        let number = completions.next().unwrap() as usize;
        let lease = pendings[number / 2].take().unwrap().take().unwrap().unwrap();
        order.lock().push(number);
        assert!(lease.release().unwrap());
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(*order.lock(), (0..WAITERS).collect::<Vec<_>>());
    assert_eq!(completions.next(), None);
}

pub fn a_pending_whose_wait_is_over_says_so_and_a_wait_of_zero_asks_once(site: &Site) {
    let lease = lock(&site.manager()).acquire().unwrap();
    let spy = Spy::on(site.store());
    let manager = manager(site, spy.clone(), NEVER);
    let wait = Duration::from_millis(50);
    for wait in [Duration::ZERO, wait] {
        let began = Moment::now();
        let pending = lock(&manager).start(&AcquireOptions::new().wait(wait)).unwrap();
        match result(&pending).unwrap_err() {
            dlm::Error::LockUnavailable { waited, holder, .. } => {
                assert!(waited >= wait && Moment::now().since(began) >= waited, "{waited:?}");
                assert!(holder.is_some());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(spy.calls_of(Call::Acquire), 2);
    assert!(lease.release().unwrap());
}

pub fn a_cancelled_pending_ends_at_once_and_holds_nothing(site: &Site) {
    let lease = lock(&site.manager()).acquire().unwrap();
    let is_refused = Arc::new(AtomicBool::new(false));
    let spy = {
        let is_refused = Arc::clone(&is_refused);
        Spy::with_hook(site.store(), move |_| is_refused.store(true, Ordering::SeqCst))
    };
    let manager = manager(site, spy.clone(), NEVER);
    let lock = lock(&manager);
    let first = start(&lock);
    // No request is under way after that: one that arrives after the release below would be granted for a moment.
    eventually("the first pending is refused", || is_refused.load(Ordering::SeqCst));
    let token = CancelToken::new();
    let others = [start(&lock), lock.start(&AcquireOptions::new().cancel(&token)).unwrap(), start(&lock)];
    others[0].cancel();
    token.cancel();
    for cancelled in &others[..2] {
        // Without waiting for anything: the result is there when the cancellation returns.
        assert_eq!(code(cancelled.take()), Code::Cancelled);
    }
    drop(others);
    assert_eq!(manager.stats().threads_waiting, 1);
    assert!(first.take().unwrap().is_none(), "nobody cancelled it");
    let late = lock.start(&AcquireOptions::new().cancel(&token)).unwrap();
    assert_eq!(code(late.take()), Code::Cancelled, "a token stays cancelled");
    drop(first);
    assert_eq!((manager.stats().threads_waiting, spy.calls_of(Call::Acquire)), (0, 1));
    assert!(lease.release().unwrap());
    assert!(lock.try_acquire().unwrap().release().unwrap());
}

/// A request that is under way when its pending is cancelled acquires the lock. Nobody has it then.
pub fn a_grant_that_comes_after_a_pending_was_cancelled_is_given_back(site: &Site) {
    for drops in [false, true] {
        let (asked, go_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let spy = {
            let (asked, go_on) = (Arc::clone(&asked), Arc::clone(&go_on));
            Spy::with_hook(site.store(), move |call| {
                if call == Call::Acquire && !asked.swap(true, Ordering::SeqCst) {
                    eventually("the pending is cancelled", || go_on.load(Ordering::SeqCst));
                }
            })
        };
        let manager = manager(site, spy, NEVER);
        let pending = start(&lock(&manager));
        eventually("the request is under way", || asked.load(Ordering::SeqCst));
        let next = start(&lock(&manager));
        if drops {
            drop(pending);
        } else {
            pending.cancel();
            assert_eq!(code(result(&pending)), Code::Cancelled);
        }
        go_on.store(true, Ordering::SeqCst);
        // It gets the lock when the late grant has been released, not after the interval.
        assert!(result(&next).unwrap().release().unwrap());
        manager.close().unwrap();
        assert!(lock(&site.manager()).try_acquire().unwrap().release().unwrap());
    }
}

pub fn closing_ends_every_pending(site: &Site) {
    let _lease = lock(&site.manager()).acquire().unwrap();
    let spy = Spy::on(site.store());
    let manager = manager(site, spy.clone(), NEVER);
    let pendings: Vec<_> = (0..8).map(|_| start(&lock(&manager))).collect();
    let granted = manager.lock("free", Level::Xdc).unwrap().start(&AcquireOptions::new()).unwrap();
    readable(&granted.fd().unwrap());
    eventually("the first pending is refused", || spy.calls() >= 2);
    manager.close().unwrap();
    for pending in &pendings {
        assert_eq!(code(pending.take()), Code::Closed);
    }
    assert_eq!(code(granted.take()), Code::Closed);
    assert_eq!(code(lock(&manager).start(&AcquireOptions::new())), Code::Closed);
    let free = site.manager().lock("free", Level::Xdc).unwrap();
    assert!(free.try_acquire().unwrap().release().unwrap());
    let calls = spy.calls();
    thread::sleep(Duration::from_millis(100));
    assert_eq!(spy.calls(), calls, "somebody still asks for a closed manager");
}

pub fn a_lease_that_nobody_took_is_released(site: &Site) {
    let manager = site.manager();
    let pending = start(&lock(&manager));
    readable(&pending.fd().unwrap());
    assert_eq!(manager.stats().leases_held, 1);
    let began = Moment::now();
    drop(pending);
    let next = acquire_after_drop(began, &lock(&site.manager()));
    assert_eq!(manager.stats().leases_held, 0);
    assert!(next.release().unwrap());
}

pub fn a_pending_keeps_its_lease_alive_if_asked(site: &Site) {
    patiently(|ttl| {
        let lock = site.manager().lock(&format!("{ttl:?}"), Level::Xdc).unwrap();
        let how = AcquireOptions::new().ttl(ttl).keep(Duration::MAX);
        let (began, lease) = (Moment::now(), result(&lock.start(&how).unwrap()).ok()?);
        while Moment::now().since(began) < 3 * ttl {
            lease.check().ok()?;
            thread::sleep(ttl / 5);
        }
        let in_time = lease.state() == LeaseState::Renewing;
        (lease.release().ok()? && in_time).then_some(())
    });
    let no_time = AcquireOptions::new().keep(Duration::ZERO);
    assert_eq!(code(lock(&site.manager()).start(&no_time)), Code::InvalidArgument);
}

pub fn hundreds_of_pendings_exclude_each_other(site: &Site) {
    let pendings = site.rounds.clamp(20, 300);
    let completions = Completions::new();
    let managers = [(); 2].map(|()| manager(site, site.store(), Duration::from_millis(5)));
    let mut all: Vec<_> = (0..pendings)
        .map(|number| {
            let lock = managers[number % 2].lock(&(number % 3).to_string(), Level::Xdc).unwrap();
            let pending = start(&lock);
            pending.notify(&completions, number as u64).unwrap();
            Some(pending)
        })
        .collect();
    let (mut last_fence, mut is_held) = ([None; 3], [false; 3]);
    for _ in 0..pendings {
        readable(&completions.fd().unwrap());
        let number = completions.next().unwrap() as usize;
        let lease = all[number].take().expect("it finishes once").take().unwrap().unwrap();
        assert!(!std::mem::replace(&mut is_held[number % 3], true));
        assert!(lease.fence() > last_fence[number % 3]);
        last_fence[number % 3] = lease.fence();
        is_held[number % 3] = false;
        assert!(lease.release().unwrap());
    }
    assert_eq!(completions.next(), None);
}
