//! Where things are: the active master, hbase:meta, and the regions of one table. No ZooKeeper is asked:
//! masters tell where meta is, meta tells where the rows are.
//!
//! Threads that miss the same region make one look-up. The first one asks meta, and the others wait for its
//! answer:
//!
//! | the look-up | the threads that wait for it |
//! |---|---|
//! | found the region | use it if their row lies in it; the others ask or wait again |
//! | found that nobody serves the region | get the same error if their row lies in it |
//! | failed, or ran out of its own time | go on: one of them asks, and the others wait for that one |
//! | takes more than half of a thread's time | that thread asks, and those that come later wait for it |

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::ToSocketAddrs;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use prost::Message;

use super::channel::{Channel, Security};
use super::connection::{Connection, Failure};
use super::messages::{
    Column, Empty, Get, GetActiveMasterResponse, GetMetaRegionLocationsResponse, GetRequest, GetResponse,
    REGION_NAME, RegionInfo, RegionSpecifier, RowResult, Scan, ScanRequest, ScanResponse, ServerName,
    TABLE_DISABLED, TableState,
};
use crate::time::{Deadline, Moment};

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
    network: Arc<Network>,
    table: Vec<u8>,
    /// By start key; none overlaps another.
    regions: RwLock<BTreeMap<Vec<u8>, Region>>,
    /// Look-ups under way that others may wait for. `regions` may be locked under its lock.
    looking: Mutex<Vec<Arc<Looking>>>,
}

/// One look-up under way.
struct Looking {
    row: Vec<u8>,
    end: Mutex<Option<Ended>>,
    ended: Condvar,
}

/// How a look-up ended, as far as it concerns others.
#[derive(Clone)]
enum Ended {
    /// The region is known now, or nothing more than before.
    Look,
    /// Nobody serves the region between these rows.
    NotServed(Vec<u8>, Vec<u8>),
}

/// What a thread does that misses a region.
enum Turn {
    /// It was found meanwhile.
    Known(Region),
    Asks(Arc<Looking>),
    Waits(Arc<Looking>),
}

/// What all tables of a cluster have in common.
struct Network {
    masters: Vec<Address>,
    /// Index of the one that answered last.
    answering: AtomicUsize,
    user: String,
    security: Security,
    connect_timeout: Duration,
    /// See [`Connection::open`].
    reply_max: u32,
    servers: Mutex<HashMap<(Address, &'static str), Arc<Server>>>,
    meta: Mutex<Option<Region>>,
}

/// The connection to one service of one server, made when needed.
#[derive(Default)]
struct Server {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// The last attempt that failed: when it ended, and how.
    failed: Option<(Moment, io::ErrorKind, String)>,
}

impl Server {
    /// Whether there is nothing in it worth keeping.
    fn is_spent(&self) -> bool {
        let idle = |state: MutexGuard<'_, State>| state.connection.as_ref().is_none_or(|c| !c.is_usable());
        self.state.try_lock().is_some_and(idle)
    }
}

impl Region {
    pub(super) fn specifier(&self) -> Option<RegionSpecifier> {
        Some(RegionSpecifier { kind: REGION_NAME, value: self.name.clone() })
    }

    pub(super) fn holds(&self, row: &[u8]) -> bool {
        lies_between(row, &self.start, &self.end)
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("masters", &self.network.masters).finish_non_exhaustive()
    }
}

impl Cluster {
    pub(super) fn new(
        masters: Vec<Address>,
        table: &str,
        user: String,
        security: Security,
        connect_timeout: Duration,
        reply_max: u32,
    ) -> Cluster {
        let network = Network {
            masters,
            answering: AtomicUsize::new(0),
            user,
            security,
            connect_timeout,
            reply_max,
            servers: Mutex::default(),
            meta: Mutex::default(),
        };
        Cluster::of(Arc::new(network), table)
    }

    /// Another table of the same cluster, over the same connections.
    pub(super) fn beside(&self, table: &str) -> Cluster {
        Cluster::of(Arc::clone(&self.network), table)
    }

