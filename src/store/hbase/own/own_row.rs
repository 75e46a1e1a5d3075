//! The row of one lock: what its cells mean.
//!
//! | cell | value | lasts for |
//! |---|---|---|
//! | `F` | the number: 8 bytes, big-endian | 30 days |
//! | `L` | the record of an exclusive hold, the base of the others, or empty | the lease, or the longest of the leases |
//! | `i` and 8 bytes of its id | a process that waits exclusively: see [`IntentCell`] | 3 s at most |
//! | `r` | one byte: a turn of the readers lasts | 3 s at most |
//! | `s` and one byte, the place | a hold of another mode, or that the place is free | the lease |
//!
//! * **Base**: while there are other holds, `L` has a record with the row's number, a constant token and the longest TTL of all
//!   holds of that number. Versions without modes take it for a holder. A hold counts only beside the base of its own number.
//!   So an operator who breaks the base with such a version ends them all.
//! * **A free place** has a byte 1 and the TTL of what it covers: nothing below it lasts longer. It sorts before every record.
//!   The next record at that place lasts at least as long, because a flush may drop the cell between.
//! * **Cells of an earlier number** hold nothing. The number only rises.

use std::time::Duration;

use crate::names::holder::Identity;
use crate::names::owner::OwnerToken;
use crate::runtime::time::wall_ms;
use crate::store::IntentId;
use crate::store::hbase::cell_store::{BesideCell, Cell, OwnCells};
use crate::store::hbase::layout::FREE;
use crate::store::hbase::row_change::CellTest;
use crate::store::remote::{Found, Record, Standing, StoredHolds, StoredIntent};

/// The first byte of the qualifiers of places.
pub(in crate::store::hbase) const PLACE: u8 = b's';
/// The first byte of the qualifiers of processes that wait.
pub(in crate::store::hbase) const INTENT: u8 = b'i';
pub(in crate::store::hbase) const TURN: &[u8] = b"r";
/// The value of [`TURN`].
pub(super) const TURN_LASTS: &[u8] = &[1];

/// The first byte of the value of a free place. Records begin with a higher byte.
const FREE_PLACE: u8 = 1;
/// The first byte of the value of an intent.
const WAITS: u8 = 1;
/// The token of a base. It is no secret: nobody's lease has it.
const BASE_TOKEN: [u8; OwnerToken::LEN] = *b"shared-or-update";

pub(super) fn place(place: u8) -> Vec<u8> {
    vec![PLACE, place]
}

pub(in crate::store::hbase) fn intent(id: IntentId) -> Vec<u8> {
    [&[INTENT][..], &id.0.to_be_bytes()].concat()
}

/// The value of a place that was left, and below which nothing lasts longer.
pub(in crate::store::hbase) fn free_place(covers: Duration) -> Vec<u8> {
    let ms = u64::try_from(covers.as_millis()).unwrap_or(u64::MAX);
    [&[FREE_PLACE][..], &ms.to_be_bytes()].concat()
}

/// The test for a place that a record with this TTL can take.
pub(super) fn takes_place(ttl: Duration) -> CellTest {
    CellTest::UpTo(free_place(ttl))
}

/// The base of the holds with this number.
pub(in crate::store::hbase) fn base(number: u64, ttl: Duration) -> Record {
    Record::of_parts(&OwnerToken::from_bytes(BASE_TOKEN), ttl, &[]).numbered(number)
}

fn is_base(record: &Record) -> bool {
    record.token().as_bytes() == &BASE_TOKEN
}

/// The value of an intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IntentCell {
    /// How long the process had waited when it wrote the cell.
    pub(super) waited: Duration,
    /// The TTL of the cell.
    pub(super) lasts: Duration,
    pub(super) identity: Identity,
}

impl IntentCell {
    /// Returns `waited_ms:u64 lasts_ms:u64 identity` after the first byte, integers big-endian.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![WAITS];
        for time in [self.waited, self.lasts] {
            bytes.extend_from_slice(&u64::try_from(time.as_millis()).unwrap_or(u64::MAX).to_be_bytes());
        }
        self.identity.encode_into(&mut bytes);
        bytes
    }

    /// Reads a cell. Of one of a later version nothing but its age is known.
    fn read(cell: &Cell) -> StoredIntent {
        let age = Duration::from_millis(wall_ms().saturating_sub(cell.written_ms));
        let parts = || {
            let rest = cell.value.strip_prefix(&[WAITS])?;
            let (waited, rest) = rest.split_first_chunk::<8>()?;
            let (lasts, rest) = rest.split_first_chunk::<8>()?;
            let [waited, lasts] = [*waited, *lasts].map(|ms| Duration::from_millis(u64::from_be_bytes(ms)));
            Some((waited, lasts, Identity::decode(rest)))
        };
        match parts() {
            Some((waited, lasts, identity)) => StoredIntent {
                identity,
                waited: waited.saturating_add(age),
                left: Some(lasts.saturating_sub(age)),
            },
            None => StoredIntent { identity: None, waited: age, left: None },
        }
    }
}

