//! Waiting for another thread, process or server, with a limit.

#[cfg(not(dlm_simulation))]
use std::thread;
use std::time::Duration;

use dlm::Deadline;

/// A time limit of 60 s that no step of a test reaches on any machine. With it, a bug makes a test fail and not
/// hang.
pub const LONG: Duration = Duration::from_secs(60);

/// A time limit for what itself takes a minute or two: the end of a lease, the start of a server, a table with hundreds
/// of regions, a thousand grants. No such step reaches it on any machine.
pub const LONGEST: Duration = LONG.saturating_mul(5);

/// Lets this thread sleep. In a simulation the simulated clock counts.
pub(crate) fn sleep(duration: Duration) {
    #[cfg(not(dlm_simulation))]
    thread::sleep(duration);
    #[cfg(dlm_simulation)]
    dlm::simulation::sleep(duration);
}

/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(5);

/// Calls `done` every few milliseconds until it returns true. Blocks for up to [`LONG`].
///
/// # Panics
///
/// After [`LONG`], with a message that contains `what`.
#[track_caller]
pub fn until(what: &str, done: impl FnMut() -> bool) {
    until_within(LONG, what, done);
}

/// Like [`until`], with the limit [`LONGEST`].
///
/// # Panics
///
/// After [`LONGEST`], with a message that contains `what`.
#[track_caller]
pub fn eventually(what: &str, done: impl FnMut() -> bool) {
    until_within(LONGEST, what, done);
}

#[track_caller]
fn until_within(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Deadline::after(limit);
    loop {
        // Read before the check: on a machine that stands still, the last check must come after the limit.
        let is_over = deadline.passed();
        if done() {
            return;
        }
        assert!(!is_over, "waited for {limit:?}: {what}");
        sleep(PAUSE);
    }
}
