//! Aerospike. In the layout `java` leases last for whole seconds, and for up to one more.

use std::time::Duration;

use dlm_fixtures::aerospike::{Place, aerospike_or_skip};
use dlm_fixtures::aerospike_proxy;
use dlm_testkit::history::Tolerances;
use dlm_testkit::left_to_the_long_run;
use dlm_testkit::workload::LockWorkload;

use crate::hbase::DELAY_MAX;
use crate::messages::Storm;
use crate::round::{asked_seconds, torture};
use crate::subject::{Least, Network, Subject, of_semaphores};

pub(crate) const TTL: Duration = Duration::from_secs(1);
/// How much longer than its TTL the server may keep a record.
pub(crate) const SLACK: Duration = Duration::from_secs(2);

const LEAST: Least =
    Least { grants: 20.0, members: 0.0, conversions: 0.0, kills: 0.2, stops: 0.1, lost_replies: 0.5 };

pub(crate) fn workload() -> LockWorkload {
    LockWorkload {
        ttl: TTL,
        locks: 64,
        quiet_locks: 4,
        pace: Some(Duration::from_millis(2)),
        outlast_one_in: 256,
        ..LockWorkload::new(0)
    }
}

pub(crate) fn writes(method: &str) -> bool {
    matches!(method, "create" | "fence" | "delete" | "change" | "acquire" | "release")
}

#[test]
fn torture_breaks_no_rule_on_aerospike() {
    let Some(place) = aerospike_or_skip() else { return };
    let tolerances = Tolerances { store_slack: SLACK, ..Tolerances::default() };
    directly("aerospike", &place, &|uri| uri, workload(), tolerances);
}

/// Leases last for milliseconds, and for the store's slack more.
#[test]
fn torture_breaks_no_rule_on_aerospike_in_the_layout_own() {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let Some(place) = aerospike_or_skip() else { return };
    let own = |uri: String| format!("{}?layout=own", uri.replace("/tests", "/own-torture"));
    let workload = LockWorkload { ttl: Duration::from_millis(400), ..workload() };
    let tolerances = Tolerances { store_slack: Duration::from_millis(100), ..Tolerances::default() };
    directly("aerospike-own", &place, &own, workload, tolerances);
}

#[test]
fn torture_breaks_no_rule_on_aerospike_in_all_modes() {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let Some(place) = aerospike_or_skip() else { return };
    let own = |uri: String| format!("{}?layout=own", uri.replace("/tests", "/own-torture"));
    let workload = LockWorkload { ttl: Duration::from_millis(400), modes: true, ..workload() };
    let tolerances = Tolerances { store_slack: Duration::from_millis(100), ..Tolerances::default() };
    let least = Least { members: 20.0, conversions: 0.5, ..LEAST };
    working("aerospike-own-modes", &place, &own, (workload, least), tolerances);
}

#[test]
fn torture_breaks_no_rule_on_aerospike_in_all_modes_if_locks_stay() {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let Some(place) = aerospike_or_skip() else { return };
    let own = |uri: String| format!("{}?layout=own", uri.replace("/tests", "/own-torture"));
    let (ttl, linger) = (Duration::from_millis(400), Duration::from_millis(200));
    let workload = LockWorkload { ttl, linger, modes: true, ..workload() };
    let tolerances = Tolerances { store_slack: Duration::from_millis(100), linger, ..Tolerances::default() };
    let least = Least { members: 20.0, conversions: 0.5, ..LEAST };
    working("aerospike-own-modes-linger", &place, &own, (workload, least), tolerances);
}

#[test]
fn torture_breaks_no_rule_on_aerospike_with_semaphores() {
    semaphores("aerospike-own-permits", false);
}

#[test]
fn torture_breaks_no_rule_on_aerospike_while_semaphores_are_resized() {
    semaphores("aerospike-own-resized", true);
}

fn semaphores(name: &'static str, resizes: bool) {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let Some(place) = aerospike_or_skip() else { return };
    let own = |uri: String| format!("{}?layout=own", uri.replace("/tests", "/own-torture"));
    let locks = LockWorkload { ttl: Duration::from_millis(400), ..workload() };
    let workload = LockWorkload { resizes, ..of_semaphores(locks) };
    let tolerances = Tolerances { store_slack: Duration::from_millis(100), ..Tolerances::default() };
    working(name, &place, &own, (workload, Least { members: 20.0, ..LEAST }), tolerances);
}

/// With notices over UDP.
#[test]
fn torture_breaks_no_rule_on_aerospike_if_locks_stay() {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let Some(place) = aerospike_or_skip() else { return };
    let linger = Duration::from_millis(500);
    let tolerances = Tolerances { store_slack: SLACK, linger, ..Tolerances::default() };
    let workload = LockWorkload { linger, ..workload() };
    directly("aerospike-linger", &place, &|uri| uri, workload, tolerances);
}

/// With notices over UDP.
#[test]
fn torture_breaks_no_rule_on_aerospike_in_the_layout_own_if_locks_stay() {
    if asked_seconds().is_none() && left_to_the_long_run() {
        return;
    }
    let Some(place) = aerospike_or_skip() else { return };
    let own = |uri: String| format!("{}?layout=own", uri.replace("/tests", "/own-torture"));
    let (ttl, linger) = (Duration::from_millis(400), Duration::from_millis(200));
    let workload = LockWorkload { ttl, linger, ..workload() };
    let store_slack = Duration::from_millis(100);
    let tolerances = Tolerances { store_slack, linger, ..Tolerances::default() };
    directly("aerospike-own-linger", &place, &own, workload, tolerances);
}

/// Tortures locks whose clients connect to the server. `in_layout` changes a URI of the tests.
fn directly(
    name: &'static str,
    place: &Place,
    in_layout: &(dyn Fn(String) -> String + Sync),
    workload: LockWorkload,
    tolerances: Tolerances,
) {
    working(name, place, in_layout, (workload, LEAST), tolerances);
}

fn working(
    name: &'static str,
    place: &Place,
    in_layout: &(dyn Fn(String) -> String + Sync),
    (workload, least): (LockWorkload, Least),
    tolerances: Tolerances,
) {
    torture(&Subject {
        name,
        uri: in_layout(place.uri()),
        network: Some(Network {
            proxy: &|| aerospike_proxy::before(place.address),
            uri: &|address| in_layout(place.uri_by(address)),
            storm: Storm { one_in: 200, longest: DELAY_MAX, writes },
        }),
        processes: 4,
        clients: 4,
        workload,
        tolerances,
        pause: Duration::from_millis(1000),
        stoppers: 2,
        others: Vec::new(),
        short: 12,
        least,
    });
}
