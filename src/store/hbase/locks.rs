//! The record and the fence counter of a lock, stored as cells of HBase.

use std::time::Duration;

use super::cell_store::{
    Cell, CellStore, CheckAndPut, Content, Count, Durability, LockCells, RENEW_PARTS, ScannedRow, Take,
};
use super::diagnose::{PROBE_TTL, diagnose};
use super::history;
use super::layout::{FENCE, FREE, HISTORY, LOCK};
use super::list;
use super::promises;
use super::rules::{refuse_own_table, take_fence};
use crate::error::{Error, Result};
use crate::names::diagnostic::Diagnostic;
use crate::names::history_entry::HistoryEntry;
use crate::names::latch_name::LatchName;
use crate::names::lock_name::LockName;
use crate::names::promise::Promise;
use crate::runtime::time::Deadline;
use crate::settings::options::Options;
use crate::store::hbase::row_keys::{self, fence_row, lock_row};
use crate::store::layout::Layout;
use crate::store::lock_store::no_stamps;
use crate::store::remote::resolve::until_answered;
use crate::store::remote::{
    Capabilities, Compares, Create, Created, Found, OnReply, ReadBack, Record, Register, Replace, Reply,
    Standing,
};
use crate::store::{HistoryOf, HistoryStore, LatchStore, ListCursor, LockPage, LockQuery};

/// TTL of a fence counter. The counter expires when nobody acquires the lock for this time.
pub(super) const FENCE_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// A seed comes from the clock and is far above this number. A counter below it was just created by an increment
/// without a seed.
const FENCE_SEEDED: i64 = 1 << 40;
/// Tries of one call to count. A try fails only if a peer counted or seeded the counter in between.
const COUNTS: usize = 16;

/// The release of a lease up to this TTL does not wait until the server's log is synced. A crash of the server can
/// undo such a release. Then nobody holds the lock, but it cannot be acquired for the rest of the TTL. This adds
/// little delay: a master notices a crash only after ZooKeeper's session time-out (default 90 s), and until then
/// no lock of that server can be acquired.
pub(super) const LAZY_RELEASE_TTL: Duration = Duration::from_secs(90);

/// A [`Register`] in a table of HBase, with latches in a second table. URI:
/// `hbase://master1:16000,master2:16000/table`, or `hbase+thrift://host:9090/table` through a Thrift1 gateway.
///
/// The layout is that of PhonePe's DLM 1.0.1. Clients of that library and clients of this one exclude each other.
/// A Java client can release a lock that it has lost, and it trusts its own clock. It can harm the locks of this
/// library in the same ways.
#[derive(Debug)]
pub struct HbaseStore {
    pub(super) rows: Box<dyn CellStore>,
    pub(super) latches: Box<dyn LatchStore>,
    /// Whether locks have fences.
    pub(super) has_fences: bool,
}

impl HbaseStore {
    /// Returns the row of a lock: one byte of hash, then the [key](LockName::key). The Java library DLM 1.0.1 computes the
    /// same.
    pub fn lock_row(name: &LockName) -> Vec<u8> {
        row_keys::lock_row(name)
    }

    /// Returns the row of a lock's fence counter, which is in the region of the lock's row.
    pub fn fence_row(name: &LockName) -> Vec<u8> {
        row_keys::fence_row(name)
    }

    /// Returns the row of a latch: one byte of hash, then `<client>_<id>`. The Java library DistributedLatch computes the same.
    pub fn latch_row(name: &LatchName) -> Vec<u8> {
        row_keys::latch_row(name)
    }

    /// Creates a store that uses the Thrift1 gateway at `address`. Does no I/O; the first call connects.
    #[cfg(feature = "gateway")]
    pub(crate) fn thrift(address: &str, table: &str, mut options: Options) -> Result<HbaseStore> {
        let has_fences = take_fence(&mut options)?;
        let latch_table = super::latches::table_name(options.take("latches").as_deref(), table)?;
        let locks = super::thrift::Gateway::new(address, table, options)?;
        let latches = Box::new(super::thrift::GatewayLatches::beside(&locks, &latch_table));
        Ok(HbaseStore { rows: Box::new(locks), latches, has_fences })
    }

