//! Fenced writes to an application's own records in Aerospike: the server itself refuses a stale holder.
//!
//! A process that was paused past the end of its lease does not know it, and may send a write that the lock
//! guarded. Only the receiver can refuse that write. Here the receiver is a record: it keeps the highest
//! fence that has written it, and the server compares that number with the writer's in the same atomic
//! operation that writes.
//!
//! ```no_run
//! use dlm::aerospike::{Bins, Records};
//! use dlm::{Code, Level, LockManager};
//!
//! // The lock may lie in any store.
//! let manager = LockManager::open("hbase://master:16000/locks?client=orders&farm=dc1")?;
//! let records = Records::open("aerospike://host:3000/shop/orders")?;
//!
//! let lease = manager.lock("order-42", Level::Dc)?.acquire()?;
//! let order = lease.record(&records, "order-42")?;
//! order.raise_fence()?; // from now on the holders before are refused
//! let sum = order.get()?.and_then(|bins| bins.int("sum")).unwrap_or(0);
//! match order.put(&Bins::new().with("sum", sum + 5).with("state", "packed")) {
//!     Ok(()) => {}
//!     Err(error) if error.code() == Code::StaleFence => println!("another holds the lock: {error}"),
//!     Err(error) => return Err(error),
//! }
//! # Ok::<(), dlm::Error>(())
//! ```
//!
//! # What is promised
//!
//! * **A write with a lower fence than the record's is refused by the server**: STALE_FENCE. It does not
//!   matter how late the request arrives, or what its sender believes about its lease.
//! * **Each call takes effect at most once**, [`add`](Record::add) included, whatever was lost or late on the
//!   way. A request that arrives late never changes what was written in between, also by its own sender.
//! * **A lost reply is settled by reading the record.** Where reading cannot tell, the call is IN_DOUBT.
//!
//! All of it ends with the record. A record that expired, was deleted by others, or was in the memory of a
//! server that restarted has no fence. `docs/aerospike.md` tells the layout, and what a namespace must be set to.

mod bins;
mod guard;
mod records;

pub use bins::{Bins, Value};
pub use records::{Record, Records};
