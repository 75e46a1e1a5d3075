//! The layout `own`: record and number of a lock in one row, which every change writes together.
//!
//! ```text
//! create   no cells -> our record with n, n                   a row that this process has not used
//!          O:L empty, O:F below n -> our record with n, n     any other; n comes from the clock
//!          O:L of number m, O:F above m -> our record with n  a record of an earlier grant
//! replace  O:L our record, O:F n -> our record, n             with a new TTL
//! remove   O:L our record, O:F n -> empty, n
//! ```
//!
//! These are the changes of exclusive locks. `requests.rs` has those of other modes, `permit_requests.rs` those of semaphores, and
//! `own_row.rs` the cells.
//!
//! The number is the fence. It stands in the record too, so one read after a lost reply shows whether the lock was
//! acquired, and with which fence. All creates but the first kind read both cells in the same call. If one was refused,
//! the lock is held, or its number is higher than ours because another machine's clock is ahead. Then the next try
//! takes the number after that one.
//!
//! A flush, a split or a move drops all versions of a cell but the newest. If that one does not last as long as a record
//! below it, which an earlier flush has written to a file, then the old record is the newest version again when the
//! newer one ends. The number lasts longer than any record, so a record with another number than the row has is of an
//! earlier grant: the lock is free, and its old holder can change nothing.
//!
//! Each change writes both cells, so the number always has the newest timestamp of the row, and lives longest. The
//! server gives new cells a timestamp that is not older, even if its clock is set back or the region moves to a server
//! whose clock is behind. So an older cell never hides a newer record.

mod conditions;
mod gatherings;
mod modes;
mod own_row;
mod permit_requests;
mod permits;
mod requests;
mod waits;

use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use self::gatherings::{Joining, Leaving};
use self::own_row::OwnRow;
pub(super) use self::own_row::{
    FREE_PLACE, INTENT, PERMIT, PERMIT_NUMBER, PLACE, SIZE, TURN, permit, permits_base,
};
pub(super) use self::permit_requests::renew_permit;
pub(super) use self::requests::{end_intent, renew};
use self::waits::AnnouncedWaits;
use super::cell_store::{Cell, Content, Durability, RENEW_PARTS, ScannedRow};
use super::diagnose::{PROBE_TTL, diagnose};
use super::history;
use super::layout::{FREE, OWN_FENCE, OWN_HISTORY, OWN_LOCK};
use super::list;
use super::locks::{FENCE_TTL, LAZY_RELEASE_TTL};
use super::own_store::{Claimed, Expects, OwnCells, OwnStore, OwnWrite};
use super::promises;
use super::row_hints::RowHints;
use super::rules::refuse_own_table;
use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::names::history_entry::HistoryEntry;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::names::promise::Promise;
use crate::runtime::time::{Deadline, Moment};
use crate::settings::options::Options;
use crate::store::hbase::row_keys::{self, lock_row};
use crate::store::layout::Layout;
use crate::store::remote::{
    Capabilities, Compares, Create, Created, ModeRegister, OnReply, PermitRegister, ReadBack, Record,
    Register, Replace, Reply, Settled, Standing,
};
use crate::store::{
    HistoryOf, HistoryStore, LatchStore, ListCursor, LiveCounters, LockPage, LockQuery, StoreCounters,
};

/// Tries of one creation. A try fails only because another client took a higher number, or held the lock for a
/// moment.
const TRIES: usize = 16;

/// A [`Register`] in a table of HBase with the layout `own`, and latches in a second table. URI:
/// `hbase://master1:16000,master2:16000/table?layout=own`. Only this library can use such a table.
#[derive(Debug)]
pub(crate) struct HbaseOwnStore {
    cells: Box<dyn OwnStore>,
    used: UsedRows,
    hints: RowHints,
    waits: AnnouncedWaits,
    joining: Joining,
    leaving: Leaving,
    counters: LiveCounters,
    latches: Option<Box<dyn LatchStore>>,
}

