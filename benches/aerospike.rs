//! Acquire and release of fresh locks on a real Aerospike, and beside them, in the same run, the vendor's
//! Java client making the calls of the Java library, the crate below us making two bare calls, and bare
//! sockets as the limit.
//!
//! `cargo bench --bench aerospike` starts an `asd` of its own (with a JDK and Maven for the Java peer)
//! and takes about four minutes; with `-- --test` a few seconds, which proves that it runs and nothing
//! else. The peers take turns within each round, and the figures are medians over the rounds.

#[path = "../tests/support"]
mod support {
    pub(crate) mod aerospike;
    pub(crate) mod aerospike_java;
    pub(crate) mod patience;
    pub(crate) mod skip;
}

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ::aerospike::expressions as exp;
use ::aerospike::operations::scalar;
use ::aerospike::{
    Bin, Client, ClientPolicy, CommitLevel, Expiration, Key, RecordExistsAction, Value, WritePolicy,
};
use dlm::{Level, LockManager};
use rustix::time::{ClockId, clock_gettime};
use support::aerospike::{Place, aerospike_or_skip};
use support::aerospike_java::Java;

const THREADS: [usize; 3] = [1, 4, 16];
const TTL_S: u32 = 90;

fn main() {
    let quick = std::env::args().any(|arg| arg == "--test");
    let (rounds, time) = if quick { (1, Duration::from_millis(200)) } else { (5, Duration::from_secs(2)) };
    let Some(place) = aerospike_or_skip() else { return };
    let uri = place.uri();
    let mut peers: Vec<Box<dyn Peer>> = vec![
        Box::new(Local::open("fenced (default)", &format!("{uri}?client=bench"))),
        Box::new(Local::open("fence=off", &format!("{uri}?client=bench&fence=off"))),
        Box::new(Bare { place: place.clone(), ids: AtomicU64::new(0), conditional: true }),
        Box::new(Bare { place: place.clone(), ids: AtomicU64::new(0), conditional: false }),
        Box::new(Sockets { place: place.clone(), ids: AtomicU64::new(0) }),
    ];
    match Java::start(&place) {
        Ok(java) => peers.push(Box::new(java)),
        Err(why) => eprintln!("*** without the Java client: {why}"),
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
        "\n| {threads:2} threads | pairs/s | acquire p50 us | p99 us | client CPU us/pair | pairs/s vs Java, vs the same calls |"
    );
    println!("|---|---|---|---|---|---|");
    let median = |rounds: &[Figures], pick: &dyn Fn(usize) -> f64| {
        let mut values: Vec<f64> = (0..rounds.len()).map(pick).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (bare, java) = (&figures[2], figures.get(5));
    for (peer, seen) in peers.iter().zip(figures) {
        // Ratios are taken within each round: the machine is not equally busy in all of them.
        let ratio = |to: &[Figures]| median(seen, &|at| seen[at].pairs_per_s / to[at].pairs_per_s);
        println!(
            "| {} | {:.0} | {:.1} | {:.0} | {:.1} | {} {:.2} |",
            peer.name(),
            median(seen, &|at| seen[at].pairs_per_s),
            median(seen, &|at| seen[at].acquire_p50_us),
            median(seen, &|at| seen[at].acquire_p99_us),
            median(seen, &|at| seen[at].client_cpu_us),
            java.map_or("-".into(), |java| format!("{:.2}", ratio(java))),
            ratio(bare),
        );
    }
}

trait Peer {
    fn name(&self) -> &str;
    fn cycles(&mut self, threads: usize, time: Duration) -> Figures;
}

/// Runs `pair` in so many threads until the time is over. It gets a number of its own each time, and
/// calls the function it is given when it has acquired.
fn measure<S>(
    threads: usize,
    time: Duration,
    start: impl Fn() -> S + Sync,
    pair: impl Fn(&mut S, &mut dyn FnMut()) + Sync,
) -> Figures {
    let cpu = cpu();
    let begin = Instant::now();
    let mut waits: Vec<f64> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut state = start();
                    let mut waits = Vec::new();
                    while begin.elapsed() < time {
                        let before = Instant::now();
                        pair(&mut state, &mut || waits.push(before.elapsed().as_secs_f64() * 1e6));
                    }
                    waits
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let (seconds, used) = (begin.elapsed().as_secs_f64(), self::cpu() - cpu);
    waits.sort_by(f64::total_cmp);
    Figures {
        pairs_per_s: waits.len() as f64 / seconds,
        acquire_p50_us: waits[waits.len() / 2],
        acquire_p99_us: waits[waits.len() * 99 / 100],
        client_cpu_us: used * 1e6 / waits.len() as f64,
    }
}

fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
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
        manager.initialize().expect("the server is ready");
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

/// The crate alone: a put that creates and a delete, each thread with a runtime and client of its own,
/// kept from round to round.
struct Bare {
    place: Place,
    ids: AtomicU64,
    /// With a token in the record, and a delete on condition that it is there: what an owner-checked
    /// lock takes. Else as the Java library does.
    conditional: bool,
}

struct Lane {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Lane {
    fn connect(place: &Place) -> Lane {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let hosts = place.address.to_string();
        let client = runtime.block_on(async { Client::new(&ClientPolicy::default(), &hosts).await }).unwrap();
        Lane { runtime, client }
    }
}

impl Peer for Bare {
    fn name(&self) -> &str {
        if self.conditional { "the crate's two calls, owner checked" } else { "the crate's put and delete" }
    }

    fn cycles(&mut self, threads: usize, time: Duration) -> Figures {
        let policy = WritePolicy {
            record_exists_action: RecordExistsAction::CreateOnly,
            commit_level: CommitLevel::CommitAll,
            expiration: Expiration::Seconds(TTL_S),
            ..WritePolicy::default()
        };
        measure(
            threads,
            time,
            || Lane::connect(&self.place),
            |lane, acquired| {
                let number = self.ids.fetch_add(1, Ordering::Relaxed);
                let name = Value::String(format!("bench#bare-{number}"));
                let key = Key::new(self.place.namespace.as_str(), "XDC#tests", name).unwrap();
                let mut bins =
                    vec![Bin::new("dc1##data", Value::Int(1)), Bin::new("dc1##uat", Value::Int(1))];
                let token = number.to_be_bytes().repeat(2);
                if self.conditional {
                    bins.push(Bin::new("dlm_token", Value::Blob(token.clone())));
                    bins.push(Bin::new("dlm_who", Value::Blob(vec![0; 40])));
                }
                lane.runtime.block_on(lane.client.put(&policy, &key, &bins)).unwrap();
                acquired();
                let mut release = WritePolicy::default();
                if self.conditional {
                    release.record_exists_action = RecordExistsAction::UpdateOnly;
                    let ours = exp::eq(exp::blob_bin("dlm_token"), exp::blob_val(token));
                    release.base_policy.filter_expression = Some(ours);
                    let deletes = [scalar::delete()];
                    lane.runtime.block_on(lane.client.operate(&release, &key, &deletes)).unwrap();
                } else {
                    assert!(lane.runtime.block_on(lane.client.delete(&release, &key)).unwrap());
                }
            },
        )
    }
}

/// No client at all: two messages over one socket a thread.
struct Sockets {
    place: Place,
    ids: AtomicU64,
}

impl Peer for Sockets {
    fn name(&self) -> &str {
        "bare sockets"
    }

    fn cycles(&mut self, threads: usize, time: Duration) -> Figures {
        measure(
            threads,
            time,
            || connect(self.place.address),
            |stream, acquired| {
                let number = self.ids.fetch_add(1, Ordering::Relaxed);
                let name = Value::String(format!("bench#socket-{number}"));
                let key = Key::new(self.place.namespace.as_str(), "XDC#tests", name).unwrap();
                ask(stream, &key, CREATE, &[("dc1##data", 1), ("dc1##uat", 1)]);
                acquired();
                ask(stream, &key, DELETE, &[]);
            },
        )
    }
}

/// Flags of a write, and of one that creates; of a write that deletes.
const CREATE: u8 = 1 | 1 << 5;
const DELETE: u8 = 1 | 1 << 1;

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, key: &Key, write: u8, bins: &[(&str, i64)]) {
    thread_local!(static MESSAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    MESSAGE.with_borrow_mut(|message| {
        message.clear();
        message.extend_from_slice(&[0; 8]);
        message.extend_from_slice(&[22, 0, write, 0, 0, 0]);
        for number in [0, TTL_S, 1000] {
            message.extend_from_slice(&number.to_be_bytes());
        }
        message.extend_from_slice(&3u16.to_be_bytes());
        message.extend_from_slice(&(bins.len() as u16).to_be_bytes());
        let digest = key.digest();
        for (kind, text) in [(0, key.namespace().as_bytes()), (1, key.set_name().as_bytes()), (4, &digest)] {
            message.extend_from_slice(&(text.len() as u32 + 1).to_be_bytes());
            message.push(kind);
            message.extend_from_slice(text);
        }
        for (name, number) in bins {
            message.extend_from_slice(&(name.len() as u32 + 12).to_be_bytes());
            message.extend_from_slice(&[2, 1, 0, name.len() as u8]);
            message.extend_from_slice(name.as_bytes());
            message.extend_from_slice(&number.to_be_bytes());
        }
        let header = (2u64 << 56) | (3 << 48) | (message.len() as u64 - 8);
        message[..8].copy_from_slice(&header.to_be_bytes());
        stream.write_all(message).unwrap();
        let mut answer = [0; 30];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[13], 0, "result code");
    });
}

/// The vendor's Java client, in a process of its own for the whole run.
impl Peer for Java {
    fn name(&self) -> &str {
        "Java client, calls of the Java library"
    }

    fn cycles(&mut self, threads: usize, time: Duration) -> Figures {
        let answer = self.ask(&format!("lock XDC#tests {threads} {}", time.as_millis()));
        let figures: Vec<f64> = answer.split(' ').map(|word| word.parse().expect(&answer)).collect();
        Figures {
            pairs_per_s: figures[0],
            acquire_p50_us: figures[1],
            acquire_p99_us: figures[2],
            client_cpu_us: figures[3],
        }
    }
}
