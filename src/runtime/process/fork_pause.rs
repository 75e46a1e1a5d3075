//! Work that no fork may interrupt: a fork by another thread waits until it has ended.
//!
//! A forked child inherits the `static` variables of this library and of the crates that it uses. If a thread of the
//! parent was changing one under a lock, the child would wait for that thread, which it does not have. So such a thread
//! has a [`ForkPause`] meanwhile.
//!
//! The C library's `fork` waits by a hook. A child that was made by a bare `clone` system call is not protected.

use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::runtime::time::{self, Deadline};

/// Longest wait of a fork. Only a store whose files another program has locked takes longer than some milliseconds.
const LONGEST: Duration = Duration::from_secs(10);
/// Longest wait of a fork for a look-up. The C library has its locks when one begins and when it ends, and not while it
/// waits for a name server.
pub(super) const LONGEST_FOR_LOOKUP: Duration = Duration::from_millis(200);
/// Time between two looks of a thread that waits.
const LOOK: Duration = Duration::from_micros(50);

/// What a fork waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Of a `static` variable.
    Change,
    /// Of a host name, by the C library.
    Lookup,
}

/// Number of pauses of all threads by their work, and of threads that look whether they may begin one.
static PAUSES: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
/// Number of pauses for changes that have begun.
static BEGUN: AtomicUsize = AtomicUsize::new(0);
/// Number of threads that are in a fork, or wait to begin one.
static FORKING: AtomicUsize = AtomicUsize::new(0);
/// Whether this process was forked during a pause of another thread, which had taken too long.
static IS_SPOILT: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Numbers of pauses of this thread by their work. A log function of the program may fork during one.
    static OWN: [Cell<usize>; 2] = const { [const { Cell::new(0) }; 2] };
}

fn own(work: Work) -> usize {
    OWN.with(|own| own[work as usize].get())
}

/// While it lives, other threads do not fork. It stays in the thread that has made it.
#[derive(Debug)]
pub(crate) struct ForkPause {
    work: Work,
    stays: PhantomData<*const ()>,
}

impl ForkPause {
    /// Waits while another thread forks.
    pub(crate) fn new() -> ForkPause {
        let pause = ForkPause::begin(Work::Change);
        BEGUN.fetch_add(1, SeqCst);
        pause
    }

    /// The same for the look-up of a name. Forks wait for it for [`LONGEST_FOR_LOOKUP`] at most.
    #[cfg(any(feature = "hbase", feature = "aerospike"))]
    pub(super) fn for_lookup() -> ForkPause {
        ForkPause::begin(Work::Lookup)
    }

    fn begin(work: Work) -> ForkPause {
        add_hooks();
        let pauses = &PAUSES[work as usize];
        pauses.fetch_add(1, SeqCst);
        // A fork that waits for this thread must not be waited for.
        if own(Work::Change) == 0 && FORKING.load(SeqCst) > 0 {
            let by = Deadline::after(LONGEST);
            while FORKING.load(SeqCst) > 0 && !by.passed() {
                pauses.fetch_sub(1, SeqCst);
                time::sleep(LOOK);
                pauses.fetch_add(1, SeqCst);
            }
        }
        OWN.with(|own| own[work as usize].update(|own| own + 1));
        ForkPause { work, stays: PhantomData }
    }

    /// Whether this process was forked during work that should have been waited for. That work never ends here.
    #[cfg(any(test, feature = "embedded"))]
    pub(crate) fn is_spoilt() -> bool {
        IS_SPOILT.load(SeqCst)
    }
}

impl Drop for ForkPause {
    fn drop(&mut self) {
        OWN.with(|own| own[self.work as usize].update(|own| own - 1));
        if self.work == Work::Change {
            BEGUN.fetch_sub(1, SeqCst);
        }
        PAUSES[self.work as usize].fetch_sub(1, SeqCst);
    }
}

