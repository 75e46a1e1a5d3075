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

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use prost::Message;

use super::address::Address;
use super::connection::CallFailure;
use super::messages::{
    Column, Empty, Get, GetActiveMasterResponse, GetMetaRegionLocationsResponse, GetRequest, GetResponse,
    RowResult, Scan, ScanRequest, ScanResponse, TABLE_DISABLED, TableState,
};
use super::region::{Lookup, Region, catalogued, described, lies_between};
use super::servers::{CLIENT_SERVICE, META_SERVICE, ServerAccess, Servers, share};
use crate::time::Deadline;

/// What all tables of a cluster have in common.
struct Cluster {
    masters: Vec<Address>,
    /// Index of the one that answered last.
    answering: AtomicUsize,
    servers: Servers,
    meta: Mutex<Option<Region>>,
}

/// Finds the regions of one table.
pub(super) struct Locator {
    cluster: Arc<Cluster>,
    table: Vec<u8>,
    /// By start key; none overlaps another.
    regions: RwLock<BTreeMap<Vec<u8>, Region>>,
    /// Look-ups under way that others may wait for. `regions` may be locked under its lock.
    looking: Mutex<Vec<Arc<LookUp>>>,
}

/// One look-up under way.
struct LookUp {
    row: Vec<u8>,
    end: Mutex<Option<LookUpEnd>>,
    ended: Condvar,
}

/// How a look-up ended, as far as it concerns others.
#[derive(Clone)]
enum LookUpEnd {
    /// The region is known now, or nothing more than before.
    Look,
    /// Nobody serves the region between these rows.
    NotServed(Vec<u8>, Vec<u8>),
}

/// What a thread does that misses a region.
enum LookUpTurn {
    /// It was found meanwhile.
    Known(Region),
    Asks(Arc<LookUp>),
    Waits(Arc<LookUp>),
}

impl std::fmt::Debug for Locator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locator").field("masters", &self.cluster.masters).finish_non_exhaustive()
    }
}

impl Locator {
    pub(super) fn new(masters: Vec<Address>, table: &str, access: ServerAccess) -> Locator {
        let cluster = Cluster {
            masters,
            answering: AtomicUsize::new(0),
            servers: Servers::new(access),
            meta: Mutex::default(),
        };
        Locator::of(Arc::new(cluster), table)
    }

    /// Another table of the same cluster, over the same connections.
    pub(super) fn beside(&self, table: &str) -> Locator {
        Locator::of(Arc::clone(&self.cluster), table)
    }

    fn of(cluster: Arc<Cluster>, table: &str) -> Locator {
        let table = table.as_bytes().to_vec();
        Locator { cluster, table, regions: RwLock::default(), looking: Mutex::default() }
    }

    /// The servers that the regions are on.
    pub(super) fn servers(&self) -> &Servers {
        &self.cluster.servers
    }

