//! The URIs of Aerospike: their nodes, namespace and set, and the stores that they open.

use std::sync::Arc;

use super::options::AEROSPIKE;
use super::{AerospikeBothStore, AerospikeOwnStore, AerospikeStore};
use crate::error::{Error, Result};
use crate::store::LockStore;
use crate::store::address::{AddressForm, servers};
use crate::store::layout::Layout;
use crate::store::remote::RemoteStore;
use crate::store::scheme::Scheme;
use crate::store::store_uri::{StoreUri, decode};

const FORM: &str = "aerospike://host:3000,host2/namespace/setSuffix";

pub(in crate::store) const SCHEME: Scheme = Scheme::new(FORM, &AEROSPIKE, open);

const NODES: AddressForm = AddressForm { port: Some(3000), several: true, example: "node.example.org:3000" };

/// Nodes, namespace and set. However a URI spells them, they are the same.
pub(crate) struct SetEndpoint {
    pub(crate) hosts: String,
    pub(crate) namespace: String,
    pub(crate) set: String,
}

impl SetEndpoint {
    /// Reads the endpoint of a URI.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, before any I/O, for the URI of another store, and with the part that is missing or wrong.
    pub(crate) fn of(uri: &StoreUri) -> Result<SetEndpoint> {
        if uri.scheme() != SCHEME.name() {
            return Err(Error::invalid(
                "store",
                "of another kind",
                "aerospike://host:3000,host2/namespace/set",
            ));
        }
        if !uri.has_servers() {
            return Err(uri.lacks("// after the scheme", FORM));
        }
        let hosts = servers(uri.authority(), &NODES)?;
        let (namespace, set) = uri.encoded_names().split_once('/').unwrap_or((uri.encoded_names(), ""));
        match (namespace, set) {
            ("", _) => Err(uri.lacks("the namespace", FORM)),
            (_, "") => Err(uri.lacks("the set", FORM)),
            _ => Ok(SetEndpoint {
                hosts,
                namespace: decode("namespace", namespace)?,
                set: decode("set", set)?,
            }),
        }
    }
}

fn open(uri: &mut StoreUri) -> Result<Arc<dyn LockStore>> {
    let SetEndpoint { hosts, namespace, set } = SetEndpoint::of(uri)?;
    let mut options = uri.take_options();
    Ok(match Layout::take(&mut options)? {
        Layout::Java => Arc::new(RemoteStore::new(AerospikeStore::open(&hosts, &namespace, &set, options)?)),
        Layout::Both => Arc::new(AerospikeBothStore::open(&hosts, &namespace, &set, options)?),
        Layout::Own => {
            Arc::new(RemoteStore::new(AerospikeOwnStore::open(&hosts, &namespace, &set, options)?))
        }
    })
}
