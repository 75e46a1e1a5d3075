//! Rows of an application's table in HBase, safe without row locks.
//!
//! HBase once had `lockRow` and `unlockRow`, and removed them. What they were wanted for is here:
//!
//! * [`Row::create`] tells a row that was made from one that was there;
//! * [`Row::update`] changes a row that is there;
//! * [`Row::compare_and_set`] writes one column if it holds what is expected;
//! * [`Row::modify`] reads some columns, computes, and writes if none of them was changed meanwhile;
//! * [`Row::increment`] adds to a counter;
//! * [`Row::delete_if`] deletes a row that is as expected;
//! * [`Lease::row`](crate::Lease::row) gives a row whose writes the servers refuse once a later holder of the lock
//!   has been there.
//!
//! ```no_run
//! use dlm::hbase::{Cells, Creation, Table};
//!
//! let orders = Table::open("hbase://master1:16000,master2:16000/orders")?;
//! let order = orders.row("order-42");
//! match order.create(&Cells::new().put("d:id", "42").put("d:state", "new"))? {
//!     Creation::Created => println!("this process made the order"),
//!     Creation::AlreadyExists => println!("another one was faster"),
//! }
//! let paid = order.compare_and_set("d:state", Some(b"new"), Some(b"paid"))?;
//! # Ok::<(), dlm::Error>(())
//! ```
//!
//! # Outcomes
//!
//! Each call has one of three: it happened, it did not, or it is in doubt (IN_DOUBT), because a reply was lost. A
//! write in doubt is never sent again by itself. A row from [`Row::exactly_once`] writes a mark along with each
//! change, so that a change whose reply was lost can be sent again and is made once.
//!
//! All calls block, for the table's `timeout` (10 s unless set) at the most, and may be made from many threads at
//! once. Nothing waits in a server. What each call does in the corners is in `docs/rows.md`.

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
