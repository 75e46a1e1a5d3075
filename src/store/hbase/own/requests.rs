//! The changes of a lock in several modes: each is one conditional mutation of its row.
//!
//! ```text
//! first      F < n, L empty, others compatible               -> place: record of n, L: base of n, F: n
//! join       F == e, L == base of e, others compatible       -> place: record of e, L: base of e, F: e
//! renew      F == e, L == base of e, place == record         -> place: record, L: base, F: e
//! step down  F == m, L == record of m, no other holds        -> place: record of n, L: base of n, F: n
//! share      F == e, L == base of e, place == record         -> place: record of e, L: base, F: e
//! upgrade    F == e, L == base of e, place == record, no other holds
//!                                                            -> place: free, L: record of n, F: n
//! release    F == e, place == record, no other holds         -> place: free, L: empty, F: e
//!            F == e, place == record                         -> place: free, F: e
//! free       F == e, L == base of e, no holds                -> L: empty, F: e
//! exclusive  F == e, L == base of e, no holds                -> L: record of n, F: n
//! ```
//!
//! n is a new number, above F. A new record also requires that its place is free, and that nothing below it lasts longer. A
//! base lasts for the longest TTL of all records of its number, and is compared with its TTL, so that no change shortens it. A
//! reader also requires that nobody waits exclusively, or that a turn lasts, or that the hold it is nested in stands.
//!
//! Holds of one process that join or leave at the same time do so in one change. It requires what each of them requires, and does
//! what they would do one after another with nothing in between.
//!
//! An exclusive creation with L empty is that of `mod.rs`: where no base is, there are no holds.
//!
//! `tests/models/src/modes` is the model of these changes. It does not have `free`, which is an exclusive creation and its release
//! in one step.

use std::time::Duration;

use super::own_row::{self, OwnRow, TURN, TURN_LASTS, base, free_place, permit, place, takes_place};
use crate::names::holder::Holder;
use crate::names::mode::Mode;
use crate::store::TURN_MAX;
use crate::store::hbase::layout::{FREE, OWN_LOCK};
use crate::store::hbase::locks::FENCE_TTL;
use crate::store::hbase::own_store::{
    Allowed, LockCellTest, LockCellWrite, LockRowCondition, LockRowStep, NumberTest,
};
use crate::store::hbase::row_hints::{BaseSeen, WaitNumber};
use crate::store::remote::{Join, Record};

/// How a new hold passes the processes that wait exclusively.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Passing {
    /// Only if there are none.
    None,
    All,
    /// While a turn of the readers lasts.
    InTurn,
    /// Inside of this hold, while it stands.
    Nested(Record),
}

/// A change that makes a new hold or replaces one, with the record that it writes and the base that stands then.
#[derive(Debug, Clone)]
pub(super) struct HoldStep {
    pub(super) step: LockRowStep,
    pub(super) record: Record,
    /// `None`: an exclusive record stands.
    pub(super) base_ttl: Option<Duration>,
}

/// The same for several new holds.
#[derive(Debug, Clone)]
pub(super) struct HoldsStep {
    pub(super) step: LockRowStep,
    pub(super) records: Vec<Record>,
    pub(super) base_ttl: Option<Duration>,
}

fn lock() -> Vec<u8> {
    OWN_LOCK.qualifier.into()
}

/// The column of a record.
pub(super) fn column(record: &Record) -> Vec<u8> {
    match (record.mode(), record.place()) {
        (Mode::Permit, Some(number)) => permit(number),
        (_, Some(at)) => place(at),
        (_, None) => lock(),
    }
}

pub(super) fn put(qualifier: Vec<u8>, value: &[u8], ttl: Duration) -> LockCellWrite {
    LockCellWrite { qualifier, value: value.to_vec(), ttl }
}

pub(super) fn put_record(record: &Record) -> LockCellWrite {
    put(column(record), record.as_bytes(), record.ttl())
}

fn put_base((number, ttl): BaseSeen) -> LockCellWrite {
    put_record(&base(number, ttl))
}

/// The cell lasts for long, because it stops HBase: behind a cell whose time is over it reads all those below one by one, which
/// were over long before. One process leaves millions of them between two flushes.
fn leave(record: &Record) -> LockCellWrite {
    put(column(record), &free_place(record.ttl()), FENCE_TTL)
}

/// Ends an intent. The empty cell lasts for as long as that of a place that was [left](leave), for the same reason.
pub(in crate::store::hbase) fn end_intent(wait: WaitNumber) -> LockCellWrite {
    put(own_row::intent(wait), FREE, FENCE_TTL)
}

