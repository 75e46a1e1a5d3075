//! Listing the held locks of a store that has many.
//!
//! `cargo bench --bench list --features hbase,aerospike` holds 10,000 locks in the embedded store, an HBase and an Aerospike
//! that it starts, beside 5,000 that were released. Without one of these servers it leaves out the row. Names of stores,
//! such as `-- hbase`, select some of them. Each list is made by a process of its own, which also lists the locks of one
//! client among 100.
//!
//! | column | meaning |
//! |---|---|
//! | list | all held locks, median of five processes |
//! | of one client | the 100 held locks of one of 100 clients |
//! | memory | by how much the process grew while it listed, highest of five |

use std::process::{Command, Stdio};
use std::thread;

use dlm::store::LockQuery;
use dlm::{Level, LockManager, Moment};
use dlm_fixtures::aerospike::{IN_MEMORY, own_server_or_skip};
use dlm_fixtures::hbase::{fresh_table, hbase_or_skip};
use dlm_fixtures::memory::PeakMemory;

const CLIENTS: usize = 100;
const HELD: usize = 10_000;
const FREE: usize = 5_000;
const THREADS: usize = 16;
const LISTS: usize = 5;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [role, uri] = args.as_slice()
        && role == "process"
    {
        return list(uri);
    }
    // `cargo test` runs benchmarks too. This one asserts nothing.
    if !args.iter().any(|arg| arg == "--bench") {
        return;
    }
    let named: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |store: &str| named.is_empty() || named.iter().any(|name| *name == store);
    println!("| store | list | of one client | memory |");
    println!("|---|---|---|---|");
    if wanted("embedded") {
        let directory = tempfile::tempdir().expect("a directory");
        row("embedded", &format!("embedded:{}", directory.path().display()));
    }
    if wanted("hbase")
        && let Some(hbase) = hbase_or_skip()
    {
        row("HBase", &format!("hbase://{}/{}", hbase.master, fresh_table("lists")));
    }
    if wanted("aerospike")
        && let Some(server) = own_server_or_skip(IN_MEMORY)
    {
        row("Aerospike", &server.place().uri());
    }
}

fn row(store: &str, uri: &str) {
    let managers: Vec<_> = (0..CLIENTS).map(|client| open(uri, &format!("client-{client}"))).collect();
    managers[0].initialize().expect("a store");
    let numbers = || (0..THREADS).map(|thread| (thread..HELD + FREE).step_by(THREADS));
    let leases = thread::scope(|scope| {
        let managers = &managers;
        let threads: Vec<_> = numbers()
            .map(|numbers| {
                scope.spawn(move || {
                    let acquire = |number: usize| {
                        let lock = managers[number % CLIENTS].lock(&number.to_string(), Level::Xdc);
                        lock.and_then(|lock| lock.acquire()).expect("a free lock")
                    };
                    let (held, free): (Vec<_>, Vec<_>) = numbers.partition(|number| *number < HELD);
                    for number in free {
                        assert!(acquire(number).release().expect("an answer"));
                    }
                    held.into_iter().map(acquire).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect::<Vec<_>>()
    });
    let mut lists: Vec<[f64; 3]> = (0..LISTS).map(|_| listed(uri)).collect();
    lists.sort_by(|one, other| one[0].total_cmp(&other[0]));
    let [all, one, _] = lists[LISTS / 2];
    let memory = lists.iter().map(|list| list[2]).fold(0.0, f64::max);
    println!("| {store} | {all:.2} s | {one:.2} s | {memory:.1} MiB |");
    drop(leases);
}

/// Starts a process that lists the locks. Returns the seconds for all and for one client, and MiB.
fn listed(uri: &str) -> [f64; 3] {
    let program = std::env::current_exe().expect("this program");
    let listed = Command::new(program).args(["process", uri]).stderr(Stdio::inherit()).output();
    let text = String::from_utf8(listed.expect("a process").stdout).expect("numbers");
    let numbers: Vec<f64> = text.split_whitespace().map(|number| number.parse().expect("a number")).collect();
    numbers.try_into().expect("three numbers")
}

fn list(uri: &str) {
    let manager = open(uri, "tool");
    let count = |query: LockQuery, expected: usize| {
        let began = Moment::now();
        let found =
            manager.locks(&query.held_only()).inspect(|lock| assert!(lock.is_ok(), "{lock:?}")).count();
        assert_eq!(found, expected, "each held lock once");
        Moment::now().since(began).as_secs_f64()
    };
    // Connections are made before.
    let one = count(LockQuery::new().prefix("XDC#client-7#"), HELD / CLIENTS);
    let memory = PeakMemory::measure();
    let all = count(LockQuery::new(), HELD);
    println!("{all} {one} {}", memory.grown_kib() as f64 / 1024.0);
}

fn open(uri: &str, client: &str) -> LockManager {
    let builder = LockManager::builder().store_uri(uri).client(client).option("ttl", "30m");
    builder.open().expect("a manager")
}
