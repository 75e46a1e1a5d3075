//! Tests that start their own HBase servers. They kill servers, move regions, set clocks or occupy all handlers.
//!
//! They are a separate program. Such a server takes a gigabyte and most of a processor, so tests that measure time
//! must not run beside it.

mod hbase_cluster;
mod hbase_kerberos;
mod hbase_own_clocks;
mod hbase_restarts;
mod hbase_rights;
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

/// Many threads use one socket. One of them reads it while others write.
#[cfg(feature = "hbase")]
fn share_a_socket(manager: &dlm::LockManager) {
    std::thread::scope(|scope| {
        for number in 0..8 {
            let work = move || {
                let lock = manager.lock(&format!("thread-{number}"), dlm::Level::Xdc).unwrap();
                for _ in 0..20 {
                    assert!(lock.try_acquire().unwrap().release().unwrap());
                }
            };
            let thread = std::thread::Builder::new().name(format!("dlm-test-{number}"));
            thread.spawn_scoped(scope, work).unwrap();
        }
    });
}
