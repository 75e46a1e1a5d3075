//! The sinks of a manager, and the calls to them.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use crate::events::event::{Event, EventSink, EventSpan, StartedWork};

/// The sinks of one manager. Nothing of the library may be locked when an event is reported.
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

    /// Whether there is a sink. Ask it before reading a clock for an event.
    #[inline]
    pub(crate) fn are_open(&self) -> bool {
        !self.sinks.is_empty() || self.late.get().is_some()
    }

    pub(crate) fn report(&self, event: &Event<'_>) {
        for sink in self.sinks.iter().chain(self.late.get()) {
            catch(|| sink.on_event(event));
        }
    }

    /// Reports that work begins in this thread.
    pub(crate) fn start(&self, work: &StartedWork<'_>) -> OpenSpans {
        let sinks = self.sinks.iter().chain(self.late.get());
        OpenSpans { spans: sinks.filter_map(|sink| catch(|| sink.on_start(work)).flatten()).collect() }
    }

    /// Reports an event that ends the work of these spans.
    pub(crate) fn tell_end(&self, event: &Event<'_>, mut open: OpenSpans) {
        self.report(event);
        while let Some(span) = open.spans.pop() {
            catch(|| span.end(event));
        }
    }
}

/// Work under way, as the sinks see it: the last one that began ends first.
#[derive(Default)]
pub(crate) struct OpenSpans {
    spans: Vec<Box<dyn EventSpan>>,
}

impl Drop for OpenSpans {
    fn drop(&mut self) {
        while let Some(span) = self.spans.pop() {
            catch(|| drop(span));
        }
    }
}

/// Calls a sink. `None` if it panics.
fn catch<T>(call: impl FnOnce() -> T) -> Option<T> {
    let answer = catch_unwind(AssertUnwindSafe(call));
    if answer.is_err() {
        log::error!("an event sink panicked");
    }
    answer.ok()
}

impl fmt::Debug for EventSinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSinks").field("count", &self.sinks.len()).finish()
    }
}
