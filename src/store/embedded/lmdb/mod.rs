//! LMDB environments, each open once per process: the only file that names `heed`.
//!
//! What `heed` calls unsafe about opening a file is argued in [`open_file`]; the rest of this file is
//! safe code that keeps that argument true: who may open what ([`Turn`]), what a forked child must not
//! touch, and who may write ([`WriterLock`]).
#![allow(unsafe_code)]

mod private;
#[cfg(test)]
mod tests;
mod writer_lock;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, EnvFlags, EnvOpenOptions, MdbError, RoTxn, RwTxn, WithoutTls};
use parking_lot::{Mutex, MutexGuard, RwLock};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Flock, FlockOffsetType, FlockType, fcntl_getlk};

use self::private::FileId;
use self::writer_lock::WriterLock;
use crate::error::{Cause, Error, Result};
use crate::time::{self, Deadline};

pub(crate) use self::private::{Access, check_private};

/// What an LMDB call failed with.
pub(crate) use heed::Error as Fault;

/// Room for about a million held locks. It is address space: the file grows only with what is in it.
const MAP_BYTES: usize = 1 << 30;
/// Size of the lock file: 64 bytes for each read transaction that may run at one time, machine-wide.
const LOCK_FILE_BYTES: usize = 128 << 10;
/// Opening takes milliseconds; longer means that whoever is at it was stopped.
const OPEN_WAIT: Duration = Duration::from_secs(10);
/// A full reader table, or a half-seen meta page, is looked at again this often.
const READ_TRIES: u32 = 20;

const PID_TAKEN: &str = "a process of another PID namespace uses it under the process id this one has: share the \
                         namespace, or give each container a directory of its own";

const DATA_FILE: &str = "locks";
/// What LMDB appends to the name of the data file for its lock table.
const LOCK_SUFFIX: &str = "-lock";
const LOCK_FILE: &str = "locks-lock";
const WRITER_LOCK_FILE: &str = "gate";

/// Every environment this process has open, by directory (device, inode): two paths to one directory
/// must not open it twice.
static OPEN: Mutex<BTreeMap<FileId, ReaderEntry>> = Mutex::new(BTreeMap::new());

struct ReaderEntry {
    inner: Arc<EnvironmentInner>,
    users: usize,
}

/// The right to open and close environments: one thread of the process at a time.
pub(crate) struct Turn {
    open: MutexGuard<'static, BTreeMap<FileId, ReaderEntry>>,
}

/// One environment, shared by all who open its directory in this process. Closed when the last of
/// them is dropped. May be used from many threads.
#[derive(Debug)]
pub(crate) struct Environment {
    /// Taken by `drop` only.
    inner: Option<Arc<EnvironmentInner>>,
}

#[derive(Debug)]
struct EnvironmentInner {
    /// What messages call it.
    store: String,
    dir: PathBuf,
    id: FileId,
    /// The process that opened it. A forked child shares the memory map's locks but not the process
    /// id that LMDB wrote into them, so it must not touch it.
    pid: u32,
    writer_lock: WriterLock,
    /// `None` while it is being reopened, or after that failed. Locked for writing only then.
    open: RwLock<Option<Opened>>,
    /// Keeps systemd-tmpfiles from ageing the files away: it skips directories that are locked so.
    _in_use: File,
}

#[derive(Debug)]
struct Opened {
    env: heed::Env<WithoutTls>,
    records: RecordsDatabase,
}

type RecordsDatabase = Database<'static, Bytes, Bytes>;

/// A consistent look at the records.
pub(crate) struct Reader<'a> {
    txn: &'a RoTxn<'a, WithoutTls>,
    records: RecordsDatabase,
}

/// Changes that take effect together, or not at all.
pub(crate) struct Writer<'a> {
    txn: RwTxn<'a>,
    records: RecordsDatabase,
}

/// A record: its key and its value.
pub(crate) type KeyValue<'a> = (&'a [u8], &'a [u8]);

/// How a [`write`](Environment::write) ends.
pub(crate) enum TxnEnd<T> {
    /// Make the changes, then answer.
    Commit(T),
    /// Leave everything as it was and answer.
    Abandon(T),
}

