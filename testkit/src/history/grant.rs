//! Who surely held a lock, and who may have held it, from when to when.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dlm::Moment;

use super::History;
use super::event::{Answer, CallId, Event, Operation};
use super::late_effects::LateEffects;
use super::tolerances::Tolerances;

/// A lock that was granted, and what was done with its lease.
#[derive(Debug, Clone)]
pub struct Grant<'h> {
    /// The call that acquired the lock.
    pub acquire: &'h Event,
    /// The fence; `None` if the store does not fence.
    pub fence: Option<u64>,
    /// Length of the lease.
    pub ttl: Duration,
    /// When the call returned.
    pub granted: Moment,
    /// When the lease ends, as the library counts it.
    pub ends: Moment,
    /// Renewals, each with the length that was asked for.
    pub renewals: Vec<(&'h Event, Duration)>,
    /// Releases.
    pub releases: Vec<&'h Event>,
    /// Checks of the lease.
    pub checks: Vec<&'h Event>,
    /// What its calls may do after they have returned.
    pub late_effects: Arc<LateEffects>,
}

impl Grant<'_> {
    /// Returns the moment until which the holder surely had the lock. The store wrote the record after the call, and a
    /// renewal that succeeded wrote it again. The library promises the lock until the end that it counts. A release may
    /// have freed the lock as soon as it was called, whatever its answer.
    pub fn sure_end(&self, tolerances: &Tolerances) -> Moment {
        let renewed = self.renewals.iter().filter_map(|(event, ttl)| match event.answer {
            Answer::Renewed { ends } => Some(tolerances.surely_until(event.called, *ttl).max(ends)),
            _ => None,
        });
        let granted = tolerances.surely_until(self.acquire.called, self.ttl).max(self.ends);
        let lasts = renewed.fold(granted, Moment::max);
        self.releases.iter().map(|event| event.called).fold(lasts, Moment::min)
    }

    /// Returns the moment until which the holder may have had the lock: until an answer said that it does not have it
    /// any more, at the latest until the last record has expired that its calls may have written. A server that goes
    /// away may forget a release. A store may let a renewed record last for the longest TTL so far.
    pub fn possible_end(&self, tolerances: &Tolerances) -> Moment {
        let end = |event, ttl| self.late_effects.latest_end(event, ttl, tolerances);
        let mut longest = self.ttl;
        let renewed = self.renewals.iter().map(|(event, ttl)| {
            longest = longest.max(*ttl);
            end(event, longest)
        });
        let lasts = renewed.fold(end(self.acquire, self.ttl), Moment::max);
        let over = |event: &&&Event| match event.answer {
            Answer::Ok => true,
            Answer::Lost => !tolerances.older_records,
            _ => false,
        };
        let kept = |event: &&&Event| !self.late_effects.forgets(event.called, lasts);
        let renewals = self.renewals.iter().map(|(event, _)| event);
        // The record of a released lock may stay.
        let releases = self.releases.iter().filter(|_| tolerances.linger.is_zero());
        renewals
            .chain(releases)
            .filter(over)
            .filter(kept)
            .map(|event| event.last_seen())
            .fold(lasts, Moment::min)
    }
}

/// All that happened to one lock.
#[derive(Debug, Clone)]
pub struct LockHistory<'h> {
    /// Name of the lock.
    pub key: Arc<str>,
    /// Grants, in the order in which they were called.
    pub grants: Vec<Grant<'h>>,
    /// Calls to acquire the lock that failed, have an unknown result, or lost messages. The library gives back a grant
    /// that it cannot hand over, so each of them may have held the lock for a while, also one that was granted or found
    /// the lock held in the end.
    pub uncertain: Vec<(&'h Event, Duration)>,
    /// Calls to acquire the lock that found it held, each with its longest wait.
    pub busy: Vec<(&'h Event, Duration)>,
    /// Writes to the receiver, each with its lease and fence.
    pub writes: Vec<(&'h Event, &'h CallId, u64)>,
    /// What the calls may do after they have returned.
    pub late_effects: Arc<LateEffects>,
}

impl<'h> LockHistory<'h> {
    /// Returns what happened to each lock of a history.
    pub fn of(history: &'h History) -> Vec<LockHistory<'h>> {
        let late_effects = Arc::new(LateEffects::of(history));
        let of_key = |(key, events): (_, Vec<_>)| LockHistory::of_key(key, &events, &late_effects);
        history.by_key().into_iter().map(of_key).collect()
    }

    fn of_key(key: Arc<str>, events: &[&'h Event], late_effects: &Arc<LateEffects>) -> LockHistory<'h> {
        let mut lock = LockHistory {
            key,
            grants: Vec::new(),
            uncertain: Vec::new(),
            busy: Vec::new(),
            writes: Vec::new(),
            late_effects: Arc::clone(late_effects),
        };
        let mut numbers: HashMap<&CallId, usize> = HashMap::new();
        for event in events {
            if let Operation::Acquire { ttl, wait } = event.operation {
                if matches!(event.answer, Answer::Granted { .. }) {
                    numbers.insert(&event.id, lock.grants.len());
                }
                lock.add_acquire(event, ttl, wait);
            }
        }
        for event in events {
            let grant = |lease: &CallId| numbers.get(lease).copied();
            match &event.operation {
                Operation::Renew { lease, ttl } => {
                    if let Some(number) = grant(lease) {
                        lock.grants[number].renewals.push((event, *ttl));
                    }
                }
                Operation::Release { lease } => {
                    if let Some(number) = grant(lease) {
                        lock.grants[number].releases.push(event);
                    }
                }
                Operation::Check { lease } => {
                    if let Some(number) = grant(lease) {
                        lock.grants[number].checks.push(event);
                    }
                }
                Operation::Write { lease, fence } => lock.writes.push((event, lease, *fence)),
                _ => {}
            }
        }
        lock
    }

    fn add_acquire(&mut self, event: &'h Event, ttl: Duration, wait: Duration) {
        match event.answer {
            Answer::Granted { fence, ends } => self.grants.push(Grant {
                acquire: event,
                fence,
                ttl,
                granted: event.last_seen(),
                ends,
                renewals: Vec::new(),
                releases: Vec::new(),
                checks: Vec::new(),
                late_effects: Arc::clone(&self.late_effects),
            }),
            Answer::No => self.busy.push((event, wait)),
            _ => {}
        }
        let known = matches!(event.answer, Answer::Granted { .. } | Answer::No);
        if !known || self.late_effects.delay(event).is_some() {
            self.uncertain.push((event, ttl));
        }
    }

    /// Returns from when to when somebody may have held the lock.
    pub fn possible_holds(&self, tolerances: &Tolerances) -> Vec<(Moment, Moment)> {
        let granted = self.grants.iter().map(|grant| (grant.acquire.called, grant.possible_end(tolerances)));
        let end = |event, ttl| self.late_effects.latest_end(event, ttl, tolerances);
        let uncertain = self.uncertain.iter().map(|(event, ttl)| (event.called, end(event, *ttl)));
        granted.chain(uncertain).collect()
    }
}
