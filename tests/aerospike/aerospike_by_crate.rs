//! Locks whose requests the client crate sends, as with a login, TLS or other addresses of the nodes. The contract
//! suites and the losses, over a real server.
#![cfg(feature = "aerospike")]

use std::net::SocketAddr;
use std::time::Duration;

use dlm::Code;
use dlm_fixtures::aerospike::{Place, aerospike_or_skip, namespace};
use dlm_fixtures::aerospike_proxy;
use dlm_testkit::contract::Site;
use dlm_testkit::losses::Target;
use dlm_testkit::{LONG, left_to_the_long_run};

/// The nodes tell the same address under both names. The library has no connections of its own then.
fn uri(place: &Place) -> String {
    format!("{}?services_alternate=on", place.uri())
}

fn site(test: &str) -> Option<Site> {
    let uri = uri(&aerospike_or_skip()?);
    Some(Site::new(test, 200, move || dlm::store::open(&uri).unwrap()))
}

dlm_testkit::contract!(site);

/// The short run has these cases for the library's own connections.
fn server_of_the_long_run() -> Option<SocketAddr> {
    if left_to_the_long_run() { None } else { Some(aerospike_or_skip()?.address) }
}

static SERVER: Target = Target {
    server: server_of_the_long_run,
    proxy: aerospike_proxy::before,
    uri: |address: SocketAddr| uri(&Place { address, namespace: namespace() }),
    requests: &["create", "fence", "get", "change", "delete"],
    acquire: &["create", "fence"],
    settle: &["get", "fence"],
    seed: &[("create", 0), ("fence", 0)],
    renew: ["change", "change"],
    release: ["delete", "delete"],
    reply_bytes: 30,
    down: Duration::from_secs(LONG.as_secs() / 4),
    silent: Code::ConnectionError,
};

dlm_testkit::losses!(SERVER);
