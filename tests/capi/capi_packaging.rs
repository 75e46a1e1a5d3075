//! The installed library can be found and used for builds: with pkg-config, with CMake and with the examples'
//! Makefile.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use dlm_fixtures::c;
use dlm_fixtures::checkout::{Checkout, sh_blocks_of};
use dlm_testkit::{left_to_the_long_run, shortened, skipped};

/// An installed libdlm, and a directory for programs.
struct Installed {
    prefix: PathBuf,
    dir: tempfile::TempDir,
}

impl Installed {
    /// The libraries of this test run. They are installed once for all tests, which must not change them.
    fn shared() -> Installed {
        static PREFIX: OnceLock<PathBuf> = OnceLock::new();
        let prefix = PREFIX.get_or_init(|| {
            let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
            let _ = fs::remove_dir_all(&prefix);
            install(c::root(), c::library("libdlm.so").parent().unwrap(), &prefix);
            prefix
        });
        Installed { prefix: prefix.clone(), dir: tempfile::tempdir().unwrap() }
    }

    /// Installs the libraries in the folder `libraries` with the script of the source at `root`.
    fn of(root: &Path, libraries: &Path) -> Installed {
        let dir = tempfile::tempdir().unwrap();
        let prefix = dir.path().join("prefix");
        install(root, libraries, &prefix);
        Installed { prefix, dir }
    }

    fn prefix(&self) -> PathBuf {
        self.prefix.clone()
    }

    fn pkg_config(&self, options: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(options).arg("dlm").env("PKG_CONFIG_PATH", self.prefix().join("lib/pkgconfig"));
        c::run(&mut command).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    fn abi(&self) -> String {
        c::abi(&self.prefix().join("include/dlm.h"))
    }

    /// Asserts that the program loads the library by its name with the ABI number.
    fn assert_asked_for(&self, program: &Path) {
        let needs = c::run(Command::new("readelf").arg("-d").arg(program)).unwrap();
        assert!(needs.contains(&format!("Shared library: [{}]", c::soname(&self.abi()))), "{needs}");
    }

    /// Builds a program with `libdlm.a`, by path as in the README.
    fn linked_statically(&self, source: &Path) -> PathBuf {
        let program = self.dir.path().join("static");
        let mut cc = Command::new("cc");
        cc.arg("-std=c99").arg("-I").arg(self.prefix().join("include"));
        cc.arg(source).arg("-o").arg(&program).arg(self.prefix().join("lib/libdlm.a"));
        c::run(cc.args(c::system_libraries())).unwrap();
        program
    }

    /// Runs an example with a store in this directory.
    fn run(&self, program: &Path) -> String {
        let store = format!("embedded:{}", self.dir.path().join("store").display());
        c::run(Command::new(program).arg(store).env("LD_LIBRARY_PATH", self.prefix().join("lib"))).unwrap()
    }
}

fn install(root: &Path, libraries: &Path, prefix: &Path) {
    let mut install = c::under_umask("077", &root.join(".packaging/install"));
    c::run(install.arg(prefix).env("LIBRARIES", libraries)).unwrap();
}

fn has(tool: &str) -> bool {
    let found = c::run(Command::new(tool).arg("--version"));
    if let Err(failure) = &found {
        skipped(tool, failure);
    }
    found.is_ok()
}

/// Without it, a program contains the code of all stores, also what it cannot reach.
const GC_SECTIONS: &str = "-Wl,--gc-sections";

fn example(name: &str) -> PathBuf {
    c::root().join("c-examples").join(name)
}

#[test]
fn pkg_config_finds_the_library_and_programs_ask_for_it_by_its_own_name() {
    if !has("pkg-config") {
        return;
    }
    let installed = Installed::shared();
    assert_eq!(installed.pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    pkg_config_builds_and_runs(&installed);

    // With all that it needs: a program without any shared library.
    let program = installed.dir.path().join("whole");
    let mut cc = Command::new("cc");
    cc.arg("-static").arg(example("lock.c")).arg("-o").arg(&program);
    c::run(cc.args(installed.pkg_config(&["--cflags", "--static", "--libs"]))).unwrap();
    let needs = c::run(Command::new("readelf").arg("-d").arg(&program)).unwrap();
    assert!(needs.contains("no dynamic section"), "{needs}");
    assert!(installed.run(&program).starts_with("writing with fence "));
    // The files for pkg-config and CMake both list the libraries that the archive needs.
    let private = installed.pkg_config(&["--libs", "--static"]);
    assert!(private.iter().any(|it| it == GC_SECTIONS), "{private:?}");
    assert!(include_str!("../../.packaging/cmake/dlmConfig.cmake").contains(GC_SECTIONS));
    for library in c::system_libraries() {
        assert!(private.iter().any(|it| it == library), "{library} in {private:?}");
        let cmake = include_str!("../../.packaging/cmake/dlmConfig.cmake");
        let listed = cmake.split("INTERFACE_LINK_LIBRARIES \"").nth(1).unwrap().split('"').next().unwrap();
        assert!(listed.split(';').any(|it| it == &library[2..]), "{library} in {listed}");
    }
}

fn pkg_config_builds_and_runs(installed: &Installed) {
    let program = installed.dir.path().join("shared");
    let mut cc = Command::new("cc");
    cc.arg("-std=c99").arg(example("lock.c")).arg("-o").arg(&program);
    c::run(cc.args(installed.pkg_config(&["--cflags", "--libs"]))).unwrap();
    assert!(installed.run(&program).starts_with("writing with fence "));
    installed.assert_asked_for(&program);
}

/// A library of another interface and of the same version can lie in the same folder, and each program has its own.
#[test]
fn the_file_of_the_shared_library_is_named_after_its_interface_and_its_functions_have_that_version() {
    let installed = Installed::shared();
    let (abi, name) = (installed.abi(), c::soname(&installed.abi()));
    let library = installed.prefix().join("lib").join(&name);
    let file = fs::read_link(&library).unwrap();
    assert_eq!(file.to_str().unwrap(), format!("{name}.{}", env!("CARGO_PKG_VERSION")));
    let symbols = c::run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library)).unwrap();
    let functions: BTreeSet<_> = symbols
        .lines()
        .filter_map(|line| line.split(' ').nth(2)?.strip_suffix(&format!("@@DLM_{abi}")))
        .collect();
    let declared = c::functions();
    assert_eq!(functions, declared.iter().map(|function| function.name.as_str()).collect());
}

