//! The layout `own` on a real Aerospike: the contract, lost messages, the ends of leases, and the layout `java`
//! beside it.
#![cfg(feature = "aerospike")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::aerospike as raw;
use dlm::{Code, Fence, Lease, Level, Lock, LockManager, Moment, Severity};
use dlm_fixtures::aerospike::{
    DIRECTORY, IN_MEMORY, Place, Server, aerospike_or_skip, info, namespace, own_cluster_or_skip,
    own_server_in_or_skip, own_server_or_skip, wait_joined,
};
use dlm_fixtures::aerospike_proxy;
use dlm_fixtures::clock::Clock;
use dlm_testkit::contract::Site;
use dlm_testkit::losses::{Case, Target};
use dlm_testkit::{Fault, Gate, LONG, is_long, left_to_the_long_run, shortened, until};

use crate::aerospike_raw::{client_policy, write_policy};

/// How long a fence is kept. No lease is longer.
const FENCE_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// How much longer than its TTL a lease lasts for others, on one node.
const SLACK: Duration = Duration::from_millis(20);

fn own(uri: &str) -> String {
    format!("{uri}?layout=own")
}

fn uri(address: SocketAddr) -> String {
    own(&Place { address, namespace: namespace() }.uri())
}

fn site(test: &str) -> Option<Site> {
    let uri = own(&aerospike_or_skip()?.uri());
    let site = Site::new(test, 200, move || dlm::store::open(&uri).unwrap());
    Some(site.with_longest_ttl(FENCE_TTL).with_slack(SLACK).with_many_reads())
}

/// The short run has this layer for the layout `java`.
fn site_of_the_long_run(test: &str) -> Option<Site> {
    if left_to_the_long_run() { None } else { site(test) }
}

dlm_testkit::contract!(site);
dlm_testkit::linger_contract!(site_of_the_long_run);

static SERVER: Target = Target {
    server: || Some(aerospike_or_skip()?.address),
    proxy: aerospike_proxy::before,
    uri,
    requests: &["acquire", "get", "change", "release"],
    // One request, and one read after a lost reply: the record has its fence.
    acquire: &["acquire"],
    settle: &["get"],
    seed: &[],
    renew: ["change", "change"],
    release: ["release", "release"],
    // A protocol header of 8 bytes and a message header of 22 bytes.
    reply_bytes: 30,
    down: Duration::from_secs(LONG.as_secs() / 4),
    // The client first asks for the nodes of the cluster. It has not written anything then.
    silent: Code::ConnectionError,
};

dlm_testkit::losses!(SERVER);
dlm_testkit::losses! { SERVER:
    many_renewals_whose_reply_is_lost_are_all_in_doubt_and_may_be_repeated,
}

/// Returns a name that no other test uses, and that no earlier run has used.
fn fresh(test: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    format!("{test}-{since}")
}

fn manager(uri: &str, client: &str) -> LockManager {
    let builder = LockManager::builder().store_uri(uri).client(client).timeout(LONG).ttl(10 * LONG);
    builder.wait(2 * LONG).retry(Duration::from_millis(5)).open().unwrap()
}

fn lock(manager: &LockManager) -> Lock {
    manager.lock("a", Level::Xdc).unwrap()
}

fn number(lease: &Lease) -> u64 {
    let Some(Fence(number)) = lease.fence() else { panic!("no fence") };
    number
}

/// Makes a request for the record `key` of `set` without the library.
fn raw_request<T>(
    address: SocketAddr,
    (set, key): (&str, &str),
    request: impl AsyncFnOnce(&raw::Client, &raw::Key) -> T,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = raw::Client::new(&client_policy(), &address.to_string()).await.unwrap();
        request(&client, &raw::Key::new(namespace().as_str(), set, key.into()).unwrap()).await
    })
}

/// Does what the Java library does to acquire the lock `a` of `client`.
fn as_java(address: SocketAddr, client: &str) -> raw::Result<()> {
    raw_request(address, ("XDC#tests", &format!("{client}#a")), async |client, key| {
        let policy = raw::WritePolicy {
            record_exists_action: raw::RecordExistsAction::CreateOnly,
            expiration: raw::Expiration::Seconds(600),
            ..write_policy()
        };
        let bins = [raw::Bin::new("##data", 1.into()), raw::Bin::new("##uat", 1.into())];
        client.put(&policy, key, &bins).await
    })
}

fn delete(address: SocketAddr, (set, key): (&str, &str)) {
    raw_request(address, (set, key), async |client, key| {
        assert!(client.delete(&write_policy(), key).await.unwrap(), "no record");
    });
}

