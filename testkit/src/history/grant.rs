//! Who surely held a lock, and who may have held it, from when to when.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dlm::{Code, Mode, Moment};

use super::History;
use super::event::{Answer, CallId, Event, Operation};
use super::late_effects::LateEffects;
use super::tolerances::Tolerances;

/// A call that asks for a lock, or for another mode of a lease.
#[derive(Debug, Clone, Copy)]
pub struct Request<'h> {
    /// The call.
    pub event: &'h Event,
    /// How the lock is to be held.
    pub mode: Mode,
    /// Length of the lease that is asked for.
    pub ttl: Duration,
    /// Longest wait.
    pub wait: Duration,
    /// The lease to convert; `None` if the call acquires the lock.
    pub converts: Option<&'h CallId>,
    /// The number of permits that the caller counts on; `None` for a lock.
    pub size: Option<u16>,
}

/// Which permit of a semaphore of which size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermitNumber {
    /// Its number.
    pub number: u8,
    /// The number of permits that its holder counts on.
    pub size: u16,
}

impl<'h> Request<'h> {
    /// Returns what this call asks for; `None` if it is another call.
    pub fn of(event: &'h Event) -> Option<Request<'h>> {
        match &event.operation {
            Operation::Acquire { ttl, wait, mode } => {
                Some(Request { event, mode: *mode, ttl: *ttl, wait: *wait, converts: None, size: None })
            }
            Operation::AcquirePermit { ttl, wait, permits } => {
                let (mode, size) = (Mode::Permit, Some(*permits));
                Some(Request { event, mode, ttl: *ttl, wait: *wait, converts: None, size })
            }
            Operation::Convert { lease, mode, ttl, wait } => {
                let converts = Some(lease);
                Some(Request { event, mode: *mode, ttl: *ttl, wait: *wait, converts, size: None })
            }
            _ => None,
        }
    }
}

/// A lock that was granted, and what was done with its lease.
#[derive(Debug, Clone)]
pub struct Grant<'h> {
    /// The call that acquired the lock, or made this lease from another.
    pub acquire: &'h Event,
    /// How the lock is held.
    pub mode: Mode,
    /// The lease that this one was made from; `None` if the lock was acquired.
    pub converts: Option<&'h CallId>,
    /// Which permit it is; `None` for a lock.
    pub permit: Option<PermitNumber>,
    /// The number: the fence of an exclusive lease, the epoch of another; `None` if the store does not fence.
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
    /// Conversions of this lease to another mode.
    pub conversions: Vec<&'h Event>,
    /// Checks of the lease.
    pub checks: Vec<&'h Event>,
    /// What its calls may do after they have returned.
    pub late_effects: Arc<LateEffects>,
}

impl<'h> Grant<'h> {
    /// Returns the moment until which the holder surely had the lock. The store wrote the record after the call, and a
    /// renewal that succeeded wrote it again. The library promises the lock until the end that it counts. A release may
    /// have freed the lock as soon as it was called, whatever its answer. So may a conversion have ended the lease, if it
    /// was granted or is in doubt.
    pub fn sure_end(&self, tolerances: &Tolerances) -> Moment {
        let renewed = self.renewals.iter().filter_map(|(event, ttl)| match event.answer {
            Answer::Renewed { ends } => Some(tolerances.surely_until(event.called, *ttl).max(ends)),
            _ => None,
        });
        let granted = tolerances.surely_until(self.acquire.called, self.ttl).max(self.ends);
        let lasts = renewed.fold(granted, Moment::max);
        let converted =
            |event: &&&Event| matches!(event.answer, Answer::Granted { .. }) || event.answer.is_in_doubt();
        let conversions = self.conversions.iter().filter(converted);
        self.releases.iter().chain(conversions).map(|event| event.called).fold(lasts, Moment::min)
    }

