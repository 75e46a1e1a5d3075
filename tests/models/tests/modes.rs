//! The modes of a lock: no property is broken in any state within the bounds. The long run has wider bounds.

use Kind::{Exclusive, Permit, Shared, Update};
use dlm_models::modes::{Crosswise, Kind, Model, Role, crosswise, model};
use dlm_models::{explore, is_long};
use stateright::Model as _;

const READER: Role = Role::of(&[Shared]);
const LONG_READER: Role = READER.asking_for(&[3]);
const NESTED: Role = READER.nested_in(0);
const WRITER: Role = Role::of(&[Exclusive]);
const UPDATER: Role = Role::of(&[Update]).converting(&[(Update, Shared), (Update, Exclusive)]);
const STEPS_DOWN: Role = WRITER.converting(&[(Exclusive, Shared), (Exclusive, Update)]);
const PERMIT: Role = Role::of(&[Permit]);
const OLD: Role = Role::old();

/// `reached`: what must be possible.
#[track_caller]
fn holds(name: &str, model: Model, reached: &[&str]) {
    let explored = explore(name, model);
    assert!(explored.broken.is_empty(), "{name}: {explored:?}");
    let missing = reached.iter().find(|it| explored.not_reached.contains(it));
    assert_eq!(missing, None, "{name}: {explored:?}");
}

#[test]
fn modes_exclude_each_other_with_lost_replies_and_late_requests() {
    let losses = if is_long() { 2 } else { 1 };
    let lossy = Model { losses, ..Model::SMALL };
    let renewed = Model { roles: &[READER, READER], renewals: 1, renewal_ttls: &[2, 3], ..lossy };
    holds("two readers, a renewal, lost replies", renewed, &[model::TWO_READERS]);
    let writer = Model { roles: &[READER, WRITER], tokens: 2, ..lossy };
    holds("a reader and a writer, lost replies", writer, &[model::WRITER_AFTER_READERS]);
    let updater = Model { roles: &[READER, UPDATER], conversions: 1, ..lossy };
    holds("a reader and an updater, lost replies", updater, &[model::READER_BESIDE_UPDATER, model::UPGRADED]);
    let down = Model { roles: &[READER, STEPS_DOWN], conversions: 1, ..lossy };
    holds("a reader and a step down, lost replies", down, &[model::JOINED]);
    if is_long() {
        let renewed = Model { losses: 1, renewals: 1, renewal_ttls: &[2, 3], ..lossy };
        holds(
            "an updater that renews",
            Model { conversions: 2, ..Model { roles: updater.roles, ..renewed } },
            &[],
        );
        holds(
            "two attempts of two readers",
            Model { roles: &[READER, READER], tokens: 2, losses: 1, ..lossy },
            &[],
        );
    }
}

#[test]
fn three_clients_of_three_modes_exclude_each_other() {
    let three = Model { roles: &[READER, UPDATER, WRITER], conversions: 1, ..Model::SMALL };
    holds("a reader, an updater and a writer", three, &[model::UPGRADED, model::WRITER_AFTER_READERS]);
    if is_long() {
        let down = Model { roles: &[READER, READER, STEPS_DOWN], ..three };
        holds("two readers and a step down", down, &[model::TWO_READERS, model::JOINED]);
        holds("a reader, an updater and a writer, a lost reply", Model { losses: 1, ..three }, &[]);
    }
}

#[test]
fn an_old_version_is_excluded_by_every_mode() {
    let losses = u8::from(is_long());
    let old = Model { losses, ..Model::SMALL };
    let renewed = Model { roles: &[READER, OLD], renewals: 1, renewal_ttls: &[2, 3], losses: 1, ..old };
    holds("a reader and an old version", renewed, &[model::OLD_HOLDS]);
    let three = Model { roles: &[READER, LONG_READER, OLD], ..old };
    holds("two readers and an old version", three, &[model::OLD_HOLDS, model::TWO_READERS]);
    let updater = Model { roles: &[UPDATER, OLD], conversions: 1, losses: 1, ..old };
    holds("an updater and an old version", updater, &[model::OLD_HOLDS]);
    let down = Model { roles: &[STEPS_DOWN, OLD], conversions: 1, losses: 1, ..old };
    holds("a step down and an old version", down, &[model::OLD_HOLDS]);
}

