//! Readers and writers beside each other over a store in memory: a stream of the ones does not keep the others out. The times
//! are printed, and only the order is asserted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dlm::store::MemoryStore;
use dlm::{Deadline, Level, Lock, LockManager, Moment};
use dlm_testkit::{LONG, until};
use parking_lot::Mutex;

const RETRY: Duration = Duration::from_millis(20);

/// Shortest time for which a thread of a stream holds the lock.
const PAUSE: Duration = Duration::from_millis(1);

/// How often those get the lock who come to the stream.
const TIMES: usize = 4;

/// Returns a lock of a manager of its own, like a process.
fn lock(store: &Arc<MemoryStore>) -> Lock {
    let builder = LockManager::builder().store(store.clone()).client("readers").retry(RETRY);
    builder.ttl(30 * LONG).wait(LONG).open().unwrap().lock("a", Level::Xdc).unwrap()
}

/// Runs each of `stream` again and again in a thread, until `work` has ended.
fn beside<'s>(stream: Vec<Box<dyn Fn() + Send + 's>>, work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for step in stream {
            let over = &over;
            let run = move || {
                while !over.load(Ordering::Acquire) {
                    step();
                }
            };
            thread::Builder::new().name("dlm-test-stream".into()).spawn_scoped(scope, run).unwrap();
        }
        // Also after a panic, for which the scope waits.
        let _over = OnDrop(|| over.store(true, Ordering::Release));
        work();
    });
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// Readers of one lock.
#[derive(Default)]
struct Readers {
    holding: Mutex<usize>,
    granted: AtomicUsize,
}

impl Readers {
    /// Reads until two others do so as well, and so long that new readers could have come if they may come. That is less long
    /// than a writer can keep them out, ten retry intervals: readers who hold the lock for longer may keep it out for ever.
    fn read(&self, lock: &Lock) {
        let lease = lock.acquire().unwrap();
        *self.holding.lock() += 1;
        self.granted.fetch_add(1, Ordering::Relaxed);
        let by = Deadline::after(3 * RETRY);
        loop {
            thread::sleep(PAUSE);
            if self.leaves(by.passed()) {
                break;
            }
        }
        assert!(lease.release().unwrap());
    }

    fn leaves(&self, is_over: bool) -> bool {
        let mut holding = self.holding.lock();
        let leaves = is_over || *holding > 2;
        *holding -= usize::from(leaves);
        leaves
    }

    fn granted(&self) -> usize {
        self.granted.load(Ordering::Relaxed)
    }
}

/// As long as readers may come, two of them hold the lock at any time.
#[test]
fn a_writer_beside_a_stream_of_readers_gets_the_lock() {
    let (store, readers) = (Arc::new(MemoryStore::new()), Readers::default());
    let stream = (0..8).map(|_| {
        let (lock, readers) = (lock(&store).shared(), &readers);
        Box::new(move || readers.read(&lock)) as Box<dyn Fn() + Send + '_>
    });
    beside(stream.collect(), || {
        let lock = lock(&store);
        for number in 0..TIMES {
            let before = readers.granted();
            until("the readers go on", || *readers.holding.lock() > 1 && readers.granted() > before + 8);
            let (began, before) = (Moment::now(), readers.granted());
            let lease = lock.acquire().unwrap();
            let (waited, let_in) = (Moment::now().since(began), readers.granted() - before);
            println!("writer, time {number}: after {waited:?} and {let_in} readers");
            assert_eq!(*readers.holding.lock(), 0, "beside a writer");
            assert!(lease.release().unwrap());
        }
    });
}

/// A writer holds the lock until another one waits for it.
#[test]
fn readers_beside_a_stream_of_writers_get_the_lock() {
    let store = Arc::new(MemoryStore::new());
    let (asking, granted, reading) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let write = |lock: &Lock| {
        asking.fetch_add(1, Ordering::SeqCst);
        let lease = lock.acquire().unwrap();
        asking.fetch_sub(1, Ordering::SeqCst);
        granted.fetch_add(1, Ordering::SeqCst);
        assert_eq!(reading.load(Ordering::SeqCst), 0, "a writer beside readers");
        let by = Deadline::after(LONG);
        thread::sleep(PAUSE);
        while asking.load(Ordering::SeqCst) == 0 && !by.passed() {
            thread::sleep(PAUSE);
        }
        assert!(lease.release().unwrap());
    };
    // Of two managers. Threads of one hand the lock on to each other, and leave it to other processes after ten intervals.
    let managers = [lock(&store), lock(&store)];
    let stream = (0..8).map(|number| {
        let (lock, write) = (&managers[number % 2], &write);
        Box::new(move || write(lock)) as Box<dyn Fn() + Send + '_>
    });
    beside(stream.collect(), || {
        // In the end: the last writer holds the lock until another one asks.
        let _asks = OnDrop(|| {
            asking.fetch_add(1, Ordering::SeqCst);
        });
        let locks = [lock(&store).shared(), lock(&store).shared()];
        for number in 0..TIMES {
            for (reader, lock) in locks.iter().enumerate() {
                let before = granted.load(Ordering::SeqCst);
                until("the writers go on", || granted.load(Ordering::SeqCst) > before + 8);
                let (began, before) = (Moment::now(), granted.load(Ordering::SeqCst));
                let lease = lock.acquire().unwrap();
                reading.fetch_add(1, Ordering::SeqCst);
                let (waited, let_in) = (Moment::now().since(began), granted.load(Ordering::SeqCst) - before);
                println!("reader {reader}, time {number}: after {waited:?} and {let_in} writers");
                // So long that writers find a reader, and keep the next ones out.
                thread::sleep(2 * RETRY);
                reading.fetch_sub(1, Ordering::SeqCst);
                assert!(lease.release().unwrap());
            }
        }
    });
}
