//! What an `IdLock` keeps: nothing. Alone in its program, as it counts every allocation of it.

use std::alloc::System;
use std::time::Duration;

use dlm::IdLock;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, Stats, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const IDS: u64 = 1_000_000;

/// One test and no threads: another one's allocations would be counted here.
#[test]
fn ids_that_nobody_holds_keep_no_memory() {
    // One after another: not even a temporary allocation.
    once_of(5, |locks, change| {
        (0..IDS).for_each(|id| drop(locks.lock(id)));
        change().allocations == 0
    });

    // All at once, and all gone again.
    once_of(5, |locks, change| {
        let guards: Vec<_> = (0..IDS).map(|id| locks.lock(id)).collect();
        assert!(kept(&change()) > IDS as i64 * 16, "nothing is counted");
        drop(guards);
        kept(&change()) == 0
    });

    // All but a few gone: what is kept is in proportion to those few.
    once_of(5, |locks, change| {
        let mut guards: Vec<_> = (0..IDS).map(|id| locks.lock(id)).collect();
        guards.truncate(1_000);
        guards.shrink_to_fit();
        assert!(kept(&change()) < 256 * 1024, "{} bytes for 1,000 ids", kept(&change()));
        drop(guards);
        kept(&change()) == 0
    });

    // Waited for in vain. A thread that waits allocates something for itself the first time.
    once_of(5, |locks, change| {
        let _held = locks.lock(1);
        let timeout = Duration::from_millis(1);
        (0..10).for_each(|_| assert!(locks.try_lock_for(1, timeout).is_none()));
        kept(&change()) == 0
    });
}

/// Asks for one success in a few attempts: the test harness has a thread of its own, which
/// allocates now and then, while what a lock kept would be kept every time. A new lock for each
/// attempt, as what one keeps for good it would allocate only once.
fn once_of(attempts: u32, succeeds: impl Fn(&IdLock, &dyn Fn() -> Stats) -> bool) {
    let succeeded = (0..attempts).any(|_| {
        let locks = IdLock::new();
        let region = Region::new(ALLOCATOR);
        succeeds(&locks, &|| region.change()) && locks.is_empty()
    });
    assert!(succeeded, "memory is kept, or taken where none is needed");
}

fn kept(change: &Stats) -> i64 {
    change.bytes_allocated as i64 - change.bytes_deallocated as i64
}
