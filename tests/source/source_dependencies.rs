//! Rules for the library's dependencies: licences, sources, banned crates, and which feature adds which crates. Each
//! rule is a table with its exceptions and their reasons. docs/dependencies.md lists the same.
//!
//! Known advisories need a database: see `tests/advisories`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Allowed licences. They only require that their text is passed on.
const LICENCES: [&str; 6] = ["Apache-2.0", "BSD-3-Clause", "ISC", "MIT", "Unicode-3.0", "Zlib"];

/// Crates with another licence: name, licence, and the reason why the crate is allowed.
const OTHER_LICENCES: [(&str, &str, &str); 1] = [(
    "cbindgen",
    "MPL-2.0",
    "writes the C header while the library is built with feature `capi`, and is not part of the library",
)];

/// Crates that are banned, also in tests.
const BANNED: [(&str, &str); 4] = [
    ("openssl-sys", "TLS is rustls, which needs no library of the system"),
    ("native-tls", "TLS is rustls, which needs no library of the system"),
    ("async-std", "no longer maintained, and a second runtime beside tokio"),
    ("smol", "a second runtime beside tokio"),
];

/// Crates that only one feature may add to the library.
const ONLY_BY: [(&str, &str, &str); 9] = [
    ("aerospike", "aerospike", "half of all crates"),
    ("tokio", "aerospike", "a runtime, which only the Aerospike client needs"),
    ("thrift", "gateway", "the pinned 0.17 has known advisories, see .cargo/audit.toml"),
    ("hbase-thrift", "gateway", "it requires that version of thrift"),
    ("heed", "embedded", "builds LMDB, in C"),
    ("clap", "cli", "only the command needs it"),
    ("cbindgen", "capi", "writes the C header"),
    ("metrics", "metrics", "only programs with a recorder need it"),
    ("tracing", "tracing", "only programs with a subscriber need it"),
];

/// Features of crates that must be off.
const FEATURES_OFF: [(&str, &str, &str); 2] = [
    ("aerospike", "sync", "it starts a runtime; the library runs its own on the calling thread"),
    ("aerospike", "rt-async-std", "async-std is banned"),
];

/// Crates in more than one version, and the crate that needs the old version.
const TWICE: [(&str, &str); 6] = [
    (
        "getrandom",
        "0.2 by ring, which rustls needs; 0.3 by stateright, which checks the model in tests/models",
    ),
    ("hashbrown", "0.14 by dashmap, which is for benchmarks and for stateright only"),
    ("rand", "0.8 by phf, which the build of LMDB needs; 0.9 by stateright"),
    ("rand_core", "as rand"),
    ("syn", "2 by prost-derive and derive_more; runs in the compiler only"),
    ("winnow", "0.7 by cbindgen, for the C header only"),
];

const FEATURES: [&str; 8] =
    ["embedded", "hbase", "gateway", "aerospike", "cli", "capi", "metrics", "tracing"];

/// All crates that a set of features adds, and how they depend on each other.
struct Graph {
    packages: BTreeMap<String, Value>,
    nodes: BTreeMap<String, Value>,
    root: String,
    /// The library and the other crates of its workspace.
    ours: BTreeSet<String>,
}

impl Graph {
    /// Reads the graph for this system only. Crates for other systems may not be downloaded.
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

    /// Returns all crates except those of the workspace.
    fn crates(&self) -> impl Iterator<Item = &Value> {
        self.packages.iter().filter(|(id, _)| !self.ours.contains(*id)).map(|(_, package)| package)
    }

    /// Returns the names of the library's dependencies and build dependencies, without development dependencies.
    fn of_the_library(&self) -> BTreeSet<&str> {
        self.ids_of_the_library().into_iter().map(|id| text(&self.packages[id]["name"])).collect()
    }

    /// Returns the same as ids, with a separate id for each version of a crate. The library is included.
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

/// Returns whether the allowed licences satisfy a licence expression.
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
    // An exception permits more than the licence, so it is ignored.
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
    // The lock files cover all systems, and the fuzz targets.
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
        let node = graph.nodes.values().find(is_named).unwrap_or_else(|| panic!("{name} is not used"));
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
            // The command includes the embedded store.
            let expected = feature == Some(owner) || (feature == Some("cli") && owner == "embedded");
            assert_eq!(library.contains(name), expected, "{name} with {feature:?}: {reason}");
        }
    }
}

/// A new user waits for this build.
#[test]
fn the_readmes_first_command_builds_at_most_75_crates() {
    let command = include_str!("../../README.md").lines().find_map(|line| line.strip_prefix("cargo run "));
    let features = command.unwrap().strip_prefix("--features ").unwrap().split(' ').next().unwrap();
    let features: Vec<_> = features.split(',').chain(["default"]).collect();
    let graph = Graph::with(&features);
    let built = graph.ids_of_the_library();
    assert!(built.len() <= 75, "{} with {features:?}: {built:#?}", built.len());
}

/// Uses `cargo tree`, because it knows the features of each crate. The metadata joins those of the whole workspace.
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
        let mut tree = Command::new(env!("CARGO"));
        tree.args(["tree", "--locked", "--package=dlm", "--edges=normal", "--prefix=none", "--no-dedupe"]);
        tree.args(["--format={p}", "--no-default-features"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        if row[0] != "none" {
            tree.args(["--features", row[0]]);
        }
        let output = tree.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let tree = String::from_utf8(output.stdout).unwrap();
        let crates: BTreeSet<_> = tree.lines().map(|line| line.split(" (").next().unwrap()).collect();
        // The library is one of them.
        assert_eq!(row[2].parse(), Ok(crates.len() - 1), "{}: {crates:#?}", row[0]);
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

/// An advisory may be ignored only if a test shows that it is harmless here.
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

/// Without a database the script checks nothing. That must not look like "no advisory found".
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
