//! The layout `own` on a real HBase: the contract, lost messages, and what clients of the other layout are told.
#![cfg(feature = "gateway")]

use std::sync::Once;
use std::thread;
use std::time::Duration;

use dlm::hbase::{Cells, Family, Table};
use dlm::store::HbaseStore;
use dlm::{Code, Deadline, Fence, Lease, Level, LockManager, Moment, Severity};
use dlm_fixtures::hbase::{self, fresh_table, hbase_or_skip};
use dlm_fixtures::peer::Peer;
use dlm_fixtures::rpc_proxy;
use dlm_fixtures::watch::{self, Workers};
use dlm_testkit::contract::Site;
use dlm_testkit::losses::{SHORT, Target};
use dlm_testkit::{LONG, LONGEST, left_to_the_long_run};

const TABLE: &str = "dlm_test_own";

/// How long a fence is kept. No lease is longer.
const FENCE_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// Returns the URI of the table, which exists then, with a master or a proxy at `address`.
fn uri(address: impl std::fmt::Display) -> String {
    format!("hbase://{address}/{TABLE}?layout=own")
}

fn created() -> Option<&'static hbase::Hbase> {
    static CREATED: Once = Once::new();
    let hbase = hbase_or_skip()?;
    CREATED.call_once(|| initialize(&uri(hbase.master)).unwrap());
    Some(hbase)
}

fn initialize(uri: &str) -> dlm::Result<()> {
    dlm::store::open(uri).unwrap().initialize(Deadline::after(LONGEST))
}

fn manager(uri: &str) -> LockManager {
    let builder = LockManager::builder().store_uri(uri).client(&fresh_table("own")).timeout(LONG);
    builder.ttl(10 * LONG).wait(LONGEST).retry(Duration::from_millis(5)).open().unwrap()
}

fn acquired(manager: &LockManager) -> Lease {
    manager.lock("a", Level::Xdc).unwrap().try_acquire().unwrap()
}

fn site(test: &str) -> Option<Site> {
    let uri = uri(created()?.master);
    let site = Site::new(test, 40, move || dlm::store::open(&uri).unwrap());
    Some(site.with_longest_ttl(FENCE_TTL).with_many_reads())
}

/// The short run has this layer for the layout `java`.
fn site_of_the_long_run(test: &str) -> Option<Site> {
    if left_to_the_long_run() { None } else { site(test) }
}

dlm_testkit::contract!(site);
dlm_testkit::modes_contract!(site);
dlm_testkit::semaphores_contract!(site);
dlm_testkit::linger_contract!(site_of_the_long_run);

static SERVER: Target = Target {
    server: || Some(created()?.master),
    proxy: rpc_proxy::before,
    uri: |address| uri(address),
    requests: &["Multi", "Get"],
    // One request, and one read after a lost reply: the record has its number.
    acquire: &["Multi"],
    settle: &["Get"],
    seed: &[],
    renew: ["Multi", "Get"],
    release: ["Multi", "Get"],
    reply_bytes: 18,
    down: SHORT,
    silent: Code::ConnectionError,
};

dlm_testkit::losses!(SERVER);
dlm_testkit::losses! { SERVER:
    initializing_over_a_server_that_is_down_is_a_connection_error_soon,
    a_renewal_that_is_never_answered_is_made_again_before_the_lease_ends,
    many_renewals_whose_reply_is_lost_are_all_in_doubt_and_may_be_repeated,
}

/// Not a test: the code of the processes that other tests start.
#[test]
fn worker() {
    watch::work();
}

#[test]
fn processes_exclude_each_other() {
    if left_to_the_long_run() {
        return;
    }
    let Some(hbase) = created() else { return };
    let mut workers =
        Workers::start(module_path!(), &[uri(hbase.master), uri(hbase.master)], &fresh_table("own"));
    workers.until_granted(300);
    let done = workers.finish();
    println!("{done:?}");
    assert_eq!(done.errors, 0, "{done:?}");
}

