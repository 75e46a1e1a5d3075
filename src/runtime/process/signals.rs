//! Signals belong to the program that calls the library. The library installs no signal handlers. Its threads block
//! signals, and its writes raise no SIGPIPE.
//!
//! All of this uses the signal mask, which is separate for each thread. Nothing here changes how other threads, or
//! the process, handle signals.

#[cfg(feature = "aerospike")]
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr;

use rustix::process::{Resource, Signal, getrlimit};

#[cfg(any(target_arch = "mips", target_arch = "mips64", target_arch = "sparc", target_arch = "sparc64"))]
compile_error!("SIG_BLOCK and SIG_SETMASK have other values there");
const SIG_BLOCK: c_int = 0;
#[cfg(feature = "cli")]
const SIG_UNBLOCK: c_int = 1;
const SIG_SETMASK: c_int = 2;

/// The C library's `sigset_t`. It has 128 bytes in glibc and musl on Linux, and fewer in other C libraries.
#[repr(C, align(8))]
#[derive(Debug, Clone, Copy)]
struct Set([u8; 128]);

/// The C library's `struct timespec` with a value of zero. It is large enough for every variant of that type.
#[repr(C, align(8))]
struct NoTime([u8; 16]);

unsafe extern "C" {
    fn pthread_sigmask(how: c_int, set: *const Set, old: *mut Set) -> c_int;
    fn sigemptyset(set: *mut Set) -> c_int;
    fn sigfillset(set: *mut Set) -> c_int;
    fn sigaddset(set: *mut Set, signal: c_int) -> c_int;
    fn sigdelset(set: *mut Set, signal: c_int) -> c_int;
    fn sigismember(set: *const Set, signal: c_int) -> c_int;
    fn sigpending(set: *mut Set) -> c_int;
    fn sigtimedwait(set: *const Set, info: *mut c_void, timeout: *const NoTime) -> c_int;
}

/// Signals that a thread raises by its own instructions. If one of them is blocked when it is raised, the kernel
/// ends the process at once, and the program's handler (a crash report, a sanitizer, another language's runtime)
/// does not run.
const RAISED_BY_THE_THREAD: [Signal; 6] =
    [Signal::ILL, Signal::TRAP, Signal::BUS, Signal::FPE, Signal::SEGV, Signal::SYS];

impl Set {
    fn empty() -> Set {
        let mut set = Set([0; 128]);
        // SAFETY: `set` has room for the `sigset_t` that the call writes.
        unsafe { sigemptyset(&raw mut set) };
        set
    }

    fn of(signal: Signal) -> Set {
        let mut set = Set::empty();
        // SAFETY: `sigemptyset` initialized the set.
        unsafe { sigaddset(&raw mut set, signal.as_raw()) };
        set
    }

    /// All signals except [`RAISED_BY_THE_THREAD`] and those that the C library keeps for itself.
    fn all_but_raised_by_the_thread() -> Set {
        let mut set = Set::empty();
        // SAFETY: `set` has room for the `sigset_t` that the call writes.
        unsafe { sigfillset(&raw mut set) };
        for signal in RAISED_BY_THE_THREAD {
            // SAFETY: `sigfillset` initialized the set.
            unsafe { sigdelset(&raw mut set, signal.as_raw()) };
        }
        set
    }

    fn has(&self, signal: Signal) -> bool {
        // SAFETY: the C library initialized every `Set`.
        unsafe { sigismember(self, signal.as_raw()) == 1 }
    }

    /// Signals that are pending for this thread or for the process.
    fn pending() -> Set {
        let mut set = Set::empty();
        // SAFETY: `set` has room for the `sigset_t` that the call writes.
        unsafe { sigpending(&raw mut set) };
        set
    }
}

/// Blocks signals in this thread until it is dropped.
#[derive(Debug)]
struct Blocked {
    before: Set,
    /// The mask belongs to this thread.
    not_send: PhantomData<*const ()>,
}