/// Whether `dir` has all files of an environment. Opening it would make those that it lacks.
pub(crate) fn has_files(dir: &Path) -> bool {
    [WRITER_LOCK_FILE, LOCK_FILE, DATA_FILE].iter().all(|name| dir.join(name).is_file())
}

impl Turn {
    /// Waits for the threads that are opening or closing. In a forked child whose parent was forked in
    /// the middle of that, nobody finishes it: hence an end to the wait.
    pub(crate) fn take(store: &str) -> Result<Turn> {
        let open = OPEN.try_lock_for(OPEN_WAIT).ok_or_else(|| Error::Connection {
            store: store.to_owned(),
            what: "another thread has been opening or closing a store for 10 s, or this process was forked \
                   while one did: fork before stores are opened"
                .into(),
            source: None,
        })?;
        Ok(Turn { open })
    }

    /// Fills the empty directory `dir` with an environment that holds `key` = `value`.
    pub(crate) fn create(
        &self,
        store: &str,
        dir: &Path,
        access: Access,
        (key, value): KeyValue<'_>,
    ) -> Result<()> {
        let unable = |source: Cause| Error::Connection {
            store: store.to_owned(),
            what: format!("its files cannot be created in {dir:?}: check permissions and free space"),
            source: Some(source),
        };
        check_private(store, dir, access)?;
        create_file(&dir.join(WRITER_LOCK_FILE), access, &[]).map_err(|error| unable(error.into()))?;
        // Written, not just sized: a hole in a mapped file kills the process (SIGBUS) when the disk is
        // full on first touch.
        create_file(&dir.join(LOCK_FILE), access, &[0; LOCK_FILE_BYTES])
            .map_err(|error| unable(error.into()))?;
        let fill = || {
            let opened = open_file(&dir.join(DATA_FILE))?;
            let mut txn = opened.env.write_txn()?;
            opened.records.put(&mut txn, key, value)?;
            txn.commit()
        };
        fill().map_err(|fault| unable(fault.into()))?;
        access.settle_at(&dir.join(DATA_FILE)).map_err(|error| unable(error.into()))
    }

    /// The environment in `dir`, which [`create`](Turn::create) made, in this process or another.
    pub(crate) fn open(&mut self, store: &str, dir: &Path, access: Access) -> Result<Environment> {
        let id = check_private(store, dir, access)?;
        let pid = std::process::id();
        if self.open.get(&id).is_some_and(|entry| entry.inner.pid != pid) {
            // The parent's. Closing it is not safe here (another thread of the parent may have been
            // inside when it was forked), so it stays mapped and unused.
            mem::forget(self.open.remove(&id));
        }
        if let Some(entry) = self.open.get_mut(&id) {
            entry.users += 1;
            return Ok(Environment { inner: Some(Arc::clone(&entry.inner)) });
        }
        let inner = Arc::new(EnvironmentInner::open(store, dir, id)?);
        self.open.insert(id, ReaderEntry { inner: Arc::clone(&inner), users: 1 });
        Ok(Environment { inner: Some(inner) })
    }
}

impl Environment {
    /// Answers from one consistent state of the records. `look` must be quick, and may run more than
    /// once. Takes no lock that a writer holds.
    pub(crate) fn read<T>(&self, by: Deadline, look: impl Fn(&Reader<'_>) -> Result<T, Fault>) -> Result<T> {
        let inner = self.inner();
        inner.check_process()?;
        let mut tries = 1;
        loop {
            let fault = match inner.open.read().as_ref().map(|opened| opened.read(&look)) {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(fault)) => fault,
                None => Fault::Mdb(MdbError::Panic),
            };
            if tries == READ_TRIES || (tries > 1 && by.passed()) {
                return Err(inner.failed("reading", fault));
            }
            tries += 1;
            match fault {
                Fault::Mdb(MdbError::ReadersFull) => {
                    inner.clear_dead_readers();
                    time::sleep(Duration::from_millis(1));
                }
                Fault::Mdb(MdbError::Panic) => inner.reopen()?,
                // A reader that is preempted for two whole commits copies the meta page while it is
                // being written. Damage that is real shows again.
                Fault::Mdb(MdbError::PageNotFound | MdbError::Corrupted | MdbError::BadTxn) => {
                    thread::yield_now();
                }
                fault => return Err(inner.failed("reading", fault)),
            }
        }
    }

