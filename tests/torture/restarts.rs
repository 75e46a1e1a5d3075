//! Servers that crash, restart, or give their regions away. Each test has servers of its own, and runs only if the
//! length of the torture was asked for: a server takes longer to start than a short run lasts.

use std::thread;
use std::time::Duration;

use dlm::Deadline;
use dlm_fixtures::aerospike::{DIRECTORY, own_server_or_skip};
use dlm_fixtures::hbase::{Hbase, Kind};
use dlm_fixtures::peer::{Peer, hex};
use dlm_fixtures::table::{self, TABLE};
use dlm_fixtures::{aerospike_proxy, thrift_proxy};
use dlm_testkit::history::Tolerances;
use dlm_testkit::{LONG, left_to_the_long_run};
use fastrand::Rng;
use parking_lot::Mutex;

use crate::aerospike;
use crate::hbase::{DELAY_MAX, gateway_writes, workload};
use crate::messages::Storm;
use crate::neighbour;
use crate::round::{Stage, asked_seconds, torture};
use crate::subject::{Least, Network, Subject};

/// Time that servers run between two restarts.
const UP: Duration = Duration::from_secs(12);
/// Longest time for which a gateway tries again: see tests/fixtures/hbase/server.
const GATEWAY_RETRIES: Duration = Duration::from_secs(5);

fn is_asked_for() -> bool {
    asked_seconds().is_some() || !left_to_the_long_run()
}

/// Creates the table as soon as the servers serve. On a busy machine a cluster needs minutes for that.
fn create_table(uri: &str) {
    let store = dlm::store::open(uri).unwrap();
    let deadline = Deadline::after(10 * LONG);
    while let Err(error) = store.initialize(Deadline::after(5 * LONG)) {
        assert!(!deadline.passed(), "the servers do not serve: {}", error.chain());
        thread::sleep(Duration::from_millis(500));
    }
}

/// Random choices of what is done to the servers of a round.
fn random(stage: &Stage<'_>) -> Rng {
    Rng::with_seed(stage.workload.seed << 8 | 0x82)
}

/// The gateway restarts, and now and then all of HBase crashes.
#[test]
fn torture_breaks_no_rule_while_gateways_restart_and_hbase_crashes() {
    if !is_asked_for() {
        return;
    }
    let Some(hbase) = Hbase::private("torture") else { return };
    create_table(&table::uri(hbase.thrift));
    let restarts = |stage: &Stage<'_>| {
        let mut random = random(stage);
        while stage.goes_on_after(UP, &mut random) {
            if random.u8(..6) > 0 {
                stage.incidents.count("restarts of the gateways");
                stage.incidents.outage(GATEWAY_RETRIES, || {
                    hbase.stop_gateways();
                    hbase.start_gateways();
                });
            } else {
                stage.incidents.count("crashes of HBase");
                stage.incidents.outage(GATEWAY_RETRIES, || {
                    hbase.kill();
                    hbase.start();
                });
            }
        }
    };
    torture(&Subject {
        name: "gateway-restarts",
        uri: table::uri(hbase.thrift),
        network: Some(Network {
            proxy: &|| thrift_proxy::before(hbase.thrift),
            uri: &table::uri,
            storm: Storm { one_in: 100, longest: DELAY_MAX, writes: gateway_writes },
        }),
        processes: 4,
        clients: 4,
        workload: workload(Duration::from_millis(600)),
        tolerances: Tolerances::default(),
        pause: Duration::from_millis(700),
        stoppers: 2,
        others: vec![Box::new(restarts)],
        short: 30,
        least: Least { grants: 2.0, kills: 0.1, stops: 0.0, lost_replies: 0.1, ..Least::default() },
    });
}

/// Regions move between two RegionServers, of which one crashes now and then.
#[test]
fn torture_breaks_no_rule_while_regions_move_and_a_region_server_crashes() {
    if !is_asked_for() {
        return;
    }
    let kind = Kind::Cluster { servers: 2, masters: 1 };
    let Some(hbase) = Hbase::private_of("torture-cluster", kind) else { return };
    let uri = format!("hbase://{}/{TABLE}", hbase.masters);
    create_table(&uri);
    let peer = Mutex::new(Peer::start(&hbase));
    let moves = |stage: &Stage<'_>| {
        let (mut random, mut peer) = (random(stage), peer.lock());
        while stage.goes_on_after(UP / 40, &mut random) {
            let row =
                neighbour::row(stage.client_id, &stage.workload.key(random.u64(..stage.workload.locks)));
            if !peer.try_ask(&format!("move {TABLE} {}", hex(&row))).starts_with("error") {
                stage.incidents.count("moves of regions");
            }
        }
    };
    let crashes = |stage: &Stage<'_>| {
        let mut random = random(stage);
        while stage.goes_on_after(UP, &mut random) {
            stage.incidents.count("crashes of a RegionServer");
            stage.incidents.outage(Duration::ZERO, || {
                hbase.kill_region_server(random.u8(1..3));
                hbase.start();
                // The master notices the crash only when the server's session has expired.
                thread::sleep(UP / 2);
            });
        }
    };
    torture(&Subject {
        name: "hbase-regions",
        uri: uri.clone(),
        network: None,
        processes: 4,
        clients: 4,
        workload: workload(Duration::from_millis(400)),
        tolerances: Tolerances::default(),
        pause: Duration::from_millis(700),
        stoppers: 2,
        others: vec![Box::new(moves), Box::new(crashes)],
        short: 30,
        least: Least { grants: 2.0, kills: 0.1, stops: 0.0, lost_replies: 0.0, ..Least::default() },
    });
}

/// Its data is on a disk. A server that is asked to end writes all of it there first.
#[test]
fn torture_breaks_no_rule_while_an_aerospike_server_restarts() {
    if !is_asked_for() {
        return;
    }
    let namespace = format!(
        "replication-factor 1\nnsup-period 1\nstorage-engine device {{\nfile {DIRECTORY}/records\nfilesize 512M\n}}\n"
    );
    let Some(server) = own_server_or_skip(&namespace) else { return };
    let (place, server) = (server.place(), Mutex::new(server));
    let restarts = |stage: &Stage<'_>| {
        let mut random = random(stage);
        while stage.goes_on_after(UP, &mut random) {
            stage.incidents.count("restarts of the server");
            stage.incidents.outage(Duration::ZERO, || {
                let mut server = server.lock();
                server.shut_down();
                server.restart();
            });
        }
    };
    torture(&Subject {
        name: "aerospike-restarts",
        uri: place.uri(),
        network: Some(Network {
            proxy: &|| aerospike_proxy::before(place.address),
            uri: &|address| place.uri_by(address),
            storm: Storm { one_in: 200, longest: DELAY_MAX, writes: aerospike::writes },
        }),
        processes: 4,
        clients: 4,
        workload: aerospike::workload(),
        tolerances: Tolerances { store_slack: aerospike::SLACK, ..Tolerances::default() },
        pause: Duration::from_millis(1000),
        stoppers: 2,
        others: vec![Box::new(restarts)],
        short: 30,
        least: Least { grants: 5.0, kills: 0.1, stops: 0.0, lost_replies: 0.1, ..Least::default() },
    });
}
