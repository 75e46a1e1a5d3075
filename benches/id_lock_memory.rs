//! The memory still in use after a million ids were locked and unlocked once each: by `IdLock` and its peers.
//!
//! This is a separate program, because the counting allocator would slow down the peers that allocate.

#[path = "id_lock/locks.rs"]
mod locks;

use std::alloc::System;

use dlm::IdLock;
use lockable::LockPool;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use locks::{Locks, MapOfMutexes};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const IDS: u64 = 1_000_000;

fn main() {
    println!("| {:36} | empty, bytes | kept after {IDS} ids, bytes | allocations per id |", "");
    println!("|{0:-<38}|{0:-<14}|{0:-<31}|{0:-<20}|", "");
    measure::<IdLock>();
    measure::<MapOfMutexes>();
    measure::<LockPool<u64>>();
}

fn measure<L: Locks>() {
    let before = Region::new(ALLOCATOR);
    let locks = L::new(64);
    let empty = bytes(&before);

    // What a thread allocates once for itself must not count as memory of the ids.
    locks.cycle(0);
    let region = Region::new(ALLOCATOR);
    (0..IDS).for_each(|id| locks.cycle(id.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    let allocations = region.change().allocations as f64 / IDS as f64;
    println!("| {:36} | {empty:12} | {:29} | {allocations:18.2} |", L::NAME, bytes(&region));
}

fn bytes(region: &Region<'_, System>) -> i64 {
    let change = region.change();
    change.bytes_allocated as i64 - change.bytes_deallocated as i64
}
