use std::ffi::c_char;

use crate::Code;

/// Result of every call that can fail. The numbers never change. Later versions may add some, so keep a
/// `default:`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub enum dlm_status {
    /// Success.
    DLM_OK = 0,
    /// The lock is held. If the call waited, the wait timed out. The caller acquired nothing.
    DLM_LOCK_UNAVAILABLE = 1,
    /// The store could not be reached. The request had no effect.
    DLM_CONNECTION_ERROR = 2,
    /// The store was reached, but did not serve the request, even after a limited number of retries.
    DLM_RETRIES_EXHAUSTED = 3,
    /// The table or namespace is missing, could not be created, or is unsuitable: disabled, of another kind, or
    /// without TTLs.
    DLM_TABLE_CREATION_ERROR = 4,
    /// The store or the library failed in an unexpected way. See the message.
    DLM_INTERNAL_ERROR = 5,
    /// A cancel object ended the wait. The caller holds nothing.
    DLM_CANCELLED = 6,
    /// The request may or may not have taken effect. A lock that it may have acquired is freed in the
    /// background.
    DLM_IN_DOUBT = 7,
    /// The lease has expired or was released, or the lock has another holder: stop using what the lock protects.
    DLM_LEASE_LOST = 8,
    /// The latch does not exist, or has expired.
    DLM_NOT_FOUND = 9,
    /// What the call should create already exists.
    DLM_ALREADY_EXISTS = 10,
    /// An argument was refused before any I/O: NULL, bad UTF-8, or a number or text that is not allowed.
    /// Functions on rows may refuse one after a read, see dlm_row.
    DLM_INVALID_ARGUMENT = 11,
    /// The manager was closed, or the handle was freed.
    DLM_CLOSED = 12,
    /// A parent process created the handle before fork(). Create a new handle in the child.
    DLM_FORKED = 13,
    /// Code of this library or of a store panicked, which is a bug. The handles stay usable.
    DLM_PANIC = 14,
    /// The receiver of a write with a fence has seen a higher fence of the same lock: the caller's lease
    /// has ended. The write was refused and had no effect. See dlm_error_fences().
    DLM_STALE_FENCE = 15,
    /// A lease of this mode cannot get the rights that were asked for. The lease is as it was.
    DLM_UNSUPPORTED_CONVERSION = 16,
}

use dlm_status::*;

impl From<Code> for dlm_status {
    fn from(code: Code) -> dlm_status {
        match code {
            Code::LockUnavailable => DLM_LOCK_UNAVAILABLE,
            Code::ConnectionError => DLM_CONNECTION_ERROR,
            Code::RetriesExhausted => DLM_RETRIES_EXHAUSTED,
            Code::TableCreationError => DLM_TABLE_CREATION_ERROR,
            Code::InternalError => DLM_INTERNAL_ERROR,
            Code::Cancelled => DLM_CANCELLED,
            Code::InDoubt => DLM_IN_DOUBT,
            Code::LeaseLost => DLM_LEASE_LOST,
            Code::NotFound => DLM_NOT_FOUND,
            Code::AlreadyExists => DLM_ALREADY_EXISTS,
            Code::InvalidArgument => DLM_INVALID_ARGUMENT,
            Code::Closed => DLM_CLOSED,
            Code::Forked => DLM_FORKED,
            Code::Panic => DLM_PANIC,
            Code::StaleFence => DLM_STALE_FENCE,
            Code::UnsupportedConversion => DLM_UNSUPPORTED_CONVERSION,
        }
    }
}

/// Returns the name of a status, such as "LOCK_UNAVAILABLE", or "UNKNOWN" for a number that the library
/// does not know. The text is static. Never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_status_name(status: i32) -> *const c_char {
    let name = match status {
        0 => c"OK",
        1 => c"LOCK_UNAVAILABLE",
        2 => c"CONNECTION_ERROR",
        3 => c"RETRIES_EXHAUSTED",
        4 => c"TABLE_CREATION_ERROR",
        5 => c"INTERNAL_ERROR",
        6 => c"CANCELLED",
        7 => c"IN_DOUBT",
        8 => c"LEASE_LOST",
        9 => c"NOT_FOUND",
        10 => c"ALREADY_EXISTS",
        11 => c"INVALID_ARGUMENT",
        12 => c"CLOSED",
        13 => c"FORKED",
        14 => c"PANIC",
        15 => c"STALE_FENCE",
        16 => c"UNSUPPORTED_CONVERSION",
        _ => c"UNKNOWN",
    };
    name.as_ptr()
}
