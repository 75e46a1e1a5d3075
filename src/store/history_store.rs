//! The contract between histories of locks and the stores.

use std::time::Duration;

use crate::error::Result;
use crate::names::history_entry::HistoryEntry;
use crate::names::lock_name::LockName;
use crate::runtime::time::Deadline;

/// Most entries of one lock that a store keeps, if it limits their number. The oldest are dropped first.
pub const HISTORY_MAX: usize = 256;

/// What entries are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HistoryOf<'a> {
    /// All that happened to a lock.
    Lock(&'a LockName),
    /// The breaks of one grant of it, by the number that [`LockStore::grant_number`](super::LockStore::grant_number) returns.
    /// They have a place of their own: what happens to the lock afterwards does not drop them.
    Grant(&'a LockName, u64),
}

impl<'a> HistoryOf<'a> {
    /// Returns the lock.
    pub fn name(self) -> &'a LockName {
        let (HistoryOf::Lock(name) | HistoryOf::Grant(name, _)) = self;
        name
    }

    /// Returns the bytes of the grant's number; none for a lock.
    pub(super) fn grant_bytes(self) -> Vec<u8> {
        match self {
            HistoryOf::Lock(_) => Vec::new(),
            HistoryOf::Grant(_, grant) => grant.to_be_bytes().to_vec(),
        }
    }
}

/// The histories of locks in a store: see [`LockStore::history`](super::LockStore::history).
///
/// A history is for people. No grant depends on it, and an entry may be missing: a process may end before it has written
/// one. Methods block, fail and may be used from several threads as those of [`LockStore`](super::LockStore) are.
pub trait HistoryStore: Send + Sync {
    /// Adds an entry. Adding the same entry again changes nothing. The store keeps it for `lasts` at least, unless there are
    /// more than [`HISTORY_MAX`] about the same.
    fn append(&self, of: HistoryOf<'_>, entry: &HistoryEntry, lasts: Duration, by: Deadline) -> Result<()>;

    /// Returns the newest entries that are not older than `since_ms` (milliseconds since 1970), at most `most` and
    /// [`HISTORY_MAX`], the newest first by the time in the entries.
    fn entries(
        &self,
        of: HistoryOf<'_>,
        since_ms: u64,
        most: usize,
        by: Deadline,
    ) -> Result<Vec<HistoryEntry>>;
}

/// Returns the newest of these entries, the newest first.
pub(super) fn newest(mut entries: Vec<HistoryEntry>, since_ms: u64, most: usize) -> Vec<HistoryEntry> {
    entries.retain(|entry| entry.at_ms >= since_ms);
    entries.sort_unstable_by_key(|entry| std::cmp::Reverse((entry.at_ms, entry.id)));
    entries.truncate(most.min(HISTORY_MAX));
    entries
}
