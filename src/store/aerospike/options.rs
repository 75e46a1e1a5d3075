//! The options of an `aerospike://` URI.

use std::time::Duration;

use super::keys::{checked_set, checked_suffix};
use crate::error::{Error, Result};
use crate::runtime::process::descriptors::above_streams;
use crate::settings::limits::checked_timeout;
use crate::settings::manager_options::{DEFAULTS, MANAGER};
use crate::settings::options::Options;
use crate::settings::store_option::StoreOption;
use crate::store::address::described;
use crate::store::layout::LAYOUT;
use crate::store::tls::{self, Security, TLS, TLS_CA, TLS_CERT, TLS_KEY};

const fn option(key: &'static str, default: &'static str, meaning: &'static str) -> StoreOption {
    StoreOption::new(key, default, meaning)
}

pub(super) const AEROSPIKE: [StoreOption; 17] = [
    LAYOUT,
    option(
        "slack",
        "20ms on one node, else 1s",
        "only with `layout=own` and `both`: how much longer than its TTL a lease lasts for others, for differences between the \
         nodes' clocks; 0ms to 1m",
    ),
    option("fence", "record", "`record`, `off`: where fences are counted"),
    option("strong_consistency", "any", "`require` refuses a namespace without it"),
    option("pool", "16", "the most connections to a node, 1 to 256"),
    option("connect_timeout", "1s", "10ms to 10m"),
    option("services_alternate", "off", "`on` uses the nodes' alternate addresses"),
    option("auth", "internal with a user", "`internal`, `external`, `pki`"),
    option("user", "", "the user that logs in"),
    option("password", "", "the user's password"),
    option("password_file", "", "a file with the password in its first line"),
    option("plain_credentials", "refuse", "`allow` sends the password over plain TCP"),
    TLS,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
    option("tls_name", "the host's", "the name in the servers' certificates"),
];

const PORT_DEFAULT: u16 = 3000;
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
const POOL_DEFAULT: usize = 16;

/// A node from the URI. The client finds the other nodes of the cluster through it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seed {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// How the client logs in.
#[derive(Clone)]
pub(crate) enum Login {
    None,
    /// User and password of a user that the cluster manages itself.
    Internal(String, String),
    /// User and password of a user in an external directory, such as LDAP. The servers see the password.
    External(String, String),
    /// The client certificate identifies the user.
    Certificate,
}

pub(crate) struct Setup {
    pub(crate) seeds: Vec<Seed>,
    pub(crate) namespace: String,
    pub(crate) suffix: String,
    /// The URI without options, for messages.
    pub(crate) uri: String,
    pub(crate) fenced: bool,
    pub(crate) strong_consistency: bool,
    pub(crate) pool: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) services_alternate: bool,
    pub(crate) login: Login,
    pub(crate) security: Security,
    /// The name in the servers' certificates, if it is not the host name.
    pub(crate) tls_name: Option<String>,
}

impl Setup {
    /// Reads the options of a store's URI.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, before any I/O except on the files that the options name.
    pub(crate) fn read(hosts: &str, namespace: &str, suffix: &str, mut options: Options) -> Result<Setup> {
        checked_suffix(namespace, suffix)?;
        let fenced = one_of(&mut options, "fence", &[("record", true), ("off", false)])?;
        Setup::of(hosts, namespace, suffix, fenced, options, &AEROSPIKE)
    }

    /// Reads the options for an application's records in `set`. Also returns the time-out of one call.
    ///
    /// # Errors
    /// As for [`read`](Setup::read).
    pub(crate) fn read_for_records(
        hosts: &str,
        namespace: &str,
        set: &str,
        mut options: Options,
    ) -> Result<(Setup, Duration)> {
        checked_set(namespace, set)?;
        let timeout = options.take_checked("timeout", checked_timeout)?.unwrap_or(DEFAULTS.timeout);
        let known = of_records();
        Ok((Setup::of(hosts, namespace, set, true, options, &known)?, timeout))
    }

    fn of(
        hosts: &str,
        namespace: &str,
        suffix: &str,
        fenced: bool,
        mut options: Options,
        known: &[StoreOption],
    ) -> Result<Setup> {
        let uri = format!("aerospike://{}/{namespace}/{suffix}", described(hosts));
        let strong = one_of(&mut options, "strong_consistency", &[("any", false), ("require", true)])?;
        let alternate = one_of(&mut options, "services_alternate", &[("off", false), ("on", true)])?;
        let plain = one_of(&mut options, "plain_credentials", &[("refuse", false), ("allow", true)])?;
        let pool = options.take_number("pool", 1, 256)?.unwrap_or(POOL_DEFAULT);
        let connect_timeout =
            options.take_checked("connect_timeout", checked_timeout)?.unwrap_or(CONNECT_TIMEOUT_DEFAULT);
        let certified = options.has("tls_cert");
        let security = tls::security(&mut options)?;
        let tls_name = options.take("tls_name");
        if tls_name.is_some() && security.is_none() {
            return Err(Error::invalid("tls_name", "", "only together with tls=on"));
        }
        let login = login(&mut options, security.is_some(), certified, plain)?;
        options.finish(known)?;
        Ok(Setup {
            seeds: hosts.split(',').map(seed).collect::<Result<_>>()?,
            namespace: namespace.to_owned(),
            suffix: suffix.to_owned(),
            uri,
            fenced,
            strong_consistency: strong,
            pool,
            connect_timeout,
            services_alternate: alternate,
            login,
            security,
            tls_name,
        })
    }
}

/// Returns the options of an application's records: all that concern connections.
fn of_records() -> Vec<StoreOption> {
    let timeout = MANAGER.iter().filter(|option| option.key == "timeout");
    let connections = AEROSPIKE.iter().filter(|option| !["fence", "layout", "slack"].contains(&option.key));
    timeout.chain(connections).copied().collect()
}

