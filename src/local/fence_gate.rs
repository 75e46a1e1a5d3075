//! A gate in front of a file or a socket of one machine, which refuses stale holders of a lock.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::names::fence::{Epoch, Fence};
use crate::names::fnv::fnv1a;
use crate::names::text::quoted;
use crate::runtime::process::descriptors::above_streams;
use crate::runtime::process::process_mark::ProcessMark;
use crate::runtime::process::signals::NoSignal;
use crate::runtime::random;
use crate::runtime::sync::real::{TimedGuard, TimedMutex};
use crate::runtime::time::{self, Deadline, Moment};

/// How long [`FenceGate::pass`] waits for others.
const DEFAULT_WAIT: Duration = Duration::from_secs(10);
const FILE_MODE: u32 = 0o600;
/// Highest fence: it must fit the signed 64-bit integers of databases, which may store the same number.
const FENCE_MAX: u64 = i64::MAX as u64;

/// Attempts without a pause. A guarded write often takes only some microseconds.
const EAGER_ATTEMPTS: u32 = 20;
const SLEEP_FIRST: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(2);

/// A gate that remembers the highest fence, and refuses writes with a lower one, and readers from before it.
///
/// A holder of a lock may be paused until its lease has expired and another holder has the lock. When it resumes,
/// it may write before it checks its lease. The gate refuses that write, because the next holder has passed with
/// a higher fence. Use a gate for processes of one machine that write to one file, socket or device, or in a
/// server that checks the fences of its clients.
///
/// ```
/// use dlm::{FenceGate, Level, LockManager};
/// use std::{fs::File, io::Write};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let directory = directory.path();
/// # let manager = LockManager::open("memory:?client=reports")?;
/// let gate = FenceGate::open(directory.join("report.gate"))?;
/// let lease = manager.lock("report", Level::Xdc)?.acquire()?;
/// let fence = lease.fence().expect("this store fences");
///
/// let mut report = File::options().create(true).append(true).open(directory.join("report")).unwrap();
/// let pass = gate.pass(fence)?; // STALE_FENCE if a later holder has passed
/// report.write_all(b"total 7\n").unwrap();
/// drop(pass); // now others may write
///
/// gate.write(fence, || report.write_all(b"total 8\n"))?.unwrap(); // the same in one line
/// # Ok::<(), dlm::Error>(())
/// ```
///
/// # Readers
///
/// Holders of a [shared](crate::Lock::shared) lock read through [`read`](FenceGate::read): all readers of an epoch pass, any
/// number at a time, but not while a writer has a pass, and not after a later writer has passed.
///
/// # The file of the gate
///
/// * Use one gate file per guarded resource and lock. Fences of different locks cannot be compared.
/// * [`open`](FenceGate::open) creates the file, readable and writable by its owner only. Its number is 0 until
///   the first pass. So open the gate and take the first pass before a stale holder can exist. A holder should
///   pass once right after it has acquired the lock, before it reads the data that it will change.
/// * Never delete the file while the guarded resource is in use, and never restore an old copy: both forget the
///   number. An open gate detects that its file was deleted or replaced and fails with
///   [`Code::InternalError`](crate::Code::InternalError). A gate that is opened afterwards cannot detect it.
/// * If the store has lost its data, the fences of the lock may start again at lower numbers. Then the gate
///   refuses every pass. Make sure that no old holder is left, then delete the gate file.
/// * A user who may write the file may change the number. A user who may read it may keep others waiting.
/// * Processes exclude each other by `flock`, which works on local file systems. On NFS it depends on the server
///   and the mount options (with `local_lock=flock` it does not reach other machines), on SMB and FUSE on the
///   file system. Keep the file on a local disk, and let all writers pass on that machine.
///
/// # What it survives
///
/// * A process that is killed at any moment: the kernel frees the lock, and the number stays intact. But a child
///   that was forked during a pass keeps the lock of its killed parent until the child ends or executes a program.
/// * A crash of the machine: when `pass` returns, its number is on the disk, and no later crash lowers it. The
///   file has two copies of the number, 4096 bytes apart, each with a checksum. A higher number is written to
///   the first copy and then to the second, each after an `fdatasync` of the write before. So a crash damages at
///   most one copy. The other copy has the number, or it has the number before and nobody has passed with the new
///   one. A copy that a bad block damages later is restored from the other one. All this needs a disk that keeps
///   the data it has confirmed. [`with_sync`](FenceGate::with_sync) switches the syncs off.
/// * Two damaged copies, or a file of another size: every call fails with
///   [`Code::InternalError`](crate::Code::InternalError). The gate never starts again at 0.
/// * A fork: calls in the child fail with [`Code::Forked`](crate::Code::Forked). The child must open its own gate.
///
/// # What it does not do
///
/// * It does not stop a write that bypasses it.
/// * It does not interrupt a holder. A process that is stopped while it holds a [`Pass`] blocks all others,
///   because its write may be half done. Their calls fail with
///   [`Code::LockUnavailable`](crate::Code::LockUnavailable).
/// * It does not order data that is still on its way when the pass is dropped. Bytes written to a socket arrive
///   later: keep the pass until the peer has replied, or write to one connection only.
#[derive(Debug)]
pub struct FenceGate {
    /// Absolute, because the program may change its working directory.
    path: PathBuf,
    /// Names the gate in messages.
    label: String,
    /// Random number of the file, drawn when it was created and stored in it.
    id: u64,
    sync: bool,
    /// Threads wait for this mutex, not in the polling loop that processes use.
    turn: TimedMutex<()>,
    /// The process that opened the gate, see [`ProcessMark`].
    process: ProcessMark,
}

