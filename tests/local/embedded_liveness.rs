//! Leases of the embedded store that die with their process: others get the lock at once when the process has died, and
//! never while it may live.
#![cfg(feature = "embedded")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dlm::{AcquireOptions, Code, Deadline, Fence, Lease, Level, Lock, LockManager};
use dlm_fixtures::role::{self, Running, process};
use dlm_testkit::{LONG, skipped, until};
use rustix::process::{Pid, Signal, kill_process};

/// Much longer than any test: a lock that becomes free sooner was taken over.
const TTL: Duration = Duration::from_secs(24 * 3600);
const RETRY: Duration = Duration::from_millis(20);
/// Number of looks that show that a lock is not taken over, one per retry interval.
const LOOKS: u32 = 25;

/// Entry point of the processes of these tests.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((role, dir)) = role::asked() else { return };
    let manager = manager(&dir.join(if role == "hold elsewhere" { "elsewhere" } else { "store" }));
    let token = dir.join("token");
    let lease = match role.as_str() {
        "hold" | "hold elsewhere" => dying(&manager, "a").unwrap(),
        "hold two" => {
            std::mem::forget(dying(&manager, "b").unwrap());
            dying(&manager, "a").unwrap()
        }
        "hold and renew" => {
            let lease = dying(&manager, "a").unwrap();
            lease.renew().unwrap();
            lease
        }
        "hold unmarked" => lock(&manager, "a").try_acquire_with_ttl(TTL).unwrap(),
        "hand on" => {
            let lease = dying(&manager, "a").unwrap();
            let fence = lease.fence().unwrap();
            fs::write(&token, lease.into_token().unwrap().to_string()).unwrap();
            return said(fence);
        }
        "adopt" => {
            let lease = manager.adopt(fs::read_to_string(&token).unwrap().parse().unwrap()).unwrap();
            lease.renew().unwrap();
            lease
        }
        role => panic!("no role {role:?}"),
    };
    said(lease.fence().unwrap());
}

fn said(fence: Fence) {
    println!("\nheld {fence}");
    thread::sleep(10 * LONG);
}

fn manager(store: &Path) -> LockManager {
    let uri = format!("embedded:{}", store.display());
    let builder = LockManager::builder().store_uri(&uri).client("tests").retry(RETRY);
    builder.wait(5 * LONG).timeout(LONG).open().unwrap()
}

fn lock(manager: &LockManager, id: &str) -> Lock {
    manager.lock(id, Level::Xdc).unwrap()
}

/// Tries once to acquire a lock for a lease that dies with this process.
fn dying(manager: &LockManager, id: &str) -> dlm::Result<Lease> {
    lock(manager, id).acquire_with(&AcquireOptions::new().ttl(TTL).wait(Duration::ZERO).dies_with_process())
}

/// A directory with a store, and processes that hold its locks.
struct Site {
    dir: tempfile::TempDir,
}

/// A process that holds a lock.
struct Holder {
    process: Running,
    fence: Fence,
}

impl Site {
    fn new() -> Site {
        Site { dir: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn manager(&self) -> LockManager {
        manager(&self.store())
    }

    /// Starts a process with this role, and waits until it holds its lock.
    fn start(&self, role: &str) -> Holder {
        Holder::of(process(module_path!(), role, self.dir.path()))
    }

    fn liveness_files(&self) -> Vec<PathBuf> {
        let inside =
            |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let files = inside(self.store()).filter(|path| path.is_dir()).flat_map(inside);
        files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("alive-")).collect()
    }
}

impl Holder {
    fn of(mut command: Command) -> Holder {
        let mut process = Running(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let fence = lines.find_map(|line| line.unwrap().strip_prefix("held ")?.parse().ok());
        Holder { fence: Fence(fence.expect("the process holds its lock")), process }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process.0), signal).unwrap();
    }

    fn kill(mut self) -> Fence {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
        self.fence
    }
}

fn stays_held(manager: &LockManager, id: &str) {
    let lock = lock(manager, id);
    for look in 0..LOOKS {
        match dying(manager, id) {
            Ok(_) => panic!("look {look}: lock {id} was taken over"),
            Err(error) => assert_eq!(error.code(), Code::LockUnavailable, "{}", error.chain()),
        }
        assert!(lock.inspect().unwrap().holder.is_some());
        thread::sleep(RETRY);
    }
}

#[test]
fn a_waiter_gets_the_lock_of_a_killed_process_at_once_with_a_higher_fence() {
    let site = Site::new();
    for role in ["hold", "hold and renew"] {
        let holder = site.start(role);
        let waiter = {
            let manager = site.manager();
            thread::spawn(move || lock(&manager, "a").acquire_with_ttl(TTL))
        };
        stays_held(&site.manager(), "a");
        let before = holder.kill();
        let lease = waiter.join().unwrap().unwrap();
        assert!(lease.fence() > Some(before), "{role}: {:?} after {before}", lease.fence());
        assert!(site.liveness_files().is_empty(), "{role}: its file is left");
        assert!(lease.release().unwrap());
    }
}