/// Puts a fence of the layout `java` that is higher than the clock's numbers. Returns it.
fn java_fence_ahead(address: SocketAddr, client: &str) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let ahead = (since + 3_600_000) << 20;
    raw_request(address, ("D_FNC#tests", &format!("XDC#{client}#a")), async |client, key| {
        let policy = raw::WritePolicy { expiration: raw::Expiration::Seconds(600), ..write_policy() };
        client.put(&policy, key, &[raw::Bin::new("fence", (ahead as i64).into())]).await.unwrap();
    });
    ahead
}

// ---- The layout java beside it -----------------------------------------------------------------

#[test]
fn locks_of_each_layout_are_refused_by_the_other() {
    let Some(place) = aerospike_or_skip() else { return };
    let client = fresh("layouts");
    let (ours, theirs) = (manager(&own(&place.uri()), &client), manager(&place.uri(), &client));
    as_java(place.address, &client).unwrap();
    let refused = lock(&ours).try_acquire().unwrap_err();
    assert_eq!(refused.code(), Code::LockUnavailable, "{}", refused.chain());
    assert!(lock(&ours).inspect().unwrap().holder.is_some());
    delete(place.address, ("XDC#tests", &format!("{client}#a")));

    let lease = lock(&ours).try_acquire().unwrap();
    for is_held in [true, false] {
        let refused = as_java(place.address, &client).expect_err("Java acquired it");
        assert!(refused.to_string().contains("KeyExists") || format!("{refused:?}").contains("KeyExists"));
        for error in [lock(&theirs).try_acquire().unwrap_err(), lock(&theirs).inspect().unwrap_err()] {
            assert_eq!(error.code(), Code::TableCreationError, "{}", error.chain());
            assert!(error.chain().contains("layout own") && error.chain().contains("layout java"), "{error}");
        }
        if is_held {
            assert!(lease.release().unwrap());
        }
    }
    assert_eq!(lock(&ours).inspect().unwrap().layout, Some("own"));
    let counted = ours.stats();
    assert_eq!((counted.fences_seeded, counted.reads_after_refusal), (1, 1), "{counted:?}");
    assert!(lock(&ours).try_acquire().unwrap().fence() > lease.fence());
}

#[test]
fn a_lease_of_one_layout_is_refused_by_the_other() {
    let Some(place) = aerospike_or_skip() else { return };
    let managers = [place.uri(), own(&place.uri())].map(|uri| manager(&uri, &fresh("tokens")));
    for (ours, theirs) in [(0, 1), (1, 0)] {
        let token = lock(&managers[ours]).try_acquire().unwrap().into_token().unwrap();
        let adopted = managers[theirs].adopt(token.clone());
        let error = adopted.and_then(|lease| lease.renew()).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{}", error.chain());
        assert!(managers[ours].adopt(token).unwrap().release().unwrap());
    }
}

#[test]
fn the_first_fence_is_above_that_of_the_layout_java() {
    let Some(place) = aerospike_or_skip() else { return };
    let client = fresh("above");
    let ahead = java_fence_ahead(place.address, &client);
    let lock = lock(&manager(&own(&place.uri()), &client));
    for above in 1..=3 {
        let lease = lock.try_acquire().unwrap();
        assert_eq!(number(&lease), ahead + above);
        lease.renew().unwrap();
        assert!(lease.release().unwrap());
    }
}

/// For a moment the stored fence is not above that of the layout `java`. Nobody may receive this fence.
#[test]
fn a_first_fence_is_raised_although_a_message_is_lost() {
    let case = Case { target: &SERVER, test: "raising" };
    let losses = ["create", "raise"]
        .into_iter()
        .flat_map(|place| case.losses().into_iter().map(move |it| (place, it)));
    for (place, loss) in losses {
        let Some(stage) = case.stage(10 * LONG) else { return };
        let name = stage.ours.name().key().to_owned();
        let client = name.strip_prefix("XDC#").and_then(|rest| rest.split('#').next()).unwrap();
        let id = name.rsplit('#').next().unwrap();
        assert_eq!(id, "a", "{name}");
        let server = (SERVER.server)().unwrap();
        let ahead = java_fence_ahead(server, client);
        // The second request raises the fence.
        let skipped = usize::from(place == "raise");
        stage.proxy.later("acquire", skipped, 1, loss);
        let lease = stage.ours.try_acquire().unwrap();
        assert!(number(&lease) > ahead, "{} after {ahead}", number(&lease));
        assert_eq!(stage.proxy.hits(), 1);
        assert!(lease.release().unwrap());
    }
}

