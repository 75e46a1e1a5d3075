//! One lock per id, inside this process.
//!
//! Use an [`IdLock`] if a service must handle one order at a time, say, and has too many orders for one
//! mutex each: lock an id, work, drop the guard. The first thread that locks an id creates its entry,
//! and the last one removes it. So ids that nobody holds or waits for cost nothing.
//!
//! ```
//! use dlm::IdLock;
//!
//! let orders: IdLock = IdLock::new();
//! let order = orders.lock(4711);
//! assert!(orders.try_lock(4711).is_none());
//! assert!(orders.try_lock(4712).is_some());
//! drop(order);
//! assert!(orders.is_empty());
//! ```
//!
//! It excludes the threads of one process from each other. To exclude other processes, use leases.
//!
//! This file is the API. The protocol by which an id passes from thread to thread is in `shard`.

#[cfg(feature = "capi")]
mod ids;
mod shard;

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::time::{Duration, Instant};

use shard::Shard;

use crate::runtime::process::fork_pause::ForkPause;
use crate::runtime::time::instant;

/// Seeded for each [`IdLock`], so ids that collide in one process do not collide in the next. Several
/// times faster than the standard library's hash on integers and short strings.
type FastHash = foldhash::fast::RandomState;

/// With this number, two threads on different ids seldom use the same shard: a lock or an unlock keeps a
/// shard busy for some 20 ns. At 128 bytes each, all shards fit the level-1 cache.
const SHARDS: usize = 128;

/// One lock per id. Ids are 64-bit numbers by default, and can be any hashable key.
///
/// The methods are those of a mutex of the crate `parking_lot` with an id as argument, and behave in the same way:
///
/// - Threads: any number may share an `IdLock` by reference. All methods take `&self`.
/// - Blocking: `lock`, `lock_many` and the timed calls park the calling thread, after a few
///   hundred nanoseconds of spinning and a few yields. All other calls return at once.
/// - Not reentrant: a thread that locks an id it already holds waits for itself, for ever or until
///   its wait times out.
/// - Forks: a forked child must create its own. In an inherited one, ids may stay locked for ever by threads that the
///   child does not have.
/// - No poisoning: a guard dropped by a panic releases its id as usual.
/// - Fairness: a released id goes to the first thread that asks for it, which avoids a thread switch
///   for every grant. Every half millisecond of waiting, one release hands the id to the thread that
///   has waited longest. So each waiter gets the id after a bounded number of releases, in the order
///   of arrival.
/// - Memory: an `IdLock` takes 16 KiB (more for keys over 8 bytes). It allocates more only while
///   threads wait or several hundred ids are locked together, and frees that afterwards.
///
/// `Eq` and `Hash` of the key must agree, must not panic and must not use the same `IdLock`:
/// comparisons run under an internal mutex. If `Eq` panics or contradicts itself, ids may stay locked
/// for ever, but nothing worse can happen. `Clone` is called once for every lock, so prefer `Arc<str>`
/// to long `String`s.
///
/// # Keys from untrusted callers
///
/// The default hash is seeded but not cryptographic. An attacker who can submit keys at will and
/// measure response times might find keys that collide. If that matters, use the standard library's
/// hash:
///
/// ```
/// use std::hash::RandomState;
/// use dlm::IdLock;
///
/// let locks = IdLock::<String, RandomState>::with_hasher(RandomState::new());
/// let guard = locks.lock("from the network".to_owned());
/// # drop(guard);
/// ```
pub struct IdLock<K = u64, S = FastHash> {
    shards: Box<[Shard<K>]>,
    hash: S,
}

impl<K> IdLock<K> {
    /// Makes an `IdLock` with no id locked. Allocates its 16 KiB at once, so share one instead of making
    /// one for each use.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl<K, S> IdLock<K, S> {
    /// Makes an `IdLock` with another hash function: a slower and safer one, or a fixed one for a test.
    pub fn with_hasher(hash: S) -> Self {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Self { shards, hash }
    }

    /// Returns how many ids are locked or waited for. Exact only while no other thread locks or unlocks,
    /// because the shards are counted one after another.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(Shard::len).sum()
    }

    /// Returns whether no id is locked or waited for. As exact as [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.len() == 0)
    }
}

impl<K: Hash + Eq + Clone, S: BuildHasher> IdLock<K, S> {
    /// Locks `id`. Waits without a time limit.
    #[inline]
    pub fn lock(&self, id: K) -> IdGuard<'_, K> {
        self.acquire(id, |shard, hash, id| shard.lock_until(hash, id, None))
            .expect("a wait without a deadline ends only with the lock")
    }

    /// Locks `id` if nobody holds it, without waiting, even if other threads wait for it. `None` always
    /// means that the id was held.
    #[inline]
    pub fn try_lock(&self, id: K) -> Option<IdGuard<'_, K>> {
        self.acquire(id, Shard::try_lock)
    }

    /// Locks `id`, or returns `None` after `timeout`. A wait that timed out leaves nothing behind.
    ///
    /// [`Duration::ZERO`] tries once, as [`try_lock`](Self::try_lock) does. A timeout beyond the end of
    /// the clock, such as [`Duration::MAX`], waits as [`lock`](Self::lock) does.
    #[inline]
    pub fn try_lock_for(&self, id: K, timeout: Duration) -> Option<IdGuard<'_, K>> {
        self.acquire(id, |shard, hash, id| {
            shard.try_lock(hash, id)
                || !timeout.is_zero() && shard.lock_until(hash, id, instant().checked_add(timeout))
        })
    }

    /// Locks `id`, or returns `None` at `deadline`. A wait that timed out leaves nothing behind. A
    /// deadline that has passed tries once.
    #[inline]
    pub fn try_lock_until(&self, id: K, deadline: Instant) -> Option<IdGuard<'_, K>> {
        self.acquire(id, |shard, hash, id| shard.lock_until(hash, id, Some(deadline)))
    }

    #[inline]
    fn acquire(&self, id: K, by: impl FnOnce(&Shard<K>, u64, &K) -> bool) -> Option<IdGuard<'_, K>> {
        let hash = self.hash.hash_one(&id);
        let shard = self.shard(hash);
        // `then`, not `then_some`: a guard that is made and dropped would release the id of another thread.
        by(shard, hash, &id).then(|| IdGuard { shard, hash, id })
    }

    /// Uses bits from the middle of the hash: a shard's table uses the low ones as an index, and the high
    /// ones to tell neighbours apart.
    #[inline]
    fn shard(&self, hash: u64) -> &Shard<K> {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }
}

