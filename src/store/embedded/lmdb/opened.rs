//! An environment that is open: how its file is opened, and how transactions begin and end.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use heed::types::Bytes;
use heed::{CommitOrAbort, EnvFlags, EnvOpenOptions, MdbError, WithoutTls};

use super::mapped_file::{Engine, MappedFile};
use super::transaction::{Fault, FileRoom, Reader, RecordsDatabase, Writer};
use crate::runtime::process::signals::NoSignal;
use crate::runtime::time;

/// Further room in the memory map, for transactions that delete what has expired in a file that versions of this library
/// have filled which use all of it: this part of the limit, and at least so many bytes. LMDB takes free pages first.
const RESERVE_PART: usize = 64;
const RESERVE_LEAST: usize = 256 << 10;
/// How often it is looked whether a file is as `mapped_file` expects it.
const OPEN_TRIES: u32 = 20;

/// An environment whose file is open.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) env: heed::Env<WithoutTls>,
    records: RecordsDatabase,
    limit: usize,
    /// `None` if transactions are written by write(2).
    pub(super) mapped: Option<MappedFile>,
}

impl Opened {
    pub(super) fn engine(&self) -> Engine {
        if self.mapped.is_some() { Engine::Map } else { Engine::Calls }
    }

    /// To be kept during transactions that write: see [`NoSignal::file_size`]. A mapped file is rarely written to by a call, so it
    /// does that by itself.
    pub(super) fn quiet(&self) -> Option<NoSignal> {
        if self.mapped.is_some() { None } else { NoSignal::file_size() }
    }

    /// Returns `None` if another process ends a transaction at this moment, or was killed there.
    pub(super) fn read<T>(
        &self,
        look: &impl Fn(&Reader<'_>) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        let complete = self.mapped.as_ref().map(MappedFile::complete);
        let txn = match self.env.read_txn() {
            // It found the number of the last page half written.
            Err(Fault::Mdb(MdbError::MapResized)) if complete.is_some() => return Ok(None),
            txn => txn?,
        };
        if let (Some(mapped), Some(complete)) = (&self.mapped, complete)
            && !mapped.is_usable(txn.id() as u64, complete)
        {
            return Ok(None);
        }
        look(&Reader::new(&txn, self.records, self.limit)).map(Some)
    }

    /// Begins a transaction. The caller is the only writer.
    pub(super) fn writer(&self) -> Result<Writer<'_>, Fault> {
        let Some(mapped) = &self.mapped else {
            return Ok(Writer::new(self.env.write_txn()?, self.records, self.limit, None));
        };
        self.undo_unfinished()?;
        let mut txn = self.env.write_txn()?;
        if mapped.is_unfinished() {
            // This process or another one has lost the writer lock, so that one was writing until now.
            mapped.undo_unfinished()?;
            drop(txn);
            txn = self.env.write_txn()?;
        }
        if txn.id() as u64 != mapped.complete() + 1 {
            return Err(Fault::Mdb(MdbError::BadTxn));
        }
        let pages = self.env.info().last_page_number as u64 + 1;
        Ok(Writer::new(txn, self.records, self.limit, Some(FileRoom::new(mapped, pages))))
    }

    /// Undoes what a writer has left that was killed in its commit. The caller is the only writer.
    pub(super) fn undo_unfinished(&self) -> Result<(), Fault> {
        let Some(mapped) = self.mapped.as_ref().filter(|mapped| mapped.is_unfinished()) else {
            return Ok(());
        };
        // For LMDB's mutex. The transaction may begin with what was left, and is not used.
        let _txn = match self.env.write_txn() {
            Err(Fault::Mdb(MdbError::MapResized)) => None,
            txn => Some(txn?),
        };
        Ok(mapped.undo_unfinished()?)
    }

    /// Makes the changes of a transaction. The caller is still the only writer.
    pub(super) fn commit(&self, writer: Writer<'_>) -> Result<(), Fault> {
        let Some(mapped) = &self.mapped else { return writer.commit() };
        let txn = writer.id();
        let begun = mapped.begin(txn);
        if let Err(fault) = writer.commit() {
            // If this fails, the next writer does it.
            let _ = self.undo_unfinished();
            return Err(fault);
        }
        if mapped.end(&begun) {
            return Ok(());
        }
        let what = "the lock on its file `words` was lost, so another process has undone the change";
        Err(Fault::Io(io::Error::other(what)))
    }

    /// Whether LMDB may have marked the environment. With a full reader table it is not known of a file that is written by
    /// write(2), which can fail.
    pub(super) fn is_hosed(&self) -> bool {
        match self.env.read_txn() {
            Ok(_) => false,
            Err(Fault::Mdb(MdbError::Panic)) => true,
            Err(_) => self.mapped.is_none(),
        }
    }
}

