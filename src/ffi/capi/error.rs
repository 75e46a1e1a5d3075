use std::ffi::{CString, c_char};
use std::time::Duration;

use super::boundary::{value, write};
use super::process::{Handle, Process, find, free};
use super::status::dlm_status;
use crate::Error;
use crate::error::quoted;

/// Why a call failed. Made where a call is given an `error_out`, and independent of everything else.
pub struct dlm_error(());

impl Handle for dlm_error {
    type Object = Failure;
    const NAME: &str = "dlm_error";
    const KIND: u8 = 1;
    fn table(process: &Process) -> &super::handles::Table<Failure> {
        &process.errors
    }
}

/// A failed call in words of C.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: dlm_status,
    message: CString,
    retryable: bool,
    /// What the lease had left that stood in the way, where that is known.
    pub(super) holder_left: Option<Duration>,
    /// Of a STALE_FENCE: that of the refused write, and the one that the receiver had seen.
    fences: Option<(u64, u64)>,
}

impl Failure {
    pub(super) fn invalid(what: impl Into<String>) -> Failure {
        Failure::new(dlm_status::DLM_INVALID_ARGUMENT, what.into())
    }

    pub(super) fn closed(what: impl Into<String>) -> Failure {
        Failure::new(dlm_status::DLM_CLOSED, what.into())
    }

    pub(super) fn forked(what: impl Into<String>) -> Failure {
        Failure::new(dlm_status::DLM_FORKED, what.into())
    }

    pub(super) fn internal(what: impl Into<String>) -> Failure {
        Failure::new(dlm_status::DLM_INTERNAL_ERROR, what.into())
    }

    pub(super) fn exists(what: impl Into<String>) -> Failure {
        Failure::new(dlm_status::DLM_ALREADY_EXISTS, what.into())
    }

    pub(super) fn unavailable(what: impl Into<String>) -> Failure {
        Failure { retryable: true, ..Failure::new(dlm_status::DLM_LOCK_UNAVAILABLE, what.into()) }
    }

    pub(super) fn panic(payload: &(dyn std::any::Any + Send)) -> Failure {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let what = quoted(text.unwrap_or("without a word"));
        Failure::new(dlm_status::DLM_PANIC, format!("a bug in libdlm, which panicked: {what}"))
    }

    pub(super) fn text(&self) -> std::borrow::Cow<'_, str> {
        self.message.to_string_lossy()
    }

    fn new(status: dlm_status, message: String) -> Failure {
        // Texts of callers are escaped where they enter a message; a store's might hold anything.
        let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
        Failure { status, message, retryable: false, holder_left: None, fences: None }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let retryable = error.is_retryable();
        let holder_left = match &error {
            Error::LockUnavailable { holder: Some(holder), .. } => holder.remaining,
            _ => None,
        };
        let fences = error.stale_fence().map(|(fence, stored)| (fence.0, stored.0));
        Failure { retryable, holder_left, fences, ..Failure::new(error.code().into(), error.chain()) }
    }
}

/// The status of the call that failed. DLM_INVALID_ARGUMENT for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_status(error: *const dlm_error) -> dlm_status {
    value(dlm_status::DLM_INVALID_ARGUMENT, || Ok(find(error)?.status))
}

/// What was wrong, with which value, and what to do: one line for people. Never NULL; lives as long as
/// `error`. It may hold names of locks, hosts and tables, never passwords. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_message(error: *const dlm_error) -> *const c_char {
    // The text stays where it is for as long as the table has the error.
    value(c"no error".as_ptr(), || Ok(find(error)?.message.as_ptr()))
}

/// Whether the same call may succeed later without anyone changing anything: the lock may become free,
/// the store may come back. False for NULL. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_is_retryable(error: *const dlm_error) -> bool {
    value(false, || Ok(find(error)?.retryable))
}

/// The two numbers of a DLM_STALE_FENCE: that of the refused write, and the higher one that the receiver had
/// seen. Either pointer may be NULL. False, and both are 0, for NULL and for every other error. Never blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_fences(
    error: *const dlm_error,
    fence_out: *mut u64,
    stored_out: *mut u64,
) -> bool {
    let fences = value(None, || Ok(find(error)?.fences));
    let (fence, stored) = fences.unwrap_or_default();
    // SAFETY: passed on.
    unsafe {
        write(fence_out, fence);
        write(stored_out, stored);
    }
    fences.is_some()
}

/// Frees an error. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_error_free(error: *mut dlm_error) {
    super::boundary::freeing(|| free(error));
}
