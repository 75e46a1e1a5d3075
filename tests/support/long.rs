//! Tests that take long: left to `tests/run --long`, aloud.

use std::io::Write as _;
use std::{env, thread};

/// Whether `tests/run --long` runs this, or something else that sets `DLM_TEST_LONG=1`.
pub(crate) fn is_long() -> bool {
    env::var("DLM_TEST_LONG").is_ok_and(|long| long == "1")
}

/// Whether this test is not for now, after saying so past the test harness; it is to return then.
pub(crate) fn left_to_the_long_run() -> bool {
    if is_long() {
        return false;
    }
    let test = thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("\n*** {test} is left to tests/run --long\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    true
}
