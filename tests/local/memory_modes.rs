//! Changes of mode, and writers that wait for readers, over a store that is in doubt, fails or answers late. The test
//! chooses the answers of the store.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dlm::events::{Event, EventSink};
use dlm::store::{Acquired, Attempt, Converted, LockStore, MemoryStore, ModeStore, ModeTerms};
use dlm::{
    AcquireOptions, CancelToken, Code, Error, Lease, LeaseState, Level, LockManager, LockName, LostReason,
    Mode, Moment, NamePolicy, Result,
};
use dlm_testkit::{Call, LONG, Scripted, Spy, unless_stalled, until};
use parking_lot::Mutex;

use super::memory_doubts::{Stage, TTL, broken, code, doubt, manager, soon, stage};

impl Stage {
    fn holds(&self) -> usize {
        self.store.holds(self.lock.name(), soon()).unwrap().len()
    }

    /// Lets another process read the lock.
    fn let_in(memory: &MemoryStore, attempt: Attempt<'_>) {
        let read = memory.acquire_mode(attempt, ModeTerms::new(Mode::Shared), &mut Vec::new()).unwrap();
        assert!(matches!(read, Acquired::Granted(_)));
    }
}

/// The store lets readers in before its answer comes.
#[test]
fn while_rights_are_given_up_no_check_says_that_the_lease_has_them() {
    let stage = stage();
    let lease = Arc::new(stage.lock.acquire().unwrap());
    let seen = Arc::clone(&lease);
    stage.store.to_convert(move |memory, attempt, conversion, doubtful| {
        let answer = memory.convert(attempt, conversion, doubtful)?;
        Stage::let_in(memory, attempt);
        assert_eq!(code(seen.check()), Code::LeaseLost);
        assert_eq!(code(seen.guard()), Code::LeaseLost);
        Ok(answer)
    });
    let reading = lease.downgrade(Mode::Shared).unwrap();
    reading.check().unwrap();
    assert_eq!((code(lease.check()), lease.state()), (Code::LeaseLost, LeaseState::Released));
    assert_eq!(stage.holds(), 2);
}

#[test]
fn a_change_of_mode_that_had_no_effect_leaves_the_lease_as_it_was() {
    let stage = stage();
    let lease = stage.lock.acquire().unwrap();
    stage.store.to_convert(|_, _, _, _| Err(broken()));
    let error = lease.downgrade(Mode::Shared).unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError);
    assert!(error.to_string().contains("from EXCLUSIVE to SHARED"), "{error}");
    lease.guard().expect("it has all its rights");
    lease.renew().unwrap();
    let update = lease.downgrade(Mode::Update).unwrap();
    for _ in 0..2 {
        stage.store.to_convert(|_, _, _, _| Err(broken()));
        assert_eq!(code(update.upgrade(LONG)), Code::ConnectionError);
        update.check().unwrap();
    }
    assert!(update.upgrade(Duration::ZERO).unwrap().release().unwrap());
    assert_eq!((stage.holds(), stage.manager.stats().leases_held), (0, 0));
}

/// A request whose reply is lost may be applied later. So neither the old mode nor the new one can be trusted.
#[test]
fn a_change_of_mode_in_doubt_ends_the_lease_and_leaves_nothing_in_the_store() {
    for (is_applied, to) in
        [(true, Mode::Shared), (false, Mode::Shared), (true, Mode::Exclusive), (false, Mode::Exclusive)]
    {
        let stage = stage();
        let lock = if to == Mode::Exclusive { stage.lock.update() } else { stage.lock.clone() };
        let lease = lock.acquire().unwrap();
        stage.store.to_convert(move |memory, attempt, conversion, doubtful| {
            if is_applied {
                let Converted::Granted(grant) = memory.convert(attempt, conversion, doubtful)? else {
                    panic!("nobody else holds it")
                };
                doubtful.push(grant.owner_record);
            }
            Err(doubt())
        });
        let answer = if to == Mode::Exclusive { lease.upgrade(LONG) } else { lease.downgrade(to) };
        assert_eq!(code(answer), Code::InDoubt);
        assert_eq!((code(lease.check()), code(lease.renew())), (Code::LeaseLost, Code::LeaseLost));
        assert_eq!(lease.state(), LeaseState::Released);
        assert!(!lease.release().unwrap());
        until("nothing of it is left in the store", || stage.holds() == 0);
        assert_eq!(stage.manager.stats().leases_held, 0);
    }
}

