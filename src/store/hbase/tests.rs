//! The protocol over a store that fails as each test plans it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::cell_store::{
    Cell, CellStore, CheckAndPut, Count, LockCells, LockTable, RowPage, RowScan, SchemaFault,
};
use super::diagnose::diagnose_version;
use super::layout::{CellColumn, LOCK};
use super::locks::HbaseStore;
use super::row_keys::lock_row;
use crate::Code;
use crate::error::{Error, Result};
use crate::names::diagnostic::Severity;
use crate::names::holder::Identity;
use crate::names::lock_name::{Level, LockName, NamePolicy};
use crate::names::owner::OwnerRecord;
use crate::runtime::sync::real::Mutex;
use crate::runtime::time::Deadline;
use crate::store::remote::RemoteStore;
use crate::store::{Acquired, Attempt, LockStore, MemoryStore, Released};

const LONG: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(30);

/// Planned outcome of one request. A request without a plan is served.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Served,
    /// The request is run, and its reply is lost.
    ReplyLost,
    /// The request is lost. The caller cannot know that it was not run.
    RequestLost,
    /// The server cannot be reached.
    Down,
}

#[derive(Debug, Default)]
struct OneServer {
    cells: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    fates: Mutex<VecDeque<Fate>>,
}

impl OneServer {
    fn serve<T>(&self, request: impl FnOnce(&mut HashMap<Vec<u8>, Vec<u8>>) -> T) -> Result<T> {
        let fate = self.fates.lock().pop_front().unwrap_or(Fate::Served);
        let answer = match fate {
            Fate::Served | Fate::ReplyLost => Some(request(&mut self.cells.lock())),
            Fate::RequestLost | Fate::Down => None,
        };
        match (fate, answer) {
            (Fate::Served, Some(answer)) => Ok(answer),
            (Fate::Down, _) => {
                Err(Error::Connection { store: "one".into(), what: "down".into(), source: None })
            }
            _ => Err(Error::InDoubt { what: "no answer".into(), source: None }),
        }
    }
}

#[derive(Debug)]
struct Scripted(Arc<OneServer>);

impl LockTable for Scripted {
    fn greet(&self, _: Deadline) -> Result<()> {
        Ok(())
    }

    fn describe(&self) -> String {
        "one".into()
    }

    fn ensure_table(&self, _: &'static str, _: Deadline) -> Result<()> {
        Ok(())
    }

    fn version(&self, _: Deadline) -> Result<Option<String>> {
        self.0.serve(|_| Some("2.6.1".into()))
    }

    fn diagnose_table(&self, _: &'static str, _: Deadline) -> Result<Option<Vec<SchemaFault>>> {
        Ok(Some(Vec::new()))
    }

    fn probe_rows(&self, _: Deadline) -> Result<Vec<(String, Vec<u8>)>> {
        Ok(Vec::new())
    }

    fn scan(&self, _: &RowScan<'_>, _: Deadline) -> Result<RowPage> {
        Ok(RowPage::default())
    }

    fn put(&self, _: &[u8], _: CellColumn, _: &[u8], _: Duration, _: Deadline) -> Result<()> {
        Ok(())
    }
}

impl CellStore for Scripted {
    fn repeats_after(&self) -> Option<Duration> {
        None
    }

    fn get(&self, row: &[u8], _: CellColumn, _: Deadline) -> Result<Option<Cell>> {
        self.0.serve(|cells| cells.get(row).map(|value| Cell { value: value.clone(), written_ms: 0 }))
    }

    fn read_cells(&self, row: &[u8], by: Deadline) -> Result<LockCells> {
        let has_count = self.0.cells.lock().contains_key(&within(row));
        Ok(LockCells { record: self.get(row, LOCK, by)?, cover: None, has_count })
    }

    fn check_and_put(&self, swap: &CheckAndPut<'_>, _: Deadline) -> Result<bool> {
        self.0.serve(|cells| {
            let cell = cells.entry(swap.row.to_vec()).or_default();
            let holds = cell == swap.expected;
            if holds {
                *cell = swap.value.to_vec();
            }
            holds
        })
    }

    fn count(&self, count: Count<'_>, _: Deadline) -> Result<i64> {
        self.0.serve(|cells| {
            let cell = cells.entry(count.row.to_vec()).or_default();
            let number = 1 + cell.as_slice().try_into().map_or(0, i64::from_be_bytes);
            *cell = number.to_be_bytes().to_vec();
            number
        })
    }
}

