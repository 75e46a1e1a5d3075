//! Limits of the options of a manager, and what their texts mean.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::error::{Error, Result};

pub(crate) const TTL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
const RETRY_MAX: Duration = Duration::from_secs(3600);
const POLL_MIN: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_secs(3600);
const BACKGROUND_THREADS_MAX: usize = 64;
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(600);
const LOCK_DELAY_MAX: Duration = Duration::from_secs(3600);
const LINGER_MAX: Duration = Duration::from_secs(3600);
const HISTORY_MIN: Duration = Duration::from_secs(1);
const CLOCK_MARGIN_PPM_MAX: u32 = 500_000;
const MS: Duration = Duration::from_millis(1);

/// Where a manager receives notices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoticesSetting {
    Off,
    /// In the directory that the processes of the store share, if there is one.
    Local,
    Udp(SocketAddr),
}

/// Returns `ttl` rounded up to whole milliseconds, which all stores support.
pub(crate) fn checked_ttl(ttl: Duration) -> Result<Duration> {
    if !(MS..=TTL_MAX).contains(&ttl) {
        return Err(Error::invalid("ttl", format!("{ttl:?}"), "1ms to 365 days"));
    }
    Ok(match u64::try_from(ttl.as_nanos().div_ceil(1_000_000)) {
        Ok(ms) => Duration::from_millis(ms),
        Err(_) => TTL_MAX,
    })
}

pub(crate) fn checked_retry(retry: Duration) -> Result<Duration> {
    within("retry", retry, MS, RETRY_MAX, "1ms to 1h")
}

pub(crate) fn checked_history(history: Duration) -> Result<Duration> {
    if history.is_zero() {
        return Ok(history);
    }
    within("history", history, HISTORY_MIN, TTL_MAX, "0s, or 1s to 365d")
}

pub(crate) fn checked_poll(poll: Duration) -> Result<Duration> {
    within("poll", poll, POLL_MIN, POLL_MAX, "10ms to 1h")
}

pub(crate) fn checked_background_threads(background_threads: usize) -> Result<usize> {
    if (1..=BACKGROUND_THREADS_MAX).contains(&background_threads) {
        Ok(background_threads)
    } else {
        Err(Error::invalid(
            "background_threads",
            background_threads.to_string(),
            format!("1 to {BACKGROUND_THREADS_MAX}"),
        ))
    }
}

pub(crate) fn checked_timeout(timeout: Duration) -> Result<Duration> {
    within("timeout", timeout, TIMEOUT_MIN, TIMEOUT_MAX, "10ms to 10m")
}

pub(crate) fn checked_lock_delay(delay: Duration) -> Result<Duration> {
    within("lock_delay", delay, Duration::ZERO, LOCK_DELAY_MAX, "0s to 1h").and_then(|delay| {
        // All stores support whole milliseconds.
        if delay.is_zero() { Ok(delay) } else { checked_ttl(delay) }
    })
}

pub(crate) fn checked_linger(linger: Duration) -> Result<Duration> {
    within("linger", linger, Duration::ZERO, LINGER_MAX, "0s to 1h").and_then(|linger| {
        // All stores support whole milliseconds.
        if linger.is_zero() { Ok(linger) } else { checked_ttl(linger) }
    })
}

pub(crate) fn checked_clock_margin(ppm: u32) -> Result<u32> {
    if ppm <= CLOCK_MARGIN_PPM_MAX { Ok(ppm) } else { Err(refused_margin(&format!("{ppm}ppm"))) }
}

/// Reads a whole number with the unit ppm, such as `500ppm`. Not percent, because a URI must encode `%`.
pub(crate) fn parse_clock_margin(text: &str) -> Result<u32> {
    let digits = text.strip_suffix("ppm").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let ppm = digits.and_then(|digits| digits.parse().ok()).filter(|ppm| *ppm <= CLOCK_MARGIN_PPM_MAX);
    ppm.ok_or_else(|| refused_margin(text))
}

