//! A real HBase without a gateway: the contract suites, the created table, and services that share the table through
//! HBase's Java client or through the gateway.
#![cfg(feature = "gateway")]

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlm::hbase::{Cells, Table};
use dlm::store::HbaseStore;
use dlm::{Code, Deadline, Fence, Lease, Level, LockManager, LockName, Moment, Severity};
use dlm_fixtures::hbase::{self, Hbase, fresh_table, hbase_or_skip};
use dlm_fixtures::peer::Peer;
use dlm_fixtures::server::free_ports;
use dlm_fixtures::table;
use dlm_fixtures::watch::{self, Watch, Workers};
use dlm_testkit::contract::Site;
use dlm_testkit::{LONGEST, eventually};
use parking_lot::Mutex;

use super::raw::Raw;

/// Time limit of steps that take seconds. A slow machine must not fail a test.
const LONG: Duration = Duration::from_secs(60);

/// The default options, for a table that all kinds of services share: the fence in its own row, and a read-back.
fn site(test: &str) -> Option<Site> {
    // Creates the table of the gateway's tests.
    table::gateway()?;
    Some(place(test, table::TABLE, ""))
}

/// Only the record, without a fence.
fn site_without_fences(test: &str) -> Option<Site> {
    table::gateway()?;
    Some(place(test, table::TABLE, "?fence=off"))
}

fn place(test: &str, table: &str, options: &str) -> Site {
    let uri = uri(hbase::hbase(), table, options);
    Site::new(test, 40, move || dlm::store::open(&uri).unwrap()).with_many_reads()
}

fn uri(hbase: &Hbase, table: &str, options: &str) -> String {
    format!("hbase://{}/{table}{options}", hbase.master)
}

fn initialize(uri: &str) {
    dlm::store::open(uri).unwrap().initialize(Deadline::after(LONGEST)).unwrap();
}

dlm_testkit::contract!(site);
dlm_testkit::latch_contract!(site);
dlm_testkit::linger_contract!(site);

/// The cases that need no fences.
mod without_fences {
    use super::site_without_fences;

    dlm_testkit::contract! { site_without_fences => stores:
        a_free_lock_is_granted_and_a_held_one_refused_with_its_holder,
        releasing_frees_the_lock_and_doing_it_twice_changes_nothing,
        of_many_who_ask_at_once_exactly_one_is_granted,
        the_proof_of_another_grant_changes_nothing,
        a_lease_ends_not_before_its_ttl_and_then_lets_the_next_in,
        a_renewed_lease_outlives_its_first_ttl_and_leaves_nothing_behind,
        a_shorter_renewal_never_frees_the_lock_too_soon_nor_brings_it_back,
        locks_of_odd_names_are_as_good_as_others,
        one_lock_does_not_touch_another,
    }
    dlm_testkit::contract! { site_without_fences => leases:
        a_late_release_says_lost_though_nobody_came,
        a_renewed_lease_goes_on_and_is_released_as_ours,
    }
    dlm_testkit::contract! { site_without_fences => waits:
        a_cancelled_wait_ends_and_holds_nothing,
        a_holder_that_vanished_is_followed_when_its_ttl_ends,
    }
}

/// Not a test: the code of the processes that other tests start.
#[test]
fn worker() {
    watch::work();
}

#[test]
fn our_table_is_the_one_the_java_library_makes() {
    let Some(hbase) = hbase_or_skip() else { return };
    let (ours, theirs) = (fresh_table("ours"), fresh_table("theirs"));
    let mut peer = Peer::start(hbase);
    initialize(&uri(hbase, &ours, ""));
    peer.ask(&format!("create {theirs}"));
    let (ours, theirs) = (peer.ask(&format!("describe {ours}")), peer.ask(&format!("describe {theirs}")));
    println!("both: {ours:.300}...");
    assert_eq!(ours, theirs);
    assert!(ours.contains(" regions=257 ") && ours.ends_with("fe,ff"), "{ours}");
}

#[test]
fn creators_who_race_make_one_table_and_all_are_content() {
    let Some(hbase) = hbase_or_skip() else { return };
    let uri = uri(hbase, &fresh_table("raced"), "");
    thread::scope(|scope| {
        // Each thread has its own connections, as processes would have.
        for number in 0..4 {
            let (name, uri) = (format!("dlm-test-creator-{number}"), &uri);
            thread::Builder::new().name(name).spawn_scoped(scope, move || initialize(uri)).unwrap();
        }
    });
    let manager = manager(&uri, "raced");
    assert!(manager.lock("a", Level::Xdc).unwrap().try_acquire().unwrap().release().unwrap());
}

