//! How the command ends: an exit status, and for a failure one line that says what to do.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use dlm::{Code, Error};
use rustix::io::Errno;
use serde_json::json;

use crate::cli::objects;

/// Wrong usage, or a name, URI or lease that is not allowed.
pub(crate) const USAGE: u8 = 64;
/// The latch does not exist.
pub(crate) const NO_INPUT: u8 = 66;
/// The store cannot be reached, or does not serve.
pub(crate) const UNREACHABLE: u8 = 69;
/// A bug of the library, or a failure of the machine.
pub(crate) const INTERNAL: u8 = 70;
/// The latch to be created exists already.
pub(crate) const CANNOT_CREATE: u8 = 73;
/// The request may or may not have been applied.
pub(crate) const IN_DOUBT: u8 = 74;
/// Another holder has the lock (`-E` sets another status), or the latch did not open in time.
pub(crate) const UNAVAILABLE: u8 = 75;
/// The lease is lost: it expired, or another holder has acquired the lock since.
pub(crate) const LOST: u8 = 77;
/// The store is not safe for locks.
pub(crate) const CONFIG: u8 = 78;
/// The command of `run` exists but cannot be executed. The number is that of shells.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command of `run` does not exist. The number is that of shells.
pub(crate) const NOT_FOUND: u8 = 127;

/// Exit status of a `dlm` command, or the failure that ends it.
pub(crate) type CommandOutcome = Result<u8, CommandFailure>;

/// Exit status of a process that a signal ended, as in shells.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Exit status and message of a `dlm` command that failed.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    status: u8,
    line: String,
    code: Option<Code>,
}

impl CommandFailure {
    pub(crate) fn new(status: u8, line: impl Into<String>) -> CommandFailure {
        let code = match status {
            USAGE => Some(Code::InvalidArgument),
            INTERNAL => Some(Code::InternalError),
            LOST => Some(Code::LeaseLost),
            _ => None,
        };
        CommandFailure { status, line: line.into(), code }
    }

    pub(crate) fn usage(line: impl Into<String>) -> CommandFailure {
        CommandFailure::new(USAGE, line)
    }

    pub(crate) fn internal(line: impl Into<String>) -> CommandFailure {
        CommandFailure::new(INTERNAL, line)
    }

    /// Like `From<Error>`, but with the status `unavailable` for a lock that is held.
    pub(crate) fn with_unavailable(error: &Error, unavailable: u8) -> CommandFailure {
        let in_doubt = "; try again; a lock that this request left held is free when its TTL ends";
        CommandFailure::advised(error, unavailable, in_doubt)
    }

    /// A failed change of a latch: of its count, or by a participant, which counts at most once.
    pub(crate) fn of_latch(error: &Error, by_participant: bool) -> CommandFailure {
        let in_doubt = match by_participant {
            true => "; try again: a participant counts at most once",
            false => "; see `dlm latch count` before you try again, because the change may have been made",
        };
        CommandFailure::advised(error, UNAVAILABLE, in_doubt)
    }

    fn advised(error: &Error, unavailable: u8, in_doubt: &str) -> CommandFailure {
        let advice = limit_reached(error).unwrap_or_else(|| match error.code() {
            Code::LockUnavailable => "; try again later, or wait longer with --wait",
            Code::ConnectionError => "; check that the store is up and that --store names it",
            Code::RetriesExhausted => "; try again, and if it fails again read the store's log",
            Code::InDoubt => in_doubt,
            // Nothing was lost: it was released before, or another store has it.
            Code::LeaseLost if error.lost_reason().is_none() => "",
            Code::LeaseLost | Code::StaleFence => "; stop the work it protects, then acquire the lock again",
            Code::InternalError | Code::Panic => "; this is unexpected: please report it",
            // The other messages say what to do.
            _ => "",
        });
        let failure = CommandFailure::new(status_of(error.code(), unavailable), error.chain() + advice);
        CommandFailure { code: Some(error.code()), ..failure }
    }

    /// Adds to the message.
    pub(crate) fn with(mut self, more: &str) -> CommandFailure {
        self.line += more;
        self
    }

    pub(crate) fn status(&self) -> u8 {
        self.status
    }

    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    /// Writes the message to standard error, with --json as an object, and returns the exit status.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        if json {
            let message = one_line(&without_leases(&self.line));
            let code = self.code.map(Code::name);
            let error = json!({ "error": { "code": code, "message": message, "status": self.status } });
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr(), "{}", objects::line(error));
        } else {
            to_stderr(&self.line);
        }
        ExitCode::from(self.status)
    }
}

