//! What a request does, where its answer is lost.

/// Whether a request changes anything: decides what a lost reply means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Read,
    Write,
    /// A write that has no further effect when it is run again.
    #[cfg(feature = "hbase")]
    Repeatable,
}
