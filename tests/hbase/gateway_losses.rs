//! Requests and replies that are lost, late or cut between a client and a real HBase gateway.
#![cfg(feature = "gateway")]

use std::sync::Arc;
use std::time::Duration;

use dlm::{Code, Moment};
use dlm_fixtures::table;
use dlm_fixtures::thrift_proxy;
use dlm_testkit::losses::{BLIND, Case, Target, code};
use dlm_testkit::{Fault, Gate, LONG, until};

use super::raw::Raw;

/// A busy machine answers late, and an acquire then sends more requests than the suite expects. Here no answer is late.
static GATEWAY: Target =
    Target { uri: |address| format!("{}?gateway_pause=10m", table::uri(address)), ..REPEATING };

/// The gateway as it is: after [`PAUSE`], it may send a request again.
const REPEATING: Target = Target {
    server: table::gateway,
    proxy: thrift_proxy::before,
    uri: table::uri,
    requests: &["checkAndPut", "atomicIncrement", "getRowWithColumns"],
    acquire: &["checkAndPut", "atomicIncrement", "getRowWithColumns"],
    settle: &["getRowWithColumns", "checkAndPut", "atomicIncrement", "getRowWithColumns"],
    // The first conditional put acquires the lock. The second one creates its counter.
    seed: &[("checkAndPut", 0), ("checkAndPut", 1)],
    renew: ["checkAndPut", "getRowWithColumns"],
    release: ["checkAndPut", "getRowWithColumns"],
    // Version, length of the name, name, sequence number, header of one field, its bool, end of the fields.
    reply_bytes: 4 + 4 + "checkAndPut".len() + 4 + 3 + 1 + 1,
    down: Duration::from_secs(LONG.as_secs() / 4),
    // The first request is a write, and it may still arrive.
    silent: Code::ConnectionError,
};

dlm_testkit::losses!(GATEWAY);
dlm_testkit::losses! { GATEWAY:
    initializing_over_a_server_that_is_down_is_a_connection_error_soon,
    a_renewal_that_is_never_answered_is_made_again_before_the_lease_ends,
}

/// The default of `gateway_pause`.
const PAUSE: Duration = Duration::from_millis(100);

/// A time-out after which no call has ended that is answered.
const PATIENT: Duration = LONG.saturating_mul(2);

/// The server refuses the second request because of the record of the first.
#[test]
fn an_acquire_that_the_gateway_sent_twice_is_a_grant() {
    let site = Case { target: &REPEATING, test: "twice" };
    let Some(stage) = site.stage(PATIENT) else { return };
    stage.proxy.next("checkAndPut", Fault::Twice(PAUSE));
    let lease = stage.ours.try_acquire().expect("it was refused because of its own record");
    stage.assert_held(&lease);
    assert!(lease.release().unwrap());
    stage.assert_free();
}

#[test]
fn an_acquire_that_was_sent_twice_and_cannot_be_looked_for_is_in_doubt_and_is_freed_in_the_background() {
    let site = Case { target: &REPEATING, test: "twice-blind" };
    // Again with a longer time-out if this machine was too slow for the request and a few read-backs.
    for timeout in [BLIND, 5 * BLIND, LONG] {
        let Some(stage) = site.stage(timeout) else { return };
        stage.proxy.next("checkAndPut", Fault::Twice(PAUSE));
        // Each read-back is lost until the call's time-out.
        stage.proxy.later("getRowWithColumns", 0, usize::MAX, Fault::LoseRequest);
        let answer = stage.ours.try_acquire();
        stage.proxy.heal();
        let faults = stage.proxy.hits();
        if faults == 0 {
            assert!(answer.is_err(), "nothing was sent");
            continue;
        }
        assert_eq!(code(answer), Code::InDoubt);
        let lease = stage.theirs.acquire().expect("the lock was not released");
        stage.assert_held(&lease);
        if faults > 4 {
            return;
        }
    }
    panic!("it was not looked for until the time-out");
}

#[test]
fn a_late_copy_of_a_creation_revives_no_lease() {
    let site = Case { target: &REPEATING, test: "copy-revives" };
    // Again with a longer lease if this machine was too slow for the first one.
    for ttl in [4, 15, 40].map(Duration::from_secs) {
        let Some(stage) = site.stage(PATIENT) else { return };
        let (gate, asked) = (Arc::new(Gate::default()), Moment::now());
        stage.proxy.next("checkAndPut", Fault::CopyLate(PAUSE, Arc::clone(&gate)));
        let ours = match stage.ours.try_acquire_with_ttl(ttl) {
            Ok(ours) => ours,
            Err(error) => {
                assert!(Moment::now().since(asked) >= ttl / 2, "{}", error.chain());
                continue;
            }
        };
        let theirs = stage.theirs.acquire().expect("our lease ends");
        assert!(theirs.fence() > ours.fence() && theirs.release().unwrap());
        gate.open();
        until("the copy is applied", || stage.proxy.late() == 1);
        assert_eq!(code(ours.renew()), Code::LeaseLost);
        return;
    }
    panic!("no lease was granted before its end");
}

/// The record would last for half an hour.
#[test]
fn a_late_copy_of_a_creation_is_freed_in_the_background() {
    let site = Case { target: &REPEATING, test: "copy-remains" };
    let Some(stage) = site.stage(PATIENT) else { return };
    let mut raw = Raw::connect(table::gateway().unwrap(), table::TABLE);
    let gate = Arc::new(Gate::default());
    stage.proxy.next("checkAndPut", Fault::CopyLate(PAUSE, Arc::clone(&gate)));
    let lease = stage.ours.try_acquire().unwrap();
    stage.assert_held(&lease);
    let (record, _) = raw.lock_cell(stage.ours.name()).unwrap();
    assert!(lease.release().unwrap());
    gate.open();
    until("the copy is applied", || stage.proxy.late() == 1);
    let (copy, _) = raw.lock_cell(stage.ours.name()).unwrap();
    assert_ne!(copy, record, "the copy brought the record of the lease back");
    let lease = stage.theirs.acquire().expect("the record of the copy was not released");
    stage.assert_held(&lease);
}