    fn of(network: Arc<Network>, table: &str) -> Cluster {
        let table = table.as_bytes().to_vec();
        Cluster { network, table, regions: RwLock::default(), looking: Mutex::default() }
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
        let connection = self.connection(server, service, by).map_err(Failure::before_sending)?;
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
        let asked = Moment::now();
        let entry = self.server(server, service);
        // Only those who want this server wait while it is being connected to.
        let mut state = entry.state.try_lock_for(by.remaining()).ok_or(io::ErrorKind::TimedOut)?;
        if let Some(connection) = state.connection.as_ref().filter(|connection| connection.is_usable()) {
            return Ok(Arc::clone(connection));
        }
        state.connection = None;
        // Who waited for an attempt that failed has seen it fail: a crowd would otherwise try one after
        // the other, each with the full time-out.
        if let Some((_, kind, why)) = state.failed.as_ref().filter(|(ended, ..)| *ended > asked) {
            return Err(io::Error::new(*kind, why.clone()));
        }
        let by = by.sooner(Deadline::after(self.network.connect_timeout));
        match self.connect(server, service, by) {
            Ok(connection) => Ok(Arc::clone(state.connection.insert(Arc::new(connection)))),
            Err(error) => {
                state.failed = Some((Moment::now(), error.kind(), error.to_string()));
                Err(error)
            }
        }
    }

    /// Whether the server of a region has lately answered over the connection that new calls would use.
    pub(super) fn answers(&self, server: &Address) -> bool {
        // Its lock is held for longer only while it is being connected to.
        const LOCKED: Duration = Duration::from_millis(5);
        let known = self.network.servers.lock().get(&(server.clone(), CLIENT_SERVICE)).cloned();
        let answers = |state: MutexGuard<'_, State>| state.connection.as_ref().is_some_and(|c| c.is_usable());
        known.is_some_and(|known| known.state.try_lock_for(LOCKED).is_some_and(answers))
    }

    fn server(&self, server: &Address, service: &'static str) -> Arc<Server> {
        let key = (server.clone(), service);
        let mut servers = self.network.servers.lock();
        if let Some(known) = servers.get(&key) {
            return Arc::clone(known);
        }
        // New addresses are rare. Those of servers that are gone go, and their sockets with them.
        servers.retain(|_, known| Arc::strong_count(known) > 1 || !known.is_spent());
        Arc::clone(servers.entry(key).or_default())
    }