    /// Changes the records. `change` runs while no other writer of the machine does, so it must be
    /// quick; it sees the newest state.
    ///
    /// # Errors
    /// RETRIES_EXHAUSTED when other writers were not done before `by`, or the system refused the
    /// write; INTERNAL_ERROR when the files are damaged; CONNECTION_ERROR when they were deleted:
    /// nothing was changed. IN_DOUBT: the change may be there.
    pub(crate) fn write<T>(
        &self,
        by: Deadline,
        change: impl FnOnce(&mut Writer<'_>) -> Result<TxnEnd<T>, Fault>,
    ) -> Result<T> {
        let inner = self.inner();
        inner.check_process()?;
        if inner.open.read().is_none() {
            inner.reopen()?;
        }
        inner.write(by, change).map_err(|(error, hosed)| {
            if hosed && let Err(error) = inner.reopen() {
                // The next call tries again; this one has its own failure to tell.
                log::warn!("{}", error.chain());
            }
            error
        })
    }

    fn inner(&self) -> &EnvironmentInner {
        self.inner.as_ref().expect("only drop takes it")
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        if inner.check_process().is_err() {
            mem::forget(inner);
            return;
        }
        let mut open = OPEN.lock();
        let Some(entry) = open.get_mut(&inner.id) else { return };
        entry.users -= 1;
        if entry.users == 0 {
            open.remove(&inner.id);
        }
        // With the last user the files are closed here, under the lock. Closed later, LMDB's record
        // locks and the gate's would go from under the next one to open them in this process.
        drop(inner);
    }
}

impl EnvironmentInner {
    fn open(store: &str, dir: &Path, id: FileId) -> Result<EnvironmentInner> {
        let unable = |error: io::Error| Error::Connection {
            store: store.to_owned(),
            what: format!("{dir:?} cannot be used: check its permissions, or delete it while nobody uses it"),
            source: Some(error.into()),
        };
        let writer_lock = WriterLock::open(&dir.join(WRITER_LOCK_FILE)).map_err(unable)?;
        let in_use = File::open(dir).map_err(unable)?;
        // Shared, so never in each other's way; a file system without it has no ageing daemon either.
        let _ = flock(&in_use, FlockOperation::NonBlockingLockShared);
        let inner = EnvironmentInner {
            store: store.to_owned(),
            dir: dir.to_owned(),
            id,
            pid: std::process::id(),
            writer_lock,
            open: RwLock::new(None),
            _in_use: in_use,
        };
        inner.open_now()?;
        Ok(inner)
    }

    /// Opens the file. The caller has the [`Turn`], and it is not open.
    fn open_now(&self) -> Result<()> {
        let by = Deadline::after(OPEN_WAIT);
        let unable = |source: Cause| Error::Connection {
            store: self.store.clone(),
            what: format!("the files in {:?} cannot be opened", self.dir),
            source: Some(source),
        };
        let _guard = self
            .writer_lock
            .enter(by)
            .map_err(|error| unable(error.into()))?
            .ok_or_else(|| unable("another process has been opening or writing it for 10 s".into()))?;
        self.await_initialised(by).map_err(|error| unable(error.into()))?;
        let opened = match open_file(&self.dir.join(DATA_FILE)) {
            Err(Fault::EnvAlreadyOpened) => self.open_alias(),
            opened => opened,
        };
        let opened = opened.map_err(|fault| match fault {
            Fault::Io(error) if is_pid_taken(&error) => Error::Connection {
                store: self.store.clone(),
                what: PID_TAKEN.into(),
                source: Some(error.into()),
            },
            Fault::Io(error) => unable(error.into()),
            fault => self.failed("opening", fault),
        })?;
        self.check_length(&opened)?;
        close_on_exec(&self.dir.join(DATA_FILE));
        let _ = opened.env.clear_stale_readers();
        *self.open.write() = Some(opened);
        Ok(())
    }

