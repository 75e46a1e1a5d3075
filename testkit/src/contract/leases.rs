//! Leases and their end, over any store.

use std::time::Duration;

use dlm::{AcquireOptions, Code, Lease, Level, Lock, Mode, Moment};

use super::{HELD, Site, code, in_time, patiently};

/// Acquires a lease of about `ttl`. Returns `None` if the machine was too slow: the lease expired before it was granted.
fn brief(lock: &Lock, ttl: Duration) -> Option<Lease> {
    in_time(lock.try_acquire_with_ttl(ttl))
}

/// Renews a lease for a short time, or tries to. Returns `None` if the machine was too slow: a renewal waits no longer than
/// the lease lasts.
fn renewed_briefly(answer: dlm::Result<()>) -> Option<dlm::Result<()>> {
    match answer {
        Err(error) if error.is_retryable() => None,
        answer => Some(answer),
    }
}

/// The terms of an owner.
fn of(owner: &str) -> AcquireOptions {
    AcquireOptions::new().reentrant(owner).wait(Duration::ZERO)
}

pub fn an_owner_enters_its_lock_again_and_the_last_lease_releases_it(site: &Site) {
    let spy = crate::Spy::on(site.store());
    let (ours, theirs) = (site.manager_over(spy.clone()), site.manager());
    let (lock, other) = (ours.lock("a", Level::Xdc).unwrap(), theirs.lock("a", Level::Xdc).unwrap());
    let first = lock.acquire_with(&of("order-7").keep(Duration::MAX)).unwrap();
    let calls = spy.calls();
    // A handle and a thread of their own: the owner is the key.
    let (second, third) = std::thread::scope(|scope| {
        let enter = || ours.lock("a", Level::Xdc).unwrap().acquire_with(&of("order-7")).unwrap();
        let threads = [scope.spawn(enter), scope.spawn(enter)];
        let [second, third] = threads.map(|thread| thread.join().unwrap());
        (second, third)
    });
    assert_eq!(spy.calls(), calls, "the store was asked although the lock is kept alive");
    for lease in [&first, &second, &third] {
        assert_eq!((lease.fence(), lease.guard().ok()), (first.fence(), first.fence()));
    }
    for owner in ["order-8", "order-77"] {
        assert_eq!(code(lock.acquire_with(&of(owner))), Code::LockUnavailable);
    }
    assert_eq!(code(lock.try_acquire()), Code::LockUnavailable, "no owner");
    assert_eq!(code(other.acquire_with(&of("order-7"))), Code::LockUnavailable, "of another manager");
    assert!(first.release().unwrap());
    assert!(!first.release().unwrap(), "it was released");
    assert_eq!(code(first.check()), Code::LeaseLost);
    assert_eq!(code(first.renew()), Code::LeaseLost);
    assert_eq!((first.state(), first.remaining()), (dlm::LeaseState::Released, Duration::ZERO));
    assert_eq!(code(first.into_token()), Code::LeaseLost, "the hold of others became a token");
    // None of them ends sooner what the other relies on.
    second.keep(Duration::from_millis(1)).unwrap();
    second.stop_keeping().unwrap();
    second.renew_for(Duration::from_millis(1)).unwrap();
    assert_eq!(third.state(), dlm::LeaseState::Renewing);
    for answer in [true, false] {
        let (call, mut released) = (second.start_release().unwrap(), None);
        super::eventually("the call is made", || {
            released = call.take().unwrap();
            released.is_some()
        });
        assert_eq!(released, Some(answer));
    }
    drop(second);
    third.renew().unwrap();
    assert_eq!(code(other.try_acquire()), Code::LockUnavailable, "the last lease holds the lock");
    assert!(third.release().unwrap());
    assert!(!third.release().unwrap());
    let next = other.try_acquire().unwrap();
    assert!(next.fence() > third.fence());
    assert_eq!(
        code(lock.acquire_with(&of("order-7"))),
        Code::LockUnavailable,
        "it entered what it had released"
    );
    assert!(next.release().unwrap());
    // The same owner begins a new hold.
    let again = lock.acquire_with(&of("order-7")).unwrap();
    assert!(again.fence() > next.fence());
}

