//! The directory of the default store. It depends on the user's id alone.
//!
//! All processes of a user must come to one place: login shells, cron, units and `sudo` differ in every
//! variable of the environment, so none is asked. Other writable places are unsuitable:
//!
//! * `/run/user/<uid>` is deleted at the user's last logout.
//! * `/dev/shm`: logind (`RemoveIPC=`) and units (`RemoveIPC=`) delete what a user has there.
//! * `/tmp` is emptied with every start of the machine, and fences could go back.
//! * The home directory may be on a network, or the user may have none.
//!
//! In `/var/tmp` only systemd-tmpfiles deletes, what was not used for 30 days, and it leaves our files
//! alone: see `place`.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::EmbeddedStore;
use super::place::{Place, describe};
use crate::error::{Cause, Error, Result};

const PARENT: &str = "/var/tmp";
/// What a message ends with when there is no way to the default place.
const CURE: &str = "name a directory for all that share locks, as in embedded:/path";

/// The default directory of this user, made and checked. There is no second one to go to.
pub(super) fn path() -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let dir = ready(Path::new(PARENT), user)?;
    refuse_while_old_places_are_used(user, &dir)?;
    Ok(dir)
}

/// Makes or checks `dlm-<user>` in `parent`, where any user may make files: the name may be taken by
/// somebody who means harm.
fn ready(parent: &Path, user: u32) -> Result<PathBuf> {
    let dir = parent.join(format!("dlm-{user}"));
    let refused = |what: String, source: Option<Cause>| Error::Connection {
        store: describe(&dir),
        what: format!("{what}: {CURE}"),
        source,
    };
    let unable = |what: String| |error: io::Error| refused(what, Some(error.into()));
    let found = fs::metadata(parent).map_err(unable(format!("{parent:?} cannot be looked at")))?;
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
    let found = fs::symlink_metadata(&dir).map_err(unable("the directory cannot be looked at".into()))?;
    let whats_wrong = if !found.is_dir() {
        Some("is not a directory, or a link to one".to_owned())
    } else if found.uid() != user {
        Some(format!("belongs to user {} and not to user {user} of this process", found.uid()))
    } else if found.mode() & 0o022 != 0 {
        Some(format!("may be written by others (mode {:o}): run chmod go-w on it, or", found.mode() & 0o7777))
    } else {
        None
    };
    match whats_wrong {
        None => Ok(dir),
        Some(what) => Err(refused(format!("{dir:?} {what}"), None)),
    }
}

/// Why what `user` makes in a directory could be replaced by another one.
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

/// Whether systemd gave the unit of this process a directory of its own in place of `dir`, so that
/// processes outside of it cannot see what this one makes there. `false` where that cannot be told.
pub(super) fn is_private_to_unit(dir: &Path) -> bool {
    let Ok(opened) = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd())).unwrap_or_default();
    let Some(mount) = info.lines().find_map(|line| line.strip_prefix("mnt_id:")) else { return false };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    is_units_own(&mounts, mount.trim())
}

/// Whether `mount`, by its id in this text of `/proc/<pid>/mountinfo`, is one that `PrivateTmp=` makes.
///
/// `PrivateTmp=yes` mounts `/var/tmp/systemd-private-<boot id>-<unit>-<random>/tmp`.
/// `PrivateTmp=disconnected` mounts the directory `var-tmp` of a tmpfs that only the unit has (systemd's
/// `append_private_tmp`).
fn is_units_own(mountinfo: &str, mount: &str) -> bool {
    // proc_pid_mountinfo(5): id, parent, device, root, mount point, options, optional fields, "-", type, ...
    let mut fields = mountinfo.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let Some(fields) = fields.find(|fields| fields.first() == Some(&mount)) else { return false };
    let Some(root) = fields.get(3) else { return false };
    let mut after = fields.iter().skip_while(|field| **field != "-");
    let kind = after.nth(1).copied().unwrap_or_default();
    let connected = root.split('/').any(|part| part.starts_with("systemd-private-"));
    connected || kind == "tmpfs" && *root == "/var-tmp"
}