    /// Returns the moment until which the holder may have had the lock: until an answer said that it does not have it
    /// any more, at the latest until the last record has expired that its calls may have written. A server that goes
    /// away may forget a release or a conversion. A store may let a renewed record last for the longest TTL so far. The
    /// library refuses to convert a lease that is over by its own clock without asking the store, which may keep the record
    /// for a little longer. After a conversion in doubt it says that the lease is lost, whatever the store has.
    pub fn possible_end(&self, tolerances: &Tolerances) -> Moment {
        let end = |event, ttl| self.late_effects.latest_end(event, ttl, tolerances);
        let mut longest = self.ttl;
        let renewed = self.renewals.iter().map(|(event, ttl)| {
            longest = longest.max(*ttl);
            end(event, longest)
        });
        let lasts = renewed.fold(end(self.acquire, self.ttl), Moment::max);
        let in_doubt = self.conversions.iter().filter(|event| event.answer.is_in_doubt());
        let doubted = in_doubt.map(|event| event.called).min();
        let over = |event: &&&Event| match event.answer {
            Answer::Ok => true,
            Answer::Lost => !tolerances.older_records && doubted.is_none_or(|at| event.called < at),
            _ => false,
        };
        let converted = |event: &&&Event| matches!(event.answer, Answer::Granted { .. });
        let kept = |event: &&&Event| !self.late_effects.forgets(event.called, lasts);
        let renewals = self.renewals.iter().map(|(event, _)| event);
        // The record of a released lock may stay.
        let releases = self.releases.iter().filter(|_| tolerances.linger.is_zero());
        renewals
            .chain(releases)
            .filter(over)
            .chain(self.conversions.iter().filter(converted))
            .filter(kept)
            .map(|event| event.last_seen())
            .fold(lasts, Moment::min)
    }

    /// Returns from when to when the holder may have had the lock.
    pub fn possible_hold(&self, tolerances: &Tolerances) -> PossibleHold<'h> {
        PossibleHold {
            lease: &self.acquire.id,
            mode: self.mode,
            from: self.acquire.called,
            to: self.possible_end(tolerances),
        }
    }
}

/// From when to when somebody may have held a lock.
#[derive(Debug, Clone, Copy)]
pub struct PossibleHold<'h> {
    /// The call that acquired the lock, or may have acquired it.
    pub lease: &'h CallId,
    /// How the lock is held.
    pub mode: Mode,
    /// The beginning.
    pub from: Moment,
    /// The end.
    pub to: Moment,
}