fn begin_turn(turn: Option<Duration>) -> Option<LockCellWrite> {
    turn.map(|turn| put(TURN.to_vec(), TURN_LASTS, turn.clamp(Duration::from_millis(1), TURN_MAX)))
}

pub(super) fn stands(record: &Record) -> (Vec<u8>, LockCellTest) {
    (column(record), LockCellTest::Is(record.as_bytes().to_vec()))
}

fn is_base((number, ttl): BaseSeen) -> (Vec<u8>, LockCellTest) {
    stands(&base(number, ttl))
}

fn exactly(record: &Record) -> (Vec<u8>, Vec<u8>) {
    (column(record), record.as_bytes().to_vec())
}

fn compatible(mode: Mode) -> Vec<Mode> {
    let beside = |other: &Mode| *other != Mode::Exclusive && mode.is_compatible_with(*other);
    Mode::ALL.into_iter().filter(beside).collect()
}

/// What a new hold asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewMember<'a> {
    /// The record, with its mode.
    pub(super) record: &'a Record,
    /// Its place, and its least TTL there.
    pub(super) place: (u8, Duration),
    pub(super) turn: Option<Duration>,
    pub(super) passing: &'a Passing,
    /// Cells that hold nothing any more.
    pub(super) leftovers: &'a [(Vec<u8>, Vec<u8>)],
}

impl NewMember<'_> {
    fn record_of(&self, number: u64) -> Record {
        let (place, ttl) = self.place;
        self.record.renewed(ttl).placed(self.record.mode(), place).numbered(number)
    }

    fn allows(&self) -> Allowed {
        let intents = *self.passing != Passing::None;
        Allowed {
            modes: compatible(self.record.mode()),
            permits: 0,
            intents,
            exactly: self.leftovers.to_vec(),
        }
    }

    fn tests(&self, record: &Record) -> Vec<(Vec<u8>, LockCellTest)> {
        let own = (place(self.place.0), takes_place(record.ttl()));
        let passing = match self.passing {
            Passing::None | Passing::All => None,
            Passing::InTurn => Some((TURN.to_vec(), LockCellTest::Filled)),
            Passing::Nested(outer) => Some(stands(outer)),
        };
        [own].into_iter().chain(passing).collect()
    }

    fn step(
        &self,
        number: NumberTest,
        base: BaseSeen,
        of_lock: Option<(Vec<u8>, LockCellTest)>,
        record: Record,
    ) -> HoldStep {
        let mut cells = self.tests(&record);
        cells.extend(of_lock);
        let condition = LockRowCondition { number, cells, allows: Some(self.allows()) };
        let mut writes = vec![put_base(base), put_record(&record)];
        writes.extend(begin_turn(self.turn));
        HoldStep {
            step: LockRowStep { condition, number: base.0, cells: writes },
            record,
            base_ttl: Some(base.1),
        }
    }

    /// Joins the holds of this base.
    pub(super) fn joins(&self, seen: BaseSeen) -> HoldStep {
        let record = self.record_of(seen.0);
        let base = (seen.0, seen.1.max(record.ttl()));
        self.step(NumberTest::Is(seen.0), base, Some(is_base(seen)), record)
    }

    /// Begins the number, in a row whose `L` is empty and whose number is lower.
    pub(super) fn begins(&self, number: u64) -> HoldStep {
        let record = self.record_of(number);
        let base = (number, record.ttl());
        self.step(NumberTest::Below(number), base, Some((lock(), LockCellTest::Empty)), record)
    }

    /// Begins the number over a record of an earlier number than `last`.
    pub(super) fn begins_over(&self, outlived: &[u8], last: u64, number: u64) -> HoldStep {
        let record = self.record_of(number);
        let base = (number, record.ttl());
        let seen = Some((lock(), LockCellTest::Is(outlived.to_vec())));
        self.step(NumberTest::Is(last), base, seen, record)
    }

    /// Begins the number, in a row that has none.
    pub(super) fn begins_first(&self, number: u64) -> HoldStep {
        let record = self.record_of(number);
        let base = (number, record.ttl());
        self.step(NumberTest::Absent, base, None, record)
    }
}

