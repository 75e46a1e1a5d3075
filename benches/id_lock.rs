//! The cost of one lock + unlock of an id with `IdLock` and with alternatives.
//!
//! `cargo bench --bench id_lock` takes about a minute. With `-- --test` (or `DLM_BENCH_QUICK=1`) it takes a few
//! seconds, which only proves that it runs. The peers take turns within each round and the figures are medians
//! over the rounds, so the ratios are valid on a noisy machine too. Ids are drawn at random. Nothing is done under
//! the lock. `id_lock_memory` measures the memory that remains in use, because counting allocations takes time.

#[path = "id_lock/locks.rs"]
mod locks;

use std::collections::BTreeMap;
use std::env;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use dlm::IdLock;
use lockable::LockPool;
use parking_lot::Mutex;

use locks::{Locks, MapOfMutexes};

const KEYS: [u64; 2] = [64, 65_536];
const THREADS: [usize; 3] = [1, 4, 16];

fn main() {
    let scale = Scale::from_args();
    let mut peers: Vec<Box<dyn Peer>> = vec![
        Box::new(Local::<IdLock>(PhantomData)),
        Box::new(Local::<MapOfMutexes>(PhantomData)),
        Box::new(Local::<LockPool<u64>>(PhantomData)),
        Box::new(Local::<ArrayOfMutexes>(PhantomData)),
    ];
    if let Some(java) = Java::start() {
        peers.push(Box::new(java));
    }

    let mut cells: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    let shapes: Vec<_> = KEYS.iter().flat_map(|k| THREADS.map(|t| (*k, t))).collect();
    for round in 0..=scale.rounds {
        for (row, peer) in peers.iter_mut().enumerate() {
            let mut figures: Vec<f64> =
                shapes.iter().map(|(keys, threads)| peer.cycles(*keys, *threads, scale.time)).collect();
            figures.push(peer.distinct(scale.distinct));
            // The first round warms up code and allocators.
            if round > 0 {
                for (column, figure) in figures.into_iter().enumerate() {
                    cells.entry((row, column)).or_default().push(figure);
                }
            }
        }
    }
    print(&peers, cells, &scale);
}

/// How much to measure.
struct Scale {
    rounds: usize,
    time: Duration,
    distinct: u64,
}

impl Scale {
    fn from_args() -> Self {
        if env::args().any(|arg| arg == "--test") || env::var_os("DLM_BENCH_QUICK").is_some() {
            Self { rounds: 1, time: Duration::from_millis(5), distinct: 10_000 }
        } else {
            Self { rounds: 7, time: Duration::from_millis(100), distinct: 1_000_000 }
        }
    }
}

