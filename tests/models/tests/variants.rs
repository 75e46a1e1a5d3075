//! Wrong protocols. The checker must find a counterexample for each, or it would prove nothing about the right one.

use dlm_models::{Action, Flaw, Kind, Model, ReadBack, Variant, counterexample, explore, model};

#[track_caller]
fn fails(name: &str, model: Model, property: &'static str) -> Vec<Action> {
    counterexample(name, model, property).unwrap_or_else(|| panic!("{name} breaks nothing"))
}

fn cells(flaw: Flaw, model: Model) -> Model {
    let mut model = model;
    model.rules.kind = Kind::Cells(flaw);
    model
}

#[test]
fn a_release_without_a_token_frees_the_lock_of_another() {
    fails("release without token", Model::REGISTER.with(Variant::ReleaseWithoutToken), model::EXCLUSION);
}

#[test]
fn a_renewal_without_a_token_takes_the_lock_of_another() {
    let model = Model { renewals: 1, ..Model::REGISTER };
    fails("renewal without token", model.with(Variant::RenewWithoutToken), model::EXCLUSION);
}

#[test]
fn a_receiver_that_compares_no_fences_accepts_late_writes() {
    let model = Model { writes: true, ..Model::REGISTER };
    fails("unfenced receiver", model.with(Variant::UnfencedReceiver), model::WRITES);
}

#[test]
fn a_fence_that_is_counted_before_the_creation_does_not_rise() {
    let model = Model { writes: true, ..Model::REGISTER }.with(Variant::CountBeforeCreate);
    fails("count before creation", model, model::FENCES);
}

#[test]
fn a_creation_that_is_sent_again_blindly_is_misread_both_ways() {
    let model = Model { losses: 1, ..Model::REGISTER };
    fails("resent creation, No is another's", model.with(Variant::ResentNoIsHeld), model::KNOWN);
    fails("resent creation, No is our own", model.with(Variant::ResentNoIsOurs), model::EXCLUSION);
}

#[test]
fn a_delete_of_hbase_hides_the_next_record() {
    let model = cells(Flaw::ReleaseDeletes, Model::gateway());
    fails("release by Delete", model, model::NOT_HIDDEN);
    let mut without_read_back = model;
    without_read_back.rules.read_back = ReadBack::Never;
    fails("release by Delete, no read-back", without_read_back, model::EXCLUSION);
    let explored = explore("release by Delete, read-back", model);
    assert!(!explored.broken.contains(&model::EXCLUSION), "{explored:?}");
    assert!(!explored.broken.contains(&model::FENCES), "{explored:?}");
}

#[test]
fn an_empty_cell_that_expires_first_shows_the_old_record_again() {
    fails("empty cell with a short TTL", cells(Flaw::ShortMarker, Model::hbase()), model::KNOWN);
}

#[test]
fn a_put_that_is_stamped_with_a_clock_that_is_behind_is_hidden() {
    let model = Model { set_back: 1, ..cells(Flaw::LateCellsWin, Model::gateway()) };
    fails("Put stamped with a late clock", model, model::NOT_HIDDEN);
}

#[test]
fn without_a_margin_a_slow_clock_outlives_its_lease() {
    let mut model = Model { missed: 1, ..Model::REGISTER };
    model.rules.margin = 0;
    fails("no margin", model, model::EXCLUSION);
}

#[test]
fn a_lease_that_counts_from_the_answer_outlives_its_record() {
    fails("lease from the answer", Model::REGISTER.with(Variant::LeaseFromAnswer), model::EXCLUSION);
}

/// A copy of the creation is applied after another client held the lock.
#[test]
fn a_creation_that_may_be_copied_is_not_granted_as_it_is() {
    let once = Model { copies: 1, tokens: 1, ..Model::gateway() }.with(Variant::NoExchange);
    fails("no exchange, the copy revives a lease", Model { renewals: 1, ..once }, model::LATEST);
    fails("no exchange, the copy leaves a record", once, model::KNOWN);
    // Only a pause that no clock sees lasts so long: the read-back of the acquire finds the copy.
    fails("no exchange, a copy and a pause", Model { missed: 2, ..once }, model::FENCES);
}

#[test]
fn a_copy_of_an_exchange_after_one_of_the_creation_revives_a_lease() {
    let model = Model { copies: 2, renewals: 1, tokens: 1, ..Model::gateway() };
    fails("one exchange, two copies", model.with(Variant::OneExchange), model::LATEST);
}

#[test]
fn an_exchanged_record_that_nobody_releases_comes_back() {
    let model = Model { copies: 1, tokens: 1, ..Model::gateway() };
    fails("exchanged record is forgotten", model.with(Variant::ForgetsExchanged), model::KNOWN);
}
