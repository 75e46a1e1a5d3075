//! The default store is the same for all processes of a user, with every environment. It is not opened while a
//! process of an older version holds a lock in the place of that version.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use dlm_testkit::{skipped, until};

use super::{Done, Running, Shell, TOOK_TOO_LONG};

/// Most users of one test program. With the largest process id, the user ids still fit.
const USERS_MAX: u32 = 16;

const NO_ROOT: &str = "only root can become another user";

/// Two variables that decided where an older version kept its default store, and `HOME`, which never did.
const VARIABLES: [&str; 3] = ["XDG_RUNTIME_DIR", "TMPDIR", "HOME"];

/// A user without files, and a copy of `dlm` that this user can run.
struct NewUser {
    shell: Shell,
    id: u32,
}

impl NewUser {
    /// No two tests have the same user, also of programs that run at the same time: the id depends on the process id, and on
    /// the users before in this process.
    fn new() -> NewUser {
        static USERS: AtomicU32 = AtomicU32::new(0);
        let number = USERS.fetch_add(1, Ordering::Relaxed);
        assert!(number < USERS_MAX, "too many users");
        let shell = Shell::new();
        let id = 1_000_000_000 + USERS_MAX * std::process::id() + number;
        chown(shell.dir.path(), Some(id), Some(id)).unwrap();
        let user = NewUser { shell, id };
        user.clean();
        // `cp` writes the copy. If this process wrote it, a child that another test starts could inherit the open
        // file, and a file that is open for writing cannot be executed.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_dlm")).arg(user.shell.path("dlm")).status();
        assert!(copied.unwrap().success());
        user
    }

    fn clean(&self) {
        let _ = fs::remove_dir_all(self.default_dir());
    }

    fn default_dir(&self) -> PathBuf {
        PathBuf::from(format!("/var/tmp/dlm-{}", self.id))
    }

