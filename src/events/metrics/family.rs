//! The metrics by name: what each one counts, and its unit.

/// One metric of a page, with a series for each combination of its labels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MetricFamily {
    pub(crate) name: &'static str,
    pub(crate) kind: MetricKind,
    /// One line.
    pub(crate) help: &'static str,
    /// Upper bounds of a histogram, in seconds.
    pub(crate) bounds: &'static [f64],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

impl MetricKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

const fn counter(name: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily { name, kind: MetricKind::Counter, help, bounds: &[] }
}

const fn gauge(name: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily { name, kind: MetricKind::Gauge, help, bounds: &[] }
}

const fn histogram(name: &'static str, help: &'static str, bounds: &'static [f64]) -> MetricFamily {
    MetricFamily { name, kind: MetricKind::Histogram, help, bounds }
}

const WAITS: &[f64] = &[0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0];
const HOLDS: &[f64] = &[0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 86400.0];
const CALLS: &[f64] =
    &[0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

pub(crate) const ACQUIRED: MetricFamily = counter("dlm_acquired_total", "Locks granted to this process.");
pub(crate) const UNAVAILABLE: MetricFamily =
    counter("dlm_unavailable_total", "Acquisitions that ended without the lock, by the code of the error.");
pub(crate) const WAIT_SECONDS: MetricFamily =
    histogram("dlm_wait_seconds", "How long acquisitions and upgrades waited, granted or not.", WAITS);
pub(crate) const RENEWED: MetricFamily = counter("dlm_renewed_total", "Renewals of leases.");
pub(crate) const RENEWAL_FAILURES: MetricFamily =
    counter("dlm_renewal_failures_total", "Renewals that failed and left the lease as it was.");
pub(crate) const AT_RISK: MetricFamily =
    counter("dlm_at_risk_total", "Times that less than a third of a lease that is kept alive was left.");
pub(crate) const LOST: MetricFamily =
    counter("dlm_lost_total", "Leases that ended although they were not released, by the reason.");
pub(crate) const MODE_CHANGES: MetricFamily =
    counter("dlm_mode_changes_total", "Leases that went on in another mode.");
pub(crate) const MODE_CHANGE_FAILURES: MetricFamily = counter(
    "dlm_mode_change_failures_total",
    "Leases that did not get another mode, by the code of the error.",
);
pub(crate) const RELEASED: MetricFamily = counter("dlm_released_total", "Leases that were released.");
pub(crate) const HANDED_ON: MetricFamily =
    counter("dlm_handed_on_total", "Leases that were turned into tokens and stay held.");
pub(crate) const HOLD_SECONDS: MetricFamily =
    histogram("dlm_hold_seconds", "How long leases were held in one mode until they ended here.", HOLDS);
pub(crate) const IN_DOUBT: MetricFamily =
    counter("dlm_in_doubt_total", "Requests about locks that may or may not have been applied.");
pub(crate) const LEASES_HELD: MetricFamily =
    gauge("dlm_leases_held", "Leases acquired or adopted here that have not ended.");
pub(crate) const THREADS_WAITING: MetricFamily =
    gauge("dlm_threads_waiting", "Threads and pending acquisitions of this process that wait for a lock.");
pub(crate) const LONGEST_HOLD_SECONDS: MetricFamily =
    gauge("dlm_longest_hold_seconds", "Age of the oldest lease that has not ended. Zero if there is none.");
pub(crate) const LONGEST_WAIT_SECONDS: MetricFamily =
    gauge("dlm_longest_wait_seconds", "How long a lock has been waited for until now. Zero if nobody waits.");
pub(crate) const STORE_CALLS: MetricFamily =
    counter("dlm_store_calls_total", "Calls to the store, by the method and how they ended.");
pub(crate) const STORE_CALL_SECONDS: MetricFamily =
    histogram("dlm_store_call_seconds", "How long calls to the store took.", CALLS);
pub(crate) const STALE_NUMBERS: MetricFamily =
    counter("dlm_stale_numbers_total", "Tries that the store refused because of a number that was too low.");
pub(crate) const READS_AFTER_REFUSAL: MetricFamily =
    counter("dlm_reads_after_refusal_total", "Reads that were needed to find out who holds a lock.");
pub(crate) const FENCES_SEEDED: MetricFamily =
    counter("dlm_fences_seeded_total", "Grants whose fence was seeded from the clock.");
pub(crate) const NOTICES_SENT: MetricFamily = counter("dlm_notices_sent_total", "Notices that were sent.");
pub(crate) const NOTICES_UNSENT: MetricFamily =
    counter("dlm_notices_unsent_total", "Notices that could not be sent.");
pub(crate) const NOTICES_IGNORED: MetricFamily =
    counter("dlm_notices_ignored_total", "Datagrams that quoted nothing of this manager.");
pub(crate) const EARLY_ASKS: MetricFamily =
    counter("dlm_early_asks_total", "Times that a notice made a waiter ask the store earlier.");
pub(crate) const LEASES_RETAKEN: MetricFamily =
    counter("dlm_leases_retaken_total", "Leases of locks that had stayed with this process.");
pub(crate) const BUILD_INFO: MetricFamily = gauge("dlm_build_info", "Always 1. The label is the version.");
