//! Who holds which lock, as the clients themselves believe.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A client that was granted a lock, has not released it, and whose TTL may still run.
struct Holder {
    client: usize,
    /// One TTL after the acquire was called. A client that counts from its own call may work until then.
    until: Instant,
}

/// Counts grants, and those that overlap.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The holders of each lock, the first one first.
    holders: HashMap<u64, Vec<Holder>>,
    pub(crate) grants: usize,
    /// Grants of a lock that another client still held.
    pub(crate) overlapping: usize,
}

impl Ledger {
    /// Notes an acquire that was called at `called` and has been granted just now.
    pub(crate) fn granted(&mut self, lock: u64, client: usize, called: Instant, ttl: Duration) {
        let (now, holders) = (Instant::now(), self.holders.entry(lock).or_default());
        holders.retain(|holder| holder.until > now);
        self.grants += 1;
        self.overlapping += usize::from(!holders.is_empty());
        holders.push(Holder { client, until: called + ttl });
    }

    /// Notes that a client is about to release. From then on it does not count as a holder, even if it is later than
    /// its TTL or the release fails.
    pub(crate) fn releases(&mut self, lock: u64, client: usize) {
        self.holders.entry(lock).or_default().retain(|holder| holder.client != client);
    }

    /// Returns the client that has held the lock for the longest time.
    pub(crate) fn first_holder(&self, lock: u64) -> Option<usize> {
        self.holders.get(&lock)?.first().map(|holder| holder.client)
    }

    pub(crate) fn holds(&self, lock: u64, client: usize) -> bool {
        self.holders.get(&lock).is_some_and(|holders| holders.iter().any(|holder| holder.client == client))
    }
}
