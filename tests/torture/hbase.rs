//! HBase, directly and through a gateway. A Java service uses the same locks, as its original does: see `neighbour`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlm::Deadline;
use dlm_fixtures::hbase::{Hbase, hbase_or_skip};
use dlm_fixtures::table::{self, TABLE};
use dlm_fixtures::{rpc_proxy, thrift_proxy};
use dlm_testkit::history::Tolerances;
use dlm_testkit::workload::LockWorkload;
use dlm_testkit::{LONGEST, left_to_the_long_run};

use crate::messages::Storm;
use crate::neighbour::Neighbour;
use crate::round::{asked_seconds, torture};
use crate::subject::{Least, Network, Other, Subject, of_semaphores};

/// Longest delay of a message.
pub(crate) const DELAY_MAX: Duration = Duration::from_millis(600);
/// How long released locks stay with their processes, if they do.
const LINGER: Duration = Duration::from_millis(200);

/// Length of leases whose clients connect to the servers.
const TTL: Duration = Duration::from_millis(400);
const LEAST: Least =
    Least { grants: 10.0, members: 0.0, conversions: 0.0, kills: 0.3, stops: 0.2, lost_replies: 0.5 };

/// Leases of this length and locks that all processes use, as well as locks of each client.
pub(crate) fn workload(ttl: Duration) -> LockWorkload {
    let pace = Some(Duration::from_millis(5));
    LockWorkload { ttl, locks: 32, quiet_locks: 2, pace, outlast_one_in: 64, ..LockWorkload::new(0) }
}

#[test]
fn torture_breaks_no_rule_on_hbase() {
    let (Some(_), Some(hbase)) = (table::gateway(), hbase_or_skip()) else { return };
    let neighbour = Neighbour::on(hbase);
    directly(
        "hbase",
        hbase,
        &|address| format!("hbase://{address}/{TABLE}"),
        vec![Box::new(|stage| {
            neighbour.use_locks(stage);
        })],
    );
}

/// Without a Java service, because the server refuses it.
#[test]
fn torture_breaks_no_rule_on_hbase_in_the_layout_own() {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let Some(hbase) = hbase_or_skip() else { return };
    let uri = |address| format!("hbase://{address}/dlm_test_own_torture?layout=own");
    dlm::store::open(&uri(hbase.master)).unwrap().initialize(Deadline::after(LONGEST)).unwrap();
    directly("hbase-own", hbase, &uri, Vec::new());
}

#[test]
fn torture_breaks_no_rule_on_hbase_in_all_modes() {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let Some(hbase) = hbase_or_skip() else { return };
    let uri = |address| format!("hbase://{address}/dlm_test_own_torture?layout=own");
    dlm::store::open(&uri(hbase.master)).unwrap().initialize(Deadline::after(LONGEST)).unwrap();
    let modes = LockWorkload { modes: true, ..workload(TTL) };
    let least = Least { members: 10.0, conversions: 0.5, ..LEAST };
    working("hbase-own-modes", hbase, &uri, Vec::new(), (modes, least));
}

#[test]
fn torture_breaks_no_rule_on_hbase_in_all_modes_if_locks_stay() {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let Some(hbase) = hbase_or_skip() else { return };
    let uri = |address| format!("hbase://{address}/dlm_test_own_torture?layout=own");
    dlm::store::open(&uri(hbase.master)).unwrap().initialize(Deadline::after(LONGEST)).unwrap();
    let modes = LockWorkload { modes: true, linger: LINGER, ..workload(TTL) };
    let least = Least { members: 10.0, conversions: 0.5, ..LEAST };
    working("hbase-own-modes-linger", hbase, &uri, Vec::new(), (modes, least));
}

#[test]
fn torture_breaks_no_rule_on_hbase_with_semaphores() {
    semaphores("hbase-own-permits", false);
}

#[test]
fn torture_breaks_no_rule_on_hbase_while_semaphores_are_resized() {
    semaphores("hbase-own-resized", true);
}

fn semaphores(name: &'static str, resizes: bool) {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let Some(hbase) = hbase_or_skip() else { return };
    let uri = |address| format!("hbase://{address}/dlm_test_own_torture?layout=own");
    dlm::store::open(&uri(hbase.master)).unwrap().initialize(Deadline::after(LONGEST)).unwrap();
    let workload = LockWorkload { resizes, ..of_semaphores(workload(TTL)) };
    working(name, hbase, &uri, Vec::new(), (workload, Least { members: 10.0, ..LEAST }));
}

/// With notices over UDP.
#[test]
fn torture_breaks_no_rule_on_hbase_if_locks_stay() {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let (Some(_), Some(hbase)) = (table::gateway(), hbase_or_skip()) else { return };
    let uri = |address| format!("hbase://{address}/{TABLE}");
    staying("hbase-linger", hbase, &uri, Vec::new());
}

