//! What happens to locks and leases, as the code of a program receives it: see [`EventSink`]. [`Event`] lists it.
//! The features `metrics` and `tracing` add a sink each.

pub(crate) mod event;
pub(crate) mod history_writer;
pub(crate) mod metrics;
pub(crate) mod observed_store;
pub(crate) mod sinks;
#[cfg(feature = "tracing")]
pub(crate) mod tracing_sink;

pub use event::{Event, EventSink, EventSpan, StartedWork, StoreCall, StoreOutcome};
#[cfg(feature = "metrics")]
pub use metrics::MetricsSink;
#[cfg(feature = "tracing")]
pub use tracing_sink::TracingSink;
