//! Mutexes and condition variables of the standard library, without poisoning: a panic while one is locked unlocks it.
#![allow(dead_code, reason = "without some stores, a part is not used")]

use std::ops::{Deref, DerefMut};
use std::sync::{self, PoisonError, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use crate::runtime::time::instant;

pub(crate) use std::sync::WaitTimeoutResult;

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    /// `None` only inside of [`Condvar`].
    guard: Option<sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { guard: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(MutexGuard { guard: Some(guard) }),
            Err(sync::TryLockError::Poisoned(poisoned)) => {
                Some(MutexGuard { guard: Some(poisoned.into_inner()) })
            }
            Err(sync::TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.guard.as_ref().expect("locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("locked")
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Condvar {
        Condvar(sync::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let locked = guard.guard.take().expect("locked");
        guard.guard = Some(self.0.wait(locked).unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> WaitTimeoutResult {
        let locked = guard.guard.take().expect("locked");
        let (locked, result) = self.0.wait_timeout(locked, time).unwrap_or_else(PoisonError::into_inner);
        guard.guard = Some(locked);
        result
    }

    pub(crate) fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        self.wait_for(guard, deadline.saturating_duration_since(instant()))
    }
}

#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mutex that can be waited for with a time limit. For work that takes longer than a few memory accesses.
///
/// A thread that comes along may take it before threads that wait, which saves a switch between threads. It does so only
/// a few times in a row: then it goes to a thread that waits. So a thread in a loop shuts out nobody.
#[derive(Debug, Default)]
pub(crate) struct TimedMutex<T> {
    turns: Mutex<Turns>,
    freed: Condvar,
    /// Locked only by the thread that has the turn.
    value: Mutex<T>,
}

#[derive(Debug, Default)]
struct Turns {
    is_taken: bool,
    /// Taken for the next thread that waits and wakes up. `is_taken` stays set.
    is_handed_over: bool,
    waiting: usize,
    /// Whether a thread that waits was woken up and has not run yet.
    is_woken: bool,
    /// How often it was freed since a thread that waits has got it.
    overtaken: u32,
}

/// How often threads that wait may be overtaken.
const OVERTAKEN_MAX: u32 = 8;

/// How often a thread looks whether it was freed before it sleeps. To sleep and to be woken up takes longer than most holds.
const EAGER_LOOKS: u32 = 10;

/// The locked [`TimedMutex`]. It must be dropped in the thread that has locked it.
#[derive(Debug)]
pub(crate) struct TimedGuard<'a, T> {
    // In this order: the value is free before the next thread has its turn.
    value: MutexGuard<'a, T>,
    _turn: TimedTurn<'a>,
}

#[derive(Debug)]
struct TimedTurn<'a> {
    turns: &'a Mutex<Turns>,
    freed: &'a Condvar,
}

impl<T> TimedMutex<T> {
    pub(crate) const fn new(value: T) -> TimedMutex<T> {
        let turns =
            Turns { is_taken: false, is_handed_over: false, waiting: 0, is_woken: false, overtaken: 0 };
        TimedMutex { turns: Mutex::new(turns), freed: Condvar::new(), value: Mutex::new(value) }
    }

    pub(crate) fn lock(&self) -> TimedGuard<'_, T> {
        loop {
            if let Some(guard) = self.try_lock_for(Duration::MAX) {
                return guard;
            }
        }
    }

    pub(crate) fn try_lock(&self) -> Option<TimedGuard<'_, T>> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Returns `None` if it stayed locked for `time`. Tries at least once.
    pub(crate) fn try_lock_for(&self, time: Duration) -> Option<TimedGuard<'_, T>> {
        let mut turns = self.turns.lock();
        if turns.is_taken && time.is_zero() {
            return None;
        }
        let deadline = if turns.is_taken { instant().checked_add(time) } else { None };
        let mut looks = 0;
        // Behind threads that sleep it has no chance soon.
        while turns.is_taken && turns.waiting == 0 && looks < EAGER_LOOKS {
            drop(turns);
            thread::yield_now();
            looks += 1;
            turns = self.turns.lock();
        }
        if turns.is_taken {
            turns.waiting += 1;
            let has_turn = loop {
                let timed_out = match deadline {
                    Some(deadline) => self.freed.wait_until(&mut turns, deadline).timed_out(),
                    None => {
                        self.freed.wait(&mut turns);
                        false
                    }
                };
                turns.is_woken = false;
                if turns.is_handed_over || !turns.is_taken {
                    break true;
                }
                if timed_out {
                    break false;
                }
            };
            turns.waiting -= 1;
            if !has_turn {
                return None;
            }
            (turns.is_handed_over, turns.overtaken) = (false, 0);
        }
        turns.is_taken = true;
        drop(turns);
        Some(TimedGuard {
            _turn: TimedTurn { turns: &self.turns, freed: &self.freed },
            // In builds with assertions, two turns at one time are found.
            value: if cfg!(debug_assertions) {
                self.value.try_lock().expect("one thread has the turn")
            } else {
                self.value.lock()
            },
        })
    }
}

impl Drop for TimedTurn<'_> {
    fn drop(&mut self) {
        let mut turns = self.turns.lock();
        let is_awaited = turns.waiting > 0;
        let wakes = is_awaited && !turns.is_woken;
        turns.is_woken |= wakes;
        if is_awaited && turns.overtaken >= OVERTAKEN_MAX {
            turns.is_handed_over = true;
        } else {
            turns.is_taken = false;
            turns.overtaken = if is_awaited { turns.overtaken + 1 } else { 0 };
        }
        drop(turns);
        if wakes {
            self.freed.notify_one();
        }
    }
}

impl<T> Deref for TimedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for TimedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::patience::until;

    #[test]
    fn a_wait_for_a_timed_mutex_ends_with_its_time_and_takes_nothing_along() {
        let mutex = TimedMutex::new(0);
        let held = mutex.lock();
        thread::scope(|scope| {
            let short = scope.spawn(|| mutex.try_lock_for(Duration::from_millis(1)).is_none());
            assert!(short.join().unwrap());
        });
        assert!(mutex.try_lock().is_none());
        drop(held);
        *mutex.try_lock().unwrap() += 1;
        assert_eq!(*mutex.lock(), 1);
    }

    #[test]
    fn a_thread_in_a_loop_shuts_out_no_thread_that_waits_for_a_timed_mutex() {
        let mutex = TimedMutex::new(());
        // A thread that waits, and that the machine does not let run.
        mutex.turns.lock().waiting = 1;
        let overtaken = (0..2 * OVERTAKEN_MAX).take_while(|_| mutex.try_lock().is_some()).count();
        // The last one could lock it, and handed it over.
        assert_eq!(overtaken, OVERTAKEN_MAX as usize + 1);
        assert!(mutex.turns.lock().is_handed_over);

        let mutex = TimedMutex::new(());
        let held = mutex.lock();
        thread::scope(|scope| {
            scope.spawn(|| drop(mutex.lock()));
            until("the other thread waits", || mutex.turns.lock().waiting == 1);
            drop(held);
            until("it has had its turn", || {
                drop(mutex.try_lock());
                mutex.turns.lock().waiting == 0
            });
        });
        assert!(!mutex.turns.lock().is_taken && mutex.turns.lock().waiting == 0);
    }

    #[test]
    fn threads_exclude_each_other_by_a_timed_mutex() {
        let mutex = TimedMutex::new(0_u32);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let mut count = mutex.lock();
                        let before = *count;
                        thread::yield_now();
                        *count = before + 1;
                    }
                });
            }
        });
        assert_eq!(*mutex.lock(), 2_000);
    }
}
