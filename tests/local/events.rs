//! What the event sinks of a manager are told, over stores whose answers the test chooses.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use dlm::events::{Event, EventSink, StoreCall};
use dlm::{
    AcquireOptions, CancelToken, Code, Error, LatchKind, Lease, LeaseState, Level, Lock, LockManager,
    LostReason, Moment,
};
use dlm_testkit::ReleaseLine::{Lie, Truth};
use dlm_testkit::{LONG, Scripted, unless_stalled, until};

/// No lease with this TTL expires during a test.
const TTL: Duration = Duration::from_secs(1800);

/// Writes down the events of locks, and those of the store in a second list.
#[derive(Default)]
struct Notes {
    locks: Mutex<Vec<String>>,
    calls: Mutex<Vec<String>>,
}

impl EventSink for Notes {
    fn on_event(&self, event: &Event<'_>) {
        let id = |lock: &dlm::LockName| lock.key().rsplit('#').next().unwrap_or_default().to_owned();
        let line = match event {
            Event::Acquired { lock, fence, .. } => {
                assert!(fence.is_some());
                format!("acquired {}", id(lock))
            }
            Event::Unavailable { lock, code, .. } => format!("unavailable {}: {code}", id(lock)),
            Event::Renewed { lock, .. } => format!("renewed {}", id(lock)),
            Event::RenewalFailed { lock, code, .. } => format!("renewal failed {}: {code}", id(lock)),
            Event::AtRisk { lock, .. } => format!("at risk {}", id(lock)),
            Event::Lost { lock, reason, .. } => format!("lost {}: {}", id(lock), reason.name()),
            Event::Released { lock, freed: true, .. } => format!("released {}", id(lock)),
            Event::Released { lock, .. } => format!("released {}, not freed", id(lock)),
            Event::HandedOn { lock, .. } => format!("handed on {}", id(lock)),
            Event::InDoubt { lock, call, .. } => format!("in doubt {}: {call}", id(lock)),
            Event::StoreCall { call, outcome, .. } => {
                return self.calls.lock().unwrap().push(format!("{call} {outcome}"));
            }
            other => panic!("not known here: {other:?}"),
        };
        self.locks.lock().unwrap().push(line);
    }
}

