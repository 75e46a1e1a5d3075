//! The fence and the epoch: the numbers that order the holders of a lock.

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

/// Number of a period in which a lock was held by readers, or by one writer. All readers that hold a lock at one time have
/// the same epoch. Each exclusive grant begins a new, higher epoch, whose number is its [`Fence`].
///
/// A receiver may refuse a reader whose epoch is [before](Epoch::is_before) the highest fence that it has seen: a writer
/// came since. An epoch is no fence and orders no writes, because several holders have it. It does not prove that its
/// holder still holds the lock either: a reader whose lease has expired has the epoch of those that hold it now. It is not
/// secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Whether the writer with this fence was granted the lock after this epoch had begun.
    pub fn is_before(self, fence: Fence) -> bool {
        self.0 < fence.0
    }
}

impl From<Fence> for Epoch {
    /// Returns the epoch that the exclusive grant with this fence has begun.
    fn from(fence: Fence) -> Epoch {
        Epoch(fence.0)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