/// Reads `local`, `off` or `udp://ADDRESS[:PORT]`.
pub(crate) fn parse_notices(text: &str) -> Result<NoticesSetting> {
    let udp = |address: &str| {
        let address = address
            .parse::<SocketAddr>()
            .ok()
            .or_else(|| address.trim_matches(['[', ']']).parse::<IpAddr>().ok().map(|ip| (ip, 0).into()))?;
        let ip = address.ip();
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let is_usable = !ip.is_unspecified() && !ip.is_multicast() && !is_link_local;
        is_usable.then_some(NoticesSetting::Udp(address))
    };
    match text {
        "local" => Some(NoticesSetting::Local),
        "off" => Some(NoticesSetting::Off),
        _ => text.strip_prefix("udp://").and_then(udp),
    }
    .ok_or_else(|| {
        let allowed = "local, off, or udp://ADDRESS[:PORT] with the IP address at which other processes reach this one, \
                       such as udp://192.0.2.7:4711 or udp://[2001:db8::7]";
        Error::invalid("notices", text, allowed)
    })
}

fn refused_margin(given: &str) -> Error {
    let allowed = "a whole number of parts per million, 0ppm to 500000ppm: a tenth is 100000ppm";
    Error::invalid("clock_margin", given, allowed)
}

fn within(
    what: &'static str,
    value: Duration,
    min: Duration,
    max: Duration,
    allowed: &str,
) -> Result<Duration> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(Error::invalid(what, format!("{value:?}"), allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_rounded_up_never_down_and_absurd_ones_are_refused() {
        assert_eq!(checked_ttl(Duration::from_micros(1500)).unwrap(), Duration::from_millis(2));
        assert_eq!(checked_ttl(Duration::from_secs(90)).unwrap(), Duration::from_secs(90));
        assert_eq!(checked_ttl(TTL_MAX).unwrap(), TTL_MAX);
        for ttl in [Duration::ZERO, Duration::from_nanos(1), TTL_MAX + MS, Duration::MAX] {
            assert!(checked_ttl(ttl).is_err(), "{ttl:?}");
        }
    }

    #[test]
    fn notices_are_heard_at_an_address_that_others_can_reach() {
        assert_eq!(parse_notices("local").unwrap(), NoticesSetting::Local);
        assert_eq!(parse_notices("off").unwrap(), NoticesSetting::Off);
        for (text, address) in [
            ("udp://192.0.2.7:4711", "192.0.2.7:4711"),
            ("udp://192.0.2.7", "192.0.2.7:0"),
            ("udp://[2001:db8::7]:4711", "[2001:db8::7]:4711"),
            ("udp://[2001:db8::7]", "[2001:db8::7]:0"),
            ("udp://2001:db8::7", "[2001:db8::7]:0"),
        ] {
            assert_eq!(parse_notices(text).unwrap(), NoticesSetting::Udp(address.parse().unwrap()), "{text}");
        }
        for text in [
            "",
            "on",
            "udp://",
            "udp://host:1",
            "192.0.2.7:1",
            "udp://0.0.0.0:1",
            "udp://[::]",
            "udp://[fe80::1]:1",
            "udp://224.0.0.1:1",
            "udp://192.0.2.7:65536",
            "tcp://192.0.2.7:1",
        ] {
            let error = parse_notices(text).unwrap_err();
            assert_eq!(error.code(), crate::Code::InvalidArgument, "{text}");
            assert!(error.to_string().contains("udp://"), "{error}");
        }
    }

    #[test]
    fn a_clock_margin_is_a_whole_number_with_a_unit_up_to_half() {
        for (text, ppm) in [("0ppm", 0), ("100000ppm", 100_000), ("500000ppm", 500_000)] {
            assert_eq!(parse_clock_margin(text).unwrap(), ppm, "{text}");
        }
        for text in
            ["", "10", "ppm", "10%", "500001ppm", "-1ppm", "+1ppm", "1.5ppm", "10 ppm", "99999999999ppm"]
        {
            let error = parse_clock_margin(text).unwrap_err();
            assert_eq!(error.code(), crate::Code::InvalidArgument, "{text}");
            assert!(error.to_string().contains("100000ppm"), "{error}");
        }
        assert!(checked_clock_margin(500_001).is_err());
    }
}