/// The clock of another machine may be ahead. Its numbers are then higher than those of our clock.
#[test]
fn a_number_that_is_ahead_of_our_clock_is_followed_by_the_next_one() {
    let Some(hbase) = created() else { return };
    let manager = manager(&uri(hbase.master));
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let first = lock.try_acquire().unwrap();
    assert!(first.release().unwrap());
    let Some(Fence(number)) = first.fence() else { panic!("no fence") };
    let ahead = number + (3_600_000 << 20);
    let table = Table::open(&format!("hbase://{}/{TABLE}?family=O&timeout=1m", hbase.master)).unwrap();
    table.row(HbaseStore::lock_row(lock.name())).put(&Cells::new().put("O:F", ahead.to_be_bytes())).unwrap();
    for fence in [ahead + 1, ahead + 2] {
        let lease = lock.try_acquire().unwrap();
        assert_eq!(lease.fence(), Some(Fence(fence)));
        lease.renew().unwrap();
        assert_eq!(lock.inspect().unwrap().fence, Some(Fence(fence)), "a renewal changes no number");
        assert!(lease.release().unwrap());
    }
    let stats = manager.stats();
    assert_eq!((stats.fences_seeded, stats.stale_numbers), (1, 2), "{stats:?}");
}

#[test]
fn only_the_first_grant_of_a_lock_seeds_its_fence_and_a_held_lock_names_its_holder_without_a_read() {
    let Some(hbase) = created() else { return };
    let [ours, theirs] = [(); 2].map(|()| {
        let builder = LockManager::builder().store_uri(&uri(hbase.master)).client("own-stats");
        builder.timeout(LONG).ttl(10 * LONG).open().unwrap()
    });
    let id = fresh_table("stats");
    let [lock, other] = [&ours, &theirs].map(|manager| manager.lock(&id, Level::Xdc).unwrap());
    for _ in 0..2 {
        let lease = lock.try_acquire().unwrap();
        assert_eq!(other.try_acquire().unwrap_err().code(), Code::LockUnavailable);
        assert!(lease.release().unwrap());
    }
    assert!(other.try_acquire().unwrap().release().unwrap());
    assert_eq!((ours.stats().fences_seeded, theirs.stats().fences_seeded), (1, 0));
    let stats = theirs.stats();
    assert_eq!((stats.stale_numbers, stats.reads_after_refusal), (0, 0), "{stats:?}");
}

/// Both ways, before any lock is touched, and with the names of both layouts.
#[test]
fn a_table_of_the_other_layout_is_refused_with_the_names_of_both() {
    if left_to_the_long_run() {
        return;
    }
    let Some(hbase) = created() else { return };
    let java_table = fresh_table("java");
    let java = format!("hbase://{}/{java_table}", hbase.master);
    initialize(&java).unwrap();
    let refused = [
        format!("{java}?layout=own"),
        format!("hbase://{}/{TABLE}", hbase.master),
        format!("hbase://{}/{TABLE}?layout=java", hbase.master),
        format!("hbase+thrift://{}/{TABLE}", hbase.thrift),
    ];
    for uri in refused {
        let acquired = manager(&uri).lock("a", Level::Xdc).unwrap().try_acquire().map(drop);
        for answer in [initialize(&uri), acquired] {
            let error = answer.expect_err(&uri);
            assert_eq!(error.code(), Code::TableCreationError, "{uri}: {}", error.chain());
            assert!(names_both(&error.chain()), "{uri}: {}", error.chain());
        }
        let found = manager(&uri).diagnose().unwrap();
        assert!(
            found.iter().any(|it| it.severity == Severity::Fail && names_both(&it.to_string())),
            "{uri}: {found:?}"
        );
    }
}

/// Nothing else would keep clients of the two layouts apart there.
#[test]
fn a_table_with_the_families_of_both_layouts_is_refused() {
    let Some(hbase) = created() else { return };
    let (table, families) = (fresh_table("both"), [Family::new("D"), Family::new("O")]);
    let rows = Table::open(&format!("hbase://{}/{table}?timeout=5m", hbase.master)).unwrap();
    rows.create_if_missing(&families, &[]).unwrap();
    let error = initialize(&format!("hbase://{}/{table}?layout=own", hbase.master)).unwrap_err();
    assert_eq!(error.code(), Code::TableCreationError, "{}", error.chain());
    assert!(names_both(&error.chain()), "{}", error.chain());
}

