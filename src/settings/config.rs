//! Settings of a lock manager: defaults and limits.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::names::lock_name::{NamePolicy, check_part};
use crate::runtime::time::Moment;

/// What a manager uses if neither the builder nor the URI says otherwise: the value is [`DEFAULTS`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Defaults {
    /// TTL of a lease.
    pub ttl: Duration,
    /// Time for which `acquire` waits.
    pub wait: Duration,
    /// Retry interval: the pause of a waiting process between two checks of the lock.
    pub retry: Duration,
    /// Time for which a latch lives after its last change.
    pub latch_ttl: Duration,
    /// Poll interval: the longest pause between two reads of a latch that has waiters.
    pub poll: Duration,
    /// Highest number of background threads of a manager.
    pub background_threads: usize,
    /// Time-out of one call to the store.
    pub timeout: Duration,
    /// Lock delay: none.
    pub lock_delay: Duration,
    /// Time for which a released lock stays with its process: none.
    pub linger: Duration,
    /// Time for which the history of a lock is kept: no history.
    pub history: Duration,
    /// Clock margin: how much earlier than in the store a lease expires here, in parts per million of its TTL. It is a
    /// tenth.
    ///
    /// The store and this process measure the lease with different clocks. Time daemons correct clocks by changing
    /// their speed, including the boot clock: ntpd and systemd-timesyncd by up to 500 ppm, chrony by up to 83,333
    /// ppm unless its `maxslewrate` is set. Linux allows about 100,000 ppm. A tenth covers one clock at 100,000 ppm,
    /// or both at 50,000. Two hosts whose chrony corrects at full speed in opposite directions need 160,000. No
    /// margin covers a clock that is set instead of slewed.
    pub clock_margin_ppm: u32,
}

/// The defaults of a manager's options.
pub const DEFAULTS: Defaults = Defaults {
    ttl: Duration::from_secs(90),
    wait: Duration::from_secs(90),
    retry: Duration::from_secs(1),
    latch_ttl: Duration::from_secs(24 * 3600),
    poll: Duration::from_secs(5),
    background_threads: 2,
    timeout: Duration::from_secs(10),
    lock_delay: Duration::ZERO,
    linger: Duration::ZERO,
    history: Duration::ZERO,
    clock_margin_ppm: 100_000,
};

const TTL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
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

/// Settings of a manager.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) client: String,
    pub(crate) farm: Option<String>,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) retry: Duration,
    pub(crate) timeout: Duration,
    pub(crate) clock_margin_ppm: u32,
    pub(crate) lock_delay: Duration,
    pub(crate) linger: Duration,
    /// Zero: the manager writes no history.
    pub(crate) history: Duration,
    pub(crate) dies_with_process: bool,
    pub(crate) strict: bool,
    pub(crate) names: NamePolicy,
    pub(crate) purpose: String,
    pub(crate) latch_ttl: Duration,
    pub(crate) poll: Duration,
    pub(crate) background_threads: usize,
    pub(crate) notices: NoticesSetting,
    pub(crate) notices_all: bool,
}

/// The defaults, of a manager without a name.
#[cfg(test)]
impl Default for Settings {
    fn default() -> Settings {
        Settings {
            client: String::new(),
            farm: None,
            ttl: DEFAULTS.ttl,
            wait: DEFAULTS.wait,
            retry: DEFAULTS.retry,
            timeout: DEFAULTS.timeout,
            clock_margin_ppm: DEFAULTS.clock_margin_ppm,
            lock_delay: DEFAULTS.lock_delay,
            linger: DEFAULTS.linger,
            history: DEFAULTS.history,
            dies_with_process: false,
            strict: false,
            names: NamePolicy::default(),
            purpose: String::new(),
            latch_ttl: DEFAULTS.latch_ttl,
            poll: DEFAULTS.poll,
            background_threads: DEFAULTS.background_threads,
            notices: parse_notices("local").expect("it is the default"),
            notices_all: false,
        }
    }
}

impl Settings {
    /// # Errors
    /// INVALID_ARGUMENT if the client id is missing, or the client or farm id is not allowed.
    pub(crate) fn check_names(&self) -> Result<()> {
        if self.client.is_empty() {
            let how = "set the option client, such as ?client=order-service in the store's URI";
            return Err(Error::invalid("client id", "", how));
        }
        check_part("client id", &self.client, self.names)?;
        self.farm.as_ref().map_or(Ok(()), |farm| check_part("farm id", farm, self.names))
    }

    /// Returns when a lease that was requested at `since` expires here. That is earlier than in the store by the
    /// clock margin, see [`Defaults::clock_margin_ppm`].
    pub(crate) fn lease_end(&self, since: Moment, ttl: Duration) -> Moment {
        since.after(ttl - ttl.mul_f64(f64::from(self.clock_margin_ppm) / 1e6))
    }

    /// Returns how long the store is asked to keep the record of a lease with this TTL.
    pub(crate) fn asked_ttl(&self, ttl: Duration) -> Duration {
        ttl + self.lock_delay + self.linger_of(ttl)
    }

    /// Returns how long a lock stays with this process after a lease with this TTL.
    pub(crate) fn linger_of(&self, ttl: Duration) -> Duration {
        self.linger.min(ttl)
    }

    /// Returns the TTL of a lease that lasts `length` here: the reverse of [`lease_end`](Settings::lease_end).
    pub(crate) fn ttl_of_lease(&self, length: Duration) -> Duration {
        // The margin is at most a half. A time beyond all leases cannot be multiplied.
        length.min(TTL_MAX).div_f64(1.0 - f64::from(self.clock_margin_ppm) / 1e6)
    }
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
