//! A limit of how often something is done in a time.

use std::time::Duration;

use crate::runtime::time::Moment;

#[derive(Debug)]
pub(super) struct RateLimit {
    most: u32,
    within: Duration,
    since: Moment,
    count: u32,
}

impl RateLimit {
    pub(super) fn new(most: u32, within: Duration) -> RateLimit {
        RateLimit { most, within, since: Moment::OVER, count: 0 }
    }

    /// Returns whether it may be done once more, and counts it.
    pub(super) fn allows(&mut self, now: Moment) -> bool {
        if now.since(self.since) >= self.within {
            (self.since, self.count) = (now, 0);
        }
        let allows = self.count < self.most;
        self.count += u32::from(allows);
        allows
    }
}