extern "C" fn before_fork() {
    FORKING.fetch_add(1, SeqCst);
    let others = |work: Work| PAUSES[work as usize].load(SeqCst) > own(work);
    if others(Work::Change) || others(Work::Lookup) {
        let (by, by_for_lookup) = (Deadline::after(LONGEST), Deadline::after(LONGEST_FOR_LOOKUP));
        while others(Work::Change) && !by.passed() || others(Work::Lookup) && !by_for_lookup.passed() {
            time::sleep(LOOK);
        }
    }
}

extern "C" fn in_parent() {
    FORKING.fetch_sub(1, SeqCst);
}

extern "C" fn in_child() {
    FORKING.store(0, SeqCst);
    for work in [Work::Change, Work::Lookup] {
        PAUSES[work as usize].store(own(work), SeqCst);
    }
    // A thread that only looked had changed nothing yet.
    if BEGUN.swap(own(Work::Change), SeqCst) > own(Work::Change) {
        IS_SPOILT.store(true, SeqCst);
    }
}

/// Adds the hooks. Threads that begin at the same time add them several times, which changes nothing.
fn add_hooks() {
    unsafe extern "C" {
        fn pthread_atfork(
            prepare: Option<extern "C" fn()>,
            parent: Option<extern "C" fn()>,
            child: Option<extern "C" fn()>,
        ) -> c_int;
    }

    static ADDED: AtomicBool = AtomicBool::new(false);
    if ADDED.load(SeqCst) {
        return;
    }
    // SAFETY: the declaration is that of POSIX. The hooks live as long as the library: `libdlm.so` is linked with
    // `nodelete`, and the C library forgets the hooks of any other library that is unloaded. In a child they only
    // change atomic variables, as they must in the child of a process with threads.
    let failed = unsafe { pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    if failed != 0 {
        log::error!("forks will not wait for this library: pthread_atfork failed with error {failed}");
    }
    ADDED.store(true, SeqCst);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    use crate::testing::fork::{alone, in_forked_child};
    use crate::testing::patience::until;

    #[test]
    fn a_fork_waits_for_work_of_other_threads_and_not_for_its_own() {
        if !alone() {
            return;
        }
        let (begun, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _pause = ForkPause::new();
                begun.store(true, SeqCst);
                until("the other thread wants to fork", || FORKING.load(SeqCst) > 0);
                // The fork would be over by now.
                thread::sleep(Duration::from_millis(50));
                let _nested = ForkPause::new();
                ended.store(true, SeqCst);
            });
            until("the work has begun", || begun.load(SeqCst));
            assert!(in_forked_child(|| {
                drop(ForkPause::new());
                ended.load(SeqCst) && !ForkPause::is_spoilt()
            }));
        });
        // Another thread looks whether it may begin, just now.
        let pauses = &PAUSES[Work::Change as usize];
        pauses.fetch_add(1, SeqCst);
        FORKING.fetch_add(1, SeqCst);
        in_child();
        assert!(!ForkPause::is_spoilt() && pauses.load(SeqCst) == 0);
        let _own = ForkPause::new();
        assert!(in_forked_child(|| {
            !ForkPause::is_spoilt() && own(Work::Change) == 1 && pauses.load(SeqCst) == 1
        }));
        assert_eq!(FORKING.load(SeqCst), 0);
    }

    #[cfg(any(feature = "hbase", feature = "aerospike"))]
    #[test]
    fn a_fork_does_not_wait_long_for_a_slow_name_server() {
        if !alone() {
            return;
        }
        let (begun, forked) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _slow = ForkPause::for_lookup();
                begun.store(true, SeqCst);
                until("the other thread has forked", || forked.load(SeqCst));
            });
            until("the look-up has begun", || begun.load(SeqCst));
            let start = std::time::Instant::now();
            assert!(in_forked_child(|| {
                drop(ForkPause::for_lookup());
                !ForkPause::is_spoilt()
            }));
            assert!(start.elapsed() < LONGEST);
            forked.store(true, SeqCst);
        });
    }
}