    /// Creates a store that connects to the cluster directly, through any of the masters `host:port,host:port`.
    /// Reads the files of the TLS options. Does no other I/O; the first call connects.
    pub(crate) fn native(masters: &str, table: &str, mut options: Options) -> Result<HbaseStore> {
        refuse_own_table(&mut options)?;
        let has_fences = take_fence(&mut options)?;
        let latch_table = super::latches::table_name(options.take("latches").as_deref(), table)?;
        let locks = super::native::Native::new(masters, table, Content::Locks, options)?;
        let latches = Box::new(super::native::NativeLatches::beside(&locks, &latch_table));
        Ok(HbaseStore { rows: Box::new(locks), latches, has_fences })
    }

    fn counter_row(&self, name: &LockName) -> Option<Vec<u8>> {
        self.has_fences.then(|| fence_row(name))
    }

    /// Returns how long the empty cell of a free lock lasts: longer than any record below it. Where locks have no fences,
    /// which last as long, it lasts as long as the record that it replaces, so that ids which are used once do not pile up.
    fn free_ttl(&self, least: Duration) -> Duration {
        if self.has_fences { least.max(FENCE_TTL) } else { least }
    }

    /// Whether an earlier version has counted the lock's fence in the lock's row, with `fence=lock_row`. Another counter may
    /// be lower.
    fn counts_elsewhere(&self, cells: &LockCells) -> bool {
        self.has_fences && cells.has_count
    }

    fn free(&self, name: &LockName, expected: &Record, cover: Option<Duration>, by: Deadline) -> Reply {
        let is_brief = expected.ttl() <= LAZY_RELEASE_TTL && cover.is_none();
        let swap = CheckAndPut {
            row: &lock_row(name),
            column: LOCK,
            expected: expected.as_bytes(),
            value: FREE,
            ttl: self.free_ttl(expected.ttl()),
            cover,
            durability: if is_brief { Durability::Async } else { Durability::UseDefault },
            parts: 1,
        };
        self.swap(&swap, by)
    }

    fn swap(&self, swap: &CheckAndPut<'_>, by: Deadline) -> Reply {
        Reply::of_bool(self.rows.check_and_put(swap, by))
    }

    /// Sets the counter of a lock from one number to another. `None`: there is no counter.
    pub(super) fn set_count(&self, name: &LockName, from: Option<u64>, to: u64, by: Deadline) -> Reply {
        let (row, value) = (self.counter_row(name).unwrap_or_default(), to.to_be_bytes());
        let expected = from.map(u64::to_be_bytes);
        let swap = CheckAndPut {
            row: &row,
            column: FENCE,
            expected: expected.as_ref().map_or(&[][..], |number| &number[..]),
            value: &value,
            ttl: FENCE_TTL,
            cover: None,
            durability: Durability::UseDefault,
            parts: 1,
        };
        self.swap(&swap, by)
    }
}

impl HistoryStore for HbaseStore {
    fn append(&self, of: HistoryOf<'_>, entry: &HistoryEntry, lasts: Duration, by: Deadline) -> Result<()> {
        history::append(&*self.rows, HISTORY, of, entry, lasts, by)
    }

    fn entries(
        &self,
        of: HistoryOf<'_>,
        since_ms: u64,
        most: usize,
        by: Deadline,
    ) -> Result<Vec<HistoryEntry>> {
        history::entries(&*self.rows, HISTORY, of, since_ms, most, by)
    }
}

impl Register for HbaseStore {
    fn shard(&self, name: &LockName) -> u8 {
        row_keys::shard(name)
    }

    fn promises(&self) -> Vec<Promise> {
        // A gateway sends writes again by itself.
        promises::beside_java(self.rows.repeats_after().is_some(), self.has_fences)
    }

    fn describe(&self) -> String {
        self.rows.describe()
    }