/// Under `both` the record of the layout `own` is deleted, and its fence must not be forgotten with it.
#[test]
fn the_fence_of_the_layout_java_is_above_that_of_a_record_which_was_deleted() {
    let Some(place) = aerospike_or_skip() else { return };
    let client = fresh("back");
    let ahead = java_fence_ahead(place.address, &client);
    let fence = |layout: &str| {
        let lease =
            lock(&manager(&format!("{}?layout={layout}", place.uri()), &client)).try_acquire().unwrap();
        assert!(lease.release().unwrap());
        number(&lease)
    };
    let fences = ["own", "own", "own", "both", "java"].map(fence);
    assert!(fences[0] > ahead && fences.is_sorted_by(|one, next| one < next), "{fences:?} after {ahead}");
}

// ---- The ends of leases ------------------------------------------------------------------------

/// The bounds are generous here. `cargo bench --bench aerospike` measures them.
#[test]
fn a_lease_of_a_third_of_a_second_ends_after_that_time_and_not_before() {
    let Some(server) = own_server_or_skip(IN_MEMORY) else { return };
    const TTL: Duration = Duration::from_millis(300);
    let client = fresh("ends");
    let uri = own(&server.place().uri());
    let builder = LockManager::builder().store_uri(&uri).client(&client).retry(Duration::from_millis(2));
    let (ours, theirs) = (manager(&uri, &client), builder.timeout(LONG).open().unwrap());
    // Also returns when it was requested.
    let grant = || loop {
        let asked = Moment::now();
        match lock(&ours).acquire_with_ttl(TTL) {
            Ok(lease) => return (lease, asked),
            // On a busy machine the grant may take longer than its lease.
            Err(error) => assert_eq!(error.code(), Code::RetriesExhausted, "{}", error.chain()),
        }
    };
    let rounds = if is_long() { 100 } else { 10 };
    shortened("10 rounds of 100");
    let mut took = Vec::new();
    for _ in 0..rounds {
        let (lease, asked) = grant();
        let begin = Moment::now();
        let next = lock(&theirs).acquire_within(LONG, 10 * LONG).unwrap();
        took.push(Moment::now().since(begin));
        // The record was written after `asked`. The server counts milliseconds.
        let lasted = Moment::now().since(asked);
        assert!(lasted > TTL - Duration::from_millis(5), "{lasted:?}");
        assert!(lease.check().is_err(), "two holders");
        assert!(next.release().unwrap());
    }
    took.sort();
    println!("passed on after {:?} to {:?}", took[0], took[took.len() - 1]);
}

#[test]
fn a_lease_lasts_longer_for_others_by_the_slack() {
    let Some(place) = aerospike_or_skip() else { return };
    let manager = manager(&format!("{}&slack=1m", own(&place.uri())), &fresh("slack"));
    let lease = lock(&manager).acquire_with_ttl(LONG).unwrap();
    let remaining = lock(&manager).inspect().unwrap().holder.unwrap().remaining.unwrap();
    assert!(remaining > LONG + Duration::from_secs(30) && lease.remaining() <= LONG, "{remaining:?}");
    assert!(lease.release().unwrap());
}

/// A process was paused between a renewal and its sending.
#[test]
fn a_late_renewal_for_a_shorter_time_shortens_nothing() {
    let Some(place) = aerospike_or_skip() else { return };
    let proxy = aerospike_proxy::before(place.address);
    let client = fresh("shorter");
    let (ours, direct) = (manager(&uri(proxy.address()), &client), manager(&own(&place.uri()), &client));
    let lease = lock(&ours).acquire_with_ttl(2 * LONG).unwrap();
    let token = lease.into_token().unwrap();
    let [late, lease] = [&ours, &direct].map(|manager| manager.adopt(token.clone()).unwrap());
    let gate = Arc::new(Gate::default());
    proxy.next("change", Fault::Keep(Arc::clone(&gate)));
    thread::scope(|scope| {
        let renewing = scope.spawn(|| late.renew_for(Duration::from_secs(4)));
        until("the renewal is delayed", || proxy.hits() == 1);
        lease.renew_for(10 * LONG).unwrap();
        gate.open();
        renewing.join().unwrap().unwrap();
    });
    let left = lock(&direct).inspect().unwrap().holder.unwrap().remaining.unwrap();
    assert!(left > 9 * LONG, "{left:?} remain");
    thread::sleep(Duration::from_secs(5));
    assert_eq!(lock(&direct).try_acquire().unwrap_err().code(), Code::LockUnavailable);
    assert!(lease.release().unwrap());
}

