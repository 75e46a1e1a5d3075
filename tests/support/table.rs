//! The table that all tests on HBase share: each takes names of its own in it.

use std::sync::Once;
use std::time::Duration;

use dlm::Deadline;

use super::hbase::hbase;

/// URI of the table by way of the gateway itself.
pub(crate) fn locks() -> String {
    locks_by_way_of(&hbase().thrift)
}

/// URI of the table by way of a proxy.
pub(crate) fn locks_by_way_of(address: &str) -> String {
    static CREATED: Once = Once::new();
    CREATED.call_once(|| {
        let store = dlm::store::open(&uri(&hbase().thrift)).unwrap();
        store.initialize(Deadline::after(Duration::from_secs(60))).unwrap();
    });
    uri(address)
}

fn uri(address: &str) -> String {
    format!("hbase+thrift://{address}/dlm_test_locks")
}