/// Whether this process may write to its terminal: a job in the background may be stopped for it, and with it its wait.
pub(crate) fn may_write() -> bool {
    if !std::io::stderr().is_terminal() {
        return true;
    }
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // proc(5): after the name of the program, the third is the job of this process, and the sixth that of the terminal.
    let after_name: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    match after_name[..] {
        [_, _, own, _, _, foreground, ..] => own == foreground,
        _ => true,
    }
}

impl From<Error> for CommandFailure {
    fn from(error: Error) -> CommandFailure {
        CommandFailure::with_unavailable(&error, UNAVAILABLE)
    }
}

/// Returns advice for an error whose cause is a limit of this process, this user or the machine.
fn limit_reached(error: &Error) -> Option<&'static str> {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        let of_system = error.downcast_ref::<io::Error>();
        if of_system.is_some_and(|it| it.kind() == io::ErrorKind::WouldBlock && it.raw_os_error().is_none()) {
            // No thread can be started: the library's own words say which limit that is.
            return Some("");
        }
        if let Some(number) = of_system.and_then(io::Error::raw_os_error) {
            return match Errno::from_raw_os_error(number) {
                Errno::MFILE => Some("; raise the limit of open files (ulimit -n)"),
                Errno::NFILE => Some("; the machine has too many open files: raise fs.file-max"),
                Errno::NOMEM => {
                    Some("; there is not enough memory: raise the limit (ulimit -v) or free some")
                }
                Errno::FBIG => Some("; raise the limit of file sizes (ulimit -f)"),
                _ => None,
            };
        }
        cause = error.source();
    }
    None
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
        Code::UnsupportedConversion => UNAVAILABLE,
        _ => INTERNAL,
    }
}

/// Writes `dlm: <text>` to standard error as exactly one line. Ignores errors, because standard error may be closed.
pub(crate) fn to_stderr(text: &str) {
    let _ = writeln!(std::io::stderr(), "dlm: {}", one_line(&without_leases(text)));
}

/// Beginning of a lease line, for each version. The whole line is enough to release the lock.
const LEASE_PREFIXES: [&str; 4] = ["dlm1.", "dlm2.", "dlm3.", "dlm4."];

/// Hides lease lines in `text`. For example, clap repeats an argument that is in the wrong place.
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

/// Escapes control characters in `text`, which could colour a terminal, and makes it one line.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if "\n\r\t".contains(c) {
            if !line.ends_with(' ') {
                line.push(' ');
            }
        } else if c.is_control() {
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
            (Code::UnsupportedConversion, 75),
        ] {
            assert_eq!(status_of(code, 9), status, "{code:?}");
            let status = if code == Code::LockUnavailable { UNAVAILABLE } else { status };
            let row = format!("\n| {} | {} | ", code.name(), code.number());
            let (_, row) = include_str!("../../README.md").split_once(&row).expect("its row in the README");
            let row = row.split('\n').next().unwrap_or_default();
            assert!(row.ends_with(&format!("| {status} |")), "{row}");
        }
    }

    #[test]
    fn a_limit_that_is_reached_is_named_and_not_to_be_reported() {
        for (number, advice) in [(24, "ulimit -n"), (12, "ulimit -v"), (27, "ulimit -f")] {
            let source = Some(io::Error::from_raw_os_error(number).into());
            let failure = CommandFailure::from(Error::Internal { what: "x".into(), source });
            assert!(failure.line().contains(advice), "{}", failure.line());
            assert!(!failure.line().contains("report"), "{}", failure.line());
        }
        let failure = CommandFailure::from(Error::Internal { what: "x".into(), source: None });
        assert!(failure.line().contains("report"), "{}", failure.line());
    }

    #[test]
    fn the_advice_for_a_change_in_doubt_is_that_of_a_lock_or_of_a_latch() {
        let in_doubt = || Error::InDoubt { what: "x".into(), source: None };
        let error = in_doubt();
        let lines = [
            CommandFailure::from(in_doubt()),
            CommandFailure::of_latch(&error, true),
            CommandFailure::of_latch(&error, false),
        ];
        let advice = ["free when its TTL ends", "counts at most once", "before you try again"];
        for (failure, advice) in lines.iter().zip(advice) {
            assert_eq!(failure.status(), IN_DOUBT);
            assert!(failure.line().contains(advice), "{}", failure.line());
        }
    }

    #[test]
    fn a_lease_line_never_reaches_an_error_message() {
        let text = "unexpected argument 'dlm2.00ffAB' found, also dlm3.77, dlm4.99 and dlm1.88";
        let clean = "unexpected argument 'dlm2.***' found, also dlm3.***, dlm4.*** and dlm1.***";
        assert_eq!(without_leases(text), clean);
    }

    #[test]
    fn an_error_cannot_forge_a_second_line() {
        assert_eq!(one_line("a\n\t b\u{1b}[31m é"), "a  b\\u{1b}[31m é");
    }
}