    /// LMDB's first opener holds a write lock on the first byte of the lock file while it initialises
    /// it, and the next ones wait for that lock. If the first one is killed they go on with what it
    /// left: stale transaction numbers, or blank mutexes. Under our writer lock nobody is initialising, but
    /// one that was killed at it may not have given up all its locks yet.
    fn await_initialised(&self, by: Deadline) -> io::Result<()> {
        let file = File::open(self.dir.join(LOCK_FILE))?;
        let first_byte = Flock {
            start: 0,
            length: 1,
            pid: None,
            typ: FlockType::ReadLock,
            offset_type: FlockOffsetType::Set,
        };
        while fcntl_getlk(&file, &first_byte)?.is_some() {
            if by.passed() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "its lock file stays locked"));
            }
            time::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// `heed` opens no name twice, but it is not this file that it has open: in a forked child it is the
    /// parent's environment, which can be neither used nor closed here, and otherwise one whose files
    /// were deleted since (`OPEN`, by inode, would have found this one). A second name for the files
    /// makes an environment of its own on the same locks.
    fn open_alias(&self) -> Result<Opened, Fault> {
        static ALIASES: AtomicU64 = AtomicU64::new(0);
        let alias = format!("{DATA_FILE}.{}.{}", self.pid, ALIASES.fetch_add(1, Ordering::Relaxed));
        let names = ["", LOCK_SUFFIX].map(|suffix| {
            (self.dir.join(format!("{DATA_FILE}{suffix}")), self.dir.join(format!("{alias}{suffix}")))
        });
        for (name, alias) in &names {
            let _ = fs::remove_file(alias);
            fs::hard_link(name, alias)?;
        }
        let opened = open_file(&names[0].1);
        for (_, alias) in &names {
            let _ = fs::remove_file(alias);
        }
        opened
    }

    /// Reading past the end of a mapped file kills the process (SIGBUS), so a file that was cut is
    /// refused while that can be told.
    fn check_length(&self, opened: &Opened) -> Result<()> {
        let pages = opened.env.info().last_page_number as u64 + 1;
        let expected = pages * u64::from(opened.env.unnamed_database_stat().page_size);
        let length = opened.env.real_disk_size().map_err(|fault| self.failed("opening", fault))?;
        if length >= expected { Ok(()) } else { Err(self.damaged("its file was cut", None)) }
    }

    /// What `heed` and LMDB cannot notice: fork() copies this object, not the process's locks.
    fn check_process(&self) -> Result<()> {
        if self.pid == std::process::id() { Ok(()) } else { Err(Error::Forked) }
    }

    /// An error comes with whether the environment must be reopened before it can be used again.
    fn write<T>(
        &self,
        by: Deadline,
        change: impl FnOnce(&mut Writer<'_>) -> Result<TxnEnd<T>, Fault>,
    ) -> Result<T, (Error, bool)> {
        let open = self.open.read();
        let opened =
            open.as_ref().ok_or_else(|| (self.failed("writing", Fault::Mdb(MdbError::Panic)), true))?;
        let _guard = self.enter(by).map_err(|error| (error, false))?;
        let refused = |fault| {
            if matches!(fault, Fault::Mdb(MdbError::MapFull)) {
                // A reader that died keeps the pages of its time from being used again.
                let _ = opened.env.clear_stale_readers();
            }
            let hosed = matches!(fault, Fault::Mdb(MdbError::Panic));
            (self.failed("writing", fault), hosed)
        };
        let txn = opened.env.write_txn().map_err(refused)?;
        let mut writer = Writer { txn, records: opened.records };
        match change(&mut writer).map_err(refused)? {
            TxnEnd::Abandon(answer) => Ok(answer),
            TxnEnd::Commit(answer) => match writer.txn.commit() {
                Ok(()) => Ok(answer),
                Err(fault) => Err(self.failed_commit(opened, fault)),
            },
        }
    }

    fn enter(&self, by: Deadline) -> Result<writer_lock::WriterGuard<'_>> {
        let exhausted = |what: &str, source: Option<Cause>| Error::RetriesExhausted {
            store: self.store.clone(),
            what: what.to_owned(),
            source,
        };
        let guard = self
            .writer_lock
            .enter(by)
            .map_err(|error| exhausted("its gate file cannot be locked", Some(error.into())))?
            .ok_or_else(|| {
                exhausted(
                    "other processes were writing until the deadline, or one was stopped while it did",
                    None,
                )
            })?;
        match self.writer_lock.is_deleted() {
            Ok(false) => Ok(guard),
            Ok(true) => Err(Error::Connection {
                store: self.store.clone(),
                what: "its files were deleted while it was open: nobody else sees this lock; open the store anew".into(),
                source: None,
            }),
            Err(error) => Err(exhausted("its gate file cannot be looked at", Some(error.into()))),
        }
    }

