//! Runs the examples about rows with the commands of docs/rows.md, and compares their output with that page.
#![cfg(all(feature = "hbase", feature = "embedded"))]

use std::path::{Path, PathBuf};
use std::process::Command;

use dlm_fixtures::hbase::{fresh_table, hbase_or_skip};

/// Runs an example with a new table and returns its output. Returns `None` if this machine cannot run HBase.
fn run(example: &str) -> Option<String> {
    let hbase = hbase_or_skip()?;
    let uri = format!("hbase://{}/{}", hbase.master, fresh_table(example));
    let output = Command::new(built(example)).arg(&uri).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {said}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Builds an example exactly as `cargo test --workspace --all-features` has built it, and returns its path.
///
/// Otherwise it would replace the libdlm.rlib that doctests after this test are compiled with, because Cargo gives that
/// file one name for all builds. Without `--workspace`, dependencies have other features.
fn built(example: &str) -> PathBuf {
    let mut cargo = dlm_fixtures::cargo();
    cargo.args(["build", "--quiet", "--workspace", "--all-features", "--example", example]);
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{example}: {}", String::from_utf8_lossy(&output.stderr));
    let of_the_tests = std::env::current_exe().unwrap();
    of_the_tests.parent().and_then(Path::parent).unwrap().join("examples").join(example)
}

/// Returns the output that docs/rows.md shows after the command that runs an example.
fn documented(example: &str) -> String {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/rows.md")).unwrap();
    let (_, block) = page.split_once(&format!("$ cargo run --example {example} ")).expect(example);
    let (command_and_output, _) = block.split_once("```").unwrap();
    command_and_output.split_once('\n').unwrap().1.to_owned()
}

#[test]
fn of_many_processes_that_make_a_row_one_is_told_that_it_did() {
    let Some(printed) = run("create_or_update") else { return };
    assert_eq!(printed, documented("create_or_update"));
}

#[test]
fn transfers_under_contention_lose_nothing() {
    let Some(printed) = run("transfer") else { return };
    assert_eq!(printed, documented("transfer"));
}

#[test]
fn a_stopped_holder_is_refused_when_it_goes_on() {
    let Some(printed) = run("fenced_writer") else { return };
    assert_eq!(printed, documented("fenced_writer"));
}
