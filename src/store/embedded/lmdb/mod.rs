//! LMDB environments, each open once per process. Only `opened` and `transaction` use `heed`, and this file its errors.
//!
//! Opening a file is unsafe in `heed`. [`open_file`] says why it is sound. The rest of this file is safe code that
//! keeps its conditions true: it limits opening ([`Turn`]), use in a forked child, and writing ([`WriterLock`]).
#![allow(unsafe_code)]

mod dir_lock;
mod file_system;
mod group_commit;
mod mapped_file;
mod ofd_lock;
mod opened;
mod private;
mod reader_table;
mod shared_words;
#[cfg(test)]
mod tests;
mod transaction;
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

use heed::MdbError;
use rustix::io::{FdFlags, fcntl_setfd};

use self::group_commit::{CommitBatch, EAGER_LOOKS, Entry, Made, Queued, Woken};
use self::mapped_file::MappedFile;
use self::opened::{Opened, create_mapped, map_size, open_file};
use self::private::FileId;
use self::reader_table::ReaderTable;
use self::shared_words::SharedWords;
use self::writer_lock::{WriterGuard, WriterLock, WriterTurn};
use crate::error::{Cause, Error, Result};
use crate::runtime::process::descriptors::StreamsTaken;
use crate::runtime::process::fork_pause::ForkPause;
use crate::runtime::process::process_mark::ProcessMark;
use crate::runtime::process::signals::NoSignal;
use crate::runtime::sync::real::{RwLock, TimedGuard, TimedMutex};
use crate::runtime::time::{self, Deadline, Moment};

pub(crate) use self::dir_lock::DirLock;
pub(crate) use self::file_system::change_in_place;
pub(crate) use self::mapped_file::Engine;
pub(crate) use self::ofd_lock::OfdLock;
pub(crate) use self::private::{Access, check_private};
pub(crate) use self::transaction::{Fault, Reader, TxnEnd, Writer};

/// Limit of the file: room for about a million held locks. The file grows only with its content.
pub(crate) const LIMIT: usize = 1 << 30;
/// Size of the lock file: 64 bytes for each read transaction that may run at the same time on the machine.
const LOCK_FILE_BYTES: usize = 128 << 10;
/// Opening takes milliseconds. If it takes longer than this, the thread or process that opens was stopped.
const OPEN_WAIT: Duration = Duration::from_secs(10);
/// Maximum number of tries of a read that meets a full reader table or an inconsistent meta page.
const READ_TRIES: u32 = 20;

const PID_TAKEN: &str = "another copy of this library in this process has it open, or a process of another PID \
                         namespace with the same process id, or a child that was forked by an earlier process with \
                         this id and still runs: link the library once (not libdlm.a beside libdlm.so), share the \
                         namespace, end the child, or give each a separate directory";

/// What LMDB returns after a failed write, until the environment is reopened.
const NOT_OPEN: Fault = Fault::Mdb(MdbError::Panic);

const DATA_FILE: &str = "locks";
/// LMDB's suffix for the name of its lock table.
const LOCK_SUFFIX: &str = "-lock";
const LOCK_FILE: &str = "locks-lock";
const WRITER_LOCK_FILE: &str = "gate";
/// Only beside a data file that is changed through the memory map.
const SHARED_WORDS_FILE: &str = "words";

/// All environments that this process has open, by directory (device, inode). Two paths to one directory must not
/// open it twice.
static OPEN: TimedMutex<BTreeMap<FileId, ReaderEntry>> = TimedMutex::new(BTreeMap::new());

struct ReaderEntry {
    inner: Arc<EnvironmentInner>,
    users: usize,
}

/// The right to open and close environments: one thread of the process at a time.
pub(crate) struct Turn {
    // In this order: `OPEN` is free before a fork may go on.
    open: TimedGuard<'static, BTreeMap<FileId, ReaderEntry>>,
    _pause: ForkPause,
    /// For what LMDB opens and writes, too.
    _streams: StreamsTaken,
    _quiet: Option<NoSignal>,
}

/// One environment. All users of its directory in this process share it. Dropping the last user closes it. It may
/// be used from many threads.
#[derive(Debug)]
pub(crate) struct Environment {
    /// `None` only during `drop`.
    inner: Option<Arc<EnvironmentInner>>,
}

