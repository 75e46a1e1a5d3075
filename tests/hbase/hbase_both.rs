//! The layout `both` on a real HBase: the contract, lost messages, clients of the neighbouring layouts, and what the
//! doctor reports.
#![cfg(feature = "gateway")]

use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use dlm::store::HbaseStore;
use dlm::{Code, Deadline, Fence, Lease, Level, LockManager, Moment, Severity};
use dlm_fixtures::hbase::{self, fresh_table, hbase_or_skip};
use dlm_fixtures::peer::Peer;
use dlm_fixtures::rpc_proxy;
use dlm_fixtures::watch::{self, Workers};
use dlm_testkit::contract::Site;
use dlm_testkit::losses::{Case, SHORT, Target};
use dlm_testkit::{Fault, Gate, LONG, eventually, left_to_the_long_run};

const TABLE: &str = "dlm_test_both";
/// The default of `own_table`.
const OWN_TABLE: &str = "dlm_test_both_own";

/// A time-out after which no call has ended that is answered. One message may take a part of it.
const PATIENT: Duration = dlm_testkit::LONGEST;
/// The longest lease of the layout `own`.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Returns the URI of both tables, which exist then, with a master or a proxy at `address`.
fn uri(address: impl std::fmt::Display) -> String {
    format!("hbase://{address}/{TABLE}?layout=both")
}

fn java(hbase: &hbase::Hbase) -> String {
    format!("hbase://{}/{TABLE}", hbase.master)
}

fn own(hbase: &hbase::Hbase) -> String {
    format!("hbase://{}/{OWN_TABLE}?layout=own&latches={TABLE}", hbase.master)
}

fn created() -> Option<&'static hbase::Hbase> {
    static CREATED: Once = Once::new();
    let hbase = hbase_or_skip()?;
    CREATED.call_once(|| initialize(&uri(hbase.master)).unwrap());
    Some(hbase)
}

fn initialize(uri: &str) -> dlm::Result<()> {
    dlm::store::open(uri).unwrap().initialize(Deadline::after(dlm_testkit::LONGEST))
}

/// Returns managers of one client.
fn managers<const N: usize>(uris: [String; N]) -> [LockManager; N] {
    let client = fresh_table("both").replace('_', "-");
    uris.map(|uri| {
        let builder = LockManager::builder().store_uri(&uri).client(&client).farm("dc1").timeout(PATIENT);
        builder.ttl(10 * LONG).wait(PATIENT).retry(Duration::from_millis(5)).open().unwrap()
    })
}

fn acquired(manager: &LockManager) -> Lease {
    manager.lock("a", Level::Xdc).unwrap().try_acquire().unwrap()
}

fn is_refused(manager: &LockManager) {
    let error = manager.lock("a", Level::Xdc).unwrap().try_acquire().unwrap_err();
    assert_eq!(error.code(), Code::LockUnavailable, "{}", error.chain());
}

fn site(test: &str) -> Option<Site> {
    let uri = uri(created()?.master);
    let site = Site::new(test, 40, move || dlm::store::open(&uri).unwrap());
    Some(site.with_longest_ttl(LONGEST))
}

dlm_testkit::contract!(site);

static SERVER: Target = Target {
    server: || Some(created()?.master),
    proxy: rpc_proxy::before,
    uri: |address| uri(address),
    requests: &["Multi", "Get"],
    // One request for each of the two locks.
    acquire: &["Multi"],
    settle: &["Get", "Multi", "Get"],
    // The counter in the table of the layout java, and the number in the other table.
    seed: &[("Multi", 0), ("Multi", 1)],
    renew: ["Multi", "Get"],
    release: ["Multi", "Get"],
    reply_bytes: 18,
    down: SHORT,
    silent: Code::ConnectionError,
};

