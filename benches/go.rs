//! The cost of a lock pair in Go, compared with Rust, on the embedded store:
//!
//! ```sh
//! cargo bench --features capi --bench go
//! ```
//!
//! Prints the nanoseconds per acquire and release of a free lock by one thread, and the ratio to Rust: medians over
//! rounds in which both take turns. Needs Go, a C compiler, and a machine that does nothing else.

use std::path::Path;
use std::time::{Duration, Instant};

use dlm::{Level, LockManager};
use dlm_fixtures::c::{self, Link};
use dlm_fixtures::go;

const WAYS: [&str; 3] = ["Rust", "Go, a context without an end", "Go, one that can be cancelled"];

fn main() {
    // `cargo test --benches` runs this too, only to see that it starts.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    if !go::has_go() {
        return;
    }
    let (rounds, time) = if measuring { (7, "1s") } else { (1, "10ms") };
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("bench");
    let mut build = go::tool("go");
    c::run(build.args(["test", go::tags(Link::Static), "-c", "-o"]).arg(&program).arg(".")).unwrap();

    let (mut figures, mut ratios) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for _ in 0..rounds {
        let rust = rust(dir.path(), if measuring { 20_000 } else { 100 });
        let (background, cancellable) = in_go(&program, time);
        for (at, figure) in [rust, background, cancellable].into_iter().enumerate() {
            figures[at].push(figure);
            // The ratio is taken within a round, because the load of the machine changes between rounds.
            ratios[at].push(figure / rust);
        }
    }
    println!("| lock pair, embedded store | ns | times Rust |\n|---|---|---|");
    for ((way, figures), ratios) in WAYS.iter().zip(figures).zip(ratios) {
        println!("| {way} | {:.0} | {:.2} |", median(figures), median(ratios));
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn rust(dir: &Path, pairs: u32) -> f64 {
    let uri = format!("embedded:{}?client=bench", dir.join("store").display());
    let manager = LockManager::open(&uri).unwrap();
    let wait = Duration::from_secs(60);
    let began = Instant::now();
    for _ in 0..pairs {
        // Made in each round as in Go, where a lock is only a name.
        let lock = manager.lock("bench", Level::Xdc).unwrap();
        lock.acquire_within(wait, wait).unwrap().release().unwrap();
    }
    began.elapsed().as_nanos() as f64 / f64::from(pairs)
}

/// Returns what `BenchmarkLockPair` reports. It uses its own store.
fn in_go(program: &Path, time: &str) -> (f64, f64) {
    let mut command = std::process::Command::new(program);
    let command = command.args(["-test.run=^$", "-test.bench=LockPair", "-test.benchtime", time]);
    let output = c::run(command).unwrap();
    let figure = |name: &str| {
        let line = output.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{output}"));
        let words: Vec<_> = line.split_whitespace().collect();
        let unit = words.iter().position(|word| *word == "ns/op").unwrap();
        words[unit - 1].parse().unwrap()
    };
    (figure("/background"), figure("/cancellable"))
}
