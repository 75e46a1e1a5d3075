//! Locking without guards, for languages that cannot hold one. Callers release by the id, and may evict all ids
//! of an `IdLock` while other threads wait.

use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use super::IdLock;
use crate::runtime::time::instant;

impl<K: Hash + Eq + Clone, S: BuildHasher> IdLock<K, S> {
    /// Locks `id` as [`try_lock_for`](IdLock::try_lock_for) does. `None` waits for ever. Returns false on a
    /// time-out, and for a waiter that [`evict`](IdLock::evict) dismissed.
    #[inline]
    pub(crate) fn enter(&self, id: &K, wait: Option<Duration>) -> bool {
        let hash = self.hash.hash_one(id);
        let shard = self.shard(hash);
        let deadline = || wait.and_then(|wait| instant().checked_add(wait));
        shard.try_lock(hash, id) || wait != Some(Duration::ZERO) && shard.lock_until(hash, id, deadline())
    }

    /// Releases `id`, no matter which thread locked it. Returns whether it was locked.
    #[inline]
    pub(crate) fn leave(&self, id: &K) -> bool {
        let hash = self.hash.hash_one(id);
        self.shard(hash).unlock(hash, id)
    }

    /// Releases all ids and dismisses all waiters.
    pub(crate) fn evict(&self) {
        self.shards.iter().for_each(super::Shard::evict);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn what_is_not_locked_cannot_be_let_go_of() {
        let locks = IdLock::<u64>::new();
        assert!(!locks.leave(&1));
        assert!(locks.enter(&1, Some(Duration::ZERO)) && !locks.enter(&1, Some(Duration::ZERO)));
        if !cfg!(miri) {
            assert!(!locks.enter(&1, Some(Duration::from_millis(1))));
        }
        assert!(locks.leave(&1) && !locks.leave(&1) && locks.is_empty());
    }

    #[test]
    fn waiters_of_an_evicted_lock_leave_with_nothing() {
        let locks = Arc::new(IdLock::<u64>::new());
        let ids = [1_u64, 1, 1, 2];
        assert!(locks.enter(&1, None) && locks.enter(&2, None));
        let waiters = ids.map(|id| {
            let locks = Arc::clone(&locks);
            thread::Builder::new().name("dlm-test".into()).spawn(move || locks.enter(&id, None)).unwrap()
        });
        while locks.shards.iter().map(super::super::Shard::waiters).sum::<usize>() < ids.len() {
            thread::yield_now();
        }
        locks.evict();
        assert_eq!(waiters.map(|waiter| waiter.join().unwrap()), [false; 4]);
        assert!(locks.is_empty());
        assert!(locks.enter(&1, Some(Duration::ZERO)), "usable again");
    }
}
