//! Semaphores: permits beside each other, each in a cell of its own. Each change is one conditional mutation of the row.
//!
//! ```text
//! first    F == f, L as read, no holds, N == size or none     -> permits: records of n, L: base of n, N: size, F: n
//! join     F == f, L == base, N == size, permits below N only -> the same
//! renew    F == f, L == base, N == size, permit == record     -> permit: record, L: base, N: size, F: f
//! release  F == f, permit == record, no other holds           -> permit: free, L: empty, F: f
//!          F == f, permit == record                           -> permit: free, F: f
//! resize   F == f, N == size                                  -> N: the new size, F: f
//! ```
//!
//! The number of a permit stands in a cell of its own, too, which a grant and a renewal write and a renewal and a release compare.
//!
//! n is a new number, above F. So each grant has a fence of its own, and who has read a row knows that until F changes permits can
//! only go. The base of permits has the row's number like any other one, and says at which number the first of its permits began: a
//! permit counts if its number is not below that.

use super::own_row::{OwnRow, SIZE, permit, permit_number, permits_base};
use super::requests::{column, put, put_record, stands};
use crate::names::mode::Mode;
use crate::store::hbase::layout::FREE;
use crate::store::hbase::locks::FENCE_TTL;
use crate::store::hbase::own_store::{
    Allowed, LockCellTest, LockCellWrite, LockRowCondition, LockRowStep, NumberTest,
};
use crate::store::hbase::row_hints::PermitsSeen;
use crate::store::remote::{GrantPermits, NotGranted, Record};

/// A change that grants permits, with the records that it writes and the base that stands then.
pub(super) struct PermitsStep {
    pub(super) step: LockRowStep,
    pub(super) records: Vec<Record>,
    pub(super) base: Record,
}

fn size_cell(permits: u16) -> (Vec<u8>, Vec<u8>) {
    (SIZE.to_vec(), permits.to_be_bytes().to_vec())
}

fn put_size(permits: u16) -> LockCellWrite {
    let (qualifier, value) = size_cell(permits);
    LockCellWrite { qualifier, value, ttl: FENCE_TTL }
}

fn has_size(size: Option<u16>) -> (Vec<u8>, LockCellTest) {
    match size.map(size_cell) {
        Some((qualifier, value)) => (qualifier, LockCellTest::Is(value)),
        None => (SIZE.to_vec(), LockCellTest::Empty),
    }
}

/// Returns the change that grants permits in the row that was read, or why there are too few.
pub(super) fn grant(row: &OwnRow, asked: &GrantPermits<'_>) -> Result<PermitsStep, Box<NotGranted>> {
    let (free, holds) = (asked.choose(row.size, &row.stored)?, &row.stored.holds);
    let number = row.number.map_or(asked.least, |last| asked.least.max(last.saturating_add(1)));
    let granted = |(record, permit): (&Record, &u8)| record.placed(Mode::Permit, *permit).numbered(number);
    let records: Vec<_> = asked.records.iter().zip(&free).map(granted).collect();
    let lasts = records.iter().map(Record::ttl).max().unwrap_or_default();
    let base = match (&row.base, row.permits_began) {
        (Some(base), Some(began)) if !holds.is_empty() => permits_base(number, lasts.max(base.ttl()), began),
        _ => permits_base(number, lasts, number),
    };
    let of_lock = match (&row.base, &row.outlived) {
        (Some(base), _) => stands(base),
        (None, Some(outlived)) => (column(&base), LockCellTest::Is(outlived.clone())),
        (None, None) => (column(&base), LockCellTest::Empty),
    };
    let places = free.iter().map(|free| {
        let test = row.left_of_permit(*free).map(|left| LockCellTest::Is(left.to_vec()));
        (permit(*free), test.unwrap_or(LockCellTest::Empty))
    });
    let permits = if holds.is_empty() { 0 } else { asked.permits };
    let condition = LockRowCondition {
        number: row.number.map_or(NumberTest::Absent, NumberTest::Is),
        cells: [of_lock, has_size(row.size)].into_iter().chain(places).collect(),
        allows: Some(Allowed { permits, exactly: row.leftovers.clone(), ..Allowed::default() }),
    };
    let mut cells = vec![put_record(&base), put_size(asked.permits)];
    cells.extend(records.iter().map(put_record));
    cells.extend(free.iter().map(|free| put(permit_number(*free), &number.to_be_bytes(), FENCE_TTL)));
    Ok(PermitsStep { step: LockRowStep { condition, number, cells }, records, base })
}

