//! Locks and latches between the processes of one machine and user, in an LMDB file. There is no server to install
//! or start.
//!
//! One write transaction acquires, renews or frees a lock, creates a latch or changes its count. Reads use LMDB's
//! snapshots and do not wait for writers. A free lock has no record: its record is deleted when it is freed, and
//! all locks share one fence counter. A lock that is held in another mode than exclusive has two records.

mod data_dir;
mod default_dir;
mod embedded_store;
mod history;
mod hold_codec;
mod latch_codec;
mod latches;
mod listener_codec;
mod liveness;
mod lmdb;
mod lock_records;
mod modes;
mod record;
mod records;
mod room;
mod scheme;
mod sweep;
mod unit;

pub use embedded_store::EmbeddedStore;
pub(in crate::store) use scheme::SCHEME;
