//! How many leases share one hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::runtime::sync::Mutex;

/// How many leases share a hold.
pub(crate) struct SharedHold {
    pub(crate) owner: Arc<str>,
    shares: Mutex<u32>,
}

/// What the end of one lease means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShareEnd {
    /// It is over. Others share the hold.
    Now,
    /// It was over before.
    Before,
    /// It is the last one. It is not over yet: its caller ends the hold.
    Last,
}

impl SharedHold {
    /// Makes the state of a hold with one lease.
    pub(crate) fn new(owner: Arc<str>) -> SharedHold {
        SharedHold { owner, shares: Mutex::new(1) }
    }

    /// Adds a lease. Returns `false` if the last one has left.
    pub(crate) fn enter(&self) -> bool {
        let mut shares = self.shares.lock();
        let is_held = *shares > 0;
        *shares += u32::from(is_held);
        is_held
    }

    /// Ends one lease. `left` says whether it has left before.
    pub(crate) fn leave(&self, left: &AtomicBool) -> ShareEnd {
        let mut shares = self.shares.lock();
        if left.load(Ordering::Acquire) {
            return ShareEnd::Before;
        }
        if *shares <= 1 {
            *shares = 0;
            return ShareEnd::Last;
        }
        left.store(true, Ordering::Release);
        *shares -= 1;
        ShareEnd::Now
    }

    /// The only lease did not end after all.
    pub(crate) fn goes_on(&self) {
        *self.shares.lock() = 1;
    }

    /// Ends the hold for its only lease: [`Last`](ShareEnd::Last). Otherwise nothing changes: [`Before`](ShareEnd::Before) if this
    /// one has left before, and [`Now`](ShareEnd::Now) if there are others.
    pub(crate) fn end_alone(&self, left: &AtomicBool) -> ShareEnd {
        let mut shares = self.shares.lock();
        if left.load(Ordering::Acquire) {
            return ShareEnd::Before;
        }
        if *shares > 1 {
            return ShareEnd::Now;
        }
        *shares = 0;
        ShareEnd::Last
    }

    /// Whether it has several leases.
    pub(crate) fn is_shared(&self) -> bool {
        *self.shares.lock() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_the_leases_ends_the_hold_and_nobody_joins_any_more() {
        let shared = SharedHold::new("a".into());
        let leases = [const { AtomicBool::new(false) }; 3];
        assert!(shared.enter() && shared.enter());
        for lease in [1, 0] {
            assert_eq!(shared.leave(&leases[lease]), ShareEnd::Now);
            assert_eq!(shared.leave(&leases[lease]), ShareEnd::Before);
        }
        assert_eq!(shared.leave(&leases[2]), ShareEnd::Last);
        assert_eq!(shared.leave(&leases[2]), ShareEnd::Last, "a release that failed is tried again");
        assert!(!shared.enter());
        assert_eq!(shared.leave(&leases[1]), ShareEnd::Before);
    }
}
