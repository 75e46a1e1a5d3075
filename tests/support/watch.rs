//! Witnesses of locks that do not ask the store: within this process a counter of holders, and between
//! processes a number in a file that each holder reads and writes.

#![allow(dead_code, reason = "no test program uses all of it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{env, fs, thread};

use dlm::{Fence, Level, LockManager, Moment};
use parking_lot::Mutex;

/// Watches one lock within this process. Panics when two hold it, or when a fence is not above the last.
#[derive(Default)]
pub(crate) struct Watch {
    holders: AtomicUsize,
    seen: Mutex<Seen>,
}

#[derive(Default, Clone)]
pub(crate) struct Seen {
    pub(crate) grants: usize,
    pub(crate) fence: Option<Fence>,
    last: Option<Moment>,
    /// Longest time between two grants.
    pub(crate) stall: Duration,
}

impl Watch {
    /// To be called by whoever was granted the lock. Without a fence for one of the Java library.
    pub(crate) fn granted(&self, fence: Option<Fence>) {
        assert_eq!(self.holders.fetch_add(1, Ordering::SeqCst), 0, "granted while another holds it");
        let (mut seen, now) = (self.seen.lock(), Moment::now());
        seen.grants += 1;
        seen.stall = seen.stall.max(seen.last.map_or(Duration::ZERO, |last| now.since(last)));
        seen.last = Some(now);
        if let Some(fence) = fence {
            let before = seen.fence.replace(fence);
            assert!(Some(fence) > before, "fence {fence} after {before:?}");
        }
    }

    /// To be called before it is released.
    pub(crate) fn before_release(&self) {
        assert_eq!(self.holders.fetch_sub(1, Ordering::SeqCst), 1, "another held it as well");
    }

    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }
}

/// Processes that take turns with one lock. Each is this test program again, which must have a test
/// named `worker` that calls [`work`].
pub(crate) struct Workers {
    dir: tempfile::TempDir,
    children: Vec<Child>,
}

/// What they did together.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) grants: u64,
    /// Calls that failed, with another error than a lock that is held.
    pub(crate) errors: u64,
    /// Longest time any of them waited for one acquire.
    pub(crate) stall: Duration,
}

const VARIABLE: &str = "DLM_TEST_WORKER";

impl Workers {
    /// One process for each URI, all with one lock of `client`.
    pub(crate) fn start(uris: &[String], client: &str) -> Workers {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("counter"), "0 0").unwrap();
        let children = uris.iter().map(|uri| {
            Command::new(env::current_exe().unwrap())
                .args(["worker", "--exact", "--nocapture", "--test-threads=1"])
                .env(VARIABLE, format!("{uri} {client} {}", dir.path().display()))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        });
        let children = children.collect();
        Workers { dir, children }
    }

    /// How often the lock was granted so far, as far as the file says.
    pub(crate) fn grants(&self) -> u64 {
        read(&self.dir.path().join("counter")).map_or(0, |(count, _)| count)
    }

    /// Ends them, and compares what each says it did with what the file counts.
    pub(crate) fn finish(mut self) -> Done {
        fs::write(self.dir.path().join("stop"), "").unwrap();
        let mut done = Done::default();
        for mut child in self.children.drain(..) {
            // To the end: it could not print the rest otherwise, and fail.
            let text = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
            let told: Vec<u64> = text
                .lines()
                .find_map(|line| line.strip_prefix("worked "))
                .expect("a worker ended before it said what it did")
                .split(' ')
                .map(|number| number.parse().unwrap())
                .collect();
            assert!(child.wait().unwrap().success(), "a worker failed");
            done.grants += told[0];
            done.errors += told[1];
            done.stall = done.stall.max(Duration::from_millis(told[2]));
        }
        assert_eq!(self.grants(), done.grants, "two held the lock at one time: a count was lost");
        done
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a worker does; nothing where this is not one.
pub(crate) fn work() {
    let Ok(order) = env::var(VARIABLE) else { return };
    let [uri, client, dir] = order.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let builder = LockManager::builder().store_uri(uri).client(client).retry(Duration::from_millis(20));
    let lock = builder.open().unwrap().lock("a", Level::Xdc).unwrap();
    let (file, stop) = (PathBuf::from(dir).join("counter"), PathBuf::from(dir).join("stop"));
    let mut done = Done::default();
    let begin = Moment::now();
    while !stop.exists() && Moment::now().since(begin) < Duration::from_secs(300) {
        let asked = Moment::now();
        let Ok(lease) = lock.acquire() else {
            done.errors += 1;
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        done.stall = done.stall.max(Moment::now().since(asked));
        // A machine that stood still for longer than the lease is not a fault of the lock.
        if lease.check().is_ok() {
            let (count, last) = read(&file).unwrap_or_else(|| panic!("the file was written by two"));
            assert!(lease.fence() > Some(Fence(last)), "fence {:?} after {last}", lease.fence());
            thread::yield_now();
            fs::write(&file, format!("{} {}", count + 1, lease.fence().unwrap())).unwrap();
            done.grants += 1;
        }
        done.errors += u64::from(lease.release().is_err());
        // Others get their turn.
        thread::sleep(Duration::from_millis(fastrand::u64(..3)));
    }
    println!("\nworked {} {} {}", done.grants, done.errors, done.stall.as_millis());
}

/// Count and last fence.
fn read(file: &Path) -> Option<(u64, u64)> {
    let text = fs::read_to_string(file).ok()?;
    let (count, fence) = text.split_once(' ')?;
    Some((count.parse().ok()?, fence.parse().ok()?))
}
