//! A crate that adds a store. It builds `libdlm.so`, `libdlm.a` and `dlm` like the library, and they open the added
//! store too. The crate is in `tests/own_crate`, and `docs/stores.md` shows all of it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs};

use dlm_fixtures::c;
use dlm_testkit::{left_to_the_long_run, skipped};

fn own() -> PathBuf {
    c::root().join("tests/own_crate")
}

/// Builds the crate once for all tests of this file, and returns the folder with the result. The next run reuses it.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // The versions that the library is tested with. Cargo already has them, so the build works offline.
        fs::copy(c::root().join("Cargo.lock"), own().join("Cargo.lock")).unwrap();
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("own_build");
        let mut build = dlm_fixtures::cargo();
        build.args(["build", "--offline", "--target-dir"]).arg(&target).current_dir(own());
        // Without debug information the build is faster and smaller.
        build.envs([("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_INCREMENTAL", "0")]);
        c::run(&mut build).unwrap();
        target.join("debug")
    })
}

fn has(tool: &str) -> bool {
    let found = c::run(Command::new(tool).arg("--version"));
    if let Err(failure) = &found {
        skipped(tool, failure);
    }
    found.is_ok()
}

/// Compiles a program of `c-examples` or `tests/c` and links it with `libraries`.
fn compiled(dir: &Path, source: &str, libraries: &[&str]) -> PathBuf {
    let program = dir.join("program");
    let mut cc = Command::new("gcc");
    cc.args(["-std=c99", "-I"]).arg(c::root().join("include")).arg(c::root().join(source));
    cc.arg("-o").arg(&program).args(libraries);
    c::run(&mut cc).unwrap();
    program
}

#[test]
fn its_shared_library_has_every_function_of_the_header_and_the_same_name() {
    if left_to_the_long_run() {
        return;
    }
    let library = built().join("libdlm.so");
    let declared = c::functions().into_iter().map(|function| function.name).collect();
    assert_eq!(c::exported(&library), declared);
    let dynamic = c::run(Command::new("readelf").arg("-d").arg(&library)).unwrap();
    let name = format!("Library soname: [{}]", c::soname(&c::abi(&c::root().join("include/dlm.h"))));
    assert!(dynamic.contains(&name) && dynamic.contains("NODELETE"), "{dynamic}");
}

#[test]
fn a_program_in_c_takes_a_lock_in_the_store() {
    if left_to_the_long_run() || !has("gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let library = built().join("libdlm.so");
    let name = c::soname(&c::abi(&c::root().join("include/dlm.h")));
    std::os::unix::fs::symlink(&library, dir.path().join(name)).unwrap();
    let program = compiled(dir.path(), "c-examples/lock.c", &[library.to_str().unwrap()]);
    let said = c::run(Command::new(program).arg("example:").env("LD_LIBRARY_PATH", dir.path())).unwrap();
    assert!(said.starts_with("writing with fence "), "{said}");
}

/// The program does not refer to the library, and the library does not refer to the store.
#[test]
fn a_program_that_loads_the_library_when_it_runs_finds_the_store_there() {
    if left_to_the_long_run() || !has("gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compiled(dir.path(), "tests/c/unloads.c", &["-ldl"]);
    c::run(Command::new(program).arg("example:").arg(built().join("libdlm.so"))).unwrap();
}

#[test]
fn a_program_is_linked_with_the_static_library_as_installed_or_with_all_of_cargos() {
    if left_to_the_long_run() || !has("gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut install = Command::new(c::root().join(".packaging/install"));
    // As in docs/stores.md: a folder relative to the directory from which the script is called.
    let (parent, folder) = (built().parent().unwrap(), built().file_name().unwrap());
    install.arg(dir.path().join("prefix")).env("LIBRARIES", folder).current_dir(parent);
    c::run(&mut install).unwrap();
    let (installed, cargos) = (dir.path().join("prefix/lib/libdlm.a"), built().join("libdlm.a"));
    let whole = ["-Wl,--whole-archive", cargos.to_str().unwrap(), "-Wl,--no-whole-archive"];
    for libraries in [&[installed.to_str().unwrap()][..], &whole] {
        let libraries = [libraries, &c::system_libraries()].concat();
        let program = compiled(dir.path(), "c-examples/lock.c", &libraries);
        let said = c::run(Command::new(program).arg("example:")).unwrap();
        assert!(said.starts_with("writing with fence "), "{said}");
    }
}

#[test]
fn its_command_runs_a_program_under_a_lock_in_the_store() {
    if left_to_the_long_run() {
        return;
    }
    let dlm = |args: &[&str]| c::run(Command::new(built().join("dlm")).args(args).env_remove("DLM_STORE"));
    let run = |store| dlm(&["run", "--store", store, "--farm", "dc1", "report", "--", "echo", "working"]);
    assert_eq!(run("example:").unwrap(), "working\n");
    assert_eq!(run("example:?shelf=low&retry=5ms").unwrap(), "working\n");
    let unknown = run("example:?shelv=low").unwrap_err();
    assert!(unknown.contains("exit status: 64") && unknown.contains("latch_ttl, poll,"), "{unknown}");
    assert!(unknown.trim_end().ends_with(", shelf"), "{unknown}");
    let elsewhere = run("example:/elsewhere").unwrap_err();
    assert!(elsewhere.contains("store \"example:/elsewhere\" is not allowed: example: and"), "{elsewhere}");
    let nowhere = run("exampel:").unwrap_err();
    assert!(nowhere.contains("embedded:/path or example:"), "{nowhere}");
    let help = dlm(&["--help"]).unwrap();
    assert!(help.contains("\n  example:\n") && help.contains("\n    example: shelf\n"), "{help}");
}

/// The page must show exactly the files that are built here.
#[test]
fn the_page_shows_the_crate_as_it_is() {
    let page = fs::read_to_string(c::root().join("docs/stores.md")).unwrap();
    for file in [
        "Cargo.toml",
        "build.rs",
        "src/lib.rs",
        "src/bin/dlm.rs",
        "example_store/Cargo.toml",
        "example_store/src/lib.rs",
    ] {
        let language = if file.ends_with(".toml") { "toml" } else { "rust" };
        let text = fs::read_to_string(own().join(file)).unwrap();
        let shown = format!("`{file}`:\n\n```{language}\n{text}```\n");
        assert!(page.contains(&shown), "docs/stores.md does not have:\n{shown}");
    }
}
