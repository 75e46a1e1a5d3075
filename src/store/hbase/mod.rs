//! Locks in HBase: compare-and-set only, never a Delete, never a client timestamp.
//!
//! ```text
//! acquire   D:L  empty -> our record        conditional Put, TTL on the cell, server timestamp
//!           D:F  + 1                        the fence, in a row of its own beside the lock's
//!           D:L  is our record still there? proof, against peers that delete
//!           (directly: all three in one call; through the gateway: three calls)
//! renew     D:L  our record -> our record   with a new TTL
//! release   D:L  our record -> empty        an empty cell is free, for the Java library as well
//! ```
//!
//! * A Delete leaves a tombstone that hides a later Put of the same millisecond although the server
//!   said yes to it; the empty cell hides nothing, and the server stamps what overwrites it later.
//! * The order acquire, fence, proof makes fences sound: a later holder counts after its own
//!   acquisition, which comes after our proof, so its number is higher, whatever was lost or late.
//! * The fence has a row of its own because Java clients delete the lock's row.
//! * Every attempt draws a new token, so that a request that comes late is recognised as ours.

mod latches;
pub(crate) mod marks;
mod native;
mod record;
pub(crate) mod rows;
mod rules;
pub(crate) mod steps;
#[cfg(test)]
mod tests;
#[cfg(feature = "gateway")]
mod thrift;

use std::time::Duration;

use self::record::{FREE, Record};
use self::rows::{Cell, Column, Count, Log, Rows, Swap, Take, part};
use self::rules::{FencePlace, Rules};
use super::doubt::{Doubt, Pauses, until_answered};
use super::{
    Acquired, Attempt, Fence, Finding, Grade, Grant, Holder, Inspection, LatchStore, LockName, LockStore,
    Proof, Released,
};
use crate::config::Options;
use crate::error::{Error, Result};
use crate::time::{Deadline, Moment, wall_ms};

const LOCK: Column = Column { family: "D", qualifier: "L" };
const FENCE: Column = Column { family: "D", qualifier: "F" };

/// Fence counters of locks that nobody takes any more go after this time.
const FENCE_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Counters are seeded with the clock, far above this; one below was just created by our increment.
const FENCE_SEEDED: i64 = 1 << 40;
/// Bits below the clock in a seed: as many grants a millisecond would outrun it.
const FENCE_SEED_SHIFT: u32 = 20;

/// Releases of leases up to this TTL do not wait for the server's log. A crash of the server can undo
/// such a release, and then nobody has the lock for the rest of the TTL. Masters notice a crash only
/// after ZooKeeper's session time-out, 90 s unless set: until then nobody gets any lock of that server.
const LAZY_RELEASE_TTL: Duration = Duration::from_secs(90);

/// Rounds of one acquire, release or renewal; each needs a lost reply or a peer in between. A server that
/// answers each write with an error of a kind that proves nothing would get them all: there is a pause
/// before each round that follows a doubt.
const ROUNDS: usize = 16;
/// One try of a renewal takes at most a third of the time that the lease has left. Where the first try meets
/// a dead connection, there is time to read over another one what became of it, and to ask again.
const RENEW_PARTS: u32 = 3;
/// A record hidden by a Java client's Delete is hidden for the rest of that millisecond.
const HIDDEN_PAUSE: Duration = Duration::from_millis(2);
/// Time beyond the deadline to clean up behind an acquire that fails half-way.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// Opens an application's table. Replies up to `reply_max` bytes are read.
pub(crate) fn open_rows(
    place: &RowsPlace,
    options: Options,
    reply_max: u32,
) -> Result<Box<dyn steps::RowStore>> {
    match place {
        RowsPlace::Native { masters, table } => {
            Ok(Box::new(native::ApplicationRows::new(masters, table, options, reply_max)?))
        }
        #[cfg(feature = "gateway")]
        RowsPlace::Gateway { address, table } => {
            Ok(Box::new(thrift::ApplicationRows::new(address, table, options)?))
        }
    }
}

impl RowsPlace {
    pub(crate) fn is_native(&self) -> bool {
        matches!(self, RowsPlace::Native { .. })
    }