/// A pass of a gate. Nobody else passes while it exists: write, then drop it.
///
/// It cannot be sent to another thread. In a forked child it has no meaning: the child must not write.
#[derive(Debug)]
#[must_use = "others may pass the gate as soon as the pass is dropped"]
pub struct Pass<'a> {
    fence: Fence,
    _locked: LockedFile<'a>,
    _thread: TimedGuard<'a, ()>,
}

/// A pass of a gate for a reader. Nobody writes while it exists: read, then drop it. In a forked child it has no meaning.
#[derive(Debug)]
#[must_use = "others may write as soon as the pass is dropped"]
pub struct ReadPass<'a> {
    epoch: Epoch,
    _locked: LockedFile<'a>,
}

/// The file of a gate while its `flock` is held.
#[derive(Debug)]
struct LockedFile<'a> {
    gate: &'a FenceGate,
    file: File,
}

impl FenceGate {
    /// Opens the gate whose number is in the file at `path`. Creates the file if it does not exist.
    ///
    /// # Errors
    /// * [`Code::InvalidArgument`](crate::Code::InvalidArgument): the path has no file name, or is not that of a
    ///   regular file.
    /// * [`Code::ConnectionError`](crate::Code::ConnectionError): the file cannot be opened or created, for
    ///   example because its directory does not exist.
    /// * [`Code::InternalError`](crate::Code::InternalError): the file does not belong to a gate, or is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<FenceGate> {
        let given = path.as_ref();
        let (directory, name) = split(given)?;
        let label = |path: &Path| format!("fence gate {}", quoted(&path.to_string_lossy()));
        let unable = |what: &str, error: io::Error| Error::Connection {
            store: label(given),
            what: what.to_owned(),
            source: Some(error.into()),
        };
        let directory = fs::canonicalize(directory).map_err(|error| {
            unable("its directory cannot be opened; if it does not exist, create it first", error)
        })?;
        let path = directory.join(name);
        match fs::symlink_metadata(&path) {
            Ok(there) if !there.is_file() => {
                let allowed =
                    "the path of a regular file, or of a new file; not a directory, symbolic link or device";
                return Err(Error::invalid("fence gate path", given.to_string_lossy(), allowed));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(&directory, &path).map_err(|error| unable("its file cannot be created", error))?;
            }
            Err(error) => return Err(unable("its file cannot be inspected", error)),
        }
        let file = open_file(&path).map_err(|error| unable("its file cannot be opened", error))?;
        // Needed even if another process created the file, because that process may not have synced it yet.
        above_streams(|| File::open(&directory))
            .and_then(|directory| directory.sync_all())
            .map_err(|error| unable("its directory cannot be synced", error))?;
        let mut gate = FenceGate {
            label: label(&path),
            path,
            id: 0,
            sync: true,
            turn: TimedMutex::new(()),
            process: ProcessMark::current(),
        };
        gate.id = gate.number(&file)?.id;
        Ok(gate)
    }

    /// Sets whether [`pass`](FenceGate::pass) syncs a higher number to the disk before it returns. Default: yes.
    /// A pass with an equal number needs no sync.
    ///
    /// Without syncs, a crash of the machine may lower the number or damage the file. Switch them off only if
    /// all processes that pass run on this machine, and so end in the same crash.
    pub fn with_sync(self, sync: bool) -> FenceGate {
        FenceGate { sync, ..self }
    }

    /// Waits until nobody else has a pass, for up to 10 s, stores `fence` and returns a pass.
    ///
    /// A thread that already has a pass of the same file waits for itself.
    ///
    /// # Errors
    /// After an error, do not write. The call may be repeated.
    /// * [`Code::StaleFence`](crate::Code::StaleFence): a higher fence has passed, so the caller's lease
    ///   has ended.
    /// * [`Code::LockUnavailable`](crate::Code::LockUnavailable): others had passes until the wait timed out.
    /// * [`Code::InvalidArgument`](crate::Code::InvalidArgument): the fence is 0 or above 2^63 - 1, which no store
    ///   grants.
    /// * [`Code::RetriesExhausted`](crate::Code::RetriesExhausted): the file cannot be read or written.
    /// * [`Code::InternalError`](crate::Code::InternalError): the file was damaged, deleted or replaced.
    /// * [`Code::Forked`](crate::Code::Forked): this is a child of the process that opened the gate.
    pub fn pass(&self, fence: Fence) -> Result<Pass<'_>> {
        self.pass_within(fence, DEFAULT_WAIT)
    }

    /// Like [`pass`](FenceGate::pass), but waits for others for up to `wait`; zero tries once. The time of the
    /// disk writes comes on top.
    ///
    /// # Errors
    /// Those of [`pass`](FenceGate::pass).
    pub fn pass_within(&self, fence: Fence, wait: Duration) -> Result<Pass<'_>> {
        if !(1..=FENCE_MAX).contains(&fence.0) {
            let allowed = format!("1 to {FENCE_MAX}, the fence of a lease of the guarding lock");
            return Err(Error::invalid("fence", fence.to_string(), allowed));
        }
        self.check_process()?;
        let (locked, thread) = self.enter(FlockOperation::NonBlockingLockExclusive, wait)?;
        self.check_path(&locked.file)?;
        let _quiet = NoSignal::file_size();
        let disk = Disk { file: &locked.file, sync: self.sync };
        raise(&disk, Number { id: self.id, fence: fence.0 }).map_err(|failed| match failed {
            GateFailed::Stale(stored) => {
                Error::StaleFence { receiver: self.label.clone(), fence, stored: Fence(stored) }
            }
            failed => self.failed(failed),
        })?;
        Ok(Pass { fence, _locked: locked, _thread: thread })
    }

    /// Waits until no writer has a pass, for up to 10 s, and returns a pass for a reader with this epoch. Other readers may
    /// have one at the same time. Changes nothing: a reader makes no later write stale.
    ///
    /// Readers of several processes whose passes overlap without a gap keep writers waiting, and a writer that has not passed
    /// yet makes no reader stale. So read little at a time, and check the lease before each pass.
    ///
    /// It says that no later writer has passed. It does not say that the reader still holds its lock: check that after
    /// reading, see [`Epoch`].
    ///
    /// # Errors
    /// Those of [`pass`](FenceGate::pass). [`Code::StaleFence`](crate::Code::StaleFence): a writer that was granted the lock
    /// after this epoch has passed. After an error, do not use what was read.
    pub fn read_pass(&self, epoch: Epoch) -> Result<ReadPass<'_>> {
        self.read_pass_within(epoch, DEFAULT_WAIT)
    }

    /// Like [`read_pass`](FenceGate::read_pass), but waits for writers for up to `wait`; zero tries once.
    ///
    /// # Errors
    /// Those of [`read_pass`](FenceGate::read_pass).
    pub fn read_pass_within(&self, epoch: Epoch, wait: Duration) -> Result<ReadPass<'_>> {
        if !(1..=FENCE_MAX).contains(&epoch.0) {
            let allowed = format!("1 to {FENCE_MAX}, the epoch of a lease of the guarding lock");
            return Err(Error::invalid("epoch", epoch.to_string(), allowed));
        }
        self.check_process()?;
        // Readers of this process need not wait for each other once they are in.
        let (locked, _) = self.enter(FlockOperation::NonBlockingLockShared, wait)?;
        self.check_path(&locked.file)?;
        let stored = self.number(&locked.file)?;
        if stored.id != self.id {
            return Err(self.failed(GateFailed::Replaced));
        }
        let stored = Fence(stored.fence);
        match epoch.is_before(stored) {
            true => Err(Error::StaleEpoch { receiver: self.label.clone(), epoch, stored }),
            false => Ok(ReadPass { epoch, _locked: locked }),
        }
    }

    /// Calls `read` while it holds a pass for a reader with this epoch. Returns the result of `read` in `Ok`, even if that is
    /// an error.
    ///
    /// # Errors
    /// Those of [`read_pass`](FenceGate::read_pass). Then `read` was not called.
    pub fn read<T>(&self, epoch: Epoch, read: impl FnOnce() -> T) -> Result<T> {
        let _pass = self.read_pass(epoch)?;
        Ok(read())
    }

    /// Calls `write` while it holds a pass for `fence`. Returns the result of `write` in `Ok`, even if that is an
    /// error.
    ///
    /// # Errors
    /// Those of [`pass`](FenceGate::pass). Then `write` was not called.
    pub fn write<T>(&self, fence: Fence, write: impl FnOnce() -> T) -> Result<T> {
        let _pass = self.pass(fence)?;
        Ok(write())
    }

    /// Returns the highest fence that has passed, or `None`. Does not wait for others, so the result may be out
    /// of date at once. For people and tests.
    ///
    /// # Errors
    /// Those of [`pass`](FenceGate::pass), except [`Code::StaleFence`](crate::Code::StaleFence) and
    /// [`Code::LockUnavailable`](crate::Code::LockUnavailable).
    pub fn highest(&self) -> Result<Option<Fence>> {
        self.check_process()?;
        let file = self.reopen()?;
        self.check_path(&file)?;
        let stored = self.number(&file)?;
        if stored.id != self.id {
            return Err(self.failed(GateFailed::Replaced));
        }
        Ok((stored.fence > 0).then_some(Fence(stored.fence)))
    }

    fn check_process(&self) -> Result<()> {
        self.process.check()
    }

    /// Locks the mutex for threads, then the file for processes.
    fn enter(&self, how: FlockOperation, wait: Duration) -> Result<(LockedFile<'_>, TimedGuard<'_, ()>)> {
        let (began, by) = (Moment::now(), Deadline::after(wait));
        let unavailable = || Error::LockUnavailable {
            is_here: false,
            name: format!("of {}", self.label),
            waited: if wait.is_zero() { wait } else { Moment::now().since(began) },
            holder: None,
        };
        let thread = self.turn.try_lock_for(by.remaining()).ok_or_else(unavailable)?;
        // Opened for each pass, because a child that is forked between two passes must not inherit a descriptor
        // that could keep the lock. It also makes two gates of one process on the same file exclude each other.
        let file = self.reopen()?;
        let (mut attempts, mut sleep) = (0, SLEEP_FIRST);
        loop {
            match flock(&file, how) {
                Ok(()) => return Ok((LockedFile { gate: self, file }, thread)),
                Err(Errno::AGAIN) if by.passed() => return Err(unavailable()),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(self.unserved("its file cannot be locked", error.into())),
            }
            attempts += 1;
            if attempts < EAGER_ATTEMPTS {
                thread::yield_now();
            } else {
                time::sleep(sleep.min(by.remaining()));
                sleep = (2 * sleep).min(SLEEP_MAX);
            }
        }
    }

    fn reopen(&self) -> Result<File> {
        open_file(&self.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => self.deleted(),
            _ => self.unserved("its file cannot be opened", error),
        })
    }

    /// Checks that the path still names `file`, which is locked. While the lock is held this stays true, unless
    /// somebody deletes the file right now.
    fn check_path(&self, file: &File) -> Result<()> {
        let unable = |error| self.unserved("its file cannot be inspected", error);
        let ours = file.metadata().map_err(unable)?;
        match fs::symlink_metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => Ok(()),
            Ok(_) => Err(self.failed(GateFailed::Replaced)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.deleted()),
            Err(error) => Err(unable(error)),
        }
    }

    /// Reads the number, also without the lock.
    fn number(&self, file: &File) -> Result<Number> {
        // A writer changes one copy at a time. A slow reader may still find both of them half written.
        const READINGS: u32 = 5;
        let disk = Disk { file, sync: self.sync };
        for _ in 1..READINGS {
            match stored(&disk) {
                Err(GateFailed::Damaged) => time::sleep(Duration::from_millis(1)),
                answer => return answer.map(|(number, _)| number).map_err(|failed| self.failed(failed)),
            }
        }
        stored(&disk).map(|(number, _)| number).map_err(|failed| self.failed(failed))
    }

    fn failed(&self, failed: GateFailed) -> Error {
        match failed {
            GateFailed::Io(doing, error) => self.unserved(doing, error),
            GateFailed::Size(bytes) => {
                let why = format!(
                    "its file has {bytes} bytes and must have {FILE_BYTES}: it belongs to no gate, or was cut"
                );
                self.unsound(&why)
            }
            GateFailed::Damaged => self.unsound("both copies of its number are damaged"),
            GateFailed::Replaced => self.unsound("its file was replaced since the gate was opened"),
            GateFailed::Stale(stored) => self.unsound(&format!("fence {stored} has passed")),
        }
    }

    fn deleted(&self) -> Error {
        self.unsound("its file was deleted since the gate was opened")
    }

    /// The number is lost, and only a person can decide what is safe.
    fn unsound(&self, why: &str) -> Error {
        let what = format!(
            "{}: {why}. The highest fence is not known, so nobody may pass; make sure that no old holder of the \
             lock is left, then delete the file and open the gate again",
            self.label
        );
        Error::Internal { what, source: None }
    }

    fn unserved(&self, doing: &str, error: io::Error) -> Error {
        Error::RetriesExhausted {
            store: self.label.clone(),
            what: doing.to_owned(),
            source: Some(error.into()),
        }
    }
}

