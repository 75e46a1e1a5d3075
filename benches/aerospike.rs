//! Acquire and release of fresh locks on a real Aerospike. The same run also measures the vendor's Java client
//! with the calls of the Java library, the Rust client crate with two bare calls, and bare sockets as the limit: with
//! the calls of the Java library, and with the requests that the library sends in the layout `own`.
//!
//! `cargo bench --bench aerospike --features aerospike` starts its own `asd`. The Java peer needs a JDK and Maven.
//! The run takes about four minutes, or a third of that with a number of threads: `-- 1`, `-- 4` or `-- 16`. With
//! `-- --test` it takes a few seconds, which only proves that it runs. The peers take turns within each round, and
//! the figures are medians over the rounds.

mod peers;
use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::aerospike::expressions as exp;
use ::aerospike::operations::scalar;
use ::aerospike::{
    Bin, Client, ClientPolicy, CommitLevel, Expiration, Key, RecordExistsAction, Value, WritePolicy,
};
use dlm::{Level, LockManager};
use dlm_fixtures::aerospike::{IN_MEMORY, Place, own_server_or_skip};
use dlm_fixtures::{aerospike_java, aerospike_proxy};
use dlm_testkit::{Dialect, Proxy};
use peers::{Figures, JavaClient, Local, Peer, THREADS, measure, median};

const TTL_S: u32 = 90;

fn main() {
    let quick = std::env::args().any(|arg| arg == "--test");
    let (rounds, time) = if quick { (1, Duration::from_millis(200)) } else { (5, Duration::from_secs(2)) };
    // Records of the layout `own` stay after the release, and each lock is a new one.
    let Some(server) = own_server_or_skip(&IN_MEMORY.replace("512M", "4G")) else { return };
    let place = server.place();
    let uri = place.uri();
    let mut peers: Vec<Box<dyn Peer>> = vec![
        Box::new(Local::open("fenced (default)", &format!("{uri}?client=bench"))),
        Box::new(Local::open("fence=off", &format!("{uri}?client=bench&fence=off"))),
        Box::new(Bare { place: place.clone(), ids: AtomicU64::new(0), conditional: true }),
        Box::new(Bare { place: place.clone(), ids: AtomicU64::new(0), conditional: false }),
        Box::new(Sockets { place: place.clone(), ids: AtomicU64::new(0) }),
        Box::new(SameRequests::recorded(&place)),
        // In sets of its own, which have no fences of the layout `java`.
        Box::new(Local::open("layout=own (fenced)", &own_uri(&place))),
    ];
    match aerospike_java::start(&place) {
        Ok(java) => peers.push(Box::new(JavaClient { java, place: "XDC#tests" })),
        Err(why) => eprintln!("*** without the Java client: {why}"),
    }
    println!("acquire + release of fresh locks; medians of {rounds} rounds of {time:?}");
    let only: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    for threads in THREADS.into_iter().filter(|threads| only.is_empty() || only.contains(threads)) {
        let figures = peers::take_turns(peers.len(), rounds, |turn| peers[turn].cycles(threads, time));
        let (bare, java) = (&figures[2], figures.get(7));
        peers::print(threads, &peers, &figures, 1, "pairs/s vs Java, vs the same calls", |seen| {
            let to_java = java.map_or("-".into(), |java| format!("{:.2}", ratio(seen, java)));
            format!("{to_java} {:.2}", ratio(seen, bare))
        });
    }
}

/// The median of the ratios within each round, because the machine is not equally busy in all rounds.
fn ratio(seen: &[Figures], to: &[Figures]) -> f64 {
    median(seen.iter().zip(to).map(|(seen, to)| seen.per_s / to.per_s))
}

/// The client crate alone: a put that creates and a delete. Each thread has its own runtime and client, and keeps
/// them during a round.
struct Bare {
    place: Place,
    ids: AtomicU64,
    /// If true, the record has a token and the delete requires that token, as an owner-checked lock needs. If false,
    /// the calls are those of the Java library.
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
                    let steps = [scalar::delete()];
                    lane.runtime.block_on(lane.client.operate(&release, &key, &steps)).unwrap();
                } else {
                    assert!(lane.runtime.block_on(lane.client.delete(&release, &key)).unwrap());
                }
            },
        )
    }
}