#[test]
fn clocks_that_are_slow_break_no_mode() {
    let long = is_long();
    let slow = Model { missed: if long { 2 } else { 1 }, ..Model::SMALL };
    let renewals = u8::from(long);
    holds("a reader and a writer, slow clocks", Model { roles: &[READER, WRITER], renewals, ..slow }, &[]);
    holds(
        "a reader and an updater, slow clocks",
        Model { roles: &[READER, UPDATER], conversions: 1, ..slow },
        &[],
    );
    holds(
        "a reader and a step down, slow clocks",
        Model { roles: &[READER, STEPS_DOWN], conversions: 1, ..slow },
        &[],
    );
    holds(
        "a reader and an old version, slow clocks",
        Model { roles: &[READER, OLD], renewals: 1, ..slow },
        &[],
    );
}

#[test]
fn a_receiver_accepts_accesses_in_the_order_of_the_grants() {
    let missed = if is_long() { 2 } else { 0 };
    let receiver = Model { accesses: true, missed, ..Model::SMALL };
    holds("a reader and a writer, accesses", Model { roles: &[READER, WRITER], ..receiver }, &[]);
    holds(
        "a reader and an updater, accesses",
        Model { roles: &[READER, UPDATER], conversions: 1, ..receiver },
        &[],
    );
    holds(
        "a reader and a step down, accesses",
        Model { roles: &[READER, STEPS_DOWN], conversions: 1, ..receiver },
        &[],
    );
}

#[test]
fn a_record_is_not_seen_again_after_its_release() {
    let mut one =
        Model { roles: &[READER], tokens: 3, ttls: &[2, 4], flushes: 1, ..Model::SMALL }.with_versions();
    one.rules.slots = 1;
    holds("one slot with versions, one reader", one, &[]);
    let (flushes, ttls): (_, &[u8]) = if is_long() { (1, &[2, 4]) } else { (0, &[2, 3]) };
    let two = Model { roles: &[READER, WRITER], tokens: 2, flushes, ttls, ..one };
    holds("one slot with versions, a reader and a writer", two, &[model::WRITER_AFTER_READERS]);
}

#[test]
fn permits_have_rising_numbers_and_unknown_kinds_are_holders() {
    let permits =
        Model { roles: &[PERMIT, PERMIT], renewals: 1, losses: u8::from(is_long()), ..Model::SMALL };
    holds("two permits", permits, &[model::PERMITS]);
    let unknown = Model { unknown: true, ..Model::SMALL };
    holds(
        "a holder of an unknown kind",
        Model { roles: &[READER, WRITER, OLD], ..unknown },
        &[model::OLD_HOLDS],
    );
}

#[test]
fn intents_and_turns_let_nobody_in_beside_a_writer() {
    let losses = u8::from(is_long());
    let intents = Model { intents: 1, turns: 1, losses, ..Model::SMALL };
    let nested = Model { roles: &[READER, NESTED, WRITER], turns: u8::from(is_long()), ..intents };
    holds("a nested reader and an intent", nested, &[model::PAST_AN_INTENT]);
    let turn = Model { roles: &[READER, WRITER], tokens: 2, ..intents };
    holds("a reader, an intent and a turn", turn, &[model::PAST_AN_INTENT]);
    let refused = explore("a reader and an intent", Model { turns: 0, ..turn });
    assert!(refused.broken.is_empty(), "{refused:?}");
    assert!(refused.not_reached.contains(&model::PAST_AN_INTENT), "{refused:?}");
}

/// See `without_turns_crosswise_readers_stand_for_ever`.
#[test]
fn with_turns_crosswise_readers_can_finish() {
    let explored = explore("crosswise with turns", Crosswise { turns: true });
    assert!(explored.broken.is_empty() && explored.not_reached.is_empty(), "{explored:?}");
    assert_eq!(Crosswise { turns: true }.properties()[1].name, crosswise::CAN_FINISH);
}
