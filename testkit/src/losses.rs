//! Tests of what lost, late and cut messages do to locks, over a real server. Each answer that the caller receives
//! must be true, and no lock may stay held.
//!
//! The test program of a store describes in a [`Target`] how to reach the store and what its requests are called on
//! the wire. [`losses!`](crate::losses!) makes one test of each case of the suite:
//!
//! ```no_run
//! use std::net::SocketAddr;
//! use dlm::Code;
//! use dlm_testkit::losses::{SHORT, Target};
//! use dlm_testkit::{Dialect, Proxy};
//!
//! /// A protocol of lines: `SET key value`.
//! #[derive(Clone, Copy)]
//! struct Lines;
//!
//! impl Dialect for Lines {
//!     fn end_of_message(&self, bytes: &[u8]) -> Option<usize> {
//!         Some(bytes.iter().position(|byte| *byte == b'\n')? + 1)
//!     }
//!     fn method(&self, request: &[u8]) -> String {
//!         String::from_utf8_lossy(request).split(' ').next().unwrap_or_default().to_owned()
//!     }
//! }
//!
//! static TARGET: Target = Target {
//!     server: || Some(SocketAddr::from(([127, 0, 0, 1], 4711))), // or call skipped(..) and return None
//!     proxy: |server| Proxy::speaking(Lines, server),
//!     uri: |address| format!("lines://{address}/locks"),
//!     requests: &["SET", "COUNT", "GET"],
//!     acquire: &["SET", "COUNT"],
//!     settle: &["GET", "COUNT"],
//!     seed: &[("COUNT", 0)],
//!     renew: ["SET", "GET"],
//!     release: ["SET", "GET"],
//!     reply_bytes: 5,
//!     down: SHORT,
//!     silent: Code::InDoubt,
//! };
//!
//! dlm_testkit::losses!(TARGET);
//! # fn main() {}
//! ```
//!
//! The time-out of a call that must time out is [`SHORT`]. If another call that must succeed shares the time-out, it
//! is [`BLIND`]. A case whose calls were too slow for that is repeated with longer time-outs.

use std::fmt;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlm::store::{Acquired, Attempt, Identity, Released, Renewal};
use dlm::{
    AcquireOptions, Code, Deadline, Fence, Lease, LeaseState, Level, Lock, LockManager, LockName, LostReason,
    Moment, NamePolicy,
};
use parking_lot::Mutex;

use crate::fault::{Fault, Gate, Proxy};
use crate::patience::{LONG, LONGEST, eventually, until};

/// TTL of the leases of these tests. It never ends during a test: a lock that becomes free was released.
const TTL: Duration = Duration::from_secs(1800);
/// Time-out of calls that must time out.
pub const SHORT: Duration = Duration::from_millis(700);
/// Time-out of calls that must time out and of calls that must succeed first. On an idle machine, no call that is
/// answered takes this long.
pub const BLIND: Duration = Duration::from_secs(2);
/// Such time-outs on a slow machine, one after the other: see [`Case::patiently`].
const SHORTS: [Duration; 3] = [SHORT, Duration::from_secs(4), Duration::from_secs(20)];
/// The same. In whole seconds, because some stores know no other times, and the cases use them as TTLs, too.
const BLINDS: [Duration; 3] = [BLIND, Duration::from_secs(8), Duration::from_secs(30)];

/// How to reach a store, and the names of its requests on the wire. The [`Dialect`](crate::Dialect) of the proxy
/// returns these names.
#[derive(Debug)]
pub struct Target {
    /// Returns the address of a server. If none can run on this machine, it says so and returns `None`.
    pub server: fn() -> Option<SocketAddr>,
    /// Starts a proxy in front of the server at this address.
    pub proxy: fn(SocketAddr) -> Proxy,
    /// Returns the URI of the locks, with the server or the proxy at this address.
    pub uri: fn(SocketAddr) -> String,
    /// All requests that concern a lock.
    pub requests: &'static [&'static str],
    /// The requests of a successful acquire, in order.
    pub acquire: &'static [&'static str],
    /// The requests that follow when the first of `acquire` was carried out and its reply was lost, in order. The
    /// first one reads the lock.
    pub settle: &'static [&'static str],
    /// The requests that create a lock's counter, each with the number of requests of the same name before it.
    pub seed: &'static [(&'static str, usize)],
    /// The request of a renewal, and the request that finds out whether a renewal in doubt was carried out.
    pub renew: [&'static str; 2],
    /// The same for a release.
    pub release: [&'static str; 2],
    /// Length of the shortest reply to a write, in bytes.
    pub reply_bytes: usize,
    /// A time-out with which several calls to a server that is down fail within [`LONG`] / 4 altogether.
    pub down: Duration,
    /// The error of an acquire from a server that accepts connections and never answers. It is CONNECTION_ERROR for
    /// a store whose first request changes nothing.
    pub silent: Code,
}

/// One case of the suite over one target.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The store to test.
    pub target: &'a Target,
    /// The name of the test. The names of its locks contain it.
    pub test: &'a str,
}

/// A lock as two processes see it. One reaches the server through a proxy, the other one directly.
#[derive(Debug)]
pub struct Stage {
    /// The proxy that loses messages.
    pub proxy: Proxy,
    /// The manager that uses the proxy.
    pub manager: LockManager,
    /// The lock through the proxy.
    pub ours: Lock,
    /// The same lock, directly.
    pub theirs: Lock,
    last_fence: Mutex<Option<Fence>>,
}

