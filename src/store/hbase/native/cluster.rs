//! Where things are: the active master, hbase:meta, and the regions of one table. No ZooKeeper is asked:
//! masters tell where meta is, meta tells where the rows are.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::ToSocketAddrs;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use prost::Message;

use super::channel::{Channel, Security};
use super::connection::{Connection, Failure};
use super::messages::{
    Column, Empty, GetActiveMasterResponse, GetMetaRegionLocationsResponse, REGION_NAME, RegionInfo,
    RegionSpecifier, RowResult, Scan, ScanRequest, ScanResponse, ServerName,
};
use crate::time::Deadline;

pub(super) const CLIENT_SERVICE: &str = "ClientService";
pub(super) const MASTER_SERVICE: &str = "MasterService";
const META_SERVICE: &str = "ClientMetaService";

/// A server's address as the cluster knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// One region of the table, and who serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Region {
    name: Vec<u8>,
    start: Vec<u8>,
    /// First row behind it; empty for the last region.
    end: Vec<u8>,
    pub(super) server: Address,
}

/// Why a place was not found.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lookup {
    /// There is no such table.
    #[error("there is no such table")]
    NoTable,
    /// Known, and served by nobody at the moment.
    #[error("the region is served by nobody at the moment")]
    NotServed,
    /// Those who know could not be asked.
    #[error("{0}")]
    Call(&'static str, #[source] Failure),
    /// They answered what cannot be read.
    #[error("the catalogue answered what cannot be read")]
    Garbage,
}

pub(super) struct Cluster {
    masters: Vec<Address>,
    table: Vec<u8>,
    user: String,
    security: Security,
    connect_timeout: Duration,
    servers: Mutex<HashMap<(Address, &'static str), Arc<Server>>>,
    meta: Mutex<Option<Region>>,
    /// By start key.
    regions: RwLock<BTreeMap<Vec<u8>, Region>>,
}

/// The connection to one service of one server, made when needed.
#[derive(Default)]
struct Server {
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Region {
    pub(super) fn specifier(&self) -> Option<RegionSpecifier> {
        Some(RegionSpecifier { kind: REGION_NAME, value: self.name.clone() })
    }

    pub(super) fn holds(&self, row: &[u8]) -> bool {
        self.start.as_slice() <= row && (self.end.is_empty() || row < self.end.as_slice())
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("masters", &self.masters).finish_non_exhaustive()
    }
}

impl Cluster {
    pub(super) fn new(
        masters: Vec<Address>,
        table: &str,
        user: String,
        security: Security,
        connect_timeout: Duration,
    ) -> Cluster {
        Cluster {
            masters,
            table: table.as_bytes().to_vec(),
            user,
            security,
            connect_timeout,
            servers: Mutex::default(),
            meta: Mutex::default(),
            regions: RwLock::default(),
        }
    }

    /// One call to one service of one server.
    pub(super) fn call<T: Message + Default>(
        &self,
        server: &Address,
        service: &'static str,
        method: &str,
        parameter: &impl Message,
        by: Deadline,
    ) -> Result<T, Failure> {
        let connection = self.connection(server, service, by).map_err(Failure::NotSent)?;
        let answer = connection.call(method, parameter, by)?;
        T::decode(answer.as_slice())
            .map_err(|error| Failure::Lost(io::Error::new(io::ErrorKind::InvalidData, error)))
    }

    fn connection(
        &self,
        server: &Address,
        service: &'static str,
        by: Deadline,
    ) -> io::Result<Arc<Connection>> {
        let entry = Arc::clone(self.servers.lock().entry((server.clone(), service)).or_default());
        // Only those who want this server wait while it is being connected to.
        let mut slot = entry.connection.try_lock_for(by.remaining()).ok_or(io::ErrorKind::TimedOut)?;
        if let Some(connection) = slot.as_ref().filter(|connection| connection.is_usable()) {
            return Ok(Arc::clone(connection));
        }
        *slot = None;
        let by = by.or(Deadline::after(self.connect_timeout));
        let connection = Arc::new(self.connect(server, service, by)?);
        *slot = Some(Arc::clone(&connection));
        Ok(connection)
    }

    fn connect(&self, server: &Address, service: &str, by: Deadline) -> io::Result<Connection> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        // The look-up has the time-outs of the system's resolver, which cannot be set from here.
        for address in (server.host.as_str(), server.port).to_socket_addrs()? {
            match Channel::connect(&address, &server.host, &self.security, by)
                .and_then(|channel| Connection::open(channel, service, &self.user, by))
            {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    last = io::Error::new(error.kind(), format!("{}:{}: {error}", server.host, server.port))
                }
            }
        }
        Err(last)
    }

    /// The region that holds `row`, from memory or from meta.
    pub(super) fn region(&self, row: &[u8], by: Deadline) -> Result<Region, Lookup> {
        let below = (Bound::Unbounded, Bound::Included(row));
        let known = self.regions.read().range::<[u8], _>(below).next_back().map(|(_, region)| region.clone());
        if let Some(region) = known.filter(|region| region.holds(row)) {
            return Ok(region);
        }
        let region = self.look_up(row, by).inspect_err(|error| {
            if matches!(error, Lookup::Call(..)) {
                // Meta may have moved as well.
                *self.meta.lock() = None;
            }
        })?;
        self.regions.write().insert(region.start.clone(), region.clone());
        Ok(region)
    }

