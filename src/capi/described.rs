//! Texts that C reads of an object. Each lives as long as the handle, so that no caller has to free it or to know its length.

use std::ffi::{CString, c_char};
use std::ops::Deref;
use std::sync::OnceLock;

/// A text that is made when it is first read. It does not move after that.
#[derive(Debug, Default)]
pub(super) struct KeptText(OnceLock<CString>);

impl KeptText {
    /// Returns the text, which is made by `text` unless it was made before.
    pub(super) fn get(&self, text: impl FnOnce() -> String) -> *const c_char {
        // No name, URI or token of this library contains NUL.
        let made = || CString::new(text().replace('\0', "?")).unwrap_or_default();
        self.0.get_or_init(made).as_ptr()
    }
}

/// The object of a handle, with its name or the like.
#[derive(Debug)]
pub(super) struct Described<T> {
    object: T,
    text: KeptText,
}

impl<T> Described<T> {
    /// Returns the text of the object. It lives as long as the table has the object.
    pub(super) fn text(&self, text: impl FnOnce(&T) -> String) -> *const c_char {
        self.text.get(|| text(&self.object))
    }
}

impl<T> From<T> for Described<T> {
    fn from(object: T) -> Described<T> {
        Described { object, text: KeptText::default() }
    }
}

impl<T> Deref for Described<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}
