//! Acquire and release of fresh locks on a real HBase: directly and through the gateway, and beside
//! them, in the same run, HBase's Java client making the calls of the Java library.
//!
//! `cargo bench --bench hbase` starts a server of its own (a JDK and Maven are needed) and takes about
//! five minutes; with `-- --test` a few seconds a peer, which proves that it runs and nothing else.
//! The peers take turns within each round, and the figures are medians over the rounds.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlm::{Level, LockManager};
use rustix::time::{ClockId, clock_gettime};

const THREADS: [usize; 3] = [1, 4, 16];

fn main() {
    let quick = std::env::args().any(|arg| arg == "--test");
    let (rounds, time) = if quick { (1, Duration::from_millis(300)) } else { (5, Duration::from_secs(2)) };
    let server = Server::start();
    let native = format!("hbase://{}/bench?client=bench", server.master);
    let mut peers: Vec<Box<dyn Peer>> = vec![
        Box::new(Local::open("direct, fenced (default)", &native)),
        Box::new(Local::open(
            "direct, fence=off mixed_fleet=off",
            &format!("{native}&fence=off&mixed_fleet=off"),
        )),
        Box::new(Local::open(
            "direct, fence=lock_row",
            &format!("hbase://{}/bench_lock_row?client=bench&fence=lock_row", server.master),
        )),
        Box::new(Local::open(
            "gateway, fenced",
            &format!("hbase+thrift://{}/bench?client=bench", server.thrift),
        )),
        Box::new(Java::start(&server, "bench_java")),
    ];
    // A server compiles its code as it runs: for the first half minute under load it is half as fast.
    let warm_up = if quick { 0 } else { 5 };
    for _ in 0..warm_up {
        for peer in &mut peers {
            peer.cycles(16, time);
        }
    }
    println!("acquire + release of fresh locks; medians of {rounds} rounds of {time:?}");
    for threads in THREADS {
        let mut figures: Vec<Vec<Figures>> = peers.iter().map(|_| Vec::new()).collect();
        for round in 0..=rounds {
            for (peer, figures) in peers.iter_mut().zip(&mut figures) {
                let seen = peer.cycles(threads, time);
                // The first round warms up connections, caches and compilers.
                if round > 0 {
                    figures.push(seen);
                }
            }
        }
        print(threads, &peers, &figures);
    }
}

/// What one peer did in one round.
#[derive(Debug, Clone, Copy)]
struct Figures {
    pairs_per_s: f64,
    acquire_p50_us: f64,
    acquire_p99_us: f64,
    client_cpu_us: f64,
}

fn print(threads: usize, peers: &[Box<dyn Peer>], figures: &[Vec<Figures>]) {
    println!(
        "\n| {threads:2} threads | pairs/s | acquire p50 us | p99 us | client CPU us/pair | pairs/s, p50, CPU vs Java |"
    );
    println!("|---|---|---|---|---|---|");
    let medians: Vec<_> = figures
        .iter()
        .map(|rounds| {
            let median = |pick: fn(&Figures) -> f64| {
                let mut values: Vec<f64> = rounds.iter().map(pick).collect();
                values.sort_by(f64::total_cmp);
                values[values.len() / 2]
            };
            Figures {
                pairs_per_s: median(|figures| figures.pairs_per_s),
                acquire_p50_us: median(|figures| figures.acquire_p50_us),
                acquire_p99_us: median(|figures| figures.acquire_p99_us),
                client_cpu_us: median(|figures| figures.client_cpu_us),
            }
        })
        .collect();
    let java = medians[medians.len() - 1];
    for (peer, seen) in peers.iter().zip(&medians) {
        println!(
            "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} {:.2} {:.2} |",
            peer.name(),
            seen.pairs_per_s,
            seen.acquire_p50_us,
            seen.acquire_p99_us,
            seen.client_cpu_us,
            seen.pairs_per_s / java.pairs_per_s,
            seen.acquire_p50_us / java.acquire_p50_us,
            seen.client_cpu_us / java.client_cpu_us,
        );
    }
}

trait Peer {
    fn name(&self) -> &str;
    fn cycles(&mut self, threads: usize, time: Duration) -> Figures;
}

/// This library.
struct Local {
    name: &'static str,
    manager: LockManager,
    ids: AtomicU64,
}

impl Local {
    fn open(name: &'static str, uri: &str) -> Local {
        let manager = LockManager::open(uri).expect("a good URI");
        manager.initialize().expect("the table can be made");
        Local { name, manager, ids: AtomicU64::new(0) }
    }
}

