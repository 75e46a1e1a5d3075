//! Debian packages and release archives: what is in them, and that a fresh Debian can use them without Rust.

mod archives;
mod packages;

use std::path::{Path, PathBuf};
use std::process::Command;

use dlm_fixtures::c;
use dlm_fixtures::checkout::sh_blocks_of;
use dlm_testkit::skipped;

/// Returns a command for a script in `.packaging`, with the libraries and the command of this test run.
fn script_under(umask: &str, name: &str) -> Command {
    with_libraries(c::under_umask(umask, &c::root().join(".packaging").join(name)))
}

/// Returns a command for lines of the page, with the libraries and the command of this test run. The umask is one that keeps
/// new files from others, because those of packages must not depend on it.
fn lines(commands: &str) -> Command {
    let mut bash = c::under_umask("077", Path::new("bash"));
    bash.args(["-ec", commands]).current_dir(c::root());
    with_libraries(bash)
}

fn with_libraries(mut script: Command) -> Command {
    // The generator of licences is built where this test is. The build is small.
    let target = dlm_fixtures::target_tmp().parent().unwrap().to_owned();
    script.env("LIBRARIES", libraries()).env("CARGO_TARGET_DIR", target);
    // tests/run sets it for the test harness.
    script.env_remove("RUSTC_BOOTSTRAP").env_remove("DEBFULLNAME").env_remove("DEBEMAIL");
    script
}

/// Returns a folder with the `dlm`, `libdlm.so` and `libdlm.a` of this test run.
fn libraries() -> PathBuf {
    let folder = folder("libraries");
    for (name, file) in [
        ("dlm", PathBuf::from(env!("CARGO_BIN_EXE_dlm"))),
        ("libdlm.so", c::library("libdlm.so")),
        ("libdlm.a", c::library("libdlm.a")),
    ] {
        let _ = std::fs::remove_file(folder.join(name));
        std::os::unix::fs::symlink(file, folder.join(name)).unwrap();
    }
    folder
}

/// Returns an empty or used folder of this name, which later runs use again.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packaging").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[track_caller]
fn has(tool: &str) -> bool {
    let found = c::run(Command::new(tool).arg("--version"));
    if let Err(failure) = &found {
        skipped(tool, failure);
    }
    found.is_ok()
}

fn page() -> String {
    std::fs::read_to_string(c::root().join("docs/packaging.md")).unwrap()
}

/// Returns the commands on the page that this test has to run.
fn commands_of(test: &str) -> String {
    sh_blocks_of(&page(), test)
}