/// Methods for several ids at once.
impl<K: Hash + Ord + Clone, S: BuildHasher> IdLock<K, S> {
    /// Locks all of `ids`. Waits without a time limit.
    ///
    /// The ids are locked in ascending order, and each id once, even if it is listed several times. So
    /// callers that lock overlapping sets cannot deadlock. They still can if one of them already holds
    /// other ids of this `IdLock`: list those as well.
    pub fn lock_many(&self, ids: impl IntoIterator<Item = K>) -> IdGuards<'_, K> {
        self.acquire_many(ids, |id| Some(self.lock(id)))
            .expect("a wait without a deadline ends only with the lock")
    }

    /// Locks all of `ids` if nobody holds any of them, without waiting. Otherwise locks none of them.
    pub fn try_lock_many(&self, ids: impl IntoIterator<Item = K>) -> Option<IdGuards<'_, K>> {
        self.acquire_many(ids, |id| self.try_lock(id))
    }

    /// Locks all of `ids`, or none of them if that takes longer than `timeout` in total.
    /// [`Duration::ZERO`] tries each id once; [`Duration::MAX`] waits for ever.
    pub fn try_lock_many_for(
        &self,
        ids: impl IntoIterator<Item = K>,
        timeout: Duration,
    ) -> Option<IdGuards<'_, K>> {
        match instant().checked_add(timeout) {
            Some(deadline) => self.try_lock_many_until(ids, deadline),
            None => Some(self.lock_many(ids)),
        }
    }

    /// Locks all of `ids`, or none of them if that is not possible by `deadline`. While it waits for one
    /// id, it holds those before it. It releases them when it times out.
    pub fn try_lock_many_until(
        &self,
        ids: impl IntoIterator<Item = K>,
        deadline: Instant,
    ) -> Option<IdGuards<'_, K>> {
        self.acquire_many(ids, |id| self.try_lock_until(id, deadline))
    }

    fn acquire_many<'a>(
        &'a self,
        ids: impl IntoIterator<Item = K>,
        acquire: impl FnMut(K) -> Option<IdGuard<'a, K>>,
    ) -> Option<IdGuards<'a, K>> {
        let mut ids: Vec<K> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        let guards = ids.into_iter().map(acquire).collect::<Option<_>>()?;
        Some(IdGuards { guards })
    }
}

impl<K, S: Default> Default for IdLock<K, S> {
    fn default() -> Self {
        // The first hasher of a process draws a seed that the others share.
        let _pause = ForkPause::new();
        Self::with_hasher(S::default())
    }
}

impl<K, S> fmt::Debug for IdLock<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdLock").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A locked id. Dropping it releases the id, also while the thread unwinds from a panic. The drop wakes
/// at most one waiter and never blocks.
///
/// The guard may be moved to another thread and dropped there (it is `Send` if the key is). Leaking it,
/// for example with [`std::mem::forget`], keeps the id locked.
#[must_use = "the id is released when the guard is dropped"]
pub struct IdGuard<'a, K: Eq = u64> {
    shard: &'a Shard<K>,
    hash: u64,
    id: K,
}

impl<K: Eq> IdGuard<'_, K> {
    /// Returns the locked id.
    pub fn id(&self) -> &K {
        &self.id
    }
}

impl<K: Eq> Drop for IdGuard<'_, K> {
    #[inline]
    fn drop(&mut self) {
        self.shard.unlock(self.hash, &self.id);
    }
}

impl<K: Eq + fmt::Debug> fmt::Debug for IdGuard<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdGuard").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Several locked ids. Dropping it releases all of them. `Send` like [`IdGuard`].
#[must_use = "the ids are released when the guards are dropped"]
pub struct IdGuards<'a, K: Eq = u64> {
    guards: Vec<IdGuard<'a, K>>,
}

impl<K: Eq> IdGuards<'_, K> {
    /// Returns the locked ids, ascending and without duplicates.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = &K> + DoubleEndedIterator {
        self.guards.iter().map(IdGuard::id)
    }
}

impl<K: Eq + fmt::Debug> fmt::Debug for IdGuards<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "arithmetic only, and much of it")]
    fn regular_ids_do_not_crowd_into_few_shards() {
        let ids_per_shard = 1_000;
        for stride in [1, 2, 64, 1 << 7, 1 << 20, 1 << 32, 1 << 40] {
            let locks = IdLock::<u64>::new();
            let guards: Vec<_> = (0..ids_per_shard * SHARDS as u64).map(|i| locks.lock(i * stride)).collect();
            let fullest = locks.shards.iter().map(Shard::len).max().unwrap_or_default() as u64;
            assert!(fullest < 4 * ids_per_shard, "stride {stride}: {fullest} in one shard");
            drop(guards);
        }
    }
}
