//! Waiting for latches that another process counts down: the delay until the waiter wakes, and the cost for the
//! store.
//!
//! `cargo bench --bench latch` prints a table for two poll intervals, the default of 5 s and 50 ms, and for 1, 100
//! and 1,000 latches. In one process one thread waits for each latch. Another process opens the latches one by one
//! over some seconds. The store is the embedded one, in a directory for temporary files. `DLM_BENCH_STORE` selects
//! another one, such as `hbase://master:16000/table`.
//!
//! | column | meaning |
//! |---|---|
//! | p50, max | from the answer to the last count-down in one process to the end of the wait in the other |
//! | reads/s | calls to the store while all latches were waited for and none opened |
//! | threads | threads of the library in the waiting process |
//! | KB | resident memory per latch that is waited for, including the waiting thread |

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use dlm::store::open;
use dlm::{Latch, LatchKind, Level, LockManager, Moment};
use dlm_testkit::Spy;

const POLLS: [Duration; 2] = [Duration::from_secs(5), Duration::from_millis(50)];
const WATCHED: [usize; 3] = [1, 100, 1000];
/// The latches of a row are opened at random moments within this time.
const OPENING: Duration = Duration::from_secs(8);
/// How long reads are counted before that.
const COUNTING: Duration = Duration::from_secs(12);

/// Set in the process that counts down. Its value is the store.
const COUNTER: &str = "DLM_BENCH_COUNTER";
const CLIENT: &str = "bench-latch";

fn main() {
    if let Ok(store) = env::var(COUNTER) {
        return count_down_as_told(&store);
    }
    // `cargo test` runs benchmarks too. This one takes a minute and asserts nothing.
    if !env::args().any(|arg| arg == "--bench") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = env::var("DLM_BENCH_STORE").unwrap_or_else(|_| format!("embedded:{}", dir.path().display()));
    println!("{}", store.split([':', '?']).next().unwrap_or_default());
    println!("| poll | latches | woken after, p50 | max | reads/s | latches per read | threads | KB |");
    println!("|---|---|---|---|---|---|---|---|");
    for poll in POLLS {
        for watched in WATCHED {
            println!("{}", row(&store, poll, watched));
        }
    }
}

fn row(store: &str, poll: Duration, watched: usize) -> String {
    let spy = Spy::on(open(store).unwrap());
    let builder = LockManager::builder().store(spy.clone()).client(CLIENT).farm("dc1");
    let manager = builder.poll(poll).open().unwrap();
    let run = format!("{}-{}-{watched}", Moment::now().as_nanos(), poll.as_millis());
    let latches: Vec<_> = (0..watched).map(|number| latch(&manager, &format!("{run}-{number}"))).collect();
    latches.iter().for_each(|latch| latch.create(1).unwrap());
    let before = resident_kb();
    let waiters: Vec<_> = latches
        .iter()
        .map(|latch| {
            let latch = latch.clone();
            let thread = thread::Builder::new().stack_size(128 << 10);
            let wait = move || {
                latch.await_open().unwrap();
                Moment::now()
            };
            thread.spawn(wait).unwrap()
        })
        .collect();

    // Wait until the intervals have grown to the poll interval.
    thread::sleep(COUNTING);
    let before_counting = spy.reads().len();
    thread::sleep(COUNTING);
    let reads = spy.reads().split_off(before_counting);
    let (threads, kb) = (background_thread_count(), resident_kb().saturating_sub(before) / watched);
    let opened = Counter::start(store).open_all(&run, watched);
    let mut late: Vec<Duration> = waiters
        .into_iter()
        .zip(opened)
        .map(|(waiter, opened)| waiter.join().unwrap().since(opened))
        .collect();
    late.sort();
    format!(
        "| {poll:?} | {watched} | {:.0} ms | {:.0} ms | {:.1} | {:.0} | {threads} | {kb} |",
        late[late.len() / 2].as_secs_f64() * 1e3,
        late[late.len() - 1].as_secs_f64() * 1e3,
        reads.len() as f64 / COUNTING.as_secs_f64(),
        reads.iter().sum::<usize>() as f64 / reads.len().max(1) as f64,
    )
}

fn latch(manager: &LockManager, id: &str) -> Latch {
    let latch = manager.latch(id, Level::Dc, LatchKind::CountDown).unwrap();
    latch.with_ttl(Duration::from_secs(3600)).unwrap()
}

fn background_thread_count() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("dlm-bg")).count()
}

/// Returns the resident memory of this process, in KB.
fn resident_kb() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// The process that counts down. It reads the names of latches, one per line, and writes when each was open.
struct Counter {
    child: Child,
    requests: ChildStdin,
}

impl Counter {
    fn start(store: &str) -> Counter {
        let mut child = Command::new(env::current_exe().unwrap())
            .env(COUNTER, store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = child.stdin.take().unwrap();
        Counter { child, requests }
    }

    /// Opens the latches at random moments. Returns when each was open.
    fn open_all(mut self, run: &str, many: usize) -> Vec<Moment> {
        let mut answers = BufReader::new(self.child.stdout.take().unwrap()).lines();
        let mut pauses: Vec<f64> = (0..many).map(|_| fastrand::f64()).collect();
        pauses.sort_by(f64::total_cmp);
        let began = Moment::now();
        let mut opened = Vec::with_capacity(many);
        for (number, at) in pauses.into_iter().enumerate() {
            let due = began.after(OPENING.mul_f64(at));
            thread::sleep(due.since(Moment::now()));
            writeln!(self.requests, "{run}-{number}").unwrap();
            let told = answers.next().expect("it answers").unwrap();
            opened.push(Moment::from_nanos(told.parse().unwrap()));
        }
        drop(self.requests);
        self.child.wait().unwrap();
        opened
    }
}

fn count_down_as_told(store: &str) {
    let manager = LockManager::builder().store_uri(store).client(CLIENT).farm("dc1").open().unwrap();
    for line in std::io::stdin().lines() {
        latch(&manager, &line.unwrap()).count_down().unwrap();
        // All processes of a machine share this clock.
        println!("{}", Moment::now().as_nanos());
    }
}
