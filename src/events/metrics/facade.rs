//! The events of a manager as metrics of the `metrics` crate.

use std::fmt;
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};

use super::class::{Classes, class_of};
use super::family::{
    ACQUIRED, AT_RISK, HANDED_ON, HOLD_SECONDS, IN_DOUBT, LOST, MODE_CHANGE_FAILURES, MODE_CHANGES,
    MetricFamily, MetricKind, RELEASED, RENEWAL_FAILURES, RENEWED, STORE_CALL_SECONDS, STORE_CALLS,
    UNAVAILABLE, WAIT_SECONDS,
};
use crate::events::event::{Event, EventSink};
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;

/// Passes events on to the recorder of the [`metrics`](https://docs.rs/metrics) crate, under the names and with the labels
/// of [`LockManager::metrics_text`](crate::LockManager::metrics_text). Pass it to
/// [`Builder::event_sink`](crate::Builder::event_sink), after the program has installed its recorder.
///
/// It has counters and histograms. The gauges, and the counters of [`Stats`](crate::Stats), are no events: set them from
/// [`LockManager::stats`](crate::LockManager::stats). Managers may share a sink. It has at most 64 classes of locks.
pub struct MetricsSink {
    classes: Classes<()>,
}

const FAMILIES: [MetricFamily; 15] = [
    ACQUIRED,
    UNAVAILABLE,
    WAIT_SECONDS,
    RENEWED,
    RENEWAL_FAILURES,
    AT_RISK,
    LOST,
    MODE_CHANGES,
    MODE_CHANGE_FAILURES,
    RELEASED,
    HANDED_ON,
    HOLD_SECONDS,
    IN_DOUBT,
    STORE_CALLS,
    STORE_CALL_SECONDS,
];

impl MetricsSink {
    /// Makes a sink, and describes its metrics to the recorder.
    pub fn new() -> MetricsSink {
        for MetricFamily { name, kind, help, .. } in FAMILIES {
            match kind {
                MetricKind::Counter => describe_counter!(name, Unit::Count, help),
                MetricKind::Histogram => describe_histogram!(name, Unit::Seconds, help),
                MetricKind::Gauge => {}
            }
        }
        MetricsSink { classes: Classes::new(|| ()) }
    }

    /// Returns the class of the lock, among the classes of this sink.
    fn class(&self, lock: &LockName) -> String {
        self.classes.with(class_of(lock), |class, ()| class.to_owned())
    }

    fn count(&self, family: MetricFamily, lock: &LockName) {
        counter!(family.name, "class" => self.class(lock)).increment(1);
    }

    fn count_with(&self, family: MetricFamily, lock: &LockName, label: &'static str, value: &'static str) {
        counter!(family.name, "class" => self.class(lock), label => value).increment(1);
    }

    fn count_in(&self, family: MetricFamily, lock: &LockName, mode: Mode) {
        self.count_with(family, lock, "mode", mode.name());
    }

    /// Counts with one more label.
    fn count_in_with(
        &self,
        family: MetricFamily,
        lock: &LockName,
        mode: Mode,
        label: &'static str,
        value: &'static str,
    ) {
        let class = self.class(lock);
        counter!(family.name, "class" => class, "mode" => mode.name(), label => value).increment(1);
    }

    fn time(&self, family: MetricFamily, lock: &LockName, mode: Mode, time: Duration) {
        let class = self.class(lock);
        histogram!(family.name, "class" => class, "mode" => mode.name()).record(time.as_secs_f64());
    }
}

impl Default for MetricsSink {
    fn default() -> MetricsSink {
        MetricsSink::new()
    }
}

impl EventSink for MetricsSink {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Acquired { lock, mode, waited, .. } => {
                self.count_in(ACQUIRED, lock, *mode);
                self.time(WAIT_SECONDS, lock, *mode, *waited);
            }
            Event::Unavailable { lock, mode, code, waited } => {
                self.count_in_with(UNAVAILABLE, lock, *mode, "code", code.name());
                self.time(WAIT_SECONDS, lock, *mode, *waited);
            }
            Event::Renewed { lock, .. } => self.count(RENEWED, lock),
            Event::RenewalFailed { lock, code, .. } => {
                self.count_with(RENEWAL_FAILURES, lock, "code", code.name());
            }
            Event::AtRisk { lock, .. } => self.count(AT_RISK, lock),
            Event::Lost { lock, mode, reason, held, .. } => {
                self.count_in_with(LOST, lock, *mode, "reason", reason.name());
                self.time(HOLD_SECONDS, lock, *mode, *held);
            }
            Event::Released { lock, mode, held, .. } => {
                self.count_in(RELEASED, lock, *mode);
                self.time(HOLD_SECONDS, lock, *mode, *held);
            }
            Event::HandedOn { lock, mode, held, .. } => {
                self.count(HANDED_ON, lock);
                self.time(HOLD_SECONDS, lock, *mode, *held);
            }
            Event::ModeChanged { lock, from, to, waited, held, .. } => {
                let (class, name) = (self.class(lock), MODE_CHANGES.name);
                counter!(name, "class" => class, "from" => from.name(), "to" => to.name()).increment(1);
                self.time(HOLD_SECONDS, lock, *from, *held);
                // Fewer rights are not waited for.
                if *to == Mode::Exclusive {
                    self.time(WAIT_SECONDS, lock, *to, *waited);
                }
            }
            Event::ModeNotChanged { lock, from, to, code, waited } => {
                let (class, name) = (self.class(lock), MODE_CHANGE_FAILURES.name);
                let (from, code) = (from.name(), code.name());
                counter!(name, "class" => class, "from" => from, "to" => to.name(), "code" => code)
                    .increment(1);
                if *to == Mode::Exclusive {
                    self.time(WAIT_SECONDS, lock, *to, *waited);
                }
            }
            Event::InDoubt { lock, call } => self.count_with(IN_DOUBT, lock, "call", call.name()),
            Event::StoreCall { call, outcome, took, .. } => {
                let (call, outcome) = (call.name(), outcome.name());
                counter!(STORE_CALLS.name, "call" => call, "outcome" => outcome).increment(1);
                histogram!(STORE_CALL_SECONDS.name, "call" => call).record(took.as_secs_f64());
            }
        }
    }
}

impl fmt::Debug for MetricsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsSink").field("classes", &self.classes).finish()
    }
}
