//! The README's commands and outputs, run. (Its Rust example is a documentation test of the crate.)

use std::path::Path;

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
    let readme = include_str!("../README.md");
    assert!(readme.contains("\ncargo run --features cli -- demo "));
    assert!(readme.contains("\ntests/run "));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = std::fs::read_to_string(root.join("tests/run")).unwrap();
    assert!(script.contains("cargo test --all-features"));
    assert!(std::fs::read_to_string(root.join(".ci/run")).unwrap().contains("exec tests/run"));
    for command in ["run", "acquire", "renew", "release", "show", "init", "demo"] {
        assert!(
            readme.contains(&format!("dlm {command}")) || readme.contains(&format!("-- {command}")),
            "{command}"
        );
    }
}

/// A crate that is taken on is named with its reason.
#[test]
fn every_dependency_has_its_reason() {
    let manifest = include_str!("../Cargo.toml");
    let readme = include_str!("../README.md");
    let section = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let names = section.lines().filter_map(|line| line.split_once(" = ").map(|(name, _)| name.trim()));
    let reasons = readme.split("## Dependencies").nth(1).unwrap().split("\n## ").next().unwrap();
    let missing: Vec<_> = names.filter(|name| !name.starts_with('#') && !reasons.contains(name)).collect();
    assert!(missing.is_empty(), "not in the README's table: {missing:?}");
}
