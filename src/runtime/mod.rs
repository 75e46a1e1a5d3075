//! What the library takes from the machine: time, threads, randomness, mutexes, the process.

pub(crate) mod background;
pub(crate) mod boot;
pub(crate) mod cancel;
pub(crate) mod process;
pub(crate) mod random;
#[cfg(dlm_simulation)]
pub mod simulation;
pub(crate) mod sync;
pub(crate) mod time;
pub(crate) mod timerfd;