/// Older versions kept the default store elsewhere, depending on the environment. A lock that one of
/// their processes holds excludes nobody here: until its lease ends nothing is opened.
///
/// A process of such a version that takes its lock later is not seen.
fn refuse_while_old_places_are_used(user: u32, new: &Path) -> Result<()> {
    let mut seen = vec![id(new)];
    for dir in old_places(user) {
        let found = id(&dir);
        if found.is_none() || seen.contains(&found) {
            continue;
        }
        seen.push(found);
        let refused = |what: String, source: Option<Cause>| {
            Err(Error::Connection { store: describe(new), what, source })
        };
        match EmbeddedStore::last_to_end(&Place::found(dir.clone())) {
            Ok(None) => {}
            Ok(Some((lock, holder))) => {
                let what = format!(
                    "a process of an older version, or one that was given this directory by name, holds lock {lock} in \
                     {dir:?} ({holder}), where others do not look: let it end or upgrade it, or use that directory \
                     meanwhile with {}",
                    describe(&dir)
                );
                return refused(what, None);
            }
            Err(error) => {
                let what = format!(
                    "whether a process of an older version holds a lock in {dir:?} cannot be told: delete that \
                     directory when no such process runs"
                );
                return refused(what, Some(error.into()));
            }
        }
    }
    Ok(())
}

/// Where older versions may have kept the default store of this user, as far as it can be told from here.
fn old_places(user: u32) -> Vec<PathBuf> {
    let mut places = Vec::new();
    let session = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    for dir in session.into_iter().chain([PathBuf::from(format!("/run/user/{user}"))]) {
        // They did not use another user's.
        if dir.is_absolute() && fs::metadata(&dir).is_ok_and(|found| found.is_dir() && found.uid() == user) {
            places.push(dir.join("dlm"));
        }
    }
    for dir in [env::temp_dir(), PathBuf::from("/tmp")] {
        places.push(dir.join(format!("dlm-{user}")));
    }
    // Nor what another user may have put there.
    places.retain(|dir| fs::symlink_metadata(dir).is_ok_and(|found| found.is_dir() && found.uid() == user));
    places
}

/// A directory, whatever it is called: device and inode.
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

    /// A directory like `/var/tmp`, and the way to our own in it.
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

    #[test]
    fn a_units_own_directory_is_told_from_the_machines() {
        let mountinfo = "\
            27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            30 27 0:25 / /tmp rw,nosuid shared:5 master:3 - tmpfs tmpfs rw,size=4g\n\
            41 27 254:0 /var/tmp/systemd-private-0123-nightly.service-AbCd/tmp /var/tmp rw - ext4 /dev/vda rw\n\
            42 27 0:61 /var-tmp /var/tmp rw,nodev shared:9 - tmpfs tmpfs rw\n\
            43 27 0:62 / /var/tmp rw - tmpfs tmpfs rw\n\
            44 27 0:40 /@var_tmp /var/tmp rw - btrfs /dev/vdb rw\n\
            45 27 0:40 /var-tmp /var/tmp rw - btrfs /dev/vdb rw\n\
            46 27 254:0 /var/tmp/not-systemd-private-x/tmp /var/tmp rw - ext4 /dev/vda rw\n\
            47 30 0:25 /systemd-private-0123-nightly.service-AbCd/tmp /tmp rw - tmpfs tmpfs rw\n\
            cut\n\
            48\n";
        for own in ["41", "42", "47"] {
            assert!(is_units_own(mountinfo, own), "{own}");
        }
        for machines in ["27", "30", "43", "44", "45", "46", "48", "4", "cut", ""] {
            assert!(!is_units_own(mountinfo, machines), "{machines}");
        }
        assert!(!is_units_own("", "27"));
    }

    #[test]
    fn the_mount_of_a_directory_is_found() {
        assert!(!is_private_to_unit(Path::new("/proc")));
        assert!(!is_private_to_unit(Path::new("/no such directory")));
    }
}
