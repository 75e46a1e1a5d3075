//! An embedded store that the users of a group share: which users may open it, which rights the files have, and that
//! the users' processes exclude each other, also when they are killed.
#![cfg(feature = "embedded")]

use std::env;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use dlm::store::{Acquired, Attempt, EmbeddedStore, Identity, LockStore, Released};
use dlm::{Code, Moment};
use dlm_fixtures::role::{self, Running};
use dlm_testkit::{shortened, skipped};

use super::embedded::{TTL, data_file, fence, grant, has_half_made, name, open, soon, wait_for};

/// Numbers of the users and their group. No real account has them.
const ANNA: u32 = 1_200_000_001;
const BERT: u32 = 1_200_000_002;
const STRANGER: u32 = 1_200_000_003;
const GROUP: u32 = 1_200_000_009;

const NO_ROOT: &str = "only root can become other users";
const NO_STRACE: &str = "strace is not installed, or may not trace";
const SHORT: Duration = Duration::from_millis(1500);

/// Entry point of the processes of these tests.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((role, dir)) = role::asked() else { return };
    let path = dir.join("store");
    match role.as_str() {
        "open" => drop(EmbeddedStore::open_group(&path).unwrap()),
        "hold" => hold(&path, "a", TTL),
        "hold briefly" => hold(&path, "b", SHORT),
        "hold, and look again" => look_again(&path),
        "hold until death" => hold_until_death(&path),
        "take it over" => {
            let store = EmbeddedStore::open_group(&path).unwrap();
            wait_for(&store, &name("a"), TTL);
        }
        "find it held" => find_held(&path, "a"),
        "find the other held" => find_held(&path, "b"),
        "wait for it" => wait(&path, &dir.join("held since")),
        "hammer" => hammer(&path),
        "use it" => use_it(&path),
        "be refused" => refused_with(EmbeddedStore::open_group(&path).map(drop), "is not in it"),
        "find it damaged" => {
            let error = EmbeddedStore::open_group(&path).map(drop).unwrap_err();
            assert!(error.to_string().contains("damaged"), "{}", error.chain());
        }
        "be refused alone" => refused_with(EmbeddedStore::open(&path).map(drop), "group=on"),
        role => panic!("no role {role:?}"),
    }
}

/// A directory in which both users may create a store. It contains a copy of this program that they can run.
struct Site {
    dir: tempfile::TempDir,
    binary: PathBuf,
}

impl Site {
    fn new() -> Site {
        let dir = tempfile::tempdir().unwrap();
        chown(dir.path(), None, Some(GROUP)).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o775)).unwrap();
        let binary = dir.path().join("test");
        // `cp` writes the copy. If this process wrote it, a child that another test starts could inherit the open
        // file, and a file that is open for writing cannot be executed.
        let copied = Command::new("cp").arg(env::current_exe().unwrap()).arg(&binary).status().unwrap();
        assert!(copied.success());
        Site { dir, binary }
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Returns the command for a process of this user. Its umask removes all rights of the group.
    fn process(&self, user: u32, role: &str) -> Command {
        let told = role::process_of(&self.binary, module_path!(), role, self.dir.path());
        let mut command = Command::new("sh");
        command.args(["-c", "umask 077 && exec \"$@\"", "sh"]).arg(told.get_program()).args(told.get_args());
        for (key, value) in told.get_envs() {
            command.env(key, value.unwrap());
        }
        let group = if user == STRANGER { STRANGER } else { GROUP };
        command.uid(user).gid(group).current_dir(self.dir.path()).stdout(Stdio::null());
        command
    }

    /// Returns the same command under strace, which injects signals, errors or delays into system calls.
    fn traced(&self, user: u32, role: &str, inject: &str) -> Command {
        let process = self.process(user, role);
        let mut strace = Command::new("strace");
        strace
            .args(["-f", "-o", "/dev/null", "-e", inject])
            .arg(process.get_program())
            .args(process.get_args());
        strace.envs(process.get_envs().map(|(key, value)| (key, value.unwrap())));
        strace.uid(user).gid(GROUP).current_dir(self.dir.path()).stdout(Stdio::null());
        strace
    }

    fn run(&self, user: u32, role: &str) {
        assert!(self.process(user, role).status().unwrap().success(), "user {user}: {role}");
    }
}

fn has_strace() -> bool {
    Command::new("strace").args(["-o", "/dev/null", "true"]).status().is_ok_and(|status| status.success())
}

fn refused_with(opened: dlm::Result<()>, what: &str) {
    let error = opened.unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError, "{}", error.chain());
    assert!(error.chain().contains(what), "{what:?} is not in {}", error.chain());
}

