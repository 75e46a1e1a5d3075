//! What the protocol does not prevent.

use dlm_models::{Model, ReadBack, counterexample, explore, model};

#[track_caller]
fn fails(name: &str, model: Model, property: &'static str) {
    assert!(counterexample(name, model, property).is_some(), "{name} breaks nothing");
}

/// Aerospike accepts a number if its answer arrived while the lease lasts. A clock that stopped cannot tell.
#[test]
fn without_a_read_back_a_pause_that_no_clock_sees_gives_a_lost_lease_the_highest_fence() {
    let model = Model { missed: 2, ..Model::by_token() };
    fails("no read-back, a pause before the count", model, model::LATEST);
    let explored = explore("no read-back, a pause before the count", model);
    assert!(!explored.broken.contains(&model::EXCLUSION), "{explored:?}");
    let mut with_read_back = Model { missed: 3, ..Model::by_token() };
    with_read_back.rules.read_back = ReadBack::AfterCount;
    let explored = explore("register by token with read-back, a pause", with_read_back);
    assert!(explored.broken.is_empty(), "{explored:?}");
}

/// The background threads release the record of the first copy, and do not look for a second one.
#[test]
fn the_second_late_copy_of_a_creation_leaves_a_record_until_its_ttl_ends() {
    let model = Model { copies: 1, late_copies: 1, tokens: 1, ..Model::gateway() };
    fails("gateway, two late copies of one creation", model, model::KNOWN);
    let explored = explore("gateway, two late copies of one creation", model);
    assert_eq!(explored.broken, [model::KNOWN]);
}
