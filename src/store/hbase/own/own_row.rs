//! The row of one lock: what its cells mean.
//!
//! | cell | value | lasts for |
//! |---|---|---|
//! | `F` | the number: 8 bytes, big-endian | 30 days |
//! | `L` | the record of an exclusive hold, the base of the others, or empty | the lease, or the longest of the leases |
//! | `i` and 8 bytes, a number | a process that waits exclusively: see [`IntentCell`]; or empty | 3 s at most; empty 30 days |
//! | `r` | one byte: a turn of the readers lasts | 3 s at most |
//! | `s` and one byte, the place | a hold of another mode | the lease |
//! | | or that the place is free | 30 days |
//! | `n` | the size of a semaphore: 2 bytes, big-endian | 30 days |
//! | `p` and one byte, its number | a permit of a semaphore | the lease |
//! | | empty: nobody has it | 30 days |
//! | `q` and one byte, its number | the number of the last grant of this permit | 30 days |
//!
//! * **Base**: while there are other holds, `L` has a record with the row's number, a constant token and the longest TTL of all
//!   holds of that number. Versions without modes take it for a holder. A hold counts only beside the base of its own number.
//!   So an operator who breaks the base with such a version ends them all.
//! * **The base of permits** has another constant token, and the number of the first permit that it stands for behind its own: see
//!   [`permit_requests`](super::permit_requests). Earlier versions take it for an exclusive holder, and `n`, `p` and `q` for holders of an unknown kind.
//! * **A permit counts** if its record has the number in `q`, which lasts longer than any record. So what a flush brings back under
//!   a permit that did not last as long holds nothing.
//! * **A free place** has a byte 1 and the TTL of what it covers: nothing below it lasts longer. It sorts before every record.
//!   The next record at that place lasts at least as long, because a flush may drop the cell between. Later versions may
//!   append to it.
//! * **Numbers of waits** are below 256 and are used again, so that a row does not get slower with each wait: see
//!   [`leave`](super::requests). Earlier versions drew any 8 bytes.
//! * **Cells of an earlier number** hold nothing. The number only rises.
//! * **Every other cell** is a hold that excludes all others. Conditions know the cells by the first byte of their names, so a
//!   later version must give a new kind another one than those above. It must sort behind `F`: see `native/own.rs`.

use std::time::Duration;

use crate::names::holder::Identity;
use crate::names::mode::Mode;
use crate::names::owner::OwnerToken;
use crate::runtime::time::wall_ms;
use crate::store::hbase::cell_store::Cell;
use crate::store::hbase::layout::FREE;
use crate::store::hbase::locks::FENCE_TTL;
use crate::store::hbase::own_store::{BesideCell, LockCellTest, OwnCells};
use crate::store::hbase::row_hints::{MANY_FREE, PermitsSeen, WaitNumber, WaitsSeen};
use crate::store::remote::{Found, Record, Standing, StoredHolds, StoredIntent};

/// The first byte of the qualifiers of places.
pub(in crate::store::hbase) const PLACE: u8 = b's';
/// The first byte of the qualifiers of processes that wait.
pub(in crate::store::hbase) const INTENT: u8 = b'i';
pub(in crate::store::hbase) const TURN: &[u8] = b"r";
/// The first byte of the qualifiers of permits.
pub(in crate::store::hbase) const PERMIT: u8 = b'p';
pub(in crate::store::hbase) const PERMIT_NUMBER: u8 = b'q';
pub(in crate::store::hbase) const SIZE: &[u8] = b"n";
/// The value of [`TURN`].
pub(super) const TURN_LASTS: &[u8] = &[1];

/// The first byte of the value of a free place. Records begin with a higher byte.
pub(in crate::store::hbase) const FREE_PLACE: u8 = 1;
/// The first byte of the value of an intent.
const WAITS: u8 = 1;
/// The token of a base. It is no secret: nobody's lease has it.
const BASE_TOKEN: [u8; OwnerToken::LEN] = *b"shared-or-update";
/// The same of the base of permits.
const PERMITS_TOKEN: [u8; OwnerToken::LEN] = *b"semaphore-permit";

pub(super) fn place(place: u8) -> Vec<u8> {
    vec![PLACE, place]
}

