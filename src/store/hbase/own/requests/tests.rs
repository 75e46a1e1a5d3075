//! What each change writes, beside what it is made, and what refuses it.

use std::collections::BTreeMap;

use super::*;
use crate::names::holder::Identity;
use crate::names::lock_name::LockName;
use crate::names::owner::OwnerToken;
use crate::store::INTENT_MAX;
use crate::store::hbase::cell_store::Cell;
use crate::store::hbase::own::own_row::IntentCell;
use crate::store::hbase::own_store::{BesideCell, OwnCells};

/// The number of the row.
const LAST: u64 = 700;
const NEXT: u64 = 701;
/// TTL of what stands, and of the base.
const LONG: Duration = Duration::from_secs(60);
/// TTL of what is written.
const SHORT: Duration = Duration::from_secs(10);
const NUMBER: &[u8] = b"F";
const LOCK: &[u8] = b"L";
const INTENT: &[u8] = b"i\0\0\0\0\0\0\0\x01";
const UNKNOWN: &[u8] = b"x";

/// The cells of a row that have not ended.
type Row = BTreeMap<Vec<u8>, Vec<u8>>;

/// A cell to write over those of a row. `None`: it is missing.
type Other = (&'static str, Vec<u8>, Option<Vec<u8>>);

fn hold(mode: Mode, at: u8, number: u64, ttl: Duration) -> Record {
    let token = OwnerToken::from_bytes([at; OwnerToken::LEN]);
    Record::of_parts(&token, ttl, b"").placed(mode, at).numbered(number)
}

fn shared(at: u8) -> Record {
    hold(Mode::Shared, at, LAST, LONG)
}

/// The record that is asked for: without number and place.
fn asked(mode: Mode) -> Record {
    hold(mode, 0, 0, SHORT)
}

fn cell_of(record: &Record) -> (Vec<u8>, Vec<u8>) {
    exactly(record)
}

fn row(number: u64, cells: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Row {
    let number = (NUMBER.to_vec(), number.to_be_bytes().to_vec());
    [number].into_iter().chain(cells).collect()
}

/// A row whose number has a base and these holds.
fn held_by(holds: &[&Record]) -> Row {
    let base = base(LAST, LONG);
    row(LAST, [cell_of(&base)].into_iter().chain(holds.iter().map(|it| cell_of(it))))
}

fn read(row: &Row) -> OwnRow {
    let cell = |value: &Vec<u8>| Cell { value: value.clone(), written_ms: crate::runtime::time::wall_ms() };
    let known = |it: &Vec<u8>| it == NUMBER || it == LOCK;
    let beside = row.iter().filter(|(qualifier, _)| !known(qualifier));
    OwnRow::of(OwnCells {
        number: row.get(NUMBER).map(|value| u64::from_be_bytes(value.as_slice().try_into().unwrap())),
        record: row.get(LOCK).map(cell),
        beside: beside
            .map(|(qualifier, value)| BesideCell { qualifier: qualifier.clone(), cell: cell(value) })
            .collect(),
    })
}

/// Whether a server would find that the condition holds. `native/own.rs` builds the filters that say the same.
fn holds(condition: &LockRowCondition, row: &Row) -> bool {
    let number = row.get(NUMBER).filter(|value| !value.is_empty());
    let is = |number: u64| number.to_be_bytes().to_vec();
    let numbered = match condition.number {
        NumberTest::Absent => return number.is_none(),
        NumberTest::Is(wanted) => number == Some(&is(wanted)),
        NumberTest::Below(limit) => number.is_some_and(|number| *number < is(limit)),
    };
    let tested = condition.cells.iter().all(|(qualifier, test)| {
        let value = row.get(qualifier).map_or(&[][..], Vec::as_slice);
        match test {
            LockCellTest::Is(wanted) => value == wanted,
            LockCellTest::Empty => value.is_empty(),
            LockCellTest::Filled => !value.is_empty(),
            LockCellTest::UpTo(limit) => value <= limit.as_slice(),
        }
    });
    let allowed = |allowed: &Allowed, qualifier: &Vec<u8>, value: &Vec<u8>| {
        let of_mode = |mode: &Mode| Record::begins(*mode).is_some_and(|begins| value.starts_with(&begins));
        match qualifier.first() {
            _ if value.is_empty() => true,
            _ if [NUMBER, LOCK, TURN].contains(&qualifier.as_slice()) => true,
            _ if allowed.exactly.contains(&(qualifier.clone(), value.clone())) => true,
            Some(&own_row::PLACE) => value[0] == own_row::FREE_PLACE || allowed.modes.iter().any(of_mode),
            Some(&own_row::INTENT) => allowed.intents,
            _ => false,
        }
    };
    let all = condition.allows.as_ref().is_none_or(|it| row.iter().all(|(at, cell)| allowed(it, at, cell)));
    numbered && tested && all
}

/// Returns the condition without each of its parts.
fn weakened(condition: &LockRowCondition) -> Vec<(String, LockRowCondition)> {
    if condition.number == NumberTest::Absent {
        // Nothing else is looked at.
        return Vec::new();
    }
    let mut weaker = Vec::new();
    let mut add = |what: String, change: &dyn Fn(&mut LockRowCondition)| {
        let mut condition = condition.clone();
        change(&mut condition);
        weaker.push((what, condition));
    };
    add("the number".into(), &|it| it.number = NumberTest::Below(u64::MAX));
    for at in 0..condition.cells.len() {
        add(format!("the test of {:?}", condition.cells[at].0), &|it| drop(it.cells.remove(at)));
    }
    if let Some(allows) = &condition.allows {
        add("the list of cells".into(), &|it| it.allows = None);
        for mode in [Mode::Shared, Mode::Update].into_iter().filter(|mode| !allows.modes.contains(mode)) {
            add(format!("that there is no {mode}"), &|it| {
                it.allows.iter_mut().for_each(|it| it.modes.push(mode));
            });
        }
        if !allows.intents {
            add("that nobody waits".into(), &|it| {
                it.allows.iter_mut().for_each(|it| it.intents = true);
            });
        }
    }
    weaker
}

/// Asserts that the change is made in `row` with each of the cells in `passes`, and not with any of those in `refused`, and
/// that each part of the condition is needed for one of them.
#[track_caller]
fn check(step: &LockRowStep, row: &Row, passes: &[Other], refused: &[Other]) {
    let with = |(_, qualifier, value): &Other| {
        let mut row = row.clone();
        match value {
            Some(value) => drop(row.insert(qualifier.clone(), value.clone())),
            None => drop(row.remove(qualifier)),
        }
        row
    };
    assert!(holds(&step.condition, row), "refused in the row that it is for");
    for other in passes {
        assert!(holds(&step.condition, &with(other)), "refused beside {}", other.0);
    }
    for other in refused {
        assert!(!holds(&step.condition, &with(other)), "made beside {}", other.0);
    }
    for (part, weaker) in weakened(&step.condition) {
        assert!(
            refused.iter().any(|other| holds(&weaker, &with(other))),
            "no case needs {part}, so it can be left out"
        );
    }
    if step.condition.number != NumberTest::Absent {
        let without_number = ("", NUMBER.to_vec(), None);
        assert!(!holds(&step.condition, &with(&without_number)), "made in a row without a number");
    }
}

fn number(what: &'static str, number: u64) -> Other {
    (what, NUMBER.to_vec(), Some(number.to_be_bytes().to_vec()))
}

fn other(what: &'static str, record: &Record) -> Other {
    let (qualifier, value) = cell_of(record);
    (what, qualifier, Some(value))
}

fn with(what: &'static str, qualifier: &[u8], value: &[u8]) -> Other {
    (what, qualifier.to_vec(), Some(value.to_vec()))
}

fn gone(what: &'static str, qualifier: &[u8]) -> Other {
    (what, qualifier.to_vec(), None)
}

/// Cells beside which any change of a hold is made.
fn harmless() -> Vec<Other> {
    vec![
        with("a free place that covers much", &place(200), &free_place(100 * LONG)),
        with("a free place of a later version", &place(200), &[&free_place(LONG)[..], b"x"].concat()),
        with("an empty cell of an unknown kind", UNKNOWN, b""),
        with("an intent that has ended", INTENT, FREE),
        with("a turn", TURN, TURN_LASTS),
    ]
}

/// Cells that exclude any change that looks at all of them.
fn unknown() -> Vec<Other> {
    vec![
        with("a cell of an unknown kind", UNKNOWN, b"M"),
        with("a hold of an unknown mode", &place(200), b"M\x13"),
        with("an exclusive record in a place", &place(200), b"M\x02"),
        with("garbage in a place", &place(200), b"\x00"),
        with("other garbage", &place(200), b"\xff"),
    ]
}

fn all(parts: &[&[Other]]) -> Vec<Other> {
    parts.concat()
}

fn puts(step: &LockRowStep) -> Vec<(Vec<u8>, Vec<u8>, Duration)> {
    step.cells.iter().map(|it| (it.qualifier.clone(), it.value.clone(), it.ttl)).collect()
}

fn new<'a>(record: &'a Record, passing: &'a Passing) -> NewMember<'a> {
    NewMember { record, place: (5, SHORT), turn: None, passing, leftovers: &[] }
}

/// What a place must not have if a record is to be written there.
fn taken() -> Vec<Other> {
    vec![
        other("a reader in the same place", &shared(5)),
        with("a place that covers more", &place(5), &free_place(SHORT + Duration::from_millis(1))),
    ]
}

#[test]
fn a_hold_joins_those_of_one_number_beside_their_base() {
    let record = asked(Mode::Shared);
    let step = new(&record, &Passing::None).joins((LAST, LONG));
    let written = record.placed(Mode::Shared, 5).numbered(LAST);
    let base = base(LAST, LONG);
    assert_eq!((step.step.number, &step.record), (LAST, &written));
    assert_eq!(
        puts(&step.step),
        [(LOCK.to_vec(), base.as_bytes().to_vec(), LONG), (place(5), written.as_bytes().to_vec(), SHORT)]
    );
    assert_eq!(step.base_ttl, Some(LONG));
    let refused = [
        number("the next number", NEXT),
        number("an earlier number", LAST - 1),
        with("a lock that is free: the number is over", LOCK, FREE),
        gone("a lock whose base has ended", LOCK),
        other("an exclusive hold", &hold(Mode::Exclusive, 0, LAST, LONG)),
        other("a base that lasts longer: it would be shortened", &own_row::base(LAST, 2 * LONG)),
        with("a process that waits", INTENT, b"\x01"),
    ];
    let passes = [
        other("an updater", &hold(Mode::Update, 4, LAST, LONG)),
        with("its place, free", &place(5), &free_place(SHORT)),
        with("its place, empty", &place(5), b""),
    ];
    let row = held_by(&[&shared(3)]);
    check(&step.step, &row, &all(&[&passes, &harmless()]), &all(&[&refused, &taken(), &unknown()]));

    let update = asked(Mode::Update);
    let step = new(&update, &Passing::None).joins((LAST, LONG));
    let updater = [other("another updater", &hold(Mode::Update, 4, LAST, LONG))];
    check(&step.step, &row, &harmless(), &all(&[&refused, &updater, &taken(), &unknown()]));
}

/// What would stand in the way of one of them stands in the way of all.
#[test]
fn several_holds_join_in_one_change() {
    let records = [asked(Mode::Shared), hold(Mode::Shared, 9, 0, 2 * LONG)];
    let steps = [(5, SHORT), (6, 2 * LONG)].map(|(place, ttl)| {
        let record = &records[usize::from(place == 6)];
        let new = NewMember { place: (place, ttl), ..new(record, &Passing::None) };
        vec![new.joins((LAST, LONG)), new.begins(NEXT)]
    });
    let [join, begin] = join_together(&steps).try_into().unwrap();
    let written = |number: u64| {
        [(5, &records[0]), (6, &records[1])]
            .map(|(at, record)| record.placed(Mode::Shared, at).numbered(number))
    };
    let longest = Some(2 * LONG);
    assert_eq!((join.step.number, join.records, join.base_ttl), (LAST, written(LAST).to_vec(), longest));
    assert_eq!((begin.step.number, begin.records, begin.base_ttl), (NEXT, written(NEXT).to_vec(), longest));
    let expected = |number: u64| {
        let base = (LOCK.to_vec(), base(number, 2 * LONG).as_bytes().to_vec(), 2 * LONG);
        let holds = written(number).map(|it| (column(&it), it.as_bytes().to_vec(), it.ttl()));
        [vec![base], holds.to_vec()].concat()
    };
    assert_eq!(puts(&join.step), expected(LAST));
    assert_eq!(puts(&begin.step), expected(NEXT));
    let refused = [
        number("the next number", NEXT),
        with("a lock that is free: the number is over", LOCK, FREE),
        other("an exclusive hold", &hold(Mode::Exclusive, 0, LAST, LONG)),
        with("a process that waits", INTENT, b"\x01"),
        other("a reader in the other place", &shared(6)),
        with("the other place, which covers more", &place(6), &free_place(3 * LONG)),
    ];
    let row = held_by(&[&shared(3)]);
    check(&join.step, &row, &harmless(), &all(&[&refused, &taken(), &unknown()]));
}

#[test]
fn several_holds_leave_in_one_change() {
    let stored = [shared(3), shared(4)];
    let [alone, beside] = release_together(&stored, LAST).try_into().unwrap();
    let free = [3, 4].map(|at| (place(at), free_place(LONG), FENCE_TTL));
    assert_eq!(puts(&alone), [vec![(LOCK.to_vec(), vec![], FENCE_TTL)], free.to_vec()].concat());
    assert_eq!(puts(&beside), free);
    let not_ours = [
        number("a later number", NEXT),
        with("the first of them has left", &place(3), &free_place(LONG)),
        with("the second one has left", &place(4), &free_place(LONG)),
    ];
    let others =
        [other("another reader", &shared(5)), other("an updater", &hold(Mode::Update, 5, LAST, LONG))];
    let row = held_by(&[&stored[0], &stored[1]]);
    check(&alone, &row, &harmless(), &all(&[&not_ours, &others, &unknown()]));
    check(&beside, &row, &all(&[&others, &harmless(), &unknown()]), &not_ours);
}

/// A base that ends first would let in a version that looks at it only.
#[test]
fn a_base_lasts_as_long_as_the_longest_hold() {
    let record = asked(Mode::Shared).renewed(3 * LONG);
    let join = NewMember { place: (5, 3 * LONG), ..new(&record, &Passing::None) }.joins((LAST, LONG));
    let renewed = shared(3).renewed(2 * LONG);
    let renewal = renew(&shared(3), &renewed, (LAST, LONG));
    let update = hold(Mode::Update, 3, LAST, LONG);
    let share = share(&update, &asked(Mode::Shared).renewed(2 * LONG), (LAST, LONG)).unwrap();
    // A base that lasts longer stands for another hold.
    let beside_longer = renew(&shared(3), &renewed, (LAST, 5 * LONG));
    let joins_longer = NewMember { place: (5, LONG), ..new(&record, &Passing::None) }.joins((LAST, 5 * LONG));
    let steps = [
        (join.step, 3 * LONG),
        (renewal, 2 * LONG),
        (share.step, 2 * LONG),
        (beside_longer, 5 * LONG),
        (joins_longer.step, 5 * LONG),
    ];
    for (step, ttl) in steps {
        let base = base(LAST, ttl).as_bytes().to_vec();
        assert_eq!(puts(&step)[0], (LOCK.to_vec(), base, ttl));
    }
}

#[test]
fn a_reader_passes_who_waits_in_a_turn_or_inside_of_its_own_hold_only() {
    let (record, outer) = (asked(Mode::Shared), shared(3));
    let mut row = held_by(&[&outer]);
    row.insert(INTENT.to_vec(), b"\x01".to_vec());
    let joins = |passing: &Passing| new(&record, passing).joins((LAST, LONG)).step.condition;
    assert!(!holds(&joins(&Passing::None), &row));
    assert!(holds(&joins(&Passing::All), &row));
    assert!(holds(&joins(&Passing::Nested(outer.clone())), &row));
    assert!(!holds(&joins(&Passing::Nested(outer.renewed(2 * LONG))), &row), "it has ended");
    assert!(!holds(&joins(&Passing::InTurn), &row), "no turn lasts");
    row.insert(TURN.to_vec(), TURN_LASTS.to_vec());
    assert!(holds(&joins(&Passing::InTurn), &row));
    // None of them passes a hold.
    row.insert(place(9), b"M\x13".to_vec());
    for passing in [Passing::All, Passing::InTurn, Passing::Nested(outer)] {
        assert!(!holds(&joins(&passing), &row), "{passing:?}");
    }
    let turn = NewMember { turn: Some(2 * TURN_MAX), ..new(&record, &Passing::All) };
    let opened = turn.joins((LAST, LONG));
    assert_eq!(puts(&opened.step)[2], (TURN.to_vec(), vec![1], TURN_MAX));
}

#[test]
fn a_first_hold_begins_a_number_in_a_free_lock() {
    let record = asked(Mode::Shared);
    let step = new(&record, &Passing::None).begins(NEXT);
    let written = record.placed(Mode::Shared, 5).numbered(NEXT);
    let expected = [
        (LOCK.to_vec(), base(NEXT, SHORT).as_bytes().to_vec(), SHORT),
        (place(5), written.as_bytes().to_vec(), SHORT),
    ];
    assert_eq!((step.step.number, puts(&step.step)), (NEXT, expected.to_vec()));
    let refused = [
        number("the same number", NEXT),
        other("the base of others", &base(LAST, LONG)),
        other("an exclusive hold", &hold(Mode::Exclusive, 0, LAST, LONG)),
        with("a process that waits", INTENT, b"\x01"),
    ];
    let row = row(LAST, [(LOCK.to_vec(), FREE.to_vec())]);
    let passes = [gone("a missing record", LOCK)];
    let update = [other("an updater whose base was broken", &hold(Mode::Update, 4, LAST, LONG))];
    check(&step.step, &row, &all(&[&passes, &update, &harmless()]), &all(&[&refused, &taken(), &unknown()]));
    // As it was read, it is known to be over.
    let over = [cell_of(&hold(Mode::Update, 4, LAST, LONG))];
    let asked = asked(Mode::Update);
    let step = NewMember { leftovers: &over, ..new(&asked, &Passing::None) }.begins(NEXT);
    check(
        &step.step,
        &row,
        &update,
        &all(&[
            &refused,
            &taken(),
            &unknown(),
            &[other("another updater", &hold(Mode::Update, 6, LAST, LONG))],
        ]),
    );
}

#[test]
fn a_first_hold_begins_a_number_over_a_record_that_is_over() {
    let (record, outlived) = (asked(Mode::Shared), hold(Mode::Exclusive, 0, LAST - 1, LONG));
    let step = new(&record, &Passing::None).begins_over(outlived.as_bytes(), LAST, NEXT);
    assert_eq!(step.step.number, NEXT);
    let refused = [
        number("another number", LAST + 9),
        with("an empty record: it covers what is below", LOCK, FREE),
        other("an exclusive hold", &hold(Mode::Exclusive, 0, LAST, LONG)),
        with("a process that waits", INTENT, b"\x01"),
    ];
    let row = row(LAST, [cell_of(&outlived)]);
    check(&step.step, &row, &harmless(), &all(&[&refused, &taken(), &unknown()]));
}

#[test]
fn a_row_without_a_number_has_never_had_a_hold() {
    let record = asked(Mode::Shared);
    let step = new(&record, &Passing::None).begins_first(NEXT);
    check(&step.step, &Row::new(), &[], &[number("a number", 1)]);
    assert_eq!((step.step.number, step.record.number()), (NEXT, Some(NEXT)));
}

#[test]
fn a_renewal_needs_its_record_its_number_and_the_base_as_it_was_seen() {
    let (stored, beside) = (shared(3), shared(4));
    let renewed = stored.renewed(2 * LONG);
    let step = renew(&stored, &renewed, (LAST, LONG));
    assert_eq!(step.number, LAST);
    assert_eq!(puts(&step)[1], (place(3), renewed.as_bytes().to_vec(), 2 * LONG));
    let refused = [
        number("a later number", NEXT),
        other("a base that lasts longer", &base(LAST, 3 * LONG)),
        with("a broken base", LOCK, FREE),
        other("a version of the record that lasts longer", &stored.renewed(3 * LONG)),
        with("a place that was left", &place(3), &free_place(LONG)),
        gone("a record that has ended", &place(3)),
    ];
    // It excludes nobody new, so it need not look at others.
    let passes = all(&[&[with("a process that waits", INTENT, b"\x01")], &harmless(), &unknown()]);
    check(&step, &held_by(&[&stored, &beside]), &passes, &refused);
}

#[test]
fn the_last_hold_to_go_frees_the_lock_and_no_other_does() {
    let stored = shared(3);
    let [alone, beside] = release(&stored, LAST).try_into().unwrap();
    let free = (place(3), free_place(LONG), FENCE_TTL);
    assert_eq!(puts(&alone), [(LOCK.to_vec(), vec![], FENCE_TTL), free.clone()]);
    assert_eq!(puts(&beside), [free]);
    assert_eq!((alone.number, beside.number), (LAST, LAST));
    let not_ours = [
        number("a later number", NEXT),
        other("another version of the record", &stored.renewed(2 * LONG)),
        with("a place that was left", &place(3), &free_place(LONG)),
    ];
    let others =
        [other("another reader", &shared(4)), other("an updater", &hold(Mode::Update, 4, LAST, LONG))];
    let waits = [with("a process that waits", INTENT, b"\x01")];
    let row = held_by(&[&stored]);
    check(&alone, &row, &all(&[&waits, &harmless()]), &all(&[&not_ours, &others, &unknown()]));
    check(&beside, &row, &all(&[&waits, &others, &harmless(), &unknown()]), &not_ours);
}

#[test]
fn an_exclusive_hold_steps_down_where_nobody_else_is() {
    let held = hold(Mode::Exclusive, 0, LAST, LONG);
    let record = asked(Mode::Shared);
    let over = [cell_of(&hold(Mode::Shared, 9, LAST - 1, LONG))];
    let step = step_down(&held, &record, (5, SHORT), NEXT + 3, &over).unwrap();
    let number_after = NEXT + 3;
    let written = record.placed(Mode::Shared, 5).numbered(number_after);
    let expected = [
        (LOCK.to_vec(), base(number_after, SHORT).as_bytes().to_vec(), SHORT),
        (place(5), written.as_bytes().to_vec(), SHORT),
    ];
    assert_eq!((step.step.number, puts(&step.step)), (number_after, expected.to_vec()));
    let refused = [
        number("a later number", NEXT),
        other("another version of the record", &held.renewed(2 * LONG)),
        with("a lock that was broken", LOCK, FREE),
        other("a reader", &shared(4)),
        other("an updater", &hold(Mode::Update, 4, LAST, LONG)),
    ];
    let passes = [
        with("a process that waits", INTENT, b"\x01"),
        other("a record that is known to be over", &hold(Mode::Shared, 9, LAST - 1, LONG)),
    ];
    let row = row(LAST, [cell_of(&held)]);
    check(&step.step, &row, &all(&[&passes, &harmless()]), &all(&[&refused, &taken(), &unknown()]));
    assert!(step_down(&held.numbered(0), &record, (5, SHORT), NEXT, &[]).is_none());
    let next = step_down(&held, &record, (5, SHORT), 1, &[]).unwrap();
    assert_eq!(next.step.number, NEXT, "a step down begins a number, whatever the clock says");
}

#[test]
fn an_updater_becomes_a_reader_of_the_same_number_in_its_place() {
    let held = hold(Mode::Update, 3, LAST, LONG);
    let step = share(&held, &asked(Mode::Shared), (LAST, LONG)).unwrap();
    let written = asked(Mode::Shared).renewed(LONG).placed(Mode::Shared, 3).numbered(LAST);
    assert_eq!(step.record, written);
    assert_eq!(puts(&step.step)[1], (place(3), written.as_bytes().to_vec(), LONG));
    let refused = [
        number("a later number", NEXT),
        other("a base that lasts longer", &base(LAST, 2 * LONG)),
        other("another version of the record", &held.renewed(2 * LONG)),
    ];
    let passes = [other("a reader", &shared(4)), with("a process that waits", INTENT, b"\x01")];
    check(&step.step, &held_by(&[&held]), &all(&[&passes, &harmless(), &unknown()]), &refused);
}

#[test]
fn an_updater_becomes_exclusive_where_nobody_else_is_and_ends_its_wait() {
    let held = hold(Mode::Update, 3, LAST, LONG);
    let over = [cell_of(&hold(Mode::Shared, 9, LAST - 1, LONG))];
    let ends = (1, Some(1));
    let step = upgrade(&held, &asked(Mode::Exclusive), (LAST, LONG), ends, &over);
    let written = asked(Mode::Exclusive).placed(Mode::Exclusive, 0).numbered(NEXT);
    let expected = [
        (LOCK.to_vec(), written.as_bytes().to_vec(), SHORT),
        (place(3), free_place(LONG), FENCE_TTL),
        (INTENT.to_vec(), vec![], FENCE_TTL),
    ];
    assert_eq!((step.step.number, puts(&step.step)), (NEXT, expected.to_vec()));
    let refused = [
        number("a later number", NEXT),
        other("a base that lasts longer", &base(LAST, 2 * LONG)),
        with("a broken base", LOCK, FREE),
        with("a place that was left", &place(3), &free_place(LONG)),
        other("another version of the record", &held.renewed(2 * LONG)),
        other("a reader", &shared(4)),
        other("an updater", &hold(Mode::Update, 4, LAST, LONG)),
    ];
    let passes = [
        with("a process that waits", INTENT, b"\x01"),
        other("a record that is known to be over", &hold(Mode::Shared, 9, LAST - 1, LONG)),
    ];
    let row = held_by(&[&held]);
    check(&step.step, &row, &all(&[&passes, &harmless()]), &all(&[&refused, &unknown()]));
    let ahead = upgrade(&held, &asked(Mode::Exclusive), (LAST, LONG), (NEXT + 5, None), &[]);
    assert_eq!((ahead.step.number, ahead.step.cells.len()), (NEXT + 5, 2));
}

#[test]
fn a_base_whose_holds_are_gone_is_passed_by_an_exclusive_creation_and_freed() {
    let mut row = held_by(&[]);
    let over = hold(Mode::Update, 9, LAST - 1, LONG);
    row.extend([cell_of(&over)]);
    let condition = deserted(&self::read(&row)).unwrap();
    let freed = free(&self::read(&row)).unwrap();
    assert_eq!((&freed.condition, freed.number), (&condition, LAST));
    assert_eq!(puts(&freed), [(LOCK.to_vec(), vec![], FENCE_TTL)]);
    let refused = [
        number("a later number", NEXT),
        other("a base that lasts longer", &base(LAST, 2 * LONG)),
        other("a reader", &shared(4)),
        other("an updater", &hold(Mode::Update, 4, LAST, LONG)),
    ];
    let passes = [with("a process that waits", INTENT, b"\x01")];
    let step = LockRowStep { condition, number: NEXT, cells: Vec::new() };
    check(&step, &row, &all(&[&passes, &harmless()]), &all(&[&refused, &unknown()]));
    for held in [held_by(&[&shared(3)]), self::row(LAST, []), Row::new()] {
        assert_eq!((deserted(&self::read(&held)), free(&self::read(&held))), (None, None));
    }
}

#[test]
fn a_probe_is_refused_beside_any_cell_of_a_hold() {
    let step = probe(LAST, SHORT);
    let refused = [
        number("a later number", NEXT),
        other("a base", &base(LAST, LONG)),
        with("a place that covers more", &place(0), &free_place(LONG)),
        other("a reader", &shared(4)),
        other("an updater", &hold(Mode::Update, 4, LAST, LONG)),
        with("a process that waits", INTENT, b"\x01"),
    ];
    check(&step, &row(LAST, []), &harmless(), &all(&[&refused, &unknown()]));
}

/// The guess of `modes.rs` sends both in one request, and so does who has read the row.
#[test]
fn of_a_guess_and_of_a_release_one_step_is_made_at_most() {
    let record = asked(Mode::Shared);
    let new = new(&record, &Passing::None);
    let guess = vec![new.joins((LAST, LONG)).step, new.begins(NEXT).step];
    let stored = shared(3);
    let read = joins_of(&held_by(&[&stored]), &record, None).unwrap();
    let read = read.into_iter().map(|step| step.step).collect();
    let cases = [
        (read, vec![held_by(&[&stored]), row(LAST, [(LOCK.to_vec(), FREE.to_vec())])]),
        (guess, vec![held_by(&[&stored]), row(LAST, [(LOCK.to_vec(), FREE.to_vec())])]),
        (release(&stored, LAST), vec![held_by(&[&stored]), held_by(&[&stored, &shared(4)])]),
    ];
    for (steps, rows) in cases {
        for mut row in rows {
            let mut made = 0;
            for step in &steps {
                if holds(&step.condition, &row) {
                    made += 1;
                    row.extend(step.cells.iter().map(|it| (it.qualifier.clone(), it.value.clone())));
                    row.insert(NUMBER.to_vec(), step.number.to_be_bytes().to_vec());
                }
            }
            assert_eq!(made, 1);
        }
    }
}

fn join_of(row: &Row, record: &Record, nested_in: Option<&Record>) -> Result<HoldStep, Box<Holder>> {
    joins_of(row, record, nested_in).map(|mut steps| steps.swap_remove(0))
}

fn joins_of(row: &Row, record: &Record, nested_in: Option<&Record>) -> Result<Vec<HoldStep>, Box<Holder>> {
    let name = LockName::from_key("XDC#tests#a").unwrap();
    let asked = Join { name: &name, record, least: NEXT + 3, nested_in, turn: None };
    join(&self::read(row), &asked, None, |_| 0)
}

#[test]
fn what_was_read_decides_which_change_adds_a_hold() {
    let record = asked(Mode::Shared);
    let free = row(LAST, [(LOCK.to_vec(), FREE.to_vec())]);
    let over = row(LAST, [cell_of(&hold(Mode::Exclusive, 0, LAST - 1, LONG))]);
    let broken = row(LAST, [cell_of(&shared(3)), cell_of(&hold(Mode::Update, 4, LAST, LONG))]);
    let deserted = held_by(&[]);
    let cases = [
        ("beside a reader", held_by(&[&shared(3)]), LAST),
        ("beside a base alone", deserted, LAST),
        ("in a free lock", free, NEXT + 3),
        ("over a record that is over", over, NEXT + 3),
        ("over a base that was broken", broken, NEXT + 3),
        ("in an unused row", Row::new(), NEXT + 3),
    ];
    for (what, row, number) in &cases {
        let step = join_of(row, &record, None).unwrap();
        assert!(holds(&step.step.condition, row), "{what}: its own condition refuses it");
        assert_eq!((step.step.number, step.record.number()), (*number, Some(*number)), "{what}");
    }
    let exclusive = row(LAST, [cell_of(&hold(Mode::Exclusive, 0, LAST, LONG))]);
    let updater = held_by(&[&hold(Mode::Update, 3, LAST, LONG)]);
    assert!(join_of(&exclusive, &record, None).is_err());
    assert!(join_of(&updater, &record, None).is_ok());
    assert!(join_of(&updater, &asked(Mode::Update), None).is_err());
    for (what, qualifier, value) in unknown() {
        let mut row = held_by(&[]);
        row.extend(value.map(|value| (qualifier, value)));
        assert!(join_of(&row, &record, None).is_err(), "let in beside {what}");
    }
}

#[test]
fn who_waits_keeps_readers_out_but_not_one_inside_of_its_own_hold() {
    let (record, outer) = (asked(Mode::Shared), shared(3));
    let mut row = held_by(&[&outer]);
    let identity = Identity::this_process("tests").unwrap();
    let waits = IntentCell { waited: SHORT, lasts: INTENT_MAX, identity }.encode();
    row.insert(INTENT.to_vec(), waits);
    assert!(join_of(&row, &record, None).is_err_and(|holder| holder.is_waiting));
    assert!(join_of(&row, &asked(Mode::Update), Some(&outer)).is_err_and(|holder| holder.is_waiting));
    let nested = join_of(&row, &record, Some(&outer)).unwrap();
    assert!(holds(&nested.step.condition, &row));
    row.remove(&place(3));
    assert!(!holds(&nested.step.condition, &row), "its own hold has ended");
    row.insert(TURN.to_vec(), TURN_LASTS.to_vec());
    let in_turn = join_of(&row, &record, None).unwrap();
    assert!(holds(&in_turn.step.condition, &row));
    row.remove(TURN);
    assert!(!holds(&in_turn.step.condition, &row), "the turn is over");
}

#[test]
fn the_257th_hold_is_refused_as_held() {
    let all: Vec<_> = (0..=u8::MAX).map(shared).collect();
    let row = held_by(&all.iter().collect::<Vec<_>>());
    let holder = join_of(&row, &asked(Mode::Shared), None).unwrap_err();
    assert_eq!(holder.mode, Mode::Shared);
    let mut row = row;
    row.insert(place(77), free_place(2 * LONG));
    let step = join_of(&row, &asked(Mode::Shared), None).unwrap();
    assert_eq!((step.record.place(), step.record.ttl()), (Some(77), 2 * LONG));
}
