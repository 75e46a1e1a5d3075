//! Tests that take long: left to the long run, aloud.

use std::fs::File;
use std::io::Write as _;
use std::{env, thread};

/// Whether this is the long run: `DLM_TEST_LONG=1` is set.
pub fn is_long() -> bool {
    env::var("DLM_TEST_LONG").is_ok_and(|long| long == "1")
}

/// Whether this test is left to the long run, after saying so past the test harness; it is to return then.
pub fn left_to_the_long_run() -> bool {
    !is_long() && {
        say("is left to the long run");
        true
    }
}

/// Whether this test does only a part of its work outside the long run, after saying so past the test
/// harness. `part` says which: `one program of eleven`.
pub fn shortened(part: &str) -> bool {
    !is_long() && {
        say(&format!("does only a part: {part}"));
        true
    }
}

/// To the terminal, and to the file that `DLM_TEST_LEFT_OUT` names: what runs the tests prints it at its end,
/// where it is read.
fn say(what: &str) {
    let test = thread::current().name().unwrap_or("a test").to_owned();
    let _ = std::io::stderr().write_all(format!("\n*** {test} {what} (DLM_TEST_LONG=1)\n").as_bytes());
    let Some(list) = env::var_os("DLM_TEST_LEFT_OUT") else { return };
    // A list that cannot be written costs no test.
    let list = File::options().append(true).create(true).open(list);
    let _ = list.and_then(|mut list| list.write_all(format!("{test} {what}\n").as_bytes()));
}
