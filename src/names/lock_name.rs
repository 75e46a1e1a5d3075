//! Names of locks, and their keys in the stores. The Java libraries DLM and DistributedLatch compute the same
//! keys, so services in all languages exclude each other.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::names::fnv::fnv1a;
use crate::names::text::quoted;

/// Longest client or farm id, in bytes.
pub const CLIENT_BYTES_MAX: usize = 255;
/// Longest id of a lock, in bytes.
pub const ID_BYTES_MAX: usize = 1024;
/// Longest full name of a lock, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 2 * CLIENT_BYTES_MAX + ID_BYTES_MAX + 5;

/// Scope of a lock or latch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Level {
    /// One data centre. The farm id is part of the name of a lock, so each farm has its own lock.
    #[default]
    Dc,
    /// All data centres that share the store. The farm id is not part of the name of a lock.
    Xdc,
}

/// What client and farm ids may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum NamePolicy {
    /// No `#` and no control characters. Two different names then never have the same key.
    #[default]
    Strict,
    /// All that the Java libraries allow: any text that is not empty and contains no NUL. Then (`a#b`, `c`) and
    /// (`a`, `b#c`) are the same lock. Only for services that already have such ids.
    Compat,
}

/// The full name of a lock: level, client, farm (level DC) and id. Its parts have been checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName {
    /// `DC#<farm>#<client>#<id>` or `XDC#<client>#<id>`.
    key: Arc<str>,
}

impl LockName {
    /// Makes the name of lock `id` of `client`. Level DC needs a farm; level XDC ignores it.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if a part is empty, too long or contains a
    /// character that is not allowed: see [`NamePolicy`]. An id is at most 1024 bytes without NUL.
    pub fn new(
        level: Level,
        client: &str,
        farm: Option<&str>,
        id: &str,
        policy: NamePolicy,
    ) -> Result<LockName> {
        check_part("client id", client, policy)?;
        check_id("lock id", id)?;
        let key = match (level, farm) {
            (Level::Xdc, _) => format!("XDC#{client}#{id}"),
            (Level::Dc, Some(farm)) => {
                check_part("farm id", farm, policy)?;
                format!("DC#{farm}#{client}#{id}")
            }
            (Level::Dc, None) => {
                return Err(Error::invalid(
                    "farm id",
                    "",
                    "a lock of level DC needs one; set it, or use level XDC",
                ));
            }
        };
        Ok(LockName { key: key.into() })
    }

    /// Makes the name whose [`key`](LockName::key) is this text, as a list of locks or another process has it.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) if it is not the full name of a lock.
    pub fn from_key(key: &str) -> Result<LockName> {
        let parts = match key.split_once('#') {
            Some(("XDC", rest)) => rest.splitn(2, '#').count(),
            Some(("DC", rest)) => rest.splitn(3, '#').count() - 1,
            _ => 0,
        };
        if parts != 2 || key.len() > KEY_BYTES_MAX {
            return Err(Error::invalid("lock key", key, "DC#<farm>#<client>#<id> or XDC#<client>#<id>"));
        }
        Ok(LockName { key: key.into() })
    }

    /// Returns `DC#<farm>#<client>#<id>` or `XDC#<client>#<id>`, from which stores make their keys.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns a number that spreads locks over 256 parts of a store.
    pub(crate) fn spread(&self) -> u8 {
        fnv1a(self.key.as_bytes()).to_le_bytes()[0]
    }

    /// Returns the farm of a lock of level DC, and `<client>#<id>`. Cuts a farm id at its first `#`, which only
    /// [`NamePolicy::Compat`] allows.
    #[cfg(feature = "aerospike")]
    pub(crate) fn farm_and_rest(&self) -> (Option<&str>, &str) {
        let (level, rest) = self.key.split_once('#').unwrap_or(("", &self.key));
        match rest.split_once('#') {
            Some((farm, rest)) if level == "DC" => (Some(farm), rest),
            _ => (None, rest),
        }
    }
}