    /// The region that holds `row`, from memory or from meta.
    pub(super) fn region(&self, row: &[u8], by: Deadline) -> Result<Region, Lookup> {
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

    fn known(&self, row: &[u8]) -> Option<Region> {
        let below = (Bound::Unbounded, Bound::Included(row));
        let regions = self.regions.read();
        let known = regions.range::<[u8], _>(below).next_back().map(|(_, region)| region);
        known.filter(|region| region.holds(row)).cloned()
    }

    /// Whose turn it is to ask for the region of `row`. `overdue`: a look-up that is waited for no longer.
    fn turn(&self, row: &[u8], overdue: Option<&Arc<LookUp>>) -> LookUpTurn {
        let mut looking = self.looking.lock();
        // The last look-up may have ended between the miss and this.
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

    /// Whether no region is known that lies between the two rows, of which none is in a known region.
    fn may_share_a_region(&self, one: &[u8], other: &[u8]) -> bool {
        let between = (Bound::Excluded(one.min(other)), Bound::Included(one.max(other)));
        self.regions.read().range::<[u8], _>(between).next().is_none()
    }

    fn ask(&self, own: &Arc<LookUp>, by: Deadline) -> Result<Region, Lookup> {
        let mut end = LookUpGuard { locator: self, looking: own, ended: LookUpEnd::Look };
        let (found, ended) = self.look_up(&own.row, by);
        end.ended = ended;
        match &found {
            Ok(region) => self.learn(region.clone()),
            // Meta may have moved as well.
            Err(Lookup::Call(..)) => *self.cluster.meta.lock() = None,
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

    /// Whether the table is disabled. Its regions are then served by nobody, and their servers say no more
    /// than that.
    pub(super) fn is_disabled(&self, by: Deadline) -> Result<bool, Lookup> {
        let meta = self.meta(by)?;
        let column = Column { family: b"table".to_vec(), qualifier: vec![b"state".to_vec()] };
        let get = Get { row: self.table.clone(), column: vec![column], ..Get::default() };
        let request = GetRequest { region: meta.specifier(), get: Some(get) };
        let found: GetResponse = self
            .servers()
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
            .servers()
            .call(&meta.server, CLIENT_SERVICE, "Scan", &request, by)
            .map_err(|failure| Lookup::Call("hbase:meta could not be read", failure))?;
        found.results.into_iter().next().ok_or(Lookup::NoTable)
    }

    fn meta(&self, by: Deadline) -> Result<Region, Lookup> {
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
        let meta = Region { name, start: Vec::new(), end: Vec::new(), server };
        *self.cluster.meta.lock() = Some(meta.clone());
        Ok(meta)
    }

    pub(super) fn active_master(&self, by: Deadline) -> Result<Address, Lookup> {
        let found: GetActiveMasterResponse = self.ask_masters("GetActiveMaster", by)?;
        found.server_name.ok_or(Lookup::NotServed)?.try_into()
    }

    /// Any master knows, active or not: the first that answers is believed.
    fn ask_masters<T: Message + Default>(&self, method: &str, by: Deadline) -> Result<T, Lookup> {
        let mut last = None;
        let count = self.cluster.masters.len();
        let first = self.cluster.answering.load(Ordering::Relaxed);
        for asked in 0..count {
            let index = (first + asked) % count;
            // One that hangs must leave time for those that do not.
            let patience = if asked + 1 < count { self.servers().connect_timeout() } else { Duration::MAX };
            let by = share(by, count - asked).sooner(Deadline::after(patience));
            match self.servers().call(&self.cluster.masters[index], META_SERVICE, method, &Empty {}, by) {
                Ok(answer) => {
                    self.cluster.answering.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(failure) => last = Some(failure),
            }
        }
        let last = last.ok_or(Lookup::NotServed)?;
        Err(Lookup::Call("no master answered", last))
    }
}

impl LookUp {
    /// Waits for the end of the look-up, at most until `by`.
    fn wait(&self, by: Deadline) -> Option<LookUpEnd> {
        let mut end = self.end.lock();
        self.ended.wait_while_for(&mut end, |end| end.is_none(), by.remaining());
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

/// Tells those who wait for a look-up that it is over, also where it panicked.
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
    use super::*;

    fn locator() -> Locator {
        let (user, connect_timeout) = ("me".into(), Duration::from_secs(1));
        Locator::new(
            Vec::new(),
            "t",
            ServerAccess { user, security: None, connect_timeout, reply_max: 4 << 20 },
        )
    }

    fn region(start: &str, end: &str) -> Region {
        let server = Address { host: "h".into(), port: 1 };
        Region { name: format!("t,{start}").into(), start: start.into(), end: end.into(), server }
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
        locator.learn(old.clone());
        locator.moved(&old, Address::told("elsewhere", 2).unwrap());
        locator.forget(&old);
        assert_eq!(known(&locator), spans(&[("b", "f")]));
        assert_eq!(locator.regions.read().values().next().unwrap().server.host, "elsewhere");
    }

    /// Rows that are known to lie in different regions need not wait for each other's.
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
        // One that takes too long is waited for no longer, and its end is not that of the next.
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