impl Pass<'_> {
    /// Returns the fence that passed.
    pub fn fence(&self) -> Fence {
        self.fence
    }
}

impl ReadPass<'_> {
    /// Returns the epoch that passed.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
}

impl Drop for LockedFile<'_> {
    fn drop(&mut self) {
        // A child that was forked during the pass has a descriptor of the same lock. Its drop must not end the
        // pass of the parent, so it only closes the descriptor. The parent must unlock explicitly, because
        // closing does not free the lock while the child still has its descriptor.
        if self.gate.process.is_current() {
            // Fails only if the descriptor is not open.
            let _ = flock(&self.file, FlockOperation::NonBlockingUnlock);
        }
    }
}

/// Returns the directory and the file name of `path`.
fn split(path: &Path) -> Result<(&Path, &std::ffi::OsStr)> {
    use std::os::unix::ffi::OsStrExt;
    let refused = |allowed: &str| Err(Error::invalid("fence gate path", path.to_string_lossy(), allowed));
    let bytes = path.as_os_str().as_bytes();
    if bytes.contains(&0) {
        return refused("a path without NUL bytes");
    }
    match path.components().next_back() {
        // `components` ignores a `/` or `/.` after the last name.
        Some(Component::Normal(name)) if bytes.ends_with(name.as_bytes()) => {
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            Ok((directory.unwrap_or(Path::new(".")), name))
        }
        _ => refused("a path that ends with the name of a file"),
    }
}

