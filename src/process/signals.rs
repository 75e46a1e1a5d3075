//! Signals belong to the program that calls the library. The library installs no handlers; its threads block
//! signals, and no write of its raises SIGPIPE.
//!
//! All of this is done with the signal mask, which each thread has for itself: nothing here changes what
//! other threads of the program, or the program as a whole, do about signals.

#[cfg(feature = "aerospike")]
use std::cell::Cell;
use std::ffi::c_int;
#[cfg(feature = "aerospike")]
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

use rustix::process::Signal;

#[cfg(any(target_arch = "mips", target_arch = "mips64", target_arch = "sparc", target_arch = "sparc64"))]
compile_error!("SIG_BLOCK and SIG_SETMASK have other values there");
const SIG_BLOCK: c_int = 0;
const SIG_SETMASK: c_int = 2;

/// The C library's `sigset_t`. 128 bytes is what glibc and musl have on Linux; others have less.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Set([u8; 128]);

/// The C library's `struct timespec`, all zero, which it is in every size that it may have.
#[cfg(feature = "aerospike")]
#[repr(C, align(8))]
struct NoTime([u8; 16]);

unsafe extern "C" {
    fn pthread_sigmask(how: c_int, set: *const Set, old: *mut Set) -> c_int;
    fn sigemptyset(set: *mut Set) -> c_int;
    fn sigfillset(set: *mut Set) -> c_int;
    #[cfg(feature = "aerospike")]
    fn sigaddset(set: *mut Set, signal: c_int) -> c_int;
    fn sigdelset(set: *mut Set, signal: c_int) -> c_int;
    #[cfg(any(feature = "aerospike", test))]
    fn sigismember(set: *const Set, signal: c_int) -> c_int;
    #[cfg(feature = "aerospike")]
    fn sigpending(set: *mut Set) -> c_int;
    #[cfg(feature = "aerospike")]
    fn sigtimedwait(set: *const Set, info: *mut c_void, timeout: *const NoTime) -> c_int;
}

/// A thread raises these itself, by what it does. The kernel ends a process at once where one of them comes
/// up while it is blocked, and the program's own handler (a crash report, a sanitizer, another language's
/// runtime) would not see it.
const RAISED_BY_THE_THREAD: [Signal; 6] =
    [Signal::ILL, Signal::TRAP, Signal::BUS, Signal::FPE, Signal::SEGV, Signal::SYS];

impl Set {
    fn empty() -> Set {
        let mut set = Set([0; 128]);
        // SAFETY: it writes a `sigset_t`, for which there is room.
        unsafe { sigemptyset(&raw mut set) };
        set
    }

    #[cfg(feature = "aerospike")]
    fn of(signal: Signal) -> Set {
        let mut set = Set::empty();
        // SAFETY: the set was made by `sigemptyset`.
        unsafe { sigaddset(&raw mut set, signal.as_raw()) };
        set
    }

    /// Without those that the C library keeps for itself.
    fn all_but_raised_by_the_thread() -> Set {
        let mut set = Set::empty();
        // SAFETY: it writes a `sigset_t`, for which there is room.
        unsafe { sigfillset(&raw mut set) };
        for signal in RAISED_BY_THE_THREAD {
            // SAFETY: the set was made by `sigfillset`.
            unsafe { sigdelset(&raw mut set, signal.as_raw()) };
        }
        set
    }

    #[cfg(any(feature = "aerospike", test))]
    fn has(&self, signal: Signal) -> bool {
        // SAFETY: every `Set` was made by the C library.
        unsafe { sigismember(self, signal.as_raw()) == 1 }
    }

    /// Signals that wait for this thread or for the process.
    #[cfg(feature = "aerospike")]
    fn pending() -> Set {
        let mut set = Set::empty();
        // SAFETY: it writes a `sigset_t`, for which there is room.
        unsafe { sigpending(&raw mut set) };
        set
    }
}

/// Signals are blocked in this thread until it is dropped.
struct Blocked {
    before: Set,
    /// A mask is its thread's.
    not_send: PhantomData<*const ()>,
}

