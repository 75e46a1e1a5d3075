//! Threads that panic while they hold a lock or wait for one. The lock becomes free, and other threads go on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use dlm::store::{LockStore, MemoryStore};
use dlm::{LatchKind, Level, LockManager};
use dlm_testkit::{LONG, until};

fn managers() -> [LockManager; 2] {
    let store = Arc::new(MemoryStore::new());
    [(); 2].map(|()| {
        let store = Arc::clone(&store) as Arc<dyn LockStore>;
        let builder =
            LockManager::builder().store(store).client("panics").farm("f").ttl(10 * LONG).wait(LONG);
        builder.open().unwrap()
    })
}

/// The TTL is longer than the test, so only a release frees the lock.
#[test]
fn a_lease_that_is_held_across_a_panic_is_released() {
    let [ours, theirs] = managers();
    let lock = ours.lock("a", Level::Xdc).unwrap();
    let holder = thread::Builder::new().name("dlm-test-panics".into()).spawn(move || {
        let lease = lock.acquire().unwrap();
        lease.check().unwrap();
        panic!("planted");
    });
    assert!(holder.unwrap().join().is_err());
    let next = theirs.lock("a", Level::Xdc).unwrap().try_acquire().unwrap();
    assert!(next.release().unwrap());
    assert_eq!(ours.stats().leases_held, 0);
}

/// The thread that panics is the next in the queue of its process.
#[test]
fn a_lease_that_is_held_across_a_panic_goes_to_the_next_thread_that_waits() {
    let [ours, _] = managers();
    let lease = ours.lock("a", Level::Xdc).unwrap().acquire().unwrap();
    thread::scope(|scope| {
        let (panics, waits) = (ours.lock("a", Level::Xdc).unwrap(), ours.lock("a", Level::Xdc).unwrap());
        let panics = scope.spawn(move || {
            let _lease = panics.acquire().unwrap();
            panic!("planted");
        });
        until("the first thread waits", || ours.stats().threads_waiting == 1);
        let waits = scope.spawn(move || waits.acquire().unwrap().release().unwrap());
        until("both threads wait", || ours.stats().threads_waiting == 2);
        assert!(lease.release().unwrap());
        assert!(panics.join().is_err());
        assert!(waits.join().unwrap());
    });
}

#[test]
fn a_panic_between_two_steps_of_a_latch_leaves_the_latch_as_it_was() {
    let [ours, theirs] = managers();
    let latch = ours.latch("a", Level::Dc, LatchKind::CountDown).unwrap();
    latch.create(2).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        latch.count_down().unwrap();
        panic!("planted");
    }));
    assert!(panicked.is_err());
    let same = theirs.latch("a", Level::Dc, LatchKind::CountDown).unwrap();
    assert_eq!(same.count().unwrap(), 1);
    latch.count_down().unwrap();
    assert!(same.await_open_for(LONG).unwrap());
}
