//! Store URIs: the one string that opens a store from every language and from the shell. Every spelling of one endpoint is
//! read as the same endpoint: see [`address`](super::address) for servers, and each store's scheme for the rest.

use std::sync::Arc;

use super::scheme::{self, Scheme};
use super::store_uri::{StoreUri, decode, decoded, without_secrets};
use super::{LockStore, memory};
use crate::error::{Error, Result};
use crate::settings::manager_options::MANAGER;
use crate::settings::options::Options;
use crate::settings::store_option::StoreOption;
#[cfg(feature = "aerospike")]
use crate::store::aerospike;
#[cfg(feature = "embedded")]
use crate::store::embedded;
#[cfg(feature = "hbase")]
use crate::store::hbase;

/// The stores of this crate, in the order of messages and help.
const OWN: &[Scheme] = &[
    memory::SCHEME,
    #[cfg(feature = "embedded")]
    embedded::SCHEME,
    #[cfg(feature = "hbase")]
    hbase::SCHEME,
    #[cfg(feature = "gateway")]
    hbase::GATEWAY_SCHEME,
    #[cfg(feature = "aerospike")]
    aerospike::SCHEME,
];

/// A parsed URI and its scheme. Nothing is open yet.
#[derive(Debug)]
pub(crate) struct Opener {
    scheme: Scheme,
    uri: StoreUri,
}

/// Opens the store at `uri`, such as `embedded:/path`, for a program that wraps the store or uses it without a
/// manager. Accepts the store's own options. Refuses the options of a manager (`client`, `ttl`, ...).
///
/// # Errors
/// [`Code::InvalidArgument`](crate::Code::InvalidArgument) before any I/O, then the errors of the store, as for
/// [`Builder::open`](crate::Builder::open).
pub fn open(uri: &str) -> Result<Arc<dyn LockStore>> {
    let mut uri = Opener::parse(uri)?;
    uri.options().refuse_managers(&MANAGER)?;
    uri.open()
}

/// Returns the schemes of all stores that this build can open: the stores of this crate, then those of other crates, sorted
/// by name.
pub fn schemes() -> Vec<Scheme> {
    OWN.iter().copied().chain(scheme::registered()).collect()
}

impl Opener {
    /// Parses a store URI: its scheme, and its options into keys and values. The store itself reads the rest.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, before any I/O.
    pub(crate) fn parse(uri: &str) -> Result<Opener> {
        let (before, query) = uri.split_once('?').unwrap_or((uri, ""));
        let (scheme, endpoint) = scheme_of(before, uri)?;
        let mut options = Options::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                // It may be part of a password with a question mark or an ampersand.
                let is_key = MANAGER.iter().chain(scheme.options()).any(|known| known.key == pair);
                Error::invalid("store option", if is_key { pair } else { "***" }, "key=value")
            })?;
            // So may the text before an equals sign, if an @ follows.
            let is_known = |known: &StoreOption| known.key == key;
            if query.contains('@') && !MANAGER.iter().chain(scheme.options()).any(is_known) {
                return Err(Error::invalid(
                    "store option",
                    "***",
                    "a key of this store, and %40 for an @ in a value",
                ));
            }
            let key = decode("store option", key)?;
            let value = decoded("store option", value, &key)?;
            options.insert(key, value)?;
        }
        let uri = StoreUri::new(scheme.name(), scheme.shape(), endpoint, options, uri)?;
        Ok(Opener { scheme, uri })
    }

    pub(crate) fn options(&mut self) -> &mut Options {
        self.uri.options()
    }

    /// Returns the URI, for what is no store: an application's table or records.
    #[cfg(any(feature = "aerospike", feature = "hbase"))]
    pub(crate) fn into_uri(self) -> StoreUri {
        self.uri
    }

    /// Opens the store with its options. Refuses options that the store does not have.
    pub(crate) fn open(self) -> Result<Arc<dyn LockStore>> {
        self.scheme.open(self.uri)
    }
}

