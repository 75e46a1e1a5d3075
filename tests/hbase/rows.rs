//! Tables for applications' rows. Families d and e keep one version, family v keeps three.

use std::sync::Once;

use dlm::hbase::{Family, Table};
use dlm_fixtures::hbase::{fresh_table, hbase, hbase_or_skip};

pub(crate) const TABLE: &str = "dlm_test_rows";

/// Returns the URI of a table. Unless the options have another time-out, no call fails because this machine is busy.
pub(crate) fn uri(table: &str, options: &str) -> String {
    let separator = if options.is_empty() { '?' } else { '&' };
    let timeout = if options.contains("timeout=") { String::new() } else { format!("{separator}timeout=5m") };
    format!("hbase://{}/{table}{options}{timeout}", hbase().master)
}

/// Creates a new table, split at key `8`, so a test may use any keys. Its URI has the option `family=d`, followed
/// by `options`, for example `&key=value`. Also creates the table `TABLE`, once.
///
/// If no HBase can run on this machine, it says so and returns `None`.
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
