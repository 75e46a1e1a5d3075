//! Whether a directory may hold memory-mapped files that only we change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{Cause, Error, Result};

/// A file or directory, whatever it is called: device and inode.
pub(super) type FileId = (u64, u64);

/// Refuses a directory in which others could change files, or whose file system does not keep the
/// promises that memory maps and record locks need.
pub(crate) fn check_private(store: &str, dir: &Path) -> Result<FileId> {
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
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user {
        let what = format!(
            "{dir:?} belongs to user {}, this process runs as user {user}: use a directory of its own",
            found.uid()
        );
        return refused(what, None);
    }
    if found.mode() & 0o022 != 0 {
        let what = format!(
            "{dir:?} may be written by others (mode {:o}): run chmod go-w on it, or use another one",
            found.mode() & 0o7777
        );
        return refused(what, None);
    }
    if let Some(kind) = shared_file_system(dir) {
        return refused(
            format!("{dir:?} is on {kind}, which machines may share: use a local directory"),
            None,
        );
    }
    Ok((found.dev(), found.ino()))
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
