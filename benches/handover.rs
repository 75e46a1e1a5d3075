//! How long a released lock stays free while other processes wait for it, with notices and without.
//!
//! `cargo bench --bench handover --features hbase,aerospike` measures the embedded store, an HBase and an Aerospike that
//! it starts, with 2 and with 16 waiting processes and a retry interval of 1 s. That takes about four minutes. Names of
//! stores, such as `-- hbase`, select some of them, and a number sets the grants of a row, 5,000 by default; rows without
//! notices end after 20 s. With `-- --test` it takes a few seconds, which only proves that it runs.
//!
//! Where `etcd` and `go` are installed, the mutex of etcd's own Go client passes through the same loop. Its server pushes.
//! That etcd is one node, which writes to memory if the machine has `/dev/shm`.
//!
//! Each process acquires the lock, holds it for 1 ms and releases it, in a loop. All are processes of this machine, and
//! share its clock.
//!
//! | column | meaning |
//! |---|---|
//! | free p50, p99 | from the moment when a release has returned in one process to the moment when another one is granted the lock |
//! | wait mean, p99.9 | how long an acquire took |
//! | calls | calls of the store in a grant: one acquire, one release, and the reads of who waits |
//! | Jain | how equal the shares of the processes are: 1 if they are equal |

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dlm::store::open;
use dlm::{Level, LockManager, Moment};
use dlm_fixtures::aerospike::{IN_MEMORY, own_server_or_skip};
use dlm_fixtures::hbase::{fresh_table, hbase_or_skip};
use dlm_testkit::Spy;

const HOLD: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(20);

/// One grant: when the process began to wait, was granted the lock, and had released it.
type Turn = (u64, u64, u64, usize);

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [role, uri, notices, grants] = &arguments[..]
        && role == "process"
    {
        return process(uri, notices, grants.parse().expect("a number"));
    }
    // `cargo test` runs benchmarks too.
    let quick = !arguments.iter().any(|it| it == "--bench") || arguments.iter().any(|it| it == "--test");
    let grants = arguments.iter().find_map(|it| it.parse().ok()).unwrap_or(if quick { 40 } else { 5000 });
    let stores: Vec<_> =
        arguments.iter().filter(|it| !it.starts_with("--") && it.parse::<u64>().is_err()).collect();
    let wanted = |store: &str| stores.is_empty() || stores.iter().any(|it| *it == store);
    println!(
        "| store | notices | waiting | grants | free p50, ms | p99 | wait mean, ms | p99.9 | most | calls | Jain |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let numbers = if quick { vec![2] } else { vec![2, 16] };
    let rows = |store: &str, uri: &str, on: &str| {
        for &waiting in &numbers {
            for notices in [on, &format!("{on} to all"), "off"] {
                let own = || {
                    let mut command = Command::new(std::env::current_exe().expect("a path"));
                    command.args(["process", uri, notices]);
                    command
                };
                row(store, notices, waiting, &run(own, waiting + 1, grants));
            }
        }
    };
    let on = "udp://127.0.0.1";
    if wanted("embedded") {
        let dir = tempfile::tempdir().unwrap();
        rows("embedded", &format!("embedded:{}", dir.path().display()), "local");
    }
    if wanted("hbase")
        && let Some(hbase) = hbase_or_skip()
    {
        let table = fresh_table("handover");
        rows("HBase, java", &format!("hbase://{}/{table}", hbase.master), on);
        rows("HBase, own", &format!("hbase://{}/{table}_own?layout=own", hbase.master), on);
    }
    if wanted("aerospike")
        && let Some(server) = own_server_or_skip(IN_MEMORY)
    {
        let uri = server.place().uri();
        let (path, _) = uri.split_once('?').unwrap_or((&uri, ""));
        rows("Aerospike, java", path, on);
        rows("Aerospike, own", &format!("{path}_own?layout=own"), on);
    }
    if wanted("etcd")
        && let Some(etcd) = Etcd::start()
    {
        for waiting in numbers {
            let peer = || {
                let mut command = Command::new(etcd.directory.path().join("peer"));
                command.arg(&etcd.endpoint);
                command
            };
            row("etcd", "pushed", waiting, &run(peer, waiting + 1, grants));
        }
    }
}

/// A server of etcd, and the program that takes its mutex.
struct Etcd {
    server: Child,
    endpoint: String,
    directory: tempfile::TempDir,
}