/// The counter in the row of a lock.
fn within(row: &[u8]) -> Vec<u8> {
    [row, b" D:F"].concat()
}

struct Stage {
    server: Arc<OneServer>,
    store: RemoteStore<HbaseStore>,
    name: LockName,
    identity: Identity,
}

/// A store without fence: each release and renewal is one request, and an acquire is two.
fn stage() -> Stage {
    stage_with(false)
}

fn stage_with(has_fences: bool) -> Stage {
    let server = Arc::new(OneServer::default());
    Stage {
        store: RemoteStore::new(HbaseStore {
            rows: Box::new(Scripted(Arc::clone(&server))),
            latches: Box::new(MemoryStore::new()),
            has_fences,
        }),
        server,
        name: LockName::new(Level::Xdc, "tests", None, "a", NamePolicy::Strict).unwrap(),
        identity: Identity::this_process("").unwrap(),
    }
}

impl Stage {
    fn next<const N: usize>(&self, fates: [Fate; N]) {
        *self.server.fates.lock() = fates.into();
    }

    fn acquire(&self, by: Deadline) -> (Result<Acquired>, usize) {
        let mut doubtful = Vec::new();
        let attempt = Attempt { name: &self.name, ttl: TTL, identity: &self.identity, by };
        (self.store.acquire(attempt, &mut doubtful), doubtful.len())
    }

