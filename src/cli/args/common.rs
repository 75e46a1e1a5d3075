//! Types of arguments that several commands have.

use std::time::Duration;

use clap::ValueEnum;

/// Which data centres a lock or a count covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reach {
    /// One data centre, the one of --farm
    Dc,
    /// All data centres that share the store
    Xdc,
}

/// Parses a time to wait: a duration, or `forever`.
pub(super) fn wait(text: &str) -> Result<Duration, String> {
    match text {
        "forever" => Ok(Duration::MAX),
        _ => duration(text).map_err(|allowed| format!("{allowed}, or forever")),
    }
}

/// Parses a duration. The error says what is allowed; clap adds the value.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    dlm::parse_duration("duration", text).map_err(|error| match error {
        dlm::Error::InvalidArgument { allowed, .. } => allowed,
        other => other.to_string(),
    })
}
