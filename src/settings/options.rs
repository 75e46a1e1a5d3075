//! Options as text, from a URI or a builder. The manager and the store each take out their own.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::names::lock_name::NamePolicy;
use crate::settings::store_option::StoreOption;

/// Reads a duration: a whole number and a unit, such as `90s`, `500ms`, `2m`, `1h` or `1d`.
///
/// # Errors
/// [`Code::InvalidArgument`](crate::Code::InvalidArgument), which names `what`, for any other text. The unit is
/// required.
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

/// Reads a duration that is written in the library itself.
pub(crate) const fn duration_of(text: &'static str) -> Duration {
    let (bytes, mut at, mut number) = (text.as_bytes(), 0, 0);
    while at < bytes.len() && bytes[at].is_ascii_digit() {
        number = 10 * number + (bytes[at] - b'0') as u64;
        at += 1;
    }
    assert!(at > 0, "a duration");
    Duration::from_millis(match bytes.split_at(at).1 {
        b"ms" => number,
        b"s" => number * 1000,
        b"m" => number * 60 * 1000,
        b"h" => number * 3600 * 1000,
        b"d" => number * 24 * 3600 * 1000,
        _ => panic!("a duration"),
    })
}

/// Renamed options: the old name and the new one.
const RENAMED: [(&str, &str); 2] = [("watchers", "background_threads"), ("lanes", "pool")];

/// Options that are gone: the name, an option of the stores that had it, and what to do instead.
const GONE: [(&str, &str, &str); 1] = [(
    "mixed_fleet",
    "latches",
    "the option is gone, leave it out: every acquire reads its record back, whether Java services use the table or not",
)];

/// The options of a URI. The manager and the store each take out their own; the rest are unknown.
#[derive(Debug, Default)]
pub(crate) struct Options {
    given: BTreeMap<String, String>,
    /// The options of the manager that opens the store. It takes them out first.
    of_manager: &'static [StoreOption],
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

    /// Takes a duration and checks it. An error has the key and the text as it was typed.
    pub(crate) fn take_checked(
        &mut self,
        key: &'static str,
        check: impl Fn(Duration) -> Result<Duration>,
    ) -> Result<Option<Duration>> {
        let Some(text) = self.take(key) else { return Ok(None) };
        check(parse_duration(key, &text)?).map(Some).map_err(|error| error.with_input(key, &text))
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
    /// INVALID_ARGUMENT if the value is not a whole number within the limits.
    pub(crate) fn take_number(&mut self, key: &'static str, min: usize, max: usize) -> Result<Option<usize>> {
        let Some(text) = self.take(key) else { return Ok(None) };
        match text.parse() {
            Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => Err(Error::invalid(key, text, format!("a whole number from {min} to {max}"))),
        }
    }

    pub(crate) fn take_policy(&mut self, key: &'static str) -> Result<Option<NamePolicy>> {
        match self.take(key).as_deref() {
            None => Ok(None),
            Some("strict") => Ok(Some(NamePolicy::Strict)),
            Some("compat") => Ok(Some(NamePolicy::Compat)),
            Some(other) => Err(Error::invalid(key, other, "strict or compat")),
        }
    }

    /// Marks these as the options of a store and of a manager, which has these. Messages about unknown options then list
    /// both.
    pub(crate) fn for_manager(&mut self, of_manager: &'static [StoreOption]) -> &mut Options {
        self.of_manager = of_manager;
        self
    }

    /// Refuses settings of a manager, for a store that is opened without one and would ignore them.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is one.
    pub(crate) fn refuse_managers(&self, of_manager: &[StoreOption]) -> Result<()> {
        match of_manager.iter().find_map(|option| Some((option.key, self.given.get(option.key)?))) {
            None => Ok(()),
            Some((key, value)) => {
                let allowed = "it is a setting of a manager, not of a store by itself: give it to \
                               LockManager::builder, or in the URI to LockManager::open";
                Err(Error::invalid(key, value, allowed))
            }
        }
    }

    /// Returns the keys that were not yet taken out.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.given.keys().map(String::as_str)
    }