/// Behind one who waits for this owner, the owner would wait for ever.
pub fn an_owner_enters_its_lock_again_past_those_who_wait_for_it(site: &Site) {
    let ours = site.manager();
    let lock = ours.lock("a", Level::Xdc).unwrap();
    let first = lock.acquire_with(&of("order-7")).unwrap();
    let waiting = {
        let lock = lock.clone();
        super::spawn("waiter", move || lock.acquire_with(&AcquireOptions::new().wait(super::LONGEST)))
    };
    super::eventually("one waits", || ours.stats().threads_waiting == 1);
    let second = lock.acquire_with(&AcquireOptions::new().reentrant("order-7").wait(super::LONGEST)).unwrap();
    assert_eq!(second.fence(), first.fence());
    drop(first);
    assert!(second.check().is_ok() && !waiting.is_finished());
    drop(second);
    assert!(waiting.join().unwrap().unwrap().fence() > None);
}

pub fn an_owner_that_enters_with_a_longer_ttl_has_it_and_a_lost_hold_is_not_entered(site: &Site) {
    patiently(|ttl| {
        let (lock, other) = locks(site, ttl);
        let first = in_time(lock.acquire_with(&of("a").ttl(ttl)))?;
        let before = first.ends();
        match lock.acquire_with(&of("a").ttl(HELD)) {
            Ok(second) => {
                // If the machine was too slow, it has a hold of its own.
                if second.fence() == first.fence() {
                    assert!(
                        second.remaining() > ttl && first.ends() > before && first.ends() == second.ends()
                    );
                }
                assert!(second.check().is_ok());
                drop((first, second));
            }
            Err(error) => assert!(error.is_retryable(), "{}", error.chain()),
        }
        let first = in_time(lock.acquire_with(&of("a").ttl(ttl)))?;
        super::eventually("the lease ends", || first.check().is_err());
        let theirs = other.acquire().unwrap();
        assert_eq!(code(lock.acquire_with(&of("a"))), Code::LockUnavailable, "it entered a lost hold");
        assert!(theirs.fence() > first.fence() && theirs.release().unwrap());
        let again = lock.acquire_with(&of("a")).unwrap();
        assert!(again.fence() > theirs.fence());
        drop(first);
        assert!(again.check().is_ok(), "the end of the lost hold ended the new one");
        assert!(again.release().unwrap());
        Some(())
    });
}

pub fn what_an_owner_cannot_do_is_refused(site: &Site) {
    let manager = site.manager();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let owner = || AcquireOptions::new().reentrant("a");
    let long = "x".repeat(256);
    for how in [
        AcquireOptions::new().reentrant(""),
        AcquireOptions::new().reentrant(&long),
        owner().min_hold(Duration::from_secs(1)),
        owner().mode(Mode::Shared),
        owner().mode(Mode::Update),
    ] {
        let error = lock.acquire_with(&how).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{how:?}");
    }
    assert_eq!(code(lock.start(&owner())), Code::InvalidArgument);
    assert_eq!(code(manager.acquire_all(&[&lock], &owner())), Code::InvalidArgument);
    assert_eq!(code(manager.election("a", Level::Xdc).unwrap().campaign(&owner())), Code::InvalidArgument);
    let first = lock.acquire_with(&owner()).unwrap();
    let second = lock.acquire_with(&owner()).unwrap();
    assert_eq!(code(first.downgrade(Mode::Shared)), Code::InvalidArgument);
    assert_eq!(code(first.into_token()), Code::InvalidArgument);
    // That dropped the first one, so the second one is alone.
    assert!(second.check().is_ok());
    let token = second.into_token().unwrap();
    assert_eq!(code(lock.acquire_with(&of("a"))), Code::LockUnavailable, "a token is another hold");
    assert!(manager.adopt(token).unwrap().release().unwrap());
    let third = lock.acquire_with(&owner()).unwrap();
    manager.close().unwrap();
    assert_eq!(code(third.check()), Code::LeaseLost);
    assert_eq!(code(lock.acquire_with(&owner())), Code::Closed);
}

fn locks(site: &Site, ttl: Duration) -> (Lock, Lock) {
    let id = format!("{ttl:?}");
    (site.manager().lock(&id, Level::Xdc).unwrap(), site.manager().lock(&id, Level::Xdc).unwrap())
}

pub fn a_late_release_says_lost_and_leaves_the_next_holder_alone(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs) = locks(site, ttl);
        let first = brief(&ours, ttl)?;
        let ends = first.ends();
        let second = theirs.acquire().unwrap();
        assert!(Moment::now() >= ends, "granted while the first lease was still valid");
        assert!(second.fence() > first.fence());
        assert_eq!(code(first.check()), Code::LeaseLost);
        assert_eq!(code(first.release()), Code::LeaseLost);
        assert!(!first.release().unwrap(), "there is nothing left to release");
        assert_eq!(code(ours.try_acquire()), Code::LockUnavailable, "the next holder's record is gone");
        second.renew().unwrap();
        assert!(second.release().unwrap());
        Some(())
    });
}