    /// The highest limit for the bytes of a value, and the limit unless it is set. HBase takes 10 MiB with the
    /// cell's key unless told otherwise (`hbase.server.keyvalue.maxsize`); of a gateway's replies one MiB is read.
    pub(crate) fn value_bytes(&self) -> (usize, usize) {
        if self.is_native() { (10_000_000, 4 << 20) } else { (512 << 10, 512 << 10) }
    }
}

/// Where an application's table is reached.
pub(crate) enum RowsPlace {
    Native {
        masters: String,
        table: String,
    },
    #[cfg(feature = "gateway")]
    Gateway {
        address: String,
        table: String,
    },
}

/// For `tests/fuzz` alone: everything that reads what a server sent.
#[cfg(fuzzing)]
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    native::fuzz(bytes);
}

/// A [`LockStore`] in a table of HBase, and a [`LatchStore`] in a table beside it. URI: `hbase://master1:16000,master2:16000/table`, or
/// `hbase+thrift://host:9090/table` where only the gateway can be reached.
///
/// The layout is that of PhonePe's DLM 1.0.1, and its clients and ours exclude each other; what they
/// do to their own locks (releasing one they lost, trusting their clocks) they can do to ours.
#[derive(Debug)]
pub struct HbaseStore {
    rows: Box<dyn Rows>,
    latches: Box<dyn LatchStore>,
    rules: Rules,
}

impl HbaseStore {
    /// Through the Thrift1 gateway at `address`. No I/O until the first call.
    #[cfg(feature = "gateway")]
    pub(crate) fn thrift(address: &str, table: &str, mut options: Options) -> Result<HbaseStore> {
        let rules = Rules::take(&mut options)?;
        let latch_table = latches::table_name(options.take("latches").as_deref(), table)?;
        if rules.fence == FencePlace::LockRow {
            return Err(Error::invalid(
                "fence",
                "lock_row",
                "row or off: only hbase:// can count in the lock's row",
            ));
        }
        let locks = thrift::Gateway::new(address, table, options)?;
        let latches = Box::new(thrift::Latches::beside(&locks, &latch_table));
        Ok(HbaseStore { rows: Box::new(locks), latches, rules })
    }

    /// Directly, through any of the masters `host:port,host:port`. No I/O until the first call.
    pub(crate) fn native(masters: &str, table: &str, mut options: Options) -> Result<HbaseStore> {
        let rules = Rules::take(&mut options)?;
        let latch_table = latches::table_name(options.take("latches").as_deref(), table)?;
        let locks = native::Native::new(masters, table, options)?;
        let latches = Box::new(native::Latches::beside(&locks, &latch_table));
        Ok(HbaseStore { rows: Box::new(locks), latches, rules })
    }
}

impl LockStore for HbaseStore {
    fn describe(&self) -> String {
        self.rows.describe()
    }

    fn initialize(&self, by: Deadline) -> Result<()> {
        self.rows.ensure_table(LOCK.family, by)
    }

    fn acquire(&self, attempt: Attempt<'_>, doubtful: &mut Vec<Proof>) -> Result<Acquired> {
        let mut acquisition =
            Acquisition { store: self, attempt, row: attempt.name.hbase_row(), open: Vec::new(), lost: None };
        let answer = acquisition.run();
        doubtful.extend(acquisition.open.iter().map(|tried| tried.record.to_proof()));
        answer
    }

