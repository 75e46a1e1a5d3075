//! Connections for blocking callers out of an asynchronous client, without a thread of the library's.
//!
//! A lane is a single-threaded runtime and a client that lives in it. The calling thread drives the lane
//! itself for as long as its own request takes: no other thread wakes up, and a request costs what its
//! system calls cost. A connection belongs to the runtime that opened it, so each lane has its own.
//! Callers prefer the lane they used a moment ago, then any that nobody uses; where all are in use they
//! share one, which takes turns inside and loses nothing but a little time.
//!
//! What a client does in the background (looking after the cluster) goes on only while a caller drives
//! the lane, so one that lay idle for long is not trusted any more and made anew.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Error, Result};
use crate::ffi::signals::{self, NoSigpipe};
use crate::time::Moment;

/// What a lane may know of its servers after it lay idle for so long is too old.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// A thread comes back to its lane within that time, and finds what it needs still in the processor's
/// cache. Later the first free lane does: under little load the others shall grow old.
const WARM: Duration = Duration::from_millis(100);
/// Looking up a host name takes a thread of the runtime's, which goes when it is not needed any more.
const RESOLVER_IDLE: Duration = Duration::from_millis(100);

thread_local! {
    /// Which lane of a store this thread used last. Of another store's lanes it is as good as any.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

pub(super) struct Lanes<C> {
    slots: Box<[Slot<C>]>,
    tls: bool,
}

/// Room for a lane. Apart from its neighbours', as each is written to with every request.
#[repr(align(128))]
struct Slot<C> {
    users: AtomicUsize,
    /// When it was given back last, as a [`Moment`].
    used: AtomicU64,
    lane: Mutex<Option<Arc<Lane<C>>>>,
}

/// A runtime, and the client in it once there is one.
struct Lane<C> {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    client: Mutex<Option<Arc<C>>>,
    /// The client's TLS writes by `writev`, which cannot be told to raise no SIGPIPE. Without TLS it writes by
    /// `send`, which is.
    tls: bool,
}

/// A lane in use. Given back when dropped.
pub(super) struct Lent<'a, C> {
    slot: &'a Slot<C>,
    lane: Arc<Lane<C>>,
}

impl<C: Send + Sync> Lanes<C> {
    /// Of so many at the most, which speak TLS or do not.
    pub(super) fn new(max: usize, tls: bool) -> Lanes<C> {
        let slot = |_| Slot { users: AtomicUsize::new(0), used: AtomicU64::new(0), lane: Mutex::default() };
        Lanes { slots: (0..max).map(slot).collect(), tls }
    }

    /// An unused lane, a new one, or one shared with as few as can be. No I/O.
    pub(super) fn lend(&self) -> Result<Lent<'_, C>> {
        let (slot, alone) = self.enter();
        let idle = || Moment::now().since(Moment::from_nanos(slot.used.load(Ordering::Relaxed)));
        let mut lane = slot.lane.lock();
        let known = lane.as_ref().filter(|_| !alone || idle() <= IDLE_MAX).map(Arc::clone);
        match known.map_or_else(|| Lane::new(self.tls).map(Arc::new), Ok) {
            Ok(lent) => {
                *lane = Some(Arc::clone(&lent));
                Ok(Lent { slot, lane: lent })
            }
            Err(error) => {
                slot.users.fetch_sub(1, Ordering::Release);
                Err(error)
            }
        }
    }

    /// The slot with one more user, and whether that is the only one.
    fn enter(&self) -> (&Slot<C>, bool) {
        let last = LAST.get() % self.slots.len();
        let warm = |slot: &Slot<C>| {
            Moment::now().since(Moment::from_nanos(slot.used.load(Ordering::Relaxed))) <= WARM
        };
        let free =
            |slot: &Slot<C>| slot.users.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if warm(&self.slots[last]) && free(&self.slots[last]) {
            return (&self.slots[last], true);
        }
        if let Some(at) = self.slots.iter().position(free) {
            LAST.set(at);
            return (&self.slots[at], true);
        }
        let users = |slot: &&Slot<C>| slot.users.load(Ordering::Relaxed);
        let slot = self.slots.iter().min_by_key(users).expect("one lane at the least is allowed");
        let before = slot.users.fetch_add(1, Ordering::Acquire);
        (slot, before == 0)
    }
}

impl<C> Lane<C> {
    fn new(tls: bool) -> Result<Lane<C>> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            // It is called where a thread is about to be started, which inherits the signal mask from there. What
            // comes next there, a future that was polled or the wait for events, ends the blocking: the
            // program's own signals do not wait for the network.
            .thread_name_fn(|| {
                signals::block();
                "dlm-resolver".into()
            })
            .on_thread_park(signals::unblock)
            .thread_keep_alive(RESOLVER_IDLE)
            .max_blocking_threads(2)
            .build()
            .map_err(|error| Error::Connection {
                store: "aerospike:".into(),
                what: "the system gave no event queue for a connection; is the limit of open files reached?"
                    .into(),
                source: Some(error.into()),
            })?;
        Ok(Lane { runtime: Some(runtime), client: Mutex::default(), tls })
    }
}

