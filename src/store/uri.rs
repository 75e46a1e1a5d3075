//! Store URIs: the one string that opens a store from every language and from the shell.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::settings::manager_options::{MANAGER, STORE_OPTIONS};
use crate::settings::options::Options;
#[cfg(feature = "aerospike")]
use crate::store::aerospike::{AerospikeBothStore, AerospikeOwnStore, AerospikeStore};
#[cfg(feature = "hbase")]
use crate::store::both::BothStore;
use crate::store::endpoint::Endpoint;
#[cfg(feature = "hbase")]
use crate::store::hbase::{HbaseBridge, HbaseOwnStore, HbaseStore};
#[cfg(any(feature = "aerospike", feature = "hbase"))]
use crate::store::layout::Layout;
#[cfg(any(feature = "aerospike", feature = "hbase"))]
use crate::store::remote::RemoteStore;
use crate::store::store_uri::{decode, decoded};
use crate::store::{LockStore, MemoryStore};

/// A parsed URI. Nothing is open yet.
#[derive(Debug)]
pub(crate) struct Opener {
    endpoint: Endpoint,
    pub(crate) options: Options,
}

/// Opens the store at `uri`, such as `embedded:/path`, for a program that wraps the store or uses it without a
/// manager. Accepts the store's own options. Refuses the options of a manager (`client`, `ttl`, ...).
///
/// # Errors
/// [`Code::InvalidArgument`](crate::Code::InvalidArgument) before any I/O, then the errors of the store, as for
/// [`Builder::open`](crate::Builder::open).
pub fn open(uri: &str) -> Result<Arc<dyn LockStore>> {
    let uri = Opener::parse(uri)?;
    uri.options.refuse_managers(&MANAGER)?;
    uri.open()
}

