//! Locks and latches when requests and replies are lost, late or cut between a client and a real Aerospike.
#![cfg(feature = "aerospike")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlm::store::{Attempt, Identity, LatchListener, LatchNote, NoticeEndpoint};
use dlm::{Code, Deadline, Latch, LatchKind, Level, LockManager};
use dlm_fixtures::aerospike::{Place, aerospike_or_skip, namespace};
use dlm_fixtures::aerospike_proxy;
use dlm_testkit::losses::{Case, Target, code};
use dlm_testkit::{Fault, Gate, LONG, Proxy, until};

use crate::aerospike_raw::{client_policy, read_policy, write_policy};

static SERVER: Target = Target {
    server: || Some(aerospike_or_skip()?.address),
    proxy: aerospike_proxy::before,
    uri,
    requests: &["create", "fence", "get", "change", "delete"],
    acquire: &["create", "fence"],
    settle: &["get", "fence"],
    seed: &[("create", 0), ("fence", 0)],
    // The same request is sent again. It is harmless, and its answer settles the doubt.
    renew: ["change", "change"],
    release: ["delete", "delete"],
    // A protocol header of 8 bytes and a message header of 22 bytes.
    reply_bytes: 30,
    down: Duration::from_secs(LONG.as_secs() / 4),
    // The client first asks for the nodes of the cluster. It has not written anything then.
    silent: Code::ConnectionError,
};

fn uri(address: SocketAddr) -> String {
    Place { address, namespace: namespace() }.uri()
}

dlm_testkit::losses!(SERVER);
dlm_testkit::losses! { SERVER:
    many_renewals_whose_reply_is_lost_are_all_in_doubt_and_may_be_repeated,
}

/// A fence that arrives after the end of the lease may be lower than the next holder's.
#[test]
fn a_fence_that_was_counted_after_the_lease_ended_is_no_grant() {
    let site = Case { target: &SERVER, test: "late-fence" };
    let Some(stage) = site.stage(LONG / 2) else { return };
    let gate = Arc::new(Gate::default());
    stage.proxy.next("fence", Fault::Keep(Arc::clone(&gate)));
    // Without a manager, because it would check the lease once more.
    let store = dlm::store::open(&uri(stage.proxy.address())).unwrap();
    let (name, identity) = (stage.ours.name(), Identity::this_process("late").unwrap());
    let by = Deadline::after(2 * LONG);
    let attempt = Attempt { name, ttl: Duration::from_secs(1), identity: &identity, by };
    thread::scope(|scope| {
        let late = thread::Builder::new().name("dlm-test-late".into());
        let late = late.spawn_scoped(scope, || store.acquire(attempt, &mut Vec::new())).unwrap();
        until("the fence is delayed", || stage.proxy.hits() == 1);
        // Succeeds when the first lease has ended.
        let next = stage.theirs.acquire().unwrap();
        gate.open();
        let refused = late.join().unwrap();
        assert!(refused.is_err(), "granted after its end: {refused:?}");
        next.renew().expect("the late acquire replaced the next holder's record");
        assert!(next.release().unwrap());
    });
}

const LATCHES: Case<'_> = Case { target: &SERVER, test: "latches" };

/// A latch as two processes see it. One reaches the server through a proxy, the other one directly.
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
    let proxy = aerospike_proxy::before(place.address);
    let latch = |address| {
        let manager = LockManager::builder().store_uri(&place.uri_by(address)).client(&client).farm("dc1");
        manager.timeout(LONG).open().unwrap().latch("a", Level::Dc, LatchKind::CountUpDown).unwrap()
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
        assert!(stage.ours.count_down_as(&format!("worker-{number}")).unwrap(), "our own step was refused");
        assert!(!stage.ours.count_down_as(&format!("worker-{number}")).unwrap());
        assert_eq!(stage.theirs.count().unwrap(), 100 - 2 * (number as i64 + 1));
    }
    assert_eq!(stage.theirs.roster().unwrap().arrived.len(), losses.len());
}

impl LatchStage {
    /// Reads the record of the latch.
    fn record(&self) -> ::aerospike::Record {
        self.raw(|client, key| async move {
            client.get(&read_policy(), &key, ::aerospike::Bins::All).await.unwrap()
        })
    }

    /// Deletes the record. This has the effect of its expiry.
    fn delete(&self) {
        self.raw(|client, key| async move {
            assert!(client.delete(&write_policy(), &key).await.unwrap(), "no record");
        });
    }

    /// Writes a record as other programs do.
    fn put(&self, bins: &[(&str, ::aerospike::Value)]) {
        let bins: Vec<_> =
            bins.iter().map(|(name, value)| ::aerospike::Bin::new(*name, value.clone())).collect();
        self.raw(|client, key| async move {
            let expiration = ::aerospike::Expiration::Seconds(600);
            let policy = ::aerospike::WritePolicy { expiration, ..write_policy() };
            client.put(&policy, &key, &bins).await.unwrap();
        });
    }

