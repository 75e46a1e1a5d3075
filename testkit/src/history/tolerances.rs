//! What the rules forgive.

use std::time::Duration;

use dlm::Moment;

/// What the rules forgive. The defaults fit a store on this machine that shares its clock and loses no replies.
#[derive(Debug, Clone, PartialEq)]
pub struct Tolerances {
    /// Largest difference in rate between the clocks of the store and of the log: 0.01 is one percent. A lease lasts
    /// that much shorter or longer. Default: 0.01.
    pub clock_rate: f64,
    /// How much sooner a lease may end because the clock of the store is coarse. Default: 5 ms.
    pub epsilon: Duration,
    /// How much longer the store may keep a lease than was asked, for example because it counts in seconds.
    /// Default: zero.
    pub store_slack: Duration,
    /// Whether an older record may come back when the one above it has ended, as after a flush of HBase: `store_slack` is how
    /// long it lasts. Then the answer that a lease is lost does not say that others find the lock free. Default: false.
    pub older_records: bool,
    /// How long released locks stay with their processes: the option `linger`. Others may find them held for so long, and
    /// if the process is killed, until the record ends. Default: zero.
    pub linger: Duration,
    /// Longest time after its call that a request without an answer may still take effect: the longest stall plus the
    /// time-out of a call. Default: 10 s.
    pub late: Duration,
    /// How much longer than the log says a delayed message may have taken: the stalls of the machine and of the server.
    /// Default: 1 s.
    pub stall: Duration,
    /// How long before its call an acquire that waits may have learnt that the lock is held: waiters of one manager
    /// share the answers of the store, for about two retry intervals. Default: 1 s.
    pub shared_answer: Duration,
    /// How long the store may keep a lock free for a writer after the call of that writer has ended: a call that waits
    /// for an exclusive lease says so in the store, and its process may be killed. Default: 3 s.
    pub intent: Duration,
    /// How long after its last hold an epoch may still be joined, in a store that learns of an end only by the time that the
    /// longest hold lasts. Default: zero.
    pub epoch: Duration,
    /// Longest time until a waiter returns after its latch has opened or expired, or its deadline has passed: the poll
    /// interval, the time-out of a call, and the delays of a busy machine. Stalls that the log shows are added: see
    /// [`Operation::Beat`](super::Operation::Beat). Default: 5 s.
    pub wake: Duration,
    /// Steps after which the search for an order of the calls on one row gives up. Default: one million.
    pub search_steps: usize,
}

impl Default for Tolerances {
    fn default() -> Tolerances {
        Tolerances {
            clock_rate: 0.01,
            epsilon: Duration::from_millis(5),
            store_slack: Duration::ZERO,
            older_records: false,
            linger: Duration::ZERO,
            late: Duration::from_secs(10),
            stall: Duration::from_secs(1),
            shared_answer: Duration::from_secs(1),
            intent: Duration::from_secs(3),
            epoch: Duration::ZERO,
            wake: Duration::from_secs(5),
            search_steps: 1_000_000,
        }
    }
}

impl Tolerances {
    /// Returns the moment until which a record surely lasts that the store wrote at `written` or later.
    pub fn surely_until(&self, written: Moment, ttl: Duration) -> Moment {
        before(written.after(ttl.mul_f64(1.0 - self.clock_rate)), self.epsilon)
    }

    /// Returns the moment until which a record may last that the store wrote at `written` or earlier.
    pub fn possibly_until(&self, written: Moment, ttl: Duration) -> Moment {
        // The store keeps a record for both, by its clock.
        let kept = ttl.saturating_add(self.linger);
        written.after(kept.mul_f64(1.0 + self.clock_rate)).after(self.epsilon).after(self.store_slack)
    }
}

/// Returns the moment `duration` earlier.
pub(super) fn before(moment: Moment, duration: Duration) -> Moment {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Moment::from_nanos(moment.as_nanos().saturating_sub(nanos))
}