impl<C> Drop for Lane<C> {
    fn drop(&mut self) {
        // TLS may say farewell.
        let _quiet = self.tls.then(NoSigpipe::new);
        if let Some(runtime) = self.runtime.take() {
            // Closes the connections and waits for nothing, so it may happen in anyone's thread.
            runtime.shutdown_background();
        }
        drop(self.client.get_mut().take());
    }
}

impl<C: Send + Sync> Lent<'_, C> {
    pub(super) fn client(&self) -> Option<Arc<C>> {
        self.lane.client.lock().clone()
    }

    /// From now on the lane's client, unless another caller was faster.
    pub(super) fn adopt(&self, client: C) -> Arc<C> {
        Arc::clone(self.lane.client.lock().get_or_insert_with(|| Arc::new(client)))
    }

    /// Runs the future to its end in the calling thread. `None` if it panicked.
    pub(super) fn drive<T: Send>(&self, future: impl Future<Output = T> + Send) -> Option<T> {
        let runtime = self.lane.runtime.as_ref().expect("there until dropped");
        let run = || {
            let mut future = pin!(future);
            runtime.block_on(poll_fn(|context| {
                let answer = future.as_mut().poll(context);
                // See `Lane::new`.
                signals::unblock();
                answer
            }))
        };
        let drive = || {
            let _quiet = self.lane.tls.then(NoSigpipe::new);
            let answer = catch_unwind(AssertUnwindSafe(run)).ok();
            signals::unblock();
            answer
        };
        if Handle::try_current().is_err() {
            return drive();
        }
        // A thread of the caller's own runtime cannot drive another one.
        thread::scope(|scope| {
            let driver = thread::Builder::new().name("dlm-driver".into());
            let driver = signals::blocked_in_new_threads(|| driver.spawn_scoped(scope, drive));
            driver.ok()?.join().ok().flatten()
        })
    }

    /// No caller gets this lane any more. Those who have it may finish.
    pub(super) fn discard(&self) {
        let mut lane = self.slot.lane.lock();
        if lane.as_ref().is_some_and(|lane| Arc::ptr_eq(lane, &self.lane)) {
            *lane = None;
        }
    }
}

