//! Waiting for what another thread, process or server does: for long, and not for ever.

use std::thread;
use std::time::Duration;

use dlm::Deadline;

/// Longer than any step of a test takes on any machine: it is there so that a bug fails and does not
/// hang.
pub const LONG: Duration = Duration::from_secs(60);

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Returns when `done` says yes, which it is asked every few milliseconds. Fails after [`LONG`], naming
/// `what` was waited for.
#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Deadline::after(LONG);
    while !done() {
        assert!(!deadline.passed(), "waited for {LONG:?}: {what}");
        thread::sleep(PAUSE);
    }
}
