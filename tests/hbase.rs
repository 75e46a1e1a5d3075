//! The contract, and what is special to HBase, on a real one through its Thrift1 gateway.
#![cfg(feature = "gateway")]

#[macro_use]
mod contract;
#[path = "support"]
mod support {
    #[allow(unreachable_pub, reason = "public for every test program that takes it in")]
    pub(crate) mod hbase;
    pub(crate) mod patience;
    pub(crate) mod skip;
    pub(crate) mod spy;
    pub(crate) mod table;
}

use support::table;

fn site(test: &str) -> Option<contract::Site> {
    let uri = table::uri(table::gateway()?);
    Some(contract::Site::new(test, 40, move || dlm::store::open(&uri).unwrap()))
}

fn site_of_latches(test: &str) -> Option<contract::Site> {
    site(test).map(contract::Site::without_names)
}

contract!(site);
latch_contract!(site_of_latches);