/// Writes the key, escaped.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quoted(&self.key))
    }
}

pub(crate) fn check_part(what: &'static str, part: &str, policy: NamePolicy) -> Result<()> {
    const ALLOWED: &str = "1 to 255 bytes of UTF-8 without '#' and control characters \
                           (names=compat forbids only NUL, for services that already have such ids)";
    let length_ok = (1..=CLIENT_BYTES_MAX).contains(&part.len());
    let content_ok = match policy {
        NamePolicy::Strict => !part.chars().any(|c| c == '#' || c.is_control()),
        NamePolicy::Compat => !part.contains('\0'),
    };
    if length_ok && content_ok { Ok(()) } else { Err(Error::invalid(what, part, ALLOWED)) }
}

pub(crate) fn check_id(what: &'static str, id: &str) -> Result<()> {
    if (1..=ID_BYTES_MAX).contains(&id.len()) && !id.contains('\0') {
        Ok(())
    } else {
        Err(Error::invalid(what, id, format!("1 to {ID_BYTES_MAX} bytes of UTF-8 without NUL")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strict(level: Level, client: &str, farm: Option<&str>, id: &str) -> Result<LockName> {
        LockName::new(level, client, farm, id, NamePolicy::Strict)
    }

    #[test]
    fn two_strict_names_never_meet() {
        let parts = ["a", "b", "a_b", "DC", "XDC", "é", "a.b", "a-b"];
        let ids = ["a", "b#c", "#", "##a", "a#b#c", "c", "DC#a#b", "\n"];
        let mut seen = std::collections::HashMap::new();
        for client in parts {
            for id in ids {
                let mut names = vec![(strict(Level::Xdc, client, None, id).unwrap(), (client, None, id))];
                for farm in parts {
                    names
                        .push((strict(Level::Dc, client, Some(farm), id).unwrap(), (client, Some(farm), id)));
                }
                for (name, from) in names {
                    if let Some(other) = seen.insert(name.key().to_owned(), from) {
                        panic!("{from:?} and {other:?} are both {name}");
                    }
                }
            }
        }
    }

    #[test]
    fn bad_parts_are_refused_with_what_is_allowed() {
        let long = "x".repeat(CLIENT_BYTES_MAX + 1);
        for client in ["", "a#b", "a\0b", "a\nb", "\u{7f}", long.as_str()] {
            let error = strict(Level::Xdc, client, None, "id").unwrap_err();
            assert_eq!(error.code(), crate::Code::InvalidArgument, "{client:?}");
            assert!(error.to_string().contains("1 to 255 bytes"), "{error}");
            assert!(strict(Level::Dc, "client", Some(client), "id").is_err(), "farm {client:?}");
        }
        assert!(strict(Level::Dc, "client", None, "id").is_err(), "DC without farm");
        let long = "x".repeat(ID_BYTES_MAX + 1);
        for id in ["", "a\0b", long.as_str()] {
            assert!(strict(Level::Xdc, "client", None, id).is_err(), "{id:?}");
        }
        assert!(LockName::new(Level::Xdc, "a#b", None, "id", NamePolicy::Compat).is_ok());
        assert!(LockName::new(Level::Xdc, "a\0b", None, "id", NamePolicy::Compat).is_err());
        assert!(strict(Level::Xdc, &"x".repeat(CLIENT_BYTES_MAX), None, &"y".repeat(ID_BYTES_MAX)).is_ok());
    }

    #[test]
    fn a_key_written_down_is_the_same_name_again() {
        for name in [
            strict(Level::Xdc, "svc", None, "a#b").unwrap(),
            strict(Level::Dc, "svc", Some("dc1"), "#").unwrap(),
        ] {
            assert_eq!(LockName::from_key(name.key()).unwrap(), name);
        }
        for key in ["", "XDC", "XDC#a", "DC#a#b", "F#XDC#a#b", "xdc#a#b"] {
            assert!(LockName::from_key(key).is_err(), "{key:?}");
        }
    }
}
