//! Errors: codes for programs, messages for people.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::names::fence::{Epoch, Fence};
use crate::names::holder::Holder;
use crate::names::lease_state::LostReason;
use crate::names::mode::Mode;
use crate::names::text::{one_line, quoted};

/// Result of every call of this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Stable code of a failure. Its number and name are the same in Rust, in C, in Go and in the messages of the
/// `dlm` command.
///
/// The first five are those of the Java library DLM. Numbers are never reused or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(i32)]
pub enum Code {
    /// Another holder has the lock: now (`try_acquire`), or until the wait timed out (`acquire`).
    LockUnavailable = 1,
    /// The store could not be reached. The request had no effect.
    ConnectionError = 2,
    /// The store was reached and did not serve the request, even after a bounded number of retries.
    RetriesExhausted = 3,
    /// The table or namespace is missing, could not be created, or is unsuitable: disabled, of another kind, or
    /// without TTLs.
    TableCreationError = 4,
    /// The store or this library behaved unexpectedly. The message says how.
    InternalError = 5,
    /// The caller's [`CancelToken`](crate::CancelToken) ended the wait. Nothing is held.
    Cancelled = 6,
    /// The request may or may not have been applied, and the store could not be asked which.
    InDoubt = 7,
    /// The lease has expired, was released, or another holder has the lock: stop using what the lock guards. Also if the
    /// token of the lease is of another store than that which was asked.
    LeaseLost = 8,
    /// The latch does not exist, or has expired.
    NotFound = 9,
    /// The object to create exists. It is unchanged.
    AlreadyExists = 10,
    /// The caller's input was refused, before any I/O unless the call says otherwise.
    InvalidArgument = 11,
    /// The manager was closed.
    Closed = 12,
    /// The process was forked after the manager was opened. Open a new manager in the child.
    Forked = 13,
    /// Code of this library or of a store panicked, which is a bug.
    Panic = 14,
    /// The receiver of a guarded write has seen a higher fence of the same lock, so the caller's lease has
    /// ended. The write was refused and had no effect. Also for a reader whose epoch is over.
    StaleFence = 15,
    /// A lease of this mode cannot get the rights that were asked for. The lease is as it was. Take
    /// [`Mode::Update`](crate::Mode::Update) to read first and write later.
    UnsupportedConversion = 16,
}

impl Code {
    /// All codes, ordered by number. Later versions may add more.
    pub const ALL: &[Code] = &[
        Code::LockUnavailable,
        Code::ConnectionError,
        Code::RetriesExhausted,
        Code::TableCreationError,
        Code::InternalError,
        Code::Cancelled,
        Code::InDoubt,
        Code::LeaseLost,
        Code::NotFound,
        Code::AlreadyExists,
        Code::InvalidArgument,
        Code::Closed,
        Code::Forked,
        Code::Panic,
        Code::StaleFence,
        Code::UnsupportedConversion,
    ];

    /// Returns the number.
    pub fn number(self) -> i32 {
        self as i32
    }

    /// Returns the name that documentation, logs and the other languages use.
    pub fn name(self) -> &'static str {
        match self {
            Code::LockUnavailable => "LOCK_UNAVAILABLE",
            Code::ConnectionError => "CONNECTION_ERROR",
            Code::RetriesExhausted => "RETRIES_EXHAUSTED",
            Code::TableCreationError => "TABLE_CREATION_ERROR",
            Code::InternalError => "INTERNAL_ERROR",
            Code::Cancelled => "CANCELLED",
            Code::InDoubt => "IN_DOUBT",
            Code::LeaseLost => "LEASE_LOST",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::Closed => "CLOSED",
            Code::Forked => "FORKED",
            Code::Panic => "PANIC",
            Code::StaleFence => "STALE_FENCE",
            Code::UnsupportedConversion => "UNSUPPORTED_CONVERSION",
        }
    }
}

