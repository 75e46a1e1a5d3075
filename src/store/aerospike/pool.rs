//! Connections of an asynchronous client for blocking callers, without background threads.
//!
//! A member of the pool is a single-threaded runtime with a client in it. The calling thread runs the member during
//! its own request. No other thread wakes up, so a request costs only its system calls. A connection belongs to the
//! runtime that opened it, so each member has its own connections. A caller prefers the member that it used a
//! moment ago, then any unused member. If all members are in use, callers share one. The requests of a shared
//! member take turns, which costs a little time.
//!
//! The background work of a client (checking the cluster) runs only while a caller runs the member. A member that
//! was idle for long is therefore replaced by a new one.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Error, Result};
use crate::runtime::process::descriptors::{self, above_streams};
use crate::runtime::process::signals::{self, NoSignal};
use crate::runtime::process::{stack, threads};
use crate::runtime::sync::real::Mutex;
use crate::runtime::time::Moment;

/// After this idle time, what a member knows about the cluster is too old.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// Within this time a thread returns to its last member, whose data are still in the processor's cache. Later it
/// uses the first free member, so that under little load the other members become idle.
const WARM: Duration = Duration::from_millis(100);
/// The runtime starts a thread to look up a host name. The thread ends after this idle time.
const RESOLVER_IDLE: Duration = Duration::from_millis(100);

/// The stack that the client needs for a request, with some to spare: a thread that has less left drives it in another one.
const STACK_NEEDED: usize = 256 << 10;

thread_local! {
    /// The index of the member that this thread used last. The pools of several stores may share the index.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

pub(super) struct ClientPool<C> {
    slots: Box<[PoolSlot<C>]>,
    tls: bool,
}

/// The place of one member. Aligned to its own cache lines, because every request writes to it.
#[repr(align(128))]
struct PoolSlot<C> {
    users: AtomicUsize,
    /// The [`Moment`] of the last use, in nanoseconds.
    used: AtomicU64,
    member: Mutex<Option<Arc<PoolMember<C>>>>,
}

/// A runtime, and its client once connected.
struct PoolMember<C> {
    /// `None` only during drop.
    runtime: Option<Runtime>,
    client: Mutex<Option<Arc<C>>>,
    /// With TLS the client writes with `writev`, which has no flag against SIGPIPE. Without TLS it writes with
    /// `send` and that flag.
    tls: bool,
}

/// A member in use. Dropping it returns the member to the pool.
pub(super) struct PooledClient<'a, C> {
    slot: &'a PoolSlot<C>,
    member: Arc<PoolMember<C>>,
}

impl<C: Send + Sync> ClientPool<C> {
    /// Creates a pool of at most `max` members, with or without TLS.
    pub(super) fn new(max: usize, tls: bool) -> ClientPool<C> {
        let slot =
            |_| PoolSlot { users: AtomicUsize::new(0), used: AtomicU64::new(0), member: Mutex::default() };
        ClientPool { slots: (0..max).map(slot).collect(), tls }
    }

    /// Returns an unused member, a new one, or the shared one with the fewest users. No I/O.
    pub(super) fn lend(&self) -> Result<PooledClient<'_, C>> {
        let (slot, alone) = self.enter();
        let idle = || Moment::now().since(Moment::from_nanos(slot.used.load(Ordering::Relaxed)));
        let mut member = slot.member.lock();
        let known = member.as_ref().filter(|_| !alone || idle() <= IDLE_MAX).map(Arc::clone);
        match known.map_or_else(|| PoolMember::new(self.tls).map(Arc::new), Ok) {
            Ok(pooled) => {
                *member = Some(Arc::clone(&pooled));
                Ok(PooledClient { slot, member: pooled })
            }
            Err(error) => {
                slot.users.fetch_sub(1, Ordering::Release);
                Err(error)
            }
        }
    }

    /// Adds a user to a slot. Returns the slot, and whether this user is alone in it.
    fn enter(&self) -> (&PoolSlot<C>, bool) {
        let last = LAST.get() % self.slots.len();
        let warm = |slot: &PoolSlot<C>| {
            Moment::now().since(Moment::from_nanos(slot.used.load(Ordering::Relaxed))) <= WARM
        };
        let free = |slot: &PoolSlot<C>| {
            slot.users.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        if warm(&self.slots[last]) && free(&self.slots[last]) {
            return (&self.slots[last], true);
        }
        if let Some(at) = self.slots.iter().position(free) {
            LAST.set(at);
            return (&self.slots[at], true);
        }
        let users = |slot: &&PoolSlot<C>| slot.users.load(Ordering::Relaxed);
        let slot = self.slots.iter().min_by_key(users).expect("at least one member is allowed");
        let before = slot.users.fetch_add(1, Ordering::Acquire);
        (slot, before == 0)
    }
}

