//! Reads and checks the address and options of a `hbase://` URI.

use std::time::Duration;

use super::address::Address;
use super::auth::Auth;
use super::channel::Security;
use crate::error::{Error, Result};
use crate::settings::limits::checked_timeout;
use crate::settings::options::Options;
use crate::settings::store_option::StoreOption;
use crate::store::address::described;
use crate::store::tls;

const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3);

pub(super) struct NativeSetup {
    pub(super) masters: Vec<Address>,
    pub(super) uri: String,
    pub(super) auth: Auth,
    pub(super) security: Security,
    pub(super) connect_timeout: Duration,
}

impl NativeSetup {
    /// Reads and checks them. `known` lists the options of the caller's store, for the error about an unknown one.
    pub(super) fn read(
        masters: &str,
        table: &str,
        mut options: Options,
        known: &[StoreOption],
    ) -> Result<NativeSetup> {
        let connect_timeout =
            options.take_checked("connect_timeout", checked_timeout)?.unwrap_or(CONNECT_TIMEOUT_DEFAULT);
        let auth = Auth::read(&mut options)?;
        let security = tls::security(&mut options)?;
        options.finish(known)?;
        Ok(NativeSetup {
            uri: format!("hbase://{}/{table}", described(masters)),
            masters: masters.split(',').map(address).collect::<Result<_>>()?,
            auth,
            security,
            connect_timeout,
        })
    }
}

fn address(text: &str) -> Result<Address> {
    let refuse = || Error::invalid("store address", text, "host:port,host:port,... of the HBase masters");
    let (host, port) = text.rsplit_once(':').ok_or_else(refuse)?;
    let port = port.parse().ok().filter(|&port| port != 0).ok_or_else(refuse)?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() { Err(refuse()) } else { Ok(Address { host: host.to_owned(), port }) }
}
