//! Tests that a machine cannot run: left out aloud, or not at all.

use std::fmt::Display;
use std::io::Write as _;
use std::{env, thread};

/// Says that this test is left out because the machine has no `tool`, past the test harness and its
/// capture of output; the test is to return then.
///
/// # Panics
///
/// When the test may not be left out: the environment has the tool's name in `DLM_TEST_REQUIRE`, a list
/// such as `hbase,strace`, or it has `CI=true` and the tool is one that can be installed anywhere.
#[track_caller]
pub fn skipped(tool: &str, reason: impl Display) {
    assert!(!required(tool), "this test needs {tool}: {reason}");
    let test = thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("\n*** {test} SKIPPED, it did not run: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
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
