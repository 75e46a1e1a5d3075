//! A table for applications' rows, with families d and e of one version and v of three, split once.

#![allow(dead_code, reason = "no test program uses all of it")]

use std::sync::Once;
use std::time::{Duration, Instant};

use dlm::hbase::{Family, Table};
use dlm::{Level, Lock, LockManager};

use super::hbase::{fresh_table, hbase, hbase_or_skip};

pub(crate) const TABLE: &str = "dlm_test_rows";

pub(crate) fn uri(table: &str, options: &str) -> String {
    format!("hbase://{}/{table}{options}", hbase().master)
}

/// `options`: `&key=value` behind `family=d`. Keys are the test's own: the table is new for each.
///
/// `None`, after saying so, on a machine where no HBase can run.
pub(crate) fn table(test: &str, options: &str) -> Option<Table> {
    static SHARED: Once = Once::new();
    hbase_or_skip()?;
    let families = families();
    SHARED.call_once(|| {
        Table::open(&uri(TABLE, "")).unwrap().create_if_missing(&families, &[]).unwrap();
    });
    let table = Table::open(&uri(&fresh_table(test), &format!("?family=d{options}"))).unwrap();
    table.create_if_missing(&families, &[b"8"]).unwrap();
    Some(table)
}

pub(crate) fn families() -> [Family; 3] {
    [Family::new("d"), Family::new("e"), Family::new("v").versions(3)]
}

/// The lock `guard` of a store of this test's own, in that folder.
pub(crate) fn guard(place: &std::path::Path) -> Lock {
    guards(place, Duration::from_secs(1800)).lock("guard", Level::Xdc).unwrap()
}

/// The locks in a folder; leases last for so long.
pub(crate) fn guards(place: &std::path::Path, ttl: Duration) -> LockManager {
    let builder = LockManager::builder().store_uri(&format!("embedded:{}", place.display()));
    builder.client("rows").retry(Duration::from_millis(10)).ttl(ttl).wait(ttl * 10).open().unwrap()
}

/// A bound that only a broken program passes.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
