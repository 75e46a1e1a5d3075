//! Which file system a directory is on, by the numbers of statfs(2), and what follows for files that are mapped.

use std::fs::File;
use std::io;
use std::path::Path;

#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags, statfs};

#[cfg(any(target_os = "linux", target_os = "android"))]
const BTRFS: u32 = 0x9123_683e;

/// Returns whether what was written to a file in `dir` keeps its place on the disk. File systems that copy on write need a new
/// place for each change.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn keeps_places(dir: &Path) -> bool {
    const EXT4: u32 = 0xef53;
    const TMPFS: u32 = 0x0102_1994;
    statfs(dir).is_ok_and(|found| [EXT4, TMPFS].contains(&(found.f_type as u32)))
}

/// On other systems the types of file systems are not known.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn keeps_places(_dir: &Path) -> bool {
    false
}

/// Asks btrfs to change the files that will be created in `dir` where they are, as `chattr +C` does.
///
/// LMDB's lock table is always changed through the memory map. Where each change needs a new place on the disk, a full disk
/// kills the process that changes it (SIGBUS). Linux before 6.16 kills it although the place stays (commit 6599716de2d6).
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn change_in_place(dir: &Path) -> io::Result<()> {
    if statfs(dir)?.f_type as u32 != BTRFS {
        return Ok(());
    }
    let dir = File::open(dir)?;
    Ok(ioctl_setflags(&dir, ioctl_getflags(&dir)? | IFlags::NOCOW)?)
}

/// On other systems no file system is asked.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn change_in_place(_dir: &Path) -> io::Result<()> {
    Ok(())
}

/// Returns the name of the file system of `dir` if several machines may use it at the same time.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn shared_file_system(dir: &Path) -> Option<&'static str> {
    shared_type(statfs(dir).ok()?.f_type as u32)
}

/// Returns the name of the type that statfs(2) reports, if several machines, or a machine and its guests, may use such a
/// file system at the same time. The numbers are those of the kernel and of coreutils' `stat`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn shared_type(magic: u32) -> Option<&'static str> {
    const SHARED: [(u32, &str); 26] = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB2"),
        (0x6573_5546, "FUSE"),
        (0x0102_1997, "9P"),
        (0x00c3_6400, "Ceph"),
        (0x5346_414f, "AFS"),
        (0x6b41_4653, "AFS"),
        (0x7375_7245, "Coda"),
        (0x564c, "NCP"),
        (0x0bd0_0bd0, "Lustre"),
        (0x0116_1970, "GFS2"),
        (0x7461_636f, "OCFS2"),
        (0x4750_4653, "GPFS"),
        (0x1983_0326, "BeeGFS"),
        (0x2003_0528, "OrangeFS"),
        (0x6163_6673, "ACFS"),
        (0xaad7_aaea, "PanFS"),
        (0x1803_1977, "WekaFS"),
        (0x0131_11a8, "IBRIX"),
        (0xbeef_dead, "StorNext"),
        (0x786f_4256, "vboxsf"),
        // Of the modules that come with VirtualBox itself.
        (0xface, "vboxsf"),
        (0xbacb_acbc, "vmhgfs"),
        (0x7c7c_6673, "prl_fs"),
    ];
    SHARED.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

/// On other systems the types of file systems are not known.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn shared_file_system(_dir: &Path) -> Option<&'static str> {
    None
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_machines_share_are_known_and_local_ones_are_not_among_them() {
        let shared = [0x6969_u32, 0x1983_0326, 0x2003_0528, 0x6163_6673, 0xaad7_aaea, 0x786f_4256, 0xface];
        let names = shared.map(shared_type);
        let expected = ["NFS", "BeeGFS", "OrangeFS", "ACFS", "PanFS", "vboxsf", "vboxsf"];
        assert_eq!(names, expected.map(Some));
        // ext4, XFS, btrfs, tmpfs, overlay, ZFS, F2FS
        for local in
            [0xef53_u32, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x2fc1_2fc1, 0xf2f5_2010]
        {
            assert_eq!(shared_type(local), None, "{local:x}");
        }
    }
}