pub(in crate::store::hbase) fn permit(number: u8) -> Vec<u8> {
    vec![PERMIT, number]
}

pub(super) fn permit_number(number: u8) -> Vec<u8> {
    vec![PERMIT_NUMBER, number]
}

pub(in crate::store::hbase) fn intent(number: WaitNumber) -> Vec<u8> {
    [&[INTENT][..], &u64::from(number).to_be_bytes()].concat()
}

/// Returns the number of a wait, if this version may use it.
fn wait_number(qualifier: &[u8]) -> Option<WaitNumber> {
    let number = qualifier.strip_prefix(&[INTENT])?.try_into().ok().map(u64::from_be_bytes)?;
    WaitNumber::try_from(number).ok()
}

/// The value of a place that was left, and below which nothing lasts longer.
pub(super) fn free_place(covers: Duration) -> Vec<u8> {
    let ms = u64::try_from(covers.as_millis()).unwrap_or(u64::MAX);
    [&[FREE_PLACE][..], &ms.to_be_bytes()].concat()
}

/// The test for a place that a record with this TTL can take.
pub(super) fn takes_place(ttl: Duration) -> LockCellTest {
    LockCellTest::UpTo(free_place(ttl))
}

/// The base of the holds with this number.
pub(in crate::store::hbase) fn base(number: u64, ttl: Duration) -> Record {
    Record::of_parts(&OwnerToken::from_bytes(BASE_TOKEN), ttl, &[]).numbered(number)
}

/// The base of permits of which the first one has the number `began`.
pub(in crate::store::hbase) fn permits_base(number: u64, ttl: Duration, began: u64) -> Record {
    Record::of_parts(&OwnerToken::from_bytes(PERMITS_TOKEN), ttl, &began.to_be_bytes()).numbered(number)
}

/// Returns the number of the first permit that this base stands for. `None` if it is no base of permits with this number, to the
/// last byte.
fn began(record: &Record, number: u64) -> Option<u64> {
    let began = record.identity_bytes().try_into().ok().map(u64::from_be_bytes)?;
    (*record == permits_base(number, record.ttl(), began)).then_some(began)
}

/// Whether this record of a permit is over. `last`: the row's number. `began`: that of the first permit beside the base, if there is
/// one. `granted`: that of the last grant of this permit. No permit has a higher number than the row, or none, so such a record is
/// of an unknown kind.
pub(super) fn is_over(record: &Record, last: Option<u64>, began: Option<u64>, granted: Option<u64>) -> bool {
    let Some((number, last)) = record.number().zip(last) else { return false };
    number <= last && (began.is_none_or(|began| number < began) || granted != Some(number))
}

/// Whether this is the base of the holds with this number, to the last byte: conditions compare it so.
fn is_base(record: &Record, number: u64) -> bool {
    *record == base(number, record.ttl())
}

/// Reads the value of a free place: how long what is below it may last. `None` if it is none. It agrees with the order of the
/// bytes, by which [`takes_place`] compares.
fn covered(value: &[u8]) -> Option<Duration> {
    let covers = value.strip_prefix(&[FREE_PLACE])?;
    let mut ms = [0; 8];
    let known = covers.len().min(ms.len());
    ms[..known].copy_from_slice(&covers[..known]);
    let appended = u64::from(covers.len() > ms.len());
    Some(Duration::from_millis(u64::from_be_bytes(ms).saturating_add(appended)))
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
    /// If that is the base of permits, the number of the first of them.
    pub(super) permits_began: Option<u64>,
    /// Of a semaphore.
    pub(super) size: Option<u16>,
    /// The holds, what waits, and the turn.
    pub(super) stored: StoredHolds,
    /// Places with a record of an earlier number, or without a base.
    pub(super) leftovers: Vec<(Vec<u8>, Vec<u8>)>,
    /// Free places that have a cell, with how long what is below it may last.
    pub(super) free: Vec<(u8, Duration)>,
    /// Permits, each with the number of its last grant.
    pub(super) permits: Vec<(u8, u64)>,
    pub(super) waits: WaitsSeen,
    /// Places that were chosen since the row was read.
    pub(super) chosen: Vec<u8>,
}

