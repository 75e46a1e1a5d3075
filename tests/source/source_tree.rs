//! The structure of the source: imports point down only, there are no import circles, and a type name has one
//! meaning.
//!
//! If a file names an item, by `use` or by a path in its code, an edge leads to the file that defines the item.
//! Re-exports in between are followed. `mod` lines and the list of public names in `src/lib.rs` are ignored. Arrows are
//! counted in all code, also that of unit tests. Circles are looked for in what any build but that of the tests compiles,
//! the simulation and the fuzz targets included.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers with their folders and files at the root of `src`, the lowest layer first. A file imports only from its own
/// layer and from lower ones.
const LAYERS: [(&str, &str); 9] = [
    ("ground", "error names settings runtime"),
    ("for threads and files of one machine", "local"),
    ("stores", "store"),
    ("what sinks are told", "events"),
    ("waiting", "wait latch"),
    ("a granted lock", "lease"),
    ("what is held", "session"),
    ("what callers hold", "handles hbase aerospike"),
    ("C and the command", "capi cli"),
];

/// What unit tests need of several layers. It may import from all of them.
const TESTING: &str = "testing";

/// Most files at the root of `src`.
const ROOT_MAX: usize = 5;

/// Names of types that are used in several places with one meaning, and why they are not one type.
const SAME_NAME: [(&str, &str); 1] =
    [("Record", "data that a store keeps for a lock or for an application: one type for each store")];

/// Files whose types may have the names of other types, and why.
const APART: [(&str, &str); 2] = [
    ("capi/without_hbase.rs", "stands in for `crate::hbase` where that is left out"),
    ("store/hbase/native/messages.rs", "uses the names of HBase's messages"),
];

/// Returns Rust code without comments, string literals and code that is compiled only for tests.
fn code_of(text: &str) -> String {
    without(&["test", "dlm_simulation"], &every_code_of(text))
}

/// Returns Rust code without comments and string literals.
fn every_code_of(text: &str) -> String {
    let (bytes, mut out, mut at) = (text.as_bytes(), String::new(), 0);
    while at < bytes.len() {
        let rest = &text[at..];
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(raw) = raw_text(rest).filter(|_| !ends_a_word(&out)) {
            raw
        } else if rest.starts_with('"') {
            quoted(rest, '"')
        } else if rest.starts_with('\'') && is_character(rest) {
            quoted(rest, '\'')
        } else {
            let length = rest.chars().next().expect("not at the end").len_utf8();
            out.push_str(&rest[..length]);
            at += length;
            continue;
        };
        at += skipped;
        out.push(' ');
    }
    out
}