// Two cases are below instead, because the second lock adds requests: the one that lists all requests of an acquire in
// doubt, and the one in which another client acquires the lock between a release and the read of its outcome.
dlm_testkit::losses! { SERVER:
    an_acquire_of_which_any_one_message_is_lost_is_a_grant_with_a_fence,
    an_acquire_in_doubt_of_which_any_further_message_is_lost_is_a_grant_with_a_fence,
    an_acquire_in_doubt_looks_counts_and_looks_again_until_it_is_answered,
    a_lock_whose_counter_is_new_gets_its_fence_though_messages_are_lost,
    a_release_of_which_a_message_is_lost_says_true_and_the_lock_is_free,
    a_renewal_of_which_a_message_is_lost_is_ok_and_lets_the_lease_last,
    a_renewal_in_doubt_that_took_effect_can_be_followed_by_another_and_by_a_release,
    a_shorter_renewal_whose_reply_is_lost_ends_no_record_while_check_is_ok,
    a_shorter_renewal_that_arrives_late_does_not_shorten_a_longer_one,
    an_acquire_that_arrives_after_its_deadline_is_in_doubt_and_is_freed_in_the_background,
    a_request_that_arrives_after_the_lock_was_used_and_released_is_freed_in_the_background,
    a_request_that_arrives_while_its_sender_holds_the_lock_does_no_harm,
    a_renewal_that_arrives_after_the_release_does_not_bring_the_lock_back,
    a_dropped_lease_whose_release_was_lost_is_freed_in_the_background,
    a_failed_release_may_be_repeated,
    connections_that_the_server_closed_are_replaced_and_nobody_notices,
    a_server_that_is_down_is_a_connection_error_soon,
    a_server_that_never_answers_costs_no_more_than_the_deadline,
    a_server_that_comes_back_is_used_again,
    a_reply_that_comes_drop_by_drop_does_not_stretch_the_deadline,
    of_many_cycles_with_a_fifth_of_the_replies_lost_none_is_granted_twice,
    in_a_storm_of_losses_no_two_hold_the_lock_and_none_is_left_behind,
    initializing_over_a_server_that_is_down_is_a_connection_error_soon,
    a_renewal_that_is_never_answered_is_made_again_before_the_lease_ends,
}

/// The messages of the second lock. Every sixth message or so is that of a counter that must be set.
#[test]
fn each_message_of_the_second_lock_may_be_lost() {
    let case = Case { target: &SERVER, test: "second" };
    let Some(stage) = case.stage(PATIENT) else { return };
    stage.cycle();
    for loss in case.losses() {
        for (method, after) in [("Multi", 1), ("Multi", 2)] {
            let hits = stage.proxy.hits();
            if after == 2 {
                // A client of the layout own took a number from its clock, so the counter must be set.
                let ahead = LockManager::builder()
                    .store_uri(&own(created().unwrap()))
                    .client(stage.ours.name().key().split('#').nth(1).unwrap())
                    .timeout(PATIENT)
                    .open()
                    .unwrap();
                assert!(acquired(&ahead).release().unwrap());
            }
            stage.proxy.later(method, after, 1, loss.clone());
            let lease = stage.ours.try_acquire().unwrap();
            assert_eq!(stage.proxy.hits(), hits + 1, "{method} {after}");
            stage.assert_held(&lease);
            assert!(lease.release().unwrap());
            stage.assert_free();
        }
    }
}

