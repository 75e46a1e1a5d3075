//! Cases about real time on a machine that stands still.

use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::notes;

/// Repetitions of a void case.
const REPEATS: usize = 3;

/// Time between two looks of the witness at the clock.
const TICK: Duration = Duration::from_millis(5);

/// Runs a case that needs the machine to go on: its own threads and processes must run about when they are due.
///
/// The case fails by a panic. It is void, and is repeated, only if an idle thread of this process was kept from its
/// processor for `gap` or longer during it: this thread does nothing but look at the clock, so the library cannot cause
/// such a gap. Each repetition is printed, and written to the file that `DLM_TEST_VOID` names. Use it only where the
/// order of events cannot be asserted instead.
///
/// # Panics
///
/// As the case does, if there was no such gap, or after three repetitions.
#[track_caller]
pub fn unless_stalled<T>(gap: Duration, mut case: impl FnMut() -> T) -> T {
    let place = Location::caller();
    let mut repeats = 0;
    loop {
        let witness = Witness::start();
        let outcome = catch_unwind(AssertUnwindSafe(&mut case));
        let longest = witness.longest_gap();
        match outcome {
            Ok(value) => return value,
            Err(_) if longest >= gap && repeats < REPEATS => {
                repeats += 1;
                void(&format!("case of {place}: this process stood still for {longest:?}"));
            }
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// An idle thread that looks at the clock all the time.
struct Witness {
    shared: Arc<Shared>,
    thread: thread::JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    ended: AtomicBool,
    longest_ns: AtomicU64,
}

impl Witness {
    fn start() -> Witness {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let (looks, looked) = mpsc::channel();
        let work = move || {
            let mut last = Instant::now();
            let _ = looks.send(());
            let mut ended = false;
            while !ended {
                // Read before the last look, which otherwise might miss a gap.
                ended = theirs.ended.load(Ordering::Relaxed);
                thread::sleep(TICK);
                let now = Instant::now();
                let gap = (now - last).saturating_sub(TICK);
                theirs
                    .longest_ns
                    .fetch_max(u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
                last = now;
            }
        };
        let thread = thread::Builder::new().name("dlm-test-witness".into()).spawn(work).expect("a thread");
        // A case that began before would stand still unseen.
        looked.recv().expect("the witness looks at the clock");
        Witness { shared, thread }
    }

    fn longest_gap(self) -> Duration {
        self.shared.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        Duration::from_nanos(self.shared.longest_ns.load(Ordering::Relaxed))
    }
}

/// Says that a case is void and is repeated: `what` it was, and what the machine did. Writes it to the terminal, and to the
/// file that `DLM_TEST_VOID` names. [`unless_stalled`] calls it.
pub fn void(what: &str) {
    let what = format!("repeats a void {what}");
    notes::say(&what);
    notes::list("DLM_TEST_VOID", &what);
}
