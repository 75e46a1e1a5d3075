//! Descriptors 0, 1 and 2 are the program's standard streams, also in a program that has closed them. The system gives a
//! new descriptor the lowest free number, so a file or socket of the library could get one of these three: what the
//! program prints would go into it, and what the program reads would come from it.
//!
//! So whatever opens something does it while a [`StreamsTaken`] lives. That opens placeholders under those of the three
//! numbers that are free, and closes them afterwards. Reads and writes of a placeholder fail as those of a closed
//! descriptor do (EBADF, `O_PATH` in open(2)), and programs that are started do not inherit it. The same works for what
//! other crates and the C library open.
//!
//! What remains: while a placeholder is there, a file that the program opens in another thread does not get its number.

#[cfg(feature = "aerospike")]
use std::cell::Cell;
#[cfg(feature = "aerospike")]
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags, fcntl_getfl, fstat, open};
use rustix::io::fcntl_getfd;

use super::fork_pause::ForkPause;
use super::process_mark::ProcessMark;
use crate::runtime::sync::real::Mutex;

const STREAMS: usize = 3;

/// Locked in a [`ForkPause`] only: a child must not inherit it locked.
static PLACEHOLDERS: Mutex<Placeholders> =
    Mutex::new(Placeholders { process: None, users: 0, taken: [None; STREAMS] });

/// The placeholders of all threads.
#[derive(Debug)]
struct Placeholders {
    /// The process that counts `users`: a child has none of its parent's threads.
    process: Option<ProcessMark>,
    users: usize,
    /// The file of each placeholder: device and inode.
    taken: [Option<(u64, u64)>; STREAMS],
}

/// While it lives, no descriptor that this process opens gets the number 0, 1 or 2. Costs a few system calls.
#[derive(Debug)]
pub(crate) struct StreamsTaken {
    /// The process that made it.
    process: ProcessMark,
}

impl StreamsTaken {
    pub(crate) fn new() -> StreamsTaken {
        let process = ProcessMark::current();
        let _pause = ForkPause::new();
        let mut placeholders = PLACEHOLDERS.lock();
        if placeholders.process != Some(process) {
            // In a child that was forked meanwhile. Its first user closes what it has inherited.
            placeholders.process = Some(process);
            placeholders.users = 0;
        }
        placeholders.users += 1;
        placeholders.take();
        StreamsTaken { process }
    }
}

impl Drop for StreamsTaken {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let _pause = ForkPause::new();
        let mut placeholders = PLACEHOLDERS.lock();
        placeholders.users -= 1;
        if placeholders.users == 0 {
            placeholders.give_back();
        }
    }
}

/// Runs `opens` while no descriptor that this process opens gets the number of a standard stream.
pub(crate) fn above_streams<T>(opens: impl FnOnce() -> T) -> T {
    let _taken = StreamsTaken::new();
    opens()
}

#[cfg(feature = "aerospike")]
thread_local! {
    /// Of this thread. Without a destructor, because a thread-local value that has one could not be used while the thread ends.
    static HELD: Cell<Option<ManuallyDrop<StreamsTaken>>> = const { Cell::new(None) };
}

/// Like a [`StreamsTaken`] that lives until [`give_back_streams`] in this thread. For code that is called back. A second
/// call has no effect.
#[cfg(feature = "aerospike")]
pub(crate) fn take_streams() {
    let held = HELD.take().unwrap_or_else(|| ManuallyDrop::new(StreamsTaken::new()));
    HELD.set(Some(held));
}

/// Undoes [`take_streams`]. Does nothing if that was not called.
#[cfg(feature = "aerospike")]
pub(crate) fn give_back_streams() {
    drop(HELD.take().map(ManuallyDrop::into_inner));
}

impl Placeholders {
    /// Opens placeholders under the numbers that are free.
    fn take(&mut self) {
        while (0..STREAMS).any(|number| !is_open(number)) {
            // Without one, opening something else will most likely fail as well.
            let Some(placeholder) = placeholder() else { return };
            let file = fstat(&placeholder).map(|found| (found.st_dev, found.st_ino)).ok();
            match self.taken.get_mut(placeholder_number(&placeholder)) {
                Some(taken) if file.is_some() => {
                    *taken = file;
                    let _kept: RawFd = placeholder.into_raw_fd();
                }
                // The program has opened something meanwhile.
                _ => return,
            }
        }
    }