/// Opens the file without following a link, and without waiting for the other end of a pipe.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    above_streams(|| File::options().read(true).write(true).custom_flags(flags.bits() as i32).open(path))
}

/// Creates the file. It is completed under a temporary name and then linked, so a killed process leaves no
/// incomplete gate file, and only one of several processes creates it. A leftover temporary file is harmless.
fn make(directory: &Path, path: &Path) -> io::Result<()> {
    let mut id = [0; 8];
    random::secret(&mut id).map_err(|error| io::Error::other(error.to_string()))?;
    let id = u64::from_ne_bytes(id);
    let new = directory.join(format!(".dlm-gate-{id:016x}"));
    let file = above_streams(|| File::options().write(true).create_new(true).mode(FILE_MODE).open(&new))?;
    let _quiet = NoSignal::file_size();
    let filled = || {
        // The umask may have removed bits.
        file.set_permissions(fs::Permissions::from_mode(FILE_MODE))?;
        let mut bytes = vec![0; FILE_BYTES];
        for at in COPIES_AT {
            bytes[at..at + COPY_BYTES].copy_from_slice(&encode(Number { id, fence: 0 }));
        }
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
        match fs::hard_link(&new, path) {
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    };
    let made = filled();
    // If this fails, the temporary file stays.
    let _ = fs::remove_file(&new);
    made
}

// ---- The number on the disk -------------------------------------------------------------------

/// Page size of most file systems and disks. A crash damages whole pages, so each copy has its own.
const PAGE_BYTES: usize = 4096;
const COPIES_AT: [usize; 2] = [0, PAGE_BYTES];
const FILE_BYTES: usize = 2 * PAGE_BYTES;
const MAGIC: &[u8; 8] = b"dlmgate1";
/// Magic, the file's id, the fence and a checksum.
const COPY_BYTES: usize = 32;
const SUM_AT: usize = 24;

type Bytes = [u8; COPY_BYTES];

/// Content of a copy. Of two copies, the one with the higher fence is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Number {
    fence: u64,
    /// Distinguishes the file from one that replaced it, which may even have the same inode.
    id: u64,
}

