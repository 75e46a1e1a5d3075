//! One lock per id, inside this process.
//!
//! An [`IdLock`] is what a service reaches for when "one order at a time" is the rule and there are
//! more orders than anybody would make mutexes for: lock an id, work, drop the guard. The entry for
//! an id is made by its first locker and is gone with its last, so ids that nobody holds or waits
//! for cost nothing, however many have been used.
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
//! It excludes the threads of one process from each other. For other processes there are leases.
//!
//! The file is the API; the protocol by which an id passes from thread to thread is in `shard`.

#[cfg(feature = "capi")]
mod ids;
mod shard;

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::time::{Duration, Instant};

use shard::Shard;

/// Seeded for each [`IdLock`], so that ids which meet in one shard of one process do not meet in
/// the next. Several times faster than the standard library's hash on integers and short strings.
type FastHash = foldhash::fast::RandomState;

/// Enough that two threads on different ids seldom meet in one: a shard is busy for some 20 ns of
/// a lock and of an unlock. At 128 bytes each, all of them still fit the level-1 cache.
const SHARDS: usize = 128;

/// A lock for every id: 64-bit numbers by default, any hashable key if asked.
///
/// The calls are those of a `parking_lot` mutex with an id as the argument, and so are the habits:
///
/// - Threads: any number may share an `IdLock` by reference. All methods take `&self`.
/// - Blocking: `lock`, `lock_many` and the timed calls park the calling thread, after a few
///   hundred nanoseconds of spinning and a few yields. Everything else returns at once.
/// - Not reentrant: a thread that locks an id it already holds waits for itself, forever or until
///   its time is up.
/// - No poisoning: a guard dropped by a panic releases its id like any other.
/// - Fairness: an id just released goes to whoever comes first, which keeps threads from being
///   switched for every grant. Every half millisecond of waiting, though, one release hands the id
///   to the thread that has waited longest. So a waiter gets in after a bounded number of releases,
///   in the order of arrival, however greedy the others are.
/// - Memory: an `IdLock` takes 16 KiB (more for keys over 8 bytes), and allocates only while ids
///   are waited for or several hundred of them are locked together. It gives that back.
///
/// `Eq` and `Hash` of the key must agree, must not panic and must not use the same `IdLock`:
/// comparisons run under an internal mutex. A key whose `Eq` panics or contradicts itself may leave
/// ids locked for good; nothing worse can come of it. `Clone` is called once for every lock, so
/// prefer `Arc<str>` to long `String`s.
///
/// # Keys chosen by strangers
///
/// The default hash is seeded but not cryptographic: somebody able to submit keys at will and to
/// time the answers might find some that collide. Where that is a concern, bring the standard
/// library's hash:
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
    /// A lock with no id locked. Allocates the shards, see [`IdLock`]; worth sharing, not worth
    /// making for each use.
    #[must_use]
    pub fn new() -> Self {
        Self::with_hasher(FastHash::default())
    }
}

impl<K, S> IdLock<K, S> {
    /// The same with another hash function: a slower and safer one, or a fixed one for a test.
    pub fn with_hasher(hash: S) -> Self {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Self { shards, hash }
    }

    /// How many ids are locked or waited for right now. Exact only while no other thread locks or
    /// unlocks: the shards are counted one after another.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(Shard::len).sum()
    }

    /// Whether no id is locked or waited for, with the same reservation as [`len`](Self::len).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.len() == 0)
    }
}

