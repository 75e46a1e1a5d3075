//! The commands and tables of docs/moving_java.md, with a real HBase and a real Aerospike, and Java programs that make the
//! calls of the DLM.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use dlm::store::HbaseStore;
use dlm::{Code, Level, LockManager};
use dlm_fixtures::console::Console;
use dlm_fixtures::hbase::{Hbase, fresh_table, hbase_or_skip};
use dlm_fixtures::peer::Peer;

use super::tables::{code_in, rows_after};

const PAGE: &str = include_str!("../../docs/moving_java.md");
/// Those of the DLM, `com.phonepe.dlm.exception.ErrorCode`.
const JAVA: [&str; 5] =
    ["CONNECTION_ERROR", "INTERNAL_ERROR", "LOCK_UNAVAILABLE", "RETRIES_EXHAUSTED", "TABLE_CREATION_ERROR"];

/// Gives each URI of the page, whose path ends with this word, a time-out that a busy server keeps.
fn with_long_timeout(console: Console, end: &str) -> Console {
    // The first ones are for URIs without options, and the last one takes the option out of what is printed.
    ["' run", " DLM_CLIENT", " init", " acquire", " release"]
        .into_iter()
        .fold(console, |console, next| {
            console.place(&format!("/{end}{next}"), &format!("/{end}?timeout=60s{next}"))
        })
        .place("?layout=", "?timeout=60s&layout=")
        .place(" is ready", "?timeout=60s is ready")
}

/// A shell in which the page's names of the server and the table stand for these.
fn console(hbase: &Hbase, table: &str) -> Console {
    let console = with_long_timeout(Console::new(Path::new(env!("CARGO_BIN_EXE_dlm"))), "locks");
    let console = console.place("master1:16000/locks", &format!("{}/{table}", hbase.master));
    console.place("latches=locks", &format!("latches={table}"))
}

#[test]
fn what_the_page_shows_beside_a_java_service_is_so() {
    let Some(hbase) = hbase_or_skip() else { return };
    let (table, mut java) = (fresh_table("moving"), Peer::start(hbase));
    java.ask(&format!("create {table}"));
    let uri = format!("hbase://{}/{table}", hbase.master);
    let manager = LockManager::builder().store_uri(&uri).client("payments").farm("dc1").open().unwrap();
    let row = |id: &str| HbaseStore::lock_row(manager.lock(id, Level::Dc).unwrap().name());
    assert!(java.acquires(&table, &row("txn-456"), 600_000));
    console(hbase, &table).run_blocks_of(PAGE, "what_the_page_shows_beside_a_java_service_is_so");
    assert!(!java.acquires(&table, &row("txn-457"), 600_000), "Java got a lock that the page has acquired");
    assert!(java.acquires(&table, &row("txn-458"), 600_000));
}

#[test]
fn a_fleet_leaves_the_rows_of_java_by_the_commands_of_the_page() {
    let Some(hbase) = hbase_or_skip() else { return };
    let mut console = console(hbase, &fresh_table("leaving"));
    console.run_blocks_of(PAGE, "a_fleet_leaves_the_rows_of_java_by_the_commands_of_the_page");
}

/// The set suffix of a test, and a shell in which the page's names of the server and the set stand for these.
#[cfg(feature = "aerospike")]
fn console_on(place: &dlm_fixtures::aerospike::Place, test: &str) -> (String, Console) {
    let suffix = fresh_table(test);
    let uri = format!("aerospike://{}/{}/{suffix}", place.address, place.namespace);
    let console = with_long_timeout(Console::new(Path::new(env!("CARGO_BIN_EXE_dlm"))), "sfx");
    (suffix, console.place("aerospike://host1:3000/ns/sfx", &uri))
}

#[cfg(feature = "aerospike")]
#[test]
fn what_the_page_shows_beside_a_java_service_on_aerospike_is_so() {
    let Some(place) = dlm_fixtures::aerospike::aerospike_or_skip() else { return };
    let mut java = match dlm_fixtures::aerospike_java::start(&place) {
        Ok(java) => java,
        Err(reason) => return dlm_testkit::skipped("maven", reason),
    };
    let (suffix, mut console) = console_on(&place, "moving");
    let mut acquires = |id: &str| java.ask(&format!("acquire DC#dc1#{suffix} payments#{id} dc1 600"));
    assert_eq!(acquires("txn-456"), "acquired");
    console.run_blocks_of(PAGE, "what_the_page_shows_beside_a_java_service_on_aerospike_is_so");
    assert_eq!(acquires("txn-457"), "unavailable", "Java got a lock that the page has acquired");
    assert_eq!(acquires("txn-458"), "acquired");
}

#[cfg(feature = "aerospike")]
#[test]
fn a_fleet_leaves_the_records_of_java_by_the_commands_of_the_page() {
    let Some(place) = dlm_fixtures::aerospike::aerospike_or_skip() else { return };
    let (_, mut console) = console_on(&place, "leaving");
    console.run_blocks_of(PAGE, "a_fleet_leaves_the_records_of_java_by_the_commands_of_the_page");
}

#[test]
fn every_call_that_replaces_one_of_java_exists() {
    fn sources(folder: &Path, text: &mut String) {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                sources(&path, text)
            } else {
                text.push_str(&fs::read_to_string(path).unwrap())
            }
        }
    }
    let mut text = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
    let help = super::Shell::new().run(&["--help"]).ok().out;
    let mut calls = 0;
    for row in rows_after(PAGE, "\n## Both at once\n") {
        for code in code_in(&row[1]) {
            if let Some((call, _)) = code.split_once('(') {
                let name = call.rsplit("::").next().unwrap();
                assert!(text.contains(&format!("pub fn {name}(")), "there is no {code}");
                calls += 1;
            } else if code.starts_with("--") {
                assert!(help.contains(code), "{code}");
            }
        }
    }
    assert!(calls > 10, "{calls}");
}

#[test]
fn the_errors_of_java_and_ours_are_mapped_whole() {
    let (mut java, mut ours) = (BTreeSet::new(), BTreeSet::new());
    for row in rows_after(PAGE, "\n## Errors\n") {
        let theirs = row[0].split([' ', ':']).next().unwrap().to_owned();
        assert!(theirs == "none" || JAVA.contains(&theirs.as_str()), "{theirs}");
        java.insert(theirs);
        ours.extend(row[1].split(", ").map(str::to_owned));
    }
    java.remove("none");
    assert!(java.iter().eq(JAVA.iter()), "{java:?}");
    assert_eq!(ours, Code::ALL.iter().map(|code| code.name().to_owned()).collect());
}
