//! Rules of locks. The numbers of grants order them; times order calls only if one returned before another was made.
//!
//! The number of an exclusive grant is its fence, that of a member is its epoch. A member is a holder of another mode.
//! Each exclusive grant, each conversion from or to [`Mode::Exclusive`], and the first member of a lock that has no other
//! begins a higher number. Members that join others, and the conversion from [`Mode::Update`] to [`Mode::Shared`], keep
//! the number. So members that live at one time have one number, and a grant with a higher number shows that all holds
//! with a lower one are over.

use std::collections::{BTreeMap, HashMap};

use dlm::{Mode, Moment};

use super::History;
use super::event::{Answer, CallId, Event};
use super::grant::{Grant, LockHistory, PossibleHold, Request};
use super::tolerances::{Tolerances, before};
use super::violation::{Rule, Violation};

/// Checks all rules of locks.
pub fn check(history: &History, tolerances: &Tolerances) -> Vec<Violation> {
    let mut violations = Vec::new();
    for lock in LockHistory::of(history).into_iter().filter(|lock| !lock.is_semaphore()) {
        violations.extend(unique_fences(&lock));
        violations.extend(rising_fences(&lock));
        violations.extend(kept_numbers(&lock));
        violations.extend(first_members(&lock, tolerances));
        violations.extend(exclusion(&lock, tolerances));
        violations.extend(no_overlap(&lock, tolerances));
        violations.extend(no_phantom_holder(&lock, tolerances));
        violations.extend(no_stale_success(&lock));
        violations.extend(released_once(&lock));
        violations.extend(lease_ends(&lock));
        violations.extend(no_stale_write(&lock));
        violations.extend(no_stale_read(&lock));
    }
    violations
}

/// Checks rule [`Rule::UniqueFences`].
pub fn unique_fences(lock: &LockHistory<'_>) -> Vec<Violation> {
    let fenced = by_fence(lock);
    let same = fenced.windows(2).filter(|pair| pair[0].1 == pair[1].1);
    // An exclusive grant among members with its number is beside one of them.
    let wrong = same.filter(|pair| pair.iter().any(|(grant, _)| !is_member(grant)));
    wrong
        .map(|pair| {
            let what = format!("fence {} was granted twice", pair[0].1);
            Violation::new(Rule::UniqueFences, what, &[pair[0].0.acquire, pair[1].0.acquire])
        })
        .collect()
}

