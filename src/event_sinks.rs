//! The sinks of a manager, and the calls to them.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use crate::event::{Event, EventSink};

/// The sinks of one manager. Nothing of the library may be locked when an event is told.
#[derive(Clone, Default)]
pub(crate) struct EventSinks {
    sinks: Vec<Arc<dyn EventSink>>,
    /// One that came after the manager was opened.
    late: OnceLock<Arc<dyn EventSink>>,
}

impl EventSinks {
    pub(crate) fn push(&mut self, sink: Arc<dyn EventSink>) {
        self.sinks.push(sink);
    }

    /// Adds a sink to those of an open manager. Only the first one counts.
    pub(crate) fn push_late(&self, sink: Arc<dyn EventSink>) {
        let _ = self.late.set(sink);
    }

    /// Whether anybody is told. Ask it before reading a clock for an event.
    #[inline]
    pub(crate) fn are_open(&self) -> bool {
        !self.sinks.is_empty() || self.late.get().is_some()
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        for sink in self.sinks.iter().chain(self.late.get()) {
            if catch_unwind(AssertUnwindSafe(|| sink.on_event(event))).is_err() {
                log::error!("an event sink panicked");
            }
        }
    }
}

impl fmt::Debug for EventSinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSinks").field("count", &self.sinks.len()).finish()
    }
}
