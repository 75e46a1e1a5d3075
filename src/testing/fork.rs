//! Forks for tests: what a child may do with the managers and leases that it inherited.

// The calls of the system have no safe form. Only unit tests have this file.
#![allow(unsafe_code)]

use std::env;
use std::io::{self, Write};
use std::mem;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::error::{Code, Result};
use crate::lease::freeing::LockDoubt;
use crate::lease::held_lock::Leftover;
use crate::names::fence::Fence;
use crate::names::owner::OwnerRecord;
use crate::store::{Acquired, Attempt, LockStore, MemoryStore, Released};
use crate::testing::patience::{LONG, until};
use crate::{DEFAULTS, Deadline, FenceGate, Holder, Lease, Level, LockManager, LockName, store::Inspection};

unsafe extern "C" {
    fn fork() -> i32;
    fn syscall(number: std::ffi::c_long, ...) -> std::ffi::c_long;
    fn _exit(code: i32) -> !;
}

/// Returns whether no other test runs in this process. If another test may run, this function runs the calling test
/// in a separate process, asserts that it passes there, and returns `false`: the caller must then return. A lock that
/// a thread of another test holds during the fork would stay locked in the child.
///
/// Always returns `false` with the compiler's checks of memory and threads, which cannot follow a fork of a process with
/// threads: see `tests/sanitizers`.
pub(crate) fn alone() -> bool {
    const ALONE: &str = "DLM_TEST_ALONE";
    if env::var_os("DLM_TEST_SANITIZER").is_some() {
        return false;
    }
    let thread = thread::current();
    let test = thread.name().expect("tests run in threads with their names");
    // Tests that run one at a time run in the main thread.
    if test == "main" || env::var_os(ALONE).is_some() {
        return true;
    }
    let mut own = Command::new(env::current_exe().unwrap());
    let ran = own.args([test, "--exact"]).env(ALONE, "1").output().unwrap();
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && out.contains("1 passed"),
        "{out}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    false
}

/// Runs `run` in a forked child. Returns its result, or `false` if the child hung or crashed. For tests that are
/// [`alone`].
pub(crate) fn in_forked_child(run: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child leaves through `_exit`, so it runs no destructor and no exit handler of the parent.
    // The only lock that other threads may hold and that the child needs is the allocator's. The C library makes
    // it usable after fork. All other threads belong to this library, and a child does not take their locks:
    // these tests check that.
    let pid = unsafe { fork() };
    run_if_child(pid, run)
}

/// Like [`in_forked_child`], but with a bare `clone` system call, so the C library's fork hooks do not run. No other
/// thread may be using the allocator.
pub(crate) fn in_child_by_system_call(run: impl FnOnce() -> bool) -> bool {
    const CLONE: std::ffi::c_long = if cfg!(target_arch = "x86_64") { 56 } else { 220 };
    // SAFETY: the flags share nothing and name the same signal as `fork`, so this is `fork` without the C library's
    // part. No other thread is at work, so no lock of the C library is held in the child.
    let pid = unsafe {
        syscall(CLONE, 17 /* SIGCHLD */, 0, 0, 0, 0)
    };
    run_if_child(i32::try_from(pid).unwrap(), run)
}

/// Runs `run` in a forked child, which nobody waits for. For children of [`in_forked_child`]: when that has ended, the
/// system waits for them.
#[cfg(feature = "embedded")]
pub(crate) fn in_abandoned_child(run: impl FnOnce()) {
    // SAFETY: as in `in_forked_child`.
    let pid = unsafe { fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let _ = catch_unwind(AssertUnwindSafe(run));
        // SAFETY: `_exit` takes a number and does not return.
        unsafe { _exit(0) }
    }
}