/// Returns the size of the map for a file that is full at `limit`.
pub(super) fn map_size(limit: usize) -> usize {
    limit + RESERVE_LEAST.max(limit / RESERVE_PART)
}

/// Opens or creates the environment with the data file `path` and its lock table. The caller is the only writer.
pub(super) fn open_file(path: &Path, table: &File, limit: usize) -> Result<Opened, Fault> {
    let mapped = MappedFile::open(path, table, map_size(limit) as u64)?;
    let engine = if mapped.is_some() { Engine::Map } else { Engine::Calls };
    let (env, records) = open_env(path, limit, engine)?;
    let opened = Opened { env, records, limit, mapped };
    opened.undo_unfinished()?;
    if let Some(mapped) = &opened.mapped {
        // Otherwise LMDB has its numbers at other places than `mapped_file`. Not at once, because another process may write if
        // this one has lost the writer lock.
        let is_right = || {
            let (complete, last) = (mapped.complete(), opened.env.info().last_txn_id as u64);
            complete == last && mapped.has_completed(last)
        };
        let mut tries = 1;
        while !is_right() {
            if tries == OPEN_TRIES {
                return Err(Fault::Mdb(MdbError::VersionMismatch));
            }
            tries += 1;
            time::sleep(Duration::from_millis(1));
        }
    }
    Ok(opened)
}

/// Creates the data file `path`, which is empty. The caller is the only writer.
pub(super) fn create_mapped(path: &Path, limit: usize) -> Result<(), Fault> {
    let (env, _) = open_env(path, limit, Engine::Map)?;
    let page_size = env.unnamed_database_stat().page_size;
    Ok(MappedFile::create(path, u64::from(page_size))?)
}

fn open_env(
    path: &Path,
    limit: usize,
    engine: Engine,
) -> Result<(heed::Env<WithoutTls>, RecordsDatabase), Fault> {
    // Read transactions without thread-local storage need a reader slot only while they run. Thousands of waiting
    // threads need no slots, and a thread that ends leaves none behind.
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(map_size(limit));
    let mut flags = EnvFlags::NO_SUB_DIR | EnvFlags::NO_SYNC | EnvFlags::NO_READ_AHEAD;
    flags.set(EnvFlags::WRITE_MAP, engine == Engine::Map);
    // SAFETY: `heed` warns of flags that endanger the integrity of the file. These flags do not:
    // * NO_SYNC: after a crash of the machine (not of a process) the file may be damaged. It is never opened again
    //   then, because the store keeps it in a directory named after the boot of the machine.
    // * WRITE_MAP lets wild pointers of this process reach the file, and needs what `mapped_file` keeps.
    // * NO_SUB_DIR and NO_READ_AHEAD change only names and read-ahead. NO_LOCK is off.
    unsafe { options.flags(flags) };
    // SAFETY: the map is sound while only LMDB, under LMDB's locks, changes the file.
    // * Other users do not change it: both callers in `lmdb` have checked with `check_private` that the
    //   directory is ours, that no other user may write it, and that it is not on a network file system, where
    //   memory maps and record locks do not work across machines. Files in it are created with mode 1600. Root and
    //   other programs of this user could change it, but they could also change this process's memory.
    // * With `Access::Group` the members of a group may write it. The caller selects this explicitly. Its
    //   documentation says that a member can truncate the file and thereby kill this process. The caller must trust
    //   the members.
    // * This process does not open it twice: one open per directory (`OPEN`, by inode), one thread at a time
    //   (`Turn`). A forked child neither uses nor closes an inherited environment. Its own environment has its own
    //   reader slot and its own record locks, like any other process: fork does not pass record locks on.
    // * No transaction outlives a call of `read` or `write`. A forked child uses no transaction of its parent,
    //   because it checks its process id first.
    // * Killed processes: LMDB's write mutex is robust. LMDB writes data pages before the meta page that refers to
    //   them. Stale reader slots are found by the record locks of their pid and cleared.
    // * With WRITE_MAP, `mapped_file` changes words of page 0 and the numbers of LMDB's last two transactions, by atomic
    //   operations, and keeps commits whole and holes of the file unused.
    // * No access passes the end of a file: the file is at least as long as its meta page says (`check_length` runs
    //   before any read), and the lock file has no holes (`create`).
    let env = unsafe { options.open(path) }?;
    let records = env
        .open_databases_and_commit(env.read_txn()?, |opener, txn| {
            opener.open_database::<Bytes, Bytes>(txn, None).map(CommitOrAbort::<_, ()>::Commit)
        })?
        .commit()
        .flatten();
    // The unnamed database is part of every environment.
    let records = records.ok_or(Fault::Mdb(MdbError::Invalid))?;
    Ok((env, records))
}
