//! How much is measured.

use std::time::Duration;

use crate::arguments::Group;
use crate::spread::ROUNDS;

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) rounds: usize,
    /// For locks of this process and of a directory.
    local: Duration,
    /// For locks on a server.
    remote: Duration,
    /// A Java server compiles its code while it runs. In the first half minute under load it is half as fast.
    warm_up: Duration,
}

impl Scale {
    pub(crate) fn new(is_quick: bool) -> Scale {
        let millis = Duration::from_millis;
        if is_quick {
            Scale { rounds: 1, local: millis(20), remote: millis(100), warm_up: Duration::ZERO }
        } else {
            Scale { rounds: ROUNDS, local: millis(100), remote: millis(250), warm_up: millis(20_000) }
        }
    }

    pub(crate) fn time(&self, group: Group) -> Duration {
        match group {
            Group::IdLock | Group::Embedded => self.local,
            Group::Hbase | Group::Aerospike => self.remote,
        }
    }

    /// Returns how long to use the group's server before measurements.
    pub(crate) fn warm_up(&self, group: Group) -> Duration {
        if group == Group::Hbase { self.warm_up } else { Duration::ZERO }
    }
}