impl HbaseOwnStore {
    /// Creates a store. See [`HbaseStore::native`](super::HbaseStore).
    pub(crate) fn open(masters: &str, table: &str, mut options: Options) -> Result<HbaseOwnStore> {
        refuse_own_table(&mut options)?;
        if let Some(value) = options.take("fence") {
            return Err(Error::invalid(
                "fence",
                value,
                "no such option with layout=own: every lock has a fence",
            ));
        }
        let latch_table = super::latches::table_name(options.take("latches").as_deref(), table)?;
        let locks = super::native::Native::new(masters, table, Content::OwnLocks, options)?;
        let latches = Box::new(super::native::NativeLatches::beside(&locks, &latch_table));
        Ok(HbaseOwnStore { latches: Some(latches), ..HbaseOwnStore::over(Box::new(locks)) })
    }

    /// Creates a store without latches.
    pub(super) fn over(cells: Box<dyn OwnStore>) -> HbaseOwnStore {
        let (used, counters) = (UsedRows::default(), LiveCounters::default());
        let (hints, waits) = (RowHints::default(), AnnouncedWaits::default());
        let (joining, leaving) = (Joining::default(), Leaving::default());
        HbaseOwnStore { cells, used, hints, waits, joining, leaving, counters, latches: None }
    }

    fn try_to_create(&self, create: &Create<'_>, by: Deadline) -> Result<Settled<u64, Standing>> {
        checked(create.record.ttl())?;
        let row = &lock_row(create.name);
        let further = create.numbers.saturating_sub(1);
        let mut number = create.count.unwrap_or_default().saturating_add(further);
        let mut expects = self.used.expected(row);
        let wait = self.waits.number(create.intent);
        for _ in 0..TRIES {
            let record = create.record.numbered(number);
            let write = write(row, number, (record.as_bytes(), record.ttl()), Durability::Sync);
            let write = OwnWrite { first: number - further, wait, ..write };
            let refused = match self.cells.claim(&write, &expects, by)? {
                Claimed::Made => {
                    self.used.remember(row);
                    self.end_wait(row, create.intent);
                    if expects == Expects::Unused {
                        self.counters.fence_seeded();
                    }
                    return Ok(Settled::Yes(number));
                }
                Claimed::Refused(None) if expects == Expects::Unused => {
                    expects = Expects::Free;
                    continue;
                }
                Claimed::Refused(cells) => cells,
            };
            let cells = match refused {
                Some(cells) => cells,
                None => {
                    self.counters.read_after_refusal();
                    self.cells.read_cells(row, by)?
                }
            };
            let read = OwnRow::of(cells);
            self.saw(row, &read);
            let last = read.number;
            if last.is_some() {
                self.used.remember(row);
            }
            match read.standing() {
                Standing::Free => {
                    if last.is_some_and(|last| last >= number - further) {
                        self.counters.stale_number();
                    }
                    expects = match (last, requests::deserted(&read), read.outlived) {
                        (_, Some(deserted), _) => Expects::Deserted(deserted),
                        (Some(number), _, Some(record)) => Expects::Outlived { number, record },
                        (Some(_), None, None) => Expects::Free,
                        (None, ..) => Expects::Unused,
                    };
                    number = number.max(last.unwrap_or_default().saturating_add(1 + further));
                }
                // The server ran an earlier copy of this request.
                Standing::Held(found) if found.record.as_ref().is_some_and(|it| it.same_owner(&record)) => {
                    self.end_wait(row, create.intent);
                    let stored = found.record.and_then(|record| record.number());
                    return Ok(Settled::Yes(stored.unwrap_or(number)));
                }
                held @ Standing::Held(_) => return Ok(Settled::No(held)),
            }
        }
        let what = format!("others took the next number of lock {} in each of {TRIES} tries", create.name);
        Err(Error::RetriesExhausted { store: self.cells.describe(), what, source: None })
    }