#[test]
fn a_killed_process_is_seen_as_no_holder_and_one_attempt_gets_each_of_its_locks() {
    let site = Site::new();
    let before = site.start("hold two").kill();
    let manager = site.manager();
    assert!(lock(&manager, "a").inspect().unwrap().holder.is_none());
    let first = lock(&manager, "a").try_acquire_with_ttl(TTL).unwrap();
    assert_eq!(site.liveness_files().len(), 1, "the file that the other record names was deleted");
    let second = lock(&manager, "b").try_acquire_with_ttl(TTL).unwrap();
    assert!(first.fence() > Some(before) && second.fence() > first.fence());
    assert!(site.liveness_files().is_empty());
}

#[test]
fn a_process_that_is_only_stopped_keeps_its_lock() {
    let site = Site::new();
    let holder = site.start("hold");
    holder.signal(Signal::STOP);
    let manager = site.manager();
    stays_held(&manager, "a");
    holder.signal(Signal::CONT);
    stays_held(&manager, "a");
    holder.kill();
    drop(lock(&manager, "a").acquire().unwrap());
}

#[test]
fn no_lease_is_taken_over_unless_it_was_marked_at_acquire() {
    let site = Site::new();
    site.start("hold unmarked").kill();
    stays_held(&site.manager(), "a");
}

#[test]
fn a_lease_that_was_handed_on_or_adopted_outlives_every_process() {
    let site = Site::new();
    let manager = site.manager();
    let fence = site.start("hand on").kill();
    stays_held(&manager, "a");
    assert_eq!(site.start("adopt").kill(), fence);
    stays_held(&manager, "a");
    let token = fs::read_to_string(site.dir.path().join("token")).unwrap();
    assert!(manager.adopt(token.parse().unwrap()).unwrap().release().unwrap());
}

/// Both a cleaner of old files and somebody who restores a copy.
#[test]
fn a_file_that_somebody_deleted_or_replaced_proves_nothing() {
    let site = Site::new();
    let manager = site.manager();
    let holder = site.start("hold");
    let [file] = &site.liveness_files()[..] else { panic!("{:?}", site.liveness_files()) };
    let kept = site.dir.path().join("kept");
    fs::rename(file, &kept).unwrap();
    fs::copy(&kept, file).unwrap();
    stays_held(&manager, "a");
    fs::remove_file(file).unwrap();
    stays_held(&manager, "a");
    holder.kill();
    stays_held(&manager, "a");
    fs::copy(&kept, file).unwrap();
    stays_held(&manager, "a");
    // The right one again.
    fs::rename(&kept, file).unwrap();
    drop(lock(&manager, "a").acquire().unwrap());
}

#[test]
fn a_new_lease_gets_a_new_file_if_the_last_one_was_deleted() {
    let site = Site::new();
    let manager = site.manager();
    let first = dying(&manager, "a").unwrap();
    let old = site.liveness_files();
    fs::remove_file(&old[0]).unwrap();
    let _second = dying(&manager, "b").unwrap();
    let new = site.liveness_files();
    assert!(new.len() == 1 && new != old, "{new:?}");
    drop(first);
}

#[test]
fn of_many_who_find_a_dead_holder_at_once_exactly_one_gets_the_lock() {
    let site = Site::new();
    for round in 0..8 {
        let before = site.start("hold").kill();
        let waiters = 6;
        let (barrier, is_taken) = (Barrier::new(waiters), AtomicBool::new(false));
        let managers: Vec<_> = (0..waiters).map(|_| site.manager()).collect();
        let leases: Vec<Lease> = thread::scope(|scope| {
            let attempts = managers.iter().map(|manager| {
                let (barrier, is_taken) = (&barrier, &is_taken);
                scope.spawn(move || {
                    barrier.wait();
                    let (by, mut looks) = (Deadline::after(LONG), 0);
                    // A check by another one may be in the way of a single attempt. When one has the lock, the others look
                    // so many times more.
                    while looks < LOOKS && !by.passed() {
                        if let Ok(lease) = dying(manager, "a") {
                            is_taken.store(true, Ordering::SeqCst);
                            return Some(lease);
                        }
                        looks += u32::from(is_taken.load(Ordering::SeqCst));
                    }
                    None
                })
            });
            let attempts: Vec<_> = attempts.collect();
            attempts.into_iter().filter_map(|attempt| attempt.join().unwrap()).collect()
        });
        let [lease] = &leases[..] else { panic!("round {round}: {} leases", leases.len()) };
        assert!(lease.fence() > Some(before));
        lease.renew().expect("nobody has taken it over");
    }
}

/// A process with a lease for a day may be dead for hours before anybody wants the lock.
#[test]
fn files_of_dead_processes_stay_while_a_record_names_them_and_not_longer() {
    let site = Site::new();
    site.start("hold two").kill();
    let manager = site.manager();
    let named = site.liveness_files();
    assert_eq!(named.len(), 1, "{named:?}");
    // Files that nobody took over: their processes were killed before they had a lease.
    for number in 0..5 {
        let path = named[0].with_file_name(format!("alive-{number:032x}"));
        fs::write(path, "").unwrap();
    }
    assert_eq!(site.liveness_files().len(), 6);
    let own = dying(&manager, "own").unwrap();
    assert_eq!(site.liveness_files().len(), 2, "{:?}", site.liveness_files());
    assert!(site.liveness_files().contains(&named[0]), "the named one was deleted");
    drop(lock(&manager, "a").try_acquire_with_ttl(TTL).expect("the proof was kept"));
    drop(own);
}