#[test]
fn an_acquire_in_doubt_makes_these_requests() {
    let case = Case { target: &SERVER, test: "doubt" };
    let Some(stage) = case.stage(PATIENT) else { return };
    stage.cycle();
    let sent = |lost: &[(&'static str, usize)]| {
        let before = stage.proxy.requests().len();
        for (method, after) in lost {
            stage.proxy.later(method, *after, 1, Fault::LoseReply);
        }
        let lease = stage.ours.try_acquire().unwrap();
        let sent = stage.proxy.requests().split_off(before);
        let sent: Vec<_> = sent.into_iter().filter(|sent| SERVER.requests.contains(&sent.as_str())).collect();
        stage.assert_held(&lease);
        assert!(lease.release().unwrap());
        sent
    };
    assert_eq!(sent(&[]), ["Multi", "Multi"]);
    assert_eq!(sent(&[("Multi", 0)]), ["Multi", "Get", "Multi", "Get", "Multi"]);
    assert_eq!(sent(&[("Multi", 1)]), ["Multi", "Multi", "Get"]);
}

#[test]
fn a_release_whose_second_reply_is_lost_is_ours_though_another_has_the_lock_by_then() {
    let case = Case { target: &SERVER, test: "released" };
    let Some(stage) = case.stage(PATIENT) else { return };
    let (lease, gate) = (stage.ours.try_acquire().unwrap(), Arc::new(Gate::default()));
    stage.proxy.later("Multi", 1, 1, Fault::LoseReply);
    stage.proxy.next("Get", Fault::Keep(Arc::clone(&gate)));
    let next = thread::scope(|scope| {
        let releasing = scope.spawn(|| lease.release());
        let next = stage.theirs.acquire().unwrap();
        gate.open();
        assert!(releasing.join().unwrap().unwrap());
        next
    });
    next.renew().expect("the release was sent twice and freed the lock of the next holder");
    assert!(next.release().unwrap());
}

#[test]
fn clients_of_neighbouring_layouts_exclude_each_other_and_their_fences_rise() {
    let Some(hbase) = created() else { return };
    let [java, both, own] = managers([java(hbase), uri(hbase.master), own(hbase)]);
    let mut last: Option<Fence> = None;
    for holder in [&java, &both, &java, &both, &own, &both, &own, &own, &both, &java, &both] {
        let lease = acquired(holder);
        is_refused(&both);
        if std::ptr::eq(holder, &both) {
            is_refused(&java);
            is_refused(&own);
            // Refused acquires in the layout java may count too.
            for manager in [&java, &both] {
                let inspected = manager.lock("a", Level::Xdc).unwrap().inspect().unwrap();
                assert!(inspected.fence >= lease.fence(), "{inspected:?}");
            }
            let inspected = own.lock("a", Level::Xdc).unwrap().inspect().unwrap();
            assert_eq!((inspected.fence, inspected.layout), (lease.fence(), Some("own")));
        }
        let before = last.replace(lease.fence().unwrap());
        assert!(last > before, "{last:?} after {before:?}");
        lease.renew().unwrap();
        assert!(lease.release().unwrap());
    }
}

/// A client that was refused at the second lock must not keep the first one.
#[test]
fn of_a_lock_that_is_held_in_the_layout_own_nothing_is_left_in_the_other() {
    let Some(hbase) = created() else { return };
    let [java, both, own] = managers([java(hbase), uri(hbase.master), own(hbase)]);
    assert!(acquired(&both).release().unwrap());
    let lease = acquired(&own);
    is_refused(&both);
    let holder = both.lock("a", Level::Xdc).unwrap().try_acquire().unwrap_err().to_string();
    assert!(
        holder.contains(&std::process::id().to_string()),
        "the second lock's holder is not named: {holder}"
    );
    assert!(acquired(&java).release().unwrap(), "the first lock was kept");
    assert!(lease.release().unwrap());
    assert!(acquired(&both).release().unwrap());
}

#[test]
fn a_lease_that_lost_one_half_is_lost_and_the_other_half_is_released() {
    let Some(hbase) = created() else { return };
    let [java, both, own] = managers([java(hbase), uri(hbase.master), own(hbase)]);
    let row = HbaseStore::lock_row(both.lock("a", Level::Xdc).unwrap().name());
    let lease = acquired(&both);
    // A Java service that releases a lock it does not hold.
    Peer::start(hbase).releases(TABLE, &row);
    assert_eq!(lease.renew().unwrap_err().code(), Code::LeaseLost);
    let next = acquired(&own);
    assert!(next.fence() > lease.fence() && next.release().unwrap());
    assert!(acquired(&java).release().unwrap());
}

/// Not a test: the code of the processes that other tests start.
#[test]
fn worker() {
    watch::work();
}

#[test]
fn processes_of_neighbouring_layouts_exclude_each_other() {
    if left_to_the_long_run() {
        return;
    }
    let Some(hbase) = created() else { return };
    for neighbour in [java(hbase), own(hbase)] {
        let uris = [uri(hbase.master), neighbour.clone(), uri(hbase.master), neighbour.clone()];
        let mut workers = Workers::start(module_path!(), &uris, &fresh_table("both"));
        workers.until_granted(200);
        let done = workers.finish();
        println!("{neighbour}: {done:?}");
        assert_eq!(done.errors, 0, "{done:?}");
    }
}

#[test]
fn a_lease_of_one_layout_is_refused_by_the_others() {
    let Some(hbase) = created() else { return };
    let managers = managers([java(hbase), uri(hbase.master), own(hbase)]);
    for ours in 0..3 {
        let token = acquired(&managers[ours]).into_token().unwrap();
        for theirs in (0..3).filter(|theirs| *theirs != ours) {
            for call in [Lease::renew, |lease: &Lease| lease.release().map(drop)] {
                let adopted = managers[theirs].adopt(token.clone()).unwrap();
                let error = call(&adopted).unwrap_err();
                assert_eq!(error.code(), Code::InvalidArgument, "{ours} {theirs}: {}", error.chain());
                std::mem::forget(adopted);
            }
        }
        let lease = managers[ours].adopt(token).unwrap();
        lease.renew().unwrap();
        assert!(lease.release().unwrap());
    }
}

/// Before any lock is touched, and with the names of both layouts.
#[test]
fn a_table_of_another_layout_is_refused_with_the_names_of_both_layouts() {
    let Some(hbase) = created() else { return };
    let [java] = managers([java(hbase)]);
    let refused = [
        format!("hbase://{}/{OWN_TABLE}?layout=both&own_table=dlm_none", hbase.master),
        format!("hbase://{}/{OWN_TABLE}?layout=both&own_table={TABLE}", hbase.master),
        format!("{}?layout=both&own_table={}", self::java(hbase), other_java_table(hbase)),
    ];
    for uri in refused {
        let [manager] = managers([uri.clone()]);
        let lock = manager.lock("a", Level::Xdc).unwrap();
        for answer in [initialize(&uri), lock.try_acquire().map(drop)] {
            let error = answer.expect_err(&uri);
            assert_eq!(error.code(), Code::TableCreationError, "{uri}: {}", error.chain());
            let names_both = |text: &str| text.contains("layout java") && text.contains("layout own");
            // The own table of the first URI does not exist, which is reported first.
            let missing = error.chain().contains("does not exist") && uri.contains("dlm_none");
            assert!(names_both(&error.chain()) || missing, "{uri}: {}", error.chain());
        }
    }
    // The table for java was right in the last URI.
    let lock = java.lock("a", Level::Xdc).unwrap();
    assert_eq!(lock.inspect().unwrap().fence, None, "the lock was touched");
}

fn other_java_table(hbase: &hbase::Hbase) -> String {
    let table = fresh_table("java");
    initialize(&format!("hbase://{}/{table}", hbase.master)).unwrap();
    table
}

#[test]
fn options_and_leases_that_the_layouts_do_not_have_are_refused_before_any_call() {
    let nowhere = "hbase://127.0.0.1:1/t?layout=both";
    let refused = [
        format!("{nowhere}&fence=off"),
        format!("{nowhere}&own_table=t"),
        format!("{nowhere}&own_table=a:b:c"),
        "hbase://127.0.0.1:1/t?own_table=u".to_owned(),
        "hbase://127.0.0.1:1/t?layout=own&own_table=u".to_owned(),
        "hbase+thrift://127.0.0.1:1/t?layout=both".to_owned(),
        "hbase://127.0.0.1:1/t?layout=neither".to_owned(),
    ];
    for uri in refused {
        let error = dlm::store::open(&uri).expect_err(&uri);
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    }
    for allowed in ["fence=row", "own_table=n:u", "latches=l"] {
        dlm::store::open(&format!("{nowhere}&{allowed}")).unwrap();
    }
    let [manager] = managers([nowhere.to_owned()]);
    let begin = Moment::now();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let error = lock.acquire_with_ttl(LONGEST + Duration::from_millis(1)).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{}", error.chain());
    assert!(Moment::now().since(begin) < PATIENT / 2, "it was sent");
}

/// The latches stay where they are if every layout names the same table.
#[test]
fn latches_are_the_same_in_all_layouts() {
    let Some(hbase) = created() else { return };
    let managers = managers([java(hbase), uri(hbase.master), own(hbase)]);
    managers[0].initialize_latches().unwrap();
    let latches = managers
        .each_ref()
        .map(|manager| manager.latch("steps", Level::Dc, dlm::LatchKind::CountDown).unwrap());
    latches[0].create(3).unwrap();
    for latch in &latches {
        latch.count_down().unwrap();
    }
    assert_eq!(latches[0].count().unwrap(), 0);
}

#[test]
fn the_doctor_lists_locks_that_are_held_in_one_layout_only() {
    if left_to_the_long_run() {
        return;
    }
    let Some(hbase) = hbase_or_skip() else { return };
    let table = fresh_table("doctor");
    let uri = |layout: &str| format!("hbase://{}/{table}?layout={layout}", hbase.master);
    initialize(&uri("both")).unwrap();
    let own = format!("hbase://{}/{table}_own?layout=own", hbase.master);
    let managers = managers([uri("java"), uri("both"), own]);
    let [java, both, own] = &managers;
    let seen = || -> Vec<(Severity, String)> {
        let found = both.diagnose().unwrap();
        found.into_iter().filter(|it| it.topic == "layout").map(|it| (it.severity, it.seen)).collect()
    };
    let none = |layout: &str| (Severity::Ok, format!("0 locks are held in the layout {layout} only"));
    assert_eq!(seen(), [none("java"), none("own")]);
    let lease =
        |manager: &LockManager, id: &str| manager.lock(id, Level::Xdc).unwrap().try_acquire().unwrap();
    let held: Vec<_> = (0..7).map(|id| lease(java, &format!("old-{id}"))).collect();
    let (_paired, new) = (lease(both, "paired"), lease(own, "new"));
    let row = HbaseStore::lock_row(java.lock("by-java", Level::Xdc).unwrap().name());
    let mut peer = Peer::start(hbase);
    assert!(peer.acquires(&table, &row, 600_000));
    let told = seen();
    let counts = ["8 locks are held in the layout java only (XDC#", "1 locks"];
    assert!(told.iter().zip(counts).all(|((_, text), count)| text.starts_with(count)), "{told:?}");
    assert!(told.iter().all(|(severity, _)| *severity == Severity::Warn), "{told:?}");
    assert!(told.len() == 2 && told[0].1.ends_with(", ...)"), "{told:?}");
    assert!(told[1].1.contains("#new)"), "{told:?}");
    for lease in held.into_iter().chain([new]) {
        assert!(lease.release().unwrap());
    }
    peer.releases(&table, &row);
    assert_eq!(seen(), [none("java"), none("own")]);
}

#[test]
fn the_doctor_searches_both_tables_as_long_as_the_time_out_allows() {
    let Some(hbase) = created() else { return };
    let proxy = rpc_proxy::before(hbase.master);
    let seen = |timeout: Duration, answers_after: Duration| -> Vec<String> {
        let uri = uri(proxy.address());
        let manager =
            LockManager::builder().store_uri(&uri).client("doctor").timeout(timeout).open().unwrap();
        proxy.heal();
        // The first 512 look up the regions of both tables.
        proxy.later("Scan", 600, 1, Fault::Keep(Arc::new(Gate::opening_after(answers_after))));
        let found = manager.diagnose().unwrap();
        found.into_iter().filter(|it| it.topic == "layout").map(|it| it.seen).collect()
    };
    // Longer than half of the default time-out.
    let told = seen(PATIENT, Duration::from_secs(6));
    assert!(told.len() == 2 && told.iter().all(|text| !text.contains("stopped early")), "{told:?}");
    // Where the machine is busy, the doctor may not come to the search in so short a time.
    eventually("a search says that its time is over", || {
        let told = seen(Duration::from_secs(2), PATIENT);
        told.first().is_some_and(|text| {
            text.contains("; the search stopped early, after ") && text.contains(", after ")
        })
    });
}