    fn raw<T, F: Future<Output = T>>(
        &self,
        request: impl FnOnce(::aerospike::Client, ::aerospike::Key) -> F,
    ) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client =
                ::aerospike::Client::new(&client_policy(), &self.place.address.to_string()).await.unwrap();
            let (namespace, name) = (self.place.namespace.as_str(), format!("D_LTCH#{}#a", self.client));
            let key = ::aerospike::Key::new(namespace, "D_LTCH#tests", name.into()).unwrap();
            request(client, key).await
        })
    }

    /// Counts down, with a name or without. The reply to the first request is lost. `meanwhile` runs before the
    /// server receives the request again.
    fn count_down_in_doubt(&self, name: Option<&str>, meanwhile: impl FnOnce()) -> dlm::Result<()> {
        let (gate, hits) = (Arc::new(Gate::default()), self.proxy.hits());
        self.proxy.next("change", Fault::LoseReply);
        self.proxy.next("change", Fault::Keep(Arc::clone(&gate)));
        thread::scope(|scope| {
            let counting = thread::Builder::new().name("dlm-test-counting".into());
            let count_down = || match name {
                Some(name) => self.ours.count_down_as(name).map(|_| ()),
                None => self.ours.count_down(),
            };
            let counting = counting.spawn_scoped(scope, count_down).unwrap();
            until("it is sent again", || self.proxy.hits() == hits + 2);
            meanwhile();
            gate.open();
            counting.join().unwrap()
        })
    }
}

/// The step has counted, so the call must not return that it had no effect.
#[test]
fn a_step_whose_reply_was_lost_and_whose_latch_is_gone_is_in_doubt() {
    for name in [None, Some("worker-1")] {
        let Some(stage) = latch_stage("gone-step") else { return };
        stage.ours.create(3).unwrap();
        let answer = stage.count_down_in_doubt(name, || {
            assert_eq!(stage.theirs.count().unwrap(), 2, "the step did not count");
            stage.delete();
        });
        assert_eq!(code(answer), Code::InDoubt);
        // No message of this step is lost.
        assert_eq!(code(stage.ours.count_down()), Code::NotFound);
    }
}

#[test]
fn a_step_whose_reply_was_lost_is_not_taken_again_in_a_latch_that_was_made_anew() {
    for name in [None, Some("worker-1")] {
        let Some(stage) = latch_stage("anew-step") else { return };
        stage.ours.create(3).unwrap();
        let answer = stage.count_down_in_doubt(name, || {
            stage.delete();
            stage.theirs.create(10).unwrap();
        });
        assert_eq!(code(answer), Code::InDoubt);
        assert_eq!(stage.theirs.count().unwrap(), 10, "a step for the old latch counted");
        // The next step is for the new latch.
        stage.ours.count_down().unwrap();
        assert!(stage.ours.count_down_as("worker-1").unwrap());
        assert_eq!(stage.theirs.count().unwrap(), 8);
    }
}

#[test]
fn a_step_that_comes_late_does_not_count_in_a_latch_that_was_made_anew() {
    let as_java = [("count#dc1", 10.into())];
    for (name, java) in [(None, false), (Some("worker-1"), false), (None, true), (Some("worker-1"), true)] {
        let Some(stage) = latch_stage("late-anew") else { return };
        let make = || match java {
            true => stage.put(&as_java),
            false => stage.theirs.create(10).unwrap(),
        };
        make();
        // After this step, the process knows this incarnation of the latch.
        stage.ours.count_down().unwrap();
        let gate = Arc::new(Gate::default());
        stage.proxy.next("change", Fault::KeepAndBreak(Arc::clone(&gate)));
        match name {
            Some(name) => assert!(stage.ours.count_down_as(name).unwrap()),
            None => stage.ours.count_down().unwrap(),
        }
        assert_eq!((stage.proxy.hits(), stage.theirs.count().unwrap()), (1, 8));
        stage.delete();
        make();
        gate.open();
        until("the late request is carried out", || stage.proxy.late() == 1);
        assert_eq!(stage.theirs.count().unwrap(), 10, "participant {name:?}, made by Java: {java}");
        stage.ours.count_down().unwrap();
        assert_eq!(stage.theirs.count().unwrap(), 9);
    }
}