impl Blocked {
    fn new(signals: &Set) -> Blocked {
        let mut before = Set::empty();
        // SAFETY: it reads one `sigset_t` and writes another. It fails only for numbers that are no SIG_BLOCK.
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

/// Makes this the thread's mask again.
fn restore(before: &Set) {
    // SAFETY: it reads a `sigset_t`, and writes nothing through a null pointer.
    let failed = unsafe { pthread_sigmask(SIG_SETMASK, before, ptr::null_mut()) };
    debug_assert_eq!(failed, 0);
}

/// Runs `spawn`, which starts a thread of the library's, and the new thread has all signals blocked: they are
/// for the program's threads, for its `sigwait` or `signalfd`. A thread inherits the mask of the one that
/// starts it, so there is no moment in which it could receive one.
pub(crate) fn blocked_in_new_threads<T>(spawn: impl FnOnce() -> T) -> T {
    let _blocked = Blocked::new(&Set::all_but_raised_by_the_thread());
    spawn()
}

#[cfg(feature = "aerospike")]
thread_local! {
    /// The mask to restore. Not a `Blocked`, whose destructor would end it: a thread that ends may still call.
    static BEFORE: Cell<Option<Set>> = const { Cell::new(None) };
}

/// As [`blocked_in_new_threads`], where only the moment before this thread starts another one is known:
/// blocks signals here until [`unblock`]. To be called again does no harm.
#[cfg(feature = "aerospike")]
pub(crate) fn block() {
    if BEFORE.get().is_none() {
        let blocked = Blocked::new(&Set::all_but_raised_by_the_thread());
        BEFORE.set(Some(blocked.before));
        std::mem::forget(blocked);
    }
}

/// Undoes [`block`]; nothing where it was not called.
#[cfg(feature = "aerospike")]
pub(crate) fn unblock() {
    if let Some(before) = BEFORE.take() {
        restore(&before);
    }
}

/// Until it is dropped, a write of this thread to a socket that the other side has closed fails and raises no
/// SIGPIPE. For writes by others' code; our own say so with each write. Three system calls.
///
/// The kernel sends this signal to the thread that writes. It stays pending while it is blocked, and is taken
/// off before the mask is restored. One that was pending before is the program's own, and stays.
#[cfg(feature = "aerospike")]
pub(crate) struct NoSigpipe {
    was_pending: bool,
    _blocked: Blocked,
}

#[cfg(feature = "aerospike")]
impl NoSigpipe {
    pub(crate) fn new() -> NoSigpipe {
        let blocked = Blocked::new(&Set::of(Signal::PIPE));
        // Where it was not blocked it was delivered rather than pending.
        let was_pending = blocked.before.has(Signal::PIPE) && Set::pending().has(Signal::PIPE);
        NoSigpipe { was_pending, _blocked: blocked }
    }
}

#[cfg(feature = "aerospike")]
impl Drop for NoSigpipe {
    fn drop(&mut self) {
        if !self.was_pending {
            let now = NoTime([0; 16]);
            // SAFETY: a `sigset_t`, no wish to know more, and a `struct timespec` of zeros. With no time to
            // wait, it only takes what is pending: -1 where nothing is.
            unsafe { sigtimedwait(&Set::of(Signal::PIPE), ptr::null_mut(), &raw const now) };
        }
    }
}

/// Whether a thread of the library's, in which this is called, leaves signals to the program.
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
    use super::*;

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

    /// What a C program sees of it is in `tests/c/pipes.c`.
    #[test]
    #[cfg(feature = "aerospike")]
    fn a_write_to_a_closed_pipe_leaves_no_signal_behind() {
        let _ours = Blocked::new(&Set::of(Signal::PIPE));
        let quiet = NoSigpipe::new();
        let (reader, mut writer) = std::io::pipe().unwrap();
        drop(reader);
        assert!(std::io::Write::write(&mut writer, b"x").is_err());
        assert!(Set::pending().has(Signal::PIPE), "the kernel sends none: nothing was tried");
        drop(quiet);
        assert!(!Set::pending().has(Signal::PIPE));
    }
}
