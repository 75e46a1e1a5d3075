//! Rules of locks. A fence orders the grants of a lock; times order calls only if one returned before another was made.

use std::collections::HashMap;

use dlm::Moment;

use super::History;
use super::event::{Answer, CallId, Event};
use super::grant::{Grant, LockHistory};
use super::tolerances::{Tolerances, before};
use super::violation::{Rule, Violation};

/// Checks all rules of locks.
pub fn check(history: &History, tolerances: &Tolerances) -> Vec<Violation> {
    let mut violations = Vec::new();
    for lock in LockHistory::of(history) {
        violations.extend(unique_fences(&lock));
        violations.extend(rising_fences(&lock));
        violations.extend(exclusion(&lock, tolerances));
        violations.extend(no_overlap(&lock, tolerances));
        violations.extend(no_phantom_holder(&lock, tolerances));
        violations.extend(no_stale_success(&lock));
        violations.extend(released_once(&lock));
        violations.extend(lease_ends(&lock));
        violations.extend(no_stale_write(&lock));
    }
    violations
}

/// Checks rule [`Rule::UniqueFences`].
pub fn unique_fences(lock: &LockHistory<'_>) -> Vec<Violation> {
    let fenced = by_fence(lock);
    let same = fenced.windows(2).filter(|pair| pair[0].1 == pair[1].1);
    same.map(|pair| {
        let what = format!("fence {} was granted twice", pair[0].1);
        Violation::new(Rule::UniqueFences, what, &[pair[0].0.acquire, pair[1].0.acquire])
    })
    .collect()
}

/// Checks rule [`Rule::RisingFences`].
pub fn rising_fences(lock: &LockHistory<'_>) -> Vec<Violation> {
    let mut finished = by_fence(lock);
    finished.sort_by_key(|(grant, _)| grant.granted);
    let highest = running(&finished, |a, b| if b.1 > a.1 { b } else { a });
    let mut violations = Vec::new();
    for (grant, fence) in &finished {
        let earlier = finished.partition_point(|(other, _)| other.granted < grant.acquire.called);
        let Some((before, high)) = earlier.checked_sub(1).map(|last| highest[last]) else { continue };
        if high >= *fence {
            let what = format!("fence {fence} was granted after fence {high}");
            violations.push(Violation::new(Rule::RisingFences, what, &[before.acquire, grant.acquire]));
        }
    }
    violations
}

