//! The parsed URI of a store.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::settings::options::Options;

/// The URI of a store, as the open function of its [`Scheme`](super::Scheme) receives it.
///
/// `redis://cache1:6379,cache2:6379/locks?pool=4` has the authority `cache1:6379,cache2:6379`, the path `/locks`
/// and the option `pool`. The options of a manager (`client`, `ttl`, ...) are not included. The library has already
/// refused keys that the scheme does not list.
///
/// `Display` shows the URI without its options. [`describe`](super::LockStore::describe) may return this text.
pub struct StoreUri {
    scheme: &'static str,
    /// Scheme, authority and path, as given.
    shown: String,
    /// The same, without what may be a password.
    for_messages: String,
    authority: String,
    path: String,
    options: Options,
}

/// What stands between the scheme and the options of a URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UriShape {
    /// Servers, if it begins with `//`, then a path.
    Servers,
    /// A path only, which may contain an `@`.
    Path,
}

impl StoreUri {
    /// Parses `uri`, whose part between the scheme and the options is `endpoint`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an `@` beside servers, because the text before it may be a password, for a path that is not
    /// percent-encoded UTF-8, and for an option that is malformed or given twice.
    pub(crate) fn new(
        scheme: &'static str,
        shape: UriShape,
        endpoint: &str,
        options: Options,
        uri: &str,
    ) -> Result<StoreUri> {
        let (shown, for_messages) = (format!("{scheme}:{endpoint}"), without_secrets(uri));
        if shape == UriShape::Servers && endpoint.contains('@') {
            let allowed =
                "a URI without user and password (give them as options); write %40 for an @ in the path";
            return Err(Error::invalid("store", for_messages, allowed));
        }
        let (authority, path) = match endpoint.strip_prefix("//") {
            Some(rest) if shape == UriShape::Servers => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            _ => ("", endpoint),
        };
        Ok(StoreUri {
            scheme,
            shown,
            authority: authority.to_owned(),
            path: decoded("store path", path, &for_messages)?,
            for_messages,
            options,
        })
    }

    /// Returns the options, which the builder of a manager may add to.
    pub(crate) fn options(&mut self) -> &mut Options {
        &mut self.options
    }

    /// Takes all options out.
    #[cfg(any(feature = "aerospike", feature = "hbase"))]
    pub(crate) fn take_options(&mut self) -> Options {
        std::mem::take(&mut self.options)
    }

    /// Returns the path without its first slash and those at its end. It is not percent-decoded.
    #[cfg(any(feature = "aerospike", feature = "hbase"))]
    pub(crate) fn encoded_names(&self) -> &str {
        let after = &self.shown[self.scheme.len() + 1..];
        let after =
            after.strip_prefix("//").and_then(|after| after.strip_prefix(&*self.authority)).unwrap_or(after);
        after.strip_prefix('/').unwrap_or(after).trim_end_matches('/')
    }

    /// Creates the error about a part that the URI lacks. `form` shows a whole URI.
    #[cfg(any(feature = "aerospike", feature = "hbase"))]
    pub(crate) fn lacks(&self, part: &str, form: &str) -> Error {
        self.invalid(&format!("{part} is missing, as in {form}"))
    }

    /// Returns whether the URI has `//` after its scheme.
    #[cfg(any(feature = "aerospike", feature = "hbase"))]
    pub(crate) fn has_servers(&self) -> bool {
        self.shown[self.scheme.len() + 1..].starts_with("//")
    }

    /// Returns the scheme, the part before the first colon.
    pub fn scheme(&self) -> &str {
        self.scheme
    }

    /// Returns the part between `//` and the next `/`: a host and a port, or several with commas between them.
    /// Empty if the URI has no `//`.
    ///
    /// It is not percent-decoded. It contains no user and password, because a URI with an `@` is refused.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the part between the authority and the options. If there is no authority, the path starts after
    /// the scheme. It is percent-decoded and keeps its first slash: `redis://cache1:6379/locks` has the path
    /// `/locks`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Removes the option `key` and returns its value, percent-decoded. The value may be a password: do not show
    /// it in messages.
    pub fn take(&mut self, key: &str) -> Option<String> {
        self.options.take(key)
    }

    /// Removes an option whose value is a duration such as `500ms`, and returns it.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) for a value that
    /// [`parse_duration`](crate::parse_duration) refuses.
    pub fn take_duration(&mut self, key: &'static str) -> Result<Option<Duration>> {
        self.options.take_duration(key)
    }

    /// Removes an option whose value is a whole number, and returns it.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::Code::InvalidArgument) for a value that is not a number, is less than `min`
    /// or more than `max`.
    pub fn take_number(&mut self, key: &'static str, min: usize, max: usize) -> Result<Option<usize>> {
        self.options.take_number(key, min, max)
    }

    /// Creates an error with [`Code::InvalidArgument`](crate::Code::InvalidArgument) that shows this URI without
    /// its options, and `allowed` as what is allowed.
    pub fn invalid(&self, allowed: &str) -> Error {
        Error::invalid("store", &self.for_messages, allowed)
    }

    /// Returns the key of an option that was given but not taken.
    pub(crate) fn left_over(&self) -> Option<&str> {
        self.options.keys().next()
    }
}

/// Shows the URI without the options.
impl fmt::Display for StoreUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Shows the keys of the options, but not their values.
impl fmt::Debug for StoreUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.options.keys().collect();
        f.debug_struct("StoreUri").field("uri", &self.shown).field("options", &keys).finish()
    }
}

/// Decodes percent-encoding in a part of a URI that is not secret. `what` names the part.
pub(crate) fn decode(what: &'static str, text: &str) -> Result<String> {
    decoded(what, text, text)
}

/// Decodes percent-encoding. A `+` stays a plus, unlike in web forms. The error shows `shown` and not `text`, which
/// may be a password.
pub(crate) fn decoded(what: &'static str, text: &str, shown: &str) -> Result<String> {
    let refuse = || Error::invalid(what, shown, "UTF-8 with %XX for special characters");
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

/// Returns `uri` for messages. The text before an `@` and the options may be passwords and are left out.
pub(crate) fn without_secrets(uri: &str) -> String {
    let (endpoint, options) = uri.split_once('?').unwrap_or((uri, ""));
    let scheme = endpoint.split_once("//").map_or("", |(scheme, _)| scheme);
    match endpoint.rsplit_once('@') {
        Some((_, after)) => format!("{scheme}//***@{after}"),
        // A password may contain a question mark.
        None if options.contains('@') => format!("{scheme}//***"),
        None => endpoint.to_owned(),
    }
}
