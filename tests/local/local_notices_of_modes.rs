//! Notices to those who wait for a lock that several processes may hold, between managers of one process.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dlm::store::{LockStore, MemoryStore};
use dlm::{AcquireOptions, Lease, Level, Lock, LockManager, Mode};
use dlm_testkit::{LONG, until};

/// Longer than every test, so that nobody polls.
const RETRY: Duration = Duration::from_secs(3600);

/// A manager that receives notices, and a lock.
fn manager(store: &Arc<MemoryStore>) -> (LockManager, Lock) {
    let builder = LockManager::builder().store(Arc::clone(store) as _).client("tests");
    let manager = builder.notices("udp://127.0.0.1").retry(RETRY).ttl(RETRY).wait(5 * LONG).open().unwrap();
    let lock = manager.lock("told", Level::Xdc).unwrap();
    (manager, lock)
}

fn managers<const N: usize>(store: &Arc<MemoryStore>) -> ([LockManager; N], [Lock; N]) {
    let all: Vec<_> = (0..N).map(|_| manager(store)).collect();
    let (managers, locks): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    (managers.try_into().unwrap(), locks.try_into().unwrap())
}

fn waits(manager: &LockManager) -> bool {
    manager.stats().threads_waiting > 0
}

/// Waits until a writer that waits keeps readers out.
fn until_a_writer_waits(store: &MemoryStore, lock: &Lock) {
    until("a writer waits", || {
        let by = dlm::Deadline::after(LONG);
        let blocker = store.modes().unwrap().blocker(lock.name(), Mode::Shared, by).unwrap();
        blocker.is_some_and(|blocker| blocker.is_waiting)
    });
}

#[test]
fn a_writer_is_told_when_the_last_reader_leaves_whatever_their_order() {
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let store = Arc::new(MemoryStore::new());
        let ([writing, ..], [writer, others @ ..]) = managers::<4>(&store);
        let mut readers: Vec<Option<Lease>> =
            others.iter().map(|lock| Some(lock.shared().acquire().unwrap())).collect();
        // Threads of one process read under several leases.
        let second = others[0].shared().acquire().unwrap();
        thread::scope(|scope| {
            let wait = scope.spawn(|| writer.acquire().unwrap());
            until_a_writer_waits(&store, &writer);
            for reader in order {
                assert!(readers[reader].take().unwrap().release().unwrap());
            }
            assert!(!wait.is_finished(), "one still reads");
            assert!(second.release().unwrap());
            assert!(wait.join().unwrap().release().unwrap());
        });
        writing.close().unwrap();
    }
}

/// None of them polls, and none releases before all of them have the lock.
#[test]
fn readers_that_a_writer_keeps_out_are_told_together_when_it_leaves() {
    let store = Arc::new(MemoryStore::new());
    let ([_, _, waiting @ ..], [first, writer, others @ ..]) = managers::<6>(&store);
    let reader = first.shared().acquire().unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| writer.acquire().unwrap());
        until_a_writer_waits(&store, &writer);
        let readers: Vec<_> =
            others.iter().map(|lock| scope.spawn(move || lock.shared().acquire().unwrap())).collect();
        until("they wait", || waiting.iter().all(waits));
        reader.release().unwrap();
        let writes = wait.join().unwrap();
        assert!(readers.iter().all(|reader| !reader.is_finished()));
        writes.release().unwrap();
        let readers: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        assert!(readers.windows(2).all(|pair| pair[0].epoch() == pair[1].epoch()));
        readers.iter().for_each(|reader| assert!(reader.release().unwrap()));
    });
}

#[test]
fn readers_that_a_writer_keeps_out_are_told_when_it_gives_up() {
    let store = Arc::new(MemoryStore::new());
    let ([_, _, waiting @ ..], [first, writer, others @ ..]) = managers::<4>(&store);
    let _reader = first.shared().acquire().unwrap();
    thread::scope(|scope| {
        let how = AcquireOptions::new().wait(LONG);
        let pending = writer.start(&how).unwrap();
        until_a_writer_waits(&store, &writer);
        let readers: Vec<_> =
            others.iter().map(|lock| scope.spawn(move || lock.shared().acquire().unwrap())).collect();
        until("they wait", || waiting.iter().all(waits));
        drop(pending);
        readers.into_iter().for_each(|reader| assert!(reader.join().unwrap().release().unwrap()));
    });
}

