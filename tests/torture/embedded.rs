//! The embedded store. It has no messages: its processes share memory.

use std::time::Duration;

use dlm_testkit::history::Tolerances;
use dlm_testkit::workload::LockWorkload;

use crate::round::torture;
use crate::subject::{Least, Subject};

#[test]
fn torture_breaks_no_rule_on_the_embedded_store() {
    directly("embedded", Duration::ZERO);
}

/// With notices over UDP.
#[test]
fn torture_breaks_no_rule_on_the_embedded_store_if_locks_stay() {
    directly("embedded-linger", Duration::from_millis(30));
}

fn directly(name: &'static str, linger: Duration) {
    let directory = tempfile::tempdir().unwrap();
    let ttl = Duration::from_millis(60);
    torture(&Subject {
        name,
        uri: format!("embedded:{}", directory.path().display()),
        network: None,
        processes: 4,
        clients: 4,
        workload: LockWorkload {
            ttl,
            locks: 16,
            quiet_locks: 1,
            pace: Some(Duration::from_millis(1)),
            outlast_one_in: 64,
            linger,
            ..LockWorkload::new(0)
        },
        tolerances: Tolerances { linger, ..Tolerances::default() },
        pause: Duration::from_millis(200),
        stoppers: 1,
        others: Vec::new(),
        short: 8,
        least: Least { grants: 50.0, kills: 0.5, stops: 0.3, lost_replies: 0.0 },
    });
}
