//! What the crate's errors mean: nothing happened, and it may be sent again; nothing happened, for good;
//! or it may have happened.

use aerospike::{ErrorKind, ResultCode};

use crate::error::Error;
use crate::store::aerospike::pool::PooledClient;
use crate::store::request_kind::RequestKind;

/// What a failed request of the crate means.
pub(super) enum Failed {
    /// It had no effect and may be sent again.
    Again {
        error: Error,
        retry: Retry,
    },
    For(Error),
}

/// When a request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// A few times, a moment later.
    Soon,
    /// For as long as there is time: the cluster is finding out who has the record now.
    WhenServed,
}

/// What messages call the store.
pub(super) struct StoreName {
    pub(super) place: String,
    pub(super) namespace: String,
}

impl StoreName {
    /// An error that decides nothing for the caller.
    pub(super) fn failed(
        &self,
        kind: RequestKind,
        what: &str,
        error: aerospike::Error,
        pooled: &PooledClient<'_, aerospike::Client>,
    ) -> Failed {
        let doubtful = kind == RequestKind::Write && error.in_doubt();
        if let ErrorKind::Server { rc, .. } = error.kind() {
            return match self.refusal(what, *rc) {
                _ if doubtful => Failed::For(self.in_doubt(what, error)),
                Some(failed) => failed,
                // A code that we do not know to leave the record alone.
                None if kind == RequestKind::Write => Failed::For(self.in_doubt(what, error)),
                None => Failed::For(self.row_failed(what, *rc)),
            };
        }
        // Its connections may all be dead, or its picture of the cluster old.
        pooled.discard();
        if doubtful {
            return Failed::For(self.in_doubt(what, error));
        }
        match error.kind() {
            ErrorKind::InvalidNamespace => Failed::Again {
                error: self.of_namespace(
                    "is not there, or no node serves it yet: namespaces are made in aerospike.conf, which \
                     takes a restart",
                ),
                retry: Retry::Soon,
            },
            _ => Failed::Again { error: self.unreachable(&error), retry: Retry::WhenServed },
        }
    }

    /// An answer by which the servers say that they did not touch the record. `None`: no such answer.
    fn refusal(&self, what: &str, code: ResultCode) -> Option<Failed> {
        let busy = |why: &str| Failed::Again { error: self.not_served(what, code, why), retry: Retry::Soon };
        Some(match code {
            ResultCode::PartitionUnavailable | ResultCode::ClusterKeyMismatch => Failed::Again {
                error: self.not_served(
                    what,
                    code,
                    "the cluster is forming, or a node of it is missing; try again",
                ),
                retry: Retry::WhenServed,
            },
            ResultCode::KeyBusy => busy("too many requests for this record at once; try again"),
            ResultCode::DeviceOverload => busy("the servers' disks do not keep up; try again"),
            ResultCode::ServerMemError => Failed::For(self.not_served(
                what,
                code,
                "the namespace takes no more writes: it is full (see stop-writes-* in its configuration)",
            )),
            ResultCode::QuotaExceeded => busy("the user's quota is used up; try again"),
            ResultCode::InvalidNamespace => {
                Failed::For(self.of_namespace(
                    "is not there: namespaces are made in aerospike.conf, which takes a restart",
                ))
            }
            ResultCode::FailForbidden | ResultCode::AlwaysForbidden => Failed::For(self.of_namespace(
                "refuses the write. Locks expire by TTL, which a namespace allows only with `nsup-period` \
                 above 0 (or `allow-ttl-without-nsup true`) in its configuration; a strongly consistent one \
                 also needs `strong-consistency-allow-expunge true`",
            )),
            ResultCode::RecordTooBig => Failed::For(Error::invalid(
                "record",
                "(not shown)",
                "as many bytes as `max-record-size` of the namespace: smaller values; a latch with fewer or shorter names",
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

    /// The error of one row that could not be read.
    pub(super) fn row_failed(&self, what: &str, code: ResultCode) -> Error {
        match self.refusal(what, code) {
            Some(Failed::Again { error, .. } | Failed::For(error)) => error,
            None => self.not_served(what, code, "the server failed; try again"),
        }
    }

    /// A cluster that starts serves no namespace for a moment: that may pass.
    pub(super) fn not_yet_there(&self, error: Error) -> Error {
        match error {
            Error::TableCreation { what, .. } => {
                let what = format!("namespace {:?} {what}", self.namespace);
                Error::RetriesExhausted { store: self.place.clone(), what, source: None }
            }
            error => error,
        }
    }

    fn in_doubt(&self, what: &str, error: aerospike::Error) -> Error {
        Error::InDoubt { what: format!("{}: {what}: no answer", self.place), source: Some(error.into()) }
    }

    pub(super) fn unreachable(&self, error: &aerospike::Error) -> Error {
        // The crate's errors quote each other.
        let said = error.base_message();
        Error::Connection { store: self.place.clone(), what: said, source: None }
    }

    pub(super) fn late(&self, what: &str) -> Error {
        let what = format!("{what}: the time was over before it was sent");
        Error::Connection { store: self.place.clone(), what, source: None }
    }

    fn not_served(&self, what: &str, code: ResultCode, why: &str) -> Error {
        let what = format!("{what}: {why} ({code})");
        Error::RetriesExhausted { store: self.place.clone(), what, source: None }
    }

    pub(super) fn of_namespace(&self, what: &str) -> Error {
        Error::TableCreation { table: self.namespace.clone(), what: what.to_owned(), source: None }
    }

    /// The servers refuse for good.
    pub(super) fn odd(&self, what: &str, code: ResultCode) -> Error {
        Error::Internal { what: format!("{}: {what}: {code}", self.place), source: None }
    }

    pub(super) fn panicked(&self, kind: RequestKind, what: &str) -> Error {
        let what = format!("{}: {what}: the client library panicked; please report it", self.place);
        if kind == RequestKind::Read {
            Error::Internal { what, source: None }
        } else {
            Error::InDoubt { what, source: None }
        }
    }
}

/// The answers that tell a caller of something: for any other he could only give up.
pub(super) fn decisive(error: &aerospike::Error) -> Option<ResultCode> {
    match error.kind() {
        ErrorKind::Server { rc, .. } => Some(*rc).filter(|rc| {
            matches!(rc, ResultCode::KeyExistsError | ResultCode::KeyNotFoundError | ResultCode::FilteredOut)
        }),
        _ => None,
    }
}