/// Returns the changes that may add a hold to the row that was read, or what stands in its way. `draw` chooses a place if
/// the preferred one is not free.
pub(super) fn join(
    row: &OwnRow,
    join: &Join<'_>,
    preferred: Option<u8>,
    draw: impl Fn(usize) -> usize,
) -> Result<Vec<HoldStep>, Box<Holder>> {
    let (mode, ttl) = (join.record.mode(), join.record.ttl());
    if let Some(holder) = row.stored.blocker(mode, join.nested_in, join.turn.is_some()) {
        return Err(holder.into());
    }
    let Some(free) = row.free_place(ttl, preferred, draw) else {
        let first = row.stored.holds.iter().min_by_key(|it| it.left);
        return Err(first.map_or_else(Holder::unknown, |it| it.holder()).into());
    };
    let outer = join.nested_in.filter(|_| mode == Mode::Shared).and_then(|outer| row.stored.own(outer));
    // A turn that lasts is not prolonged.
    let turn = join.turn.filter(|turn| !turn.is_zero() && !row.stored.has_turn);
    let passing = match outer {
        _ if row.stored.intents.is_empty() => Passing::None,
        _ if row.stored.has_turn => Passing::InTurn,
        _ if join.turn.is_some() => Passing::All,
        Some(outer) => Passing::Nested(outer.clone()),
        None => Passing::None,
    };
    let new =
        NewMember { record: join.record, place: free, turn, passing: &passing, leftovers: &row.leftovers };
    let next = row.number.map_or(join.least, |last| join.least.max(last.saturating_add(1)));
    Ok(match (&row.base, row.number, &row.outlived) {
        // The last of the permits has left, and its base stands.
        (Some(base), Some(last), _) if row.permits_began.is_some() => {
            vec![new.begins_over(base.as_bytes(), last, next)]
        }
        // The last of the holds may have left since. Between readers who come and go all the time, one of the two is right.
        (Some(base), Some(number), _) => vec![new.joins((number, base.ttl())), new.begins(next)],
        (_, Some(last), Some(outlived)) => vec![new.begins_over(outlived, last, next)],
        (_, Some(_), None) => vec![new.begins(next)],
        (_, None, _) => vec![new.begins_first(next)],
    })
}

/// Puts the alternatives for each of several new holds together, so that one change makes all holds. They are for the same row
/// as it was seen, of one kind, and have different places.
pub(super) fn join_together(holds: &[Vec<HoldStep>]) -> Vec<HoldsStep> {
    let alternatives = holds.iter().map(Vec::len).min().unwrap_or_default();
    let all = |at: usize| {
        let steps: Vec<_> = holds.iter().map(|steps| &steps[at]).collect();
        HoldsStep {
            step: together(steps.iter().map(|it| &it.step)),
            records: steps.iter().map(|it| it.record.clone()).collect(),
            base_ttl: steps.iter().filter_map(|it| it.base_ttl).max(),
        }
    };
    (0..alternatives).map(all).collect()
}

/// Returns the two ways to release several holds of one number, as [`release`] does for one.
pub(super) fn release_together(stored: &[Record], number: u64) -> Vec<LockRowStep> {
    let all: Vec<_> = stored.iter().map(|record| release(record, number)).collect();
    (0..2).map(|at| together(all.iter().map(|steps| &steps[at]))).collect()
}

/// Puts changes of one row, which differ in their holds only, into one.
///
/// # Panics
/// If there are none.
fn together<'a>(mut steps: impl Iterator<Item = &'a LockRowStep>) -> LockRowStep {
    let mut all = steps.next().expect("a change").clone();
    for step in steps {
        debug_assert_eq!((all.condition.number, all.number), (step.condition.number, step.number));
        for test in &step.condition.cells {
            if !all.condition.cells.contains(test) {
                all.condition.cells.push(test.clone());
            }
        }
        let exactly = step.condition.allows.iter().flat_map(|allows| &allows.exactly);
        if let Some(allows) = &mut all.condition.allows {
            allows.exactly.extend(exactly.cloned());
        }
        for cell in &step.cells {
            match all.cells.iter_mut().find(|other| other.qualifier == cell.qualifier) {
                // The base lasts as long as the longest of the holds.
                Some(other) if other.ttl < cell.ttl => *other = cell.clone(),
                Some(_) => {}
                None => all.cells.push(cell.clone()),
            }
        }
    }
    all
}

/// Returns the renewal of a hold, beside this base.
pub(in crate::store::hbase) fn renew(stored: &Record, renewed: &Record, seen: BaseSeen) -> LockRowStep {
    let base = (seen.0, seen.1.max(renewed.ttl()));
    let cells = vec![is_base(seen), stands(stored)];
    let condition = LockRowCondition { number: NumberTest::Is(seen.0), cells, allows: None };
    LockRowStep { condition, number: seen.0, cells: vec![put_base(base), put_record(renewed)] }
}

