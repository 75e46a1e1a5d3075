//! The meaning of the crate's errors: the request had no effect and may be sent again, it had no effect and a retry
//! is useless, or it may have been applied.

use aerospike::{ErrorKind, ResultCode};

use super::node_sockets::NoReply;
use crate::error::Error;
use crate::names::text::one_line;
use crate::store::aerospike::pool::PooledClient;
use crate::store::request_kind::RequestKind;

/// The meaning of a failed request.
pub(super) enum Failed {
    /// The request had no effect and may be sent again.
    Again { error: Error, retry: Retry },
    /// There was no time left to send it.
    Late(Error),
    /// The caller receives this error.
    For(Error),
}

impl Failed {
    pub(super) fn into_error(self) -> Error {
        match self {
            Failed::Again { error, .. } | Failed::Late(error) | Failed::For(error) => error,
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::For(error)
    }
}

/// A code of the servers.
#[derive(Debug, thiserror::Error)]
#[error("the servers answered: {0}")]
struct Refused(ResultCode);

/// When a request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// A few times, after a short pause.
    Soon,
    /// Until the deadline: the cluster is finding out which node has the record now.
    WhenServed,
}

/// The names of the store in messages.
pub(super) struct StoreName {
    pub(super) uri: String,
    pub(super) namespace: String,
}

impl StoreName {
    /// Converts an error that is not [`decisive`].
    pub(super) fn failed(
        &self,
        kind: RequestKind,
        what: &str,
        error: aerospike::Error,
        pooled: &PooledClient<'_, aerospike::Client>,
    ) -> Failed {
        let doubtful = kind == RequestKind::Write && error.in_doubt();
        if let ErrorKind::Server { rc, .. } = error.kind() {
            return if doubtful {
                Failed::For(self.in_doubt(what, error))
            } else {
                self.refused(kind, what, *rc)
            };
        }
        // All connections of the client may be dead, or its view of the cluster may be old.
        pooled.discard();
        if doubtful {
            return Failed::For(self.in_doubt(what, error));
        }
        match error.kind() {
            ErrorKind::InvalidNamespace => Failed::Again {
                error: self.of_namespace(
                    "does not exist, or no node serves it yet: add it to aerospike.conf and restart the servers",
                ),
                retry: Retry::Soon,
            },
            _ => Failed::Again { error: self.unreachable(&error), retry: Retry::WhenServed },
        }
    }

    /// Converts a code that is not decisive.
    pub(super) fn refused(&self, kind: RequestKind, what: &str, code: ResultCode) -> Failed {
        match self.refusal(what, code) {
            Some(failed) => failed,
            // This code may mean that the record was changed.
            None if kind == RequestKind::Write => Failed::For(self.in_doubt(what, Refused(code))),
            None => Failed::For(self.row_failed(what, code)),
        }
    }

    /// Converts the failure of a request over our own connections.
    pub(super) fn without_reply(&self, kind: RequestKind, what: &str, no_reply: NoReply) -> Failed {
        match no_reply {
            NoReply::Lost(error) if kind == RequestKind::Write => Failed::For(self.in_doubt(what, error)),
            NoReply::Lost(error) | NoReply::NotSent(error) => Failed::Again {
                error: Error::Connection {
                    store: self.uri.clone(),
                    what: what.to_owned(),
                    source: Some(error.into()),
                },
                retry: Retry::WhenServed,
            },
        }
    }

