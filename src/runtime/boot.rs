//! Identifies the machine and its last start. Two processes with the same `Boot` read the same boot clock.

use std::fs;
use std::io;

use crate::runtime::process::descriptors::above_streams;

pub(crate) const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";
const CLOCK_OFFSETS_FILE: &str = "/proc/self/timens_offsets";
/// Offset of a boot clock that no time namespace shifts.
const NOT_SHIFTED: &str = "0 0";

/// One start of a machine, if no time namespace shifts its boot clock. A virtual machine that is started twice
/// from one snapshot has one `Boot` but two clocks, so no lease should be held during a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Boot([u8; Boot::LEN]);

impl Boot {
    pub(crate) const LEN: usize = 16;

    /// Returns the `Boot` of this process; `None` if it cannot be determined, or a time namespace shifts the
    /// clock. Reads two kernel files on each call, because a forked child may have another clock.
    pub(crate) fn current() -> Option<Boot> {
        if clock_offset() != NOT_SHIFTED {
            return None;
        }
        let id = id().ok()?;
        let digits: Vec<u8> = id.bytes().filter(|byte| *byte != b'-').collect();
        let mut bytes = [0; Boot::LEN];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Boot(bytes))
    }

    pub(crate) const fn from_bytes(bytes: [u8; Boot::LEN]) -> Boot {
        Boot(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; Boot::LEN] {
        &self.0
    }
}

/// Returns the kernel's id of this start of the machine: 8-4-4-4-12 lower-case hexadecimal digits.
///
/// # Errors
/// The file cannot be read, or has another content.
pub(crate) fn id() -> io::Result<String> {
    let id = above_streams(|| fs::read_to_string(BOOT_ID_FILE))?;
    let id = id.trim_end();
    if is_id(id) { Ok(id.to_owned()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Returns whether `id` has the format of a boot id. Only such a text may become part of a path.
pub(crate) fn is_id(id: &str) -> bool {
    let groups: Vec<&str> = id.split('-').collect();
    let hex = |group: &&str| group.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(hex)
}

/// Returns by how much this process's boot clock is shifted. Kernels without time namespaces do not shift it.
pub(crate) fn clock_offset() -> String {
    let offsets = above_streams(|| fs::read_to_string(CLOCK_OFFSETS_FILE)).unwrap_or_default();
    let line = offsets.lines().find(|line| line.starts_with("boottime"));
    let numbers = line.map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" "));
    numbers.unwrap_or_else(|| NOT_SHIFTED.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_boot_id_becomes_part_of_a_path() {
        assert!(is_id("01234567-89ab-cdef-0123-456789abcdef"));
        for bad in ["", "..", "01234567-89ab-cdef-0123-456789abcde/", "01234567-89AB-cdef-0123-456789abcdef"]
        {
            assert!(!is_id(bad), "{bad}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_start_of_the_machine_has_a_name_that_stays() {
        let boot = Boot::current().expect("no time namespace");
        assert_eq!(Boot::current(), Some(boot));
        assert_ne!(boot.as_bytes(), &[0; Boot::LEN]);
    }
}