    fn renew(&self, name: &LockName, proof: &Proof, ttl: Duration, by: Deadline) -> Result<Option<Proof>> {
        let (row, mut current) = (name.hbase_row(), own_record(proof)?);
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            let renewed = current.renewed(ttl);
            let swap = Swap {
                row: &row,
                column: LOCK,
                expected: current.bytes(),
                value: renewed.bytes(),
                ttl: renewed.ttl(),
                log: Log::Synced,
                parts: RENEW_PARTS,
            };
            match doubt.ask(|| self.rows.check_and_put(&swap, by)) {
                Ok(true) => return Ok(Some(renewed.to_proof())),
                Ok(false) => {}
                Err(error) => doubt.go_on(error)?,
            }
            // The connection that the look is made over may be as dead as the one before.
            let look_by = || if doubt.is_open() { part(by, 2) } else { by };
            let stored = doubt.ask(|| self.rows.get(&row, LOCK, look_by()));
            let stored = stored.map_err(|error| doubt.or(error))?;
            match own_version(stored, &current) {
                // The lost request is seen to have been applied.
                Some(stored) if doubt.is_open() && stored == renewed && stored != current => {
                    return Ok(Some(stored.to_proof()));
                }
                // Asking again for a renewal that may still be under way does no harm: both are
                // conditional on our token, and the lease counts from before the first.
                Some(stored) => current = stored,
                None => return Ok(None),
            }
        }
        Err(doubt.or(restless(name)))
    }

    fn release(&self, name: &LockName, proof: &Proof, by: Deadline) -> Result<Released> {
        let (row, mut current) = (name.hbase_row(), own_record(proof)?);
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            let ttl = current.ttl();
            let swap = Swap {
                row: &row,
                column: LOCK,
                expected: current.bytes(),
                value: FREE,
                ttl,
                log: if ttl <= LAZY_RELEASE_TTL { Log::Lazy } else { Log::Synced },
                parts: 1,
            };
            match doubt.ask(|| self.rows.check_and_put(&swap, by)) {
                Ok(true) => return Ok(Released::Freed),
                Ok(false) => {}
                Err(error) => doubt.go_on(error)?,
            }
            let cell = doubt.ask(|| self.rows.get(&row, LOCK, by)).map_err(|error| doubt.or(error))?;
            // A gateway that sent the request twice answers "no" for the second. That this was our own
            // release cannot be told from a lease that was lost before; a false alarm is the safe answer.
            match own_version(cell, &current) {
                Some(stored) => current = stored,
                None if doubt.is_open() => return Ok(Released::Gone),
                None => return Ok(Released::NotOurs),
            }
        }
        Err(doubt.or(restless(name)))
    }

    fn holder(&self, name: &LockName, by: Deadline) -> Result<Option<Holder>> {
        let cell = self.rows.get(&name.hbase_row(), LOCK, by)?;
        Ok(cell.and_then(|cell| record::holder(&cell.value, cell.written_ms)))
    }

    fn inspect(&self, name: &LockName, by: Deadline) -> Result<Inspection> {
        let fence = match self.fence_row(name) {
            Some(row) => self.rows.get(&row, FENCE, by)?,
            None => None,
        };
        let fence = fence.and_then(|cell| Some(u64::from_be_bytes(cell.value.try_into().ok()?)));
        Ok(Inspection { holder: self.holder(name, by)?, fence: fence.map(Fence) })
    }

    fn latches(&self) -> Option<&dyn LatchStore> {
        Some(&*self.latches)
    }

    fn examine(&self, by: Deadline) -> Result<Vec<Finding>> {
        let mut found = Vec::new();
        match self.rows.version(by) {
            Ok(version) => found.extend(version.as_deref().map(examine_version)),
            // A master may refuse to tell; locks do without.
            Err(error) => found.push(Finding::warn("version", error.chain(), "ask the master's log why")),
        }
        let advice = "alter the family in the HBase shell, or make the table anew";
        let table = match self.rows.examine_table(LOCK.family, by)? {
            None => Finding::fail("table", "does not exist", "make it with initialize() or `dlm init`"),
            Some(odd) if odd.is_empty() => Finding::ok("table", "is as it should be"),
            Some(odd) => Finding::warn("table", odd.join(", "), advice),
        };
        let exists = table.grade < Grade::Fail;
        found.push(table);
        if exists {
            found.push(self.examine_clocks(by)?);
        }
        Ok(found)
    }
}

impl HbaseStore {
    fn fence_row(&self, name: &LockName) -> Option<Vec<u8>> {
        match self.rules.fence {
            FencePlace::Row => Some(name.hbase_fence_row()),
            FencePlace::LockRow => Some(name.hbase_row()),
            FencePlace::Off => None,
        }
    }