    fn layout(&self) -> Option<&'static str> {
        Some(Layout::Java.name())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            counts: self.has_fences,
            counts_in_record: false,
            // A gateway can only add one.
            reserves: self.rows.repeats_after().is_none(),
            compares: Compares::Record,
            // The read-back also shows how long older records last.
            read_back: ReadBack::Always,
            repeats_after: self.rows.repeats_after(),
            hides: true,
            // A gateway goes on with a call for minutes after its client has closed the connection.
            in_flight_for: Duration::from_secs(300),
        }
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.rows.ensure_table(Content::Locks.family(), by)
    }

    fn greet(&self, by: Deadline) -> Result<()> {
        self.rows.greet(by)
    }

    /// `hbase://` makes one call for all three steps. Through the gateway this is the first of three calls.
    fn create(&self, create: &Create<'_>, by: Deadline) -> Reply<Created> {
        let fence_row = self.counter_row(create.name);
        let take = Take {
            row: &lock_row(create.name),
            column: LOCK,
            value: create.record.as_bytes(),
            ttl: create.record.ttl(),
            count: fence_row
                .as_deref()
                .zip(create.count)
                .map(|(row, least)| counter(row, least, create.numbers)),
        };
        Reply::of(self.rows.take(&take, by), |taken| {
            // A refusal is left to `read_to_grant`.
            let standing = taken.found.filter(|cells| !self.counts_elsewhere(cells)).map(covered);
            if taken.put {
                Reply::Yes(Created { count: taken.counted.and_then(seeded), standing })
            } else {
                Reply::No(standing)
            }
        })
    }

    fn replace(&self, change: &Replace<'_>, by: Deadline) -> Reply {
        self.rows.replace(change, by)
    }

    fn replace_many<'a>(&self, changes: Vec<Replace<'a>>, by: Deadline, answered: OnReply<'_, 'a>) {
        self.rows.replace_many(changes, by, answered);
    }

    fn remove(&self, name: &LockName, expected: &Record, by: Deadline) -> Reply {
        self.free(name, expected, None, by)
    }

    /// What covers the lock lasts as long as before at least: of an earlier break, and of a record that was not written
    /// again since.
    fn remove_broken(&self, name: &LockName, expected: &Record, by: Deadline) -> Reply {
        let before = match self.rows.read_cells(&lock_row(name), by) {
            Ok(cells) => cells.cover.and_then(|cell| cover_of(&cell)).unwrap_or_default(),
            Err(error) => return Reply::Down(error),
        };
        self.free(name, expected, Some(expected.ttl().max(before)), by)
    }

    fn read(&self, name: &LockName, by: Deadline) -> Result<Standing> {
        self.rows.read_cells(&lock_row(name), by).map(covered)
    }

    /// What is held already stays as it is: its holder renews and releases it.
    fn read_to_grant(&self, name: &LockName, by: Deadline) -> Result<Standing> {
        let cells = self.rows.read_cells(&lock_row(name), by)?;
        if self.counts_elsewhere(&cells) {
            let what = "a version of this library with fence=lock_row has used the table: it kept the counter of \
                        the fence in the lock's row (D:F), so the next fence could be lower than that. The section \
                        \"From fence=lock_row\" of docs/hbase.md says how to move the table";
            return Err(Error::TableCreation {
                table: self.rows.describe(),
                what: what.into(),
                source: None,
            });
        }
        Ok(covered(cells))
    }

    fn read_many(&self, names: &[LockName], by: Deadline, report: &mut dyn FnMut(usize, Standing)) {
        let rows: Vec<_> = names.iter().map(lock_row).collect();
        self.rows.get_many(&rows, LOCK, by, &mut |index, cell| report(index, standing(cell)));
    }

    /// An existing counter continues from its last number. `least` is the seed of a new counter.
    fn count(&self, name: &LockName, least: u64, by: Deadline) -> Result<u64> {
        self.reserve(name, least, 1, by)
    }

    fn reserve(&self, name: &LockName, least: u64, numbers: u64, by: Deadline) -> Result<u64> {
        let row = self.counter_row(name).unwrap_or_default();
        let count = counter(&row, least, numbers);
        for _ in 0..COUNTS {
            let number = self.rows.count(count, by)?;
            if let Some(number) = seeded(number) {
                return Ok(number);
            }
            // The counter was just created through a gateway, which can neither seed a counter nor set its TTL.
            let (found, seed) = (number.to_be_bytes(), count.seed.to_be_bytes());
            let (expected, value, ttl) = (&found[..], &seed[..], FENCE_TTL);
            let swap = CheckAndPut {
                row: &row,
                column: FENCE,
                expected,
                value,
                ttl,
                cover: None,
                durability: Durability::UseDefault,
                parts: 1,
            };
            if until_answered(by, || self.rows.check_and_put(&swap, by))? {
                return Ok(least);
            }
        }
        let what =
            format!("others incremented the counter of lock {name} {COUNTS} times before it was seeded");
        Err(Error::RetriesExhausted { store: self.rows.describe(), what, source: None })
    }

    fn last_count(&self, name: &LockName, by: Deadline) -> Result<Option<u64>> {
        let Some(row) = self.counter_row(name) else { return Ok(None) };
        let cell = self.rows.get(&row, FENCE, by)?;
        Ok(cell.and_then(|cell| Some(u64::from_be_bytes(cell.value.try_into().ok()?))))
    }

    /// Writes an empty cell over a free lock. It keeps a hidden record hidden.
    fn cover(&self, name: &LockName, ttl: Duration, by: Deadline) -> Result<()> {
        let row = &lock_row(name);
        let swap = CheckAndPut {
            row,
            column: LOCK,
            expected: FREE,
            value: FREE,
            ttl: self.free_ttl(ttl),
            cover: None,
            durability: Durability::UseDefault,
            parts: 1,
        };
        self.rows.check_and_put(&swap, by).map(drop)
    }

    /// The time and the value of the cell. Through a gateway a record of Java cannot be distinguished from a later one.
    fn stamp(&self, name: &LockName, by: Deadline) -> Result<Option<Box<[u8]>>> {
        if !self.rows.compares_stamps() {
            return Ok(None);
        }
        let cell = self.rows.get(&lock_row(name), LOCK, by)?.filter(|cell| cell.value != FREE);
        Ok(cell.map(|Cell { value, written_ms }| [&written_ms.to_be_bytes()[..], &value].concat().into()))
    }

    /// Writes an empty cell, as a release does, and deletes the version with this stamp. The TTL of that record is not
    /// known, so nothing that is written over it could be known to outlast it. The Delete hides what has the same time:
    /// also the empty cell, if the server's clock is not ahead of that of the Java service. The grant that raises the fence
    /// then leaves one.
    fn remove_stamped(&self, name: &LockName, stamp: &[u8], by: Deadline) -> Reply {
        let split = stamp.split_first_chunk().filter(|_| self.rows.compares_stamps());
        let Some((written_ms, value)) = split else {
            return Reply::Down(no_stamps(name, &self.describe()));
        };
        let swap = CheckAndPut {
            row: &lock_row(name),
            column: LOCK,
            expected: value,
            value: FREE,
            ttl: FENCE_TTL,
            cover: None,
            durability: Durability::UseDefault,
            parts: RENEW_PARTS,
        };
        Reply::of_bool(self.rows.check_stamp_and_put(&swap, u64::from_be_bytes(*written_ms), by))
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
        let stands = |row: &mut ScannedRow| standing(Some(std::mem::take(&mut row.cell)));
        list::page(&*self.rows, (LOCK, None), stands, query, after, most, by)
    }

    fn diagnose(&self, by: Deadline) -> Result<Vec<Diagnostic>> {
        diagnose(&*self.rows, Content::Locks, by, |row| {
            let swap = CheckAndPut {
                row,
                column: LOCK,
                expected: FREE,
                value: FREE,
                ttl: PROBE_TTL,
                cover: None,
                durability: Durability::Async,
                parts: 1,
            };
            self.rows.check_and_put(&swap, by)?;
            self.rows.get(row, LOCK, by)
        })
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(&*self.latches)
    }
}