/// `libdlm.a` contains LMDB and other libraries. Their names must not be visible to a program that uses the archive.
#[test]
fn the_installed_archive_shows_its_interface_and_nothing_else() {
    let installed = Installed::shared();
    let archive = installed.prefix().join("lib/libdlm.a");
    let listed = c::run(Command::new("nm").args(["-g", "--defined-only"]).arg(&archive)).unwrap();
    let shown: BTreeSet<_> = listed.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let declared: Vec<_> = c::functions().into_iter().map(|function| function.name).collect();
    let others: Vec<_> = shown.iter().filter(|name| !declared.iter().any(|it| it == *name)).collect();
    assert!(others.is_empty(), "{} names, such as {:?}", others.len(), &others[..10.min(others.len())]);
    assert_eq!(shown.len(), declared.len());

    // A program that defines LMDB's functions itself. The library must use its own LMDB.
    let source = installed.dir.path().join("own.c");
    let own = "int mdb_env_create(void **env);\nint mdb_txn_begin(void);\n\
               int mdb_env_create(void **env) { *env = 0; return -1; }\n\
               int mdb_txn_begin(void) { return -1; }\n";
    fs::write(&source, format!("{own}\n#include \"{}\"\n", example("lock.c").display())).unwrap();
    let program = installed.linked_statically(&source);
    assert!(installed.run(&program).starts_with("writing with fence "));
}

#[test]
fn cmake_finds_both_libraries_and_checks_the_version() {
    if has("cmake") {
        cmake_builds_and_runs(&Installed::shared(), Path::new("cmake"));
    }
}