/// Returns the two ways to release a hold: as the last one, which frees the lock, and beside others.
pub(super) fn release(stored: &Record, number: u64) -> Vec<LockRowStep> {
    let condition =
        |allows| LockRowCondition { number: NumberTest::Is(number), cells: vec![stands(stored)], allows };
    let alone = Allowed { intents: true, exactly: vec![exactly(stored)], ..Allowed::default() };
    vec![
        LockRowStep {
            condition: condition(Some(alone)),
            number,
            cells: vec![put(lock(), FREE, FENCE_TTL), leave(stored)],
        },
        LockRowStep { condition: condition(None), number, cells: vec![leave(stored)] },
    ]
}

/// Returns the change of an exclusive hold, whose record this is, into one of fewer rights at this place.
pub(super) fn step_down(
    held: &Record,
    record: &Record,
    (at, ttl): (u8, Duration),
    least: u64,
    leftovers: &[(Vec<u8>, Vec<u8>)],
) -> Option<HoldStep> {
    let last = held.number()?;
    let number = least.max(last.saturating_add(1));
    let record = record.renewed(ttl).placed(record.mode(), at).numbered(number);
    let allows = Allowed { intents: true, exactly: leftovers.to_vec(), ..Allowed::default() };
    let condition = LockRowCondition {
        number: NumberTest::Is(last),
        cells: vec![stands(held), (place(at), takes_place(record.ttl()))],
        allows: Some(allows),
    };
    let cells = vec![put_base((number, record.ttl())), put_record(&record)];
    let base_ttl = Some(record.ttl());
    Some(HoldStep { step: LockRowStep { condition, number, cells }, record, base_ttl })
}

/// Returns the change of an update hold into a shared one, at the same place.
pub(super) fn share(held: &Record, record: &Record, seen: BaseSeen) -> Option<HoldStep> {
    let record = record.renewed(held.ttl()).placed(record.mode(), held.place()?).numbered(held.number()?);
    let base_ttl = Some(seen.1.max(record.ttl()));
    Some(HoldStep { step: renew(held, &record, seen), record, base_ttl })
}

/// Returns the change of an update hold into an exclusive one.
pub(super) fn upgrade(
    held: &Record,
    record: &Record,
    seen: BaseSeen,
    (least, wait): (u64, Option<WaitNumber>),
    leftovers: &[(Vec<u8>, Vec<u8>)],
) -> HoldStep {
    let number = least.max(seen.0.saturating_add(1));
    let record = record.placed(Mode::Exclusive, 0).numbered(number);
    let exactly = [exactly(held)].into_iter().chain(leftovers.iter().cloned()).collect();
    let condition = LockRowCondition {
        number: NumberTest::Is(seen.0),
        cells: vec![is_base(seen), stands(held)],
        allows: Some(Allowed { intents: true, exactly, ..Allowed::default() }),
    };
    let mut cells = vec![put_record(&record), leave(held)];
    cells.extend(wait.map(end_intent));
    HoldStep { step: LockRowStep { condition, number, cells }, record, base_ttl: None }
}

/// Returns a change of a row that no lock has, under a condition of all kinds that the changes above have.
pub(super) fn probe(number: u64, ttl: Duration) -> LockRowStep {
    let cells = vec![(lock(), LockCellTest::Empty), (place(0), takes_place(ttl))];
    let condition =
        LockRowCondition { number: NumberTest::Is(number), cells, allows: Some(Allowed::default()) };
    LockRowStep { condition, number, cells: vec![put(lock(), FREE, ttl)] }
}

/// Returns the change that frees a lock with a base and without holds.
pub(super) fn free(row: &OwnRow) -> Option<LockRowStep> {
    let (condition, number) = (deserted(row)?, row.number?);
    Some(LockRowStep { condition, number, cells: vec![put(lock(), FREE, FENCE_TTL)] })
}

/// Returns what a change of a row with a base and without holds requires, so that there are none.
pub(super) fn deserted(row: &OwnRow) -> Option<LockRowCondition> {
    let (base, number) = (row.base.as_ref()?, row.number?);
    let allows = Allowed { intents: true, exactly: row.leftovers.clone(), ..Allowed::default() };
    let cells = vec![stands(base)];
    row.stored.holds.is_empty().then_some(LockRowCondition {
        number: NumberTest::Is(number),
        cells,
        allows: Some(allows),
    })
}

#[cfg(test)]
mod tests;
