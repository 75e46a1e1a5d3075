//! The contract, and what is special to Aerospike, on a real one.
#![cfg(feature = "aerospike")]

#[macro_use]
mod contract;
#[path = "support"]
mod support {
    pub(crate) mod aerospike;
    pub(crate) mod patience;
    pub(crate) mod skip;
    pub(crate) mod spy;
}

use support::aerospike::aerospike_or_skip;

fn site(test: &str) -> Option<contract::Site> {
    let uri = aerospike_or_skip()?.uri();
    Some(contract::Site::new(test, 200, move || dlm::store::open(&uri).unwrap()))
}

contract!(site);
latch_contract!(site);
