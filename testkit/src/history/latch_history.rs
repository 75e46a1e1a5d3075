//! The changes of a latch, its reads and its waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dlm::Moment;

use super::History;
use super::event::{Answer, Event, Operation};
use super::tolerances::Tolerances;

/// One creation of a latch.
#[derive(Debug, Clone, Copy)]
pub struct Creation<'h> {
    /// The call.
    pub event: &'h Event,
    /// Initial count.
    pub count: i64,
    /// Lifetime of the latch after each change.
    pub ttl: Duration,
}

/// All that happened to one latch, as long as it is created once.
#[derive(Debug, Clone)]
pub struct LatchHistory<'h> {
    /// Name of the latch.
    pub key: Arc<str>,
    /// Calls to create the latch, in the order in which they were called.
    pub creations: Vec<Creation<'h>>,
    /// Calls to reset the latch, in the order in which they were called.
    pub resets: Vec<Creation<'h>>,
    /// Calls to delete the latch.
    pub deletions: Vec<&'h Event>,
    /// Calls to count up.
    pub ups: Vec<&'h Event>,
    /// Calls to count down without a participant.
    pub downs: Vec<&'h Event>,
    /// Calls to count down, by participant.
    pub named: BTreeMap<&'h str, Vec<&'h Event>>,
    /// Reads of the count.
    pub reads: Vec<&'h Event>,
    /// Waits, each with its deadline.
    pub waits: Vec<(&'h Event, Moment)>,
}