/// Why a number was not stored.
#[derive(Debug)]
enum GateFailed {
    Io(&'static str, io::Error),
    Size(u64),
    Damaged,
    /// The path now names another file.
    Replaced,
    Stale(u64),
}

/// Storage of the two copies. A trait, because the tests have an implementation that crashes.
trait Copies {
    fn read(&self) -> Result<[Bytes; 2], GateFailed>;
    fn write(&self, at: usize, copy: &Bytes) -> Result<(), GateFailed>;
    /// Returns when all writes are on the disk.
    fn sync(&self) -> Result<(), GateFailed>;
}

struct Disk<'a> {
    file: &'a File,
    sync: bool,
}

impl Copies for Disk<'_> {
    fn read(&self) -> Result<[Bytes; 2], GateFailed> {
        let failed = |error| GateFailed::Io("its number cannot be read", error);
        let bytes = self.file.metadata().map_err(failed)?.len();
        if bytes != FILE_BYTES as u64 {
            return Err(GateFailed::Size(bytes));
        }
        let mut copies = [[0; COPY_BYTES]; 2];
        for (copy, at) in copies.iter_mut().zip(COPIES_AT) {
            self.file.read_exact_at(copy, at as u64).map_err(failed)?;
        }
        Ok(copies)
    }

    fn write(&self, at: usize, copy: &Bytes) -> Result<(), GateFailed> {
        let failed = |error| GateFailed::Io("its number cannot be written", error);
        self.file.write_all_at(copy, COPIES_AT[at] as u64).map_err(failed)
    }

    fn sync(&self) -> Result<(), GateFailed> {
        let failed = |error| GateFailed::Io("its number cannot be synced to the disk", error);
        if self.sync { self.file.sync_data().map_err(failed) } else { Ok(()) }
    }
}