#[test]
fn a_change_of_mode_that_finds_no_record_loses_the_lease() {
    let stage = stage();
    let lease = stage.lock.update().acquire().unwrap();
    stage.store.to_convert(|_, _, _, _| Ok(Converted::NotOurs));
    let error = lease.upgrade(LONG).unwrap_err();
    assert_eq!((error.code(), error.lost_reason()), (Code::LeaseLost, Some(LostReason::TakenOver)));
    assert_eq!(lease.state(), LeaseState::Lost(LostReason::TakenOver));
}

/// The renewal was sent with the record that the change has replaced.
#[test]
fn a_renewal_that_a_change_of_mode_has_overtaken_loses_no_lease() {
    let stage = stage();
    let lease = Arc::new(stage.lock.acquire().unwrap());
    let renewed = Arc::clone(&lease);
    stage.store.to_convert(move |memory, attempt, conversion, doubtful| {
        let answer = memory.convert(attempt, conversion, doubtful)?;
        assert_eq!(code(renewed.renew()), Code::LeaseLost);
        assert_eq!(code(renewed.downgrade(Mode::Shared)), Code::LeaseLost, "one change at a time");
        Ok(answer)
    });
    let reading = lease.downgrade(Mode::Shared).unwrap();
    assert_eq!(lease.state(), LeaseState::Released, "not lost");
    reading.renew().unwrap();
    assert!(reading.release().unwrap());
}

#[test]
fn closing_during_a_change_of_mode_releases_what_it_has_made() {
    let stage = stage();
    let lease = stage.lock.acquire().unwrap();
    let manager = stage.manager.clone();
    stage.store.to_convert(move |memory, attempt, conversion, doubtful| {
        let answer = memory.convert(attempt, conversion, doubtful)?;
        manager.close().unwrap();
        Ok(answer)
    });
    assert_eq!(code(lease.downgrade(Mode::Shared)), Code::Closed);
    until("the lock is free", || stage.holds() == 0);
}

/// The reply is lost, and the request was carried out or will be.
#[test]
fn a_reader_whose_acquisition_is_in_doubt_holds_nothing_in_the_end() {
    for is_late in [false, true] {
        let stage = stage();
        let name = stage.lock.name().clone();
        stage.store.to_acquire_mode(|memory, attempt, terms, doubtful| {
            match memory.acquire_mode(attempt, terms, &mut Vec::new())? {
                Acquired::Granted(grant) => doubtful.push(grant.owner_record),
                Acquired::Held(holder) => panic!("held by {holder}"),
            }
            Err(doubt())
        });
        assert_eq!(code(stage.lock.shared().try_acquire()), Code::InDoubt);
        until("the record is released", || stage.holds() == 0);
        // A request that failed is refused or done again, and leaves nothing either.
        stage.store.to_acquire_mode(move |memory, attempt, terms, doubtful| match is_late {
            true => Err(broken()),
            false => memory.acquire_mode(attempt, terms, doubtful),
        });
        let answer = stage.lock.shared().try_acquire();
        assert_eq!(answer.is_err(), is_late);
        drop(answer);
        assert!(stage.store.holder(&name, soon()).unwrap().is_none());
    }
}

/// It may have made the change before.
#[test]
fn a_store_that_panics_in_a_change_of_mode_ends_the_lease() {
    for is_made in [true, false] {
        let stage = stage();
        let lease = stage.lock.acquire().unwrap();
        stage.store.to_convert(move |memory, attempt, conversion, doubtful| {
            if is_made && let Converted::Granted(grant) = memory.convert(attempt, conversion, doubtful)? {
                doubtful.push(grant.owner_record);
            }
            panic!("planted")
        });
        assert!(catch_unwind(AssertUnwindSafe(|| lease.downgrade(Mode::Shared))).is_err());
        assert_eq!(code(lease.guard()), Code::LeaseLost);
        until("nothing of it is left in the store", || stage.holds() == 0);
    }
}

