//! What C sees of a list of locks.

use std::ffi::{CString, c_char};

use super::answer::answer;
use super::arguments::text;
use super::error::dlm_error;
use super::failure::Failure;
use super::guard::{freeing, value};
use super::handles::HandleTable;
use super::inspection::{dlm_inspection, inspected};
use super::lock::dlm_lock;
use super::manager::dlm_manager;
use super::process::{Handle, PerProcess, find, free, into_handle};
use super::status::dlm_status;
use crate::store::Inspection;
use crate::{
    Holder, LockName,
    store::{ListCursor, ListedLock, LockPage, LockQuery},
};

/// A page of a list of locks, or the holders of one lock.
pub struct dlm_lock_list(());

static LOCK_LISTS: PerProcess<HandleTable<LockList>> = PerProcess::new();

impl Handle for dlm_lock_list {
    type Object = LockList;
    const NAME: &str = "dlm_lock_list";
    const KIND: u8 = 19;
    fn table() -> &'static PerProcess<HandleTable<LockList>> {
        &LOCK_LISTS
    }
}

#[derive(Debug)]
pub(super) struct LockList {
    locks: Vec<(CString, ListedLock)>,
    next: CString,
}

impl LockList {
    fn of(page: LockPage) -> LockList {
        let named = |lock: ListedLock| Some((CString::new(lock.key.as_str()).ok()?, lock));
        let next = page.next.map(|next| next.to_string()).unwrap_or_default();
        LockList {
            // No name contains NUL.
            locks: page.locks.into_iter().filter_map(named).collect(),
            next: CString::new(next).unwrap_or_default(),
        }
    }

    /// Makes a list in which each element is one holder of the lock.
    pub(super) fn of_holders(name: &LockName, holders: Vec<Holder>) -> LockList {
        let held = |holder| ListedLock { holder: Some(holder), ..ListedLock::new(name.clone()) };
        LockList::of(LockPage::new(holders.into_iter().map(held).collect(), None))
    }
}

/// Reads one page of the locks of the store, of all clients, whose full names begin with `prefix`, such as
/// "XDC#order-service#"; "" reads all. With `held_only` only locks that are held, otherwise also free locks
/// that the store still remembers. `after` is NULL or "" for the first page, and then dlm_lock_list_next() of the page
/// before. Blocks for one call to the store. On DLM_OK the caller owns `*list_out`.
///
/// The list is no snapshot. Over all pages, a lock that is held all the time is listed exactly once, and one that is free
/// all the time is not listed as held. Pages are in no particular order, and may be empty before the last one.
///
/// Errors: those of dlm_lock_inspect(); DLM_INVALID_ARGUMENT also for `after` of another list and for a store that cannot
/// list its locks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_list(
    manager: *const dlm_manager,
    prefix: *const c_char,
    held_only: bool,
    after: *const c_char,
    list_out: *mut *mut dlm_lock_list,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("list_out", list_out, error_out, || {
            let query = LockQuery::new().prefix(text("prefix", prefix)?);
            let query = if held_only { query.held_only() } else { query };
            let after = if after.is_null() { "" } else { text("text after", after)? };
            let after = if after.is_empty() { None } else { Some(ListCursor::parse(after)?) };
            into_handle(LockList::of(find(manager)?.lock_page(&query, after.as_ref())?))
        })
    }
}

/// Reads all that hold the lock: one exclusive holder, or any number of others, the one whose lease ends last first. It is a list
/// whose elements are inspections of one holder each, see dlm_lock_list_inspection(). Blocks for one or two reads of the store. On
/// DLM_OK the caller owns `*list_out`.
///
/// Errors: those of dlm_lock_inspect().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_holders(
    lock: *const dlm_lock,
    list_out: *mut *mut dlm_lock_list,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("list_out", list_out, error_out, || {
            let lock = find(lock)?;
            into_handle(LockList::of_holders(lock.name(), lock.holders()?))
        })
    }
}

/// Returns the number of locks in the page; 0 for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_list_count(list: *const dlm_lock_list) -> usize {
    value(0, || Ok(find(list)?.locks.len()))
}

/// Returns the full name of the lock at `index`, from 0, or "" after the last one. For a record that does not contain the
/// name of its lock it says which record it is. The text lives until `list` is freed. Never returns NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_list_key(list: *const dlm_lock_list, index: usize) -> *const c_char {
    // The text does not move while the table holds the list.
    value(c"".as_ptr(), || Ok(find(list)?.locks.get(index).map_or(c"".as_ptr(), |(key, _)| key.as_ptr())))
}

/// Returns whether the record at `index` contains the name of its lock: see dlm_manager_lock_named(). Records of the Java
/// library in Aerospike do not. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_list_is_named(list: *const dlm_lock_list, index: usize) -> bool {
    value(false, || Ok(find(list)?.locks.get(index).is_some_and(|(_, lock)| lock.name.is_some())))
}

/// Writes who holds the lock at `index` to `*inspection_out`, as dlm_lock_inspect() does. The fence is 0 unless the store
/// has it in the same record. Never blocks.
///
/// Errors: DLM_INVALID_ARGUMENT if there is no lock at `index`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_list_inspection(
    list: *const dlm_lock_list,
    index: usize,
    inspection_out: *mut dlm_inspection,
    inspection_size: usize,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        inspected(inspection_out, inspection_size, error_out, || {
            let list = find(list)?;
            let (_, lock) = list.locks.get(index).ok_or_else(|| {
                Failure::invalid(format!("index {index} is not allowed: below {}", list.locks.len()))
            })?;
            let ListedLock { holder, fence, layout, .. } = lock.clone();
            Ok(dlm_inspection::of(&Inspection { holder, fence, layout, grant: None }))
        })
    }
}

/// Returns where the next page begins, or "" after the last one. The text lives until `list` is freed. Never returns
/// NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_list_next(list: *const dlm_lock_list) -> *const c_char {
    // The text does not move while the table holds the list.
    value(c"".as_ptr(), || Ok(find(list)?.next.as_ptr()))
}

/// Frees a page. NULL is allowed. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_lock_list_free(list: *mut dlm_lock_list) {
    freeing(|| free(list));
}

/// Creates a handle of the lock with this full name, such as "XDC#order-service#order-42", which may be one of another
/// client: for tools that look after the locks of a fleet. Does no I/O and never blocks. On DLM_OK the caller owns
/// `*lock_out`.
///
/// Errors: DLM_INVALID_ARGUMENT also if the text is not the full name of a lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_manager_lock_named(
    manager: *const dlm_manager,
    full_name: *const c_char,
    lock_out: *mut *mut dlm_lock,
    error_out: *mut *mut dlm_error,
) -> dlm_status {
    // SAFETY: all pointers are as the header asks.
    unsafe {
        answer("lock_out", lock_out, error_out, || {
            let manager = find(manager)?;
            into_handle(manager.lock_named(&LockName::from_key(text("full name", full_name)?)?))
        })
    }
}
