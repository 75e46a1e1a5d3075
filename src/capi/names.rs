use std::ffi::{CString, c_char};

use super::guard::{freeing, value};
use super::handles::HandleTable;
use super::process::{Handle, PerProcess, find, free};

/// A list of names.
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
    /// Control characters, NUL among them, are not allowed in the names of this library.
    pub(super) fn new(names: Vec<String>) -> Names {
        Names(names.into_iter().filter_map(|name| CString::new(name).ok()).collect())
    }
}

/// How many names there are; 0 for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_names_count(names: *const dlm_names) -> usize {
    value(0, || Ok(find(names)?.0.len()))
}

/// The name at `index`, from 0; "" beyond the last. They are sorted. Lives as long as `names`. Never NULL.
/// Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_names_at(names: *const dlm_names, index: usize) -> *const c_char {
    // The text stays where it is for as long as the table has the list.
    value(c"".as_ptr(), || Ok(find(names)?.0.get(index).map_or(c"".as_ptr(), |name| name.as_ptr())))
}

/// Frees a list of names. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_names_free(names: *mut dlm_names) {
    freeing(|| free(names));
}
