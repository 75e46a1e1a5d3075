//! Rules, and the places of a history that break them.

use std::fmt;
use std::sync::Arc;

use super::event::Event;

/// A rule that every history must satisfy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// U: no two grants of a lock have the same number, unless both are shared or for update. The number of an exclusive
    /// grant is its fence, that of another is its epoch.
    UniqueFences,
    /// B: the number of a grant is not lower than that of each grant that was finished before. It is higher if one of
    /// the two is exclusive, or if nobody can have lived with that number any more when the grant was called. It stays
    /// the same when a lease for update becomes a shared one.
    RisingFences,
    /// A: no lock is granted while a holder with a lower number surely has it. Of holders with one number, at most one at
    /// a time has the lock for update.
    Exclusion,
    /// A2: holds of a lock do not overlap, whatever their numbers, unless their modes are compatible.
    NoOverlap,
    /// C: a lock is refused only while somebody may hold it in a mode that excludes the one asked for. A shared lock and
    /// one for update are also refused while the store may keep the lock free for a writer that waits, or waited. A permit is refused
    /// only while as many may be held as there are, or one that is above their number.
    NoPhantomHolder,
    /// D: a release succeeds once, and not after the lease was converted or a higher number was granted.
    NoStaleRelease,
    /// E: a renewal or a conversion does not succeed after the lease was converted or a higher number was granted.
    NoStaleRenewal,
    /// F: the library's end of a lease is not later than the store's, and checks fail from then on.
    LeaseEnds,
    /// G: a receiver that compares fences refuses stale writes, and only those. It refuses a read whose epoch is lower
    /// than the highest fence that it has seen in a write, and only such a read. Only exclusive leases write, and no two
    /// with one fence.
    NoStaleWrite,
    /// P: the number of a permit is below the number of permits that its holder counts on. Holders of one time count on the same
    /// number, unless it is changed. No permit is granted while one above that number is surely held.
    PermitNumbers,
    /// L1: each step of a latch counts once.
    ExactCount,
    /// L2: a wait ends only if the latch may have been open.
    NoEarlyWake,
    /// L3: a wait ends soon after the latch is open.
    NoMissedWake,
    /// L4: a wait times out at its deadline, neither before nor long after.
    TimeoutInTime,
    /// L5: a latch is created once.
    CreatedOnce,
    /// L6: a latch lives for its TTL after its last change, and waiters learn of its end.
    LatchLifetime,
    /// L7: after a reset a latch has the new count, and no call that was answered before counts.
    FreshIncarnation,
    /// R: the calls on each row can be ordered so that each answer is right, and each call takes effect between its
    /// call and its return.
    Linearizable,
    /// R?: the search for such an order was too long, so nothing is known.
    Undecided,
}

impl Rule {
    /// Returns the short name, such as `A2`.
    pub fn code(self) -> &'static str {
        match self {
            Rule::UniqueFences => "U",
            Rule::RisingFences => "B",
            Rule::Exclusion => "A",
            Rule::NoOverlap => "A2",
            Rule::NoPhantomHolder => "C",
            Rule::NoStaleRelease => "D",
            Rule::NoStaleRenewal => "E",
            Rule::LeaseEnds => "F",
            Rule::NoStaleWrite => "G",
            Rule::PermitNumbers => "P",
            Rule::ExactCount => "L1",
            Rule::NoEarlyWake => "L2",
            Rule::NoMissedWake => "L3",
            Rule::TimeoutInTime => "L4",
            Rule::CreatedOnce => "L5",
            Rule::LatchLifetime => "L6",
            Rule::FreshIncarnation => "L7",
            Rule::Linearizable => "R",
            Rule::Undecided => "R?",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// A place of a history that breaks a rule.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The lock, latch or row.
    pub key: Arc<str>,
    /// What happened, in plain English.
    pub what: String,
    /// The calls that show it.
    pub events: Vec<Event>,
}

impl Violation {
    pub(super) fn new(rule: Rule, what: impl Into<String>, events: &[&Event]) -> Violation {
        let key = events.first().map_or_else(|| "".into(), |event| Arc::clone(&event.key));
        let mut events: Vec<Event> = events.iter().copied().cloned().collect();
        events.dedup();
        Violation { rule, key, what: what.into(), events }
    }
}

/// Prints what happened, then one line for each call, with times in seconds of the clock.
impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {} is broken at {:?}: {}", self.rule, self.key, self.what)?;
        for event in &self.events {
            let called = event.called.as_nanos() as f64 / 1e9;
            write!(f, "\n  {}: called at {called:.6} s, ", event.id)?;
            match event.returned {
                Some(at) => write!(f, "returned after {:.3} ms", at.since(event.called).as_secs_f64() * 1e3)?,
                None => f.write_str("did not return")?,
            }
            write!(f, ": {:?} -> {:?}", event.operation, event.answer)?;
        }
        Ok(())
    }
}
