//! Locks that stay: acquire and release of one lock by one thread, again and again.
//!
//! `cargo bench --bench linger --features hbase,aerospike` measures the embedded store, an HBase and an Aerospike that it
//! starts, each without `linger` and with `linger=1s`, in turns. Without one of these servers it leaves out the rows. Names of
//! stores, such as `-- hbase`, select some of them.
//!
//! | column | meaning |
//! |---|---|
//! | pairs/s | pairs of acquire and release per second, median of five rounds of 2 s |
//! | handed over | from the release to the grant in a second process that asks for the lock while it stays with the first and hears notices: p50 and maximum of 20 |

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use dlm::{Level, Lock, LockManager, Moment};
use dlm_fixtures::aerospike::{IN_MEMORY, own_server_or_skip};
use dlm_fixtures::hbase::{fresh_table, hbase_or_skip};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
const HAND_OVERS: usize = 20;
const LINGER: &str = "1s";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [role, uri] = args.as_slice()
        && role == "process"
    {
        return take_as_told(uri);
    }
    // `cargo test` runs benchmarks too. This one takes two minutes and asserts nothing.
    if !args.iter().any(|arg| arg == "--bench") {
        return;
    }
    let named: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |store: &str| named.is_empty() || named.iter().any(|name| *name == store);
    println!("| store | pairs/s | pairs/s, linger={LINGER} | handed over, p50 | max |");
    println!("|---|---|---|---|---|");
    if wanted("embedded") {
        let directory = tempfile::tempdir().expect("a directory");
        row("embedded", &format!("embedded:{}?", directory.path().display()));
    }
    let udp = "notices=udp://127.0.0.1&";
    if wanted("hbase")
        && let Some(hbase) = hbase_or_skip()
    {
        let table = fresh_table("linger");
        row("HBase, java", &format!("hbase://{}/{table}?{udp}", hbase.master));
        row("HBase, own", &format!("hbase://{}/{table}_own?{udp}layout=own&", hbase.master));
    }
    if wanted("aerospike")
        && let Some(server) = own_server_or_skip(IN_MEMORY)
    {
        let uri = server.place().uri();
        let (path, _) = uri.split_once('?').unwrap_or((&uri, ""));
        row("Aerospike, java", &format!("{path}?{udp}"));
        row("Aerospike, own", &format!("{path}_own?{udp}layout=own&"));
    }
}

fn row(store: &str, uri: &str) {
    // Nobody polls, so a lock whose time of staying is over is not left to others for an interval.
    let uri = &format!("{uri}notices_all=true&");
    let lingering = format!("{uri}linger={LINGER}");
    let locks = [open(&format!("{uri}linger=0s")), open(&lingering)];
    let mut pairs = [Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        for (lock, pairs) in locks.iter().zip(&mut pairs) {
            let rate = pairs_per_second(lock);
            // The first round warms up.
            if round > 0 {
                pairs.push(rate);
            }
            thread::sleep(Duration::from_millis(1200));
        }
    }
    pairs.iter_mut().for_each(|rates| rates.sort_by(f64::total_cmp));
    let [without, with] = pairs.map(|rates| rates[ROUNDS / 2]);
    drop(locks);
    let mut late = hand_overs(&lingering);
    late.sort();
    let ms = |late: Duration| late.as_secs_f64() * 1e3;
    let (half, most) = (ms(late[HAND_OVERS / 2]), ms(late[HAND_OVERS - 1]));
    println!("| {store} | {without:.0} | {with:.0} | {half:.2} ms | {most:.2} ms |");
}

fn pairs_per_second(lock: &Lock) -> f64 {
    let (began, mut pairs) = (Moment::now(), 0_u32);
    while Moment::now().since(began) < ROUND {
        for _ in 0..16 {
            assert!(lock.acquire().expect("it is granted").release().expect("it is released"));
        }
        pairs += 16;
    }
    f64::from(pairs) / Moment::now().since(began).as_secs_f64()
}

/// Returns how long a second process waited for a lock that stayed with this one.
fn hand_overs(uri: &str) -> Vec<Duration> {
    let lock = open(uri);
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    let mut other = command
        .args(["process", uri])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut answers = BufReader::new(other.stdout.take().expect("its output")).lines();
    let mut orders = other.stdin.take().expect("its input");
    let late = (0..HAND_OVERS).map(|_| {
        assert!(lock.acquire().expect("it is granted").release().expect("it is released"));
        let asked = Moment::now();
        writeln!(orders, "take").expect("an order");
        let granted = answers.next().expect("an answer").expect("a line").parse().expect("a time");
        // All processes of a machine share this clock.
        Moment::from_nanos(granted).since(asked)
    });
    let late = late.collect();
    drop(orders);
    other.wait().expect("it ends");
    late
}

fn take_as_told(uri: &str) {
    let lock = open(uri);
    for _ in std::io::stdin().lines() {
        let lease = lock.acquire().expect("it is granted");
        println!("{}", Moment::now().as_nanos());
        assert!(lease.release().expect("it is released"));
    }
}

fn open(uri: &str) -> Lock {
    let manager = LockManager::builder().store_uri(uri).client("bench-linger").open().expect("it opens");
    manager.initialize().expect("it is there");
    manager.lock("stays", Level::Xdc).expect("a name")
}
