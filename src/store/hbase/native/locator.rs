//! Locations of the active master, of hbase:meta and of the regions of one table. ZooKeeper is not used: a master
//! returns the location of hbase:meta, and hbase:meta contains the locations of the regions.
//!
//! Threads that need the same unknown region share one look-up. The first thread reads hbase:meta, and the others
//! wait for it:
//!
//! | the look-up | the threads that wait for it |
//! |---|---|
//! | found the region | use it if their row lies in it; the others look up or wait again |
//! | found that no server serves the region | get the same error if their row lies in it |
//! | failed or timed out | go on: one of them looks up, and the others wait for that one |
//! | takes more than half of a thread's time | that thread looks up itself; later threads wait for that look-up |

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;

use super::address::Address;
use super::bytes::constant;
use super::connection::CallFailure;
use super::messages::{
    Column, Empty, GetActiveMasterResponse, GetMetaRegionLocationsResponse, GetRequest, GetResponse,
    RowResult, Scan, ScanRequest, ScanResponse, TABLE_DISABLED, TableState,
};
use super::region::{Lookup, Region, catalogued, described, lies_between};
use super::request;
use super::servers::{CLIENT_SERVICE, META_SERVICE, ServerAccess, Servers, share};
use crate::runtime::sync::real::{Condvar, Mutex, RwLock};
use crate::runtime::time::Deadline;
use crate::store::first_contact::{FirstContact, Service};

/// State that all tables of a cluster share.
struct Cluster {
    masters: Vec<Address>,
    /// Index of the master that answered last.
    answering: AtomicUsize,
    servers: Servers,
    contact: FirstContact,
    meta: Mutex<Option<Arc<Region>>>,
}

/// Finds the regions of one table.
pub(super) struct Locator {
    cluster: Arc<Cluster>,
    table: Vec<u8>,
    /// Known regions by start key. They do not overlap.
    regions: RwLock<BTreeMap<Vec<u8>, Arc<Region>>>,
    /// Look-ups under way that other threads may wait for. `regions` may be locked while this lock is held.
    looking: Mutex<Vec<Arc<LookUp>>>,
}

/// One look-up under way.
struct LookUp {
    row: Vec<u8>,
    end: Mutex<Option<LookUpEnd>>,
    ended: Condvar,
}

/// Result of a look-up for the threads that wait for it.
#[derive(Clone)]
enum LookUpEnd {
    /// The region is known now, or the look-up failed. The waiting threads check the known regions again.
    Look,
    /// No server serves the region between these rows.
    NotServed(Vec<u8>, Vec<u8>),
}

/// Next step of a thread that needs an unknown region.
enum LookUpTurn {
    /// Another thread has found the region meanwhile.
    Known(Arc<Region>),
    /// This thread makes the look-up.
    Asks(Arc<LookUp>),
    /// This thread waits for the look-up of another thread.
    Waits(Arc<LookUp>),
}

impl std::fmt::Debug for Locator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locator").field("masters", &self.cluster.masters).finish_non_exhaustive()
    }
}

impl Locator {
    pub(super) fn new(masters: Vec<Address>, table: &str, access: ServerAccess) -> Locator {
        let peers = masters.iter().map(|master| (master.host.clone(), master.port));
        let cluster = Cluster {
            contact: FirstContact::new(Service::HbaseMaster, access.security.is_some(), peers),
            masters,
            answering: AtomicUsize::new(0),
            servers: Servers::new(access),
            meta: Mutex::default(),
        };
        Locator::of(Arc::new(cluster), table)
    }

    /// Returns a locator for another table of the same cluster. It uses the same connections.
    pub(super) fn beside(&self, table: &str) -> Locator {
        Locator::of(Arc::clone(&self.cluster), table)
    }

    fn of(cluster: Arc<Cluster>, table: &str) -> Locator {
        let table = table.as_bytes().to_vec();
        Locator { cluster, table, regions: RwLock::default(), looking: Mutex::default() }
    }

    /// Returns the connections to the servers of the cluster.
    pub(super) fn servers(&self) -> &Servers {
        &self.cluster.servers
    }

    /// Returns whether a master has ever answered, and who else does.
    pub(super) fn contact(&self) -> &FirstContact {
        &self.cluster.contact
    }

