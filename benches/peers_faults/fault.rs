//! The faults. Each is a fixed order of calls by three clients, the same for both sides.

use std::thread;
use std::time::{Duration, Instant};

use crate::ledger::Ledger;
use crate::side::{CLIENTS, Side, UNLUCKY};

/// The two clients that meet no fault.
const NEXT: usize = 1;
const LAST: usize = 2;

/// Leases that end during the fault. In whole seconds, because Aerospike knows no other times.
const BRIEF: Duration = Duration::from_secs(3);
/// How long to wait for their end. Aerospike ends a record at the end of a second.
const PAST_BRIEF: Duration = Duration::from_millis(4_500);
/// Leases that do not end during the run.
const LONG: Duration = Duration::from_secs(600);
/// Hand-overs from a holder to another client.
const HAND_OVERS: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Stopped,
    StoppedOnce,
    LateRelease,
    ReleaseAgain,
    AcquireAgain,
    SameMillisecond,
}

/// What happened under a fault.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    pub(crate) locks: usize,
    /// Locks at which the fault happened as it should, so that it could do harm.
    pub(crate) bitten: usize,
    pub(crate) grants: usize,
    /// Grants of a lock that another client still held.
    pub(crate) overlapping: usize,
    /// Locks that no client held, and that no client could acquire.
    pub(crate) held_by_nobody: usize,
}

impl Fault {
    pub(crate) const ALL: [Fault; 6] = [
        Fault::Stopped,
        Fault::StoppedOnce,
        Fault::LateRelease,
        Fault::ReleaseAgain,
        Fault::AcquireAgain,
        Fault::SameMillisecond,
    ];

    pub(crate) fn description(self) -> String {
        match self {
            Fault::Stopped => "a holder stops for longer than its TTL, and then releases".into(),
            Fault::StoppedOnce => format!("the same once, and then {HAND_OVERS} hand-overs without a fault"),
            Fault::LateRelease => "a release arrives after the TTL".into(),
            Fault::ReleaseAgain => "the reply to a release is lost, and the release is sent again".into(),
            Fault::AcquireAgain => "the reply to an acquire is lost, and the acquire is sent again".into(),
            Fault::SameMillisecond => "a release and the next acquire as fast as possible".into(),
        }
    }

    /// Runs the fault on so many locks, numbered from `from`.
    pub(crate) fn run(self, side: &mut dyn Side, locks: std::ops::Range<u64>) -> Outcome {
        let mut run = Run { side, ledger: Ledger::default(), outcome: Outcome::default() };
        run.outcome.locks = locks.clone().count();
        match self {
            Fault::Stopped => run.stopped(locks, 0),
            Fault::StoppedOnce => run.stopped(locks, HAND_OVERS),
            Fault::LateRelease => run.late_release(locks),
            Fault::ReleaseAgain => locks.for_each(|lock| run.release_again(lock)),
            Fault::AcquireAgain => locks.for_each(|lock| run.acquire_again(lock)),
            Fault::SameMillisecond => locks.for_each(|lock| run.same_millisecond(lock)),
        }
        Outcome { grants: run.ledger.grants, overlapping: run.ledger.overlapping, ..run.outcome }
    }
}

struct Run<'a> {
    side: &'a mut dyn Side,
    ledger: Ledger,
    outcome: Outcome,
}

impl Run<'_> {
    fn acquire(&mut self, client: usize, lock: u64, ttl: Duration) -> bool {
        let called = Instant::now();
        let granted = self.side.acquire(client, lock, ttl);
        if granted {
            self.ledger.granted(lock, client, called, ttl);
        }
        granted
    }

    fn release(&mut self, client: usize, lock: u64) {
        self.ledger.releases(lock, client);
        self.side.release(client, lock);
    }

    fn bitten_if(&mut self, happened: bool) {
        self.outcome.bitten += usize::from(happened);
    }

    /// A client that stops makes no calls, and so does this one. All locks wait for the end of their TTL together.
    fn stopped(&mut self, locks: std::ops::Range<u64>, hand_overs: usize) {
        // On a busy machine, an answer may arrive after the end of its lease.
        let held: Vec<u64> = locks.filter(|lock| self.acquire(UNLUCKY, *lock, BRIEF)).collect();
        thread::sleep(PAST_BRIEF);
        for lock in held {
            let granted = self.acquire(NEXT, lock, LONG);
            self.bitten_if(granted);
            self.release(UNLUCKY, lock);
            self.acquire(LAST, lock, LONG);
            for _ in 0..hand_overs {
                self.hand_over(lock);
            }
        }
    }

    /// The client that has held the lock for the longest time releases it. Then all others try to acquire it.
    fn hand_over(&mut self, lock: u64) {
        let Some(first) = self.ledger.first_holder(lock) else { return };
        self.release(first, lock);
        for other in (1..=CLIENTS).map(|step| (first + step) % CLIENTS) {
            if other != first && !self.ledger.holds(lock, other) {
                self.acquire(other, lock, LONG);
            }
        }
    }

    fn late_release(&mut self, locks: std::ops::Range<u64>) {
        let mut held = Vec::new();
        for lock in locks {
            if self.acquire(UNLUCKY, lock, BRIEF) {
                self.ledger.releases(lock, UNLUCKY);
                self.side.release_late(lock);
                held.push(lock);
            }
        }
        thread::sleep(PAST_BRIEF);
        for &lock in &held {
            let granted = self.acquire(NEXT, lock, LONG);
            self.bitten_if(granted);
        }
        self.side.deliver();
        for lock in held {
            self.acquire(LAST, lock, LONG);
        }
    }

    fn release_again(&mut self, lock: u64) {
        self.acquire(UNLUCKY, lock, LONG);
        self.ledger.releases(lock, UNLUCKY);
        self.side.release_with_lost_reply(lock);
        let granted = self.acquire(NEXT, lock, LONG);
        self.bitten_if(granted);
        self.side.deliver();
        self.acquire(LAST, lock, LONG);
    }

    fn acquire_again(&mut self, lock: u64) {
        let called = Instant::now();
        let granted = self.side.acquire_with_lost_reply(lock, LONG);
        if granted {
            self.ledger.granted(lock, UNLUCKY, called, LONG);
        }
        self.bitten_if(true);
        let next = self.acquire(NEXT, lock, LONG);
        self.outcome.held_by_nobody += usize::from(!granted && !next);
    }

    fn same_millisecond(&mut self, lock: u64) {
        self.acquire(UNLUCKY, lock, LONG);
        self.release(UNLUCKY, lock);
        let granted = self.acquire(NEXT, lock, LONG);
        self.bitten_if(granted);
        self.acquire(LAST, lock, LONG);
    }
}
