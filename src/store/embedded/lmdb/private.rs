//! Checks whether a directory is safe for memory-mapped files that only this library changes.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::file_system::shared_file_system;
use crate::error::{Cause, Error, Result};
use crate::runtime::process::descriptors::StreamsTaken;

/// The identity of a file or directory, independent of its path: device and inode.
pub(super) type FileId = (u64, u64);

/// Which users may open the files of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// One user.
    Owner,
    /// The members of the directory's group, who trust each other.
    Group,
}

impl Access {
    /// Returns the mode of directories. With the set-group-ID bit, new files get the directory's group, independent
    /// of the member that creates them.
    pub(crate) fn dir_mode(self) -> u32 {
        match self {
            Access::Owner => 0o700,
            Access::Group => 0o2770,
        }
    }

    /// Returns the mode of files. It has the sticky bit: systemd-tmpfiles deletes files in /tmp and /var/tmp that
    /// were not used for some days, but none with this bit. See "age" in tmpfiles.d(5).
    pub(crate) fn file_mode(self) -> u32 {
        match self {
            Access::Owner => 0o1600,
            Access::Group => 0o1660,
        }
    }

    /// Sets the mode of the file or directory at `path`, which this process has just created.
    ///
    /// Refuses a symbolic link, which another member may have created in a group's directory.
    pub(crate) fn settle_at(self, path: &Path) -> io::Result<()> {
        let _taken = StreamsTaken::new();
        let open = || File::options().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path);
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                // The umask has taken the rights of this user as well. Such a file can be found, but not opened.
                let found =
                    rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
                let by_number = format!("/proc/self/fd/{}", found.as_raw_fd());
                fs::set_permissions(by_number, Permissions::from_mode(self.owners_part()))?;
                open()?
            }
            opened => opened?,
        };
        self.settle(&file)
    }

    /// Returns the rights of its owner to a new file or directory.
    fn owners_part(self) -> u32 {
        self.dir_mode() & 0o700
    }

    /// Sets the mode of a file or directory that this process has just created, independent of the umask.
    pub(crate) fn settle(self, file: &File) -> io::Result<()> {
        let is_dir = file.metadata()?.is_dir();
        let mode = if is_dir { self.dir_mode() } else { self.file_mode() };
        let set = file.set_permissions(Permissions::from_mode(mode));
        let has = file.metadata()?.mode() & 0o7777;
        match (self, set) {
            // Not every file system has the other bits.
            (Access::Owner, Err(error)) if has & mode & 0o700 != mode & 0o700 => Err(error),
            (Access::Owner, _) => Ok(()),
            (Access::Group, Err(error)) => Err(error),
            // The kernel clears the set-group-ID bit if the user is not in the group.
            (Access::Group, Ok(())) if has != mode => {
                let what = format!("its mode became {has:o} instead of {mode:o}: is this user in its group?");
                Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
            }
            (Access::Group, Ok(())) => Ok(()),
        }
    }
}

/// Refuses a directory in which users outside `access` could change files. Refuses a file system on which memory
/// maps and record locks do not work across machines.
pub(crate) fn check_private(store: &str, dir: &Path, access: Access) -> Result<FileId> {
    let refused = |what: String, source: Option<Cause>| {
        Err(Error::Connection { store: store.to_owned(), what, source })
    };
    let found = match fs::metadata(dir) {
        Ok(found) => found,
        Err(error) => return refused(format!("{dir:?} cannot be checked"), Some(error.into())),
    };
    if !found.is_dir() {
        return refused(format!("{dir:?} is not a directory"), None);
    }
    let whats_wrong = match access {
        Access::Owner => not_owners_alone(found.mode(), found.uid()),
        Access::Group => not_the_groups(found.mode(), found.uid(), found.gid()),
    };
    if let Some(what) = whats_wrong {
        return refused(format!("{dir:?} {what}"), None);
    }
    if let Some(kind) = shared_file_system(dir) {
        return refused(
            format!("{dir:?} is on {kind}, which machines may share: use a local directory"),
            None,
        );
    }
    Ok((found.dev(), found.ino()))
}

/// Returns why a directory with this mode and owner is not private to this user. `None` if it is.
fn not_owners_alone(mode: u32, owner: u32) -> Option<String> {
    let shown = mode & 0o7777;
    let user = rustix::process::geteuid().as_raw();
    if mode & 0o022 == 0o020 {
        let advice = may_be_changed(mode, owner, user, "g-w");
        return Some(format!(
            "may be written by its group (mode {shown:o}): open it with group=on, as all its users must, or {advice}"
        ));
    }
    if owner != user {
        return Some(format!(
            "belongs to user {owner}, but this process runs as user {user}: use another directory"
        ));
    }
    (mode & 0o022 != 0).then(|| {
        format!("may be written by others (mode {shown:o}): {}", may_be_changed(mode, owner, user, "go-w"))
    })
}

/// Returns what to do about a directory that others may write. Others need a directory that is not this user's, or that has
/// a sticky bit, as it is: chmod on /tmp would break the machine.
fn may_be_changed(mode: u32, owner: u32, user: u32, change: &str) -> String {
    if owner == user && mode & 0o1000 == 0 {
        format!("run chmod {change} on it, or use another directory")
    } else {
        "use a directory of its own, such as one below this one".to_owned()
    }
}

/// Returns why this process cannot share a directory with this mode and group. `None` if it can.
fn not_the_groups(mode: u32, owner: u32, group: u32) -> Option<String> {
    let shown = mode & 0o7777;
    if mode & 0o002 != 0 {
        let user = rustix::process::geteuid().as_raw();
        let advice = may_be_changed(mode, owner, user, "o-w");
        return Some(format!("may be written by all users (mode {shown:o}): {advice}"));
    }
    if mode & 0o2020 != 0o2020 {
        return Some(format!(
            "is not shared with its group (mode {shown:o}): open it without group=on, or delete it while nobody uses \
             it and create it again with group=on or with mode 2770"
        ));
    }
    (!is_member(group)).then(|| {
        let user = rustix::process::geteuid().as_raw();
        format!("belongs to group {group}, but user {user} of this process is not in it")
    })
}

/// Returns whether this process is in the group. Root may write everywhere and needs no group.
fn is_member(group: u32) -> bool {
    let user = rustix::process::geteuid();
    let others = || rustix::process::getgroups().unwrap_or_default();
    user.is_root()
        || rustix::process::getegid().as_raw() == group
        || others().iter().any(|other| other.as_raw() == group)
}
