//! The `flock` on a generation's directory: it says that a process of this boot uses the generation.
//!
//! Every process that has the files open holds it shared. It ends with the process, and with the machine. So whoever gets
//! it exclusively has the proof that nobody uses the files. A process that finds it shared has the proof that they are of this boot.
//! Nothing that the process opens and closes releases it. systemd-tmpfiles takes it exclusively for the time in which it
//! deletes old files, and leaves directories alone in which it does not get it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::runtime::time::{self, Deadline};

/// How often it is looked whether a directory is unused.
const LOOKS: usize = 5;
/// The pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// The lock, held. Dropping it unlocks the directory.
#[derive(Debug)]
pub(crate) struct DirLock {
    dir: File,
}

impl DirLock {
    /// Says that this process uses `dir`. Waits until `by` for one that has locked it exclusively. Returns `None` if the
    /// directory was deleted meanwhile.
    ///
    /// # Errors
    /// Of the file system. `TimedOut` if it stayed locked.
    pub(super) fn share(path: &Path, by: Deadline) -> io::Result<Option<DirLock>> {
        let lock = match File::open(path) {
            Ok(dir) => DirLock { dir },
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match lock.wait_for_share(by) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
            // A file system without `flock` has no cleaning daemon. Nobody can prove there that the files are not used.
            Err(error) => log::debug!("{path:?} cannot be locked: {error}"),
            Ok(()) => {}
        }
        let locked = lock.dir.metadata()?;
        let is_in_place =
            fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (locked.dev(), locked.ino()));
        Ok(is_in_place.then_some(lock))
    }

    /// Returns the proof that no process uses `dir`, and keeps all others out while it lives. Returns `None` if one uses it.
    /// Waits until `by` for others that have locked it exclusively. Of several who look at one time, each shares it for a
    /// moment, so it looks a few times.
    ///
    /// # Errors
    /// Of the file system. `TimedOut` if it stayed locked exclusively.
    pub(crate) fn prove_unused(path: &Path, by: Deadline) -> io::Result<Option<DirLock>> {
        let lock = DirLock { dir: File::open(path)? };
        for look in 1..=LOOKS {
            // While this is shared, nobody has it exclusively. So if the second step fails, somebody shares it.
            lock.wait_for_share(by)?;
            match flock(&lock.dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(lock)),
                Err(Errno::WOULDBLOCK) if look < LOOKS => {
                    flock(&lock.dir, FlockOperation::Unlock)?;
                    time::sleep(time::jittered(LOOK_PAUSE));
                }
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    fn wait_for_share(&self, by: Deadline) -> io::Result<()> {
        loop {
            match flock(&self.dir, FlockOperation::NonBlockingLockShared) {
                Ok(()) => return Ok(()),
                Err(Errno::WOULDBLOCK) if by.passed() => {
                    let what = "another program keeps the directory locked (flock)";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, what));
                }
                Err(Errno::WOULDBLOCK) => time::sleep(Duration::from_millis(1)),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Closing would not unlock it while a forked child has a copy. A child never drops its copy.
        let _ = flock(&self.dir, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::patience::LONG;

    /// systemd-tmpfiles locks a directory exclusively while it deletes old files. That makes a generation neither used nor
    /// unused.
    #[test]
    fn a_directory_that_another_program_locks_for_itself_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let prove =
            |wait| DirLock::prove_unused(dir.path(), Deadline::after(wait)).map(|lock| lock.is_some());
        let cleaner = File::open(dir.path()).unwrap();
        flock(&cleaner, FlockOperation::NonBlockingLockExclusive).unwrap();
        let short = Duration::from_millis(5);
        assert_eq!(prove(short).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let shared = DirLock::share(dir.path(), Deadline::after(short));
        assert_eq!(shared.unwrap_err().kind(), io::ErrorKind::TimedOut);
        flock(&cleaner, FlockOperation::Unlock).unwrap();
        assert!(prove(LONG).unwrap());
        let used = DirLock::share(dir.path(), Deadline::after(LONG)).unwrap().unwrap();
        assert!(!prove(LONG).unwrap());
        drop(used);
        assert!(prove(LONG).unwrap());
    }

    #[test]
    fn a_directory_that_is_gone_is_not_shared() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        assert!(DirLock::share(&gone, Deadline::after(LONG)).unwrap().is_none());
    }
}
