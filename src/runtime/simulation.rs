//! The library in a simulation. This module exists only in a build with `--cfg dlm_simulation`.
//!
//! All blocking, clock reads, random numbers and thread starts of the library's core come here. A [`Runtime`] answers
//! them: it decides which thread runs next and what time it is. So one seed fixes the whole run, and a run that broke
//! a rule can be repeated. `tests/simulation` has such a runtime, and `docs/simulation.md` describes it.
//!
//! All simulated threads run in one thread of the operating system, one at a time. They change places only inside the
//! functions of this module.

use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use crate::runtime::time::Moment;

/// The number of a simulated thread.
pub type ThreadNumber = u64;

/// Decides which simulated thread runs next, and what time it is.
pub trait Runtime {
    /// Returns the time on the lease clock of the running thread's process, in nanoseconds.
    fn now(&self) -> u64;

    /// Returns the wall clock of the running thread's process.
    fn wall(&self) -> SystemTime;

    /// Returns the next random number.
    fn random(&self) -> u64;

    /// Returns the running thread; `None` outside of simulated threads.
    fn current(&self) -> Option<ThreadNumber>;

    /// Starts a thread in the process of the running thread.
    fn spawn(&self, name: String, run: Box<dyn FnOnce()>) -> ThreadNumber;

    /// Waits until the thread has ended. Returns whether it ended without a panic.
    fn join(&self, thread: ThreadNumber) -> bool;

    /// Lets other threads run, if the runtime chooses to.
    fn step(&self);

    /// Blocks the running thread until [`unpark`](Runtime::unpark) was called for it, or until `until` on the lease
    /// clock of its process. Returns at once if `unpark` was called since the last call.
    fn park(&self, until: Option<u64>);

    /// Ends the [`park`](Runtime::park) of a thread, or its next one.
    fn unpark(&self, thread: ThreadNumber);

    /// Sends a datagram. It may be lost, come late or come twice.
    fn send(&self, from: SocketAddr, to: SocketAddr, bytes: &[u8]);

    /// Returns the next datagram for this address, and what it says about its sender. The running thread is unparked when
    /// another one arrives.
    fn receive(&self, at: SocketAddr) -> Option<(Vec<u8>, SocketAddr)>;
}

thread_local! {
    static RUNTIME: RefCell<Option<Rc<dyn Runtime>>> = const { RefCell::new(None) };
}

/// Makes `runtime` answer all calls in this thread of the operating system while `run` runs.
///
/// # Panics
/// If a runtime is installed already.
pub fn with_runtime<T>(runtime: Rc<dyn Runtime>, run: impl FnOnce() -> T) -> T {
    struct Uninstall;
    impl Drop for Uninstall {
        fn drop(&mut self) {
            RUNTIME.with_borrow_mut(Option::take);
        }
    }
    let before = RUNTIME.with_borrow_mut(|installed| installed.replace(runtime));
    assert!(before.is_none(), "this thread has a runtime already");
    let _uninstall = Uninstall;
    run()
}

fn runtime() -> Rc<dyn Runtime> {
    RUNTIME
        .with_borrow(Option::clone)
        .expect("built with --cfg dlm_simulation, so it only works in a simulation: see docs/simulation.md")
}

/// Lets the running thread sleep.
pub fn sleep(duration: Duration) {
    let until = Moment::now().after(duration);
    let runtime = runtime();
    while runtime.now() < until.as_nanos() {
        runtime.park(Some(until.as_nanos()));
    }
}

/// Lets other threads run, if the runtime chooses to.
pub fn step() {
    runtime().step();
}

/// Starts a thread in the process of the running thread.
pub fn spawn(name: impl Into<String>, run: impl FnOnce() + 'static) -> JoinHandle {
    JoinHandle(runtime().spawn(name.into(), Box::new(run)))
}

pub(crate) fn send(from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
    step();
    runtime().send(from, to, bytes);
}

pub(crate) fn receive(at: SocketAddr) -> Option<(Vec<u8>, SocketAddr)> {
    step();
    runtime().receive(at)
}

/// Where one thread waits for datagrams, and others wake it.
#[derive(Default)]
pub(crate) struct Waker(crate::runtime::sync::real::Mutex<Option<ThreadNumber>>);

impl Waker {
    pub(crate) fn wait(&self, until: Moment) {
        let runtime = runtime();
        *self.0.lock() = runtime.current();
        runtime.park((until != Moment::NEVER).then_some(until.as_nanos()));
    }

    pub(crate) fn wake(&self) {
        let thread = *self.0.lock();
        thread.into_iter().for_each(|thread| runtime().unpark(thread));
    }
}

/// A simulated thread that can be joined.
#[derive(Debug)]
pub struct JoinHandle(ThreadNumber);

