//! The kinds of requests, which differ in what a lost reply means.

/// Whether a request may change the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Read,
    Write,
    /// A write that has no further effect if it is applied again.
    #[cfg(feature = "hbase")]
    Repeatable,
}
