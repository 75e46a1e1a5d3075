//! Rules of latches. They judge each latch that was created once and never reset. A name that was used for a second latch
//! after the first one had expired or was deleted is judged by rule L5 only, and a latch that was reset by that and by
//! rule L7.

use dlm::Moment;

use super::History;
use super::event::{Answer, Event};
use super::latch_history::{Creation, LatchHistory, may_have_counted};
use super::tolerances::Tolerances;
use super::violation::{Rule, Violation};

/// Checks all rules of latches.
pub fn check(history: &History, tolerances: &Tolerances) -> Vec<Violation> {
    let mut violations = Vec::new();
    for latch in LatchHistory::of(history) {
        violations.extend(created_once(&latch, tolerances));
        violations.extend(named_once(&latch));
        if let Some(creation) = latch.creation() {
            violations.extend(exact_count(&latch, creation));
            violations.extend(no_early_wake(&latch, creation));
            violations.extend(no_missed_wake(&latch, creation, history, tolerances));
            violations.extend(no_early_end(&latch, creation, tolerances));
            violations.extend(no_wait_after_the_end(&latch, creation, history, tolerances));
        }
        violations.extend(fresh_incarnation(&latch));
        violations.extend(timeout_in_time(&latch, history, tolerances));
    }
    violations
}

/// Checks rule [`Rule::CreatedOnce`]. Two creations are wrong if neither can have happened after the latch of the other
/// had expired. One that answered late may have happened late.
pub fn created_once(latch: &LatchHistory<'_>, tolerances: &Tolerances) -> Vec<Violation> {
    let created: Vec<&Creation<'_>> =
        latch.creations.iter().filter(|creation| creation.event.answer == Answer::Ok).collect();
    let may_be_deleted = |from: &Event, to: &Event| {
        let may = |event: &&Event| may_have_counted(event) && event.called <= to.last_seen();
        latch
            .deletions
            .iter()
            .copied()
            .filter(may)
            .any(|event| event.answer.is_in_doubt() || event.last_seen() >= from.called)
    };
    let follows = |first: &Creation<'_>, second: &Creation<'_>| {
        may_be_deleted(first.event, second.event)
            || second.event.last_seen() >= tolerances.surely_until(first.event.called, first.ttl)
    };
    let twice = created.windows(2).filter(|pair| !follows(pair[0], pair[1]) && !follows(pair[1], pair[0]));
    twice
        .map(|pair| {
            let what = format!("{} created the latch although it existed", pair[1].event.id.client);
            Violation::new(Rule::CreatedOnce, what, &[pair[0].event, pair[1].event])
        })
        .collect()
}

/// Checks rule [`Rule::ExactCount`] for participants. Each of them counts once in each latch of this name.
pub fn named_once(latch: &LatchHistory<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let resets = latch.resets.iter().filter(|reset| may_have_counted(reset.event)).count();
    let latches = latch.possible_creations().count().max(1) + resets;
    for (name, calls) in &latch.named {
        let counted: Vec<&Event> = calls.iter().filter(|event| event.answer == Answer::Ok).copied().collect();
        if counted.len() > latches {
            let what = format!("{name} counted {} times", counted.len());
            violations.push(Violation::new(Rule::ExactCount, what, &counted));
        }
        let first = calls.iter().filter(|event| may_have_counted(event)).map(|event| event.called).min();
        let told = calls.iter().filter(|event| event.answer == Answer::No);
        for event in told.filter(|event| first.is_none_or(|first| first > event.last_seen())) {
            let what = format!("{name} was told that it had counted before, which it had not");
            violations.push(Violation::new(Rule::ExactCount, what, &[event]));
        }
    }
    violations
}

