//! Several clients of one store make the same calls in the same run and take turns. The results are printed as a
//! table. The calls are acquire and release of fresh locks, unless a benchmark has its own.

#![allow(dead_code, reason = "no benchmark uses all of it")]

pub(crate) mod hbase;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlm::{Level, LockManager};
use dlm_fixtures::java::Java;
use rustix::time::{ClockId, clock_gettime};

pub(crate) const THREADS: [usize; 3] = [1, 4, 16];

/// A client that acquires and releases locks.
pub(crate) trait Peer {
    fn name(&self) -> &str;
    fn cycles(&mut self, threads: usize, time: Duration) -> Figures;
}

/// The results of one peer in one round: operations per second (an operation is a pair of acquire and release unless
/// the benchmark has others), the time of an acquire or operation, and the client's CPU time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) client_cpu_us: f64,
}

impl Figures {
    /// Returns the median of each figure over the rounds.
    pub(crate) fn medians(rounds: &[Figures]) -> Figures {
        let of = |pick: fn(&Figures) -> f64| median(rounds.iter().map(pick));
        Figures {
            per_s: of(|round| round.per_s),
            p50_us: of(|round| round.p50_us),
            p99_us: of(|round| round.p99_us),
            client_cpu_us: of(|round| round.client_cpu_us),
        }
    }
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs the rounds and returns the figures of each peer, round by round. All peers take turns within each round,
/// because the machine is not equally busy in all rounds. The order differs between rounds, because work that one
/// peer leaves to a server is paid by the next. `turn` measures one peer, by its number.
pub(crate) fn take_turns<F: Clone>(
    peers: usize,
    rounds: usize,
    mut turn: impl FnMut(usize) -> F,
) -> Vec<Vec<F>> {
    let mut figures = vec![Vec::new(); peers];
    let mut turns: Vec<usize> = (0..peers).collect();
    for round in 0..=rounds {
        fastrand::shuffle(&mut turns);
        for &peer in &turns {
            let seen = turn(peer);
            // The first round warms up connections, caches and compilers.
            if round > 0 {
                figures[peer].push(seen);
            }
        }
    }
    figures
}

/// Prints one row of medians per peer, with this number of `decimals` for times and costs. `heading` and `compared`
/// are the heading and the content of the last column, which each benchmark chooses.
pub(crate) fn print(
    threads: usize,
    peers: &[Box<dyn Peer>],
    figures: &[Vec<Figures>],
    decimals: usize,
    heading: &str,
    compared: impl Fn(&[Figures]) -> String,
) {
    println!(
        "\n| {threads:2} threads | pairs/s | acquire p50 us | p99 us | client CPU us/pair | {heading} |"
    );
    println!("|---|---|---|---|---|---|");
    for (peer, rounds) in peers.iter().zip(figures) {
        let seen = Figures::medians(rounds);
        println!(
            "| {} | {:.0} | {:.decimals$} | {:.0} | {:.decimals$} | {} |",
            peer.name(),
            seen.per_s,
            seen.p50_us,
            seen.p99_us,
            seen.client_cpu_us,
            compared(rounds),
        );
    }
}

/// Runs `pair` in this number of threads until the time has passed, at least once in each. Each thread has its own
/// state from `start`. `pair` must call the given function when it has acquired the lock.
pub(crate) fn measure<S>(
    threads: usize,
    time: Duration,
    start: impl Fn() -> S + Sync,
    pair: impl Fn(&mut S, &mut dyn FnMut()) + Sync,
) -> Figures {
    let cpu = cpu_s();
    let begin = Instant::now();
    let mut waits: Vec<f64> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut state = start();
                    let mut waits = Vec::new();
                    loop {
                        let before = Instant::now();
                        pair(&mut state, &mut || waits.push(before.elapsed().as_secs_f64() * 1e6));
                        if begin.elapsed() >= time {
                            break;
                        }
                    }
                    waits
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let (seconds, used) = (begin.elapsed().as_secs_f64(), cpu_s() - cpu);
    waits.sort_by(f64::total_cmp);
    Figures {
        per_s: waits.len() as f64 / seconds,
        p50_us: waits[waits.len() / 2],
        p99_us: waits[waits.len() * 99 / 100],
        client_cpu_us: used * 1e6 / waits.len() as f64,
    }
}

/// CPU seconds that this process has used so far.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// This library.
pub(crate) struct Local {
    name: &'static str,
    manager: LockManager,
    ids: AtomicU64,
}

impl Local {
    pub(crate) fn open(name: &'static str, uri: &str) -> Local {
        let manager = LockManager::open(uri).expect("a good URI");
        manager.initialize().expect("the server is ready, and a table can be made");
        Local { name, manager, ids: AtomicU64::new(0) }
    }
}

impl Peer for Local {
    fn name(&self) -> &str {
        self.name
    }

    fn cycles(&mut self, threads: usize, time: Duration) -> Figures {
        measure(
            threads,
            time,
            || (),
            |(), acquired| {
                let number = self.ids.fetch_add(1, Ordering::Relaxed);
                let lock = self.manager.lock(&format!("{}-{number}", self.name), Level::Xdc).unwrap();
                let lease = lock.try_acquire().expect("a fresh lock is free");
                acquired();
                assert!(lease.release().expect("it is held"));
            },
        )
    }
}

/// The store's own Java client, in its own process for the whole run. It measures as [`measure`] does.
pub(crate) struct JavaClient {
    pub(crate) java: Java,
    /// The table or set of the locks.
    pub(crate) place: &'static str,
}

impl Peer for JavaClient {
    fn name(&self) -> &str {
        "Java client, calls of the Java library"
    }

    fn cycles(&mut self, threads: usize, time: Duration) -> Figures {
        ask_figures(&mut self.java, &format!("lock {} {threads} {}", self.place, time.as_millis()))
    }
}

/// Asks a Java program to measure something and parses its answer.
pub(crate) fn ask_figures(java: &mut Java, request: &str) -> Figures {
    let answer = java.ask(request);
    let figures: Vec<f64> = answer.split(' ').map(|word| word.parse().expect(&answer)).collect();
    Figures { per_s: figures[0], p50_us: figures[1], p99_us: figures[2], client_cpu_us: figures[3] }
}
