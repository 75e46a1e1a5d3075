//! The C interface as programs use it. Programs in C and C++ are built with several compilers against both libraries.
//! They run directly, under AddressSanitizer and under valgrind.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dlm_fixtures::c::{self, Link};
use dlm_testkit::{left_to_the_long_run, shortened, skipped};

/// Programs in `tests/c`, and their arguments after the store.
const C: [(&str, &[&str]); 16] = [
    ("locks", &[]),
    ("latches", &[]),
    ("ids", &[]),
    ("lost", &[]),
    ("terms", &[]),
    ("modes", &[]),
    ("waiting", &[]),
    ("pendings", &[]),
    ("forks", &[]),
    ("cancelled", &[]),
    ("log", &[]),
    ("masks", &[]),
    ("misaligned", &[]),
    ("signals", &[]),
    ("exits", &[]),
    ("random", &["2000", "42"]),
];

fn source(name: &str) -> PathBuf {
    c::root().join("tests/c").join(name)
}

/// A directory with a store and the compiled programs.
pub(super) struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub(super) fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> String {
        format!("embedded:{}", self.dir.path().join("store").display())
    }

    pub(super) fn c(&self, compiler: &str, name: &str, link: Link, flags: &[&str]) -> PathBuf {
        let out = self.dir.path().join(format!("{name}-{compiler}"));
        let mut command = Command::new(compiler);
        command.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-g"]).args(flags);
        command.arg(source(name).with_extension("c")).arg("-o").arg(&out);
        c::run(link.add_to(&mut command)).unwrap();
        out
    }

    fn cpp(&self, compiler: &str, link: Link, flags: &[&str]) -> PathBuf {
        self.cpp_of(compiler, "tour", link, flags)
    }

    pub(super) fn cpp_of(&self, compiler: &str, name: &str, link: Link, flags: &[&str]) -> PathBuf {
        let out = self.dir.path().join(format!("{name}-{compiler}"));
        let mut command = Command::new(compiler);
        command.args(["-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror", "-g"]).args(flags);
        command.args([source(name).with_extension("cpp"), source("more.cpp")]).arg("-o").arg(&out);
        c::run(link.add_to(&mut command)).unwrap();
        out
    }

    /// Runs a program of this time with the libraries in the folder.
    fn run_beside(&self, folder: &Path) {
        let program = self.c("gcc", "waiting", Link::Shared, &[]);
        c::run(Command::new(program).arg(self.store()).env("LD_LIBRARY_PATH", folder)).unwrap();
    }

    fn run(&self, program: &Path, args: &[&str]) {
        self.run_with(program, args, &[]);
    }

    fn run_with(&self, program: &Path, args: &[&str], variables: &[(&str, &str)]) {
        let mut command = Command::new(program);
        c::run(c::with_library(&mut command).arg(self.store()).args(args).envs(variables.iter().copied()))
            .unwrap();
    }
}

/// Returns whether the tool is installed. If it is not, says that the test is skipped.
pub(super) fn has(tool: &str) -> bool {
    let found = c::run(Command::new(tool).arg("--version"));
    if let Err(failure) = &found {
        skipped(tool, failure);
    }
    found.is_ok()
}

#[test]
fn c_programs_run_with_the_shared_library() {
    run_all("gcc", Link::Shared, |_| true);
}

#[test]
fn c_programs_run_with_the_static_library_linked_as_the_readme_says() {
    // They differ from the shared library in how they are linked, which takes long, and in how they begin and end.
    let few = shortened("two programs of sixteen");
    let ours = ["locks", "exits"];
    run_all("clang", Link::Static, |name| !few || ours.contains(&name));
}

fn run_all(compiler: &str, link: Link, is_wanted: impl Fn(&str) -> bool) {
    let place = Place::new();
    for (name, args) in C.iter().filter(|(name, _)| is_wanted(name) && has(compiler)) {
        place.run(&place.c(compiler, name, link, &[]), args);
    }
}

/// The library is not built for ThreadSanitizer, which then takes its own synchronization for races. The option of the page
/// keeps it from that.
#[test]
fn thread_sanitizer_reports_nothing_with_the_option_that_the_page_names() {
    let options = "ignore_noninstrumented_modules=1";
    assert!(include_str!("../../docs/c.md").contains(&format!("`TSAN_OPTIONS={options}`")));
    if !has("gcc") {
        return;
    }
    let place = Place::new();
    let empty = place.dir.path().join("empty.c");
    fs::write(&empty, "int main(void) { return 0; }\n").unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-fsanitize=thread", "-o"]).arg(empty.with_extension("out")).arg(&empty);
    let ran = c::run(&mut gcc).and_then(|_| c::run(&mut Command::new(empty.with_extension("out"))));
    if let Err(failure) = ran {
        return skipped("ThreadSanitizer", failure);
    }
    let program = place.c("gcc", "locks", Link::Shared, &["-fsanitize=thread"]);
    let mut command = Command::new(program);
    c::run(c::with_library(&mut command).arg(place.store()).env("TSAN_OPTIONS", options)).unwrap();
}

