//! Data files that transactions change through the memory map, without a system call.
//!
//! LMDB calls this `MDB_WRITEMAP`. It saves a transaction most of its time, and leaves three things to its user, which
//! this file keeps. They are in page 0, behind what LMDB has there:
//!
//! | offset from [`MARK_AT`] | bytes | content |
//! |---|---|---|
//! | 0 | 8 | [`MAGIC`]: the file is one of this kind |
//! | 8 | 8 | the [`CommitState`] |
//! | 16 | 8 | allocated: so many bytes of the file have their place on the disk |
//! | 24 | 8 | the size of a page |
//!
//! Integers have the byte order of the machine.
//!
//! **A commit takes effect at once.** LMDB writes the page that completes a transaction field by field, in an order that the
//! compiler chooses. A process that is killed in between leaves a page which nothing tells from a complete one. So a transaction
//! is complete when the state says so, and not before: readers begin again until then, and the next writer undoes what a
//! killed one has left. LMDB alternates between two such pages, so the one before is intact. Readers also begin
//! again if the page was reused while they copied it: the writer clears the number in it first.
//!
//! The writer lock is not enough for this, because a process can lose it: see `shared_words`. So whoever undoes a commit holds
//! LMDB's own mutex, and claims the commit: its writer may live and be about to end it.
//!
//! **Room.** The file has its full length from the beginning. A write to a page without a place on the disk kills the process
//! (SIGBUS) if the disk is full. So the writer fills pages with zeros by write(2), which can fail, before a
//! transaction may use them.
//!
//! **Length.** LMDB sets the length of the file at each opening. So all processes use one length, and a file with another one is
//! refused before LMDB opens it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, getrlimit};

use super::file_system::keeps_places;
use super::private::Access;
use crate::runtime::process::signals::NoSignal;

/// Behind LMDB's part of page 0, and within the smallest page.
const MARK_AT: u64 = 2048;
const MARK_BYTES: usize = 32;
const MAGIC: [u8; 8] = *b"dlm-map\x03";
const STATE: usize = 8;
const ALLOCATED: usize = 16;
const PAGE_SIZE: usize = 24;
/// Where LMDB has the number of the transaction in a page that completes one.
const TXN_AT: usize = 0x90;
/// Where LMDB's lock table has the number of the last transaction.
const LAST_TXN_AT: u64 = 8;
/// LMDB's two pages that complete transactions, in turn.
const META_PAGES: u64 = 2;
/// Page sizes that LMDB uses.
const PAGE_SIZES: [u64; 5] = [1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16];

/// What a new file has at once.
const ALLOCATED_FIRST: u64 = 512 << 10;
/// The file gets so much more at a time.
const STEP: u64 = 256 << 10;
/// Pages for renewals and releases on a full disk. While a reader is stopped, each of them takes some for good.
const RESERVE: u64 = 256;
/// Pages that LMDB's own list of free pages may take beside what it lists.
const FOR_THE_LIST: u64 = 32;
/// Bytes of LMDB's list for each page of the file, in the old and in the new form.
const LISTED: u64 = 16;

/// What is done with the transaction after the last complete one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Phase {
    Idle,
    Committing,
    /// Another process undoes it, or was killed while it did.
    Undoing,
}

/// From the lowest bit on: the [`Phase`] (2 bits), the commits that were begun (16 bits, from 0 again after the last), the number of
/// the last complete transaction. A transaction that was undone is begun again with its number, so the count tells the two apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CommitState(u64);

impl CommitState {
    const PHASE_BITS: u32 = 2;
    const COUNT_BITS: u32 = 16;

    fn new(complete: u64, count: u64, phase: Phase) -> CommitState {
        let count = count & ((1 << CommitState::COUNT_BITS) - 1);
        CommitState(((complete << CommitState::COUNT_BITS | count) << CommitState::PHASE_BITS) | phase as u64)
    }

    fn complete(self) -> u64 {
        self.0 >> (CommitState::PHASE_BITS + CommitState::COUNT_BITS)
    }

    fn count(self) -> u64 {
        (self.0 >> CommitState::PHASE_BITS) & ((1 << CommitState::COUNT_BITS) - 1)
    }

    fn is_in(self, phase: Phase) -> bool {
        self == CommitState::new(self.complete(), self.count(), phase)
    }
}

/// A commit that was begun and has to be ended.
#[derive(Debug)]
pub(super) struct Begun {
    state: CommitState,
    txn: u64,
}

/// How transactions change a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// By write(2): on any local file system, and for users who cannot be protected from each other.
    Calls,
    /// Through the memory map.
    Map,
}

