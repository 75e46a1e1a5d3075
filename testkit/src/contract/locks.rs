//! Locks and managers over any store.

use std::thread;
use std::time::Duration;

use dlm::{Code, Error, LeaseToken, Level, LockManager, Moment};

use super::stores::ODD_IDS;
use super::{HELD, LONG, Site, acquire_after_drop, code, in_time, patiently};
use crate::{Call, Spy};

pub fn a_held_lock_is_refused_at_once_with_its_holder(site: &Site) {
    let (ours, theirs) = (site.manager(), site.manager());
    let lease = ours.lock("a", Level::Dc).unwrap().try_acquire().unwrap();
    lease.check().unwrap();
    for manager in [&ours, &theirs] {
        // The same manager is refused too: locks are not reentrant.
        match manager.lock("a", Level::Dc).unwrap().try_acquire() {
            Err(Error::LockUnavailable { name, waited, holder, .. }) => {
                assert_eq!((name, waited), (lease.name().to_string(), Duration::ZERO));
                let identity = holder.expect("the store knows").identity.expect("our record says who");
                assert_eq!((identity.pid, identity.purpose.as_str()), (std::process::id(), "contract"));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(lease.release().unwrap());
    assert!(theirs.lock("a", Level::Dc).unwrap().try_acquire().unwrap().release().unwrap());
}

pub fn a_second_release_is_false_and_asks_no_store(site: &Site) {
    let spy = Spy::on(site.store());
    let manager = site.manager_over(spy.clone());
    let lease = manager.lock("a", Level::Xdc).unwrap().acquire().unwrap();
    assert!(lease.release().unwrap());
    let calls = spy.calls();
    assert!(!lease.release().unwrap());
    assert_eq!(code(lease.check()), Code::LeaseLost);
    assert_eq!(code(lease.renew()), Code::LeaseLost);
    assert_eq!(lease.remaining(), Duration::ZERO);
    drop(lease);
    assert_eq!(spy.calls(), calls, "the store was asked about a lease that had been released");
}

pub fn fences_rise_over_managers(site: &Site) {
    let (mut last, mut dropped) = (None, Moment::now());
    // The manager of the round before, which releases in the background what a drop could not.
    let mut before = None;
    for round in 0..site.rounds.div_ceil(4) {
        let manager = site.manager();
        let lock = manager.lock("a", Level::Xdc).unwrap();
        let lease = if round % 2 == 0 { lock.acquire().unwrap() } else { acquire_after_drop(dropped, &lock) };
        assert!(lease.fence() > last, "{:?} after {last:?}", lease.fence());
        last = lease.fence();
        before = Some(manager);
        if round % 3 == 0 {
            lease.release().unwrap();
        }
        dropped = Moment::now();
    }
    drop(before);
}

pub fn a_dropped_lease_frees_the_lock(site: &Site) {
    let (manager, theirs) = (site.manager(), site.manager());
    let [lock, other] = [&manager, &theirs].map(|manager| manager.lock("a", Level::Xdc).unwrap());
    let lease = lock.acquire().unwrap();
    let began = Moment::now();
    drop(lease);
    let lease = acquire_after_drop(began, &other);
    let began = Moment::now();
    drop(lease);
    // The same when a panic drops the lease.
    let panicked = super::spawn("panics", move || {
        let _lease = acquire_after_drop(began, &lock);
        panic!("planted");
    });
    let began = Moment::now();
    assert!(panicked.join().is_err());
    drop(acquire_after_drop(began, &other));
}

fn only(error: Error, code: Code) -> Result<(), Error> {
    if error.code() == code { Ok(()) } else { Err(error) }
}

pub fn a_lease_is_released_once_by_whichever_thread_comes_first(site: &Site) {
    let manager = site.manager();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    for _ in 0..site.rounds.div_ceil(10) {
        let lease = lock.acquire().unwrap();
        let freed: Vec<bool> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| lease.release().unwrap())).collect();
            // A concurrent renewal succeeds or fails with LEASE_LOST. It must not make the lock held again.
            scope.spawn(|| lease.renew().or_else(|error| only(error, Code::LeaseLost)).unwrap());
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(freed.iter().filter(|freed| **freed).count(), 1);
        assert!(lock.inspect().unwrap().holder.is_none());
    }
}

pub fn levels_farms_and_clients_have_locks_of_their_own(site: &Site) {
    let store = site.store();
    let open = |client: String, farm: &str| {
        LockManager::builder().store(store.clone()).client(&client).farm(farm).open().unwrap()
    };
    let here = open(site.client().into(), "dc1");
    let there = open(site.client().into(), "dc2");
    let stranger = open(format!("{}-b", site.client()), "dc1");
    let leases: Vec<_> = [
        here.lock("a", Level::Dc),
        here.lock("a", Level::Xdc),
        there.lock("a", Level::Dc),
        stranger.lock("a", Level::Dc),
        stranger.lock("a", Level::Xdc),
        here.lock("A", Level::Dc),
    ]
    .into_iter()
    .map(|lock| lock.unwrap().try_acquire().unwrap())
    .collect();
    // There is one lock for all farms, and one for all processes of a farm.
    assert_eq!(code(there.lock("a", Level::Xdc).unwrap().try_acquire()), Code::LockUnavailable);
    let again = open(site.client().into(), "dc1");
    assert_eq!(code(again.lock("a", Level::Dc).unwrap().try_acquire()), Code::LockUnavailable);
    for lease in leases {
        assert!(lease.release().unwrap());
    }
}

pub fn locks_of_odd_ids_exclude_each_other_as_any_do(site: &Site) {
    let (ours, theirs) = (site.manager(), site.manager());
    let longest = "é".repeat(512);
    for id in ODD_IDS.into_iter().chain([longest.as_str()]) {
        for level in [Level::Dc, Level::Xdc] {
            let lease = ours.lock(id, level).unwrap().try_acquire().unwrap();
            let refused = theirs.lock(id, level).unwrap().try_acquire();
            assert_eq!(code(refused), Code::LockUnavailable, "{id:?}");
            let token: LeaseToken = lease.into_token().unwrap().to_string().parse().unwrap();
            assert!(theirs.adopt(token).unwrap().release().unwrap(), "{id:?}");
        }
    }
}

pub fn bad_input_is_refused_before_any_io(site: &Site) {
    let spy = Spy::on(site.store());
    let builder = || site.builder().store(spy.clone());
    let long = "x".repeat(256);
    for part in ["", "a#b", "a\0b", "a\nb", "\u{7f}", &long] {
        assert_eq!(code(builder().client(part).open()), Code::InvalidArgument, "client {part:?}");
        assert_eq!(code(builder().farm(part).open()), Code::InvalidArgument, "farm {part:?}");
    }
    let day = Duration::from_secs(24 * 3600);
    let absurd_ttls = [Duration::ZERO, Duration::from_nanos(999_999), 366 * day, Duration::MAX];
    for ttl in absurd_ttls {
        assert_eq!(code(builder().ttl(ttl).open()), Code::InvalidArgument, "{ttl:?}");
    }
    for pause in [Duration::ZERO, day, Duration::MAX] {
        assert_eq!(code(builder().retry(pause).open()), Code::InvalidArgument, "{pause:?}");
        assert_eq!(code(builder().timeout(pause).open()), Code::InvalidArgument, "{pause:?}");
    }
    assert_eq!(code(builder().purpose("a\nb").open()), Code::InvalidArgument);
    assert_eq!(code(builder().purpose(&long).open()), Code::InvalidArgument);
    assert_eq!(code(builder().store_uri("memory:").open()), Code::InvalidArgument, "two stores");

    let manager = builder().open().unwrap();
    let too_long = "x".repeat(1025);
    for id in ["", "a\0b", &too_long] {
        assert_eq!(code(manager.lock(id, Level::Dc)), Code::InvalidArgument, "{id:?}");
    }
    let nowhere = LockManager::builder().store(spy.clone()).client("a").open().unwrap();
    assert_eq!(code(nowhere.lock("a", Level::Dc)), Code::InvalidArgument, "a DC lock without a farm");
    let lock = manager.lock("a", Level::Dc).unwrap();
    for ttl in absurd_ttls {
        assert_eq!(code(lock.try_acquire_with_ttl(ttl)), Code::InvalidArgument, "{ttl:?}");
        assert_eq!(code(lock.acquire_with_ttl(ttl)), Code::InvalidArgument, "{ttl:?}");
    }
    for text in ["", "dlm1.", "dlm1.00", "dlm2.", "dlm2.00", "dlm3.", "dlm3.00"] {
        assert_eq!(code(text.parse::<LeaseToken>()), Code::InvalidArgument, "{text:?}");
    }
    assert_eq!(spy.calls(), 0, "bad input reached the store");

    let lease = lock.acquire().unwrap();
    let calls = spy.calls();
    for ttl in absurd_ttls {
        assert_eq!(code(lease.renew_for(ttl)), Code::InvalidArgument, "{ttl:?}");
    }
    assert_eq!(spy.calls(), calls, "bad input reached the store");
    lease.check().expect("a refused renewal must not end the lease");
}

pub fn the_longest_and_the_shortest_ttl_work(site: &Site) {
    let manager = site.manager();
    let lock = manager.lock("long", Level::Xdc).unwrap();
    let longest = site.longest_ttl;
    let lease = lock.try_acquire_with_ttl(longest).unwrap();
    let useful = longest - longest / 10; // the clock margin
    assert!(lease.remaining() > useful - LONG && lease.remaining() <= useful);
    lease.renew_for(longest).unwrap();
    assert!(lease.release().unwrap());
    assert!(lock.try_acquire().unwrap().release().unwrap());

    // Most stores cannot answer within this TTL. The call must then fail, and the lock must become free again.
    let lock = manager.lock("short", Level::Xdc).unwrap();
    for _ in 0..site.rounds.div_ceil(10) {
        match lock.try_acquire_with_ttl(Duration::from_millis(1)) {
            Ok(lease) => assert!(lease.remaining() <= Duration::from_millis(1)),
            Err(error) => assert!(error.is_retryable(), "{}", error.chain()),
        }
    }
    assert!(lock.acquire().unwrap().release().unwrap());
    // Stores count milliseconds. Fractions are rounded up and never become 0.
    patiently(|ttl| {
        let ttl = ttl + Duration::from_nanos(1);
        let lease = in_time(lock.acquire_with_ttl(ttl))?;
        assert!(lease.remaining() <= ttl + Duration::from_millis(1));
        let refused = lock.try_acquire().map(drop);
        lease.check().ok()?;
        assert_eq!(code(refused), Code::LockUnavailable, "granted while held");
        lease.release().ok()?.then_some(())
    });
}

pub fn inspecting_tells_holder_and_fence_and_changes_nothing(site: &Site) {
    let manager = site.manager();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    assert!(lock.inspect().unwrap().holder.is_none());
    let lease = lock.acquire_with_ttl(HELD).unwrap();
    let other = site.manager().lock("a", Level::Xdc).unwrap();
    for _ in 0..2 {
        let found = other.inspect().unwrap();
        let holder = found.holder.unwrap();
        assert_eq!(found.fence, lease.fence());
        assert_eq!(holder.identity.unwrap().pid, std::process::id());
        assert!(holder.remaining.unwrap() <= HELD + site.slack);
    }
    assert!(lease.release().unwrap());
    assert!(other.inspect().unwrap().holder.is_none());
    assert!(other.try_acquire().unwrap().fence() > lease.fence());
}

pub fn a_lease_goes_to_another_process_as_text_and_the_first_lets_go(site: &Site) {
    let (ours, theirs) = (site.manager(), site.manager());
    let lock = ours.lock("a", Level::Dc).unwrap();
    let lease = lock.acquire_with_ttl(HELD).unwrap();
    let (fence, ends) = (lease.fence(), lease.ends());
    let text = lease.into_token().unwrap().to_string();
    ours.close().unwrap();
    assert_eq!(code(site.manager().lock("a", Level::Dc).unwrap().try_acquire()), Code::LockUnavailable);

    let adopted = theirs.adopt(text.parse().unwrap()).unwrap();
    adopted.check().unwrap();
    assert_eq!((adopted.name(), adopted.fence()), (lock.name(), fence));
    assert_eq!(adopted.ends(), ends, "one machine has one boot clock");
    adopted.renew_for(2 * HELD).unwrap();
    assert!(adopted.remaining() > HELD);
    // A renewal may have changed the record of the lease, so a new token is needed.
    let text = adopted.into_token().unwrap().to_string();
    let adopted = site.manager().adopt(text.parse().unwrap()).unwrap();
    assert!(adopted.release().unwrap());
    assert!(theirs.lock("a", Level::Dc).unwrap().try_acquire().unwrap().release().unwrap());
}

pub fn a_text_of_a_released_lease_has_no_power(site: &Site) {
    let (ours, theirs) = (site.manager(), site.manager());
    let lock = ours.lock("a", Level::Dc).unwrap();
    let text = lock.acquire().unwrap().into_token().unwrap().to_string();
    assert!(ours.adopt(text.parse().unwrap()).unwrap().release().unwrap());
    assert_eq!(code(theirs.adopt(text.parse().unwrap()).unwrap().renew()), Code::LeaseLost);
    assert_eq!(code(theirs.adopt(text.parse().unwrap()).unwrap().release()), Code::LeaseLost);

    let successor = lock.acquire().unwrap();
    assert_eq!(code(theirs.adopt(text.parse().unwrap()).unwrap().renew()), Code::LeaseLost);
    assert_eq!(code(theirs.adopt(text.parse().unwrap()).unwrap().release()), Code::LeaseLost);
    drop(theirs.adopt(text.parse().unwrap()).unwrap());
    successor.renew().expect("an old token ended the successor's lease");
    let gone = lock.try_acquire().map(|_| ());
    assert_eq!(code(gone), Code::LockUnavailable);
    successor.release().unwrap();
    assert_eq!(code(successor.into_token()), Code::LeaseLost);
}

pub fn closing_frees_what_is_held_and_ends_everything(site: &Site) {
    let spy = Spy::on(site.store());
    let manager = site.manager_over(spy.clone());
    let locks: Vec<_> = (0..5).map(|id| manager.lock(&id.to_string(), Level::Xdc).unwrap()).collect();
    let leases: Vec<_> = locks.iter().map(|lock| lock.acquire().unwrap()).collect();
    leases[0].release().unwrap();
    manager.close().unwrap();
    assert_eq!(spy.calls_of(Call::Release), 5, "one release per lease");
    let other = site.manager();
    for lock in &locks {
        let lock = other.lock(lock.name().key().rsplit('#').next().unwrap(), Level::Xdc).unwrap();
        assert!(lock.try_acquire().unwrap().release().unwrap());
    }
    let calls = spy.calls();
    for lease in &leases {
        assert_eq!(code(lease.check()), Code::LeaseLost);
        assert!(!lease.release().unwrap());
        assert_eq!(code(lease.renew()), Code::Closed);
    }
    assert_eq!(code(locks[0].try_acquire()), Code::Closed);
    assert_eq!(code(locks[0].acquire()), Code::Closed);
    assert_eq!(code(locks[0].inspect()), Code::Closed);
    assert_eq!(code(manager.initialize()), Code::Closed);
    manager.clone().close().unwrap();
    drop(leases);
    assert_eq!(spy.calls(), calls, "a closed manager asked its store");
}

pub fn initializing_from_many_threads_does_no_harm(site: &Site) {
    let manager = site.manager();
    let lease = manager.lock("a", Level::Xdc).unwrap().acquire().unwrap();
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| manager.initialize().unwrap());
        }
    });
    assert!(lease.release().unwrap());
}

pub fn examining_a_store_that_does_finds_no_failure(site: &Site) {
    let manager = site.manager();
    let lease = manager.lock("a", Level::Xdc).unwrap().try_acquire().unwrap();
    let found = manager.diagnose().unwrap();
    assert!(found.iter().all(|diagnostic| diagnostic.severity < dlm::Severity::Fail), "{found:?}");
    for topic in ["a lock", "latency"] {
        assert_eq!(found.iter().filter(|diagnostic| diagnostic.topic == topic).count(), 1, "{found:?}");
    }
    assert!(found.len() > 2, "the store reports nothing about itself: {found:?}");
    // Each warning says what to do.
    let silent = |diagnostic: &&dlm::Diagnostic| {
        diagnostic.severity > dlm::Severity::Ok && diagnostic.advice.is_empty()
    };
    assert_eq!(found.iter().find(silent), None);
    assert!(lease.release().unwrap());
    manager.close().unwrap();
    assert_eq!(code(manager.diagnose()), Code::Closed);
}