    /// A commit writes the new pages, then the meta page that makes them count. Only a failure of the
    /// second leaves a doubt, and LMDB marks the environment then.
    fn failed_commit(&self, opened: &Opened, fault: Fault) -> (Error, bool) {
        if !opened.is_hosed() {
            return (self.failed("writing", fault), false);
        }
        let what = format!("{}: the page that completes a change could not be written", self.store);
        (Error::InDoubt { what, source: Some(fault.into()) }, true)
    }

    /// Once the meta page could not be written LMDB refuses everything; the file itself is whole.
    fn reopen(&self) -> Result<()> {
        let _turn = Turn::take(&self.store)?;
        let mut open = self.open.write();
        if open.as_ref().is_some_and(|opened| !opened.is_hosed()) {
            return Ok(());
        }
        *open = None;
        drop(open);
        self.open_now()
    }

    fn clear_dead_readers(&self) {
        if let Some(opened) = self.open.read().as_ref() {
            // It only fails for want of memory; the caller's next try tells whether it helped.
            let _ = opened.env.clear_stale_readers();
        }
    }

    /// The error for `fault`, after which nothing has changed.
    fn failed(&self, doing: &str, fault: Fault) -> Error {
        let what = match &fault {
            Fault::Io(error) if is_pid_taken(error) => PID_TAKEN.into(),
            Fault::Io(_) => format!("{doing} its files failed: check free space and the file system"),
            Fault::Mdb(MdbError::MapFull) => {
                "its file has reached 1 GiB: too many locks are held, latches have too many names, or a process was \
                 stopped while reading it"
                    .into()
            }
            Fault::Mdb(MdbError::ReadersFull) => "too many processes are reading it at once".into(),
            Fault::Mdb(MdbError::Panic) => "its files must be opened again after a failed write".into(),
            _ => return self.damaged(&format!("{doing} its files failed"), Some(fault.into())),
        };
        Error::RetriesExhausted { store: self.store.clone(), what, source: Some(fault.into()) }
    }

    fn damaged(&self, what: &str, source: Option<Cause>) -> Error {
        Error::Internal {
            what: format!(
                "{}: {what}: they are damaged or not of this library; stop all users of {:?} and delete it",
                self.store, self.dir
            ),
            source,
        }
    }
}

impl Opened {
    fn read<T>(&self, look: &impl Fn(&Reader<'_>) -> Result<T, Fault>) -> Result<T, Fault> {
        let txn = self.env.read_txn()?;
        look(&Reader { txn: &txn, records: self.records })
    }

    fn is_hosed(&self) -> bool {
        matches!(self.env.read_txn(), Err(Fault::Mdb(MdbError::Panic)))
    }
}

impl Reader<'_> {
    /// The value of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<&[u8]>, Fault> {
        self.records.get(self.txn, key)
    }

    /// The first record behind `key` in byte order.
    pub(crate) fn after(&self, key: &[u8]) -> Result<Option<KeyValue<'_>>, Fault> {
        self.records.get_greater_than(self.txn, key)
    }
}

