//! The embedded store. It has no messages: its processes share memory.

use std::time::Duration;

use dlm_testkit::history::Tolerances;
use dlm_testkit::workload::LockWorkload;
use tempfile::TempDir;

use crate::round::torture;
use crate::subject::{Least, Subject, of_semaphores};

#[test]
fn torture_breaks_no_rule_on_the_embedded_store() {
    let directory = tempfile::tempdir().unwrap();
    torture(&subject("embedded", &directory));
}

/// With notices over UDP.
#[test]
fn torture_breaks_no_rule_on_the_embedded_store_if_locks_stay() {
    let directory = tempfile::tempdir().unwrap();
    let linger = Duration::from_millis(30);
    let usual = subject("embedded-linger", &directory);
    torture(&Subject {
        workload: LockWorkload { linger, ..usual.workload },
        tolerances: Tolerances { linger, ..usual.tolerances },
        ..usual
    });
}

#[test]
fn torture_breaks_no_rule_on_the_embedded_store_in_all_modes() {
    let directory = tempfile::tempdir().unwrap();
    let usual = subject("embedded-modes", &directory);
    torture(&Subject {
        workload: LockWorkload { modes: true, ..usual.workload },
        short: 5,
        least: Least { members: 30.0, conversions: 1.0, ..usual.least },
        ..usual
    });
}

#[test]
fn torture_breaks_no_rule_on_the_embedded_store_with_semaphores() {
    semaphores("embedded-permits", false);
}

#[test]
fn torture_breaks_no_rule_on_the_embedded_store_while_semaphores_are_resized() {
    semaphores("embedded-resized", true);
}

fn semaphores(name: &'static str, resizes: bool) {
    let directory = tempfile::tempdir().unwrap();
    let usual = subject(name, &directory);
    torture(&Subject {
        workload: LockWorkload { resizes, ..of_semaphores(usual.workload) },
        short: 5,
        least: Least { members: 30.0, ..usual.least },
        ..usual
    });
}

#[test]
fn torture_breaks_no_rule_on_the_embedded_store_in_all_modes_if_locks_stay() {
    let directory = tempfile::tempdir().unwrap();
    let linger = Duration::from_millis(30);
    let usual = subject("embedded-modes-linger", &directory);
    torture(&Subject {
        workload: LockWorkload { modes: true, linger, ..usual.workload },
        tolerances: Tolerances { linger, ..usual.tolerances },
        short: 5,
        least: Least { members: 30.0, conversions: 1.0, ..usual.least },
        ..usual
    });
}

fn subject(name: &'static str, directory: &TempDir) -> Subject<'static> {
    Subject {
        name,
        uri: format!("embedded:{}", directory.path().display()),
        network: None,
        processes: 4,
        clients: 4,
        workload: LockWorkload {
            ttl: Duration::from_millis(60),
            locks: 16,
            quiet_locks: 1,
            pace: Some(Duration::from_millis(1)),
            outlast_one_in: 64,
            ..LockWorkload::new(0)
        },
        tolerances: Tolerances::default(),
        pause: Duration::from_millis(200),
        stoppers: 1,
        others: Vec::new(),
        short: 8,
        least: Least { grants: 50.0, kills: 0.5, stops: 0.3, ..Least::default() },
    }
}
