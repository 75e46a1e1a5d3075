//! Locks and latches between the processes of one machine and user, in an LMDB file. Nothing to install or
//! start.
//!
//! One write transaction takes, renews or frees a lock, makes a latch or changes its count. Reads come from LMDB's
//! snapshots and wait for nobody. The record of a lock is deleted when it is freed, and all locks share
//! one fence counter, so a lock that nobody holds leaves nothing behind.

mod data_dir;
mod default_dir;
mod embedded_store;
mod latch_codec;
mod latches;
mod lmdb;
mod record;
mod unit;

pub use embedded_store::EmbeddedStore;
