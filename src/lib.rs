//! Distributed locks.
mod error;
mod ffi;
pub mod store;
mod time;
pub use error::{Cause, Code, Error, Result};
pub use time::{Deadline, Moment};