/// Writes the name.
impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The cause of an [`Error`], as `source()` returns it.
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// A failed call. Programs should decide by its [`code`](Error::code).
///
/// Messages say what was wrong, with which value, and what to do. They contain names of locks (escaped),
/// hosts and tables. They never contain owner tokens, passwords or stored values.
///
/// `{error}` is one line with what failed and all its causes, outermost first. `{error:#}` and
/// [`chain`](Error::chain) are the same line, which the `dlm` command and the other languages show too. So do not also
/// print what `source()` returns: it is in the line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// See [`Code::LockUnavailable`].
    LockUnavailable {
        /// The lock, as stored.
        name: String,
        /// How long the caller waited: zero after `try_acquire`.
        waited: Duration,
        /// The holder at the last read of the store, if that returned one.
        holder: Option<Box<Holder>>,
        /// Whether that is the manager which was asked.
        is_here: bool,
    },
    /// See [`Code::ConnectionError`].
    Connection {
        /// The store's address, without credentials.
        store: String,
        /// What was tried and what happened.
        what: String,
        /// The cause, if any.
        #[source]
        source: Option<Cause>,
    },
    /// See [`Code::RetriesExhausted`].
    RetriesExhausted {
        /// The store's address, without credentials.
        store: String,
        /// The last reply of the store, or what happened instead.
        what: String,
        /// The cause, if any.
        #[source]
        source: Option<Cause>,
    },
    /// See [`Code::TableCreationError`].
    TableCreation {
        /// The table's name.
        table: String,
        /// What happened and what to do.
        what: String,
        /// The cause, if any.
        #[source]
        source: Option<Cause>,
    },
    /// See [`Code::InternalError`].
    Internal {
        /// What happened.
        what: String,
        /// The cause, if any.
        #[source]
        source: Option<Cause>,
    },
    /// See [`Code::Cancelled`].
    Cancelled {
        /// How long the caller had waited.
        waited: Duration,
    },
    /// See [`Code::InDoubt`].
    InDoubt {
        /// The request, and what is known about it.
        what: String,
        /// The failure that left the doubt.
        #[source]
        source: Option<Cause>,
    },
    /// See [`Code::LeaseLost`].
    LeaseLost {
        /// The lock, as stored.
        name: String,
        /// Why the lease counts as lost.
        why: std::borrow::Cow<'static, str>,
        /// The reason for programs. `None` if the lease was released, or is one of another store.
        reason: Option<LostReason>,
    },
    /// See [`Code::NotFound`].
    NotFound {
        /// The latch, escaped.
        name: String,
    },
    /// See [`Code::AlreadyExists`].
    AlreadyExists {
        /// The latch, escaped.
        name: String,
    },
    /// See [`Code::InvalidArgument`].
    InvalidArgument {
        /// The name of the input.
        what: &'static str,
        /// The value given, escaped and cut to a readable length.
        value: String,
        /// What is allowed instead.
        allowed: String,
    },
    /// See [`Code::Closed`].
    Closed,
    /// See [`Code::Forked`].
    Forked,
    /// See [`Code::Panic`].
    Panic {
        /// What was being done, and the message of the panic.
        what: String,
    },
    /// See [`Code::StaleFence`].
    StaleFence {
        /// The receiver of the write, without credentials, names escaped.
        receiver: String,
        /// The fence that was sent with the write.
        fence: Fence,
        /// The higher fence that the receiver has seen.
        stored: Fence,
    },
    /// See [`Code::StaleFence`]: a reader whose epoch is before a fence that the receiver has seen.
    StaleEpoch {
        /// The receiver, as above.
        receiver: String,
        /// The epoch of the reader.
        epoch: Epoch,
        /// The fence that the receiver has seen.
        stored: Fence,
    },
    /// See [`Code::UnsupportedConversion`].
    UnsupportedConversion {
        /// The lock, as stored.
        name: String,
        /// The mode of the lease.
        from: Mode,
        /// The mode that was asked for.
        to: Mode,
    },
    /// A failure within a larger operation. [`code`](Error::code) returns the code of `source`.
    Context {
        /// What was being done. Empty if the message is that of `source` alone.
        doing: String,
        /// What failed. Shared, because several callers may depend on one request.
        #[source]
        source: Arc<Error>,
    },
}

impl Error {
    /// Returns the stable code: that of the innermost [`Error`] if one wraps another.
    pub fn code(&self) -> Code {
        match self {
            Error::LockUnavailable { .. } => Code::LockUnavailable,
            Error::Connection { .. } => Code::ConnectionError,
            Error::RetriesExhausted { .. } => Code::RetriesExhausted,
            Error::TableCreation { .. } => Code::TableCreationError,
            Error::Internal { .. } => Code::InternalError,
            Error::Cancelled { .. } => Code::Cancelled,
            Error::InDoubt { .. } => Code::InDoubt,
            Error::LeaseLost { .. } => Code::LeaseLost,
            Error::NotFound { .. } => Code::NotFound,
            Error::AlreadyExists { .. } => Code::AlreadyExists,
            Error::InvalidArgument { .. } => Code::InvalidArgument,
            Error::Closed => Code::Closed,
            Error::Forked => Code::Forked,
            Error::Panic { .. } => Code::Panic,
            Error::StaleFence { .. } | Error::StaleEpoch { .. } => Code::StaleFence,
            Error::UnsupportedConversion { .. } => Code::UnsupportedConversion,
            Error::Context { source, .. } => source.code(),
        }
    }