/// Decodes [`COVER`](super::layout::COVER).
fn cover_of(cell: &Cell) -> Option<Duration> {
    cell.value.as_slice().try_into().ok().map(u64::from_be_bytes).map(Duration::from_millis)
}

/// Decodes the cells of a lock. The times are all the server's, so no clock is compared with another.
fn covered(cells: LockCells) -> Standing {
    let LockCells { record, cover, has_count: _ } = cells;
    let ends_ms = cover.and_then(|cell| {
        Some(cell.written_ms.saturating_add(u64::try_from(cover_of(&cell)?.as_millis()).ok()?))
    });
    match standing(record) {
        Standing::Held(found) => {
            let left_ms = ends_ms.zip(found.written_ms).map(|(ends, written)| ends.saturating_sub(written));
            let beneath = left_ms.map(Duration::from_millis);
            let ttl = found.record.as_ref().map(Record::ttl);
            Standing::Held(Found { beneath: beneath.filter(|beneath| Some(*beneath) > ttl), ..found })
        }
        free => free,
    }
}

/// Decodes the cell of a lock. No cell or an empty cell means free. Any other value means held, even if it is not
/// a record of this library: no client writes such a value to free a lock.
pub(super) fn standing(cell: Option<Cell>) -> Standing {
    match cell {
        Some(Cell { value, written_ms }) if value != FREE => {
            Standing::Held(Found::written(Record::decode(value), written_ms))
        }
        _ => Standing::Free,
    }
}

