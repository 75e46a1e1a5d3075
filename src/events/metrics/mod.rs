//! The metrics of a manager: counters and histograms that its events feed, as a page for Prometheus.
//!
//! No name of a lock becomes a label, only its class. So the page has a limited size, whatever the locks are called: see
//! [`class`].

mod class;
#[cfg(feature = "metrics")]
mod facade;
pub(crate) mod family;
mod histogram;
mod page;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use self::class::Classes;
pub(crate) use self::class::class_of;
#[cfg(feature = "metrics")]
pub use self::facade::MetricsSink;
pub(crate) use self::family::MetricFamily;
use self::family::{
    ACQUIRED, AT_RISK, BUILD_INFO, HANDED_ON, HOLD_SECONDS, IN_DOUBT, LEASES_HELD, LONGEST_HOLD_SECONDS,
    LONGEST_WAIT_SECONDS, LOST, MODE_CHANGE_FAILURES, MODE_CHANGES, RELEASED, RENEWAL_FAILURES, RENEWED,
    STORE_CALL_SECONDS, STORE_CALLS, THREADS_WAITING, UNAVAILABLE, WAIT_SECONDS,
};
use self::histogram::{Histogram, counters};
use self::page::Page;
use crate::error::Code;
use crate::events::event::{Event, EventSink, StoreCall, StoreOutcome};
use crate::names::lease_state::LostReason;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;
use crate::runtime::sync::AtomicU64;

/// What has happened to the locks of one class.
#[derive(Debug)]
struct ClassCounts {
    /// One for each of [`Mode::ALL`].
    modes: [ModeCounts; Mode::ALL.len()],
    /// The changes from each mode to each mode.
    mode_changes: [[ChangeCounts; Mode::ALL.len()]; Mode::ALL.len()],
    renewed: AtomicU64,
    renewal_failures: PerCode,
    at_risk: AtomicU64,
    handed_on: AtomicU64,
    in_doubt: Vec<AtomicU64>,
}

/// What has happened to the locks of one class in one mode.
#[derive(Debug)]
struct ModeCounts {
    acquired: AtomicU64,
    unavailable: PerCode,
    lost: Vec<AtomicU64>,
    released: AtomicU64,
    waits: Histogram,
    holds: Histogram,
}

/// Changes from one mode to another.
#[derive(Debug)]
struct ChangeCounts {
    made: AtomicU64,
    failed: PerCode,
}

/// Outcomes of one kind of call to the store.
#[derive(Debug)]
struct CallCounts {
    ok: AtomicU64,
    held: AtomicU64,
    not_ours: AtomicU64,
    failed: PerCode,
    took: Histogram,
}

/// A count for each code.
#[derive(Debug)]
struct PerCode(Vec<AtomicU64>);

/// Codes that a page shows from the beginning: the increase of a count is seen only if it was shown as zero before.
const STORE_FAILURES: [Code; 3] = [Code::ConnectionError, Code::RetriesExhausted, Code::InDoubt];

impl PerCode {
    fn new() -> PerCode {
        PerCode(counters(Code::ALL.len()))
    }

    fn add(&self, code: Code) {
        add_at(&self.0, Code::ALL.iter().position(|it| *it == code));
    }

    /// Returns the counts to show: those that are not zero, and those of `always`.
    fn shown(&self, always: &[Code]) -> impl Iterator<Item = (Code, u64)> {
        let counts = Code::ALL.iter().zip(&self.0).map(|(code, count)| (*code, count.load(Relaxed)));
        counts.filter(|(code, count)| *count > 0 || always.contains(code))
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Relaxed);
}

fn add_at(counts: &[AtomicU64], at: Option<usize>) {
    at.and_then(|at| counts.get(at)).map(add);
}

impl ClassCounts {
    fn new() -> ClassCounts {
        ClassCounts {
            modes: Mode::ALL.map(|_| ModeCounts::new()),
            mode_changes: Mode::ALL.map(|_| Mode::ALL.map(|_| ChangeCounts::new())),
            renewed: AtomicU64::new(0),
            renewal_failures: PerCode::new(),
            at_risk: AtomicU64::new(0),
            handed_on: AtomicU64::new(0),
            in_doubt: counters(StoreCall::ALL.len()),
        }
    }

    fn mode(&self, mode: Mode) -> &ModeCounts {
        &self.modes[index(mode)]
    }

    /// Returns the counts to show: those of exclusive locks, and of the modes in which locks of the class were used.
    fn shown(&self) -> impl Iterator<Item = (Mode, &ModeCounts)> {
        let counts = Mode::ALL.into_iter().zip(&self.modes);
        counts.filter(|(mode, counts)| *mode == Mode::Exclusive || counts.are_used())
    }
}

impl ModeCounts {
    fn new() -> ModeCounts {
        ModeCounts {
            acquired: AtomicU64::new(0),
            unavailable: PerCode::new(),
            lost: counters(LostReason::ALL.len()),
            released: AtomicU64::new(0),
            waits: Histogram::new(WAIT_SECONDS.bounds),
            holds: Histogram::new(HOLD_SECONDS.bounds),
        }
    }

