//! What a store counts about the locks that it grants.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one opened store, since it was opened. Returned by
/// [`LockStore::counters`](super::LockStore::counters), and part of [`Stats`](crate::Stats).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCounters {
    /// Tries of an acquire that the store refused although the lock was free, because the lock's last number was not
    /// below the number of the try. The next try takes a higher number.
    pub stale_numbers: u64,
    /// Reads that were needed to find out who holds a lock after the store refused to create its record.
    pub reads_after_refusal: u64,
    /// Grants of locks for which the store had no number, so that the clock gave the first one: locks that were never
    /// used, and those that were not used for so long that their number expired.
    pub fences_seeded: u64,
}

impl StoreCounters {
    /// Returns the sums of both counts.
    #[must_use]
    pub fn plus(self, other: StoreCounters) -> StoreCounters {
        StoreCounters {
            stale_numbers: self.stale_numbers + other.stale_numbers,
            reads_after_refusal: self.reads_after_refusal + other.reads_after_refusal,
            fences_seeded: self.fences_seeded + other.fences_seeded,
        }
    }
}

/// Counters that a store adds to, from any thread. No method blocks.
#[derive(Debug, Default)]
pub struct LiveCounters {
    stale_numbers: AtomicU64,
    reads_after_refusal: AtomicU64,
    fences_seeded: AtomicU64,
}

impl LiveCounters {
    /// Adds one to [`StoreCounters::stale_numbers`].
    pub fn stale_number(&self) {
        self.stale_numbers.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds one to [`StoreCounters::reads_after_refusal`].
    pub fn read_after_refusal(&self) {
        self.reads_after_refusal.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds one to [`StoreCounters::fences_seeded`].
    pub fn fence_seeded(&self) {
        self.fences_seeded.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the current counts.
    pub fn now(&self) -> StoreCounters {
        let [stale_numbers, reads_after_refusal, fences_seeded] =
            [&self.stale_numbers, &self.reads_after_refusal, &self.fences_seeded]
                .map(|counter| counter.load(Ordering::Relaxed));
        StoreCounters { stale_numbers, reads_after_refusal, fences_seeded }
    }
}
