//! The pages (README, docs and their like) say what is true: commands are run, outputs compared, tables compared with
//! the code, links followed.
//!
//! Each code block and each table is checked in one of these ways:
//!
//! * Rust blocks are documentation tests, in a page that `src/lib.rs` includes.
//! * `console` blocks of the pages in [`RUN`] are run, and their outputs compared. Those of other pages name the test that
//!   runs them, with the servers that they need.
//! * `toml` blocks name features that exist.
//! * Above everything else stands a comment `<!-- checked by: name, name -->` with the names of tests. A table of speeds
//!   names the benchmark that prints it, as `bench name`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dlm::Code;
use dlm::store::{MANAGER_OPTIONS, StoreOption, schemes};
use dlm_fixtures::checkout::sh_blocks_of;
use dlm_fixtures::console::Console;

/// Pages whose `console` blocks are run in order, each page with a store of its own.
const RUN: [&str; 3] = ["README.md", "docs/cli.md", "docs/operations.md"];

/// Pages whose Rust blocks show files, which another test compares.
const SHOWS_FILES: [(&str, &str); 1] = [("docs/stores.md", "the_page_shows_the_crate_as_it_is")];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

struct Page {
    /// From the root of the repository.
    path: String,
    text: String,
}

fn pages() -> Vec<Page> {
    let mut paths: Vec<_> =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(PathBuf::from).into();
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let path = Path::new("docs").join(entry.unwrap().file_name());
        // Pictures are not pages.
        if path.extension().is_some_and(|it| it == "md") {
            paths.push(path);
        }
    }
    paths.sort();
    let read = |path: PathBuf| Page {
        text: fs::read_to_string(root().join(&path)).unwrap(),
        path: path.to_str().unwrap().to_owned(),
    };
    paths.into_iter().map(read).collect()
}

#[derive(Debug, PartialEq)]
enum Kind<'a> {
    /// With its language.
    Code(&'a str),
    Table,
}

/// A code block or a table, and the names in the comment above it.
struct Part<'a> {
    line: usize,
    kind: Kind<'a>,
    text: String,
    checked_by: Vec<String>,
}

impl Page {
    fn parts(&self) -> Vec<Part<'_>> {
        let lines: Vec<_> = self.text.lines().collect();
        let (mut parts, mut at, mut comment) = (vec![], 0, String::new());
        while at < lines.len() {
            let (begin, line) = (at, lines[at]);
            let body = |at: usize, end: &dyn Fn(&str) -> bool| {
                let length = lines[at..].iter().position(|line| end(line)).unwrap_or(lines.len() - at);
                (lines[at..at + length].join("\n"), at + length)
            };
            let kind = if let Some(language) = line.strip_prefix("```") {
                Some(Kind::Code(language))
            } else {
                line.starts_with('|').then_some(Kind::Table)
            };
            let Some(kind) = kind else {
                if line.starts_with("<!-- checked by:") {
                    let (_, end) = body(at, &|line| line.ends_with("-->"));
                    comment = lines[at..=end].concat();
                    at = end;
                } else {
                    comment.clear();
                }
                at += 1;
                continue;
            };
            let (text, end) = match kind {
                Kind::Code(_) => body(at + 1, &|line| line == "```"),
                Kind::Table => body(at, &|line| !line.starts_with('|')),
            };
            at = if kind == Kind::Table { end } else { end + 1 };
            let names = comment.trim_start_matches("<!-- checked by:").trim_end_matches("-->").split(',');
            let checked_by = names.map(|it| it.trim().to_owned()).filter(|it| !it.is_empty()).collect();
            comment.clear();
            parts.push(Part { line: begin + 1, kind, text, checked_by });
        }
        parts
    }

    /// The anchors of its headings, as GitHub makes them.
    fn anchors(&self) -> BTreeSet<String> {
        let code = self.parts();
        let in_code = |number: usize| {
            code.iter().any(|it| {
                it.kind != Kind::Table && (it.line..=it.line + it.text.lines().count()).contains(&number)
            })
        };
        let headings =
            self.text.lines().enumerate().filter(|(at, line)| line.starts_with('#') && !in_code(at + 1));
        let anchor = |line: &str| {
            let kept = line.trim_start_matches('#').trim().to_lowercase();
            let kept = kept.chars().filter(|it| it.is_alphanumeric() || [' ', '-', '_'].contains(it));
            kept.collect::<String>().replace(' ', "-")
        };
        headings.map(|(_, line)| anchor(line)).collect()
    }

    /// The targets of its links.
    fn links(&self) -> Vec<&str> {
        let text = self.text.split("](").skip(1);
        text.filter_map(|rest| rest.split_once(')').map(|(target, _)| target)).collect()
    }
}

