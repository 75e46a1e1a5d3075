//! What a test says of itself: to the terminal, and to a list that the program which runs the tests prints at its end.

use std::fs::File;
use std::io::Write as _;
use std::{env, thread};

/// Writes the test's name and `what` to the terminal. The test harness does not capture it.
pub(crate) fn say(what: &str) {
    // A failure to write must not fail the test.
    let _ = std::io::stderr().write_all(format!("\n*** {} {what}\n", test()).as_bytes());
}

/// Adds the test's name and `what` to the file that this variable names, if it is set.
pub(crate) fn list(variable: &str, what: &str) {
    let Some(file) = env::var_os(variable) else { return };
    let file = File::options().append(true).create(true).open(file);
    // As above.
    let _ = file.and_then(|mut file| file.write_all(format!("{} {what}\n", test()).as_bytes()));
}

fn test() -> String {
    thread::current().name().unwrap_or("a test").to_owned()
}
