//! What has been reported to the event sinks about a lease. Each change is reported once, by the thread that notices it first.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Changed by any thread. No thread waits for another one.
#[derive(Debug)]
pub(crate) struct Reported {
    stage: AtomicU8,
    is_at_risk: AtomicBool,
}

/// The caller does not have the lease yet. Nothing is reported of it.
const GRANTED: u8 = 0;
/// The caller has the lease.
const BEGUN: u8 = 1;
/// It was lost. A renewal by the caller may bring it back.
const LOST: u8 = 2;
/// It was released or handed on.
const ENDED: u8 = 3;

impl Reported {
    /// State of a lease that the store has granted.
    pub(crate) fn nothing() -> Reported {
        Reported { stage: AtomicU8::new(GRANTED), is_at_risk: AtomicBool::new(false) }
    }

    /// The caller gets the lease.
    pub(crate) fn begin(&self) {
        self.stage.store(BEGUN, Ordering::Release);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.stage.load(Ordering::Acquire) == BEGUN
    }

    /// Records a renewal. Returns whether to report it.
    pub(crate) fn renew(&self) -> bool {
        self.is_at_risk.store(false, Ordering::Release);
        self.goes(LOST, BEGUN) || self.has_begun()
    }

    /// Returns whether to report that the lease is at risk.
    pub(crate) fn risk(&self) -> bool {
        self.has_begun() && !self.is_at_risk.swap(true, Ordering::AcqRel)
    }

    /// Returns whether to report that the lease is lost.
    pub(crate) fn lose(&self) -> bool {
        self.goes(BEGUN, LOST)
    }

    /// Returns whether to report that the lease was released or handed on.
    pub(crate) fn end(&self) -> bool {
        self.goes(BEGUN, ENDED)
    }

    fn goes(&self, from: u8, to: u8) -> bool {
        self.stage.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
