//! Requests and replies that are lost, late or cut between a client and a real Aerospike: what the caller
//! is told must be true each time, and no lock may stay behind.
#![cfg(feature = "aerospike")]

mod support {
    pub(crate) mod aerospike;
    pub(crate) mod patience;
    pub(crate) mod proxy;
    pub(crate) mod skip;
}

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlm::store::Attempt;
use dlm::{Code, Deadline, Fence, Latch, LatchKind, Lease, Level, Lock, LockManager, Moment, Who};
use parking_lot::Mutex;
use support::aerospike::{Place, aerospike_or_skip};
use support::patience::{LONG, until};
use support::proxy::{Fault, Gate, Proxy};

/// No lease of these tests ends by itself: what becomes free was freed.
const TTL: Duration = Duration::from_secs(1800);
/// A write is answered with a header of 8 bytes and 22 more.
const REPLY_BYTES: usize = 30;

/// A lock as two processes see it: one through a proxy, one not.
struct Stage {
    proxy: Proxy,
    ours: Lock,
    theirs: Lock,
    last_fence: Mutex<Option<Fence>>,
}

/// `None`, after saying so, on a machine without an Aerospike.
fn stage(test: &str, timeout: Duration) -> Option<Stage> {
    let place = aerospike_or_skip()?;
    let client = unique(test);
    let proxy = Proxy::before_aerospike(place.address);
    Some(Stage {
        ours: manager(&client, &place, proxy.address(), timeout).lock("a", Level::Xdc).unwrap(),
        theirs: manager(&client, &place, place.address, LONG / 2).lock("a", Level::Xdc).unwrap(),
        proxy,
        last_fence: Mutex::default(),
    })
}

fn unique(test: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    format!("{test}-{since}")
}

fn manager(client: &str, place: &Place, address: SocketAddr, timeout: Duration) -> LockManager {
    LockManager::builder()
        .store_uri(&place.uri_by(address))
        .client(client)
        .ttl(TTL)
        .wait(LONG)
        .retry(Duration::from_millis(100))
        .timeout(timeout)
        .open()
        .unwrap()
}

impl Stage {
    /// A grant that is one: the lease lasts, others are refused, the fence has grown.
    #[track_caller]
    fn assert_held(&self, lease: &Lease) {
        lease.check().unwrap();
        assert_eq!(code(self.theirs.try_acquire()), Code::LockUnavailable);
        let before = std::mem::replace(&mut *self.last_fence.lock(), lease.fence());
        assert!(lease.fence() > before, "{:?} after {before:?}", lease.fence());
    }

    #[track_caller]
    fn assert_free(&self) {
        let lease = self.theirs.try_acquire().unwrap();
        self.assert_held(&lease);
        assert!(lease.release().unwrap());
    }

    /// One acquire and release by way of the proxy, and what else must be true.
    #[track_caller]
    fn cycle(&self) {
        let lease = self.ours.try_acquire().unwrap();
        self.assert_held(&lease);
        assert!(lease.release().unwrap());
        self.assert_free();
    }
}

#[track_caller]
fn code<T: std::fmt::Debug>(answer: dlm::Result<T>) -> Code {
    answer.expect_err("this must fail").code()
}

/// The ways to lose one message.
fn losses() -> Vec<Fault> {
    let cuts = (0..REPLY_BYTES).step_by(7).map(Fault::CutReply);
    [Fault::LoseReply, Fault::LoseRequest].into_iter().chain(cuts).collect()
}

#[test]
fn an_acquire_of_which_any_one_message_is_lost_is_a_grant_with_a_fence() {
    let Some(stage) = stage("lost-acquire", LONG / 2) else { return };
    let mut faults = 0;
    for method in ["create", "fence"] {
        for loss in losses() {
            stage.proxy.next(method, loss);
            let lease = stage.ours.try_acquire().unwrap();
            faults += 1;
            assert_eq!(stage.proxy.hits(), faults, "no {method} was sent");
            stage.assert_held(&lease);
            assert!(lease.release().unwrap());
            stage.assert_free();
        }
    }
}

/// The Java library sends the request again, meets its own record, and nobody has the lock for its TTL.
#[test]
fn an_acquire_whose_reply_was_lost_is_not_refused_over_its_own_record() {
    let Some(stage) = stage("lost-own", LONG / 2) else { return };
    // Lost twice, and the first look as well.
    stage.proxy.later("create", 0, 2, Fault::LoseReply);
    stage.proxy.next("get", Fault::LoseReply);
    let lease = stage.ours.try_acquire().unwrap();
    assert_eq!(stage.proxy.hits(), 2, "what is found to be ours is not asked for again");
    stage.assert_held(&lease);
    assert!(lease.release().unwrap());
}

/// One reply in many is what networks lose, but a dozen in a row is what they lose in a bad second.
#[test]
fn an_acquire_in_doubt_looks_until_it_is_answered() {
    let Some(stage) = stage("lost-looks", LONG / 2) else { return };
    stage.proxy.next("create", Fault::LoseReply);
    stage.proxy.later("get", 0, 12, Fault::LoseReply);
    let lease = stage.ours.try_acquire().unwrap();
    assert_eq!(stage.proxy.hits(), 13);
    stage.assert_held(&lease);
}

