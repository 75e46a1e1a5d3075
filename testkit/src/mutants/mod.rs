//! Stores with a known defect, to test the rules of [`history`](mod@crate::history): a rule that misses its mutant is
//! worth nothing.
//!
//! | Mutant | Defects |
//! |---|---|
//! | [`LockMutant`] | those of [`LockMutation`] |
//! | [`Receiver`] | accepts stale writes, if made by [`Receiver::careless`] |

mod lock_mutant;
mod receiver;

pub use lock_mutant::{LockMutant, LockMutation};
pub use receiver::Receiver;