/// Checks rule [`Rule::ExactCount`] for reads of the count.
pub fn exact_count(latch: &LatchHistory<'_>, creation: Creation<'_>) -> Vec<Violation> {
    let bounds = latch.bounds(creation);
    let mut violations = Vec::new();
    for event in &latch.reads {
        let (Answer::Value(Some(count)), Some(returned)) = (&event.answer, event.returned) else { continue };
        let (lowest, highest) =
            (bounds.lowest(event.called, returned), bounds.highest(event.called, returned));
        if !(lowest..=highest).contains(count) {
            let what = format!(
                "{} read the count {count}, but the calls so far allow {lowest} to {highest}",
                event.id.client
            );
            violations.push(Violation::new(Rule::ExactCount, what, &[creation.event, event]));
        }
    }
    violations
}

/// Checks rule [`Rule::FreshIncarnation`]: a read after a reset sees the new count and the calls since then, and nothing
/// of a call that had been answered before the reset was called. Judges reads that no other reset, deletion or creation
/// can have come between.
pub fn fresh_incarnation(latch: &LatchHistory<'_>) -> Vec<Violation> {
    let begins = latch.creations.iter().chain(&latch.resets).map(|begin| begin.event);
    let ends: Vec<&Event> = begins.chain(latch.deletions.iter().copied()).collect();
    let mut violations = Vec::new();
    for reset in latch.resets.iter().filter(|reset| reset.event.answer == Answer::Ok) {
        let began = reset.event;
        for event in latch.reads.iter().filter(|event| event.called >= began.last_seen()) {
            let (Answer::Value(Some(count)), Some(returned)) = (&event.answer, event.returned) else {
                continue;
            };
            let between = |other: &&&Event| {
                other.id != began.id
                    && may_have_counted(other)
                    && other.called <= returned
                    && (other.answer.is_in_doubt() || other.last_seen() >= began.called)
            };
            if ends.iter().any(|other| between(&other)) {
                continue;
            }
            let possible = |event: &&&Event| {
                may_have_counted(event) && event.called <= returned && event.last_seen() >= began.called
            };
            let sure = |step: &&&Event| {
                step.answer == Answer::Ok
                    && step.called >= began.last_seen()
                    && step.last_seen() < event.called
            };
            let downs: Vec<&Event> =
                latch.downs.iter().chain(latch.named.values().flatten()).copied().collect();
            let many = |steps: &[&Event], which: &dyn Fn(&&&Event) -> bool| {
                steps.iter().filter(|step| which(step)).count() as i64
            };
            let lowest = reset.count + many(&latch.ups, &sure) - many(&downs, &possible);
            let highest = reset.count + many(&latch.ups, &possible) - many(&downs, &sure);
            if !(lowest..=highest).contains(count) {
                let what = format!(
                    "{} read the count {count} after a reset, but the calls since then allow {lowest} to {highest}",
                    event.id.client
                );
                violations.push(Violation::new(Rule::FreshIncarnation, what, &[began, event]));
            }
        }
    }
    violations
}

/// Checks rule [`Rule::NoEarlyWake`].
pub fn no_early_wake(latch: &LatchHistory<'_>, creation: Creation<'_>) -> Vec<Violation> {
    let bounds = latch.bounds(creation);
    let mut violations = Vec::new();
    for (event, _) in latch.waits.iter().filter(|(event, _)| event.answer == Answer::Ok) {
        let returned = event.last_seen();
        if !bounds.may_be_open_within(event.called, returned) {
            let what = format!(
                "{} was told that the latch is open, but its count was {} or more",
                event.id.client,
                bounds.lowest(returned, returned)
            );
            violations.push(Violation::new(Rule::NoEarlyWake, what, &[creation.event, event]));
        }
    }
    violations
}