#[test]
fn a_lease_that_has_ended_is_neither_renewed_nor_released() {
    let Some(place) = aerospike_or_skip() else { return };
    let store = dlm::store::open(&own(&place.uri())).unwrap();
    let name = lock(&manager("memory:", &fresh("ended"))).name().clone();
    let identity = dlm::store::Identity::this_process("tests").unwrap();
    let acquire = |ttl| {
        let by = dlm::Deadline::after(LONG);
        let attempt = dlm::store::Attempt { name: &name, ttl, identity: &identity, by };
        let dlm::store::Acquired::Granted(grant) = store.acquire(attempt, &mut Vec::new()).unwrap() else {
            panic!("held");
        };
        grant
    };
    let by = || dlm::Deadline::after(LONG);
    // A lease that was released. It comes first, because the first grant of a lock may take two requests. A short lease
    // may be over by then.
    let grant = acquire(10 * LONG);
    assert_eq!(store.release(&name, &grant.owner_record, by()).unwrap(), dlm::store::Released::Freed);
    assert!(store.renew(&name, &grant.owner_record, LONG, by()).unwrap().is_none(), "revived");
    // A lease whose time is over.
    let grant = acquire(Duration::from_millis(50));
    thread::sleep(Duration::from_millis(200));
    assert!(store.renew(&name, &grant.owner_record, LONG, by()).unwrap().is_none(), "revived");
    assert_eq!(store.release(&name, &grant.owner_record, by()).unwrap(), dlm::store::Released::NotOurs);
    assert!(store.holder(&name, by()).unwrap().is_none());
}

// ---- The namespace -----------------------------------------------------------------------------

fn set(server: &Server, setting: &str) {
    let change = format!("set-config:context=namespace;namespace=test;{setting}");
    let mut answer = None;
    until("the server answers", || {
        answer = info(server.place().address, &change).ok();
        answer.is_some()
    });
    assert_eq!(answer.as_deref(), Some("ok"), "{setting}");
}

fn two_copies(policy: &str) -> String {
    let copies = IN_MEMORY.replace("replication-factor 1", "replication-factor 2");
    format!("{copies}conflict-resolution-policy {policy}\n")
}

fn uri_of(both: &[Server; 2]) -> String {
    own(&format!("aerospike://{},{}/test/tests", both[0].place().address, both[1].place().address))
}

#[test]
fn a_cluster_that_keeps_the_copy_with_more_writes_is_refused_also_while_it_is_in_use() {
    if left_to_the_long_run() {
        return;
    }
    let Some(both) = own_cluster_or_skip(&two_copies("last-update-time")) else { return };
    let manager = manager(&uri_of(&both), &fresh("policy"));
    manager.initialize().unwrap();
    let lease = lock(&manager).acquire().unwrap();
    set(&both[1], "conflict-resolution-policy=generation");
    until("the new setting is seen", || match manager.lock("b", Level::Xdc).unwrap().try_acquire() {
        Ok(lease) => !lease.release().unwrap(),
        // The nodes may be so slow that each of them takes the other one for dead for a moment.
        Err(error) if error.is_retryable() => false,
        Err(error) => {
            assert_eq!(error.code(), Code::TableCreationError, "{}", error.chain());
            assert!(
                error.chain().contains("conflict-resolution-policy last-update-time"),
                "{}",
                error.chain()
            );
            true
        }
    });
    assert_eq!(manager.initialize().unwrap_err().code(), Code::TableCreationError);
    // Leases that were granted before go on.
    lease.renew().unwrap();
    assert!(lease.release().unwrap());
    set(&both[1], "conflict-resolution-policy=last-update-time");
    until("it is safe again", || manager.initialize().is_ok());
    assert!(lock(&manager).acquire().unwrap().release().unwrap());
}

