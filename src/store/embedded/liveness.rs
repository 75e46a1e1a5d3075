//! Liveness files: by them the kernel proves that a process has died.
//!
//! A process that wants leases which die with it creates a file `alive-<random>` beside the records, locks it with
//! `flock`, and keeps it open. The record of such a lease names the file. The kernel unlocks it when the last copy of
//! the descriptor is closed: at the end of the process, however it ends, and of the processes that have inherited a copy.
//! It does not unlock it for a process that is stopped. So whoever can lock the file has the proof. No process id is
//! involved, so it does not matter in which container a process runs.
//!
//! | what a waiter finds | means |
//! |---|---|
//! | the file, locked | the process lives, or another waiter has the proof at this moment |
//! | the file, not locked | the process has died |
//! | no file, or one with another device or inode | nothing: somebody has deleted or replaced it |
//!
//! **Device and inode** are in the record because a name proves nothing: a file that was restored from a copy has the
//! name, and nobody has locked it. While the process has its file open, no other file can have that inode.
//!
//! **Forks.** A child that was forked has a copy of the descriptor. It does not hold the lease, but while it lives and
//! executes no program, others cannot tell that its parent has died. So the lease ends with its TTL then. A child never
//! unlocks the file, because that would unlock it for its parent too.
//!
//! **Leftovers.** A process deletes its file when the store is closed. A process that is killed leaves it. The file is
//! deleted by the one who takes the last lease over, or by the next process that creates such a file, once no record names
//! it. Deleting one too early does no harm: the lease ends with its TTL then.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::runtime::process::descriptors::{StreamsTaken, above_streams};
use crate::runtime::process::process_mark::ProcessMark;
use crate::runtime::random;
use crate::runtime::sync::real::Mutex;
use crate::store::embedded::lmdb::Access;

/// Begin of the name of a liveness file. Its id follows, in hexadecimal digits.
const PREFIX: &str = "alive-";
const ID_BYTES: usize = 16;
/// Tries to create a file. A try fails if another process takes the new file for a leftover before it is locked.
const CREATE_TRIES: u32 = 20;
/// Number of files of others that are checked at once. Each check takes some microseconds.
const CHECKED_AT_ONCE: usize = 32;

/// Random bits in the name of a liveness file.
pub(super) type LivenessId = [u8; ID_BYTES];

/// A liveness file, as a record names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LivenessRef {
    pub(super) id: LivenessId,
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// The liveness files of one store object: none before the first lease that needs one, then one. If somebody deletes it,
/// the next lease gets a new one. The deleted one stays locked, because it may come back.
#[derive(Debug, Default)]
pub(super) struct LivenessFiles {
    files: Mutex<Vec<LivenessFile>>,
}

/// A locked liveness file of this process. Dropping it deletes the file.
#[derive(Debug)]
struct LivenessFile {
    mark: LivenessRef,
    path: PathBuf,
    file: File,
    /// The process that created it, see [`ProcessMark`].
    process: ProcessMark,
}

/// The lock on the liveness file of a process that has died. Dropping it unlocks the file.
#[derive(Debug)]
pub(super) struct DeathProof {
    id: LivenessId,
    path: PathBuf,
    file: File,
}

/// What [`LivenessFiles::mark`] has found.
pub(super) struct OwnMark {
    pub(super) mark: LivenessRef,
    /// The file was created by this call.
    pub(super) is_new: bool,
}

impl LivenessRef {
    fn of(id: LivenessId, found: &Metadata) -> LivenessRef {
        LivenessRef { id, device: found.dev(), inode: found.ino() }
    }

    /// Returns the proof that the process with this liveness file in `dir` has died; `None` if it lives, or if nothing
    /// is known. Does not block.
    pub(super) fn prove_death(&self, dir: &Path) -> Option<DeathProof> {
        let proof = DeathProof::try_new(dir, self.id).ok()??;
        // Whoever has locked the wrong file knows nothing.
        let found = proof.file.metadata().ok()?;
        (LivenessRef::of(self.id, &found) == *self).then_some(proof)
    }
}

impl LivenessFiles {
    /// Returns the mark for a new lease. Creates the file in `dir` if there is none.
    ///
    /// # Errors
    /// Of the file system. `Unsupported` if its `flock` excludes nobody.
    pub(super) fn mark(&self, dir: &Path, access: Access) -> io::Result<OwnMark> {
        let mut files = self.files.lock();
        if let Some(file) = files.last().filter(|file| file.is_in_place()) {
            return Ok(OwnMark { mark: file.mark, is_new: false });
        }
        let file = LivenessFile::create(dir, access)?;
        let mark = file.mark;
        files.push(file);
        Ok(OwnMark { mark, is_new: true })
    }