    /// Creates a directory that belongs to this user.
    fn dir(&self, name: &str) -> PathBuf {
        let path = self.shell.path(name);
        fs::create_dir_all(&path).unwrap();
        chown(&path, Some(self.id), Some(self.id)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        path
    }

    /// Returns `dlm` as this user, on the default store.
    fn dlm(&self, args: &[&str]) -> Command {
        let id = self.id.to_string();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
            .arg(self.shell.path("dlm"))
            .args(args);
        command.current_dir(self.shell.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        on_default_store(command)
    }
}

impl Drop for NewUser {
    fn drop(&mut self) {
        self.clean();
    }
}

/// Returns `dlm` as the user of this test, on the default store.
fn dlm(shell: &Shell, args: &[&str]) -> Command {
    on_default_store(shell.dlm(args))
}

/// Removes the variables that name a store.
fn on_default_store(mut command: Command) -> Command {
    for variable in ["DLM_STORE", "DLM_CLIENT", "DLM_FARM", "DLM_LOG"].iter().chain(&VARIABLES) {
        command.env_remove(variable);
    }
    command
}

/// Runs a command and waits for its end.
fn ran(command: &mut Command) -> Done {
    Running(Some(command.spawn().unwrap())).finish()
}

/// Environments as in a login shell, cron, a unit and `sudo`: no variable, each variable alone, and all of them. Each
/// variable names a usable directory.
fn environments(dir: impl Fn(&str) -> PathBuf) -> Vec<Vec<(&'static str, PathBuf)>> {
    let mut all = vec![vec![]];
    all.extend(VARIABLES.map(|variable| vec![(variable, dir(&variable.to_lowercase()))]));
    all.push(VARIABLES.map(|variable| (variable, dir(&format!("other-{variable}")))).to_vec());
    all
}

/// In each environment a process acquires the lock, and processes in all environments find it held.
fn all_exclude_each_other(dlm: impl Fn(&[&str]) -> Command, envs: &[Vec<(&'static str, PathBuf)>]) {
    let name = format!("default-store-{}-{}", std::process::id(), envs.len());
    let name = name.as_str();
    for holder in envs {
        let take = ["acquire", "--ttl", "10m", "--wait", "60s", name];
        let lease = ran(dlm(&take).envs(holder.iter().cloned())).ok().out;
        for other in envs {
            let second = ["run", "--no-wait", name, "--", "echo", "second"];
            let second = ran(dlm(&second).envs(other.iter().cloned()));
            assert_eq!(second.out, "", "both ran: {other:?} beside {holder:?}");
            assert!(second.fails_with(75).contains(name), "{other:?} beside {holder:?}");
        }
        ran(dlm(&["release", lease.trim_end()]).envs(holder.iter().cloned())).ok();
    }
}

/// As in a unit with `ProcSubset=pid`, which cannot see `/proc/sys`.
#[test]
fn without_a_boot_id_the_setting_that_hides_it_is_named() {
    let shell = Shell::new();
    let script =
        format!("mount -t proc -o subset=pid proc /proc && exec {} acquire x", env!("CARGO_BIN_EXE_dlm"));
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", &script]).env("DLM_STORE", &shell.store);
    let done = match unshare.output() {
        Ok(done) => done,
        Err(error) => return dlm_testkit::skipped("unshare", error),
    };
    let line = String::from_utf8_lossy(&done.stderr);
    if !line.starts_with("dlm: ") {
        return dlm_testkit::skipped("mount", line);
    }
    assert!(line.contains("ProcSubset=all") && line.contains("/proc/sys/kernel/random/boot_id"), "{line}");
    assert_eq!(done.status.code(), Some(69));
}

#[test]
fn a_login_shell_cron_and_units_of_one_user_exclude_each_other() {
    let shell = Shell::new();
    let dir = |name: &str| {
        let path = shell.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    };
    all_exclude_each_other(|args| dlm(&shell, args), &environments(dir));
}

#[test]
fn a_login_shell_cron_and_units_of_a_new_user_exclude_each_other() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    let user = NewUser::new();
    let envs = environments(|name| user.dir(name));
    all_exclude_each_other(|args| user.dlm(args), &envs);
    for (_, dir) in envs.iter().flatten() {
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "files were created in {dir:?}");
    }
    let mode = fs::metadata(user.default_dir()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
}

/// `dlm run` in a login shell, and a job that cron starts at the same time.
#[test]
fn a_command_of_cron_does_not_run_beside_one_of_a_login_shell() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    let user = NewUser::new();
    let run = ["run", "x", "--", "sh", "-c", "echo go >began; exec sleep 300"];
    let mut first = user.dlm(&run);
    let first = Running(Some(first.env("XDG_RUNTIME_DIR", user.dir("session")).spawn().unwrap()));
    user.shell.content("began");
    let second = ran(&mut user.dlm(&["run", "--no-wait", "x", "--", "echo", "second"]));
    assert_eq!(second.out, "", "both ran");
    second.fails_with(75);
    end(first);
}

/// A umask that takes rights from their owner, as a service's or a job's may.
#[test]
fn a_store_is_usable_whatever_umask_its_creator_has() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    let user = NewUser::new();
    let path = format!("embedded:{}", user.dir("with").join("a/b/store").display());
    let group = format!("embedded:{}?group=on", user.dir("group").join("store").display());
    for umask in ["0177", "0777", "0277", "0002"] {
        let usual = user.default_dir();
        for (store, dirs) in [
            ("embedded:", vec![usual]),
            (&path, vec![user.shell.path("with/a")]),
            (&group, vec![user.shell.path("group/store")]),
        ] {
            let under = |line: &str| {
                let dlm = user.dlm(&[]);
                let mut command = Command::new("sh");
                command.args(["-c", &format!("umask {umask}; exec \"$@\" {line}"), "sh"]);
                command.arg(dlm.get_program()).args(dlm.get_args()).env("DLM_STORE", store);
                command.current_dir(user.shell.dir.path());
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
                ran(&mut command)
            };
            under("run x -- true").ok();
            // With a lock that ends with its process, with a latch, and in other processes.
            let lease = under("acquire x").ok().out;
            assert!(under("acquire --no-wait x").fails_with(75).contains('x'), "{store} {umask}");
            under(&format!("release {lease}")).ok();
            under("latch create l 1").ok();
            under("latch down l").ok();
            for dir in dirs {
                for (path, mode, _) in
                    files_in(&dir).into_iter().chain([(dir.clone(), mode_of(&dir), Vec::new())])
                {
                    let needed = if path.is_dir() { 0o700 } else { 0o600 };
                    assert_eq!(mode & needed, needed, "{path:?} has mode {mode:o} under umask {umask}");
                }
                fs::remove_dir_all(dir).unwrap();
            }
        }
    }
}

/// An earlier version left it so under a umask of 0177.
#[test]
fn a_default_store_that_its_user_could_not_enter_is_mended() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    let user = NewUser::new();
    ran(&mut user.dlm(&["run", "x", "--", "true"])).ok();
    fs::set_permissions(user.default_dir(), Permissions::from_mode(0o600)).unwrap();
    ran(&mut user.dlm(&["run", "x", "--", "true"])).ok();
    assert_eq!(mode_of(&user.default_dir()), 0o700);
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Ends `dlm run`, which releases its lock.
fn end(mut running: Running) {
    running.signal(rustix::process::Signal::TERM);
    running.finish();
}

/// Returns names, modes and contents of all files below a directory. Leaves out the content of LMDB's lock table,
/// which every reader changes.
fn files_in(dir: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let mode = entry.metadata().unwrap().permissions().mode();
        if path.is_dir() {
            all.push((path.clone(), mode, Vec::new()));
            all.extend(files_in(&path));
        } else {
            let content = if path.ends_with("locks-lock") { Vec::new() } else { fs::read(&path).unwrap() };
            all.push((path, mode, content));
        }
    }
    all.sort();
    all
}