#[test]
fn a_release_of_which_a_message_is_lost_says_true_and_the_lock_is_free() {
    let Some(stage) = stage("lost-release", LONG / 2) else { return };
    for loss in losses() {
        let lease = stage.ours.try_acquire().unwrap();
        stage.assert_held(&lease);
        let hits = stage.proxy.hits();
        stage.proxy.next("delete", loss);
        assert!(lease.release().unwrap());
        assert_eq!(stage.proxy.hits(), hits + 1);
        assert!(!lease.release().unwrap());
        stage.assert_free();
    }
}

#[test]
fn a_release_whose_reply_is_lost_is_ours_though_another_has_the_lock_by_then() {
    let Some(stage) = stage("lost-and-taken", LONG / 2) else { return };
    let lease = stage.ours.try_acquire().unwrap();
    // The release is carried out; before it is sent again the lock has a new holder.
    let gate = Arc::new(Gate::default());
    stage.proxy.next("delete", Fault::LoseReply);
    stage.proxy.later("delete", 1, 1, Fault::Keep(Arc::clone(&gate)));
    let next = thread::scope(|scope| {
        let releasing = thread::Builder::new().name("dlm-test-releasing".into());
        let releasing = releasing.spawn_scoped(scope, || lease.release()).unwrap();
        let next = stage.theirs.acquire().unwrap();
        gate.open();
        assert!(releasing.join().unwrap().unwrap());
        next
    });
    next.renew().expect("the second request took the next holder's record");
    assert!(next.release().unwrap());
}

#[test]
fn a_renewal_of_which_a_message_is_lost_is_ok_and_lets_the_lease_last() {
    let Some(stage) = stage("lost-renewal", LONG / 2) else { return };
    for loss in losses() {
        let lease = stage.ours.try_acquire().unwrap();
        stage.assert_held(&lease);
        for ttl in [TTL, 2 * TTL] {
            let (hits, asked) = (stage.proxy.hits(), Moment::now());
            stage.proxy.next("change", loss.clone());
            lease.renew_for(ttl).unwrap();
            assert_eq!(stage.proxy.hits(), hits + 1);
            assert!(lease.ends() >= asked.after(ttl - ttl / 100));
            let holder = stage.theirs.inspect().unwrap().holder.unwrap();
            assert!(holder.remaining.unwrap() > ttl - ttl / 100);
        }
        assert!(lease.release().unwrap());
        stage.assert_free();
    }
}

#[test]
fn an_acquire_that_arrives_after_its_deadline_is_in_doubt_and_is_freed_in_the_background() {
    let Some(stage) = stage("late-acquire", Duration::from_millis(700)) else { return };
    let gate = Arc::new(Gate::default());
    stage.proxy.next("create", Fault::Keep(Arc::clone(&gate)));
    assert_eq!(code(stage.ours.try_acquire()), Code::InDoubt);
    stage.assert_free();
    gate.open();
    until("the late request is carried out", || stage.proxy.late() == 1);
    // Its TTL is half an hour.
    let lease = stage.theirs.acquire().unwrap();
    stage.assert_held(&lease);
}

#[test]
fn a_request_that_arrives_after_the_lock_was_used_and_released_is_freed_in_the_background() {
    let Some(stage) = stage("late-again", LONG / 2) else { return };
    let gate = Arc::new(Gate::default());
    stage.proxy.next("create", Fault::KeepAndBreak(Arc::clone(&gate)));
    stage.cycle();
    gate.open();
    until("the late request is carried out", || stage.proxy.late() == 1);
    let lease = stage.theirs.acquire().unwrap();
    stage.assert_held(&lease);
}

#[test]
fn a_request_that_arrives_while_its_sender_holds_the_lock_does_no_harm() {
    let Some(stage) = stage("late-held", LONG / 2) else { return };
    let gate = Arc::new(Gate::default());
    stage.proxy.next("create", Fault::KeepAndBreak(Arc::clone(&gate)));
    let lease = stage.ours.try_acquire().unwrap();
    gate.open();
    until("the late request is carried out", || stage.proxy.late() == 1);
    // The background job that looks for the late request must leave the lease alone.
    thread::sleep(Duration::from_millis(1500));
    lease.renew().unwrap();
    stage.assert_held(&lease);
    assert!(lease.release().unwrap());
}

#[test]
fn a_renewal_that_arrives_after_the_release_does_not_bring_the_lock_back() {
    let Some(stage) = stage("late-renewal", Duration::from_millis(700)) else { return };
    let lease = stage.ours.try_acquire().unwrap();
    let (gate, ends) = (Arc::new(Gate::default()), lease.ends());
    stage.proxy.next("change", Fault::Keep(Arc::clone(&gate)));
    assert_eq!(code(lease.renew()), Code::InDoubt);
    assert_eq!(lease.ends(), ends, "a doubtful renewal leaves the lease as it was");
    lease.check().unwrap();
    assert!(lease.release().unwrap());
    gate.open();
    until("the late request is carried out", || stage.proxy.late() == 1);
    stage.assert_free();
}

