//! Directories for an embedded store: they must belong to the user, and nobody else may be able to change them.
#![cfg(feature = "embedded")]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use dlm::store::{EmbeddedStore, LockStore, Released};
use dlm::{Code, Result};
use dlm_fixtures::role::{self, Running, process, process_of};
use dlm_testkit::skipped;

use super::embedded::{TTL, fence, grant, name, open, soon};

const NO_ROOT: &str = "only root can become another user";

/// Entry point of the processes of these tests.
#[test]
#[ignore = "a process of the tests"]
fn role() {
    let Some((role, dir)) = role::asked() else { return };
    match role.as_str() {
        "default" => assert_eq!(open_default().unwrap().parent(), Some(Path::new("/var/tmp"))),
        "default refused" => default_is_refused(),
        "be refused" => be_refused(&dir),
        "be served" => be_served(&dir),
        "hold" => hold(&dir),
        "find held" => find_held(&dir),
        role => panic!("no role {role:?}"),
    }
}

/// LMDB maps the whole file.
#[cfg(feature = "cli")]
#[test]
fn a_limit_of_addresses_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", dir.path().join("store").display());
    let show = |limit: &str| {
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            &format!("{limit} exec \"$0\" --store \"$1\" show a"),
            env!("CARGO_BIN_EXE_dlm"),
            &store,
        ]);
        let output = shell.output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let named = "its file needs 1 GiB of addresses in each process: raise ulimit -v";
    let (succeeds, said) = show("ulimit -v 900000;");
    assert!(!succeeds && said.contains(named) && !said.contains("permissions"), "creating it: {said}");
    assert_eq!(show(""), (true, String::new()));
    let (succeeds, said) = show("ulimit -v 900000;");
    assert!(!succeeds && said.contains(named), "opening it: {said}");
}

#[test]
fn a_directory_others_may_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sto\nre");
    fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
    let error = EmbeddedStore::open(&path).unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError);
    assert!(error.to_string().contains("chmod"), "{error}");
    assert!(!error.chain().contains('\n'), "a path forged a line: {error}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    EmbeddedStore::open(&path).unwrap();
}

#[test]
fn nobody_is_told_to_change_a_directory_that_others_need_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let said = EmbeddedStore::open(dir.path()).unwrap_err().to_string();
    assert!(said.contains("use a directory of its own") && !said.contains("chmod"), "{said}");
}

#[test]
fn what_is_made_is_for_the_owner_only() {
    let (dir, _store) = open();
    let mut seen = 0;
    let mut pending = vec![dir.path().join("store")];
    while let Some(path) = pending.pop() {
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o1600 }, "{path:?}");
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        seen += 1;
    }
    assert!(seen >= 7, "only {seen} files and directories exist");
}

/// A lease may last longer than the days after which systemd-tmpfiles deletes unused files.
#[test]
fn every_file_has_the_sticky_bit_also_those_an_older_version_made_without_it() {
    let (dir, store) = open();
    let path = dir.path().join("store");
    let held = grant(&store, &name("a"), TTL).unwrap();
    drop(store);
    let notes = path.join("notes");
    fs::write(&notes, "not the store's").unwrap();
    let files = files_in(&path);
    assert!(files.len() >= 7, "{files:?}");
    for file in &files {
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let store = EmbeddedStore::open(&path).unwrap();
    for file in files {
        let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, if file == notes { 0o600 } else { 0o1600 }, "{file:?}");
    }
    assert_eq!(store.release(&name("a"), &held.owner_record, soon()).unwrap(), Released::Freed);
}

/// Returns all files below a directory.
fn files_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_in(&path) } else { vec![path] }).collect()
}