    /// Each event of a mode is a wait or the end of a hold.
    fn are_used(&self) -> bool {
        !self.waits.is_empty() || !self.holds.is_empty()
    }
}

/// Returns the position of the mode in [`Mode::ALL`].
fn index(mode: Mode) -> usize {
    Mode::ALL.iter().position(|it| *it == mode).unwrap_or_default()
}

impl ChangeCounts {
    fn new() -> ChangeCounts {
        ChangeCounts { made: AtomicU64::new(0), failed: PerCode::new() }
    }
}

impl CallCounts {
    fn new() -> CallCounts {
        CallCounts {
            ok: AtomicU64::new(0),
            held: AtomicU64::new(0),
            not_ours: AtomicU64::new(0),
            failed: PerCode::new(),
            took: Histogram::new(STORE_CALL_SECONDS.bounds),
        }
    }
}

/// What is true of the locks of one class when a page is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ClassGauges {
    /// By the mode, as in [`Mode::ALL`].
    pub(crate) holds: [HoldGauges; Mode::ALL.len()],
    pub(crate) waiting: u64,
    /// How long the first waiter has waited.
    pub(crate) longest_wait: Duration,
}

/// What is true of the leases of one class and mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HoldGauges {
    held: u64,
    /// Age of the oldest lease that is held.
    longest: Duration,
}

impl ClassGauges {
    /// One lease, held for so long.
    pub(crate) fn of_lease(mode: Mode, longest: Duration) -> ClassGauges {
        let mut gauges = ClassGauges::default();
        gauges.holds[index(mode)] = HoldGauges { held: 1, longest };
        gauges
    }
}

/// The counters and histograms of one manager.
#[derive(Debug)]
pub(crate) struct Metrics {
    classes: Classes<ClassCounts>,
    calls: Vec<CallCounts>,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let calls = StoreCall::ALL.iter().map(|_| CallCounts::new()).collect();
        Metrics { classes: Classes::new(ClassCounts::new), calls }
    }

    /// Makes the page. `gauges` are added up by class. `counts` are those of the manager.
    pub(crate) fn page<'a>(
        &self,
        gauges: impl Iterator<Item = (&'a LockName, ClassGauges)>,
        counts: &[(MetricFamily, u64)],
    ) -> String {
        let mut now = BTreeMap::<String, ClassGauges>::new();
        for (name, gauge) in gauges {
            let sum = now.entry(self.classes.with(class_of(name), |class, _| class.to_owned())).or_default();
            for (sum, gauge) in sum.holds.iter_mut().zip(gauge.holds) {
                sum.held += gauge.held;
                sum.longest = sum.longest.max(gauge.longest);
            }
            sum.waiting += gauge.waiting;
            sum.longest_wait = sum.longest_wait.max(gauge.longest_wait);
        }
        let mut page = Page::new();
        let classes = self.classes.all();
        for (class, counts) in &classes {
            let with = |label, value| [("class", class.as_str()), (label, value)];
            for (mode, of_mode) in counts.shown() {
                let labels = with("mode", mode.name());
                let and = |label, value| [labels[0], labels[1], (label, value)];
                page.count(&ACQUIRED, &labels, of_mode.acquired.load(Relaxed));
                for (code, count) in of_mode.unavailable.shown(&[Code::LockUnavailable]) {
                    page.count(&UNAVAILABLE, &and("code", code.name()), count);
                }
                page.histogram(&WAIT_SECONDS, &labels, &of_mode.waits);
                for (reason, count) in LostReason::ALL.iter().zip(&of_mode.lost) {
                    page.count(&LOST, &and("reason", reason.name()), count.load(Relaxed));
                }
                page.count(&RELEASED, &labels, of_mode.released.load(Relaxed));
                page.histogram(&HOLD_SECONDS, &labels, &of_mode.holds);
            }
            for (from, counts) in Mode::ALL.iter().zip(&counts.mode_changes) {
                for (to, counts) in Mode::ALL.iter().zip(counts) {
                    let labels = [("class", class.as_str()), ("from", from.name()), ("to", to.name())];
                    let made = counts.made.load(Relaxed);
                    if made > 0 {
                        page.count(&MODE_CHANGES, &labels, made);
                    }
                    for (code, count) in counts.failed.shown(&[]) {
                        let labels = [labels[0], labels[1], labels[2], ("code", code.name())];
                        page.count(&MODE_CHANGE_FAILURES, &labels, count);
                    }
                }
            }
            let class = [("class", class.as_str())];
            page.count(&RENEWED, &class, counts.renewed.load(Relaxed));
            for (code, count) in counts.renewal_failures.shown(&STORE_FAILURES) {
                page.count(&RENEWAL_FAILURES, &with("code", code.name()), count);
            }
            page.count(&AT_RISK, &class, counts.at_risk.load(Relaxed));
            page.count(&HANDED_ON, &class, counts.handed_on.load(Relaxed));
            for (call, count) in StoreCall::ALL.iter().zip(&counts.in_doubt) {
                let count = count.load(Relaxed);
                let always = [StoreCall::Acquire, StoreCall::Renew, StoreCall::RenewMany, StoreCall::Release];
                if count > 0 || always.contains(call) {
                    page.count(&IN_DOUBT, &with("call", call.name()), count);
                }
            }
            let now = now.get(class[0].1).copied().unwrap_or_default();
            for (mode, of_mode) in Mode::ALL.into_iter().zip(now.holds) {
                if mode == Mode::Exclusive || of_mode != HoldGauges::default() || counts.mode(mode).are_used()
                {
                    let labels = with("mode", mode.name());
                    page.count(&LEASES_HELD, &labels, of_mode.held);
                    page.seconds(&LONGEST_HOLD_SECONDS, &labels, of_mode.longest);
                }
            }
            page.count(&THREADS_WAITING, &class, now.waiting);
            page.seconds(&LONGEST_WAIT_SECONDS, &class, now.longest_wait);
        }
        for (call, counts) in StoreCall::ALL.iter().zip(&self.calls) {
            if counts.took.is_empty() {
                continue;
            }
            let with = |outcome| [("call", call.name()), ("outcome", outcome)];
            page.count(&STORE_CALLS, &with("ok"), counts.ok.load(Relaxed));
            for (outcome, count) in [("held", &counts.held), ("not_ours", &counts.not_ours)] {
                let count = count.load(Relaxed);
                if count > 0 {
                    page.count(&STORE_CALLS, &with(outcome), count);
                }
            }
            for (code, count) in counts.failed.shown(&STORE_FAILURES) {
                page.count(&STORE_CALLS, &with(code.name()), count);
            }
            page.histogram(&STORE_CALL_SECONDS, &[("call", call.name())], &counts.took);
        }
        for (family, count) in counts {
            page.count(family, &[], *count);
        }
        page.count(&BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION"))], 1);
        page.finish()
    }

    fn of(&self, lock: &LockName, count: impl FnOnce(&ClassCounts)) {
        self.classes.with(class_of(lock), |_, counts| count(counts));
    }
}

