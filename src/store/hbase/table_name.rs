//! Names of tables.

use crate::error::{Error, Result};

/// Checks a table name by HBase's rules: `[namespace:]table` of letters, digits, `_`, `-` and `.`, neither part
/// beginning with `.` or `-`. Returns it as HBase writes it: a table of the namespace `default` has no namespace in its
/// name, neither in hbase:meta nor in lists (`org.apache.hadoop.hbase.TableName.valueOf`).
pub(crate) fn checked_table(table: &str) -> Result<String> {
    let legal = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
    };
    let (namespace, name) = table.split_once(':').unwrap_or(("default", table));
    if table.len() <= 255 && legal(namespace) && legal(name) {
        Ok(if namespace == "default" { name } else { table }.to_owned())
    } else {
        Err(Error::invalid("table", table, "[namespace:]name of ASCII letters, digits, '_', '-' and '.'"))
    }
}
