//! Leases that are kept alive in the background, over any store.

use std::time::Duration;

use dlm::{AcquireOptions, Code, Lease, LeaseState, Level, Lock, LostReason, Moment};

use super::{LONGEST, Site, acquire_after_drop, code, eventually, patiently};

/// Opens the lock in two processes: the first keeps it, the second one looks at it.
fn locks(site: &Site, ttl: Duration) -> (Lock, Lock) {
    let id = format!("{ttl:?}");
    (site.manager().lock(&id, Level::Xdc).unwrap(), site.manager().lock(&id, Level::Xdc).unwrap())
}

/// Acquires a lease and keeps it alive. `None` if the machine was too slow for it.
fn kept(lock: &Lock, ttl: Duration, max_hold: Duration) -> Option<Lease> {
    match lock.acquire_with(&AcquireOptions::new().ttl(ttl).wait(Duration::ZERO).keep(max_hold)) {
        Ok(lease) => Some(lease),
        Err(error) if error.code() != Code::LockUnavailable => None,
        Err(error) => panic!("{}", error.chain()),
    }
}

/// Waits until the state is this one. Returns `false` if the lease was lost instead, because the machine was too slow.
fn reaches(lease: &Lease, wanted: LeaseState) -> bool {
    eventually("the state changes", || lease.state() == wanted || !lease.state().is_valid());
    lease.state() == wanted
}

pub fn a_kept_lease_outlives_its_ttl_and_is_released_as_ours(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs) = locks(site, ttl);
        let (began, lease) = (Moment::now(), kept(&ours, ttl, Duration::MAX)?);
        let fence = lease.fence();
        while Moment::now().since(began) < 3 * ttl {
            let refused = theirs.try_acquire().map(|_| ());
            lease.check().ok()?;
            assert_eq!(code(refused), Code::LockUnavailable, "granted while kept");
            std::thread::sleep(ttl / 5);
        }
        let in_time = lease.state() == LeaseState::Renewing;
        assert_eq!(lease.fence(), fence);
        if !lease.release().ok()? || !in_time {
            return None;
        }
        assert_eq!(lease.state(), LeaseState::Released);
        assert!(theirs.try_acquire().unwrap().release().unwrap());
        Some(())
    });
}

pub fn a_lease_is_kept_for_its_longest_time_at_risk_before_that_ends_and_lost_then(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs) = locks(site, ttl);
        let lease = kept(&ours, ttl, 2 * ttl)?;
        let latest_end = Moment::now().after(2 * ttl);
        let changes = lease.changes().unwrap();
        if !reaches(&lease, LeaseState::AtRisk) {
            return None;
        }
        assert!(lease.check().is_ok() || Moment::now() >= lease.ends());
        assert!(lease.ends() <= latest_end, "kept for longer than was asked");
        changes.recv_timeout(LONGEST).expect("nobody was told of the risk");
        let before_the_end = lease.state().is_valid();
        until_lost(&lease, LostReason::Expired)?;
        assert!(Moment::now() >= lease.ends());
        // Of both changes there may be one message, which was read above.
        if before_the_end {
            changes.recv_timeout(LONGEST).expect("nobody was told of the loss");
        }
        assert_eq!(code(lease.guard()), Code::LeaseLost);
        eventually("the store ends the lease", || theirs.inspect().unwrap().holder.is_none());
        assert_eq!(lease.state(), LeaseState::Lost(LostReason::Expired), "brought back");
        Some(())
    });
}

/// Returns `None` if the machine was too slow for the lease.
fn until_lost(lease: &Lease, reason: LostReason) -> Option<()> {
    eventually("the lease is lost", || !lease.state().is_valid());
    if lease.state() == LeaseState::Lost(LostReason::ProcessStopped) {
        return None;
    }
    assert_eq!(lease.state(), LeaseState::Lost(reason));
    let error = lease.check().unwrap_err();
    assert_eq!((error.code(), error.lost_reason()), (Code::LeaseLost, Some(reason)));
    Some(())
}