impl Opener {
    /// Parses a store URI.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, before any I/O.
    pub(crate) fn parse(uri: &str) -> Result<Opener> {
        let (before, query) = match uri.split_once('?') {
            Some((before, query)) => (before, Some(query)),
            None => (uri, None),
        };
        let endpoint = Endpoint::parse(before, uri)?;
        let mut options = Options::default();
        for pair in query.into_iter().flat_map(|query| query.split('&')).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                // It may be part of a password with a question mark or an ampersand.
                let is_key = STORE_OPTIONS.iter().any(|(_, known)| known.iter().any(|it| it.key == pair));
                Error::invalid("store option", if is_key { pair } else { "***" }, "key=value")
            })?;
            let key = decode("store option", key)?;
            let value = decoded("store option", value, &key)?;
            options.insert(key, value)?;
        }
        Ok(Opener { endpoint, options })
    }

    /// Returns the endpoint of an application's table in HBase, and the options.
    #[cfg(feature = "hbase")]
    pub(crate) fn rows(self) -> Result<(crate::store::hbase::TableEndpoint, Options)> {
        match self.endpoint {
            Endpoint::Hbase { masters, table } => {
                Ok((crate::store::hbase::TableEndpoint::Native { masters, table }, self.options))
            }
            #[cfg(feature = "gateway")]
            Endpoint::HbaseThrift { address, table } => {
                Ok((crate::store::hbase::TableEndpoint::Gateway { address, table }, self.options))
            }
            _ => {
                let allowed = "hbase://master:16000,master2:16000/table or hbase+thrift://host:9090/table";
                Err(Error::invalid("table", "of another store", allowed))
            }
        }
    }

    /// Returns hosts, namespace, set and options of an `aerospike://` URI.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for the URI of another store.
    #[cfg(feature = "aerospike")]
    pub(crate) fn into_aerospike(self) -> Result<(String, String, String, Options)> {
        match self.endpoint {
            Endpoint::Aerospike { hosts, namespace, suffix } => Ok((hosts, namespace, suffix, self.options)),
            _ => Err(Error::invalid("store", "of another kind", "aerospike://host:3000,host2/namespace/set")),
        }
    }

    /// Opens the store with its options. Refuses options that the store does not have.
    pub(crate) fn open(self) -> Result<Arc<dyn LockStore>> {
        match self.endpoint {
            Endpoint::Registered(scheme, uri) => scheme.open(uri, self.options),
            Endpoint::Memory => {
                self.options.finish(&[])?;
                Ok(Arc::new(MemoryStore::new()))
            }
            #[cfg(feature = "embedded")]
            Endpoint::Embedded(path) => {
                use crate::store::EmbeddedStore;
                let mut options = self.options;
                let group = match options.take("group").as_deref() {
                    None | Some("off") => false,
                    Some("on") => true,
                    Some(other) => return Err(Error::invalid("group", other, "on or off")),
                };
                options.finish(&crate::settings::store_option::EMBEDDED)?;
                Ok(Arc::new(match path {
                    Some(path) if group => EmbeddedStore::open_group(&path)?,
                    Some(path) => EmbeddedStore::open(&path)?,
                    None if group => {
                        let allowed = "the default store belongs to one user: name a directory, as in \
                                       embedded:/path?group=on";
                        return Err(Error::invalid("group", "on", allowed));
                    }
                    None => EmbeddedStore::open(&EmbeddedStore::default_path()?)?,
                }))
            }
            #[cfg(not(feature = "embedded"))]
            Endpoint::Embedded(_) => {
                Err(Error::invalid("store scheme", "embedded", "this build lacks the feature `embedded`"))
            }
            #[cfg(feature = "gateway")]
            Endpoint::HbaseThrift { address, table } => {
                let mut options = self.options;
                let layout = Layout::take(&mut options)?;
                if layout != Layout::Java {
                    let allowed = "java: only hbase:// has the conditions that the layout own needs";
                    return Err(Error::invalid("layout", layout.name(), allowed));
                }
                Ok(Arc::new(RemoteStore::new(HbaseStore::thrift(&address, &table, options)?)))
            }
            #[cfg(feature = "hbase")]
            Endpoint::Hbase { masters, table } => {
                let mut options = self.options;
                Ok(match Layout::take(&mut options)? {
                    Layout::Java => {
                        Arc::new(RemoteStore::new(HbaseStore::native(&masters, &table, options)?))
                    }
                    Layout::Own => {
                        Arc::new(RemoteStore::new(HbaseOwnStore::open(&masters, &table, options)?))
                    }
                    Layout::Both => Arc::new(BothStore::new(HbaseBridge::open(&masters, &table, options)?)),
                })
            }
            #[cfg(feature = "aerospike")]
            Endpoint::Aerospike { hosts, namespace, suffix } => {
                let mut options = self.options;
                Ok(match Layout::take(&mut options)? {
                    Layout::Java => Arc::new(RemoteStore::new(AerospikeStore::open(
                        &hosts, &namespace, &suffix, options,
                    )?)),
                    Layout::Both => Arc::new(AerospikeBothStore::open(&hosts, &namespace, &suffix, options)?),
                    Layout::Own => Arc::new(RemoteStore::new(AerospikeOwnStore::open(
                        &hosts, &namespace, &suffix, options,
                    )?)),
                })
            }
            #[cfg(not(feature = "aerospike"))]
            Endpoint::Aerospike { .. } => {
                Err(Error::invalid("store scheme", "aerospike", "this build lacks the feature `aerospike`"))
            }
            #[cfg(not(feature = "gateway"))]
            Endpoint::HbaseThrift { .. } => {
                Err(Error::invalid("store scheme", "hbase+thrift", "this build lacks the feature `gateway`"))
            }
            #[cfg(not(feature = "hbase"))]
            Endpoint::Hbase { .. } => {
                Err(Error::invalid("store scheme", "hbase", "this build lacks the feature `hbase`"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let error = Opener::parse(uri).unwrap_err();
            assert_eq!(error.code(), crate::Code::InvalidArgument, "{uri}: {error}");
        }
    }

    #[test]
    fn a_password_in_a_uri_is_not_repeated() {
        for uri in ["hbase+thrift://me:hunter2@host:9090/t", "redis://me:hunter2@host", "me:hunter2@host"] {
            let error = Opener::parse(uri).unwrap_err().chain();
            assert!(!error.contains("hunter2"), "{error}");
        }
        for options in ["password=hunter2", "password=a@hunter2"] {
            let error = Opener::parse(&format!("aerospike://host?{options}")).unwrap_err().chain();
            assert!(error.contains("aerospike:") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_uri_that_lacks_a_part_or_has_a_wrong_one_is_refused_with_that_part() {
        for (uri, told) in [
            ("embedded", "a colon after the scheme, as in embedded: or embedded:/path"),
            ("Hbase", "a colon after the scheme, as in hbase://"),
            ("/var/lib/locks", "memory:, embedded:, embedded:/path, "),
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
            let said = Opener::parse(uri).unwrap_err().to_string();
            assert!(said.contains(told), "{uri}: {said}");
        }
    }

    #[test]
    fn every_spelling_of_a_place_is_one_endpoint() {
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
            (&["EMBEDDED:%2Fvar%2Flib/%6cocks"], "embedded:/var/lib/locks"),
            (&["Memory:", "MEMORY:?"], "memory:"),
        ] {
            let endpoint = |uri: &str| format!("{:?}", Opener::parse(uri).unwrap().endpoint);
            for spelling in spellings {
                assert_eq!(endpoint(spelling), endpoint(one), "{spelling}");
            }
        }
        // Namespaces and tables have a case.
        let table = |uri: &str| format!("{:?}", Opener::parse(uri).unwrap().endpoint);
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
    fn good_uris_are_taken_apart() {
        let uri = Opener::parse("hbase+thrift://[::1]:9090/ns:locks?client=a%20b&farm=x+y&").unwrap();
        assert!(
            matches!(&uri.endpoint, Endpoint::HbaseThrift { address, table } if address == "[::1]:9090" && table == "ns:locks")
        );
        let mut options = uri.options;
        assert_eq!(options.take("client").as_deref(), Some("a b"));
        assert_eq!(options.take("farm").as_deref(), Some("x+y"));
        assert!(options.finish(&[]).is_ok());
        let uri = Opener::parse("embedded:/var/lib/a%3Fb").unwrap();
        assert!(
            matches!(&uri.endpoint, Endpoint::Embedded(Some(path)) if path.as_os_str() == "/var/lib/a?b")
        );
    }

    /// Such settings would have no effect. The directory and the file do not exist: options are checked before
    /// files.
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