    /// Writes `value` over `expected` and leaves the number as it is.
    fn rewrite(
        &self,
        name: &LockName,
        expected: &Record,
        value: (&[u8], Duration),
        (durability, parts): (Durability, u32),
        by: Deadline,
    ) -> Reply {
        // The record of a creation without an answer. It cannot be stored: a stored record has its number.
        let Some(number) = expected.number() else { return Reply::No(None) };
        let row = &lock_row(name);
        let write = write(row, number, value, durability);
        Reply::of_bool(
            checked(write.ttl).and_then(|()| self.cells.rewrite(&write, expected.as_bytes(), parts, by)),
        )
    }
}

impl HistoryStore for HbaseOwnStore {
    fn append(&self, of: HistoryOf<'_>, entry: &HistoryEntry, lasts: Duration, by: Deadline) -> Result<()> {
        history::append(&*self.cells, OWN_HISTORY, of, entry, lasts, by)
    }

    fn entries(
        &self,
        of: HistoryOf<'_>,
        since_ms: u64,
        most: usize,
        by: Deadline,
    ) -> Result<Vec<HistoryEntry>> {
        history::entries(&*self.cells, OWN_HISTORY, of, since_ms, most, by)
    }
}

impl Register for HbaseOwnStore {
    fn shard(&self, name: &LockName) -> u8 {
        row_keys::shard(name)
    }

    fn promises(&self) -> Vec<Promise> {
        promises::own()
    }

    fn describe(&self) -> String {
        self.cells.describe()
    }