    /// Returns whether the same call may succeed later without any repair: the lock may become free, or the
    /// store may recover. After [`is_in_doubt`](Error::is_in_doubt), a retry is a new attempt: the first one may
    /// have had its effect.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.code(),
            Code::LockUnavailable | Code::ConnectionError | Code::RetriesExhausted | Code::InDoubt
        )
    }

    /// Returns whether the request may have taken effect although it failed.
    pub fn is_in_doubt(&self) -> bool {
        self.code() == Code::InDoubt
    }

    /// Returns the two fences of a [`Code::StaleFence`]: that of the refused write, or the number of the refused reader's epoch,
    /// and the higher one that the receiver has seen. `None` for every other error.
    pub fn stale_fence(&self) -> Option<(Fence, Fence)> {
        match self {
            Error::StaleFence { fence, stored, .. } => Some((*fence, *stored)),
            Error::StaleEpoch { epoch, stored, .. } => Some((Fence(epoch.0), *stored)),
            Error::Context { source, .. } => source.stale_fence(),
            _ => None,
        }
    }

    /// Returns why the lease was lost, for a [`Code::LeaseLost`]. `None` for every other error, and for a lease that was not
    /// lost: it was released before, or is one of another store than that which was asked.
    pub fn lost_reason(&self) -> Option<LostReason> {
        match self {
            Error::LeaseLost { reason, .. } => *reason,
            Error::Context { source, .. } => source.lost_reason(),
            _ => None,
        }
    }

    /// Returns the message and all its causes in one line, outermost first, as `{error}` does.
    pub fn chain(&self) -> String {
        let mut line = String::new();
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(cause) = next {
            let text = match of_this_library(cause) {
                Some(error) => error.own_message(),
                None => cause.to_string(),
            };
            let text = one_line(&text);
            // Errors of other libraries often repeat their cause.
            if !text.is_empty() && !line.contains(&*text) {
                if !line.is_empty() {
                    line.push_str(": ");
                }
                line.push_str(&text);
            }
            next = cause.source();
        }
        line
    }

    /// Returns the message without that of the cause.
    fn own_message(&self) -> String {
        match self {
            Error::LockUnavailable { name, waited, holder, is_here } => {
                let is_waiting = holder.as_ref().is_some_and(|holder| holder.is_waiting);
                let state = if is_waiting { "reserved" } else { "held" };
                let here = if *is_here { ", which is this process" } else { "" };
                format!("lock {name} is {state}{}{here}{}", by(holder), after(waited))
            }
            Error::Connection { store, what, .. } => format!("{store} cannot be reached: {what}"),
            Error::RetriesExhausted { store, what, .. } => {
                format!("{store} did not serve the request: {what}")
            }
            Error::TableCreation { table, what, .. } => format!("table {table:?}: {what}"),
            Error::Internal { what, .. } | Error::Panic { what } => what.clone(),
            Error::Cancelled { waited } => format!("cancelled after waiting {waited:?}"),
            Error::InDoubt { what, .. } => format!("in doubt: {what}"),
            Error::LeaseLost { name, why, reason: Some(_) } => format!("lease of lock {name} is lost: {why}"),
            Error::LeaseLost { name, why, reason: None } => {
                format!("lease of lock {name} is not held: {why}")
            }
            Error::NotFound { name } => {
                format!("latch {name} does not exist: it was never created, or has expired")
            }
            Error::AlreadyExists { name } => format!("latch {name} already exists"),
            Error::InvalidArgument { what, value, allowed } => {
                format!("{what} {value} is not allowed: {allowed}")
            }
            Error::Closed => "the lock manager is closed; open a new one".into(),
            Error::Forked => {
                "this object was opened before the process forked; open a new one in the child".into()
            }
            Error::StaleFence { receiver, fence, stored } => {
                format!("{receiver} refused the write: fence {fence} is stale, it has seen fence {stored}")
            }
            Error::StaleEpoch { receiver, epoch, stored } => {
                format!("{receiver} refused the reader: epoch {epoch} is over, it has seen fence {stored}")
            }
            Error::UnsupportedConversion { name, from, to } => {
                format!(
                    "the lease of lock {name} is {from} and cannot become {to}: two such readers would wait for each other. \
                     Acquire the lock as UPDATE to read first and write later, or release it and acquire it anew"
                )
            }
            Error::Context { doing, .. } => doing.clone(),
        }
    }

    /// Makes an error for each of several callers that depend on one request. Its message is that of `shared`.
    pub(crate) fn shared(shared: &Arc<Error>) -> Error {
        Error::Context { doing: String::new(), source: Arc::clone(shared) }
    }

    /// Makes a [`Code::InvalidArgument`], for stores. The message shows `value` escaped and cut to a readable
    /// length, so it must not be a secret. `allowed` says what is allowed instead.
    pub fn invalid(what: &'static str, value: impl AsRef<str>, allowed: impl Into<String>) -> Error {
        Error::InvalidArgument { what, value: quoted(value.as_ref()), allowed: allowed.into() }
    }

    /// Returns an error of a check with the name and the text that were typed.
    pub(crate) fn with_input(self, what: &'static str, text: &str) -> Error {
        match self {
            Error::InvalidArgument { allowed, .. } => Error::invalid(what, text, allowed),
            error => error,
        }
    }

    /// Returns an error of a check with the name of what was checked. Several options have one check.
    pub(crate) fn about(self, what: &'static str) -> Error {
        match self {
            Error::InvalidArgument { value, allowed, .. } => Error::InvalidArgument { what, value, allowed },
            error => error,
        }
    }

    pub(crate) fn context(self, doing: impl Into<String>) -> Error {
        Error::Context { doing: doing.into(), source: Arc::new(self) }
    }
}