impl EventSink for Metrics {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Acquired { lock, mode, waited, .. } => self.of(lock, |class| {
                let counts = class.mode(*mode);
                add(&counts.acquired);
                counts.waits.add(*waited);
            }),
            Event::Unavailable { lock, mode, code, waited } => self.of(lock, |class| {
                let counts = class.mode(*mode);
                counts.unavailable.add(*code);
                counts.waits.add(*waited);
            }),
            Event::Renewed { lock, .. } => self.of(lock, |class| add(&class.renewed)),
            Event::RenewalFailed { lock, code, .. } => {
                self.of(lock, |class| class.renewal_failures.add(*code));
            }
            Event::AtRisk { lock, .. } => self.of(lock, |class| add(&class.at_risk)),
            Event::Lost { lock, mode, reason, held, .. } => self.of(lock, |class| {
                let counts = class.mode(*mode);
                add_at(&counts.lost, LostReason::ALL.iter().position(|it| it == reason));
                counts.holds.add(*held);
            }),
            Event::Released { lock, mode, held, .. } => self.of(lock, |class| {
                let counts = class.mode(*mode);
                add(&counts.released);
                counts.holds.add(*held);
            }),
            Event::HandedOn { lock, mode, held, .. } => self.of(lock, |class| {
                add(&class.handed_on);
                class.mode(*mode).holds.add(*held);
            }),
            Event::ModeNotChanged { lock, from, to, code, waited } => self.of(lock, |class| {
                class.mode_changes[index(*from)][index(*to)].failed.add(*code);
                if *to == Mode::Exclusive {
                    class.mode(*to).waits.add(*waited);
                }
            }),
            Event::ModeChanged { lock, from, to, waited, held, .. } => self.of(lock, |class| {
                add(&class.mode_changes[index(*from)][index(*to)].made);
                class.mode(*from).holds.add(*held);
                // Fewer rights are not waited for.
                if *to == Mode::Exclusive {
                    class.mode(*to).waits.add(*waited);
                }
            }),
            Event::InDoubt { lock, call } => self.of(lock, |class| {
                add_at(&class.in_doubt, StoreCall::ALL.iter().position(|it| it == call));
            }),
            Event::StoreCall { call, outcome, took, .. } => {
                let counts =
                    StoreCall::ALL.iter().position(|it| it == call).and_then(|at| self.calls.get(at));
                let Some(counts) = counts else { return };
                match outcome {
                    StoreOutcome::Ok => add(&counts.ok),
                    StoreOutcome::Held => add(&counts.held),
                    StoreOutcome::NotOurs => add(&counts.not_ours),
                    StoreOutcome::Failed(code) => counts.failed.add(*code),
                }
                counts.took.add(*took);
            }
        }
    }
}
