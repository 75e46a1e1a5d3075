//! Readers and writers of one lock.
//!
//! `cargo bench --bench modes --features embedded,hbase,aerospike` measures the embedded store, and an HBase and an Aerospike that
//! it starts, in the layout own. Without one of these servers it leaves out the rows. Names of stores, such as `-- hbase`, select
//! some of them.
//!
//! | column | meaning |
//! |---|---|
//! | exclusive/s | pairs of acquire and release per second of 16 processes, each with a lock of its own: median of five rounds of 2 s |
//! | shared/s | the same of 16 processes that read one lock, measured in turns with the former |
//! | ratio | shared beside exclusive |
//! | apart | the same ratio for 16 processes that read a lock of their own: what is left of the difference if no record is hot |
//! | writer, p50, p90, p99 | the wait of a writer beside 64 readers in 8 processes, who ask for half of the shared rate together, for 100 s |
//! | limit | of its p99: three holds of a reader and one `retry` |
//! | alone, p99 | the wait of a writer that has a lock of its own beside the same readers: what the machine and the store take |
//! | reader, worst | the longest wait of 16 readers beside 4 writers who ask again at once, for 20 s, as a multiple of the mean wait |

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use dlm::{Level, LockManager, Mode, Moment};
use dlm_fixtures::aerospike::{IN_MEMORY, own_server_or_skip};
use dlm_fixtures::hbase::{fresh_table, hbase_or_skip};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
const PROCESSES: usize = 16;
const WAITING: Duration = Duration::from_secs(20);
/// For some hundreds of waits, so that the 99th of 100 is not the longest.
const WRITER: Duration = Duration::from_secs(100);
const RETRY: Duration = Duration::from_millis(50);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [role, uri, number] = args.as_slice()
        && role == "process"
    {
        return work_as_told(uri, number);
    }
    // `cargo test` runs benchmarks too. This one takes minutes and asserts nothing.
    if !args.iter().any(|arg| arg == "--bench") {
        return;
    }
    let named: Vec<_> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |store: &str| named.is_empty() || named.iter().any(|name| *name == store);
    println!(
        "| store | exclusive/s | shared/s | ratio | apart | writer, p50, p90, p99 | limit | alone, p99 | reader, worst |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    if wanted("embedded") {
        let directory = tempfile::tempdir().expect("a directory");
        row("embedded", &format!("embedded:{}?", directory.path().display()));
    }
    if wanted("hbase")
        && let Some(hbase) = hbase_or_skip()
    {
        row("HBase, own", &format!("hbase://{}/{}_own?layout=own&", hbase.master, fresh_table("modes")));
    }
    if wanted("aerospike")
        && let Some(server) = own_server_or_skip(IN_MEMORY)
    {
        let uri = server.place().uri();
        let (path, _) = uri.split_once('?').unwrap_or((&uri, ""));
        row("Aerospike, own", &format!("{path}_own?layout=own&"));
    }
}

fn row(store: &str, uri: &str) {
    open(uri).initialize().expect("the store is there");
    let mut processes: Vec<_> = (0..PROCESSES).map(|number| Process::start(uri, number)).collect();
    let (mut exclusive, mut shared, mut apart) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        // In turns, so that a slow moment meets both.
        let mut orders = [("exclusive", &mut exclusive), ("shared", &mut shared), ("apart", &mut apart)];
        orders.rotate_left(round % 3);
        for (order, rates) in orders {
            processes.iter_mut().for_each(|process| process.tell(order));
            let pairs: f64 = processes.iter_mut().flat_map(Process::hear).sum();
            // The first round warms up.
            if round > 0 {
                rates.push(pairs / ROUND.as_secs_f64());
            }
        }
    }
    let [exclusive, shared, apart] = [exclusive, shared, apart].map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[ROUNDS / 2]
    });

    // 64 readers ask for half of that rate: one of them once in so long, and reads for half of that time.
    let period = Duration::from_secs_f64(64.0 / (shared / 2.0));
    let (readers, writer) = processes.split_at_mut(8);
    let [waits, alone] = ["write 1", "alone"].map(|order| {
        readers.iter_mut().for_each(|process| process.tell(&format!("read {}", period.as_micros())));
        writer[0].tell(order);
        readers.iter_mut().for_each(|process| drop(process.hear()));
        let mut waits = writer[0].hear();
        waits.sort_by(f64::total_cmp);
        [50, 90, 99].map(|percent| waits[waits.len() * percent / 100])
    });
    let [p50, p90, p99] = waits;
    let limit = (3 * (period / 2) + RETRY).as_secs_f64() * 1e3;

    let (readers, writers) = processes.split_at_mut(8);
    readers.iter_mut().for_each(|process| process.tell("wait"));
    writers[0].tell("write 4");
    let waits: Vec<f64> = readers.iter_mut().flat_map(Process::hear).collect();
    drop(writers[0].hear());
    let mean = waits.iter().sum::<f64>() / waits.len() as f64;
    let worst = waits.iter().copied().fold(0.0, f64::max);
    println!(
        "| {store} | {exclusive:.0} | {shared:.0} | {:.2} | {:.2} | {p50:.1}, {p90:.1}, {p99:.1} ms | {limit:.1} ms | {:.1} ms | {:.1} of {mean:.1} ms |",
        shared / exclusive,
        apart / exclusive,
        alone[2],
        worst / mean,
    );
}