/// Returns the oldest CMake version that `dlmConfig.cmake` accepts.
fn oldest_cmake() -> &'static str {
    let config = include_str!("../../.packaging/cmake/dlmConfig.cmake");
    let (_, version) = config.split_once("if(CMAKE_VERSION VERSION_LESS ").expect("the file checks it");
    version.split(')').next().unwrap()
}

#[test]
fn the_oldest_cmake_that_the_package_names_can_use_it() {
    if left_to_the_long_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Python's registry has CMake as a program.
    let wanted = format!("cmake=={}.*", oldest_cmake());
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--target"]);
    if let Err(failure) = c::run(pip.arg(dir.path()).arg(&wanted)) {
        return skipped("an old cmake", format!("{wanted} cannot be installed: {failure}"));
    }
    cmake_builds_and_runs(&Installed::shared(), &dir.path().join("cmake/data/bin/cmake"));
}

fn cmake_builds_and_runs(installed: &Installed, cmake: &Path) {
    let project = installed.dir.path().join("project");
    fs::create_dir(&project).unwrap();
    let text = format!(
        "cmake_minimum_required(VERSION {oldest})\n\
         project(example C CXX)\n\
         find_package(dlm 0.1 CONFIG REQUIRED)\n\
         find_package(dlm 99 CONFIG QUIET)\n\
         if(dlm_FOUND)\n  message(FATAL_ERROR \"version 99 was found\")\nendif()\n\
         add_executable(shared {lock})\ntarget_link_libraries(shared dlm::dlm)\n\
         add_executable(static {cpp})\ntarget_link_libraries(static dlm::static)\n\
         target_compile_features(static PRIVATE cxx_std_17)\n\
         get_target_property(name dlm::dlm IMPORTED_SONAME)\n\
         file(WRITE ${{CMAKE_BINARY_DIR}}/soname \"${{name}}\")\n",
        oldest = oldest_cmake(),
        lock = example("lock.c").display(),
        cpp = example("lock.cpp").display(),
    );
    fs::write(project.join("CMakeLists.txt"), text).unwrap();
    let build = project.join("build");
    let mut configure = Command::new(cmake);
    configure.arg("-S").arg(&project).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", installed.prefix().display()));
    c::run(&mut configure).unwrap();
    // A path in the cache would stay after the library is uninstalled, and hide its next location.
    let cache = fs::read_to_string(build.join("CMakeCache.txt")).unwrap();
    assert!(!cache.contains("_dlm_"), "{cache}");
    c::run(Command::new(cmake).arg("--build").arg(&build)).unwrap();
    for program in ["shared", "static"] {
        assert!(installed.run(&build.join(program)).starts_with("writing with fence "), "{program}");
    }
    installed.assert_asked_for(&build.join("shared"));
    let name = fs::read_to_string(build.join("soname")).unwrap();
    assert_eq!(name, c::soname(&installed.abi()));
}

