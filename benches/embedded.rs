//! The embedded store beside what else programs of one machine lock with: flock(2), lock files, SQLite, Redis.
//!
//! `cargo bench --bench embedded --features embedded` takes three minutes. It needs a C compiler; for SQLite and Redis
//! `apt-get install libsqlite3-dev redis-server`. Names of peers, such as `-- flock sqlite`, select some of them.
//! With `-- --test` it takes a few seconds, which only proves that it runs.
//!
//! Threads or processes acquire and release a lock in a loop, all the same one, or each one of its own. The peers take
//! turns in random order in each round. A figure is the median of the rounds.
//!
//! | column | meaning |
//! |---|---|
//! | pairs/s | pairs of acquire and release per second, of all together, in thousands |
//! | x flock | the same as a ratio to flock(2) in the same round: open, lock, close |
//! | wait p50, p99.9, most | how long an acquire took |
//!
//! What they lack: flock(2) has no TTL, no fence, no owner and no record of who holds a lock. A lock file has none of them
//! either, and stays when its process is killed. SQLite and Redis have the TTL and the owner here, and no fence.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use dlm::store::{Attempt, EmbeddedStore, Identity, LockName, LockStore, NamePolicy};
use dlm::{Deadline, Level, LockManager};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(400);
const PEERS: [&str; 5] = ["embedded", "flock", "lockfile", "sqlite", "redis"];
const HELD: usize = 100_000;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [role, directory, threads, ms, which] = &arguments[..]
        && role == "process"
    {
        let ms = Duration::from_millis(ms.parse().expect("a number"));
        return work(directory, threads.parse().expect("a number"), ms, which == "same");
    }
    // `cargo test` runs benchmarks too.
    let is_quick = !arguments.iter().any(|it| it == "--bench") || arguments.iter().any(|it| it == "--test");
    let named: Vec<_> = arguments.iter().filter(|it| !it.starts_with("--")).collect();
    let site = Site::new();
    let peers: Vec<_> =
        PEERS.into_iter().filter(|peer| named.is_empty() || named.iter().any(|it| it == peer)).collect();
    let peers: Vec<_> = peers.into_iter().filter(|peer| site.has(peer)).collect();
    let (rounds, round) = if is_quick { (1, Duration::from_millis(50)) } else { (ROUNDS, ROUND) };
    println!("| who | lock | peer | pairs/s, thousands | x flock | wait p50 | p99.9 | most |");
    println!("|---|---|---|---|---|---|---|---|");
    for (processes, threads) in [(1, 1), (1, 4), (1, 16), (4, 1), (16, 1)] {
        for which in ["same", "own"] {
            if (processes, threads, which) != (1, 1, "own") {
                rows(&site, &peers, Load { processes, threads, which, round }, rounds);
            }
        }
    }
    if peers.contains(&"embedded") {
        calls(&site);
        hold_many(&site.store());
        println!("\nBeside {HELD} locks that are held:\n");
        rows(&site, &["embedded"], Load { processes: 1, threads: 1, which: "same", round }, rounds);
    }
}

#[derive(Clone, Copy)]
struct Load {
    processes: usize,
    threads: usize,
    which: &'static str,
    round: Duration,
}

/// What one peer did in one round.
struct Outcome {
    rate: f64,
    waits: Vec<u32>,
}

