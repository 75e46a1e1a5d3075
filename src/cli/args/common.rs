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

/// Parses a TTL: 1 ms to 365 days.
pub(super) fn ttl(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(1), Duration::from_secs(365 * 24 * 3600), "1ms to 365d")
}

/// Parses the pause between two reads of a lock: 1 ms to 1 hour.
pub(super) fn retry(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(1), Duration::from_secs(3600), "1ms to 1h")
}

/// Parses the pause between two reads of a latch: 10 ms to 1 hour.
pub(super) fn poll(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(10), Duration::from_secs(3600), "10ms to 1h")
}

/// Parses a duration between two limits, so that an error repeats it as it was typed.
pub(super) fn within(text: &str, least: Duration, most: Duration, allowed: &str) -> Result<Duration, String> {
    duration(text)
        .and_then(|time| if (least..=most).contains(&time) { Ok(time) } else { Err(allowed.into()) })
}

/// Parses a duration. The error says what is allowed; clap adds the value.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    dlm::parse_duration("duration", text).map_err(|error| match error {
        dlm::Error::InvalidArgument { allowed, .. } => allowed,
        other => other.to_string(),
    })
}