#[test]
fn a_table_of_another_schema_is_used_with_a_warning_that_names_the_difference() {
    let Some(hbase) = hbase_or_skip() else { return };
    let table = fresh_table("odd");
    // `Raw` creates the table without compression.
    Raw::connect(hbase.thrift, &table).create_table("D:");
    let warnings = Warnings::capture();
    initialize(&uri(hbase, &table, ""));
    let warnings = warnings.about(&table);
    assert!(warnings.iter().any(|line| line.contains("COMPRESSION is NONE, expected is GZ")), "{warnings:?}");
    assert!(!warnings.iter().any(|line| line.contains("VERSIONS")), "wrong warning: {warnings:?}");
}

#[test]
fn a_table_without_the_family_is_no_table_for_locks() {
    let Some(hbase) = hbase_or_skip() else { return };
    let table = fresh_table("family");
    Raw::connect(hbase.thrift, &table).create_table("X:");
    let store = dlm::store::open(&uri(hbase, &table, "")).unwrap();
    let error = store.initialize(Deadline::after(LONG)).unwrap_err();
    assert_eq!(error.code(), Code::TableCreationError);
    assert!(error.chain().contains("no family D"), "{}", error.chain());
    let refused = manager(&uri(hbase, &table, ""), "family").lock("a", Level::Xdc).unwrap().try_acquire();
    assert_eq!(refused.unwrap_err().code(), Code::TableCreationError);
}

/// The counter is where `fence=lock_row` of earlier versions left it.
#[test]
fn a_table_that_was_used_with_fence_lock_row_is_refused_at_the_first_acquire_and_its_fences_do_not_fall() {
    let Some(hbase) = hbase_or_skip() else { return };
    let table = fresh_table("within");
    let direct = uri(hbase, &table, "");
    initialize(&direct);
    let name = manager(&direct, "within").lock("a", Level::Xdc).unwrap().name().clone();
    let rows = Table::open(&format!("{direct}?timeout=1m")).unwrap();
    let row = rows.row(HbaseStore::lock_row(&name));
    // As counters were seeded.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let last = since << 20;
    row.put(&Cells::new().put("D:F", last.to_be_bytes()).put("D:L", "")).unwrap();
    let uris = [direct.clone(), format!("hbase+thrift://{}/{table}", hbase.thrift)];
    let refused_by_all = || {
        for uri in &uris {
            let lock = manager(uri, "within").lock("a", Level::Xdc).unwrap();
            // A wait ends at once, too.
            for answer in [lock.try_acquire().map(drop), lock.acquire().map(drop)] {
                let error = answer.expect_err(uri);
                // A slow gateway may have sent a request twice.
                let is_late = *uri != direct && error.code() == Code::InDoubt;
                assert!(is_late || error.code() == Code::TableCreationError, "{}", error.chain());
                assert!(error.chain().contains("fence=lock_row"), "{}", error.chain());
            }
            // An operator who is about to empty the table sees what is held.
            lock.inspect().unwrap();
        }
    };
    refused_by_all();
    // What was refused holds nothing. Without fences none can fall.
    let without = manager(&format!("{direct}?fence=off"), "within").lock("a", Level::Xdc).unwrap();
    let lease = without.acquire().unwrap();
    refused_by_all();
    assert!(lease.release().unwrap());
    // An empty table.
    for key in [HbaseStore::lock_row(&name), HbaseStore::fence_row(&name)] {
        let row = rows.row(key);
        let cells = row.get().unwrap().expect("the row is there");
        let count = cells.value("D:F").expect("it has a counter").to_vec();
        assert!(row.delete_if("D:F", &count).unwrap());
    }
    for uri in &uris {
        let lease = manager(uri, "within").lock("a", Level::Xdc).unwrap().acquire().unwrap();
        assert!(lease.fence() > Some(Fence(last)), "{:?} after {last}", lease.fence());
        assert!(lease.release().unwrap());
    }
}

/// Before any call: there is no server at the address.
#[test]
fn options_of_earlier_versions_are_refused_by_name() {
    let native = "hbase://127.0.0.1:1/t?";
    for uri in [native, "hbase+thrift://127.0.0.1:1/t?", "hbase://127.0.0.1:1/t?layout=both&"] {
        for (option, instead) in [("fence=lock_row", "layout=own"), ("mixed_fleet=off", "leave it out")] {
            let error = dlm::store::open(&format!("{uri}{option}")).expect_err(uri);
            assert_eq!(error.code(), Code::InvalidArgument, "{}", error.chain());
            assert!(error.chain().contains(instead), "{}", error.chain());
        }
    }
    let error = dlm::store::open(&format!("{native}layout=own&mixed_fleet=on")).unwrap_err();
    assert!(error.chain().contains("leave it out"), "{}", error.chain());
}

