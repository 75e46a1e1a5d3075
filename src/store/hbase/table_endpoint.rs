//! Where a table is, from its URI, and the function that opens an application's table.

use super::steps::RowStore;
use super::table_name::checked_table;
use crate::error::{Error, Result};
use crate::settings::options::Options;
use crate::store::address::{AddressForm, servers};
use crate::store::store_uri::{StoreUri, decode};

pub(super) const NATIVE: &str = "hbase://master:16000,master2:16000/table";
#[cfg(feature = "gateway")]
pub(super) const GATEWAY: &str = "hbase+thrift://host:9090/table";

const MASTERS: AddressForm = AddressForm { port: None, several: true, example: "master.example.org:16000" };
#[cfg(feature = "gateway")]
const GATEWAYS: AddressForm = AddressForm { port: None, several: false, example: "gateway.example.org:9090" };

/// Transport, address and table. However a URI spells it, it is the same endpoint.
pub(crate) enum TableEndpoint {
    Native {
        masters: String,
        table: String,
    },
    #[cfg(feature = "gateway")]
    Gateway {
        address: String,
        table: String,
    },
}

impl TableEndpoint {
    /// Reads the endpoint of a URI.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, before any I/O, for the URI of another store, and with the part that is missing or wrong.
    pub(crate) fn of(uri: &StoreUri) -> Result<TableEndpoint> {
        match uri.scheme() {
            "hbase" => {
                let (masters, table) = parts(uri, NATIVE, &MASTERS)?;
                Ok(TableEndpoint::Native { masters, table })
            }
            #[cfg(feature = "gateway")]
            "hbase+thrift" => {
                let (address, table) = parts(uri, GATEWAY, &GATEWAYS)?;
                Ok(TableEndpoint::Gateway { address, table })
            }
            _ => {
                let allowed = "hbase://master:16000,master2:16000/table or hbase+thrift://host:9090/table";
                Err(Error::invalid("table", "of another store", allowed))
            }
        }
    }

    pub(crate) fn is_native(&self) -> bool {
        matches!(self, TableEndpoint::Native { .. })
    }

    /// Returns the highest allowed `max_value` and its default, in bytes. By default HBase accepts cells of up to
    /// 10 MiB, key included (`hbase.server.keyvalue.maxsize`). Replies of a gateway are read up to 1 MiB.
    pub(crate) fn value_bytes(&self) -> (usize, usize) {
        if self.is_native() { (10_000_000, 4 << 20) } else { (512 << 10, 512 << 10) }
    }
}

/// Returns servers and table.
fn parts(uri: &StoreUri, form: &str, addresses: &AddressForm) -> Result<(String, String)> {
    if !uri.has_servers() {
        return Err(uri.lacks("// after the scheme", form));
    }
    let servers = servers(uri.authority(), addresses)?;
    match uri.encoded_names() {
        "" => Err(uri.lacks("the table", form)),
        table => Ok((servers, checked_table(&decode("table", table)?)?)),
    }
}

/// Opens an application's table. `reply_max` is the largest reply that `hbase://` accepts, in bytes.
pub(crate) fn open_rows(
    endpoint: &TableEndpoint,
    options: Options,
    reply_max: u32,
) -> Result<Box<dyn RowStore>> {
    match endpoint {
        TableEndpoint::Native { masters, table } => {
            Ok(Box::new(super::native::NativeRows::new(masters, table, options, reply_max)?))
        }
        #[cfg(feature = "gateway")]
        TableEndpoint::Gateway { address, table } => {
            Ok(Box::new(super::thrift::GatewayRows::new(address, table, options)?))
        }
    }
}