    /// Refuses options that were not taken out. `known`: the options of this store.
    pub(crate) fn finish(self, known: &[StoreOption]) -> Result<()> {
        self.keys().next().map_or(Ok(()), |key| Err(self.unknown(key, known)))
    }

    /// Refuses options that are not among `known`, the options of this store.
    pub(crate) fn refuse_unknown(&self, known: &[StoreOption]) -> Result<()> {
        let unknown = self.keys().find(|key| known.iter().all(|option| option.key != *key));
        unknown.map_or(Ok(()), |key| Err(self.unknown(key, known)))
    }

    fn unknown(&self, key: &str, known: &[StoreOption]) -> Error {
        let known: Vec<_> = self.of_manager.iter().chain(known).map(|option| option.key).collect();
        let renamed = RENAMED.iter().find(|(old, new)| *old == key && known.contains(new));
        let gone = GONE.iter().find(|(old, beside, _)| *old == key && known.contains(beside));
        let allowed = match (renamed, gone, known.as_slice()) {
            (Some((_, new)), ..) => format!("it is now {new}"),
            (_, Some((_, _, instead)), _) => (*instead).to_owned(),
            (_, _, []) => "this store has no options of its own".to_owned(),
            (_, _, known) => format!("one of {}", known.join(", ")),
        };
        Error::invalid("store option", key, allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_check_repeats_the_option_and_the_text_as_they_were_typed() {
        let mut options = Options::default();
        options.insert("connect_timeout".into(), "500d".into()).unwrap();
        let error = options.take_checked("connect_timeout", crate::settings::limits::checked_timeout);
        assert_eq!(error.unwrap_err().to_string(), "connect_timeout \"500d\" is not allowed: 10ms to 10m");
    }

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

    const OF_MANAGER: [StoreOption; 2] =
        [StoreOption::new("ttl", "90s", ""), StoreOption::new("background_threads", "2", "")];
    const OF_STORE: [StoreOption; 1] = [StoreOption::new("pool", "16", "")];

    #[test]
    fn an_option_is_known_and_given_once() {
        let mut options = Options::default();
        options.insert("tll".into(), "90s".into()).unwrap();
        assert!(options.insert("tll".into(), "90s".into()).is_err());
        options.for_manager(&OF_MANAGER);
        let error = options.finish(&OF_STORE).unwrap_err().to_string();
        assert!(error.contains("\"tll\"") && error.contains("ttl") && error.contains("pool"), "{error}");
    }

    #[test]
    fn an_option_that_was_renamed_is_refused_with_its_new_name() {
        let refused = |key: &str, known: &[StoreOption]| {
            let mut options = Options::default();
            options.insert(key.into(), "4".into()).unwrap();
            options.for_manager(&OF_MANAGER);
            options.finish(known).unwrap_err().to_string()
        };
        for known in [&[][..], &OF_STORE] {
            let error = refused("watchers", known);
            assert!(error.ends_with("is now background_threads"), "{error}");
        }
        assert!(refused("lanes", &OF_STORE).ends_with("is now pool"));
        // It never had an option of that name.
        assert!(refused("lanes", &[]).contains("one of "));
    }

    #[test]
    fn an_option_that_is_gone_is_refused_with_what_to_do_instead() {
        let mut options = Options::default();
        options.insert("mixed_fleet".into(), "on".into()).unwrap();
        let refused = |known: &[StoreOption]| options.refuse_unknown(known).unwrap_err().to_string();
        let error = refused(&[StoreOption::new("latches", "", "")]);
        assert!(
            error.contains("\"mixed_fleet\" is not allowed: the option is gone, leave it out"),
            "{error}"
        );
        // Other stores never had it.
        assert!(refused(&OF_STORE).ends_with("one of pool"));
    }
}
