//! The servers of a cluster, with one connection for each service of each server.

use std::collections::HashMap;
use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;

use super::address::Address;
use super::channel::{Channel, Security};
use super::connection::{CallFailure, Connection};
use super::frame;
use crate::runtime::process::descriptors::above_streams;
use crate::runtime::sync::real::{Mutex, TimedGuard, TimedMutex};
use crate::runtime::time::{Deadline, Moment};

pub(super) const CLIENT_SERVICE: &str = "ClientService";
pub(super) const MASTER_SERVICE: &str = "MasterService";
pub(super) const META_SERVICE: &str = "ClientMetaService";

/// Settings for connections to the servers of a cluster.
pub(super) struct ServerAccess {
    pub(super) user: String,
    pub(super) security: Security,
    pub(super) connect_timeout: Duration,
    /// See [`Connection::open`].
    pub(super) reply_max: u32,
}

pub(super) struct Servers {
    access: ServerAccess,
    /// By service and then by address, so a look-up needs no copy of the address.
    known: Mutex<HashMap<&'static str, HashMap<Address, Arc<Server>>>>,
}

/// The connection to one service of one server. It is opened when it is needed.
#[derive(Default)]
struct Server {
    state: TimedMutex<ServerState>,
}

#[derive(Default)]
struct ServerState {
    connection: Option<Arc<Connection>>,
    /// The last attempt to connect that failed: its end, and its error.
    failed: Option<(Moment, io::ErrorKind, String)>,
}

impl Server {
    /// Returns whether it has no usable connection and no thread is connecting.
    fn is_spent(&self) -> bool {
        let idle =
            |state: TimedGuard<'_, ServerState>| state.connection.as_ref().is_none_or(|c| !c.is_usable());
        self.state.try_lock().is_some_and(idle)
    }
}

impl Servers {
    pub(super) fn new(access: ServerAccess) -> Servers {
        Servers { access, known: Mutex::default() }
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.access.connect_timeout
    }

    /// Makes one call to one service of one server. Connects if necessary.
    pub(super) fn call<T: Message + Default>(
        &self,
        server: &Address,
        service: &'static str,
        method: &'static str,
        parameter: &impl Message,
        by: Deadline,
    ) -> Result<T, CallFailure> {
        let connection = self.connection(server, service, by).map_err(CallFailure::before_sending)?;
        decoded(connection.start(method, parameter, by, by)?.wait(by)?)
    }

    /// Returns the connection to one service of one server. Connects if necessary.
    pub(super) fn connection(
        &self,
        server: &Address,
        service: &'static str,
        by: Deadline,
    ) -> io::Result<Arc<Connection>> {
        let asked = Moment::now();
        let entry = self.server(server, service);
        // Only threads that need this server wait while a thread connects to it.
        let mut state = entry.state.try_lock_for(by.remaining()).ok_or(io::ErrorKind::TimedOut)?;
        if let Some(connection) = state.connection.as_ref().filter(|connection| connection.is_usable()) {
            return Ok(Arc::clone(connection));
        }
        state.connection = None;
        // A thread that waited for a failed attempt gets the same error. Otherwise many threads would try to
        // connect one after another, each with the full time-out.
        if let Some((_, kind, why)) = state.failed.as_ref().filter(|(ended, ..)| *ended > asked) {
            return Err(io::Error::new(*kind, why.clone()));
        }
        let by = by.sooner(Deadline::after(self.access.connect_timeout));
        match self.connect(server, service, by) {
            Ok(connection) => Ok(Arc::clone(state.connection.insert(Arc::new(connection)))),
            Err(error) => {
                state.failed = Some((Moment::now(), error.kind(), error.to_string()));
                Err(error)
            }
        }
    }

    /// Returns whether a usable connection to a region's server exists, one that is neither broken nor silent.
    pub(super) fn answers(&self, server: &Address) -> bool {
        // A thread holds the lock longer than this only while it connects.
        const LOCKED: Duration = Duration::from_millis(5);
        let known = self.known.lock().get(CLIENT_SERVICE).and_then(|servers| servers.get(server)).cloned();
        let answers =
            |state: TimedGuard<'_, ServerState>| state.connection.as_ref().is_some_and(|c| c.is_usable());
        known.is_some_and(|known| known.state.try_lock_for(LOCKED).is_some_and(answers))
    }

    fn server(&self, server: &Address, service: &'static str) -> Arc<Server> {
        let mut services = self.known.lock();
        if let Some(known) = services.get(service).and_then(|servers| servers.get(server)) {
            return Arc::clone(known);
        }
        // New addresses are rare, so this is the time to drop unused servers and close their sockets.
        for servers in services.values_mut() {
            servers.retain(|_, known| Arc::strong_count(known) > 1 || !known.is_spent());
        }
        Arc::clone(services.entry(service).or_default().entry(server.clone()).or_default())
    }

    fn connect(&self, server: &Address, service: &str, by: Deadline) -> io::Result<Connection> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        // The name look-up uses the time-outs of the system's resolver. This code cannot set them.
        let addresses: Vec<_> =
            above_streams(|| (server.host.as_str(), server.port).to_socket_addrs())?.collect();
        for (tried, address) in addresses.iter().enumerate() {
            let by = share(by, addresses.len() - tried);
            match Channel::connect(address, &server.host, &self.access.security, by).and_then(|channel| {
                Connection::open(channel, service, &self.access.user, self.access.reply_max, by)
            }) {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    last = io::Error::new(error.kind(), format!("{}:{}: {error}", server.host, server.port))
                }
            }
        }
        Err(last)
    }
}

/// Decodes the answer to a call.
pub(super) fn decoded<T: Message + Default>(answer: Vec<u8>) -> Result<T, CallFailure> {
    let decoded = T::decode(answer.as_slice());
    frame::reuse(answer);
    decoded.map_err(|error| CallFailure::Lost(io::Error::new(io::ErrorKind::InvalidData, error)))
}

/// Divides the time until `by` into `attempts` shares, and returns the end of the first one.
pub(super) fn share(by: Deadline, attempts: usize) -> Deadline {
    by.sooner(Deadline::after(by.remaining() / u32::try_from(attempts).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RegionServers appear under new names and disappear during the lifetime of a process.
    #[test]
    fn addresses_that_serve_no_more_do_not_pile_up() {
        let access = ServerAccess {
            user: "me".into(),
            security: None,
            connect_timeout: Duration::from_secs(1),
            reply_max: 4 << 20,
        };
        let servers = Servers::new(access);
        for port in 1..1000 {
            let server = Address { host: "127.0.0.1".into(), port };
            servers.server(&server, CLIENT_SERVICE);
        }
        assert_eq!(servers.known.lock()[CLIENT_SERVICE].len(), 1);
    }
}
