//! The fence: the number that orders the holders of a lock.

use std::fmt;

/// Number that grows with every grant of a lock. Send it along with each write that the lock guards, and let
/// the receiver refuse numbers lower than the highest it has seen.
///
/// It is not secret, and does not prove that its sender holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
