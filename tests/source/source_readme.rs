//! The README's commands and outputs, run. (Its Rust example is a documentation test of the crate.)

use std::collections::BTreeSet;
use std::path::Path;

use dlm::{Code, STORE_OPTIONS};

#[test]
fn the_commands_print_what_the_readme_shows() {
    let dir = tempfile::tempdir().unwrap();
    trycmd::TestCases::new()
        .case("README.md")
        .register_bin("dlm", Path::new(env!("CARGO_BIN_EXE_dlm")))
        .env("DLM_STORE", format!("embedded:{}", dir.path().join("store").display()))
        .run();
}

/// `cargo run` and `tests/run` cannot be run from inside a test: what they start is looked for instead.
#[test]
fn the_set_up_commands_start_what_they_say() {
    let readme = include_str!("../../README.md");
    assert!(readme.contains("\ncargo run --features cli -- demo "));
    assert!(readme.contains("\ntests/run "));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = std::fs::read_to_string(root.join("tests/run")).unwrap();
    assert!(script.contains("cargo test --workspace --all-features"));
    assert!(std::fs::read_to_string(root.join(".ci/run")).unwrap().contains("exec tests/run"));
    for command in ["run", "acquire", "renew", "release", "show", "latch", "init", "demo"] {
        assert!(
            readme.contains(&format!("dlm {command}")) || readme.contains(&format!("-- {command}")),
            "{command}"
        );
    }
}

/// A crate that is taken on is named with its reason, and one that is gone is not. So are features.
#[test]
fn every_dependency_has_its_reason() {
    let manifest = include_str!("../../Cargo.toml");
    let section = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let mut used: Vec<_> = section
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| Some(line.split_once(" = ")?.0.trim()))
        .collect();
    let reasons = rows_of(include_str!("../../docs/dependencies.md"), "## Crates");
    let mut named: Vec<_> = reasons.iter().flat_map(|row| row[0].split(", ")).collect();
    used.sort_unstable();
    named.sort_unstable();
    assert_eq!(named, used);
    let features = manifest.split("[features]").nth(1).unwrap().split("\n[").next().unwrap();
    let features = features.lines().filter_map(|line| line.split_once(" = [")).map(|(name, _)| name);
    let mut features: Vec<_> = features.filter(|name| *name != "default").collect();
    let mut shown: Vec<_> = rows("## Dependencies").iter().map(|row| row[0].trim_matches('`')).collect();
    features.push("none");
    features.sort_unstable();
    shown.sort_unstable();
    assert_eq!(shown, features);
}

#[test]
fn the_table_of_errors_is_that_of_the_code() {
    let told: Vec<_> = rows("## Errors").iter().map(|row| (row[0], row[1].parse::<i32>().unwrap())).collect();
    let all: Vec<_> = Code::ALL.iter().map(|code| (code.name(), code.number())).collect();
    assert_eq!(told, all);
}

/// Each option stands in the code once, and is explained in the README or the page of its store.
#[test]
fn the_options_are_those_of_the_code() {
    let told = rows("## Store URIs");
    for (stores, options) in STORE_OPTIONS {
        let of: Vec<_> = told.iter().filter(|row| row[1].trim_matches('`') == stores).collect();
        if stores == "all" {
            let cell = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
            let rows = options
                .iter()
                .map(|it| vec![cell(it.key), "all".into(), cell(it.default), it.meaning.into()]);
            assert!(of.into_iter().eq(&rows.collect::<Vec<_>>()), "{stores}");
        } else {
            let keys: Vec<_> = of.iter().flat_map(|row| keys_in(row[0])).collect();
            assert_eq!(keys, options.iter().map(|it| it.key).collect::<Vec<_>>(), "{stores}");
        }
    }
    let pages = [
        (include_str!("../../docs/hbase.md"), &["hbase://", "hbase+thrift://"][..], 2),
        (include_str!("../../docs/aerospike.md"), &["aerospike://"], 1),
    ];
    for (page, stores, default_at) in pages {
        let rows = rows_of(page, "## Options");
        let known =
            || STORE_OPTIONS.iter().filter(|(of, _)| stores.contains(of)).flat_map(|(_, known)| *known);
        let told: BTreeSet<_> = rows.iter().flat_map(|row| keys_in(row[0])).collect();
        assert_eq!(told, known().map(|it| it.key).collect(), "{stores:?}");
        for option in known().filter(|it| !it.default.is_empty()) {
            let row = rows.iter().find(|row| keys_in(row[0]).contains(&option.key)).unwrap();
            let told = row[default_at].replace('`', "");
            assert!(told.starts_with(option.default), "{}: {told}", option.key);
        }
    }
}

#[cfg(feature = "hbase")]
#[test]
fn the_options_of_rows_are_those_of_the_code() {
    let told = rows_of(include_str!("../../docs/rows.md"), "## Options");
    let cell = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
    for (stores, options) in dlm::TABLE_OPTIONS {
        let way = if stores == "hbase://" { "direct" } else { "gateway" };
        for it in options {
            let row =
                told.iter().find(|row| row[0] == cell(it.key) && [way, "both"].contains(&row[1])).unwrap();
            assert_eq!(row[2..], [cell(it.default), it.meaning.to_owned()], "{stores} {}", it.key);
        }
        let known = told.iter().filter(|row| [way, "both"].contains(&row[1])).count();
        assert_eq!(known, options.len(), "{stores}");
    }
}

/// The keys in a cell, each in backquotes.
fn keys_in(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The test server's gateway is set up as operators are told to.
#[test]
fn the_gateway_settings_are_those_tested_with() {
    let server = include_str!("../fixtures/hbase/server");
    let settings = rows_of(include_str!("../../docs/hbase.md"), "## Settings of a Thrift1 gateway");
    assert!(settings.len() > 5);
    for row in settings {
        let line = format!("\n{} {}\n", row[0].trim_matches('`'), row[1]);
        assert!(server.contains(&line), "{line:?} is not what the tests run with");
    }
}

fn rows(section: &str) -> Vec<Vec<&'static str>> {
    rows_of(include_str!("../../README.md"), section)
}

/// The cells of all table rows in a section, without the heads.
fn rows_of(page: &'static str, section: &str) -> Vec<Vec<&'static str>> {
    let text = page.split(section).nth(1).unwrap().split("\n## ").next().unwrap();
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    let lines: Vec<_> = text.lines().collect();
    let body = |at: &usize| lines[*at].starts_with('|') && !lines[*at].starts_with("|-");
    let head = |at: &usize| lines.get(at + 1).is_some_and(|next| next.starts_with("|-"));
    (0..lines.len()).filter(body).filter(|at| !head(at)).map(|at| cells(lines[at])).collect()
}