impl<C> PoolMember<C> {
    fn new(tls: bool) -> Result<PoolMember<C>> {
        let mut builder = Builder::new_current_thread();
        builder
            .enable_all()
            // Tokio calls this in the thread that is about to start the new one. The new thread inherits the signal
            // mask of that thread. Signals are unblocked right after the poll, or before the wait for events:
            // the program's signals must not wait for the network.
            .thread_name_fn(|| {
                signals::block();
                "dlm-resolver".into()
            })
            .on_thread_park(|| {
                signals::unblock();
                descriptors::give_back_streams();
            })
            // The client opens its connections between two waits, and a resolver's thread opens what it needs.
            .on_thread_unpark(descriptors::take_streams)
            .on_thread_start(descriptors::take_streams)
            .on_thread_stop(descriptors::give_back_streams)
            .thread_keep_alive(RESOLVER_IDLE)
            .max_blocking_threads(2);
        let runtime = above_streams(|| builder.build()).map_err(|error| Error::Connection {
            store: "aerospike:".into(),
            what: "the system refused an event queue for a connection; is the limit of open files reached?"
                .into(),
            source: Some(error.into()),
        })?;
        Ok(PoolMember { runtime: Some(runtime), client: Mutex::default(), tls })
    }
}

impl<C> Drop for PoolMember<C> {
    fn drop(&mut self) {
        // TLS may send a closing message.
        let _quiet = self.tls.then(NoSignal::pipe);
        if let Some(runtime) = self.runtime.take() {
            // This closes the connections and does not block, so it may run in any thread.
            runtime.shutdown_background();
        }
        drop(self.client.get_mut().take());
    }
}

impl<C: Send + Sync> PooledClient<'_, C> {
    pub(super) fn client(&self) -> Option<Arc<C>> {
        self.member.client.lock().clone()
    }

    /// Makes `client` the member's client unless it already has one. Returns the member's client.
    pub(super) fn adopt(&self, client: C) -> Arc<C> {
        Arc::clone(self.member.client.lock().get_or_insert_with(|| Arc::new(client)))
    }

    /// Runs the future to its end in the calling thread. `None` if it panicked.
    pub(super) fn drive<T: Send>(&self, future: impl Future<Output = T> + Send) -> Option<T> {
        let runtime = self.member.runtime.as_ref().expect("there until dropped");
        let run = || {
            let mut future = pin!(future);
            runtime.block_on(poll_fn(|context| {
                let answer = future.as_mut().poll(context);
                // See `PoolMember::new`.
                signals::unblock();
                answer
            }))
        };
        let drive = || {
            let _quiet = self.member.tls.then(NoSignal::pipe);
            descriptors::take_streams();
            let answer = catch_unwind(AssertUnwindSafe(run)).ok();
            descriptors::give_back_streams();
            signals::unblock();
            answer
        };
        if Handle::try_current().is_err() && stack::left().is_some_and(|left| left >= STACK_NEEDED) {
            return drive();
        }
        // A thread inside the caller's own tokio runtime cannot run another runtime, and a small stack has no room for it.
        thread::scope(|scope| {
            let driver = threads::spawn_scoped("dlm-driver", scope, drive);
            driver.ok()?.join().ok().flatten()
        })
    }

    /// Removes this member from the pool. Callers that use it now may finish.
    pub(super) fn discard(&self) {
        let mut member = self.slot.member.lock();
        if member.as_ref().is_some_and(|member| Arc::ptr_eq(member, &self.member)) {
            *member = None;
        }
    }
}