    /// Converts a code by which the servers say that they did not change the record. `None` for other codes.
    fn refusal(&self, what: &str, code: ResultCode) -> Option<Failed> {
        let busy = |why: &str| Failed::Again { error: self.not_served(what, code, why), retry: Retry::Soon };
        Some(match code {
            ResultCode::PartitionUnavailable | ResultCode::ClusterKeyMismatch => Failed::Again {
                error: self.not_served(
                    what,
                    code,
                    "the cluster is forming, or one of its nodes is missing; try again",
                ),
                retry: Retry::WhenServed,
            },
            ResultCode::KeyBusy => busy("too many requests for this record at once; try again"),
            ResultCode::DeviceOverload => busy("the servers' disks are overloaded; try again"),
            ResultCode::ServerMemError => Failed::For(self.not_served(
                what,
                code,
                "the namespace refuses writes: it is full (see stop-writes-* in its configuration)",
            )),
            ResultCode::QuotaExceeded => busy("the user's quota is used up; try again"),
            ResultCode::InvalidNamespace => {
                Failed::For(self.of_namespace(
                    "does not exist: add it to aerospike.conf and restart the servers",
                ))
            }
            ResultCode::FailForbidden | ResultCode::AlwaysForbidden => Failed::For(self.of_namespace(
                "refuses the write. Locks need a TTL. A namespace allows TTLs only with `nsup-period` above 0 \
                 (or `allow-ttl-without-nsup true`) in its configuration; a strongly consistent namespace also \
                 needs `strong-consistency-allow-expunge true`",
            )),
            ResultCode::RecordTooBig => Failed::For(Error::invalid(
                "record",
                "(not shown)",
                "at most as many bytes as `max-record-size` of the namespace: use smaller values, or a latch with \
                 fewer or shorter names",
            )),
            ResultCode::NotAuthenticated
            | ResultCode::RoleViolation
            | ResultCode::NotAllowlisted
            | ResultCode::InvalidUser
            | ResultCode::InvalidPassword
            | ResultCode::ExpiredPassword
            | ResultCode::InvalidCredential
            | ResultCode::EnterpriseOnly
            | ResultCode::SecurityNotSupported
            | ResultCode::SecurityNotEnabled
            | ResultCode::ParameterError
            | ResultCode::BinTypeError
            | ResultCode::BinNameTooLong
            | ResultCode::OpNotApplicable
            | ResultCode::UnsupportedFeature => Failed::For(self.odd(what, code)),
            _ => return None,
        })
    }

    /// Returns the error of one record that could not be read.
    pub(super) fn row_failed(&self, what: &str, code: ResultCode) -> Error {
        match self.refusal(what, code) {
            Some(failed) => failed.into_error(),
            None => self.not_served(what, code, "the server failed; try again"),
        }
    }

    /// Makes a missing namespace an error that may pass: a cluster that starts serves no namespace for a moment.
    pub(super) fn not_yet_there(&self, error: Error) -> Error {
        match error {
            Error::TableCreation { what, .. } => {
                let what = format!("namespace {:?} {what}", self.namespace);
                Error::RetriesExhausted { store: self.uri.clone(), what, source: None }
            }
            error => error,
        }
    }

    fn in_doubt(&self, what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::InDoubt { what: format!("{}: {what}: no answer", self.uri), source: Some(error.into()) }
    }

    pub(super) fn unreachable(&self, error: &aerospike::Error) -> Error {
        // The crate's errors repeat the text of their causes, and have several lines.
        let said = one_line(&error.base_message()).into_owned();
        Error::Connection { store: self.uri.clone(), what: said, source: None }
    }

    /// Returns the error if the time was over before a node has answered.
    pub(super) fn unconnected(&self) -> Error {
        let what = "connecting took too long: no node answered the first question".to_owned();
        Error::Connection { store: self.uri.clone(), what, source: None }
    }

    pub(super) fn late(&self, what: &str) -> Failed {
        let what = format!("{what}: the deadline passed before the request was sent");
        Failed::Late(Error::Connection { store: self.uri.clone(), what, source: None })
    }

    fn not_served(&self, what: &str, code: ResultCode, why: &str) -> Error {
        let what = format!("{what}: {why} ({code})");
        Error::RetriesExhausted { store: self.uri.clone(), what, source: None }
    }

    pub(super) fn of_namespace(&self, what: &str) -> Error {
        Error::TableCreation { table: self.namespace.clone(), what: what.to_owned(), source: None }
    }

    /// Returns the error for a code that every retry would meet.
    pub(super) fn odd(&self, what: &str, code: ResultCode) -> Error {
        Error::Internal { what: format!("{}: {what}: {code}", self.uri), source: None }
    }

    pub(super) fn panicked(&self, kind: RequestKind, what: &str) -> Error {
        let what = format!("{}: {what}: the client library panicked; please report it", self.uri);
        if kind == RequestKind::Read {
            Error::Internal { what, source: None }
        } else {
            Error::InDoubt { what, source: None }
        }
    }
}

/// Returns the code if it decides the result for the caller.
pub(super) fn decisive(error: &aerospike::Error) -> Option<ResultCode> {
    match error.kind() {
        ErrorKind::Server { rc, .. } => Some(*rc).filter(|code| is_decisive(*code)),
        _ => None,
    }
}

pub(super) fn is_decisive(code: ResultCode) -> bool {
    matches!(code, ResultCode::KeyExistsError | ResultCode::KeyNotFoundError | ResultCode::FilteredOut)
}
