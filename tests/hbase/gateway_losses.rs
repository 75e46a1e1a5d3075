//! Requests and replies that are lost, late or cut between a client and a real HBase gateway.
#![cfg(feature = "gateway")]

use std::time::Duration;

use dlm::Code;
use dlm_fixtures::table;
use dlm_fixtures::thrift_proxy;
use dlm_testkit::losses::{BLIND, Case, Target, code};
use dlm_testkit::{Fault, LONG};

use super::raw::Raw;

static GATEWAY: Target = Target {
    server: table::gateway,
    proxy: thrift_proxy::before,
    uri: table::uri,
    requests: &["checkAndPut", "atomicIncrement", "get"],
    acquire: &["checkAndPut", "atomicIncrement", "get"],
    settle: &["get", "atomicIncrement", "get"],
    // The first conditional put acquires the lock. The second one creates its counter.
    seed: &[("checkAndPut", 0), ("checkAndPut", 1)],
    renew: ["checkAndPut", "get"],
    release: ["checkAndPut", "get"],
    // Version, length of the name, name, sequence number, header of one field, its bool, end of the fields.
    reply_bytes: 4 + 4 + "checkAndPut".len() + 4 + 3 + 1 + 1,
    down: Duration::from_secs(LONG.as_secs() / 4),
    // The first request is a write, and it may still arrive.
    silent: Code::InDoubt,
};

dlm_testkit::losses!(GATEWAY);
dlm_testkit::losses! { GATEWAY:
    initializing_over_a_server_that_is_down_is_a_connection_error_soon,
    a_renewal_that_is_never_answered_is_made_again_before_the_lease_ends,
}

/// The server refuses the second request because of the record of the first. A third copy may still be in flight.
#[test]
fn an_acquire_that_the_gateway_sent_twice_is_a_grant_and_is_looked_for_after_its_release() {
    let site = Case { target: &GATEWAY, test: "twice" };
    let Some(stage) = site.stage(LONG / 2) else { return };
    let name = stage.ours.name();
    let mut raw = Raw::connect(table::gateway().unwrap(), table::TABLE);
    stage.proxy.next("checkAndPut", Fault::Twice);
    let lease = stage.ours.try_acquire().expect("it was refused because of its own record");
    stage.assert_held(&lease);
    let (record, _) = raw.lock_cell(name).unwrap();
    assert!(lease.release().unwrap());
    let (freed, at) = raw.lock_cell(name).unwrap();
    assert!(freed.is_empty());
    raw.put_at(name, &record, at + 1);
    let lease = stage.theirs.acquire().expect("the late record was not released");
    stage.assert_held(&lease);
}

#[test]
fn an_acquire_that_was_sent_twice_and_cannot_be_looked_for_is_in_doubt_and_is_freed_in_the_background() {
    let site = Case { target: &GATEWAY, test: "twice-blind" };
    let Some(stage) = site.stage(BLIND) else { return };
    stage.proxy.next("checkAndPut", Fault::Twice);
    // Each read-back is lost until the call's time-out.
    stage.proxy.later("get", 0, usize::MAX, Fault::LoseRequest);
    assert_eq!(code(stage.ours.try_acquire()), Code::InDoubt);
    stage.proxy.heal();
    assert!(stage.proxy.hits() > 4, "{} faults", stage.proxy.hits());
    let lease = stage.theirs.acquire().expect("the lock was not released");
    stage.assert_held(&lease);
}