/// The node that was away has an old record with a higher generation: generations have 16 bits and wrap.
#[test]
fn after_a_wrap_of_the_generation_a_node_that_comes_back_replaces_no_newer_record() {
    // A pair makes two writes.
    const WRITES: usize = 140_000;
    if left_to_the_long_run() {
        return;
    }
    let on_disk = format!(
        "replication-factor 2\nnsup-period 1\nstorage-engine device {{\nfile {DIRECTORY}/records\nfilesize 512M\n}}\n\
         conflict-resolution-policy last-update-time\n"
    );
    let Some(mut both) = own_cluster_or_skip(&on_disk) else { return };
    let manager = manager(&uri_of(&both), &fresh("wrap"));
    let locks: Vec<_> = (0..8).map(|id| manager.lock(&id.to_string(), Level::Xdc).unwrap()).collect();
    for lock in &locks {
        for _ in 0..100 {
            assert!(lock.acquire().unwrap().release().unwrap());
        }
    }
    both[1].shut_down();
    thread::scope(|scope| {
        for lock in &locks[..2] {
            scope.spawn(move || {
                for _ in 0..WRITES / 2 {
                    assert!(lock.acquire().unwrap().release().unwrap());
                }
            });
        }
    });
    let leases: Vec<_> = locks.iter().map(|lock| lock.acquire().unwrap()).collect();
    both[1].restart();
    wait_joined(&both);
    for lease in &leases {
        lease.renew().unwrap_or_else(|error| panic!("{}: {}", lease.name(), error.chain()));
    }
    for (lock, lease) in locks.iter().zip(leases) {
        assert!(lease.release().unwrap());
        assert!(lock.acquire().unwrap().fence() > lease.fence());
    }
}

/// Returns the severity and the text of the diagnostic for `topic`.
fn diagnosed(uri: &str, topic: &str) -> Option<(Severity, String)> {
    let found = manager(uri, "doctor").diagnose().unwrap();
    let found = found.into_iter().find(|diagnostic| diagnostic.topic == topic)?;
    Some((found.severity, found.to_string()))
}

#[test]
fn the_doctor_counts_the_locks_of_the_other_layout() {
    if left_to_the_long_run() {
        return;
    }
    let Some(server) = own_server_or_skip(IN_MEMORY) else { return };
    let (uri, address) = (server.place().uri(), server.place().address);
    let both = format!("{uri}?layout=both");
    for uri in [&uri, &own(&uri), &both] {
        assert_eq!([diagnosed(uri, "layout java"), diagnosed(uri, "layout own")], [None, None]);
    }
    // The doctor of the layout `own` leaves the record of its own lock, and the one of `both` deletes it.
    diagnosed(&own(&uri), "layout own");
    assert!(diagnosed(&both, "layout own").is_some());
    assert_eq!(diagnosed(&both, "layout own"), None);
    as_java(address, "one").unwrap();
    as_java(address, "two").unwrap();
    for uri in [&both, &own(&uri)] {
        let (severity, said) = diagnosed(uri, "layout java").unwrap();
        assert!(
            severity == Severity::Warn && said.contains("2 locks") && said.contains(" expires in "),
            "{said}"
        );
    }
    let (severity, said) = diagnosed(&uri, "layout own").unwrap();
    assert!(
        severity == Severity::Warn && said.contains("1 lock has") && said.contains("layout=both"),
        "{said}"
    );
}

#[test]
fn the_doctor_names_records_from_the_future_and_reads_that_extend_leases() {
    let Some(clock) = Clock::new_or_skip() else { return };
    let environment = [("LD_PRELOAD", clock.library().into()), clock.environment()];
    let Some(server) = own_server_in_or_skip(IN_MEMORY, &environment) else { return };
    let uri = own(&server.place().uri());
    clock.set_ahead(Duration::from_secs(3600));
    let lease = lock(&manager(&uri, "future")).try_acquire().unwrap();
    clock.set_ahead(Duration::ZERO);
    let (severity, said) = diagnosed(&uri, "records from the future").unwrap();
    assert!(severity == Severity::Fail && said.contains("1 written"), "{said}");
    assert!(lease.release().unwrap());
    set(&server, "default-read-touch-ttl-pct=50");
    assert_eq!(diagnosed(&uri, "read touch").unwrap().0, Severity::Fail);
}

#[test]
fn options_and_leases_that_the_layout_does_not_have_are_refused_before_any_call() {
    let nowhere = "aerospike://127.0.0.1:1/test/tests";
    for options in
        ["layout=own&fence=record", "layout=own&fence=off", "layout=own&slack=2m", "slack=1s", "layout=jawa"]
    {
        let error = dlm::store::open(&format!("{nowhere}?{options}")).expect_err(options);
        assert_eq!(error.code(), Code::InvalidArgument, "{options}: {error}");
    }
    let begin = Moment::now();
    let manager = manager(&own(nowhere), "limits");
    let error = lock(&manager).acquire_with_ttl(FENCE_TTL + Duration::from_millis(1)).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{}", error.chain());
    assert!(error.chain().contains("30 days"), "{}", error.chain());
    assert!(Moment::now().since(begin) < LONG, "it was sent");
}
