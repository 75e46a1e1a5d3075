//! Words that processes share which change one mapped file. They are in the file `words`, which all of them map.
//!
//! | offset | word |
//! |---|---|
//! | 0 | the number of the process that writes, or 0 |
//! | 64 | until when processes may wait that find a free lock only by asking, in nanoseconds of the boot clock |
//!
//! Integers have the byte order of the machine.
//!
//! **The first word is a lock**, which costs no system call unless another process writes. Each process draws its number when
//! it opens the file, and holds a record lock on the byte with this number. The kernel ends record locks with the process, even
//! if a forked child lives on. So a process that waits finds out that the writer was killed, and takes its place.
//!
//! Anything in the process that closes the file frees that record lock too. Then another process may take the place of a
//! writer that lives. LMDB's own mutex still keeps their transactions apart, and `mapped_file` their commits. So a writer
//! locks its byte again now and then, and when it notices at its end that it was taken for one that has ended.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::runtime::process::process_mark::ProcessMark;
use crate::runtime::random;
use crate::runtime::time::Moment;

/// Size of the file. It is filled with zeros, because a hole would kill the process that writes to it if the disk is full.
pub(super) const FILE_BYTES: usize = 4096;
const WRITER: usize = 0;
/// In another line of the processor's cache.
const POLLERS: usize = 64;
/// A writer locks its byte again if it did so longer ago.
const LOCKED_FOR: Duration = Duration::from_secs(1);
/// The byte that is locked for number 0. The words themselves are never locked.
const NUMBERS_AT: u64 = 1 << 40;
/// So that each byte has an offset that files can have.
const NUMBERS: u64 = 1 << 60;

/// The words, and the number of this process.
#[derive(Debug)]
pub(super) struct SharedWords {
    file: File,
    words: NonNull<u8>,
    number: u64,
    /// When the byte with the number was locked last.
    locked: AtomicU64,
    process: ProcessMark,
}

