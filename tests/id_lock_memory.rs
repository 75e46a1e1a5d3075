//! Memory of an `IdLock`: unused ids keep none. A separate program, because the test counts every allocation of its
//! process.

use std::alloc::System;
use std::time::Duration;

use dlm::IdLock;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, Stats, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const IDS: u64 = 1_000_000;

/// The only test, and without threads: allocations of others would be counted here.
#[test]
fn ids_that_nobody_holds_keep_no_memory() {
    // Locked one after another: not even a temporary allocation.
    once_of(5, |locks, change| {
        (0..IDS).for_each(|id| drop(locks.lock(id)));
        change().allocations == 0
    });

    // All locked at the same time, then all released.
    once_of(5, |locks, change| {
        let guards: Vec<_> = (0..IDS).map(|id| locks.lock(id)).collect();
        assert!(kept(&change()) > IDS as i64 * 16, "the allocator counts nothing");
        drop(guards);
        kept(&change()) == 0
    });

    // All but a few released: the memory is proportional to those few.
    once_of(5, |locks, change| {
        let mut guards: Vec<_> = (0..IDS).map(|id| locks.lock(id)).collect();
        guards.truncate(1_000);
        guards.shrink_to_fit();
        assert!(kept(&change()) < 256 * 1024, "{} bytes for 1,000 ids", kept(&change()));
        drop(guards);
        kept(&change()) == 0
    });

    // Waits that time out. A thread allocates something for itself when it waits for the first time.
    once_of(5, |locks, change| {
        let _held = locks.lock(1);
        let timeout = Duration::from_millis(1);
        (0..10).for_each(|_| assert!(locks.try_lock_for(1, timeout).is_none()));
        kept(&change()) == 0
    });
}

/// Requires one success in a few attempts. The test harness has its own thread, which sometimes allocates; a leak of
/// the lock would appear in every attempt. Each attempt uses a new lock, because a lock would allocate memory that it
/// keeps for ever only once.
fn once_of(attempts: u32, succeeds: impl Fn(&IdLock, &dyn Fn() -> Stats) -> bool) {
    let succeeded = (0..attempts).any(|_| {
        let locks = IdLock::new();
        let region = Region::new(ALLOCATOR);
        succeeds(&locks, &|| region.change()) && locks.is_empty()
    });
    assert!(succeeded, "memory was kept, or allocated where none is needed");
}

fn kept(change: &Stats) -> i64 {
    change.bytes_allocated as i64 - change.bytes_deallocated as i64
}
