//! The columns of a lock: the record, as in PhonePe's DLM 1.0.1, and the fence of this library.

use super::cell_store::CellColumn;

pub(super) const LOCK: CellColumn = CellColumn { family: "D", qualifier: "L" };
pub(super) const FENCE: CellColumn = CellColumn { family: "D", qualifier: "F" };

/// The value of a free lock's cell. It is written instead of a Delete: the tombstone of a Delete would hide the
/// next holder's record if that has a timestamp in the same millisecond.
pub(super) const FREE: &[u8] = b"";
