//! A fleet moves from the layout `java` to `own` and back while it works, as `docs/hbase.md` says: no two hold a lock at
//! one time, and fences rise over all grants.
#![cfg(feature = "gateway")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dlm::store::HbaseStore;
use dlm::store::{LockName, NamePolicy};
use dlm::{Deadline, Level, LockManager, Moment, Severity};
use dlm_fixtures::hbase::{Hbase, fresh_table, hbase_or_skip};
use dlm_fixtures::peer::{Peer, hex};
use dlm_fixtures::watch::{self, Counters, Workers};
use dlm_testkit::{LONG, LONGEST, eventually, left_to_the_long_run, shortened};

/// Processes at a time.
const PROCESSES: usize = 4;
const LOCKS: u64 = 3;

/// Not a test: the code of the processes that the test starts.
#[test]
fn worker() {
    watch::work();
}

#[test]
fn a_fleet_moves_to_own_and_back_without_stopping() {
    if left_to_the_long_run() {
        return;
    }
    let Some(hbase) = hbase_or_skip() else { return };
    let least = if shortened("1,000 grants of 10,000") { 1_000 } else { 10_000 };
    let (there, back) = (fresh_table("move"), fresh_table("back"));
    let own_table = format!("{there}_own");
    let java = |table: &str| format!("hbase://{}/{table}", hbase.master);
    let both = |table: &str| format!("{}?layout=both&own_table={own_table}&latches={there}", java(table));
    let own = format!("hbase://{}/{own_table}?layout=own&latches={there}", hbase.master);
    let mut fleet = Fleet::start(hbase, least / 8, least / 200);

    initialize(&both(&there));
    for _ in 0..PROCESSES {
        fleet.workers.add(&java(&there));
    }
    let service = fleet.java_service(&there);
    fleet.works();
    fleet.restarts_to(&both(&there));
    fleet.ends(service);
    wait_until_none_is_held_only_in("java", &both(&there));
    fleet.restarts_to(&own);

    // Back to another table: the counters of the first one are older than the fences given meanwhile.
    initialize(&both(&back));
    fleet.restarts_to(&both(&back));
    wait_until_none_is_held_only_in("own", &both(&back));
    let service = fleet.java_service(&back);
    fleet.restarts_to(&java(&back));
    fleet.ends(service);

    let (others, service) = (fleet.others, fleet.others);
    let done = fleet.workers.finish_with(others);
    println!("{done:?}, and {service} grants of a Java service");
    assert!(done.grants + others >= least && done.errors == 0, "{done:?}");
}

fn initialize(uri: &str) {
    dlm::store::open(uri).unwrap().initialize(Deadline::after(LONGEST)).unwrap();
}

/// Asks the doctor, as an operator does.
fn wait_until_none_is_held_only_in(layout: &str, both: &str) {
    let manager = LockManager::builder().store_uri(both).client("operator").timeout(LONGEST).open().unwrap();
    let begin = format!("0 locks are held in the layout {layout} only");
    eventually(&begin, || {
        let found = manager.diagnose().unwrap();
        found.iter().any(|it| it.seen == begin && it.severity == Severity::Ok)
    });
}

struct Fleet<'a> {
    hbase: &'a Hbase,
    client: String,
    workers: Workers,
    /// Grants of each part of the move.
    part: u64,
    /// The least number of grants of each Java service.
    java_part: u64,
    /// Grants of Java services that have ended.
    others: u64,
}

impl<'a> Fleet<'a> {
    fn start(hbase: &'a Hbase, part: u64, java_part: u64) -> Fleet<'a> {
        let client = fresh_table("move");
        let workers = Workers::none(module_path!(), &client, LOCKS);
        Fleet { hbase, client, workers, part, java_part, others: 0 }
    }

    /// Lets the processes work for a while.
    fn works(&mut self) {
        let from = self.workers.grants();
        let deadline = Deadline::after(2 * LONGEST);
        while self.workers.grants() < from + self.part {
            assert!(!deadline.passed(), "{} grants, and no more", self.workers.grants());
            self.workers.must_run();
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Restarts half of the processes with this URI, then the others. The others work all the time.
    fn restarts_to(&mut self, uri: &str) {
        println!("{uri} from grant {} on", self.workers.grants());
        for process in 1..=PROCESSES {
            self.workers.end_one();
            self.workers.add(uri);
            if process == PROCESSES / 2 || process == PROCESSES {
                self.works();
            }
        }
    }

    /// Starts a Java service that uses the same locks.
    fn java_service(&self, table: &str) -> JavaService {
        let (table, client, counters) = (table.to_owned(), self.client.clone(), self.workers.counters());
        let peer = Peer::start(self.hbase);
        let (stop, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = {
            let (stop, grants) = (Arc::clone(&stop), Arc::clone(&grants));
            thread::spawn(move || use_locks(peer, &table, &client, &counters, &stop, &grants))
        };
        JavaService { stop, grants, thread }
    }

    /// Ends a Java service when it has done its part beside the others. It asks once a second, so that may take a
    /// while.
    fn ends(&mut self, service: JavaService) {
        let deadline = Deadline::after(2 * LONGEST);
        while service.grants.load(Ordering::Relaxed) < self.java_part {
            assert!(!deadline.passed(), "the Java service got no {} grants", self.java_part);
            assert!(!service.thread.is_finished());
            self.workers.must_run();
            thread::sleep(Duration::from_millis(20));
        }
        service.stop.store(true, Ordering::Relaxed);
        service.thread.join().unwrap();
        self.others += service.grants.load(Ordering::Relaxed);
    }
}

struct JavaService {
    stop: Arc<AtomicBool>,
    grants: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

/// TTL of the Java service's leases. They must not expire before they are released: it would then delete the lock of the
/// next holder.
const JAVA_TTL: Duration = LONG;

/// Makes the calls of the Java library, and counts its grants.
fn use_locks(
    mut peer: Peer,
    table: &str,
    client: &str,
    counters: &Counters,
    stop: &AtomicBool,
    grants: &AtomicU64,
) {
    while !stop.load(Ordering::Relaxed) {
        let lock = fastrand::u64(..LOCKS);
        let name = LockName::new(Level::Xdc, client, None, &lock.to_string(), NamePolicy::Strict).unwrap();
        let (row, ttl_ms) = (HbaseStore::lock_row(&name), JAVA_TTL.as_millis() as u64);
        let asked = Moment::now();
        let is_early = || Moment::now().since(asked) < JAVA_TTL / 4;
        // Its record may be hidden under one with a later timestamp: see docs/guarantees.md. The Java library does not
        // see that.
        if peer.acquires(table, &row, ttl_ms)
            && peer.ask(&format!("value {table} {}", hex(&row))) == "is 4d"
            && is_early()
        {
            counters.count(lock, None);
            grants.fetch_add(1, Ordering::Relaxed);
            // After a long pause of the machine it lets the lease expire.
            if is_early() {
                peer.releases(table, &row);
            }
        }
        thread::sleep(Duration::from_millis(fastrand::u64(..10)));
    }
}