#[derive(Debug)]
struct EnvironmentInner {
    /// The name in messages.
    store: String,
    dir: PathBuf,
    id: FileId,
    /// The process that opened it. A forked child shares the locks in the memory map, but LMDB wrote the parent's
    /// process id into them. So the child must not use the environment.
    process: ProcessMark,
    limit: usize,
    writer_lock: WriterLock,
    /// `None` during a reopen, or after a reopen failed. Locked for writing only then.
    open: RwLock<Option<Opened>>,
    /// Dropped after `open`.
    reader_table: ReaderTable,
    _in_use: DirLock,
}

/// Returns whether `dir` has all files of an environment. Opening the environment would create missing files.
pub(crate) fn has_files(dir: &Path) -> bool {
    let is_mapped = || MappedFile::is_at(&dir.join(DATA_FILE)).unwrap_or(false);
    [WRITER_LOCK_FILE, DATA_FILE].iter().all(|name| dir.join(name).is_file())
        && is_whole(&dir.join(LOCK_FILE), LOCK_FILE_BYTES)
        && (is_whole(&dir.join(SHARED_WORDS_FILE), shared_words::FILE_BYTES) || !is_mapped())
}

/// Returns whether there is a file that whoever created it has filled.
fn is_whole(path: &Path, bytes: usize) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() >= bytes as u64)
}

/// Returns what to say of a file that cannot be mapped because the process may have no more addresses.
fn no_addresses(source: &Cause) -> Option<&'static str> {
    let error = source.downcast_ref::<io::Error>().or_else(|| match source.downcast_ref()? {
        Fault::Io(error) => Some(error),
        _ => None,
    })?;
    (error.kind() == io::ErrorKind::OutOfMemory).then_some(
        "its file needs 1 GiB of addresses in each process: raise ulimit -v, or the limit AS of the service",
    )
}

impl Turn {
    /// Waits up to ten seconds for threads that are opening or closing.
    pub(crate) fn take(store: &str) -> Result<Turn> {
        let unable =
            |what: &str| Error::Connection { store: store.to_owned(), what: what.to_owned(), source: None };
        // `OPEN` and the list of environments in `heed` are locked meanwhile.
        let pause = ForkPause::new();
        if ForkPause::is_spoilt() {
            return Err(unable(
                "this process was forked while another thread had been opening or closing a store for 10 s: fork \
                 before stores are opened",
            ));
        }
        let open = OPEN
            .try_lock_for(OPEN_WAIT)
            .ok_or_else(|| unable("another thread has been opening or closing a store for 10 s"))?;
        Ok(Turn { open, _pause: pause, _streams: StreamsTaken::new(), _quiet: NoSignal::file_size() })
    }