#[test]
fn the_file_is_deleted_with_the_last_handle_of_a_manager() {
    let site = Site::new();
    let manager = site.manager();
    let leases = [dying(&manager, "a").unwrap(), dying(&manager, "b").unwrap()];
    assert_eq!(site.liveness_files().len(), 1, "one for all leases");
    drop(leases);
    manager.close().unwrap();
    drop(manager);
    assert!(site.liveness_files().is_empty());
}

#[test]
fn a_lease_that_dies_with_its_process_is_refused_where_others_must_wait_or_nobody_can_tell() {
    let site = Site::new();
    let embedded = format!("embedded:{}", site.store().display());
    let refused = |uri: &str, options: AcquireOptions, what: &str| {
        let manager = LockManager::builder().store_uri(uri).client("tests").open().unwrap();
        assert_eq!(manager.can_die_with_process(), what == "minimum hold", "{uri}");
        let asked = lock(&manager, "a").acquire_with(&options.dies_with_process());
        let error = asked.expect_err(uri);
        assert_eq!(error.code(), Code::InvalidArgument, "{}", error.chain());
        assert!(error.to_string().contains(what), "{error}");
        assert!(lock(&manager, "a").inspect().unwrap().holder.is_none());
    };
    refused("memory:", AcquireOptions::new(), "memory:");
    refused(&format!("{embedded}?lock_delay=1s"), AcquireOptions::new(), "lock delay");
    refused(&format!("{embedded}?lock_delay=0s"), AcquireOptions::new().min_hold(RETRY), "minimum hold");
    let manager = site.manager();
    let pair = [lock(&manager, "a"), lock(&manager, "b")];
    let pair = [&pair[0], &pair[1]];
    let set = manager.acquire_all(&pair, &AcquireOptions::new().ttl(TTL).dies_with_process()).unwrap();
    assert!(set.leases().iter().all(|lease| lease.liveness_fd().unwrap().is_some()));
}

/// Without its store, nobody can take the mark off.
#[test]
fn a_lease_becomes_no_token_if_the_store_cannot_be_told() {
    let site = Site::new();
    let manager = site.manager();
    let lease = dying(&manager, "a").unwrap();
    fs::remove_dir_all(site.store()).unwrap();
    let error = lease.into_token().unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
}

#[test]
fn a_lease_that_was_lost_becomes_no_token() {
    let site = Site::new();
    let manager = site.manager();
    let options = AcquireOptions::new().ttl(Duration::from_millis(50)).dies_with_process();
    let mut lease = None;
    // On a slow machine, a grant may come only after its lease has ended.
    until("a grant comes in time", || {
        lease = lock(&manager, "a").acquire_with(&options).ok();
        lease.is_some()
    });
    let lease = lease.unwrap();
    let _next = lock(&manager, "a").acquire().unwrap();
    assert_eq!(lease.into_token().unwrap_err().code(), Code::LeaseLost);
}

/// A process counts as alive while others have a copy of its descriptor.
#[test]
fn only_a_marked_lease_has_a_liveness_descriptor_and_it_is_closed_on_exec() {
    let site = Site::new();
    let manager = site.manager();
    let lease = dying(&manager, "a").unwrap();
    let descriptor = lease.liveness_fd().unwrap().unwrap();
    assert!(rustix::io::fcntl_getfd(&descriptor).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    let unmarked = lock(&manager, "b").acquire().unwrap();
    assert!(unmarked.liveness_fd().unwrap().is_none());
    assert!(lease.release().unwrap());
    assert_eq!(lease.liveness_fd().unwrap_err().code(), Code::LeaseLost);
}

/// The process has another view of the files, and its process id means nothing here.
#[test]
fn a_process_in_another_container_of_this_kernel_is_followed_at_once_too() {
    let site = Site::new();
    let works = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !works {
        return skipped("unshare", "it is not installed, or only root may use it");
    }
    let manager = site.manager();
    fs::create_dir(site.dir.path().join("elsewhere")).unwrap();
    let inner = process(module_path!(), "hold elsewhere", site.dir.path());
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child=KILL", "sh", "-c"]);
    command.arg("mount --bind store elsewhere && exec \"$@\"").arg("sh");
    command.arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().map(|(key, value)| (key, value.unwrap()))).current_dir(site.dir.path());
    let holder = Holder::of(command);
    assert_eq!(site.liveness_files().len(), 1);
    stays_held(&manager, "a");
    let before = holder.kill();
    let mut next = None;
    until("the lock of the process is free", || {
        next = lock(&manager, "a").try_acquire_with_ttl(TTL).ok();
        next.is_some()
    });
    assert!(next.unwrap().fence() > Some(before));
}
