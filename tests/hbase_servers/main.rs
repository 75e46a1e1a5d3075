//! HBase servers that a test starts for itself: it kills them, moves their regions, sets their clock or takes all of
//! their handlers. A program of its own: such a server takes a gigabyte and most of a processor, which tests that
//! measure time must not run beside.

mod hbase_cluster;
mod hbase_restarts;
mod hbase_table_clocks;
mod hbase_table_handlers;
mod hbase_table_races;
mod hbase_tls;

/// Families d and e of one version and v of three.
#[cfg(feature = "hbase")]
fn families() -> [dlm::hbase::Family; 3] {
    use dlm::hbase::Family;
    [Family::new("d"), Family::new("e"), Family::new("v").versions(3)]
}