/// A program may load and unload a plug-in that uses the library.
#[test]
fn a_program_may_load_the_library_and_let_go_of_it() {
    if !has("gcc") {
        return;
    }
    let place = Place::new();
    let out = place.dir.path().join("unloads");
    let mut compile = Command::new("gcc");
    compile.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-g", "-I"]);
    compile.arg(c::root().join("include")).arg(source("unloads.c")).arg("-o").arg(&out).arg("-ldl");
    c::run(&mut compile).unwrap();
    place.run(&out, &[c::library("libdlm.so").to_str().unwrap()]);
}

/// Runs `tests/c/prefork.c`: children that execute no program open the store and use threads.
fn prefork(store: &str, forks: usize) {
    if !has("gcc") {
        return;
    }
    let program = Place::new();
    let built = program.c("gcc", "prefork", Link::Shared, &["-O1"]);
    c::run(c::with_library(&mut Command::new(built)).args([store, &forks.to_string()])).unwrap();
}

#[test]
fn children_of_a_server_that_forks_beside_its_threads_work_in_memory() {
    prefork("memory:", if shortened("60 forks of 1,000") { 60 } else { 1_000 });
}

#[test]
fn children_of_a_server_that_forks_beside_its_threads_work_on_an_embedded_store() {
    prefork(&Place::new().store(), if shortened("60 forks of 1,000") { 60 } else { 1_000 });
}

#[cfg(feature = "aerospike")]
#[test]
fn children_of_a_server_that_forks_beside_its_threads_work_on_aerospike() {
    let Some(server) = dlm_fixtures::aerospike::aerospike_or_skip() else { return };
    prefork(&server.uri(), if shortened("20 forks of 1,000") { 20 } else { 1_000 });
}

#[cfg(feature = "hbase")]
#[test]
fn children_of_a_server_that_forks_beside_its_threads_work_on_hbase() {
    let Some(hbase) = dlm_fixtures::hbase::hbase_or_skip() else { return };
    let table = dlm_fixtures::hbase::fresh_table("prefork");
    let forks = if shortened("20 forks of 1,000") { 20 } else { 1_000 };
    prefork(&format!("hbase://{}/{table}", hbase.master), forks);
}

#[test]
fn cpp_programs_run_with_both_libraries() {
    for compiler in ["g++", "clang++"].into_iter().filter(|it| has(it)) {
        for &link in c::links() {
            let place = Place::new();
            place.run(&place.cpp(compiler, link, &[]), &[]);
        }
    }
}

/// C++ statements that must compile, each with similar statements that must not compile.
const TYPES: [(&str, &[&str]); 12] = [
    (
        "(void)lock.acquire_for(dlm::Ttl(30s), dlm::Wait(5s));",
        &[
            "(void)lock.acquire_for(dlm::Wait(5s), dlm::Ttl(30s));",
            "(void)lock.acquire_for(30s, 5s);",
            "(void)lock.acquire_for({30s}, {5s});",
            "(void)lock.acquire_for(dlm::Ttl(30s), 5s);",
            "(void)lock.acquire_for(30s, dlm::Wait(5s));",
            "(void)lock.acquire_for(dlm::Ttl(30s), {});",
            "(void)lock.acquire_for({}, dlm::Wait(5s));",
        ],
    ),
    (
        "(void)lock.acquire_for(dlm::use_default, dlm::forever);",
        &[
            "(void)lock.acquire_for(dlm::forever, dlm::use_default);",
            "(void)lock.acquire_for(DLM_DEFAULT, DLM_FOREVER);",
        ],
    ),
    (
        "(void)lock.acquire_for(dlm::use_default, dlm::use_default, &cancel);",
        &["(void)lock.acquire_for(dlm::forever, dlm::forever, &cancel);"],
    ),
    (
        "(void)lock.try_acquire(dlm::Ttl(1s));",
        &["(void)lock.try_acquire(dlm::Wait(1s));", "(void)lock.try_acquire(1s);", "lock.try_acquire();"],
    ),
    (
        "if (lock.acquire()) std::abort();",
        &["lock.acquire();", "bool held = lock.acquire(); (void)held;", "dlm::Lease lease = lock.acquire();"],
    ),
    (
        "dlm::Lease lease = lock.acquire().lease(); lease.renew(dlm::Ttl(1s));",
        &[
            "dlm::Lease lease = lock.acquire().lease(); lease.renew(dlm::Wait(1s));",
            "dlm::Lease lease = lock.acquire().lease(); lease.renew(dlm::forever);",
            "dlm::Lease lease = lock.acquire().lease(); lease.renew(1s);",
        ],
    ),
    (
        "(void)manager.latch(\"a\", dlm::Level::dc, dlm::LatchKind::count_down, dlm::Ttl(1h));",
        &[
            "(void)manager.latch(\"a\", dlm::Level::dc, dlm::LatchKind::count_down, dlm::Wait(1h));",
            "(void)manager.latch(\"a\", dlm::Level::dc, dlm::LatchKind::count_down, 1h);",
        ],
    ),
    (
        "(void)latch.await_open_for(dlm::Wait(1s));",
        &[
            "(void)latch.await_open_for(dlm::Ttl(1s));",
            "(void)latch.await_open_for(dlm::use_default);",
            "(void)latch.await_open_for(1s);",
        ],
    ),
    (
        "(void)ids.try_lock_for(1, dlm::Wait(1s)); (void)ids.try_lock_many_for({1}, dlm::forever);",
        &[
            "(void)ids.try_lock_for(1, dlm::Ttl(1s));",
            "(void)ids.try_lock_for(1, dlm::use_default);",
            "(void)ids.try_lock_many_for({1}, 1s);",
        ],
    ),
    (
        "(void)keys.try_lock_for(\"a\", dlm::Wait(1s));",
        &["(void)keys.try_lock_for(\"a\", dlm::Ttl(1s));", "(void)keys.try_lock_for(\"a\", 1s);"],
    ),
    (
        "(void)dlm::Wait::until(std::chrono::steady_clock::now());",
        &[
            "(void)dlm::Wait::until(1s);",
            "(void)dlm::Wait(std::chrono::steady_clock::now());",
            "(void)dlm::Wait(dlm::Ttl(1s));",
            "(void)dlm::Ttl(dlm::Wait(1s));",
            "(void)dlm::Ttl(30);",
            "(void)dlm::Wait(30);",
            "(void)dlm::Ttl(dlm::forever);",
            "(void)dlm::Wait(dlm::use_default);",
        ],
    ),
    (
        "if (row.create(dlm::Cells()) == dlm::Creation::created) std::abort();\
         const dlm::RowCells cells = row.read(); (void)cells.value(\"d:a\"); (void)row.delete_if(\"d:a\", \"\");",
        &[
            "row.create(dlm::Cells());",
            "row.update(dlm::Cells());",
            "row.delete_if(\"d:a\", \"\");",
            "row.compare_and_set(\"d:a\", \"\", \"\");",
            "row.commit_if_unchanged(row.read(), dlm::Changes());",
            "row.modify({\"d:a\"}, [](const dlm::RowCells &) { return std::optional<dlm::Changes>(); });",
            "if (row.create(dlm::Cells())) std::abort();",
            // The cells would be freed before the value is used.
            "(void)row.read().value(\"d:a\");",
            "(void)row.read().at(0);",
        ],
    ),
];