#[test]
fn a_table_that_is_not_there_is_said_to_be_missing_and_at_once() {
    let Some(hbase) = hbase_or_skip() else { return };
    for table in [fresh_table("absent"), "zzz_last_of_all".into(), "!first".replace('!', "0")] {
        let error = manager(&uri(hbase, &table, ""), "absent").lock("a", Level::Xdc).unwrap().try_acquire();
        let error = error.unwrap_err();
        assert_eq!(error.code(), Code::TableCreationError, "{}", error.chain());
        assert!(error.chain().contains("initialize()"), "{}", error.chain());
    }
}

#[test]
fn the_doctor_names_the_version_of_the_servers() {
    let Some(hbase) = hbase_or_skip() else { return };
    if table::gateway().is_none() {
        return;
    }
    let found = manager(&uri(hbase, table::TABLE, ""), "doctor").diagnose().unwrap();
    let version = found.iter().find(|diagnostic| diagnostic.topic == "version").expect("no version");
    assert!(version.severity == Severity::Ok && version.seen.starts_with("HBase 2."), "{version}");
}

/// A crash of a RegionServer would lose grants that were answered.
#[test]
fn the_doctor_fails_a_table_whose_log_is_not_synced() {
    let Some(hbase) = hbase_or_skip() else { return };
    let table = fresh_table("durability");
    Raw::connect(hbase.thrift, &table).create_table("D:");
    let severity = || {
        let found = manager(&uri(hbase, &table, ""), "doctor").diagnose().unwrap();
        let table = found.into_iter().find(|diagnostic| diagnostic.topic == "table").expect("no table");
        assert_eq!(table.seen.contains("DURABILITY"), table.severity == Severity::Fail, "{table}");
        table.severity
    };
    let mut peer = Peer::start(hbase);
    for (durability, expected) in
        [("ASYNC_WAL", Severity::Fail), ("SKIP_WAL", Severity::Fail), ("SYNC_WAL", Severity::Warn)]
    {
        peer.ask(&format!("set {table} DURABILITY {durability}"));
        assert_eq!(severity(), expected, "{durability}");
    }
}

#[test]
fn a_master_that_is_gone_is_passed_over() {
    let Some(hbase) = hbase_or_skip() else { return };
    let table = fresh_table("masters");
    let [gone] = free_ports();
    // One master refuses connections, one never answers, and one works.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_address = silent.local_addr().unwrap();
    let masters = format!("hbase://127.0.0.1:{gone},{silent_address},{}", hbase.master);
    initialize(&format!("{masters}/{table}"));
    let manager = manager(&format!("{masters}/{table}"), "masters");
    assert!(manager.lock("a", Level::Xdc).unwrap().try_acquire().unwrap().release().unwrap());
}

#[test]
fn a_java_service_and_ours_exclude_each_other() {
    let Some(mut stage) = mixed("exclude") else { return };
    let (peer, row) = (&mut stage.peer, HbaseStore::lock_row(&stage.name));
    let lock = stage.manager.lock("a", Level::Xdc).unwrap();
    assert!(peer.acquires(table::TABLE, &row, 600_000));
    let refused = lock.try_acquire().unwrap_err();
    assert_eq!(refused.code(), Code::LockUnavailable, "granted while Java holds it");
    peer.releases(table::TABLE, &row);
    let lease = lock.acquire().unwrap();
    assert!(!peer.acquires(table::TABLE, &row, 600_000), "granted to Java while we hold it");
    assert!(lease.renew().is_ok() && lease.release().unwrap());
    assert!(peer.acquires(table::TABLE, &row, 600_000), "a lock that we released is not free for Java");
    peer.releases(table::TABLE, &row);
}

