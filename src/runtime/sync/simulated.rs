//! Mutexes, condition variables and atomic variables of the simulation, at each of which another thread may run.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::runtime::simulation::{ThreadNumber, nanos, nanos_of, runtime, step};
use crate::runtime::sync::real;
use crate::runtime::time::Moment;

/// A mutex as in `sync::real`. A thread that waits for it lets others run. It is handed to no thread in particular:
/// all that wait try again.
#[derive(Default)]
pub(crate) struct Mutex<T> {
    /// Locked and unlocked without blocking, because only one simulated thread runs at a time.
    value: real::Mutex<T>,
    waiting: real::Mutex<Vec<ThreadNumber>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex { value: real::Mutex::new(value), waiting: real::Mutex::default() }
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

    pub(crate) fn is_locked(&self) -> bool {
        self.value.try_lock().is_none()
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
    guard: Option<real::MutexGuard<'a, T>>,
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
    waiting: real::Mutex<Vec<ThreadNumber>>,
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
        let until = runtime().now().saturating_add(nanos(time));
        self.park(guard, Some(until))
    }

    pub(crate) fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        self.park(guard, Some(nanos_of(deadline)))
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
            let Some(index) = waiting.iter().position(|thread| *thread == current) else { break false };
            if until.is_some_and(|until| runtime.now() >= until) {
                waiting.remove(index);
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

impl AtomicBool {
    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        step();
        self.0.swap(value, order)
    }
}

impl AtomicU64 {
    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        step();
        self.0.fetch_add(value, order)
    }
}

/// Where one thread waits for datagrams, and others wake it.
#[derive(Default)]
pub(crate) struct Waker(real::Mutex<Option<ThreadNumber>>);

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
