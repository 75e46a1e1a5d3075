//! Conditional changes of a lock's row: what must hold, and what is written then.

use std::time::Duration;

use super::cell_store::{Durability, OwnCells};
use crate::names::mode::Mode;

/// A conditional change of a row, for [`OwnStore::change`](super::cell_store::OwnStore::change).
#[derive(Debug)]
pub(super) struct RowChange<'a> {
    pub(super) row: &'a [u8],
    /// Of these, one is made at most. The server tries them in this order.
    pub(super) steps: Vec<RowStep>,
    /// Whether to read the row in the same request, behind the steps.
    pub(super) reads: bool,
    pub(super) durability: Durability,
    /// As in [`CheckAndPut`](super::cell_store::CheckAndPut).
    pub(super) parts: u32,
}

/// A condition, and the cells to write if it holds. The number is one of them, always.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowStep {
    pub(super) condition: RowCondition,
    pub(super) number: u64,
    pub(super) cells: Vec<CellWrite>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CellWrite {
    pub(super) qualifier: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) ttl: Duration,
}

/// What must hold of a row. All of it is checked in one step, under the lock of the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowCondition {
    pub(super) number: NumberTest,
    /// Cells that must be as the test says.
    pub(super) cells: Vec<(Vec<u8>, CellTest)>,
    /// What all cells of the row may be. `None`: the condition looks at those above only.
    pub(super) allows: Option<Allowed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberTest {
    /// The row has none. Nothing else is checked then: such a row has never had a hold.
    Absent,
    Is(u64),
    Below(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CellTest {
    /// It has this value.
    Is(Vec<u8>),
    /// It is missing or empty.
    Empty,
    /// It has a value that is not empty.
    Filled,
    /// It is missing, or its value does not sort behind this one.
    UpTo(Vec<u8>),
}

/// A list of what cells may be. Every other cell that is not empty is a hold of a kind that excludes ours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Allowed {
    /// The modes of holds.
    pub(super) modes: Vec<Mode>,
    /// Whether others may wait exclusively.
    pub(super) intents: bool,
    /// Cells as they were seen: our own hold, or those of an earlier number, which hold nothing any more.
    pub(super) exactly: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Answer to a [`RowChange`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RowChanged {
    /// The step at this position was made. With the cells as they were right after the steps, if they were read.
    Made(usize, Option<OwnCells>),
    /// None was made. With the cells, too.
    Refused(Option<OwnCells>),
}