#[test]
fn a_ttl_and_a_wait_that_are_swapped_and_answers_that_are_ignored_do_not_compile() {
    let dir = tempfile::tempdir().unwrap();
    for compiler in ["g++", "clang++"].into_iter().filter(|it| has(it)) {
        let compile = |statements: &str| {
            let program = dir.path().join("types.cpp");
            let text = format!(
                "#include <dlm_rows.hpp>\n#include <cstdlib>\nusing namespace std::chrono_literals;\n\
                 void calls(const dlm::Manager &manager, const dlm::Lock &lock, const dlm::Latch &latch,\n\
                 const dlm::IdLock &ids, const dlm::KeyLock &keys, const dlm::Cancel &cancel, const dlm::Row &row);\n\
                 void calls(const dlm::Manager &manager, const dlm::Lock &lock, const dlm::Latch &latch,\n\
                 const dlm::IdLock &ids, const dlm::KeyLock &keys, const dlm::Cancel &cancel, const dlm::Row &row) {{\n\
                 (void)manager, (void)lock, (void)latch, (void)ids, (void)keys, (void)cancel, (void)row;\n#line 1 \"statements\"\n{statements}\n}}\n"
            );
            fs::write(&program, text).unwrap();
            let mut command = Command::new(compiler);
            command.args(["-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]);
            // Not only the first errors.
            command.env("LC_ALL", "C").arg(if compiler == "g++" {
                "-fmax-errors=0"
            } else {
                "-ferror-limit=0"
            });
            c::run(command.arg("-I").arg(c::root().join("include")).arg(&program))
        };
        let lines = |statements: &[&str]| -> String {
            statements.iter().map(|statement| format!("{{ {statement} }}\n")).collect()
        };
        let right: Vec<_> = TYPES.iter().map(|(right, _)| *right).collect();
        compile(&lines(&right)).unwrap();
        let wrong: Vec<_> = TYPES.iter().flat_map(|(_, wrong)| *wrong).copied().collect();
        let complaints = compile(&lines(&wrong)).unwrap_err();
        for (number, wrong) in (1..).zip(wrong) {
            let complains =
                |line: &str| line.starts_with(&format!("statements:{number}:")) && line.contains(" error: ");
            assert!(complaints.lines().any(complains), "{compiler} compiles {wrong}");
        }
    }
}

/// Runs `tests/c/pipes.c` with a store whose peer closes its connections. `met` returns how many calls the peer has met.
/// The program makes three calls in each of four rounds.
///
/// On a busy machine the time-out may pass before a call has reached the peer. Then it is tried with a longer one.
#[cfg(any(feature = "aerospike", feature = "hbase"))]
fn survives(link: Link, uri: &str, met: impl Fn() -> usize) {
    if !has("gcc") {
        return;
    }
    let place = Place::new();
    let program = place.c("gcc", "pipes", link, &[]);
    for timeout in ["1s", "5s", "20s"] {
        let uri = format!("{uri}&timeout={timeout}");
        let told = c::run(c::with_library(&mut Command::new(&program)).arg(&uri)).unwrap();
        println!("{uri}: {told}");
        if met() >= 12 {
            return;
        }
    }
    panic!("the peer has met {} calls", met());
}

#[cfg(any(feature = "aerospike", feature = "hbase"))]
fn survives_a_closer(uri: impl Fn(u16) -> String) {
    let closer = super::closer::Closer::start(None);
    survives(Link::Shared, &uri(closer.address.port()), || closer.connections());
}

#[cfg(any(feature = "aerospike", feature = "hbase"))]
fn survives_a_closer_with_tls(uri: impl Fn(u16) -> String) {
    let certificate = match super::closer::Certificate::new() {
        Ok(certificate) => certificate,
        Err(failure) => return skipped("openssl", failure),
    };
    for &link in c::links() {
        let closer = super::closer::Closer::start(Some(&certificate));
        let options = format!("tls=on&tls_ca={}", certificate.authority().display());
        survives(link, &format!("{}&{options}", uri(closer.address.port())), || closer.handshakes());
    }
}

#[cfg(feature = "hbase")]
#[test]
fn a_c_program_survives_an_hbase_that_closes() {
    survives_a_closer(|port| format!("hbase://127.0.0.1:{port}/locks?client=c"));
    let always = dlm_fixtures::fake::always("Multi", dlm_fixtures::fake::Answer::Close);
    let fake = dlm_fixtures::fake::Fake::start(always);
    survives(Link::Static, &format!("hbase://{}/locks?client=c", fake.address), || fake.count("Multi"));
}

#[cfg(feature = "hbase")]
#[test]
fn a_c_program_survives_an_hbase_that_closes_with_tls() {
    survives_a_closer_with_tls(|port| format!("hbase://localhost:{port}/locks?client=c"));
}

#[cfg(feature = "gateway")]
#[test]
fn a_c_program_survives_a_gateway_that_closes() {
    survives_a_closer(|port| format!("hbase+thrift://127.0.0.1:{port}/locks?client=c"));
}

#[cfg(feature = "aerospike")]
#[test]
fn a_c_program_survives_an_aerospike_that_closes() {
    survives_a_closer(|port| format!("aerospike://127.0.0.1:{port}/test/locks?client=c"));
}

/// Aerospike's client library writes TLS with `writev`, which raises SIGPIPE.
#[cfg(feature = "aerospike")]
#[test]
fn a_c_program_survives_an_aerospike_that_closes_with_tls() {
    survives_a_closer_with_tls(|port| format!("aerospike://localhost:{port}/test/locks?client=c"));
}

/// A thread of the library frees a lock in doubt. It must leave all signals to the program.
#[cfg(feature = "hbase")]
#[test]
fn threads_that_free_locks_in_doubt_leave_signals_to_the_c_program() {
    if !has("gcc") {
        return;
    }
    for &link in c::links() {
        let place = Place::new();
        let fake = dlm_fixtures::fake::Fake::start(|request| match request.method.as_str() {
            "Multi" => dlm_fixtures::fake::Answer::ApplyAndClose,
            "Get" => dlm_fixtures::fake::Answer::Silence,
            _ => dlm_fixtures::fake::Answer::Honest,
        });
        place.run(
            &place.c("gcc", "masks", link, &["-pthread"]),
            &[&format!("hbase://{}/locks?client=c&timeout=1s", fake.address)],
        );
    }
}

/// A signal interrupts the system call in which a thread waits for a reply. The reply must not be lost over that.
#[cfg(feature = "hbase")]
#[test]
fn a_thousand_signals_a_second_lose_no_reply() {
    use std::time::Duration;

    use dlm_fixtures::fake::{Answer, Fake};

    if !has("gcc") {
        return;
    }
    // Each reply takes as long as a few signals.
    let fake = Fake::start(|request| match request.method.as_str() {
        "Multi" | "Get" => Answer::Late(Duration::from_millis(5)),
        _ => Answer::Honest,
    });
    let place = Place::new();
    let program = place.c("gcc", "signals", Link::Shared, &[]);
    let uri = format!("hbase://{}/locks", fake.address);
    c::run(c::with_library(&mut Command::new(program)).arg(uri)).unwrap();
    assert!(fake.count("Get") + fake.count("Multi") >= 5, "{} {}", fake.count("Get"), fake.count("Multi"));
}

/// Returns a URI for a new table of rows. Without an HBase server, says so and returns `None`.
#[cfg(feature = "hbase")]
fn rows_uri() -> Option<String> {
    let hbase = dlm_fixtures::hbase::hbase_or_skip()?;
    // A long timeout, for a busy machine and for valgrind.
    let options = "?family=d&timeout=1m";
    Some(format!("hbase://{}/{}{options}", hbase.master, dlm_fixtures::hbase::fresh_table("c_rows")))
}

#[cfg(feature = "hbase")]
#[test]
fn rows_are_made_and_changed_in_c() {
    if !has("gcc") {
        return;
    }
    for (link, flags, more) in [
        (Link::Shared, &[][..], &[][..]),
        // With one more argument the program does not fork. The reason is below.
        (Link::Static, &["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1"], &["no fork"]),
    ] {
        if matches!(link, Link::Static) && shortened("without the address sanitizer") {
            continue;
        }
        let Some(uri) = rows_uri() else { return };
        let place = Place::new();
        let args: Vec<_> = [uri.as_str()].into_iter().chain(more.iter().copied()).collect();
        place.run(&place.c("gcc", "rows", link, &[flags, &["-pthread"]].concat()), &args);
    }
}

#[cfg(feature = "hbase")]
#[test]
fn rows_are_made_and_changed_in_cpp() {
    let sanitized = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-pthread"];
    for (compiler, link, flags) in [
        ("g++", Link::Shared, &["-pthread"][..]),
        ("g++", Link::Static, &sanitized),
        ("clang++", Link::Static, &["-pthread"]),
    ] {
        if matches!(link, Link::Static) && shortened("the shared library only") || !has(compiler) {
            continue;
        }
        let Some(uri) = rows_uri() else { return };
        let place = Place::new();
        place.run(&place.cpp_of(compiler, "rows", link, flags), &[&uri]);
    }
}

#[cfg(feature = "hbase")]
#[test]
fn rows_in_c_are_not_reported_by_valgrind() {
    if left_to_the_long_run() || !has("valgrind") || !has("gcc") {
        return;
    }
    let Some(uri) = rows_uri() else { return };
    let place = Place::new();
    let program = place.c("gcc", "rows", Link::Shared, &["-pthread"]);
    c::run(valgrind().arg(program).arg(place.store()).args([&uri, "no fork"])).unwrap();
}

fn valgrind() -> Command {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["-q", "--error-exitcode=9", "--fair-sched=yes", "--leak-check=full"]);
    // Rust keeps pointers into the middle of its blocks. Valgrind reports such blocks as "possibly lost".
    valgrind.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
    c::with_library(&mut valgrind);
    valgrind
}

/// The library itself is not instrumented. The sanitizer checks the memory that it passes to C, and its leaks.
#[test]
fn no_c_or_cpp_program_is_reported_by_the_address_sanitizer() {
    if left_to_the_long_run() || !has("gcc") || !has("g++") {
        return;
    }
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1"];
    let place = Place::new();
    // A thread that pthread_cancel() ends leaves poisoned frames behind. At the thread's end the sanitizer would find its own
    // stack among them, if it takes its signal stack back.
    let variables = [("ASAN_OPTIONS", "use_sigaltstack=0")];
    // With GCC 12, the sanitizer's memory allocator may be locked in a forked child. Then the child hangs.
    for (name, args) in C.iter().filter(|(name, _)| *name != "forks") {
        place.run_with(&place.c("gcc", name, Link::Static, &flags), args, &variables);
    }
    place.run_with(&place.cpp("g++", Link::Static, &flags), &[], &variables);
}

#[test]
fn no_c_or_cpp_program_is_reported_by_valgrind() {
    if left_to_the_long_run() || !has("valgrind") || !has("gcc") || !has("g++") {
        return;
    }
    let place = Place::new();
    let mut programs = vec![(place.cpp("g++", Link::Shared, &[]), &[] as &[&str])];
    for name in ["locks", "latches", "ids", "lost", "terms", "log"] {
        programs.push((place.c("gcc", name, Link::Shared, &[]), &[]));
    }
    programs.push((place.c("gcc", "random", Link::Shared, &[]), &["100", "42"]));
    for (program, args) in programs {
        c::run(valgrind().arg(program).arg(place.store()).args(args)).unwrap();
    }
}

#[test]
fn a_hundred_thousand_random_sequences_of_calls_neither_crash_nor_leak() {
    if !has("gcc") {
        return;
    }
    let place = Place::new();
    let program = place.c("gcc", "random", Link::Static, &["-O2"]);
    let each = if shortened("4,000 sequences of 100,000") { "1000" } else { "25000" };
    let seeds = ["1", "20250131", "77", "9000"];
    let runs = seeds.map(|seed| {
        let mut command = Command::new(&program);
        let name = format!("dlm-test-{seed}");
        let run = move || c::run(command.args(["memory:", each, seed])).unwrap();
        std::thread::Builder::new().name(name).spawn(run).unwrap()
    });
    for run in runs {
        run.join().unwrap();
    }
}

/// `tests/c/abi0` contains a program of the interface 0, with the header that it was built with. It is never changed. An
/// object file of it does not link with this library: what it calls has another name now.
#[test]
fn a_program_of_an_older_interface_does_not_link_and_the_linker_names_what_is_gone() {
    if !has("gcc") {
        return;
    }
    let place = Place::new();
    for &link in c::links() {
        let mut gcc = Command::new("gcc");
        // This include directory must come before the one that `link` adds.
        gcc.args(["-std=c99", "-g", "-I"]).arg(source("abi0")).arg(source("abi0/program.c"));
        gcc.arg("-o").arg(place.dir.path().join("old"));
        let refused = c::run(link.add_to(&mut gcc)).expect_err("it was linked");
        let named = |line: &str| line.contains("undefined ") && line.contains("dlm_lock_acquire_within");
        assert!(refused.lines().any(named), "{refused}");
    }
}

/// A program that was linked with the library of the interface 0 asks for that library by name, and this one does not answer
/// to it. Both may lie in one folder. The library of that time is replaced by one that has its name and its functions.
#[test]
fn a_program_of_an_older_interface_is_not_given_this_library() {
    if !has("gcc") {
        return;
    }
    let place = Place::new();
    let folder = place.dir.path();
    let at = |name: &str| folder.join(name);
    let mut old = String::from("#include <dlm.h>\n");
    for function in c::functions_of("tests/c/abi0/dlm.h") {
        let takes: Vec<_> = function.takes.iter().map(|(kind, name)| format!("{kind} {name}")).collect();
        let takes = if takes.is_empty() { "void".into() } else { takes.join(", ") };
        let unused: String = function.takes.iter().map(|(_, name)| format!("(void){name}; ")).collect();
        let end = match function.returns.as_str() {
            "void" => "",
            _ if function.name == "dlm_abi_check" => "return DLM_INVALID_ARGUMENT;",
            _ => "return 0;",
        };
        let _ = writeln!(old, "{} {}({takes}) {{ {unused}{end} }}", function.returns, function.name);
    }
    fs::write(at("old.c"), old).unwrap();
    let (theirs, ours) = (c::soname("0"), c::soname(&c::abi(&c::root().join("include/dlm.h"))));
    assert_ne!(theirs, ours);
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", &format!("-Wl,-soname,{theirs}"), "-I"]).arg(source("abi0"));
    c::run(gcc.arg(at("old.c")).arg("-o").arg(at(&theirs))).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c99", "-I"]).arg(source("abi0")).arg(source("abi0/program.c")).arg(at(&theirs));
    c::run(gcc.args(["-pthread", "-o"]).arg(at("program"))).unwrap();
    std::os::unix::fs::symlink(c::library("libdlm.so"), at(&ours)).unwrap();

    // It has the library of its time, although this one lies beside it.
    let run = || c::run(Command::new(at("program")).arg(place.store()).env("LD_LIBRARY_PATH", folder));
    let failure = run().expect_err("the old library refuses");
    assert!(failure.contains("program.c:"), "{failure}");
    place.run_beside(folder);
    // Without that it does not start.
    fs::remove_file(at(&theirs)).unwrap();
    let refused = run().expect_err("it got another library");
    assert!(refused.contains(&format!("{theirs}: cannot open shared object file")), "{refused}");
}

/// A program that ignores the status of an acquire would work without the lock.
#[test]
fn every_compiler_reports_a_status_that_is_ignored() {
    let statuses: Vec<_> =
        c::functions().into_iter().filter(|function| function.returns == "enum dlm_status").collect();
    assert!(statuses.len() > 30, "{statuses:?}");
    let program = |returns: &str, before: &str| {
        let mut text = String::from("#include <dlm_rows.h>\n#include <dlm_go.h>\n");
        for (at, function) in statuses.iter().enumerate() {
            let takes: Vec<_> = function.takes.iter().map(|(kind, name)| format!("{kind} {name}")).collect();
            let names: Vec<_> = function.takes.iter().map(|(_, name)| name.as_str()).collect();
            let (takes, names) = (takes.join(", "), names.join(", "));
            let _ = writeln!(text, "{returns} call_{at}({takes}) {{ {before}{}({names}); }}", function.name);
        }
        text
    };
    let dir = tempfile::tempdir().unwrap();
    let (ignored, used) = (dir.path().join("ignored.c"), dir.path().join("used.c"));
    fs::write(&ignored, program("void", "")).unwrap();
    fs::write(&used, program("enum dlm_status", "return ")).unwrap();
    for (compiler, standard) in [
        ("gcc", "-std=c99"),
        ("gcc", "-std=c2x"),
        ("clang", "-std=c99"),
        ("clang", "-std=c2x"),
        ("g++", "-std=c++11"),
        ("g++", "-std=c++17"),
        ("clang++", "-std=c++11"),
        ("clang++", "-std=c++17"),
    ] {
        if !has(compiler) {
            continue;
        }
        let compile = |program: &Path| {
            let mut command = Command::new(compiler);
            command.args([standard, "-pedantic", "-Wall", "-Wextra", "-Werror", "-c", "-o", "/dev/null"]);
            command.args(if compiler.ends_with("++") { ["-x", "c++"] } else { ["-x", "c"] });
            // By default some compilers stop after twenty errors.
            command.arg(if compiler.starts_with('g') { "-fmax-errors=0" } else { "-ferror-limit=0" });
            command.arg("-I").arg(c::root().join("include")).arg("-I").arg(c::root().join("go"));
            c::run(command.arg(program))
        };
        compile(&used).unwrap();
        let reported = compile(&ignored).expect_err(compiler);
        let count = reported.matches("error:").count();
        assert_eq!(count, statuses.len(), "{compiler} {standard}: {reported}");
        for function in &statuses {
            assert!(reported.contains(&function.name), "{compiler} {standard}: {}", function.name);
        }
    }
}

/// Pointers that may be NULL. An entry names an argument, or a function and an argument.
const NULL_ALLOWED: [&str; 25] = [
    "error_out",
    "freed_out",
    "recorded_out",
    "dlm_latch_get_or_create created_out",
    "dlm_row_fence names_out",
    "cell_out",
    "counted_out",
    "dlm_manager_open options",
    "dlm_lock_try_acquire options",
    "dlm_lock_acquire options",
    "dlm_lock_acquire_start options",
    "dlm_lock_acquire_start_here options",
    "dlm_lock_campaign options",
    "dlm_manager_acquire_all options",
    "dlm_semaphore_try_acquire options",
    "dlm_semaphore_acquire options",
    "dlm_semaphore_acquire_start options",
    "dlm_semaphore_acquire_start_here options",
    "dlm_manager_list after",
    "dlm_manager_diagnose is_safe_out",
    "dlm_lock_observe cancel",
    "dlm_lease_upgrade cancel",
    "dlm_latch_await_open cancel",
    "dlm_log_to callback",
    "dlm_log_to user",
];

/// Generates calls from the header: each function with each of its pointers NULL, then with all of them NULL, and with
/// numbers that no call allows. The errors name the argument.
#[test]
fn every_function_answers_null_for_every_pointer() {
    if !has("gcc") {
        return;
    }
    let mut calls = String::new();
    let (mut count, mut odd) = (0, 0);
    for function in c::functions() {
        let pointers: Vec<_> = (0..function.takes.len())
            .filter(|&at| function.takes[at].0.contains('*') || function.takes[at].0.contains("callback"))
            .collect();
        let mut sets: Vec<Vec<usize>> = pointers.iter().map(|&at| vec![at]).collect();
        sets.push(pointers);
        for nulls in sets {
            calls += &null_call(&function, &nulls);
            count += 1;
        }
        for (at, (_, argument)) in function.takes.iter().enumerate() {
            let mut numbers: Vec<_> = never_allowed(argument).into_iter().collect();
            if ["max_hold_ms", "wait_ms"].contains(&argument.as_str()) {
                numbers.push("DLM_DEFAULT");
            }
            for number in numbers {
                calls += &odd_call(&function, at, number);
                odd += 1;
            }
        }
    }
    assert!(count > 100 && odd > 20, "{count} {odd}");
    let place = Place::new();
    let program = place.dir.path().join("nulls.c");
    fs::write(&program, fs::read_to_string(source("nulls.c.in")).unwrap().replace("/* CALLS */", &calls))
        .unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-g", "-fsanitize=address,undefined"]);
    gcc.arg("-I").arg(c::root().join("tests/c")).arg(&program).arg("-o").arg(program.with_extension("out"));
    c::run(Link::Static.add_to(&mut gcc)).unwrap();
    c::run(&mut Command::new(program.with_extension("out"))).unwrap();
}

/// Returns the status of a call whose arguments are all allowed.
fn unrefused(name: &str) -> &'static str {
    let of_rows = ["dlm_table_", "dlm_row_", "dlm_lease_row"].iter().any(|of| name.starts_with(of));
    match name {
        // Without the feature there are no tables.
        _ if of_rows && !cfg!(feature = "hbase") => "DLM_INVALID_ARGUMENT",
        "dlm_table_open"
        | "dlm_table_row"
        | "dlm_table_setting"
        | "dlm_lease_row"
        | "dlm_row_exactly_once" => "DLM_OK",
        // The text is not a token.
        "dlm_lock_adopt" => "DLM_INVALID_ARGUMENT",
        // The text is no full name.
        "dlm_manager_lock_named" => "DLM_INVALID_ARGUMENT",
        // The call needs cells that were read, and there are none.
        "dlm_row_commit_if_unchanged" => "DLM_INVALID_ARGUMENT",
        // No server answers at the table's address.
        _ if of_rows => "DLM_CONNECTION_ERROR",
        _ => "DLM_OK",
    }
}

