//! The cost of a call through C, compared with the same call in Rust:
//!
//!     cargo bench --bench capi --features capi
//!
//! A C program, linked with the static library, and this program take turns in many short rounds. The figures are
//! those of the fastest rounds, which other programs disturbed least. The exit status is 1 when a lock and unlock of
//! an id costs over 30 ns more through C. Needs a C compiler.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use dlm::{IdLock, Level, LockManager};

/// How much more a lock and unlock of an id may cost through C than in Rust, in nanoseconds.
const LIMIT_NS: f64 = 30.0;
const ROUNDS: usize = 60;
const LIBRARIES: [&str; 5] = ["-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

fn main() -> ExitCode {
    let directory = tempfile::tempdir().expect("a directory");
    let uri = format!("embedded:{}?client=bench", directory.path().join("store").display());
    let program = c_program(directory.path());
    let manager = LockManager::open(&uri).expect("a store");
    let lock = manager.lock("rust", Level::Xdc).expect("a lock");
    let held = manager.lock("held", Level::Xdc).and_then(|lock| lock.try_acquire()).expect("free");
    let ids = IdLock::<u64>::new();

    let through_c = |what: &'static str, calls| ns_through_c(&program, what, &uri, calls);
    let more = compare(
        "IdLock, lock and unlock",
        50_000,
        |id| drop(black_box(ids.lock(id))),
        |n| through_c("ids", n),
    );
    compare("lease.check()", 50_000, |_| held.check().expect("held"), |n| through_c("check", n));
    let pair = |_| assert!(lock.try_acquire().and_then(|lease| lease.release()).expect("free"));
    compare("embedded store, acquire and release", 200, pair, |n| through_c("lease", n));
    if more <= LIMIT_NS {
        return ExitCode::SUCCESS;
    }
    eprintln!("an id through C costs {more:.1} ns more, which is over {LIMIT_NS} ns");
    ExitCode::FAILURE
}

/// Prints both times. Returns how many nanoseconds a call costs more through C.
fn compare(what: &str, calls: u32, mut rust: impl FnMut(u64), mut c: impl FnMut(u32) -> f64) -> f64 {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let began = Instant::now();
        (0..calls).for_each(|id| rust(black_box(u64::from(id % 1024))));
        times[0].push(began.elapsed().as_secs_f64() * 1e9 / f64::from(calls));
        times[1].push(c(calls));
    }
    let [rust, c] = times.map(|times| times.into_iter().fold(f64::INFINITY, f64::min));
    println!("{what}: {rust:.1} ns in Rust, {c:.1} ns through C");
    c - rust
}

/// Compiles the C program. Cargo puts the library in the directory of the benchmark.
fn c_program(directory: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = directory.join("calls");
    let library = std::env::current_exe().expect("this program").with_file_name("libdlm.a");
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-O2", "-Wall"]).arg("-I").arg(root.join("include"));
    cc.arg(root.join("benches/capi/calls.c")).arg("-o").arg(&program).arg(library).args(LIBRARIES);
    assert!(cc.status().expect("a C compiler").success());
    program
}

fn ns_through_c(program: &Path, what: &str, uri: &str, calls: u32) -> f64 {
    let output = Command::new(program).args([what, uri, &calls.to_string()]).output().expect("built above");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}