/// All that happened to one lock.
#[derive(Debug, Clone)]
pub struct LockHistory<'h> {
    /// Name of the lock.
    pub key: Arc<str>,
    /// Grants, in the order in which they were called.
    pub grants: Vec<Grant<'h>>,
    /// Requests that failed, have an unknown result, or lost messages. The library gives back a grant that it cannot hand
    /// over, so each of them may have held the lock for a while, also one that was granted or found the lock held in the
    /// end.
    pub uncertain: Vec<Request<'h>>,
    /// Requests that found the lock held.
    pub busy: Vec<Request<'h>>,
    /// Requests that wait for an exclusive lease. Meanwhile the store may refuse leases of other modes.
    pub waiting_writers: Vec<Request<'h>>,
    /// Writes to the receiver, each with its lease and fence.
    pub writes: Vec<(&'h Event, &'h CallId, u64)>,
    /// Reads of the receiver, each with its lease and epoch.
    pub reads: Vec<(&'h Event, &'h CallId, u64)>,
    /// Changes of the number of permits, each with the new one.
    pub resizes: Vec<(&'h Event, u16)>,
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
            waiting_writers: Vec::new(),
            writes: Vec::new(),
            reads: Vec::new(),
            resizes: Vec::new(),
            late_effects: Arc::clone(late_effects),
        };
        let mut numbers: HashMap<&CallId, usize> = HashMap::new();
        for event in events {
            if let Some(request) = Request::of(event) {
                if event.answer.is_grant() {
                    numbers.insert(&event.id, lock.grants.len());
                }
                lock.add_request(request);
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
                Operation::Convert { lease, .. } => {
                    if let Some(number) = grant(lease) {
                        lock.grants[number].conversions.push(event);
                    }
                }
                Operation::Check { lease } => {
                    if let Some(number) = grant(lease) {
                        lock.grants[number].checks.push(event);
                    }
                }
                Operation::Write { lease, fence } => lock.writes.push((event, lease, *fence)),
                Operation::Resize { permits } => lock.resizes.push((event, *permits)),
                Operation::Read { lease, epoch } => lock.reads.push((event, lease, *epoch)),
                _ => {}
            }
        }
        lock
    }

    fn add_request(&mut self, request: Request<'h>) {
        let event = request.event;
        let permit = match event.answer {
            Answer::GrantedPermit { permit: number, .. } => {
                request.size.map(|size| PermitNumber { number, size })
            }
            _ => None,
        };
        match event.answer {
            Answer::Granted { fence, ends } | Answer::GrantedPermit { fence, ends, .. } => {
                self.grants.push(Grant {
                    acquire: event,
                    mode: request.mode,
                    converts: request.converts,
                    permit,
                    fence,
                    ttl: request.ttl,
                    granted: event.last_seen(),
                    ends,
                    renewals: Vec::new(),
                    releases: Vec::new(),
                    conversions: Vec::new(),
                    checks: Vec::new(),
                    late_effects: Arc::clone(&self.late_effects),
                })
            }
            Answer::No => self.busy.push(request),
            _ => {}
        }
        // The store knows the semaphore with another number of permits.
        let is_of_other_size = request.size.is_some()
            && matches!(&event.answer, Answer::Failed { code } if code == Code::InvalidArgument.name());
        let known = event.answer.is_grant() || event.answer == Answer::No || is_of_other_size;
        if !known || self.late_effects.delay(event).is_some() {
            self.uncertain.push(request);
        }
        if request.mode == Mode::Exclusive && !request.wait.is_zero() {
            self.waiting_writers.push(request);
        }
    }

    /// Whether it is a semaphore, and no lock.
    pub fn is_semaphore(&self) -> bool {
        let mut requests = self.uncertain.iter().chain(&self.busy);
        self.grants.iter().any(|grant| grant.permit.is_some())
            || requests.any(|request| request.size.is_some())
    }

    /// Returns from when to when somebody may have held the lock.
    pub fn possible_holds(&self, tolerances: &Tolerances) -> Vec<PossibleHold<'h>> {
        let granted = self.grants.iter().map(|grant| grant.possible_hold(tolerances));
        granted.chain(self.uncertain_holds(tolerances)).collect()
    }

    /// Returns from when to when somebody may have held the lock because of a request that did not say so.
    pub fn uncertain_holds(&self, tolerances: &Tolerances) -> impl Iterator<Item = PossibleHold<'h>> {
        self.uncertain.iter().map(|request| PossibleHold {
            lease: &request.event.id,
            mode: request.mode,
            from: request.event.called,
            to: self.late_effects.latest_end(request.event, request.ttl, tolerances),
        })
    }

    /// Returns from when to when the store may have kept the lock free for a writer, each as the hold that it stands in
    /// for. A writer that did not return may have waited to the end.
    pub fn possible_intents(&self, tolerances: &Tolerances) -> impl Iterator<Item = PossibleHold<'h>> {
        self.waiting_writers.iter().map(|request| {
            let event = request.event;
            let ended = event.returned.unwrap_or_else(|| event.called.after(request.wait));
            let written = ended.after(self.late_effects.lateness(event, tolerances));
            let to = tolerances.possibly_until(written, tolerances.intent);
            PossibleHold { lease: &event.id, mode: request.mode, from: event.called, to }
        })
    }
}
