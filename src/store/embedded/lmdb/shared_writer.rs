//! The lock between processes that write one mapped file: a word in the file.
//!
//! It costs no system call unless another process writes. The word is the number of the process that writes, or 0. Each
//! process draws its number when it opens the file, and holds a record lock on the byte of LMDB's lock table with this
//! number. The kernel ends record locks with the process, even if a forked child lives on. So a process that waits
//! finds out that the writer was killed, and takes its place.
//!
//! Anything in the process that closes the lock table frees that record lock too. Then another process may take the place of a
//! writer that lives. LMDB's own mutex still keeps their transactions apart, and `mapped_file` their commits.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::mapped_file::MappedFile;
use crate::runtime::random;

/// Above all other bytes of the lock table that are locked.
const NUMBERS_AT: u64 = 1 << 40;
/// So that each byte has an offset that files can have.
const NUMBER_MASK: u64 = (1 << 60) - 1;

/// The right of this process to wait for the lock.
#[derive(Debug)]
pub(super) struct SharedWriter {
    mapped: Arc<MappedFile>,
    table: File,
    number: u64,
}

impl SharedWriter {
    pub(super) fn new(mapped: Arc<MappedFile>, table: &File) -> io::Result<SharedWriter> {
        let number = random::secret_number().map_err(io::Error::other)? & NUMBER_MASK | 1;
        Ok(SharedWriter { mapped, table: table.try_clone()?, number })
    }

    /// Says that this process lives. Again after anything has closed the lock table.
    pub(super) fn register(&self) -> io::Result<()> {
        set_or_find(&self.table, libc::F_SETLK, self.number).map(|_| ())
    }

    /// Takes the lock if nobody has it.
    pub(super) fn try_enter(&self) -> bool {
        let word = self.mapped.writer();
        word.load(Ordering::Relaxed) == 0
            && word.compare_exchange(0, self.number, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock from a process that has ended.
    pub(super) fn try_succeed(&self) -> io::Result<bool> {
        let word = self.mapped.writer();
        let writer = word.load(Ordering::SeqCst);
        if writer == 0 || set_or_find(&self.table, libc::F_GETLK, writer)? {
            return Ok(false);
        }
        Ok(word.compare_exchange(writer, self.number, Ordering::SeqCst, Ordering::Relaxed).is_ok())
    }

    /// Frees the lock, unless another process has taken this one for ended.
    pub(super) fn leave(&self) {
        let word = self.mapped.writer();
        let _ = word.compare_exchange(self.number, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

/// Locks the byte with this number (`F_SETLK`), or returns whether another process has it locked (`F_GETLK`).
fn set_or_find(table: &File, command: libc::c_int, number: u64) -> io::Result<bool> {
    let mut range = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: (NUMBERS_AT + number) as libc::off_t,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open while `table` lives, and both commands read a `flock`. `F_GETLK` writes it too.
    if unsafe { libc::fcntl(table.as_raw_fd(), command, &raw mut range) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(range.l_type != libc::F_UNLCK as libc::c_short)
}