/// Another process releases the lock by the lease's token.
pub fn a_kept_lease_whose_record_goes_is_lost_before_its_end_with_the_reason(site: &Site) {
    patiently(|ttl| {
        for taken in [false, true] {
            let id = format!("{ttl:?} {taken}");
            let (manager, other) = (site.manager(), site.manager());
            let (lock, theirs) =
                (manager.lock(&id, Level::Xdc).unwrap(), other.lock(&id, Level::Xdc).unwrap());
            let token = lock.try_acquire_with_ttl(ttl).ok()?.into_token().ok()?;
            let lease = manager.adopt(token.clone()).unwrap();
            lease.keep(Duration::MAX).ok()?;
            let changes = lease.changes().unwrap();
            other.adopt(token).unwrap().release().ok().filter(|freed| *freed)?;
            let next = taken.then(|| theirs.try_acquire().unwrap());
            changes.recv_timeout(LONGEST).expect("nobody was told");
            let reason = if taken { LostReason::TakenOver } else { LostReason::RecordGone };
            eventually("the lease is lost", || !lease.state().is_valid());
            match lease.state() {
                // The machine was too slow.
                LeaseState::Lost(LostReason::Expired) => return None,
                // It was renewed before the other process acquired the lock.
                LeaseState::Lost(LostReason::RecordGone) if taken => return None,
                _ => until_lost(&lease, reason)?,
            }
            assert_eq!(lease.remaining(), Duration::ZERO);
            assert!(!lease.release().unwrap(), "there is nothing left to release");
            // The renewals have harmed nobody.
            let next = next.unwrap_or_else(|| theirs.try_acquire().unwrap());
            next.renew().unwrap();
            assert!(next.release().unwrap());
        }
        Some(())
    });
}

pub fn a_lease_is_not_kept_after_its_release_its_drop_or_its_token(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs) = locks(site, ttl);
        kept(&ours, ttl, Duration::MAX)?.release().ok()?;
        assert!(theirs.inspect().unwrap().holder.is_none());
        std::thread::sleep(ttl);
        assert!(theirs.inspect().unwrap().holder.is_none(), "renewed after the release");
        let asked = Moment::now();
        let lease = kept(&ours, ttl, Duration::MAX)?;
        let dropped = Moment::now();
        drop(lease);
        if Moment::now().since(asked) >= ttl / 2 {
            // A lease that has ended is not released.
            return None;
        }
        assert!(acquire_after_drop(dropped, &theirs).release().unwrap());
        let _token = kept(&ours, ttl, Duration::MAX)?.into_token().ok()?;
        eventually("the lease of the token ends", || theirs.inspect().unwrap().holder.is_none());
        Some(())
    });
}

pub fn a_lease_that_is_no_longer_kept_ends_at_its_end(site: &Site) {
    patiently(|ttl| {
        let (ours, theirs) = locks(site, ttl);
        let lease = kept(&ours, ttl, Duration::MAX)?;
        let changes = lease.changes().unwrap();
        lease.stop_keeping().unwrap();
        let state = lease.state();
        if !state.is_valid() {
            return None;
        }
        assert_eq!(state, LeaseState::Held);
        // Of several changes there may be one message.
        while lease.state().is_valid() {
            changes.recv_timeout(LONGEST).expect("nobody was told of the end");
        }
        assert_eq!(lease.state(), LeaseState::Lost(LostReason::Expired));
        eventually("the store ends the lease", || theirs.inspect().unwrap().holder.is_none());
        Some(())
    });
}

pub fn closing_releases_what_is_kept(site: &Site) {
    let (manager, theirs) = (site.manager(), site.manager());
    let leases: Vec<_> =
        (0..20).map(|id| manager.lock(&id.to_string(), Level::Xdc).unwrap().try_acquire().unwrap()).collect();
    leases.iter().for_each(|lease| lease.keep(Duration::MAX).unwrap());
    manager.close().unwrap();
    for (id, lease) in leases.iter().enumerate() {
        assert_eq!(lease.state(), LeaseState::Released);
        assert!(theirs.lock(&id.to_string(), Level::Xdc).unwrap().try_acquire().unwrap().release().unwrap());
    }
    assert_eq!(code(leases[0].keep(Duration::MAX)), Code::Closed);
}

pub fn many_leases_are_kept_at_once(site: &Site) {
    const MANY: usize = 100;
    patiently(|ttl| {
        let (manager, theirs) = (site.manager(), site.manager());
        let id = |number: usize| format!("{ttl:?} {number}");
        let (began, options) = (Moment::now(), AcquireOptions::new().ttl(3 * ttl).keep(Duration::MAX));
        let mut leases = Vec::new();
        for number in 0..MANY {
            leases.push(manager.lock(&id(number), Level::Xdc).unwrap().acquire_with(&options).ok()?);
        }
        while Moment::now().since(began) < 7 * ttl {
            leases.iter().try_for_each(Lease::check).ok()?;
            std::thread::sleep(ttl / 5);
        }
        for number in [0, MANY / 2, MANY - 1] {
            let refused = theirs.lock(&id(number), Level::Xdc).unwrap().try_acquire().map(|_| ());
            leases[number].check().ok()?;
            assert_eq!(code(refused), Code::LockUnavailable, "granted while kept");
        }
        leases.iter().try_for_each(|lease| lease.release().map(drop)).ok()
    });
}
