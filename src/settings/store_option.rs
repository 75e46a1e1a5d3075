//! An option of a URI. Each store has a table of its own, and managers have one: see
//! [`manager_options`](super::manager_options). The parsers accept no others, and `dlm --help` prints them. Tests compare the
//! defaults in the code, the C header, README and docs with these tables.

/// One option of a store's URI, given as `?key=value` or by [`Builder::option`](crate::Builder::option).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreOption {
    /// The key.
    pub key: &'static str,
    /// The default value; empty if there is none.
    pub default: &'static str,
    /// The meaning, in a line of Markdown.
    pub meaning: &'static str,
}

impl StoreOption {
    /// Makes an option, for a store that is [registered](crate::store::Scheme). `default` is empty if there is
    /// none, and `meaning` is a line of Markdown.
    pub const fn new(key: &'static str, default: &'static str, meaning: &'static str) -> StoreOption {
        StoreOption { key, default, meaning }
    }
}
