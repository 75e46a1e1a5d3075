//! The library in a simulation. This module exists only in a build with `--cfg dlm_simulation`.
//!
//! All blocking, clock reads, random numbers and thread starts of the library's core come here. A [`Runtime`] answers
//! them: it decides which thread runs next and what time it is. So one seed fixes the whole run, and a run that broke
//! a rule can be repeated. `tests/simulation` has such a runtime, and `docs/simulation.md` describes it.
//!
//! All simulated threads run in one thread of the operating system, one at a time. They change places only inside the
//! functions of this module and of [`sync::simulated`](crate::runtime::sync::simulated).

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

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

pub(crate) fn runtime() -> Rc<dyn Runtime> {
    RUNTIME
        .with_borrow(Option::clone)
        .expect("built with --cfg dlm_simulation, so it only works in a simulation: see docs/simulation.md")
}

/// Lets the running thread sleep.
pub fn sleep(duration: Duration) {
    let until = now_nanos().saturating_add(nanos(duration));
    let runtime = runtime();
    while runtime.now() < until {
        runtime.park(Some(until));
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

/// Returns the number of nanoseconds, or the largest number if they are more.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

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

/// Returns the nanoseconds of such a moment on the lease clock.
pub(crate) fn nanos_of(instant: Instant) -> u64 {
    nanos(instant.saturating_duration_since(*START))
}

pub(crate) fn instant() -> Instant {
    *START + Duration::from_nanos(now_nanos())
}
