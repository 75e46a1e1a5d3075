//! Requests and replies that are lost, late or cut between a client and a real Aerospike: locks, and then
//! latches.
#![cfg(feature = "aerospike")]

#[macro_use]
mod losses;
mod support {
    pub(crate) mod aerospike;
    pub(crate) mod fault;
    pub(crate) mod patience;
    pub(crate) mod proxy;
    pub(crate) mod skip;
}

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlm::store::Attempt;
use dlm::{Code, Deadline, Latch, LatchKind, Level, LockManager, Who};
use losses::{Site, Store, code};
use support::aerospike::{Place, aerospike_or_skip, namespace};
use support::fault::{Fault, Gate, Proxy};
use support::patience::{LONG, until};

static SERVER: Store = Store {
    server: || Some(aerospike_or_skip()?.address),
    proxy: Proxy::before_aerospike,
    uri,
    requests: &["create", "fence", "get", "change", "delete"],
    acquire: &["create", "fence"],
    settle: &["get", "fence"],
    seed: &[("create", 0), ("fence", 0)],
    // What is asked for again does no harm, and tells.
    renew: ["change", "change"],
    release: ["delete", "delete"],
    // A header of 8 bytes and 22 more.
    reply_bytes: 30,
    down: Duration::from_secs(LONG.as_secs() / 4),
    // The cluster is asked for first, and nothing is written yet.
    silent: Code::ConnectionError,
};

fn uri(address: SocketAddr) -> String {
    Place { address, namespace: namespace() }.uri()
}

loss_suite!(SERVER);

/// A fence that comes when the lease is over may be lower than that of the next holder.
#[test]
fn a_fence_that_was_counted_after_the_lease_ended_is_no_grant() {
    let site = Site { store: &SERVER, test: "late-fence" };
    let Some(stage) = site.stage(LONG / 2) else { return };
    let gate = Arc::new(Gate::default());
    stage.proxy.next("fence", Fault::Keep(Arc::clone(&gate)));
    // Without a manager, which looks at the lease once more.
    let store = dlm::store::open(&uri(stage.proxy.address())).unwrap();
    let (name, who) = (stage.ours.name(), Who::this_process("late").unwrap());
    let by = Deadline::after(LONG);
    let attempt = Attempt { name, ttl: Duration::from_secs(1), who: &who, by };
    thread::scope(|scope| {
        let late = thread::Builder::new().name("dlm-test-late".into());
        let late = late.spawn_scoped(scope, || store.acquire(attempt, &mut Vec::new())).unwrap();
        until("the fence is kept back", || stage.proxy.hits() == 1);
        // When the first lease is over.
        let next = stage.theirs.acquire().unwrap();
        gate.open();
        let refused = late.join().unwrap();
        assert!(refused.is_err(), "a grant after its end: {refused:?}");
        next.renew().expect("the late acquire took the next holder's record");
        assert!(next.release().unwrap());
    });
}

const LATCHES: Site<'_> = Site { store: &SERVER, test: "latches" };

/// A latch as two processes see it: one through a proxy, one not.
struct LatchStage {
    place: Place,
    proxy: Proxy,
    client: String,
    ours: Latch,
    theirs: Latch,
}

fn latch_stage(test: &str) -> Option<LatchStage> {
    let place = aerospike_or_skip()?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let client = format!("{test}-{since}");
    let proxy = Proxy::before_aerospike(place.address);
    let latch = |address| {
        let manager = LockManager::builder().store_uri(&place.uri_by(address)).client(&client).farm("dc1");
        manager.timeout(LONG / 2).open().unwrap().latch("a", Level::Dc, LatchKind::CountUpDown).unwrap()
    };
    let (ours, theirs) = (latch(proxy.address()), latch(place.address));
    Some(LatchStage { place, proxy, client, ours, theirs })
}

#[test]
fn a_latch_of_whose_making_a_message_is_lost_is_made_once_by_who_asked() {
    for loss in LATCHES.losses() {
        let Some(stage) = latch_stage("lost-making") else { return };
        stage.proxy.next("change", loss);
        stage.ours.create(3).unwrap();
        assert_eq!(stage.proxy.hits(), 1);
        for latch in [&stage.ours, &stage.theirs] {
            assert_eq!(code(latch.create(3)), Code::AlreadyExists);
            assert_eq!(latch.count().unwrap(), 3);
        }
    }
}