/// `DLM_ABI` in `src/capi/version.rs` is the only place that defines the number.
#[test]
fn a_library_of_another_number_is_built_installed_and_asked_for_by_it() {
    if left_to_the_long_run() {
        return;
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("abi");
    let (source, target) = (place.join("source"), place.join("target"));
    let _ = fs::remove_dir_all(&source);
    fs::create_dir_all(&source).unwrap();
    let mut copy = Command::new("cp");
    copy.current_dir(c::root()).args(["-r", "Cargo.toml", "Cargo.lock", "README.md", "build.rs", "src"]);
    c::run(copy.args(["include", "tests", "testkit", "benches", "examples", ".packaging"]).arg(&source))
        .unwrap();
    let version = source.join("src/capi/version.rs");
    let text = fs::read_to_string(&version).unwrap();
    let changed = text.replace("pub const DLM_ABI: u32 = 1;", "pub const DLM_ABI: u32 = 7;");
    assert_ne!(text, changed, "DLM_ABI is no longer 1: change this test");
    fs::write(&version, changed).unwrap();

    // Delete the headers of earlier runs. Only one may be found below.
    for left in fs::read_dir(target.join("debug/build")).into_iter().flatten().map(Result::unwrap) {
        if left.file_name().to_str().unwrap().starts_with("dlm-") {
            fs::remove_dir_all(left.path()).unwrap();
        }
    }
    let mut build = dlm_fixtures::cargo();
    build.args(["build", "--lib", "--no-default-features", "--features", "capi,embedded", "--target-dir"]);
    // Without debug information the build is faster and smaller.
    build.envs([("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_INCREMENTAL", "0")]);
    c::run(build.arg(&target).current_dir(&source)).unwrap();
    let header = c::find(&target.join("debug/build"), |name| name == "dlm.h").expect("build.rs writes it");
    fs::copy(header, source.join("include/dlm.h")).unwrap();

    let installed = Installed::of(&source, &target.join("debug"));
    assert_eq!(installed.abi(), "7");
    if has("pkg-config") {
        pkg_config_builds_and_runs(&installed);
    }
    if has("cmake") {
        cmake_builds_and_runs(&installed, Path::new("cmake"));
    }
    let mut uninstall = Command::new(source.join(".packaging/install"));
    c::run(uninstall.arg("--uninstall").arg(installed.prefix())).unwrap();
    // Its directory too, which the installation has made.
    assert!(!installed.prefix().exists());
}

/// cargo-c names the library after the first number of a version. It cannot read the number from the header.
#[test]
fn cargo_c_gives_the_library_the_same_name() {
    let manifest = include_str!("../../Cargo.toml");
    let (_, library) = manifest.split_once("[package.metadata.capi.library]\n").unwrap();
    let library = library.split("\n[").next().unwrap();
    assert!(library.contains("\nversion_suffix_components = 1\n"), "{library}");
    let version = library.lines().find_map(|line| line.strip_prefix("version = \"")).expect("a version");
    assert_eq!(version.split('.').next().unwrap(), c::abi(&c::root().join("include/dlm.h")));
}

/// As the page says: build, install, uninstall.
#[test]
fn all_may_read_what_is_installed_and_nothing_is_left_after_uninstalling() {
    const PAGE: &str = include_str!("../../docs/c.md");
    let commands =
        sh_blocks_of(PAGE, "all_may_read_what_is_installed_and_nothing_is_left_after_uninstalling");
    let (install, uninstall) = commands.trim_end().rsplit_once('\n').unwrap();
    let checkout = Checkout::new();
    let prefix = checkout.usr_local();
    checkout.run(install);
    for file in [
        "lib/libdlm.so",
        "lib/libdlm.a",
        "lib/pkgconfig/dlm.pc",
        "include/dlm_rows.h",
        "include/dlm_rows.hpp",
    ] {
        assert!(prefix.join(file).exists(), "{file}");
    }
    c::assert_for_all(&prefix);
    let foreign = prefix.join("share/man/man1/other.1");
    fs::create_dir_all(foreign.parent().unwrap()).unwrap();
    fs::write(&foreign, "").unwrap();
    checkout.run(uninstall);
    let left = c::run(Command::new("find").arg(&prefix).args(["-printf", "%P\n"])).unwrap();
    let left: BTreeSet<_> = left.split_whitespace().collect();
    assert_eq!(left, ["share", "share/man", "share/man/man1", "share/man/man1/other.1"].into());
    // The folders that only the installation had. An installation takes the linker seconds.
    fs::remove_dir_all(&prefix).unwrap();
    for folder in ["lib/pkgconfig", "include", "share/dlm/cmake"] {
        fs::create_dir_all(prefix.join(folder)).unwrap();
    }
    checkout.run(uninstall);
    assert!(!prefix.exists());
}

/// Builds these examples into `out`, or all if no names are given. The Makefile must link the same libraries as the README.
fn built_examples(out: &Path, names: &[&str]) {
    let mut make = Command::new("make");
    make.arg("-C").arg(c::root().join("c-examples")).arg(format!("OUT={}", out.display()));
    // A program with the archive takes the linker seconds.
    make.arg(format!("LIBDLM=-I../include {}", c::library("libdlm.so").display()));
    make.args(["CFLAGS=-Wall -Wextra -Werror", "CXXFLAGS=-Wall -Wextra -Werror"]);
    make.args(names.iter().map(|name| out.join(name)));
    c::run(&mut make).unwrap();
    let makefile = include_str!("../../c-examples/Makefile");
    assert!(makefile.contains(&format!("libdlm.a {}\n", c::system_libraries().join(" "))));
}

/// Returns a command for an example that was built.
fn built(out: &Path, name: &str) -> Command {
    let mut command = Command::new(out.join(name));
    c::with_library(&mut command);
    command
}

#[test]
fn the_examples_do_what_they_say() {
    if !has("make") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", dir.path().join("store").display());
    // With the archive, as the README says. The others need not be linked with it as well.
    let commands = sh_blocks_of(include_str!("../../README.md"), "the_examples_do_what_they_say");
    let lines: Vec<_> = commands.lines().collect();
    let wanted = if shortened("the C program of the README alone") { &lines[..2] } else { &lines };
    let checkout = Checkout::new();
    checkout.run(&wanted.join("\n"));
    for program in ["./lock", "./lock_cpp"].iter().take(wanted.len() - 1) {
        assert!(checkout.run(&format!("{program} {store}")).starts_with("writing with fence "), "{program}");
    }
    built_examples(dir.path(), &[]);
    for (name, says) in [
        ("lock", "writing with fence "),
        ("latch", "all have arrived\n"),
        ("licences", "licence 0 with fence "),
        ("id_lock", "the balances add up to 0\n"),
        ("poll_loop", "acquired\nworked with fence above 0\nreleased\n"),
        ("event_loop", "renewed\nrenewed\nrenewed\nLEASE_LOST\n"),
        ("lock_cpp", "writing with fence "),
    ] {
        let said = c::run(built(dir.path(), name).arg(&store)).unwrap();
        assert!(said.starts_with(says), "{name}: {said}");
        let failed = built(dir.path(), name).arg("nowhere:").output().unwrap();
        let said = String::from_utf8_lossy(&failed.stderr);
        if name != "id_lock" {
            assert!(!failed.status.success() && said.contains("\"nowhere\""), "{name}: {said}");
        }
    }
}

#[test]
#[cfg(feature = "hbase")]
fn the_examples_with_rows_do_what_they_say() {
    if !has("make") {
        return;
    }
    let Some(hbase) = dlm_fixtures::hbase::hbase_or_skip() else { return };
    let dir = tempfile::tempdir().unwrap();
    built_examples(dir.path(), &["create_or_update", "fenced_writer"]);
    let table = |options: &str| {
        format!("hbase://{}/{}{options}", hbase.master, dlm_fixtures::hbase::fresh_table("c_examples"))
    };
    let said = c::run(built(dir.path(), "create_or_update").arg(table("?timeout=1m"))).unwrap();
    assert_eq!(said, "4 processes created 25 of 25 rows\n");
    let store = format!("embedded:{}", dir.path().join("store").display());
    let said =
        c::run(built(dir.path(), "fenced_writer").args([store, table("?family=d&timeout=1m")])).unwrap();
    assert_eq!(said, "refused: a lower fence than the row has\nthe report is by the second\n");
}

#[test]
#[cfg(feature = "gateway")]
fn an_example_runs_on_hbase() {
    let Some(hbase) = dlm_fixtures::hbase::hbase_or_skip() else { return };
    let uri = format!(
        "hbase+thrift://{}/{}?timeout=1m",
        hbase.thrift,
        dlm_fixtures::hbase::fresh_table("c_examples")
    );
    let dir = tempfile::tempdir().unwrap();
    built_examples(dir.path(), &["lock"]);
    let said = c::run(built(dir.path(), "lock").arg(uri)).unwrap();
    assert!(said.starts_with("writing with fence "), "{said}");
}
