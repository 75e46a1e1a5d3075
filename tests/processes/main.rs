//! What must be true over every store when processes are killed or stopped, and when clocks are set.

#[cfg(feature = "cli")]
mod stores_clocks;
mod stores_kills;
mod stores_pauses;
mod stores_server_clocks;
