//! What a `hbase://` URI may say, read and checked.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::channel::Security;
use super::cluster::Address;
use crate::config::{Options, checked_timeout, parse_duration};
use crate::error::{Error, Result};

const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3);

/// Options besides those of every store.
const KEYS: [&str; 9] =
    ["fence", "mixed_fleet", "latches", "connect_timeout", "user", "tls", "tls_ca", "tls_cert", "tls_key"];

pub(super) struct Setup {
    pub(super) masters: Vec<Address>,
    pub(super) place: String,
    pub(super) user: String,
    pub(super) security: Security,
    pub(super) connect_timeout: Duration,
}

impl Setup {
    pub(super) fn read(masters: &str, table: &str, mut options: Options) -> Result<Setup> {
        let connect_timeout = options
            .take("connect_timeout")
            .map_or(Ok(CONNECT_TIMEOUT_DEFAULT), |text| parse_duration("connect_timeout", &text))
            .and_then(checked_timeout)?;
        let user = options.take("user").unwrap_or_else(login);
        let security = security(&mut options)?;
        options.finish(&KEYS)?;
        Ok(Setup {
            place: format!("hbase://{masters}/{table}"),
            masters: masters.split(',').map(address).collect::<Result<_>>()?,
            user,
            security,
            connect_timeout,
        })
    }
}

/// The name under which the servers log us. They believe it: without Kerberos it protects nothing.
fn login() -> String {
    std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "dlm".into())
}

fn address(text: &str) -> Result<Address> {
    let refuse = || Error::invalid("store address", text, "host:port,host:port,... of the HBase masters");
    let (host, port) = text.rsplit_once(':').ok_or_else(refuse)?;
    let port = port.parse().ok().filter(|&port| port != 0).ok_or_else(refuse)?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() { Err(refuse()) } else { Ok(Address { host: host.to_owned(), port }) }
}

fn security(options: &mut Options) -> Result<Security> {
    let wanted = match options.take("tls").as_deref() {
        None | Some("off") => false,
        Some("on") => true,
        Some(other) => return Err(Error::invalid("tls", other, "on or off")),
    };
    let [ca, cert, key] = ["tls_ca", "tls_cert", "tls_key"].map(|key| options.take(key));
    if !wanted {
        return match ca.or(cert).or(key) {
            None => Ok(None),
            Some(path) => {
                Err(Error::invalid("store option", path, "tls_ca, tls_cert and tls_key go with tls=on"))
            }
        };
    }
    let ca = ca.ok_or_else(|| {
        Error::invalid("tls_ca", "", "the path of a PEM file with the certificates that sign the servers'")
    })?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates("tls_ca", &ca)? {
        roots.add(certificate).map_err(|error| unusable("tls_ca", &ca, error))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("tls", "on", error))?
        .with_root_certificates(roots);
    let config = match (cert, key) {
        (None, None) => config.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let private =
                PrivateKeyDer::from_pem_file(&key).map_err(|error| unusable("tls_key", &key, error))?;
            let chain = certificates("tls_cert", &cert)?;
            config
                .with_client_auth_cert(chain, private)
                .map_err(|error| unusable("tls_cert", &cert, error))?
        }
        (Some(_), None) => return Err(Error::invalid("tls_key", "", "tls_cert needs its private key")),
        (None, Some(_)) => return Err(Error::invalid("tls_cert", "", "tls_key needs its certificate")),
    };
    Ok(Some(Arc::new(config)))
}

fn certificates(what: &'static str, path: &str) -> Result<Vec<CertificateDer<'static>>> {
    let read =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(Error::invalid(what, path, "a PEM file with a certificate in it")),
        Err(error) => Err(unusable(what, path, error)),
    }
}

fn unusable(what: &'static str, path: &str, error: impl std::fmt::Display) -> Error {
    Error::invalid(what, path, format!("a PEM file that can be used ({error})"))
}