/// Uses the rule for /var/tmp in Debian's /usr/lib/tmpfiles.d/tmp.conf, with a second instead of 30 days.
#[test]
fn systemd_tmpfiles_leaves_a_store_alone_that_nobody_used_for_long() {
    let tool = "systemd-tmpfiles";
    if !rustix::process::geteuid().is_root() {
        return skipped("root", "systemd-tmpfiles needs root");
    }
    if Command::new(tool).arg("--version").output().is_err() {
        return skipped(tool, "it is not installed");
    }
    let (dir, store) = open();
    let path = dir.path().join("store");
    let held = grant(&store, &name("a"), TTL).unwrap();
    // An open store holds a lock on its directory. The files must also survive without that lock.
    drop(store);
    fs::write(path.join("notes"), "").unwrap();
    let files = files_in(&path);
    let rules = dir.path().join("rules.conf");
    fs::write(&rules, format!("q {} 0700 root root 1s\n", path.display())).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let cleaned = Command::new(tool).arg("--clean").arg(&rules).output().unwrap();
    assert!(cleaned.status.success(), "{cleaned:?}");
    let left = files_in(&path);
    assert!(!left.contains(&path.join("notes")), "systemd-tmpfiles deleted nothing: {left:?}");
    assert_eq!(left.len() + 1, files.len(), "{left:?} of {files:?}");
    let store = EmbeddedStore::open(&path).unwrap();
    assert_eq!(store.release(&name("a"), &held.owner_record, soon()).unwrap(), Released::Freed);
}

#[test]
fn the_default_place_is_the_users_own_and_never_one_that_someone_else_prepared() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    // A user number for this process only: tests that run at the same time do not share a user.
    let user = 1_100_000_000 + std::process::id();
    let taken = Prepared(PathBuf::from(format!("/var/tmp/dlm-{user}")));
    let (dir, binary) = binary_for_all();
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    own(&elsewhere, user);
    let ran = |role: &str| {
        let mut command = process_of(&binary, module_path!(), role, dir.path());
        command.env("TMPDIR", &elsewhere).env("XDG_RUNTIME_DIR", &elsewhere).env("HOME", &elsewhere);
        command.uid(user).gid(user).status().unwrap().success()
    };
    assert!(ran("default"));
    let found = fs::metadata(&taken.0).unwrap();
    assert_eq!((found.uid(), found.permissions().mode() & 0o7777), (user, 0o700));
    fs::set_permissions(&taken.0, fs::Permissions::from_mode(0o770)).unwrap();
    assert!(ran("default refused"), "its group may write to it");
    own(&taken.0, 65_534);
    fs::set_permissions(&taken.0, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(ran("default refused"), "it belongs to another user");
    taken.remove();
    std::os::unix::fs::symlink(&elsewhere, &taken.0).unwrap();
    assert!(ran("default refused"), "it is a link");
    taken.remove();
    fs::write(&taken.0, "").unwrap();
    own(&taken.0, user);
    assert!(ran("default refused"), "it is a file");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "a store was created elsewhere");
    taken.remove();
    assert!(ran("default"));
}

/// A file or directory that is deleted at the end of the test.
struct Prepared(PathBuf);

impl Prepared {
    fn remove(&self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.remove();
    }
}

fn own(path: &Path, user: u32) {
    std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
}

/// Copies this program to a temporary directory in which every user can run it.
fn binary_for_all() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary = dir.path().join("test");
    // `cp` writes the copy. If this process wrote it, a child that another test starts could inherit the open
    // file, and a file that is open for writing cannot be executed.
    let copied = Command::new("cp").arg(env::current_exe().unwrap()).arg(&binary).status().unwrap();
    assert!(copied.success());
    (dir, binary)
}

fn open_default() -> Result<PathBuf> {
    let path = EmbeddedStore::default_path()?;
    EmbeddedStore::open(&path)?;
    Ok(path)
}

fn default_is_refused() {
    let error = open_default().unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError);
    assert!(error.to_string().contains("embedded:/path"), "{error}");
}

#[test]
fn a_file_in_place_of_the_directory_is_an_error_not_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("store"), "").unwrap();
    assert_eq!(EmbeddedStore::open(&dir.path().join("store")).unwrap_err().code(), Code::ConnectionError);
}

