//! Managers, locks and leases over a store that is in doubt, fails or answers late. The test chooses the answers of
//! the store.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dlm::store::{Acquired, Attempt, HistoryKind, LockStore, MemoryStore, OwnerRecord, Released};
use dlm::{
    Code, DEFAULTS, Deadline, Error, Lease, LeaseState, Level, Lock, LockManager, LostReason, Moment, Result,
};
use dlm_testkit::ReleaseLine::{Applied, Lie, Panics, Truth};
use dlm_testkit::{LONG, Scripted, until};

/// No lease with this TTL expires during a test.
pub(crate) const TTL: Duration = Duration::from_secs(1800);

pub(crate) struct Stage {
    pub(crate) store: Arc<Scripted>,
    pub(crate) manager: LockManager,
    pub(crate) lock: Lock,
}

pub(crate) fn stage() -> Stage {
    let store = Arc::new(Scripted::default());
    let manager = manager(store.clone());
    Stage { lock: manager.lock("a", Level::Xdc).unwrap(), manager, store }
}

pub(crate) fn manager(store: Arc<dyn LockStore>) -> LockManager {
    let builder = LockManager::builder().store(store).client("doubts").ttl(TTL).wait(5 * LONG);
    builder.retry(Duration::from_millis(20)).open().unwrap()
}

impl Stage {
    /// Returns whether the lock is free in the memory store. Reads are not scripted, so the answer is true.
    fn is_free(&self) -> bool {
        self.store.holder(self.lock.name(), soon()).unwrap().is_none()
    }

    #[track_caller]
    fn assert_held(&self, lease: &Lease) {
        lease.check().unwrap();
        assert!(!self.is_free());
    }
}

pub(crate) fn soon() -> Deadline {
    Deadline::after(LONG)
}

pub(crate) fn doubt() -> Error {
    Error::InDoubt { what: "planted".into(), source: None }
}

pub(crate) fn broken() -> Error {
    Error::Connection { store: "scripted:".into(), what: "planted".into(), source: None }
}

/// Acquires the lock without the caller's knowledge, and adds the owner record to `doubtful`.
fn applied_in_secret(memory: &MemoryStore, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) {
    match memory.acquire(attempt, &mut Vec::new()).unwrap() {
        Acquired::Granted(grant) => doubtful.push(grant.owner_record),
        Acquired::Held(holder) => panic!("held by {holder}"),
    }
}

#[track_caller]
pub(crate) fn code<T: fmt::Debug>(answer: Result<T>) -> Code {
    answer.expect_err("this must fail").code()
}

#[test]
fn a_doubtful_acquire_that_took_effect_is_freed_in_the_background() {
    let stage = stage();
    stage.store.to_acquire(|memory, attempt, doubtful| {
        applied_in_secret(memory, attempt, doubtful);
        Err(doubt())
    });
    assert_eq!(code(stage.lock.try_acquire()), Code::InDoubt);
    assert!(!stage.is_free());
    let lease = stage.lock.acquire().expect("its TTL is half an hour");
    stage.assert_held(&lease);
}

#[test]
fn a_doubt_ends_a_wait_at_once_and_leaves_others_waiting() {
    let stage = stage();
    let held = manager(stage.store.clone()).lock("a", Level::Xdc).unwrap().acquire().unwrap();
    let waiting = stage.manager.clone();
    stage.store.to_acquire(move |_, _, _| {
        until("both threads wait", || waiting.stats().threads_waiting == 2);
        Err(doubt())
    });
    let mut waiters: Vec<_> = (0..2)
        .map(|number| {
            let lock = stage.lock.clone();
            let wait = move || lock.acquire();
            thread::Builder::new().name(format!("dlm-test-waiter-{number}")).spawn(wait).unwrap()
        })
        .collect();
    until("a wait ends", || waiters.iter().any(|waiter| waiter.is_finished()));
    let doubtful = waiters.iter().position(|waiter| waiter.is_finished()).unwrap();
    assert_eq!(code(waiters.swap_remove(doubtful).join().unwrap()), Code::InDoubt);
    // Time for some checks of the lock.
    thread::sleep(Duration::from_millis(100));
    assert!(!waiters[0].is_finished(), "the doubt of one ended the wait of another");
    assert!(held.release().unwrap());
    let lease = waiters.remove(0).join().unwrap().expect("the wait must go on");
    stage.assert_held(&lease);
}

