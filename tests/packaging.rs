//! What is installed can be found and built against: by pkg-config, by CMake and by the examples' Makefile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

mod support {
    pub(crate) mod c;
    #[cfg(feature = "gateway")]
    #[allow(unreachable_pub, reason = "public for every test program that takes it in")]
    pub(crate) mod hbase;
    pub(crate) mod skip;
}

use support::c;
use support::skip::skipped;

/// An installed libdlm, and a place for programs.
struct Installed {
    dir: tempfile::TempDir,
}

impl Installed {
    fn new() -> Installed {
        let dir = tempfile::tempdir().unwrap();
        let mut install = Command::new(c::root().join(".packaging/install"));
        install.arg(dir.path().join("prefix")).env("LIBRARIES", c::library("libdlm.so").parent().unwrap());
        c::run(&mut install).unwrap();
        Installed { dir }
    }

    fn prefix(&self) -> PathBuf {
        self.dir.path().join("prefix")
    }

    fn pkg_config(&self, options: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(options).arg("dlm").env("PKG_CONFIG_PATH", self.prefix().join("lib/pkgconfig"));
        c::run(&mut command).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    /// Runs an example on a store of its own.
    fn run(&self, program: &Path) -> String {
        let store = format!("embedded:{}", self.dir.path().join("store").display());
        c::run(Command::new(program).arg(store).env("LD_LIBRARY_PATH", self.prefix().join("lib"))).unwrap()
    }
}

fn has(tool: &str) -> bool {
    let found = c::run(Command::new(tool).arg("--version"));
    if let Err(failure) = &found {
        skipped(tool, failure);
    }
    found.is_ok()
}

fn example(name: &str) -> PathBuf {
    c::root().join("c-examples").join(name)
}

#[test]
fn pkg_config_finds_the_library_and_programs_ask_for_it_by_its_own_name() {
    if !has("pkg-config") {
        return;
    }
    let installed = Installed::new();
    assert_eq!(installed.pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let program = installed.dir.path().join("shared");
    let mut cc = Command::new("cc");
    cc.arg("-std=c99").arg(example("lock.c")).arg("-o").arg(&program);
    c::run(cc.args(installed.pkg_config(&["--cflags", "--libs"]))).unwrap();
    assert!(installed.run(&program).starts_with("writing with fence "));
    let needs = c::run(Command::new("readelf").arg("-d").arg(&program)).unwrap();
    assert!(needs.contains("Shared library: [libdlm.so.0]"), "{needs}");

    // As the README says, with the archive by path.
    let program = installed.dir.path().join("static");
    let mut cc = Command::new("cc");
    cc.arg("-std=c99").arg("-I").arg(installed.prefix().join("include"));
    cc.arg(example("lock.c")).arg("-o").arg(&program).arg(installed.prefix().join("lib/libdlm.a"));
    c::run(cc.args(c::system_libraries())).unwrap();
    let needs = c::run(Command::new("readelf").arg("-d").arg(&program)).unwrap();
    assert!(!needs.contains("libdlm"), "{needs}");
    assert!(installed.run(&program).starts_with("writing with fence "));
    // Both files list what the archive needs.
    let private = installed.pkg_config(&["--libs", "--static"]);
    for library in c::system_libraries() {
        assert!(private.iter().any(|it| it == library), "{library} in {private:?}");
        let cmake = include_str!("../.packaging/cmake/dlmConfig.cmake");
        let listed = cmake.split("INTERFACE_LINK_LIBRARIES \"").nth(1).unwrap().split('"').next().unwrap();
        assert!(listed.split(';').any(|it| it == &library[2..]), "{library} in {listed}");
    }
}

#[test]
fn cmake_finds_both_libraries_and_checks_the_version() {
    if !has("cmake") {
        return;
    }
    let installed = Installed::new();
    let project = installed.dir.path().join("project");
    fs::create_dir(&project).unwrap();
    let text = format!(
        "cmake_minimum_required(VERSION 3.20)\n\
         project(example C CXX)\n\
         find_package(dlm 0.1 CONFIG REQUIRED)\n\
         find_package(dlm 99 CONFIG QUIET)\n\
         if(dlm_FOUND)\n  message(FATAL_ERROR \"version 99 was found\")\nendif()\n\
         add_executable(shared {lock})\ntarget_link_libraries(shared dlm::dlm)\n\
         add_executable(static {cpp})\ntarget_link_libraries(static dlm::static)\n\
         target_compile_features(static PRIVATE cxx_std_17)\n",
        lock = example("lock.c").display(),
        cpp = example("lock.cpp").display(),
    );
    fs::write(project.join("CMakeLists.txt"), text).unwrap();
    let build = project.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&project).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", installed.prefix().display()));
    c::run(&mut configure).unwrap();
    c::run(Command::new("cmake").arg("--build").arg(&build)).unwrap();
    for program in ["shared", "static"] {
        assert!(installed.run(&build.join(program)).starts_with("writing with fence "), "{program}");
    }
}

#[test]
fn nothing_is_left_after_uninstalling() {
    let installed = Installed::new();
    assert!(c::find(&installed.prefix(), |name| name == "dlm.hpp").is_some());
    let mut uninstall = Command::new(c::root().join(".packaging/install"));
    c::run(uninstall.arg("--uninstall").arg(installed.prefix())).unwrap();
    assert_eq!(c::find(&installed.prefix(), |_| true), None);
}

/// The Makefile's line for linking is the README's.
fn built_examples(out: &Path) {
    let mut make = Command::new("make");
    make.arg("-C").arg(c::root().join("c-examples")).arg(format!("OUT={}", out.display()));
    make.arg(format!("TARGET={}", c::library("libdlm.a").parent().unwrap().display()));
    make.args(["CFLAGS=-Wall -Wextra -Werror", "CXXFLAGS=-Wall -Wextra -Werror"]);
    c::run(&mut make).unwrap();
    let makefile = include_str!("../c-examples/Makefile");
    assert!(makefile.contains(&format!("libdlm.a {}\n", c::system_libraries().join(" "))));
}

#[test]
fn the_examples_do_what_they_say() {
    if !has("make") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    built_examples(dir.path());
    let store = format!("embedded:{}", dir.path().join("store").display());
    for (name, says) in [
        ("lock", "writing with fence "),
        ("latch", "all have come\n"),
        ("id_lock", "the balances add up to 0\n"),
        ("event_loop", "renewed\nrenewed\nrenewed\nLEASE_LOST\n"),
        ("lock_cpp", "writing with fence "),
    ] {
        let said = c::run(Command::new(dir.path().join(name)).arg(&store)).unwrap();
        assert!(said.starts_with(says), "{name}: {said}");
    }
}

#[test]
#[cfg(feature = "gateway")]
fn an_example_runs_on_hbase() {
    let Some(hbase) = support::hbase::hbase_or_skip() else { return };
    let uri = format!("hbase+thrift://{}/{}", hbase.thrift, support::hbase::fresh_table("c_examples"));
    let dir = tempfile::tempdir().unwrap();
    built_examples(dir.path());
    let said = c::run(Command::new(dir.path().join("lock")).arg(uri)).unwrap();
    assert!(said.starts_with("writing with fence "), "{said}");
}
