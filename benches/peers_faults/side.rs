//! The two ways to lock that meet the same faults: the calls of the Java library, and this library.

use std::time::Duration;

/// The client that meets the fault. The others have an undisturbed network.
pub(crate) const UNLUCKY: usize = 0;
/// Number of clients.
pub(crate) const CLIENTS: usize = 3;

/// Several clients of one store.
pub(crate) trait Side {
    /// Tries once to acquire the lock. Returns whether it was granted.
    fn acquire(&mut self, client: usize, lock: u64, ttl: Duration) -> bool;

    /// Releases the lock, whatever has happened since it was granted.
    fn release(&mut self, client: usize, lock: u64);

    /// The [`UNLUCKY`] client tries once to acquire the lock. The store carries the request out, and the reply is lost.
    /// The client then does what it does in such a case, and this returns what it believes in the end.
    fn acquire_with_lost_reply(&mut self, lock: u64, ttl: Duration) -> bool;

    /// The [`UNLUCKY`] client releases the lock, and the network keeps the request until `deliver`.
    fn release_late(&mut self, lock: u64);

    /// The [`UNLUCKY`] client releases the lock. The store carries the request out, and the reply is lost. The network
    /// keeps what the client sends then until `deliver`.
    fn release_with_lost_reply(&mut self, lock: u64);

    /// Lets the kept requests pass, and waits until their clients have got the answers.
    fn deliver(&mut self);
}
