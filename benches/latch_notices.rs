//! Waiting for latches in several processes, with notices and without.
//!
//! `cargo bench --bench latch_notices --features hbase,aerospike` measures the embedded store, an HBase and an Aerospike
//! that it starts. Without one of these servers it leaves out the rows. Names of stores, such as `-- hbase`, select some of
//! them. 1,000 threads in eight processes wait with a poll interval of 5 s: each of 125 latches in every process. After
//! some seconds another process opens the latches, one by one at random moments.
//!
//! | column | meaning |
//! |---|---|
//! | woken after | from the call that opened the latch to the end of the wait in another process |
//! | count-down | how long that call took, p50. With notices it finds out whom to tell |

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use dlm::{Latch, LatchKind, Level, LockManager, Moment};
use dlm_fixtures::aerospike::{IN_MEMORY, own_server_or_skip};
use dlm_fixtures::hbase::{fresh_table, hbase_or_skip};

const PROCESSES: usize = 8;
const LATCHES: usize = 125;
/// Until the pauses between two reads have grown to the poll interval.
const WAITING: Duration = Duration::from_secs(12);
/// The latches are opened at random moments within this time.
const OPENING: Duration = Duration::from_secs(8);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [role, uri, run] = args.as_slice()
        && role == "process"
    {
        return wait_for_all(uri, run);
    }
    // `cargo test` runs benchmarks too. This one takes two minutes and asserts nothing.
    if !args.iter().any(|arg| arg == "--bench") {
        return;
    }
    let named: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |store: &str| named.is_empty() || named.iter().any(|name| *name == store);
    println!("| store | notices | woken after, p50 | p99 | max | count-down |");
    println!("|---|---|---|---|---|---|");
    if wanted("embedded") {
        let directory = tempfile::tempdir().expect("a directory");
        rows("embedded", &format!("embedded:{}", directory.path().display()), "local");
    }
    if wanted("hbase")
        && let Some(hbase) = hbase_or_skip()
    {
        rows("HBase", &format!("hbase://{}/{}", hbase.master, fresh_table("latches")), "udp://127.0.0.1");
    }
    if wanted("aerospike")
        && let Some(server) = own_server_or_skip(IN_MEMORY)
    {
        rows("Aerospike", &server.place().uri(), "udp://127.0.0.1");
    }
}

fn rows(store: &str, uri: &str, on: &str) {
    for notices in ["off", on] {
        let separator = if uri.contains('?') { '&' } else { '?' };
        println!("| {store} | {notices} | {} |", row(&format!("{uri}{separator}notices={notices}")));
    }
}

fn row(uri: &str) -> String {
    let manager = open(uri);
    let run = Moment::now().as_nanos().to_string();
    let latches: Vec<_> = (0..LATCHES).map(|number| latch(&manager, &run, number)).collect();
    latches.iter().for_each(|latch| latch.create(1).expect("it is created"));
    let waiting: Vec<_> = (0..PROCESSES).map(|_| start(uri, &run)).collect();
    thread::sleep(WAITING);
    let mut pauses: Vec<f64> = (0..LATCHES).map(|_| fastrand::f64()).collect();
    pauses.sort_by(f64::total_cmp);
    let began = Moment::now();
    let calls = latches.iter().zip(pauses).map(|(latch, at)| {
        thread::sleep(began.after(OPENING.mul_f64(at)).since(Moment::now()));
        let called = Moment::now();
        latch.count_down().expect("it is counted");
        (called, Moment::now().since(called))
    });
    let calls: Vec<(Moment, Duration)> = calls.collect();
    let mut late: Vec<Duration> =
        waiting.into_iter().flat_map(woken).map(|(number, woken)| woken.since(calls[number].0)).collect();
    assert_eq!(late.len(), PROCESSES * LATCHES, "all have ended their waits");
    late.sort();
    let mut took: Vec<_> = calls.into_iter().map(|(_, took)| took).collect();
    took.sort();
    let ms = |it: Duration| format!("{:.2} ms", it.as_secs_f64() * 1e3);
    let [half, most, last] = [late.len() / 2, late.len() * 99 / 100, late.len() - 1].map(|at| ms(late[at]));
    format!("{half} | {most} | {last} | {}", ms(took[took.len() / 2]))
}

fn start(uri: &str, run: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["process", uri, run]).stdout(Stdio::piped()).spawn().expect("a process")
}

/// Returns the number of each latch, and when the process was woken.
fn woken(mut process: Child) -> Vec<(usize, Moment)> {
    let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
    let woken = lines.map(|line| {
        let line = line.expect("a line");
        let (number, woken) = line.split_once(' ').expect("two numbers");
        let woken = Moment::from_nanos(woken.parse().expect("a time"));
        (number.parse().expect("a latch"), woken)
    });
    let woken = woken.collect();
    process.wait().expect("it ends");
    woken
}

/// A process that waits. It prints when each wait ended: all processes of a machine share this clock.
fn wait_for_all(uri: &str, run: &str) {
    let manager = open(uri);
    let waiters: Vec<_> = (0..LATCHES)
        .map(|number| {
            let latch = latch(&manager, run, number);
            let wait = move || {
                latch.await_open().expect("it opens");
                Moment::now()
            };
            thread::spawn(wait)
        })
        .collect();
    for (number, waiter) in waiters.into_iter().enumerate() {
        println!("{number} {}", waiter.join().expect("it waits").as_nanos());
    }
}

fn open(uri: &str) -> LockManager {
    let builder = LockManager::builder().store_uri(uri).client("bench-latch").farm("dc1");
    builder.open().expect("it opens")
}

fn latch(manager: &LockManager, run: &str, number: usize) -> Latch {
    let latch = manager.latch(&format!("{run}-{number}"), Level::Dc, LatchKind::CountDown).expect("a name");
    latch.with_ttl(Duration::from_secs(3600)).expect("a TTL")
}
