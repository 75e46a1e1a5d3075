//! The servers of a cluster, with one connection for each service of each server.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;

use super::address::Address;
use super::auth::{Auth, BegunContext, ServedBy};
use super::channel::{Channel, Security};
use super::connection::{CallFailure, ClientIdentity, Connection};
use super::frame;
use crate::names::diagnostic::Diagnostic;
use crate::runtime::process::name_lookup::addresses_of;
use crate::runtime::sync::real::{Mutex, TimedGuard, TimedMutex};
use crate::runtime::time::{Deadline, Moment};

/// Time for a connection in place of one that still works.
const RENEW_WITHIN: Duration = Duration::from_secs(1);
/// Pause after such a connection was not made.
const RENEW_AGAIN: Duration = Duration::from_secs(5);

pub(super) const CLIENT_SERVICE: &str = "ClientService";
pub(super) const MASTER_SERVICE: &str = "MasterService";
pub(super) const META_SERVICE: &str = "ClientMetaService";

/// Settings for connections to the servers of a cluster.
pub(super) struct ServerAccess {
    pub(super) auth: Auth,
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
    /// Whether a thread opens a connection in place of this one, whose ticket will end.
    is_renewing: bool,
    /// When none could take its place.
    renewing_failed: Option<Moment>,
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

    /// Reports as whom connections are opened, and how they are protected. `None` if the servers believe any name.
    pub(super) fn diagnose_login(&self) -> Option<Diagnostic> {
        match &self.access.auth {
            Auth::Simple { .. } => None,
            Auth::Kerberos(login) => Some(login.diagnose()),
        }
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
            let current = Arc::clone(connection);
            if !current.is_to_be_renewed() {
                return Ok(current);
            }
            let Some(begun) = self.begun_anew(server, service, &current, &mut state) else {
                return Ok(current);
            };
            // Other threads use the current connection meanwhile.
            drop(state);
            let opened = self.renewed(server, &current, service, begun, by);
            let mut state = entry.state.lock();
            state.is_renewing = false;
            match opened {
                Ok(connection) => return Ok(Arc::clone(state.connection.insert(Arc::new(connection)))),
                Err(error) => {
                    log::warn!("no connection in place of one whose ticket will end: {error}");
                    state.renewing_failed = Some(Moment::now());
                    return Ok(current);
                }
            }
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

    /// Returns a context for a connection in place of `current`, whose ticket will end. The caller opens it. `None` if there is no
    /// ticket yet that lasts longer, or if another thread opens one.
    fn begun_anew(
        &self,
        server: &Address,
        service: &'static str,
        current: &Connection,
        state: &mut ServerState,
    ) -> Option<BegunContext> {
        let has_just_failed =
            state.renewing_failed.is_some_and(|failed| Moment::now().since(failed) < RENEW_AGAIN);
        let Auth::Kerberos(login) = &self.access.auth else { return None };
        if state.is_renewing || has_just_failed {
            return None;
        }
        let targets = login.targets(served_by(service), &server.host);
        let begun = targets.iter().find_map(|target| login.prepared(target))?;
        state.is_renewing = current.ends_before(begun.0.lasts());
        state.renewing_failed = if state.is_renewing { None } else { Some(Moment::now()) };
        state.is_renewing.then_some(begun)
    }

    fn renewed(
        &self,
        server: &Address,
        current: &Connection,
        service: &'static str,
        begun: BegunContext,
        by: Deadline,
    ) -> io::Result<Connection> {
        let Auth::Kerberos(login) = &self.access.auth else { return Err(io::ErrorKind::Unsupported.into()) };
        let by = share(by, 2).sooner(Deadline::after(RENEW_WITHIN));
        // Without a look-up of its name, which may take long.
        let channel = Channel::connect(&current.peer()?, &server.host, &self.access.security, by)?;
        let connection = Connection::open(
            channel,
            service,
            ClientIdentity::Login(begun, login.least()),
            self.access.reply_max,
            by,
        )?;
        connection.protection().into_iter().for_each(|protection| login.agreed(protection));
        Ok(connection)
    }

    fn connect(&self, server: &Address, service: &str, by: Deadline) -> io::Result<Connection> {
        let reply_max = self.access.reply_max;
        let login = match &self.access.auth {
            Auth::Kerberos(login) => login,
            Auth::Simple { user } => {
                return self.reach(server, by, |channel, by| {
                    Connection::open(channel, service, ClientIdentity::User(user), reply_max, by)
                });
            }
        };
        let mut refused = None;
        for target in login.targets(served_by(service), &server.host) {
            let opened = self.reach(server, by, |channel, by| {
                let begun = login.begin(&target, by)?;
                Connection::open(channel, service, ClientIdentity::Login(begun, login.least()), reply_max, by)
            });
            match opened {
                // It may have the other principal.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    refused = refused.or(Some(error))
                }
                opened => return opened,
            }
        }
        Err(refused.unwrap_or_else(|| io::ErrorKind::PermissionDenied.into()))
    }

    /// Connects to the first address of the server where `open` opens a connection.
    fn reach(
        &self,
        server: &Address,
        by: Deadline,
        mut open: impl FnMut(Channel, Deadline) -> io::Result<Connection>,
    ) -> io::Result<Connection> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        let addresses = addresses_of((server.host.as_str(), server.port))?;
        for (tried, address) in addresses.iter().enumerate() {
            let by = share(by, addresses.len() - tried);
            match Channel::connect(address, &server.host, &self.access.security, by)
                .and_then(|channel| open(channel, by))
            {
                Ok(connection) => {
                    if let (Auth::Kerberos(login), Some(protection)) =
                        (&self.access.auth, connection.protection())
                    {
                        login.agreed(protection);
                    }
                    return Ok(connection);
                }
                Err(error) => {
                    last = io::Error::new(error.kind(), format!("{}:{}: {error}", server.host, server.port))
                }
            }
        }
        Err(last)
    }
}

/// Returns which servers have a service.
fn served_by(service: &str) -> ServedBy {
    match service {
        MASTER_SERVICE => ServedBy::Master,
        META_SERVICE => ServedBy::Both,
        _ => ServedBy::RegionServer,
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
            auth: Auth::Simple { user: "me".into() },
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
