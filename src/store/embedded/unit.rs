//! Checks whether a directory is private to the systemd unit of this process.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::runtime::process::descriptors::StreamsTaken;

/// Returns whether systemd replaced `dir` with a private directory for the unit of this process. Processes outside
/// the unit do not see the files in it. `false` if this cannot be found out.
pub(super) fn is_private_to_unit(dir: &Path) -> bool {
    let _taken = StreamsTaken::new();
    let Ok(opened) = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd())).unwrap_or_default();
    let Some(mount) = info.lines().find_map(|line| line.strip_prefix("mnt_id:")) else { return false };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    is_units_own(&mounts, mount.trim())
}

/// Returns whether `PrivateTmp=` made the mount with the id `mount` in this text of `/proc/<pid>/mountinfo`.
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

#[cfg(test)]
mod tests {
    use super::*;

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
