//! The calls of the Java library, made by the stores' own Java clients: `Peer.java` of the fixtures.
//!
//! These calls name the lock and not its holder. So one process stands for all clients. A request that the network keeps
//! is made later, and one whose reply is lost is made twice, which is the same to the store.

use std::time::Duration;

use dlm_fixtures::java::Java;
use dlm_fixtures::peer::Peer;

use crate::side::{Side, UNLUCKY};

/// Makes the two calls on one store.
pub(crate) trait Calls {
    fn acquire(&mut self, lock: u64, ttl: Duration) -> bool;
    fn release(&mut self, lock: u64);
}

/// HBase: checkAndPut with a client timestamp and a TTL, and Delete of the row.
pub(crate) struct OnHbase {
    pub(crate) peer: Peer,
    pub(crate) table: String,
}

impl Calls for OnHbase {
    fn acquire(&mut self, lock: u64, ttl: Duration) -> bool {
        self.peer.acquires(&self.table, &row(lock), ttl.as_millis() as u64)
    }

    fn release(&mut self, lock: u64) {
        self.peer.releases(&self.table, &row(lock));
    }
}

/// The first byte selects the region.
fn row(lock: u64) -> Vec<u8> {
    [&[lock as u8][..], format!("XDC#faults#{lock}").as_bytes()].concat()
}

/// Aerospike: a put that expects generation 0, and a delete by key.
pub(crate) struct OnAerospike {
    pub(crate) java: Java,
    /// Makes the names of locks differ between runs.
    pub(crate) run: String,
}

impl OnAerospike {
    fn place(&self, lock: u64) -> String {
        format!("XDC#tests {}-java#{lock}", self.run)
    }
}

impl Calls for OnAerospike {
    fn acquire(&mut self, lock: u64, ttl: Duration) -> bool {
        let request = format!("acquire {} dc1 {}", self.place(lock), ttl.as_secs());
        match self.java.ask(&request).as_str() {
            "acquired" => true,
            "unavailable" => false,
            other => panic!("{request}: {other}"),
        }
    }

    fn release(&mut self, lock: u64) {
        let request = format!("release {}", self.place(lock));
        let answer = self.java.ask(&request);
        assert!(["released", "missing"].contains(&answer.as_str()), "{request}: {answer}");
    }
}

/// All clients on one store.
pub(crate) struct JavaCalls<C> {
    pub(crate) calls: C,
    /// Releases that the network keeps.
    pub(crate) kept: Vec<u64>,
}

impl<C: Calls> Side for JavaCalls<C> {
    fn acquire(&mut self, _client: usize, lock: u64, ttl: Duration) -> bool {
        self.calls.acquire(lock, ttl)
    }

    fn release(&mut self, _client: usize, lock: u64) {
        self.calls.release(lock);
    }

    fn acquire_with_lost_reply(&mut self, lock: u64, ttl: Duration) -> bool {
        // The answer does not arrive, so the client sends the request again.
        self.calls.acquire(lock, ttl);
        self.calls.acquire(lock, ttl)
    }

    fn release_late(&mut self, lock: u64) {
        self.kept.push(lock);
    }

    fn release_with_lost_reply(&mut self, lock: u64) {
        self.calls.release(lock);
        self.kept.push(lock);
    }

    fn deliver(&mut self) {
        for lock in std::mem::take(&mut self.kept) {
            self.release(UNLUCKY, lock);
        }
    }
}