fn encode(number: Number) -> Bytes {
    let mut copy = [0; COPY_BYTES];
    copy[..8].copy_from_slice(MAGIC);
    copy[8..16].copy_from_slice(&number.id.to_be_bytes());
    copy[16..SUM_AT].copy_from_slice(&number.fence.to_be_bytes());
    let sum = fnv1a(&copy[..SUM_AT]);
    copy[SUM_AT..].copy_from_slice(&sum.to_be_bytes());
    copy
}

/// Returns `None` for a damaged copy.
fn decode(copy: &Bytes) -> Option<Number> {
    let (said, sum) = copy.split_at(SUM_AT);
    if !said.starts_with(MAGIC) || sum != fnv1a(said).to_be_bytes() {
        return None;
    }
    let at = |at: usize| u64::from_be_bytes(said[at..at + 8].try_into().expect("8 bytes"));
    Some(Number { id: at(8), fence: at(16) })
}

/// Returns the number, and which copy does not have it.
fn stored(copies: &impl Copies) -> Result<(Number, Option<usize>), GateFailed> {
    let [first, second] = copies.read()?.map(|copy| decode(&copy));
    // A damaged copy counts as lower than every number.
    let number = first.max(second).ok_or(GateFailed::Damaged)?;
    let behind = [first, second].iter().position(|copy| *copy != Some(number));
    Ok((number, behind))
}