impl<C> Drop for PooledClient<'_, C> {
    fn drop(&mut self) {
        self.slot.used.store(Moment::now().as_nanos(), Ordering::Relaxed);
        self.slot.users.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::patience::LONG;

    /// Lets a lane stay as if it had just been used, however slow this machine is.
    fn just_used<C>(slot: &PoolSlot<C>) {
        slot.used.store(Moment::now().after(LONG).as_nanos(), Ordering::Relaxed);
    }

    #[test]
    fn a_lane_in_use_is_shared_only_when_no_other_is_allowed() {
        let pool: ClientPool<()> = ClientPool::new(2, false);
        let (first, second) = (pool.lend().unwrap(), pool.lend().unwrap());
        assert!(!Arc::ptr_eq(&first.member, &second.member));
        let third = pool.lend().unwrap();
        assert!(Arc::ptr_eq(&third.member, &first.member) || Arc::ptr_eq(&third.member, &second.member));
        let member = Arc::clone(&first.member);
        drop((first, second, third));
        pool.slots.iter().for_each(just_used);
        LAST.set(0);
        assert!(Arc::ptr_eq(&pool.lend().unwrap().member, &member), "the first is preferred");
    }

    #[test]
    fn a_thread_comes_back_to_its_lane_while_it_is_warm() {
        let pool: ClientPool<()> = ClientPool::new(3, false);
        let (first, second) = (pool.lend().unwrap(), pool.lend().unwrap());
        let member = Arc::clone(&second.member);
        drop((first, second));
        just_used(&pool.slots[1]);
        assert!(Arc::ptr_eq(&pool.lend().unwrap().member, &member));
        let before = Moment::now().as_nanos() - 2 * WARM.as_nanos() as u64;
        pool.slots[1].used.store(before, Ordering::Relaxed);
        assert!(!Arc::ptr_eq(&pool.lend().unwrap().member, &member), "others would never become idle");
    }

    #[test]
    fn a_discarded_lane_is_lent_to_nobody_and_goes_on_for_who_has_it() {
        let pool: ClientPool<()> = ClientPool::new(1, false);
        let (ours, theirs) = (pool.lend().unwrap(), pool.lend().unwrap());
        ours.discard();
        assert_eq!(theirs.drive(async { 7 }), Some(7));
        assert!(!Arc::ptr_eq(&pool.lend().unwrap().member, &ours.member));
    }

    #[test]
    fn a_lane_that_lay_idle_is_made_anew() {
        let pool: ClientPool<u8> = ClientPool::new(1, false);
        pool.lend().unwrap().adopt(1);
        just_used(&pool.slots[0]);
        assert!(pool.lend().unwrap().client().is_some());
        let long_ago = Moment::now().as_nanos() - 2 * IDLE_MAX.as_nanos() as u64;
        pool.slots[0].used.store(long_ago, Ordering::Relaxed);
        assert!(pool.lend().unwrap().client().is_none());
    }

    #[test]
    fn a_panic_inside_is_an_answer_and_the_lane_goes_on() {
        let pool: ClientPool<()> = ClientPool::new(1, false);
        let pooled = pool.lend().unwrap();
        assert_eq!(pooled.drive(async { panic!("planted") }), None::<()>);
        assert_eq!(pooled.drive(async { 7 }), Some(7));
    }

    #[test]
    fn threads_that_share_a_lane_all_get_their_answers() {
        let pool: ClientPool<()> = ClientPool::new(1, false);
        thread::scope(|scope| {
            for number in 0..20u64 {
                let pool = &pool;
                scope.spawn(move || {
                    let pooled = pool.lend().unwrap();
                    let sum = pooled.drive(async {
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
            let pool: ClientPool<()> = ClientPool::new(1, false);
            assert_eq!(pool.lend().unwrap().drive(async { 7 }), Some(7));
        });
    }

    /// Tokio starts the thread that looks up names from the thread that runs the member.
    #[test]
    fn a_thread_that_looks_up_names_blocks_signals_and_the_caller_has_its_mask_back() {
        let pool: ClientPool<()> = ClientPool::new(1, false);
        let look_up = || tokio::task::spawn_blocking(signals::are_blocked);
        let is_of_a_resolver = || thread::current().name() == Some("dlm-resolver");
        let pooled = pool.lend().unwrap();
        assert_eq!(
            pooled.drive(async { tokio::task::spawn_blocking(is_of_a_resolver).await.unwrap() }),
            Some(true)
        );
        // Started by the request itself, and by a task beside it.
        for beside in [false, true] {
            let pool: ClientPool<()> = ClientPool::new(1, false);
            let answer = pool.lend().unwrap().drive(async {
                let there = if beside {
                    tokio::spawn(async move { look_up().await.unwrap() }).await.unwrap()
                } else {
                    look_up().await.unwrap()
                };
                // A look-up that ends before the await does not end this poll. Yielding does.
                tokio::task::yield_now().await;
                // The poll that started the look-up has ended, so signals are not blocked any more.
                (there, signals::are_blocked())
            });
            assert_eq!(answer, Some((true, false)), "beside: {beside}");
            assert!(!signals::are_blocked());
        }
    }

    /// A thread that shares a member waits and does not run it.
    #[test]
    fn a_caller_waits_with_its_own_signal_mask_also_in_a_lane_that_another_drives() {
        let pool: ClientPool<()> = ClientPool::new(1, false);
        let (go_on, may_go_on) = tokio::sync::oneshot::channel::<()>();
        let (begun, has_begun) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                pool.lend().unwrap().drive(async {
                    begun.send(()).unwrap();
                    may_go_on.await.unwrap();
                })
            });
            has_begun.recv().unwrap();
            let mut polls = Vec::new();
            let answer = pool.lend().unwrap().drive(async {
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
            // Signals may be blocked right after the thread was started, and never again.
            assert!(polls.len() < 2 || !polls[1..].contains(&true), "{polls:?}");
            go_on.send(()).unwrap();
            assert_eq!(first.join().unwrap(), Some(()));
        });
    }

    #[test]
    fn the_thread_for_a_caller_in_a_runtime_blocks_signals() {
        let theirs = Builder::new_current_thread().enable_all().build().unwrap();
        theirs.block_on(async {
            let pool: ClientPool<()> = ClientPool::new(1, true);
            assert_eq!(pool.lend().unwrap().drive(async { signals::are_blocked() }), Some(true));
            assert!(!signals::are_blocked());
        });
    }
}
