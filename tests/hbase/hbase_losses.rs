//! Requests and replies that are lost, late or cut between a client and a real HBase, without a gateway.
#![cfg(feature = "gateway")]

use std::thread;

use dlm::{Code, Level};
use dlm_fixtures::hbase::hbase_or_skip;
use dlm_fixtures::rpc_proxy;
use dlm_fixtures::table;
use dlm_testkit::losses::{Case, SHORT, Target, code};
use dlm_testkit::{Fault, LONG};

static SERVER: Target = Target {
    server: || {
        // Creates the table.
        table::gateway()?;
        Some(hbase_or_skip()?.master)
    },
    proxy: rpc_proxy::before,
    uri: |master| format!("hbase://{master}/{}", table::TABLE),
    requests: &["Multi", "Get"],
    // One request contains the lock, its fence and the read-back.
    acquire: &["Multi"],
    settle: &["Get", "Multi", "Get"],
    seed: &[("Multi", 0)],
    renew: ["Multi", "Get"],
    release: ["Multi", "Get"],
    // The reply to a release. The reply to an acquire is longer.
    reply_bytes: 18,
    // A call is retried until its time-out, because another master may take over.
    down: SHORT,
    silent: Code::ConnectionError,
};

dlm_testkit::losses!(SERVER);
dlm_testkit::losses! { SERVER:
    initializing_over_a_server_that_is_down_is_a_connection_error_soon,
    a_renewal_that_is_never_answered_is_made_again_before_the_lease_ends,
    many_renewals_whose_reply_is_lost_are_all_in_doubt_and_may_be_repeated,
}

/// All threads share the connection. A fault in one call breaks it for the calls of all threads.
#[test]
fn a_connection_that_breaks_under_many_threads_leaves_each_with_a_grant_or_a_free_lock() {
    const THREADS: usize = 6;
    let site = Case { target: &SERVER, test: "shared" };
    let Some(server) = (SERVER.server)() else { return };
    let (proxy, client) = (rpc_proxy::before(server), site.client());
    let managers = [proxy.address(), server].map(|address| site.manager(&client, address, 2 * LONG));
    for method in SERVER.requests {
        proxy.sometimes(method, 10, Fault::LoseReply);
        proxy.sometimes(method, 20, Fault::LoseRequest);
    }
    thread::scope(|scope| {
        for number in 0..THREADS {
            let id = number.to_string();
            let [ours, theirs] = [0, 1].map(|side: usize| managers[side].lock(&id, Level::Xdc).unwrap());
            let work = move || {
                let mut last = None;
                for _ in 0..30 {
                    let lease = ours.try_acquire().unwrap();
                    assert_eq!(code(theirs.try_acquire()), Code::LockUnavailable);
                    let before = std::mem::replace(&mut last, lease.fence());
                    assert!(lease.fence() > before, "{:?} after {before:?}", lease.fence());
                    assert!(lease.release().unwrap());
                    assert!(theirs.try_acquire().unwrap().release().unwrap());
                }
            };
            thread::Builder::new().name(format!("dlm-test-{id}")).spawn_scoped(scope, work).unwrap();
        }
    });
    assert!(proxy.hits() > 3 * THREADS, "{} faults", proxy.hits());
}