impl Notes {
    /// Returns the events of locks since the last call.
    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.locks.lock().unwrap())
    }

    /// Returns the calls to the store since the last call of this method.
    fn called(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

struct Stage {
    store: Arc<Scripted>,
    notes: Arc<Notes>,
    manager: LockManager,
    lock: Lock,
}

fn stage() -> Stage {
    let (store, notes) = (Arc::new(Scripted::default()), Arc::new(Notes::default()));
    let builder = LockManager::builder().store(store.clone()).client("events").ttl(TTL).wait(5 * LONG);
    let manager = builder.retry(Duration::from_millis(20)).event_sink(notes.clone()).open().unwrap();
    Stage { lock: manager.lock("a", Level::Xdc).unwrap(), manager, store, notes }
}

/// Acquires the lock of a stage with a manager that tells nobody.
fn held_by_another(stage: &Stage) -> Lease {
    let other = LockManager::builder().store(stage.store.clone()).client("events").ttl(TTL).open().unwrap();
    other.lock("a", Level::Xdc).unwrap().try_acquire().unwrap()
}

impl Stage {
    /// Acquires the lock for a short time. On a slow machine, a grant may come only after its lease has ended. Only the
    /// events of the last attempt are kept.
    fn briefly(&self, options: &AcquireOptions) -> Lease {
        let mut lease = None;
        until("a grant comes in time", || {
            self.notes.told();
            lease = self.lock.acquire_with(options).ok();
            lease.is_some()
        });
        lease.unwrap()
    }
}

fn broken() -> Error {
    Error::Connection { store: "scripted:".into(), what: "planted".into(), source: None }
}

fn doubt() -> Error {
    Error::InDoubt { what: "planted".into(), source: None }
}

#[test]
fn each_way_to_acquire_and_release_a_lock_is_told_once() {
    let Stage { notes, manager, lock, .. } = stage();
    assert!(lock.try_acquire().unwrap().release().unwrap());
    assert_eq!(notes.told(), ["acquired a", "released a"]);
    assert_eq!(notes.called(), ["acquire ok", "release ok"]);

    let lease = lock.acquire().unwrap();
    assert!(lease.release().unwrap());
    assert!(!lease.release().unwrap(), "a second release does nothing");
    drop(lease);
    assert_eq!(notes.told(), ["acquired a", "released a"]);

    drop(lock.acquire().unwrap());
    assert_eq!(notes.told(), ["acquired a", "released a"], "dropped");

    let both = [&lock, &manager.lock("b", Level::Xdc).unwrap()];
    drop(manager.acquire_all(&both, &AcquireOptions::new()).unwrap());
    let mut told = notes.told();
    told.sort();
    assert_eq!(told, ["acquired a", "acquired b", "released a", "released b"]);

    manager.election("a", Level::Xdc).unwrap().campaign(&AcquireOptions::new()).unwrap().resign().unwrap();
    assert_eq!(notes.told(), ["acquired a", "released a"], "an election");

    let pending = lock.start(&AcquireOptions::new()).unwrap();
    let mut lease = None;
    until("it is granted", || {
        lease = pending.take().unwrap();
        lease.is_some()
    });
    let call = lease.unwrap().start_release().unwrap();
    until("it is released", || call.take().unwrap().is_some());
    assert_eq!(notes.told(), ["acquired a", "released a"], "without blocking");

    let pending = lock.start(&AcquireOptions::new()).unwrap();
    until("it is granted", || !notes.locks.lock().unwrap().is_empty());
    drop(pending);
    // The thread that acquired it may release it.
    until("it is released", || notes.locks.lock().unwrap().len() > 1);
    assert_eq!(notes.told(), ["acquired a", "released a"], "nobody has taken it");

    let held = lock.acquire_with(&AcquireOptions::new().min_hold(TTL)).unwrap();
    assert!(held.release().unwrap());
    assert_eq!(notes.told(), ["acquired a", "released a, not freed"], "a minimum hold");

    let other = manager.lock("c", Level::Xdc).unwrap().acquire().unwrap();
    manager.close().unwrap();
    drop(other);
    assert_eq!(notes.told(), ["acquired c", "released c"], "the manager was closed");
}

#[test]
fn each_way_to_fail_is_told_once_with_its_code() {
    let stage = stage();
    let Stage { notes, lock, .. } = &stage;
    let _held = held_by_another(&stage);
    lock.try_acquire().unwrap_err();
    assert_eq!(notes.told(), ["unavailable a: LOCK_UNAVAILABLE"]);
    assert_eq!(notes.called(), ["acquire held"]);
    lock.acquire_within(TTL, Duration::from_millis(50)).unwrap_err();
    assert_eq!(notes.told(), ["unavailable a: LOCK_UNAVAILABLE"]);

    let token = CancelToken::new();
    let canceller = token.clone();
    let thread = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        canceller.cancel();
    });
    lock.acquire_with(&AcquireOptions::new().cancel(&token)).unwrap_err();
    thread.join().unwrap();
    assert_eq!(notes.told(), ["unavailable a: CANCELLED"]);

    let pending = lock.start(&AcquireOptions::new()).unwrap();
    pending.cancel();
    pending.cancel();
    drop(pending);
    assert_eq!(notes.told(), ["unavailable a: CANCELLED"]);
    drop(lock.start(&AcquireOptions::new()).unwrap());
    assert_eq!(notes.told(), ["unavailable a: CANCELLED"], "dropped");

    lock.acquire_within(Duration::ZERO, LONG).unwrap_err();
    assert_eq!(notes.told(), [""; 0], "a TTL that is not allowed");

    // In a new stage: a request of a cancelled acquisition may still be under way.
    let stage = self::stage();
    let Stage { notes, lock, .. } = &stage;
    stage.store.to_acquire(|_, _, _| Err(broken()));
    lock.acquire().unwrap_err();
    assert_eq!(notes.told(), ["unavailable a: CONNECTION_ERROR"]);
    stage.manager.close().unwrap();
    lock.acquire().unwrap_err();
    lock.try_acquire().unwrap_err();
    assert_eq!(notes.told(), [""; 0], "closed");
}