#[test]
fn a_release_during_a_change_of_mode_loses_nothing() {
    let stage = stage();
    let lease = Arc::new(stage.lock.acquire().unwrap());
    let released = Arc::clone(&lease);
    stage.store.to_convert(move |memory, attempt, conversion, doubtful| {
        let answer = memory.convert(attempt, conversion, doubtful)?;
        let error = released.renew().unwrap_err();
        assert!(error.to_string().contains("is being changed"), "{error}");
        assert!(!released.release().unwrap(), "the new lease holds the lock");
        assert_eq!(released.state(), LeaseState::Released);
        Ok(answer)
    });
    let reading = lease.downgrade(Mode::Shared).unwrap();
    assert!(reading.release().unwrap());
    assert_eq!(stage.holds(), 0);
}

/// What happened to a lease, as the event sinks saw it.
#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl EventSink for Seen {
    fn on_event(&self, event: &Event<'_>) {
        let seen = match event {
            Event::Acquired { mode, fence, .. } => {
                assert_eq!(fence.is_some(), *mode == Mode::Exclusive);
                format!("acquired {mode}")
            }
            Event::Unavailable { mode, .. } => format!("unavailable {mode}"),
            Event::Renewed { mode, .. } => format!("renewed {mode}"),
            Event::RenewalFailed { mode, .. } => format!("renewal failed {mode}"),
            Event::Released { mode, freed: true, .. } => format!("released {mode}"),
            Event::Released { mode, .. } => format!("released {mode}, not freed"),
            Event::Lost { mode, reason, .. } => format!("lost {mode}: {}", reason.name()),
            Event::HandedOn { mode, .. } => format!("handed on {mode}"),
            Event::ModeChanged { from, to, fence, epoch, .. } => {
                assert!(epoch.is_some() && fence.is_some() == (*to == Mode::Exclusive));
                format!("{from} to {to}")
            }
            Event::ModeNotChanged { from, to, code, .. } => format!("{from} not to {to}: {}", code.name()),
            _ => return,
        };
        self.0.lock().push(seen);
    }
}

