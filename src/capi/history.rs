//! What C sees of the history of a lock.

use std::ffi::{CString, c_char};
use std::time::{Duration, UNIX_EPOCH};

use super::answer::answer;
use super::arguments::millis;
use super::error::dlm_error;
use super::guard::{freeing, value};
use super::handles::HandleTable;
use super::lock::dlm_lock;
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::status::dlm_status;
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

/// Returns what happened: "acquired", "released", "lost", "broken" or "not broken"; later versions may add others. "" after
/// the last entry. The text lives until `history` is freed. Never returns NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_history_kind(history: *const dlm_history, index: usize) -> *const c_char {
    // No text moves while the table holds the history. This also holds for the functions below.
    text_at(history, index, |texts| &texts.kind)
}

/// Returns who wrote the entry: the holder, or whoever broke the lock. "" after the last entry. The text lives until
/// `history` is freed. Never returns NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_history_by(history: *const dlm_history, index: usize) -> *const c_char {
    text_at(history, index, |texts| &texts.by)
}

/// Returns the holder of a lock that was broken, or "". The text lives until `history` is freed. Never returns NULL. Never
/// blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_history_victim(history: *const dlm_history, index: usize) -> *const c_char {
    text_at(history, index, |texts| &texts.victim)
}

/// Returns why a lock was broken or lost, or "". The text lives until `history` is freed. Never returns NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_history_text(history: *const dlm_history, index: usize) -> *const c_char {
    text_at(history, index, |texts| &texts.text)
}

/// Returns when it happened, in milliseconds since 1970, by the clock of the process that wrote the entry. -1 after the last
/// entry. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_history_at_ms(history: *const dlm_history, index: usize) -> i64 {
    let at = |entry: &HistoryEntry| i64::try_from(entry.at_ms).unwrap_or(i64::MAX);
    value(-1, || Ok(find(history)?.0.get(index).map_or(-1, |(entry, _)| at(entry))))
}

/// Returns how long the caller waited ("acquired"), or for how long the lock was held ("released", "lost"), in milliseconds.
/// -1 for others, and after the last entry. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_history_took_ms(history: *const dlm_history, index: usize) -> i64 {
    value(-1, || Ok(find(history)?.0.get(index).and_then(|(entry, _)| entry.took).map_or(-1, millis)))
}

/// Returns the fence of the grant, or 0 if there is none. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_history_fence(history: *const dlm_history, index: usize) -> u64 {
    value(0, || Ok(find(history)?.0.get(index).and_then(|(entry, _)| entry.fence).map_or(0, |fence| fence.0)))
}

/// Frees a history. NULL is allowed. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_history_free(history: *mut dlm_history) {
    freeing(|| free(history));
}

fn text_at(history: *const dlm_history, index: usize, text: fn(&EntryTexts) -> &CString) -> *const c_char {
    value(c"".as_ptr(), || {
        Ok(find(history)?.0.get(index).map_or(c"".as_ptr(), |(_, texts)| text(texts).as_ptr()))
    })
}
