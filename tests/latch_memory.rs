//! Memory of watched latches: less than 2 KiB for each, and nothing afterwards. A separate program, because the test
//! counts every allocation of its process.

use std::alloc::System;
use std::sync::Arc;
use std::time::Duration;

use dlm::store::MemoryStore;
use dlm::{AwaitOptions, Deadline, LatchKind, Level, LockManager};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LATCHES: usize = 10_000;

#[test]
fn a_watched_latch_keeps_less_than_two_kilobytes_and_nothing_afterwards() {
    let manager = LockManager::builder()
        .store(Arc::new(MemoryStore::new()))
        .client("order-service")
        .farm("dc1")
        .poll(Duration::from_millis(200))
        .timeout(Duration::from_secs(60))
        .open()
        .unwrap();
    let latches: Vec<_> = (0..LATCHES)
        .map(|id| {
            manager.latch(&format!("a-latch-with-a-longer-name-{id}"), Level::Xdc, LatchKind::CountDown)
        })
        .map(Result::unwrap)
        .collect();
    latches.iter().for_each(|latch| latch.create(1).unwrap());
    // Starts the threads, which allocate some memory once.
    assert!(!latches[0].await_open_for(Duration::from_millis(500)).unwrap());

    let region = Region::new(ALLOCATOR);
    let kept = || {
        let change = region.change();
        change.bytes_allocated as i64 - change.bytes_deallocated as i64
    };
    let watches: Vec<_> = latches.iter().map(|latch| latch.watch().unwrap()).collect();
    // Waits until all have been read and scheduled again. Memory of a read in progress is counted, too.
    for watch in &watches {
        assert!(!watch.wait(&AwaitOptions::new().wait(Duration::ZERO)).unwrap());
    }
    let each = kept() / LATCHES as i64;
    println!("{each} bytes for each watched latch");
    assert!((100..2048).contains(&each), "{each} bytes for each latch");
    drop(watches);
    // A read in progress keeps its batch for another moment.
    let by = Deadline::after(Duration::from_secs(60));
    let few = 64 * 1024;
    while kept() > few {
        assert!(!by.passed(), "{} bytes are kept", kept());
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("the empty tables keep {} bytes", kept());
}