impl JoinHandle {
    /// Waits until the thread has ended.
    ///
    /// # Errors
    /// The thread panicked.
    pub fn join(self) -> Result<(), Panicked> {
        if runtime().join(self.0) { Ok(()) } else { Err(Panicked) }
    }

    pub(crate) fn is_current(&self) -> bool {
        runtime().current() == Some(self.0)
    }
}

/// A simulated thread has panicked.
#[derive(Debug)]
pub struct Panicked;

pub(crate) fn now_nanos() -> u64 {
    let runtime = runtime();
    // A thread may stand still between reading a clock and using what it read.
    runtime.step();
    runtime.now()
}

pub(crate) fn wall() -> SystemTime {
    runtime().wall()
}

pub(crate) fn random() -> u64 {
    runtime().random()
}

/// The lease clock as an `Instant`, for `IdLock`, whose interface has that type. Only differences count.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(crate) fn instant() -> Instant {
    *START + Duration::from_nanos(now_nanos())
}

/// A mutex as in `sync::real`. A thread that waits for it lets others run. It is handed to no thread in particular:
/// all that wait try again.
#[derive(Default)]
pub(crate) struct Mutex<T> {
    /// Locked and unlocked without blocking, because only one simulated thread runs at a time.
    value: crate::runtime::sync::real::Mutex<T>,
    waiting: crate::runtime::sync::real::Mutex<Vec<ThreadNumber>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex {
            value: crate::runtime::sync::real::Mutex::new(value),
            waiting: crate::runtime::sync::real::Mutex::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let runtime = runtime();
        runtime.step();
        loop {
            if let Some(guard) = self.value.try_lock() {
                return MutexGuard { mutex: self, guard: Some(guard) };
            }
            let current = runtime.current().expect("a mutex is locked outside of simulated threads");
            self.waiting.lock().push(current);
            runtime.park(None);
        }
    }

    // Nothing else calls it.
    #[cfg(feature = "aerospike")]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        step();
        self.value.try_lock().map(|guard| MutexGuard { mutex: self, guard: Some(guard) })
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only inside of [`Condvar`].
    guard: Option<crate::runtime::sync::real::MutexGuard<'a, T>>,
}

impl<T> MutexGuard<'_, T> {
    fn unlock(&mut self) {
        self.guard = None;
        for thread in self.mutex.waiting.lock().drain(..) {
            runtime().unpark(thread);
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("locked")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// A condition variable as in `sync::real`, except that it wakes any of the waiting threads, and not the first one.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    waiting: crate::runtime::sync::real::Mutex<Vec<ThreadNumber>>,
}

/// Whether a wait timed out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub(crate) fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    pub(crate) fn notify_one(&self) {
        let runtime = runtime();
        runtime.step();
        let mut waiting = self.waiting.lock();
        if !waiting.is_empty() {
            let woken = runtime.random() as usize % waiting.len();
            runtime.unpark(waiting.remove(woken));
        }
    }

    pub(crate) fn notify_all(&self) {
        let runtime = runtime();
        runtime.step();
        self.waiting.lock().drain(..).for_each(|thread| runtime.unpark(thread));
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.park(guard, None);
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> WaitTimeoutResult {
        let until = runtime().now().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.park(guard, Some(until))
    }

    pub(crate) fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        let until = deadline.saturating_duration_since(*START).as_nanos();
        self.park(guard, Some(u64::try_from(until).unwrap_or(u64::MAX)))
    }

    fn park<T>(&self, guard: &mut MutexGuard<'_, T>, until: Option<u64>) -> WaitTimeoutResult {
        let runtime = runtime();
        let current = runtime.current().expect("a thread waits outside of simulated threads");
        // One that notifies without the mutex may do so before this thread waits.
        runtime.step();
        self.waiting.lock().push(current);
        guard.unlock();
        let timed_out = loop {
            runtime.park(until);
            let mut waiting = self.waiting.lock();
            let Some(place) = waiting.iter().position(|thread| *thread == current) else { break false };
            if until.is_some_and(|until| runtime.now() >= until) {
                waiting.remove(place);
                break true;
            }
        };
        let mutex = guard.mutex;
        guard.guard = mutex.lock().guard.take();
        WaitTimeoutResult(timed_out)
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// An atomic variable. Before each access, other threads may run.
        #[derive(Debug, Default)]
        pub(crate) struct $name(std::sync::atomic::$name);

        impl $name {
            pub(crate) fn new(value: $value) -> $name {
                $name(std::sync::atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                step();
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                step();
                self.0.store(value, order);
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU64, u64);

impl AtomicU64 {
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        step();
        self.0.fetch_add(value, order)
    }
}
