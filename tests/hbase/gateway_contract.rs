//! The contract suites for locks and latches, over a real HBase through its Thrift1 gateway.
#![cfg(feature = "gateway")]

use dlm_fixtures::table;
use dlm_testkit::contract::Site;

/// On a busy machine any answer may be late, and a late answer leaves a doubt: see `gateway_losses`. This gateway sends
/// nothing twice unless a server keeps it waiting for half a minute.
fn site(test: &str) -> Option<Site> {
    let uri = format!("{}?gateway_pause=10m", table::uri(table::gateway()?));
    Some(Site::new(test, 40, move || dlm::store::open(&uri).unwrap()))
}

fn site_of_latches(test: &str) -> Option<Site> {
    site(test).map(|site| site.without_names().without_listeners())
}

dlm_testkit::contract!(site);
dlm_testkit::latch_contract!(site_of_latches);