impl<'h> LatchHistory<'h> {
    /// Returns what happened to each latch of a history.
    pub fn of(history: &'h History) -> Vec<LatchHistory<'h>> {
        let latches = history.by_key().into_iter().map(|(key, events)| LatchHistory::of_key(key, &events));
        latches.filter(|latch| !latch.creations.is_empty()).collect()
    }

    fn of_key(key: Arc<str>, events: &[&'h Event]) -> LatchHistory<'h> {
        let mut latch = LatchHistory {
            key,
            creations: Vec::new(),
            resets: Vec::new(),
            deletions: Vec::new(),
            ups: Vec::new(),
            downs: Vec::new(),
            named: BTreeMap::new(),
            reads: Vec::new(),
            waits: Vec::new(),
        };
        for event in events {
            match &event.operation {
                Operation::CreateLatch { count, ttl } => {
                    latch.creations.push(Creation { event, count: *count, ttl: *ttl });
                }
                Operation::ResetLatch { count, ttl } => {
                    latch.resets.push(Creation { event, count: *count, ttl: *ttl });
                }
                Operation::DeleteLatch => latch.deletions.push(event),
                Operation::CountUp => latch.ups.push(event),
                Operation::CountDown { participant: None } => latch.downs.push(event),
                Operation::CountDown { participant: Some(name) } => {
                    latch.named.entry(name).or_default().push(event);
                }
                Operation::ReadCount => latch.reads.push(event),
                Operation::Await { deadline } => latch.waits.push((event, *deadline)),
                _ => {}
            }
        }
        latch
    }

    /// Returns the creations that succeeded or may have succeeded.
    pub fn possible_creations(&self) -> impl Iterator<Item = &Creation<'h>> + '_ {
        self.creations.iter().filter(|creation| may_have_counted(creation.event))
    }

    /// Returns the creation that succeeded. `None` if none did, if several did, or if one is in doubt: then nothing is
    /// known about the count. Also `None` if the latch may have been reset or deleted.
    pub fn creation(&self) -> Option<Creation<'h>> {
        let mut ends = self.resets.iter().map(|reset| reset.event).chain(self.deletions.iter().copied());
        if ends.any(may_have_counted) {
            return None;
        }
        let mut possible = self.possible_creations();
        match (possible.next(), possible.next()) {
            (Some(creation), None) if creation.event.answer == Answer::Ok => Some(*creation),
            _ => None,
        }
    }

    /// Returns the calls that change or may change the latch, except its creation.
    pub fn steps(&self) -> impl Iterator<Item = &'h Event> + '_ {
        self.ups.iter().chain(&self.downs).chain(self.named.values().flatten()).copied()
    }

    /// Returns the bounds of the count over time.
    pub fn bounds(&self, creation: Creation<'h>) -> CountBounds {
        let named = self.named.values().map(Vec::as_slice);
        let downs: Vec<&[&Event]> = self.downs.chunks(1).chain(named).collect();
        let ups: Vec<&[&Event]> = self.ups.chunks(1).collect();
        CountBounds { initial: creation.count, ups: Changes::of(&ups), downs: Changes::of(&downs) }
    }

    /// Returns when the latch may still exist after its last change.
    pub fn possible_end(&self, creation: Creation<'h>, tolerances: &Tolerances) -> Moment {
        let changes = self.steps().chain([creation.event]).filter(|event| may_have_counted(event));
        let late = |event: &Event| if event.answer.is_in_doubt() { tolerances.late } else { Duration::ZERO };
        let last = changes.map(|event| event.last_seen().after(late(event))).max();
        tolerances.possibly_until(last.unwrap_or(creation.event.last_seen()), creation.ttl)
    }
}

/// Whether this call may have changed the latch.
pub(super) fn may_have_counted(event: &Event) -> bool {
    event.answer == Answer::Ok || event.answer.is_in_doubt()
}

/// When steps in one direction may have taken effect first, and from when on they surely have. Sorted.
#[derive(Debug, Clone)]
pub(super) struct Changes {
    pub(super) possible: Vec<Moment>,
    pub(super) sure: Vec<Moment>,
}

impl Changes {
    /// Each group of calls takes effect once at most.
    fn of(groups: &[&[&Event]]) -> Changes {
        let (mut possible, mut sure) = (Vec::new(), Vec::new());
        for group in groups {
            possible
                .extend(group.iter().filter(|event| may_have_counted(event)).map(|event| event.called).min());
            // A participant that is told that it has counted has surely counted.
            let counted = group.iter().filter(|event| matches!(event.answer, Answer::Ok | Answer::No));
            sure.extend(counted.map(|event| event.last_seen()).min());
        }
        possible.sort();
        sure.sort();
        Changes { possible, sure }
    }

    fn possible_by(&self, at: Moment) -> i64 {
        self.possible.partition_point(|possible| *possible <= at) as i64
    }

    fn sure_before(&self, at: Moment) -> i64 {
        self.sure.partition_point(|sure| *sure < at) as i64
    }
}

/// The lowest and the highest count that a latch may have at any time.
#[derive(Debug, Clone)]
pub struct CountBounds {
    initial: i64,
    pub(super) ups: Changes,
    pub(super) downs: Changes,
}

impl CountBounds {
    /// Returns the lowest count of a read that was called and returned at these moments.
    pub fn lowest(&self, called: Moment, returned: Moment) -> i64 {
        self.initial + self.ups.sure_before(called) - self.downs.possible_by(returned)
    }

    /// Returns the highest count of a read that was called and returned at these moments.
    pub fn highest(&self, called: Moment, returned: Moment) -> i64 {
        self.initial + self.ups.possible_by(returned) - self.downs.sure_before(called)
    }

    /// Returns whether the latch may have been open at some moment of this time.
    pub fn may_be_open_within(&self, from: Moment, to: Moment) -> bool {
        let later = self.downs.possible.iter().copied().filter(|down| (from..=to).contains(down));
        std::iter::once(from).chain(later).any(|at| self.lowest(at, at) <= 0)
    }

    /// Returns since when the latch is surely open for good; `None` if it may be closed in the end.
    pub fn surely_open_since(&self, created: Moment) -> Option<Moment> {
        let mut changes: Vec<Moment> = self.ups.possible.iter().chain(&self.downs.sure).copied().collect();
        changes.push(created);
        changes.sort();
        let mut since = None;
        for at in changes {
            // A moment later the change has taken effect.
            let after = Moment::from_nanos(at.as_nanos() + 1);
            let open = self.highest(after, after) <= 0;
            since = if open { since.or(Some(at)) } else { None };
        }
        since
    }
}
