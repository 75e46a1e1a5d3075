//! Record locks that belong to an open file and not to a process (`F_OFD_SETLK`, see fcntl(2)).
//!
//! Closing any descriptor of a file releases all POSIX record locks of the process on it. A backup, a scanner or another
//! copy of this library may do that at any moment. It does not release these locks. Both kinds exclude each other, also
//! within one process.
//!
//! A forked child shares the open file, so whoever unlocks does it explicitly: closing is not enough while a child lives.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// How a range is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OfdLock {
    Shared,
    Exclusive,
    None,
}

impl OfdLock {
    /// Locks or unlocks `length` bytes from `start` on; zero means all that follow. Does not wait. Returns whether it
    /// was done: `false` if another lock is in the way.
    pub(crate) fn try_set(self, file: &File, start: u32, length: u32) -> io::Result<bool> {
        let kind = match self {
            OfdLock::Shared => libc::F_RDLCK,
            OfdLock::Exclusive => libc::F_WRLCK,
            OfdLock::None => libc::F_UNLCK,
        };
        let range = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: start as libc::off_t,
            l_len: length as libc::off_t,
            // The kernel wants zero here.
            l_pid: 0,
        };
        loop {
            // SAFETY: the descriptor is open while `file` lives, and `range` is what this command reads.
            let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &range) };
            if done != -1 {
                return Ok(true);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::EACCES) => return Ok(false),
                _ => return Err(error),
            }
        }
    }
}
