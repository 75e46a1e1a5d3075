//! Settings of a lock manager: defaults, limits, and their text form in store URIs.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::store::{NamePolicy, check_part};
use crate::store_option::{MANAGER, StoreOption};
use crate::time::Moment;

/// How long a lease lasts unless told otherwise.
pub const DEFAULT_TTL: Duration = Duration::from_secs(90);
/// How long `acquire` waits unless told otherwise.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(90);
/// How long a waiting process sleeps between two looks at the lock unless told otherwise.
pub const DEFAULT_RETRY: Duration = Duration::from_secs(1);
/// How long a latch lives after its last change unless told otherwise.
pub const DEFAULT_LATCH_TTL: Duration = Duration::from_secs(24 * 3600);
/// The longest pause between two looks at a latch that somebody waits for, unless told otherwise.
pub const DEFAULT_POLL: Duration = Duration::from_secs(5);
/// How many threads a manager has for background work at the most, unless told otherwise.
pub const DEFAULT_WATCHERS: usize = 2;
/// How long one call to the store may take unless told otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// By how much sooner than in the store a lease ends here, in parts per million of its TTL, unless told
/// otherwise: a tenth.
///
/// The store's clock counts the lease, and so does this machine's. Time daemons slew clocks to correct them,
/// and the boot clock is slewed as well: ntpd and systemd-timesyncd by up to 500 ppm, chrony by up to 83,333
/// ppm unless its `maxslewrate` is set. Linux allows about 100,000 ppm. A tenth covers one of the two clocks at
/// 100,000 ppm, or both at 50,000. Two hosts whose chrony corrects at full speed, in opposite directions, need
/// 160,000. A clock that is set instead of slewed is beyond every margin.
pub const DEFAULT_CLOCK_MARGIN_PPM: u32 = 100_000;

const TTL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
const RETRY_MAX: Duration = Duration::from_secs(3600);
const POLL_MIN: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_secs(3600);
const WATCHERS_MAX: usize = 64;
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(600);
const CLOCK_MARGIN_PPM_MAX: u32 = 500_000;
const MS: Duration = Duration::from_millis(1);

/// A manager's settings, checked.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) client: String,
    pub(crate) farm: Option<String>,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) retry: Duration,
    pub(crate) timeout: Duration,
    pub(crate) clock_margin_ppm: u32,
    pub(crate) names: NamePolicy,
    pub(crate) purpose: String,
    pub(crate) latch_ttl: Duration,
    pub(crate) poll: Duration,
    pub(crate) watchers: usize,
}

impl Settings {
    /// # Errors
    /// INVALID_ARGUMENT for a client or farm id that is not allowed, or no client id.
    pub(crate) fn check_names(&self) -> Result<()> {
        if self.client.is_empty() {
            let how = "it is required: Builder::client, or ?client= in the store's URI";
            return Err(Error::invalid("client id", "", how));
        }
        check_part("client id", &self.client, self.names)?;
        self.farm.as_ref().map_or(Ok(()), |farm| check_part("farm id", farm, self.names))
    }

    /// When a lease of `ttl` that was asked for at `since` is over here: sooner than in the store by the
    /// clock margin, see [`DEFAULT_CLOCK_MARGIN_PPM`].
    pub(crate) fn lease_end(&self, since: Moment, ttl: Duration) -> Moment {
        since.after(ttl - ttl.mul_f64(f64::from(self.clock_margin_ppm) / 1e6))
    }
}

/// `ttl` in whole milliseconds, rounded up, as all stores keep at least those.
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

pub(crate) fn checked_poll(poll: Duration) -> Result<Duration> {
    within("poll", poll, POLL_MIN, POLL_MAX, "10ms to 1h")
}

pub(crate) fn checked_watchers(watchers: usize) -> Result<usize> {
    if (1..=WATCHERS_MAX).contains(&watchers) {
        Ok(watchers)
    } else {
        Err(Error::invalid("watchers", watchers.to_string(), format!("1 to {WATCHERS_MAX}")))
    }
}

pub(crate) fn checked_timeout(timeout: Duration) -> Result<Duration> {
    within("timeout", timeout, TIMEOUT_MIN, TIMEOUT_MAX, "10ms to 10m")
}

pub(crate) fn checked_clock_margin(ppm: u32) -> Result<u32> {
    if ppm <= CLOCK_MARGIN_PPM_MAX { Ok(ppm) } else { Err(refused_margin(&format!("{ppm}ppm"))) }
}