#[test]
fn a_latch_that_another_made_is_not_taken_for_ours_though_an_answer_was_lost() {
    let Some(stage) = latch_stage("lost-others") else { return };
    stage.theirs.create(3).unwrap();
    stage.proxy.next("change", Fault::LoseReply);
    assert_eq!(code(stage.ours.create(3)), Code::AlreadyExists);
    assert_eq!((stage.proxy.hits(), stage.theirs.count().unwrap()), (1, 3));
}

#[test]
fn a_step_of_which_a_message_is_lost_counts_once() {
    let Some(stage) = latch_stage("lost-step") else { return };
    let losses = LATCHES.losses();
    stage.ours.create(100).unwrap();
    for (number, loss) in losses.iter().enumerate() {
        stage.proxy.next("change", loss.clone());
        stage.ours.count_down().unwrap();
        assert_eq!(stage.proxy.hits(), 2 * number + 1);
        stage.proxy.next("change", loss.clone());
        assert!(stage.ours.count_down_as(&format!("worker-{number}")).unwrap(), "it was ours");
        assert!(!stage.ours.count_down_as(&format!("worker-{number}")).unwrap());
        assert_eq!(stage.theirs.count().unwrap(), 100 - 2 * (number as i64 + 1));
    }
    assert_eq!(stage.theirs.roster().unwrap().arrived.len(), losses.len());
}

/// Its note must not be forgotten with those of steps that were answered.
#[test]
fn a_step_whose_first_request_comes_late_counts_once() {
    let Some(stage) = latch_stage("late-step") else { return };
    stage.ours.create(100).unwrap();
    let gate = Arc::new(Gate::default());
    stage.proxy.next("change", Fault::KeepAndBreak(Arc::clone(&gate)));
    stage.ours.count_down().unwrap();
    for _ in 0..3 {
        stage.ours.count_down().unwrap();
    }
    gate.open();
    until("the late request is carried out", || stage.proxy.late() == 1);
    assert_eq!(stage.theirs.count().unwrap(), 96);
}

#[test]
fn count_downs_are_exact_though_a_fifth_of_the_replies_is_lost() {
    const THREADS: usize = 4;
    const EACH: usize = 25;
    let Some(stage) = latch_stage("fifth-latch") else { return };
    for method in ["change", "get"] {
        stage.proxy.sometimes(method, 5, Fault::LoseReply);
    }
    stage.ours.create(10_000).unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let latch = &stage.ours;
            scope.spawn(move || {
                for number in 0..EACH {
                    latch.count_down().unwrap();
                    assert!(latch.count_down_as(&format!("{thread}-{number}")).unwrap());
                    latch.count_up().unwrap();
                }
            });
        }
    });
    assert!(stage.proxy.hits() > 20, "{} faults", stage.proxy.hits());
    assert_eq!(stage.theirs.count().unwrap(), 10_000 - (THREADS * EACH) as i64);
    assert_eq!(stage.theirs.roster().unwrap().arrived.len(), THREADS * EACH);
}

/// A latch that is counted down a million times must not become a record of a million notes.
#[test]
fn notes_of_answered_steps_do_not_pile_up() {
    let Some(stage) = latch_stage("notes") else { return };
    stage.theirs.create(1000).unwrap();
    for _ in 0..100 {
        stage.theirs.count_down().unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let record = runtime.block_on(async {
        let policy = ::aerospike::ClientPolicy::default();
        let client = ::aerospike::Client::new(&policy, &stage.place.address.to_string()).await.unwrap();
        let name = format!("D_LTCH#{}#a", stage.client);
        let key = ::aerospike::Key::new(stage.place.namespace, "D_LTCH#tests", name.into()).unwrap();
        client.get(&::aerospike::ReadPolicy::default(), &key, ::aerospike::Bins::All).await.unwrap()
    });
    let notes = match &record.bins["steps#dc1"] {
        ::aerospike::Value::SortedMap(notes) => notes.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(notes, 1, "the last step is still needed");
}