#[test]
fn the_background_looks_for_a_late_request_ever_more_rarely_and_stops_when_it_is_freed() {
    let stage = stage();
    stage.store.to_acquire(|_, _, doubtful| {
        doubtful.push(OwnerRecord::from_bytes(*b"late"));
        Err(doubt())
    });
    // The request has not arrived, no answer, it has not arrived, it has arrived.
    let answers = [Ok(Released::NotOurs), Err(broken()), Ok(Released::NotOurs), Ok(Released::Freed)];
    stage.store.to_release(answers.map(Lie));
    assert_eq!(code(stage.lock.try_acquire()), Code::InDoubt);
    until("the late request is freed", || stage.store.releases() == 4);
    let released = stage.store.release_log();
    let pauses: Vec<_> = released.windows(2).map(|pair| pair[1].0.since(pair[0].0)).collect();
    // The pauses double: 1, 2 and 4 s. A slow machine makes them longer.
    let at_least = [1, 2, 4].map(|times| Duration::from_millis(990) * times);
    assert!(pauses.iter().zip(at_least).all(|(pause, least)| *pause >= least), "{pauses:?}");
    stage.manager.close().unwrap();
    assert_eq!(stage.store.releases(), 4, "the background job did not stop");
}

#[test]
fn a_doubtful_earlier_request_does_not_touch_the_lease_that_was_granted() {
    let stage = stage();
    stage.store.to_acquire(|memory, attempt, doubtful| {
        doubtful.push(OwnerRecord::from_bytes(*b"earlier"));
        memory.acquire(attempt, &mut Vec::new())
    });
    let lease = stage.lock.try_acquire().unwrap();
    until("a background job frees the earlier request", || stage.store.releases() >= 1);
    stage.assert_held(&lease);
    lease.renew().unwrap();
    assert!(lease.release().unwrap());
}

#[test]
fn closing_looks_once_more_for_what_is_in_doubt() {
    let stage = stage();
    stage.store.to_acquire(|memory, attempt, doubtful| {
        applied_in_secret(memory, attempt, doubtful);
        Err(doubt())
    });
    assert_eq!(code(stage.lock.try_acquire()), Code::InDoubt);
    stage.manager.close().unwrap();
    assert!(stage.is_free());
}

#[test]
fn a_grant_that_comes_after_its_lease_is_over_is_given_back_and_said_so() {
    let stage = stage();
    let ttl = Duration::from_millis(40);
    stage.store.to_acquire(move |memory, attempt, doubtful| {
        let answer = memory.acquire(Attempt { ttl: TTL, ..attempt }, doubtful);
        thread::sleep(2 * ttl);
        answer
    });
    let error = stage.lock.try_acquire_with_ttl(ttl).unwrap_err();
    assert_eq!(error.code(), Code::RetriesExhausted);
    assert!(error.chain().contains("longer TTL"), "{}", error.chain());
    assert!(stage.is_free());
}

#[test]
fn a_release_in_doubt_is_ours_if_the_lock_is_gone_before_its_time() {
    let stage = stage();
    let lease = stage.lock.acquire().unwrap();
    stage.store.to_release([Applied(doubt())]);
    assert_eq!(code(lease.release()), Code::InDoubt);
    assert_eq!(code(lease.check()), Code::LeaseLost, "somebody else may hold the lock");
    assert_eq!(code(lease.renew()), Code::LeaseLost, "a renewal would undo the release");
    assert!(lease.release().unwrap());
    assert!(!lease.release().unwrap());

    let lease = stage.lock.acquire().unwrap();
    stage.store.to_release([Lie(Ok(Released::Gone))]);
    assert!(lease.release().unwrap(), "the store resolved the doubt itself");
}

