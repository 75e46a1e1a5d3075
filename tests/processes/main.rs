//! Tests over several stores in which processes are killed or stopped, or clocks are set.

#[cfg(feature = "cli")]
mod stores_clocks;
mod stores_descriptors;
mod stores_kills;
mod stores_notices;
mod stores_pauses;
mod stores_server_clocks;
mod stores_terms;