/// Takes an option whose value is one of `words`. The first is the default.
fn one_of<T: Copy>(options: &mut Options, key: &'static str, words: &[(&str, T)]) -> Result<T> {
    let Some(given) = options.take(key) else { return Ok(words[0].1) };
    match words.iter().find(|(word, _)| *word == given) {
        Some((_, meaning)) => Ok(*meaning),
        None => {
            let allowed: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            Err(Error::invalid(key, given, allowed.join(" or ")))
        }
    }
}

/// Parses `host`, `host:port`, `[v6]` or `[v6]:port`.
fn seed(text: &str) -> Result<Seed> {
    let refuse = || Error::invalid("store address", text, "host or host:port, several with commas between");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(refuse)?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|&port| port != 0).ok_or_else(refuse)?,
        None if port.is_empty() => PORT_DEFAULT,
        None => return Err(refuse()),
    };
    let clean = !host.is_empty() && !host.chars().any(|c| c.is_whitespace() || c.is_control() || c == '@');
    if clean { Ok(Seed { host: host.to_owned(), port }) } else { Err(refuse()) }
}

/// Takes the login options. Refuses a password over plain TCP: anyone on the way can read it, and its hash is as
/// useful as the password.
fn login(options: &mut Options, secured: bool, certified: bool, plain: bool) -> Result<Login> {
    let user = options.take("user");
    let password = match (options.take("password"), options.take("password_file")) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid(
                "password_file",
                "",
                "either `password` or `password_file`, not both",
            ));
        }
        (Some(password), None) => Some(password),
        (None, Some(path)) => Some(from_file(&path)?),
        (None, None) => None,
    };
    let auth = options.take("auth");
    let login = match (auth.as_deref(), user, password) {
        (None, None, None) => Login::None,
        (Some("pki"), None, None) if certified => Login::Certificate,
        (Some("pki"), ..) => {
            return Err(Error::invalid(
                "auth",
                "pki",
                "pki needs tls_cert and tls_key, and no user or password",
            ));
        }
        (None | Some("internal"), Some(user), Some(password)) => Login::Internal(user, password),
        (Some("external"), Some(user), Some(password)) => Login::External(user, password),
        (None | Some("internal" | "external"), ..) => {
            return Err(Error::invalid("user", "(not shown)", "both a user and a password, or neither"));
        }
        (Some(other), ..) => return Err(Error::invalid("auth", other, "internal, external or pki")),
    };
    if matches!(login, Login::Internal(..) | Login::External(..)) && !secured && !plain {
        let why = "use tls=on, or plain_credentials=allow if everyone on the network may know the password";
        return Err(Error::invalid("password", "(not shown)", why));
    }
    Ok(login)
}

/// Reads the password from the first line of the file.
fn from_file(path: &str) -> Result<String> {
    let unusable = |error: String| {
        Error::invalid("password_file", path, format!("a file with the password in its first line ({error})"))
    };
    let text =
        above_streams(|| std::fs::read_to_string(path)).map_err(|error| unusable(error.to_string()))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(unusable("it is empty".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<Setup> {
        let mut options = Options::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap();
            options.insert(key.into(), value.into()).unwrap();
        }
        Setup::read("h1:3000,h2", "test", "locks", options)
    }

    fn refused(query: &str) -> String {
        match read(query) {
            Ok(_) => panic!("{query} is accepted"),
            Err(error) => error.chain(),
        }
    }

    #[test]
    fn addresses_have_a_default_port_and_odd_ones_are_refused() {
        let seeds = read("").unwrap().seeds;
        assert_eq!(seeds[1], Seed { host: "h2".into(), port: 3000 });
        assert_eq!(seed("[::1]:4000").unwrap(), Seed { host: "::1".into(), port: 4000 });
        assert_eq!(seed("[::1]").unwrap().port, 3000);
        for text in
            ["", ":3000", "h:", "h:0", "h:99999", "h:1:2", "::1", "[::1", "[::1]x", "a b", "u:p@h", "u@h"]
        {
            assert!(seed(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_password_does_not_go_over_plain_tcp_unless_that_is_allowed_by_name() {
        let said = refused("user=u&password=SECRET");
        assert!(said.contains("plain_credentials") && !said.contains("SECRET"), "{said}");
        assert!(refused("user=u&password=SECRET&auth=external").contains("plain_credentials"));
        assert!(matches!(
            read("user=u&password=p&plain_credentials=allow").unwrap().login,
            Login::Internal(..)
        ));
        assert!(matches!(
            read("user=u&password=p&plain_credentials=allow&auth=external").unwrap().login,
            Login::External(..)
        ));
        assert!(matches!(read("").unwrap().login, Login::None));
    }

    #[test]
    fn a_login_is_whole_or_not_there() {
        for query in [
            "user=u",
            "password=p",
            "auth=internal",
            "auth=pki",
            "auth=pki&user=u&password=p",
            "auth=magic&user=u&password=p",
            "user=u&password=p&password_file=/x",
            "user=u&password_file=/does/not/exist",
        ] {
            refused(query);
        }
    }

    #[test]
    fn options_that_are_misspelt_or_out_of_their_limits_are_refused() {
        for (query, named) in [
            ("fences=off", "fence"),
            ("fence=row", "record or off"),
            ("pool=0", "pool"),
            ("connect_timeout=3", "connect_timeout"),
            ("strong_consistency=yes", "any or require"),
            ("tls=maybe", "tls"),
            ("tls_name=x", "tls"),
        ] {
            assert!(refused(query).contains(named), "{query}: {}", refused(query));
        }
    }
}
