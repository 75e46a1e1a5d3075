//! Operations on rows of a real HBase table, by this library and, in the same run, by HBase's Java client.
//!
//! `cargo bench --bench rows --features hbase` starts its own server, which needs a JDK and Maven. The run takes
//! about seven minutes. It takes less for a choice of operations (`-- get modify`) or numbers of threads (`-- 1 16`).
//! With `-- --test` it takes a few seconds per operation, which only proves that it runs. The two clients take turns
//! within each round, and the figures are medians over the rounds.

#[path = "rows/ours.rs"]
mod ours;
mod peers;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dlm_fixtures::java::Java;
use ours::Rows;
use peers::hbase::Server;
use peers::{Figures, THREADS, measure, median};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--test");
    let (rounds, time) = if quick { (1, Duration::from_millis(300)) } else { (5, Duration::from_secs(2)) };
    let only = Only(arguments);
    let operations: Vec<Operation> =
        Operation::ALL.into_iter().filter(|operation| only.has(operation.name())).collect();
    let server = Server::start();
    let mut peers = Peers::start(&server);
    // A server compiles its code while it runs. In the first half minute under load it is half as fast.
    let warm_up = if quick { 0 } else { 2 };
    for _ in 0..warm_up {
        for &operation in &operations {
            for peer in Peers::NAMES {
                peers.measure(peer, operation, 16, time);
            }
        }
    }
    println!("operations on rows; medians of {rounds} rounds of {time:?}");
    for operation in operations {
        println!("\n| {} | ops/s | p50 us | p99 us | client CPU us/op | {COMPARED} |", operation.name());
        println!("|---|---|---|---|---|---|");
        for threads in THREADS.into_iter().filter(|threads| only.has(&threads.to_string())) {
            let figures = peers::take_turns(Peers::NAMES.len(), rounds, |turn| {
                peers.measure(Peers::NAMES[turn], operation, threads, time)
            });
            for (name, rounds) in Peers::NAMES.iter().zip(&figures) {
                print(threads, name, rounds, &figures[1]);
            }
        }
    }
}

const COMPARED: &str = "ops/s, p50, CPU vs Java";

/// Prints the medians of one peer. The ratios to Java are taken within each round.
fn print(threads: usize, name: &str, rounds: &[Figures], java: &[Figures]) {
    let seen = Figures::medians(rounds);
    let ratio =
        |pick: fn(&Figures) -> f64| median(rounds.iter().zip(java).map(|(seen, to)| pick(seen) / pick(to)));
    println!(
        "| {name}, {threads} threads | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} {:.2} {:.2} |",
        seen.per_s,
        seen.p50_us,
        seen.p99_us,
        seen.client_cpu_us,
        ratio(|seen| seen.per_s),
        ratio(|seen| seen.p50_us),
        ratio(|seen| seen.client_cpu_us),
    );
}

/// The operations and numbers of threads that the command line names, or all of them.
struct Only(Vec<String>);

impl Only {
    /// Returns whether the command line names `one` or nothing of its kind. There are two kinds: numbers and words.
    fn has(&self, one: &str) -> bool {
        let number = |word: &str| word.parse::<usize>().is_ok();
        let mut same_kind =
            self.0.iter().filter(|word| !word.starts_with('-') && number(word) == number(one)).peekable();
        same_kind.peek().is_none() || same_kind.any(|word| word == one)
    }
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    /// Creates a new row with two cells of 16 and 100 bytes.
    Create,
    /// Reads these two cells.
    Get,
    /// Changes the smaller of the two cells from its last value to another.
    CompareAndSet,
    /// Adds one to a cell of 8 bytes.
    Increment,
    /// Reads both cells and replaces them unless one of them has changed.
    Modify,
}

impl Operation {
    const ALL: [Operation; 5] = [
        Operation::Create,
        Operation::Get,
        Operation::CompareAndSet,
        Operation::Increment,
        Operation::Modify,
    ];

    /// Returns the name that the Java program uses.
    fn name(self) -> &'static str {
        match self {
            Operation::Create => "create",
            Operation::Get => "get",
            Operation::CompareAndSet => "compare-and-set",
            Operation::Increment => "increment",
            Operation::Modify => "modify",
        }
    }
}

/// This library and HBase's Java client. Each has its own table, which the Java program creates: one family, one
/// version, 16 regions by the first hexadecimal digit of the key.
struct Peers {
    rows: Rows,
    created: AtomicU64,
    java: Java,
}

impl Peers {
    const JAVA: &str = "Java client";
    const NAMES: [&str; 2] = [ours::NAME, Peers::JAVA];

    fn start(server: &Server) -> Peers {
        let mut java = server.java();
        for table in ["rows", "rows_java"] {
            assert_eq!(java.ask(&format!("create-rows {table}")), "ok");
        }
        let rows = Rows::open(&format!("hbase://{}/rows", server.master));
        Peers { rows, created: AtomicU64::new(0), java }
    }

    fn measure(&mut self, peer: &str, operation: Operation, threads: usize, time: Duration) -> Figures {
        if peer == Peers::JAVA {
            let request = format!("rows rows_java {} {threads} {}", operation.name(), time.as_millis());
            return peers::ask_figures(&mut self.java, &request);
        }
        match operation {
            Operation::Create => measure(
                threads,
                time,
                || (),
                |(), done| {
                    let id = self.created.fetch_add(1, Ordering::Relaxed);
                    let key = format!("{:x}-create-{id}", id % 16);
                    self.rows.create(&key, &Pair::new());
                    done();
                },
            ),
            Operation::Get => self.on_own_rows("get", threads, time, |key, last| {
                self.rows.get(key, last);
            }),
            Operation::CompareAndSet => self.on_own_rows("compare-and-set", threads, time, |key, last| {
                let before = last.small;
                increase(&mut last.small);
                self.rows.compare_and_set(key, &before, &last.small);
            }),
            Operation::Increment => self.on_own_rows("increment", threads, time, |key, _| {
                assert!(self.rows.increment(key, 1) > 0);
            }),
            Operation::Modify => self.on_own_rows("modify", threads, time, |key, _| self.rows.modify(key)),
        }
    }

    /// Measures `operation` on one row per thread. The row has the two cells before the first measured operation. The
    /// operation receives the row's key and what it last wrote.
    fn on_own_rows(
        &self,
        name: &str,
        threads: usize,
        time: Duration,
        operation: impl Fn(&str, &mut Pair) + Sync,
    ) -> Figures {
        let numbers = AtomicUsize::new(0);
        measure(
            threads,
            time,
            || {
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                let (key, pair) = (format!("{:x}-{name}-{number}", number % 16), Pair::new());
                self.rows.put(&key, &pair);
                (key, pair)
            },
            |(key, last), done| {
                operation(key, last);
                done();
            },
        )
    }
}

/// The two cells of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pair {
    small: [u8; 16],
    large: [u8; 100],
}

impl Pair {
    fn new() -> Pair {
        Pair { small: [0; 16], large: [0; 100] }
    }
}

/// Adds one to the number in the first 8 bytes of a cell.
fn increase(cell: &mut [u8]) {
    let (number, _) = cell.split_first_chunk_mut::<8>().expect("a cell of this benchmark");
    *number = (i64::from_be_bytes(*number) + 1).to_be_bytes();
}