impl OwnRow {
    pub(super) fn of(cells: OwnCells) -> OwnRow {
        let OwnCells { number, record, beside } = cells;
        let mut row = OwnRow { number, ..OwnRow::default() };
        if let Some(cell) = record.filter(|cell| cell.value != FREE) {
            row.read_record(cell);
        }
        let granted = |BesideCell { qualifier, cell }: &BesideCell| match qualifier.as_slice() {
            [PERMIT_NUMBER, permit] => {
                Some((*permit, u64::from_be_bytes(cell.value.as_slice().try_into().ok()?)))
            }
            _ => None,
        };
        row.permits = beside.iter().filter_map(granted).collect();
        for BesideCell { qualifier, cell } in beside {
            row.read_beside(qualifier, cell);
        }
        row
    }

    fn read_record(&mut self, cell: Cell) {
        // One with a place does not belong here: nobody could change it.
        let record = Record::decode(cell.value.as_slice()).filter(|record| record.place().is_none());
        match record.as_ref().and_then(Record::number) {
            Some(number) if self.number.is_some_and(|last| number < last) => self.outlived = Some(cell.value),
            Some(number)
                if record.as_ref().is_some_and(|it| is_base(it, number)) && self.number == Some(number) =>
            {
                self.base = record;
            }
            Some(number)
                if self.number == Some(number)
                    && record.as_ref().and_then(|it| began(it, number)).is_some() =>
            {
                self.permits_began = record.as_ref().and_then(|it| began(it, number));
                self.base = record;
            }
            _ => self.stored.holds.push(Found::written(record, cell.written_ms)),
        }
    }

    /// Reads a cell beside number and record, which were read before.
    fn read_beside(&mut self, qualifier: Vec<u8>, cell: Cell) {
        if let Some(number) = wait_number(&qualifier) {
            let WaitsSeen { over, open } = &mut self.waits;
            if cell.value == FREE { over.push(number) } else { open.push(number) }
        }
        match qualifier.as_slice() {
            _ if cell.value == FREE => {}
            [PLACE, place] => match (covered(&cell.value), Record::decode(cell.value.as_slice())) {
                (Some(covers), _) => self.free.push((*place, covers)),
                (None, record) => {
                    let is_here = |it: &Record| it.place() == Some(*place) && it.mode() != Mode::Permit;
                    match record.filter(is_here) {
                        Some(record) if self.is_leftover(&record) => {
                            self.leftovers.push((qualifier, cell.value));
                        }
                        record => self.stored.holds.push(Found::written(record, cell.written_ms)),
                    }
                }
            },
            [PERMIT, permit] => {
                let is_here = |it: &Record| it.place() == Some(*permit) && it.mode() == Mode::Permit;
                match Record::decode(cell.value.as_slice()).filter(is_here) {
                    Some(record)
                        if is_over(&record, self.number, self.permits_began, self.granted(*permit)) =>
                    {
                        self.leftovers.push((qualifier, cell.value));
                    }
                    record => self.stored.holds.push(Found::written(record, cell.written_ms)),
                }
            }
            [PERMIT_NUMBER, _] if cell.value.len() == 8 => {}
            SIZE if cell.value.len() == 2 => {
                self.size = cell.value.as_slice().try_into().ok().map(u16::from_be_bytes);
            }
            TURN => self.stored.has_turn = true,
            [INTENT, ..] => self.stored.intents.push(IntentCell::read(&cell)),
            // Of a later version.
            _ => self.stored.holds.push(Found::written(None, cell.written_ms)),
        }
    }

    /// A hold of an earlier number is over, and so is one without its base: somebody has broken the base. No hold has a higher
    /// number than the row, or none, so such a record is of an unknown kind.
    fn is_leftover(&self, record: &Record) -> bool {
        record
            .number()
            .zip(self.number)
            .is_some_and(|(number, last)| number < last || (number == last && self.base.is_none()))
    }

    /// Returns the base, if it is one of readers.
    pub(super) fn readers(&self) -> Option<&Record> {
        self.base.as_ref().filter(|_| self.permits_began.is_none())
    }

