//! Requests and replies that are lost, late or cut between a client and a real HBase gateway: what the
//! caller is told must be true each time, and no lock may stay behind.
#![cfg(feature = "hbase")]

mod support {
    #[allow(unreachable_pub, reason = "public for every test program that takes it in")]
    pub(crate) mod hbase;
    pub(crate) mod patience;
    pub(crate) mod proxy;
    pub(crate) mod raw;
    pub(crate) mod skip;
    pub(crate) mod table;
}

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlm::{Code, Fence, Lease, Level, Lock, LockManager, Moment};
use parking_lot::Mutex;
use support::patience::{LONG, until};
use support::proxy::{Fault, Gate, Proxy};
use support::raw::Raw;
use support::table;

/// No lease of these tests ends by itself: what becomes free was freed.
const TTL: Duration = Duration::from_secs(1800);
/// Time-out of those who shall look in vain until it is over: no call that is answered takes so long.
const BLIND: Duration = Duration::from_secs(2);
/// Bytes of a reply to `checkAndPut`: header, name, number, one field, its bool, the end.
const REPLY_BYTES: usize = 4 + 4 + "checkAndPut".len() + 4 + 3 + 1 + 1;

/// A lock as two processes see it: one through a proxy, one not.
struct Stage {
    proxy: Proxy,
    manager: LockManager,
    ours: Lock,
    theirs: Lock,
    last_fence: Mutex<Option<Fence>>,
}

/// `None`, after saying so, on a machine where no HBase can run.
fn stage(test: &str, timeout: Duration) -> Option<Stage> {
    let gateway = table::gateway()?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let client = format!("{test}-{since}");
    let proxy = Proxy::before(gateway);
    let manager = manager(&client, proxy.address(), timeout);
    Some(Stage {
        ours: manager.lock("a", Level::Xdc).unwrap(),
        theirs: self::manager(&client, gateway, LONG / 2).lock("a", Level::Xdc).unwrap(),
        manager,
        proxy,
        last_fence: Mutex::default(),
    })
}

fn manager(client: &str, address: SocketAddr, timeout: Duration) -> LockManager {
    LockManager::builder()
        .store_uri(&table::uri(address))
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
    let cuts = (0..REPLY_BYTES).step_by(5).map(Fault::CutReply);
    [Fault::LoseReply, Fault::LoseRequest].into_iter().chain(cuts).collect()
}

