//! The URI of a store whose scheme was registered, taken apart.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::options::Options;

/// The URI of a store, as the open function of a registered [`Scheme`](super::Scheme) receives it.
///
/// `redis://cache1:6379,cache2:6379/locks?pool=4` has the authority `cache1:6379,cache2:6379`, the path `/locks`
/// and the option `pool`. The options of a manager (`client`, `ttl`, ...) are not among the options, and keys
/// that the scheme does not list were refused before.
///
/// `Display` shows the URI without its options, which is what [`describe`](super::LockStore::describe) may show.
pub struct StoreUri {
    scheme: &'static str,
    /// Scheme, authority and path, as they were given.
    shown: String,
    authority: String,
    path: String,
    options: Options,
}

impl StoreUri {
    /// `place` is what stands between the scheme and the options.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an `@`, as what stands before it may be a password, and for a path that is no text.
    pub(crate) fn new(scheme: &'static str, place: &str) -> Result<StoreUri> {
        let shown = format!("{scheme}:{place}");
        if place.contains('@') {
            let allowed = "no user and password, which are options of the store, and an @ in a path as %40";
            return Err(Error::invalid("store", without_secrets(&shown), allowed));
        }
        let (authority, path) = match place.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", place),
        };
        Ok(StoreUri {
            scheme,
            shown,
            authority: authority.to_owned(),
            path: decode(path)?,
            options: Options::default(),
        })
    }

    pub(crate) fn with_options(self, options: Options) -> StoreUri {
        StoreUri { options, ..self }
    }

    /// The scheme: what stands before the first colon.
    pub fn scheme(&self) -> &str {
        self.scheme
    }

    /// What stands between `//` and the next `/`: a host and a port, or several with commas between them. Empty
    /// where the URI has no `//`. It is not percent-decoded. It holds no user and password: a URI
    /// with an `@` is refused.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// What follows the authority, or the scheme where there is none, up to the options. It is percent-decoded
    /// and keeps the slash that it begins with, so `redis://cache1:6379/locks` has the path `/locks`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Takes the option `key` out and returns its value, percent-decoded. The value may be a password: do not
    /// show it in messages.
    pub fn take(&mut self, key: &str) -> Option<String> {
        self.options.take(key)
    }

    /// Takes an option whose value is a duration such as `500ms`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a value that [`parse_duration`](crate::parse_duration) does not read.
    pub fn take_duration(&mut self, key: &'static str) -> Result<Option<Duration>> {
        self.options.take_duration(key)
    }

    /// Takes an option whose value is a whole number.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a value that is no number, less than `min` or more than `max`.
    pub fn take_number(&mut self, key: &'static str, min: usize, max: usize) -> Result<Option<usize>> {
        self.options.take_number(key, min, max)
    }

    /// An INVALID_ARGUMENT that names this URI, without its options, and says what is allowed.
    pub fn invalid(&self, allowed: &str) -> Error {
        Error::invalid("store", &self.shown, allowed)
    }

    /// A key that was given and not taken.
    pub(crate) fn left_over(&self) -> Option<&str> {
        self.options.keys().next()
    }
}

/// Without the options.
impl fmt::Display for StoreUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// With the keys of the options, and without their values.
impl fmt::Debug for StoreUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.options.keys().collect();
        f.debug_struct("StoreUri").field("uri", &self.shown).field("options", &keys).finish()
    }
}

/// Undoes percent-encoding of a part of a URI that is no secret.
pub(crate) fn decode(text: &str) -> Result<String> {
    decoded(text, text)
}

/// Undoes percent-encoding. A `+` is a plus: these are not web forms. `shown` stands for the text in the error, since
/// the text may be a password.
pub(crate) fn decoded(text: &str, shown: &str) -> Result<String> {
    let refuse = || Error::invalid("store option", shown, "UTF-8 with %XX for special characters");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let hex = rest.split_at_checked(2).and_then(|(hex, after)| {
                rest = after;
                std::str::from_utf8(hex).ok().filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
            });
            bytes.push(u8::from_str_radix(hex.ok_or_else(refuse)?, 16).map_err(|_| refuse())?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).map_err(|_| refuse())
}

/// For messages: what stands before an `@` may be a password, and so may an option.
pub(crate) fn without_secrets(uri: &str) -> String {
    let (place, options) = uri.split_once('?').unwrap_or((uri, ""));
    let scheme = place.split_once("//").map_or("", |(scheme, _)| scheme);
    match place.rsplit_once('@') {
        Some((_, after)) => format!("{scheme}//***@{after}"),
        // That may be a password with a question mark in it.
        None if options.contains('@') => format!("{scheme}//***"),
        None => place.to_owned(),
    }
}
