//! Endpoint of an application's table, and the function that opens the table.

use super::steps::RowStore;
use crate::error::Result;
use crate::settings::options::Options;

/// Transport and address of an application's table.
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
    pub(crate) fn is_native(&self) -> bool {
        matches!(self, TableEndpoint::Native { .. })
    }

    /// Returns the highest allowed `max_value` and its default, in bytes. By default HBase accepts cells of up to
    /// 10 MiB, key included (`hbase.server.keyvalue.maxsize`). Replies of a gateway are read up to 1 MiB.
    pub(crate) fn value_bytes(&self) -> (usize, usize) {
        if self.is_native() { (10_000_000, 4 << 20) } else { (512 << 10, 512 << 10) }
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