struct Process {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(uri: &str, number: usize) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        let command = command.args(["process", uri, &number.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let answers = BufReader::new(child.stdout.take().expect("its output")).lines();
        let orders = child.stdin.take().expect("its input");
        Process { child, orders, answers }
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("an order");
    }

    fn hear(&mut self) -> Vec<f64> {
        let line = self.answers.next().expect("an answer").expect("a line");
        line.split_whitespace().map(|number| number.parse().expect("a number")).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open(uri: &str) -> LockManager {
    LockManager::builder().store_uri(uri).client("bench-modes").retry(RETRY).open().expect("it opens")
}

fn work_as_told(uri: &str, number: &str) {
    let manager = open(uri);
    for order in std::io::stdin().lines() {
        let order = order.expect("a line");
        let mut words = order.split_whitespace();
        let (verb, count) = (words.next(), words.next().and_then(|word| word.parse::<u64>().ok()));
        let numbers = match (verb, count) {
            (Some("exclusive"), _) => vec![pairs(&manager, number, Mode::Exclusive)],
            (Some("shared"), _) => vec![pairs(&manager, "hot", Mode::Shared)],
            (Some("apart"), _) => vec![pairs(&manager, number, Mode::Shared)],
            (Some("read"), Some(micros)) => {
                let period = Duration::from_micros(micros);
                in_threads(8, || waits(&manager, "busy", Mode::Shared, (period / 2, period / 2), WRITER))
            }
            (Some("write"), Some(1)) => waits(&manager, "busy", Mode::Exclusive, (5 * MS, 50 * MS), WRITER),
            (Some("alone"), _) => waits(&manager, "alone", Mode::Exclusive, (5 * MS, 50 * MS), WRITER),
            // A writer that is not alone asks again at once.
            (Some("write"), Some(many)) => {
                let work = || waits(&manager, "busy", Mode::Exclusive, (5 * MS, Duration::ZERO), WAITING);
                in_threads(many as usize, work)
            }
            (Some("wait"), _) => {
                in_threads(2, || waits(&manager, "busy", Mode::Shared, (5 * MS, 5 * MS), WAITING))
            }
            _ => panic!("{order} is no order"),
        };
        let words: Vec<_> = numbers.iter().map(f64::to_string).collect();
        println!("{}", words.join(" "));
    }
}

const MS: Duration = Duration::from_millis(1);

fn in_threads(threads: usize, work: impl Fn() -> Vec<f64> + Sync) -> Vec<f64> {
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("it ends")).collect()
    })
}

/// Returns the number of pairs in a round.
fn pairs(manager: &LockManager, name: &str, mode: Mode) -> f64 {
    let lock = manager.lock(name, Level::Xdc).expect("a name");
    let (began, mut pairs) = (Moment::now(), 0.0);
    while Moment::now().since(began) < ROUND {
        let lease = match mode {
            Mode::Exclusive => lock.acquire(),
            _ => lock.shared().acquire(),
        };
        assert!(lease.expect("it is granted").release().expect("it is released"));
        pairs += 1.0;
    }
    pairs
}

/// Holds the lock again and again for so long, and returns how long each wait took, in milliseconds.
fn waits(
    manager: &LockManager,
    name: &str,
    mode: Mode,
    (hold, pause): (Duration, Duration),
    lasts: Duration,
) -> Vec<f64> {
    let lock = manager.lock(name, Level::Xdc).expect("a name");
    let (began, mut waits) = (Moment::now(), Vec::new());
    while Moment::now().since(began) < lasts {
        let asked = Moment::now();
        let lease = match mode {
            Mode::Exclusive => lock.acquire(),
            _ => lock.shared().acquire(),
        };
        let lease = lease.expect("it is granted");
        waits.push(Moment::now().since(asked).as_secs_f64() * 1e3);
        thread::sleep(hold);
        assert!(lease.release().expect("it is released"));
        thread::sleep(pause);
    }
    waits
}
