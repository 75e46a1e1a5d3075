//! Stores with a known defect, to test the rules of [`history`](mod@crate::history) and the cases of
//! [`contract`](mod@crate::contract): a rule that misses its mutant is worth nothing.
//!
//! | Mutant | Defects |
//! |---|---|
//! | [`LockMutant`] | those of [`LockMutation`] |
//! | [`LatchMutant`] | those of [`LatchMutation`] |
//! | [`ModelRow`] | those of [`RowMutation`] |
//! | [`Receiver`] | accepts stale writes and reads, if made by [`Receiver::careless`] |

mod latch_mutant;
mod lock_mutant;
mod mode_defects;
mod model_row;
mod permit_defects;
mod receiver;

pub use latch_mutant::{LatchMutant, LatchMutation};
pub use lock_mutant::{LockMutant, LockMutation};
pub use model_row::{ModelRow, RowMutation};
pub use receiver::Receiver;
