//! Ways to lock an id in this process, each with all the work that it takes.

use std::hint::black_box;
use std::sync::Arc;

use dashmap::DashMap;
use dlm::IdLock;
use lockable::LockPool;
use parking_lot::Mutex;

pub(crate) trait Locks: Sync {
    const NAME: &'static str;

    /// Makes the locks for ids in `0..keys`, a power of two. Some do not need to know `keys`.
    fn new(keys: u64) -> Self;

    /// Locks and unlocks an id.
    fn cycle(&self, id: u64);
}

impl Locks for IdLock {
    const NAME: &'static str = "IdLock";

    fn new(_keys: u64) -> Self {
        IdLock::new()
    }

    #[inline]
    fn cycle(&self, id: u64) {
        drop(black_box(self.lock(id)));
    }
}

/// The usual solution. The last user of an entry removes it from the map.
pub(crate) struct MapOfMutexes(DashMap<u64, Arc<Mutex<()>>>);

impl Locks for MapOfMutexes {
    const NAME: &'static str = "dashmap + Arc<Mutex>, unused removed";

    fn new(_keys: u64) -> Self {
        Self(DashMap::new())
    }

    #[inline]
    fn cycle(&self, id: u64) {
        let mutex = Arc::clone(&self.0.entry(id).or_default());
        drop(black_box(mutex.lock()));
        drop(mutex);
        self.0.remove_if(&id, |_, mutex| Arc::strong_count(mutex) == 1);
    }
}

impl Locks for LockPool<u64> {
    const NAME: &'static str = "lockable LockPool";

    fn new(_keys: u64) -> Self {
        LockPool::new()
    }

    #[inline]
    fn cycle(&self, id: u64) {
        drop(black_box(self.blocking_lock(id)));
    }
}
