//! Tests that a machine cannot run. They are left out with a message, or they fail.

use std::env;
use std::fmt::Display;

use crate::notes;

/// Writes to standard error that this test is skipped because the machine has no `tool`. The test must return after
/// this call. The test harness does not capture the message.
///
/// # Panics
///
/// When the test may not be skipped: when the environment variable `DLM_TEST_REQUIRE`, a list such as `hbase,strace`,
/// contains the tool, or when `CI=true` is set and the tool can be installed on any machine.
#[track_caller]
pub fn skipped(tool: &str, reason: impl Display) {
    assert!(!required(tool), "this test needs {tool}: {reason}");
    notes::say(&format!("SKIPPED, it did not run: {reason}"));
}

fn required(tool: &str) -> bool {
    let listed = env::var("DLM_TEST_REQUIRE").unwrap_or_default();
    let installable = [
        "hbase",
        "strace",
        "faketime",
        "gcc",
        "g++",
        "clang",
        "clang++",
        "valgrind",
        "cmake",
        "make",
        "pkg-config",
        "postgres",
    ]
    .contains(&tool);
    listed.split(',').any(|name| name.trim() == tool)
        || installable && env::var("CI").is_ok_and(|ci| ci == "true")
}