/// The tests for a permit that counts beside this base.
fn counts(stored: &Record) -> [(Vec<u8>, LockCellTest); 2] {
    let (permit, number) = (stored.place().unwrap_or_default(), stored.number().unwrap_or_default());
    [stands(stored), (permit_number(permit), LockCellTest::Is(number.to_be_bytes().to_vec()))]
}

/// Returns the renewal of a permit beside this base. Its number and the size last as long as a number again: a lease may be renewed
/// for longer than that.
pub(in crate::store::hbase) fn renew_permit(
    stored: &Record,
    renewed: &Record,
    seen: &PermitsSeen,
) -> LockRowStep {
    let (base, size) = seen;
    let (number, permit) = (base.number().unwrap_or_default(), stored.place().unwrap_or_default());
    let granted = stored.number().unwrap_or_default().to_be_bytes();
    let cells = [stands(base), has_size(*size)].into_iter().chain(counts(stored)).collect();
    let condition = LockRowCondition { number: NumberTest::Is(number), cells, allows: None };
    let mut cells = vec![
        put_record(&base.renewed(renewed.ttl())),
        put_record(renewed),
        put(permit_number(permit), &granted, FENCE_TTL),
    ];
    cells.extend(size.map(put_size));
    LockRowStep { condition, number, cells }
}

/// Returns the two ways to release a permit of a row with this number: as the last one, which frees the lock, and beside others.
pub(super) fn release_permit(stored: &Record, number: u64) -> Vec<LockRowStep> {
    let condition = |allows| {
        let cells = counts(stored).to_vec();
        LockRowCondition { number: NumberTest::Is(number), cells, allows }
    };
    let exactly = vec![(column(stored), stored.as_bytes().to_vec())];
    let alone = Allowed { intents: true, exactly, ..Allowed::default() };
    // As long as the number, because it stops HBase, which reads all cells below one whose time is over.
    let free = put(column(stored), FREE, FENCE_TTL);
    let cells = vec![put(column(&permits_base(0, FENCE_TTL, 0)), FREE, FENCE_TTL), free.clone()];
    vec![
        LockRowStep { condition: condition(Some(alone)), number, cells },
        LockRowStep { condition: condition(None), number, cells: vec![free] },
    ]
}

/// Returns the change of a size. Permits that are held stay.
pub(super) fn resize(number: u64, size: u16, permits: u16) -> LockRowStep {
    let condition =
        LockRowCondition { number: NumberTest::Is(number), cells: vec![has_size(Some(size))], allows: None };
    LockRowStep { condition, number, cells: vec![put_size(permits)] }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::own_row::is_over;
    use super::*;
    use crate::names::owner::OwnerToken;

    #[test]
    fn a_permit_counts_beside_its_base_and_after_the_last_grant_of_it() {
        let record = |number| {
            let token = OwnerToken::from_bytes([1; OwnerToken::LEN]);
            Record::of_parts(&token, Duration::from_secs(1), &[]).placed(Mode::Permit, 3).numbered(number)
        };
        let cases = [
            (7, Some(7), 7, false),
            (8, Some(7), 8, false),
            (6, Some(7), 6, true),
            (8, None, 8, true),
            (8, Some(7), 9, true),
            (9, Some(7), 8, true),
            (10, None, 10, false),
        ];
        for (number, began, granted, expected) in cases {
            let is_over = is_over(&record(number), Some(9), began, Some(granted));
            assert_eq!(is_over, expected, "{number} {began:?} {granted}");
        }
        assert!(!is_over(&record(0), Some(9), Some(7), Some(7)), "it has no number");
        assert!(is_over(&record(8), Some(9), Some(7), None), "nobody was granted it");
        assert_eq!(column(&record(7)), permit(3));
    }

    /// A lease may be renewed for longer than a number lasts. Without it the permit would be free, and without the size another one
    /// would be accepted.
    #[test]
    fn a_renewal_lets_the_number_of_the_permit_and_the_size_last_on() {
        let token = OwnerToken::from_bytes([1; OwnerToken::LEN]);
        let stored =
            Record::of_parts(&token, Duration::from_secs(1), &[]).placed(Mode::Permit, 3).numbered(8);
        let renewed = stored.renewed(Duration::from_secs(2));
        let base = permits_base(9, Duration::from_secs(1), 7);
        let step = renew_permit(&stored, &renewed, &(base, Some(5)));
        let lasts: Vec<_> = step.cells.iter().map(|cell| (cell.qualifier.clone(), cell.ttl)).collect();
        for expected in
            [(permit_number(3), FENCE_TTL), (SIZE.to_vec(), FENCE_TTL), (permit(3), renewed.ttl())]
        {
            assert!(lasts.contains(&expected), "{expected:?} is not among {lasts:?}");
        }
        assert!(step.condition.cells.contains(&has_size(Some(5))));
    }
}
