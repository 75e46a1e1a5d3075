//! How long a released lock stays free while other processes wait for it, with notices and without.
//!
//! `cargo bench --bench handover --features hbase,aerospike` measures the embedded store, an HBase and an Aerospike that
//! it starts, with 2 and with 16 waiting processes and a retry interval of 1 s. That takes about four minutes. Names of
//! stores, such as `-- hbase`, select some of them, and a number sets the grants of a row, 5,000 by default; rows without
//! notices end after 20 s. With `-- --test` it takes a few seconds, which only proves that it runs.
//!
//! Each process acquires the lock, holds it for 1 ms and releases it, in a loop. All are processes of this machine, and
//! share its clock.
//!
//! | column | meaning |
//! |---|---|
//! | free p50, p99 | from the moment when a release has returned in one process to the moment when another one is granted the lock |
//! | wait mean, p99.9 | how long an acquire took |
//! | Jain | how equal the shares of the processes are: 1 if they are equal |

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use dlm::{Level, LockManager, Moment};
use dlm_fixtures::aerospike::{IN_MEMORY, own_server_or_skip};
use dlm_fixtures::hbase::{fresh_table, hbase_or_skip};

const HOLD: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(20);

/// One grant: when the process began to wait, was granted the lock, and had released it.
type Turn = (u64, u64, u64, usize);

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [role, uri, grants] = &arguments[..]
        && role == "process"
    {
        return process(uri, grants.parse().expect("a number"));
    }
    // `cargo test` runs benchmarks too.
    let quick = !arguments.iter().any(|it| it == "--bench") || arguments.iter().any(|it| it == "--test");
    let grants = arguments.iter().find_map(|it| it.parse().ok()).unwrap_or(if quick { 40 } else { 5000 });
    let stores: Vec<_> =
        arguments.iter().filter(|it| !it.starts_with("--") && it.parse::<u64>().is_err()).collect();
    let wanted = |store: &str| stores.is_empty() || stores.iter().any(|it| *it == store);
    println!(
        "| store | notices | waiting | grants | free p50, ms | p99 | wait mean, ms | p99.9 | most | Jain |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let rows = |store: &str, uri: &str, on: &str| {
        for waiting in if quick { vec![2] } else { vec![2, 16] } {
            for notices in [on, &format!("{on}&notices_all=true"), "off"] {
                let turns = run(&format!("{uri}notices={notices}"), waiting + 1, grants);
                row(store, notices, waiting, &turns);
            }
        }
    };
    let on = "udp://127.0.0.1";
    if wanted("embedded") {
        let dir = tempfile::tempdir().unwrap();
        rows("embedded", &format!("embedded:{}?", dir.path().display()), "local");
    }
    if wanted("hbase")
        && let Some(hbase) = hbase_or_skip()
    {
        let table = fresh_table("handover");
        rows("HBase, java", &format!("hbase://{}/{table}?", hbase.master), on);
        rows("HBase, own", &format!("hbase://{}/{table}_own?layout=own&", hbase.master), on);
    }
    if wanted("aerospike")
        && let Some(server) = own_server_or_skip(IN_MEMORY)
    {
        let uri = server.place().uri();
        let (path, _) = uri.split_once('?').unwrap_or((&uri, ""));
        rows("Aerospike, java", &format!("{path}?"), on);
        rows("Aerospike, own", &format!("{path}_own?layout=own&"), on);
    }
}

fn run(uri: &str, processes: usize, grants: usize) -> Vec<Turn> {
    let own = std::env::current_exe().expect("a path");
    let each = grants.div_ceil(processes).to_string();
    let start = || {
        let mut command = Command::new(&own);
        command.args(["process", uri, &each]).stdin(Stdio::piped()).stdout(Stdio::piped());
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
            output.lines().map(|line| turn(line.expect("text"))).collect::<Vec<_>>()
        })
    });
    let turns: Vec<_> = turns.collect();
    let mut turns: Vec<_> = turns.into_iter().flat_map(|it| it.join().expect("it reads")).collect();
    children.iter_mut().for_each(|child: &mut Child| assert!(child.wait().expect("it ends").success()));
    turns.sort_by_key(|(_, granted, ..)| *granted);
    turns
}

/// One of the processes: passes the lock on until it has had its share, or the time is over.
fn process(uri: &str, grants: usize) {
    let manager = LockManager::open(&format!("{uri}&client=handover&retry=1s&wait=60s")).expect("a store");
    manager.initialize().expect("tables");
    let lock = manager.lock("passed", Level::Xdc).expect("a name");
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let (end, mut turns) = (Moment::now().after(LONGEST), Vec::new());
    while turns.len() < grants && Moment::now() < end {
        let began = Moment::now();
        let lease = lock.acquire().expect("granted");
        let granted = Moment::now();
        thread::sleep(HOLD);
        assert!(lease.release().expect("released"));
        turns.push((began, granted, Moment::now()));
    }
    manager.close().expect("closed");
    for (began, granted, released) in turns {
        println!("{} {} {}", began.as_nanos(), granted.as_nanos(), released.as_nanos());
    }
}

fn row(store: &str, notices: &str, waiting: usize, turns: &[Turn]) {
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
        "| {store} | {notices} | {waiting} | {} | {:.2} | {:.2} | {mean:.1} | {:.1} | {:.1} | {jain:.3} |",
        turns.len(),
        at(&free, 0.5),
        at(&free, 0.99),
        at(&waits, 0.999),
        at(&waits, 1.0),
    );
}
