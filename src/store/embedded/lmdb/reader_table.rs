//! Keeps the locks on LMDB's lock table while a store is open.
//!
//! LMDB locks two bytes of that file, with record locks of the process:
//!
//! | byte | LMDB's lock | without it |
//! |---|---|---|
//! | the first | shared, while the file is open; exclusive, while it is initialised | the next opener initialises the file, and forgets the readers and the owner of the writer's mutex |
//! | the one with the number of the process | exclusive, from the first read on | others take its readers for dead ones, and use the pages that these read |
//!
//! Anything in the process that closes the file drops both. So a [`ReaderTable`] holds them with an [`OfdLock`]. The lock on
//! the first byte is there before LMDB opens the file. So LMDB initialises it when the generation is created, and never
//! again: a mutex whose owner was killed is repaired, and readers that were killed are found by their byte. Versions of
//! this library without a `ReaderTable` respect these locks too.
//!
//! A third byte, the seat, keeps a second copy of the library in this process out, before it has touched anything.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock};

use super::ofd_lock::OfdLock;
use crate::runtime::time::{self, Deadline};

/// Above all process ids: Linux has at most 2^22.
const SEATS: u32 = 1 << 22;

/// The locks of this process on the lock table of one environment. Dropping it frees them.
#[derive(Debug)]
pub(super) struct ReaderTable {
    file: File,
    pid: u32,
}

impl ReaderTable {
    /// Takes the seat of this process at the file `path`. Returns `None` if it is taken: by another copy of this library in
    /// the process, or by a process with the same id in another PID namespace.
    pub(super) fn claim(path: &Path) -> io::Result<Option<ReaderTable>> {
        let file = File::options().read(true).write(true).open(path)?;
        let pid = std::process::id();
        Ok(OfdLock::Exclusive.try_set(&file, SEATS + pid, 1)?.then_some(ReaderTable { file, pid }))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Keeps others from initialising the file. Waits until `by` for one that does it at this moment: a version of this
    /// library without a `ReaderTable`, or a process that was killed and has not released all its locks yet.
    pub(super) fn keep_initialised(&self, by: Deadline) -> io::Result<()> {
        while !OfdLock::Shared.try_set(&self.file, 0, 1)? {
            if by.passed() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "its lock file stays locked"));
            }
            time::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Frees the byte of this process, on which LMDB needs a lock of its own when it opens the file.
    pub(super) fn lend_reader_byte(&self) -> io::Result<()> {
        OfdLock::None.try_set(&self.file, self.pid, 1).map(|_| ())
    }

    /// Replaces LMDB's lock on the byte of this process, which it took with its first read. Returns `false` if another
    /// copy of this library was faster.
    pub(super) fn keep_reader_byte(&self) -> io::Result<bool> {
        // All locks that belong to the process. Those of `self` belong to the open file.
        fcntl_lock(&self.file, FlockOperation::NonBlockingUnlock)?;
        OfdLock::Exclusive.try_set(&self.file, self.pid, 1)
    }
}

impl Drop for ReaderTable {
    fn drop(&mut self) {
        // A child that was forked has a copy of the descriptor, and never drops this.
        let _ = OfdLock::None.try_set(&self.file, 0, 0);
    }
}