impl Peer for Local {
    fn name(&self) -> &str {
        self.name
    }

    fn cycles(&mut self, threads: usize, time: Duration) -> Figures {
        let cpu = cpu();
        let begin = Instant::now();
        let mut waits: Vec<f64> = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        let mut waits = Vec::new();
                        while begin.elapsed() < time {
                            let number = self.ids.fetch_add(1, Ordering::Relaxed);
                            let lock =
                                self.manager.lock(&format!("{}-{number}", self.name), Level::Xdc).unwrap();
                            let before = Instant::now();
                            let lease = lock.try_acquire().expect("a fresh lock is free");
                            waits.push(before.elapsed().as_secs_f64() * 1e6);
                            lease.release().expect("it is held");
                        }
                        waits
                    })
                })
                .collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        let (seconds, used) = (begin.elapsed().as_secs_f64(), cpu_since(cpu));
        waits.sort_by(f64::total_cmp);
        Figures {
            pairs_per_s: waits.len() as f64 / seconds,
            acquire_p50_us: waits[waits.len() / 2],
            acquire_p99_us: waits[waits.len() * 99 / 100],
            client_cpu_us: used * 1e6 / waits.len() as f64,
        }
    }
}

fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn cpu_since(before: f64) -> f64 {
    cpu() - before
}

/// HBase's Java client, in a process of its own for the whole run.
struct Java {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    table: &'static str,
}

impl Java {
    fn start(server: &Server, table: &'static str) -> Java {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let classes = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("hbase-peer");
        std::fs::create_dir_all(&classes).unwrap();
        let list = classes.join("classpath");
        if !list.exists() {
            let output = format!("-Dmdep.outputFile={}", list.display());
            run(Command::new("mvn")
                .args(["-q", "-B", "-f"])
                .arg(root.join("tests/hbase/pom.xml"))
                .args(["dependency:build-classpath", &output]));
        }
        let class_path = format!("{}:{}", std::fs::read_to_string(&list).unwrap().trim(), classes.display());
        run(Command::new("javac")
            .args(["-cp", &class_path, "-d"])
            .arg(&classes)
            .arg(root.join("tests/hbase/Peer.java")));
        let mut child = Command::new("java")
            .args(["-cp", &class_path, "Peer", server.zookeeper.rsplit(':').next().unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("java runs");
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut java = Java { child, requests, answers, table };
        assert_eq!(java.line(), "ready");
        assert_eq!(java.ask(&format!("create {table}")), "ok");
        java
    }

    fn ask(&mut self, request: &str) -> String {
        let requests = self.requests.as_mut().expect("open until dropped");
        writeln!(requests, "{request}").expect("java listens");
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("java answers");
        line.trim().to_owned()
    }
}

impl Peer for Java {
    fn name(&self) -> &str {
        "Java client, calls of the Java library"
    }

    fn cycles(&mut self, threads: usize, time: Duration) -> Figures {
        let answer = self.ask(&format!("lock {} {threads} {}", self.table, time.as_millis()));
        let figures: Vec<f64> = answer.split(' ').map(|word| word.parse().expect(&answer)).collect();
        Figures {
            pairs_per_s: figures[0],
            acquire_p50_us: figures[1],
            acquire_p99_us: figures[2],
            client_cpu_us: figures[3],
        }
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.requests = None;
        let _ = self.child.wait();
    }
}

/// A server for this run alone, its code compiled as in production.
struct Server {
    master: String,
    thrift: String,
    zookeeper: String,
}

impl Server {
    fn start() -> Server {
        let output = Server::command("start").stderr(Stdio::inherit()).output().expect("bash runs");
        assert!(output.status.success(), "no HBase: see above");
        let lines = String::from_utf8(output.stdout).unwrap();
        let value = |key: &str| {
            let line = lines.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_else(|| panic!("{key} in {lines}")).to_owned()
        };
        Server {
            master: value("DLM_TEST_HBASE_MASTER"),
            thrift: value("DLM_TEST_HBASE_THRIFT"),
            zookeeper: value("DLM_TEST_HBASE_ZOOKEEPER"),
        }
    }

    fn command(what: &str) -> Command {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hbase/server"));
        command
            .arg(what)
            .env("DLM_TEST_DIR", PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("hbase-bench"))
            .env("DLM_TEST_JAVA", "");
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Server::command("stop").status();
    }
}

fn run(command: &mut Command) {
    let status = command.stdout(Stdio::null()).status();
    assert!(status.as_ref().is_ok_and(|status| status.success()), "{command:?}: {status:?}");
}