#[test]
fn a_release_in_doubt_is_lost_if_the_lease_had_run_out_by_then() {
    let stage = stage();
    let mut lease = None;
    // On a slow machine, a grant may come only after its lease has ended.
    until("a grant comes in time", || {
        lease = stage.lock.acquire_with_ttl(Duration::from_millis(200)).ok();
        lease.is_some()
    });
    let lease = lease.unwrap();
    let ends = lease.ends();
    stage.store.to_release([Lie(Err(doubt()))]);
    assert_eq!(code(lease.release()), Code::InDoubt);
    // In the store the lease ends 20 ms later, which is the clock margin.
    until("the lease ends", || Moment::now() > ends.after(Duration::from_millis(30)));
    assert_eq!(code(lease.release()), Code::LeaseLost);
}

#[test]
fn a_release_that_fails_may_be_repeated_and_frees_the_lock() {
    let stage = stage();
    let lease = stage.lock.acquire().unwrap();
    stage.store.to_release([Lie(Err(broken())), Lie(Err(doubt())), Truth]);
    assert_eq!(code(lease.release()), Code::ConnectionError);
    assert_eq!(code(lease.release()), Code::InDoubt);
    assert!(lease.release().unwrap());
    assert!(stage.is_free());
}

#[test]
fn a_renewal_in_doubt_leaves_the_lease_as_it_was() {
    let stage = stage();
    let lease = stage.lock.acquire().unwrap();
    let ends = lease.ends();
    for error in [doubt(), broken()] {
        let expected = error.code();
        stage.store.to_renew(|_| Err(error));
        assert_eq!(code(lease.renew()), expected);
        assert_eq!(lease.ends(), ends);
        lease.check().unwrap();
    }
    lease.renew().unwrap();
    assert!(lease.ends() > ends);
    stage.store.to_renew(|_| Ok(None));
    assert_eq!(code(lease.renew()), Code::LeaseLost);
    assert_eq!(code(lease.check()), Code::LeaseLost);
    assert!(!lease.release().unwrap());
}

#[test]
fn a_dropped_lease_whose_release_fails_is_released_in_the_background() {
    let stage = stage();
    for error in [broken(), doubt()] {
        drop_with_failing_release(&stage, error);
        let lease = stage.lock.acquire().expect("its TTL is half an hour");
        stage.assert_held(&lease);
        assert!(lease.release().unwrap());
    }
}

fn drop_with_failing_release(stage: &Stage, error: Error) {
    let lease = stage.lock.acquire().unwrap();
    stage.store.to_release([Lie(Err(error))]);
    drop(lease);
    assert!(!stage.is_free());
}

/// The lease must not be left as one that is being released.
#[test]
fn a_release_in_which_the_store_panics_has_no_answer() {
    let stage = stage();
    let lease = stage.lock.acquire().unwrap();
    stage.store.to_release([Panics]);
    assert!(catch_unwind(AssertUnwindSafe(|| lease.release())).is_err());
    drop(lease);
    drop(stage.lock.acquire().expect("it is released in the background"));
}

#[test]
fn a_lease_dropped_after_a_failed_release_is_not_waited_for_twice() {
    let stage = stage();
    let lease = stage.lock.acquire().unwrap();
    stage.store.to_release([Lie(Err(broken()))]);
    assert_eq!(code(lease.release()), Code::ConnectionError);
    drop(lease);
    assert_eq!(stage.store.releases(), 1, "the dropping thread called a store that had failed before");
    drop(stage.lock.acquire().expect("it is released in the background"));
}

#[test]
fn closing_reports_the_first_failure_and_releases_the_others() {
    let stage = stage();
    let locks: Vec<_> = (0..4).map(|id| stage.manager.lock(&id.to_string(), Level::Xdc).unwrap()).collect();
    let leases: Vec<_> = locks.iter().map(|lock| lock.acquire().unwrap()).collect();
    stage.store.to_release([Truth, Lie(Err(broken())), Truth, Truth]);
    assert_eq!(code(stage.manager.close()), Code::ConnectionError);
    assert_eq!(stage.store.releases(), 4);
    let held = locks.iter().filter(|lock| stage.store.holder(lock.name(), soon()).unwrap().is_some());
    assert_eq!(held.count(), 1);
    stage.manager.close().unwrap();
    for lease in &leases {
        assert_eq!(code(lease.check()), Code::LeaseLost);
    }
}