/// The lock was granted during the cancellation: the caller never had it.
#[test]
fn a_grant_that_the_caller_does_not_get_is_no_acquisition() {
    let Stage { store, notes, lock, .. } = stage();
    let token = CancelToken::new();
    let grants_cancelled = |token: &CancelToken| {
        let cancels = token.clone();
        store.to_acquire(move |memory, attempt, doubtful| {
            use dlm::store::LockStore as _;
            cancels.cancel();
            memory.acquire(attempt, doubtful)
        });
    };
    grants_cancelled(&token);
    assert_eq!(lock.acquire_with(&AcquireOptions::new().cancel(&token)).unwrap_err().code(), Code::Cancelled);
    assert_eq!(notes.told(), ["unavailable a: CANCELLED"]);
    assert_eq!(notes.called(), ["acquire ok", "release ok"]);

    let token = CancelToken::new();
    grants_cancelled(&token);
    let pending = lock.start(&AcquireOptions::new().cancel(&token)).unwrap();
    until("it is given back", || notes.calls.lock().unwrap().len() == 2);
    assert_eq!(pending.take().unwrap_err().code(), Code::Cancelled);
    assert_eq!(notes.told(), ["unavailable a: CANCELLED"], "without blocking");
}

#[test]
fn a_lease_that_is_handed_on_and_adopted_is_acquired_once() {
    let Stage { notes, manager, lock, .. } = stage();
    let token = lock.acquire().unwrap().into_token().unwrap();
    assert_eq!(notes.told(), ["acquired a", "handed on a"]);
    let adopted = manager.adopt(token).unwrap();
    adopted.renew().unwrap();
    drop(adopted);
    assert_eq!(notes.told(), ["renewed a", "released a"]);
}

#[test]
fn renewals_and_what_they_find_are_told() {
    let Stage { store, notes, manager, lock } = stage();
    let lease = lock.acquire().unwrap();
    lease.renew().unwrap();
    store.to_renew(|_| Err(broken()));
    lease.renew().unwrap_err();
    store.to_renew(|_| Err(doubt()));
    lease.renew().unwrap_err();
    let told = notes.told();
    assert_eq!(told[..3], ["acquired a", "renewed a", "renewal failed a: CONNECTION_ERROR"]);
    assert_eq!(told[3..], ["in doubt a: renew", "renewal failed a: IN_DOUBT"]);
    let mut calls = notes.called();
    assert_eq!(calls.split_off(1), ["renew ok", "renew CONNECTION_ERROR", "renew IN_DOUBT"]);

    // Another process releases it by its token.
    store.to_renew(|_| Ok(None));
    assert_eq!(lease.renew().unwrap_err().code(), Code::LeaseLost);
    let called = notes.called();
    let looks = ["renew not_ours", "entries ok", "entries ok", "holder ok"];
    assert_eq!(called, looks, "was this grant broken, or the lock by an older version, and whose is it now?");
    lease.check().unwrap_err();
    assert!(!lease.release().unwrap());
    drop(lease);
    assert_eq!(notes.told(), ["lost a: TAKEN_OVER"], "its record is still there");

    let b = manager.lock("b", Level::Xdc).unwrap();
    let lease = b.acquire().unwrap();
    store.to_release([Lie(Ok(dlm::store::Released::NotOurs))]);
    assert_eq!(lease.release().unwrap_err().code(), Code::LeaseLost);
    drop(lease);
    assert_eq!(notes.told(), ["acquired b", "lost b: RECORD_GONE"], "found by a release");
}