/// A record of Java has no owner token and is the same for each grant. So the time of its write is compared too.
#[test]
fn a_lock_that_java_holds_is_listed_and_broken_and_no_later_grant_of_java_is() {
    let Some(mut stage) = mixed("break") else { return };
    let (peer, row) = (&mut stage.peer, HbaseStore::lock_row(&stage.name));
    let lock = stage.manager.lock("a", Level::Xdc).unwrap();
    let listed = |held: bool| {
        let query = dlm::store::LockQuery::new().prefix(stage.name.key()).held_only();
        let found: Vec<_> = stage.manager.locks(&query).map(|lock| lock.unwrap()).collect();
        assert_eq!(found.len(), usize::from(held));
        assert!(found.iter().all(|lock| lock.holder.as_ref().unwrap().identity.is_none()));
    };
    let mut last = None;
    for round in 0..5 {
        listed(false);
        assert!(peer.acquires(table::TABLE, &row, 600_000));
        listed(true);
        let before = lock.inspected().unwrap();
        // Java releases and acquires again: the same bytes, another grant.
        peer.releases(table::TABLE, &row);
        // Its own Delete hides what it puts in the same millisecond, and it takes that for a grant.
        eventually("a grant of Java that its last release does not hide", || {
            peer.acquires(table::TABLE, &row, 600_000) && lock.inspect().unwrap().holder.is_some()
        });
        assert_eq!(before.break_holder("it hangs").unwrap(), None, "round {round}: a later grant was broken");
        assert!(lock.inspect().unwrap().holder.is_some());
        let (seen, began) = (lock.inspected().unwrap(), Moment::now());
        let broken = seen.break_holder("it hangs").unwrap().unwrap();
        // The grant of the break lasts for 10 s. If the store is slower than that, the break has no fence, and the
        // grant is released in the background.
        let is_slow = |began| Moment::now().since(began) >= Duration::from_secs(5);
        let wait = if is_slow(began) { LONG } else { Duration::ZERO };
        assert!(
            broken.fence > last || !wait.is_zero() && broken.fence.is_none(),
            "{broken:?} after {last:?}"
        );
        last = broken.fence.or(last);
        // The record of Java would last for ten minutes. It does not appear again below ours, which is short.
        let lease = brief_lease(&lock, wait);
        assert!(lease.fence() > last);
        watch_until_free(&lock);
        assert!(peer.acquires(table::TABLE, &row, 600_000), "a broken lock is not free for Java");
        // A record that we wrote over it and released: an old version of the same cell stands below the new one.
        let (seen, began) = (lock.inspected().unwrap(), Moment::now());
        assert!(seen.break_holder("it hangs").unwrap().is_some());
        let was_slow = is_slow(began);
        eventually("Java is granted the lock", || {
            let acquired = peer.acquires(table::TABLE, &row, 600_000);
            assert!(acquired || was_slow, "a broken lock is not free for Java");
            acquired
        });
        assert_eq!(
            seen.break_holder("it hangs").unwrap(),
            None,
            "an old version of the cell was taken for it"
        );
        peer.releases(table::TABLE, &row);
    }
}

/// Acquires a lock for a short time, and for a longer one if this machine is too slow for that. `wait` is zero for a
/// lock that is free.
fn brief_lease(lock: &dlm::Lock, wait: Duration) -> Lease {
    // A grant that came too late may stand in the way of the next one.
    for (ttl, wait) in [(200, wait), (4_000, LONG), (30_000, LONG)] {
        let (ttl, asked) = (Duration::from_millis(ttl), Moment::now());
        match lock.acquire_within(ttl, wait) {
            Ok(lease) => return lease,
            Err(error) => assert!(Moment::now().since(asked) >= ttl / 2, "{}", error.chain()),
        }
    }
    panic!("a lease of 30 s ended before the store answered");
}

fn watch_until_free(lock: &dlm::Lock) {
    eventually("the lease ends", || lock.inspect().unwrap().holder.is_none());
}

/// A Delete hides a record that the server accepts within the same millisecond.
#[test]
fn a_java_delete_just_before_our_acquire_never_makes_a_false_grant() {
    const ROUNDS: usize = 400;
    let Some(mut stage) = mixed("delete") else { return };
    let (peer, row) = (&mut stage.peer, HbaseStore::lock_row(&stage.name));
    let lock = stage.manager.lock("a", Level::Xdc).unwrap();
    let mut last: Option<Fence> = None;
    let mut delayed = 0;
    for _ in 0..ROUNDS {
        peer.releases(table::TABLE, &row);
        let asked = Moment::now();
        let lease = lock.acquire().unwrap();
        delayed += usize::from(Moment::now().since(asked) >= Duration::from_millis(2));
        assert!(lease.fence() > last, "fence {:?} after {last:?}", lease.fence());
        last = lease.fence();
        let holder = lock.inspect().unwrap().holder.expect("granted, but the row shows a free lock");
        assert!(holder.identity.is_some(), "granted, but the record is another's");
        assert!(!peer.acquires(table::TABLE, &row, 600_000), "granted to both");
        assert!(lease.release().unwrap());
    }
    println!("{ROUNDS} acquires right after a Java Delete, {delayed} of them retried or slow");
}

