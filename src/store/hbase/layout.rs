//! The cells of a lock, which are those of PhonePe's DLM 1.0.1, and its fence beside them.

use super::cell_store::CellColumn;

pub(super) const LOCK: CellColumn = CellColumn { family: "D", qualifier: "L" };
pub(super) const FENCE: CellColumn = CellColumn { family: "D", qualifier: "F" };

/// The value of a free lock's cell. Written in place of a Delete, whose tombstone would hide the next
/// holder's record of the same millisecond.
pub(super) const FREE: &[u8] = b"";
