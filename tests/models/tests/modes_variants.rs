//! Wrong protocols of modes. The checker must find a counterexample for each.

use Kind::{Exclusive, Permit, Shared, Update};
use dlm_models::modes::{Action, Crosswise, Kind, Model, Role, Variant, crosswise, model};
use dlm_models::{counterexample, explore};

const READER: Role = Role::of(&[Shared]);
const LONG_READER: Role = READER.asking_for(&[4]);
const SHORT_READER: Role = READER.asking_for(&[2]);
const WRITER: Role = Role::of(&[Exclusive]);
const LONG_WRITER: Role = WRITER.asking_for(&[4]);
const READS_OR_WRITES: Role = Role::of(&[Shared, Exclusive]);
const UPDATES: Role = Role::of(&[Update]);
const UPGRADES: Role = UPDATES.converting(&[(Update, Exclusive)]);
const STEPS_DOWN: Role = WRITER.converting(&[(Exclusive, Shared)]);
const OLD: Role = Role::old();
const PERMIT: Role = Role::of(&[Permit]);

#[track_caller]
fn fails(name: &str, model: Model, property: &'static str) -> Vec<Action> {
    counterexample(name, model, property).unwrap_or_else(|| panic!("{name} breaks nothing"))
}

#[test]
fn a_shared_grant_that_ignores_the_exclusive_place_stands_beside_a_writer() {
    let model = Model { roles: &[READER, WRITER], ..Model::SMALL };
    fails("shared beside exclusive", model.with(Variant::IgnoresExclusive), model::EXCLUSION);
}

#[test]
fn a_member_that_does_not_extend_the_base_lets_an_old_version_in() {
    let model = Model { roles: &[READER, OLD], renewals: 1, renewal_ttls: &[3], ..Model::SMALL };
    fails("a renewal leaves the base", model.with(Variant::LeavesBase), model::OLD_OUT);
}

/// Each renewal writes the base for as long as its client knows members. Another member has joined for longer meanwhile.
#[test]
fn a_renewal_that_does_not_compare_the_base_shortens_it() {
    let model = Model { roles: &[READER, LONG_READER, OLD], renewals: 1, ..Model::SMALL };
    fails("a renewal shortens the base", model.with(Variant::RenewalIgnoresBase), model::OLD_OUT);
}

#[test]
fn a_base_with_an_earlier_number_is_no_holder_for_an_old_version() {
    let model = Model { roles: &[READER, OLD], ..Model::SMALL };
    fails("base of an earlier number", model.with(Variant::BaseOfEarlierNumber), model::OLD_OUT);
}

/// When the second one leaves, the row shows the lock as free. The third reader keeps the base as it is.
#[test]
fn two_members_in_one_slot_hide_one_from_a_writer() {
    let model = Model { roles: &[READER, READER, READER], ..Model::SMALL };
    fails("two in one slot", model.with(Variant::IgnoresSlot), model::STORED);
}

#[test]
fn a_renewal_that_writes_the_number_back_gives_a_number_twice() {
    let model = Model { roles: &[PERMIT, PERMIT], tokens: 2, renewals: 1, ..Model::SMALL };
    fails("number turned back", model.with(Variant::WritesNumberBack), model::FENCES);
}

#[test]
fn a_step_down_that_keeps_its_number_lets_its_writes_in_among_readers() {
    let model = Model { roles: &[STEPS_DOWN, READER], conversions: 1, accesses: true, ..Model::SMALL };
    let model = model.with(Variant::StepDownKeepsNumber);
    fails("step down keeps its number", model, model::FENCES);
    fails("step down keeps its number, writes", model, model::ACCESSES);
}

#[test]
fn a_first_member_that_keeps_the_number_reads_before_late_writes() {
    let model = Model { roles: &[WRITER, READER], accesses: true, ..Model::SMALL };
    let model = model.with(Variant::FirstMemberKeepsNumber);
    fails("first member keeps the number", model, model::FENCES);
    fails("first member keeps the number, writes", model, model::ACCESSES);
}

#[test]
fn a_cover_that_is_not_transitive_shows_a_reader_again() {
    let one = Model { roles: &[READER], tokens: 3, ttls: &[2, 4], ..Model::SMALL }.with_versions();
    fails("cover not transitive", one.with(Variant::ForgetsCover), model::NO_GHOST);
    // The third reader keeps the base as it is.
    let three = Model { roles: &[SHORT_READER, LONG_READER, LONG_READER], tokens: 1, ..one };
    fails("slot compared as free only", three.with(Variant::SlotOnlyFree), model::NO_GHOST);
}

#[test]
fn a_cell_of_an_unknown_kind_is_a_holder() {
    let model = Model { roles: &[READER], unknown: true, ..Model::SMALL };
    fails("unknown kind passed", model.with(Variant::PassesUnknown), model::EXCLUSION);
}

#[test]
fn a_join_that_ignores_the_number_turns_it_back() {
    let model = Model { roles: &[READER, READS_OR_WRITES], tokens: 3, ..Model::SMALL };
    fails("join ignores the number", model.with(Variant::JoinIgnoresNumber), model::ONE_EPOCH);
}

#[test]
fn two_updaters_exclude_nobody() {
    let model = Model { roles: &[UPDATES, UPDATES], ..Model::SMALL };
    fails("two updaters", model.with(Variant::TwoUpdaters), model::EXCLUSION);
}

#[test]
fn a_client_that_steps_down_does_not_count_on_its_old_mode() {
    let down = Model { roles: &[STEPS_DOWN, READER], conversions: 1, ..Model::SMALL };
    fails("counts on the old mode", down.with(Variant::CountsOnOldMode), model::EXCLUSION);
}

#[test]
fn a_conversion_without_an_answer_is_not_forgotten() {
    let down = Model { roles: &[STEPS_DOWN, READER], conversions: 1, losses: 1, ..Model::SMALL };
    fails("a late step down", down.with(Variant::ForgetsConversion), model::EXCLUSION);
    let up = Model { roles: &[UPGRADES, WRITER], ..down };
    fails("a late upgrade", up.with(Variant::ForgetsConversion), model::EXCLUSION);
}

#[test]
fn a_turn_is_for_intents_only() {
    let model = Model { roles: &[READER, WRITER], intents: 1, turns: 1, ..Model::SMALL };
    fails("a turn passes everything", model.with(Variant::TurnPassesAll), model::EXCLUSION);
}

/// While a member's cell stands, the number cannot change: that needs all slots free. Only a ghost's renewal turns it back.
#[test]
fn a_renewal_needs_the_number_only_where_a_record_is_seen_again() {
    let model = Model { roles: &[READER, WRITER], tokens: 2, renewals: 1, losses: 1, ..Model::SMALL };
    let explored = explore("renewal without the number", model.with(Variant::RenewalIgnoresNumber));
    assert!(explored.broken.is_empty(), "{explored:?}");
    let ghosts = Model {
        roles: &[READER, LONG_WRITER],
        tokens: 2,
        ttls: &[2, 4],
        renewal_ttls: &[4],
        flushes: 2,
        ..model
    };
    let mut ghosts = ghosts.with_versions().with(Variant::RenewalIgnoresNumberAndCover);
    ghosts.rules.slots = 1;
    fails("renewal without the number or cover", ghosts, model::NEVER_FALLS);
}

#[test]
fn without_turns_crosswise_readers_stand_for_ever() {
    let explored = explore("crosswise without turns", Crosswise { turns: false });
    assert_eq!(explored.broken, [crosswise::CAN_FINISH]);
    assert_eq!(explored.not_reached, [crosswise::ALL_FINISH]);
}