    /// Returns the region that holds `row`, from the cache or from hbase:meta. Waits at most until `by`.
    pub(super) fn region(&self, row: &[u8], by: Deadline) -> Result<Arc<Region>, Lookup> {
        loop {
            if let Some(region) = self.known(row) {
                return Ok(region);
            }
            let looking = match self.turn(row, None) {
                LookUpTurn::Known(region) => return Ok(region),
                LookUpTurn::Asks(own) => return self.ask(&own, by),
                LookUpTurn::Waits(looking) => looking,
            };
            match looking.wait(share(by, 2)) {
                Some(ended) if ended.says_not_served(row) => return Err(Lookup::NotServed),
                Some(_) => {}
                None if by.passed() => {
                    let error = io::ErrorKind::TimedOut.into();
                    return Err(Lookup::Call(
                        "hbase:meta did not answer another thread's look-up in time",
                        CallFailure::NotSent(error),
                    ));
                }
                None => match self.turn(row, Some(&looking)) {
                    LookUpTurn::Known(region) => return Ok(region),
                    LookUpTurn::Asks(own) => return self.ask(&own, by),
                    LookUpTurn::Waits(_) => {}
                },
            }
        }
    }

    /// Returns the region that holds `row` if it is in the cache. No I/O.
    pub(super) fn known(&self, row: &[u8]) -> Option<Arc<Region>> {
        let below = (Bound::Unbounded, Bound::Included(row));
        let regions = self.regions.read();
        let known = regions.range::<[u8], _>(below).next_back().map(|(_, region)| region);
        known.filter(|region| region.holds(row)).cloned()
    }

    /// Decides whether this thread looks up the region of `row` or waits. `overdue` is a look-up for which nobody
    /// shall wait any longer.
    fn turn(&self, row: &[u8], overdue: Option<&Arc<LookUp>>) -> LookUpTurn {
        let mut looking = self.looking.lock();
        // A look-up may have ended after the caller checked the known regions.
        if let Some(region) = self.known(row) {
            return LookUpTurn::Known(region);
        }
        if let Some(overdue) = overdue {
            looking.retain(|looking| !Arc::ptr_eq(looking, overdue));
        }
        if let Some(other) = looking.iter().find(|other| self.may_share_a_region(&other.row, row)) {
            return LookUpTurn::Waits(Arc::clone(other));
        }
        let own = LookUp { row: row.to_vec(), end: Mutex::default(), ended: Condvar::new() };
        let own = Arc::new(own);
        looking.push(Arc::clone(&own));
        LookUpTurn::Asks(own)
    }

    /// Returns whether two rows outside all known regions may lie in the same region. They may if no known region
    /// begins between them.
    fn may_share_a_region(&self, one: &[u8], other: &[u8]) -> bool {
        let between = (Bound::Excluded(one.min(other)), Bound::Included(one.max(other)));
        self.regions.read().range::<[u8], _>(between).next().is_none()
    }

    fn ask(&self, own: &Arc<LookUp>, by: Deadline) -> Result<Arc<Region>, Lookup> {
        let mut end = LookUpGuard { locator: self, looking: own, ended: LookUpEnd::Look };
        let (found, ended) = self.look_up(&own.row, by);
        end.ended = ended;
        let found = found.map(Arc::new);
        match &found {
            Ok(region) => self.learn(Arc::clone(region)),
            // hbase:meta may have moved too.
            Err(Lookup::Call(..)) => *self.cluster.meta.lock() = None,
            Err(_) => {}
        }
        found
    }