fn names_both(message: &str) -> bool {
    message.contains("layout java") && message.contains("layout own")
}

#[test]
fn of_initializers_of_different_layouts_those_of_one_layout_win() {
    if left_to_the_long_run() {
        return;
    }
    let Some(hbase) = created() else { return };
    let uri = format!("hbase://{}/{}", hbase.master, fresh_table("raced"));
    let uris = [&uri, &format!("{uri}?layout=own")];
    let made = thread::scope(|scope| {
        let racing = [0, 1, 0, 1].map(|layout| {
            let uri = uris[layout];
            (layout, scope.spawn(move || initialize(uri)))
        });
        racing.map(|(layout, thread)| (layout, thread.join().unwrap()))
    });
    let winner = made.iter().find(|(_, made)| made.is_ok()).expect("nobody created the table").0;
    for (layout, made) in made {
        assert_eq!(made.is_ok(), layout == winner, "{made:?}");
    }
    let manager = manager(uris[winner]);
    assert!(acquired(&manager).release().unwrap());
}

#[test]
fn a_java_client_acquires_nothing_and_its_delete_lets_no_fence_fall() {
    if left_to_the_long_run() {
        return;
    }
    let Some(hbase) = created() else { return };
    let manager = manager(&uri(hbase.master));
    let row = dlm_fixtures::peer::hex(&HbaseStore::lock_row(manager.lock("a", Level::Xdc).unwrap().name()));
    let lease = acquired(&manager);
    let mut peer = Peer::start(hbase);
    let answer = peer.try_ask(&format!("acquire {TABLE} {row} 600000"));
    assert!(answer.starts_with("error") && answer.contains("NoSuchColumnFamily"), "{answer}");
    lease.renew().expect("a Java client touched the lock");
    // A Delete of a whole row names no family, so the server does not refuse it. Only a client that releases without
    // having acquired sends it.
    peer.ask(&format!("release {TABLE} {row}"));
    assert_eq!(lease.renew().unwrap_err().code(), Code::LeaseLost);
    let next = manager.lock("a", Level::Xdc).unwrap().acquire().unwrap();
    assert!(next.fence() > lease.fence(), "{:?} after {:?}", next.fence(), lease.fence());
    assert!(next.release().unwrap());
}

#[test]
fn a_lease_of_one_layout_is_refused_by_the_other() {
    if left_to_the_long_run() {
        return;
    }
    let Some(hbase) = created() else { return };
    let java = format!("hbase://{}/{}", hbase.master, fresh_table("java"));
    initialize(&java).unwrap();
    let managers = [java, uri(hbase.master)].map(|uri| manager(&uri));
    for (ours, theirs) in [(0, 1), (1, 0)] {
        let token = acquired(&managers[ours]).into_token().unwrap();
        let adopted = managers[theirs].adopt(token.clone());
        let error = adopted.and_then(|lease| lease.renew()).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{}", error.chain());
        assert!(managers[ours].adopt(token).unwrap().release().unwrap());
    }
}

#[test]
fn options_and_leases_that_the_layout_does_not_have_are_refused_before_any_call() {
    let nowhere = "hbase://127.0.0.1:1/t?layout=own";
    let thrift = "hbase+thrift://127.0.0.1:1/t?layout=own".to_owned();
    for uri in [format!("{nowhere}&fence=row"), thrift] {
        let error = dlm::store::open(&uri).expect_err(&uri);
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    }
    let lock = manager(nowhere).lock("a", Level::Xdc).unwrap();
    let begin = Moment::now();
    let error = lock.acquire_with_ttl(FENCE_TTL + Duration::from_millis(1)).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{}", error.chain());
    assert!(error.chain().contains("30 days"), "{}", error.chain());
    assert!(Moment::now().since(begin) < LONG, "it was sent");
}