/// Stores a fence that is higher than the number. Fails with [`GateFailed::Stale`] for a lower one.
///
/// Each write follows a sync, so a crash never finds both copies unsynced. The sync before the second write
/// also puts the first copy on the disk before this returns. The second copy is synced when the next number is
/// stored, if the kernel has not written it before.
fn raise(copies: &impl Copies, to: Number) -> Result<(), GateFailed> {
    let (number, behind) = stored(copies)?;
    if number.id != to.id {
        return Err(GateFailed::Replaced);
    }
    if to.fence < number.fence {
        return Err(GateFailed::Stale(number.fence));
    }
    let write = |at, number| {
        copies.sync()?;
        copies.write(at, &encode(number))
    };
    if let Some(behind) = behind {
        // A process was killed between the two writes, or one copy was damaged.
        write(behind, number)?;
        // After a failed sync, the next one may report success for data that is lost. So sync this copy too.
        copies.sync()?;
    }
    if to.fence > number.fence {
        write(0, to)?;
        write(1, to)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Two copies behind a cache, which crash before a given step.
    #[derive(Clone)]
    struct Crashing {
        durable: RefCell<[Bytes; 2]>,
        cached: RefCell<[Bytes; 2]>,
        steps_left: Cell<usize>,
    }

    impl Crashing {
        fn step(&self) -> Result<(), GateFailed> {
            let left = self.steps_left.get().checked_sub(1);
            self.steps_left.set(left.ok_or(GateFailed::Io("crashed", io::Error::other("crashed")))?);
            Ok(())
        }

        /// Returns all possible states after the crash. If only the process died, all writes are there. If the
        /// machine crashed, each copy is the old one, the new one, or a part of both.
        fn afterwards(&self) -> Vec<Crashing> {
            let (durable, cached) = (*self.durable.borrow(), *self.cached.borrow());
            let of_one = |at: usize| {
                let torn = [23, 28].map(|cut| {
                    let mut torn = durable[at];
                    torn[..cut].copy_from_slice(&cached[at][..cut]);
                    torn
                });
                // A lost block cannot be read, or is read as zeros.
                let lost = (durable[at] != cached[at]).then_some([0; COPY_BYTES]);
                [durable[at], cached[at]].into_iter().chain(torn).chain(lost)
            };
            let both = of_one(0).flat_map(|first| of_one(1).map(move |second| [first, second]));
            let crashed = both.map(|copies| Crashing {
                durable: copies.into(),
                cached: copies.into(),
                steps_left: usize::MAX.into(),
            });
            let killed = Crashing { steps_left: usize::MAX.into(), ..self.clone() };
            crashed.chain([killed]).collect()
        }
    }

    impl Copies for Crashing {
        fn read(&self) -> Result<[Bytes; 2], GateFailed> {
            Ok(*self.cached.borrow())
        }

        fn write(&self, at: usize, copy: &Bytes) -> Result<(), GateFailed> {
            self.step()?;
            self.cached.borrow_mut()[at] = *copy;
            Ok(())
        }

        fn sync(&self) -> Result<(), GateFailed> {
            self.step()?;
            *self.durable.borrow_mut() = *self.cached.borrow();
            Ok(())
        }
    }

    fn number_of(fence: u64) -> Number {
        Number { id: 77, fence }
    }

    /// Tries all sequences of `depth` crashes, each at any step of storing the next number.
    fn crash(from: &Crashing, fence: u64, passed: u64, depth: u32, tried: &mut usize) {
        *tried += 1;
        let number = stored(from).expect("both copies are damaged").0.fence;
        assert!(number >= passed, "fence {passed} had passed, and {number} is stored");
        if depth == 0 {
            return;
        }
        for steps in 0.. {
            let disk = from.clone();
            disk.steps_left.set(steps);
            // The stored number may be one that nobody passed with. It may be stored again, or a higher one.
            let done = raise(&disk, number_of(fence)).is_ok();
            let passed = if done { fence } else { passed };
            for after in disk.afterwards() {
                crash(&after, fence + 1, passed, depth - 1, tried);
            }
            if done {
                return;
            }
        }
    }

    #[test]
    fn no_crash_lowers_the_number_that_has_passed() {
        let copies = [encode(number_of(0x0101)), encode(number_of(0x0101))];
        let fresh = Crashing { durable: copies.into(), cached: copies.into(), steps_left: usize::MAX.into() };
        let mut tried = 0;
        // The bytes of 0x01ff and 0x0200 all differ, so a torn number would be a third one.
        crash(&fresh, 0x01ff, 0x0101, 3, &mut tried);
        assert!(tried > 10_000, "{tried}");
    }

    /// Nor does a write that the disk has confirmed but lost.
    #[test]
    fn a_bad_block_does_not_lower_the_number_either() {
        for (at, lost) in (0..2).flat_map(|at| [(at, [0xff; COPY_BYTES]), (at, encode(number_of(5)))]) {
            let copies = [encode(number_of(5)); 2];
            let disk =
                Crashing { durable: copies.into(), cached: copies.into(), steps_left: usize::MAX.into() };
            raise(&disk, number_of(9)).unwrap();
            disk.sync().unwrap();
            disk.durable.borrow_mut()[at] = lost;
            disk.cached.borrow_mut()[at] = lost;
            assert!(matches!(raise(&disk, number_of(8)), Err(GateFailed::Stale(9))));
            raise(&disk, number_of(9)).unwrap();
            assert_eq!(*disk.cached.borrow(), [encode(number_of(9)); 2], "the copy was not replaced");
        }
    }

    #[test]
    fn any_byte_that_differs_is_damage() {
        let sound = encode(number_of(0x1234_5678_9abc));
        for at in 0..COPY_BYTES {
            for flip in 1..=255 {
                let mut copy = sound;
                copy[at] ^= flip;
                assert_eq!(decode(&copy), None, "byte {at} with {flip:#x}");
            }
        }
        assert_eq!(decode(&sound), Some(number_of(0x1234_5678_9abc)));
        assert_eq!(decode(&[0; COPY_BYTES]), None);
    }
}
