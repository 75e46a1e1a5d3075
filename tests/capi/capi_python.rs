//! The Python module of the examples, which uses the shared library through ctypes.

use std::process::Command;

use dlm_fixtures::c;
use dlm_testkit::skipped;

/// Also compares the part that docs/event_loops.md shows.
#[test]
fn the_python_example_counts_under_a_lock_and_cancels_waits() {
    let module = c::root().join("examples/python/dlm.py");
    let page = include_str!("../../docs/event_loops.md");
    let shown = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let text = std::fs::read_to_string(&module).unwrap();
    for line in shown.lines() {
        assert!(text.contains(line.trim()), "{line}");
    }
    // asyncio.to_thread() came with 3.9.
    let version = c::run(Command::new("python3").args(["-c", "import asyncio; asyncio.to_thread"]));
    if let Err(failure) = version {
        return skipped("python3", failure);
    }
    let dir = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", dir.path().join("store").display());
    let said = c::run(Command::new("python3").arg(&module).arg(c::library("libdlm.so")).arg(&store)).unwrap();
    let expected = "counted to 20 with rising fences: True\nthe task was cancelled\n\
                    the wait is over: lock \"XDC#python#held\" is held\n";
    assert_eq!(said, expected);
    let failed = Command::new("python3").arg(&module).arg(c::library("libdlm.so")).arg("nowhere:").output();
    assert!(
        String::from_utf8_lossy(&failed.unwrap().stderr).contains("DlmError"),
        "an error is an exception"
    );
}
