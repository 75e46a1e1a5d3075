//! Whether a directory may hold memory-mapped files that only we change.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::{Cause, Error, Result};

/// A file or directory, whatever it is called: device and inode.
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
    /// The set-group-ID bit gives the files in it the directory's group, whichever member makes them.
    pub(crate) fn dir_mode(self) -> u32 {
        match self {
            Access::Owner => 0o700,
            Access::Group => 0o2770,
        }
    }

    /// systemd-tmpfiles deletes files in /tmp and /var/tmp that were not used for some days, but none
    /// that has the sticky bit: see "age" in tmpfiles.d(5).
    pub(crate) fn file_mode(self) -> u32 {
        match self {
            Access::Owner => 0o1600,
            Access::Group => 0o1660,
        }
    }

    /// Gives the file or directory at `path`, which this process just made, its mode.
    ///
    /// A symbolic link is refused: in a group's directory another member may have put one there.
    pub(crate) fn settle_at(self, path: &Path) -> io::Result<()> {
        let file = File::options().read(true).custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path)?;
        self.settle(&file)
    }

    /// Gives a file or directory that this process just made its mode, whatever the umask is.
    pub(crate) fn settle(self, file: &File) -> io::Result<()> {
        let is_dir = file.metadata()?.is_dir();
        let mode = if is_dir { self.dir_mode() } else { self.file_mode() };
        let set = file.set_permissions(Permissions::from_mode(mode));
        let has = file.metadata()?.mode() & 0o7777;
        match (self, set) {
            // The bits that matter are there from the start; not every file system has the others.
            (Access::Owner, _) => Ok(()),
            (Access::Group, Err(error)) => Err(error),
            // The kernel leaves the set-group-ID bit out for a user who is not in the group.
            (Access::Group, Ok(())) if has != mode => {
                let what =
                    format!("its mode became {has:o} in place of {mode:o}: is this user in its group?");
                Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
            }
            (Access::Group, Ok(())) => Ok(()),
        }
    }
}

/// Refuses a directory in which users could change files whom `access` does not let, or whose file
/// system does not keep the promises that memory maps and record locks need.
pub(crate) fn check_private(store: &str, dir: &Path, access: Access) -> Result<FileId> {
    let refused = |what: String, source: Option<Cause>| {
        Err(Error::Connection { store: store.to_owned(), what, source })
    };
    let found = match fs::metadata(dir) {
        Ok(found) => found,
        Err(error) => return refused(format!("{dir:?} cannot be looked at"), Some(error.into())),
    };
    if !found.is_dir() {
        return refused(format!("{dir:?} is not a directory"), None);
    }
    let whats_wrong = match access {
        Access::Owner => not_owners_alone(found.mode(), found.uid()),
        Access::Group => not_the_groups(found.mode(), found.gid()),
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

/// Why a directory of this mode and owner is not this user's alone.
fn not_owners_alone(mode: u32, owner: u32) -> Option<String> {
    let shown = mode & 0o7777;
    if mode & 0o022 == 0o020 {
        return Some(format!(
            "may be written by its group (mode {shown:o}): open it with group=on, as all its users must, or run \
             chmod g-w on it"
        ));
    }
    let user = rustix::process::geteuid().as_raw();
    if owner != user {
        return Some(format!(
            "belongs to user {owner}, this process runs as user {user}: use a directory of its own"
        ));
    }
    (mode & 0o022 != 0).then(|| {
        format!("may be written by others (mode {shown:o}): run chmod go-w on it, or use another one")
    })
}

/// Why a directory of this mode and group is not one that this process shares with its group.
fn not_the_groups(mode: u32, group: u32) -> Option<String> {
    let shown = mode & 0o7777;
    if mode & 0o002 != 0 {
        return Some(format!("may be written by all users (mode {shown:o}): run chmod o-w on it"));
    }
    if mode & 0o2020 != 0o2020 {
        return Some(format!(
            "is not a group's (mode {shown:o}): open it without group=on, or delete it while nobody uses it, and let \
             group=on make it anew or make it with mode 2770"
        ));
    }
    (!is_member(group)).then(|| {
        let user = rustix::process::geteuid().as_raw();
        format!("belongs to group {group}, and user {user} of this process is not in it")
    })
}

/// Root may write everywhere and needs to be in no group.
fn is_member(group: u32) -> bool {
    let user = rustix::process::geteuid();
    let others = || rustix::process::getgroups().unwrap_or_default();
    user.is_root()
        || rustix::process::getegid().as_raw() == group
        || others().iter().any(|other| other.as_raw() == group)
}

/// The name of the file system below `dir` when it is one that more than one kernel may serve.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn shared_file_system(dir: &Path) -> Option<&'static str> {
    const SHARED: [(u32, &str); 12] = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB2"),
        (0x6573_5546, "FUSE"),
        (0x0102_1997, "9P"),
        (0x00c3_6400, "Ceph"),
        (0x5346_414f, "AFS"),
        (0x0bd0_0bd0, "Lustre"),
        (0x0116_1970, "GFS2"),
        (0x7461_636f, "OCFS2"),
        (0x4750_4653, "GPFS"),
    ];
    let magic = rustix::fs::statfs(dir).ok()?.f_type as u32;
    SHARED.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

/// Elsewhere the names are not known.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn shared_file_system(_dir: &Path) -> Option<&'static str> {
    None
}
