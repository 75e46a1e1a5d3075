//! A cache that many read and one rebuilds: readers hold the lock shared, and of those that find the cache stale one rebuilds it.
//!
//!     cargo run --example shared_cache
//!
//! Threads stand for processes here. The lock is the same for both, and processes name a store that they share.

use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use dlm::{Level, Lock, LockManager};

const READERS: usize = 8;

/// What the lock guards: which version is in the cache, and which one it should be.
#[derive(Clone, Copy)]
struct Cache {
    built: u64,
    wanted: u64,
}

fn main() -> dlm::Result<()> {
    let (rebuilt, built) = run("memory:")?;
    println!("{rebuilt} of {READERS} readers rebuilt the cache, which has version {built}");
    Ok(())
}

/// Returns how many readers have rebuilt the cache, and which version is in it then.
pub fn run(store: &str) -> dlm::Result<(usize, u64)> {
    let manager =
        LockManager::builder().store_uri(store).client("example").retry(Duration::from_millis(20)).open()?;
    let lock = manager.lock("prices", Level::Xdc)?;
    let cache = Mutex::new(Cache { built: 1, wanted: 2 });
    let together = Barrier::new(READERS);
    let rebuilt: dlm::Result<Vec<bool>> = thread::scope(|scope| {
        let reader = || {
            together.wait();
            read(&lock, &cache)
        };
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(reader)).collect();
        readers.into_iter().map(|reader| reader.join().expect("no panic")).collect()
    });
    let built = cache.lock().expect("no panic").built;
    Ok((rebuilt?.into_iter().filter(|rebuilt| *rebuilt).count(), built))
}

/// Reads the cache, and rebuilds it first if it is stale. Returns whether it did.
fn read(lock: &Lock, cache: &Mutex<Cache>) -> dlm::Result<bool> {
    let reading = lock.shared().acquire()?;
    let found = *cache.lock().expect("no panic");
    // After reading, and before what was read is used.
    reading.check()?;
    reading.release()?;
    if found.built == found.wanted {
        return Ok(false);
    }
    // Beside readers, and one at a time: the others find a new cache when their turn comes.
    let looking = lock.update().acquire()?;
    let found = *cache.lock().expect("no panic");
    if found.built == found.wanted {
        return looking.release().map(|_| false);
    }
    // The long part. Readers go on with the old one meanwhile.
    thread::sleep(Duration::from_millis(20));
    let writing = looking.upgrade(Duration::from_secs(10))?;
    // A real cache is written with this fence.
    let _fence = writing.guard()?;
    cache.lock().expect("no panic").built = found.wanted;
    writing.release().map(|_| true)
}