#[test]
fn an_expired_lease_is_told_by_whoever_looks_first() {
    let stage = stage();
    let Stage { store, notes, .. } = &stage;
    let short = AcquireOptions::new().ttl(Duration::from_millis(300));
    let expired = || {
        let lease = stage.briefly(&short);
        assert_eq!(notes.told(), ["acquired a"]);
        until("it expires", || lease.remaining().is_zero());
        assert_eq!(notes.told(), [""; 0], "nobody has looked");
        lease
    };
    let lease = expired();
    assert_eq!(lease.state(), LeaseState::Lost(LostReason::Expired));
    lease.check().unwrap_err();
    lease.guard().unwrap_err();
    assert_eq!(notes.told(), ["lost a: EXPIRED"]);
    store.to_renew(|_| Ok(None));
    lease.renew().unwrap_err();
    drop(lease);
    assert_eq!(notes.told(), [""; 0], "it has one end");

    // The store may have dropped the record, so the release may fail.
    let _ = expired().release();
    assert_eq!(notes.told(), ["lost a: EXPIRED"], "released too late");
    drop(expired());
    assert_eq!(notes.told(), ["lost a: EXPIRED"], "dropped too late");
    let lease = expired();
    store.to_renew(|_| Err(broken()));
    lease.renew().unwrap_err();
    assert_eq!(notes.told(), ["renewal failed a: CONNECTION_ERROR", "lost a: EXPIRED"], "renewed too late");
}

/// A renewal by the caller brings a lease back if the store has still its record.
#[test]
fn a_lease_that_comes_back_can_be_lost_again() {
    let is_back = [4, 20, 60].into_iter().any(|ttl_s| lost_twice(Duration::from_secs(ttl_s)).is_some());
    assert!(is_back, "the record of a lease of a minute ended before its renewal");
}

/// Returns `None` if the machine was too slow for the renewal.
fn lost_twice(ttl: Duration) -> Option<()> {
    let Stage { notes, manager, store, .. } = stage();
    let other = LockManager::builder().store(store).client("events").clock_margin_ppm(500_000);
    let other = other.event_sink(notes.clone()).open().unwrap();
    drop(manager);
    // It ends here after half of its time.
    let asked = Moment::now();
    let lease = other.lock("a", Level::Xdc).unwrap().try_acquire_with_ttl(ttl);
    if Moment::now().since(asked) >= ttl / 4 {
        return None;
    }
    let lease = lease.unwrap();
    until("it expires", || lease.check().is_err());
    let renewed = lease.renew();
    if Moment::now().since(asked) >= ttl * 3 / 4 {
        return None;
    }
    renewed.unwrap();
    until("it expires again", || lease.check().is_err());
    assert_eq!(notes.told(), ["acquired a", "lost a: EXPIRED", "renewed a", "lost a: EXPIRED"]);
    Some(())
}