    fn layout(&self) -> Option<&'static str> {
        Some(Layout::Own.name())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            counts: true,
            counts_in_record: true,
            reserves: true,
            compares: Compares::Record,
            read_back: ReadBack::Never,
            repeats_after: None,
            hides: false,
            in_flight_for: Duration::from_secs(300),
        }
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.cells.ensure_table(Content::OwnLocks.family(), by)
    }

    fn greet(&self, by: Deadline) -> Result<()> {
        self.cells.greet(by)
    }

    fn create(&self, create: &Create<'_>, by: Deadline) -> Reply<Created> {
        Reply::of(self.try_to_create(create, by), |settled| match settled {
            Settled::Yes(number) => Reply::Yes(Created { count: Some(number), standing: None }),
            Settled::No(held) => Reply::No(Some(held)),
        })
    }

    fn replace(&self, change: &Replace<'_>, by: Deadline) -> Reply {
        let Replace { name, expected, record, .. } = change;
        match (expected.mode(), expected.place()) {
            (Mode::Permit, _) => return self.renew_one_permit(name, expected, record, by),
            (_, Some(_)) => return self.renew_beside(name, expected, record, by),
            (_, None) => {}
        }
        self.rewrite(name, expected, (record.as_bytes(), record.ttl()), (Durability::Sync, RENEW_PARTS), by)
    }

    fn replace_many<'a>(&self, mut changes: Vec<Replace<'a>>, by: Deadline, answered: OnReply<'_, 'a>) {
        changes.retain(|change| {
            // As in `rewrite`.
            let reply = match (change.expected.number(), checked(change.record.ttl())) {
                (Some(_), Ok(())) => return true,
                (None, _) => Reply::No(None),
                (_, Err(error)) => Reply::Down(error),
            };
            // A record without a number has no newer version.
            answered(change, Moment::now(), reply);
            false
        });
        self.cells.replace_many(changes, &self.hints, by, answered);
    }

    fn remove(&self, name: &LockName, expected: &Record, by: Deadline) -> Reply {
        match (expected.mode(), expected.place()) {
            (Mode::Permit, _) => return self.release_one_permit(name, expected, by),
            (_, Some(_)) => return self.release_beside(name, expected, by),
            (_, None) => {}
        }
        let durability =
            if expected.ttl() <= LAZY_RELEASE_TTL { Durability::Async } else { Durability::Sync };
        // It lasts as long as the number, so that older versions of this library see no record below it either.
        self.rewrite(name, expected, (FREE, FENCE_TTL), (durability, 1), by)
    }

    fn read(&self, name: &LockName, by: Deadline) -> Result<Standing> {
        Ok(self.read_row(&lock_row(name), by)?.standing())
    }

    fn read_own(&self, name: &LockName, record: &Record, by: Deadline) -> Result<Standing> {
        Ok(self.read_row(&lock_row(name), by)?.standing_of(record))
    }

    fn read_many(&self, names: &[LockName], by: Deadline, report: &mut dyn FnMut(usize, Standing)) {
        let rows: Vec<_> = names.iter().map(lock_row).collect();
        self.cells.read_many(&rows, by, &mut |index, cells| report(index, standing(cells)));
    }

    fn count(&self, name: &LockName, _: u64, _: Deadline) -> Result<u64> {
        let what = format!("lock {name} is counted only when it is acquired");
        Err(Error::Internal { what, source: None })
    }

    fn last_count(&self, name: &LockName, by: Deadline) -> Result<Option<u64>> {
        Ok(self.cells.read_cells(&lock_row(name), by)?.number)
    }

    fn history(&self) -> Option<&dyn HistoryStore> {
        Some(self)
    }

    fn list(
        &self,
        query: &LockQuery,
        after: Option<&ListCursor>,
        most: usize,
        by: Deadline,
    ) -> Result<LockPage> {
        let failed = RefCell::new(None);
        let stands = |row: &mut ScannedRow| {
            let number = row.beside.take().and_then(number);
            let record = Some(std::mem::take(&mut row.cell));
            let read = OwnRow::of(OwnCells { number, record, beside: Vec::new() });
            // The page has the base, and not the holds beside it.
            let read = if read.base.is_some() { self.read_row(&row.row, by) } else { Ok(read) };
            read.map(|read| read.standing()).unwrap_or_else(|error| {
                failed.borrow_mut().get_or_insert(error);
                Standing::Free
            })
        };
        let page = list::page(&*self.cells, (OWN_LOCK, Some(OWN_FENCE)), stands, query, after, most, by)?;
        failed.into_inner().map_or(Ok(page), Err)
    }

    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        let mut rows = Vec::new();
        let mut found = diagnose(&*self.cells, Content::OwnLocks, by, |row| {
            rows.push(row.to_vec());
            let number = self.cells.read_cells(row, by)?.number.unwrap_or_default().saturating_add(1);
            let write = write(row, number, (FREE, PROBE_TTL), Durability::Async);
            let expects = if number > 1 { Expects::Free } else { Expects::Unused };
            self.cells.claim(&write, &expects, by)?;
            Ok(self.cells.read_cells(row, by)?.record)
        })?;
        found.extend(self.diagnose_conditions(&rows, by)?);
        Ok(found)
    }

    fn counters(&self) -> StoreCounters {
        self.counters.now()
    }

    fn modes(&self) -> Option<&dyn ModeRegister> {
        Some(self)
    }

    fn permits(&self) -> Option<&dyn PermitRegister> {
        Some(self)
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        self.latches.as_deref()
    }
}

/// Decodes the cells of a lock. A record of an earlier grant means free.
pub(super) fn standing(cells: OwnCells) -> Standing {
    OwnRow::of(cells).standing()
}

/// Decodes the cells of a lock for the holder of this record, and remembers its base.
pub(super) fn standing_of(cells: OwnCells, record: &Record, (hints, row): (&RowHints, &[u8])) -> Standing {
    let read = OwnRow::of(cells);
    hints.saw(row, read.number, read.readers().map(Record::ttl));
    hints.saw_permits(row, read.permits_seen());
    read.standing_of(record)
}

/// Decodes the cell of a number.
pub(super) fn number(cell: Cell) -> Option<u64> {
    cell.value.try_into().ok().map(u64::from_be_bytes)
}

pub(super) fn write<'a>(
    row: &'a [u8],
    number: u64,
    (record, ttl): (&'a [u8], Duration),
    durability: Durability,
) -> OwnWrite<'a> {
    OwnWrite { row, number, first: number, number_ttl: FENCE_TTL, record, ttl, wait: None, durability }
}