/// Reads `500ppm`: a whole number and the unit. No percent: in a URI a `%` would have to be encoded.
pub(crate) fn parse_clock_margin(text: &str) -> Result<u32> {
    let digits = text.strip_suffix("ppm").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let ppm = digits.and_then(|digits| digits.parse().ok()).filter(|ppm| *ppm <= CLOCK_MARGIN_PPM_MAX);
    ppm.ok_or_else(|| refused_margin(text))
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

/// Reads `90s`, `500ms`, `2m`, `1h` or `1d`: a whole number and a unit.
///
/// # Errors
/// INVALID_ARGUMENT, naming `what`, for anything else: a number without a unit is not guessed at.
pub fn parse_duration(what: &'static str, text: &str) -> Result<Duration> {
    let refuse = || Error::invalid(what, text, "a whole number with a unit: ms, s, m, h or d, such as 90s");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().map_err(|_| refuse())?;
    let unit_ms = match &text[digits..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 3600 * 1000,
        "d" => 24 * 3600 * 1000,
        _ => return Err(refuse()),
    };
    number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(refuse)
}

/// The options of a URI, each taken out by whoever understands it. What is left over is unknown.
#[derive(Debug, Default)]
pub(crate) struct Options {
    given: BTreeMap<String, String>,
    /// They come through a manager, which has taken its own out.
    through_manager: bool,
}

impl Options {
    /// # Errors
    /// INVALID_ARGUMENT for a key given twice.
    pub(crate) fn insert(&mut self, key: String, value: String) -> Result<()> {
        match self.given.insert(key.clone(), value) {
            None => Ok(()),
            Some(_) => Err(Error::invalid("store option", key, "each option once")),
        }
    }

    pub(crate) fn replace(&mut self, key: String, value: String) {
        self.given.insert(key, value);
    }

    pub(crate) fn take(&mut self, key: &str) -> Option<String> {
        self.given.remove(key)
    }

    #[cfg(feature = "aerospike")]
    pub(crate) fn has(&self, key: &str) -> bool {
        self.given.contains_key(key)
    }

    pub(crate) fn take_duration(&mut self, key: &'static str) -> Result<Option<Duration>> {
        self.take(key).map(|text| parse_duration(key, &text)).transpose()
    }

    pub(crate) fn take_flag(&mut self, key: &'static str) -> Result<Option<bool>> {
        match self.take(key).as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(other) => Err(Error::invalid(key, other, "true or false")),
        }
    }

    /// # Errors
    /// INVALID_ARGUMENT when the value is not a whole number within the limits.
    pub(crate) fn take_number(&mut self, key: &'static str, min: usize, max: usize) -> Result<Option<usize>> {
        let Some(text) = self.take(key) else { return Ok(None) };
        match text.parse() {
            Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => Err(Error::invalid(key, text, format!("a whole number from {min} to {max}"))),
        }
    }

    pub(crate) fn take_names(&mut self) -> Result<Option<NamePolicy>> {
        match self.take("names").as_deref() {
            None => Ok(None),
            Some("strict") => Ok(Some(NamePolicy::Strict)),
            Some("compat") => Ok(Some(NamePolicy::Compat)),
            Some(other) => Err(Error::invalid("names", other, "strict or compat")),
        }
    }

    /// From now on these are options of a manager and its store, as messages about unknown ones shall say.
    pub(crate) fn for_manager(&mut self) -> &mut Options {
        self.through_manager = true;
        self
    }

    /// For a store that is opened by itself: nobody would heed a manager's settings.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where there is one.
    pub(crate) fn refuse_managers(&self) -> Result<()> {
        match MANAGER.iter().find_map(|option| Some((option.key, self.given.get(option.key)?))) {
            None => Ok(()),
            Some((key, value)) => {
                let allowed = "it is a setting of a manager, not of a store by itself: give it to \
                               LockManager::builder, or in the URI to LockManager::open";
                Err(Error::invalid(key, value, allowed))
            }
        }
    }

    /// Refuses what nobody took. `known`: the options of the store at hand.
    pub(crate) fn finish(self, known: &[StoreOption]) -> Result<()> {
        let Some(key) = self.given.keys().next() else { return Ok(()) };
        let managers = MANAGER.iter().filter(|_| self.through_manager);
        let known: Vec<_> = managers.chain(known).map(|option| option.key).collect();
        let allowed = match known.as_slice() {
            [] => "this store has no options of its own".to_owned(),
            known => format!("one of {}", known.join(", ")),
        };
        Err(Error::invalid("store option", key, allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_needs_a_unit_and_never_overflows() {
        let good = [
            ("90s", 90_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0s", 0),
            ("1d", 86_400_000),
        ];
        for (text, ms) in good {
            assert_eq!(parse_duration("ttl", text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in [
            "",
            "90",
            "s",
            "-1s",
            "1.5s",
            "1 s",
            "90S",
            "99999999999999999999s",
            "18446744073709551615s",
            "é",
        ] {
            let error = parse_duration("ttl", text).unwrap_err();
            assert_eq!(error.code(), crate::Code::InvalidArgument, "{text}");
        }
    }

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

    #[test]
    fn an_option_is_known_and_given_once() {
        let mut options = Options::default();
        options.insert("tll".into(), "90s".into()).unwrap();
        assert!(options.insert("tll".into(), "90s".into()).is_err());
        options.for_manager();
        let error = options.finish(&crate::store_option::GATEWAY).unwrap_err().to_string();
        assert!(error.contains("\"tll\"") && error.contains("ttl") && error.contains("pool"), "{error}");
    }
}