#[test]
fn a_kept_lease_tells_its_renewals_its_risk_and_its_loss() {
    unless_stalled(Duration::from_millis(200), || {
        let stage = stage();
        let Stage { store, notes, .. } = &stage;
        let ttl = Duration::from_secs(3);
        let lease = stage.briefly(&AcquireOptions::new().ttl(ttl).keep(Duration::MAX));
        until("it is renewed", || notes.locks.lock().unwrap().iter().any(|line| line == "renewed a"));
        // The store renews, and nobody hears of it.
        for _ in 0..10_000 {
            store.to_renew(|_| Err(broken()));
        }
        until("it is lost", || notes.locks.lock().unwrap().iter().any(|line| line.starts_with("lost")));
        let told = notes.told();
        let count = |what: &str| told.iter().filter(|line| line.starts_with(what)).count();
        assert_eq!((count("acquired"), count("at risk"), count("lost")), (1, 1, 1), "{told:?}");
        let at = |what: &str| told.iter().position(|line| line.starts_with(what)).unwrap();
        assert!(at("acquired") < at("renewed") && at("renewed") < at("renewal failed"), "{told:?}");
        assert!(at("renewal failed") < at("at risk") && at("at risk") < at("lost"), "{told:?}");
        assert!(told.iter().any(|line| line == "renewal failed a: CONNECTION_ERROR"), "{told:?}");
        drop(lease);
        assert_eq!(notes.told(), [""; 0]);
        let calls = notes.called();
        assert!(calls.iter().any(|call| call == "renew_many ok"), "{calls:?}");
        assert!(calls.iter().any(|call| call == "renew_many CONNECTION_ERROR"), "{calls:?}");
    });
}

#[test]
fn a_kept_lease_whose_record_is_gone_tells_its_loss() {
    unless_stalled(Duration::from_millis(500), || {
        let stage = stage();
        let Stage { store, notes, .. } = &stage;
        store.to_renew(|_| Ok(None));
        let ttl = Duration::from_secs(4);
        let lease = stage.briefly(&AcquireOptions::new().ttl(ttl).keep(Duration::MAX));
        until("it is lost", || notes.locks.lock().unwrap().len() > 1);
        assert_eq!(notes.told(), ["acquired a", "lost a: TAKEN_OVER"], "its record is still there");
        drop(lease);
        assert_eq!(notes.told(), [""; 0]);
    });
}

/// Somebody listens to the changes of a lease that is not kept alive: the same thread tells both.
#[test]
fn a_loss_by_the_clock_is_told_in_time_if_somebody_listens() {
    let is_told =
        [500, 4_000, 20_000].into_iter().any(|ttl_ms| told_by_the_clock(Duration::from_millis(ttl_ms)));
    assert!(is_told, "a lease of 20 s ended before somebody listened");
}

/// Returns `false` if the machine was so slow that the lease may have ended before anybody listened.
fn told_by_the_clock(ttl: Duration) -> bool {
    let stage = stage();
    let lease = stage.briefly(&AcquireOptions::new().ttl(ttl));
    let changes = lease.changes().unwrap();
    if lease.remaining().is_zero() {
        return false;
    }
    changes.recv_timeout(LONG).unwrap();
    until("it is told", || stage.notes.locks.lock().unwrap().len() > 1);
    assert_eq!(stage.notes.told(), ["acquired a", "lost a: EXPIRED"]);
    true
}

#[test]
fn doubts_and_releases_in_the_background_are_told() {
    let Stage { store, notes, manager, lock } = stage();
    store.to_acquire(|_, _, _| Err(doubt()));
    lock.try_acquire().unwrap_err();
    assert_eq!(notes.told(), ["in doubt a: acquire", "unavailable a: IN_DOUBT"]);

    // One of several requests is in doubt, and another one was granted.
    store.to_acquire(|memory, attempt, doubtful| {
        use dlm::store::LockStore as _;
        doubtful.push(dlm::store::OwnerRecord::from_bytes([1; 16]));
        memory.acquire(attempt, doubtful)
    });
    drop(lock.try_acquire().unwrap());
    assert_eq!(notes.told(), ["in doubt a: acquire", "acquired a", "released a"]);
    drop(manager);

    // In a new stage, because the background releases what is in doubt.
    let Stage { store, notes, lock, .. } = stage();
    let lease = lock.try_acquire().unwrap();
    assert_eq!(notes.told(), ["acquired a"]);
    store.to_release([Lie(Err(doubt())), Lie(Err(broken())), Truth]);
    assert_eq!(lease.release().unwrap_err().code(), Code::InDoubt);
    assert_eq!(lease.release().unwrap_err().code(), Code::ConnectionError);
    assert_eq!(notes.told(), ["in doubt a: release"], "the caller may try again");
    assert!(lease.release().unwrap());
    drop(lease);
    assert_eq!(notes.told(), ["released a"]);

    for is_dropped_at_once in [true, false] {
        let Stage { store, notes, lock, .. } = stage();
        let lease = lock.acquire().unwrap();
        store.to_release([Lie(Err(broken()))]);
        if !is_dropped_at_once {
            lease.release().unwrap_err();
        }
        drop(lease);
        assert_eq!(notes.told(), ["acquired a", "released a, not freed"]);
    }
}

