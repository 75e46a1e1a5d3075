//! Releases and renewals that do not block, over any store.

use std::time::Duration;

use dlm::{Code, LeaseState, Level, PendingCall};

use super::{HELD, Site, code, eventually};

/// Waits for the result of a call.
fn result<T: Send>(call: &PendingCall<T>) -> dlm::Result<T> {
    let mut result = None;
    eventually("the call finishes", || {
        result = call.take().transpose();
        result.is_some()
    });
    result.unwrap()
}

pub fn a_release_and_a_renewal_do_not_block_and_tell_their_results(site: &Site) {
    let (ours, theirs) = (site.manager(), site.manager());
    let [lock, other] = [&ours, &theirs].map(|manager| manager.lock("a", Level::Xdc).unwrap());
    let lease = lock.try_acquire_with_ttl(HELD).unwrap();
    assert_eq!(code(lease.start_renewal(Some(Duration::ZERO))), Code::InvalidArgument);
    let renewal = lease.start_renewal(Some(2 * HELD)).unwrap();
    assert!(renewal.fd().is_ok());
    result(&renewal).unwrap();
    assert_eq!(lease.ttl(), 2 * HELD);
    assert_eq!(code(renewal.take()), Code::InvalidArgument, "taken twice");

    let release = lease.start_release().unwrap();
    assert!(result(&release).unwrap());
    assert_eq!(lease.state(), LeaseState::Released);
    assert_eq!(code(result(&lease.start_renewal(None).unwrap())), Code::LeaseLost);
    assert!(!result(&lease.start_release().unwrap()).unwrap(), "released twice");
    let next = other.try_acquire().unwrap();
    // It goes on without its handle.
    drop(next.start_release().unwrap());
    assert!(lock.acquire().unwrap().release().unwrap());
}

pub fn closing_ends_the_calls_that_have_not_begun(site: &Site) {
    let manager = site.manager();
    let leases: Vec<_> = (0..20)
        .map(|number| manager.lock(&number.to_string(), Level::Xdc).unwrap().try_acquire().unwrap())
        .collect();
    let calls: Vec<_> = leases.iter().map(|lease| lease.start_release().unwrap()).collect();
    manager.close().unwrap();
    for call in &calls {
        // Released by the call, by the closing, or neither began it.
        match result(call) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.code(), Code::Closed),
        }
    }
    assert!(leases.iter().all(|lease| lease.state() == LeaseState::Released));
    assert_eq!(code(leases[0].start_release()), Code::Closed);
}