fn counter(row: &[u8], least: u64, numbers: u64) -> Count<'_> {
    Count { row, column: FENCE, seed: least as i64, add: numbers as i64, ttl: FENCE_TTL }
}

/// Returns the counter's number; `None` if the counter was just created without a seed.
fn seeded(number: i64) -> Option<u64> {
    (number >= FENCE_SEEDED).then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::holder::Identity;
    use crate::runtime::time::wall_ms;

    const TTL: Duration = Duration::from_secs(90);

    fn draw() -> Record {
        Record::draw(TTL, &Identity::this_process("tests").unwrap()).unwrap()
    }

    fn holder(value: &[u8], written_ms: u64) -> Option<crate::Holder> {
        match standing(Some(Cell { value: value.to_vec(), written_ms })) {
            Standing::Free => None,
            Standing::Held(found) => Some(found.holder()),
        }
    }

    #[test]
    fn the_java_library_reads_our_record_as_held() {
        assert_eq!(draw().as_bytes()[0], b'M');
        assert!(!draw().as_bytes().is_empty() && FREE.is_empty());
    }

    /// By the times of the cells, whatever this machine's clock says.
    #[test]
    fn a_record_lasts_as_long_as_what_covers_it() {
        let (record, lasts_ms) = (draw(), TTL.as_millis() as u64);
        let beneath = |cover: Option<(u64, u64)>, written_ms| {
            let cell = |value: &[u8], written_ms| Cell { value: value.to_vec(), written_ms };
            let cover = cover.map(|(written_ms, ms)| cell(&ms.to_be_bytes(), written_ms));
            let record = Some(cell(record.as_bytes(), written_ms));
            match covered(LockCells { record, cover, has_count: false }) {
                Standing::Held(found) => found.beneath.map(|beneath| beneath.as_millis() as u64),
                Standing::Free => panic!("it is held"),
            }
        };
        assert_eq!(beneath(None, 1000), None);
        assert_eq!(beneath(Some((900, lasts_ms + 100)), 1000), None, "it ends at the same time");
        assert_eq!(beneath(Some((900, lasts_ms + 101)), 1000), Some(lasts_ms + 1));
        assert_eq!(beneath(Some((u64::MAX, u64::MAX)), 0), Some(u64::MAX), "no overflow");
        assert_eq!(beneath(Some((0, 5)), 1000), None);
        assert_eq!(covered(LockCells::default()), Standing::Free);
    }

    #[test]
    fn every_value_but_the_empty_one_is_held_and_none_panics() {
        assert_eq!(holder(FREE, 0), None);
        let bytes = draw().as_bytes().to_vec();
        for cut in 1..bytes.len() {
            assert!(holder(&bytes[..cut], 0).is_some(), "cut at {cut}");
        }
        assert_eq!(holder(b"M", 5).unwrap().identity, None);
        assert_eq!(holder(b"x", u64::MAX).unwrap().identity, None);
        let ours = holder(&bytes, wall_ms()).unwrap();
        assert_eq!(ours.identity.unwrap().pid, std::process::id());
        assert!(ours.remaining.unwrap() <= TTL);
        assert_eq!(holder(&bytes, u64::MAX).unwrap().remaining, Some(TTL), "a stamp of the far future");
    }
}