#[test]
fn a_step_that_comes_late_does_not_count_after_a_reset_or_a_deletion() {
    let ends: [fn(&Latch); 3] = [
        |latch| latch.reset(10).unwrap(),
        |latch| latch.reset_for(&["worker-1", "worker-2"]).unwrap(),
        |latch| {
            latch.delete().unwrap();
            latch.create(10).unwrap();
        },
    ];
    for (end, begin_anew) in ends.into_iter().enumerate() {
        for name in [None, Some("worker-1")] {
            let Some(stage) = latch_stage("late-reset") else { return };
            stage.theirs.create(3).unwrap();
            let gate = Arc::new(Gate::default());
            stage.proxy.next("change", Fault::KeepAndBreak(Arc::clone(&gate)));
            match name {
                Some(name) => assert!(stage.ours.count_down_as(name).unwrap()),
                None => stage.ours.count_down().unwrap(),
            }
            assert_eq!((stage.proxy.hits(), stage.theirs.count().unwrap()), (1, 2));
            begin_anew(&stage.theirs);
            let begins = stage.theirs.count().unwrap();
            gate.open();
            until("the late request is carried out", || stage.proxy.late() == 1);
            assert_eq!(stage.theirs.count().unwrap(), begins, "end {end}, participant {name:?}");
            // The next step is for the new latch.
            assert!(stage.ours.count_down_as("worker-1").unwrap());
            assert_eq!(stage.theirs.roster().unwrap().arrived, ["worker-1"]);
            assert_eq!(stage.theirs.count().unwrap(), begins - 1);
        }
    }
}

/// The latch is there, so it was not deleted, and the deletion may have come before the reset.
#[test]
fn a_deletion_whose_request_is_lost_and_whose_latch_is_reset_meanwhile_is_in_doubt() {
    let Some(stage) = latch_stage("reset-meanwhile") else { return };
    stage.ours.create(3).unwrap();
    let (theirs, first) = (stage.theirs.clone(), AtomicBool::new(true));
    stage.proxy.storm(move |request| {
        let is_first = request == "change" && first.swap(false, Ordering::SeqCst);
        is_first.then(|| {
            theirs.reset(9).unwrap();
            Fault::LoseRequest
        })
    });
    let answer = stage.ours.delete();
    stage.proxy.heal();
    assert_eq!(code(answer), Code::InDoubt);
    assert_eq!(stage.theirs.count().unwrap(), 9);
    stage.ours.delete().unwrap();
    assert_eq!(code(stage.theirs.count()), Code::NotFound);
}

/// Each has seen the count of the other when it deletes its own. A record that stays would keep Java from creating the latch.
#[test]
fn of_farms_that_delete_their_counts_at_once_nothing_is_left() {
    let Some(place) = aerospike_or_skip() else { return };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let store = dlm::store::open(&place.uri()).unwrap();
    for round in 0..20 {
        let latches = ["dc1", "dc2"].map(|farm| {
            let client = format!("both-delete-{since}-{round}");
            let manager =
                LockManager::builder().store_uri(&place.uri()).client(&client).farm(farm).timeout(LONG);
            let latch = manager.open().unwrap().latch("a", Level::Xdc, LatchKind::CountUpDown).unwrap();
            latch.create(3).unwrap();
            latch
        });
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            for latch in &latches {
                scope.spawn(|| {
                    barrier.wait();
                    latch.delete().unwrap();
                });
            }
        });
        let listener =
            LatchListener { endpoint: NoticeEndpoint::Udp(([192, 0, 2, 7], 9).into()), nonce: round };
        let (name, by) = (latches[0].name(), Deadline::after(LONG));
        let note = LatchNote { name, level: Level::Xdc, listener, lasts: LONG, by };
        assert!(!store.latches().unwrap().listen(&note).unwrap(), "round {round}: the record is there");
    }
}

#[test]
fn a_reset_or_a_deletion_of_which_a_message_is_lost_is_made_once() {
    for loss in LATCHES.losses() {
        let Some(stage) = latch_stage("lost-reset") else { return };
        stage.ours.create(3).unwrap();
        stage.proxy.next("change", loss.clone());
        stage.ours.reset(7).unwrap();
        stage.theirs.count_down().unwrap();
        assert_eq!((stage.proxy.hits(), stage.theirs.count().unwrap()), (1, 6));
        stage.proxy.next("change", loss);
        stage.ours.delete().unwrap();
        assert_eq!((stage.proxy.hits(), code(stage.theirs.count())), (2, Code::NotFound));
        assert_eq!(code(stage.ours.delete()), Code::NotFound);
    }
    // One that arrives late has no effect either.
    let changes: [fn(&Latch) -> dlm::Result<()>; 2] = [|latch| latch.reset(7), |latch| latch.delete()];
    for change in changes {
        let Some(stage) = latch_stage("late-reset") else { return };
        stage.ours.create(3).unwrap();
        let gate = Arc::new(Gate::default());
        stage.proxy.next("change", Fault::KeepAndBreak(Arc::clone(&gate)));
        change(&stage.ours).unwrap();
        stage.theirs.get_or_create(7).unwrap();
        stage.theirs.count_down().unwrap();
        gate.open();
        until("the late request is carried out", || stage.proxy.late() == 1);
        assert_eq!(stage.theirs.count().unwrap(), 6, "a late request began it anew");
    }
}