#[test]
fn closing_gives_each_lease_a_share_of_the_time_so_that_one_that_hangs_leaves_some() {
    const LEASES: u32 = 4;
    let stage = stage();
    let lock = |id: u32| stage.manager.lock(&id.to_string(), Level::Xdc).unwrap();
    let leases: Vec<_> = (0..LEASES).map(|id| lock(id).acquire().unwrap()).collect();
    let began = Moment::now();
    stage.manager.close().unwrap();
    let released = stage.store.release_log();
    assert_eq!(released.len(), leases.len());
    for ((_, given), left) in released.iter().zip((1..=LEASES).rev()) {
        let share = DEFAULTS.timeout / left;
        assert!(*given <= share, "{given:?} for one of {left}: too little time is left for the others");
    }
    let (asked, given) = released[leases.len() - 1];
    let slow = Moment::now().since(began);
    assert!(asked.after(given + slow) >= began.after(DEFAULTS.timeout), "{given:?} for the last");
}

#[test]
fn a_grant_that_comes_while_the_manager_is_closed_is_given_back() {
    let stage = stage();
    let closing = stage.manager.clone();
    stage.store.to_acquire(move |memory, attempt, doubtful| {
        let answer = memory.acquire(attempt, doubtful);
        closing.close().unwrap();
        answer
    });
    assert_eq!(code(stage.lock.acquire()), Code::Closed);
    assert!(stage.is_free());
}

#[test]
fn a_store_that_panics_takes_one_caller_with_it_and_the_next_is_served() {
    let stage = stage();
    stage.store.to_acquire(|_, _, _| panic!("planted"));
    let lock = stage.lock.clone();
    let panicked = thread::Builder::new().name("dlm-test-panics".into()).spawn(move || lock.acquire());
    assert!(panicked.unwrap().join().is_err());
    assert!(stage.lock.acquire().unwrap().release().unwrap());
}

#[test]
fn an_error_that_ends_a_wait_comes_as_it_is() {
    let stage = stage();
    let _held = stage.lock.acquire().unwrap();
    let other = manager(stage.store.clone()).lock("b", Level::Xdc).unwrap();
    for error in [
        broken(),
        Error::RetriesExhausted { store: "scripted:".into(), what: "planted".into(), source: None },
        Error::TableCreation { table: "t".into(), what: "planted".into(), source: None },
        Error::Internal { what: "planted".into(), source: None },
    ] {
        let expected = error.code();
        stage.store.to_acquire(move |_, _, _| Err(error));
        let error = other.acquire().unwrap_err();
        assert_eq!(error.code(), expected);
        assert!(error.chain().contains("planted") && error.chain().contains("doubts#b"), "{}", error.chain());
    }
}

/// A late copy of a request may have brought the record back after another holder released the lock.
#[test]
fn a_lease_that_a_copy_of_its_request_may_revive_is_renewed_only_before_it_expires() {
    for may_reappear in [true, false] {
        let is_in_time = [1, 5, 30].into_iter().any(|ttl_s| {
            renewed_before_and_after_its_end(may_reappear, Duration::from_secs(ttl_s)).is_some()
        });
        assert!(is_in_time, "a lease of 30 s ended before its first renewal");
    }
}

/// Returns `None` if the machine was too slow for the lease.
fn renewed_before_and_after_its_end(may_reappear: bool, ttl: Duration) -> Option<()> {
    let stage = stage();
    stage.store.to_acquire(move |memory, attempt, doubtful| {
        let mut answer = memory.acquire(attempt, doubtful)?;
        if let Acquired::Granted(grant) = &mut answer {
            grant.may_reappear = may_reappear;
        }
        Ok(answer)
    });
    let asked = Moment::now();
    let renewed = stage.lock.try_acquire_with_ttl(ttl).and_then(|lease| lease.renew().map(|()| lease));
    if Moment::now().since(asked) >= ttl / 2 {
        return None;
    }
    let lease = renewed.expect("it has not expired");
    until("the lease expires", || lease.check().is_err());
    // The store finds the record.
    stage.store.to_renew(|_| Ok(Some(OwnerRecord::from_bytes([1; 16]))));
    let renewed = lease.renew();
    assert_eq!(renewed.is_err(), may_reappear, "{renewed:?}");
    if may_reappear {
        assert_eq!((code(renewed), code(lease.check())), (Code::LeaseLost, Code::LeaseLost));
    }
    Some(())
}