impl Seen {
    /// Returns the events since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

fn seen() -> (Arc<Scripted>, Arc<Seen>, LockManager) {
    let (store, seen) = (Arc::new(Scripted::default()), Arc::new(Seen::default()));
    let builder = LockManager::builder().store(store.clone()).client("modes").ttl(TTL);
    let manager = builder.event_sink(seen.clone()).open().unwrap();
    (store, seen, manager)
}

/// Sinks that count acquisitions and releases count the hold once.
#[test]
fn a_change_of_mode_is_one_event_and_neither_a_release_nor_an_acquisition() {
    let (store, seen, manager) = seen();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let update = lock.update().acquire().unwrap();
    update.renew().unwrap();
    let reader = lock.shared().acquire().unwrap();
    assert_eq!(code(update.upgrade(Duration::ZERO)), Code::LockUnavailable);
    let refused = "UPDATE not to EXCLUSIVE: LOCK_UNAVAILABLE";
    assert_eq!(seen.take(), ["acquired UPDATE", "renewed UPDATE", "acquired SHARED", refused]);
    assert_eq!(code(reader.upgrade(Duration::ZERO)), Code::UnsupportedConversion);
    reader.release().unwrap();
    assert_eq!(seen.take(), ["released SHARED"], "a change that is not allowed is no event");
    let writing = update.upgrade(Duration::ZERO).unwrap();
    let reading = writing.downgrade(Mode::Shared).unwrap();
    store.to_renew(|_| Err(broken()));
    assert_eq!(code(reading.renew()), Code::ConnectionError);
    store.to_renew(|_| Ok(None));
    assert_eq!(code(reading.renew()), Code::LeaseLost);
    assert_eq!(
        code(writing.downgrade(Mode::Shared)),
        Code::LeaseLost,
        "it is over, and so its change is no event"
    );
    drop((update, writing, reading));
    let expected =
        ["UPDATE to EXCLUSIVE", "EXCLUSIVE to SHARED", "renewal failed SHARED", "lost SHARED: TAKEN_OVER"];
    assert_eq!(seen.take(), expected);
    assert_eq!(manager.stats().leases_held, 0);
}

/// The store makes the change when the lease has expired here.
#[test]
fn a_lease_that_was_lost_during_its_change_of_mode_has_ended_and_the_next_one_begins() {
    unless_stalled(Duration::from_millis(500), || {
        let (store, seen, manager) = seen();
        let lock = manager.lock("a", Level::Xdc).unwrap();
        let lease = Arc::new(lock.acquire_with_ttl(Duration::from_secs(1)).unwrap());
        let expires = Arc::clone(&lease);
        store.to_convert(move |memory, attempt, conversion, doubtful| {
            let answer = memory.convert(attempt, conversion, doubtful)?;
            until("it has expired", || expires.state() == LeaseState::Lost(LostReason::Expired));
            // It reports that.
            assert!(!expires.release().unwrap());
            Ok(answer)
        });
        drop(lease.downgrade(Mode::Shared).unwrap());
        assert_eq!(seen.take()[..3], ["acquired EXCLUSIVE", "lost EXCLUSIVE: EXPIRED", "acquired SHARED"]);
    });
}

#[test]
fn a_lease_has_one_end_if_its_change_of_mode_is_in_doubt_or_its_manager_is_closed() {
    let (store, seen, manager) = seen();
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let lease = lock.acquire().unwrap();
    store.to_convert(|_, _, _, _| Err(doubt()));
    assert_eq!(code(lease.downgrade(Mode::Shared)), Code::InDoubt);
    drop(lease);
    let in_doubt = "EXCLUSIVE not to SHARED: IN_DOUBT";
    assert_eq!(seen.take(), ["acquired EXCLUSIVE", "released EXCLUSIVE, not freed", in_doubt]);
    until("it is free", || lock.inspect().unwrap().holder.is_none());
    let lease = lock.acquire().unwrap();
    let closes = manager.clone();
    store.to_convert(move |memory, attempt, conversion, doubtful| {
        let answer = memory.convert(attempt, conversion, doubtful)?;
        closes.close().unwrap();
        Ok(answer)
    });
    assert_eq!(code(lease.downgrade(Mode::Shared)), Code::Closed);
    assert_eq!(seen.take(), ["acquired EXCLUSIVE", "EXCLUSIVE to SHARED", "released SHARED"]);
}

/// The store hangs when the writers do not wait any more.
#[test]
fn closing_does_not_wait_for_the_intents_of_many_writers() {
    const WRITERS: usize = 30;
    let memory: Arc<dyn LockStore> = Arc::new(MemoryStore::new());
    let hung = Spy::with_hook(Arc::clone(&memory), |call| {
        if call == Call::Withdraw {
            thread::sleep(Duration::from_secs(1));
        }
    });
    let (readers, manager) = (manager(memory), manager(hung.clone()));
    let id = |number: usize| number.to_string();
    let _held: Vec<_> = (0..WRITERS)
        .map(|number| readers.lock(&id(number), Level::Xdc).unwrap().shared().acquire().unwrap())
        .collect();
    let _pendings: Vec<_> = (0..WRITERS)
        .map(|number| manager.lock(&id(number), Level::Xdc).unwrap().start(&AcquireOptions::new()).unwrap())
        .collect();
    until("all are announced", || hung.calls_of(Call::Announce) >= WRITERS);
    let began = Moment::now();
    manager.close().unwrap();
    assert!(Moment::now().since(began) < Duration::from_secs(WRITERS as u64 / 2), "one after the other");
}

fn lingering(store: &Arc<dyn LockStore>, retry: Duration) -> LockManager {
    let builder = LockManager::builder().store(Arc::clone(store)).client("modes").ttl(TTL).wait(LONG);
    builder.retry(retry).linger(Duration::from_secs(3600)).open().unwrap()
}

/// Also if its process asks because another thread of it has left, and not because it polls: then nothing has read the lock.
#[test]
fn a_reader_that_came_before_a_writer_passes_it_in_any_request() {
    unless_stalled(Duration::from_millis(500), || {
        let memory: Arc<dyn LockStore> = Arc::new(MemoryStore::new());
        let spy = Spy::on(Arc::clone(&memory));
        let open = |store: Arc<dyn LockStore>, retry| {
            let builder = LockManager::builder().store(store).client("modes").ttl(TTL).wait(LONG);
            builder.retry(retry).open().unwrap()
        };
        let short = Duration::from_millis(20);
        // The reader polls when the first intent ends, three seconds after it came, and not before.
        let ours = open(spy.clone(), Duration::from_secs(10));
        let theirs = [(); 3].map(|()| open(Arc::clone(&memory), short));
        let lock = |manager: &LockManager| manager.lock("a", Level::Xdc).unwrap();
        let first = lock(&ours).shared().acquire().unwrap();
        // It keeps the writers out.
        let _second = lock(&theirs[2]).shared().acquire().unwrap();
        let gives_up = CancelToken::new();
        let [one, other] = [0, 1].map(|at| {
            let (lock, how) = (lock(&theirs[at]), AcquireOptions::new().cancel(&gives_up));
            move || thread::spawn(move || if at == 0 { lock.acquire_with(&how) } else { lock.acquire() })
        });
        let one = one();
        until("a writer is announced", || is_reserved(&*memory));
        let late = lock(&ours).shared();
        let late = thread::spawn(move || late.acquire().unwrap());
        until("the reader waits", || ours.stats().threads_waiting == 1);
        // Longer than the clocks may differ: a tenth of its interval.
        thread::sleep(Duration::from_millis(1300));
        let other = other();
        until("the other writer waits", || theirs[1].stats().threads_waiting == 1);
        thread::sleep(Duration::from_millis(150));
        gives_up.cancel();
        assert_eq!(code(one.join().unwrap()), Code::Cancelled);
        thread::sleep(Duration::from_millis(150));
        assert!(is_reserved(&*memory));
        first.release().unwrap();
        let late = late.join().unwrap();
        assert_eq!(spy.calls_of(Call::Blocker), 0, "it came in only when it polled");
        assert!(late.check().is_ok() && !other.is_finished());
        theirs[1].close().unwrap();
        assert_eq!(code(other.join().unwrap()), Code::Closed);
    });
}

fn is_reserved(store: &dyn LockStore) -> bool {
    let name = LockName::new(Level::Xdc, "modes", None, "a", NamePolicy::Strict).unwrap();
    let blocker = store.modes().unwrap().blocker(&name, Mode::Shared, soon()).unwrap();
    blocker.is_some_and(|blocker| blocker.is_waiting)
}

/// A release of a reader makes this process wait for nobody.
#[test]
fn a_reader_after_a_lock_that_stayed_leaves_no_turn_to_others() {
    let store: Arc<dyn LockStore> = Arc::new(MemoryStore::new());
    // It would leave a turn of more than this interval, which is shorter than its wait.
    let retry = LONG / 3;
    let manager = lingering(&store, retry);
    let lock = manager.lock("a", Level::Xdc).unwrap();
    lock.acquire().unwrap().release().unwrap();
    let began = Moment::now();
    for _ in 0..2 {
        lock.shared().acquire().unwrap().release().unwrap();
    }
    assert!(Moment::now().since(began) < retry, "it left a turn to others");
    assert_eq!(manager.stats().leases_retaken, 1, "a reader has a record of its own, which stays");
    let holder = store.holder(lock.name(), soon()).unwrap();
    assert_eq!(holder.map(|holder| holder.mode), Some(Mode::Shared));
}

/// It has one fence, so it could not be taken again.
#[test]
fn an_upgraded_lease_does_not_stay() {
    let store: Arc<dyn LockStore> = Arc::new(MemoryStore::new());
    let lock = lingering(&store, Duration::from_millis(20)).lock("a", Level::Xdc).unwrap();
    let writing = lock.update().acquire().unwrap().upgrade(Duration::ZERO).unwrap();
    assert!(writing.release().unwrap());
    assert!(store.holder(lock.name(), soon()).unwrap().is_none());
}

#[test]
fn a_writer_that_cannot_announce_itself_waits_all_the_same_and_tries_again() {
    for error in [broken(), doubt()] {
        a_writer_whose_announcement_fails(error);
    }
}

fn a_writer_whose_announcement_fails(error: Error) {
    let stage = stage();
    let reader = stage.lock.shared().acquire().unwrap();
    stage.store.to_announce(Err(error));
    let (writer, other) = (stage.lock.clone(), manager(stage.store.clone()).lock("a", Level::Xdc).unwrap());
    let writing = thread::spawn(move || writer.acquire().unwrap());
    let is_reserved = |answer: Result<Lease>| matches!(answer, Err(Error::LockUnavailable { holder: Some(holder), .. }) if holder.is_waiting);
    until("it is announced", || is_reserved(other.shared().try_acquire()));
    reader.release().unwrap();
    assert!(writing.join().unwrap().release().unwrap());
}

/// Nobody waits any more, so nobody may be kept out.
#[test]
fn a_wait_that_ends_in_any_way_ends_its_intent() {
    let stage = stage();
    let _reader = stage.lock.shared().acquire().unwrap();
    let other = manager(stage.store.clone()).lock("a", Level::Xdc).unwrap();
    let is_reserved = || matches!(other.shared().try_acquire(), Err(Error::LockUnavailable { .. }));
    let lets_in = |how: &str| until(how, || !is_reserved());
    let start = || {
        let pending = stage.lock.start(&AcquireOptions::new()).unwrap();
        until("it is announced", is_reserved);
        pending
    };
    drop(start());
    lets_in("dropped");
    let cancelled = start();
    cancelled.cancel();
    lets_in("cancelled");
    let short = stage.lock.start(&AcquireOptions::new().wait(Duration::from_millis(100))).unwrap();
    until("its wait is over", || short.take().is_err());
    lets_in("over");
    let closed = manager(stage.store.clone());
    let pending = closed.lock("a", Level::Xdc).unwrap().start(&AcquireOptions::new()).unwrap();
    until("it is announced", is_reserved);
    closed.close().unwrap();
    lets_in("closed");
    assert_eq!(code(pending.take()), Code::Closed);
}

/// Otherwise each restart of a writer would keep readers out for some seconds.
#[test]
fn closing_ends_the_intents_of_threads_that_wait() {
    const CLOSES: usize = 10;
    let stage = stage();
    let _reader = stage.lock.shared().acquire().unwrap();
    let is_reserved = || matches!(stage.lock.shared().try_acquire(), Err(Error::LockUnavailable { .. }));
    let mut ended = 0;
    for _ in 0..CLOSES {
        let closed = manager(stage.store.clone());
        let lock = closed.lock("a", Level::Xdc).unwrap();
        let writer = thread::spawn(move || code(lock.acquire()));
        until("it is announced", is_reserved);
        closed.close().unwrap();
        ended += usize::from(!is_reserved());
        assert_eq!(writer.join().unwrap(), Code::Closed);
        until("it has ended", || !is_reserved());
    }
    // One may have been announced again at the very moment.
    assert!(ended + 1 >= CLOSES, "{ended}");
}

#[test]
fn a_store_without_modes_says_so_before_any_request() {
    let store = Arc::new(Scripted::without_modes());
    let lock = manager(store).lock("a", Level::Xdc).unwrap();
    for lock in [lock.shared(), lock.update()] {
        let error = lock.acquire().unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains(lock.mode().name()), "{error}");
        assert_eq!(code(lock.start(&AcquireOptions::new())), Code::InvalidArgument);
    }
    let lease = lock.acquire().unwrap();
    assert_eq!(code(lease.downgrade(Mode::Shared)), Code::InvalidArgument);
    lease.check().unwrap();
}