fn own_uri(place: &Place) -> String {
    format!("{}?client=bench&layout=own", place.uri().replace("/tests", "/own"))
}

/// No client: the two requests that the library sends in the layout `own`, over one socket per thread.
struct SameRequests {
    place: Place,
    ids: AtomicU64,
    acquire: Recorded,
    release: Recorded,
}

/// A request, and where the digest of its record stands.
struct Recorded {
    bytes: Vec<u8>,
    digest: usize,
}

impl SameRequests {
    /// Records the requests of the library through a proxy.
    fn recorded(place: &Place) -> SameRequests {
        let (recorder, recorded) = Recorder::new();
        let proxy = Proxy::speaking(recorder, place.address);
        let through = Place { address: proxy.address(), ..place.clone() };
        let manager = LockManager::builder().store_uri(&own_uri(&through)).open().unwrap();
        let lease = manager.lock("recorded", Level::Xdc).unwrap().try_acquire().unwrap();
        assert!(lease.release().unwrap());
        let requests = recorded.lock().unwrap();
        let last = |has: &[u8]| {
            let request = requests.iter().rev().find(|request| position(request, has).is_some()).unwrap();
            // A field of 21 bytes and of type 4.
            Recorded { bytes: request.clone(), digest: position(request, &[0, 0, 0, 21, 4]).unwrap() + 5 }
        };
        let (acquire, release) = (last(b"own_fence"), last(&(-1i64).to_be_bytes()));
        SameRequests { place: place.clone(), ids: AtomicU64::new(0), acquire, release }
    }
}

impl Peer for SameRequests {
    fn name(&self) -> &str {
        "bare sockets, requests of layout=own"
    }

    fn cycles(&mut self, threads: usize, time: Duration) -> Figures {
        measure(
            threads,
            time,
            || (connect(self.place.address), self.acquire.bytes.clone(), self.release.bytes.clone()),
            |(stream, acquire, release), acquired| {
                let number = self.ids.fetch_add(1, Ordering::Relaxed);
                let name = Value::String(format!("bench#same-{number}"));
                let key = Key::new(self.place.namespace.as_str(), "XDC#own", name).unwrap();
                acquire[self.acquire.digest..][..20].copy_from_slice(&key.digest());
                release[self.release.digest..][..20].copy_from_slice(&key.digest());
                exchange(stream, acquire);
                acquired();
                exchange(stream, release);
            },
        )
    }
}

fn position(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// Keeps all requests that a proxy forwards.
struct Recorder {
    requests: Arc<Mutex<Vec<Vec<u8>>>>,
    dialect: Box<dyn Dialect>,
}

impl Recorder {
    fn new() -> (Recorder, Arc<Mutex<Vec<Vec<u8>>>>) {
        let requests = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        (Recorder { requests: Arc::clone(&requests), dialect: aerospike_proxy::dialect() }, requests)
    }
}

impl Dialect for Recorder {
    fn end_of_message(&self, bytes: &[u8]) -> Option<usize> {
        self.dialect.end_of_message(bytes)
    }

    fn method(&self, request: &[u8]) -> String {
        self.requests.lock().unwrap().push(request.to_vec());
        self.dialect.method(request)
    }

    fn readdressed(&self, reply: Vec<u8>, node: SocketAddr, proxy: SocketAddr) -> Vec<u8> {
        self.dialect.readdressed(reply, node, proxy)
    }
}

/// No client: two messages over one socket per thread.
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

/// Write flags in an Aerospike message: a write that creates only, and a write that deletes.
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
        exchange(stream, message);
    });
}

/// Sends a request and receives its reply, which must report success.
fn exchange(stream: &mut TcpStream, message: &[u8]) {
    stream.write_all(message).unwrap();
    let mut answer = [0; 256];
    let mut filled = 0;
    while filled < 8 || filled < 8 + usize::from(u16::from_be_bytes([answer[6], answer[7]])) {
        filled += stream.read(&mut answer[filled..]).unwrap();
    }
    assert_eq!(answer[13], 0, "result code");
}
