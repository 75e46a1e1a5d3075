//! The events of a manager as spans and events of the `tracing` crate.

use tracing::field::Empty;
use tracing::span::EnteredSpan;
use tracing::{debug, debug_span, info_span, warn};

use crate::events::event::{Event, EventSink, EventSpan, StartedWork};
use crate::events::metrics::class_of;
use crate::names::fence::Fence;
use crate::names::lock_name::LockName;
use crate::names::mode::Mode;

/// Passes events on to the subscriber of the [`tracing`](https://docs.rs/tracing) crate. Pass it to
/// [`Builder::event_sink`](crate::Builder::event_sink). All spans and events have the target `dlm`.
///
/// | what | is | level | fields |
/// |---|---|---|---|
/// | a call that acquires a lock and blocks | span `dlm.acquire` | info | `class`, `lock`, `mode`, `outcome` |
/// | a call to the store | span `dlm.store` | debug | `call`, `class`, `lock`, `outcome` |
/// | a renewal that failed, a lease at risk, a lost lease, a request in doubt | event | warn | `class`, `lock`, and what the [`Event`] says, as its mode |
/// | any other event of a lock | event | debug | the same |
///
/// The outcome of an acquisition is `acquired` or the name of a code, and that of a call to the store is one of
/// [`StoreOutcome::name`](crate::events::StoreOutcome::name). A span of a renewal or release without an outcome needed no request.
/// The mode is one of [`Mode::name`]. The id of a lock is in `lock`, so do not make a label of it.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct TracingSink {}

impl TracingSink {
    /// Makes a sink.
    pub fn new() -> TracingSink {
        TracingSink {}
    }
}

/// A span that this thread is in.
struct Entered(EnteredSpan);

impl EventSpan for Entered {
    fn end(self: Box<Self>, event: &Event<'_>) {
        let outcome = match event {
            Event::Acquired { .. } => "acquired",
            Event::Unavailable { code, .. } => code.name(),
            Event::StoreCall { outcome, .. } => outcome.name(),
            _ => return,
        };
        self.0.record("outcome", outcome);
    }
}

impl EventSink for TracingSink {
    fn on_start(&self, work: &StartedWork<'_>) -> Option<Box<dyn EventSpan>> {
        let span = match work {
            StartedWork::Acquire { lock, mode } => {
                let (class, lock, mode) = (class_of(lock), lock.key(), mode.name());
                info_span!(target: "dlm", "dlm.acquire", class, lock, mode, outcome = Empty)
            }
            StartedWork::StoreCall { call, lock } => {
                let call = call.name();
                let span = debug_span!(
                    target: "dlm", "dlm.store", call, class = Empty, lock = Empty, outcome = Empty
                );
                if let Some(lock) = lock {
                    span.record("class", class_of(lock)).record("lock", lock.key());
                }
                span
            }
        };
        (!span.is_disabled()).then(|| Box::new(Entered(span.entered())) as Box<dyn EventSpan>)
    }

    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Acquired { lock, mode, fence, waited } => {
                let (class, lock, mode, fence) = fields(lock, *mode, *fence);
                debug!(target: "dlm", class, lock, mode, fence, waited_s = waited.as_secs_f64(), "acquired");
            }
            Event::Unavailable { lock, mode, code, waited } => {
                let ((class, lock, mode, _), code) = (fields(lock, *mode, None), code.name());
                debug!(target: "dlm", class, lock, mode, code, waited_s = waited.as_secs_f64(), "unavailable");
            }
            Event::Renewed { lock, mode, fence, left } => {
                let (class, lock, mode, fence) = fields(lock, *mode, *fence);
                debug!(target: "dlm", class, lock, mode, fence, left_s = left.as_secs_f64(), "renewed");
            }
            Event::RenewalFailed { lock, mode, fence, code, left } => {
                let (class, lock, mode, fence) = fields(lock, *mode, *fence);
                let (code, left_s) = (code.name(), left.as_secs_f64());
                warn!(target: "dlm", class, lock, mode, fence, code, left_s, "a renewal failed");
            }
            Event::AtRisk { lock, mode, fence, left } => {
                let (class, lock, mode, fence) = fields(lock, *mode, *fence);
                warn!(target: "dlm", class, lock, mode, fence, left_s = left.as_secs_f64(), "a lease is at risk");
            }
            Event::Lost { lock, mode, fence, reason, held } => {
                let (class, lock, mode, fence) = fields(lock, *mode, *fence);
                let (reason, held_s) = (reason.name(), held.as_secs_f64());
                warn!(target: "dlm", class, lock, mode, fence, reason, held_s, "a lease is lost");
            }
            Event::Released { lock, mode, fence, held, freed } => {
                let (class, lock, mode, fence) = fields(lock, *mode, *fence);
                debug!(target: "dlm", class, lock, mode, fence, held_s = held.as_secs_f64(), freed, "released");
            }
            Event::ModeNotChanged { lock, from, to, code, waited } => {
                let ((class, lock, mode, _), from, code) =
                    (fields(lock, *to, None), from.name(), code.name());
                debug!(target: "dlm", class, lock, mode, from, code, waited_s = waited.as_secs_f64(), "mode not changed");
            }
            Event::HandedOn { lock, mode, fence, held } => {
                let (class, lock, mode, fence) = fields(lock, *mode, *fence);
                debug!(target: "dlm", class, lock, mode, fence, held_s = held.as_secs_f64(), "handed on");
            }
            Event::ModeChanged { lock, from, to, fence, epoch, waited, held } => {
                let (class, lock, mode, fence) = fields(lock, *to, *fence);
                let (from, epoch) = (from.name(), epoch.map(|epoch| epoch.0));
                let (waited_s, held_s) = (waited.as_secs_f64(), held.as_secs_f64());
                debug!(target: "dlm", class, lock, mode, from, fence, epoch, waited_s, held_s, "mode changed");
            }
            Event::InDoubt { lock, call } => {
                let (class, lock, call) = (class_of(lock), lock.key(), call.name());
                warn!(target: "dlm", class, lock, call, "a request is in doubt");
            }
            // Its span says the same.
            Event::StoreCall { .. } => {}
        }
    }
}

/// Returns the class, the name, the mode and the fence, as fields.
fn fields(lock: &LockName, mode: Mode, fence: Option<Fence>) -> (&str, &str, &'static str, Option<u64>) {
    (class_of(lock), lock.key(), mode.name(), fence.map(|fence| fence.0))
}