    /// Creates the files of an environment that `dir` lacks. If there is no record `key`, creates it with the value that
    /// `value` returns for how the file is changed. No other process uses the files.
    pub(crate) fn fill(
        &self,
        store: &str,
        dir: &Path,
        access: Access,
        limit: usize,
        key: &[u8],
        value: impl FnOnce(Engine) -> Result<Vec<u8>>,
    ) -> Result<()> {
        let unable = |source: Cause| {
            let what = format!("its files cannot be created in {dir:?}: check permissions and free space");
            let what = no_addresses(&source).map_or(what, str::to_owned);
            Error::Connection { store: store.to_owned(), what, source: Some(source) }
        };
        check_private(store, dir, access)?;
        let file = |name, content: &[u8]| {
            let path = dir.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => create_file(&path, access, content),
            }
        };
        if !dir.join(WRITER_LOCK_FILE).is_file() {
            file(WRITER_LOCK_FILE, &[]).map_err(|error| unable(error.into()))?;
        }
        if !is_whole(&dir.join(LOCK_FILE), LOCK_FILE_BYTES) {
            // Write the bytes instead of only setting the size: if the disk is full, the first access to a hole in a
            // mapped file kills the process (SIGBUS).
            file(LOCK_FILE, &[0; LOCK_FILE_BYTES]).map_err(|error| unable(error.into()))?;
        }
        let data = dir.join(DATA_FILE);
        // LMDB would create it with a mode that depends on the umask, and could then not open it a second time.
        let is_new = !data.exists();
        if is_new {
            file(DATA_FILE, &[]).map_err(|error| unable(error.into()))?;
        }
        // LMDB initialises the lock file here, because nobody else has it open. It never does so again.
        let open = || {
            let table = File::options().read(true).write(true).open(dir.join(LOCK_FILE))?;
            let is_mapped = if is_new {
                Engine::for_new(dir, access, map_size(limit) as u64) == Engine::Map
            } else {
                MappedFile::is_at(&data)?
            };
            if is_mapped && !is_whole(&dir.join(SHARED_WORDS_FILE), shared_words::FILE_BYTES) {
                file(SHARED_WORDS_FILE, &[0; shared_words::FILE_BYTES])?;
            }
            if is_new && is_mapped {
                create_mapped(&data, limit)?;
            }
            open_file(&data, &table, limit)
        };
        let opened = open().map_err(|fault: Fault| unable(fault.into()))?;
        let look = |reader: &Reader<'_>| Ok(reader.get(key)?.is_some());
        if opened.read(&look).map_err(|fault| unable(fault.into()))? != Some(true) {
            let value = value(opened.engine())?;
            let put = || {
                let mut writer = opened.writer()?;
                writer.put(key, &value)?;
                opened.commit(writer)
            };
            put().map_err(|fault| unable(fault.into()))?;
        }
        Ok(())
    }

    /// Opens the environment in `dir`. [`fill`](Turn::fill) has created it, in this process or in another.
    /// Returns `None` if the directory was deleted meanwhile.
    pub(crate) fn open(
        &mut self,
        store: &str,
        dir: &Path,
        access: Access,
        limit: usize,
    ) -> Result<Option<Environment>> {
        let by = Deadline::after(OPEN_WAIT);
        let in_use = DirLock::share(dir, by).map_err(|error| cannot_use(store, dir, error))?;
        let Some(in_use) = in_use else { return Ok(None) };
        let id = check_private(store, dir, access)?;
        if self.open.get(&id).is_some_and(|entry| !entry.inner.process.is_current()) {
            // This is the parent's environment. Closing it is not safe here, because another thread of the parent
            // may have used it during the fork. It stays mapped and unused.
            mem::forget(self.open.remove(&id));
        }
        if let Some(entry) = self.open.get_mut(&id) {
            entry.users += 1;
            return Ok(Some(Environment { inner: Some(Arc::clone(&entry.inner)) }));
        }
        let inner = Arc::new(EnvironmentInner::open(store, dir, id, in_use, limit, by)?);
        self.open.insert(id, ReaderEntry { inner: Arc::clone(&inner), users: 1 });
        Ok(Some(Environment { inner: Some(inner) }))
    }
}

impl Environment {
    /// Runs `look` on one consistent state of the records. `look` must be quick, and may run more than once. Does
    /// not wait for writers.
    pub(crate) fn read<T>(&self, by: Deadline, look: impl Fn(&Reader<'_>) -> Result<T, Fault>) -> Result<T> {
        let inner = self.inner();
        inner.check_process()?;
        let (mut tries, mut is_last) = (1, false);
        loop {
            // In a statement of its own, because the lock is not held below.
            let read = inner.open.read().as_ref().map(|opened| opened.read(&look));
            let fault = match read {
                Some(Ok(Some(answer))) => return Ok(answer),
                // A writer is about to end its commit, or was stopped or killed there.
                Some(Ok(None)) if tries < READ_TRIES => {
                    thread::yield_now();
                    tries += 1;
                    continue;
                }
                Some(Ok(None)) if is_last => return Err(inner.still_writing()),
                Some(Ok(None)) => {
                    is_last = by.passed();
                    if !inner.undo_unfinished()? {
                        time::sleep(Duration::from_millis(1).min(by.remaining()));
                    }
                    continue;
                }
                Some(Err(fault)) => fault,
                None => NOT_OPEN,
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
                // A reader that is preempted during two whole commits copies the meta page while it is being
                // written. The next try meets this error again only if the damage is real.
                Fault::Mdb(MdbError::PageNotFound | MdbError::Corrupted | MdbError::BadTxn) => {
                    thread::yield_now();
                }
                fault => return Err(inner.failed("reading", fault)),
            }
        }
    }

    /// Changes the records. While `change` runs, it is the only writer on the machine, so it must be quick. It sees
    /// the newest state.
    ///
    /// # Errors
    /// Nothing was changed after RETRIES_EXHAUSTED (other writers were not done before `by`, or the system refused
    /// the write), INTERNAL_ERROR (the files are damaged) or CONNECTION_ERROR (the files were deleted). After
    /// IN_DOUBT the change may have been made.
    pub(crate) fn write<T>(
        &self,
        by: Deadline,
        change: impl FnOnce(&mut Writer<'_>) -> Result<TxnEnd<T>, Fault>,
    ) -> Result<T> {
        let inner = self.usable()?;
        let turn = inner.writer_lock.turn(by).ok_or_else(|| inner.still_writing())?;
        inner.write(turn, by, change)
    }

    /// Like [`write`](Environment::write), for a change that another thread may make, in one transaction with changes of
    /// its own: see [`group_commit`].
    ///
    /// # Errors
    /// As for [`write`](Environment::write). IN_DOUBT also if the other thread is not done soon after `by`.
    pub(crate) fn write_in_group<T: Send + 'static>(
        &self,
        by: Deadline,
        change: impl Fn(&mut Writer<'_>) -> Result<TxnEnd<T>, Fault> + Send + Sync + 'static,
    ) -> Result<T> {
        self.usable()?.write_in_group(by, change)
    }

    /// Returns the size of the file in bytes.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        let open = self.inner().open.read();
        let env = &open.as_ref().unwrap().env;
        (env.info().last_page_number + 1) * env.unnamed_database_stat().page_size as usize
    }

    /// Returns how the file is changed. `None` if it is not open.
    pub(crate) fn engine(&self) -> Option<Engine> {
        self.inner().open.read().as_ref().map(Opened::engine)
    }

    /// Returns the size that the file may have, in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.inner().limit
    }