    /// Returns the base, if it is one of permits, and the size.
    pub(super) fn permits_seen(&self) -> Option<PermitsSeen> {
        self.base.clone().filter(|_| self.permits_began.is_some()).map(|base| (base, self.size))
    }

    /// Returns the number of the last grant of this permit.
    pub(super) fn granted(&self, permit: u8) -> Option<u64> {
        self.permits.iter().find(|(granted, _)| *granted == permit).map(|(_, number)| *number)
    }

    /// Returns what holds nothing any more in the cell of this permit.
    pub(super) fn left_of_permit(&self, permit: u8) -> Option<&[u8]> {
        let qualifier = self::permit(permit);
        self.leftovers.iter().find(|(left, _)| *left == qualifier).map(|(_, value)| value.as_slice())
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

    /// Returns a place for a new record, and the TTL that the record needs there at least: `preferred` if it needs no longer one.
    /// `draw` chooses among equals: among free places if there are [`MANY_FREE`], so that rows do not fill with them, or else among
    /// unused ones, so that processes rarely choose the same one. `None` if all places are taken.
    pub(super) fn free_place(
        &self,
        ttl: Duration,
        preferred: Option<u8>,
        draw: impl Fn(usize) -> usize,
    ) -> Option<(u8, Duration)> {
        let taken = |place: u8| {
            let is_at = |found: &Found| found.record.as_ref().and_then(Record::place) == Some(place);
            self.stored.holds.iter().any(is_at)
                || self.chosen.contains(&place)
                || self.leftovers.iter().any(|(qualifier, _)| *qualifier == self::place(place))
        };
        let covers = |place: u8| self.free.iter().find(|(free, _)| *free == place).map(|(_, covers)| *covers);
        if let Some(place) =
            preferred.filter(|it| !taken(*it) && covers(*it).is_none_or(|covers| covers <= ttl))
        {
            return Some((place, ttl));
        }
        let fits = |(place, covers): &&(u8, Duration)| !taken(*place) && *covers <= ttl;
        let free: Vec<u8> = self.free.iter().filter(fits).map(|(place, _)| *place).collect();
        if free.len() >= MANY_FREE {
            return Some((free[draw(free.len())], ttl));
        }
        let absent: Vec<u8> = (0..=u8::MAX).filter(|it| !taken(*it) && covers(*it).is_none()).collect();
        if !absent.is_empty() {
            return Some((absent[draw(absent.len())], ttl));
        }
        // Nothing that this library writes lasts longer than a number.
        let free = self.free.iter().filter(|(it, covers)| !taken(*it) && *covers <= FENCE_TTL);
        let shortest = free.min_by_key(|(_, covers)| *covers);
        shortest.map(|(place, covers)| (*place, ttl.max(*covers)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: u64 = 772;
    const TTL: Duration = Duration::from_millis(258);
    /// [`NUMBER`] and [`TTL`] in cells.
    const NUMBER_BYTES: [u8; 8] = [0, 0, 0, 0, 0, 0, 3, 4];
    const TTL_BYTES: [u8; 8] = [0, 0, 0, 0, 0, 0, 1, 2];

    fn record(mode: Mode, at: u8, number: u64) -> Record {
        let token = OwnerToken::from_bytes([at; OwnerToken::LEN]);
        Record::of_parts(&token, TTL, b"").placed(mode, at).numbered(number)
    }

    fn cell(value: &[u8]) -> Cell {
        Cell { value: value.to_vec(), written_ms: wall_ms() }
    }

    fn row(number: Option<u64>, record: Option<&[u8]>, beside: &[(&[u8], &[u8])]) -> OwnRow {
        let beside = beside
            .iter()
            .map(|(qualifier, value)| BesideCell { qualifier: qualifier.to_vec(), cell: cell(value) });
        OwnRow::of(OwnCells { number, record: record.map(cell), beside: beside.collect() })
    }

    /// A row with the base of its number and these cells beside it.
    fn beside_base(beside: &[(&[u8], &[u8])]) -> OwnRow {
        row(Some(NUMBER), Some(base(NUMBER, TTL).as_bytes()), beside)
    }

    /// Returns how many holds are known, and how many are of an unknown kind.
    fn holds(row: &OwnRow) -> (usize, usize) {
        let known = row.stored.holds.iter().filter(|found| found.record.is_some()).count();
        (known, row.stored.holds.len() - known)
    }

    /// They stand in tables, and older and later versions read them.
    #[test]
    fn the_bytes_of_every_cell_stay_as_they_are() {
        assert_eq!(place(7), b"s\x07");
        assert_eq!(TURN, b"r");
        assert_eq!(TURN_LASTS, [1]);
        assert_eq!(intent(0xfe), b"i\x00\x00\x00\x00\x00\x00\x00\xfe");
        assert_eq!(free_place(TTL), [&[1][..], &TTL_BYTES].concat());
        assert_eq!(
            base(NUMBER, TTL).as_bytes(),
            [&b"M\x02shared-or-update"[..], &TTL_BYTES, &NUMBER_BYTES].concat()
        );
        assert_eq!([permit(7), permit_number(7), SIZE.to_vec()], [&b"p\x07"[..], b"q\x07", b"n"]);
        assert_eq!(
            permits_base(NUMBER, TTL, 772).as_bytes(),
            [&b"M\x02semaphore-permit"[..], &TTL_BYTES, &NUMBER_BYTES, &NUMBER_BYTES].concat()
        );
        let identity = [&[0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9, 4][..], b"host", &[1], b"p"].concat();
        let waits = IntentCell {
            waited: Duration::from_millis(772),
            lasts: TTL,
            identity: Identity::decode(&identity).unwrap(),
        };
        assert_eq!(waits.encode(), [&[1][..], &NUMBER_BYTES, &TTL_BYTES, &identity].concat());
    }

    #[test]
    fn a_base_is_one_to_the_last_byte_and_of_the_number_of_the_row() {
        let is_base = |value: &[u8]| row(Some(NUMBER), Some(value), &[]).base.is_some();
        let right = base(NUMBER, TTL);
        assert!(is_base(right.as_bytes()) && is_base(base(NUMBER, 2 * TTL).as_bytes()));
        // A condition compares the whole value, so one that is longer could never be joined or renewed.
        for wrong in [&[right.as_bytes(), b"x"].concat()[..], base(NUMBER + 1, TTL).as_bytes()] {
            assert!(!is_base(wrong));
            assert_eq!(holds(&row(Some(NUMBER), Some(wrong), &[])).0, 1, "it is a holder");
        }
        let earlier = row(Some(NUMBER), Some(base(NUMBER - 1, TTL).as_bytes()), &[]);
        assert!(earlier.base.is_none() && earlier.outlived.is_some() && holds(&earlier) == (0, 0));
        let without_number = row(None, Some(right.as_bytes()), &[]);
        assert!(without_number.base.is_none() && holds(&without_number) == (1, 0));
    }

    #[test]
    fn a_base_alone_is_no_holder() {
        assert_eq!(beside_base(&[]).standing(), Standing::Free);
        let held = beside_base(&[(b"s\x03", record(Mode::Shared, 3, NUMBER).as_bytes())]);
        assert!(matches!(held.standing(), Standing::Held(_)));
    }

    /// What a later version or a stranger has written excludes everybody.
    #[test]
    fn cells_of_semaphores_that_no_version_writes_are_holds_of_an_unknown_kind() {
        let of_permits = permits_base(NUMBER, TTL, NUMBER);
        let permit = record(Mode::Permit, 3, NUMBER);
        let number = NUMBER.to_be_bytes();
        let beside = |cells: &[(&[u8], &[u8])]| row(Some(NUMBER), Some(of_permits.as_bytes()), cells);
        let right = beside(&[(b"n", &[0, 5]), (b"p\x03", permit.as_bytes()), (b"q\x03", &number)]);
        assert_eq!((holds(&right), right.size), ((1, 0), Some(5)));
        let table: [(&[u8], &[u8]); 10] = [
            (b"n", &[5]),
            (b"n", &[0, 0, 5]),
            (b"q\x03", &[1; 7]),
            (b"q", &number),
            (b"q\x03\x00", &number),
            (b"p\x03", b"garbage"),
            (b"p\x04", permit.as_bytes()),
            (b"p", permit.as_bytes()),
            (b"p\x03\x00", permit.as_bytes()),
            (b"s\x03", permit.as_bytes()),
        ];
        for (qualifier, value) in table {
            assert_eq!(holds(&beside(&[(qualifier, value)])), (0, 1), "{qualifier:?} {value:?}");
        }
        // A reader's record is no permit, and the base of one kind is not that of the other.
        let shared = record(Mode::Shared, 3, NUMBER);
        assert_eq!(holds(&beside(&[(b"p\x03", shared.as_bytes())])), (0, 1));
        assert_eq!(beside(&[(b"s\x03", shared.as_bytes())]).readers(), None);
        assert!(right.permits_seen().is_some() && beside_base(&[]).permits_seen().is_none());
    }

    /// With the base of the row's number: what each place holds.
    #[test]
    fn a_place_has_a_hold_or_is_free_or_has_a_record_that_is_over() {
        let shared = record(Mode::Shared, 3, NUMBER);
        let bytes = |mode, at, number| record(mode, at, number).as_bytes().to_vec();
        // (value of place 3, (known holds, unknown holds), free, records that are over)
        let table = [
            (vec![], (0, 0), 0, 0),
            (free_place(TTL), (0, 0), 1, 0),
            (bytes(Mode::Shared, 3, NUMBER), (1, 0), 0, 0),
            (bytes(Mode::Update, 3, NUMBER), (1, 0), 0, 0),
            (bytes(Mode::Shared, 3, NUMBER - 1), (0, 0), 0, 1),
            // A later number, none, another place, no place, cut, of later versions, garbage.
            (bytes(Mode::Shared, 3, NUMBER + 1), (1, 0), 0, 0),
            (bytes(Mode::Shared, 3, 0), (1, 0), 0, 0),
            (bytes(Mode::Shared, 4, NUMBER), (0, 1), 0, 0),
            (bytes(Mode::Exclusive, 3, NUMBER), (0, 1), 0, 0),
            (shared.as_bytes()[..20].to_vec(), (0, 1), 0, 0),
            (b"M\x13later".to_vec(), (0, 1), 0, 0),
            (vec![0], (0, 1), 0, 0),
            (vec![2], (0, 1), 0, 0),
            (vec![0xff, 0xff], (0, 1), 0, 0),
        ];
        for (value, held, free, over) in table {
            let row = beside_base(&[(b"s\x03", &value)]);
            let found = (holds(&row), row.free.len(), row.leftovers.len());
            assert_eq!(found, (held, free, over), "{value:?}");
        }
    }

    /// Somebody has broken the base, with a version that knows nothing of the holds.
    #[test]
    fn a_hold_without_its_base_is_over() {
        let value = record(Mode::Shared, 3, NUMBER);
        for lock in [None, Some(FREE)] {
            let row = row(Some(NUMBER), lock, &[(b"s\x03", value.as_bytes())]);
            assert_eq!((holds(&row), row.leftovers.len()), ((0, 0), 1));
            assert_eq!(row.standing_of(&value), Standing::Free);
        }
    }

    #[test]
    fn a_cell_of_an_unknown_kind_is_a_holder_and_an_intent_or_a_turn_is_none() {
        for qualifier in [&b""[..], b"x", b"s", b"s\x03\x04", b"F\x00", b"L2", b"r2"] {
            assert_eq!(holds(&beside_base(&[(qualifier, b"\x01")])), (0, 1), "{qualifier:?}");
        }
        let of_earlier_version = b"i\x01\x02\x03\x04\x05\x06\x07\x08";
        let cells: [(&[u8], &[u8]); 3] =
            [(&intent(1), b"\x02of a later version"), (&intent(2), b""), (of_earlier_version, b"\x01")];
        let waiting = beside_base(&cells);
        assert_eq!((holds(&waiting), waiting.stored.intents.len()), ((0, 0), 2));
        assert_eq!(waiting.waits, WaitsSeen { over: vec![2], open: vec![1] });
        assert!(waiting.stored.intent().is_some());
        assert!(beside_base(&[(TURN, TURN_LASTS)]).stored.has_turn);
        assert!(!beside_base(&[(TURN, b"")]).stored.has_turn);
    }

    /// It would be a hold that nobody can release.
    #[test]
    fn a_record_with_a_place_where_the_exclusive_one_belongs_is_of_an_unknown_kind() {
        let shared = record(Mode::Shared, 3, NUMBER);
        assert_eq!(holds(&row(Some(NUMBER), Some(shared.as_bytes()), &[])), (0, 1));
    }

    /// The condition compares bytes, so a place that is read as free must sort as it was read.
    #[test]
    fn what_a_free_place_covers_is_read_as_it_is_compared() {
        let values = [
            vec![1],
            vec![1, 0, 0, 0, 0, 0, 0, 1],
            free_place(TTL),
            [free_place(TTL), vec![0]].concat(),
            free_place(TTL + Duration::from_millis(1)),
            free_place(Duration::MAX),
        ];
        assert!(values.is_sorted());
        for value in &values {
            for ttl in [Duration::ZERO, TTL, TTL + Duration::from_millis(1), FENCE_TTL] {
                let LockCellTest::UpTo(limit) = takes_place(ttl) else { panic!("another test") };
                assert_eq!(*value <= limit, covered(value).unwrap() <= ttl, "{value:?} {ttl:?}");
            }
        }
        assert_eq!(covered(b""), None);
        assert_eq!(covered(record(Mode::Shared, 3, NUMBER).as_bytes()), None);
    }

    #[test]
    fn rows_do_not_fill_with_free_places() {
        let free = |count: usize| {
            let cells: Vec<_> = (0..count as u8).map(|at| (place(at), free_place(TTL))).collect();
            let beside: Vec<_> = cells.iter().map(|(at, value)| (at.as_slice(), value.as_slice())).collect();
            beside_base(&beside)
        };
        let last = |count: usize| count - 1;
        assert_eq!(free(MANY_FREE - 1).free_place(TTL, None, last), Some((u8::MAX, TTL)), "an unused one");
        assert_eq!(free(MANY_FREE).free_place(TTL, None, last), Some((MANY_FREE as u8 - 1, TTL)));
        let shorter = TTL - Duration::from_millis(1);
        assert_eq!(free(MANY_FREE).free_place(shorter, None, last), Some((u8::MAX, shorter)));
    }

    #[test]
    fn a_new_record_gets_a_place_that_nothing_is_below_or_the_one_that_covers_least() {
        let first = |_| 0;
        let seconds = Duration::from_secs;
        let mut cells: Vec<(Vec<u8>, Vec<u8>)> =
            (0..=u8::MAX).map(|at| (place(at), free_place(seconds(100 + u64::from(at))))).collect();
        let read = |cells: &[(Vec<u8>, Vec<u8>)]| {
            let beside: Vec<_> = cells.iter().map(|(at, value)| (at.as_slice(), value.as_slice())).collect();
            beside_base(&beside)
        };
        cells[2].1 = record(Mode::Shared, 2, NUMBER).as_bytes().to_vec();
        cells[3].1 = record(Mode::Shared, 3, NUMBER - 1).as_bytes().to_vec();
        // More than any record lasts for.
        cells[0].1 = free_place(FENCE_TTL + seconds(1));
        assert_eq!(read(&cells).free_place(seconds(5), None, first), Some((1, seconds(101))));
        assert_eq!(
            read(&cells).free_place(seconds(500), Some(9), first),
            Some((9, seconds(500))),
            "preferred"
        );
        assert_eq!(
            read(&cells).free_place(seconds(5), Some(9), first),
            Some((1, seconds(101))),
            "covers more"
        );
        assert_eq!(read(&cells).free_place(seconds(500), None, first), Some((1, seconds(500))));
        let all_but_9: Vec<_> = cells.iter().filter(|(at, _)| at[1] != 9).cloned().collect();
        assert_eq!(read(&all_but_9).free_place(seconds(5), None, first), Some((9, seconds(5))));
        for (at, (_, value)) in (0..=u8::MAX).zip(&mut cells) {
            *value = record(Mode::Shared, at, NUMBER).as_bytes().to_vec();
        }
        assert_eq!(read(&cells).free_place(seconds(5), None, first), None);
    }
}