/// With notices over UDP.
#[test]
fn torture_breaks_no_rule_on_hbase_in_the_layout_own_if_locks_stay() {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let Some(hbase) = hbase_or_skip() else { return };
    let uri = |address| format!("hbase://{address}/dlm_test_own_torture?layout=own");
    dlm::store::open(&uri(hbase.master)).unwrap().initialize(Deadline::after(LONGEST)).unwrap();
    staying("hbase-own-linger", hbase, &uri, Vec::new());
}

/// Every other process has the layout `java`, and a Java service uses the same locks.
#[test]
fn torture_breaks_no_rule_on_hbase_in_the_layouts_java_and_both() {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let (Some(_), Some(hbase)) = (table::gateway(), hbase_or_skip()) else { return };
    let neighbour = Neighbour::on(hbase);
    let java = |address| format!("hbase://{address}/{TABLE}");
    beside_both("hbase-java-both", hbase, &java, vec![Box::new(|stage| neighbour.use_locks(stage))]);
}

/// Every other process has the layout `own`.
#[test]
fn torture_breaks_no_rule_on_hbase_in_the_layouts_both_and_own() {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let Some(hbase) = hbase_or_skip() else { return };
    let own = |address| format!("hbase://{address}/{TABLE}_own?layout=own");
    beside_both("hbase-both-own", hbase, &own, Vec::new());
}

fn beside_both(
    name: &'static str,
    hbase: &'static Hbase,
    neighbour: &(dyn Fn(SocketAddr) -> String + Sync),
    others: Vec<Other<'_>>,
) {
    let both = |address| format!("hbase://{address}/{TABLE}?layout=both");
    dlm::store::open(&both(hbase.master)).unwrap().initialize(Deadline::after(LONGEST)).unwrap();
    // The first URI is that of the process which uses all locks at the end.
    let opened = AtomicUsize::new(0);
    let uri = |address| {
        if opened.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            both(address)
        } else {
            neighbour(address)
        }
    };
    directly(name, hbase, &uri, others);
}

/// Tortures locks whose clients connect to the servers. `uri` returns the URI with a master or a proxy at an address.
fn directly(
    name: &'static str,
    hbase: &'static Hbase,
    uri: &(dyn Fn(SocketAddr) -> String + Sync),
    others: Vec<Other<'_>>,
) {
    working(name, hbase, uri, others, (workload(TTL), LEAST));
}

/// The same if released locks stay for a while.
fn staying(
    name: &'static str,
    hbase: &'static Hbase,
    uri: &(dyn Fn(SocketAddr) -> String + Sync),
    others: Vec<Other<'_>>,
) {
    working(name, hbase, uri, others, (LockWorkload { linger: LINGER, ..workload(TTL) }, LEAST));
}

/// The same with this workload.
fn working(
    name: &'static str,
    hbase: &'static Hbase,
    uri: &(dyn Fn(SocketAddr) -> String + Sync),
    others: Vec<Other<'_>>,
    (workload, least): (LockWorkload, Least),
) {
    // The base of readers lasts as long as the last one of them could have.
    let epoch = if workload.modes { TTL + TTL / 4 + workload.linger } else { Duration::ZERO };
    let tolerances = Tolerances { linger: workload.linger, epoch, ..Tolerances::default() };
    torture(&Subject {
        name,
        uri: uri(hbase.master),
        network: Some(Network {
            proxy: &|| rpc_proxy::before(hbase.master),
            uri,
            storm: Storm {
                one_in: 100,
                longest: DELAY_MAX,
                writes: |method| matches!(method, "Multi" | "Mutate"),
            },
        }),
        processes: 4,
        clients: 4,
        workload,
        tolerances,
        pause: Duration::from_millis(700),
        stoppers: 2,
        others,
        short: 12,
        least,
    });
}

#[test]
fn torture_breaks_no_rule_through_a_gateway() {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let (Some(gateway), Some(hbase)) = (table::gateway(), hbase_or_skip()) else { return };
    let neighbour = Neighbour::on(hbase);
    torture(&Subject {
        name: "gateway",
        uri: table::uri(gateway),
        network: Some(Network {
            proxy: &|| thrift_proxy::before(gateway),
            uri: &table::uri,
            storm: Storm { one_in: 100, longest: DELAY_MAX, writes: gateway_writes },
        }),
        processes: 4,
        clients: 4,
        workload: workload(Duration::from_millis(600)),
        tolerances: Tolerances::default(),
        pause: Duration::from_millis(700),
        stoppers: 2,
        others: vec![Box::new(|stage| neighbour.use_locks(stage))],
        short: 12,
        least: Least { grants: 10.0, kills: 0.3, stops: 0.2, lost_replies: 0.5, ..Least::default() },
    });
}

pub(crate) fn gateway_writes(method: &str) -> bool {
    !method.starts_with("get") && !method.starts_with("scanner")
}
