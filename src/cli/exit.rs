//! What the shell is told: an exit status, and one line that says what to do.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use dlm::{Code, Error};

/// Bad usage, or a name, URI or lease that is not allowed.
pub(crate) const USAGE: u8 = 64;
/// There is no such latch.
pub(crate) const NO_INPUT: u8 = 66;
/// The store cannot be reached, or does not serve.
pub(crate) const UNREACHABLE: u8 = 69;
/// A bug of ours, or a machine that does not do its part.
pub(crate) const INTERNAL: u8 = 70;
/// What was to be made exists.
pub(crate) const CANNOT_CREATE: u8 = 73;
/// The request may or may not have been applied.
pub(crate) const IN_DOUBT: u8 = 74;
/// Someone else holds the lock (`-E` sets another), or the latch is not open in time.
pub(crate) const UNAVAILABLE: u8 = 75;
/// The lease ran out, or the lock is not ours.
pub(crate) const LOST: u8 = 77;
/// The store is not safe for locks.
pub(crate) const CONFIG: u8 = 78;
/// As shells have it: the command was found and is no program; there is no such command.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// An exit status, or why there is none of the command's own.
pub(crate) type CommandOutcome = Result<u8, CommandFailure>;

/// The status of a process that a signal ended, as shells count.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// How the command ends when it cannot do what it was asked for.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    status: u8,
    line: String,
}

impl CommandFailure {
    pub(crate) fn new(status: u8, line: impl Into<String>) -> CommandFailure {
        CommandFailure { status, line: line.into() }
    }

    pub(crate) fn usage(line: impl Into<String>) -> CommandFailure {
        CommandFailure::new(USAGE, line)
    }

    pub(crate) fn internal(line: impl Into<String>) -> CommandFailure {
        CommandFailure::new(INTERNAL, line)
    }

    /// As `From<Error>`, with the caller's status for a lock that is held.
    pub(crate) fn with_unavailable(error: &Error, unavailable: u8) -> CommandFailure {
        let advice = match error.code() {
            Code::LockUnavailable => "; try again later, or wait longer with --wait",
            Code::ConnectionError => "; check that the store is up and that --store names it",
            Code::RetriesExhausted => "; try again, and see the store's own log if it goes on",
            Code::InDoubt => "; try again: if the lock was taken it is free when its TTL ends",
            Code::LeaseLost | Code::StaleFence => "; stop what it protects, then acquire the lock anew",
            Code::InternalError | Code::Panic => "; this should not happen: please report it",
            // Their messages say what to do.
            _ => "",
        };
        CommandFailure::new(status_of(error.code(), unavailable), error.chain() + advice)
    }

    pub(crate) fn status(&self) -> u8 {
        self.status
    }

    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    /// Says it on standard error, in one line.
    pub(crate) fn report(&self) -> ExitCode {
        tell(&self.line);
        ExitCode::from(self.status)
    }
}

impl From<Error> for CommandFailure {
    fn from(error: Error) -> CommandFailure {
        CommandFailure::with_unavailable(&error, UNAVAILABLE)
    }
}

fn status_of(code: Code, unavailable: u8) -> u8 {
    match code {
        Code::LockUnavailable => unavailable,
        Code::InvalidArgument => USAGE,
        Code::ConnectionError | Code::RetriesExhausted | Code::TableCreationError => UNREACHABLE,
        Code::InDoubt => IN_DOUBT,
        Code::NotFound => NO_INPUT,
        Code::AlreadyExists => CANNOT_CREATE,
        Code::LeaseLost | Code::StaleFence => LOST,
        _ => INTERNAL,
    }
}

/// Writes `dlm: <text>` to standard error as exactly one line. It may be closed: then nobody reads it.
pub(crate) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "dlm: {}", one_line(&without_leases(text)));
}

/// What lease lines begin with, in each version. The whole line is enough to release the lock.
const LEASE_PREFIXES: [&str; 2] = ["dlm1.", "dlm2."];

/// `text` without lease lines, however they came into it: a misplaced argument is repeated by clap.
fn without_leases(text: &str) -> String {
    LEASE_PREFIXES.iter().fold(text.to_owned(), |text, prefix| {
        let mut parts = text.split(prefix);
        let mut clean = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            clean.push_str(prefix);
            clean.push_str("***");
            clean.push_str(part.trim_start_matches(|c: char| c.is_ascii_alphanumeric()));
        }
        clean
    })
}

/// `text` with control characters escaped: they could forge a line, or colour a terminal.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            // Writing to a string cannot fail.
            let _ = write!(line, "{}", c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_the_status_of_the_contract() {
        for (code, status) in [
            (Code::LockUnavailable, 9),
            (Code::InvalidArgument, 64),
            (Code::ConnectionError, 69),
            (Code::RetriesExhausted, 69),
            (Code::TableCreationError, 69),
            (Code::InternalError, 70),
            (Code::Closed, 70),
            (Code::Forked, 70),
            (Code::Panic, 70),
            (Code::NotFound, 66),
            (Code::AlreadyExists, 73),
            (Code::InDoubt, 74),
            (Code::LeaseLost, 77),
            (Code::StaleFence, 77),
        ] {
            assert_eq!(status_of(code, 9), status, "{code:?}");
        }
    }

    #[test]
    fn a_lease_line_never_reaches_an_error_message() {
        let text = "unexpected argument 'dlm2.00ffAB' found, also dlm2.77 and dlm1.88";
        let clean = "unexpected argument 'dlm2.***' found, also dlm2.*** and dlm1.***";
        assert_eq!(without_leases(text), clean);
    }

    #[test]
    fn an_error_cannot_forge_a_second_line() {
        assert_eq!(one_line("a\nb\u{1b}[31m é"), "a\\nb\\u{1b}[31m é");
    }
}