/// Rows that this process has seen with cells, so it can expect them. A wrong guess costs one call. Forgets a row when
/// another one takes its place.
#[derive(Debug)]
struct UsedRows {
    hashes: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl UsedRows {
    const PLACES: usize = 4096;

    fn slot(&self, row: &[u8]) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(row);
        (&self.hashes[hash as usize % UsedRows::PLACES], hash)
    }

    fn expected(&self, row: &[u8]) -> Expects {
        let (slot, hash) = self.slot(row);
        if slot.load(Ordering::Relaxed) == hash { Expects::Free } else { Expects::Unused }
    }

    fn remember(&self, row: &[u8]) {
        let (slot, hash) = self.slot(row);
        slot.store(hash, Ordering::Relaxed);
    }
}

impl Default for UsedRows {
    fn default() -> UsedRows {
        let hashes = (0..UsedRows::PLACES).map(|_| AtomicU64::new(0)).collect();
        UsedRows { hashes, hasher: RandomState::new() }
    }
}

/// Refuses a lease that the number would not outlast.
pub(super) fn checked(ttl: Duration) -> Result<()> {
    if ttl <= FENCE_TTL {
        return Ok(());
    }
    Err(Error::invalid(
        "ttl",
        format!("{ttl:?}"),
        "at most 30 days in the layout own: the fence is kept that long",
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use super::*;
    use crate::Code;
    use crate::names::diagnostic::Severity;
    use crate::names::holder::Identity;
    use crate::names::lock_name::{Level, NamePolicy};
    use crate::names::mode::Mode;
    use crate::runtime::sync::real::Mutex;
    use crate::store::hbase::cell_store::{LockTable, RowPage, RowScan, SchemaFault};
    use crate::store::hbase::layout::CellColumn;
    use crate::store::hbase::own_store::{LockRowChange, LockRowChanged};
    use crate::store::hbase::row_hints::WaitNumber;
    use crate::store::remote::{ChangeMode, Join};
    use crate::store::{INTENT_MAX, Intent, IntentId};

    const LONG: Duration = Duration::from_secs(60);

    /// What the next claim returns.
    type Answer = fn(&OwnWrite<'_>) -> Claimed;

    /// A table that answers as each test plans it. When no answer is left, it repeats the last one.
    #[derive(Debug, Default)]
    struct Planned {
        answers: Mutex<VecDeque<Answer>>,
        claims: Mutex<Vec<(Expects, u64)>>,
        /// The numbers that the row's number must be below.
        firsts: Mutex<Vec<u64>>,
        /// The waits that claims end.
        waits: Mutex<Vec<Option<WaitNumber>>>,
        /// Whether the next changes are made. When none is left, all are refused.
        changes: Mutex<VecDeque<bool>>,
        /// Its servers, each with a row that has this number.
        servers: Mutex<(usize, Option<u64>)>,
        /// The cells beside number and record, and how long they last.
        beside: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
        lasts: Mutex<Vec<Duration>>,
    }

    #[derive(Debug)]
    struct Table(Arc<Planned>);

    impl LockTable for Table {
        fn greet(&self, _: Deadline) -> Result<()> {
            Ok(())
        }

        fn describe(&self) -> String {
            "planned".into()
        }

        fn ensure_table(&self, _: &'static str, _: Deadline) -> Result<()> {
            Ok(())
        }

        fn version(&self, _: Deadline) -> Result<Option<String>> {
            Ok(None)
        }

        fn diagnose_table(&self, _: &'static str, _: Deadline) -> Result<Option<Vec<SchemaFault>>> {
            Ok(Some(Vec::new()))
        }

        fn probe_rows(&self, _: Deadline) -> Result<Vec<(String, Vec<u8>)>> {
            let servers = self.0.servers.lock().0;
            Ok((0..servers).map(|at| (at.to_string(), at.to_string().into_bytes())).collect())
        }

        fn scan(&self, _: &RowScan<'_>, _: Deadline) -> Result<RowPage> {
            Ok(RowPage::default())
        }

        fn put(&self, _: &[u8], _: CellColumn, _: &[u8], _: Duration, _: Deadline) -> Result<()> {
            Ok(())
        }
    }

    impl OwnStore for Table {
        fn claim(&self, write: &OwnWrite<'_>, expects: &Expects, _: Deadline) -> Result<Claimed> {
            self.0.claims.lock().push((expects.clone(), write.number));
            self.0.firsts.lock().push(write.first);
            self.0.waits.lock().push(write.wait);
            let mut answers = self.0.answers.lock();
            let answer = answers.pop_front().expect("an answer is planned");
            if answers.is_empty() {
                answers.push_back(answer);
            }
            Ok(answer(write))
        }

        fn rewrite(&self, _: &OwnWrite<'_>, _: &[u8], _: u32, _: Deadline) -> Result<bool> {
            Ok(true)
        }

        fn change(&self, _: &LockRowChange<'_>, _: Deadline) -> Result<LockRowChanged> {
            let is_made = self.0.changes.lock().pop_front().unwrap_or_default();
            Ok(if is_made { LockRowChanged::Made(0, None) } else { LockRowChanged::Refused(None) })
        }

        fn put_beside(&self, _: &[u8], at: &[u8], value: &[u8], lasts: Duration, _: Deadline) -> Result<()> {
            self.0.beside.lock().push((at.to_vec(), value.to_vec()));
            self.0.lasts.lock().push(lasts);
            Ok(())
        }

        fn replace_many<'a>(&self, _: Vec<Replace<'a>>, _: &RowHints, _: Deadline, _: OnReply<'_, 'a>) {}

        fn read_cells(&self, _: &[u8], _: Deadline) -> Result<OwnCells> {
            Ok(OwnCells { number: self.0.servers.lock().1, ..OwnCells::default() })
        }
    }

    fn planned(answers: &[Answer]) -> (Arc<Planned>, HbaseOwnStore) {
        let planned = Arc::new(Planned::default());
        planned.answers.lock().extend(answers);
        let table = Table(Arc::clone(&planned));
        (planned, HbaseOwnStore::over(Box::new(table)))
    }

    fn create(store: &HbaseOwnStore) -> Result<Settled<u64, Standing>> {
        create_with(store, 1)
    }

    fn name() -> LockName {
        LockName::new(Level::Xdc, "tests", None, "a", NamePolicy::Strict).unwrap()
    }

    fn record(number: u64) -> Record {
        Record::draw(LONG, &Identity::this_process("tests").unwrap()).unwrap().numbered(number)
    }

    fn create_with(store: &HbaseOwnStore, numbers: u64) -> Result<Settled<u64, Standing>> {
        let (name, record) = (name(), record(0));
        let create = Create {
            name: &name,
            record: &record,
            count: Some(100),
            numbers,
            read_back: false,
            intent: None,
        };
        store.try_to_create(&create, Deadline::after(LONG))
    }

    /// Stale numbers, reads after a refusal, and seeded fences.
    fn counted(store: &HbaseOwnStore) -> [u64; 3] {
        let StoreCounters { stale_numbers, reads_after_refusal, fences_seeded, .. } = store.counters();
        [stale_numbers, reads_after_refusal, fences_seeded]
    }

    fn refused(number: u64, record: Option<&[u8]>) -> Claimed {
        let record = record.map(|value| Cell { value: value.to_vec(), written_ms: 0 });
        Claimed::Refused(Some(OwnCells { number: Some(number), record, beside: Vec::new() }))
    }

    #[test]
    fn a_row_that_was_used_is_expected_to_be_free_the_next_time() {
        let (planned, store) = planned(&[|_| Claimed::Made]);
        for _ in 0..2 {
            assert_eq!(create(&store).unwrap(), Settled::Yes(100));
        }
        assert_eq!(counted(&store), [0, 0, 1]);
        assert_eq!(*planned.claims.lock(), [(Expects::Unused, 100), (Expects::Free, 100)]);
    }

    #[test]
    fn a_higher_number_is_followed_and_after_sixteen_tries_the_lock_is_given_up() {
        let (planned, store) =
            planned(&[|_| Claimed::Refused(None), |_| refused(500, Some(FREE)), |_| Claimed::Made]);
        assert_eq!(create(&store).unwrap(), Settled::Yes(501));
        assert_eq!(counted(&store), [1, 0, 0]);
        assert_eq!(
            *planned.claims.lock(),
            [(Expects::Unused, 100), (Expects::Free, 100), (Expects::Free, 501)]
        );
        let (planned, store) = self::planned(&[|write| refused(write.number, None)]);
        assert_eq!(create(&store).unwrap_err().code(), Code::RetriesExhausted);
        assert_eq!(planned.claims.lock().len(), TRIES);
        assert_eq!(counted(&store), [TRIES as u64, 0, 0]);
    }

    /// Otherwise two grants could share some of their numbers.
    #[test]
    fn the_first_of_several_numbers_is_above_the_last_one() {
        let (planned, store) = planned(&[
            |_| Claimed::Refused(None),
            |_| refused(105, Some(FREE)),
            |_| refused(105, Some(FREE)),
            |_| Claimed::Made,
        ]);
        assert_eq!(create_with(&store, 10).unwrap(), Settled::Yes(115));
        assert_eq!(*planned.firsts.lock(), [100, 100, 106, 106]);
        // The first refusal is for the number, the second for something else.
        assert_eq!(counted(&store), [1, 0, 0]);
    }

    #[test]
    fn a_lock_that_was_free_again_or_must_be_read_is_no_stale_number() {
        let (_, store) = planned(&[
            |_| Claimed::Refused(None),
            |write| refused(write.number - 1, Some(FREE)),
            |_| Claimed::Refused(None),
            |_| Claimed::Made,
        ]);
        assert_eq!(create(&store).unwrap(), Settled::Yes(100));
        // The table of this test is empty when it is read, so the last try seeds the number.
        assert_eq!(counted(&store), [0, 1, 1]);
        let (_, store) = planned(&[|_| Claimed::Refused(None), |_| refused(500, Some(b"M"))]);
        assert!(matches!(create(&store).unwrap(), Settled::No(_)));
        assert_eq!(counted(&store), [0, 0, 0], "it is held");
    }

    /// The server may run a request twice.
    #[test]
    fn our_own_record_is_a_grant_and_another_one_is_not() {
        let (_, store) = planned(&[|write| refused(write.number, Some(write.record))]);
        assert_eq!(create(&store).unwrap(), Settled::Yes(100));
        let (_, store) = planned(&[|_| refused(100, Some(b"M"))]);
        assert!(matches!(create(&store).unwrap(), Settled::No(Standing::Held(_))));
    }

    /// A reader that waits asks again, and the wait of no other thread ends.
    #[test]
    fn a_reader_whom_others_forestall_each_time_is_refused() {
        let (planned, store) = planned(&[|_| Claimed::Made]);
        *planned.servers.lock() = (0, Some(7));
        let (name, shared) = (name(), record(0).placed(Mode::Shared, 0));
        let join = Join { name: &name, record: &shared, least: 0, turn: None, nested_in: None };
        match store.join(&join, Deadline::after(LONG)) {
            Reply::No(holder) => assert_eq!(holder.mode, Mode::Shared),
            other => panic!("{other:?}"),
        }
        assert_eq!(counted(&store), [0, TRIES as u64, 0]);
    }

    /// Each wait would leave a column, and every read of the row reads them all until a flush.
    #[test]
    fn the_waits_of_one_process_use_one_column_which_ends_with_an_empty_cell() {
        let (planned, store) = planned(&[|_| Claimed::Made]);
        let (name, by) = (name(), Deadline::after(LONG));
        let identity = Identity::this_process("tests").unwrap();
        let announce = || {
            let id = IntentId::draw().unwrap();
            let intent = Intent { id, identity: &identity, lasts: LONG };
            store.announce(&name, intent, by).unwrap();
            id
        };
        create(&store).unwrap();
        store.withdraw(&name, announce(), by).unwrap();
        let grant = |number| {
            let (record, intent) = (record(0), announce());
            let create = Create {
                name: &name,
                record: &record,
                count: Some(number),
                numbers: 1,
                read_back: false,
                intent: Some(intent),
            };
            assert_eq!(store.try_to_create(&create, by).unwrap(), Settled::Yes(number));
            intent
        };
        // A grant ends the next one. An announcement that is under way may arrive after it, and is withdrawn.
        store.withdraw(&name, grant(200), by).unwrap();
        // If the next wait has the number by then, it stays announced.
        let granted = grant(300);
        let gives_up = announce();
        store.withdraw(&name, granted, by).unwrap();
        store.withdraw(&name, gives_up, by).unwrap();
        store.withdraw(&name, gives_up, by).unwrap();
        let beside = planned.beside.lock();
        let columns: Vec<_> = beside.iter().map(|(at, _)| at).collect();
        assert_eq!(columns, [columns[0]; 7]);
        let ends: Vec<_> = beside.iter().map(|(_, value)| value == FREE).collect();
        assert_eq!(ends, [false, true, false, true, false, false, true]);
        let lasts = ends.iter().map(|end| if *end { FENCE_TTL } else { INTENT_MAX });
        assert_eq!(*planned.lasts.lock(), lasts.collect::<Vec<_>>());
        let wait = Some(columns[0][8]);
        assert_eq!(*planned.waits.lock(), [None, wait, wait]);
    }

    /// Its row would fill with cells of places that were used once.
    #[test]
    fn a_lock_whose_rights_are_given_up_again_and_again_uses_one_place() {
        let (planned, store) = planned(&[|_| Claimed::Made]);
        let (name, by) = (name(), Deadline::after(LONG));
        let places = [100, 200, 300].map(|number| {
            planned.changes.lock().extend([true, true]);
            let (held, shared) = (record(number), record(0).placed(Mode::Shared, 0));
            let change = ChangeMode { name: &name, held: &held, record: &shared, least: 0, intent: None };
            let Reply::Yes(changed) = store.change_mode(&change, by) else { panic!("it is not changed") };
            assert!(matches!(store.remove(&name, &changed, by), Reply::Yes(())));
            changed.place()
        });
        assert_eq!(places, [places[0]; 3]);
    }

    /// Returns what the doctor finds about the conditions of servers that make these changes.
    fn diagnosed(servers: usize, changes: &[bool]) -> Option<Diagnostic> {
        let (planned, store) = planned(&[|_| Claimed::Made]);
        *planned.servers.lock() = (servers, Some(7));
        planned.changes.lock().extend(changes);
        let found = store.diagnose(Deadline::after(LONG)).unwrap();
        // Each cell of an unknown kind is covered again.
        let beside = planned.beside.lock();
        for pair in beside.chunks(2) {
            assert!(
                matches!(pair, [(at, unknown), (last, free)] if at == last && unknown != FREE && free == FREE)
            );
        }
        assert!(planned.changes.lock().is_empty());
        found.into_iter().find(|it| it.topic == "conditions")
    }

    /// Such a server would let a writer in beside a reader.
    #[test]
    fn the_doctor_fails_a_server_that_does_not_look_at_every_cell() {
        let severity = |servers, changes: &[bool]| diagnosed(servers, changes).map(|it| it.severity);
        assert_eq!(severity(0, &[]), None);
        assert_eq!(severity(2, &[true, false, true, false]), Some(Severity::Ok));
        let found = diagnosed(2, &[true, false, true, true]).unwrap();
        assert_eq!(found.severity, Severity::Fail);
        assert!(found.seen.contains("1 of 2"), "{found}");
        // One that refuses every change shows nothing.
        assert_eq!(severity(2, &[false, true, false]), Some(Severity::Warn));
        assert_eq!(severity(2, &[false, true, true]), Some(Severity::Fail));
    }
}