fn ends_a_word(text: &str) -> bool {
    text.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Returns the length of `r"..."` or `r#"..."#`.
fn raw_text(text: &str) -> Option<usize> {
    let rest = text.strip_prefix('r').or_else(|| text.strip_prefix("br"))?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    let inner = rest[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(text.len() - inner.len() + inner.find(&end)? + end.len())
}

/// Returns the length of a string or character literal, with its quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns whether this is a character literal, and not a lifetime.
fn is_character(text: &str) -> bool {
    let mut rest = text.chars().skip(1);
    match rest.next() {
        Some('\\') => true,
        Some(_) => rest.next() == Some('\''),
        None => false,
    }
}

/// Removes each item after `#[cfg(test)]` and similar conditions, up to its `;` or its closing brace. `builds` are the
/// conditions whose items go.
fn without(builds: &[&str], code: &str) -> String {
    let mut out = String::new();
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(") {
        let condition_end = at + rest[at..].find(")]").map_or(rest.len() - at, |end| end + 2);
        let condition = &rest[at..condition_end];
        let only_for =
            |what: &&str| condition.contains(*what) && !condition.contains(&format!("not({what})"));
        let for_tests = builds.iter().any(only_for);
        if !for_tests || condition.contains("any(") {
            out.push_str(&rest[..condition_end]);
            rest = &rest[condition_end..];
            continue;
        }
        out.push_str(&rest[..at]);
        rest = &rest[condition_end..];
        let end = rest.find([';', '{']).map_or(rest.len(), |end| match rest.as_bytes()[end] {
            b';' => end + 1,
            _ => end + braces(&rest[end..]),
        });
        // A marker for `Module::read`: the file of this module is for tests only.
        let item = &rest[..end];
        if let Some((_, name)) = item.split_once("mod ").filter(|_| item.ends_with(';')) {
            out.push_str(&format!("\nfor_tests!({name}\n"));
        }
        rest = &rest[end..];
    }
    out + rest
}

/// Returns the length of a block in braces.
fn braces(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

/// A file of the library: a module.
struct Module {
    /// For example `["store", "hbase"]`.
    path: Vec<String>,
    file: String,
    /// Modules that it declares and that are in other files.
    children: BTreeSet<String>,
    /// Types that it defines.
    types: Vec<String>,
    /// Names that it imports, each with its full path from the crate's root.
    imports: BTreeMap<String, Vec<String>>,
    /// All paths in the crate that it names.
    named: Vec<Vec<String>>,
}

impl Module {
    /// Reads a file without the items that only these `builds` have.
    fn read(file: &Path, root: &Path, builds: &[&str]) -> (Module, BTreeSet<String>) {
        let name = file.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        let mut path: Vec<String> = name.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if ["mod", "lib"].contains(&path.last().unwrap().as_str()) {
            path.pop();
        }
        let code = without(builds, &every_code_of(&fs::read_to_string(file).unwrap()));
        let words: Vec<&str> = tokens(&code);
        let (mut children, mut for_tests, mut types) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let (mut imports, mut named) = (BTreeMap::new(), Vec::new());
        let (mut at, mut depth, mut inline) = (0, 0, 0);
        while at < words.len() {
            match words[at..] {
                ["mod", _, "{", ..] if depth == inline => inline += 1,
                ["{", ..] => depth += 1,
                ["}", ..] => {
                    depth -= 1;
                    inline = inline.min(depth);
                }
                ["mod", child, ";", ..] => drop(children.insert(child.to_owned())),
                ["for_tests", "!", "(", child, ";", ..] => drop(for_tests.insert(child.to_owned())),
                ["struct" | "enum" | "trait" | "type" | "union", name, ..]
                    if depth == inline && name.starts_with(char::is_uppercase) =>
                {
                    types.push(name.to_owned());
                }
                _ => {}
            }
            at += 1;
        }
        // `super` in an inline module means this file's module.
        let absolute = |segments: &[String], depth: usize| -> Option<Vec<String>> {
            let mut from = path.clone();
            let mut rest = segments;
            match rest.first()?.as_str() {
                "crate" | "dlm" => {
                    from.clear();
                    rest = &rest[1..];
                }
                "self" => rest = &rest[1..],
                "super" => {
                    let mut left = depth;
                    while rest.first().is_some_and(|first| first == "super") {
                        if left > 0 {
                            left -= 1;
                        } else {
                            from.pop();
                        }
                        rest = &rest[1..];
                    }
                }
                first if children.contains(first) || for_tests.contains(first) => {}
                _ => return None,
            }
            from.extend(rest.iter().cloned());
            Some(from)
        };
        let (mut at, mut depth, mut inline) = (0, 0, Vec::new());
        while at < words.len() {
            match words[at] {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    if inline.last() == Some(&depth) {
                        inline.pop();
                    }
                }
                "mod" if words.get(at + 2) == Some(&"{") => inline.push(depth),
                // `pub(in crate::store)`
                "pub" if words.get(at + 1) == Some(&"(") => {
                    at += words[at..].iter().position(|word| *word == ")").unwrap();
                }
                "use" => {
                    let end = at + words[at..].iter().position(|word| *word == ";").unwrap();
                    for (segments, alias) in leaves(&words[at + 1..end]) {
                        if let Some(target) = absolute(&segments, inline.len()) {
                            imports.insert(alias, target.clone());
                            named.push(target);
                        }
                    }
                    at = end;
                    continue;
                }
                first if words.get(at + 1) == Some(&"::") && (at == 0 || words[at - 1] != "::") => {
                    let mut segments = vec![first.to_owned()];
                    let mut next = at + 1;
                    while words.get(next) == Some(&"::")
                        && words
                            .get(next + 1)
                            .is_some_and(|word| word.starts_with(|c: char| c == '_' || c.is_alphabetic()))
                    {
                        segments.push(words[next + 1].to_owned());
                        next += 2;
                    }
                    named.extend(absolute(&segments, inline.len()));
                    at = next;
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        (Module { path, file: name, children, types, imports, named }, for_tests)
    }
}

fn tokens(code: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c == '_' || c.is_alphanumeric();
        let length = match first {
            c if word(c) => rest.find(|c| !word(c)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        words.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    words
}

/// Returns the paths of a `use`, each with the name that it imports.
fn leaves(words: &[&str]) -> Vec<(Vec<String>, String)> {
    let mut prefix = Vec::new();
    let mut at = 0;
    while at < words.len() {
        match words[at] {
            "::" => {}
            "{" => {
                let (mut found, mut depth, mut from) = (Vec::new(), 0, at + 1);
                for (index, word) in words.iter().enumerate().skip(at + 1) {
                    match *word {
                        "{" => depth += 1,
                        "}" if depth > 0 => depth -= 1,
                        "," | "}" if depth == 0 => {
                            if from < index {
                                found.extend(leaves(&words[from..index]));
                            }
                            from = index + 1;
                        }
                        _ => {}
                    }
                }
                let whole = |(rest, alias): (Vec<String>, String)| {
                    let mut path: Vec<String> = prefix.clone();
                    // `a::{self}`
                    let (rest, alias) = match rest.as_slice() {
                        [only] if only == "self" && alias == "self" => (vec![], path.last().unwrap().clone()),
                        _ => (rest, alias),
                    };
                    path.extend(rest);
                    (path, alias)
                };
                return found.into_iter().map(whole).collect();
            }
            "as" => return vec![(prefix, words[at + 1].to_owned())],
            word => prefix.push(word.to_owned()),
        }
        at += 1;
    }
    let alias = prefix.last().cloned().unwrap_or_default();
    vec![(prefix, alias)]
}

struct Library {
    modules: BTreeMap<Vec<String>, Module>,
}

impl Library {
    /// Reads the library as builds for its users compile it.
    fn read() -> Library {
        Library::without(&["test", "dlm_simulation"])
    }

    /// Reads all that any build compiles, but for what only these `builds` do.
    fn without(builds: &[&str]) -> Library {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let (mut modules, mut for_tests) = (BTreeMap::new(), Vec::new());
        for file in files_below(&root) {
            let (module, tests) = Module::read(&file, &root, builds);
            for_tests.extend(tests.into_iter().map(|name| [module.path.as_slice(), &[name]].concat()));
            modules.insert(module.path.clone(), module);
        }
        modules.retain(|path, _| !for_tests.iter().any(|tests| path.starts_with(tests)));
        Library { modules }
    }

    /// Returns the module that defines the item at `path`, which begins at the crate's root.
    fn definer(&self, path: &[String], steps: usize) -> Option<&Module> {
        let mut module = self.modules.get(&Vec::new())?;
        for (at, name) in path.iter().enumerate() {
            let below = [module.path.as_slice(), std::slice::from_ref(name)].concat();
            if let Some(found) = self.modules.get(&below).filter(|_| module.children.contains(name)) {
                module = found;
            } else if let Some(target) = module.imports.get(name).filter(|_| steps < 20) {
                let whole = [target.as_slice(), &path[at + 1..]].concat();
                return self.definer(&whole, steps + 1);
            } else {
                break;
            }
        }
        Some(module)
    }

    /// Returns each file with the files that it imports from.
    fn edges(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut edges = BTreeMap::new();
        for module in self.modules.values().filter(|module| !module.path.is_empty()) {
            let to = module.named.iter().filter_map(|path| self.definer(path, 0));
            let to = to.filter(|to| !to.path.is_empty() && to.path != module.path);
            edges.insert(module.file.as_str(), to.map(|to| to.file.as_str()).collect());
        }
        edges
    }
}

fn files_below(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().unwrap() != "bin" {
            found.extend(files_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Finds a shortest path from each file back to itself, if there is one. Returns each circle once.
fn circles(edges: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let mut found = BTreeSet::new();
    for start in edges.keys() {
        let (mut from, mut next) = (BTreeMap::new(), vec![*start]);
        let mut round = None;
        while round.is_none() && !next.is_empty() {
            let mut further = Vec::new();
            for file in next {
                for to in &edges[file] {
                    if to == start {
                        round.get_or_insert(file);
                    } else if !from.contains_key(to) {
                        from.insert(*to, file);
                        further.push(*to);
                    }
                }
            }
            next = further;
        }
        let Some(mut file) = round else { continue };
        let mut circle = vec![file];
        while file != *start {
            file = from[file];
            circle.push(file);
        }
        circle.reverse();
        let least = (0..circle.len()).min_by_key(|at| circle[*at]).unwrap();
        circle.rotate_left(least);
        circle.push(circle[0]);
        found.insert(circle.join(" -> "));
    }
    found.into_iter().collect()
}

#[test]
fn no_import_goes_round_in_a_circle() {
    let library = Library::without(&["test"]);
    let edges = library.edges();
    let count: usize = edges.values().map(BTreeSet::len).sum();
    assert!(edges.len() > 100 && count > 500, "only {count} edges of {} files were found", edges.len());
    let circles = circles(&edges);
    println!("{} files, {count} arrows, {} circles", edges.len(), circles.len());
    assert!(circles.is_empty(), "{} circles:\n{}", circles.len(), circles.join("\n"));
}

/// Returns the folder at the root of `src` that has the file, or its name without `.rs`.
fn room(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap()
}

fn layer(file: &str) -> usize {
    let found = LAYERS.iter().position(|(_, rooms)| rooms.split(' ').any(|it| it == room(file)));
    found.unwrap_or_else(|| panic!("src/{file} is in no layer: see LAYERS"))
}

#[test]
fn imports_point_down() {
    let library = Library::without(&[]);
    let (mut wrong, mut down, mut within) = (Vec::new(), 0, 0);
    for (from, to) in library.edges().into_iter().filter(|(from, _)| room(from) != TESTING) {
        for to in to.into_iter().filter(|to| room(to) != TESTING) {
            match (layer(from), layer(to)) {
                (own, other) if own < other => {
                    wrong.push(format!("{from} ({}) imports from {to} ({})", LAYERS[own].0, LAYERS[other].0))
                }
                (own, other) if own == other => within += 1,
                _ => down += 1,
            }
        }
    }
    println!("{} arrows up, {down} down, {within} within a layer", wrong.len());
    assert!(wrong.is_empty(), "{} arrows up:\n{}", wrong.len(), wrong.join("\n"));
}

/// A unit test may use what its file imports, and `src/testing`.
#[test]
fn only_unit_tests_use_what_is_for_them() {
    let library = Library::read();
    let used = |to: &&str| room(to) == TESTING;
    let wrong: Vec<_> = library.edges().into_iter().filter(|(_, to)| to.iter().any(used)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn the_root_of_the_source_has_few_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = entries.filter(|path| path.is_file()).collect();
    assert!(files.len() <= ROOT_MAX, "{} files at the root of src: {files:?}", files.len());
}

#[test]
fn a_type_name_means_one_thing() {
    let library = Library::read();
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let apart = |file: &str| APART.iter().any(|(path, _)| *path == file);
    for module in library.modules.values().filter(|module| !module.path.is_empty() && !apart(&module.file)) {
        for name in &module.types {
            by_name.entry(name).or_default().push(&module.file);
        }
    }
    by_name.retain(|name, files| files.len() > 1 && !SAME_NAME.iter().any(|(same, _)| same == name));
    let all: Vec<_> = by_name.iter().map(|(name, files)| format!("{name}: {}", files.join(", "))).collect();
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// The simulation replaces each of these in one place. The command is a separate program and is not checked.
#[test]
fn clock_randomness_sleep_mutexes_and_thread_start_have_one_place_each() {
    const PLACES: [(&str, &[&str]); 10] = [
        ("thread::sleep(", &["runtime/time.rs"]),
        ("clock_gettime(", &["runtime/time.rs"]),
        ("SystemTime::now(", &["runtime/time.rs"]),
        ("Instant::now(", &["runtime/time.rs"]),
        ("fastrand::", &["runtime/random.rs"]),
        ("getrandom::", &["runtime/random.rs"]),
        ("Builder::new().name(", &["runtime/process/threads.rs"]),
        ("to_socket_addrs(", &["runtime/process/name_lookup.rs"]),
        // Not stores over real sockets and files, which are not simulated, nor what no simulated thread waits for.
        (
            "sync::real::",
            &[
                "aerospike/",
                "capi/",
                "local/fence_gate.rs",
                "runtime/process/descriptors.rs",
                "store/aerospike/",
                "store/embedded/",
                "store/first_contact/",
                "store/hbase/",
                "store/scheme.rs",
                "runtime/simulation.rs",
                "runtime/sync.rs",
            ],
        ),
        // A forked child would inherit its table of parked threads: see `sync`.
        ("parking_lot::", &[]),
    ];
    let library = Library::read();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut strays = Vec::new();
    for module in library.modules.values().filter(|module| !module.file.starts_with("cli/")) {
        let code = code_of(&fs::read_to_string(root.join(&module.file)).expect("a source"));
        for (what, places) in PLACES {
            if code.contains(what) && !places.iter().any(|place| module.file.starts_with(place)) {
                strays.push(format!("{what} in {}", module.file));
            }
        }
    }
    assert!(strays.is_empty(), "{}", strays.join("\n"));
}

/// The library's descriptors never get the numbers of the program's standard streams: see `runtime/process/descriptors.rs`.
#[test]
fn whatever_opens_a_descriptor_leaves_the_standard_streams_free() {
    const OPENS: [&str; 17] = [
        "File::open(",
        "File::options(",
        "UdpSocket::bind(",
        "UnixDatagram::bind(",
        "UnixDatagram::unbound(",
        "UnixStream::pair",
        "TcpStream::connect",
        "to_socket_addrs(",
        "eventfd(",
        "timerfd_create(",
        "fs::open(",
        "fs::read_to_string(",
        "fs::read_dir(",
        "fs::remove_dir_all(",
        "pem_file",
        "EnvOpenOptions::new(",
        "new_current_thread(",
    ];
    // Under a `Turn`, which has a `StreamsTaken`, or called by a file that has one.
    const CALLED_UNDER_ONE: [&str; 8] = [
        "store/embedded/lmdb/dir_lock.rs",
        "store/embedded/lmdb/file_system.rs",
        "store/embedded/lmdb/mapped_file.rs",
        "store/embedded/lmdb/opened.rs",
        "store/embedded/lmdb/reader_table.rs",
        "store/embedded/lmdb/shared_words.rs",
        "store/embedded/lmdb/writer_lock.rs",
        "store/embedded/default_dir.rs",
    ];
    let library = Library::read();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut strays = Vec::new();
    for module in library.modules.values() {
        let is_exempt = module.file.starts_with("cli/") || CALLED_UNDER_ONE.contains(&module.file.as_str());
        let code = code_of(&fs::read_to_string(root.join(&module.file)).expect("a source"));
        let is_guarded = code.contains("above_streams(") || code.contains("StreamsTaken::new()");
        if let Some(opens) =
            OPENS.iter().find(|opens| code.contains(**opens)).filter(|_| !is_guarded && !is_exempt)
        {
            strays.push(format!("{opens} in {}", module.file));
        }
    }
    assert!(strays.is_empty(), "not within `above_streams`:\n{}", strays.join("\n"));
}

#[test]
fn imports_are_read_as_the_compiler_reads_them() {
    let code = code_of(
        "use super::{a, b::{self, C as D}}; // use crate::comment;\n\
         #[cfg(test)]\nmod tests { use super::*; }\n\
         fn f() -> crate::e::E { \"use crate::text;\"; '\"'; g::<'static>() }",
    );
    let words = tokens(&code);
    let end = words.iter().position(|word| *word == ";").unwrap();
    let path = |text: &str| text.split("::").map(str::to_owned).collect::<Vec<_>>();
    let found = leaves(&words[1..end]);
    let expected = [("super::a", "a"), ("super::b", "b"), ("super::b::C", "D")];
    assert_eq!(found, expected.map(|(from, name)| (path(from), name.to_owned())));
    assert!(!code.contains("comment") && !code.contains("tests") && !code.contains("text"), "{code}");
    assert!(code.contains("crate::e::E") && code.ends_with('}'), "{code}");
}

#[test]
fn a_circle_is_found_once_and_named() {
    let edges = [("a", ["b", "d"].into()), ("b", ["c"].into()), ("c", ["a"].into()), ("d", BTreeSet::new())];
    assert_eq!(circles(&edges.into()), ["a -> b -> c -> a"]);
}
