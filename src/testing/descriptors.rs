//! Descriptors that callers get, in a process without standard streams.

use std::os::fd::AsRawFd;
use std::path::Path;

use crate::runtime::process::descriptors::tests::{are_free, close_streams};
use crate::testing::fork::{alone, in_forked_child};
use crate::{CancelToken, Completions, Fence, FenceGate};

#[test]
fn gates_and_descriptors_for_event_loops_are_above_the_streams() {
    if !alone() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let is_above = |path: &Path| {
        let gate = FenceGate::open(path).unwrap();
        let pass = gate.pass(Fence(7)).unwrap();
        let (token, completions) = (CancelToken::new(), Completions::new());
        let descriptors = [token.signal_fd().unwrap().as_raw_fd(), completions.fd().unwrap().as_raw_fd()];
        let is_free = are_free();
        drop(pass);
        is_free && descriptors.iter().all(|number| *number > 2)
    };
    assert!(in_forked_child(|| {
        close_streams();
        is_above(&directory.path().join("gate"))
    }));
}