/// Checks rule [`Rule::NoMissedWake`].
pub fn no_missed_wake(
    latch: &LatchHistory<'_>,
    creation: Creation<'_>,
    history: &History,
    tolerances: &Tolerances,
) -> Vec<Violation> {
    let bounds = latch.bounds(creation);
    let Some(open) = bounds.surely_open_since(creation.event.last_seen()) else { return Vec::new() };
    let mut violations = Vec::new();
    for (event, _) in &latch.waits {
        let told = matches!(event.answer, Answer::Ok | Answer::No);
        if let Some(late) = late_by(event, open, history, tolerances).filter(|_| told) {
            let what =
                format!("{} returned from its wait {late:.0} ms after the latch had opened", event.id.client);
            violations.push(Violation::new(Rule::NoMissedWake, what, &[creation.event, event]));
        }
    }
    violations
}

/// Returns how many milliseconds after `cause` and its own call a wait returned, if that is too late.
fn late_by(event: &Event, cause: Moment, history: &History, tolerances: &Tolerances) -> Option<f64> {
    let (returned, since) = (event.returned?, cause.max(event.called));
    let late = returned.since(since);
    let too_late = late > tolerances.wake
        && late > tolerances.wake + history.held_up_within(&event.id.client, since, returned);
    too_late.then_some(late.as_secs_f64() * 1e3)
}

/// Checks rule [`Rule::TimeoutInTime`].
pub fn timeout_in_time(
    latch: &LatchHistory<'_>,
    history: &History,
    tolerances: &Tolerances,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (event, deadline) in latch.waits.iter().filter(|(event, _)| event.answer == Answer::No) {
        let early = deadline.since(event.last_seen());
        let what = if !early.is_zero() {
            format!("{} timed out {:.3} ms before its deadline", event.id.client, early.as_secs_f64() * 1e3)
        } else if let Some(late) = late_by(event, *deadline, history, tolerances) {
            format!("{} timed out {late:.0} ms after its deadline", event.id.client)
        } else {
            continue;
        };
        violations.push(Violation::new(Rule::TimeoutInTime, what, &[event]));
    }
    violations
}

/// Checks rule [`Rule::LatchLifetime`] for a latch that is gone too early.
pub fn no_early_end(
    latch: &LatchHistory<'_>,
    creation: Creation<'_>,
    tolerances: &Tolerances,
) -> Vec<Violation> {
    let changes = latch.steps().chain([creation.event]).filter(|event| event.answer == Answer::Ok);
    let mut lives: Vec<(Moment, Moment)> = changes
        .map(|event| (event.last_seen(), tolerances.surely_until(event.called, creation.ttl)))
        .collect();
    lives.sort();
    let mut longest = Moment::from_nanos(0);
    for life in &mut lives {
        longest = longest.max(life.1);
        life.1 = longest;
    }
    let calls = latch.steps().chain(latch.reads.iter().copied()).chain(latch.waits.iter().map(|wait| wait.0));
    let mut violations = Vec::new();
    for event in calls.filter(|event| event.answer == Answer::NotFound) {
        let changed = lives.partition_point(|(changed, _)| *changed < event.called);
        let Some((_, until)) = changed.checked_sub(1).map(|last| lives[last]) else { continue };
        if event.last_seen() < until {
            let what = format!(
                "{} did not find the latch, which lives for another {:.3} ms",
                event.id.client,
                until.since(event.last_seen()).as_secs_f64() * 1e3
            );
            violations.push(Violation::new(Rule::LatchLifetime, what, &[creation.event, event]));
        }
    }
    violations
}

/// Checks rule [`Rule::LatchLifetime`] for a wait that goes on after the latch is gone.
pub fn no_wait_after_the_end(
    latch: &LatchHistory<'_>,
    creation: Creation<'_>,
    history: &History,
    tolerances: &Tolerances,
) -> Vec<Violation> {
    let gone = latch.possible_end(creation, tolerances);
    let mut violations = Vec::new();
    for (event, _) in &latch.waits {
        if let Some(late) = late_by(event, gone, history, tolerances) {
            let what = format!(
                "{} returned from its wait {late:.0} ms after the latch had expired",
                event.id.client
            );
            violations.push(Violation::new(Rule::LatchLifetime, what, &[creation.event, event]));
        }
    }
    violations
}