/// A fence that comes when the lease is over may be lower than that of the next holder.
#[test]
fn a_fence_that_was_counted_after_the_lease_ended_is_no_grant() {
    let Some(stage) = stage("late-fence", LONG / 2) else { return };
    let gate = Arc::new(Gate::default());
    stage.proxy.next("fence", Fault::Keep(Arc::clone(&gate)));
    let place = aerospike_or_skip().expect("the stage has one");
    // Without a manager, which looks at the lease once more.
    let store = dlm::store::open(&place.uri_by(stage.proxy.address())).unwrap();
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

#[test]
fn a_dropped_lease_whose_release_was_lost_is_freed_in_the_background() {
    let Some(stage) = stage("lost-drop", LONG / 2) else { return };
    let lease = stage.ours.try_acquire().unwrap();
    stage.assert_held(&lease);
    // Until further notice nothing comes through.
    stage.proxy.later("*", 0, usize::MAX, Fault::LoseRequest);
    drop(lease);
    assert!(stage.theirs.inspect().unwrap().holder.is_some(), "nothing was lost");
    stage.proxy.heal();
    let next = stage.theirs.acquire().unwrap();
    stage.assert_held(&next);
}

#[test]
fn a_failed_release_may_be_repeated() {
    let Some(stage) = stage("again", Duration::from_millis(700)) else { return };
    let lease = stage.ours.try_acquire().unwrap();
    stage.assert_held(&lease);
    stage.proxy.later("*", 0, usize::MAX, Fault::Swallow);
    assert_eq!(code(lease.release()), Code::InDoubt);
    assert_eq!(code(lease.check()), Code::LeaseLost, "from then on another may have the lock");
    stage.proxy.heal();
    assert!(lease.release().unwrap());
    stage.assert_free();
}

#[test]
fn connections_that_the_server_closed_are_replaced_and_nobody_notices() {
    let Some(stage) = stage("idle", LONG / 2) else { return };
    stage.cycle();
    let writes = |stage: &Stage| {
        let requests = stage.proxy.requests();
        requests.iter().filter(|method| ["create", "delete", "fence"].contains(&method.as_str())).count()
    };
    let usual = writes(&stage);
    for round in 2..=10 {
        stage.proxy.hang_up();
        stage.cycle();
        assert_eq!(writes(&stage), round * usual, "a request was sent twice");
    }
}

#[test]
fn a_server_that_is_down_is_a_connection_error_soon() {
    // A port that was free a moment ago; nobody listens there.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let place = Place { address, namespace: "test".into() };
    let manager = manager("down", &place, address, LONG / 4);
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let began = Moment::now();
    assert_eq!(code(lock.try_acquire()), Code::ConnectionError);
    assert_eq!(code(lock.inspect()), Code::ConnectionError);
    // A refused connection says at once what a wait would not change.
    assert_eq!(code(lock.acquire()), Code::ConnectionError);
    let took = Moment::now().since(began);
    assert!(took < LONG / 4, "{took:?}");
    manager.close().unwrap();
}

#[test]
fn a_server_that_never_answers_costs_no_more_than_the_deadline() {
    // Connections are accepted by the system, and nobody reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let timeout = Duration::from_millis(400);
    let place = Place { address, namespace: "test".into() };
    let lock = manager("silent", &place, address, timeout).lock("a", Level::Xdc).unwrap();
    let began = Moment::now();
    assert_eq!(code(lock.try_acquire()), Code::ConnectionError, "nothing was sent yet");
    assert_eq!(code(lock.inspect()), Code::ConnectionError);
    let took = Moment::now().since(began);
    assert!(took < LONG / 4, "{took:?}");
}

#[test]
fn a_server_that_comes_back_is_used_again() {
    let Some(stage) = stage("back", Duration::from_millis(700)) else { return };
    stage.cycle();
    stage.proxy.later("*", 0, usize::MAX, Fault::LoseRequest);
    let error = stage.ours.acquire().expect_err("nothing came through");
    assert!(error.is_retryable(), "{}", error.chain());
    stage.proxy.heal();
    let lease = stage.ours.acquire().unwrap();
    stage.assert_held(&lease);
}

/// What the network does to a fifth of all messages, all the time.
#[test]
fn of_many_cycles_with_a_fifth_of_the_replies_lost_none_is_granted_twice() {
    let Some(stage) = stage("fifth", LONG / 2) else { return };
    for method in ["create", "fence", "delete", "get"] {
        stage.proxy.sometimes(method, 5, Fault::LoseReply);
    }
    for _ in 0..100 {
        let lease = stage.ours.acquire().unwrap();
        stage.assert_held(&lease);
        assert!(lease.release().unwrap());
        stage.assert_free();
    }
    assert!(stage.proxy.hits() > 20, "{} faults", stage.proxy.hits());
}

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
    let client = unique(test);
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
    for loss in losses() {
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
    let losses = losses();
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