#[test]
fn who_wants_to_write_after_all_is_told_when_the_readers_leave() {
    let store = Arc::new(MemoryStore::new());
    let (_managers, [updates, reads]) = managers::<2>(&store);
    let update = updates.update().acquire().unwrap();
    let reader = reads.shared().acquire().unwrap();
    thread::scope(|scope| {
        let upgrade = scope.spawn(|| update.upgrade(5 * LONG).unwrap());
        until_a_writer_waits(&store, &updates);
        reader.release().unwrap();
        assert!(upgrade.join().unwrap().release().unwrap());
    });
}

#[test]
fn who_steps_down_lets_those_in_that_may_be_beside_it() {
    let store = Arc::new(MemoryStore::new());
    let ([_, waiting @ ..], [writer, reader, updater]) = managers::<3>(&store);
    let writes = writer.acquire().unwrap();
    thread::scope(|scope| {
        let reads = scope.spawn(|| reader.shared().acquire().unwrap());
        let updates = scope.spawn(|| updater.update().acquire().unwrap());
        until("they wait", || waiting.iter().all(waits));
        let update = writes.downgrade(Mode::Update).unwrap();
        let reads = reads.join().unwrap();
        assert!(!updates.is_finished(), "one updater at a time");
        let read = update.downgrade(Mode::Shared).unwrap();
        let updates = updates.join().unwrap();
        for lease in [read, reads, updates] {
            assert!(lease.release().unwrap());
        }
    });
}

/// The process reads on, so that its own queue is not passed on.
#[test]
fn an_updater_is_told_when_another_leaves_whose_process_reads_on() {
    for steps_down in [false, true] {
        let store = Arc::new(MemoryStore::new());
        let ([_, waiting], [first, second]) = managers::<2>(&store);
        let read = first.shared().acquire().unwrap();
        let update = first.update().acquire().unwrap();
        thread::scope(|scope| {
            let updates = scope.spawn(|| second.update().acquire().unwrap());
            until("it waits", || waits(&waiting) && waiting.stats().notices_sent > 0);
            let rest = match steps_down {
                true => Some(update.downgrade(Mode::Shared).unwrap()),
                false => {
                    assert!(update.release().unwrap());
                    None
                }
            };
            assert!(updates.join().unwrap().release().unwrap());
            drop(rest);
        });
        assert!(read.release().unwrap());
    }
}

#[test]
fn readers_that_an_upgrade_keeps_out_are_told_when_it_gives_up() {
    let store = Arc::new(MemoryStore::new());
    let ([_, _, waiting], [updates, reads, late]) = managers::<3>(&store);
    let update = updates.update().acquire().unwrap();
    let reader = reads.shared().acquire().unwrap();
    thread::scope(|scope| {
        let upgrade = scope.spawn(|| update.upgrade(Duration::from_secs(2)));
        until_a_writer_waits(&store, &updates);
        let late = scope.spawn(|| late.shared().acquire().unwrap());
        until("it waits", || waits(&waiting));
        assert!(upgrade.join().unwrap().is_err());
        assert!(late.join().unwrap().release().unwrap());
        // It was told to ask when it could have the lock, and not again and again.
        assert!(waiting.stats().early_asks <= 2, "{:?}", waiting.stats());
    });
    assert!(reader.release().unwrap() && update.release().unwrap());
}

#[test]
fn a_writer_is_told_when_the_minimum_hold_of_a_reader_is_over() {
    let store = Arc::new(MemoryStore::new());
    let (_managers, [reads, writes]) = managers::<2>(&store);
    let how = AcquireOptions::new().min_hold(Duration::from_secs(1));
    assert!(reads.shared().acquire_with(&how).unwrap().release().unwrap());
    assert!(writes.acquire().unwrap().release().unwrap());
}

/// Its record stays, so the process of the lease can tell nobody of its end.
#[test]
fn a_writer_that_waits_for_the_lease_of_a_token_reads_the_store_a_few_times() {
    let store = Arc::new(MemoryStore::new());
    let ([_, waiting], [reads, writes]) = managers::<2>(&store);
    let token = reads.shared().acquire().unwrap().into_token().unwrap();
    thread::scope(|scope| {
        let how = AcquireOptions::new().wait(Duration::from_secs(1));
        assert!(scope.spawn(move || writes.acquire_with(&how)).join().unwrap().is_err());
    });
    assert!(waiting.stats().early_asks <= 20, "{:?}", waiting.stats());
    drop(token);
}