impl Etcd {
    /// Returns `None` where etcd or Go is not installed.
    fn start() -> Option<Etcd> {
        let installed = |name: &str, argument: &str| {
            let mut command = Command::new(name);
            command
                .arg(argument)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|it| it.success())
        };
        if !installed("etcd", "--version") || !installed("go", "version") {
            println!("(no etcd or no go on this machine: its rows are left out)");
            return None;
        }
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let directory = directory.expect("a directory");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/etcd");
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(directory.path().join("peer")).arg(".").current_dir(source);
        assert!(build.status().expect("go runs").success(), "benches/etcd does not compile");
        let [clients, peers] = [(); 2].map(|()| {
            let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
            free.local_addr().expect("an address")
        });
        let mut server = Command::new("etcd");
        server.arg("--data-dir").arg(directory.path().join("data"));
        for (option, address) in [
            ("--listen-client-urls", clients),
            ("--advertise-client-urls", clients),
            ("--listen-peer-urls", peers),
            ("--initial-advertise-peer-urls", peers),
        ] {
            server.arg(option).arg(format!("http://{address}"));
        }
        server.args(["--initial-cluster", &format!("default=http://{peers}")]);
        let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a server");
        let etcd = Etcd { server, endpoint: clients.to_string(), directory };
        let began = Instant::now();
        while TcpStream::connect(clients).is_err() {
            assert!(began.elapsed() < Duration::from_secs(30), "etcd does not start");
            thread::sleep(Duration::from_millis(50));
        }
        Some(etcd)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// What the processes of a row did.
struct Run {
    turns: Vec<Turn>,
    /// Calls of the store.
    calls: u64,
}

fn run(program: impl Fn() -> Command, processes: usize, grants: usize) -> Run {
    let each = grants.div_ceil(processes).to_string();
    let start = || {
        let mut command = program();
        command.arg(&each).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().expect("a process")
    };
    let mut children: Vec<_> = (0..processes).map(|_| start()).collect();
    let mut outputs: Vec<_> =
        children.iter_mut().map(|it| BufReader::new(it.stdout.take().expect("piped"))).collect();
    for output in &mut outputs {
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
    }
    for child in &mut children {
        child.stdin.take().expect("piped").write_all(b"go\n").expect("it reads");
    }
    let turns = outputs.into_iter().enumerate().map(|(number, output)| {
        thread::spawn(move || {
            let turn = |line: String| -> Turn {
                let mut numbers = line.split(' ').map(|it| it.parse().expect("a number"));
                let mut next = || numbers.next().expect("three numbers");
                (next(), next(), next(), number)
            };
            let mut lines: Vec<_> = output.lines().map(|line| line.expect("text")).collect();
            let last = lines.pop().expect("the number of calls");
            let calls: u64 = last.strip_prefix("calls ").and_then(|it| it.parse().ok()).expect("a number");
            (lines.into_iter().map(turn).collect::<Vec<_>>(), calls)
        })
    });
    let turns: Vec<_> = turns.collect();
    let (turns, calls): (Vec<_>, Vec<_>) = turns.into_iter().map(|it| it.join().expect("it reads")).unzip();
    let mut turns: Vec<_> = turns.into_iter().flatten().collect();
    children.iter_mut().for_each(|child: &mut Child| assert!(child.wait().expect("it ends").success()));
    turns.sort_by_key(|(_, granted, ..)| *granted);
    Run { turns, calls: calls.into_iter().sum() }
}

/// One of the processes: passes the lock on until it has had its share, or the time is over.
fn process(uri: &str, notices: &str, grants: usize) {
    let spy = Spy::on(open(uri).expect("a store"));
    let (address, all) = notices.strip_suffix(" to all").map_or((notices, false), |address| (address, true));
    let builder = LockManager::builder().store(spy.clone()).client("handover").retry(Duration::from_secs(1));
    let builder = builder.wait(Duration::from_secs(60)).notices(address).notices_all(all);
    let manager = builder.open().expect("a manager");
    manager.initialize().expect("tables");
    let lock = manager.lock("passed", Level::Xdc).expect("a name");
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let (end, before, mut turns) = (Moment::now().after(LONGEST), spy.calls() as u64, Vec::new());
    while turns.len() < grants && Moment::now() < end {
        let began = Moment::now();
        let lease = lock.acquire().expect("granted");
        let granted = Moment::now();
        thread::sleep(HOLD);
        assert!(lease.release().expect("released"));
        turns.push((began, granted, Moment::now()));
    }
    let calls = spy.calls() as u64 - before;
    manager.close().expect("closed");
    for (began, granted, released) in turns {
        println!("{} {} {}", began.as_nanos(), granted.as_nanos(), released.as_nanos());
    }
    println!("calls {calls}");
}

fn row(store: &str, notices: &str, waiting: usize, Run { turns, calls }: &Run) {
    let calls = *calls as f64 / turns.len() as f64;
    // While all take part.
    let last = |number: usize| turns.iter().rposition(|it| it.3 == number).unwrap_or_default();
    let all = (0..=waiting).map(last).min().unwrap_or_default();
    let turns = &turns[..=all];
    let mut free: Vec<_> = turns
        .windows(2)
        .filter(|pair| pair[0].3 != pair[1].3)
        .map(|pair| (pair[1].1 as f64 - pair[0].2 as f64) / 1e6)
        .collect();
    let mut waits: Vec<_> = turns.iter().map(|(began, granted, ..)| (granted - began) as f64 / 1e6).collect();
    free.sort_by(f64::total_cmp);
    waits.sort_by(f64::total_cmp);
    let at = |of: &[f64], share: f64| {
        of.get(((of.len() as f64 - 1.0).max(0.0) * share) as usize).copied().unwrap_or(f64::NAN)
    };
    let mean = waits.iter().sum::<f64>() / waits.len() as f64;
    let counts: Vec<_> =
        (0..=waiting).map(|number| turns.iter().filter(|it| it.3 == number).count() as f64).collect();
    let sum: f64 = counts.iter().sum();
    let jain = sum * sum / (counts.len() as f64 * counts.iter().map(|it| it * it).sum::<f64>());
    println!(
        "| {store} | {notices} | {waiting} | {} | {:.2} | {:.2} | {mean:.1} | {:.1} | {:.1} | {calls:.2} | {jain:.3} |",
        turns.len(),
        at(&free, 0.5),
        at(&free, 0.99),
        at(&waits, 0.999),
        at(&waits, 1.0),
    );
}
