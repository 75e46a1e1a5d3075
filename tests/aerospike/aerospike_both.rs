//! The layout `both` on a real Aerospike: the contract, lost messages, and a fleet that moves from `java` to `own`
//! and back without a pause.
#![cfg(feature = "aerospike")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlm::{Code, Deadline, Level, LockManager};
use dlm_fixtures::aerospike::{Place, aerospike_or_skip, namespace};
use dlm_fixtures::watch::Watch;
use dlm_fixtures::{aerospike_java, aerospike_proxy};
use dlm_testkit::contract::Site;
use dlm_testkit::losses::Target;
use dlm_testkit::{LONG, is_long, left_to_the_long_run, shortened, skipped};

fn with_layout(uri: &str, layout: &str) -> String {
    format!("{uri}?layout={layout}")
}

fn uri(address: SocketAddr) -> String {
    with_layout(&Place { address, namespace: namespace() }.uri(), "both")
}

fn site(test: &str) -> Option<Site> {
    let uri = with_layout(&aerospike_or_skip()?.uri(), "both");
    Some(Site::new(test, 200, move || dlm::store::open(&uri).unwrap()))
}

dlm_testkit::contract!(site);

static SERVER: Target = Target {
    server: || Some(aerospike_or_skip()?.address),
    proxy: aerospike_proxy::before,
    uri,
    requests: &["create", "fence", "get", "change", "delete", "acquire", "release"],
    acquire: &["create", "fence"],
    settle: &["get", "fence"],
    seed: &[("create", 0), ("fence", 0)],
    renew: ["change", "change"],
    release: ["delete", "delete"],
    // A protocol header of 8 bytes and a message header of 22 bytes.
    reply_bytes: 30,
    down: Duration::from_secs(LONG.as_secs() / 4),
    silent: Code::ConnectionError,
};

dlm_testkit::losses!(SERVER);

fn fresh(test: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    format!("{test}-{since}")
}

fn manager(uri: &str, client: &str) -> LockManager {
    let builder = LockManager::builder().store_uri(uri).client(client).timeout(LONG).ttl(10 * LONG);
    builder.wait(2 * LONG).retry(Duration::from_millis(1)).open().unwrap()
}

#[test]
fn a_lock_that_was_released_can_be_acquired_in_each_layout_and_its_fence_rises() {
    let Some(place) = aerospike_or_skip() else { return };
    let client = fresh("turns");
    let managers = ["java", "both", "own"].map(|layout| manager(&with_layout(&place.uri(), layout), &client));
    let [java, both, own] = managers.each_ref().map(|manager| manager.lock("a", Level::Xdc).unwrap());
    let mut last = None;
    // After a client of the layout `own`, the record stays until one of the layout `both` has released it.
    for (turn, lock) in
        [&java, &both, &own, &own, &both, &java, &own, &both, &own, &both, &java].iter().enumerate()
    {
        let lease = lock.try_acquire().unwrap_or_else(|error| panic!("turn {turn}: {}", error.chain()));
        assert!(lease.fence() > last, "turn {turn}: {:?} after {last:?}", lease.fence());
        last = lease.fence();
        for other in [&both, &own] {
            assert_eq!(other.try_acquire().unwrap_err().code(), Code::LockUnavailable, "turn {turn}");
        }
        assert!(both.inspect().unwrap().holder.unwrap().identity.is_some(), "turn {turn}");
        assert_eq!(both.inspect().unwrap().fence, last, "turn {turn}");
        lease.renew().unwrap();
        assert!(lease.release().unwrap());
        assert!(both.inspect().unwrap().holder.is_none(), "turn {turn}");
    }
}

/// Only neighbours run together: `java` and `both`, or `both` and `own`. A Java service takes part beside `java`.
#[test]
fn a_fleet_moves_to_the_layout_own_and_back_under_load() {
    if left_to_the_long_run() {
        return;
    }
    const LOCKS: usize = 4;
    /// Grants to the Java client in each phase in which it takes part.
    const OF_JAVA: usize = 5;
    let Some(place) = aerospike_or_skip() else { return };
    let grants = if is_long() { 1250 } else { 150 };
    shortened("1,200 grants of 10,000");
    let phases: [&[&str]; 8] = [
        &["java", "java"],
        &["java", "both"],
        &["both", "both"],
        &["both", "own"],
        &["own", "own"],
        &["own", "both"],
        &["both", "both"],
        &["both", "java"],
    ];
    let client = fresh("moves");
    let watches: [Watch; LOCKS] = Default::default();
    let mut java = aerospike_java::start(&place).map_err(|why| skipped("maven", why)).ok();
    let mut of_java = 0;
    for (phase, layouts) in phases.into_iter().enumerate() {
        let done = AtomicUsize::new(0);
        let takes_part = java.is_some() && layouts.contains(&"java");
        // The others go on until the Java client has had its grants, but not if it fails.
        let (java_done, java_by) = (AtomicBool::new(!takes_part), Deadline::after(LONG));
        thread::scope(|scope| {
            for (number, layout) in layouts.iter().cycle().take(4).enumerate() {
                let manager = manager(&with_layout(&place.uri(), layout), &client);
                let (watches, done, java_done) = (&watches, &done, &java_done);
                scope.spawn(move || {
                    // Each lock is taken in each phase.
                    for round in 0.. {
                        let is_enough = done.fetch_add(1, Ordering::Relaxed) >= grants && round >= LOCKS;
                        if is_enough && (java_done.load(Ordering::Relaxed) || java_by.passed()) {
                            break;
                        }
                        let id = (number + round) % LOCKS;
                        let lease = manager.lock(&id.to_string(), Level::Xdc).unwrap().acquire();
                        let lease = lease.unwrap_or_else(|error| panic!("phase {phase}: {}", error.chain()));
                        watches[id].granted(lease.fence());
                        watches[id].before_release();
                        assert!(lease.release().unwrap(), "phase {phase}");
                        // So that the Java client, which does not wait, finds a lock free.
                        thread::sleep(Duration::from_micros(500));
                    }
                });
            }
            let Some(java) = java.as_mut().filter(|_| takes_part) else { return };
            let (mut round, before) = (0, of_java);
            while done.load(Ordering::Relaxed) < grants || of_java - before < OF_JAVA {
                assert!(
                    of_java - before >= OF_JAVA || !java_by.passed(),
                    "phase {phase}: Java got few locks"
                );
                round += 1;
                let id = round % LOCKS;
                let key = format!("XDC#tests {client}#{id}");
                if java.ask(&format!("acquire {key} dc1 600")) == "acquired" {
                    watches[id].granted(None);
                    watches[id].before_release();
                    assert_eq!(java.ask(&format!("release {key}")), "released");
                    of_java += 1;
                }
            }
            java_done.store(true, Ordering::Relaxed);
        });
    }
    let all: usize = watches.iter().map(|watch| watch.seen().grants).sum();
    println!("{all} grants, {of_java} of them to a Java client");
    assert!(all >= 8 * grants && (java.is_none() || of_java >= 3 * OF_JAVA));
}