    /// The region was not where it was thought to be.
    pub(super) fn forget(&self, region: &Region) {
        let mut regions = self.regions.write();
        if regions.get(&region.start) == Some(region) {
            regions.remove(&region.start);
        }
    }

    /// The server that had the region says where it went.
    pub(super) fn moved(&self, region: &Region, host: String, port: u16) {
        let moved = Region { server: Address { host, port }, ..region.clone() };
        self.regions.write().insert(region.start.clone(), moved);
    }

    fn look_up(&self, row: &[u8], by: Deadline) -> Result<Region, Lookup> {
        let meta = self.meta(by)?;
        let start_row = [self.table.as_slice(), b",", row, b",99999999999999"].concat();
        let stop_row = [self.table.as_slice(), b",,"].concat();
        let scan = Scan {
            column: vec![Column { family: b"info".to_vec(), qualifier: Vec::new() }],
            start_row,
            stop_row,
            max_versions: 1,
            reversed: true,
            caching: 1,
            include_start_row: true,
            include_stop_row: false,
        };
        let request = ScanRequest {
            region: meta.specifier(),
            scan: Some(scan),
            number_of_rows: 1,
            close_scanner: true,
            limit_of_rows: 1,
        };
        let found: ScanResponse = self
            .call(&meta.server, CLIENT_SERVICE, "Scan", &request, by)
            .map_err(|failure| Lookup::Call("hbase:meta could not be read", failure))?;
        let result = found.results.first().ok_or(Lookup::NoTable)?;
        let region = catalogued(result, &self.table)?;
        if region.holds(row) { Ok(region) } else { Err(Lookup::NotServed) }
    }

    fn meta(&self, by: Deadline) -> Result<Region, Lookup> {
        if let Some(meta) = self.meta.lock().clone() {
            return Ok(meta);
        }
        let found: GetMetaRegionLocationsResponse = self.ask_masters("GetMetaRegionLocations", by)?;
        let location = found.locations.into_iter().next().ok_or(Lookup::NotServed)?;
        let info = location.region_info.ok_or(Lookup::Garbage)?;
        let table = info.table.as_ref().ok_or(Lookup::Garbage)?;
        let mut name = [&table.namespace[..], b":", &table.qualifier, b",", &info.start_key, b","].concat();
        name.extend_from_slice(info.region_id.to_string().as_bytes());
        let server = location.server_name.ok_or(Lookup::NotServed)?.try_into()?;
        let meta = Region { name, start: Vec::new(), end: Vec::new(), server };
        *self.meta.lock() = Some(meta.clone());
        Ok(meta)
    }

    pub(super) fn active_master(&self, by: Deadline) -> Result<Address, Lookup> {
        let found: GetActiveMasterResponse = self.ask_masters("GetActiveMaster", by)?;
        found.server_name.ok_or(Lookup::NotServed)?.try_into()
    }

    /// Any master knows, active or not: the first that answers is believed.
    fn ask_masters<T: Message + Default>(&self, method: &str, by: Deadline) -> Result<T, Lookup> {
        let mut last = None;
        for (asked, master) in self.masters.iter().enumerate() {
            // One that hangs must leave time for those that do not.
            let share = by.remaining() / (self.masters.len() - asked) as u32;
            match self.call(master, META_SERVICE, method, &Empty {}, by.or(Deadline::after(share))) {
                Ok(answer) => return Ok(answer),
                Err(failure) => last = Some(failure),
            }
        }
        let last = last.ok_or(Lookup::NotServed)?;
        Err(Lookup::Call("no master answered", last))
    }
}

impl TryFrom<ServerName> for Address {
    type Error = Lookup;

    fn try_from(name: ServerName) -> Result<Address, Lookup> {
        let port = u16::try_from(name.port).map_err(|_| Lookup::Garbage)?;
        Ok(Address { host: name.host, port })
    }
}

/// Reads a row of hbase:meta.
fn catalogued(result: &RowResult, table: &[u8]) -> Result<Region, Lookup> {
    const MAGIC: &[u8] = b"PBUF";
    let value = |qualifier: &[u8]| {
        let cell = result.cell.iter().find(|cell| cell.family == b"info" && cell.qualifier == qualifier);
        cell.map(|cell| (cell.row.as_slice(), cell.value.as_slice()))
    };
    let (name, info) = value(b"regioninfo").ok_or(Lookup::Garbage)?;
    let info =
        info.strip_prefix(MAGIC).and_then(|info| RegionInfo::decode(info).ok()).ok_or(Lookup::Garbage)?;
    // The first row before the table's own belongs to another table, whose name sorts before.
    let of = info.table.as_ref().ok_or(Lookup::Garbage)?;
    let full = if of.namespace == b"default" {
        of.qualifier.clone()
    } else {
        [&of.namespace[..], b":", &of.qualifier].concat()
    };
    if full != table {
        return Err(Lookup::NoTable);
    }
    if info.offline || info.split {
        return Err(Lookup::NotServed);
    }
    let (_, server) = value(b"server").ok_or(Lookup::NotServed)?;
    let server = std::str::from_utf8(server).ok().and_then(|server| server.rsplit_once(':'));
    let (host, port) = server.ok_or(Lookup::NotServed)?;
    let port = port.parse().map_err(|_| Lookup::Garbage)?;
    Ok(Region {
        name: name.to_vec(),
        start: info.start_key,
        end: info.end_key,
        server: Address { host: host.to_owned(), port },
    })
}