    /// Adds a region to the known ones. Removes the regions that overlap it: they are from before a split or a
    /// merge. An old region would hide the new one, or every call for a row that it hides would make a look-up.
    fn learn(&self, region: Arc<Region>) {
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

    /// Removes a region whose cached location was wrong. Keeps a location that was learned since.
    pub(super) fn forget(&self, region: &Region) {
        let mut regions = self.regions.write();
        if regions.get(&region.start).is_some_and(|known| **known == *region) {
            regions.remove(&region.start);
        }
    }

    /// Changes the server of a region. The old server has named the new one.
    pub(super) fn moved(&self, region: &Region, to: Address) {
        self.learn(Arc::new(Region { server: to, ..region.clone() }));
    }

    /// Looks up the region that holds `row`. Also returns the result for the threads that wait for this look-up.
    fn look_up(&self, row: &[u8], by: Deadline) -> (Result<Region, Lookup>, LookUpEnd) {
        let result = match self.scan_meta(row, by) {
            Ok(result) => result,
            Err(lookup) => return (Err(lookup), LookUpEnd::Look),
        };
        match catalogued(&result, &self.table) {
            Ok(region) if region.holds(row) => (Ok(region), LookUpEnd::Look),
            Ok(_) => (Err(Lookup::NotServed), LookUpEnd::Look),
            Err(Lookup::NotServed) => {
                let unserved = described(&result, &self.table);
                let ended = unserved
                    .map_or(LookUpEnd::Look, |(_, info)| LookUpEnd::NotServed(info.start_key, info.end_key));
                (Err(Lookup::NotServed), ended)
            }
            Err(lookup) => (Err(lookup), LookUpEnd::Look),
        }
    }

    /// Reads from hbase:meta whether the table is disabled. Then no server serves its regions, and the servers do
    /// not report the reason.
    pub(super) fn is_disabled(&self, by: Deadline) -> Result<bool, Lookup> {
        let meta = self.meta(by)?;
        let row = Bytes::copy_from_slice(&self.table);
        let get = request::get(&row, &constant("table"), &[constant("state")]);
        let request = GetRequest { region: meta.specifier(), get: Some(get) };
        let found: GetResponse = self
            .servers()
            .call(&meta.server, CLIENT_SERVICE, "Get", &request, by)
            .map_err(|failure| Lookup::Call("hbase:meta could not be read", failure))?;
        let cell = found.result.and_then(|result| result.cell.into_iter().next());
        let state = cell.and_then(|cell| TableState::decode(cell.value.as_slice()).ok());
        Ok(state.is_some_and(|state| state.state == Some(TABLE_DISABLED)))
    }

    /// Reads the row of hbase:meta for the last region that begins at or before `row`.
    fn scan_meta(&self, row: &[u8], by: Deadline) -> Result<RowResult, Lookup> {
        let meta = self.meta(by)?;
        let start_row = [self.table.as_slice(), b",", row, b",99999999999999"].concat();
        let stop_row = [self.table.as_slice(), b",,"].concat();
        let scan = Scan {
            column: vec![Column { family: constant("info"), qualifier: Vec::new() }],
            start_row,
            stop_row,
            filter: None,
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
            .servers()
            .call(&meta.server, CLIENT_SERVICE, "Scan", &request, by)
            .map_err(|failure| Lookup::Call("hbase:meta could not be read", failure))?;
        found.results.into_iter().next().ok_or(Lookup::NoTable)
    }

    fn meta(&self, by: Deadline) -> Result<Arc<Region>, Lookup> {
        if let Some(meta) = self.cluster.meta.lock().clone() {
            return Ok(meta);
        }
        let found: GetMetaRegionLocationsResponse = self.ask_masters("GetMetaRegionLocations", by)?;
        let location = found.locations.into_iter().next().ok_or(Lookup::NotServed)?;
        let info = location.region_info.ok_or(Lookup::Garbage)?;
        let table = info.table.as_ref().ok_or(Lookup::Garbage)?;
        let mut name = [&table.namespace[..], b":", &table.qualifier, b",", &info.start_key, b","].concat();
        name.extend_from_slice(info.region_id.to_string().as_bytes());
        let server = location.server_name.ok_or(Lookup::NotServed)?.try_into()?;
        let meta = Arc::new(Region { name: name.into(), start: Vec::new(), end: Vec::new(), server });
        *self.cluster.meta.lock() = Some(Arc::clone(&meta));
        Ok(meta)
    }

    pub(super) fn active_master(&self, by: Deadline) -> Result<Address, Lookup> {
        let found: GetActiveMasterResponse = self.ask_masters("GetActiveMaster", by)?;
        found.server_name.ok_or(Lookup::NotServed)?.try_into()
    }

    /// Calls the masters one after another and returns the first answer. Active and backup masters both know it.
    fn ask_masters<T: Message + Default>(&self, method: &'static str, by: Deadline) -> Result<T, Lookup> {
        let mut last = None;
        let count = self.cluster.masters.len();
        let first = self.cluster.answering.load(Ordering::Relaxed);
        for asked in 0..count {
            let index = (first + asked) % count;
            // A master that does not answer must leave time for the others.
            let patience = if asked + 1 < count { self.servers().connect_timeout() } else { Duration::MAX };
            let by = share(by, count - asked).sooner(Deadline::after(patience));
            match self.servers().call(&self.cluster.masters[index], META_SERVICE, method, &Empty {}, by) {
                Ok(answer) => {
                    self.cluster.contact.answered();
                    self.cluster.answering.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(failure) => {
                    if let CallFailure::Exception(_) = failure {
                        self.cluster.contact.answered();
                    }
                    last = Some(failure);
                }
            }
        }
        let last = last.ok_or(Lookup::NotServed)?;
        Err(Lookup::Call("no master answered", last))
    }
}

impl LookUp {
    /// Waits for the end of the look-up, at most until `by`. `None` if it has not ended.
    fn wait(&self, by: Deadline) -> Option<LookUpEnd> {
        let mut end = self.end.lock();
        while end.is_none() && !self.ended.wait_for(&mut end, by.remaining()).timed_out() {}
        end.clone()
    }
}

impl LookUpEnd {
    fn says_not_served(&self, row: &[u8]) -> bool {
        match self {
            LookUpEnd::Look => false,
            LookUpEnd::NotServed(from, to) => lies_between(row, from, to),
        }
    }
}

/// Wakes the threads that wait for a look-up when it ends, even if it panicked.
struct LookUpGuard<'a> {
    locator: &'a Locator,
    looking: &'a Arc<LookUp>,
    ended: LookUpEnd,
}

impl Drop for LookUpGuard<'_> {
    fn drop(&mut self) {
        self.locator.looking.lock().retain(|looking| !Arc::ptr_eq(looking, self.looking));
        *self.looking.end.lock() = Some(self.ended.clone());
        self.looking.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::auth::Auth;
    use super::*;

    fn locator() -> Locator {
        let (auth, connect_timeout) = (Auth::Simple { user: "me".into() }, Duration::from_secs(1));
        Locator::new(
            Vec::new(),
            "t",
            ServerAccess { auth, security: None, connect_timeout, reply_max: 4 << 20 },
        )
    }

    fn region(start: &str, end: &str) -> Arc<Region> {
        let server = Address { host: "h".into(), port: 1 };
        Arc::new(Region { name: format!("t,{start}").into(), start: start.into(), end: end.into(), server })
    }

    fn known(locator: &Locator) -> Vec<(String, String)> {
        let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
        locator.regions.read().values().map(|region| (text(&region.start), text(&region.end))).collect()
    }

    fn spans(spans: &[(&str, &str)]) -> Vec<(String, String)> {
        spans.iter().map(|(start, end)| (start.to_string(), end.to_string())).collect()
    }

    #[test]
    fn a_region_from_before_a_split_or_merge_hides_no_other() {
        let locator = locator();
        for (start, end) in [("", "b"), ("b", "f"), ("f", "")] {
            locator.learn(region(start, end));
        }
        locator.learn(region("d", "f"));
        assert_eq!(known(&locator), spans(&[("", "b"), ("d", "f"), ("f", "")]), "the parent went");
        locator.learn(region("b", "d"));
        locator.learn(region("b", ""));
        assert_eq!(known(&locator), spans(&[("", "b"), ("b", "")]), "what was merged went");
        locator.learn(region("", ""));
        assert_eq!(known(&locator), spans(&[("", "")]));
        locator.learn(region("b", "c"));
        assert_eq!(known(&locator), spans(&[("b", "c")]));
    }

    #[test]
    fn forgetting_a_region_leaves_what_was_learned_since() {
        let locator = locator();
        let old = region("b", "f");
        locator.learn(Arc::clone(&old));
        locator.moved(&old, Address::from_server("elsewhere", 2).unwrap());
        locator.forget(&old);
        assert_eq!(known(&locator), spans(&[("b", "f")]));
        assert_eq!(locator.regions.read().values().next().unwrap().server.host, "elsewhere");
    }

    /// Threads whose rows surely lie in different regions do not wait for each other.
    #[test]
    fn of_threads_that_may_miss_the_same_region_one_asks_and_the_others_wait() {
        let locator = locator();
        let asks = |row: &str| match locator.turn(row.as_bytes(), None) {
            LookUpTurn::Asks(looking) => looking,
            LookUpTurn::Waits(_) => panic!("{row} waits"),
            LookUpTurn::Known(_) => panic!("{row} is known"),
        };
        let waits = |row: &str, other: &Arc<LookUp>| match locator.turn(row.as_bytes(), None) {
            LookUpTurn::Waits(looking) => assert!(Arc::ptr_eq(&looking, other), "{row} waits for another"),
            LookUpTurn::Asks(_) | LookUpTurn::Known(_) => panic!("{row} does not wait"),
        };
        let end = |looking: &Arc<LookUp>, ended| drop(LookUpGuard { locator: &locator, looking, ended });
        // Nothing is known: all may lie in one region.
        let first = asks("k");
        ["a", "k", "z"].into_iter().for_each(|row| waits(row, &first));
        locator.learn(region("f", "m"));
        end(&first, LookUpEnd::Look);
        assert!(matches!(first.wait(Deadline::after(Duration::ZERO)), Some(LookUpEnd::Look)));
        assert!(matches!(locator.turn(b"g", None), LookUpTurn::Known(_)));
        // The known region lies between these.
        let (below, above) = (asks("a"), asks("z"));
        waits("e", &below);
        waits("m", &above);
        // Threads stop waiting for a look-up that takes too long. Its end does not end the next look-up.
        let LookUpTurn::Asks(next) = locator.turn(b"b", Some(&below)) else { panic!("b waits") };
        waits("a", &next);
        end(&below, LookUpEnd::Look);
        waits("a", &next);
        assert!(next.wait(Deadline::after(Duration::ZERO)).is_none());
        end(&next, LookUpEnd::NotServed("b".into(), "e".into()));
        let ended = next.wait(Deadline::after(Duration::ZERO)).unwrap();
        assert!(ended.says_not_served(b"b") && ended.says_not_served(b"d"));
        assert!(!ended.says_not_served(b"a") && !ended.says_not_served(b"e"));
        end(&above, LookUpEnd::Look);
        assert!(locator.looking.lock().is_empty());
    }
}