    /// The stamp that a server puts on an empty cell, against our clock.
    fn examine_clocks(&self, by: Deadline) -> Result<Finding> {
        const TTL: Duration = Duration::from_secs(60);
        // No lock's row: those begin with a hash byte and go on with DC# or XDC#.
        let row = b"?doctor";
        let before_ms = wall_ms();
        let swap =
            Swap { row, column: LOCK, expected: FREE, value: FREE, ttl: TTL, log: Log::Lazy, parts: 1 };
        self.rows.check_and_put(&swap, by)?;
        let took = Duration::from_millis(wall_ms().saturating_sub(before_ms));
        let stamp_ms = self.rows.get(row, LOCK, by)?.map_or(before_ms, |cell| cell.written_ms);
        Ok(Finding::clocks(Duration::from_millis(stamp_ms.abs_diff(before_ms)), took))
    }

    /// The next number of the lock's counter, asked for until it is answered. Numbers may be skipped, never
    /// repeated.
    fn next_fence(&self, name: &LockName, row: &[u8], by: Deadline) -> Result<Fence> {
        let (mut doubt, mut pauses) = (Doubt::none(by), Pauses::until(by));
        for _ in 0..ROUNDS {
            if doubt.is_open() && !pauses.rest() {
                break;
            }
            let count = counter(row);
            let number = match until_answered(by, || self.rows.count(count, by)) {
                Ok(number) => number,
                // Counting twice skips a number.
                Err(error) => {
                    doubt.go_on(error)?;
                    continue;
                }
            };
            if let Some(fence) = seeded(number) {
                return Ok(fence);
            }
            // Created a moment ago through a gateway, which can neither seed a counter nor give it a TTL.
            let (found, seed) = (number.to_be_bytes(), count.seed.to_be_bytes());
            let swap = Swap {
                row,
                column: FENCE,
                expected: &found,
                value: &seed,
                ttl: FENCE_TTL,
                log: Log::Synced,
                parts: 1,
            };
            match until_answered(by, || self.rows.check_and_put(&swap, by)) {
                Ok(true) => return Ok(Fence(count.seed as u64)),
                Ok(false) => {}
                Err(error) => doubt.go_on(error)?,
            }
        }
        Err(doubt.or(restless(name)))
    }
}

/// Tested are 2.4 to 2.6; a master before 2.3 does not say where the regions are.
fn examine_version(version: &str) -> Finding {
    let mut numbers = version.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let seen = format!("HBase {version}");
    match (numbers.next(), numbers.next()) {
        (Some(2), Some(4..)) => Finding::ok("version", seen),
        (Some(..=2), Some(_)) => {
            Finding::warn("version", seen, "use 2.4 or later: latches need conditions that came with it")
        }
        _ => Finding::warn(
            "version",
            seen,
            "this library was tested with 2.4 to 2.6: try it before you rely on it",
        ),
    }
}

/// The version of `record` that lies in the cell, if its owner still has the lock.
fn own_version(cell: Option<Cell>, record: &Record) -> Option<Record> {
    cell.and_then(|cell| Record::parse(&cell.value)).filter(|stored| stored.same_owner(record))
}

/// The fence counter in this row. Its seed is the clock, which is above all that a counter gave out
/// before it expired.
fn counter(row: &[u8]) -> Count<'_> {
    Count { row, column: FENCE, seed: (wall_ms() as i64) << FENCE_SEED_SHIFT, ttl: FENCE_TTL }
}

/// A counter's number as a fence, unless the counter was created without a seed a moment ago.
fn seeded(number: i64) -> Option<Fence> {
    (number >= FENCE_SEEDED).then_some(Fence(number as u64))
}

fn own_record(proof: &Proof) -> Result<Record> {
    Record::from_proof(proof).ok_or_else(|| {
        Error::invalid("lease", "(not shown)", "a lease that was acquired from this kind of store")
    })
}

fn restless(name: &LockName) -> Error {
    Error::InDoubt { what: format!("lock {name} changed under each of {ROUNDS} looks at it"), source: None }
}

/// One acquire on its way.
struct Acquisition<'a> {
    store: &'a HbaseStore,
    attempt: Attempt<'a>,
    row: Vec<u8>,
    /// Requests that may have taken effect, or may yet.
    open: Vec<Tried>,
    /// Why the first of them has no answer.
    lost: Option<Error>,
}

struct Tried {
    record: Record,
    since: Moment,
    /// It was found in place after a "no" or a lost reply, through something that may send it again.
    may_reappear: bool,
}

