//! The vendor's Java client in a process of its own, `tests/aerospike/Peer.java`: what a Java service does
//! to locks and latches.

use std::path::Path;
use std::process::Command;

use super::aerospike::Place;
use super::java::{Java, class_path};

/// Fetches the client with Maven the first time, compiles the peer and connects. `Err`: why it cannot.
pub(crate) fn start(place: &Place) -> Result<Java, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/aerospike");
    let class_path = class_path(&root.join("pom.xml"), "aerospike-peer")?;
    let address = place.address;
    Java::start(Command::new("java").args(["-cp", &class_path]).arg(root.join("Peer.java")).args([
        &address.ip().to_string(),
        &address.port().to_string(),
        &place.namespace,
    ]))
}