// SAFETY: `words` points to memory that is shared with other processes. It is accessed by atomic operations only.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Opens the file at `path`, which must exist.
    ///
    /// Open each file at most once in a process: closing any descriptor of the file frees this process's record lock on
    /// it.
    pub(super) fn open(path: &Path) -> io::Result<SharedWords> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() < FILE_BYTES as u64 {
            let what = format!("{path:?} has less than {FILE_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let number = random::secret_number().map_err(io::Error::other)? % (NUMBERS - 1) + 1;
        // SAFETY: a new mapping, at an address that the kernel chooses. The file has these bytes.
        let mapping = unsafe {
            mmap(ptr::null_mut(), FILE_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        }?;
        let words = NonNull::new(mapping.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let opened =
            SharedWords { file, words, number, locked: AtomicU64::new(0), process: ProcessMark::current() };
        opened.lock_number()?;
        Ok(opened)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the callers pass offsets within the mapping that are multiples of 8, and the mapping lives as long as
        // `self`. All processes change the words by atomic operations.
        unsafe { AtomicU64::from_ptr(self.words.as_ptr().add(offset).cast()) }
    }

    /// See [`LockStore::note_poller`](crate::store::LockStore::note_poller).
    pub(super) fn note_poller(&self, until: Moment) {
        let word = self.word(POLLERS);
        // Most waits end no later than one that is noted, and then the cache line is only read.
        if word.load(Ordering::Relaxed) < until.as_nanos() {
            word.fetch_max(until.as_nanos(), Ordering::Relaxed);
        }
    }

    /// See [`LockStore::may_have_pollers`](crate::store::LockStore::may_have_pollers).
    pub(super) fn may_have_pollers(&self) -> bool {
        Moment::now() <= Moment::from_nanos(self.word(POLLERS).load(Ordering::Relaxed))
    }

    /// Takes the lock if nobody has it.
    pub(super) fn try_enter(&self) -> bool {
        self.word(WRITER).load(Ordering::Relaxed) == 0 && self.follow(0)
    }

    /// Takes the lock if nobody has it, or a process that has ended.
    pub(super) fn try_follow(&self) -> io::Result<bool> {
        let writer = self.word(WRITER).load(Ordering::Relaxed);
        // A number that no process draws is damage.
        let has_ended = writer == 0 || writer >= NUMBERS || !self.is_locked(writer)?;
        Ok(has_ended && self.follow(writer))
    }

    fn follow(&self, writer: u64) -> bool {
        let word = self.word(WRITER);
        if word.compare_exchange(writer, self.number, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        let locked = Moment::from_nanos(self.locked.load(Ordering::Relaxed));
        if Moment::now().since(locked) > LOCKED_FOR {
            // If this fails, the lock is as before.
            let _ = self.lock_number();
        }
        true
    }

    /// Frees the lock.
    pub(super) fn leave(&self) {
        if !self.process.is_current() {
            // A forked child has left the code in which its parent still is.
            return;
        }
        if self.word(WRITER).compare_exchange(self.number, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            let again = self.lock_number();
            log::debug!(
                "the lock on the file `words` was lost, because something else in this process has closed the file; \
                 locked again: {}",
                again.is_ok()
            );
        }
    }

    /// Says that this process lives.
    fn lock_number(&self) -> io::Result<()> {
        self.at_number(libc::F_SETLK, self.number)?;
        self.locked.store(Moment::now().as_nanos(), Ordering::Relaxed);
        Ok(())
    }

    /// Whether another process has this number.
    fn is_locked(&self, number: u64) -> io::Result<bool> {
        let found = self.at_number(libc::F_GETLK, number)?;
        Ok(found != libc::F_UNLCK as libc::c_short)
    }

    /// Returns the kind of lock that the kernel has left in the command.
    fn at_number(&self, command: libc::c_int, number: u64) -> io::Result<libc::c_short> {
        let mut range = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: (NUMBERS_AT + number) as libc::off_t,
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: the descriptor is open while `file` lives. Both commands read a `flock`, and one writes it too.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw mut range) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(range.l_type),
        }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping that `open` made. No reference to it outlives `self`.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), FILE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fork::{alone, in_forked_child};
    use crate::testing::patience::LONG;

    fn file() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        std::fs::write(&path, [0; FILE_BYTES]).unwrap();
        (dir, path)
    }

    #[test]
    fn one_process_at_a_time_has_the_word_and_another_one_follows_only_after_its_end() {
        if !alone() {
            return;
        }
        let (_dir, path) = file();
        let own = SharedWords::open(&path).unwrap();
        let other = || {
            let other = SharedWords::open(&path).unwrap();
            // The process ends with the word.
            other.try_enter() || other.try_follow().unwrap()
        };
        assert!(own.try_enter() && !own.try_enter());
        assert!(in_forked_child(|| !other()));
        own.leave();
        assert!(in_forked_child(other));
        assert!(!own.try_enter() && own.try_follow().unwrap());
        assert!(in_forked_child(|| !other()));
    }

    #[test]
    fn a_forked_child_does_not_free_the_word_of_its_parent() {
        if !alone() {
            return;
        }
        let (_dir, path) = file();
        let own = SharedWords::open(&path).unwrap();
        assert!(own.try_enter());
        assert!(in_forked_child(|| {
            own.leave();
            true
        }));
        assert!(!own.try_enter());
    }

    /// Nothing in the library opens the file a second time in one process. A program that copies the files does.
    #[test]
    fn a_process_that_was_taken_for_ended_says_that_it_lives() {
        if !alone() {
            return;
        }
        let (_dir, path) = file();
        let own = SharedWords::open(&path).unwrap();
        assert!(own.try_enter());
        drop(File::open(&path).unwrap());
        let other = || SharedWords::open(&path).unwrap().try_follow().unwrap();
        assert!(in_forked_child(other));
        own.leave();
        assert!(own.try_follow().unwrap(), "the word is that of a process that has ended");
        assert!(in_forked_child(|| !other()), "the lock is still lost");
        own.leave();
        drop(File::open(&path).unwrap());
        own.locked.store(0, Ordering::Relaxed);
        assert!(own.try_enter());
        assert!(in_forked_child(|| !other()), "it writes without its lock");
    }

    #[test]
    fn a_process_that_polls_is_known_to_all_until_its_time_is_over() {
        if !alone() {
            return;
        }
        let (_dir, path) = file();
        let own = SharedWords::open(&path).unwrap();
        assert!(!own.may_have_pollers());
        let soon = Moment::now().after(LONG);
        assert!(in_forked_child(|| {
            let other = SharedWords::open(&path).unwrap();
            other.note_poller(soon);
            other.note_poller(Moment::now());
            true
        }));
        assert!(own.may_have_pollers());
        own.word(POLLERS).store(0, Ordering::Relaxed);
        own.note_poller(Moment::now());
        while Moment::now() == Moment::from_nanos(own.word(POLLERS).load(Ordering::Relaxed)) {}
        assert!(!own.may_have_pollers());
    }

    #[test]
    fn damage_is_no_writer() {
        let (_dir, path) = file();
        let own = SharedWords::open(&path).unwrap();
        own.word(WRITER).store(u64::MAX, Ordering::Relaxed);
        assert!(!own.try_enter() && own.try_follow().unwrap());
        own.leave();
        assert!(own.try_enter());
        std::fs::write(&path, []).unwrap();
        assert_eq!(SharedWords::open(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
