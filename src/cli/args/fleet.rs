//! Arguments of the commands that look after the locks of all clients.

use std::time::Duration;

use clap::Args;

use super::common::{Reach, duration, within};

pub(super) const AFTER_LS: &str = "\
Exit status: see `dlm --help`.

Examples:
  dlm ls --held
  dlm ls --held --json XDC#order-service#";

pub(super) const AFTER_BREAK: &str = "\
Exit status:
  0    the lock was broken, or was free
  64   several hold the lock, and neither --holder nor --all is given; nothing was broken
  74   in doubt: the lock may or may not be broken; see `dlm show`
  75   the holder that was shown or named has gone, or the question was not answered with yes; nothing was broken
  See `dlm --help` for the others.

Examples:
  dlm break deploy --reason 'the host is gone'
  dlm break prices --holder 4242@web-7 --reason 'this reader hangs'";

pub(super) const AFTER_HISTORY: &str = "\
Exit status: see `dlm --help`.

Examples:
  dlm history deploy
  dlm history --since 1h --json deploy";

pub(super) const AFTER_WHY: &str = "\
Exit status: see `dlm --help`.

Example:
  dlm why deploy";

pub(super) const AFTER_TOP: &str = "\
Exit status: see `dlm --help`.

Examples:
  dlm top
  dlm top --once XDC#order-service#";

/// A lock, by its name or its full name.
#[derive(Debug, Args)]
pub(crate) struct LockArg {
    /// Whether the lock is for one data centre or for all
    #[arg(long, value_enum, default_value_t = Reach::Dc, conflicts_with = "full")]
    pub(crate) level: Reach,
    /// Refuse NAME unless it is a full name, of any client
    #[arg(long)]
    pub(crate) full: bool,
    /// Name of the lock, 1 to 1024 bytes, or its full name as `dlm ls` prints it: DC#eu#order-service#order-42
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only locks that are held
    #[arg(long)]
    pub(crate) held: bool,
    /// Only locks whose full names begin so, such as XDC#order-service#, or else whose names of this client begin so
    pub(crate) prefix: Option<String>,
}

/// A process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessArg {
    pub(crate) pid: u32,
    pub(crate) host: String,
}

#[derive(Debug, Args)]
pub(crate) struct Break {
    #[command(flatten)]
    pub(crate) lock: LockArg,
    /// Of several holders, only the process with this pid on this host: all its holds
    #[arg(long, value_name = "PID@HOST", value_parser = process, conflicts_with = "all")]
    pub(crate) holder: Option<ProcessArg>,
    /// All holders, if there are several
    #[arg(long)]
    pub(crate) all: bool,
    /// Why; for the holder and the history, 1 to 255 bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    pub(crate) lock: LockArg,
    /// Only entries that are not older, such as 1h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) since: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Why {
    #[command(flatten)]
    pub(crate) lock: LockArg,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Print one screen and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Time between two screens, 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Only locks whose full names begin so, such as XDC#order-service#, or else whose names of this client begin so
    pub(crate) prefix: Option<String>,
}

fn interval(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(100), Duration::from_secs(3600), "100ms to 1h")
}

fn process(text: &str) -> Result<ProcessArg, String> {
    let parts = text.split_once('@').and_then(|(pid, host)| Some((pid.parse().ok()?, host)));
    match parts {
        Some((pid, host)) if !host.is_empty() => Ok(ProcessArg { pid, host: host.to_owned() }),
        _ => Err("a pid and a host, such as 4242@web-7: see `dlm show`".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_a_pid_and_a_host() {
        assert_eq!(process("42@a@b"), Ok(ProcessArg { pid: 42, host: "a@b".into() }));
        for text in ["42", "42@", "@h", "h@42", "-1@h", "4294967296@h"] {
            assert!(process(text).is_err(), "{text}");
        }
    }
}