impl Writer<'_> {
    /// The value of `key`, with the changes made so far.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<&[u8]>, Fault> {
        self.records.get(&self.txn, key)
    }

    /// The first record behind `key` in byte order.
    pub(crate) fn after(&self, key: &[u8]) -> Result<Option<KeyValue<'_>>, Fault> {
        self.records.get_greater_than(&self.txn, key)
    }

    /// Sets the value of `key`.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        self.records.put(&mut self.txn, key, value)
    }

    /// Removes `key`, if it is there.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<(), Fault> {
        self.records.delete(&mut self.txn, key).map(|_| ())
    }
}

/// Opens, or creates, the environment whose data file is `path`.
fn open_file(path: &Path) -> Result<Opened, Fault> {
    // Read transactions without thread-local storage: a reader slot is taken only while a
    // transaction runs, so thousands of waiting threads need no slots, and a thread that ends leaves
    // nothing behind.
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(MAP_BYTES);
    // SAFETY: the flags `heed` warns of are those that void the file's integrity.
    // * NO_SYNC: after a crash of the machine (not of a process) the file may be torn. It is never
    //   opened again then: the store keeps it in a directory named after the boot of the machine.
    // * NO_SUB_DIR and NO_READ_AHEAD change names and read-ahead only. NO_LOCK and WRITE_MAP are off.
    unsafe { options.flags(EnvFlags::NO_SUB_DIR | EnvFlags::NO_SYNC | EnvFlags::NO_READ_AHEAD) };
    // SAFETY: the map is sound while nothing but LMDB, under LMDB's locks, changes the file.
    // * Not by others: both callers in this file have checked with `check_private` that the directory
    //   is ours, that no other user may write it, and that it is not on a network file system, where
    //   neither memory maps nor record locks of two machines meet. Files in it are created 1600. Root,
    //   and other programs of this user, could break it, as they could this process's memory.
    // * With `Access::Group` the members of a group may write it. A caller asks for that by name, and
    //   is told that a member can cut the file and so end this process: they answer for the members.
    // * Not by this process twice: one open per directory (`OPEN`, by inode) and thread (`Turn`). A
    //   forked child neither uses nor closes what it inherited; its own environment has a reader slot
    //   and record locks of its own, which fork does not inherit, as any other process.
    // * No transaction outlives a call of `read` or `write`, and none is held across a fork into code
    //   that uses it, since the child checks its process id first.
    // * Killed processes: LMDB's write mutex is robust, its data pages are written before the meta
    //   page that refers to them, and stale reader slots are cleared by the record locks of their pid.
    // * The file is at least as long as its meta page says (`check_length` runs before any read), and
    //   the lock file has no holes (`create`), so no access meets the end of a file.
    let env = unsafe { options.open(path) }?;
    let records = env
        .open_databases_and_commit(env.read_txn()?, |opener, txn| {
            opener.open_database::<Bytes, Bytes>(txn, None).map(CommitOrAbort::<_, ()>::Commit)
        })?
        .commit()
        .flatten();
    // The unnamed database is part of every environment.
    let records = records.ok_or(Fault::Mdb(MdbError::Invalid))?;
    Ok(Opened { env, records })
}

/// LMDB marks a process that reads by a record lock at its process id.
fn is_pid_taken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// LMDB leaves the data file open in programs that this one starts, and writable. Best effort: a leaked
/// descriptor takes no lock and keeps nothing alive but the file.
fn close_on_exec(path: &Path) {
    let Ok(data) = fs::metadata(path) else { return };
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else { return };
    for entry in descriptors.flatten() {
        let same =
            fs::metadata(entry.path()).is_ok_and(|file| (file.dev(), file.ino()) == (data.dev(), data.ino()));
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|_| same) else { continue };
        // SAFETY: the descriptor refers to the data file, which in this process only LMDB has open, and
        // it keeps it until the environment is closed; closing takes the `Turn` that the caller has.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if let Err(error) = fcntl_setfd(descriptor, FdFlags::CLOEXEC) {
            log::debug!("{path:?} stays open in programs this one starts: {error}");
        }
    }
}

fn create_file(path: &Path, access: Access, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = File::options().write(true).create_new(true).mode(access.file_mode()).open(path)?;
    file.write_all(content)?;
    access.settle(&file)
}