#[test]
fn calls_of_latches_are_told() {
    let notes = Arc::new(Notes::default());
    let builder = LockManager::builder().store_uri("memory:").client("events").farm("dc1");
    let manager = builder.event_sink(notes.clone()).open().unwrap();
    manager.initialize().unwrap();
    manager.initialize_latches().unwrap();
    let latch = manager.latch("a", Level::Dc, LatchKind::CountDown).unwrap();
    assert_eq!(latch.count_down().unwrap_err().code(), Code::NotFound);
    latch.create(1).unwrap();
    latch.count().unwrap();
    manager.lock("a", Level::Xdc).unwrap().inspect().unwrap();
    let called = notes.called();
    let wanted = ["initialize ok", "initialize_latches ok", "step NOT_FOUND", "create_latch ok"];
    assert_eq!(called[..4], wanted);
    assert_eq!(called[4..], ["counts ok", "inspect ok"]);
}

#[test]
fn a_lock_that_stays_is_told_each_time() {
    let directory = tempfile::tempdir().unwrap();
    let uri = format!("embedded:{}?client=events&timeout=60s&ttl=1h&linger=1h", directory.path().display());
    let notes = Arc::new(Notes::default());
    let manager = LockManager::builder().store_uri(&uri).event_sink(notes.clone()).open().unwrap();
    manager.initialize().unwrap();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    for _ in 0..3 {
        assert!(lock.acquire().unwrap().release().unwrap());
    }
    assert_eq!(manager.stats().leases_retaken, 2);
    assert_eq!(notes.told(), ["acquired a", "released a, not freed"].repeat(3));
    assert_eq!(notes.called(), ["initialize ok", "acquire ok"]);
}

#[test]
fn a_lease_that_dies_with_its_process_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let uri =
        format!("embedded:{}?client=events&timeout=60s&dies_with_process=true", directory.path().display());
    let notes = Arc::new(Notes::default());
    let manager = LockManager::builder().store_uri(&uri).event_sink(notes.clone()).open().unwrap();
    let lease = manager.lock("a", Level::Xdc).unwrap().acquire().unwrap();
    assert!(lease.liveness_fd().unwrap().is_some());
    lease.into_token().unwrap();
    assert_eq!(notes.told(), ["acquired a", "handed on a"]);
    assert_eq!(notes.called(), ["acquire ok", "liveness_fd ok", "outlive_process ok"]);
}

/// Name of the threads of `Uses`, whose own events it ignores.
const USER: &str = "user";

/// Uses the lease from its own events, in every way that locks something of the library.
struct Uses {
    /// Taken out at the end, because the manager holds this sink.
    used: Mutex<Option<(Arc<Lease>, LockManager)>>,
    calls: Mutex<Vec<String>>,
}

impl EventSink for Uses {
    fn on_event(&self, event: &Event<'_>) {
        let Some((lease, manager)) = self.used.lock().unwrap().clone() else { return };
        if thread::current().name() == Some(USER) {
            return;
        }
        let event = format!("{event:?}");
        // On another thread, which would wait for each lock that this one holds.
        let (done, waits) = mpsc::channel();
        let user = thread::Builder::new().name(USER.into()).spawn(move || {
            lease.state();
            manager.stats();
            let _ = lease.keep(Duration::MAX);
            let _ = lease.renew();
            let _ = manager.lock("other", Level::Xdc).unwrap().try_acquire().map(drop);
            done.send(()).unwrap();
        });
        // A panic here would be caught, so the test looks at this list.
        let held = if waits.recv_timeout(LONG).is_ok() { "" } else { " under a lock of the library" };
        let word = event.split_whitespace().next().unwrap_or_default();
        self.calls.lock().unwrap().push(format!("{word}{held}"));
        drop(user);
    }
}