fn run_if_child(pid: i32, run: impl FnOnce() -> bool) -> bool {
    if pid == 0 {
        // Panics are written to standard error, because the captured output of the test is lost with this process.
        panic::set_hook(Box::new(|panic| drop(writeln!(io::stderr(), "in the forked child: {panic}"))));
        let answer = catch_unwind(AssertUnwindSafe(run)).unwrap_or(false);
        // SAFETY: `_exit` takes a number and does not return.
        unsafe { _exit(if answer { 0 } else { 1 }) }
    }
    let pid = Pid::from_raw(pid).expect("fork failed");
    let by = Deadline::after(2 * LONG);
    loop {
        if let Some((_, status)) = waitpid(Some(pid), WaitOptions::NOHANG).unwrap() {
            let well = status.exit_status() == Some(0);
            if !well {
                eprintln!("the forked child ended with {status:?}");
            }
            return well;
        }
        if by.passed() {
            kill_process(pid, Signal::KILL).unwrap();
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// A store in memory. A release sends a message when it arrives, and returns only when the test allows it.
#[derive(Debug)]
struct Slow {
    memory: MemoryStore,
    came: Sender<()>,
    go_on: Receiver<()>,
}

impl LockStore for Slow {
    fn describe(&self) -> String {
        "slow:".into()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.memory.initialize(by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<OwnerRecord>) -> Result<Acquired> {
        self.memory.acquire(attempt, doubtful)
    }

    fn renew(
        &self,
        name: &LockName,
        owner_record: &OwnerRecord,
        ttl: Duration,
        by: Deadline,
    ) -> Result<Option<OwnerRecord>> {
        self.memory.renew(name, owner_record, ttl, by)
    }

    fn release(&self, name: &LockName, owner_record: &OwnerRecord, by: Deadline) -> Result<Released> {
        let released = self.memory.release(name, owner_record, by);
        // The receiver is gone if the test has failed.
        let _ = self.came.try_send(());
        let _ = self.go_on.recv_timeout(LONG);
        released
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        self.memory.holder(name, by)
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        self.memory.inspect(name, by)
    }
}

fn manager(store: Arc<dyn LockStore>) -> LockManager {
    LockManager::builder().store(store).client("fork").timeout(LONG).open().unwrap()
}

fn is<T>(answer: Result<T>, code: Code) -> bool {
    answer.is_err_and(|error| error.code() == code)
}

/// A thread that the child does not have is releasing the lease.
#[test]
fn a_child_forked_while_a_lease_was_being_released_is_refused_and_does_not_wait() {
    if !alone() {
        return;
    }
    let ((came, coming), (going, go_on)) = (bounded(1), bounded(1));
    let manager = manager(Arc::new(Slow { memory: MemoryStore::new(), came, go_on }));
    let mut lease = Some(manager.lock("a", Level::Xdc).unwrap().acquire().unwrap());
    let closing = {
        let manager = manager.clone();
        thread::Builder::new().name("dlm-test-closing".into()).spawn(move || manager.close()).unwrap()
    };
    coming.recv_timeout(LONG).unwrap();
    let mut in_child = |act: fn(Lease) -> bool| in_forked_child(|| act(lease.take().unwrap()));
    assert!(in_child(|lease| {
        let refused = is(lease.release(), Code::Forked);
        mem::forget(lease);
        refused
    }));
    assert!(in_child(|lease| {
        let refused = is(lease.renew(), Code::Forked) && is(lease.renew_for(LONG), Code::Closed);
        mem::forget(lease);
        refused
    }));
    assert!(in_child(|lease| is(lease.into_token(), Code::Closed)));
    assert!(in_child(|lease| {
        let told = lease.ttl() == DEFAULTS.ttl && lease.check().is_err() && lease.remaining().is_zero();
        mem::forget(lease);
        told
    }));
    assert!(in_child(|lease| {
        drop(lease);
        true
    }));
    going.send(()).unwrap();
    closing.join().unwrap().expect("the children did no harm");
    assert!(!lease.unwrap().release().unwrap(), "closing had released it");
}

/// Leaves a lock held, like a request in doubt. The library's background threads free it.
fn leave_to_the_background(manager: &LockManager) -> crate::Lock {
    let lock = manager.lock("a", Level::Xdc).unwrap();
    let token = lock.acquire().unwrap().into_token().unwrap();
    let leftover = Leftover { record: token.owner_record, ttl: token.ttl, doubt: LockDoubt::MayBeHeld };
    manager.session().leases.free(token.name, leftover);
    lock
}

fn is_freed(lock: &crate::Lock) -> bool {
    until("the lock is freed", || lock.inspect().unwrap().holder.is_none());
    true
}

#[test]
fn a_forked_child_does_not_wait_for_threads_of_its_parent_and_can_have_its_own() {
    if !alone() {
        return;
    }
    let mut managed = {
        let manager = manager(Arc::new(MemoryStore::new()));
        let lock = leave_to_the_background(&manager);
        Some((manager, lock))
    };
    assert!(
        in_forked_child(|| {
            drop(managed.take());
            true
        }),
        "it waited for the parent's thread"
    );
    assert!(
        in_forked_child(|| is_freed(&leave_to_the_background(&manager(Arc::new(MemoryStore::new()))))),
        "the child has no background thread"
    );
    let (manager, lock) = managed.unwrap();
    assert!(is_freed(&lock));
    manager.close().unwrap();
}

/// After a fork only the parent holds the lock.
#[test]
fn a_lease_says_in_a_forked_child_that_it_is_not_the_childs() {
    if !alone() {
        return;
    }
    let manager = manager(Arc::new(MemoryStore::new()));
    let lease = manager.lock("a", Level::Xdc).unwrap().acquire().unwrap();
    let refused = || {
        let told = lease.fence().is_none() && lease.remaining().is_zero() && lease.ends().as_nanos() == 0;
        is(lease.check(), Code::Forked) && told && is(lease.release(), Code::Forked)
    };
    assert!(in_forked_child(refused), "fork");
    assert!(in_child_by_system_call(refused), "clone");
    lease.check().expect("the children did no harm");
    assert!(lease.fence().is_some() && lease.release().unwrap());
}

#[test]
fn a_child_has_no_part_in_its_parents_pass_of_a_fence_gate_and_can_have_its_own() {
    if !alone() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gate");
    let gate = FenceGate::open(&path).unwrap();
    let mut pass = Some(gate.pass(Fence(7)).unwrap());
    let held = || {
        let own = FenceGate::open(&path).unwrap();
        is(own.pass_within(Fence(8), Duration::ZERO), Code::LockUnavailable)
    };
    let mut in_child = || {
        let refused = is(gate.pass(Fence(7)), Code::Forked) && is(gate.highest(), Code::Forked);
        drop(pass.take());
        refused && held()
    };
    assert!(in_forked_child(&mut in_child), "fork");
    assert!(in_child_by_system_call(&mut in_child), "clone");
    assert!(held(), "a child has ended the pass of its parent");
    drop(pass);
    let own = || FenceGate::open(&path).unwrap().pass_within(Fence(9), Duration::ZERO).is_ok();
    assert!(in_forked_child(own), "the child's own gate");
    assert!(is(gate.pass(Fence(8)), Code::StaleFence));
}

/// The child inherits the descriptor of the file whose lock is the pass.
#[test]
fn a_pass_of_a_fence_gate_ends_with_its_parent_also_while_a_child_lives_that_was_forked_meanwhile() {
    if !alone() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (path, forked) = (directory.path().join("gate"), directory.path().join("forked"));
    let gate = FenceGate::open(&path).unwrap();
    let (passed, passing) = bounded(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _pass = gate.pass(Fence(7)).unwrap();
            passed.send(()).unwrap();
            until("the child runs", || forked.exists());
        });
        passing.recv_timeout(LONG).unwrap();
        assert!(in_forked_child(|| {
            let own = FenceGate::open(&path).unwrap();
            let held = is(own.pass_within(Fence(8), Duration::ZERO), Code::LockUnavailable);
            std::fs::write(&forked, "").unwrap();
            held && own.pass_within(Fence(8), LONG).is_ok()
        }));
    });
    assert!(is(gate.pass(Fence(7)), Code::StaleFence));
}

/// A child must not use its parent's connections, because its requests would mix with the parent's.
#[cfg(feature = "aerospike")]
#[test]
fn a_forked_child_has_no_records_of_its_parent() {
    use crate::aerospike::{Bins, Records};
    if !alone() {
        return;
    }
    let manager = manager(Arc::new(MemoryStore::new()));
    let lease = manager.lock("a", Level::Xdc).unwrap().acquire().unwrap();
    // No server listens there, so a child that connected would get CONNECTION_ERROR.
    let records = Records::open("aerospike://127.0.0.1:1/test/records?timeout=100ms").unwrap();
    let record = lease.record(&records, "a").unwrap();
    let mut owned = Some((records.clone(), lease.record(&records, "b").unwrap()));
    let refused = || {
        let bins = Bins::new().with("a", 1);
        is(lease.record(&records, "a"), Code::Forked)
            && is(record.put(&bins), Code::Forked)
            && is(record.add("a", 1), Code::Forked)
            && is(record.clear(), Code::Forked)
            && is(record.raise_fence(), Code::Forked)
            && is(record.get(), Code::Forked)
    };
    assert!(in_forked_child(refused), "fork");
    assert!(in_child_by_system_call(refused), "clone");
    assert!(in_forked_child(|| {
        drop(owned.take());
        let own = Records::open("aerospike://127.0.0.1:1/test/records?timeout=100ms").unwrap();
        // The child does not hold the lease either.
        is(lease.record(&own, "a"), Code::Forked)
    }));
    assert!(is(record.get(), Code::ConnectionError), "the children did no harm");
}