    fn granted(&self) -> OwnerRecord {
        match self.acquire(Deadline::after(LONG)) {
            (Ok(Acquired::Granted(grant)), 0) => grant.owner_record,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_acquire_in_doubt_waits_for_the_server_to_come_back() {
    let stage = stage();
    stage.next([Fate::ReplyLost, Fate::Down, Fate::Down, Fate::Down, Fate::Down, Fate::Served]);
    stage.granted();
    assert!(stage.server.fates.lock().is_empty());
}

#[test]
fn an_acquire_whose_request_was_lost_tries_again_when_the_server_is_back() {
    let stage = stage();
    stage.next([Fate::RequestLost, Fate::Served, Fate::Down, Fate::Down]);
    match stage.acquire(Deadline::after(LONG)) {
        (Ok(Acquired::Granted(_)), 1) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_acquire_that_has_the_lock_waits_for_its_fence_and_proof() {
    // The counter is new, so it must be seeded.
    for down_before in ["count", "seed", "proof"] {
        let stage = stage_with(true);
        let mut fates = VecDeque::from([Fate::Served]);
        for request in ["count", "seed", "proof"] {
            let down = if request == down_before { 3 } else { 0 };
            fates.extend([Fate::Down; 3].into_iter().take(down).chain([Fate::Served]));
        }
        *stage.server.fates.lock() = fates;
        stage.granted();
        assert!(stage.server.fates.lock().is_empty(), "{down_before}");
    }
}

/// As `fence=lock_row` of earlier versions left it.
#[test]
fn a_lock_whose_row_has_a_counter_is_refused_and_not_kept() {
    let (stage, counting) = (stage(), stage_with(true));
    let row = lock_row(&stage.name);
    for is_held in [false, true] {
        let held = is_held.then(|| counting.granted());
        counting.server.cells.lock().insert(within(&row), 7u64.to_be_bytes().to_vec());
        let (refused, doubtful) = counting.acquire(Deadline::after(LONG));
        let error = refused.unwrap_err();
        assert_eq!((error.code(), doubtful), (Code::TableCreationError, 0));
        assert!(error.to_string().contains("fence=lock_row"), "{error}");
        let (name, by) = (&counting.name, Deadline::after(LONG));
        assert_eq!(counting.store.holder(name, by).unwrap().is_some(), is_held);
        // A process of an earlier version that only asks writes the counter beside a lock that is held. Its holder goes on,
        // also with a record that it must read, and after lost replies.
        if let Some(owner_record) = held {
            counting.next([Fate::ReplyLost, Fate::Served]);
            let renewed =
                counting.store.renew(name, &owner_record, 2 * TTL, by).unwrap().expect("it is ours");
            assert!(
                counting.store.renew(name, &owner_record, TTL, by).unwrap().is_some(),
                "from an older record"
            );
            counting.next([Fate::ReplyLost, Fate::Served]);
            let released = counting.store.release(name, &renewed, by).unwrap();
            assert!(matches!(released, Released::Freed | Released::Gone), "{released:?}");
            assert_eq!(counting.store.release(name, &renewed, by).unwrap(), Released::NotOurs);
        }
        counting.server.cells.lock().remove(&within(&row));
    }
    // Without fences there is none that could be lower.
    stage.server.cells.lock().insert(within(&row), 7u64.to_be_bytes().to_vec());
    stage.granted();
}

#[test]
fn a_release_in_doubt_is_never_said_not_to_have_happened() {
    let stage = stage();
    let owner_record = stage.granted();
    stage.next([Fate::RequestLost, Fate::Served, Fate::Down]);
    // The server stays down until the deadline.
    let by = Deadline::after(Duration::from_millis(5));
    let failed = stage.store.release(&stage.name, &owner_record, by);
    assert_eq!(failed.unwrap_err().code(), Code::InDoubt);
}

#[test]
fn a_release_in_doubt_frees_the_lock_when_the_server_is_back() {
    let stage = stage();
    let owner_record = stage.granted();
    stage.next([Fate::RequestLost, Fate::Down, Fate::Served, Fate::Down, Fate::Down]);
    let released = stage.store.release(&stage.name, &owner_record, Deadline::after(LONG));
    assert_eq!(released.unwrap(), Released::Freed);
    assert!(stage.store.holder(&stage.name, Deadline::after(LONG)).unwrap().is_none());
}

#[test]
fn a_renewal_in_doubt_is_never_said_not_to_have_happened() {
    let stage = stage();
    let owner_record = stage.granted();
    stage.next([Fate::RequestLost, Fate::Served, Fate::Down]);
    let by = Deadline::after(Duration::from_millis(5));
    let failed = stage.store.renew(&stage.name, &owner_record, TTL, by);
    assert_eq!(failed.unwrap_err().code(), Code::InDoubt);
}

#[test]
fn a_renewal_in_doubt_goes_on_when_the_server_is_back() {
    let stage = stage();
    let owner_record = stage.granted();
    stage.next([Fate::ReplyLost, Fate::Down, Fate::Down, Fate::Served]);
    assert!(stage.store.renew(&stage.name, &owner_record, TTL, Deadline::after(LONG)).unwrap().is_some());
}

#[test]
fn a_version_that_is_not_told_is_no_failure_and_hides_nothing_else() {
    for (fate, severity) in [(Fate::Served, Severity::Ok), (Fate::Down, Severity::Warn)] {
        let stage = stage();
        stage.next([fate]);
        let found = stage.store.diagnose(Deadline::after(LONG)).unwrap();
        let severities: Vec<_> =
            found.iter().take(2).map(|diagnostic| (diagnostic.topic, diagnostic.severity)).collect();
        assert_eq!(severities, [("version", severity), ("table", Severity::Ok)]);
    }
}

#[test]
fn a_version_that_nobody_tried_is_warned_of() {
    for tried in ["2.4.17", "2.6.1", "2.6.2-SNAPSHOT", "2.10.0"] {
        assert_eq!(diagnose_version(tried).severity, Severity::Ok, "{tried}");
    }
    for untried in ["1.4.14", "2.3.7", "3.0.0-beta-1", "", "unknown"] {
        let found = diagnose_version(untried);
        assert!(found.severity == Severity::Warn && !found.advice.is_empty(), "{found}");
    }
}

#[cfg(feature = "gateway")]
#[test]
fn an_answer_of_a_gateway_is_late_after_nine_tenths_of_its_pause() {
    use crate::settings::options::Options;
    use crate::store::remote::Register as _;
    let open = |pause: Option<&str>| {
        let mut options = Options::default();
        pause.map_or(Ok(()), |pause| options.insert("gateway_pause".into(), pause.into())).unwrap();
        HbaseStore::thrift("127.0.0.1:1", "t", options)
    };
    for (pause, ms) in [(None, 90.0), (Some("100ms"), 90.0), (Some("1ms"), 0.9), (Some("10m"), 540_000.0)] {
        let limit = open(pause).unwrap().capabilities().repeats_after;
        assert_eq!(limit, Some(Duration::from_secs_f64(ms / 1000.0)), "{pause:?}");
    }
    for wrong in ["0ms", "601s", "100", "-1s", ""] {
        let error = open(Some(wrong)).unwrap_err();
        assert!(
            error.code() == Code::InvalidArgument && error.to_string().contains("gateway_pause"),
            "{error}"
        );
    }
}
