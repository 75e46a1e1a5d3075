//! The contract, and what is special to HBase, on a real one through its Thrift1 gateway.
#![cfg(feature = "hbase")]

#[macro_use]
mod contract;
#[path = "support"]
mod support {
    pub(crate) mod hbase;
    pub(crate) mod spy;
    pub(crate) mod table;
}

fn site(test: &str) -> contract::Site {
    let uri = support::table::locks();
    contract::Site::new(test, 40, move || dlm::store::open(&uri).unwrap())
}

contract!(site);