    /// See [`LockStore::note_poller`](crate::store::LockStore::note_poller).
    pub(crate) fn note_poller(&self, until: Moment) {
        self.inner().writer_lock.words().into_iter().for_each(|words| words.note_poller(until));
    }

    /// See [`LockStore::may_have_pollers`](crate::store::LockStore::may_have_pollers). Files that are changed by calls are used
    /// by versions of this library that do not note it.
    pub(crate) fn may_have_pollers(&self) -> bool {
        self.inner().writer_lock.words().is_none_or(SharedWords::may_have_pollers)
    }

    /// Returns the open environment, for a change.
    fn usable(&self) -> Result<&EnvironmentInner> {
        let inner = self.inner();
        inner.check_process()?;
        if inner.open.read().is_none() {
            inner.reopen()?;
        }
        Ok(inner)
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
        let _pause = ForkPause::new();
        let mut open = OPEN.lock();
        let Some(entry) = open.get_mut(&inner.id) else { return };
        entry.users -= 1;
        if entry.users == 0 {
            open.remove(&inner.id);
        }
        // The last user closes the files here, under the lock. If they were closed later, the next user in this
        // process would lose the record locks of LMDB and of the writer lock.
        drop(inner);
    }
}

impl EnvironmentInner {
    fn open(
        store: &str,
        dir: &Path,
        id: FileId,
        in_use: DirLock,
        limit: usize,
        by: Deadline,
    ) -> Result<EnvironmentInner> {
        let unable = |error| cannot_use(store, dir, error);
        // Before the other files are opened: closing them again would free the locks of another copy of this library.
        let reader_table =
            ReaderTable::claim(&dir.join(LOCK_FILE)).map_err(unable)?.ok_or_else(|| pid_taken(store))?;
        reader_table.keep_initialised(by).map_err(unable)?;
        let is_mapped = MappedFile::is_at(&dir.join(DATA_FILE)).map_err(unable)?;
        let words = is_mapped.then(|| dir.join(SHARED_WORDS_FILE));
        let writer_lock = WriterLock::open(&dir.join(WRITER_LOCK_FILE), words.as_deref()).map_err(unable)?;
        let inner = EnvironmentInner {
            store: store.to_owned(),
            dir: dir.to_owned(),
            id,
            process: ProcessMark::current(),
            limit,
            writer_lock,
            open: RwLock::new(None),
            reader_table,
            _in_use: in_use,
        };
        inner.open_now(by)?;
        Ok(inner)
    }