#[test]
fn java_gateway_and_direct_clients_contend_for_one_lock_and_ours_never_overlap() {
    const TIME: Duration = Duration::from_secs(6);
    let Some(mut stage) = mixed("contend") else { return };
    let hbase = hbase::hbase();
    let (row, watch, begin) = (HbaseStore::lock_row(&stage.name), Watch::default(), Moment::now());
    let through_gateway = manager(&table::uri(hbase.thrift), &stage.client);
    // A busy machine may need more time until each has had its turns.
    let have_contended = AtomicBool::new(false);
    let is_over = || {
        let past = Moment::now().since(begin);
        past >= TIME && (have_contended.load(Ordering::Relaxed) || past >= LONGEST)
    };
    let take_turns = |manager: &LockManager| {
        let lock = manager.lock("a", Level::Xdc).unwrap();
        while !is_over() {
            let lease = lock.acquire().unwrap();
            watch.granted(lease.fence());
            watch.before_release();
            assert!(lease.release().unwrap());
            thread::sleep(Duration::from_millis(fastrand::u64(..4)));
        }
    };
    let (mut java, mut java_false) = (0, 0);
    thread::scope(|scope| {
        for (number, manager) in [&stage.manager, &stage.manager, &through_gateway].into_iter().enumerate() {
            let name = format!("dlm-test-turns-{number}");
            let take_turns = &take_turns;
            thread::Builder::new().name(name).spawn_scoped(scope, move || take_turns(manager)).unwrap();
        }
        while !is_over() {
            // Java's Put carries the time of its own clock. If the cell that it overwrites has a later timestamp,
            // the Put succeeds but stays hidden. This library cannot prevent that.
            if stage.peer.acquires(table::TABLE, &row, 600_000) {
                let cell = Raw::connect(hbase.thrift, table::TABLE).lock_cell(&stage.name);
                if cell.is_some_and(|(value, _)| value == b"M") {
                    java += 1;
                    watch.granted(None);
                    watch.before_release();
                    stage.peer.releases(table::TABLE, &row);
                    have_contended.store(watch.seen().grants > java + 10, Ordering::Relaxed);
                } else {
                    java_false += 1;
                }
            }
            thread::sleep(Duration::from_millis(fastrand::u64(3..8)));
        }
    });
    let seen = watch.seen();
    println!("{} grants, {java} of them to Java, and {java_false} false grants to Java", seen.grants);
    assert!(have_contended.into_inner(), "they did not contend");
}

#[test]
fn processes_that_go_directly_and_through_the_gateway_exclude_each_other() {
    let Some(gateway) = table::gateway() else { return };
    let (direct, through) = (uri(hbase::hbase(), table::TABLE, ""), table::uri(gateway));
    let mut workers = Workers::start(
        module_path!(),
        &[direct.clone(), through.clone(), direct, through],
        &fresh_table("ways"),
    );
    workers.until_granted(150);
    let done = workers.finish();
    println!("{done:?}");
    assert_eq!(done.errors, 0, "{done:?}");
}

/// A lock in the shared table, and a Java service that uses it too.
struct Mixed {
    peer: Peer,
    client: String,
    manager: LockManager,
    name: LockName,
}

fn mixed(test: &str) -> Option<Mixed> {
    table::gateway()?;
    let hbase = hbase::hbase();
    let client = fresh_table(test);
    let manager = manager(&uri(hbase, table::TABLE, ""), &client);
    let name = manager.lock("a", Level::Xdc).unwrap().name().clone();
    Some(Mixed { peer: Peer::start(hbase), client, manager, name })
}

fn manager(uri: &str, client: &str) -> LockManager {
    let builder = LockManager::builder().store_uri(uri).client(client).timeout(2 * LONG).wait(LONGEST);
    builder.ttl(10 * LONG).retry(Duration::from_millis(5)).open().unwrap()
}

/// The warnings that the library logged in all tests of this program.
struct Warnings;

static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Warnings {
    fn capture() -> Warnings {
        // Fails if another test has already set this logger.
        let _ = log::set_logger(&Warnings);
        log::set_max_level(log::LevelFilter::Warn);
        Warnings
    }

    fn about(&self, what: &str) -> Vec<String> {
        LOGGED.lock().iter().filter(|line| line.contains(what)).cloned().collect()
    }
}

impl log::Log for Warnings {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LOGGED.lock().push(record.args().to_string());
    }

    fn flush(&self) {}
}
