//! Elections, over any store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dlm::{AcquireOptions, CancelToken, Code, Election, LeaseState, Level, Moment, Observed};

use super::{LONGEST, Site, code, eventually, patiently, was_slow};
use crate::{Call, Spy};

fn election(site: &Site) -> Election {
    site.manager().election("a", Level::Xdc).unwrap()
}

pub fn a_candidate_leads_when_nobody_does_and_the_next_one_when_it_resigns(site: &Site) {
    let (first, second) = (election(site), election(site));
    let mut observer = second.observe();
    assert_eq!(observer.wait_for_change(Duration::ZERO).unwrap(), Some(Observed::Nobody));
    assert_eq!(observer.wait_for_change(Duration::ZERO).unwrap(), None);

    let term = first.campaign(&AcquireOptions::new()).unwrap();
    assert_eq!(term.state(), LeaseState::Renewing, "not kept alive");
    let Some(Observed::Leads(leader)) = observer.wait_for_change(LONGEST).unwrap() else {
        panic!("nobody leads")
    };
    assert_eq!(leader.fence, term.lease().fence());
    assert_eq!(leader.holder.identity.as_ref().map(|it| it.pid), Some(std::process::id()));
    assert_eq!(second.leader().unwrap().map(|leader| leader.fence), Some(term.lease().fence()));

    let late = second.campaign(&AcquireOptions::new().wait(Duration::from_millis(50)));
    assert_eq!(code(late), Code::LockUnavailable);
    let next = thread::scope(|scope| {
        let next = scope.spawn(|| second.campaign(&AcquireOptions::new()).unwrap());
        assert!(term.resign().unwrap());
        let next = next.join().unwrap();
        assert!(leader.fence.is_none() || next.guard().unwrap() > leader.fence.unwrap());
        // The change may come as one or as two: nobody leads, and the next one leads.
        let seen = observer.wait_for_change(LONGEST).unwrap().expect("a change");
        let seen =
            if seen == Observed::Nobody { observer.wait_for_change(LONGEST).unwrap().unwrap() } else { seen };
        assert!(matches!(seen, Observed::Leads(new) if new.fence == next.lease().fence()));
        next
    });
    let began = Moment::now();
    drop(next);
    if was_slow(began) {
        eventually("it is resigned in the background", || second.leader().unwrap().is_none());
    }
    assert!(second.leader().unwrap().is_none(), "a dropped term is resigned");
}

pub fn the_work_of_a_leader_is_guarded_until_it_returns(site: &Site) {
    let election = election(site);
    let fence = election.lead(&AcquireOptions::new(), |term| {
        assert_eq!(
            code(election.campaign(&AcquireOptions::new().wait(Duration::ZERO))),
            Code::LockUnavailable
        );
        term.lease().fence()
    });
    let fence = fence.unwrap();
    let term = election.campaign(&AcquireOptions::new()).unwrap();
    assert!(fence.is_none() || term.guard().unwrap() > fence.unwrap());
    let lease = term.into_lease();
    assert_eq!(lease.state(), LeaseState::Renewing);
    assert!(lease.release().unwrap());
}

pub fn a_cancelled_candidate_does_not_lead(site: &Site) {
    let (first, second) = (election(site), election(site));
    let term = first.campaign(&AcquireOptions::new()).unwrap();
    let cancel = CancelToken::new();
    thread::scope(|scope| {
        let candidate = scope.spawn(|| second.campaign(&AcquireOptions::new().cancel(&cancel)));
        cancel.cancel();
        assert_eq!(code(candidate.join().unwrap()), Code::Cancelled);
    });
    assert!(term.resign().unwrap());
    assert!(second.leader().unwrap().is_none());
}

/// The first grant is answered so late that its lease has ended: RETRIES_EXHAUSTED.
pub fn a_candidate_tries_again_when_the_store_fails(site: &Site) {
    patiently(|ttl| {
        let slow = Arc::new(AtomicBool::new(true));
        let seen = Arc::clone(&slow);
        let spy = Spy::with_hook(site.store(), move |call| {
            if call == Call::Acquire && seen.swap(false, Ordering::SeqCst) {
                thread::sleep(ttl * 3 / 2);
            }
        });
        let manager = site.manager_over(spy);
        let election = manager.election(&format!("{ttl:?}"), Level::Xdc).unwrap();
        let began = Moment::now();
        // On a slow machine, later grants come too late as well. Then the wait ends.
        let campaign = election.campaign(&AcquireOptions::new().ttl(ttl).wait(4 * ttl));
        assert!(!slow.load(Ordering::SeqCst) && Moment::now().since(began) >= ttl);
        match campaign {
            Ok(term) => drop(term),
            Err(error) if error.is_retryable() => return None,
            Err(error) => panic!("{}", error.chain()),
        }

        let term = election.campaign(&AcquireOptions::new()).unwrap();
        eventually("the term is kept", || term.state() == LeaseState::Renewing);
        manager.close().unwrap();
        assert_eq!(term.state(), LeaseState::Released);
        assert_eq!(code(election.campaign(&AcquireOptions::new())), Code::Closed);
        Some(())
    });
}