    /// Opens the file. The caller holds the [`Turn`], and the file is not open.
    fn open_now(&self, by: Deadline) -> Result<()> {
        let unable = |source: Cause| {
            let what = format!("the files in {:?} cannot be opened", self.dir);
            let what = no_addresses(&source).map_or(what, str::to_owned);
            Error::Connection { store: self.store.clone(), what, source: Some(source) }
        };
        let stuck = || unable("another process has been opening or writing it for 10 s".into());
        let turn = self.writer_lock.turn(by).ok_or_else(stuck)?;
        let _guard = turn.enter(by).map_err(|error| unable(error.into()))?.ok_or_else(stuck)?;
        self.reader_table.lend_reader_byte().map_err(|error| unable(error.into()))?;
        let open = || {
            let opened = match open_file(&self.dir.join(DATA_FILE), self.reader_table.file(), self.limit) {
                Err(Fault::EnvAlreadyOpened) => self.open_alias(),
                opened => opened,
            };
            opened.map_err(|fault| match fault {
                Fault::Io(error) if is_pid_taken(&error) => pid_taken(&self.store),
                Fault::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.damaged("its file was truncated", Some(error.into()))
                }
                Fault::Io(error) => unable(error.into()),
                fault => self.failed("opening", fault),
            })
        };
        // A process that was killed while it read may have had this process's id. LMDB takes its readers for ours, and
        // clears them when it closes the file. In this process nobody reads yet, which the seat proves.
        drop(open()?);
        let opened = open()?;
        if !self.reader_table.keep_reader_byte().map_err(|error| unable(error.into()))? {
            return Err(pid_taken(&self.store));
        }
        self.check_length(&opened)?;
        close_on_exec(&self.dir.join(DATA_FILE));
        let _ = opened.env.clear_stale_readers();
        *self.open.write() = Some(opened);
        Ok(())
    }

    /// Opens the files under a second name. `heed` opens no name twice, but the environment that it has open under
    /// the first name is another one. In a forked child it is the parent's, which can be neither used nor closed
    /// here. Otherwise its files were deleted (`OPEN` would have found the same inode). The second name makes a
    /// separate environment on the same locks.
    fn open_alias(&self) -> Result<Opened, Fault> {
        static ALIASES: AtomicU64 = AtomicU64::new(0);
        let alias = format!("{DATA_FILE}.{}.{}", std::process::id(), ALIASES.fetch_add(1, Ordering::Relaxed));
        let names = ["", LOCK_SUFFIX].map(|suffix| {
            (self.dir.join(format!("{DATA_FILE}{suffix}")), self.dir.join(format!("{alias}{suffix}")))
        });
        for (name, alias) in &names {
            let _ = fs::remove_file(alias);
            fs::hard_link(name, alias)?;
        }
        let opened = open_file(&names[0].1, self.reader_table.file(), self.limit);
        for (_, alias) in &names {
            let _ = fs::remove_file(alias);
        }
        opened
    }

    /// Refuses a file that was truncated before it was opened. Reading past the end of a mapped file kills the
    /// process (SIGBUS).
    fn check_length(&self, opened: &Opened) -> Result<()> {
        let pages = opened.env.info().last_page_number as u64 + 1;
        let expected = pages * u64::from(opened.env.unnamed_database_stat().page_size);
        let length = opened.env.real_disk_size().map_err(|fault| self.failed("opening", fault))?;
        if length >= expected { Ok(()) } else { Err(self.damaged("its file was truncated", None)) }
    }

    /// Refuses use in a forked child. `heed` and LMDB do not notice it: fork() copies this object, but not the
    /// process's locks.
    fn check_process(&self) -> Result<()> {
        self.process.check()
    }

    /// Writes as [`Environment::write`] says, and makes the changes that were queued meanwhile.
    fn write<T>(
        &self,
        turn: WriterTurn<'_>,
        by: Deadline,
        change: impl FnOnce(&mut Writer<'_>) -> Result<TxnEnd<T>, Fault>,
    ) -> Result<T> {
        let guard = self.enter(turn, by)?;
        let open = self.open.read();
        let Some(opened) = open.as_ref() else {
            drop((open, guard));
            self.reopen_or_warn();
            return Err(self.failed("writing", NOT_OPEN));
        };
        let quiet = opened.quiet();
        let own = self.write_alone(opened, change);
        // Threads that write alone hand the writer on to each other, and a queued change would find it free by luck only.
        let mut batch = CommitBatch::empty();
        let was_usable = !matches!(own, Err((_, true)));
        if was_usable {
            self.writer_lock.queue.fill(&mut batch);
        }
        let (ends, is_usable) = self.make_batch(opened, batch.changes());
        drop(quiet);
        drop(open);
        drop(guard);
        batch.end(ends);
        if !(was_usable && is_usable) {
            self.reopen_or_warn();
        }
        own.map_err(|(error, _)| error)
    }

    /// Opens the environment again after a failed write. The callers get the errors of their own changes.
    fn reopen_or_warn(&self) {
        if let Err(error) = self.reopen() {
            // The next call tries again.
            log::warn!("{}", error.chain());
        }
    }

    /// See [`Environment::write_in_group`].
    fn write_in_group<T: Send + 'static>(
        &self,
        by: Deadline,
        change: impl Fn(&mut Writer<'_>) -> Result<TxnEnd<T>, Fault> + Send + Sync + 'static,
    ) -> Result<T> {
        let queue = &self.writer_lock.queue;
        let mut turn = self.writer_lock.try_turn();
        if queue.is_empty()
            && let Some(turn) = turn.take()
        {
            return self.write(turn, by, change);
        }
        let entry = Arc::new(Entry::new(change));
        let queued: Arc<dyn Queued> = Arc::clone(&entry) as _;
        if let Some(turn) = turn {
            self.lead(turn, queued, by);
            return entry.answer();
        }
        queue.push(Arc::clone(&queued));
        let mut eager = EAGER_LOOKS;
        loop {
            // A leader that was done before the change was queued has called nobody.
            if let Some(turn) = self.writer_lock.try_turn()
                && queue.remove(&queued)
            {
                self.lead(turn, queued, by);
                return entry.answer();
            }
            match entry.wait(by, &mut eager) {
                Woken::Ended(answer) => return answer,
                Woken::Called => {}
                Woken::TimedOut if queue.remove(&queued) => {
                    // The thread that was called to lead may not have run. This one may have been called, too.
                    let turn = self.writer_lock.try_turn().ok_or_else(|| self.still_writing())?;
                    self.lead(turn, queued, by);
                    return entry.answer();
                }
                Woken::TimedOut if entry.withdraw() => return Err(self.still_writing()),
                Woken::TimedOut => {
                    return entry.wait_for_leader(by).unwrap_or_else(|| Err(self.stuck_leader()));
                }
            }
        }
    }

    /// Makes the change of this thread and of others, and ends them all. The environment is open again afterwards, if that
    /// is possible.
    fn lead(&self, turn: WriterTurn<'_>, own: Arc<dyn Queued>, by: Deadline) {
        let mut batch = CommitBatch::of(own);
        let guard = match self.enter(turn, by) {
            Ok(guard) => guard,
            Err(error) => return batch.end(vec![Err(error)]),
        };
        self.writer_lock.queue.fill(&mut batch);
        let open = self.open.read();
        let (ends, is_usable) = match open.as_ref() {
            Some(opened) => {
                let _quiet = opened.quiet();
                self.make_batch(opened, batch.changes())
            }
            None => (batch.changes().iter().map(|_| Err(self.failed("writing", NOT_OPEN))).collect(), false),
        };
        drop(open);
        drop(guard);
        // Before the environment is opened again, which may take long.
        batch.end(ends);
        if !is_usable {
            self.reopen_or_warn();
        }
    }

    /// Makes the changes, together if that is possible. The flag says whether the environment can be used further.
    fn make_batch(&self, opened: &Opened, batch: &[Arc<dyn Queued>]) -> (Vec<Result<()>>, bool) {
        if batch.len() > 1 {
            match self.make_together(opened, batch) {
                Ok(true) => return (batch.iter().map(|_| Ok(())).collect(), true),
                Ok(false) => {}
                Err(fault) => {
                    let fault = fault.to_string();
                    return (
                        batch.iter().map(|_| Err(self.unfinished(fault.clone().into()))).collect(),
                        false,
                    );
                }
            }
        }
        let mut is_usable = true;
        let make = |change: &Arc<dyn Queued>| {
            let end = self.write_alone(opened, |writer| {
                Ok(match change.make(writer)? {
                    Made::Commit => TxnEnd::Commit(()),
                    Made::Abandon | Made::Panicked => TxnEnd::Abandon(()),
                })
            });
            end.map_err(|(error, hosed)| {
                is_usable &= !hosed;
                error
            })
        };
        (batch.iter().map(make).collect(), is_usable)
    }

    fn stuck_leader(&self) -> Error {
        let what = format!(
            "{}: another thread of this process was making this change when its deadline passed",
            self.store
        );
        Error::InDoubt { what, source: None }
    }

    /// Makes the changes in one transaction. Returns `false` if nothing has happened, and an error if they may have been
    /// made.
    fn make_together(&self, opened: &Opened, batch: &[Arc<dyn Queued>]) -> Result<bool, Fault> {
        let Ok(mut writer) = opened.writer() else { return Ok(false) };
        let mut has_changed = false;
        for change in batch {
            let before = writer.changes();
            match change.make(&mut writer) {
                Ok(Made::Commit) => has_changed = true,
                Ok(Made::Abandon) if writer.changes() == before => {}
                Ok(Made::Abandon | Made::Panicked) | Err(_) => return Ok(false),
            }
        }
        if !has_changed {
            return Ok(true);
        }
        match opened.commit(writer) {
            Ok(()) => Ok(true),
            Err(fault) if opened.is_hosed() => Err(fault),
            Err(_) => Ok(false),
        }
    }

    /// Makes one change as a transaction. An error comes with a flag: the environment must be reopened.
    fn write_alone<T>(
        &self,
        opened: &Opened,
        change: impl FnOnce(&mut Writer<'_>) -> Result<TxnEnd<T>, Fault>,
    ) -> Result<T, (Error, bool)> {
        let refused = |fault| {
            if matches!(fault, Fault::Mdb(MdbError::MapFull)) {
                // A dead reader keeps old pages from reuse.
                let _ = opened.env.clear_stale_readers();
            }
            let hosed = matches!(fault, Fault::Mdb(MdbError::Panic));
            (self.failed("writing", fault), hosed)
        };
        let mut writer = opened.writer().map_err(refused)?;
        match change(&mut writer).map_err(refused)? {
            TxnEnd::Abandon(answer) => Ok(answer),
            TxnEnd::Commit(answer) => match opened.commit(writer) {
                Ok(()) => Ok(answer),
                Err(fault) => Err(self.failed_commit(opened, fault)),
            },
        }
    }

    /// Waits until no other process writes.
    fn enter<'a>(&self, turn: WriterTurn<'a>, by: Deadline) -> Result<WriterGuard<'a>> {
        let exhausted = |what: &str, source: Option<Cause>| Error::RetriesExhausted {
            store: self.store.clone(),
            what: what.to_owned(),
            source,
        };
        let guard = turn
            .enter(by)
            .map_err(|error| exhausted("its file `gate` or `words` cannot be locked", Some(error.into())))?
            .ok_or_else(|| self.still_writing())?;
        match self.writer_lock.is_deleted() {
            Ok(false) => Ok(guard),
            Ok(true) => Err(Error::Connection {
                store: self.store.clone(),
                what: "its files were deleted while it was open, so other processes do not see this lock: open the \
                       store again"
                    .into(),
                source: None,
            }),
            Err(error) => Err(exhausted("its file `gate` cannot be checked", Some(error.into()))),
        }
    }

    /// Undoes what a writer has left that was killed in its commit. Returns `false` if somebody is writing.
    fn undo_unfinished(&self) -> Result<bool> {
        let unable = |fault| self.failed("reading", fault);
        let Some(turn) = self.writer_lock.try_turn() else { return Ok(false) };
        let guard = turn.enter(Deadline::after(Duration::ZERO)).map_err(|error| unable(Fault::Io(error)))?;
        let Some(_guard) = guard else { return Ok(false) };
        self.open.read().as_ref().map_or(Ok(()), Opened::undo_unfinished).map_err(unable)?;
        Ok(true)
    }

    fn still_writing(&self) -> Error {
        let what =
            "other threads or processes were writing until the deadline, or one was stopped while it did";
        Error::RetriesExhausted { store: self.store.clone(), what: what.to_owned(), source: None }
    }

    /// Returns the error of a failed commit. A commit writes the new pages, then the meta page that makes them
    /// valid. Only a failed write of the meta page leaves the change in doubt. LMDB marks the environment in that
    /// case.
    fn failed_commit(&self, opened: &Opened, fault: Fault) -> (Error, bool) {
        if !opened.is_hosed() {
            return (self.failed("writing", fault), false);
        }
        (self.unfinished(fault.into()), true)
    }

    fn unfinished(&self, source: Cause) -> Error {
        let what = format!("{}: the page that completes a change could not be written", self.store);
        Error::InDoubt { what, source: Some(source) }
    }

    /// Opens the environment again. After a failed write of the meta page LMDB refuses everything, but the file is
    /// intact.
    fn reopen(&self) -> Result<()> {
        let _turn = Turn::take(&self.store)?;
        let mut open = self.open.write();
        if open.as_ref().is_some_and(|opened| !opened.is_hosed()) {
            return Ok(());
        }
        *open = None;
        drop(open);
        self.open_now(Deadline::after(OPEN_WAIT))
    }

    fn clear_dead_readers(&self) {
        if let Some(opened) = self.open.read().as_ref() {
            // It fails only without memory. The caller's next try shows whether it helped.
            let _ = opened.env.clear_stale_readers();
        }
    }

    /// Returns the error for `fault`, after which nothing has changed.
    fn failed(&self, doing: &str, fault: Fault) -> Error {
        let what = match &fault {
            Fault::Io(error) if is_pid_taken(error) => PID_TAKEN.into(),
            Fault::Io(_) => format!("{doing} its files failed: check free space and the file system"),
            Fault::Mdb(MdbError::MapFull) => {
                "its file has reached its limit: too many locks are held, latches have too many names, or a process \
                 was stopped while it read the file"
                    .into()
            }
            Fault::Mdb(MdbError::ReadersFull) => "too many processes read it at the same time".into(),
            Fault::Mdb(MdbError::Panic) => "its files must be opened again after a failed write".into(),
            _ => return self.damaged(&format!("{doing} its files failed"), Some(fault.into())),
        };
        Error::RetriesExhausted { store: self.store.clone(), what, source: Some(fault.into()) }
    }

    fn damaged(&self, what: &str, source: Option<Cause>) -> Error {
        Error::Internal {
            what: format!(
                "{}: {what}: the files are damaged or from another program; stop all users of {:?} and delete it",
                self.store, self.dir
            ),
            source,
        }
    }
}

