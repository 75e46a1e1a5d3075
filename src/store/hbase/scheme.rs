//! The URIs of HBase: their servers and table, and the stores that they open.

use std::sync::Arc;

#[cfg(feature = "gateway")]
use super::options::GATEWAY;
use super::options::HBASE;
use super::table_endpoint::TableEndpoint;
use super::{HbaseBridge, HbaseOwnStore, HbaseStore};
#[cfg(feature = "gateway")]
use crate::error::Error;
use crate::error::Result;
use crate::store::LockStore;
use crate::store::both::BothStore;
use crate::store::layout::Layout;
use crate::store::remote::RemoteStore;
use crate::store::scheme::Scheme;
use crate::store::store_uri::StoreUri;

pub(in crate::store) const SCHEME: Scheme = Scheme::new(super::table_endpoint::NATIVE, &HBASE, open);
#[cfg(feature = "gateway")]
pub(in crate::store) const GATEWAY_SCHEME: Scheme =
    Scheme::new(super::table_endpoint::GATEWAY, &GATEWAY, open);

fn open(uri: &mut StoreUri) -> Result<Arc<dyn LockStore>> {
    let (endpoint, mut options) = (TableEndpoint::of(uri)?, uri.take_options());
    let layout = Layout::take(&mut options)?;
    Ok(match endpoint {
        TableEndpoint::Native { masters, table } => match layout {
            Layout::Java => Arc::new(RemoteStore::new(HbaseStore::native(&masters, &table, options)?)),
            Layout::Own => Arc::new(RemoteStore::new(HbaseOwnStore::open(&masters, &table, options)?)),
            Layout::Both => Arc::new(BothStore::new(HbaseBridge::open(&masters, &table, options)?)),
        },
        #[cfg(feature = "gateway")]
        TableEndpoint::Gateway { address, table } => {
            if layout != Layout::Java {
                let allowed = "java: only hbase:// has the conditions that the layout own needs";
                return Err(Error::invalid("layout", layout.name(), allowed));
            }
            Arc::new(RemoteStore::new(HbaseStore::thrift(&address, &table, options)?))
        }
    })
}