/// Checks that all files and directories of a store have exactly the rights of a group's store. Returns how many
/// there are.
fn belongs_to_the_group(store: &Path, group: u32) -> usize {
    let mut pending = vec![store.to_owned()];
    let mut seen = 0;
    while let Some(path) = pending.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!(found.gid(), group, "{path:?}");
        assert_eq!(found.mode() & 0o7777, if found.is_dir() { 0o2770 } else { 0o1660 }, "{path:?}");
        if found.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        seen += 1;
    }
    seen
}

#[test]
fn users_of_a_group_exclude_each_other_and_a_stranger_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    let site = Site::new();
    let mut anna = Running(site.process(ANNA, "hold").stdout(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(anna.0.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == "held"), "the first user did not acquire the lock");
    site.run(BERT, "find it held");
    site.run(STRANGER, "be refused");
    site.run(BERT, "be refused alone");
    site.run(ANNA, "be refused alone");
    assert!(belongs_to_the_group(&site.store(), GROUP) >= 7);
    anna.0.kill().unwrap();
    // Another lock with a short lease, of which nothing can be said while its holder lives.
    let mut anna = Running(site.process(ANNA, "hold briefly").stdout(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(anna.0.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == "held"), "the first user did not acquire the other lock");
    anna.0.kill().unwrap();
    site.run(BERT, "wait for it");
    site.run(ANNA, "find the other held");
}

/// Each user can lock the other's file, and delete it.
#[test]
fn a_killed_process_of_one_user_is_followed_at_once_by_the_other() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    let site = Site::new();
    for (one, other) in [(ANNA, BERT), (BERT, ANNA)] {
        let mut holder =
            Running(site.process(one, "hold until death").stdout(Stdio::piped()).spawn().unwrap());
        let mut said = BufReader::new(holder.0.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap() == "held"), "user {one} did not acquire the lock");
        site.run(other, "find it held");
        let files = belongs_to_the_group(&site.store(), GROUP);
        holder.0.kill().unwrap();
        holder.0.wait().unwrap();
        site.run(other, "take it over");
        assert_eq!(belongs_to_the_group(&site.store(), GROUP), files - 1, "the file of user {one} is left");
        fs::remove_dir_all(site.store()).unwrap();
    }
}

fn hold_until_death(path: &Path) {
    let store = EmbeddedStore::open_group(path).unwrap();
    let identity = Identity::this_process("").unwrap();
    let (name, ttl) = (name("a"), Duration::from_secs(24 * 3600));
    let attempt = Attempt { name: &name, ttl, identity: &identity, by: soon() };
    let acquired = store.liveness().unwrap().acquire_until_death(attempt, &mut Vec::new()).unwrap();
    assert!(matches!(acquired, Acquired::Granted(_)));
    println!("\nheld");
    thread::sleep(Duration::from_secs(600));
}

fn hold(path: &Path, id: &str, ttl: Duration) {
    let store = EmbeddedStore::open_group(path).unwrap();
    let since = Moment::now().as_nanos();
    grant(&store, &name(id), ttl).unwrap();
    let told = path.with_file_name("held since");
    fs::write(&told, since.to_string()).unwrap();
    // The umask denied the other user the right to read it.
    fs::set_permissions(&told, Permissions::from_mode(0o644)).unwrap();
    println!("\nheld");
    thread::sleep(Duration::from_secs(600));
}

fn find_held(path: &Path, id: &str) {
    assert!(grant(&EmbeddedStore::open_group(path).unwrap(), &name(id), TTL).is_none());
}

/// Waits for the lock of a killed process. Its lease must last for its full TTL.
fn wait(path: &Path, since: &Path) {
    let store = EmbeddedStore::open_group(path).unwrap();
    let since: u64 = fs::read_to_string(since).unwrap().parse().unwrap();
    wait_for(&store, &name("b"), TTL);
    let held = Duration::from_nanos(Moment::now().as_nanos() - since);
    assert!(held >= SHORT, "the lock was free after {held:?}");
}

/// Processes of both users are killed at random moments, also while they write or create the store.
#[test]
fn killed_processes_of_one_user_leave_a_store_that_the_other_can_use() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    let site = Site::new();
    let mut made = 0;
    // How long a process needs to create a store depends on the machine, so the value may grow below.
    let mut kill_within_ms = 150;
    for round in 0..if shortened("10 rounds of 30") { 10 } else { 30 } {
        if round % 5 == 0 && site.store().exists() {
            fs::remove_dir_all(site.store()).unwrap();
        }
        let (one, other) = if round % 2 == 0 { (ANNA, BERT) } else { (BERT, ANNA) };
        let mut hammers: Vec<_> =
            (0..2).map(|_| Running(site.process(one, "hammer").spawn().unwrap())).collect();
        thread::sleep(Duration::from_millis(fastrand::u64(0..kill_within_ms)));
        for hammer in &mut hammers {
            hammer.0.kill().unwrap();
            let ended = hammer.0.wait().unwrap();
            assert_eq!(ended.signal(), Some(9), "round {round}: a process failed before it was killed");
        }
        let is_made = site.store().join("fence-floor").exists();
        if !is_made {
            kill_within_ms = (2 * kill_within_ms).min(10_000);
        }
        made += usize::from(is_made);
        site.run(other, "use it");
        assert!(!has_half_made(&site.store()), "round {round}");
        belongs_to_the_group(&site.store(), GROUP);
    }
    assert!(made > 0, "every process was killed before it created a store: nothing was tested");
}