#[test]
fn an_acquire_of_which_any_one_message_is_lost_is_a_grant_with_a_fence() {
    let Some(stage) = stage("lost-acquire", LONG / 2) else { return };
    let mut faults = 0;
    for method in ["checkAndPut", "atomicIncrement", "get"] {
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

#[test]
fn a_lock_whose_counter_is_new_gets_its_fence_though_messages_are_lost() {
    let Some(stage) = stage("lost-seed", LONG / 2) else { return };
    for (number, loss) in losses().into_iter().enumerate() {
        for after in [0, 1] {
            let name = format!("{number}-{after}");
            let lock = stage.manager.lock(&name, Level::Xdc).unwrap();
            // The first conditional put takes the lock, the second seeds its counter.
            stage.proxy.later("checkAndPut", after, 1, loss.clone());
            let first = lock.try_acquire().unwrap();
            assert!(first.release().unwrap());
            let second = lock.try_acquire().unwrap();
            assert!(second.fence() > first.fence() && first.fence() >= Some(Fence(1 << 40)));
        }
    }
    assert_eq!(stage.proxy.hits(), 2 * losses().len());
}

#[test]
fn a_release_of_which_a_message_is_lost_says_true_and_the_lock_is_free() {
    let Some(stage) = stage("lost-release", LONG / 2) else { return };
    for loss in losses() {
        let lease = stage.ours.try_acquire().unwrap();
        stage.assert_held(&lease);
        let hits = stage.proxy.hits();
        stage.proxy.next("checkAndPut", loss);
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
    // The release is carried out; before its outcome can be looked up the lock has a new holder.
    let gate = Arc::new(Gate::default());
    stage.proxy.next("checkAndPut", Fault::LoseReply);
    stage.proxy.next("get", Fault::Keep(Arc::clone(&gate)));
    let next = thread::scope(|scope| {
        let releasing = thread::Builder::new().name("dlm-test-releasing".into());
        let releasing = releasing.spawn_scoped(scope, || lease.release()).unwrap();
        let next = stage.theirs.acquire().unwrap();
        gate.open();
        assert!(releasing.join().unwrap().unwrap());
        next
    });
    assert_eq!(stage.proxy.hits(), 2);
    next.renew().expect("the release was sent twice");
    assert!(next.release().unwrap());
}

#[test]
fn a_renewal_of_which_a_message_is_lost_is_ok_and_lets_the_lease_last() {
    let Some(stage) = stage("lost-renewal", LONG / 2) else { return };
    for loss in losses() {
        let lease = stage.ours.try_acquire().unwrap();
        stage.assert_held(&lease);
        let granted = stage.theirs.inspect().unwrap().holder.unwrap().since.unwrap();
        // The store's clock counts milliseconds.
        thread::sleep(Duration::from_millis(10));
        // Once with the TTL it has, so that the record stays the same, and once with a longer one.
        for ttl in [TTL, 2 * TTL] {
            let (hits, asked) = (stage.proxy.hits(), Moment::now());
            stage.proxy.next("checkAndPut", loss.clone());
            lease.renew_for(ttl).unwrap();
            assert_eq!(stage.proxy.hits(), hits + 1);
            assert!(lease.ends() >= asked.after(ttl - ttl / 100));
            let holder = stage.theirs.inspect().unwrap().holder.unwrap();
            assert!(holder.since.unwrap() > granted, "the store was not asked");
            assert!(holder.remaining.unwrap() > ttl - ttl / 100);
        }
        assert!(lease.release().unwrap());
        stage.assert_free();
    }
}

/// The store's record is then another than the lease knows of.
#[test]
fn a_renewal_in_doubt_that_took_effect_can_be_followed_by_another_and_by_a_release() {
    let Some(stage) = stage("doubtful-renewal", BLIND) else { return };
    for again in [true, false] {
        let lease = stage.ours.try_acquire().unwrap();
        let ends = lease.ends();
        let hits = stage.proxy.hits();
        stage.proxy.next("checkAndPut", Fault::LoseReply);
        // It is looked for until the time is over.
        stage.proxy.later("get", 0, usize::MAX, Fault::LoseRequest);
        assert_eq!(code(lease.renew_for(2 * TTL)), Code::InDoubt);
        stage.proxy.heal();
        assert!(stage.proxy.hits() > hits + 4, "{} faults", stage.proxy.hits() - hits);
        assert_eq!(lease.ends(), ends);
        stage.assert_held(&lease);
        if again {
            lease.renew().unwrap();
            stage.theirs.inspect().unwrap().holder.expect("the renewal lost the lock");
        }
        assert!(lease.release().unwrap());
        stage.assert_free();
    }
}

/// The gateway goes on with requests whose client has gone.
#[test]
fn an_acquire_that_arrives_after_its_deadline_is_in_doubt_and_is_freed_in_the_background() {
    let Some(stage) = stage("late-acquire", Duration::from_millis(500)) else { return };
    let gate = Arc::new(Gate::default());
    stage.proxy.next("checkAndPut", Fault::Keep(Arc::clone(&gate)));
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
    stage.proxy.next("checkAndPut", Fault::KeepAndBreak(Arc::clone(&gate)));
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
    stage.proxy.next("checkAndPut", Fault::KeepAndBreak(Arc::clone(&gate)));
    let lease = stage.ours.try_acquire().unwrap();
    gate.open();
    until("the late request is carried out", || stage.proxy.late() == 1);
    // The background job that looks for the late request must leave the lease alone.
    thread::sleep(Duration::from_millis(1500));
    lease.renew().unwrap();
    stage.assert_held(&lease);
    assert!(lease.release().unwrap());
}

/// The second request is refused over the record of the first; a third may be under way.
#[test]
fn an_acquire_that_the_gateway_sent_twice_is_a_grant_and_is_looked_for_after_its_release() {
    let Some(stage) = stage("twice", LONG / 2) else { return };
    let name = stage.ours.name();
    let mut raw = Raw::connect(table::gateway().unwrap(), table::TABLE);
    stage.proxy.next("checkAndPut", Fault::Twice);
    let lease = stage.ours.try_acquire().expect("it is refused over its own record");
    stage.assert_held(&lease);
    let (record, _) = raw.lock_cell(name).unwrap();
    assert!(lease.release().unwrap());
    let (freed, at) = raw.lock_cell(name).unwrap();
    assert!(freed.is_empty());
    raw.put_at(name, &record, at + 1);
    let lease = stage.theirs.acquire().expect("what came late is not freed");
    stage.assert_held(&lease);
}

#[test]
fn an_acquire_that_was_sent_twice_and_cannot_be_looked_for_is_in_doubt_and_is_freed_in_the_background() {
    let Some(stage) = stage("twice-blind", BLIND) else { return };
    stage.proxy.next("checkAndPut", Fault::Twice);
    // It is looked for until the time is over.
    stage.proxy.later("get", 0, usize::MAX, Fault::LoseRequest);
    assert_eq!(code(stage.ours.try_acquire()), Code::InDoubt);
    stage.proxy.heal();
    assert!(stage.proxy.hits() > 4, "{} faults", stage.proxy.hits());
    let lease = stage.theirs.acquire().expect("it is not freed");
    stage.assert_held(&lease);
}

#[test]
fn a_renewal_that_arrives_after_the_release_does_not_bring_the_lock_back() {
    let Some(stage) = stage("late-renewal", Duration::from_millis(500)) else { return };
    let lease = stage.ours.try_acquire().unwrap();
    let (gate, ends) = (Arc::new(Gate::default()), lease.ends());
    stage.proxy.next("checkAndPut", Fault::Keep(Arc::clone(&gate)));
    assert_eq!(code(lease.renew()), Code::InDoubt);
    assert_eq!(lease.ends(), ends, "a doubtful renewal leaves the lease as it was");
    lease.check().unwrap();
    assert!(lease.release().unwrap());
    gate.open();
    until("the late request is carried out", || stage.proxy.late() == 1);
    stage.assert_free();
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
    let Some(stage) = stage("again", Duration::from_millis(500)) else { return };
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
fn connections_that_the_gateway_closed_are_replaced_and_nobody_notices() {
    let Some(stage) = stage("idle", LONG / 2) else { return };
    // The first cycle of a lock also creates its counter.
    stage.cycle();
    let first = stage.proxy.requests().len();
    stage.cycle();
    let usual = stage.proxy.requests().len() - first;
    for round in 2..=20 {
        stage.proxy.hang_up();
        stage.cycle();
        assert_eq!(stage.proxy.requests().len(), first + round * usual, "a request was sent twice");
    }
    assert!(stage.proxy.connections() >= 20, "{} connections", stage.proxy.connections());

    // Also when many were idle.
    thread::scope(|scope| {
        for id in 0..8 {
            let manager = &stage.manager;
            scope.spawn(move || manager.lock(&id.to_string(), Level::Xdc).unwrap().try_acquire().unwrap());
        }
    });
    stage.proxy.hang_up();
    stage.cycle();
}

#[test]
fn a_gateway_that_is_down_is_a_connection_error_soon() {
    // A port that was free a moment ago; nobody listens there.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let manager = manager("down", address, LONG / 4);
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let began = Moment::now();
    assert_eq!(code(manager.initialize()), Code::ConnectionError);
    assert_eq!(code(lock.try_acquire()), Code::ConnectionError);
    assert_eq!(code(lock.inspect()), Code::ConnectionError);
    // A refused connection says at once what a wait would not change.
    assert_eq!(code(lock.acquire()), Code::ConnectionError);
    let took = Moment::now().since(began);
    assert!(took < LONG / 4, "{took:?}");
    manager.close().unwrap();
}

#[test]
fn a_gateway_that_comes_back_is_used_again() {
    let Some(stage) = stage("back", Duration::from_millis(500)) else { return };
    stage.cycle();
    stage.proxy.later("*", 0, usize::MAX, Fault::LoseRequest);
    let error = stage.ours.acquire().expect_err("nothing came through");
    assert!(error.is_retryable(), "{}", error.chain());
    stage.proxy.heal();
    let lease = stage.ours.acquire().unwrap();
    stage.assert_held(&lease);
}

#[test]
fn a_gateway_that_never_answers_costs_no_more_than_the_deadline() {
    // Connections are accepted by the system, and nobody reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let timeout = Duration::from_millis(400);
    let lock = manager("silent", silent.local_addr().unwrap(), timeout).lock("a", Level::Xdc).unwrap();
    let began = Moment::now();
    assert_eq!(code(lock.try_acquire()), Code::InDoubt, "a write that may yet arrive");
    assert_eq!(code(lock.inspect()), Code::ConnectionError, "a read that can be repeated");
    let took = Moment::now().since(began);
    assert!(took >= 2 * timeout && took < LONG / 4, "{took:?}");
}

#[test]
fn a_reply_that_comes_drop_by_drop_does_not_stretch_the_deadline() {
    let Some(stage) = stage("drip", Duration::from_millis(500)) else { return };
    // A time-out that counted from the last byte would let each of them through.
    stage.proxy.next("checkAndPut", Fault::Drip(Duration::from_millis(100)));
    assert_eq!(code(stage.ours.try_acquire()), Code::InDoubt);
    stage.proxy.next("get", Fault::Drip(Duration::from_millis(100)));
    assert_eq!(code(stage.ours.inspect()), Code::ConnectionError);
    assert_eq!(stage.proxy.hits(), 2);
    let lease = stage.theirs.acquire().expect("what was carried out is freed in the background");
    stage.assert_held(&lease);
}

/// Every sixth message or so is lost, for several threads and two processes, one of them spared.
#[test]
fn in_a_storm_of_losses_no_two_hold_the_lock_and_none_is_left_behind() {
    const CYCLES: usize = 40;
    let Some(stage) = stage("storm", LONG / 2) else { return };
    let seed = fastrand::u64(..);
    eprintln!("the seed is {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let losses = losses();
    let mut at = 0;
    while at < 4000 {
        stage.proxy.later("*", at, 1, losses[random.usize(..losses.len())].clone());
        at += random.usize(..6);
    }
    let (inside, doubts) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let last = Mutex::new(None);
    let work = |lock: Lock| {
        for _ in 0..CYCLES {
            let lease = match lock.acquire() {
                Ok(lease) => lease,
                Err(error) => {
                    assert!(error.is_retryable(), "{}", error.chain());
                    doubts.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
            };
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold one lock");
            let before = std::mem::replace(&mut *last.lock(), lease.fence());
            assert!(lease.fence() > before, "{:?} after {before:?}", lease.fence());
            assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "two hold one lock");
            match lease.release() {
                Ok(freed) => assert!(freed),
                Err(error) => assert!(error.is_retryable(), "{}", error.chain()),
            }
        }
    };
    thread::scope(|scope| {
        let locks = [&stage.ours, &stage.ours, &stage.ours, &stage.theirs];
        let threads = locks.map(|lock| scope.spawn(|| work(lock.clone())));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert!(stage.proxy.hits() > 3 * CYCLES / 2, "{} losses are no storm", stage.proxy.hits());
    let doubts = doubts.load(Ordering::SeqCst);
    assert!(doubts <= CYCLES, "{doubts} of {} acquires failed", 4 * CYCLES);
    let lease = stage.theirs.acquire().expect("a lock was left behind for its whole TTL");
    stage.assert_held(&lease);
}
