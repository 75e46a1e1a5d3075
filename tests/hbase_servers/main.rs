//! Tests that start their own HBase servers. They kill servers, move regions, set clocks or occupy all handlers.
//!
//! They are a separate program. Such a server takes a gigabyte and most of a processor, so tests that measure time
//! must not run beside it.

mod hbase_cluster;
mod hbase_kerberos;
mod hbase_own_clocks;
mod hbase_restarts;
mod hbase_table_clocks;
mod hbase_table_handlers;
mod hbase_table_races;
mod hbase_tls;

/// Families d and e keep one version, family v keeps three.
#[cfg(feature = "hbase")]
fn families() -> [dlm::hbase::Family; 3] {
    use dlm::hbase::Family;
    [Family::new("d"), Family::new("e"), Family::new("v").versions(3)]
}
