//! Native transport: connects to masters, hbase:meta and RegionServers over HBase's own RPC (2.4 and later).
//!
//! ```text
//! locks, own (locks in the layout `own`), latches (exactly once), counts (many at a time), scan (rows of a range), rows (of applications), admin (tables)
//!   rpc (sends and retries; the meaning of exceptions and lost replies), batch (the same for many rows at once)
//!     locator (master, meta, regions)  ->  servers  ->  connection (calls on one socket)  ->  channel (bytes, TLS, what Kerberos protects)
//!   auth (who we are: tickets, the handshake with a server, and what protects the bytes after it)
//!   request, filter, messages, bytes, exception, frame: the wire format
//! ```

mod address;
mod admin;
mod auth;
mod batch;
mod bytes;
mod channel;
mod connection;
mod counts;
mod exception;
mod filter;
mod frame;
#[cfg(any(test, fuzzing))]
mod fuzz;
mod latches;
mod locator;
mod locks;
mod messages;
mod options;
mod own;
mod region;
mod request;
mod rows;
mod rpc;
mod scan;
mod send_error;
mod servers;

pub(super) use self::auth::{
    AUTH, KEYTAB, MASTER_PRINCIPAL, PRINCIPAL, PROTECTION, SERVER_PRINCIPAL, TICKET_CACHE,
};
pub(super) use self::latches::NativeLatches;
pub(super) use self::rows::NativeRows;
pub(super) use self::rpc::Native;

/// See `tests/fuzz`.
#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    fuzz::read_all(bytes);
}