impl Case<'_> {
    /// Makes a stage whose calls through the proxy have this time-out. When it returns, requests that a client sends
    /// only once have been sent. If the server cannot run on this machine, it says so and returns `None`.
    pub fn stage(&self, timeout: Duration) -> Option<Stage> {
        let server = (self.target.server)()?;
        let (proxy, client) = ((self.target.proxy)(server), self.client());
        let manager = self.manager(&client, proxy.address(), timeout);
        let ours = manager.lock("a", Level::Xdc).unwrap();
        until("the store answers", || ours.inspect().is_ok());
        let theirs = self.manager(&client, server, LONG).lock("a", Level::Xdc).unwrap();
        Some(Stage { proxy, manager, ours, theirs, last_fence: Mutex::default() })
    }

    /// Returns a client id that no other test has used.
    pub fn client(&self) -> String {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        format!("{:.60}-{since}", self.test.replace('_', "-"))
    }

    /// Opens a manager whose store is at `address`.
    pub fn manager(&self, client: &str, address: SocketAddr, timeout: Duration) -> LockManager {
        LockManager::builder()
            .store_uri(&(self.target.uri)(address))
            .client(client)
            .ttl(TTL)
            .wait(LONGEST)
            .retry(Duration::from_millis(100))
            .timeout(timeout)
            .open()
            .unwrap()
    }

    /// Runs `part` on a stage with a short time-out, and then with longer ones if the machine was too slow. It returns
    /// `None` if a call that must succeed took until its time-out, or if a call that must time out sent no request.
    #[track_caller]
    fn patiently(&self, timeouts: [Duration; 3], mut part: impl FnMut(&Stage, Duration) -> Option<()>) {
        for timeout in timeouts {
            let Some(stage) = self.stage(timeout) else { return };
            if part(&stage, timeout).is_some() {
                return;
            }
        }
        panic!("a call took longer than {:?}, or sent nothing in that time", timeouts[2]);
    }

    /// Returns the ways to lose one message.
    pub fn losses(&self) -> Vec<Fault> {
        let bytes = self.target.reply_bytes;
        assert!(bytes > 0, "the length of a reply");
        let cuts = (0..bytes).step_by((bytes / 5).max(1)).chain([bytes - 1]).map(Fault::CutReply);
        [Fault::LoseReply, Fault::LoseRequest].into_iter().chain(cuts).collect()
    }
}

impl Stage {
    /// Checks that the lease is valid, that others are refused and that the fence has grown.
    #[track_caller]
    pub fn assert_held(&self, lease: &Lease) {
        lease.check().unwrap();
        assert_eq!(code(self.theirs.try_acquire()), Code::LockUnavailable);
        let before = std::mem::replace(&mut *self.last_fence.lock(), lease.fence());
        assert!(lease.fence() > before, "{:?} after {before:?}", lease.fence());
    }

    /// Checks that the other process can acquire the lock.
    #[track_caller]
    pub fn assert_free(&self) {
        let lease = self.theirs.try_acquire().unwrap();
        self.assert_held(&lease);
        assert!(lease.release().unwrap());
    }

    /// Acquires and releases the lock through the proxy, and checks each step.
    #[track_caller]
    pub fn cycle(&self) {
        let lease = self.ours.try_acquire().unwrap();
        self.assert_held(&lease);
        assert!(lease.release().unwrap());
        self.assert_free();
    }

    /// Like [`cycle`](Stage::cycle). Returns `None` if a call took until this time-out.
    #[track_caller]
    fn cycle_in_time(&self, timeout: Duration) -> Option<()> {
        let lease = in_time(timeout, || self.ours.try_acquire())?;
        self.assert_held(&lease);
        assert!(in_time(timeout, || lease.release())?);
        self.assert_free();
        Some(())
    }

    /// From now on all requests meet `fault`.
    pub fn lose_everything(&self, fault: Fault) {
        self.proxy.later("*", 0, usize::MAX, fault);
    }

    /// Lets delayed requests pass and waits until they are carried out. No request may have met another fault.
    #[track_caller]
    fn let_late_ones_in(&self, gate: &Gate) {
        assert!(self.proxy.hits() > 0, "no request was delayed");
        gate.open();
        until("the delayed requests to be carried out", || self.proxy.late() == self.proxy.hits());
    }
}

/// Returns the code of a call that must fail.
#[track_caller]
pub fn code<T: fmt::Debug>(answer: dlm::Result<T>) -> Code {
    answer.expect_err("this must fail").code()
}

/// Makes a call that must succeed. Returns `None` if it failed because the machine was too slow: after a part of its
/// time-out, because a store may keep time for another try.
#[track_caller]
fn in_time<T>(timeout: Duration, call: impl FnOnce() -> dlm::Result<T>) -> Option<T> {
    let asked = Moment::now();
    match call() {
        Ok(value) => Some(value),
        Err(error) if error.is_retryable() && Moment::now().since(asked) >= timeout / 4 => None,
        Err(error) => panic!("{}", error.chain()),
    }
}

