//! The directory of the default store. It depends only on the user's id.
//!
//! All processes of a user must use one directory. Login shells, cron, units and `sudo` have different environment
//! variables, so no variable is read. Other writable directories are unsuitable:
//!
//! * `/run/user/<uid>` is deleted at the user's last logout.
//! * `/dev/shm`: logind (`RemoveIPC=`) and units (`RemoveIPC=`) delete the user's files there.
//! * `/tmp` is emptied at every start of the machine, and fences could go back.
//! * The home directory may be on a network, or the user may have none.
//!
//! In `/var/tmp` only systemd-tmpfiles deletes files, after 30 days without use. It does not delete our files: see
//! `data_dir`.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::data_dir::{DataDir, describe};
use super::embedded_store::EmbeddedStore;
use super::lmdb::Access;
use super::unit::is_private_to_unit;
use crate::error::{Cause, Error, Result};

const PARENT: &str = "/var/tmp";
/// The end of the messages about a default directory that cannot be used.
const CURE: &str = "name a directory for all processes that share locks, as in embedded:/path";

impl EmbeddedStore {
    /// Returns the directory of this user's default store: `/var/tmp/dlm-<effective uid>`. Creates it (mode 0700)
    /// if it is missing. No environment variable changes the path.
    ///
    /// # Errors
    /// [`Code::ConnectionError`](crate::Code::ConnectionError):
    /// * The directory cannot be created, belongs to another user, or other users may write to it.
    /// * `/var/tmp` is private to the unit of this process (`PrivateTmp=`).
    /// * A process of an older version holds a lock in a directory where that version kept the default store:
    ///   `$XDG_RUNTIME_DIR/dlm`, `/run/user/<uid>/dlm`, `$TMPDIR/dlm-<uid>` or `/tmp/dlm-<uid>`. Latches in it are
    ///   not checked, and a lock that the process acquires later is not noticed. So upgrade all processes.
    pub fn default_path() -> Result<PathBuf> {
        let user = rustix::process::geteuid().as_raw();
        let dir = ready(Path::new(PARENT), user)?;
        refuse_while_old_dirs_are_used(user, &dir)?;
        Ok(dir)
    }
}

/// Creates or checks `dlm-<user>` in `parent`. Any user may create files in `parent`, so an attacker may already
/// have used the name.
fn ready(parent: &Path, user: u32) -> Result<PathBuf> {
    let dir = parent.join(format!("dlm-{user}"));
    let refused = |what: String, source: Option<Cause>| Error::Connection {
        store: describe(&dir),
        what: format!("{what}: {CURE}"),
        source,
    };
    let unable = |what: String| |error: io::Error| refused(what, Some(error.into()));
    let found = fs::metadata(parent).map_err(unable(format!("{parent:?} cannot be checked")))?;
    if let Some(what) = unsafe_parent(found.is_dir(), found.uid(), found.mode(), user) {
        return Err(refused(format!("{parent:?} {what}"), None));
    }
    if is_private_to_unit(parent) {
        let what = format!("{parent:?} is private to the unit of this process (PrivateTmp=)");
        return Err(refused(what, None));
    }
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(unable("the directory cannot be created".into())(error));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&dir).map_err(unable("the directory cannot be checked".into()))?;
    let whats_wrong = if !found.is_dir() {
        Some("is not a directory, or is a link to one".to_owned())
    } else if found.uid() != user {
        Some(format!("belongs to user {}, but this process runs as user {user}", found.uid()))
    } else if found.mode() & 0o022 != 0 {
        Some(format!("may be written by others (mode {:o}): run chmod go-w on it, or", found.mode() & 0o7777))
    } else {
        None
    };
    match whats_wrong {
        // A umask may have taken this user's rights when it was created, here or by an earlier version.
        None if found.mode() & 0o700 != 0o700 => match Access::Owner.settle_at(&dir) {
            Ok(()) => Ok(dir),
            Err(error) => Err(unable("the directory's mode cannot be set".into())(error)),
        },
        None => Ok(dir),
        Some(what) => Err(refused(format!("{dir:?} {what}"), None)),
    }
}

/// Returns why another user could replace a file or directory that `user` creates in this directory. `None` if
/// nobody can.
fn unsafe_parent(is_dir: bool, owner: u32, mode: u32, user: u32) -> Option<String> {
    if !is_dir {
        Some("is not a directory".into())
    } else if owner != 0 && owner != user {
        Some(format!("belongs to user {owner} and not to root"))
    } else if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        Some(format!("may be written by others and has no sticky bit (mode {:o})", mode & 0o7777))
    } else {
        None
    }
}