/// Acquires a lock in the directory `old` like a process of an older version whose default store is there: its files
/// have another mode. `dlm` must not open the default store until that lock is free.
fn is_refused_while_a_lock_is_held_in(old: &Path, dlm: impl Fn(&[&str]) -> Command) {
    let store = format!("embedded:{}", old.display());
    let there = |args: &[&str]| ran(&mut dlm(&[&["--store", &store], args].concat())).ok().out;
    let show = || ran(&mut dlm(&["show", "of-an-older-version"]));
    assert_eq!(fs::metadata(old).map(|found| found.is_dir()).ok(), None, "{old:?}");
    show().ok();

    let lease = there(&["acquire", "--ttl", "10m", "of-an-older-version"]);
    let shorter = there(&["acquire", "--ttl", "8m", "shorter"]);
    for (file, mode, _) in files_in(old) {
        fs::set_permissions(file, Permissions::from_mode(mode & !0o1000)).unwrap();
    }
    let before = files_in(old);
    for _ in 0..3 {
        let line = show().fails_with(69);
        for part in ["older version", "of-an-older-version", old.to_str().unwrap(), " s left"] {
            assert!(line.contains(part), "{part:?} is not in {line}");
        }
    }
    assert_eq!(files_in(old), before, "the check has changed a file");
    there(&["release", lease.trim_end()]);
    assert!(show().fails_with(69).contains("shorter"));
    there(&["release", shorter.trim_end()]);
    show().ok();
    // Latches and expired leases do not matter.
    there(&["latch", "create", "--ttl", "10m", "a-latch", "1"]);
    // On a busy machine the grant may take longer than a very short lease.
    let is_granted = ["100ms", "1s", "10s"].into_iter().any(|ttl| {
        let take = ["--store", &store, "acquire", "--ttl", ttl, "of-an-older-version"];
        let done = ran(&mut dlm(&take));
        assert!(done.status.success() || done.err.contains(TOOK_TOO_LONG), "{}", done.err);
        done.status.success()
    });
    assert!(is_granted, "a grant takes 9 s");
    until("the lease has ended", || show().status.success());
    assert!(old.exists(), "the directory was deleted");
}

#[test]
fn a_lock_of_an_older_version_where_the_environment_says_is_waited_for() {
    let shell = Shell::new();
    let user = rustix::process::geteuid().as_raw();
    let cases = [("XDG_RUNTIME_DIR", "dlm".to_owned()), ("TMPDIR", format!("dlm-{user}"))];
    for (variable, name) in cases {
        let dir = shell.path(variable);
        fs::create_dir(&dir).unwrap();
        is_refused_while_a_lock_is_held_in(&dir.join(name), |args| {
            let mut command = dlm(&shell, args);
            command.env(variable, &dir);
            command
        });
    }
}

#[test]
fn a_lock_of_an_older_version_in_the_usual_places_is_waited_for_without_any_variable() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    let user = NewUser::new();
    let session = Made(PathBuf::from(format!("/run/user/{}", user.id)));
    fs::create_dir_all(&session.0).unwrap();
    chown(&session.0, Some(user.id), Some(user.id)).unwrap();
    let temporary = Made(PathBuf::from(format!("/tmp/dlm-{}", user.id)));
    for old in [&session.0.join("dlm"), &temporary.0] {
        is_refused_while_a_lock_is_held_in(old, |args| user.dlm(args));
    }
}