fn hammer(path: &Path) {
    let store = EmbeddedStore::open_group(path).unwrap();
    loop {
        let held = wait_for(&store, &name("hammered"), Duration::from_millis(20));
        // Not always `Freed`: this machine may have been too slow for the lease.
        store.release(&name("hammered"), &held.owner_record, soon()).unwrap();
    }
}

fn use_it(path: &Path) {
    let store = EmbeddedStore::open_group(path).unwrap();
    let first = wait_for(&store, &name("hammered"), TTL);
    assert_eq!(store.release(&name("hammered"), &first.owner_record, soon()).unwrap(), Released::Freed);
    let next = wait_for(&store, &name("hammered"), TTL);
    assert!(fence(&next) > fence(&first));
    assert_eq!(store.release(&name("hammered"), &next.owner_record, soon()).unwrap(), Released::Freed);
}

/// What the documentation warns of. The others find the damage, and not an empty store.
#[test]
fn a_member_that_cuts_the_file_ends_the_processes_that_read_it_and_nobody_gets_a_lock() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    let site = Site::new();
    for length in ["0", "4096", "8192"] {
        let mut anna = site.process(ANNA, "hold, and look again");
        let mut anna = Running(anna.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let mut said = BufReader::new(anna.0.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap() == "held"), "the first user did not acquire the lock");
        let mut cut = Command::new("truncate");
        cut.args(["-s", length]).arg(data_file(&site.store())).uid(BERT).gid(GROUP);
        assert!(cut.status().unwrap().success());
        drop(anna.0.stdin.take());
        assert_eq!(anna.0.wait().unwrap().signal(), Some(7), "cut to {length} bytes");
        site.run(BERT, "find it damaged");
        fs::remove_dir_all(site.store()).unwrap();
    }
}

fn look_again(path: &Path) {
    let store = EmbeddedStore::open_group(path).unwrap();
    grant(&store, &name("a"), TTL).unwrap();
    println!("\nheld");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let found = store.holder(&name("a"), soon());
    panic!("this process read a file that was cut: {found:?}");
}

/// A process may be killed before the files and directories that it created have the group's rights.
#[test]
fn what_a_killed_process_of_one_user_left_without_the_groups_rights_does_not_stop_the_other() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    let site = Site::new();
    let store = site.store();
    fs::create_dir(&store).unwrap();
    chown(&store, Some(ANNA), Some(GROUP)).unwrap();
    fs::set_permissions(&store, Permissions::from_mode(0o2770)).unwrap();
    fs::create_dir(store.join("new-4711")).unwrap();
    fs::set_permissions(store.join("new-4711"), Permissions::from_mode(0o700)).unwrap();
    chown(store.join("new-4711"), Some(ANNA), Some(GROUP)).unwrap();
    for left in ["creating-4711", "fence-floor.new"] {
        fs::write(store.join(left), "").unwrap();
        fs::set_permissions(store.join(left), Permissions::from_mode(0o600)).unwrap();
        chown(store.join(left), Some(ANNA), Some(GROUP)).unwrap();
    }
    site.run(BERT, "use it");
    let names = fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with("boot-")).collect();
    names.sort();
    assert_eq!(names, ["creating", "fence-floor"]);
    belongs_to_the_group(&store, GROUP);
}

/// Sends SIGKILL at each system call that creates directories and files of the store, or sets their rights.
#[test]
fn a_user_killed_at_any_system_call_of_making_the_store_does_not_stop_the_other() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    if !has_strace() {
        return skipped("strace", NO_STRACE);
    }
    let site = Site::new();
    let every = if shortened("every third system call") { 3 } else { 1 };
    let mut killed = 0;
    for call in ["mkdir", "fchmod", "linkat", "unlink", "rename"] {
        for when in (1..60).step_by(every) {
            if site.store().exists() {
                fs::remove_dir_all(site.store()).unwrap();
            }
            let inject = format!("inject={call}:signal=KILL:when={when}");
            let to_its_end = site.traced(ANNA, "open", &inject).status().unwrap().success();
            let at = format!("killed at {call} number {when}");
            assert!(site.process(BERT, "use it").status().unwrap().success(), "{at}");
            assert!(!has_half_made(&site.store()), "{at}");
            belongs_to_the_group(&site.store(), GROUP);
            if to_its_end {
                break;
            }
            killed += 1;
        }
    }
    assert!(killed > 15 / every, "killed only {killed} times");
}