#[test]
fn no_lock_of_the_library_is_held_when_an_event_is_told() {
    let store = Arc::new(Scripted::default());
    let uses = Arc::new(Uses { used: Mutex::default(), calls: Mutex::default() });
    // The renewals in the events are for the same time.
    let builder = LockManager::builder().store(store.clone()).client("events").ttl(Duration::from_secs(6));
    let manager = builder.event_sink(uses.clone()).open().unwrap();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let lease = Arc::new(lock.acquire().unwrap());
    *uses.used.lock().unwrap() = Some((Arc::clone(&lease), manager));
    lease.renew().unwrap();
    store.to_renew(|_| Err(doubt()));
    lease.renew().unwrap_err();
    lease.renew().unwrap();
    lease.keep(Duration::MAX).unwrap();
    let renewals = || uses.calls.lock().unwrap().iter().filter(|call| call.starts_with("Renewed")).count();
    let before = renewals();
    until("the background threads renew it", || renewals() > before);
    lease.renew_for(TTL).unwrap();
    assert!(lease.release().unwrap());
    lock.start(&AcquireOptions::new()).unwrap().cancel();
    drop(uses.used.lock().unwrap().take());
    let calls = std::mem::take(&mut *uses.calls.lock().unwrap());
    assert!(calls.iter().all(|call| !call.contains("lock of the library")), "{calls:?}");
    for event in ["StoreCall", "Renewed", "RenewalFailed", "Released", "InDoubt"] {
        assert!(calls.iter().any(|call| call == event), "no {event} in {calls:?}");
    }
}

/// Panics in every event.
struct Panics;

impl EventSink for Panics {
    fn on_event(&self, _: &Event<'_>) {
        // Without the message of the panic hook.
        std::panic::resume_unwind(Box::new("a sink"));
    }
}

#[test]
fn a_sink_that_panics_harms_nobody_and_the_next_one_is_told() {
    let (store, notes) = (Arc::new(Scripted::default()), Arc::new(Notes::default()));
    let builder = LockManager::builder().store(store).client("events").event_sink(Arc::new(Panics));
    let manager = builder.event_sink(notes.clone()).open().unwrap();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    // Not so short that it is lost on a slow machine.
    let ttl = Duration::from_secs(6);
    let lease = lock.acquire_with(&AcquireOptions::new().ttl(ttl).keep(Duration::MAX)).unwrap();
    let renewals = || notes.locks.lock().unwrap().iter().filter(|line| *line == "renewed a").count();
    // The thread that renews goes on.
    until("it is renewed", || renewals() >= 3);
    assert!(lease.release().unwrap());
    assert_eq!(notes.told().last().unwrap(), "released a");
    let pending = lock.start(&AcquireOptions::new()).unwrap();
    until("it is granted", || pending.take().unwrap().is_some());
}

#[test]
fn a_store_that_panics_is_told_and_still_panics() {
    let Stage { store, notes, lock, .. } = stage();
    store.to_acquire(|_, _, _| std::panic::resume_unwind(Box::new("planted")));
    let call = std::panic::AssertUnwindSafe(|| lock.try_acquire().map(drop));
    assert!(std::panic::catch_unwind(call).is_err());
    assert_eq!(notes.called(), ["acquire PANIC"]);
}

#[test]
fn the_names_of_calls_differ() {
    let mut names: Vec<_> = StoreCall::ALL.iter().map(|call| call.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), StoreCall::ALL.len());
}