/// Returns what the history of the lock says of breaks, the newest entry first.
fn breaks(stage: &Stage) -> Vec<HistoryKind> {
    stage.lock.history(None, 100).unwrap().iter().map(|entry| entry.kind).collect()
}

#[test]
fn a_break_in_doubt_that_took_effect_is_told_to_the_holder() {
    let stage = stage();
    let lease = stage.lock.acquire().unwrap();
    let seen = stage.lock.inspected().unwrap();
    stage.store.to_release([Applied(doubt())]);
    assert_eq!(code(seen.break_holder("it hangs")), Code::InDoubt);
    assert!(stage.is_free());
    assert_eq!(breaks(&stage), [HistoryKind::Broken], "nothing is taken back");
    // A second break finds that the grant is over. The holder is told of the first one.
    assert_eq!(seen.break_holder("it hangs still").unwrap(), None);
    assert_eq!(code(lease.renew()), Code::LeaseLost);
    assert_eq!(lease.state(), LeaseState::Lost(LostReason::Broken));
    let told = lease.check().unwrap_err().to_string();
    assert!(told.contains(r#"because "it hangs""#), "{told}");
}

#[test]
fn a_break_in_doubt_that_did_not_take_effect_is_no_loss_and_may_be_tried_again() {
    let stage = stage();
    let lease = stage.lock.acquire().unwrap();
    let seen = stage.lock.inspected().unwrap();
    stage.store.to_release([Lie(Err(doubt()))]);
    assert_eq!(code(seen.break_holder("it hangs")), Code::InDoubt);
    lease.renew().unwrap();
    stage.assert_held(&lease);
    assert!(seen.break_holder("it hangs").unwrap().unwrap().fence > lease.fence());
    assert_eq!(code(lease.renew()), Code::LeaseLost);
}

#[test]
fn a_break_that_certainly_failed_is_taken_back() {
    let stage = stage();
    let lease = stage.lock.acquire().unwrap();
    let seen = stage.lock.inspected().unwrap();
    stage.store.to_release([Lie(Err(broken()))]);
    assert_eq!(code(seen.break_holder("it hangs")), Code::ConnectionError);
    stage.assert_held(&lease);
    let mut kinds = breaks(&stage);
    kinds.sort_by_key(|kind| *kind as u8);
    assert_eq!(kinds, [HistoryKind::Broken, HistoryKind::NotBroken]);
    // A loss of another kind is not taken for that break.
    stage.store.to_renew(|_| Ok(None));
    assert_eq!(code(lease.renew()), Code::LeaseLost);
    assert_ne!(lease.state(), LeaseState::Lost(LostReason::Broken));
}

#[test]
fn a_break_whose_own_grant_is_in_doubt_leaves_the_lock_free() {
    let stage = stage();
    let lease = stage.lock.acquire().unwrap();
    let seen = stage.lock.inspected().unwrap();
    stage.store.to_acquire(|memory, attempt, doubtful| {
        applied_in_secret(memory, attempt, doubtful);
        Err(doubt())
    });
    let broken = seen.break_holder("it hangs").unwrap().expect("it was held");
    assert_eq!((broken.fence, broken.is_recorded), (None, true));
    // That of the old holder, and that of the break. Its TTL would end, too, but later.
    until("the grant of the break is freed", || stage.store.releases() == 2);
    assert!(stage.is_free());
    assert_eq!(code(lease.renew()), Code::LeaseLost);
    assert!(stage.lock.try_acquire().unwrap().fence() > lease.fence());
}
