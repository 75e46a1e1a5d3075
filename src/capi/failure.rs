//! A failed call, as C sees it. The other files of the interface depend on this one.

use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::time::Duration;

use super::status::dlm_status;
use crate::error::panic_text;
use crate::names::text::quoted;
use crate::{Error, LostReason};

pub(super) type Outcome<T = ()> = Result<T, Failure>;

/// A failed call, as C sees it.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: dlm_status,
    message: CString,
    pub(super) retryable: bool,
    /// Remaining time of the current holder's lease, if known.
    pub(super) holder_left: Option<Duration>,
    /// For STALE_FENCE: the fence of the refused write, and the higher one that the receiver had seen.
    pub(super) fences: Option<(u64, u64)>,
    /// For LEASE_LOST, unless the lease was released.
    pub(super) lost_reason: Option<LostReason>,
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
        let what = quoted(panic_text(payload));
        Failure::new(dlm_status::DLM_PANIC, format!("a bug in libdlm caused a panic: {what}"))
    }

    pub(super) fn text(&self) -> Cow<'_, str> {
        self.message.to_string_lossy()
    }

    /// The text for C. It does not move while `self` exists.
    pub(super) fn message(&self) -> &CStr {
        &self.message
    }

    fn new(status: dlm_status, message: String) -> Failure {
        // Messages escape the texts of callers, but a store's text may contain NUL.
        let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
        Failure { status, message, retryable: false, holder_left: None, fences: None, lost_reason: None }
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
        let lost_reason = error.lost_reason();
        Failure {
            retryable,
            holder_left,
            fences,
            lost_reason,
            ..Failure::new(error.code().into(), error.to_string())
        }
    }
}