/// Returns a number that no function allows for an argument of this name.
fn never_allowed(argument: &str) -> Option<&'static str> {
    match argument {
        "level" | "kind" | "mode" => Some("77"),
        "permits" => Some("257"),
        _ if argument.ends_with("_ms") && argument != "since_ms" => Some("-3"),
        _ => None,
    }
}

fn odd_call(function: &c::Function, at: usize, number: &str) -> String {
    let argument = |index: usize| {
        if index == at { number.to_owned() } else { good(&function.name, &function.takes[index]) }
    };
    let arguments: Vec<_> = (0..function.takes.len()).map(argument).collect();
    format!(
        "    begin();\n    CHECK({}({}) == DLM_INVALID_ARGUMENT);\n    CHECK(named(\"{} {number}\", NULL));\n    end();\n",
        function.name,
        arguments.join(", "),
        function.takes[at].1
    )
}

/// Returns an argument that is allowed.
fn good(name: &str, (kind, argument): &(String, String)) -> String {
    match (kind.as_str(), argument.as_str()) {
        (_, "uri") if name == "dlm_table_open" => "NO_TABLE".into(),
        (_, "uri") => "\"memory:?client=c\"".into(),
        // The first page.
        (_, "after") => "\"\"".into(),
        (_, "column") => "\"d:a\"".into(),
        (_, "column_size") => "3".into(),
        (_, "key") if name == "dlm_table_setting" => "\"attempts\"".into(),
        (_, "key") if name.ends_with("_setting_ms") => "\"ttl\"".into(),
        ("const char *" | "const void *", _) => "\"purpose\"".into(),
        ("const uint64_t *", _) => "many".into(),
        ("size_t", "index") => "0".into(),
        ("size_t", "cell_size") if name.contains("_cells_") => "sizeof(struct dlm_row_cell)".into(),
        ("size_t", "entry_size") => "sizeof(struct dlm_history_entry)".into(),
        (
            "size_t",
            "stats_size" | "inspection_size" | "cell_size" | "change_size" | "family_size"
            | "completion_size",
        ) => {
            format!("sizeof(struct dlm_{})", argument.trim_end_matches("_size"))
        }
        ("size_t", _) => "2".into(),
        (_, "locks") => "locks".into(),
        (_, "min_hold_ms") => "1".into(),
        (_, "inspection") => "&out_inspection".into(),
        (_, "fences_out") => "out_fences".into(),
        (_, "permits_out") => "out_permits".into(),
        // It can get more rights.
        ("struct dlm_lease *", _) if name == "dlm_lease_upgrade" => "updating".into(),
        ("struct dlm_pending *", _) if name == "dlm_pending_take_permits" => "pending_permits".into(),
        (_, "ttl_ms") => "DLM_DEFAULT".into(),
        (_, "wait_ms") => "0".into(),
        (_, "abi") => "DLM_ABI".into(),
        (_, "max_hold_ms") => "DLM_FOREVER".into(),
        // A descriptor that is none.
        (_, "fd") => "-1".into(),
        ("const char *const *", _) => "words".into(),
        (_, "level" | "kind") => "2".into(),
        ("int64_t", "count" | "by") => "1".into(),
        ("uint64_t" | "int32_t", _) => "1".into(),
        ("void *", "user") => "(void *)many".into(),
        (_, "callback") => "heard".into(),
        ("bool", _) => "true".into(),
        ("const struct dlm_acquire_options *", _) if name.ends_with("_try_acquire") => "NULL".into(),
        ("const struct dlm_acquire_options *", _) => "&at_once".into(),
        (_, argument) if argument.ends_with("_out") => {
            format!("&out_{}", argument.trim_end_matches("_out"))
        }
        // Objects with ids and keys that can be released.
        ("struct dlm_id_lock *", _) if name.contains("_release") => "held_ids".into(),
        ("struct dlm_key_lock *", _) if name.contains("_release") => "held_keys".into(),
        // A latch that does not exist yet.
        ("struct dlm_latch *", _) if name.contains("_create") => "new_latch".into(),
        (kind, _) => {
            kind.trim_start_matches("const ").trim_start_matches("struct dlm_").trim_end_matches(" *").into()
        }
    }
}

