//! Tests that take long. They run in full only when `DLM_TEST_LONG=1` is set, and say so otherwise.

use std::sync::Once;
use std::{env, panic};

use crate::notes;

/// Returns whether this is the long run: whether `DLM_TEST_LONG=1` is set.
pub fn is_long() -> bool {
    env::var("DLM_TEST_LONG").is_ok_and(|long| long == "1")
}

/// Returns true if this test is left to the long run; the test must then return. It writes a message that the test
/// harness does not capture.
pub fn left_to_the_long_run() -> bool {
    list_panics();
    !is_long() && {
        say("is left to the long run");
        true
    }
}

/// Returns true if this test must do only a part of its work because this is not the long run. It writes a message
/// that the test harness does not capture. `part` describes the part, for example `one program of eleven`.
pub fn shortened(part: &str) -> bool {
    !is_long() && {
        say(&format!("does only a part: {part}"));
        true
    }
}

/// Lists each panic at once. Without this the test harness says why a test failed only at the end of its program, which
/// in the long run may be an hour later.
fn list_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let harness = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            notes::list("DLM_TEST_PANICS", &info.to_string());
            harness(info);
        }));
    });
}

/// The program that runs the tests prints the list at its end, where people read it.
fn say(what: &str) {
    notes::say(&format!("{what} (DLM_TEST_LONG=1)"));
    notes::list("DLM_TEST_LEFT_OUT", what);
}
