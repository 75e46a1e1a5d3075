//! What the library may be built from: licences, sources, what is banned, and which feature brings what.
//! Each rule is a table, each exception stands in it with its reason. docs/dependencies.md tells the same.
//!
//! Known advisories need a database: see `tests/advisories`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Each asks for no more than that its text is passed on.
const LICENCES: [&str; 6] = ["Apache-2.0", "BSD-3-Clause", "ISC", "MIT", "Unicode-3.0", "Zlib"];

/// Crate, its licence, why it is taken all the same.
const OTHER_LICENCES: [(&str, &str, &str); 1] = [(
    "cbindgen",
    "MPL-2.0",
    "writes the C header while the library is built, with feature `capi`; none of it is in the library",
)];

/// Crates that must not come in, not even for tests.
const BANNED: [(&str, &str); 4] = [
    ("openssl-sys", "TLS is rustls: nothing of the system has to fit"),
    ("native-tls", "the same"),
    ("async-std", "no longer maintained, and a second runtime beside tokio"),
    ("smol", "a second runtime beside tokio"),
];

/// Crates that only one feature may bring into the library.
const ONLY_BY: [(&str, &str, &str); 7] = [
    ("aerospike", "aerospike", "half of all crates"),
    ("tokio", "aerospike", "a runtime, which only the Aerospike client needs"),
    ("thrift", "gateway", "the pinned 0.17 has known advisories, see .cargo/audit.toml"),
    ("hbase-thrift", "gateway", "it names that version of thrift"),
    ("heed", "embedded", "builds LMDB, in C"),
    ("clap", "cli", "for the command alone"),
    ("cbindgen", "capi", "writes the C header"),
];

/// Features of a crate that must not be on.
const FEATURES_OFF: [(&str, &str, &str); 2] = [
    ("aerospike", "sync", "it starts a runtime of its own; ours is driven by the calling thread"),
    ("aerospike", "rt-async-std", "async-std is banned"),
];

/// Crates in more than one version, and who holds the old one back.
const TWICE: [(&str, &str); 8] = [
    ("getrandom", "0.2 by ring, which rustls needs"),
    ("hashbrown", "0.14 by dashmap, which is for benchmarks only"),
    ("rand", "0.8 by phf, which the build of LMDB needs"),
    ("rand_core", "as rand"),
    ("shlex", "1 by trycmd, which is for tests only"),
    ("syn", "2 by prost-derive and derive_more; runs in the compiler only"),
    ("toml_datetime", "0.7 by cbindgen, for the C header only"),
    ("winnow", "as toml_datetime"),
];

const FEATURES: [&str; 6] = ["embedded", "hbase", "gateway", "aerospike", "cli", "capi"];

/// All crates that some features bring, and how they depend on each other.
struct Graph {
    packages: BTreeMap<String, Value>,
    nodes: BTreeMap<String, Value>,
    root: String,
    /// The library and the other crates of its workspace.
    ours: BTreeSet<String>,
}

