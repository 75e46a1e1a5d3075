//! The options `tls`, `tls_ca`, `tls_cert` and `tls_key` of the stores that support TLS.
//!
//! The servers' certificates and names are always checked. No option switches this off.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Error, Result};
use crate::runtime::process::descriptors::StreamsTaken;
use crate::settings::options::Options;
use crate::settings::store_option::StoreOption;

pub(in crate::store) const TLS: StoreOption = StoreOption::new("tls", "off", "`on`, `off`");
pub(in crate::store) const TLS_CA: StoreOption =
    StoreOption::new("tls_ca", "", "PEM file: the authority that signed the servers' certificates");
pub(in crate::store) const TLS_CERT: StoreOption =
    StoreOption::new("tls_cert", "", "PEM file: our certificate");
pub(in crate::store) const TLS_KEY: StoreOption = StoreOption::new("tls_key", "", "PEM file: its key");

/// The TLS settings of connections. `None`: no TLS.
pub(in crate::store) type Security = Option<Arc<ClientConfig>>;

/// Reads the options and the files that they name.
///
/// # Errors
/// INVALID_ARGUMENT for a file that cannot be used, and for a file option without `tls=on`.
pub(in crate::store) fn security(options: &mut Options) -> Result<Security> {
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
                Err(Error::invalid("store option", path, "tls_ca, tls_cert and tls_key need tls=on"))
            }
        };
    }
    let ca = ca.ok_or_else(|| {
        Error::invalid("tls_ca", "", "the path of a PEM file with the servers' CA certificates")
    })?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates("tls_ca", &ca)? {
        roots.add(certificate).map_err(|error| unusable("tls_ca", &ca, error))?;
    }
    let _taken = StreamsTaken::new();
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
    let _taken = StreamsTaken::new();
    let read =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(Error::invalid(what, path, "a PEM file that contains a certificate")),
        Err(error) => Err(unusable(what, path, error)),
    }
}

fn unusable(what: &'static str, path: &str, error: impl std::fmt::Display) -> Error {
    Error::invalid(what, path, format!("a usable PEM file ({error})"))
}
