//! Measures this library: pairs of acquire and release per second.
//!
//! `--against` compiles this file once more, as a program with the library of another commit. So it uses the standard
//! library, and only calls of `dlm` that old commits have too.

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use dlm::{IdLock, Level, LockManager};

/// Stands for an `IdLock` where a store's URI can also stand.
pub(crate) const ID_LOCK: &str = "id_lock";
/// Number of ids from which `IdLock` and its peers choose.
pub(crate) const IDS: u64 = 65_536;

/// What acquires and releases.
pub(crate) enum Subject {
    Ids(IdLock),
    /// Fresh locks in a store.
    Locks {
        manager: LockManager,
        made: AtomicU64,
    },
}

impl Subject {
    /// Opens the store of a URI and prepares it, or makes an `IdLock`.
    pub(crate) fn open(what: &str) -> Result<Subject, String> {
        if what == ID_LOCK {
            return Ok(Subject::Ids(IdLock::new()));
        }
        let manager = LockManager::open(what).map_err(|error| error.to_string())?;
        manager.initialize().map_err(|error| error.to_string())?;
        Ok(Subject::Locks { manager, made: AtomicU64::new(0) })
    }

    pub(crate) fn pairs_per_s(&self, threads: usize, time: Duration) -> f64 {
        match self {
            Subject::Ids(ids) => pairs_per_s(threads, time, |random| {
                drop(black_box(ids.lock(random.next() % IDS)));
            }),
            Subject::Locks { manager, made } => pairs_per_s(threads, time, |_| {
                // No other process makes this name.
                let name = format!("{}-{}", std::process::id(), made.fetch_add(1, Relaxed));
                let lock = manager.lock(&name, Level::Xdc).expect("a good name");
                let lease = lock.try_acquire().expect("a fresh lock is free");
                assert!(lease.release().expect("the store answers"), "the lease was lost");
            }),
        }
    }
}

/// Numbers of one thread, the same in each run: xorshift.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }
}

/// Calls `pair` in this number of threads for this time. Returns how many calls there were per second.
pub(crate) fn pairs_per_s(threads: usize, time: Duration, pair: impl Fn(&mut Random) + Sync) -> f64 {
    let (stop, begin) = (AtomicBool::new(false), Barrier::new(threads + 1));
    let work = |number: u64| {
        let mut random = Random(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut done = 0_u64;
        begin.wait();
        while !stop.load(Relaxed) {
            pair(&mut random);
            done += 1;
        }
        done
    };
    thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (1..=threads as u64).map(|number| scope.spawn(move || work(number))).collect();
        begin.wait();
        let began = Instant::now();
        thread::sleep(time);
        stop.store(true, Relaxed);
        let done: u64 = workers.into_iter().map(|worker| worker.join().expect("a pair failed")).sum();
        done as f64 / began.elapsed().as_secs_f64()
    })
}

/// The program of another commit. It opens `what` and writes "ready", or why it cannot. Then it reads lines with a
/// number of threads and of milliseconds, and answers each with the pairs per second.
#[allow(dead_code, reason = "the benchmark itself measures in its own process")]
pub(crate) fn serve(what: &str, requests: impl BufRead, mut answers: impl Write) -> Result<(), String> {
    let mut answer = |text: String| {
        writeln!(answers, "{text}").and_then(|()| answers.flush()).map_err(|error| error.to_string())
    };
    let subject = match Subject::open(what) {
        Ok(subject) => subject,
        Err(why) => return answer(why),
    };
    answer("ready".to_owned())?;
    for request in requests.lines() {
        let request = request.map_err(|error| error.to_string())?;
        let mut numbers = request.split(' ').map(str::parse);
        let (Some(Ok(threads)), Some(Ok(millis))) = (numbers.next(), numbers.next()) else {
            return Err(format!("not two numbers: {request:?}"));
        };
        answer(subject.pairs_per_s(threads as usize, Duration::from_millis(millis)).to_string())?;
    }
    Ok(())
}