#[test]
fn another_users_directory_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return skipped("root", NO_ROOT);
    }
    let (dir, binary) = binary_for_all();
    let store = EmbeddedStore::open(&dir.path().join("store")).unwrap();
    let as_nobody = |role: &str, dir: &Path| {
        let mut command = process_of(&binary, module_path!(), role, dir);
        command.uid(65_534).gid(65_534).status().unwrap().success()
    };
    assert!(as_nobody("be refused", dir.path()));
    drop(store);
    let theirs = dir.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(65_534), Some(65_534)).unwrap();
    assert!(as_nobody("be served", &theirs));
    let error = EmbeddedStore::open(&theirs.join("store")).unwrap_err();
    assert!(error.to_string().contains("belongs to user 65534"), "{error}");
}

/// A container of LXC, of systemd-nspawn, or a unit with `ProtectProc=`, has a boot id of its own.
#[test]
fn containers_with_boot_ids_of_their_own_exclude_each_other() {
    let (id, theirs) = ("/proc/sys/kernel/random/boot_id", "01234567-89ab-cdef-0123-456789abcdef");
    let elsewhere = |role: &str, dir: &Path| {
        let inner = process(module_path!(), role, dir);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c"]).arg(format!("mount --bind id {id} && exec \"$@\"")).arg("sh");
        command.arg(inner.get_program()).args(inner.get_args());
        command.envs(inner.get_envs().map(|(key, value)| (key, value.unwrap())));
        command.current_dir(dir).stdout(Stdio::piped());
        command
    };
    let works = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        return skipped("unshare", "it is not installed, or only root may use it");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("id"), format!("{theirs}\n")).unwrap();
    let store = dir.path().join("store");
    let generations = || {
        let found =
            fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        found.filter(|name| name.starts_with("boot-")).collect::<Vec<_>>()
    };
    // A holder here keeps those elsewhere out, and its files stay.
    let here = EmbeddedStore::open(&store).unwrap();
    let (held, own) = (grant(&here, &name("a"), TTL).unwrap(), generations());
    assert!(elsewhere("find held", dir.path()).status().unwrap().success());
    assert_eq!(generations(), own);
    let fence_here = fence(&held);
    assert_eq!(here.release(&name("a"), &held.owner_record, soon()).unwrap(), Released::Freed);
    drop(here);
    // Nobody uses it. So for those elsewhere it is that of another boot.
    let mut holder = Running(elsewhere("hold", dir.path()).spawn().unwrap());
    let mut said = BufReader::new(holder.0.stdout.take().unwrap()).lines();
    let told = said.find_map(|line| line.unwrap().split_once("fence ")?.1.parse::<u64>().ok());
    assert!(told.unwrap() > fence_here);
    assert_eq!(generations(), [format!("boot-{theirs}")]);
    // And a holder elsewhere keeps those here out.
    let here = EmbeddedStore::open(&store).unwrap();
    assert!(grant(&here, &name("a"), TTL).is_none());
    assert_eq!(generations(), [format!("boot-{theirs}")]);
    drop((here, holder));
    let here = EmbeddedStore::open(&store).unwrap();
    assert!(grant(&here, &name("a"), TTL).is_some());
    assert_eq!(generations(), own);
}

fn hold(dir: &Path) {
    let store = EmbeddedStore::open(&dir.join("store")).unwrap();
    let held = grant(&store, &name("a"), TTL).unwrap();
    println!("fence {}", fence(&held));
    thread::sleep(TTL);
}

fn find_held(dir: &Path) {
    let store = EmbeddedStore::open(&dir.join("store")).unwrap();
    assert!(grant(&store, &name("a"), TTL).is_none());
}

fn be_refused(dir: &Path) {
    let error = EmbeddedStore::open(&dir.join("store")).unwrap_err();
    assert_eq!(error.code(), Code::ConnectionError, "{error}");
    assert!(error.to_string().contains("belongs to user 0"), "{error}");
}

fn be_served(dir: &Path) {
    let store = EmbeddedStore::open(&dir.join("store")).unwrap();
    assert!(grant(&store, &name("a"), TTL).is_some());
}
