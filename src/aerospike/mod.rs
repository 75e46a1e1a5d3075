//! Fenced writes to an application's own records in Aerospike: the server itself refuses a stale holder.
//!
//! A process that was paused beyond the end of its lease may still send a write that the lock guarded. Only the
//! receiver can refuse that write. Here the receiver is a record. It stores the highest fence of its writers, and
//! the server compares this number with the writer's fence in the same atomic operation as the write.
//!
//! ```no_run
//! use dlm::aerospike::{Bins, Records};
//! use dlm::{Code, Level, LockManager};
//!
//! // The lock may be in any store.
//! let manager = LockManager::open("hbase://master:16000/locks?client=orders&farm=dc1")?;
//! let records = Records::open("aerospike://host:3000/shop/orders")?;
//!
//! let lease = manager.lock("order-42", Level::Dc)?.acquire()?;
//! let order = lease.record(&records, "order-42")?;
//! order.raise_fence()?; // from now on, the server refuses earlier holders
//! let sum = order.get()?.and_then(|bins| bins.int("sum")).unwrap_or(0);
//! match order.put(&Bins::new().with("sum", sum + 5).with("state", "packed")) {
//!     Ok(()) => {}
//!     Err(error) if error.code() == Code::StaleFence => println!("another process has the lock: {error}"),
//!     Err(error) => return Err(error),
//! }
//! # Ok::<(), dlm::Error>(())
//! ```
//!
//! # What is promised
//!
//! * **The server refuses a write with a lower fence than the record's** with
//!   [`Code::StaleFence`](crate::Code::StaleFence), even if the request arrives late or its sender believes that it
//!   still holds the lock.
//! * **Each call takes effect at most once**, including [`add`](Record::add), even if requests or replies are lost
//!   or late. A late request never overwrites a later change, not even one of its own sender.
//! * **A lost reply is settled by reading the record.** If the record does not show the outcome, the call fails
//!   with [`Code::InDoubt`](crate::Code::InDoubt).
//!
//! These promises end with the record. A record has no fence after it expired, after others deleted it, or after a
//! server that kept it in memory restarted. `docs/aerospike.md` describes the layout and the required settings of a
//! namespace.

mod bins;
mod guard;
mod records;

pub use bins::{Bins, Value};
pub use records::{Record, Records};