impl Graph {
    /// For this system: crates for others are not downloaded here.
    fn with(features: &[&str]) -> Graph {
        let host = Command::new("rustc").arg("-vV").output().expect("rustc");
        let host = String::from_utf8(host.stdout).unwrap();
        let host = host.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned();
        let metadata = Command::new(env!("CARGO"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args([
                "metadata",
                "--format-version=1",
                "--locked",
                "--filter-platform",
                &host,
                "--no-default-features",
            ])
            .args(["--features", &features.join(",")])
            .output()
            .expect("cargo");
        assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
        let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
        let by_id = |list: &Value| {
            list.as_array().unwrap().iter().map(|one| (text(&one["id"]).to_owned(), one.clone())).collect()
        };
        Graph {
            packages: by_id(&metadata["packages"]),
            nodes: by_id(&metadata["resolve"]["nodes"]),
            root: text(&metadata["resolve"]["root"]).to_owned(),
            ours: metadata["workspace_members"]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| text(id).to_owned())
                .collect(),
        }
    }

    fn all() -> Graph {
        Graph::with(&FEATURES)
    }

    /// All but the workspace's own.
    fn crates(&self) -> impl Iterator<Item = &Value> {
        self.packages.iter().filter(|(id, _)| !self.ours.contains(*id)).map(|(_, package)| package)
    }

    /// Names of what the library is built from and with: no development dependencies.
    fn of_the_library(&self) -> BTreeSet<&str> {
        self.ids_of_the_library().into_iter().map(|id| text(&self.packages[id]["name"])).collect()
    }

    /// The same, each version of a crate by itself. The library is among them.
    fn ids_of_the_library(&self) -> BTreeSet<&str> {
        let (mut found, mut open) = (BTreeSet::new(), vec![self.root.as_str()]);
        while let Some(id) = open.pop() {
            if !found.insert(id) {
                continue;
            }
            for dependency in self.nodes[id]["deps"].as_array().unwrap() {
                let mut kinds = dependency["dep_kinds"].as_array().unwrap().iter();
                if kinds.any(|kind| kind["kind"] != "dev") {
                    open.push(text(&dependency["pkg"]));
                }
            }
        }
        found
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Whether a licence expression can be met by licences of the list.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    any_of(&mut rest) && rest.is_empty()
}

fn any_of(rest: &mut &[&str]) -> bool {
    let mut allowed = all_of(rest);
    while take(rest, "OR") {
        allowed |= all_of(rest);
    }
    allowed
}

fn all_of(rest: &mut &[&str]) -> bool {
    let mut allowed = one(rest);
    while take(rest, "AND") {
        allowed &= one(rest);
    }
    allowed
}

fn one(rest: &mut &[&str]) -> bool {
    if take(rest, "(") {
        return any_of(rest) & take(rest, ")");
    }
    let Some((name, after)) = rest.split_first() else { return false };
    *rest = after;
    // An exception permits more than the licence does.
    if take(rest, "WITH") {
        *rest = rest.get(1..).unwrap_or_default();
    }
    LICENCES.contains(name)
}

fn take(rest: &mut &[&str], word: &str) -> bool {
    let is_next = rest.first() == Some(&word);
    if is_next {
        *rest = &rest[1..];
    }
    is_next
}

#[test]
fn licence_expressions_are_understood() {
    for good in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0-only OR MIT",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception",
        "MPL-2.0 AND ISC OR MIT",
    ] {
        assert!(is_allowed(good), "{good}");
    }
    for bad in
        ["", "GPL-3.0-only", "MIT AND GPL-3.0-only", "(MIT", "MIT MIT", "MIT AND", "(MIT OR ISC) AND MPL-2.0"]
    {
        assert!(!is_allowed(bad), "{bad}");
    }
}

#[test]
fn every_licence_is_of_the_list_or_has_its_reason() {
    let graph = Graph::all();
    let others: BTreeSet<_> = graph
        .crates()
        .filter(|package| !is_allowed(text(&package["license"])))
        .map(|package| (text(&package["name"]), text(&package["license"])))
        .collect();
    assert_eq!(others, OTHER_LICENCES.iter().map(|(name, licence, _)| (*name, *licence)).collect());
}

#[test]
fn all_crates_are_from_crates_io() {
    for package in Graph::all().crates() {
        assert_eq!(package["source"], CRATES_IO, "{}", package["id"]);
    }
    // For all systems, and of the fuzz targets as well.
    for file in ["Cargo.lock", "tests/fuzz/Cargo.lock"] {
        let lock = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let sources: BTreeSet<_> = lock.lines().filter_map(|line| line.strip_prefix("source = ")).collect();
        assert_eq!(sources, BTreeSet::from([format!("{CRATES_IO:?}").as_str()]), "{file}");
    }
}

#[test]
fn nothing_banned_comes_in() {
    let graph = Graph::all();
    for (name, reason) in BANNED {
        assert!(graph.crates().all(|package| package["name"] != name), "{name}: {reason}");
    }
    for (name, feature, reason) in FEATURES_OFF {
        let is_named = |node: &&Value| graph.packages[text(&node["id"])]["name"] == name;
        let node = graph.nodes.values().find(is_named).unwrap_or_else(|| panic!("{name} is gone"));
        let on = node["features"].as_array().unwrap();
        assert!(on.iter().all(|on| on != feature), "{name} with {feature}: {reason}");
    }
}

#[test]
fn a_feature_brings_what_is_its_own_and_nothing_of_others() {
    let manifest = include_str!("../../Cargo.toml").split("\n[features]").nth(1).unwrap();
    let manifest = manifest.split("\n[dependencies]").next().unwrap();
    let named: BTreeSet<_> = manifest.lines().filter_map(|line| Some(line.split_once(" = [")?.0)).collect();
    assert_eq!(named, FEATURES.into_iter().chain(["default", "all-stores"]).collect(), "features");
    for feature in FEATURES.map(Some).into_iter().chain([None]) {
        let graph = Graph::with(feature.as_slice());
        let library = graph.of_the_library();
        for (name, owner, reason) in ONLY_BY {
            // The command comes with the embedded store.
            let expected = feature == Some(owner) || (feature == Some("cli") && owner == "embedded");
            assert_eq!(library.contains(name), expected, "{name} with {feature:?}: {reason}");
        }
    }
}

/// It is what a newcomer waits for.
#[test]
fn the_readmes_first_command_builds_at_most_75_crates() {
    let command = include_str!("../../README.md").lines().find_map(|line| line.strip_prefix("cargo run "));
    let features = command.unwrap().strip_prefix("--features ").unwrap().split(' ').next().unwrap();
    let features: Vec<_> = features.split(',').chain(["default"]).collect();
    let graph = Graph::with(&features);
    let built = graph.ids_of_the_library();
    assert!(built.len() <= 75, "{} with {features:?}: {built:#?}", built.len());
}

/// With all that each of them brings. The library itself is not counted.
#[test]
fn the_table_of_features_counts_their_crates() {
    let page = include_str!("../../docs/dependencies.md");
    let table = page.split("## Features").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<Vec<_>> = table
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| feature"))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect())
        .collect();
    let told: BTreeSet<_> = rows.iter().map(|row| row[0]).collect();
    let manifest = include_str!("../../Cargo.toml");
    let features = manifest.split("[features]").nth(1).unwrap().split("\n[").next().unwrap();
    let features = features.lines().filter_map(|line| Some(line.split_once(" = [")?.0));
    assert_eq!(told, features.filter(|name| *name != "default").chain(["none"]).collect());
    for row in rows {
        let features: Vec<_> = (row[0] != "none").then_some(row[0]).into_iter().collect();
        let count = Graph::with(&features).ids_of_the_library().len() - 1;
        assert_eq!(row[2].parse(), Ok(count), "{}", row[0]);
    }
}

#[test]
fn crates_in_two_versions_have_their_reason() {
    let graph = Graph::all();
    let mut versions = BTreeMap::<_, usize>::new();
    for package in graph.crates() {
        *versions.entry(text(&package["name"])).or_default() += 1;
    }
    let twice: BTreeSet<_> =
        versions.iter().filter(|(_, count)| **count > 1).map(|(name, _)| *name).collect();
    assert_eq!(twice, TWICE.iter().map(|(name, _)| *name).collect());
}

/// An advisory that is passed over is one that a test shows to be harmless.
#[test]
fn each_advisory_that_is_passed_over_has_its_test() {
    let hostile = include_str!("../gateway_hostile.rs");
    let mut passed_over = 0;
    for line in include_str!("../../.cargo/audit.toml").lines() {
        let Some((id, reason)) = line.trim().strip_prefix('"').and_then(|line| line.split_once("\", #"))
        else {
            continue;
        };
        let test = format!("\nfn {}_", id.to_lowercase().replace('-', "_"));
        assert!(hostile.contains(&test), "{id} has no test in tests/gateway_hostile.rs");
        assert!(!reason.trim().is_empty(), "{id} has no reason");
        passed_over += 1;
    }
    assert_eq!(passed_over, 3);
}

/// Without a database nothing is looked up, and that must not pass for "none found".
#[test]
fn advisories_that_cannot_be_looked_up_are_skipped_loudly() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/advisories");
    let run = |database: &str| Command::new(&script).env("DLM_ADVISORY_DB", database).output().unwrap();
    let skipped = run("");
    let said = String::from_utf8(skipped.stderr).unwrap();
    assert!(skipped.status.success(), "{said}");
    for word in ["*** SKIPPED: ", "cargo install cargo-audit --locked", "git clone ", "DLM_ADVISORY_DB="] {
        assert!(said.contains(word), "{word:?} is missing: {said}");
    }
    let refused = run("/no/such/folder");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("DLM_ADVISORY_DB=/no/such/folder"), "{said}");
}
