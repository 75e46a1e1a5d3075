//! The table that all tests on HBase share: each takes names of its own in it.

use std::net::SocketAddr;
use std::sync::Once;
use std::time::Duration;

use dlm::Deadline;

use super::hbase::hbase_or_skip;

/// Its name.
pub(crate) const TABLE: &str = "dlm_test_locks";

/// The gateway, once the table is there; `None`, after saying so, where no HBase can run.
#[allow(dead_code, reason = "not every test program shares the table's server")]
pub(crate) fn gateway() -> Option<SocketAddr> {
    static CREATED: Once = Once::new();
    let gateway = hbase_or_skip()?.thrift;
    CREATED.call_once(|| {
        let store = dlm::store::open(&uri(gateway)).unwrap();
        store.initialize(Deadline::after(Duration::from_secs(60))).unwrap();
    });
    Some(gateway)
}

/// URI of the table by way of whatever listens there.
pub(crate) fn uri(address: SocketAddr) -> String {
    format!("hbase+thrift://{address}/{TABLE}")
}