impl Tried {
    /// The cell as it is after an acquisition that nothing can have hidden.
    fn as_cell(&self) -> Cell {
        Cell { value: self.record.bytes().to_vec(), written_ms: wall_ms() }
    }
}

/// What a round of an acquisition found.
enum Round {
    Over(Acquired),
    /// The lock looks free, though we do not hold it.
    Again,
}

impl Acquisition<'_> {
    fn run(&mut self) -> Result<Acquired> {
        let fence_row = self.store.fence_row(self.attempt.name);
        let mut pauses = Pauses::until(self.attempt.by);
        for _ in 0..ROUNDS {
            // Without a doubt a peer has just freed the lock, and it may be ours at once.
            if self.lost.is_some() && !pauses.rest() {
                break;
            }
            let record = Record::draw(self.attempt.ttl, self.attempt.who)?;
            let tried = Tried { record, since: Moment::now(), may_reappear: false };
            let take = Take {
                row: &self.row,
                column: LOCK,
                value: tried.record.bytes(),
                ttl: self.attempt.ttl,
                count: fence_row.as_deref().map(counter),
                prove: self.store.rules.proves(),
            };
            let round = match self.ask(!self.open.is_empty(), |rows, by| rows.take(&take, by)) {
                Ok(taken) if taken.put => {
                    let fence = taken.counted.and_then(seeded);
                    self.count_and_prove(tried, fence_row.as_deref(), fence, taken.found)?
                }
                Ok(taken) => self.look(fence_row.as_deref(), taken.found, Some(tried))?,
                Err(error) if error.is_in_doubt() => {
                    self.open.push(tried);
                    self.lost.get_or_insert(error);
                    self.look(fence_row.as_deref(), None, None)?
                }
                Err(error) => return Err(self.failed(error)),
            };
            match round {
                Round::Over(answer) => return Ok(answer),
                Round::Again if self.attempt.by.passed() => break,
                Round::Again => {}
            }
        }
        self.give_up()
    }

    /// Makes a request: where something of ours may be under way, until it is answered.
    fn ask<T>(&self, in_doubt: bool, request: impl Fn(&dyn Rows, Deadline) -> Result<T>) -> Result<T> {
        let (rows, by) = (&*self.store.rows, self.attempt.by);
        if in_doubt { until_answered(by, || request(rows, by)) } else { request(rows, by) }
    }

    /// Finds out who has the lock, after a refusal or a lost reply. `found`: the cell, where it is known.
    /// `refused`: the request that was answered with "no". A gateway may have sent it twice, and have been
    /// refused over the record that the first put there.
    fn look(
        &mut self,
        fence_row: Option<&[u8]>,
        found: Option<Option<Cell>>,
        refused: Option<Tried>,
    ) -> Result<Round> {
        let refused = refused.filter(|_| self.store.rows.repeats_writes());
        let in_doubt = refused.is_some() || !self.open.is_empty();
        let look = || self.ask(in_doubt, |rows, by| rows.get(&self.row, LOCK, by));
        let cell = match found.map_or_else(look, Ok) {
            Ok(cell) => cell,
            // Refused, and nothing of ours under way: who holds it was asked for information only.
            Err(_) if !in_doubt => return Ok(Round::Over(Acquired::Held(Holder::unknown()))),
            Err(error) => {
                self.open.extend(refused);
                return Err(self.failed(error));
            }
        };
        let Some(cell) = cell else { return Ok(Round::Again) };
        let in_place = |tried: &Tried| tried.record.bytes() == cell.value;
        let mine = match self.open.iter().position(in_place) {
            Some(at) => Some(self.open.swap_remove(at)),
            None => refused.filter(in_place),
        };
        if let Some(tried) = mine {
            if self.open.is_empty() {
                self.lost = None;
            }
            let tried = Tried { may_reappear: self.store.rows.repeats_writes(), ..tried };
            return self.count_and_prove(tried, fence_row, None, None);
        }
        match record::holder(&cell.value, cell.written_ms) {
            Some(holder) => Ok(Round::Over(Acquired::Held(holder))),
            None => Ok(Round::Again),
        }
    }

    /// The server put our record in. What the call did not do besides is done now: count a fence, then
    /// see the record still there. A proof from before the count proves nothing. Both are asked for until
    /// they are answered: the lock is ours, and to fail now would leave it to be freed.
    fn count_and_prove(
        &mut self,
        tried: Tried,
        fence_row: Option<&[u8]>,
        fence: Option<Fence>,
        found: Option<Option<Cell>>,
    ) -> Result<Round> {
        let counted = match (fence_row, fence) {
            (Some(row), None) => {
                self.store.next_fence(self.attempt.name, row, self.attempt.by).map(|f| (Some(f), None))
            }
            (Some(_), Some(_)) | (None, _) => Ok((fence, found)),
        };
        let proved = counted.and_then(|(counted, found)| match found {
            Some(cell) => Ok((counted, cell)),
            None if counted == fence && !self.store.rules.proves() => Ok((counted, Some(tried.as_cell()))),
            None => Ok((counted, self.ask(true, |rows, by| rows.get(&self.row, LOCK, by))?)),
        });
        let (fence, cell) = match proved {
            Ok(found) => found,
            Err(error) => return Err(self.hand_back(tried, error)),
        };
        let value = cell.as_ref().map_or(FREE, |cell| &cell.value);
        if value == tried.record.bytes() {
            let Tried { record, since, may_reappear } = &tried;
            let grant = Grant { proof: record.to_proof(), fence, since: *since, may_reappear: *may_reappear };
            return Ok(Round::Over(Acquired::Granted(grant)));
        }
        // Hidden by a Java client's Delete of this millisecond, or deleted by it, or expired. Hidden
        // records can show again when the Delete is compacted away: remember it.
        self.open.push(tried);
        match cell.and_then(|cell| record::holder(&cell.value, cell.written_ms)) {
            Some(holder) => Ok(Round::Over(Acquired::Held(holder))),
            None => {
                std::thread::sleep(HIDDEN_PAUSE);
                Ok(Round::Again)
            }
        }
    }

    /// The lock is ours, and the acquire fails all the same: without a fence and proof it is no grant.
    fn hand_back(&mut self, tried: Tried, error: Error) -> Error {
        let released =
            self.store.release(self.attempt.name, &tried.record.to_proof(), Deadline::after(CLEAN_UP));
        // Hidden by a Java client's Delete, it can show again.
        if !matches!(released, Ok(Released::Freed)) {
            self.open.push(tried);
        }
        self.failed(error)
    }

    /// `error`, unless something of ours is still open: then the doubt is what the caller must know.
    fn failed(&mut self, error: Error) -> Error {
        if self.open.is_empty() && !error.is_in_doubt() {
            return error;
        }
        if self.open.is_empty() {
            // A doubtful count: the lock itself was handed back.
            return Error::RetriesExhausted {
                store: self.store.describe(),
                what: "the fence could not be counted".into(),
                source: Some(error.into()),
            };
        }
        match (self.lost.take(), error) {
            (Some(lost), error) if error.is_in_doubt() => lost,
            (Some(lost), error) => Error::InDoubt {
                what: format!(
                    "an earlier request of this acquire may yet be applied, and the next one failed ({})",
                    error.chain()
                ),
                source: Some(lost.into()),
            },
            (None, error) if error.is_in_doubt() => error,
            (None, error) => Error::InDoubt {
                what: "an earlier request of this acquire may yet be applied".into(),
                source: Some(error.into()),
            },
        }
    }

    /// Free at every look, and never ours. An empty cell on top keeps hidden records hidden.
    fn give_up(&mut self) -> Result<Acquired> {
        let by = Deadline::after(CLEAN_UP);
        let swap = Swap {
            row: &self.row,
            column: LOCK,
            expected: FREE,
            value: FREE,
            ttl: self.attempt.ttl,
            log: Log::Synced,
            parts: 1,
        };
        let covered = self.store.rows.check_and_put(&swap, by);
        match covered {
            Ok(_) if self.open.is_empty() => Ok(Acquired::Held(Holder::unknown())),
            _ => Err(Error::InDoubt {
                what: format!(
                    "{} requests for lock {} left no trace yet",
                    self.open.len(),
                    self.attempt.name
                ),
                source: self.lost.take().or(covered.err()).map(Into::into),
            }),
        }
    }
}