fn print(peers: &[Box<dyn Peer>], cells: BTreeMap<(usize, usize), Vec<f64>>, scale: &Scale) {
    println!("ns per lock + unlock, wall, all threads together; medians of {}", scale.rounds);
    println!();
    print!("| {:36} |", "");
    KEYS.iter().for_each(|keys| print!(" {keys:5} keys: 1 / 4 / 16 thr |"));
    println!(" {} ids, once each |", scale.distinct);
    println!("|{0:-<38}|{0:-<28}|{0:-<28}|{0:-<20}|", "");
    for (row, peer) in peers.iter().enumerate() {
        let figure = |column| cells.get(&(row, column)).cloned().map_or(f64::NAN, median);
        print!("| {:36} |", peer.name());
        for keys in 0..KEYS.len() {
            let [a, b, c] = [0, 1, 2].map(|thread| figure(keys * THREADS.len() + thread));
            print!(" {:26} |", format!("{a:.0} / {b:.0} / {c:.0}"));
        }
        let kept = peer.kept().map_or_else(String::new, |bytes| format!(", {bytes} bytes kept"));
        println!(" {:.0}{kept} |", figure(KEYS.len() * THREADS.len()));
    }
    if cfg!(debug_assertions) {
        println!("\nBuilt without optimisation: these figures mean nothing.");
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// A way to lock ids, with all the work that it takes.
trait Peer {
    fn name(&self) -> &'static str;
    /// Returns the ns per cycle of all threads together, on ids in `0..keys` (a power of two).
    fn cycles(&mut self, keys: u64, threads: usize, time: Duration) -> f64;
    /// Returns the ns per id for this many ids, each locked and unlocked once.
    fn distinct(&mut self, ids: u64) -> f64;
    /// Returns the bytes still held after the last call of `distinct`, if known.
    fn kept(&self) -> Option<u64> {
        None
    }
}

/// The limit: one mutex for every possible id. None is created or freed during the run.
struct ArrayOfMutexes(Box<[Padded]>);

#[derive(Default)]
#[repr(align(128))]
struct Padded(Mutex<()>);

impl Locks for ArrayOfMutexes {
    const NAME: &'static str = "array of mutexes (limit: no map)";

    fn new(keys: u64) -> Self {
        Self((0..keys).map(|_| Padded::default()).collect())
    }

    #[inline]
    fn cycle(&self, id: u64) {
        drop(black_box(self.0[id as usize & (self.0.len() - 1)].0.lock()));
    }
}

/// A peer in this process.
struct Local<L>(PhantomData<L>);

impl<L: Locks> Peer for Local<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn cycles(&mut self, keys: u64, threads: usize, time: Duration) -> f64 {
        const BATCH: u64 = 64;
        let (lock, stop, begin) = (L::new(keys), AtomicBool::new(false), Barrier::new(threads + 1));
        let work = |seed: u64| {
            let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut done = 0;
            begin.wait();
            while !stop.load(Relaxed) {
                for _ in 0..BATCH {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    lock.cycle((random >> 11) & (keys - 1));
                }
                done += BATCH;
            }
            done
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (1..=threads as u64)
                .map(|seed| {
                    let name = format!("dlm-bench-{seed}");
                    let work = &work;
                    thread::Builder::new().name(name).spawn_scoped(scope, move || work(seed)).unwrap()
                })
                .collect();
            begin.wait();
            let start = Instant::now();
            thread::sleep(time);
            stop.store(true, Relaxed);
            let done: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
            start.elapsed().as_nanos() as f64 / done as f64
        })
    }

    fn distinct(&mut self, ids: u64) -> f64 {
        let lock = L::new(64);
        let start = Instant::now();
        for id in 0..ids {
            lock.cycle(id.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        }
        start.elapsed().as_nanos() as f64 / ids as f64
    }
}

/// HBase's IdLock, in a Java process that runs until the end of the benchmark.
struct Java {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    kept: Option<u64>,
}

impl Java {
    /// Starts the Java process. Returns `None`, with a printed reason, if there is no Java or no Maven.
    fn start() -> Option<Self> {
        match Self::compile() {
            Ok(class_path) => Self::spawn(&class_path),
            Err(why) => {
                println!("skipped: no java ({why})");
                None
            }
        }
    }

    /// Compiles the Java program. The class path is resolved once and stored next to the classes.
    fn compile() -> Result<String, String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/java");
        let classes = Path::new(env!("CARGO_TARGET_TMPDIR")).join("id-lock-bench");
        let class_path = classes.join("classpath");
        std::fs::create_dir_all(&classes).map_err(|e| e.to_string())?;
        if !class_path.exists() {
            let output = format!("-Dmdep.outputFile={}", class_path.display());
            let pom = source.join("pom.xml");
            run(Command::new("mvn")
                .args(["-q", "-B", "-f"])
                .arg(pom)
                .args(["dependency:build-classpath", &output]))?;
        }
        let class_path = std::fs::read_to_string(class_path).map_err(|e| e.to_string())?;
        let class_path = format!("{}:{}", class_path.trim(), classes.display());
        run(Command::new("javac")
            .args(["-cp", &class_path, "-d"])
            .arg(&classes)
            .arg(source.join("IdLockBench.java")))?;
        Ok(class_path)
    }

    fn spawn(class_path: &str) -> Option<Self> {
        let mut child = Command::new("java")
            .args(["-cp", class_path, "IdLockBench"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take()?);
        Some(Self { child, requests, answers, kept: None })
    }

    fn ask(&mut self, request: &str) -> f64 {
        let requests = self.requests.as_mut().expect("open until dropped");
        writeln!(requests, "{request}").and_then(|()| requests.flush()).expect("java listens");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("java answers");
        let mut words = answer.split_whitespace();
        let nanos = words.next().expect("java answers").parse().expect("a number of ns");
        self.kept = words.next().map(|bytes| bytes.parse().expect("a number of bytes"));
        nanos
    }
}

impl Peer for Java {
    fn name(&self) -> &'static str {
        "Java IdLock (HBase 2.6.1)"
    }

    fn cycles(&mut self, keys: u64, threads: usize, time: Duration) -> f64 {
        self.ask(&format!("cycles {keys} {threads} {}", time.as_millis()))
    }

    fn distinct(&mut self, ids: u64) -> f64 {
        self.ask(&format!("distinct {ids}"))
    }

    fn kept(&self) -> Option<u64> {
        self.kept
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        // The child exits when its input ends.
        self.requests = None;
        let _ = self.child.wait();
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program}: {status}")),
        Err(error) => Err(format!("{program}: {error}")),
    }
}
