//! Leases and their end, over any store.

use std::time::Duration;

use dlm::{Code, Lease, Level, Lock, Moment};

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