fn null_call(function: &c::Function, nulls: &[usize]) -> String {
    let name = &function.name;
    let arguments: Vec<_> = function
        .takes
        .iter()
        .enumerate()
        .map(|(at, argument)| if nulls.contains(&at) { "NULL".into() } else { good(name, argument) })
        .collect();
    let call = format!("{name}({})", arguments.join(", "));
    let refused = nulls.iter().map(|&at| &function.takes[at].1).any(|argument| {
        !NULL_ALLOWED.contains(&argument.as_str())
            && !NULL_ALLOWED.contains(&format!("{name} {argument}").as_str())
    });
    // The error says which of the arguments was NULL: of a handle at least the type.
    // There is no server to read cells from, so those of a commit are NULL in each call.
    let is_alone = nulls.len() == 1 && name != "dlm_row_commit_if_unchanged";
    let sole = (is_alone && refused).then(|| &function.takes[nulls[0]]);
    let named = sole.map(|(kind, argument)| {
        let kind = kind.trim_start_matches("const ").trim_start_matches("struct ").trim_end_matches(" *");
        if kind.starts_with("dlm_") {
            format!("named(\"{kind}\", \"{argument}\")")
        } else {
            format!("named(\"{argument}\", NULL)")
        }
    });
    let outputs: Vec<_> = (0..function.takes.len())
        .filter(|at| !nulls.contains(at))
        .filter_map(|at| function.takes[at].1.strip_suffix("_out"))
        .collect();
    let mut text = String::from("    begin();\n");
    for output in &outputs {
        let _ = writeln!(text, "    memset(&out_{output}, 0xa5, sizeof out_{output});");
    }
    let _ = match (function.returns.as_str(), refused) {
        ("enum dlm_status", _) if name == "dlm_error_status" => {
            writeln!(text, "    CHECK({call} == DLM_INVALID_ARGUMENT);")
        }
        ("enum dlm_status", true) => writeln!(text, "    CHECK({call} == DLM_INVALID_ARGUMENT);"),
        ("enum dlm_status", false) => writeln!(text, "    CHECK({call} == {});", unrefused(name)),
        ("void", _) => writeln!(text, "    {call};"),
        (kind, _) if kind.contains("char *") => writeln!(text, "    CHECK({call} != NULL);"),
        (kind, _) if kind.contains("struct") => writeln!(text, "    made({call}, \"{kind}\");"),
        _ => writeln!(text, "    (void){call};"),
    };
    // On failure the outputs are NULL, 0, false or -1, as the header says.
    for output in outputs.iter().filter(|_| refused) {
        let _ = match *output {
            "error" => writeln!(
                text,
                "    CHECK(out_error != NULL);\n    CHECK({});",
                named.as_deref().unwrap_or("true")
            ),
            "fd" | "available" => writeln!(text, "    CHECK(out_{output} == -1);"),
            "permits" => writeln!(text, "    CHECK(!out_permits[0] && !out_permits[1]);"),
            "stats" => {
                writeln!(text, "    CHECK(out_stats.leases_held == 0 && out_stats.threads_waiting == 0);")
            }
            "inspection" => writeln!(text, "    CHECK(!out_inspection.is_held && !out_inspection.host[0]);"),
            "entry" => writeln!(text, "    CHECK(out_entry.kind == NULL && out_entry.at_ms == 0);"),
            "completion" => writeln!(text, "    CHECK(out_completion.kind == 0);"),
            "fences" => writeln!(text, "    CHECK(!out_fences[0] && !out_fences[1]);"),
            "cell" => writeln!(text, "    CHECK(out_cell.value == NULL && out_cell.column_size == 0);"),
            other => writeln!(text, "    CHECK(!out_{other});"),
        };
    }
    text + "    end();\n"
}
