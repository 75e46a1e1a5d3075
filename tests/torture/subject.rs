//! A store, how its locks are used, and what is done to the processes that use it.

use std::net::SocketAddr;
use std::time::Duration;

use dlm_testkit::Proxy;
use dlm_testkit::history::Tolerances;
use dlm_testkit::workload::LockWorkload;

use crate::messages::Storm;

/// A store under torture.
pub(crate) struct Subject<'a> {
    pub(crate) name: &'static str,
    /// The store without a proxy.
    pub(crate) uri: String,
    /// The proxy of each process, and what it does to messages. Stores without messages have none.
    pub(crate) network: Option<Network<'a>>,
    pub(crate) processes: u64,
    /// Clients of each process.
    pub(crate) clients: u64,
    /// Seed, number of clients and length are set for each round.
    pub(crate) workload: LockWorkload,
    pub(crate) tolerances: Tolerances,
    /// Mean time between two kills, and between two stops.
    pub(crate) pause: Duration,
    /// Number of processes that may be stopped at one time.
    pub(crate) stoppers: u64,
    /// Further faults or neighbours. Each runs in a thread until the round is over.
    pub(crate) others: Vec<Other<'a>>,
    /// Seconds of a short run.
    pub(crate) short: u64,
    /// A run with less than that each second is invalid.
    pub(crate) least: Least,
}

/// A network between the processes and the store.
pub(crate) struct Network<'a> {
    pub(crate) proxy: &'a (dyn Fn() -> Proxy + Sync),
    /// Returns the store's URI with the proxy's address.
    pub(crate) uri: &'a (dyn Fn(SocketAddr) -> String + Sync),
    pub(crate) storm: Storm,
}

/// What runs beside the processes of a round.
pub(crate) type Other<'a> = Box<dyn Fn(&crate::round::Stage<'_>) + Sync + 'a>;

/// What a second of a valid run has at least. A busy machine does less than a calm one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Least {
    pub(crate) grants: f64,
    /// Grants that are not exclusive.
    pub(crate) members: f64,
    pub(crate) conversions: f64,
    pub(crate) kills: f64,
    pub(crate) stops: f64,
    pub(crate) lost_replies: f64,
}

/// The same with semaphores of 5 permits in place of locks. There are few, so that they are contended.
pub(crate) fn of_semaphores(usual: LockWorkload) -> LockWorkload {
    LockWorkload { permits: 5, locks: (usual.locks / 8).max(1), quiet_locks: 0, ..usual }
}
