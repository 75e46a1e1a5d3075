//! Programs in C and C++ against the library that this test run has built.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `libdlm.so` or `libdlm.a` of this test run.
pub(crate) fn library(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let beside_the_test = env::current_exe().unwrap().parent().unwrap().to_owned();
        // Cargo gives these files the same name whatever the features, and does not notice when a build
        // with others has replaced them.
        if exported(&beside_the_test.join("libdlm.so")).contains("dlm_version") {
            return beside_the_test;
        }
        let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--lib", "--features", "capi", "--target-dir"]).arg(&own);
        run(build.current_dir(root())).unwrap();
        own.join("debug")
    });
    directory.join(name)
}

/// How a program is joined with the library.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Link {
    Shared,
    /// With the system's libraries that the README lists.
    Static,
}

impl Link {
    pub(crate) fn add_to(self, compile: &mut Command) -> &mut Command {
        compile.arg("-I").arg(root().join("include"));
        match self {
            Link::Shared => compile.arg(library("libdlm.so")).arg("-pthread"),
            Link::Static => compile.arg(library("libdlm.a")).args(system_libraries()),
        }
    }
}

/// The number of the binary interface, as a header says it: the shared library is `libdlm.so.NUMBER`.
pub(crate) fn abi(header: &Path) -> String {
    let text = fs::read_to_string(header).unwrap();
    let number = text.lines().find_map(|line| line.strip_prefix("#define DLM_ABI "));
    number.expect("the header says it").to_owned()
}

/// What follows `libdlm.a` in the README's line for static linking.
pub(crate) fn system_libraries() -> Vec<&'static str> {
    let line = include_str!("../../README.md").lines().find(|line| line.contains("libdlm.a -l"));
    let libraries = line.expect("the README says how to link").split_once("libdlm.a ").unwrap().1;
    libraries.split_whitespace().take_while(|it| it.starts_with("-l")).collect()
}

/// Lets a program find `libdlm.so` by the name it has when it is installed.
pub(crate) fn with_library(program: &mut Command) -> &mut Command {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let name = format!("libdlm.so.{}", abi(&root().join("include/dlm.h")));
        std::os::unix::fs::symlink(library("libdlm.so"), directory.path().join(name)).unwrap();
        directory
    });
    program.env("LD_LIBRARY_PATH", directory.path())
}

/// The output of a command, or what it said when it failed.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{command:?}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr)))
    }
}

/// The names a shared library offers to programs.
pub(crate) fn exported(library: &Path) -> BTreeSet<String> {
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library)).unwrap();
    let names = listed.lines().filter_map(|line| line.split(' ').nth(2));
    // A version script's own name, and a version after each name, are no names of functions.
    names
        .filter_map(|name| name.split('@').next())
        .filter(|name| !name.starts_with("DLM"))
        .map(str::to_owned)
        .collect()
}

/// The first file below `dir` whose name is like that.
pub(crate) fn find(dir: &Path, like: impl Fn(&str) -> bool + Copy) -> Option<PathBuf> {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let found = match entry.file_type().unwrap() {
            it if it.is_dir() => find(&entry.path(), like),
            it if it.is_file() && like(entry.file_name().to_str().unwrap()) => Some(entry.path()),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// A function of the header.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// `const char *`, `enum dlm_status`, ...
    pub(crate) returns: String,
    /// Types and names of the arguments.
    pub(crate) takes: Vec<(String, String)>,
}

/// All functions that `include/dlm.h` declares.
pub(crate) fn functions() -> Vec<Function> {
    let header = fs::read_to_string(root().join("include/dlm.h")).unwrap();
    let code: Vec<_> = header.split_once("*/").unwrap().1.lines().collect();
    let code: Vec<_> =
        code.into_iter().filter(|line| !line.starts_with(['#', '/']) && *line != "DLM_NODISCARD").collect();
    let code = code.join(" ").replace("extern \"C\" {", "");
    let mut functions = Vec::new();
    for declaration in code.split(';').filter(|it| !it.contains("typedef") && it.trim().ends_with(')')) {
        let (head, rest) = declaration.split_once('(').unwrap();
        let (returns, name) = typed(head);
        let list = rest.rsplit_once(')').unwrap().0;
        let takes = if list.trim() == "void" { Vec::new() } else { list.split(',').map(typed).collect() };
        functions.push(Function { name, returns, takes });
    }
    functions
}

/// Splits `const char *key` after the type.
fn typed(declared: &str) -> (String, String) {
    let declared = declared.trim();
    let at = declared.rfind([' ', '*']).unwrap() + 1;
    let kind = declared[..at].split_whitespace().collect::<Vec<_>>().join(" ");
    (kind, declared[at..].to_owned())
}