/// Another user may create a directory or a link of that name, to keep this user out or to get its data.
#[test]
fn what_another_user_put_in_an_old_place_is_not_looked_at() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    let user = NewUser::new();
    let held = format!("embedded:{}", user.dir("other").join("store").display());
    ran(&mut user.dlm(&["--store", &held, "acquire", "--ttl", "10m", "x"])).ok();
    let old = Made(PathBuf::from(format!("/tmp/dlm-{}", user.id)));
    std::os::unix::fs::symlink(user.shell.path("other").join("store"), &old.0).unwrap();
    ran(&mut user.dlm(&["show", "x"])).ok();
    fs::remove_file(&old.0).unwrap();
    let theirs = format!("embedded:{}", old.0.display());
    user.shell.run(&["--store", &theirs, "acquire", "--ttl", "10m", "x"]).ok();
    ran(&mut user.dlm(&["show", "x"])).ok();
}

#[test]
fn an_old_place_that_cannot_be_read_is_not_taken_for_free() {
    let shell = Shell::new();
    let session = shell.path("session");
    let old = session.join("dlm");
    fs::create_dir_all(&session).unwrap();
    let store = format!("embedded:{}", old.display());
    ran(&mut dlm(&shell, &["--store", &store, "acquire", "--ttl", "10m", "x"])).ok();
    let show = || ran(dlm(&shell, &["show", "x"]).env("XDG_RUNTIME_DIR", &session));
    let generation =
        fs::read_dir(&old).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_dir());
    let locks = generation.unwrap().join("locks");
    fs::rename(&locks, session.join("locks")).unwrap();
    let line = show().fails_with(69);
    assert!(line.contains(old.to_str().unwrap()) && line.contains("delete that directory"), "{line}");
    assert!(!locks.exists(), "the check has created a file");
    fs::remove_dir_all(&old).unwrap();
    show().ok();
}

/// A path that is deleted at the end of its test.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Mounts what systemd mounts for `PrivateTmp=yes` and `PrivateTmp=disconnected`.
#[test]
fn a_process_whose_unit_has_a_var_tmp_of_its_own_is_refused_and_told_what_to_do() {
    let shell = Shell::new();
    let own = shell.path("systemd-private-0123456789abcdef-nightly.service-AbCdEf").join("tmp");
    fs::create_dir_all(&own).unwrap();
    let disk = shell.path("unit-private-tmp");
    fs::create_dir(&disk).unwrap();
    let plain = shell.path("plain");
    fs::create_dir(&plain).unwrap();
    for dir in [&own, &plain] {
        fs::set_permissions(dir, Permissions::from_mode(0o1777)).unwrap();
    }
    let connected = format!("mount --bind {} /var/tmp", own.display());
    let disconnected = format!(
        "mount -t tmpfs dlm-test {0} && mkdir -m 1777 {0}/var-tmp && mount --bind {0}/var-tmp /var/tmp",
        disk.display()
    );
    let other = format!("mount --bind {} /var/tmp", plain.display());
    let within = |mounts: &str, args: &[&str]| {
        let mut command = dlm(&shell, args);
        let (program, args) = (command.get_program().to_owned(), command.get_args().map(ToOwned::to_owned));
        let mut unit = Command::new("unshare");
        unit.args(["--mount", "--propagation", "private", "sh", "-c", &format!("{mounts} && exec \"$@\"")]);
        unit.arg("sh").arg(program).args(args);
        unit.current_dir(shell.dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command = on_default_store(unit);
        ran(&mut command)
    };
    let may_mount = Command::new("unshare").args(["--mount", "true"]).output();
    if !rustix::process::geteuid().is_root() || !may_mount.is_ok_and(|done| done.status.success()) {
        return skipped("root", "only root may mount");
    }
    for mounts in [&connected, &disconnected] {
        let line = within(mounts, &["show", "x"]).fails_with(69);
        assert!(line.contains("PrivateTmp") && line.contains("embedded:/path"), "{line}");
        let elsewhere = format!("embedded:{}", shell.path("store").display());
        within(mounts, &["--store", &elsewhere, "show", "x"]).ok();
        let doctor = within(mounts, &["--store", "embedded:/var/tmp/named", "doctor"]);
        let reach = doctor.out.lines().find(|line| line.contains(" reach:")).unwrap().to_owned();
        assert!(reach.starts_with("WARN") && reach.contains("PrivateTmp"), "{reach}");
    }
    assert_eq!(fs::read_dir(&own).unwrap().count(), 1, "more than the named directory was created");
    // A directory of the whole machine that is mounted at /var/tmp is allowed.
    within(&other, &["show", "x"]).ok();
    assert_eq!(fs::read_dir(&plain).unwrap().count(), 1);
}