/// Checks rule [`Rule::Exclusion`].
pub fn exclusion(lock: &LockHistory<'_>, tolerances: &Tolerances) -> Vec<Violation> {
    let fenced = by_fence(lock);
    let ends: Vec<(&Grant<'_>, Moment)> =
        fenced.iter().map(|(grant, _)| (*grant, grant.sure_end(tolerances))).collect();
    let longest = running(&ends, |a, b| if b.1 > a.1 { b } else { a });
    let mut violations = Vec::new();
    for (grant, fence) in &fenced {
        let lower = fenced.partition_point(|(_, other)| other < fence);
        let Some((holder, until)) = lower.checked_sub(1).map(|last| longest[last]) else { continue };
        if grant.granted < until {
            violations.push(overlap(Rule::Exclusion, holder, until, grant));
        }
    }
    violations
}

/// Checks rule [`Rule::NoOverlap`].
pub fn no_overlap(lock: &LockHistory<'_>, tolerances: &Tolerances) -> Vec<Violation> {
    let sure = |grant| (grant, Grant::sure_end(grant, tolerances));
    let mut holds: Vec<(&Grant<'_>, Moment)> =
        lock.grants.iter().map(sure).filter(|(grant, until)| grant.granted < *until).collect();
    holds.sort_by_key(|(grant, _)| grant.granted);
    let longest = running(&holds, |a, b| if b.1 > a.1 { b } else { a });
    let overlapping =
        holds.iter().skip(1).zip(&longest).filter(|((grant, _), (_, until))| grant.granted < *until);
    overlapping.map(|((grant, _), (holder, until))| overlap(Rule::NoOverlap, holder, *until, grant)).collect()
}

fn overlap(rule: Rule, holder: &Grant<'_>, until: Moment, next: &Grant<'_>) -> Violation {
    let what = format!(
        "{} was granted the lock{} while {} held it{}, surely for another {:.3} ms",
        next.acquire.id.client,
        with_fence(next),
        holder.acquire.id.client,
        with_fence(holder),
        until.since(next.granted).as_secs_f64() * 1e3,
    );
    Violation::new(rule, what, &[holder.acquire, next.acquire])
}

fn with_fence(grant: &Grant<'_>) -> String {
    grant.fence.map_or_else(String::new, |fence| format!(" with fence {fence}"))
}

/// Checks rule [`Rule::NoPhantomHolder`].
pub fn no_phantom_holder(lock: &LockHistory<'_>, tolerances: &Tolerances) -> Vec<Violation> {
    let mut holds = lock.possible_holds(tolerances);
    holds.sort();
    let ends = running(&holds, |a, b| (b.0, a.1.max(b.1)));
    let phantom = |(event, wait): &(&Event, std::time::Duration)| {
        let asked = if wait.is_zero() { event.called } else { earliest_answer(lock, event, tolerances) };
        let begun = ends.partition_point(|(from, _)| *from <= event.last_seen());
        let until = begun.checked_sub(1).map(|last| ends[last].1);
        if until.is_some_and(|until| until >= asked) {
            return None;
        }
        let since = until.map_or_else(String::new, |until| {
            format!(": since {:.3} ms", asked.since(until).as_secs_f64() * 1e3)
        });
        let what = format!("{} found the lock held, but nobody can have held it{since}", event.id.client);
        Some(Violation::new(Rule::NoPhantomHolder, what, &[*event]))
    };
    lock.busy.iter().filter_map(phantom).collect()
}

/// Returns the earliest moment at which the store may have made an answer that a waiter received: waiters share
/// answers, and an answer may be late.
fn earliest_answer(lock: &LockHistory<'_>, event: &Event, tolerances: &Tolerances) -> Moment {
    let shared = before(event.called, tolerances.shared_answer);
    let late = lock.late_effects.held_up_within(&event.id.client, shared, event.last_seen());
    before(shared, late)
}

/// Checks the rules [`Rule::NoStaleRelease`] and [`Rule::NoStaleRenewal`] for success after the next grant, and
/// [`Rule::LeaseEnds`] for a check that succeeds after it.
pub fn no_stale_success(lock: &LockHistory<'_>) -> Vec<Violation> {
    let fenced = by_fence(lock);
    let mut next: Vec<(&Grant<'_>, u64)> = fenced.clone();
    next.reverse();
    // By position from the end: which of the higher fences was granted first.
    let first = running(&next, |a, b| if b.0.granted < a.0.granted { b } else { a });
    let mut violations = Vec::new();
    for (grant, fence) in &fenced {
        let higher = fenced.len() - fenced.partition_point(|(_, other)| other <= fence);
        let Some((successor, _)) = higher.checked_sub(1).map(|last| first[last]) else { continue };
        let mut report = |rule, what: &str, event: &Event, asked: Moment| {
            if matches!(event.answer, Answer::Ok | Answer::Renewed { .. }) && successor.granted < asked {
                let what = format!(
                    "{} {what} its lease{} although {} had been granted the lock{}",
                    event.id.client,
                    with_fence(grant),
                    successor.acquire.id.client,
                    with_fence(successor),
                );
                violations.push(Violation::new(rule, what, &[grant.acquire, successor.acquire, event]));
            }
        };
        // A release may say that an earlier one, which was in doubt, freed the lock.
        let doubtful = grant.releases.iter().filter(|event| event.answer.is_in_doubt());
        let first = doubtful.map(|event| event.called).min();
        for event in &grant.releases {
            let asked = first.map_or(event.called, |first| first.min(event.called));
            report(Rule::NoStaleRelease, "released", event, asked);
        }
        for (event, _) in &grant.renewals {
            report(Rule::NoStaleRenewal, "renewed", event, event.called);
        }
        for event in &grant.checks {
            report(Rule::LeaseEnds, "was told that it still has", event, event.called);
        }
    }
    violations
}

/// Checks rule [`Rule::NoStaleRelease`] for a second success.
pub fn released_once(lock: &LockHistory<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for grant in &lock.grants {
        let freed: Vec<&Event> =
            grant.releases.iter().filter(|event| event.answer == Answer::Ok).copied().collect();
        if freed.len() > 1 {
            let what = format!("{} releases of one lease each say that they freed the lock", freed.len());
            violations.push(Violation::new(Rule::NoStaleRelease, what, &freed));
        }
    }
    violations
}

/// Checks rule [`Rule::LeaseEnds`].
pub fn lease_ends(lock: &LockHistory<'_>) -> Vec<Violation> {
    lock.grants.iter().flat_map(lease_ends_of).collect()
}

/// A lease ends one TTL after its request was sent, which was at the latest when the call returned: a thread may stand
/// still between the log and the request.
fn lease_ends_of(grant: &Grant<'_>) -> Vec<Violation> {
    let mut counted = vec![(grant.acquire, grant.ttl, Some(grant.ends))];
    counted.extend(grant.renewals.iter().filter_map(|(event, ttl)| match event.answer {
        Answer::Renewed { ends } => Some((*event, *ttl, Some(ends))),
        Answer::Unknown => Some((*event, *ttl, None)),
        _ => None,
    }));
    let mut violations = Vec::new();
    for (event, ttl, ends) in &counted {
        let latest = event.last_seen().after(*ttl);
        if let Some(late) = ends.map(|ends| ends.since(latest)).filter(|late| !late.is_zero()) {
            let late = late.as_secs_f64() * 1e3;
            let what = format!("the library lets the lease end {late:.3} ms after the store may end it");
            violations.push(Violation::new(Rule::LeaseEnds, what, &[grant.acquire, event]));
        }
    }
    for check in grant.checks.iter().filter(|event| event.answer == Answer::Ok) {
        // A renewal in another thread counts as soon as it was called.
        let begun = counted.iter().filter(|(event, ..)| event.called <= check.last_seen());
        let sent = |event: &Event| event.returned.map_or(check.last_seen(), |at| at.min(check.last_seen()));
        let latest = begun.map(|(event, ttl, _)| sent(event).after(*ttl)).max();
        if latest.is_none_or(|latest| check.called >= latest) {
            let what = "a check says that the lease lasts, but its TTL was over";
            violations.push(Violation::new(Rule::LeaseEnds, what, &[grant.acquire, check]));
        }
    }
    violations
}

/// Checks rule [`Rule::NoStaleWrite`]: no write is accepted after one with a higher fence, none is refused without
/// one, and no two leases use one fence.
pub fn no_stale_write(lock: &LockHistory<'_>) -> Vec<Violation> {
    let accepted = |write: &&(&Event, &CallId, u64)| write.0.answer == Answer::Ok;
    let mut done: Vec<(&Event, u64)> =
        lock.writes.iter().filter(accepted).map(|(event, _, fence)| (*event, *fence)).collect();
    done.sort_by_key(|(event, _)| event.last_seen());
    let highest = running(&done, |a, b| if b.1 > a.1 { b } else { a });
    let mut violations = Vec::new();
    let mut users: HashMap<u64, (&CallId, &Event)> = HashMap::new();
    for (event, lease, fence) in &lock.writes {
        let earlier = done.partition_point(|(other, _)| other.last_seen() < event.called);
        let seen = earlier.checked_sub(1).map(|last| highest[last]);
        match (&event.answer, seen) {
            (Answer::Ok, Some((newer, high))) if high > *fence => {
                let what = format!("a write with fence {fence} was accepted after one with fence {high}");
                violations.push(Violation::new(Rule::NoStaleWrite, what, &[newer, event]));
            }
            (Answer::Refused { highest }, _) if highest <= fence => {
                let what =
                    format!("a write with fence {fence} was refused, though the highest fence was {highest}");
                violations.push(Violation::new(Rule::NoStaleWrite, what, &[event]));
            }
            _ => {}
        }
        let (user, first) = *users.entry(*fence).or_insert((lease, event));
        if user != *lease {
            let what = format!("two leases wrote with fence {fence}");
            violations.push(Violation::new(Rule::NoStaleWrite, what, &[first, event]));
        }
    }
    violations
}

/// Returns the grants that have a fence, lowest fence first.
fn by_fence<'l, 'h>(lock: &'l LockHistory<'h>) -> Vec<(&'l Grant<'h>, u64)> {
    let mut fenced: Vec<_> =
        lock.grants.iter().filter_map(|grant| grant.fence.map(|fence| (grant, fence))).collect();
    fenced.sort_by_key(|(grant, fence)| (*fence, grant.granted));
    fenced
}

/// Returns, for each position, the combination of all items up to it.
fn running<T: Copy>(items: &[T], combine: impl Fn(T, T) -> T) -> Vec<T> {
    let mut last = None;
    let next = |item: &T| {
        let combined = last.map_or(*item, |last| combine(last, *item));
        last = Some(combined);
        combined
    };
    items.iter().map(next).collect()
}
