//! The part of a store URI before its options: which store, and where. Every spelling of one endpoint is read as the same
//! endpoint: see [`address`](super::address) for servers, [`checked_table`] for tables of HBase.

use std::path::PathBuf;

use super::address::{AddressForm, servers};
use super::scheme::{self, BUILT_IN, Scheme, schemes};
use super::store_uri::{StoreUri, decode, without_secrets};
use crate::error::{Error, Result};
use crate::names::lock_name::checked_table;

const MEMORY: &str = "memory:";
const EMBEDDED: &str = "embedded:";
const EMBEDDED_AT: &str = "embedded:/path";
const HBASE: &str = "hbase://master:16000,master2:16000/table";
const GATEWAY: &str = "hbase+thrift://host:9090/table";
const AEROSPIKE: &str = "aerospike://host:3000,host2/namespace/setSuffix";

/// The forms of the URIs of this crate's stores.
const FORMS: [&str; 6] = [MEMORY, EMBEDDED, EMBEDDED_AT, HBASE, GATEWAY, AEROSPIKE];

const MASTERS: AddressForm = AddressForm { port: None, several: true, example: "master.example.org:16000" };
const GATEWAYS: AddressForm = AddressForm { port: None, several: false, example: "gateway.example.org:9090" };
const NODES: AddressForm = AddressForm { port: Some(3000), several: true, example: "node.example.org:3000" };

/// Kind and endpoint of a store.
#[derive(Debug)]
pub(crate) enum Endpoint {
    Memory,
    #[cfg_attr(
        not(feature = "embedded"),
        allow(dead_code, reason = "parsed to say which feature is missing")
    )]
    Embedded(Option<PathBuf>),
    #[cfg_attr(not(feature = "gateway"), allow(dead_code, reason = "parsed to say which feature is missing"))]
    HbaseThrift {
        address: String,
        table: String,
    },
    #[cfg_attr(not(feature = "hbase"), allow(dead_code, reason = "parsed to say which feature is missing"))]
    Hbase {
        masters: String,
        table: String,
    },
    #[cfg_attr(
        not(feature = "aerospike"),
        allow(dead_code, reason = "parsed to say which feature is missing")
    )]
    Aerospike {
        hosts: String,
        namespace: String,
        suffix: String,
    },
    /// A store of another crate.
    Registered(Scheme, StoreUri),
}

impl Endpoint {
    /// Parses `endpoint`, the URI `uri` without its options.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, before any I/O. It says which part is missing or wrong.
    pub(crate) fn parse(endpoint: &str, uri: &str) -> Result<Endpoint> {
        let refuse = |allowed: String| Error::invalid("store", without_secrets(uri), allowed);
        let Some((scheme, rest)) = endpoint.split_once(':') else {
            let scheme = endpoint.to_ascii_lowercase();
            let forms = forms_of(&scheme);
            return Err(refuse(match forms.is_empty() {
                true => or(&all_forms()),
                false => format!("a colon after the scheme, as in {}", or(&forms)),
            }));
        };
        // The case of a scheme has no meaning (RFC 3986, section 3.1).
        let scheme = scheme.to_ascii_lowercase();
        let missing = |what: &str, form: &str| refuse(format!("{what} is missing, as in {form}"));
        Ok(match scheme.as_str() {
            "memory" if rest.is_empty() => Endpoint::Memory,
            "memory" => {
                return Err(refuse("memory: without anything after the colon, except options".into()));
            }
            "embedded" if rest.is_empty() => Endpoint::Embedded(None),
            "embedded" => match decode("directory", rest)? {
                path if path.starts_with('/') => Endpoint::Embedded(Some(path.into())),
                path => {
                    let home =
                        if path.starts_with('~') { " (a shell replaces no ~ after a colon)" } else { "" };
                    return Err(refuse(format!(
                        "an absolute path, such as embedded:/var/lib/locks, so that every process means the same \
                         directory{home}; or embedded: alone"
                    )));
                }
            },
            "hbase" | "hbase+thrift" => {
                let (form, addresses) =
                    if scheme == "hbase" { (HBASE, &MASTERS) } else { (GATEWAY, &GATEWAYS) };
                let rest = rest.strip_prefix("//").ok_or_else(|| missing("// after the scheme", form))?;
                let (hosts, table) = rest.split_once('/').unwrap_or((rest, ""));
                let hosts = servers(hosts, addresses)?;
                let table = without_slash(table);
                if table.is_empty() {
                    return Err(missing("the table", form));
                }
                let table = checked_table(&decode("table", table)?)?;
                match scheme.as_str() {
                    "hbase" => Endpoint::Hbase { masters: hosts, table },
                    _ => Endpoint::HbaseThrift { address: hosts, table },
                }
            }
            "aerospike" => {
                let rest =
                    rest.strip_prefix("//").ok_or_else(|| missing("// after the scheme", AEROSPIKE))?;
                let (hosts, rest) = rest.split_once('/').unwrap_or((rest, ""));
                let hosts = servers(hosts, &NODES)?;
                let (namespace, suffix) = without_slash(rest).split_once('/').unwrap_or((rest, ""));
                if suffix.is_empty() {
                    let what = if without_slash(namespace).is_empty() { "the namespace" } else { "the set" };
                    return Err(missing(what, AEROSPIKE));
                }
                Endpoint::Aerospike {
                    hosts,
                    namespace: decode("namespace", namespace)?,
                    suffix: decode("set", suffix)?,
                }
            }
            other => match scheme::named(other)? {
                Some(scheme) => Endpoint::Registered(scheme, StoreUri::new(scheme.name(), rest)?),
                None if is_scheme(other) => {
                    let known = schemes();
                    let names: Vec<_> =
                        BUILT_IN.iter().copied().chain(known.iter().map(Scheme::name)).collect();
                    let allowed = format!("one of {}, as in {}", or(&names), or(&all_forms()));
                    return Err(Error::invalid("store scheme", other, allowed));
                }
                None => return Err(refuse(or(&all_forms()))),
            },
        })
    }
}

/// A slash at the end means nothing: no table and no set has one in its name.
fn without_slash(text: &str) -> &str {
    text.trim_end_matches('/')
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Returns the forms of all store URIs, including registered ones.
fn all_forms() -> Vec<&'static str> {
    FORMS.into_iter().chain(schemes().iter().map(Scheme::form)).collect()
}

fn forms_of(scheme: &str) -> Vec<&'static str> {
    let of_scheme = |form: &&str| form.split_once(':').is_some_and(|(name, _)| name == scheme);
    all_forms().into_iter().filter(of_scheme).collect()
}

fn or(all: &[&str]) -> String {
    match all {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