pub fn a_late_release_says_lost_though_nobody_came(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs) = locks(site, ttl);
        let lease = brief(&ours, ttl)?;
        super::eventually("the lease ends", || theirs.inspect().unwrap().holder.is_none());
        assert!(Moment::now() >= lease.ends());
        assert_eq!(code(lease.release()), Code::LeaseLost);
        assert!(theirs.try_acquire().unwrap().release().unwrap());
        Some(())
    });
}

pub fn a_dropped_lost_lease_leaves_the_next_holder_alone(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs) = locks(site, ttl);
        let first = brief(&ours, ttl)?;
        let second = theirs.acquire().unwrap();
        drop(first);
        assert_eq!(code(ours.try_acquire()), Code::LockUnavailable, "the next holder's record is gone");
        assert!(second.release().unwrap());
        Some(())
    });
}

pub fn a_lease_knows_its_end_without_asking(site: &Site) {
    patiently(|ttl| {
        let spy = crate::Spy::on(site.store());
        let manager = site.manager_over(spy.clone());
        let asked = Moment::now();
        let lease = brief(&manager.lock(&format!("{ttl:?}"), Level::Xdc).unwrap(), ttl)?;
        let answered = Moment::now();
        let useful = ttl - ttl / 10; // the clock margin
        assert!(lease.ends() <= answered.after(useful), "the TTL must count from before the request");
        assert!(lease.ends() >= asked.after(useful));
        let calls = spy.calls();
        super::eventually("the lease ends", || match lease.check() {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error.code(), Code::LeaseLost);
                assert!(Moment::now() >= lease.ends());
                true
            }
        });
        assert_eq!(lease.remaining(), Duration::ZERO);
        assert_eq!(spy.calls(), calls, "the store was asked");
        Some(())
    });
}

pub fn a_renewed_lease_goes_on_and_is_released_as_ours(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs) = locks(site, ttl);
        let (began, lease) = (Moment::now(), brief(&ours, ttl)?);
        while Moment::now().since(began) < 2 * ttl {
            let (asked, ends) = (Moment::now(), lease.ends());
            match renewed_briefly(lease.renew())? {
                Ok(()) => {}
                Err(error) if Moment::now() < ends => panic!("{}", error.chain()),
                Err(_) => return None,
            }
            let useful = ttl - ttl / 10; // the clock margin
            assert!(lease.ends() >= asked.after(useful), "a renewal must last for the TTL from now");
            let refused = theirs.try_acquire().map(|_| ());
            lease.check().ok()?;
            assert_eq!(code(refused), Code::LockUnavailable, "granted while held");
            std::thread::sleep(ttl / 4);
        }
        lease.check().ok()?;
        assert!(lease.release().ok()?);
        assert!(theirs.try_acquire().unwrap().release().unwrap());
        Some(())
    });
}

pub fn a_lost_lease_cannot_be_renewed(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs) = locks(site, ttl);
        let first = brief(&ours, ttl)?;
        let second = theirs.acquire().unwrap();
        assert_eq!(code(renewed_briefly(first.renew())?), Code::LeaseLost);
        assert_eq!(code(first.check()), Code::LeaseLost);
        assert_eq!(code(first.guard()), Code::LeaseLost, "it has a fence, and may not use it");
        assert_eq!(code(first.renew_for(HELD)), Code::LeaseLost);
        second.renew().unwrap();
        assert!(second.release().unwrap());

        let alone = brief(&ours, ttl)?;
        super::eventually("the lease ends", || theirs.inspect().unwrap().holder.is_none());
        assert_eq!(code(renewed_briefly(alone.renew())?), Code::LeaseLost);
        assert!(theirs.try_acquire().unwrap().release().unwrap(), "a late renewal made the lock held again");
        Some(())
    });
}

pub fn a_shorter_renewal_ends_the_lease_sooner_and_is_released_as_ours(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs) = locks(site, ttl);
        let lease = ours.acquire_with_ttl(HELD).unwrap();
        renewed_briefly(lease.renew_for(ttl))?.unwrap();
        assert!(lease.remaining() <= ttl);
        super::eventually("the lease ends", || lease.check().is_err());
        // A store may keep the record for the longer time. The lock is then still ours and can be released.
        match lease.release() {
            Ok(freed) => assert!(freed),
            Err(error) => assert_eq!(error.code(), Code::LeaseLost),
        }
        assert!(theirs.try_acquire().unwrap().release().unwrap());
        Some(())
    });
}
