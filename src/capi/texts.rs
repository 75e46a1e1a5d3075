use std::ffi::{CString, c_char};

use super::guard::{freeing, value};
use super::handles::HandleTable;
use super::process::{Handle, PerProcess, find, free};

/// A list of texts, such as the names of participants, or one text that is made for the caller.
pub struct dlm_texts(());

static TEXT_LISTS: PerProcess<HandleTable<TextList>> = PerProcess::new();

impl Handle for dlm_texts {
    type Object = TextList;
    const NAME: &str = "dlm_texts";
    const KIND: u8 = 11;
    fn table() -> &'static PerProcess<HandleTable<TextList>> {
        &TEXT_LISTS
    }
}

#[derive(Debug)]
pub(super) struct TextList(Vec<CString>);

impl TextList {
    /// Drops texts that contain NUL. No text of this library does: control characters are not allowed in names.
    pub(super) fn new(texts: Vec<String>) -> TextList {
        TextList(texts.into_iter().filter_map(|text| CString::new(text).ok()).collect())
    }
}

/// Returns the number of texts; 0 for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_texts_count(texts: *const dlm_texts) -> usize {
    value(0, || Ok(find(texts)?.0.len()))
}

/// Returns the text at `index`, from 0, or "" after the last one. Names of participants are sorted. The text lives until
/// `texts` is freed. Never returns NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_texts_at(texts: *const dlm_texts, index: usize) -> *const c_char {
    // The text does not move while the table holds the list.
    value(c"".as_ptr(), || Ok(find(texts)?.0.get(index).map_or(c"".as_ptr(), |text| text.as_ptr())))
}

/// Frees a list of texts. NULL is allowed. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_texts_free(texts: *mut dlm_texts) {
    freeing(|| free(texts));
}
