//! The protocol as it is: no property is broken in any state within the bounds. The long run has wider bounds.

use dlm_models::{Model, explore, is_long, model};

#[track_caller]
fn holds(name: &str, model: Model) {
    let explored = explore(name, model);
    assert!(explored.broken.is_empty(), "{name}: {explored:?}");
    // A client with one token has one attempt in all.
    let once = model.tokens == 1;
    let missing = |it: &&str| !once || *it != model::TAKEN_AGAIN;
    assert_eq!(explored.not_reached.iter().find(|it| missing(it)), None, "{name}: {explored:?}");
}

#[test]
fn lost_replies_and_late_requests_break_nothing() {
    let losses = if is_long() { 2 } else { 1 };
    let faults = |model| Model { losses, failures: 1, ..model };
    holds("register, lost replies, a failure", faults(Model::REGISTER));
    holds("register by token, lost replies, a failure", faults(Model::by_token()));
    holds("hbase, lost replies, a failure", faults(Model::hbase()));
}

#[test]
fn three_clients_exclude_each_other() {
    let three = |model| Model { clients: 3, tokens: 1, ..model };
    holds("register, three clients", three(Model::REGISTER));
    holds("hbase, three clients, clocks miss a tick", Model { missed: 1, ..three(Model::hbase()) });
    if is_long() {
        let model = Model { losses: 1, missed: 2, ..three(Model::hbase()) };
        holds("hbase, three clients, a lost reply, clocks miss two ticks", model);
    }
}

#[test]
fn renewals_that_overtake_each_other_shorten_nothing() {
    let missed = if is_long() { 2 } else { 0 };
    for (name, model) in
        [("register", Model::REGISTER), ("register by token", Model::by_token()), ("hbase", Model::hbase())]
    {
        let missed = if name == "register by token" { missed.min(1) } else { missed };
        let model = Model { renewals: 2, tokens: 1, losses: 1, missed, ..model };
        holds(&format!("{name}, two renewals, a lost reply, {missed} missed ticks"), model);
    }
}

/// The longest pause outlasts the lease, and no clock sees it. Without a read-back that breaks a promise: see
/// `limits.rs`.
#[test]
fn clocks_that_are_slow_or_stop_break_nothing_that_is_promised() {
    let long = is_long();
    let (losses, missed) = if long { (1, 3) } else { (0, 2) };
    let stopped = |model| Model { missed, writes: true, ..model };
    holds("register, clocks stop, writes", stopped(Model::REGISTER));
    holds("hbase, clocks stop, writes", stopped(Model::hbase()));
    let model = Model { missed: 1, writes: true, losses, ..Model::by_token() };
    holds("register by token, clocks miss a tick, writes", model);
    if long {
        holds("hbase, clocks stop, a lost reply", Model { missed, losses, ..Model::hbase() });
    }
}

#[test]
fn the_clock_of_an_hbase_server_may_be_set_back() {
    let losses = u8::from(is_long());
    holds("hbase, the server's clock is set back", Model { set_back: 1, losses, ..Model::hbase() });
}

#[test]
fn a_gateway_that_sends_requests_twice_breaks_nothing() {
    let once = Model { copies: 1, tokens: 1, ..Model::gateway() };
    let paused = Model { missed: 2, writes: true, ..once };
    holds("gateway, a copy, two attempts", Model { tokens: 2, ..once });
    holds("gateway, a copy, a lost reply", Model { losses: 1, ..once });
    holds("gateway, a copy, clocks stop, writes", paused);
    holds("gateway, two copies, a renewal", Model { copies: 2, renewals: 1, ..once });
    if is_long() {
        let paused = Model { renewals: 1, writes: false, ..paused };
        holds("gateway, a copy, clocks stop, a renewal", paused);
        holds("gateway, a copy, a lost reply, a renewal", Model { losses: 1, renewals: 1, ..once });
        holds("gateway, two copies, clocks stop", Model { copies: 2, renewals: 0, ..paused });
        holds("gateway, two copies, a lost reply", Model { copies: 2, losses: 1, ..once });
    }
}