impl Blocked {
    fn new(signals: &Set) -> Blocked {
        let mut before = Set::empty();
        // SAFETY: the call reads one `sigset_t` and writes another. It fails only if `how` is invalid.
        let failed = unsafe { pthread_sigmask(SIG_BLOCK, signals, &raw mut before) };
        debug_assert_eq!(failed, 0);
        Blocked { before, not_send: PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        restore(&self.before);
    }
}

/// Sets the mask of this thread to `before`.
fn restore(before: &Set) {
    // SAFETY: the call reads a `sigset_t`, and writes nothing because `old` is null.
    let failed = unsafe { pthread_sigmask(SIG_SETMASK, before, ptr::null_mut()) };
    debug_assert_eq!(failed, 0);
}

/// Runs `spawn`, which starts a thread of the library. The new thread blocks signals, so the program's threads, its
/// `sigwait` or its `signalfd` receive them. A thread inherits the mask of the thread that starts it, so the new
/// thread never receives one.
pub(crate) fn blocked_in_new_threads<T>(spawn: impl FnOnce() -> T) -> T {
    let _blocked = Blocked::new(&Set::all_but_raised_by_the_thread());
    spawn()
}

#[cfg(feature = "aerospike")]
thread_local! {
    /// The mask to restore. It is not a `Blocked`, because a thread-local value with a destructor could not be used
    /// while the thread ends.
    static BEFORE: Cell<Option<Set>> = const { Cell::new(None) };
}

/// Blocks signals in this thread until [`unblock`]. For code that, unlike [`blocked_in_new_threads`], only knows that
/// this thread is about to start another one. A second call has no effect.
#[cfg(feature = "aerospike")]
pub(crate) fn block() {
    if BEFORE.get().is_none() {
        let blocked = Blocked::new(&Set::all_but_raised_by_the_thread());
        BEFORE.set(Some(blocked.before));
        std::mem::forget(blocked);
    }
}

/// Undoes [`block`]. Does nothing if `block` was not called.
#[cfg(feature = "aerospike")]
pub(crate) fn unblock() {
    if let Some(before) = BEFORE.take() {
        restore(&before);
    }
}

/// Until it is dropped, a signal that the kernel sends to a thread that writes is not delivered to this thread. The write
/// only fails. Costs three system calls.
///
/// The signal is blocked and stays pending. It is removed before the mask is restored. One that was pending before belongs
/// to the program, and is not removed.
#[derive(Debug)]
pub(crate) struct NoSignal {
    signal: Signal,
    was_pending: bool,
    _blocked: Blocked,
}

impl NoSignal {
    /// No SIGPIPE: writes to a closed socket fail with EPIPE. For writes in the code of other crates: the library's own
    /// writes pass a flag for this.
    #[cfg(feature = "aerospike")]
    pub(crate) fn pipe() -> NoSignal {
        NoSignal::new(Signal::PIPE)
    }

    /// No SIGXFSZ: a file that would grow beyond the limit of the process (`ulimit -f`) fails with EFBIG. `None` without
    /// such a limit.
    pub(crate) fn file_size() -> Option<NoSignal> {
        getrlimit(Resource::Fsize).current.map(|_| NoSignal::new(Signal::XFSZ))
    }