    fn connect(&self, server: &Address, service: &str, by: Deadline) -> io::Result<Connection> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        // The look-up has the time-outs of the system's resolver, which cannot be set from here.
        let addresses: Vec<_> = (server.host.as_str(), server.port).to_socket_addrs()?.collect();
        for (tried, address) in addresses.iter().enumerate() {
            let by = share(by, addresses.len() - tried);
            match Channel::connect(address, &server.host, &self.network.security, by).and_then(|channel| {
                Connection::open(channel, service, &self.network.user, self.network.reply_max, by)
            }) {
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
        loop {
            if let Some(region) = self.known(row) {
                return Ok(region);
            }
            let looking = match self.turn(row, None) {
                Turn::Known(region) => return Ok(region),
                Turn::Asks(own) => return self.ask(&own, by),
                Turn::Waits(looking) => looking,
            };
            match looking.wait(share(by, 2)) {
                Some(ended) if ended.says_not_served(row) => return Err(Lookup::NotServed),
                Some(_) => {}
                None if by.passed() => {
                    let error = io::ErrorKind::TimedOut.into();
                    return Err(Lookup::Call(
                        "hbase:meta did not answer another thread's look-up in time",
                        Failure::NotSent(error),
                    ));
                }
                None => match self.turn(row, Some(&looking)) {
                    Turn::Known(region) => return Ok(region),
                    Turn::Asks(own) => return self.ask(&own, by),
                    Turn::Waits(_) => {}
                },
            }
        }
    }

    fn known(&self, row: &[u8]) -> Option<Region> {
        let below = (Bound::Unbounded, Bound::Included(row));
        let regions = self.regions.read();
        let known = regions.range::<[u8], _>(below).next_back().map(|(_, region)| region);
        known.filter(|region| region.holds(row)).cloned()
    }

    /// Whose turn it is to ask for the region of `row`. `overdue`: a look-up that is waited for no longer.
    fn turn(&self, row: &[u8], overdue: Option<&Arc<Looking>>) -> Turn {
        let mut looking = self.looking.lock();
        // The last look-up may have ended between the miss and this.
        if let Some(region) = self.known(row) {
            return Turn::Known(region);
        }
        if let Some(overdue) = overdue {
            looking.retain(|looking| !Arc::ptr_eq(looking, overdue));
        }
        if let Some(other) = looking.iter().find(|other| self.may_share_a_region(&other.row, row)) {
            return Turn::Waits(Arc::clone(other));
        }
        let own = Looking { row: row.to_vec(), end: Mutex::default(), ended: Condvar::new() };
        let own = Arc::new(own);
        looking.push(Arc::clone(&own));
        Turn::Asks(own)
    }

    /// Whether no region is known that lies between the two rows, of which none is in a known region.
    fn may_share_a_region(&self, one: &[u8], other: &[u8]) -> bool {
        let between = (Bound::Excluded(one.min(other)), Bound::Included(one.max(other)));
        self.regions.read().range::<[u8], _>(between).next().is_none()
    }

    fn ask(&self, own: &Arc<Looking>, by: Deadline) -> Result<Region, Lookup> {
        let mut end = End { cluster: self, looking: own, ended: Ended::Look };
        let (found, ended) = self.look_up(&own.row, by);
        end.ended = ended;
        match &found {
            Ok(region) => self.learn(region.clone()),
            // Meta may have moved as well.
            Err(Lookup::Call(..)) => *self.network.meta.lock() = None,
            Err(_) => {}
        }
        found
    }

    /// What overlaps the region is from before a split or a merge. Left there it would hide the region,
    /// or what it hides would be looked up for every call.
    fn learn(&self, region: Region) {
        let mut regions = self.regions.write();
        let above = (Bound::Included(region.start.as_slice()), Bound::Unbounded);
        let mut stale: Vec<_> = regions
            .range::<[u8], _>(above)
            .take_while(|(start, _)| region.end.is_empty() || **start < region.end)
            .map(|(start, _)| start.clone())
            .collect();
        let below = (Bound::Unbounded, Bound::Excluded(region.start.as_slice()));
        if let Some((start, before)) = regions.range::<[u8], _>(below).next_back()
            && (before.end.is_empty() || before.end > region.start)
        {
            stale.push(start.clone());
        }
        for start in stale {
            regions.remove(&start);
        }
        regions.insert(region.start.clone(), region);
    }

    /// The region was not where it was thought to be.
    pub(super) fn forget(&self, region: &Region) {
        let mut regions = self.regions.write();
        if regions.get(&region.start) == Some(region) {
            regions.remove(&region.start);
        }
    }

    /// The server that had the region says where it went.
    pub(super) fn moved(&self, region: &Region, to: Address) {
        self.learn(Region { server: to, ..region.clone() });
    }

    /// The region that holds `row`, and what the end of the look-up means to others.
    fn look_up(&self, row: &[u8], by: Deadline) -> (Result<Region, Lookup>, Ended) {
        let result = match self.scan_meta(row, by) {
            Ok(result) => result,
            Err(lookup) => return (Err(lookup), Ended::Look),
        };
        match catalogued(&result, &self.table) {
            Ok(region) if region.holds(row) => (Ok(region), Ended::Look),
            Ok(_) => (Err(Lookup::NotServed), Ended::Look),
            Err(Lookup::NotServed) => {
                let unserved = described(&result, &self.table);
                let ended =
                    unserved.map_or(Ended::Look, |(_, info)| Ended::NotServed(info.start_key, info.end_key));
                (Err(Lookup::NotServed), ended)
            }
            Err(lookup) => (Err(lookup), Ended::Look),
        }
    }

    /// Whether the table is disabled. Its regions are then served by nobody, and their servers say no more
    /// than that.
    pub(super) fn is_disabled(&self, by: Deadline) -> Result<bool, Lookup> {
        let meta = self.meta(by)?;
        let column = Column { family: b"table".to_vec(), qualifier: vec![b"state".to_vec()] };
        let get = Get { row: self.table.clone(), column: vec![column], ..Get::default() };
        let request = GetRequest { region: meta.specifier(), get: Some(get) };
        let found: GetResponse = self
            .call(&meta.server, CLIENT_SERVICE, "Get", &request, by)
            .map_err(|failure| Lookup::Call("hbase:meta could not be read", failure))?;
        let cell = found.result.and_then(|result| result.cell.into_iter().next());
        let state = cell.and_then(|cell| TableState::decode(cell.value.as_slice()).ok());
        Ok(state.is_some_and(|state| state.state == Some(TABLE_DISABLED)))
    }

    /// The row of hbase:meta of the last region that begins at `row` or before.
    fn scan_meta(&self, row: &[u8], by: Deadline) -> Result<RowResult, Lookup> {
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
        found.results.into_iter().next().ok_or(Lookup::NoTable)
    }

    fn meta(&self, by: Deadline) -> Result<Region, Lookup> {
        if let Some(meta) = self.network.meta.lock().clone() {
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
        *self.network.meta.lock() = Some(meta.clone());
        Ok(meta)
    }

    pub(super) fn active_master(&self, by: Deadline) -> Result<Address, Lookup> {
        let found: GetActiveMasterResponse = self.ask_masters("GetActiveMaster", by)?;
        found.server_name.ok_or(Lookup::NotServed)?.try_into()
    }

    /// Any master knows, active or not: the first that answers is believed.
    fn ask_masters<T: Message + Default>(&self, method: &str, by: Deadline) -> Result<T, Lookup> {
        let mut last = None;
        let count = self.network.masters.len();
        let first = self.network.answering.load(Ordering::Relaxed);
        for asked in 0..count {
            let index = (first + asked) % count;
            // One that hangs must leave time for those that do not.
            let patience = if asked + 1 < count { self.network.connect_timeout } else { Duration::MAX };
            let by = share(by, count - asked).sooner(Deadline::after(patience));
            match self.call(&self.network.masters[index], META_SERVICE, method, &Empty {}, by) {
                Ok(answer) => {
                    self.network.answering.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(failure) => last = Some(failure),
            }
        }
        let last = last.ok_or(Lookup::NotServed)?;
        Err(Lookup::Call("no master answered", last))
    }
}

impl Looking {
    /// Waits for the end of the look-up, at most until `by`.
    fn wait(&self, by: Deadline) -> Option<Ended> {
        let mut end = self.end.lock();
        self.ended.wait_while_for(&mut end, |end| end.is_none(), by.remaining());
        end.clone()
    }
}

impl Ended {
    fn says_not_served(&self, row: &[u8]) -> bool {
        match self {
            Ended::Look => false,
            Ended::NotServed(from, to) => lies_between(row, from, to),
        }
    }
}

/// Tells those who wait for a look-up that it is over, also where it panicked.
struct End<'a> {
    cluster: &'a Cluster,
    looking: &'a Arc<Looking>,
    ended: Ended,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.cluster.looking.lock().retain(|looking| !Arc::ptr_eq(looking, self.looking));
        *self.looking.end.lock() = Some(self.ended.clone());
        self.looking.ended.notify_all();
    }
}

fn lies_between(row: &[u8], start: &[u8], end: &[u8]) -> bool {
    start <= row && (end.is_empty() || row < end)
}

impl TryFrom<ServerName> for Address {
    type Error = Lookup;