/// The faster process may take the `creating-<pid>` file of the slower one for a leftover of a killed process, and
/// delete it while the slower one still uses it.
#[test]
fn two_users_may_make_the_store_at_the_same_time() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    if !has_strace() {
        return skipped("strace", NO_STRACE);
    }
    let site = Site::new();
    let slow = "inject=openat,fchmod,linkat:delay_enter=50000";
    let mut anna = Running(site.traced(ANNA, "open", slow).spawn().unwrap());
    let by = soon();
    let begun =
        |entry: fs::DirEntry| entry.file_name().to_str().is_some_and(|it| it.starts_with("creating-"));
    // On a busy machine this loop may miss the file. Then the loop ends with the process.
    while !fs::read_dir(site.store()).is_ok_and(|entries| entries.flatten().any(begun))
        && anna.0.try_wait().unwrap().is_none()
    {
        assert!(!by.passed(), "the first user's process did not start to create the store");
        thread::sleep(Duration::from_millis(1));
    }
    site.run(BERT, "open");
    assert!(anna.0.wait().unwrap().success());
    belongs_to_the_group(&site.store(), GROUP);
}

/// One user can test this. The kind of the store and the call that opens it must agree.
#[test]
fn a_store_is_a_groups_or_one_users_and_never_both() {
    let dir = tempfile::tempdir().unwrap();
    let shared = dir.path().join("shared");
    let store = EmbeddedStore::open_group(&shared).unwrap();
    belongs_to_the_group(&shared, fs::metadata(&shared).unwrap().gid());
    let second = EmbeddedStore::open_group(&shared).unwrap();
    let held = grant(&store, &name("a"), TTL).unwrap();
    assert!(grant(&second, &name("a"), TTL).is_none());
    refused_with(EmbeddedStore::open(&shared).map(drop), "group=on");
    drop(second);
    // They are still refused after the directory of a store has received the mode of the other kind.
    fs::set_permissions(&shared, Permissions::from_mode(0o700)).unwrap();
    refused_with(EmbeddedStore::open(&shared).map(drop), "group=on");
    refused_with(EmbeddedStore::open_group(&shared).map(drop), "is not shared with its group");
    fs::set_permissions(&shared, Permissions::from_mode(0o2770)).unwrap();
    drop(EmbeddedStore::open_group(&shared).unwrap());
    assert_eq!(store.release(&name("a"), &held.owner_record, soon()).unwrap(), Released::Freed);

    let (dir, store) = open();
    let alone = dir.path().join("store");
    refused_with(EmbeddedStore::open_group(&alone).map(drop), "is not shared with its group");
    fs::set_permissions(&alone, Permissions::from_mode(0o2770)).unwrap();
    refused_with(EmbeddedStore::open_group(&alone).map(drop), "is not shared with its group");
    drop(store);

    for (mode, what) in [
        (0o2777, "by all users"),
        (0o770, "is not shared with its group"),
        (0o2750, "is not shared with its group"),
    ] {
        let prepared = dir.path().join(format!("{mode:o}"));
        fs::create_dir(&prepared).unwrap();
        fs::set_permissions(&prepared, Permissions::from_mode(mode)).unwrap();
        refused_with(EmbeddedStore::open_group(&prepared).map(drop), what);
        assert_eq!(fs::read_dir(&prepared).unwrap().count(), 0, "{mode:o}");
    }
    let orphan = dir.path().join("no").join("parent");
    assert_eq!(EmbeddedStore::open_group(&orphan).map(drop).unwrap_err().code(), Code::ConnectionError);
}

#[test]
fn the_option_is_checked_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let open = |place: &str, option: &str| dlm::store::open(&format!("embedded:{place}?{option}"));
    let place = path.to_str().unwrap();
    for (place, option) in [("", "group=on"), (place, "group=yes"), (place, "group="), (place, "groups=on")] {
        let error = open(place, option).map(drop).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{option}: {error}");
        assert!(error.to_string().contains("group"), "{error}");
    }
    assert!(!path.exists());
    open(place, "group=on").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o2770);
    refused_with(open(place, "group=off").map(drop), "group=on");
    let diagnostics = open(place, "group=on").unwrap().diagnose(soon()).unwrap();
    let reach = &diagnostics.iter().find(|diagnostic| diagnostic.topic == "reach").unwrap().seen;
    let group = fs::metadata(&path).unwrap().gid();
    assert!(reach.contains(&format!("group {group}")) && reach.contains(place), "{reach}");
}