/// Returns whether a change was refused because the file has reached its limit.
pub(crate) fn is_full(error: &Error) -> bool {
    let Error::RetriesExhausted { source: Some(source), .. } = error else { return false };
    matches!(source.downcast_ref(), Some(Fault::Mdb(MdbError::MapFull)))
}

/// Returns whether a change was refused because the disk is full.
pub(crate) fn is_disk_full(error: &Error) -> bool {
    let Error::RetriesExhausted { source: Some(source), .. } = error else { return false };
    matches!(source.downcast_ref(), Some(Fault::Io(error)) if error.kind() == io::ErrorKind::StorageFull)
}

fn cannot_use(store: &str, dir: &Path, error: io::Error) -> Error {
    Error::Connection {
        store: store.to_owned(),
        what: format!("{dir:?} cannot be used: check its permissions, or delete it while nobody uses it"),
        source: Some(error.into()),
    }
}

fn pid_taken(store: &str) -> Error {
    Error::Connection { store: store.to_owned(), what: PID_TAKEN.into(), source: None }
}

/// Returns whether the error means that the process id is in use: LMDB marks a reading process with a record lock
/// at the offset of its process id.
fn is_pid_taken(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Sets close-on-exec on the data file. LMDB would leave it open and writable in programs that this process starts.
/// Best effort: a leaked descriptor holds no lock and keeps only the file alive.
fn close_on_exec(path: &Path) {
    let Ok(data) = fs::metadata(path) else { return };
    let Ok(descriptors) = fs::read_dir("/proc/self/fd") else { return };
    for entry in descriptors.flatten() {
        let same =
            fs::metadata(entry.path()).is_ok_and(|file| (file.dev(), file.ino()) == (data.dev(), data.ino()));
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|_| same) else { continue };
        // SAFETY: the descriptor refers to the data file. In this process only LMDB has that file open, and keeps
        // it open until the environment is closed. Closing needs the `Turn`, which the caller holds.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        if let Err(error) = fcntl_setfd(descriptor, FdFlags::CLOEXEC) {
            log::debug!("{path:?} stays open in programs that this process starts: {error}");
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
