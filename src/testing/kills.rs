//! Kills a forked child at a moment that the test chooses. Only for tests that are [`alone`](super::fork::alone).

// The calls of the system have no safe form. Only unit tests have this file.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::ffi::{c_long, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(target_arch = "x86_64")]
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(target_arch = "x86_64")]
use rustix::process::getpid;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

#[cfg(target_arch = "x86_64")]
use crate::Deadline;
#[cfg(target_arch = "x86_64")]
use crate::testing::patience::LONG;

#[cfg(target_arch = "x86_64")]
const PTRACE_TRACEME: u32 = 0;
#[cfg(target_arch = "x86_64")]
const PTRACE_SINGLESTEP: u32 = 9;
#[cfg(target_arch = "x86_64")]
/// The exit code of a child that may not be traced.
const REFUSED: i32 = 77;

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(code: i32) -> !;
    #[cfg(target_arch = "x86_64")]
    fn ptrace(request: u32, pid: i32, address: *mut c_void, data: *mut c_void) -> c_long;
}

/// What became of a child.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Killed,
    /// It ended by itself.
    Done,
    /// The system does not allow to trace it.
    Refused,
}

fn forked(run: impl FnOnce()) -> Pid {
    // SAFETY: see `super::fork::in_forked_child`.
    let pid = unsafe { fork() };
    if pid == 0 {
        let ran = catch_unwind(AssertUnwindSafe(run));
        // SAFETY: `_exit` takes a number and does not return.
        unsafe { _exit(i32::from(ran.is_err())) }
    }
    Pid::from_raw(pid).expect("fork failed")
}

fn wait(pid: Pid) -> WaitStatus {
    waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().expect("it waits").1
}

/// Kills a child that runs `run` after this time, unless it was killed before.
pub(crate) fn killed_after(time: Duration, run: impl FnOnce()) {
    let pid = forked(run);
    let by = Instant::now() + time;
    while let Some(left) = by.checked_duration_since(Instant::now()) {
        if let Some((_, status)) = waitpid(Some(pid), WaitOptions::NOHANG).unwrap() {
            assert!(status.signaled(), "it ended before it was killed: {status:?}");
            return;
        }
        thread::sleep(left.min(Duration::from_millis(10)));
    }
    kill_process(pid, Signal::KILL).unwrap();
    assert!(wait(pid).signaled(), "it ended before it was killed");
}

/// Steps through `run` in a child, after `prepare`, until what `look` returns has changed so many times. Then kills it. Not on
/// processors whose atomic operations fail when they are stepped.
#[cfg(target_arch = "x86_64")]
pub(crate) fn killed_at_change<T>(
    changes: usize,
    look: impl Fn() -> Vec<u8>,
    prepare: impl FnOnce() -> T,
    run: impl FnOnce(T),
) -> End {
    let pid = forked(|| {
        // SAFETY: the request has no pointers. The parent traces this process from here on.
        let traced = unsafe { ptrace(PTRACE_TRACEME, 0, ptr::null_mut(), ptr::null_mut()) };
        if traced != 0 {
            // SAFETY: `_exit` takes a number and does not return.
            unsafe { _exit(REFUSED) }
        }
        let prepared = prepare();
        kill_process(getpid(), Signal::STOP).unwrap();
        run(prepared);
    });
    const TRAP: i32 = Signal::TRAP.as_raw();
    const STOP: i32 = Signal::STOP.as_raw();
    let by = Deadline::after(2 * LONG);
    let mut seen = look();
    let mut changed = 0;
    let mut is_ready = false;
    loop {
        let status = wait(pid);
        if status.exit_status() == Some(REFUSED) {
            return End::Refused;
        }
        if !status.stopped() {
            assert_eq!(status.exit_status(), Some(0), "the child failed: {status:?}");
            return End::Done;
        }
        // A fault would happen again with the next step.
        let stop = status.stopping_signal();
        if by.passed() || stop.is_some_and(|stop| ![TRAP, STOP].contains(&stop)) {
            kill_process(pid, Signal::KILL).unwrap();
            panic!("the child was stopped by signal {stop:?}, or never ended");
        }
        if !is_ready {
            is_ready = true;
            seen = look();
        }
        let now = look();
        if now != seen {
            seen = now;
            changed += 1;
            if changed == changes {
                kill_process(pid, Signal::KILL).unwrap();
                assert!(wait(pid).signaled());
                return End::Killed;
            }
        }
        // SAFETY: the child is stopped and traced by this thread. The request has no pointers.
        let stepped = unsafe {
            ptrace(PTRACE_SINGLESTEP, pid.as_raw_nonzero().get(), ptr::null_mut(), ptr::null_mut())
        };
        assert_eq!(stepped, 0, "the child cannot be stepped");
    }
}
