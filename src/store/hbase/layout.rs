//! The columns of a lock. In the layout `java` the record is that of PhonePe's DLM 1.0.1, and the fence stands in
//! another row. In the layout `own` both stand in one row of another family, so the server refuses clients of the
//! other layout.

/// A column. Family and qualifier have one byte each, as in the Java library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CellColumn {
    pub(super) family: &'static str,
    pub(super) qualifier: &'static str,
}

pub(super) const LOCK: CellColumn = CellColumn { family: "D", qualifier: "L" };
/// How long the record of a lease that was broken may last: milliseconds from the time of this cell, 8 bytes, big-endian.
/// The cell itself lasts as long.
pub(super) const COVER: CellColumn = CellColumn { family: "D", qualifier: "C" };
/// The counter of the fence, in a row of its own. With `fence=lock_row` earlier versions kept it in the lock's row.
pub(super) const FENCE: CellColumn = CellColumn { family: "D", qualifier: "F" };

pub(super) const OWN_LOCK: CellColumn = CellColumn { family: "O", qualifier: "L" };
/// Sorts before the record. The server gives new cells a timestamp that is not older than the first cell by qualifier.
pub(super) const OWN_FENCE: CellColumn = CellColumn { family: "O", qualifier: "F" };

/// The entries of a history, in rows of their own.
pub(super) const HISTORY: CellColumn = CellColumn { family: "D", qualifier: "H" };
pub(super) const OWN_HISTORY: CellColumn = CellColumn { family: "O", qualifier: "H" };

/// The value of a free lock's cell. It is written instead of a Delete: the tombstone of a Delete would hide the
/// next holder's record if that has a timestamp in the same millisecond.
pub(super) const FREE: &[u8] = b"";
