//! Where an application's table is, and what opens it.

use super::steps::RowStore;
use crate::error::Result;
use crate::options::Options;

/// Where an application's table is reached.
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

    /// The highest limit for the bytes of a value, and the limit unless it is set. HBase takes 10 MiB with the
    /// cell's key unless told otherwise (`hbase.server.keyvalue.maxsize`); of a gateway's replies one MiB is read.
    pub(crate) fn value_bytes(&self) -> (usize, usize) {
        if self.is_native() { (10_000_000, 4 << 20) } else { (512 << 10, 512 << 10) }
    }
}

/// Opens an application's table. Replies up to `reply_max` bytes are read.
pub(crate) fn open_rows(
    place: &TableEndpoint,
    options: Options,
    reply_max: u32,
) -> Result<Box<dyn RowStore>> {
    match place {
        TableEndpoint::Native { masters, table } => {
            Ok(Box::new(super::native::NativeRows::new(masters, table, options, reply_max)?))
        }
        #[cfg(feature = "gateway")]
        TableEndpoint::Gateway { address, table } => {
            Ok(Box::new(super::thrift::GatewayRows::new(address, table, options)?))
        }
    }
}
