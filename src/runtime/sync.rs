//! Mutexes, condition variables, atomic variables and hash maps of the library.
//!
//! They are those of the standard library, and cost nothing more. In a build with `--cfg dlm_simulation`, those of the
//! core are those of `simulated`, where a seed decides which thread runs next.
//!
//! **Forks.** A program may fork while its threads wait for each other here, and the child uses the library with
//! objects of its own. So nothing here has state that all objects of a process share: a child would inherit entries for
//! threads that it does not have, and hang or crash. The table of parked threads of `parking_lot` is such a state. A
//! `static` mutex may be locked during the fork: see [`fork_pause`](crate::runtime::process::fork_pause).

/// What waits in the operating system also in the simulation: in stores over real sockets and files, and where no
/// simulated thread waits.
pub(crate) mod real;
#[cfg(dlm_simulation)]
pub(crate) mod simulated;

#[cfg(not(dlm_simulation))]
pub(crate) use real::{Condvar, Mutex, MutexGuard};
#[cfg(not(dlm_simulation))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};

#[cfg(dlm_simulation)]
pub(crate) use simulated::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Waker};

/// A pair of acquire and release looks up fifteen entries, which takes a tenth of the instructions of the standard library's hash.
/// The seed differs from process to process but can be guessed. So maps whose keys strangers choose have a limit.
#[cfg(not(dlm_simulation))]
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// Without a random seed, so that one seed of the simulation fixes the order of its entries too.
#[cfg(dlm_simulation)]
pub(crate) type HashMap<K, V> =
    std::collections::HashMap<K, V, std::hash::BuildHasherDefault<std::collections::hash_map::DefaultHasher>>;
