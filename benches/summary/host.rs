//! What locks are acquired on: this process, a directory, or servers that run for this benchmark.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use dlm_fixtures::aerospike::{Place, aerospike_or_skip};
use dlm_fixtures::aerospike_java;
use lockable::LockPool;
use tempfile::TempDir;

use crate::arguments::Group;
use crate::locks::{Locks, MapOfMutexes};
use crate::peers::hbase::Server;
use crate::peers::{JavaClient, Peer};
use crate::worker::{ID_LOCK, IDS, Random, pairs_per_s};

/// Measures pairs per second, given a number of threads and a time.
pub(crate) type Measure = Box<dyn FnMut(usize, Duration) -> f64>;

pub(crate) enum Host {
    Process,
    Directory(TempDir),
    Hbase(Server),
    Aerospike(Place),
}

impl Host {
    /// Starts what the group needs. Returns the reason if this machine or this build does not have it.
    pub(crate) fn start(group: Group) -> Result<Host, String> {
        if !group.is_built() {
            return Err("this build does not have the feature".into());
        }
        match group {
            Group::IdLock => Ok(Host::Process),
            Group::Embedded => tempfile::tempdir().map(Host::Directory).map_err(|error| error.to_string()),
            Group::Hbase => Server::try_start().map(Host::Hbase),
            Group::Aerospike => aerospike_or_skip().map(Host::Aerospike).ok_or("there is no asd".into()),
        }
    }

    /// Returns names and URIs of this library's stores here. Each `place` has locks of its own, in tables or files of
    /// its own where the store has such.
    pub(crate) fn stores(&self, place: &str) -> Vec<(&'static str, String)> {
        match self {
            Host::Process => vec![("IdLock", ID_LOCK.into())],
            Host::Directory(dir) => {
                vec![("embedded store", format!("embedded:{}/{place}?client=bench", dir.path().display()))]
            }
            Host::Hbase(server) => {
                let direct = format!("hbase://{}/{place}?client=bench", server.master);
                let off = format!("{direct}&fence=off");
                let gateway = format!("hbase+thrift://{}/{place}?client=bench", server.thrift);
                let mut stores = vec![("HBase, fenced (default)", direct), ("HBase, fence=off", off)];
                if cfg!(feature = "gateway") {
                    stores.push(("HBase through a gateway", gateway));
                }
                stores
            }
            Host::Aerospike(server) => {
                let uri = format!("{}?client=bench-{place}", server.uri());
                let off = format!("{uri}&fence=off");
                vec![("Aerospike, fenced (default)", uri), ("Aerospike, fence=off", off)]
            }
        }
    }

    /// Returns what other programs do here in place of this library.
    pub(crate) fn peers(&self) -> Result<Vec<(&'static str, Measure)>, String> {
        Ok(match self {
            Host::Process => {
                vec![local::<MapOfMutexes>(), local::<LockPool<u64>>()]
            }
            Host::Directory(dir) => vec![("lock files, created and removed", lock_files(dir.path()))],
            Host::Hbase(server) => {
                let mut java = server.java();
                let created = java.ask("create bench_java");
                if created != "ok" {
                    return Err(created);
                }
                vec![("calls of the Java library", java_client(JavaClient { java, place: "bench_java" }))]
            }
            Host::Aerospike(server) => {
                let java = aerospike_java::start(server)?;
                vec![("calls of the Java library", java_client(JavaClient { java, place: "XDC#tests" }))]
            }
        })
    }
}

fn java_client(mut java: JavaClient) -> Measure {
    Box::new(move |threads, time| java.cycles(threads, time).per_s)
}

/// Another way to lock ids in this process.
fn local<L: Locks + 'static>() -> (&'static str, Measure) {
    let locks = L::new(IDS);
    let pair = move |random: &mut Random| locks.cycle(random.next() % IDS);
    (L::NAME, Box::new(move |threads, time| pairs_per_s(threads, time, &pair)))
}

/// What programs without a library do: the lock is a file, and only one process can create it. It has no TTL and no
/// fence, and remains if its holder dies.
fn lock_files(dir: &Path) -> Measure {
    let dir = dir.join("files");
    let made = AtomicU64::new(0);
    Box::new(move |threads, time| {
        fs::create_dir_all(&dir).expect("the directory exists");
        pairs_per_s(threads, time, |_| {
            let file = dir.join(made.fetch_add(1, Relaxed).to_string());
            File::create_new(&file).expect("a new name");
            fs::remove_file(&file).expect("it was created");
        })
    })
}