    /// Closes the placeholders. Leaves what the program has put in the place of one.
    fn give_back(&mut self) {
        for (number, taken) in self.taken.iter_mut().enumerate() {
            let Some(file) = taken.take() else { continue };
            if !is_placeholder(number, file) {
                continue;
            }
            // SAFETY: the descriptor is one of `take`, which nobody else owns: it is open with `O_PATH` and shows the same file.
            drop(unsafe { OwnedFd::from_raw_fd(number as RawFd) });
        }
    }
}

fn placeholder_number(placeholder: &OwnedFd) -> usize {
    use std::os::fd::AsRawFd;
    usize::try_from(placeholder.as_raw_fd()).unwrap_or(usize::MAX)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const UNUSABLE: OFlags = OFlags::PATH;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const UNUSABLE: OFlags = OFlags::RDONLY;

/// The root is there in every process, also where it is changed.
fn placeholder() -> Option<OwnedFd> {
    open("/", UNUSABLE | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn is_open(number: usize) -> bool {
    // SAFETY: asked only whether it is open, which does no harm to any descriptor, and fails for one that is not open.
    fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number as RawFd) }).is_ok()
}

fn is_placeholder(number: usize, file: (u64, u64)) -> bool {
    // SAFETY: as in `is_open`.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number as RawFd) };
    fcntl_getfl(descriptor).is_ok_and(|flags| flags.contains(UNUSABLE))
        && fstat(descriptor).is_ok_and(|found| (found.st_dev, found.st_ino) == file)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::mem::ManuallyDrop;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::testing::fork::{alone, in_forked_child};

    /// Closes the standard streams of a child.
    pub(crate) fn close_streams() {
        for number in 0..STREAMS as RawFd {
            // SAFETY: the child ends without using its standard streams, and nobody else does.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }

    /// Whether no standard stream is open.
    pub(crate) fn are_free() -> bool {
        (0..STREAMS).all(|number| !is_open(number))
    }

    /// Also while several threads open, of which one ends before another.
    #[test]
    fn what_is_opened_in_a_process_without_streams_is_above_them_and_their_numbers_are_free_again() {
        if !alone() {
            return;
        }
        let number = || File::open("/").unwrap().as_raw_fd();
        assert!(in_forked_child(|| {
            close_streams();
            let first = StreamsTaken::new();
            let inner = above_streams(number);
            let between = number();
            drop(first);
            inner > 2 && between > 2 && are_free() && number() == 0
        }));
        // Only one of the three.
        assert!(in_forked_child(|| {
            // SAFETY: as above.
            drop(unsafe { OwnedFd::from_raw_fd(1) });
            above_streams(|| number() > 2 && rustix::io::write(std::io::stdout(), b"x").is_err())
                && number() == 1
        }));
        assert!(in_forked_child(|| { above_streams(|| number() > 2) && (0..STREAMS).all(is_open) }));
    }

    #[test]
    fn what_the_program_puts_in_the_place_of_a_placeholder_stays() {
        if !alone() {
            return;
        }
        assert!(in_forked_child(|| {
            close_streams();
            let taken = StreamsTaken::new();
            let file = File::open("/dev/null").unwrap();
            // SAFETY: nobody else owns the placeholder under this number, and it stays open.
            let mut stdout = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(1) });
            rustix::io::dup2(&file, &mut stdout).unwrap();
            drop(taken);
            !is_open(0) && is_open(1) && !is_open(2)
        }));
    }

    /// The child inherits the placeholders. Its own use of the library closes them.
    #[test]
    fn a_child_that_was_forked_meanwhile_has_the_numbers_free_after_its_first_use() {
        if !alone() {
            return;
        }
        assert!(in_forked_child(|| {
            close_streams();
            let _taken = StreamsTaken::new();
            in_forked_child(|| {
                drop(StreamsTaken::new());
                are_free()
            })
        }));
    }
}