/// Fails while a lock is held in a default directory of an older version. Older versions chose the directory by
/// environment variables. A lock there does not exclude processes that use the new directory.
///
/// A lock that a process of such a version acquires later is not noticed.
fn refuse_while_old_dirs_are_used(user: u32, new: &Path) -> Result<()> {
    let mut seen = vec![id(new)];
    for dir in old_dirs(user) {
        let found = id(&dir);
        if found.is_none() || seen.contains(&found) {
            continue;
        }
        seen.push(found);
        let refused = |what: String, source: Option<Cause>| {
            Err(Error::Connection { store: describe(new), what, source })
        };
        match EmbeddedStore::last_to_end(DataDir::found(dir.clone())) {
            Ok(None) => {}
            Ok(Some((lock, holder))) => {
                let what = format!(
                    "a process of an older version, or one that uses this directory by name, holds lock {lock} in \
                     {dir:?} ({holder}), where other processes do not see it: let it end or upgrade it, or use that \
                     directory meanwhile with {}",
                    describe(&dir)
                );
                return refused(what, None);
            }
            Err(error) => {
                let what = format!(
                    "cannot find out if a process of an older version holds a lock in {dir:?}: delete that \
                     directory when no such process runs"
                );
                return refused(what, Some(error.into()));
            }
        }
    }
    Ok(())
}

/// Returns the directories in which older versions may have kept this user's default store. Another process may
/// have used others, because its environment may differ.
fn old_dirs(user: u32) -> Vec<PathBuf> {
    let mut places = Vec::new();
    let session = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    for dir in session.into_iter().chain([PathBuf::from(format!("/run/user/{user}"))]) {
        // Older versions did not use another user's directory.
        if dir.is_absolute() && fs::metadata(&dir).is_ok_and(|found| found.is_dir() && found.uid() == user) {
            places.push(dir.join("dlm"));
        }
    }
    for dir in [env::temp_dir(), PathBuf::from("/tmp")] {
        places.push(dir.join(format!("dlm-{user}")));
    }
    // Nor a directory that another user may have created there.
    places.retain(|dir| fs::symlink_metadata(dir).is_ok_and(|found| found.is_dir() && found.uid() == user));
    places
}

/// Returns the identity of a directory, independent of its path: device and inode.
fn id(dir: &Path) -> Option<(u64, u64)> {
    fs::metadata(dir).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// A directory like `/var/tmp`, and the path of the store in it.
    fn parent() -> (tempfile::TempDir, PathBuf) {
        let parent = tempfile::tempdir().unwrap();
        fs::set_permissions(parent.path(), Permissions::from_mode(0o1777)).unwrap();
        let dir = parent.path().join(format!("dlm-{}", user()));
        (parent, dir)
    }

    #[test]
    fn the_directory_is_made_for_its_user_alone_and_found_again() {
        let (parent, dir) = parent();
        for _ in 0..2 {
            assert_eq!(ready(parent.path(), user()).unwrap(), dir);
            assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700);
        }
    }

    #[test]
    fn what_another_user_may_have_put_there_is_refused_and_no_other_place_is_taken() {
        let (parent, dir) = parent();
        let elsewhere = parent.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        let refused = |what: &str| {
            let error = ready(parent.path(), user()).unwrap_err();
            assert_eq!(error.code(), crate::Code::ConnectionError);
            let said = error.to_string();
            assert!(said.contains(what) && said.contains("embedded:/path"), "{said}");
        };
        symlink(&elsewhere, &dir).unwrap();
        refused("is not a directory");
        fs::remove_file(&dir).unwrap();
        fs::write(&dir, "").unwrap();
        refused("is not a directory");
        fs::remove_file(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        for mode in [0o770, 0o707, 0o777, 0o2770] {
            fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
            refused("may be written by others");
        }
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        ready(parent.path(), user()).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o600)).unwrap();
        ready(parent.path(), user()).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700, "this user cannot enter it");
        let error = ready(parent.path(), user() + 1).map(|_| ()).unwrap_err().to_string();
        assert!(user() == 0 || error.contains("belongs to user"), "{error}");
        fs::set_permissions(parent.path(), Permissions::from_mode(0o777)).unwrap();
        refused("has no sticky bit");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn only_a_parent_in_which_nobody_else_can_replace_our_directory_will_do() {
        let user = 1000;
        for (owner, mode) in [(0, 0o1777), (0, 0o755), (user, 0o700), (user, 0o1777)] {
            assert_eq!(unsafe_parent(true, owner, mode, user), None, "{owner} {mode:o}");
        }
        for (owner, mode) in [(0, 0o777), (0, 0o775), (1001, 0o1777), (65_534, 0o1777), (1001, 0o700)] {
            assert!(unsafe_parent(true, owner, mode, user).is_some(), "{owner} {mode:o}");
        }
        assert!(unsafe_parent(false, 0, 0o644, user).is_some());
    }
}
