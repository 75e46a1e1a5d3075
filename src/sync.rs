//! Mutexes, condition variables, atomic variables and hash maps of the library's core.
//!
//! They are those of `parking_lot` and of the standard library, and cost nothing more. In a build with
//! `--cfg dlm_simulation` they are those of `simulation`, where a seed decides which thread runs next.

#[cfg(not(dlm_simulation))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(dlm_simulation))]
pub(crate) use std::collections::HashMap;
#[cfg(not(dlm_simulation))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};

#[cfg(dlm_simulation)]
pub(crate) use crate::simulation::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard};

/// Without a random seed, so that one seed of the simulation fixes the order of its entries too.
#[cfg(dlm_simulation)]
pub(crate) type HashMap<K, V> =
    std::collections::HashMap<K, V, std::hash::BuildHasherDefault<std::collections::hash_map::DefaultHasher>>;

/// Mutexes and condition variables that a forked child may have inherited in any state: those of the standard library.
/// `parking_lot` keeps all parked threads of a process in one table. A child would inherit entries for threads that it
/// does not have, whose stacks it reuses, and any parking in the child could then fail.
///
/// Nothing may panic while such a mutex is locked.
pub(crate) mod inheritable {
    use std::time::Duration;

    #[cfg(dlm_simulation)]
    pub(crate) use super::{Condvar, Mutex, MutexGuard};
    #[cfg(not(dlm_simulation))]
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

    #[cfg(not(dlm_simulation))]
    mod blocking {
        use std::sync::PoisonError;

        use super::*;

        pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
            mutex.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn wait<'a, T>(wake: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            wake.wait(guard).unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn wait_for<'a, T>(
            wake: &Condvar,
            guard: MutexGuard<'a, T>,
            time: Duration,
        ) -> MutexGuard<'a, T> {
            wake.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
        }
    }

    #[cfg(dlm_simulation)]
    mod blocking {
        use super::*;

        pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
            mutex.lock()
        }

        pub(crate) fn wait<'a, T>(wake: &Condvar, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            wake.wait(&mut guard);
            guard
        }

        pub(crate) fn wait_for<'a, T>(
            wake: &Condvar,
            mut guard: MutexGuard<'a, T>,
            time: Duration,
        ) -> MutexGuard<'a, T> {
            wake.wait_for(&mut guard, time);
            guard
        }
    }

    pub(crate) use blocking::{lock, wait, wait_for};
}
