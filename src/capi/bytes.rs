use std::ffi::c_void;

use super::arguments::slice;
use super::failure::Outcome;

/// Bytes of a key or a column. Calls copy them. This struct never gets more fields.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct dlm_bytes {
    /// Must not be NULL, even if `size` is 0.
    pub bytes: *const c_void,
    /// Number of bytes. The NUL at the end of a text does not count, see DLM_TEXT.
    pub size: usize,
}

/// The caller's byte strings.
///
/// # Safety
/// `items` and the bytes of each item are as [`slice`] asks.
pub(super) unsafe fn list<'a>(what: &str, items: *const dlm_bytes, count: usize) -> Outcome<Vec<&'a [u8]>> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let items = slice(what, items, count)?;
        items
            .iter()
            .map(|item| slice(&format!("bytes of one of the {what}"), item.bytes.cast(), item.size))
            .collect()
    }
}
