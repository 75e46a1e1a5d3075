//! A table for applications' rows, with families d and e of one version and v of three, split once.

use std::sync::Once;

use dlm::hbase::{Family, Table};
use dlm_fixtures::hbase::{fresh_table, hbase, hbase_or_skip};

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
