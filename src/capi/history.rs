//! What C sees of the history of a lock.

use std::ffi::{CString, c_char};
use std::time::{Duration, UNIX_EPOCH};

use super::answer::answer;
use super::arguments::{millis, mode_number};
use super::error::dlm_error;
use super::guard::{freeing, value};
use super::handles::HandleTable;
use super::lock::dlm_lock;
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::status::dlm_status;
use super::structs::{Versioned, found_struct};
use crate::HistoryEntry;

/// What happened to a lock, the newest entry first.
pub struct dlm_history(());

static HISTORIES: PerProcess<HandleTable<LockHistory>> = PerProcess::new();

impl Handle for dlm_history {
    type Object = LockHistory;
    const NAME: &str = "dlm_history";
    const KIND: u8 = 21;
    fn table() -> &'static PerProcess<HandleTable<LockHistory>> {
        &HISTORIES
    }
}

#[derive(Debug)]
pub(super) struct LockHistory(Vec<(HistoryEntry, EntryTexts)>);

/// The texts of an entry, as C reads them.
#[derive(Debug)]
struct EntryTexts {
    kind: CString,
    by: CString,
    victim: CString,
    text: CString,
}

impl EntryTexts {
    fn of(entry: &HistoryEntry) -> EntryTexts {
        let text = |text: String| CString::new(text.replace('\0', "?")).unwrap_or_default();
        EntryTexts {
            kind: text(entry.kind.name().to_owned()),
            by: text(entry.by.to_string()),
            victim: text(entry.victim.as_ref().map(ToString::to_string).unwrap_or_default()),
            text: text(entry.text.clone()),
        }
    }
}

impl LockHistory {
    fn at(&self, index: usize) -> Option<dlm_history_entry> {
        let (entry, texts) = self.0.get(index)?;
        Some(dlm_history_entry {
            // No text moves while the table holds the history.
            kind: texts.kind.as_ptr(),
            by: texts.by.as_ptr(),
            victim: texts.victim.as_ptr(),
            text: texts.text.as_ptr(),
            at_ms: i64::try_from(entry.at_ms).unwrap_or(i64::MAX),
            took_ms: entry.took.map_or(-1, millis),
            fence: entry.fence.map_or(0, |fence| fence.0),
            mode: mode_number(entry.mode),
            mode_before: entry.mode_before.map_or(0, mode_number),
        })
    }
}

/// An entry of a history. Its texts live until the dlm_history is freed. Later versions append fields.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct dlm_history_entry {
    /// What happened: "acquired", "released", "lost", "broken", "not broken" or "mode changed". Later versions may add others.
    pub kind: *const c_char,
    /// The process that wrote the entry: the holder, or the one that broke the lock.
    pub by: *const c_char,
    /// The holder of a lock that was broken, or "".
    pub victim: *const c_char,
    /// Why a lock was broken or lost, or "".
    pub text: *const c_char,
    /// When it happened, in milliseconds since 1970, by the clock of the process that wrote the entry.
    pub at_ms: i64,
    /// How long the caller waited ("acquired"), or for how long the lock was held ("released", "lost"; "mode changed": in the
    /// mode before), in milliseconds. -1 for others.
    pub took_ms: i64,
    /// The fence of the grant, or 0 if there is none.
    pub fence: u64,
    /// How the lock is or was held: 0 exclusive, 1 shared, 2 update, 3 a permit of a semaphore. Later versions may add others.
    pub mode: i32,
    /// How it was held before, for "mode changed". 0 for others.
    pub mode_before: i32,
}

// SAFETY: numbers and pointers.
unsafe impl Versioned for dlm_history_entry {
    const NAME: &str = "dlm_history_entry";
    const FIRST: usize = 56;
}

/// Reads the newest entries of the lock's history that are not older than `since_ms`, in milliseconds since 1970, at most
/// `most` and 256. Entries are there only if the holders' managers have the option history, except those about breaks.
/// Blocks for one or a few reads of the store. On DLM_OK the caller owns `*history_out`.
///
/// Errors: those of dlm_lock_inspect(); DLM_INVALID_ARGUMENT also if the store keeps no history.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_history(
    lock: *const dlm_lock,
    since_ms: u64,
    most: usize,
    history_out: *mut *mut dlm_history,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("history_out", history_out, error_out, || {
            let since = UNIX_EPOCH.checked_add(Duration::from_millis(since_ms));
            let entries = find(lock)?.history(since, most)?;
            let entries = entries.into_iter().map(|entry| {
                let texts = EntryTexts::of(&entry);
                (entry, texts)
            });
            into_handle(LockHistory(entries.collect()))
        })
    }
}

/// Returns the number of entries; 0 for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_history_count(history: *const dlm_history) -> usize {
    value(0, || Ok(find(history)?.0.len()))
}

/// Writes the entry at `index`, from 0, to `*entry_out`. `entry_size` is sizeof(struct dlm_history_entry). Returns false after
/// the last entry and for NULL: all fields are then NULL or 0. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_history_at(
    history: *const dlm_history,
    index: usize,
    entry_out: *mut dlm_history_entry,
    entry_size: usize,
) -> bool {
    // SAFETY: the output is as the header asks.
    unsafe { found_struct(entry_out, entry_size, || Ok(find(history)?.at(index))) }
}

/// Frees a history. NULL is allowed. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_history_free(history: *mut dlm_history) {
    freeing(|| free(history));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Identity;
    use crate::{HistoryKind, Mode};

    /// No program in C makes such an entry itself.
    #[test]
    fn an_entry_has_the_numbers_of_its_modes() {
        let by = Identity { host: "h".into(), pid: 1, start_ms: 7, purpose: String::new(), notices: None };
        let change = HistoryEntry {
            mode: Mode::Shared,
            mode_before: Some(Mode::Update),
            ..HistoryEntry::now(HistoryKind::ModeChanged, &by)
        };
        let shared = HistoryEntry { mode: Mode::Shared, ..HistoryEntry::now(HistoryKind::Acquired, &by) };
        let with_texts = |entry: HistoryEntry| {
            let texts = EntryTexts::of(&entry);
            (entry, texts)
        };
        let history = LockHistory([change, shared].map(with_texts).into());
        let modes = [0, 1].map(|at| history.at(at).map(|entry| (entry.mode, entry.mode_before)));
        assert_eq!(modes, [Some((1, 2)), Some((1, 0))]);
    }
}