/// Checks rule [`Rule::RisingFences`] for grants that follow each other.
pub fn rising_fences(lock: &LockHistory<'_>) -> Vec<Violation> {
    let mut finished = by_fence(lock);
    finished.sort_by_key(|(grant, _)| grant.granted);
    // Of one number, an exclusive grant: nobody else may have it.
    let rank = |(grant, fence): &(&Grant<'_>, u64)| (*fence, !is_member(grant));
    let highest = running(&finished, |a, b| if rank(&b) > rank(&a) { b } else { a });
    let mut violations = Vec::new();
    for (grant, fence) in &finished {
        let earlier = finished.partition_point(|(other, _)| other.granted < grant.acquire.called);
        let Some((before, high)) = earlier.checked_sub(1).map(|last| highest[last]) else { continue };
        if high > *fence || (high == *fence && !(is_member(before) && is_member(grant))) {
            let (fence, high) = (number(grant), number(before));
            let what = format!("{fence} was granted after {high}");
            violations.push(Violation::new(Rule::RisingFences, what, &[before.acquire, grant.acquire]));
        }
    }
    violations
}

/// Checks rule [`Rule::RisingFences`] for conversions from one mode of members to another.
pub fn kept_numbers(lock: &LockHistory<'_>) -> Vec<Violation> {
    let converted: HashMap<&CallId, &Grant<'_>> =
        lock.grants.iter().filter_map(|grant| Some((grant.converts?, grant))).collect();
    let mut violations = Vec::new();
    for old in lock.grants.iter().filter(|grant| is_member(grant)) {
        let Some(new) = converted.get(&old.acquire.id).filter(|new| is_member(new)) else { continue };
        if old.fence != new.fence {
            let (from, to) = (number(old), number(new));
            let what = format!("a conversion from {} to {} made {to} from {from}", old.mode, new.mode);
            violations.push(Violation::new(Rule::RisingFences, what, &[old.acquire, new.acquire]));
        }
    }
    violations
}

/// Checks rule [`Rule::RisingFences`] for members that had nobody to join: their number must be new.
pub fn first_members(lock: &LockHistory<'_>, tolerances: &Tolerances) -> Vec<Violation> {
    let mut members = by_fence(lock);
    members.retain(|(grant, _)| is_member(grant));
    // Nobody knows their numbers.
    let uncertain = lock.uncertain_holds(tolerances).filter(|hold| hold.mode != Mode::Exclusive);
    let uncertain = Holds::of(uncertain.collect());
    let mut violations = Vec::new();
    for epoch in members.chunk_by(|(_, a), (_, b)| a == b) {
        let holds = Holds::of(epoch.iter().map(|(grant, _)| grant.possible_hold(tolerances)).collect());
        // They are sorted by the end of their calls.
        let (earliest, _) = epoch[0];
        for (grant, _) in epoch.iter().filter(|(grant, _)| grant.converts.is_none()) {
            let (called, granted, lease) = (grant.acquire.called, grant.granted, &grant.acquire.id);
            let last = holds.last_end(granted, Some(lease)).max(uncertain.last_end(granted, None));
            let is_over = last.is_none_or(|last| last.after(tolerances.epoch) < called);
            if earliest.granted < called && is_over {
                let what = format!(
                    "{} was granted the lock{}, although nobody with that epoch can have lived any more",
                    lease.client,
                    with_fence(grant),
                );
                violations.push(Violation::new(Rule::RisingFences, what, &[earliest.acquire, grant.acquire]));
            }
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
    let same = |a: &(&Grant<'_>, u64), b: &(&Grant<'_>, u64)| a.1 == b.1;
    for epoch in fenced.chunk_by(same).filter(|epoch| epoch.len() > 1) {
        let updates = epoch.iter().map(|(grant, _)| *grant).filter(|grant| grant.mode == Mode::Update);
        violations.extend(overlaps(Rule::Exclusion, updates, tolerances));
    }
    violations
}

/// Checks rule [`Rule::NoOverlap`].
pub fn no_overlap(lock: &LockHistory<'_>, tolerances: &Tolerances) -> Vec<Violation> {
    overlaps(Rule::NoOverlap, lock.grants.iter(), tolerances)
}

/// Finds holds that surely overlap although their modes exclude each other.
fn overlaps<'l, 'h: 'l>(
    rule: Rule,
    grants: impl Iterator<Item = &'l Grant<'h>>,
    tolerances: &Tolerances,
) -> Vec<Violation> {
    let sure = |grant: &'l Grant<'h>| (grant, grant.sure_end(tolerances));
    let mut holds: Vec<_> = grants.map(sure).filter(|(grant, until)| grant.granted < *until).collect();
    holds.sort_by_key(|(grant, _)| grant.granted);
    // The hold of each mode that lasts longest, of those that have begun.
    let mut longest: BTreeMap<Mode, (&Grant<'_>, Moment)> = BTreeMap::new();
    let mut violations = Vec::new();
    for (grant, until) in holds {
        let excluded = longest.iter().filter(|(mode, _)| !mode.is_compatible_with(grant.mode));
        if let Some((holder, until)) = excluded.map(|(_, hold)| *hold).max_by_key(|(_, until)| *until)
            && grant.granted < until
        {
            violations.push(overlap(rule, holder, until, grant));
        }
        let last = longest.entry(grant.mode).or_insert((grant, until));
        if until > last.1 {
            *last = (grant, until);
        }
    }
    violations
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
    let mode = if is_member(grant) { format!(" as {}", grant.mode) } else { String::new() };
    let number = grant.fence.map_or_else(String::new, |_| format!(" with {}", number(grant)));
    mode + &number
}

/// Returns the number of a grant, and what it is.
fn number(grant: &Grant<'_>) -> String {
    let what = if is_member(grant) { "epoch" } else { "fence" };
    grant.fence.map_or_else(|| format!("no {what}"), |number| format!("{what} {number}"))
}

/// Whether the holder may have others beside it.
fn is_member(grant: &Grant<'_>) -> bool {
    grant.mode != Mode::Exclusive
}

/// Checks rule [`Rule::NoPhantomHolder`].
pub fn no_phantom_holder(lock: &LockHistory<'_>, tolerances: &Tolerances) -> Vec<Violation> {
    let holds = lock.possible_holds(tolerances);
    let intents = Holds::of(lock.possible_intents(tolerances).collect());
    // By the mode that was asked for: holds that exclude it.
    let mut in_the_way: BTreeMap<Mode, Holds<'_>> = BTreeMap::new();
    let mut violations = Vec::new();
    for request in &lock.busy {
        let excluding = in_the_way.entry(request.mode).or_insert_with(|| {
            let excluding = holds.iter().filter(|hold| !hold.mode.is_compatible_with(request.mode));
            Holds::of(excluding.copied().collect())
        });
        let event = request.event;
        let asked =
            if request.wait.is_zero() { event.called } else { earliest_answer(lock, event, tolerances) };
        let held = excluding.last_end(event.last_seen(), request.converts);
        let writer = intents.last_end(event.last_seen(), None).filter(|_| yields_to_writers(request));
        let until = held.max(writer);
        if until.is_some_and(|until| until >= asked) {
            continue;
        }
        let since = until.map_or_else(String::new, |until| {
            format!(": since {:.3} ms", asked.since(until).as_secs_f64() * 1e3)
        });
        let client = &event.id.client;
        let what = match request.mode {
            Mode::Exclusive => format!("{client} found the lock held, but nobody can have held it{since}"),
            mode => {
                format!("{client} was refused the lock as {mode}, but nobody can have been in its way{since}")
            }
        };
        violations.push(Violation::new(Rule::NoPhantomHolder, what, &[event]));
    }
    violations
}

/// Whether the store may refuse this request to keep the lock free for a writer. A conversion to a weaker mode is never
/// refused.
fn yields_to_writers(request: &Request<'_>) -> bool {
    request.mode != Mode::Exclusive && request.converts.is_none()
}

/// Until when those holds may have lasted that had begun by some moment.
struct Holds<'h> {
    begun: Vec<Moment>,
    /// For each position, the hold that may have lasted longest of those up to it, and the end of the longest hold with
    /// another lease.
    last: Vec<(Moment, &'h CallId, Option<Moment>)>,
}

impl<'h> Holds<'h> {
    fn of(mut holds: Vec<PossibleHold<'h>>) -> Holds<'h> {
        holds.sort_by_key(|hold| (hold.from, hold.to));
        let alone: Vec<_> = holds.iter().map(|hold| (hold.to, hold.lease, None)).collect();
        let last = running(&alone, |(end, lease, other), (next, by, _)| {
            if by == lease {
                (end.max(next), lease, other)
            } else if next > end {
                (next, by, Some(end))
            } else {
                (end, lease, other.max(Some(next)))
            }
        });
        Holds { begun: holds.iter().map(|hold| hold.from).collect(), last }
    }

    /// Returns until when the holds may have lasted that may have begun at `begun` or before, except those with one
    /// lease. `None` if there are none.
    fn last_end(&self, begun: Moment, except: Option<&CallId>) -> Option<Moment> {
        let number = self.begun.partition_point(|from| *from <= begun);
        let (end, lease, other) = self.last[number.checked_sub(1)?];
        if except == Some(lease) { other } else { Some(end) }
    }
}

/// Returns the earliest moment at which the store may have made an answer that a waiter received: waiters share
/// answers, and an answer may be late.
pub(super) fn earliest_answer(lock: &LockHistory<'_>, event: &Event, tolerances: &Tolerances) -> Moment {
    let shared = before(event.called, tolerances.shared_answer);
    let late = lock.late_effects.held_up_within(&event.id.client, shared, event.last_seen());
    before(shared, late)
}

/// Checks the rules [`Rule::NoStaleRelease`] and [`Rule::NoStaleRenewal`] for success after the lease was converted or a
/// higher number was granted, and [`Rule::LeaseEnds`] for a check that succeeds after it.
pub fn no_stale_success(lock: &LockHistory<'_>) -> Vec<Violation> {
    let fenced = by_fence(lock);
    let mut next: Vec<(&Grant<'_>, u64)> = fenced.clone();
    next.reverse();
    // By position from the end: which of the higher numbers was granted first.
    let first = running(&next, |a, b| if b.0.granted < a.0.granted { b } else { a });
    // By old lease: the new one that was granted first.
    let mut converted: HashMap<&CallId, &Grant<'_>> = HashMap::new();
    for grant in &lock.grants {
        let Some(old) = grant.converts else { continue };
        let new = converted.entry(old).or_insert(grant);
        if grant.granted < new.granted {
            *new = grant;
        }
    }
    let mut violations = Vec::new();
    for grant in &lock.grants {
        let higher = grant.fence.and_then(|fence| {
            let higher = fenced.len() - fenced.partition_point(|(_, other)| *other <= fence);
            higher.checked_sub(1).map(|last| first[last].0)
        });
        let successors = higher.into_iter().chain(converted.get(&grant.acquire.id).copied());
        let Some(successor) = successors.min_by_key(|successor| successor.granted) else { continue };
        violations.extend(stale_success(grant, successor));
    }
    violations
}

/// Finds the calls on the lease of `grant` that succeeded although they were made after `successor` was granted.
fn stale_success(grant: &Grant<'_>, successor: &Grant<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut report = |rule, what: &str, event: &Event, asked: Moment| {
        let succeeded = matches!(event.answer, Answer::Ok | Answer::Renewed { .. } | Answer::Granted { .. });
        if succeeded && successor.granted < asked {
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
    for event in &grant.conversions {
        report(Rule::NoStaleRenewal, "converted", event, event.called);
    }
    for event in &grant.checks {
        report(Rule::LeaseEnds, "was told that it still has", event, event.called);
    }
    violations
}

/// Checks rule [`Rule::NoStaleRelease`] for a second success. A conversion ends the lease like a release.
pub fn released_once(lock: &LockHistory<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for grant in &lock.grants {
        let calls = grant.releases.iter().chain(&grant.conversions).copied();
        let ended: Vec<&Event> =
            calls.filter(|event| matches!(event.answer, Answer::Ok | Answer::Granted { .. })).collect();
        if ended.len() > 1 {
            let what = format!("{} calls each say that they ended one lease", ended.len());
            violations.push(Violation::new(Rule::NoStaleRelease, what, &ended));
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
/// one, only exclusive leases write, and no two of them use one fence.
pub fn no_stale_write(lock: &LockHistory<'_>) -> Vec<Violation> {
    let accepted = AcceptedWrites::of(lock);
    let members: HashMap<&CallId, &Grant<'_>> =
        lock.grants.iter().filter(|grant| is_member(grant)).map(|grant| (&grant.acquire.id, grant)).collect();
    let mut violations = Vec::new();
    let mut users: HashMap<u64, (&CallId, &Event)> = HashMap::new();
    for (event, lease, fence) in &lock.writes {
        match (&event.answer, accepted.highest_before(event)) {
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
        if let Some(member) = members.get(lease) {
            let what = format!("a lease that is not exclusive wrote: it is {}", member.mode);
            violations.push(Violation::new(Rule::NoStaleWrite, what, &[member.acquire, event]));
        }
        let (user, first) = *users.entry(*fence).or_insert((lease, event));
        if user != *lease {
            let what = format!("two leases wrote with fence {fence}");
            violations.push(Violation::new(Rule::NoStaleWrite, what, &[first, event]));
        }
    }
    violations
}

/// Checks rule [`Rule::NoStaleWrite`] for reads: none is accepted after a write with a higher fence, and none is refused
/// without one. Many leases may read with one epoch.
pub fn no_stale_read(lock: &LockHistory<'_>) -> Vec<Violation> {
    let accepted = AcceptedWrites::of(lock);
    let maybe = |event: &Event| event.answer == Answer::Ok || event.answer.is_in_doubt();
    let possible = lock.writes.iter().filter(|(event, ..)| maybe(event));
    let mut possible: Vec<(Moment, u64)> = possible.map(|(event, _, fence)| (event.called, *fence)).collect();
    possible.sort();
    let possible = running(&possible, |a, b| (b.0, a.1.max(b.1)));
    let mut violations = Vec::new();
    for (event, _, epoch) in &lock.reads {
        match (&event.answer, accepted.highest_before(event)) {
            (Answer::Ok, Some((newer, high))) if high > *epoch => {
                let what = format!("a read with epoch {epoch} was accepted after a write with fence {high}");
                violations.push(Violation::new(Rule::NoStaleWrite, what, &[newer, event]));
            }
            (Answer::Refused { highest }, _) => {
                let called = possible.partition_point(|(called, _)| *called <= event.last_seen());
                let high = called.checked_sub(1).map_or(0, |last| possible[last].1);
                if (*highest).min(high) <= *epoch {
                    let what = format!(
                        "a read with epoch {epoch} was refused for fence {highest}, though the highest fence of a \
                         write can have been {high}"
                    );
                    violations.push(Violation::new(Rule::NoStaleWrite, what, &[event]));
                }
            }
            _ => {}
        }
    }
    violations
}

/// Writes that the receiver accepted, by their ends, each with the highest fence up to it.
struct AcceptedWrites<'h>(Vec<(Moment, &'h Event, u64)>);

impl<'h> AcceptedWrites<'h> {
    fn of(lock: &LockHistory<'h>) -> AcceptedWrites<'h> {
        let accepted = lock.writes.iter().filter(|(event, ..)| event.answer == Answer::Ok);
        let mut done: Vec<_> =
            accepted.map(|(event, _, fence)| (event.last_seen(), *event, *fence)).collect();
        done.sort_by_key(|(ended, ..)| *ended);
        AcceptedWrites(running(&done, |a, b| if b.2 > a.2 { b } else { (b.0, a.1, a.2) }))
    }

    /// Returns the write with the highest fence that was accepted before this call was made.
    fn highest_before(&self, event: &Event) -> Option<(&'h Event, u64)> {
        let earlier = self.0.partition_point(|(ended, ..)| *ended < event.called);
        earlier.checked_sub(1).map(|last| (self.0[last].1, self.0[last].2))
    }
}

/// Returns the grants that have a number, lowest number first.
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
