//! Rules of semaphores. Each permit is a lock of its own, which is held exclusively, so the rules of locks hold for it.

use std::collections::{BTreeMap, HashSet};

use dlm::{Mode, Moment};

use super::History;
use super::event::CallId;
use super::grant::{Grant, LockHistory, PermitNumber, PossibleHold};
use super::lock_rules::{
    earliest_answer, exclusion, lease_ends, no_overlap, no_stale_success, no_stale_write, released_once,
    rising_fences, unique_fences,
};
use super::tolerances::Tolerances;
use super::violation::{Rule, Violation};

/// Checks all rules of semaphores.
pub fn check(history: &History, tolerances: &Tolerances) -> Vec<Violation> {
    let semaphores = LockHistory::of(history).into_iter().filter(LockHistory::is_semaphore);
    semaphores.flat_map(|semaphore| of_one(&semaphore, tolerances)).collect()
}

fn of_one(semaphore: &LockHistory<'_>, tolerances: &Tolerances) -> Vec<Violation> {
    let mut violations = numbers(semaphore);
    violations.extend(sizes(semaphore, tolerances));
    violations.extend(no_permit_beside_higher_ones(semaphore, tolerances));
    violations.extend(no_phantom_permits(semaphore, tolerances));
    for permit in by_permit(semaphore) {
        violations.extend(unique_fences(&permit));
        violations.extend(rising_fences(&permit));
        violations.extend(exclusion(&permit, tolerances));
        violations.extend(no_overlap(&permit, tolerances));
        violations.extend(no_stale_success(&permit));
        violations.extend(released_once(&permit));
        violations.extend(lease_ends(&permit));
        violations.extend(no_stale_write(&permit));
    }
    violations
}

fn numbered<'l, 'h>(
    semaphore: &'l LockHistory<'h>,
) -> impl Iterator<Item = (&'l Grant<'h>, PermitNumber)> + Clone {
    semaphore.grants.iter().filter_map(|grant| Some((grant, grant.permit?)))
}

/// Returns what happened to each permit, as the history of a lock.
fn by_permit<'h>(semaphore: &LockHistory<'h>) -> Vec<LockHistory<'h>> {
    let mut permits: BTreeMap<u8, Vec<Grant<'h>>> = BTreeMap::new();
    for (grant, permit) in numbered(semaphore) {
        let grant = Grant { mode: Mode::Exclusive, ..grant.clone() };
        permits.entry(permit.number).or_default().push(grant);
    }
    let split = |(number, grants): (u8, Vec<Grant<'h>>)| {
        let leases: HashSet<&CallId> = grants.iter().map(|grant| &grant.acquire.id).collect();
        let writes =
            semaphore.writes.iter().filter(|(_, lease, _)| leases.contains(lease)).copied().collect();
        LockHistory {
            key: format!("{}[{number}]", semaphore.key).into(),
            grants,
            uncertain: Vec::new(),
            busy: Vec::new(),
            waiting_writers: Vec::new(),
            writes,
            reads: Vec::new(),
            resizes: Vec::new(),
            late_effects: semaphore.late_effects.clone(),
        }
    };
    permits.into_iter().map(split).collect()
}

/// Checks rule [`Rule::PermitNumbers`]: the number of a permit is below the size that was asked for.
fn numbers(semaphore: &LockHistory<'_>) -> Vec<Violation> {
    let wrong = numbered(semaphore).filter(|(_, permit)| u16::from(permit.number) >= permit.size);
    wrong
        .map(|(grant, PermitNumber { number, size })| {
            let what = format!("permit {number} was granted of a semaphore of {size}");
            Violation::new(Rule::PermitNumbers, what, &[grant.acquire])
        })
        .collect()
}

/// Checks rule [`Rule::PermitNumbers`]: none is granted for another size while a permit is surely held, unless the size is changed.
fn sizes(semaphore: &LockHistory<'_>, tolerances: &Tolerances) -> Vec<Violation> {
    if !semaphore.resizes.is_empty() {
        return Vec::new();
    }
    let by_size = Holds::by(numbered(semaphore).map(|(grant, permit)| (permit.size, grant)), tolerances);
    let mut violations = Vec::new();
    for (grant, permit) in numbered(semaphore) {
        let others = by_size.iter().filter(|(size, _)| **size != permit.size);
        if let Some((size, other)) =
            others.filter_map(|(size, holds)| Some((size, holds.during(grant)?))).next()
        {
            let what = format!("a permit of {} was granted while one of {size} was held", permit.size);
            violations.push(Violation::new(Rule::PermitNumbers, what, &[other.acquire, grant.acquire]));
        }
    }
    violations
}

/// Checks rule [`Rule::PermitNumbers`]: none is granted while one with a number at or above the size is surely held.
fn no_permit_beside_higher_ones(semaphore: &LockHistory<'_>, tolerances: &Tolerances) -> Vec<Violation> {
    let of_number = |(grant, permit): (_, PermitNumber)| (u16::from(permit.number), grant);
    let by_number = Holds::by(numbered(semaphore).map(of_number), tolerances);
    let mut violations = Vec::new();
    for (grant, permit) in numbered(semaphore) {
        let mut higher = by_number.range(permit.size..);
        if let Some((number, other)) = higher.find_map(|(number, holds)| Some((number, holds.during(grant)?)))
        {
            let what = format!("a permit of {} was granted while permit {number} was held", permit.size);
            violations.push(Violation::new(Rule::PermitNumbers, what, &[other.acquire, grant.acquire]));
        }
    }
    violations
}