    fn new(signal: Signal) -> NoSignal {
        let blocked = Blocked::new(&Set::of(signal));
        // If the signal was not blocked, it was delivered and is not pending.
        let was_pending = blocked.before.has(signal) && Set::pending().has(signal);
        NoSignal { signal, was_pending, _blocked: blocked }
    }
}

impl Drop for NoSignal {
    fn drop(&mut self) {
        if !self.was_pending {
            let now = NoTime([0; 16]);
            // SAFETY: the arguments are a `sigset_t`, a null `info`, and a `struct timespec` of zero. With a zero
            // timeout the call removes a pending signal, or returns -1.
            unsafe { sigtimedwait(&Set::of(self.signal), ptr::null_mut(), &raw const now) };
        }
    }
}

/// Runs `before` while this thread blocks these signals. Then lets this thread receive them, also if the program that
/// started this process has blocked them. Changes nothing for other threads.
#[cfg(feature = "cli")]
pub fn receive_signals_after<T>(signals: &[i32], before: impl FnOnce() -> T) -> T {
    let mut set = Set::empty();
    for signal in signals {
        // SAFETY: `sigemptyset` initialized the set. The call refuses numbers that are no signals.
        unsafe { sigaddset(&raw mut set, *signal) };
    }
    let blocked = Blocked::new(&set);
    let done = before();
    std::mem::forget(blocked);
    // SAFETY: the call reads a `sigset_t`, and writes nothing because `old` is null.
    unsafe { pthread_sigmask(SIG_UNBLOCK, &raw const set, ptr::null_mut()) };
    done
}

/// Returns whether the calling thread blocks signals as the library's threads must.
#[cfg(test)]
pub(crate) fn are_blocked() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim();
    let blocked = u64::from_str_radix(blocked, 16).unwrap();
    let is = |signal: Signal| blocked >> (signal.as_raw() - 1) & 1 == 1;
    let all = [
        Signal::HUP,
        Signal::INT,
        Signal::QUIT,
        Signal::USR1,
        Signal::USR2,
        Signal::PIPE,
        Signal::ALARM,
        Signal::TERM,
        Signal::CHILD,
        Signal::CONT,
        Signal::TSTP,
        Signal::URG,
        Signal::PROF,
        Signal::WINCH,
        Signal::IO,
    ];
    all.into_iter().all(is) && !RAISED_BY_THE_THREAD.into_iter().any(is)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Rlimit, setrlimit};

    use super::*;
    use crate::testing::fork::{alone, in_forked_child};

    fn is_blocked(signal: Signal) -> bool {
        Blocked::new(&Set::empty()).before.has(signal)
    }

    #[test]
    fn a_thread_starts_with_signals_blocked_and_the_one_that_starts_it_has_its_mask_back() {
        assert!(!are_blocked() && !is_blocked(Signal::TERM));
        let spawn = || std::thread::Builder::new().name("dlm-test".into()).spawn(are_blocked).unwrap();
        let thread = blocked_in_new_threads(spawn);
        assert!(!are_blocked() && !is_blocked(Signal::TERM));
        assert!(thread.join().unwrap());
    }

    #[test]
    #[cfg(feature = "aerospike")]
    fn blocking_twice_is_undone_at_once() {
        unblock();
        block();
        block();
        assert!(are_blocked());
        unblock();
        assert!(!are_blocked() && !is_blocked(Signal::TERM));
    }

    /// `tests/c/pipes.c` tests the same in a C program.
    #[test]
    #[cfg(feature = "aerospike")]
    fn a_write_to_a_closed_pipe_leaves_no_signal_behind() {
        let _ours = Blocked::new(&Set::of(Signal::PIPE));
        let quiet = NoSignal::pipe();
        let (reader, mut writer) = std::io::pipe().unwrap();
        drop(reader);
        assert!(std::io::Write::write(&mut writer, b"x").is_err());
        assert!(Set::pending().has(Signal::PIPE), "the kernel sends none: nothing was tried");
        drop(quiet);
        assert!(!Set::pending().has(Signal::PIPE));
    }

    /// `tests/c/limits.c` tests the same in a C program.
    #[test]
    fn a_file_that_may_not_grow_leaves_no_signal_behind() {
        if !alone() {
            return;
        }
        assert!(in_forked_child(|| {
            let limited = Rlimit { current: Some(1), maximum: getrlimit(Resource::Fsize).maximum };
            assert!(NoSignal::file_size().is_none() || getrlimit(Resource::Fsize).current.is_some());
            setrlimit(Resource::Fsize, limited).unwrap();
            let quiet = NoSignal::file_size().unwrap();
            let failed = std::io::Write::write(&mut tempfile::tempfile().unwrap(), b"too much");
            let few = failed.is_ok_and(|written| written == 1);
            let none = std::io::Write::write(&mut tempfile::tempfile().unwrap(), b"").is_ok();
            drop(quiet);
            few && none && !Set::pending().has(Signal::XFSZ)
        }));
    }
}
