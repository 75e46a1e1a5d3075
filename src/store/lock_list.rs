//! Lists of the locks in a store, page by page.

use std::fmt;

use crate::error::{Error, Result};
use crate::names::fence::Fence;
use crate::names::holder::Holder;
use crate::names::lock_name::{KEY_BYTES_MAX, LockName};

/// Which locks a list contains. Default: all locks that the store remembers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "pass it to LockManager::locks"]
pub struct LockQuery {
    prefix: String,
    held_only: bool,
}

impl LockQuery {
    /// Returns the query for all locks that the store remembers.
    pub fn new() -> LockQuery {
        LockQuery::default()
    }

    /// Only locks whose full names begin with this text, such as `XDC#order-service#`. A full name is what
    /// [`LockName::key`] returns.
    pub fn prefix(mut self, prefix: &str) -> LockQuery {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Only locks that are held. Without this, the list also has free locks of which the store still has a record. Stores
    /// forget free locks: `embedded:` at once, others when a record expires.
    pub fn held_only(mut self) -> LockQuery {
        self.held_only = true;
        self
    }

    /// Returns the text with which the full names begin.
    pub fn prefix_text(&self) -> &str {
        &self.prefix
    }

    /// Returns whether free locks are left out.
    pub fn is_held_only(&self) -> bool {
        self.held_only
    }

    /// # Errors
    /// INVALID_ARGUMENT for a prefix that no name can have.
    pub(crate) fn check(&self) -> Result<()> {
        if self.prefix.len() <= KEY_BYTES_MAX && !self.prefix.contains('\0') {
            return Ok(());
        }
        let allowed = format!("0 to {KEY_BYTES_MAX} bytes without NUL");
        Err(Error::invalid("prefix", &self.prefix, allowed))
    }
}

/// Where the next page of a list begins. Only the store that made it understands it, and only for the same query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListCursor(Box<[u8]>);

impl ListCursor {
    /// Makes a cursor, for stores.
    pub fn from_bytes(bytes: impl Into<Box<[u8]>>) -> ListCursor {
        ListCursor(bytes.into())
    }

    /// Returns the bytes, for stores.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads what [`Display`](fmt::Display) wrote.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) for any other text.
    pub fn parse(text: &str) -> Result<ListCursor> {
        let refused = || Error::invalid("cursor", text, "the text of a cursor of this list");
        if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) || !text.len().is_multiple_of(2) {
            return Err(refused());
        }
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| refused());
        let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect::<Result<_>>()?;
        Ok(ListCursor(bytes.into()))
    }

    /// Returns the error INVALID_ARGUMENT, for a store that did not make this cursor.
    pub fn refused(&self) -> Error {
        Error::invalid("cursor", self.to_string(), "a cursor of this list")
    }
}

/// Writes the bytes in hexadecimal digits.
impl fmt::Display for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A lock in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedLock {
    /// The lock. `None` if its record does not contain its name: a record of the Java library in Aerospike, or of a
    /// version of this library that did not write the name.
    pub name: Option<LockName>,
    /// The full name of the lock. For a record without a name: the set, and the digest of the key in hexadecimal digits.
    pub key: String,
    /// The holder; `None` if the lock is free.
    pub holder: Option<Holder>,
    /// The fence of the last grant, if the store has it in the same record.
    pub fence: Option<Fence>,
    /// The layout of the record, if the store has several.
    pub layout: Option<&'static str>,
}

impl ListedLock {
    /// Makes a lock with this name that is free, for stores.
    pub fn new(name: LockName) -> ListedLock {
        let key = name.key().to_owned();
        ListedLock { name: Some(name), key, holder: None, fence: None, layout: None }
    }

    /// Makes a lock whose name is not known, for stores. `key` says which record it is.
    pub fn unnamed(key: String) -> ListedLock {
        ListedLock { name: None, key, holder: None, fence: None, layout: None }
    }
}

/// A part of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockPage {
    /// The locks of this page, in no particular order. A page may be empty and not be the last one.
    pub locks: Vec<ListedLock>,
    /// Where the next page begins; `None` after the last page.
    pub next: Option<ListCursor>,
}

impl LockPage {
    /// Makes a page, for stores.
    pub fn new(locks: Vec<ListedLock>, next: Option<ListCursor>) -> LockPage {
        LockPage { locks, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn a_cursor_is_read_back_from_its_text() {
        for bytes in [&b""[..], b"\0\xffa", b"XDC#a#b"] {
            let cursor = ListCursor::from_bytes(bytes);
            assert_eq!(ListCursor::parse(&cursor.to_string()).unwrap(), cursor);
        }
        for text in ["0", "0g", "é0", "+1"] {
            assert_eq!(ListCursor::parse(text).unwrap_err().code(), Code::InvalidArgument, "{text}");
        }
    }

    #[test]
    fn a_prefix_that_no_name_can_have_is_refused() {
        assert!(LockQuery::new().prefix(&"x".repeat(KEY_BYTES_MAX)).check().is_ok());
        for prefix in ["a\0b", &"x".repeat(KEY_BYTES_MAX + 1)] {
            assert_eq!(LockQuery::new().prefix(prefix).check().unwrap_err().code(), Code::InvalidArgument);
        }
    }
}