fn rows(site: &Site, peers: &[&str], load: Load, rounds: usize) {
    let mut outcomes: Vec<Vec<Outcome>> = peers.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        let mut order: Vec<_> = (0..peers.len()).collect();
        fastrand::shuffle(&mut order);
        for at in order {
            let outcome = site.run(peers[at], load);
            // The first round warms up.
            if round > 0 {
                outcomes[at].push(outcome);
            }
        }
    }
    let who = match load {
        Load { processes: 1, threads, .. } => format!("{threads} threads"),
        Load { processes, .. } => format!("{processes} processes"),
    };
    let flock: Option<Vec<f64>> = peers
        .iter()
        .position(|peer| *peer == "flock")
        .map(|at| outcomes[at].iter().map(|it| it.rate).collect());
    for (peer, outcomes) in peers.iter().zip(&mut outcomes) {
        let rates: Vec<_> = outcomes.iter().map(|it| it.rate / 1e3).collect();
        let ratio = flock.as_ref().map(|flock| {
            let ratios = outcomes.iter().zip(flock).map(|(it, flock)| it.rate / flock);
            format!("{:.2}", median(ratios.collect()))
        });
        let mut waits: Vec<_> = outcomes.iter_mut().flat_map(|it| it.waits.drain(..)).collect();
        waits.sort_unstable();
        let at = |part: f64| {
            waits.get((waits.len() as f64 * part) as usize).or(waits.last()).copied().unwrap_or(0)
        };
        println!(
            "| {who} | {} | {peer} | {:.1} | {} | {} | {} | {} |",
            load.which,
            median(rates),
            ratio.as_deref().unwrap_or("-"),
            time(at(0.5)),
            time(at(0.999)),
            time(at(1.0))
        );
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn time(ns: u32) -> String {
    match f64::from(ns) / 1e3 {
        us if us < 1000.0 => format!("{us:.1} us"),
        us => format!("{:.1} ms", us / 1e3),
    }
}

/// The directories, the program of the peers, and the server.
struct Site {
    directory: tempfile::TempDir,
    redis: Option<Child>,
}

impl Site {
    fn new() -> Site {
        let directory = tempfile::tempdir().expect("a directory");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/embedded/peers.c");
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O2", "-Wall"]).arg(source).arg("-o").arg(directory.path().join("peers"));
        let compiled = cc.args(["-lsqlite3", "-lpthread"]).stderr(Stdio::null()).status();
        if !compiled.is_ok_and(|status| status.success()) {
            println!("(no C compiler or no SQLite: only the embedded store)");
        }
        let mut site = Site { redis: None, directory };
        for name in ["store", "peer"] {
            std::fs::create_dir(site.directory.path().join(name)).expect("a directory");
        }
        let socket = site.peer().join("socket");
        let mut server = Command::new("redis-server");
        server.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&socket);
        site.redis = server.current_dir(site.peer()).stdout(Stdio::null()).spawn().ok();
        let began = Instant::now();
        while site.redis.is_some() && !socket.exists() {
            assert!(began.elapsed() < Duration::from_secs(30), "redis does not start");
            thread::sleep(Duration::from_millis(20));
        }
        site
    }

    fn has(&self, peer: &str) -> bool {
        let has = match peer {
            "embedded" => true,
            "redis" => self.program().exists() && self.redis.is_some(),
            _ => self.program().exists(),
        };
        if !has {
            println!("({peer} is left out)");
        }
        has
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    fn peer(&self) -> PathBuf {
        self.directory.path().join("peer")
    }

    fn program(&self) -> PathBuf {
        self.directory.path().join("peers")
    }

    fn command(&self, peer: &str, load: Load) -> Command {
        let mut command;
        if peer == "embedded" {
            command = Command::new(std::env::current_exe().expect("a path"));
            command.arg("process").arg(self.store());
        } else {
            command = Command::new(self.program());
            command.arg(peer).arg(self.peer());
        }
        command.arg(load.threads.to_string()).arg(load.round.as_millis().to_string()).arg(load.which);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    fn run(&self, peer: &str, load: Load) -> Outcome {
        let mut processes: Vec<_> = (0..load.processes)
            .map(|_| {
                let mut process = self.command(peer, load).spawn().expect("a process");
                let mut output = BufReader::new(process.stdout.take().expect("its output"));
                let mut line = String::new();
                output.read_line(&mut line).expect("it is ready");
                (process, output)
            })
            .collect();
        for (process, _) in &mut processes {
            writeln!(process.stdin.take().expect("its input"), "go").expect("it begins");
        }
        let mut waits = Vec::new();
        for (mut process, mut output) in processes {
            let mut bytes = Vec::new();
            output.read_to_end(&mut bytes).expect("its waits");
            assert!(process.wait().expect("it ends").success(), "{peer}");
            waits.extend(
                bytes.chunks_exact(4).map(|it| u32::from_ne_bytes(it.try_into().expect("four bytes"))),
            );
        }
        Outcome { rate: waits.len() as f64 / load.round.as_secs_f64(), waits }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(redis) = &mut self.redis {
            let _ = redis.kill();
            let _ = redis.wait();
        }
    }
}

/// A process with threads that lock in the embedded store.
fn work(directory: &str, threads: usize, time: Duration, is_same: bool) {
    let uri = format!("embedded:{directory}?client=bench&retry=1ms");
    let manager = LockManager::open(&uri).expect("a store");
    let begin = Barrier::new(threads + 1);
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready").and_then(|()| out.flush()).expect("an output");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let waits: Vec<_> = thread::scope(|scope| {
        let loops = (0..threads).map(|number| {
            let (manager, begin) = (&manager, &begin);
            scope.spawn(move || {
                let own = format!("{}-{number}", std::process::id());
                let lock = manager.lock(if is_same { "same" } else { &own }, Level::Xdc).expect("a name");
                begin.wait();
                let (end, mut waits) = (Instant::now() + time, Vec::new());
                loop {
                    let asked = Instant::now();
                    if asked >= end {
                        return waits;
                    }
                    let lease = lock.acquire().expect("it is granted");
                    waits.push(u32::try_from(asked.elapsed().as_nanos()).unwrap_or(u32::MAX));
                    assert!(lease.release().expect("it is released"));
                }
            })
        });
        let loops: Vec<_> = loops.collect();
        begin.wait();
        loops.into_iter().flat_map(|it| it.join().expect("no panic")).collect()
    });
    let bytes: Vec<_> = waits.into_iter().flat_map(u32::to_ne_bytes).collect();
    out.write_all(&bytes).expect("an output");
}

