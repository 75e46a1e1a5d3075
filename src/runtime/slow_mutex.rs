//! A mutex that is held during requests to the store. A thread may wait for it until a deadline, or leave what is to be
//! done to the thread that has it locked.

use std::ops::{Deref, DerefMut};

use crate::runtime::sync::{Condvar, Mutex, MutexGuard};
use crate::runtime::time::{Deadline, Moment};

pub(crate) struct SlowMutex<T> {
    /// Never locked for long.
    state: Mutex<SlowState<T>>,
    unlocked: Condvar,
}

struct SlowState<T> {
    /// `None` while it is locked.
    value: Option<Box<T>>,
    /// What the thread that has it locked does after it has unlocked it.
    afterwards: Option<Box<dyn FnOnce() + Send>>,
    is_abandoned: bool,
}

/// Has the value, and gives it back when it is dropped.
pub(crate) struct SlowGuard<'a, T> {
    mutex: &'a SlowMutex<T>,
    /// `None` only in the drop.
    value: Option<Box<T>>,
}

impl<T> SlowMutex<T> {
    pub(crate) fn new(value: T) -> SlowMutex<T> {
        let state = SlowState { value: Some(Box::new(value)), afterwards: None, is_abandoned: false };
        SlowMutex { state: Mutex::new(state), unlocked: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> SlowGuard<'_, T> {
        let mut state = self.state.lock();
        loop {
            match self.taken(&mut state) {
                Some(guard) => return guard,
                None => self.unlocked.wait(&mut state),
            }
        }
    }

    /// Returns `None` if it was locked until `by`.
    pub(crate) fn lock_by(&self, by: Deadline) -> Option<SlowGuard<'_, T>> {
        let mut state = self.state.lock();
        loop {
            if let Some(guard) = self.taken(&mut state) {
                return Some(guard);
            }
            let left = by.moment().since(Moment::now());
            if left.is_zero() {
                return None;
            }
            self.unlocked.wait_for(&mut state, left);
        }
    }

    pub(crate) fn try_lock(&self) -> Option<SlowGuard<'_, T>> {
        self.taken(&mut self.state.lock())
    }

    fn taken(&self, state: &mut MutexGuard<'_, SlowState<T>>) -> Option<SlowGuard<'_, T>> {
        state.value.take().map(|value| SlowGuard { mutex: self, value: Some(value) })
    }

    /// Locks it if nobody has it locked. Otherwise the thread that has calls `afterwards` after it has unlocked it. Does not
    /// wait.
    pub(crate) fn lock_or_leave(
        &self,
        afterwards: impl FnOnce() + Send + 'static,
    ) -> Option<SlowGuard<'_, T>> {
        let mut state = self.state.lock();
        let guard = self.taken(&mut state);
        if guard.is_none() {
            state.afterwards = Some(Box::new(afterwards));
            state.is_abandoned = true;
        }
        guard
    }

    /// Whether something was left to a thread that had it locked.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.state.lock().is_abandoned
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.state.get_mut().value.as_mut().expect("nobody can have it locked")
    }
}

impl<T> Deref for SlowGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it has the value")
    }
}

impl<T> DerefMut for SlowGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("it has the value")
    }
}

impl<T> Drop for SlowGuard<'_, T> {
    fn drop(&mut self) {
        let mut state = self.mutex.state.lock();
        state.value = self.value.take();
        let afterwards = state.afterwards.take();
        drop(state);
        self.mutex.unlocked.notify_one();
        if let Some(afterwards) = afterwards {
            afterwards();
        }
    }
}

#[cfg(all(test, not(dlm_simulation)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_thread_at_a_time_has_it() {
        let (mutex, most) = (SlowMutex::new(0_u32), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let mut value = mutex.lock();
                        assert_eq!(most.fetch_add(1, Ordering::SeqCst), 0);
                        *value += 1;
                        most.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(*mutex.lock(), 4000);
    }

    #[test]
    fn it_is_waited_for_until_a_deadline_or_the_rest_is_left_to_the_thread_that_has_it() {
        let (mutex, calls) = (SlowMutex::new(()), Arc::new(AtomicUsize::new(0)));
        let called = || {
            let calls = Arc::clone(&calls);
            move || _ = calls.fetch_add(1, Ordering::SeqCst)
        };
        assert!(mutex.lock_or_leave(called()).is_some() && !mutex.is_abandoned());
        let guard = mutex.lock();
        let began = Moment::now();
        assert!(mutex.try_lock().is_none());
        assert!(mutex.lock_by(Deadline::after(Duration::from_millis(20))).is_none());
        assert!(Moment::now().since(began) >= Duration::from_millis(20));
        assert!(mutex.lock_or_leave(called()).is_none() && mutex.is_abandoned());
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        drop(guard);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert!(mutex.lock_by(Deadline::at(Moment::OVER)).is_some(), "it is free");
        assert!(mutex.try_lock().is_some());
        assert_eq!(calls.load(Ordering::SeqCst), 1, "once");
    }
}