/// Returns the code of a call that must time out after it has sent enough requests. Returns `None` if it has not, because
/// the machine was too slow.
#[track_caller]
fn code_if<T: fmt::Debug>(is_sent: bool, answer: dlm::Result<T>) -> Option<Code> {
    let error = answer.expect_err("this must fail");
    assert!(is_sent || error.is_retryable(), "{}", error.chain());
    is_sent.then(|| error.code())
}

#[doc(hidden)]
pub fn an_acquire_of_which_any_one_message_is_lost_is_a_grant_with_a_fence(case: &Case<'_>) {
    let Some(stage) = case.stage(LONG) else { return };
    let mut faults = 0;
    for method in case.target.acquire {
        for loss in case.losses() {
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

#[doc(hidden)]
pub fn an_acquire_in_doubt_of_which_any_further_message_is_lost_is_a_grant_with_a_fence(case: &Case<'_>) {
    let Some(stage) = case.stage(LONG) else { return };
    for step in 0..case.target.settle.len() {
        case.losses().into_iter().for_each(|loss| settle(case, &stage, step, 1, loss));
    }
}

/// Networks usually lose single replies, but in a bad second they lose a dozen in a row.
#[doc(hidden)]
pub fn an_acquire_in_doubt_looks_counts_and_looks_again_until_it_is_answered(case: &Case<'_>) {
    let Some(stage) = case.stage(LONG) else { return };
    for step in 0..case.target.settle.len() {
        settle(case, &stage, step, 12, Fault::LoseReply);
    }
}

/// Acquires the lock while its first reply is lost, and then `times` messages of one of the requests that settle it.
#[track_caller]
fn settle(case: &Case<'_>, stage: &Stage, step: usize, times: usize, loss: Fault) {
    let Target { acquire, settle, .. } = case.target;
    let (hits, of_its_kind) = (stage.proxy.hits(), |before: &&&str| **before == settle[step]);
    stage.proxy.next(acquire[0], Fault::LoseReply);
    stage.proxy.later(settle[step], settle[..step].iter().filter(of_its_kind).count(), times, loss);
    let lease = stage.ours.try_acquire().unwrap();
    assert_eq!(stage.proxy.hits(), hits + 1 + times, "too few {} were sent", settle[step]);
    stage.assert_held(&lease);
    assert!(lease.release().unwrap());
    stage.assert_free();
}

/// The Java library sends the request again and is refused by its own record. Then nobody has the lock for its TTL.
#[doc(hidden)]
pub fn an_acquire_whose_reply_was_lost_is_not_refused_over_its_own_record(case: &Case<'_>) {
    let Some(stage) = case.stage(LONG) else { return };
    // The first cycle of a lock also creates its counter.
    stage.cycle();
    let Target { requests, acquire, settle, .. } = case.target;
    let before = stage.proxy.requests().len();
    // The reply to the first read is lost too.
    stage.proxy.next(acquire[0], Fault::LoseReply);
    stage.proxy.next(settle[0], Fault::LoseReply);
    let lease = stage.ours.try_acquire().unwrap();
    let sent = stage.proxy.requests().split_off(before);
    let sent: Vec<_> = sent.iter().filter(|sent| requests.contains(&sent.as_str())).collect();
    assert_eq!(sent, [&[acquire[0], settle[0]], *settle].concat(), "our own lock was requested again");
    stage.assert_held(&lease);
    assert!(lease.release().unwrap());
}

#[doc(hidden)]
pub fn a_lock_whose_counter_is_new_gets_its_fence_though_messages_are_lost(case: &Case<'_>) {
    let Some(stage) = case.stage(LONG) else { return };
    for (number, loss) in case.losses().into_iter().enumerate() {
        for (method, after) in case.target.seed {
            let (name, hits) = (format!("{number}-{method}-{after}"), stage.proxy.hits());
            let lock = stage.manager.lock(&name, Level::Xdc).unwrap();
            stage.proxy.later(method, *after, 1, loss.clone());
            let first = lock.try_acquire().unwrap();
            assert_eq!(stage.proxy.hits(), hits + 1);
            assert!(first.release().unwrap());
            let second = lock.try_acquire().unwrap();
            assert!(second.fence() > first.fence() && first.fence() >= Some(Fence(1 << 40)));
        }
    }
}

#[doc(hidden)]
pub fn a_release_of_which_a_message_is_lost_says_true_and_the_lock_is_free(case: &Case<'_>) {
    let Some(stage) = case.stage(LONG) else { return };
    for loss in case.losses() {
        let lease = stage.ours.try_acquire().unwrap();
        stage.assert_held(&lease);
        let hits = stage.proxy.hits();
        stage.proxy.next(case.target.release[0], loss);
        assert!(lease.release().unwrap());
        assert_eq!(stage.proxy.hits(), hits + 1);
        assert!(!lease.release().unwrap());
        stage.assert_free();
    }
}

#[doc(hidden)]
pub fn a_release_whose_reply_is_lost_is_ours_though_another_has_the_lock_by_then(case: &Case<'_>) {
    let Some(stage) = case.stage(LONG) else { return };
    let lease = stage.ours.try_acquire().unwrap();
    // The release is carried out. Before its outcome can be read, the lock has a new holder.
    let (gate, [request, question]) = (Arc::new(Gate::default()), case.target.release);
    stage.proxy.next(request, Fault::LoseReply);
    stage.proxy.next(question, Fault::Keep(Arc::clone(&gate)));
    let next = thread::scope(|scope| {
        let releasing = thread::Builder::new().name("dlm-test-releasing".into());
        let releasing = releasing.spawn_scoped(scope, || lease.release()).unwrap();
        let next = stage.theirs.acquire().unwrap();
        gate.open();
        assert!(releasing.join().unwrap().unwrap());
        next
    });
    assert_eq!(stage.proxy.hits(), 2);
    next.renew().expect("the release was sent twice and deleted the next holder's record");
    assert!(next.release().unwrap());
}

#[doc(hidden)]
pub fn a_renewal_of_which_a_message_is_lost_is_ok_and_lets_the_lease_last(case: &Case<'_>) {
    let Some(stage) = case.stage(LONG) else { return };
    for loss in case.losses() {
        let lease = stage.ours.try_acquire().unwrap();
        stage.assert_held(&lease);
        let granted = stage.theirs.inspect().unwrap().holder.unwrap().since.unwrap();
        // The store's clock has a resolution of milliseconds.
        thread::sleep(Duration::from_millis(10));
        // First with the same TTL, which leaves the record's content the same, then with a longer one.
        for ttl in [TTL, 2 * TTL] {
            let (hits, asked) = (stage.proxy.hits(), Moment::now());
            stage.proxy.next(case.target.renew[0], loss.clone());
            lease.renew_for(ttl).unwrap();
            assert_eq!(stage.proxy.hits(), hits + 1);
            assert!(lease.ends() >= asked.after(ttl - ttl / 10));
            let holder = stage.theirs.inspect().unwrap().holder.unwrap();
            assert!(holder.since.unwrap() > granted, "the store was not asked");
            assert!(holder.remaining.unwrap() > ttl - ttl / 10);
        }
        assert!(lease.release().unwrap());
        stage.assert_free();
    }
}

/// The store's record then differs from the one that the lease knows.
#[doc(hidden)]
pub fn a_renewal_in_doubt_that_took_effect_can_be_followed_by_another_and_by_a_release(case: &Case<'_>) {
    let [request, question] = case.target.renew;
    case.patiently(BLINDS, |stage, timeout| {
        for again in [true, false] {
            let lease = in_time(timeout, || stage.ours.try_acquire())?;
            let (hits, ends) = (stage.proxy.hits(), lease.ends());
            stage.proxy.next(request, Fault::LoseReply);
            // The renewal looks for its outcome until its time-out.
            stage.proxy.later(question, 0, usize::MAX, Fault::LoseRequest);
            let answer = lease.renew_for(2 * TTL);
            stage.proxy.heal();
            assert_eq!(code_if(stage.proxy.hits() > hits + 4, answer)?, Code::InDoubt);
            assert_eq!(lease.ends(), ends);
            stage.assert_held(&lease);
            if again {
                in_time(timeout, || lease.renew())?;
                stage.theirs.inspect().unwrap().holder.expect("the renewal lost the lock");
            }
            assert!(in_time(timeout, || lease.release())?);
            stage.assert_free();
        }
        Some(())
    });
}

/// The holder relies on the end that it knows. The record must not end earlier.
#[doc(hidden)]
pub fn a_shorter_renewal_whose_reply_is_lost_ends_no_record_while_check_is_ok(case: &Case<'_>) {
    let [request, question] = case.target.renew;
    case.patiently(BLINDS, |stage, timeout| {
        // Leases that end while the test waits.
        let brief = timeout;
        let lease = in_time(timeout, || stage.ours.try_acquire_with_ttl(4 * brief))?;
        let ends = lease.ends();
        stage.proxy.next(request, Fault::LoseReply);
        stage.proxy.later(question, 0, usize::MAX, Fault::LoseRequest);
        let answer = lease.renew_for(brief);
        assert_eq!(code_if(stage.proxy.hits() > 1, answer)?, Code::InDoubt);
        assert_eq!(lease.ends(), ends, "a renewal in doubt must not change the lease");
        eventually("the record expires", || {
            let held = stage.theirs.inspect().unwrap().holder.is_some();
            // Checked after the store was read.
            let certain = lease.check().is_ok();
            assert!(
                held || !certain,
                "the record is gone, but check() is Ok for {:?} more",
                lease.remaining()
            );
            !held
        });
        Some(())
    });
}

/// The request of a renewal is delayed, and arrives after another renewal was answered.
#[doc(hidden)]
pub fn a_shorter_renewal_that_arrives_late_does_not_shorten_a_longer_one(case: &Case<'_>) {
    let request = case.target.renew[0];
    case.patiently(BLINDS, |stage, timeout| {
        let brief = timeout;
        for (round, breaks) in [false, true].into_iter().enumerate() {
            let lease = in_time(timeout, || stage.ours.try_acquire())?;
            let (gate, hits) = (Arc::new(Gate::default()), stage.proxy.hits());
            if breaks {
                // The client sends it again at once and receives an answer.
                stage.proxy.next(request, Fault::KeepAndBreak(Arc::clone(&gate)));
                in_time(timeout, || lease.renew_for(brief).and_then(|()| lease.renew_for(TTL)))?;
            } else {
                stage.proxy.later(request, 0, usize::MAX, Fault::Keep(Arc::clone(&gate)));
                let answer = lease.renew_for(brief);
                stage.proxy.heal();
                assert_eq!(code_if(stage.proxy.hits() > hits, answer)?, Code::InDoubt);
                in_time(timeout, || lease.renew_for(TTL))?;
            }
            assert!(stage.proxy.hits() > hits, "no request was delayed");
            stage.let_late_ones_in(&gate);
            // This lease is acquired after the late request was carried out, and with the same TTL.
            let beside = stage.manager.lock(&format!("beside-{round}"), Level::Xdc).unwrap();
            let besides = beside.try_acquire_with_ttl(brief);
            eventually("the short lease ends", || {
                in_time(timeout, || beside.inspect()).is_some_and(|found| found.holder.is_none())
            });
            drop(besides);
            stage.assert_held(&lease);
            assert!(in_time(timeout, || lease.release())?);
            stage.assert_free();
        }
        Some(())
    });
}

/// Servers also carry out requests whose client has gone.
#[doc(hidden)]
pub fn an_acquire_that_arrives_after_its_deadline_is_in_doubt_and_is_freed_in_the_background(
    case: &Case<'_>,
) {
    case.patiently(SHORTS, |stage, _| {
        let gate = Arc::new(Gate::default());
        // All requests, because a store may keep time for another try.
        stage.proxy.later(case.target.acquire[0], 0, usize::MAX, Fault::Keep(Arc::clone(&gate)));
        let answer = stage.ours.try_acquire();
        assert_eq!(code_if(stage.proxy.hits() > 0, answer)?, Code::InDoubt);
        stage.assert_free();
        stage.let_late_ones_in(&gate);
        // Not before: a slow proxy may not have read the last request yet.
        stage.proxy.heal();
        // The TTL is half an hour, so the lock does not become free by expiry.
        let lease = stage.theirs.acquire().unwrap();
        stage.assert_held(&lease);
        Some(())
    });
}

#[doc(hidden)]
pub fn a_request_that_arrives_after_the_lock_was_used_and_released_is_freed_in_the_background(
    case: &Case<'_>,
) {
    let Some(stage) = case.stage(LONG) else { return };
    let gate = Arc::new(Gate::default());
    stage.proxy.next(case.target.acquire[0], Fault::KeepAndBreak(Arc::clone(&gate)));
    stage.cycle();
    stage.let_late_ones_in(&gate);
    let lease = stage.theirs.acquire().unwrap();
    stage.assert_held(&lease);
}

#[doc(hidden)]
pub fn a_request_that_arrives_while_its_sender_holds_the_lock_does_no_harm(case: &Case<'_>) {
    let Some(stage) = case.stage(LONG) else { return };
    let gate = Arc::new(Gate::default());
    stage.proxy.next(case.target.acquire[0], Fault::KeepAndBreak(Arc::clone(&gate)));
    let lease = stage.ours.try_acquire().unwrap();
    stage.let_late_ones_in(&gate);
    // The background job that searches for the late request must not touch the lease.
    thread::sleep(Duration::from_millis(1500));
    lease.renew().unwrap();
    stage.assert_held(&lease);
    assert!(lease.release().unwrap());
}

#[doc(hidden)]
pub fn a_renewal_that_arrives_after_the_release_does_not_bring_the_lock_back(case: &Case<'_>) {
    case.patiently(BLINDS, |stage, timeout| {
        let lease = in_time(timeout, || stage.ours.try_acquire())?;
        let (gate, ends) = (Arc::new(Gate::default()), lease.ends());
        stage.proxy.later(case.target.renew[0], 0, usize::MAX, Fault::Keep(Arc::clone(&gate)));
        let answer = lease.renew();
        stage.proxy.heal();
        assert_eq!(code_if(stage.proxy.hits() > 0, answer)?, Code::InDoubt);
        assert_eq!(lease.ends(), ends, "a renewal in doubt must not change the lease");
        lease.check().unwrap();
        assert!(in_time(timeout, || lease.release())?);
        stage.let_late_ones_in(&gate);
        stage.assert_free();
        Some(())
    });
}

#[doc(hidden)]
pub fn a_dropped_lease_whose_release_was_lost_is_freed_in_the_background(case: &Case<'_>) {
    let Some(stage) = case.stage(LONG) else { return };
    let lease = stage.ours.try_acquire().unwrap();
    stage.assert_held(&lease);
    stage.lose_everything(Fault::LoseRequest);
    drop(lease);
    assert!(stage.theirs.inspect().unwrap().holder.is_some(), "nothing was lost");
    stage.proxy.heal();
    let next = stage.theirs.acquire().unwrap();
    stage.assert_held(&next);
}

#[doc(hidden)]
pub fn a_failed_release_may_be_repeated(case: &Case<'_>) {
    case.patiently(BLINDS, |stage, timeout| {
        let lease = in_time(timeout, || stage.ours.try_acquire())?;
        stage.assert_held(&lease);
        stage.lose_everything(Fault::Swallow);
        let answer = lease.release();
        stage.proxy.heal();
        assert_eq!(code_if(stage.proxy.hits() > 0, answer)?, Code::InDoubt);
        assert_eq!(code(lease.check()), Code::LeaseLost, "after a failed release another may hold the lock");
        assert!(in_time(timeout, || lease.release())?);
        stage.assert_free();
        Some(())
    });
}

#[doc(hidden)]
pub fn connections_that_the_server_closed_are_replaced_and_nobody_notices(case: &Case<'_>) {
    let Some(stage) = case.stage(LONG) else { return };
    let sent = || {
        let sent = stage.proxy.requests();
        sent.iter().filter(|sent| case.target.requests.contains(&sent.as_str())).count()
    };
    let cycle = || {
        let before = sent();
        stage.cycle();
        sent() - before
    };
    // The first cycle of a lock also creates its counter.
    cycle();
    let usual = (0..3).map(|_| cycle()).min().expect("three cycles");
    let rounds = (0..19).map(|_| {
        stage.proxy.hang_up_and_wait();
        // A client need not check a connection that it used a moment ago.
        thread::sleep(Duration::from_millis(5));
        cycle()
    });
    let more: Vec<_> = rounds.filter(|sent| *sent > usual).collect();
    // On a slow machine, a client may ask once more for another reason. One that always does so does it in every round.
    assert!(more.len() <= 14, "requests were sent twice: {more:?} instead of {usual}");
    assert!(stage.proxy.connections() >= 20, "{} connections", stage.proxy.connections());

    // The same with many idle connections.
    thread::scope(|scope| {
        for id in 0..8 {
            let manager = &stage.manager;
            scope.spawn(move || manager.lock(&id.to_string(), Level::Xdc).unwrap().try_acquire().unwrap());
        }
    });
    stage.proxy.hang_up();
    stage.cycle();
}

#[doc(hidden)]
pub fn a_server_that_is_down_is_a_connection_error_soon(case: &Case<'_>) {
    let nobody = Nobody::new();
    let manager = case.manager("down", nobody.address(), case.target.down);
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let began = Moment::now();
    assert_eq!(code(lock.try_acquire()), Code::ConnectionError);
    assert_eq!(code(lock.inspect()), Code::ConnectionError);
    // A refused connection is reported at once, because waiting would not help.
    assert_eq!(code(lock.acquire()), Code::ConnectionError);
    let took = Moment::now().since(began);
    assert!(took < LONG / 2, "{took:?}");
    manager.close().unwrap();
}

/// The lease is short, and the time-out is longer than the lease.
#[doc(hidden)]
pub fn a_renewal_that_is_never_answered_is_made_again_before_the_lease_ends(case: &Case<'_>) {
    let Some(stage) = case.stage(LONG) else { return };
    let (method, look) = (case.target.renew[0], case.target.renew[1]);
    // First only the renewal has no answer, then also the first read of its outcome.
    for silent in [&[method][..], &[method, look]] {
        let is_renewed = [12, 40, 120]
            .into_iter()
            .any(|ttl_s| renewed_again(&stage, silent, Duration::from_secs(ttl_s)).is_some());
        assert!(is_renewed, "{silent:?}: a lease of two minutes ended before its renewal was made again");
    }
}

/// Returns `None` if the lease ended, by the clock, before the calls did.
fn renewed_again(stage: &Stage, silent: &[&'static str], ttl: Duration) -> Option<()> {
    let lease = in_time(ttl, || stage.ours.acquire_with_ttl(ttl))?;
    let (ends, hits) = (lease.ends(), stage.proxy.hits());
    silent.iter().for_each(|method| stage.proxy.next(method, Fault::Swallow));
    let answer = lease.renew();
    stage.proxy.heal();
    match answer {
        Ok(()) => {}
        // The last try may have been given up when no time was left for it.
        Err(error) if error.is_retryable() && Moment::now().after(ttl / 4) >= ends => return None,
        Err(error) => panic!("{silent:?}: {}", error.chain()),
    }
    assert!(lease.ends() > ends, "{silent:?}");
    assert_eq!(stage.proxy.hits(), hits + silent.len(), "{silent:?}");
    if Moment::now() >= ends {
        return None;
    }
    let refused = stage.theirs.try_acquire().map(drop);
    lease.check().ok()?;
    assert_eq!(code(refused), Code::LockUnavailable, "{silent:?}");
    assert!(lease.release().ok()?, "{silent:?}");
    Some(())
}

/// For a store that puts many renewals into one request. The request has the name of a renewal, or `batch`.
#[doc(hidden)]
pub fn many_renewals_whose_reply_is_lost_are_all_in_doubt_and_may_be_repeated(case: &Case<'_>) {
    // So few that they go in one request.
    const LEASES: usize = 12;
    let Some(stage) = case.stage(LONG) else { return };
    let store = dlm::store::open(&(case.target.uri)(stage.proxy.address())).unwrap();
    let (client, identity) = (case.client(), Identity::this_process("").unwrap());
    let name = |id: usize| {
        LockName::new(Level::Xdc, &client, None, &format!("many {id}"), NamePolicy::Strict).unwrap()
    };
    let by = || Deadline::after(LONG);
    let take = |name: &LockName| {
        let attempt = Attempt { name, ttl: TTL, identity: &identity, by: by() };
        match store.acquire(attempt, &mut Vec::new()).unwrap() {
            Acquired::Granted(grant) => grant,
            Acquired::Held(holder) => panic!("held by {holder}"),
        }
    };
    for loss in [Fault::LoseReply, Fault::LoseRequest, Fault::CutReply(7)] {
        let leases: Vec<_> = (0..LEASES).map(|id| (name(id), take(&name(id)))).collect();
        let renewals: Vec<_> = leases
            .iter()
            .map(|(name, grant)| Renewal {
                name,
                owner_record: &grant.owner_record,
                ttl: 2 * TTL,
                alone: false,
            })
            .collect();
        let hits = stage.proxy.hits();
        stage.proxy.next(case.target.renew[0], loss.clone());
        stage.proxy.next("batch", loss.clone());
        let mut in_doubt = 0;
        store.renew_many(&renewals, by(), &mut |_, _, answer| {
            assert_eq!(code(answer.map(|_| ())), Code::InDoubt, "{loss:?}");
            in_doubt += 1;
        });
        assert_eq!((in_doubt, stage.proxy.hits()), (LEASES, hits + 1), "{loss:?}");
        stage.proxy.heal();
        let mut answers = 0;
        store.renew_many(&renewals, by(), &mut |at, _, answer| {
            let record = answer.unwrap().expect("it is ours");
            let name = renewals[at].name;
            assert_eq!(store.release(name, &record, by()).unwrap(), Released::Freed, "{loss:?}");
            answers += 1;
        });
        assert_eq!(answers, LEASES, "{loss:?}");
    }
}

/// Not for a store that waits until a cluster has formed.
#[doc(hidden)]
pub fn initializing_over_a_server_that_is_down_is_a_connection_error_soon(case: &Case<'_>) {
    let nobody = Nobody::new();
    let manager = case.manager("down", nobody.address(), case.target.down);
    let began = Moment::now();
    assert_eq!(code(manager.initialize()), Code::ConnectionError);
    let took = Moment::now().since(began);
    assert!(took < LONG / 2, "{took:?}");
}

/// A port at which no server listens: the client's end of a connection. Nobody else can listen there meanwhile.
struct Nobody {
    client: TcpStream,
    _server: TcpListener,
}

impl Nobody {
    fn new() -> Nobody {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        Nobody { client, _server: server }
    }

    fn address(&self) -> SocketAddr {
        self.client.local_addr().unwrap()
    }
}

#[doc(hidden)]
pub fn a_server_that_never_answers_costs_no_more_than_the_deadline(case: &Case<'_>) {
    // The operating system accepts connections, and no program reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for timeout in SHORTS {
        let manager = case.manager("silent", silent.local_addr().unwrap(), timeout);
        let lock = manager.lock("a", Level::Xdc).unwrap();
        let began = Moment::now();
        let acquired = code(lock.try_acquire());
        assert_eq!(code(lock.inspect()), Code::ConnectionError, "a read that can be repeated");
        let took = Moment::now().since(began);
        // A client may count its time in whole milliseconds.
        let least = 2 * timeout - Duration::from_millis(10);
        assert!(took >= least && took < 2 * timeout + LONG / 2, "{took:?}");
        if acquired == case.target.silent {
            return;
        }
        // The machine was too slow to send the request in time.
        assert_eq!(acquired, Code::ConnectionError);
    }
    panic!("nothing was sent in {:?}", SHORTS[2]);
}

#[doc(hidden)]
pub fn a_server_that_comes_back_is_used_again(case: &Case<'_>) {
    case.patiently(BLINDS, |stage, timeout| {
        stage.cycle_in_time(timeout)?;
        stage.lose_everything(Fault::LoseRequest);
        let error = stage.ours.acquire().expect_err("nothing came through");
        assert!(error.is_retryable(), "{}", error.chain());
        stage.proxy.heal();
        let lease = in_time(timeout, || stage.ours.acquire())?;
        stage.assert_held(&lease);
        Some(())
    });
}

/// On a machine that is too busy to renew at all, the reason is the second one.
fn is_expired(state: LeaseState) -> bool {
    [LostReason::Expired, LostReason::ProcessStopped].map(LeaseState::Lost).contains(&state)
}

/// The server is silent for longer than two TTLs, and then refuses connections.
#[doc(hidden)]
pub fn kept_leases_over_a_server_that_is_down_are_at_risk_then_lost_and_stay_lost(case: &Case<'_>) {
    const LEASES: usize = 30;
    case.patiently(BLINDS, |stage, timeout| {
        let terms = AcquireOptions::new().ttl(2 * timeout).keep(Duration::MAX);
        let lock = |id: usize| stage.manager.lock(&id.to_string(), Level::Xdc).unwrap();
        let mut leases = Vec::new();
        for id in 0..LEASES {
            leases.push(in_time(timeout, || lock(id).acquire_with(&terms))?);
        }
        let changes: Vec<_> = leases.iter().map(|lease| lease.changes().unwrap()).collect();
        // A busy machine may have lost one while the server answers.
        leases.iter().try_for_each(Lease::check).ok()?;
        stage.lose_everything(Fault::Swallow);
        thread::scope(|scope| {
            for (lease, changes) in leases.iter().zip(changes) {
                scope.spawn(move || told_of_the_loss(lease, || changes.recv_timeout(LONGEST).is_ok()));
            }
        });
        stage.proxy.heal();
        stage.cycle_in_time(timeout)?;
        thread::sleep(timeout);
        for lease in &leases {
            assert!(is_expired(lease.state()), "brought back");
        }
        // The lease has ended in the store too.
        let next = in_time(timeout, || lock(0).acquire())?;
        assert!(next.fence() > leases[0].fence());
        Some(())
    });
}

/// Follows a lease until it is lost. `has_changed` waits for a message.
fn told_of_the_loss(lease: &Lease, has_changed: impl Fn() -> bool) {
    let mut seen = Vec::new();
    while has_changed() {
        seen.push(lease.state());
        if !lease.state().is_valid() {
            break;
        }
    }
    // A renewal that was answered just before the server fell silent may come first. Two messages may be read so late
    // that both show the same state.
    seen.retain(|state| *state != LeaseState::Renewing);
    seen.dedup();
    // Of both changes there may be one message, if this machine is busy.
    let lost = *seen.last().expect("the loss is told");
    assert!(is_expired(lost), "{lost:?}");
    assert!(seen == [LeaseState::AtRisk, lost] || seen == [lost], "{seen:?}");
    assert_eq!(code(lease.guard()), Code::LeaseLost);
}

#[doc(hidden)]
pub fn a_reply_that_comes_drop_by_drop_does_not_stretch_the_deadline(case: &Case<'_>) {
    case.patiently(SHORTS, |stage, timeout| {
        // After this, a store that first checks something has done so.
        let lease = in_time(timeout, || stage.ours.try_acquire())?;
        assert!(in_time(timeout, || lease.release())?);
        // A time-out that started again with each byte would never end these calls.
        let drip = Fault::Drip(timeout / 5);
        stage.lose_everything(drip);
        let answer = stage.ours.try_acquire();
        let hits = stage.proxy.hits();
        assert_eq!(code_if(hits > 0, answer)?, Code::InDoubt);
        let answer = stage.ours.inspect();
        assert_eq!(code_if(stage.proxy.hits() > hits, answer)?, Code::ConnectionError);
        stage.proxy.heal();
        let lease =
            stage.theirs.acquire().expect("a grant that was carried out is released in the background");
        stage.assert_held(&lease);
        Some(())
    });
}

/// The network loses a fifth of all replies, all the time.
#[doc(hidden)]
pub fn of_many_cycles_with_a_fifth_of_the_replies_lost_none_is_granted_twice(case: &Case<'_>) {
    let Some(stage) = case.stage(LONG) else { return };
    for method in case.target.requests {
        stage.proxy.sometimes(method, 5, Fault::LoseReply);
    }
    let mut cycles = 0;
    // The proxy draws at random, so it may take a few cycles more until enough is lost.
    while cycles < 100 || (stage.proxy.hits() <= 20 && cycles < 1000) {
        let lease = stage.ours.acquire().unwrap();
        stage.assert_held(&lease);
        assert!(lease.release().unwrap());
        stage.assert_free();
        cycles += 1;
    }
    assert!(stage.proxy.hits() > 20, "{} faults in {cycles} cycles", stage.proxy.hits());
}

/// About every third or fourth message is lost, for several threads in two processes. One process loses none.
#[doc(hidden)]
pub fn in_a_storm_of_losses_no_two_hold_the_lock_and_none_is_left_behind(case: &Case<'_>) {
    const CYCLES: usize = 40;
    let Some(stage) = case.stage(LONG) else { return };
    let seed = fastrand::u64(..);
    eprintln!("the seed is {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let losses = case.losses();
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

/// Makes tests from the cases of the suite. The argument is a `static` [`Target`](crate::losses::Target). Names of
/// cases after it select only those. Three cases are only made when they are named, because not every store can pass
/// them:
///
/// * `many_renewals_whose_reply_is_lost_are_all_in_doubt_and_may_be_repeated`: for a store that puts many renewals into
///   one request.
/// * `initializing_over_a_server_that_is_down_is_a_connection_error_soon`: not for a store that waits until a
///   cluster has formed.
/// * `a_renewal_that_is_never_answered_is_made_again_before_the_lease_ends`: for a store that limits each try to a
///   part of the time.
#[macro_export]
macro_rules! losses {
    ($target:ident) => {
        $crate::losses! { $target:
            an_acquire_of_which_any_one_message_is_lost_is_a_grant_with_a_fence,
            an_acquire_in_doubt_of_which_any_further_message_is_lost_is_a_grant_with_a_fence,
            an_acquire_whose_reply_was_lost_is_not_refused_over_its_own_record,
            an_acquire_in_doubt_looks_counts_and_looks_again_until_it_is_answered,
            a_lock_whose_counter_is_new_gets_its_fence_though_messages_are_lost,
            a_release_of_which_a_message_is_lost_says_true_and_the_lock_is_free,
            a_release_whose_reply_is_lost_is_ours_though_another_has_the_lock_by_then,
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
            kept_leases_over_a_server_that_is_down_are_at_risk_then_lost_and_stay_lost,
            a_reply_that_comes_drop_by_drop_does_not_stretch_the_deadline,
            of_many_cycles_with_a_fifth_of_the_replies_lost_none_is_granted_twice,
            in_a_storm_of_losses_no_two_hold_the_lock_and_none_is_left_behind,
        }
    };
    ($target:ident: $($case:ident),+ $(,)?) => {
        $(
            #[test]
            fn $case() {
                $crate::losses::$case(&$crate::losses::Case { target: &$target, test: stringify!($case) });
            }
        )+
    };
}