/// Prints the system calls of a pair.
fn calls(site: &Site) {
    let load = Load { processes: 1, threads: 1, which: "same", round: Duration::from_millis(1500) };
    let plain = site.command("embedded", load);
    let report = site.directory.path().join("calls");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-c", "-U", "calls,name", "-o"])
        .arg(&report)
        .arg(plain.get_program())
        .args(plain.get_args());
    let Ok(mut traced) = strace.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        return println!("(no strace on this machine: system calls are not counted)");
    };
    writeln!(traced.stdin.take().expect("its input"), "go").expect("it begins");
    let output = traced.wait_with_output().expect("it ends");
    let pairs = output.stdout.len().saturating_sub("ready\n".len()) / 4;
    let report = std::fs::read_to_string(report).unwrap_or_default();
    let counted = report.lines().filter_map(|line| {
        let (calls, name) = line.trim().split_once(char::is_whitespace)?;
        Some((calls.parse::<f64>().ok()? / pairs as f64, name.trim().to_owned()))
    });
    let frequent: Vec<_> = counted.filter(|(calls, name)| *calls > 0.05 && name != "total").collect();
    let all: f64 = frequent.iter().map(|(calls, _)| calls).sum();
    let each: Vec<_> = frequent.iter().map(|(calls, name)| format!("{calls:.2} {name}")).collect();
    println!("\nSystem calls of a pair: {all:.2} ({})", each.join(", "));
}

fn hold_many(store: &Path) {
    let store = EmbeddedStore::open(store).expect("a store");
    let identity = Identity::this_process("bench").expect("this process");
    for number in 0..HELD {
        let name =
            LockName::new(Level::Xdc, "held", None, &number.to_string(), NamePolicy::Strict).expect("a name");
        let (ttl, by) = (Duration::from_secs(3600), Deadline::after(Duration::from_secs(60)));
        store
            .acquire(Attempt { name: &name, ttl, identity: &identity, by }, &mut Vec::new())
            .expect("it is granted");
    }
}