/// All sources in which a test may be.
fn sources() -> String {
    fn collect(directory: &Path, text: &mut String) {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("target") {
                collect(&path, text);
            } else if path.extension().is_some_and(|it| it == "rs") {
                text.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut text = String::new();
    for directory in ["tests", "testkit", "src"] {
        collect(&root().join(directory), &mut text);
    }
    text
}

#[test]
fn every_code_block_and_every_table_is_run_or_checked() {
    let (sources, library) = (sources(), include_str!("../../src/lib.rs"));
    let mut failures = vec![];
    for page in pages() {
        for part in page.parts() {
            let place = format!("{}:{}", page.path, part.line);
            for name in &part.checked_by {
                let exists = match name.strip_prefix("bench ") {
                    Some(bench) => root().join(format!("benches/{bench}.rs")).exists(),
                    None => sources.contains(&format!("fn {name}(")),
                };
                if !exists {
                    failures.push(format!("{place}: there is no test {name}"));
                }
            }
            let included = library.contains(&format!("include_str!(\"../{}\")", page.path));
            let shows_files = SHOWS_FILES.iter().find(|(path, _)| *path == page.path);
            let checked = match part.kind {
                Kind::Code(language) if language.starts_with("rust") || language == "toml" => {
                    match shows_files {
                        Some((_, test)) => sources.contains(&format!("fn {test}(")),
                        None => language == "toml" || included,
                    }
                }
                Kind::Code("console") if RUN.contains(&page.path.as_str()) => true,
                _ => !part.checked_by.is_empty(),
            };
            if !checked {
                failures.push(format!("{place}: nothing checks this {:?}", part.kind));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_row_of_a_table_has_as_many_cells_as_its_head() {
    for page in pages() {
        for part in page.parts().iter().filter(|part| part.kind == Kind::Table) {
            let cells = |row: &str| row.replace("\\|", "").matches('|').count();
            let head = cells(part.text.lines().next().unwrap());
            for row in part.text.lines() {
                assert_eq!(cells(row), head, "{}:{}: {row}", page.path, part.line);
            }
        }
    }
}

#[test]
fn every_link_leads_to_something() {
    let pages = pages();
    let mut failures = vec![];
    for page in &pages {
        for link in page.links() {
            if link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let mut path = Path::new(&page.path).parent().unwrap().to_path_buf();
            for step in file.split('/').filter(|step| !step.is_empty()) {
                if step == ".." { assert!(path.pop(), "{link}") } else { path.push(step) }
            }
            let path = if file.is_empty() { PathBuf::from(&page.path) } else { path };
            let there = root().join(&path).exists();
            let target = pages.iter().find(|it| Path::new(&it.path) == path);
            let found = anchor.is_empty() || target.is_some_and(|it| it.anchors().contains(anchor));
            if !there || !found {
                failures.push(format!("{}: {link}", page.path));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn the_readme_is_short_and_leads_to_every_page() {
    let pages = pages();
    let readme = pages.iter().find(|page| page.path == "README.md").unwrap();
    assert!(readme.text.lines().count() <= 250, "{}", readme.text.lines().count());
    for page in pages.iter().filter(|page| page.path != "README.md") {
        assert!(readme.links().contains(&page.path.as_str()), "no link to {}", page.path);
    }
}

#[test]
fn the_commands_print_what_the_pages_show() {
    for page in RUN {
        let text = fs::read_to_string(root().join(page)).unwrap();
        Console::new(Path::new(env!("CARGO_BIN_EXE_dlm"))).run_page(&text);
    }
}

/// Pages whose `sh` blocks are run as they are written, by tests that take them from the page.
const RUN_AS_WRITTEN: [&str; 5] =
    ["docs/c.md", "docs/go.md", "docs/languages.md", "docs/cli.md", "docs/packaging.md"];

#[test]
fn the_shell_blocks_of_pages_about_installing_and_calling_are_run_as_written() {
    let sources = sources().split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = 0;
    for page in pages().iter().filter(|page| RUN_AS_WRITTEN.contains(&page.path.as_str())) {
        for part in page.parts() {
            let Kind::Code(language) = part.kind else { continue };
            // Those of other languages, and files for commands, would need a way of their own.
            assert!(["sh", "console"].contains(&language), "{}:{}", page.path, part.line);
            let takes = |name: &String| {
                let of_packages = format!("commands_of(\"{name}\"");
                let of_others = ["sh_blocks_of(PAGE, ", "sh_blocks_of( PAGE, "]
                    .iter()
                    .any(|call| sources.contains(&format!("{call}\"{name}\"")));
                of_others || (page.path == "docs/packaging.md" && sources.contains(&of_packages))
            };
            let is_run = language == "console" || part.checked_by.iter().any(takes);
            assert!(is_run, "{}:{}: no test takes it from the page", page.path, part.line);
            found += 1;
        }
    }
    assert!(found > 8, "{found}");
}

#[test]
fn the_line_that_passes_a_lease_token_on_does_so() {
    const PAGE: &str = include_str!("../../docs/cli.md");
    let line = sh_blocks_of(PAGE, "the_line_that_passes_a_lease_token_on_does_so");
    let dlm = Path::new(env!("CARGO_BIN_EXE_dlm"));
    let mut console = Console::new(dlm).file("deploy.sh", "#!/bin/sh\ndlm show deploy\n");
    let (status, printed) = console.run(line.trim_end());
    assert!(status == 0 && printed.contains("\nstate held\n"), "{status} {printed}");
    let (_, printed) = console.run("dlm show deploy");
    assert!(printed.contains("\nstate free\n"), "{printed}");
}

/// A test that runs the blocks with its name runs no others, so a block must have the name of such a test.
#[test]
fn the_commands_of_other_pages_are_run_by_the_tests_that_they_name() {
    // Compares the outputs of the examples with the page.
    const OTHERWISE: [&str; 1] = ["docs/rows.md"];
    let sources = sources();
    for page in pages().iter().filter(|page| ![&RUN[..], &OTHERWISE].concat().contains(&page.path.as_str())) {
        for part in page.parts().iter().filter(|part| part.kind == Kind::Code("console")) {
            let runs = |name: &String| sources.contains(&format!("run_blocks_of(PAGE, \"{name}\")"));
            assert!(part.checked_by.iter().any(runs), "{}:{}: nothing runs it", page.path, part.line);
        }
    }
}

/// `cargo run` and `tests/run` cannot be run from inside a test: what they start is looked for instead.
#[test]
fn the_set_up_commands_start_what_they_say() {
    let readme = include_str!("../../README.md");
    assert!(readme.contains("\ncargo run --features cli -- demo "));
    let script = fs::read_to_string(root().join("tests/run")).unwrap();
    for page in [readme, include_str!("../../CONTRIBUTING.md")] {
        assert!(page.contains("\ntests/run "));
    }
    assert!(script.contains("cargo test --workspace --all-features"));
    for form in ["tests/run --long", "tests/run -- "] {
        assert!(include_str!("../../CONTRIBUTING.md").contains(form) && script.contains(form), "{form}");
    }
    assert!(fs::read_to_string(root().join(".ci/run")).unwrap().contains("exec tests/run"));
}

fn help(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_dlm")).args(arguments).arg("--help").output().unwrap();
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The words behind `Commands:`.
fn subcommands(help: &str) -> Vec<String> {
    let list = help.split("\nCommands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.map(|line| line.split_whitespace().next().unwrap().to_owned()).filter(|it| it != "help").collect()
}

#[test]
fn the_page_of_the_command_has_all_its_commands_and_options() {
    let page = include_str!("../../docs/cli.md");
    let shown = rows_of(page, "## Commands");
    let (mut all, mut told) = (help(&[]), BTreeSet::new());
    for row in &shown {
        told.insert(keys_in(row[0])[0].strip_prefix("dlm ").unwrap().split(' ').next().unwrap().to_owned());
    }
    assert_eq!(told, subcommands(&all).into_iter().collect());
    let latch = shown.iter().find(|row| row[0].contains("dlm latch")).unwrap();
    let mut steps: Vec<_> = keys_in(latch[0]).iter().map(|it| it.replace("dlm latch ", "")).collect();
    let mut known = subcommands(&help(&["latch"]));
    steps.sort_unstable();
    known.sort_unstable();
    assert_eq!(steps, known);

    for command in subcommands(&all.clone()) {
        all += &help(&[&command]);
    }
    for step in &known {
        all += &help(&["latch", step]);
    }
    let options = rows_of(page, "## Options");
    // The demo's are for the demo alone.
    let common = all.replace(&help(&["demo"]), "");
    let words = common.split(|it: char| it.is_whitespace() || [',', '`', '[', '('].contains(&it));
    let known: BTreeSet<_> = words.filter(|word| word.starts_with("--") && word.len() > 2).collect();
    for option in known {
        let option = option.trim_end_matches(['.', ';', ')', ':']);
        let is_shown = page.contains(&format!("`{option}")) || page.contains(&format!(" {option}"));
        assert!(
            is_shown || ["--help", "--version", "--verbose", "--unavailable-status"].contains(&option),
            "{option}"
        );
    }
    for row in options.iter().filter(|row| row.len() == 4 && !row[2].starts_with("no limit")) {
        for default in row[2].split('`').skip(1).step_by(2) {
            assert!(all.contains(&format!("[default: {default}")), "{row:?}");
        }
    }
    for row in options.iter().filter(|row| row[0].contains("`-")) {
        for option in keys_in(row[0]) {
            let name = option.split(' ').next().unwrap();
            assert!(all.split([' ', '\n', ',']).any(|word| word == name), "{name}");
        }
        for variable in keys_in(row[1]) {
            assert!(all.contains(&format!("[env: {variable}")), "{variable}");
        }
    }
    for row in options.iter().filter(|row| row[0].contains("`DLM_")) {
        assert!(all.contains(keys_in(row[0])[0]), "{row:?}");
    }
}

#[test]
fn the_map_of_the_source_names_what_exists() {
    for row in rows_of(include_str!("../../CONTRIBUTING.md"), "## Where things are") {
        for path in keys_in(row[0]) {
            assert!(root().join(path).exists(), "{path}");
        }
    }
    let changes = rows_of(include_str!("../../CONTRIBUTING.md"), "## Where would I change it");
    assert!(changes.len() >= 10);
    for row in changes {
        let paths: Vec<_> = keys_in(row[1]).into_iter().filter(|key| key.starts_with("src/")).collect();
        assert!((1..=2).contains(&paths.len()), "{row:?}");
        assert!(paths.iter().all(|path| root().join(path).exists()), "{paths:?}");
    }
}

#[test]
fn every_store_of_the_readme_can_be_named() {
    let help = help(&[]);
    for row in rows("## Which store") {
        let scheme = keys_in(row[0])[0];
        assert!(scheme == "memory:" || help.contains(&format!("\n  {scheme}")), "{scheme}");
    }
}

#[test]
fn every_manifest_in_a_page_names_features_that_exist() {
    let features: Vec<_> = features().collect();
    let mut found = 0;
    for page in pages() {
        for part in page.parts().iter().filter(|part| part.kind == Kind::Code("toml")) {
            for line in part.text.lines().filter(|line| line.starts_with("dlm = ")) {
                for list in line.split("features = [").skip(1) {
                    let named = list.split(']').next().unwrap();
                    for feature in named.split('"').skip(1).step_by(2) {
                        found += 1;
                        assert!(features.contains(&feature), "{}: {feature}", page.path);
                    }
                }
            }
        }
    }
    assert!(found >= 3, "{found}");
}

/// The table has one column for each language.
#[test]
fn the_names_of_calls_in_other_languages_exist() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let c = read("include/dlm.h") + &read("include/dlm_rows.h");
    let cpp = read("include/dlm.hpp") + &read("include/dlm_rows.hpp");
    let go: String =
        ["calls", "rows", "lease", "manager", "errors"].map(|it| read(&format!("go/{it}.go"))).concat();
    let last_name = |call: &str| {
        let call = call.split('(').next().unwrap();
        call.rsplit([':', '.']).next().unwrap().to_owned()
    };
    let rows = rows_of(include_str!("../../docs/rows.md"), "## C, C++ and Go");
    assert!(rows.len() > 4);
    for row in rows {
        for (cell, text) in row[1..].iter().zip([&c, &cpp, &go]) {
            for call in keys_in(cell).into_iter().filter(|it| !it.starts_with("std::")) {
                assert!(text.contains(&last_name(call)), "{call}");
            }
        }
    }
}

#[test]
fn the_methods_and_capabilities_of_a_register_are_those_of_the_code() {
    let code = include_str!("../../src/store/remote/register.rs");
    let body = |of: &str| code.split(of).nth(1).unwrap().split("\n}\n").next().unwrap();
    let page = include_str!("../../docs/stores.md");
    let table = |first: &str| {
        let rows = page.split(first).nth(1).unwrap().lines().skip(2).take_while(|line| line.starts_with('|'));
        rows.map(|row| row.split('`').nth(1).unwrap().split('(').next().unwrap().to_owned())
            .collect::<BTreeSet<_>>()
    };
    let fields = body("pub struct Capabilities {").lines().filter_map(|line| line.strip_prefix("    pub "));
    let fields: BTreeSet<_> = fields.map(|line| line.split(':').next().unwrap().to_owned()).collect();
    assert_eq!(table("| field |"), fields);
    let methods = body("pub trait Register:").lines().filter_map(|line| line.strip_prefix("    fn "));
    let methods: BTreeSet<_> = methods.map(|line| line.split('(').next().unwrap().to_owned()).collect();
    assert!(table("| method |").is_subset(&methods), "{methods:?}");
}

/// A crate that is taken on is named with its reason, and one that is gone is not.
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
}

#[test]
fn the_table_of_errors_is_that_of_the_code() {
    let rows = rows("## Errors");
    let told: Vec<_> = rows.iter().map(|row| (row[0], row[1].parse::<i32>().unwrap())).collect();
    let all: Vec<_> = Code::ALL.iter().map(|code| (code.name(), code.number())).collect();
    assert_eq!(told, all);
    let maybe: Vec<_> = rows.iter().filter(|row| row[3] != "no").map(|row| row[0]).collect();
    assert_eq!(maybe, ["IN_DOUBT"]);
    let help = help(&[]);
    let statuses = help.split("Exit status:").nth(1).unwrap();
    for row in rows {
        let status = row[4].split(' ').next().unwrap();
        assert!(statuses.contains(&format!("\n  {status} ")), "{row:?}");
    }
}

/// The features of the library, without `default`.
fn features() -> impl Iterator<Item = &'static str> {
    let manifest = include_str!("../../Cargo.toml");
    let features = manifest.split("[features]").nth(1).unwrap().split("\n[").next().unwrap();
    let names = features.lines().filter_map(|line| line.split_once(" = [")).map(|(name, _)| name);
    names.filter(|name| *name != "default")
}

/// Returns how pages name a kind of store: `hbase://` of `hbase://master:16000/table`, `embedded:` of `embedded:`.
fn in_pages(form: &str) -> &str {
    let form = form.split(' ').next().unwrap_or(form);
    form.split_inclusive("//").next().unwrap_or(form)
}

/// Each option stands in the code once, and is explained in the README or the page of its store.
#[test]
fn the_options_are_those_of_the_code() {
    let told = rows("## Options");
    let of_stores = schemes().into_iter().map(|scheme| (in_pages(scheme.form()), scheme.options()));
    let of_stores: Vec<(&str, &[StoreOption])> = of_stores.collect();
    for (stores, options) in [("all", &MANAGER_OPTIONS[..])].into_iter().chain(of_stores.iter().copied()) {
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
        let known = || of_stores.iter().filter(|(of, _)| stores.contains(of)).flat_map(|(_, known)| *known);
        if known().next().is_none() {
            // This build has no such store.
            continue;
        }
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
    for &(stores, options) in dlm::store::TABLE_OPTIONS {
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
