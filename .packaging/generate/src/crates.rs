//! The crates that are linked into the library and the command.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Outcome;

/// A crate of crates.io.
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) version: String,
    /// An SPDX expression.
    pub(crate) licence: String,
    pub(crate) authors: String,
    /// The folder with its source.
    pub(crate) folder: PathBuf,
    /// SHA-256 of the file that crates.io serves, from `Cargo.lock`.
    pub(crate) checksum: String,
    /// Those of its dependencies that are linked, as `name version`.
    pub(crate) needs: BTreeSet<String>,
}

/// The crates that a build with these features for this target links, without `dlm`, and what `dlm` itself needs.
pub(crate) struct Linked {
    pub(crate) version: String,
    pub(crate) needs: BTreeSet<String>,
    pub(crate) crates: BTreeMap<String, Crate>,
}

pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

pub(crate) fn linked(features: &str, target: &str) -> Outcome<Linked> {
    // `cargo tree` knows which crates a set of features links. The metadata joins the features of the whole workspace,
    // but has everything else.
    let mut tree = cargo(&["tree", "--package=dlm", "--edges=normal", "--prefix=none", "--no-dedupe"]);
    let tree = output(tree.args(["--format={p}", "--features", features, "--target", target]))?;
    let named: BTreeSet<_> = tree.lines().filter_map(name_and_version).collect();
    let mut metadata = cargo(&["metadata", "--format-version=1", "--filter-platform", target]);
    let metadata = output(metadata.args(["--features", features]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let checksums = checksums()?;
    let packages = list(&metadata["packages"]);
    let by_id: BTreeMap<_, _> = packages.iter().map(|it| (text(&it["id"]), key(it))).collect();
    let nodes = list(&metadata["resolve"]["nodes"]).iter();
    let needs: BTreeMap<_, BTreeSet<_>> = nodes
        .map(|node| {
            let needs = list(&node["deps"]).iter().filter(|dependency| {
                list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null())
            });
            let needs = needs.map(|dependency| by_id[text(&dependency["pkg"])].clone());
            (by_id[text(&node["id"])].clone(), needs.filter(|it| named.contains(it)).collect())
        })
        .collect();
    let mut linked = Linked { version: String::new(), needs: BTreeSet::new(), crates: BTreeMap::new() };
    for package in packages.iter().filter(|it| named.contains(&key(it))) {
        let (key, needs) = (key(package), needs.get(&key(package)).cloned().unwrap_or_default());
        if package["name"] == "dlm" {
            (linked.version, linked.needs) = (text(&package["version"]).to_owned(), needs);
            continue;
        }
        let folder = Path::new(text(&package["manifest_path"])).parent().expect("a file is in a folder");
        let known = Crate {
            name: text(&package["name"]).to_owned(),
            version: text(&package["version"]).to_owned(),
            licence: text(&package["license"]).replace('/', " OR "),
            authors: list(&package["authors"]).iter().map(text).collect::<Vec<_>>().join(", "),
            folder: folder.to_owned(),
            checksum: checksums.get(&key).cloned().ok_or_else(|| format!("Cargo.lock has no {key}"))?,
            needs,
        };
        linked.crates.insert(key, known);
    }
    // The library itself is one of those.
    if linked.crates.len() + 1 != named.len() {
        return Err(
            format!("cargo metadata has {} of {} crates", linked.crates.len() + 1, named.len()).into()
        );
    }
    Ok(linked)
}

fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(arguments).arg("--locked").current_dir(root());
    cargo
}

fn output(command: &mut Command) -> Outcome<String> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Reads `name v1.2.3 (proc-macro)`.
fn name_and_version(line: &str) -> Option<String> {
    let mut words = line.split(' ');
    Some(format!("{} {}", words.next()?, words.next()?.strip_prefix('v')?))
}

/// Returns the checksums of `Cargo.lock` by name and version.
fn checksums() -> Outcome<BTreeMap<String, String>> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock"))?;
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")))?;
        Some(line.trim_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]").filter_map(|package| {
        let key = format!("{} {}", value(package, "name")?, value(package, "version")?);
        Some((key, value(package, "checksum")?))
    });
    Ok(packages.collect())
}

fn key(package: &Value) -> String {
    format!("{} {}", text(&package["name"]), text(&package["version"]))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