    /// Returns a copy of the descriptor of this file of ours; `None` if it is not ours.
    pub(super) fn descriptor(&self, mark: &LivenessRef) -> Option<io::Result<OwnedFd>> {
        let files = self.files.lock();
        let file = files.iter().find(|file| file.mark == *mark)?;
        Some(file.file.try_clone().map(OwnedFd::from))
    }
}

impl LivenessFile {
    fn create(dir: &Path, access: Access) -> io::Result<LivenessFile> {
        let _taken = StreamsTaken::new();
        for _ in 0..CREATE_TRIES {
            let mut id = [0; ID_BYTES];
            random::secret(&mut id).map_err(io::Error::other)?;
            let path = path_of(dir, id);
            let mut options = File::options();
            let file =
                options.read(true).write(true).create_new(true).mode(access.file_mode()).open(&path)?;
            let mark = LivenessRef::of(id, &file.metadata()?);
            // From here on, an error deletes the file.
            let own = LivenessFile { mark, path, file, process: ProcessMark::current() };
            match flock(&own.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                // Another process takes it for a leftover, and deletes it.
                Err(Errno::WOULDBLOCK) => continue,
                Err(error) => return Err(error.into()),
            }
            if !own.is_in_place() {
                continue;
            }
            access.settle(&own.file)?;
            own.check_excludes()?;
            return Ok(own);
        }
        Err(io::Error::other("other processes delete its liveness files"))
    }

    /// Whether the path still names the file.
    fn is_in_place(&self) -> bool {
        names(&self.path, &self.mark)
    }

    /// Checks that `flock` works on this file system.
    fn check_excludes(&self) -> io::Result<()> {
        let other = open(&self.path)?;
        match flock(&other, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(()),
            Ok(()) => Err(io::Error::new(io::ErrorKind::Unsupported, "two could lock one file with flock")),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for LivenessFile {
    fn drop(&mut self) {
        // In a forked child the file is the parent's. Only this copy of the descriptor is closed.
        if self.process.is_current() && self.is_in_place() {
            // Before it is unlocked: a record that still names the file ends with its TTL.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl DeathProof {
    /// Locks a liveness file; `None` if it is locked.
    fn try_new(dir: &Path, id: LivenessId) -> io::Result<Option<DeathProof>> {
        let path = path_of(dir, id);
        let file = open(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(DeathProof { id, path, file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn id(&self) -> LivenessId {
        self.id
    }

    /// Deletes the file. No record may name it.
    pub(super) fn delete(self) {
        // Only whoever has the lock deletes a file. So if the path still names this file here, it does until the end.
        let ours =
            self.file.metadata().is_ok_and(|found| names(&self.path, &LivenessRef::of(self.id, &found)));
        if ours && let Err(error) = fs::remove_file(&self.path) {
            log::debug!("the liveness file {:?} of a process that has died stays: {error}", self.path);
        }
    }
}

impl Drop for DeathProof {
    fn drop(&mut self) {
        // Closing would not unlock it if this process was forked meanwhile.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Returns the proofs of the processes that have died and left a file in `dir`. Checks only some of the files.
pub(super) fn leftovers(dir: &Path) -> Vec<DeathProof> {
    let _taken = StreamsTaken::new();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut ids: Vec<_> = entries.filter_map(|entry| id_of(entry.file_name().to_str()?)).collect();
    // If there are many, each process checks others.
    while ids.len() > CHECKED_AT_ONCE {
        let chosen = (random::fraction() * ids.len() as f64) as usize;
        ids.swap_remove(chosen.min(ids.len() - 1));
    }
    ids.into_iter().filter_map(|id| DeathProof::try_new(dir, id).ok()?).collect()
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    above_streams(|| File::options().read(true).custom_flags(flags.bits() as i32).open(path))
}

fn names(path: &Path, mark: &LivenessRef) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| LivenessRef::of(mark.id, &found) == *mark)
}

fn path_of(dir: &Path, id: LivenessId) -> PathBuf {
    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    dir.join(format!("{PREFIX}{digits}"))
}

fn id_of(name: &str) -> Option<LivenessId> {
    let digits =
        name.strip_prefix(PREFIX).filter(|digits| digits.len() == 2 * ID_BYTES && digits.is_ascii())?;
    let mut id = [0; ID_BYTES];
    for (at, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(id)
}