impl<K: Hash + Eq + Clone, S: BuildHasher> IdLock<K, S> {
    /// Locks `id`, waiting as long as it takes.
    #[inline]
    pub fn lock(&self, id: K) -> IdGuard<'_, K> {
        self.acquire(id, |shard, hash, id| shard.lock_until(hash, id, None))
            .expect("a wait without a deadline ends only with the lock")
    }

    /// Locks `id` if nobody holds it, without waiting. That others are already waiting does not
    /// matter: `None` always means that the id was held.
    #[inline]
    pub fn try_lock(&self, id: K) -> Option<IdGuard<'_, K>> {
        self.acquire(id, Shard::try_lock)
    }

    /// Locks `id`, or gives up after `timeout` and leaves no trace of having waited.
    ///
    /// [`Duration::ZERO`] tries once, as [`try_lock`](Self::try_lock) does; a timeout beyond the
    /// end of the clock, such as [`Duration::MAX`], waits as [`lock`](Self::lock) does.
    #[inline]
    pub fn try_lock_for(&self, id: K, timeout: Duration) -> Option<IdGuard<'_, K>> {
        self.acquire(id, |shard, hash, id| {
            shard.try_lock(hash, id)
                || !timeout.is_zero() && shard.lock_until(hash, id, Instant::now().checked_add(timeout))
        })
    }

    /// Locks `id`, or gives up at `deadline` and leaves no trace of having waited. A deadline that
    /// has passed tries once.
    #[inline]
    pub fn try_lock_until(&self, id: K, deadline: Instant) -> Option<IdGuard<'_, K>> {
        self.acquire(id, |shard, hash, id| shard.lock_until(hash, id, Some(deadline)))
    }

    #[inline]
    fn acquire(&self, id: K, by: impl FnOnce(&Shard<K>, u64, &K) -> bool) -> Option<IdGuard<'_, K>> {
        let hash = self.hash.hash_one(&id);
        let shard = self.shard(hash);
        // Lazily: a guard that is made and dropped would release an id that another thread holds.
        by(shard, hash, &id).then(|| IdGuard { shard, hash, id })
    }

    /// Bits from the middle of the hash: a shard's table indexes by the low ones and tells
    /// neighbours apart by the high ones.
    #[inline]
    fn shard(&self, hash: u64) -> &Shard<K> {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }
}

/// Several ids at once.
impl<K: Hash + Ord + Clone, S: BuildHasher> IdLock<K, S> {
    /// Locks all of `ids`, waiting as long as it takes.
    ///
    /// The ids are taken in ascending order and each of them once, however often it is listed. So
    /// callers that lock overlapping sets cannot deadlock, in whatever order they list them. They
    /// still can if one of them holds other ids of this `IdLock` meanwhile: list those as well.
    pub fn lock_many(&self, ids: impl IntoIterator<Item = K>) -> IdGuards<'_, K> {
        self.acquire_many(ids, |id| Some(self.lock(id)))
            .expect("a wait without a deadline ends only with the lock")
    }

    /// Locks all of `ids` if nobody holds any of them, without waiting, or none.
    pub fn try_lock_many(&self, ids: impl IntoIterator<Item = K>) -> Option<IdGuards<'_, K>> {
        self.acquire_many(ids, |id| self.try_lock(id))
    }

    /// Locks all of `ids`, or none if that takes longer than `timeout` in all.
    /// [`Duration::ZERO`] tries each once; [`Duration::MAX`] never gives up.
    pub fn try_lock_many_for(
        &self,
        ids: impl IntoIterator<Item = K>,
        timeout: Duration,
    ) -> Option<IdGuards<'_, K>> {
        match Instant::now().checked_add(timeout) {
            Some(deadline) => self.try_lock_many_until(ids, deadline),
            None => Some(self.lock_many(ids)),
        }
    }

    /// Locks all of `ids`, or none if that is not done by `deadline`. While it waits for one id it
    /// holds those before it, and lets go of them on giving up.
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
        Self::with_hasher(S::default())
    }
}

impl<K, S> fmt::Debug for IdLock<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdLock").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A locked id. Dropping it releases the id, also while the thread unwinds from a panic, and wakes
/// at most one waiter; it never blocks.
///
/// The guard may be moved to another thread and dropped there (`Send` whenever the key is): nothing
/// about holding an id is tied to the thread that locked it. Leaking it, with [`std::mem::forget`]
/// for example, keeps the id locked.
#[must_use = "the id is released when the guard is dropped"]
pub struct IdGuard<'a, K: Eq = u64> {
    shard: &'a Shard<K>,
    hash: u64,
    id: K,
}

impl<K: Eq> IdGuard<'_, K> {
    /// The id that is locked.
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

/// Several locked ids, released together when dropped. `Send` like [`IdGuard`].
#[must_use = "the ids are released when the guards are dropped"]
pub struct IdGuards<'a, K: Eq = u64> {
    guards: Vec<IdGuard<'a, K>>,
}

impl<K: Eq> IdGuards<'_, K> {
    /// The ids that are locked, ascending and without duplicates.
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