    fn try_from(name: ServerName) -> Result<Address, Lookup> {
        let port = u16::try_from(name.port).map_err(|_| Lookup::Garbage)?;
        Address::told(&name.host, port).ok_or(Lookup::Garbage)
    }
}

impl Address {
    /// As a server says it. What can be no host is none: it would end up in messages to people.
    pub(super) fn told(host: &str, port: u16) -> Option<Address> {
        let legal = |c: char| c.is_alphanumeric() || "-._:%".contains(c);
        let is_host = (1..=255).contains(&host.len()) && host.chars().all(legal);
        (is_host && port != 0).then(|| Address { host: host.to_owned(), port })
    }
}

/// The first of `attempts` shares of the time until `by`.
pub(super) fn share(by: Deadline, attempts: usize) -> Deadline {
    by.sooner(Deadline::after(by.remaining() / u32::try_from(attempts).unwrap_or(u32::MAX)))
}

/// A value of a row of hbase:meta, and the name of its region.
fn value<'a>(result: &'a RowResult, qualifier: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let cell = result.cell.iter().find(|cell| cell.family == b"info" && cell.qualifier == qualifier);
    cell.map(|cell| (cell.row.as_slice(), cell.value.as_slice()))
}

/// The region that a row of hbase:meta is about: its name, and what it is.
fn described<'a>(result: &'a RowResult, table: &[u8]) -> Result<(&'a [u8], RegionInfo), Lookup> {
    const MAGIC: &[u8] = b"PBUF";
    let (name, info) = value(result, b"regioninfo").ok_or(Lookup::Garbage)?;
    let info =
        info.strip_prefix(MAGIC).and_then(|info| RegionInfo::decode(info).ok()).ok_or(Lookup::Garbage)?;
    // The first row before the table's own belongs to another table, whose name sorts before.
    let of = info.table.as_ref().ok_or(Lookup::Garbage)?;
    let full = if of.namespace == b"default" {
        of.qualifier.clone()
    } else {
        [&of.namespace[..], b":", &of.qualifier].concat()
    };
    if full == table { Ok((name, info)) } else { Err(Lookup::NoTable) }
}