/// A row as it was read.
#[derive(Debug, Default)]
pub(super) struct OwnRow {
    pub(super) number: Option<u64>,
    /// The record in `L` of an earlier number.
    pub(super) outlived: Option<Vec<u8>>,
    /// The base of the row's number.
    pub(super) base: Option<Record>,
    /// The holds, what waits, and the turn.
    pub(super) stored: StoredHolds,
    /// Places with a record of an earlier number, or without a base.
    pub(super) leftovers: Vec<(Vec<u8>, Vec<u8>)>,
    /// Free places that have a cell, with how long what is below it may last.
    pub(super) free: Vec<(u8, Duration)>,
}

impl OwnRow {
    pub(super) fn of(cells: OwnCells) -> OwnRow {
        let OwnCells { number, record, beside } = cells;
        let mut row = OwnRow { number, ..OwnRow::default() };
        if let Some(cell) = record.filter(|cell| cell.value != FREE) {
            row.read_record(cell);
        }
        for BesideCell { qualifier, cell } in beside {
            row.read_beside(qualifier, cell);
        }
        row
    }

    fn read_record(&mut self, cell: Cell) {
        let record = Record::decode(cell.value.as_slice());
        match record.as_ref().and_then(Record::number) {
            Some(number) if self.number.is_some_and(|last| number < last) => self.outlived = Some(cell.value),
            Some(_) if record.as_ref().is_some_and(is_base) => self.base = record,
            _ => self.stored.holds.push(Found::written(record, cell.written_ms)),
        }
    }

    /// Reads a cell beside number and record, which were read before.
    fn read_beside(&mut self, qualifier: Vec<u8>, cell: Cell) {
        match qualifier.as_slice() {
            _ if cell.value == FREE => {}
            [PLACE, place] => match cell.value.as_slice() {
                [FREE_PLACE, covers @ ..] if covers.len() == 8 => {
                    let ms = covers.iter().fold(0, |ms, byte| ms << 8 | u64::from(*byte));
                    self.free.push((*place, Duration::from_millis(ms)));
                }
                value => match Record::decode(value).filter(|record| record.place() == Some(*place)) {
                    Some(record) if self.is_leftover(&record) => {
                        self.leftovers.push((qualifier, cell.value));
                    }
                    record => self.stored.holds.push(Found::written(record, cell.written_ms)),
                },
            },
            TURN => self.stored.has_turn = true,
            [INTENT, ..] => self.stored.intents.push(IntentCell::read(&cell)),
            // Of a later version.
            _ => self.stored.holds.push(Found::written(None, cell.written_ms)),
        }
    }

    /// A hold without the base of its number is over: somebody has broken the base.
    fn is_leftover(&self, record: &Record) -> bool {
        let number = record.number();
        self.number.is_some()
            && (number < self.number || self.base.as_ref().is_none_or(|base| base.number() != number))
    }

    /// Returns who holds the lock: of several holds the one that ends last. A base alone is no holder: it lasts as long as the
    /// longest hold that it stood for, which may be over.
    pub(super) fn standing(&self) -> Standing {
        self.stored.last_to_end().map_or(Standing::Free, |found| Standing::Held(found.clone()))
    }

    /// Returns the state of the lock for the holder of this record: see [`Register::read_own`].
    ///
    /// [`Register::read_own`]: crate::store::remote::Register::read_own
    pub(super) fn standing_of(&self, record: &Record) -> Standing {
        let is_own = |found: &&Found| found.record.as_ref().is_some_and(|stored| stored.same_owner(record));
        match self.stored.holds.iter().find(is_own) {
            Some(found) => Standing::Held(found.clone()),
            None => self.standing(),
        }
    }

    /// Returns a place for a new record, and the TTL that the record needs there at least: `preferred` if it needs no longer one,
    /// so that rows do not fill with free places. `draw` chooses among equals. `None` if all places are taken.
    pub(super) fn free_place(
        &self,
        ttl: Duration,
        preferred: Option<u8>,
        draw: impl Fn(usize) -> usize,
    ) -> Option<(u8, Duration)> {
        let taken = |place: u8| {
            let is_at = |found: &Found| found.record.as_ref().and_then(Record::place) == Some(place);
            self.stored.holds.iter().any(is_at)
                || self.leftovers.iter().any(|(qualifier, _)| qualifier.get(1) == Some(&place))
        };
        let covers = |place: u8| self.free.iter().find(|(free, _)| *free == place).map(|(_, covers)| *covers);
        if let Some(place) =
            preferred.filter(|it| !taken(*it) && covers(*it).is_none_or(|covers| covers <= ttl))
        {
            return Some((place, ttl));
        }
        let absent: Vec<u8> = (0..=u8::MAX).filter(|it| !taken(*it) && covers(*it).is_none()).collect();
        if !absent.is_empty() {
            return Some((absent[draw(absent.len())], ttl));
        }
        let shortest = self.free.iter().filter(|(it, _)| !taken(*it)).min_by_key(|(_, covers)| *covers);
        shortest.map(|(place, covers)| (*place, ttl.max(*covers)))
    }
}