/// A latch of Java's has no incarnation. The library writes one before its first step.
#[test]
fn a_first_step_for_a_latch_of_javas_counts_once_though_a_message_before_it_is_lost_or_late() {
    let Some(stage) = latch_stage("marked") else { return };
    for (number, loss) in LATCHES.losses().into_iter().enumerate() {
        stage.put(&[("count#dc1", 10.into())]);
        // In later rounds this process still knows the incarnation before. So the first change is refused, and the
        // second one writes the new incarnation.
        stage.proxy.later("change", usize::from(number > 0), 1, loss);
        stage.ours.count_down().unwrap();
        assert_eq!((stage.proxy.hits(), stage.theirs.count().unwrap()), (number + 1, 9));
        stage.delete();
    }
    let (gate, hits) = (Arc::new(Gate::default()), stage.proxy.hits());
    stage.put(&[("count#dc1", 10.into())]);
    stage.proxy.later("change", 1, 1, Fault::KeepAndBreak(Arc::clone(&gate)));
    stage.ours.count_down().unwrap();
    stage.delete();
    stage.put(&[("count#dc1", 10.into())]);
    let lives = stage.record().time_to_live().unwrap();
    gate.open();
    until("the late incarnation is written", || stage.proxy.late() == 1);
    assert_eq!((stage.proxy.hits(), stage.theirs.count().unwrap()), (hits + 1, 10));
    assert!(stage.record().time_to_live().unwrap() <= lives, "the late incarnation extended the TTL");
    for latch in [&stage.ours, &stage.theirs] {
        latch.count_down().unwrap();
    }
    assert_eq!(stage.theirs.count().unwrap(), 8);
}

/// One record is from version 0.1, before latches had incarnations. The other one is from Java, with only a count.
#[test]
fn a_latch_that_an_older_version_or_java_made_is_read_and_counted() {
    use ::aerospike::Value;
    let note = Value::Blob([[7; 8], [0; 8]].concat());
    let notes = [(note.clone(), 0.into()), ("eu".into(), note)];
    let older = [
        ("count#dc1", Value::from(5)),
        ("steps#dc1", Value::SortedMap(notes.into())),
        ("due#dc1", Value::List(vec!["eu".into(), "us".into()])),
    ];
    for bins in [&older[..], &older[..1]] {
        let Some(stage) = latch_stage("older") else { return };
        stage.put(bins);
        let expires = stage.record().time_to_live().unwrap();
        let java = bins.len() == 1;
        let expected = if java { Default::default() } else { (vec!["us".to_owned()], vec!["eu".to_owned()]) };
        let roster = stage.theirs.roster().unwrap();
        assert_eq!((roster.pending, roster.arrived), expected);
        assert_eq!(stage.ours.count().unwrap(), 5);
        // While it waits for a name, only that name counts.
        let counted = stage.ours.count_down().map_err(|error| error.code());
        assert_eq!(counted, if java { Ok(()) } else { Err(Code::InvalidArgument) });
        assert!(stage.theirs.count_down_as("us").unwrap());
        assert_eq!(stage.ours.count_down_as("eu").unwrap(), java, "the older version counted it");
        let roster = stage.ours.roster().unwrap();
        assert_eq!((roster.pending, roster.arrived), (vec![], vec!["eu".to_owned(), "us".to_owned()]));
        assert_eq!(stage.theirs.count().unwrap(), if java { 2 } else { 4 });
        let left = stage.record().time_to_live().unwrap();
        assert!(left > expires, "{left:?} remain, not the TTL of a step, a day");
        // Java adds up all bins with this in their names.
        let counts = stage.record().bins.into_keys().filter(|bin| bin.contains("count#"));
        assert_eq!(counts.collect::<Vec<_>>(), ["count#dc1"]);
    }
}

/// Its note must not be deleted with the notes of answered steps.
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

/// A latch that is counted down a million times must not have a record with a million notes.
#[test]
fn notes_of_answered_steps_do_not_pile_up() {
    let Some(stage) = latch_stage("notes") else { return };
    stage.theirs.create(1000).unwrap();
    for _ in 0..100 {
        stage.theirs.count_down().unwrap();
    }
    let notes = match &stage.record().bins["steps#dc1"] {
        ::aerospike::Value::SortedMap(notes) => notes.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(notes, 1, "only the last note is still needed");
}