/// Reads a row of hbase:meta.
pub(super) fn catalogued(result: &RowResult, table: &[u8]) -> Result<Region, Lookup> {
    let (name, info) = described(result, table)?;
    if info.offline || info.split {
        return Err(Lookup::NotServed);
    }
    let (_, server) = value(result, b"server").ok_or(Lookup::NotServed)?;
    let server = std::str::from_utf8(server).ok().and_then(|server| server.rsplit_once(':'));
    let (host, port) = server.ok_or(Lookup::NotServed)?;
    let port = port.parse().map_err(|_| Lookup::Garbage)?;
    let server = Address::told(host, port).ok_or(Lookup::Garbage)?;
    Ok(Region { name: name.to_vec(), start: info.start_key, end: info.end_key, server })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        Cluster::new(Vec::new(), "t", "me".into(), None, Duration::from_secs(1), 4 << 20)
    }

    fn region(start: &str, end: &str) -> Region {
        let server = Address { host: "h".into(), port: 1 };
        Region { name: format!("t,{start}").into(), start: start.into(), end: end.into(), server }
    }

    fn known(cluster: &Cluster) -> Vec<(String, String)> {
        let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
        cluster.regions.read().values().map(|region| (text(&region.start), text(&region.end))).collect()
    }

    fn spans(spans: &[(&str, &str)]) -> Vec<(String, String)> {
        spans.iter().map(|(start, end)| (start.to_string(), end.to_string())).collect()
    }

    #[test]
    fn a_region_from_before_a_split_or_merge_hides_no_other() {
        let cluster = cluster();
        for (start, end) in [("", "b"), ("b", "f"), ("f", "")] {
            cluster.learn(region(start, end));
        }
        cluster.learn(region("d", "f"));
        assert_eq!(known(&cluster), spans(&[("", "b"), ("d", "f"), ("f", "")]), "the parent went");
        cluster.learn(region("b", "d"));
        cluster.learn(region("b", ""));
        assert_eq!(known(&cluster), spans(&[("", "b"), ("b", "")]), "what was merged went");
        cluster.learn(region("", ""));
        assert_eq!(known(&cluster), spans(&[("", "")]));
        cluster.learn(region("b", "c"));
        assert_eq!(known(&cluster), spans(&[("b", "c")]));
    }

    #[test]
    fn forgetting_a_region_leaves_what_was_learned_since() {
        let cluster = cluster();
        let old = region("b", "f");
        cluster.learn(old.clone());
        cluster.moved(&old, Address::told("elsewhere", 2).unwrap());
        cluster.forget(&old);
        assert_eq!(known(&cluster), spans(&[("b", "f")]));
        assert_eq!(cluster.regions.read().values().next().unwrap().server.host, "elsewhere");
    }

    /// Rows that are known to lie in different regions need not wait for each other's.
    #[test]
    fn of_threads_that_may_miss_the_same_region_one_asks_and_the_others_wait() {
        let cluster = cluster();
        let asks = |row: &str| match cluster.turn(row.as_bytes(), None) {
            Turn::Asks(looking) => looking,
            Turn::Waits(_) => panic!("{row} waits"),
            Turn::Known(_) => panic!("{row} is known"),
        };
        let waits = |row: &str, other: &Arc<Looking>| match cluster.turn(row.as_bytes(), None) {
            Turn::Waits(looking) => assert!(Arc::ptr_eq(&looking, other), "{row} waits for another"),
            Turn::Asks(_) | Turn::Known(_) => panic!("{row} does not wait"),
        };
        let end = |looking: &Arc<Looking>, ended| drop(End { cluster: &cluster, looking, ended });
        // Nothing is known: all may lie in one region.
        let first = asks("k");
        ["a", "k", "z"].into_iter().for_each(|row| waits(row, &first));
        cluster.learn(region("f", "m"));
        end(&first, Ended::Look);
        assert!(matches!(first.wait(Deadline::after(Duration::ZERO)), Some(Ended::Look)));
        assert!(matches!(cluster.turn(b"g", None), Turn::Known(_)));
        // The known region lies between these.
        let (below, above) = (asks("a"), asks("z"));
        waits("e", &below);
        waits("m", &above);
        // One that takes too long is waited for no longer, and its end is not that of the next.
        let Turn::Asks(next) = cluster.turn(b"b", Some(&below)) else { panic!("b waits") };
        waits("a", &next);
        end(&below, Ended::Look);
        waits("a", &next);
        assert!(next.wait(Deadline::after(Duration::ZERO)).is_none());
        end(&next, Ended::NotServed("b".into(), "e".into()));
        let ended = next.wait(Deadline::after(Duration::ZERO)).unwrap();
        assert!(ended.says_not_served(b"b") && ended.says_not_served(b"d"));
        assert!(!ended.says_not_served(b"a") && !ended.says_not_served(b"e"));
        end(&above, Ended::Look);
        assert!(cluster.looking.lock().is_empty());
    }

    /// RegionServers come and go under new names for as long as a process lives.
    #[test]
    fn addresses_that_serve_no_more_do_not_pile_up() {
        let cluster = cluster();
        for port in 1..1000 {
            let server = Address { host: "127.0.0.1".into(), port };
            cluster.server(&server, CLIENT_SERVICE);
        }
        assert_eq!(cluster.network.servers.lock().len(), 1);
    }

    fn row(namespace: &str, qualifier: &str, change: impl FnOnce(&mut RegionInfo)) -> RowResult {
        let mut info = RegionInfo {
            region_id: 1,
            table: Some(super::super::messages::TableName {
                namespace: namespace.into(),
                qualifier: qualifier.into(),
            }),
            start_key: b"a".to_vec(),
            end_key: b"b".to_vec(),
            offline: false,
            split: false,
        };
        change(&mut info);
        let cell = |qualifier: &str, value: Vec<u8>| super::super::messages::Cell {
            row: b"t,a,1.x.".to_vec(),
            family: b"info".to_vec(),
            qualifier: qualifier.into(),
            timestamp: 1,
            value,
        };
        let info = [b"PBUF", info.encode_to_vec().as_slice()].concat();
        RowResult { cell: vec![cell("regioninfo", info), cell("server", b"host:16020".to_vec())] }
    }

    #[test]
    fn a_row_of_the_catalogue_is_the_tables_own_or_there_is_no_table() {
        let found = catalogued(&row("default", "t", |_| {}), b"t").unwrap();
        assert_eq!((found.name.as_slice(), found.server.port), (&b"t,a,1.x."[..], 16020));
        assert!(found.holds(b"a") && found.holds(b"azz") && !found.holds(b"b") && !found.holds(b"Z"));
        catalogued(&row("ns", "t", |_| {}), b"ns:t").unwrap();
        assert!(matches!(catalogued(&row("default", "s", |_| {}), b"t"), Err(Lookup::NoTable)));
        assert!(matches!(catalogued(&row("ns", "t", |_| {}), b"t"), Err(Lookup::NoTable)));
        let split = row("default", "t", |info| info.split = true);
        assert!(matches!(catalogued(&split, b"t"), Err(Lookup::NotServed)));
    }

    #[test]
    fn a_row_of_the_catalogue_that_says_too_little_is_no_region() {
        let mut closed = row("default", "t", |_| {});
        closed.cell.pop();
        assert!(matches!(catalogued(&closed, b"t"), Err(Lookup::NotServed)));
        for server in
            ["", "host", "host:", "host:x", "host:99999", ":", ":1", "host:0", "ho\nst:1", "\u{1b}[31m:1"]
        {
            let mut odd = row("default", "t", |_| {});
            odd.cell[1].value = server.into();
            assert!(catalogued(&odd, b"t").is_err(), "{server:?}");
        }
        let whole = row("default", "t", |_| {});
        for cut in 0..whole.cell[0].value.len() {
            let mut odd = whole.clone();
            odd.cell[0].value.truncate(cut);
            let _ = catalogued(&odd, b"t"); // no panic
        }
    }
}