impl Engine {
    /// Returns how to change a new file of `length` bytes in `dir`.
    pub(super) fn for_new(dir: &Path, access: Access, length: u64) -> Engine {
        // A wild pointer of one user would reach the processes of others.
        let is_owners = access == Access::Owner;
        // Setting the length of a file fails above this limit.
        let may_be_long = getrlimit(Resource::Fsize).current.is_none_or(|limit| limit >= length);
        // Elsewhere LMDB has its numbers at other places.
        let is_64_bit = cfg!(target_pointer_width = "64");
        if is_owners && may_be_long && is_64_bit && keeps_places(dir) { Engine::Map } else { Engine::Calls }
    }
}

/// An open data file of this kind.
#[derive(Debug)]
pub(super) struct MappedFile {
    file: File,
    /// LMDB's lock table.
    table: File,
    length: u64,
    page_size: u64,
    /// The pages that complete transactions.
    pages: NonNull<u8>,
}

// SAFETY: `pages` points to memory that is shared with other processes. It is accessed by atomic operations only.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Returns whether the file at `path` is of this kind.
    pub(super) fn is_at(path: &Path) -> io::Result<bool> {
        Ok(read_mark(&File::open(path)?)?.is_some())
    }

    /// Opens the file at `path` if it is of this kind. `table` is its lock table.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if it does not have `length` bytes, or is damaged.
    pub(super) fn open(path: &Path, table: &File, length: u64) -> io::Result<Option<MappedFile>> {
        let file = File::options().read(true).write(true).open(path)?;
        let Some(mark) = read_mark(&file)? else { return Ok(None) };
        let mut page_size = [0; 8];
        page_size.copy_from_slice(&mark[PAGE_SIZE..]);
        let page_size = u64::from_ne_bytes(page_size);
        if file.metadata()?.len() != length || !PAGE_SIZES.contains(&page_size) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its file does not have the length of the store",
            ));
        }
        MappedFile::map(file, table.try_clone()?, length, page_size).map(Some)
    }

    fn map(file: File, table: File, length: u64, page_size: u64) -> io::Result<MappedFile> {
        let bytes = (META_PAGES * page_size) as usize;
        // SAFETY: a new mapping, at an address that the kernel chooses. The file has these pages: its length was checked,
        // and the conditions at `open_file` keep others from cutting it.
        let pages = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        }?;
        let pages = NonNull::new(pages.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(MappedFile { file, table, length, page_size, pages })
    }

    /// Makes the file at `path`, which LMDB has just created with its full length, one of this kind.
    pub(super) fn create(path: &Path, page_size: u64) -> io::Result<()> {
        let file = File::options().write(true).open(path)?;
        let length = file.metadata()?.len();
        let first = ALLOCATED_FIRST.min(length);
        allocate(&file, META_PAGES * page_size, first).1?;
        let mut mark = [0; MARK_BYTES];
        mark[..MAGIC.len()].copy_from_slice(&MAGIC);
        mark[ALLOCATED..PAGE_SIZE].copy_from_slice(&first.to_ne_bytes());
        mark[PAGE_SIZE..].copy_from_slice(&page_size.to_ne_bytes());
        file.write_all_at(&mark, MARK_AT)
    }

    /// Returns the word of the mark at this offset.
    fn mark(&self, offset: usize) -> &AtomicU64 {
        self.word(MARK_AT as usize + offset)
    }

    /// Returns the number that LMDB compares, of the page in which this transaction is completed.
    fn completed(&self, txn: u64) -> &AtomicU64 {
        self.word((txn % META_PAGES * self.page_size) as usize + TXN_AT)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the callers pass offsets within the mapping that are multiples of 8, and the mapping lives as long as
        // `self`. Other processes and LMDB change these words as whole words, which is what an atomic allows for.
        unsafe { AtomicU64::from_ptr(self.pages.as_ptr().add(offset).cast()) }
    }

    /// Returns the number of the last complete transaction.
    pub(super) fn complete(&self) -> u64 {
        self.state().complete()
    }

    fn state(&self) -> CommitState {
        CommitState(self.mark(STATE).load(Ordering::SeqCst))
    }

    /// Returns whether a reader may use this transaction, with which LMDB has begun it after `complete` was read.
    pub(super) fn is_usable(&self, txn: u64, complete: u64) -> bool {
        fence(Ordering::SeqCst);
        txn <= complete && self.has_completed(txn)
    }

    /// Returns whether LMDB's page says that it completes this transaction.
    pub(super) fn has_completed(&self, txn: u64) -> bool {
        self.completed(txn).load(Ordering::SeqCst) == txn
    }

    /// Notes that this transaction is about to be committed. The caller holds LMDB's mutex.
    pub(super) fn begin(&self, txn: u64) -> Begun {
        let state = CommitState::new(txn - 1, self.state().count() + 1, Phase::Committing);
        self.mark(STATE).store(state.0, Ordering::SeqCst);
        self.completed(txn).store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Begun { state, txn }
    }

    /// Completes a transaction, which LMDB has committed. Returns `false` if another process has undone it.
    #[must_use]
    pub(super) fn end(&self, begun: &Begun) -> bool {
        // LMDB writes nothing if nothing has changed, and gives the next one this number.
        let complete = if self.has_completed(begun.txn) { begun.txn } else { begun.txn - 1 };
        self.proceed(begun.state, CommitState::new(complete, begun.state.count(), Phase::Idle))
    }

    fn proceed(&self, from: CommitState, to: CommitState) -> bool {
        self.mark(STATE).compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Returns whether a commit was begun and has not ended.
    pub(super) fn is_unfinished(&self) -> bool {
        !self.state().is_in(Phase::Idle)
    }

    /// Undoes what a writer has left that was killed in its commit. The caller holds LMDB's mutex. May be repeated, because
    /// this process may be killed too.
    pub(super) fn undo_unfinished(&self) -> io::Result<()> {
        let state = self.state();
        let (complete, count) = (state.complete(), state.count());
        let is_claimed = state.is_in(Phase::Undoing)
            || state.is_in(Phase::Committing)
                && self.proceed(state, CommitState::new(complete, count, Phase::Undoing));
        if !is_claimed {
            return Ok(());
        }
        self.completed(complete + 1).store(0, Ordering::SeqCst);
        let _quiet = NoSignal::file_size();
        self.table.write_all_at(&complete.to_ne_bytes(), LAST_TXN_AT)?;
        self.mark(STATE).store(CommitState::new(complete, count, Phase::Idle).0, Ordering::SeqCst);
        Ok(())
    }

    /// Gives the file room for a transaction after which up to `pages` of its pages are used. `used` are used before it.
    pub(super) fn make_room(&self, used: u64, pages: u64) -> io::Result<()> {
        // With these, LMDB lists the pages that are free.
        let listed = (pages * LISTED).div_ceil(self.page_size) + FOR_THE_LIST;
        let needed = ((pages + listed) * self.page_size).min(self.length);
        let allocated = self.mark(ALLOCATED).load(Ordering::Acquire);
        debug_assert!(used * self.page_size <= allocated, "a transaction has used more than it had room for");
        if needed <= allocated {
            return Ok(());
        }
        let _quiet = NoSignal::file_size();
        // Never what is used, whatever the mark says.
        let from = allocated.max(used * self.page_size);
        let (now, filled) = allocate(&self.file, from, (needed + STEP).min(self.length));
        self.mark(ALLOCATED).store(now, Ordering::SeqCst);
        if now >= needed { Ok(()) } else { filled }
    }

    /// Like [`make_room`](MappedFile::make_room), and leaves room for what matters more.
    pub(super) fn make_room_and_reserve(&self, used: u64, pages: u64) -> io::Result<()> {
        self.make_room(used, pages + RESERVE)
    }

    /// Returns how many pages a value takes that has no place beside its key.
    pub(super) fn pages_of(&self, value: usize) -> u64 {
        value as u64 / self.page_size + 1
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made. No reference to it outlives `self`.
        let _ = unsafe { munmap(self.pages.as_ptr().cast(), (META_PAGES * self.page_size) as usize) };
    }
}

/// Returns the mark of a file that is of this kind.
fn read_mark(file: &File) -> io::Result<Option<[u8; MARK_BYTES]>> {
    let mut mark = [0; MARK_BYTES];
    match file.read_exact_at(&mut mark, MARK_AT) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        read => read.map(|()| mark.starts_with(&MAGIC).then_some(mark)),
    }
}

/// Fills these bytes of the file, which nobody has used yet, with zeros. Returns up to where it was done.
fn allocate(file: &File, from: u64, to: u64) -> (u64, io::Result<()>) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut at = from;
    while at < to {
        let length = (to - at).min(ZEROS.len() as u64);
        if let Err(error) = file.write_all_at(&ZEROS[..length as usize], at) {
            return (at, Err(error));
        }
        at += length;
    }
    (at, Ok(()))
}
