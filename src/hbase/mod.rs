//! Rows of an application's table in HBase, safe without row locks.
//!
//! HBase once had `lockRow` and `unlockRow`, and removed them. These calls replace them:
//!
//! * [`Row::create`] creates a row, or reports that it exists.
//! * [`Row::update`] changes a row that exists.
//! * [`Row::compare_and_set`] writes one column if it has the expected value.
//! * [`Row::modify`] reads some columns, computes, and writes if none of them has changed in the meantime.
//! * [`Row::increment`] adds to a counter.
//! * [`Row::delete_if`] deletes a row if one column has the expected value.
//! * [`Lease::row`](crate::Lease::row) returns a row whose writes the servers refuse once a later holder of the
//!   lock has changed the row through its own fenced row, or raised its fence.
//!
//! ```no_run
//! use dlm::hbase::{Cells, Creation, Table};
//!
//! let orders = Table::open("hbase://master1:16000,master2:16000/orders")?;
//! let order = orders.row("order-42");
//! match order.create(&Cells::new().put("d:id", "42").put("d:state", "new"))? {
//!     Creation::Created => println!("this process created the order"),
//!     Creation::AlreadyExists => println!("another process was faster"),
//! }
//! let paid = order.compare_and_set("d:state", Some(b"new"), Some(b"paid"))?;
//! # Ok::<(), dlm::Error>(())
//! ```
//!
//! # Outcomes
//!
//! Each call happened, did not happen, or is in doubt because a reply was lost
//! ([`Code::InDoubt`](crate::Code::InDoubt)). The library does not repeat a write that is in doubt. A row from
//! [`Row::exactly_once`] writes an idempotency mark with each change. The library can then send a change again
//! whose reply was lost, and the server makes it once.
//!
//! All calls block, for at most the table's `timeout` (10 s by default). A call that reads the row before it
//! changes it may take twice that time: see [`Row`]. Many threads may make calls at the same time. No call waits in
//! a server. `docs/rows.md` describes the edge cases of each call.

mod batch;
mod cells;
mod change;
mod fence;
mod modify;
mod row;
mod row_id;
mod table;

pub use cells::{CellVersion, Cells, Changes, Column, RowCells, Select};
#[cfg(feature = "capi")]
pub(crate) use modify::Commit;
pub use modify::Modified;
pub use row::{Creation, Row, Update};
pub use table::{Family, Table};
