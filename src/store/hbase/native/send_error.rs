//! Failures of one send of a request, and whether the request may be sent again.

use super::connection::CallFailure;
use super::exception::{Exception, RetryClass};
use super::region::Lookup;
use crate::store::request_kind::RequestKind;

/// Failure of one send of a request: the look-up of its region failed, or the call.
pub(super) enum SendError {
    Lookup(Lookup),
    Call(CallFailure),
}

impl SendError {
    /// Returns whether hbase:meta or the server itself reports that the region is not served there.
    pub(super) fn is_away(&self) -> bool {
        match self {
            SendError::Lookup(lookup) => matches!(lookup, Lookup::NotServed),
            SendError::Call(CallFailure::Exception(exception)) => {
                matches!(exception.retry_class(), RetryClass::Elsewhere(_))
            }
            SendError::Call(_) => false,
        }
    }

    /// Returns whether the time ran out before the request itself was sent.
    pub(super) fn is_out_of_time_unsent(&self) -> bool {
        let error = match self {
            SendError::Lookup(Lookup::Call(_, CallFailure::NotSent(error) | CallFailure::Lost(error))) => {
                error
            }
            SendError::Call(CallFailure::NotSent(error)) => error,
            SendError::Lookup(_) | SendError::Call(_) => return false,
        };
        error.kind() == std::io::ErrorKind::TimedOut
    }
}

impl From<Exception> for SendError {
    fn from(exception: Exception) -> SendError {
        SendError::Call(CallFailure::Exception(exception))
    }
}

/// Returns whether a request may be sent again. A write may be sent again only if it was surely not applied. A
/// request whose answer would be the same each time is not sent again.
pub(super) fn may_be_sent_again(kind: RequestKind, send_error: &SendError) -> bool {
    // A look-up is a read, also when the request is a write.
    let (kind, failure) = match send_error {
        SendError::Lookup(Lookup::NoTable) => return false,
        SendError::Lookup(Lookup::NotServed | Lookup::Garbage) => return true,
        SendError::Lookup(Lookup::Call(_, failure)) => (RequestKind::Read, failure),
        SendError::Call(failure) => (kind, failure),
    };
    match failure {
        CallFailure::NotSent(_) => true,
        CallFailure::Lost(_) => kind != RequestKind::Write,
        CallFailure::Unwelcome(_) | CallFailure::TooLong(..) => false,
        CallFailure::Exception(exception) => match exception.retry_class() {
            RetryClass::Unknown => kind != RequestKind::Write && exception.may_pass(),
            _ => exception.may_pass(),
        },
    }
}

/// Returns whether the server may have run the request, or may still run it.
pub(super) fn may_be_run(send_error: &SendError) -> bool {
    match send_error {
        SendError::Call(CallFailure::Lost(_) | CallFailure::TooLong(..)) => true,
        SendError::Call(CallFailure::Exception(exception)) => exception.retry_class() == RetryClass::Unknown,
        SendError::Call(CallFailure::NotSent(_) | CallFailure::Unwelcome(_)) | SendError::Lookup(_) => false,
    }
}

/// Returns the error for an answer that breaks the protocol. The outcome of the request is unknown.
pub(super) fn protocol_violation() -> SendError {
    let error =
        std::io::Error::new(std::io::ErrorKind::InvalidData, "an answer that does not fit the request");
    SendError::Call(CallFailure::Lost(error))
}
