use std::ffi::c_void;

use super::arguments::slice;
use super::failure::Outcome;

/// Some bytes of the caller's: a key, or a column. The call copies them.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct dlm_bytes {
    /// Not NULL, also where there are none.
    pub bytes: *const c_void,
    /// How many there are. A text's NUL is none of them: see DLM_TEXT.
    pub size: usize,
}

/// # Safety
/// As of [`slice`], and so are the bytes of each.
pub(super) unsafe fn list<'a>(what: &str, items: *const dlm_bytes, count: usize) -> Outcome<Vec<&'a [u8]>> {
    // SAFETY: passed on.
    unsafe {
        let items = slice(what, items, count)?;
        items
            .iter()
            .map(|item| slice(&format!("bytes of one of the {what}"), item.bytes.cast(), item.size))
            .collect()
    }
}
