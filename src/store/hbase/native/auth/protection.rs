//! How what is sent is protected, and what a server sends instead.

use std::io;

/// What is done to the bytes of a connection. The numbers are those of RFC 4752, section 3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store::hbase::native) enum Protection {
    /// Nothing, after both sides have proven who they are.
    Authentication = 1,
    /// Changes are noticed.
    Integrity = 2,
    /// Nobody else can read them.
    Privacy = 4,
}

impl Protection {
    /// From the strongest to the weakest.
    pub(super) const ALL: [Protection; 3] =
        [Protection::Privacy, Protection::Integrity, Protection::Authentication];

    pub(in crate::store::hbase::native) fn name(self) -> &'static str {
        match self {
            Protection::Authentication => "authentication",
            Protection::Integrity => "integrity",
            Protection::Privacy => "privacy",
        }
    }
}

/// The length in front of a reply or token that is none: the status of an error. A server sends it if it cannot use the name of a
/// client that has proven it.
pub(in crate::store::hbase::native) const ERROR_AFTER_HANDSHAKE: usize = ERROR_STATUS as usize;
/// The status of an error in the handshake.
pub(super) const ERROR_STATUS: u32 = 1;

/// Returns the error for [`ERROR_AFTER_HANDSHAKE`]. `kind`: whether it is sure that no request was run.
pub(in crate::store::hbase::native) fn refused_after_handshake(kind: io::ErrorKind) -> io::Error {
    let what = "the server refused us after the handshake: it may have no rule for our principal \
                (hadoop.security.auth_to_local)";
    io::Error::new(kind, what)
}