/// Writes the line of [`chain`](Error::chain).
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.chain())
    }
}

/// Returns the cause if it is an error of this library, whose text would contain that of its causes.
fn of_this_library<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a Error> {
    cause.downcast_ref::<Error>().or_else(|| cause.downcast_ref::<Arc<Error>>().map(|shared| &**shared))
}

fn by(holder: &Option<Box<Holder>>) -> String {
    holder.as_ref().map_or_else(String::new, |holder| format!(" by {holder}"))
}

fn after(waited: &Duration) -> String {
    if waited.is_zero() { String::new() } else { format!(" (waited {:.3} s)", waited.as_secs_f64()) }
}

/// Returns the message of a panic.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_never_change() {
        let pinned = [
            (1, "LOCK_UNAVAILABLE"),
            (2, "CONNECTION_ERROR"),
            (3, "RETRIES_EXHAUSTED"),
            (4, "TABLE_CREATION_ERROR"),
            (5, "INTERNAL_ERROR"),
            (6, "CANCELLED"),
            (7, "IN_DOUBT"),
            (8, "LEASE_LOST"),
            (9, "NOT_FOUND"),
            (10, "ALREADY_EXISTS"),
            (11, "INVALID_ARGUMENT"),
            (12, "CLOSED"),
            (13, "FORKED"),
            (14, "PANIC"),
            (15, "STALE_FENCE"),
            (16, "UNSUPPORTED_CONVERSION"),
        ];
        let all: Vec<_> = Code::ALL.iter().map(|code| (code.number(), code.name())).collect();
        assert_eq!(all, pinned);
    }

    #[test]
    fn an_outer_error_never_hides_the_inner_code() {
        let inner = Error::InDoubt { what: "the reply was lost".into(), source: None };
        let outer = inner.context("releasing lock \"a\"").context("closing");
        assert_eq!(outer.code(), Code::InDoubt);
        assert!(outer.is_in_doubt() && outer.is_retryable());
        assert_eq!(outer.chain(), "closing: releasing lock \"a\": in doubt: the reply was lost");
    }

    #[test]
    fn one_line_has_the_subject_and_each_cause_once_whoever_prints_it() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let down =
            Error::Connection { store: "s:".into(), what: "no answer".into(), source: Some(refused.into()) };
        let table =
            Error::TableCreation { table: "t".into(), what: "not made".into(), source: Some(down.into()) };
        let outer = Error::shared(&Arc::new(table.context("acquiring lock \"a\"")));
        let line = "acquiring lock \"a\": table \"t\": not made: s: cannot be reached: no answer: connection refused";
        assert_eq!(format!("{outer}"), line);
        assert_eq!(format!("{outer:#}"), line);
        assert_eq!(outer.chain(), line);
    }

    #[test]
    fn an_error_of_another_library_with_several_lines_is_one_line() {
        let theirs = "failed:\n  127.0.0.1:3000 refused\n\u{1b}[31m";
        let error = Error::InDoubt { what: "write".into(), source: Some(theirs.into()) };
        assert_eq!(error.to_string(), "in doubt: write: failed: 127.0.0.1:3000 refused;  [31m");
    }

    #[test]
    fn a_hostile_name_cannot_forge_a_log_line() {
        let error = Error::invalid("client id", "a\n\x1b[31mroot", "1 to 255 bytes");
        assert_eq!(error.to_string(), r#"client id "a\n\u{1b}[31mroot" is not allowed: 1 to 255 bytes"#);
        assert!(Error::invalid("id", "x".repeat(5000), "less").to_string().len() < 200);
    }
}
