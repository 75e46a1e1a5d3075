//! Aerospike. Its leases last for whole seconds, and for up to one more.

use std::time::Duration;

use dlm_fixtures::aerospike::aerospike_or_skip;
use dlm_fixtures::aerospike_proxy;
use dlm_testkit::history::Tolerances;
use dlm_testkit::workload::LockWorkload;

use crate::hbase::DELAY_MAX;
use crate::messages::Storm;
use crate::round::torture;
use crate::subject::{Least, Network, Subject};

pub(crate) const TTL: Duration = Duration::from_secs(1);
/// How much longer than its TTL the server may keep a record.
pub(crate) const SLACK: Duration = Duration::from_secs(2);

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
    matches!(method, "create" | "fence" | "delete" | "change")
}

#[test]
fn torture_breaks_no_rule_on_aerospike() {
    let Some(place) = aerospike_or_skip() else { return };
    torture(&Subject {
        name: "aerospike",
        uri: place.uri(),
        network: Some(Network {
            proxy: &|| aerospike_proxy::before(place.address),
            uri: &|address| place.uri_by(address),
            storm: Storm { one_in: 200, longest: DELAY_MAX, writes },
        }),
        processes: 4,
        clients: 4,
        workload: workload(),
        tolerances: Tolerances { store_slack: SLACK, ..Tolerances::default() },
        pause: Duration::from_millis(1000),
        stoppers: 2,
        others: Vec::new(),
        short: 12,
        least: Least { grants: 20.0, kills: 0.2, stops: 0.1, lost_replies: 0.5 },
    });
}
