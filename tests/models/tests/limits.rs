//! What the protocol does not prevent, and which change would prevent it.

use dlm_models::{Model, ReadBack, Variant, counterexample, explore, model};

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

/// A gateway applies a copy of the creation after another client held the lock. The expired lease is renewed.
#[test]
fn a_late_copy_of_a_creation_revives_an_expired_lease() {
    let model = Model { copies: 1, renewals: 1, tokens: 1, ..Model::gateway() };
    fails("gateway, a copy revives a lease", model, model::LATEST);
}

/// The same, while the client still acquires the lock: its read-back finds the copy. Only a pause that no clock sees
/// can last that long.
#[test]
fn a_late_copy_of_a_creation_and_a_pause_that_no_clock_sees_give_a_fence_that_does_not_rise() {
    let model = Model { copies: 1, missed: 2, tokens: 1, ..Model::gateway() };
    fails("gateway, a copy and a pause", model, model::FENCES);
    let explored = explore("gateway, a copy and a pause", model);
    assert!(!explored.broken.contains(&model::EXCLUSION), "{explored:?}");
}

/// A gateway applies a copy of the creation after its record was released.
#[test]
fn a_late_copy_of_a_creation_leaves_a_record_until_its_ttl_ends() {
    let model = Model { copies: 1, tokens: 1, ..Model::gateway() };
    fails("gateway, a copy leaves a record", model, model::KNOWN);
}

#[test]
fn a_client_that_expects_copies_meets_neither() {
    let once = Model { tokens: 1, losses: 1, ..Model::gateway() };
    for (name, model) in [
        ("gateway that is expected to copy, two attempts", Model::gateway()),
        ("gateway that is expected to copy, a renewal, a lost reply", Model { renewals: 1, ..once }),
    ] {
        let explored = explore(name, Model { copies: 1, ..model }.with(Variant::ExpectsCopies));
        assert!(explored.broken.is_empty(), "{name}: {explored:?}");
    }
}