/// Until when holds surely lasted.
struct Holds<'l, 'h> {
    /// For each grant, ordered by the end of its call: the hold that lasts longest of those up to it.
    longest: Vec<(Moment, &'l Grant<'h>, Moment)>,
}

impl<'l, 'h> Holds<'l, 'h> {
    /// Sorts grants by a number of them.
    fn by(
        grants: impl Iterator<Item = (u16, &'l Grant<'h>)>,
        tolerances: &Tolerances,
    ) -> BTreeMap<u16, Holds<'l, 'h>> {
        let mut all: BTreeMap<u16, Vec<&'l Grant<'h>>> = BTreeMap::new();
        for (number, grant) in grants {
            all.entry(number).or_default().push(grant);
        }
        let of = |(number, mut grants): (u16, Vec<&'l Grant<'h>>)| {
            grants.sort_by_key(|grant| grant.granted);
            let mut longest: Vec<(Moment, &Grant<'_>, Moment)> = Vec::with_capacity(grants.len());
            for grant in grants {
                let until = grant.sure_end(tolerances);
                let (holder, until) = match longest.last() {
                    Some((_, holder, last)) if *last >= until => (*holder, *last),
                    _ => (grant, until),
                };
                longest.push((grant.granted, holder, until));
            }
            (number, Holds { longest })
        };
        all.into_iter().map(of).collect()
    }

    /// Returns one that surely lasted during the whole call of this grant.
    fn during(&self, grant: &Grant<'_>) -> Option<&'l Grant<'h>> {
        let begun = self.longest.partition_point(|(granted, ..)| *granted < grant.acquire.called);
        let (_, holder, until) = self.longest[begun.checked_sub(1)?];
        (grant.granted < until).then_some(holder)
    }
}

/// Checks rule [`Rule::NoPhantomHolder`]: a permit is refused only while as many may be held as there are, or one that is above
/// the size.
fn no_phantom_permits(semaphore: &LockHistory<'_>, tolerances: &Tolerances) -> Vec<Violation> {
    let holds = semaphore.possible_holds(tolerances);
    let counts = Counts::of(holds.iter().map(|hold| (hold.from, hold.to)));
    let is_resized = !semaphore.resizes.is_empty();
    let smallest = semaphore.resizes.iter().map(|(_, size)| *size).min().unwrap_or(u16::MAX);
    // Each with a number that it may have: nobody knows that of a request without an answer.
    let granted = numbered(semaphore)
        .map(|(grant, permit)| (u16::from(permit.number), grant.possible_hold(tolerances)));
    let uncertain = semaphore.uncertain.iter().zip(semaphore.uncertain_holds(tolerances));
    let uncertain = uncertain.filter_map(|(request, hold)| Some((request.size?.checked_sub(1)?, hold)));
    let high: Vec<(u16, PossibleHold<'_>)> =
        granted.chain(uncertain).filter(|(number, _)| *number >= smallest).collect();
    let mut violations = Vec::new();
    for request in &semaphore.busy {
        let (event, Some(size)) = (request.event, request.size) else { continue };
        let asked =
            if request.wait.is_zero() { event.called } else { earliest_answer(semaphore, event, tolerances) };
        let until = event.last_seen();
        let is_above = is_resized
            && high.iter().any(|(number, hold)| *number >= size && hold.from <= until && asked <= hold.to);
        let most = counts.most(asked, until);
        if !is_above && most < usize::from(size) {
            let what = format!(
                "{} was refused a permit of {size}, but at most {most} can have been held",
                event.id.client
            );
            violations.push(Violation::new(Rule::NoPhantomHolder, what, &[event]));
        }
    }
    violations
}

/// How many holds there may have been at each moment.
struct Counts {
    /// From each moment on, so many, to the next.
    steps: Vec<(Moment, usize)>,
}

impl Counts {
    fn of(holds: impl Iterator<Item = (Moment, Moment)>) -> Counts {
        // At one moment, beginnings come before ends: a hold may have lasted until its end and with it.
        let mut changes: Vec<(Moment, bool)> =
            holds.flat_map(|(from, to)| [(from, false), (to.max(from), true)]).collect();
        changes.sort_unstable();
        let mut count = 0_usize;
        let steps = changes.into_iter().map(|(at, is_end)| {
            count = if is_end { count - 1 } else { count + 1 };
            (at, count)
        });
        Counts { steps: steps.collect() }
    }

    /// Returns the most of a time.
    fn most(&self, from: Moment, to: Moment) -> usize {
        let first = self.steps.partition_point(|(at, _)| *at < from);
        let before = first.checked_sub(1).map_or(0, |at| self.steps[at].1);
        let within = self.steps[first..].iter().take_while(|(at, _)| *at <= to).map(|(_, count)| *count);
        within.max().unwrap_or_default().max(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_holds_of_a_time_are_counted_with_both_ends() {
        let at = Moment::from_nanos;
        let counts =
            Counts::of([(1, 5), (3, 9), (5, 6), (20, 30)].map(|(from, to)| (at(from), at(to))).into_iter());
        for (from, to, most) in [
            (0, 0, 0),
            (0, 1, 1),
            (4, 4, 2),
            (5, 5, 3),
            (6, 8, 2),
            (7, 8, 1),
            (10, 19, 0),
            (10, 20, 1),
            (31, 40, 0),
        ] {
            assert_eq!(counts.most(at(from), at(to)), most, "{from} to {to}");
        }
    }
}
