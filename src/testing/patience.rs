//! Waiting in unit tests. They cannot use the testkit, which is built over a copy of the library without unit
//! tests.

use std::thread;
use std::time::Duration;

use crate::Deadline;

/// More time than any step of a test needs on any machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Returns when `done` returns true; panics with `what` after [`LONG`].
#[track_caller]
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let by = Deadline::after(LONG);
    while !done() {
        assert!(!by.passed(), "waited for {LONG:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
