use std::ffi::{CString, c_char};

use super::guard::{freeing, value};
use super::handles::HandleTable;
use super::process::{Handle, PerProcess, find, free};

/// A list of texts, such as the names of participants.
pub struct dlm_names(());

static NAME_LISTS: PerProcess<HandleTable<Names>> = PerProcess::new();

impl Handle for dlm_names {
    type Object = Names;
    const NAME: &str = "dlm_names";
    const KIND: u8 = 11;
    fn table() -> &'static PerProcess<HandleTable<Names>> {
        &NAME_LISTS
    }
}

#[derive(Debug)]
pub(super) struct Names(Vec<CString>);

impl Names {
    /// Drops names that contain NUL. No name of this library does: control characters are not allowed.
    pub(super) fn new(names: Vec<String>) -> Names {
        Names(names.into_iter().filter_map(|name| CString::new(name).ok()).collect())
    }
}

/// Returns the number of names; 0 for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_names_count(names: *const dlm_names) -> usize {
    value(0, || Ok(find(names)?.0.len()))
}

/// Returns the text at `index`, from 0, or "" after the last one. Names are sorted. The text lives until
/// `names` is freed. Never returns NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_names_at(names: *const dlm_names, index: usize) -> *const c_char {
    // The text does not move while the table holds the list.
    value(c"".as_ptr(), || Ok(find(names)?.0.get(index).map_or(c"".as_ptr(), |name| name.as_ptr())))
}

/// Frees a list of names. NULL is allowed. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_names_free(names: *mut dlm_names) {
    freeing(|| free(names));
}
