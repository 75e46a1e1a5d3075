//! Tests of locks in one process and on one machine: the memory and embedded stores, `IdLock`, `FenceGate`.
//!
//! They are one program, which is linked once. Tests that measure their whole process are separate programs next
//! to this folder: `id_lock_memory`, `latch_memory`, `memory_latches`.

mod async_example;
#[cfg(feature = "embedded")]
mod embedded;
mod embedded_contract;
mod embedded_disks;
mod embedded_group;
mod embedded_latches;
mod embedded_liveness;
mod embedded_places;
mod embedded_processes;
mod embedded_store;
mod events;
mod fence_gate;
mod id_lock;
mod local_notices;
mod local_notices_of_modes;
mod local_schemes;
mod lock_names;
mod memory_contract;
mod memory_doubts;
mod memory_hangs;
mod memory_kept;
mod memory_modes;
mod memory_panics;
mod memory_readers;
mod memory_waiting;
mod metrics;
#[cfg(feature = "metrics")]
mod metrics_facade;
mod modes_example;
#[cfg(feature = "tracing")]
mod tracing_spans;
mod void_cases;