impl<C> Drop for Lent<'_, C> {
    fn drop(&mut self) {
        self.slot.used.store(Moment::now().as_nanos(), Ordering::Relaxed);
        self.slot.users.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_in_use_is_shared_only_when_no_other_is_allowed() {
        let lanes: Lanes<()> = Lanes::new(2, false);
        let (first, second) = (lanes.lend().unwrap(), lanes.lend().unwrap());
        assert!(!Arc::ptr_eq(&first.lane, &second.lane));
        let third = lanes.lend().unwrap();
        assert!(Arc::ptr_eq(&third.lane, &first.lane) || Arc::ptr_eq(&third.lane, &second.lane));
        let lane = Arc::clone(&first.lane);
        drop((first, second, third));
        LAST.set(0);
        assert!(Arc::ptr_eq(&lanes.lend().unwrap().lane, &lane), "the first is preferred");
    }

    #[test]
    fn a_thread_comes_back_to_its_lane_while_it_is_warm() {
        let lanes: Lanes<()> = Lanes::new(3, false);
        let (first, second) = (lanes.lend().unwrap(), lanes.lend().unwrap());
        let lane = Arc::clone(&second.lane);
        drop((first, second));
        lanes.slots[1].used.store(Moment::now().as_nanos(), Ordering::Relaxed);
        assert!(Arc::ptr_eq(&lanes.lend().unwrap().lane, &lane));
        let before = Moment::now().as_nanos() - 2 * WARM.as_nanos() as u64;
        lanes.slots[1].used.store(before, Ordering::Relaxed);
        assert!(!Arc::ptr_eq(&lanes.lend().unwrap().lane, &lane), "others would never grow old");
    }

    #[test]
    fn a_discarded_lane_is_lent_to_nobody_and_goes_on_for_who_has_it() {
        let lanes: Lanes<()> = Lanes::new(1, false);
        let (ours, theirs) = (lanes.lend().unwrap(), lanes.lend().unwrap());
        ours.discard();
        assert_eq!(theirs.drive(async { 7 }), Some(7));
        assert!(!Arc::ptr_eq(&lanes.lend().unwrap().lane, &ours.lane));
    }

    #[test]
    fn a_lane_that_lay_idle_is_made_anew() {
        let lanes: Lanes<u8> = Lanes::new(1, false);
        lanes.lend().unwrap().adopt(1);
        assert!(lanes.lend().unwrap().client().is_some());
        let long_ago = Moment::now().as_nanos() - 2 * IDLE_MAX.as_nanos() as u64;
        lanes.slots[0].used.store(long_ago, Ordering::Relaxed);
        assert!(lanes.lend().unwrap().client().is_none());
    }

    #[test]
    fn a_panic_inside_is_an_answer_and_the_lane_goes_on() {
        let lanes: Lanes<()> = Lanes::new(1, false);
        let lent = lanes.lend().unwrap();
        assert_eq!(lent.drive(async { panic!("planted") }), None::<()>);
        assert_eq!(lent.drive(async { 7 }), Some(7));
    }

    #[test]
    fn threads_that_share_a_lane_all_get_their_answers() {
        let lanes: Lanes<()> = Lanes::new(1, false);
        thread::scope(|scope| {
            for number in 0..20u64 {
                let lanes = &lanes;
                scope.spawn(move || {
                    let lent = lanes.lend().unwrap();
                    let sum = lent.drive(async {
                        let mut sum = 0;
                        for _ in 0..10 {
                            tokio::time::sleep(Duration::from_millis(number % 3)).await;
                            sum += number;
                        }
                        sum
                    });
                    assert_eq!(sum, Some(10 * number));
                });
            }
        });
    }

    #[test]
    fn a_caller_that_is_itself_in_a_runtime_is_served() {
        let theirs = Builder::new_current_thread().enable_all().build().unwrap();
        theirs.block_on(async {
            let lanes: Lanes<()> = Lanes::new(1, false);
            assert_eq!(lanes.lend().unwrap().drive(async { 7 }), Some(7));
        });
    }

    /// Its thread is started by tokio, in whichever thread drives the lane.
    #[test]
    fn a_thread_that_looks_up_names_blocks_signals_and_the_caller_has_its_mask_back() {
        let lanes: Lanes<()> = Lanes::new(1, false);
        let look_up = || tokio::task::spawn_blocking(signals::are_blocked);
        let is_of_a_resolver = || thread::current().name() == Some("dlm-resolver");
        let lent = lanes.lend().unwrap();
        assert_eq!(
            lent.drive(async { tokio::task::spawn_blocking(is_of_a_resolver).await.unwrap() }),
            Some(true)
        );
        // By the request itself, and by what goes on beside it.
        for beside in [false, true] {
            let lanes: Lanes<()> = Lanes::new(1, false);
            let answer = lanes.lend().unwrap().drive(async {
                let there = if beside {
                    tokio::spawn(async move { look_up().await.unwrap() }).await.unwrap()
                } else {
                    look_up().await.unwrap()
                };
                // A look-up that is over before it is waited for has not interrupted this poll.
                tokio::task::yield_now().await;
                // The poll that began it is over, and so is the blocking.
                (there, signals::are_blocked())
            });
            assert_eq!(answer, Some((true, false)), "beside: {beside}");
            assert!(!signals::are_blocked());
        }
    }

    /// A thread that shares a lane waits without driving it.
    #[test]
    fn a_caller_waits_with_its_own_signal_mask_also_in_a_lane_that_another_drives() {
        let lanes: Lanes<()> = Lanes::new(1, false);
        let (go_on, may_go_on) = tokio::sync::oneshot::channel::<()>();
        let (begun, has_begun) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                lanes.lend().unwrap().drive(async {
                    begun.send(()).unwrap();
                    may_go_on.await.unwrap();
                })
            });
            has_begun.recv().unwrap();
            let mut polls = Vec::new();
            let answer = lanes.lend().unwrap().drive(async {
                let blocked = tokio::task::spawn_blocking(signals::are_blocked);
                let mut blocked = pin!(blocked);
                poll_fn(|context| {
                    polls.push(signals::are_blocked());
                    blocked.as_mut().poll(context)
                })
                .await
                .unwrap()
            });
            assert_eq!(answer, Some(true));
            // Right after the thread was started, and never again.
            assert!(polls.len() < 2 || !polls[1..].contains(&true), "{polls:?}");
            go_on.send(()).unwrap();
            assert_eq!(first.join().unwrap(), Some(()));
        });
    }

    #[test]
    fn the_thread_for_a_caller_in_a_runtime_blocks_signals() {
        let theirs = Builder::new_current_thread().enable_all().build().unwrap();
        theirs.block_on(async {
            let lanes: Lanes<()> = Lanes::new(1, true);
            assert_eq!(lanes.lend().unwrap().drive(async { signals::are_blocked() }), Some(true));
            assert!(!signals::are_blocked());
        });
    }
}