/// Returns the scheme of `uri`, whose part before the options is `before`, and the endpoint.
fn scheme_of<'a>(before: &'a str, uri: &str) -> Result<(Scheme, &'a str)> {
    let all = schemes();
    let refuse = |allowed: String| Err(Error::invalid("store", without_secrets(uri), allowed));
    let forms: Vec<_> = all.iter().map(Scheme::form).collect();
    let (name, endpoint) = match before.split_once(':') {
        Some((name, endpoint)) => (name, Some(endpoint)),
        None => (before, None),
    };
    // The case of a scheme has no meaning (RFC 3986, section 3.1).
    let name = name.to_ascii_lowercase();
    let mut found = all.iter().filter(|scheme| scheme.name() == name);
    match (found.next(), endpoint) {
        (Some(_), _) if found.next().is_some() => Err(scheme::twice(&name)),
        (Some(scheme), Some(endpoint)) => Ok((*scheme, endpoint)),
        (Some(scheme), None) => refuse(format!("a colon after the scheme, as in {}", scheme.form())),
        (None, Some(_)) if is_scheme(&name) => {
            let allowed = match scheme::feature_of(&name) {
                Some(feature) => format!("this build lacks the feature `{feature}`"),
                None => {
                    let names: Vec<_> = all.iter().map(Scheme::name).collect();
                    format!("one of {}, as in {}", or(&names), or(&forms))
                }
            };
            Err(Error::invalid("store scheme", name, allowed))
        }
        (None, _) => refuse(or(&forms)),
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn or(all: &[&str]) -> String {
    match all {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error of opening a store.
    fn refused(uri: &str) -> Error {
        match open(uri) {
            Ok(store) => panic!("{uri} is {}", store.describe()),
            Err(error) => error,
        }
    }

    #[test]
    fn a_bad_uri_is_refused_before_any_io_and_says_what_is_allowed() {
        let bad = [
            "",
            "memory",
            "memory:x",
            "redis://localhost",
            "embedded:relative/path",
            "hbase+thrift://host/table",
            "hbase+thrift://host:0/table",
            "hbase+thrift://host:99999/table",
            "hbase+thrift://:9090/table",
            "hbase+thrift://host:9090",
            "hbase+thrift://host:9090/",
            "hbase+thrift://host:9090/a/b",
            "hbase+thrift://host:9090/-a",
            "hbase+thrift://a:1,b:2/table",
            "hbase+thrift:host:9090/table",
            "hbase://master/table",
            "hbase://a:1,,b:2/table",
            "hbase://a:1;b:2/table",
            "hbase://a:1,b:2/",
            "memory:?ttl",
            "memory:?ttl=1s&ttl=2s",
            "memory:?purpose=%zz",
            "memory:?purpose=%f",
            "memory:?purpose=%ff",
        ];
        for uri in bad {
            let error = refused(uri);
            assert_eq!(error.code(), crate::Code::InvalidArgument, "{uri}: {error}");
        }
    }

    #[cfg(all(feature = "aerospike", feature = "embedded", feature = "gateway"))]
    #[test]
    fn a_password_in_a_uri_is_not_repeated() {
        for uri in ["hbase+thrift://me:hunter2@host:9090/t", "redis://me:hunter2@host", "me:hunter2@host"] {
            let error = refused(uri).chain();
            assert!(!error.contains("hunter2"), "{error}");
        }
        for uri in [
            "aerospike://me:hun?ter2@host/n/s?x=a",
            "aerospike://me:hun?ter2=@host/n/s",
            "hbase://me:hun?ter2=@host:1/t",
            "embedded:me:ter2%zz@h",
            "memory:me:ter2%zz@h",
        ] {
            let error = refused(uri).chain();
            assert!(!error.contains("ter2"), "{uri}: {error}");
        }
        for options in ["password=hunter2", "password=a@hunter2"] {
            let error = refused(&format!("aerospike://host?{options}")).chain();
            assert!(error.contains("aerospike:") && !error.contains("hunter2"), "{error}");
        }
    }

    #[cfg(all(feature = "aerospike", feature = "embedded", feature = "gateway"))]
    #[test]
    fn a_uri_that_lacks_a_part_or_has_a_wrong_one_is_refused_with_that_part() {
        for (uri, told) in [
            ("embedded", "a colon after the scheme, as in embedded: or embedded:/path"),
            ("Hbase", "a colon after the scheme, as in hbase://"),
            ("/var/lib/locks", "memory:, embedded: or embedded:/path, "),
            ("memory://", "without anything after the colon"),
            ("embedded:rel/dir", "an absolute path, such as embedded:/"),
            ("embedded:~/locks", "a shell replaces no ~"),
            ("redis://x", "\"redis\" is not allowed: one of memory, embedded, hbase, hbase+thrift"),
            ("localhost:16000/locks", "\"localhost\" is not allowed: one of"),
            ("hbase:m:16000/t", "// after the scheme is missing"),
            ("hbase://localhost:16000", "the table is missing, as in hbase://"),
            ("hbase://localhost:16000/", "the table is missing"),
            ("hbase+thrift://h:9090", "the table is missing, as in hbase+thrift://"),
            ("hbase://master/t", "host:port, such as master.example.org:16000"),
            ("aerospike://h", "the namespace is missing"),
            ("aerospike://h/", "the namespace is missing"),
            ("aerospike://h/test", "the set is missing, as in aerospike://"),
            ("aerospike://h/test/", "the set is missing"),
        ] {
            let said = refused(uri).to_string();
            assert!(said.contains(told), "{uri}: {said}");
        }
    }

    #[cfg(all(feature = "aerospike", feature = "embedded", feature = "gateway"))]
    #[test]
    fn every_spelling_of_an_endpoint_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let spelt = path.replace('/', "%2F");
        for (spellings, one) in [
            (
                &[
                    "HBase://Master.Example.ORG:16000,b:1/default:locks",
                    "hbase://master.example.org:016000,B:1,b:01/%6cocks/",
                ][..],
                "hbase://master.example.org:16000,b:1/locks",
            ),
            (
                &["HBASE+Thrift://[0::1]:9090/locks/", "hbase+thrift://[::1]:9090/default%3Alocks"],
                "hbase+thrift://[::1]:9090/locks",
            ),
            (&["AEROSPIKE://H,[0:0::1]:3000/test/se%74/"], "aerospike://h:3000,[::1]/test/set"),
            (&[&format!("EMBEDDED:{spelt}"), &format!("embedded://{path}")], &format!("embedded:{path}")),
            (&["Memory:", "MEMORY:?"], "memory:"),
        ] {
            let store = |uri: &str| open(uri).unwrap().describe();
            for spelling in spellings {
                assert_eq!(store(spelling), store(one), "{spelling}");
            }
        }
        // Namespaces and tables have a case.
        let table = |uri: &str| open(uri).unwrap().describe();
        for other in ["hbase://m:1/Locks", "hbase://m:1/Default:locks", "hbase://m:1/ns:locks"] {
            assert_ne!(table(other), table("hbase://m:1/locks"));
        }
    }

    /// Messages and leases name a store by this text.
    #[cfg(all(feature = "aerospike", feature = "gateway"))]
    #[test]
    fn a_store_describes_itself_alike_however_its_uri_was_spelt() {
        for (spelling, one) in [
            ("HBASE://b.org.:1,A.org:1/default:t/", "hbase://a.org:1,b.org:1/t"),
            ("HBASE://b.org.:1,A.org:1/default:t/?layout=own", "hbase://a.org:1,b.org:1/t"),
            ("HBASE://b.org.:1,A.org:1/default:t/?layout=both", "hbase://a.org:1,b.org:1/t"),
            ("Hbase+thrift://A.org.:1/default:t", "hbase+thrift://a.org:1/t"),
            ("Aerospike://B,a.org.:3000/n/%73/", "aerospike://a.org:3000,b:3000/n/s"),
            ("Aerospike://B,a.org.:3000/n/%73/?layout=own", "aerospike://a.org:3000,b:3000/n/s"),
        ] {
            assert_eq!(crate::store::open(spelling).unwrap().describe(), one, "{spelling}");
        }
    }

    #[test]
    fn options_are_taken_apart() {
        let mut uri = Opener::parse("memory:?client=a%20b&farm=x+y&").unwrap();
        assert_eq!(uri.options().take("client").as_deref(), Some("a b"));
        assert_eq!(uri.options().take("farm").as_deref(), Some("x+y"));
        assert!(uri.open().is_ok());
    }

    #[cfg(feature = "embedded")]
    #[test]
    fn a_directory_may_have_any_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a?b@c");
        std::fs::create_dir(&path).unwrap();
        open(&format!("embedded:{}/a%3Fb@c", directory.path().display())).unwrap();
        assert!(path.read_dir().unwrap().next().is_some());
    }

    /// A crate must not take over a scheme of this one, also in a build without its store.
    #[test]
    fn every_store_of_this_crate_is_known_by_its_name() {
        for scheme in OWN {
            assert!(scheme::feature_of(scheme.name()).is_some(), "{}", scheme.name());
        }
        if cfg!(all(feature = "aerospike", feature = "embedded", feature = "gateway")) {
            assert_eq!(OWN.len(), scheme::BUILT_IN.len());
        }
    }

    #[test]
    fn a_slash_in_a_name_does_not_part_it() {
        for uri in ["aerospike://h/na%2Fme/set", "hbase://h:1/ta%2Fble"] {
            let said = refused(uri).to_string();
            assert!(
                said.contains("na/me") || said.contains("ta/ble") || said.contains("lacks the feature"),
                "{said}"
            );
        }
    }

    /// Such settings would have no effect. The directory and the file do not exist: options are checked before
    /// files.
    #[cfg(all(feature = "aerospike", feature = "embedded", feature = "gateway"))]
    #[test]
    fn a_store_by_itself_says_of_a_managers_setting_whose_it_is() {
        let stores = [
            "memory:?",
            "embedded:/dev/null/nowhere?",
            "hbase://127.0.0.1:1/t?tls=on&tls_ca=/dev/null/nowhere&",
            "hbase+thrift://127.0.0.1:1/t?pool=2&",
            "aerospike://127.0.0.1:1/n/s?tls=on&tls_ca=/dev/null/nowhere&",
        ];
        for store in stores {
            for key in MANAGER.map(|option| option.key) {
                let error = crate::store::open(&format!("{store}{key}=7s")).unwrap_err();
                assert_eq!(error.code(), crate::Code::InvalidArgument, "{error}");
                let said = error.to_string();
                let told = format!("{key} \"7s\" is not allowed: it is a setting of a manager");
                assert!(said.starts_with(&told) && !said.contains("one of"), "{store}: {said}");
            }
        }
    }
}
