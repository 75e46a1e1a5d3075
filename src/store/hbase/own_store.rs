//! The operations of HBase that the layout `own` needs: the interface between its protocol and the transport.

use std::time::Duration;

use super::cell_store::{Cell, Durability, LockTable};
use super::row_hints::{RowHints, WaitNumber};
use crate::error::Result;
use crate::names::mode::Mode;
use crate::runtime::time::Deadline;
use crate::store::remote::{OnReply, Replace};

/// The row of a lock in the layout `own`. An empty or missing record means that nobody holds it exclusively.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OwnCells {
    pub(super) number: Option<u64>,
    pub(super) record: Option<Cell>,
    /// All other cells.
    pub(super) beside: Vec<BesideCell>,
}

/// A cell of a lock beside number and record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BesideCell {
    pub(super) qualifier: Vec<u8>,
    pub(super) cell: Cell,
}

/// The cells that one change writes, for [`OwnStore`].
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnWrite<'a> {
    pub(super) row: &'a [u8],
    pub(super) number: u64,
    /// The first number that comes with the record: [`OwnStore::claim`] requires that the stored one is lower.
    pub(super) first: u64,
    /// TTL of the number.
    pub(super) number_ttl: Duration,
    pub(super) record: &'a [u8],
    /// TTL of the record, at most `number_ttl`.
    pub(super) ttl: Duration,
    /// The wait whose intent [`OwnStore::claim`] ends in the same step.
    pub(super) wait: Option<WaitNumber>,
    pub(super) durability: Durability,
}

/// What [`OwnStore::claim`] expects of the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expects {
    /// It has no cells. The cheaper condition.
    Unused,
    /// The lock is free and its number is below the new one.
    Free,
    /// It has this number, and this record of an earlier grant.
    Outlived { number: u64, record: Vec<u8> },
    /// It has a base, and none of the holds that it stood for.
    Deserted(LockRowCondition),
}

/// Result of [`OwnStore::claim`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Claimed {
    /// Both cells were written.
    Made,
    /// The row is not as expected. With its cells as they were right after that, if they were read.
    Refused(Option<OwnCells>),
}

/// A conditional change of a row, for [`OwnStore::change`].
#[derive(Debug)]
pub(super) struct LockRowChange<'a> {
    pub(super) row: &'a [u8],
    /// Of these, one is made at most. The server tries them in this order.
    pub(super) steps: Vec<LockRowStep>,
    /// Whether to read the row in the same request, behind the steps.
    pub(super) reads: bool,
    pub(super) durability: Durability,
    /// As in [`CheckAndPut`](super::cell_store::CheckAndPut).
    pub(super) parts: u32,
}

/// A condition, and the cells to write if it holds. The number is one of them, always.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LockRowStep {
    pub(super) condition: LockRowCondition,
    pub(super) number: u64,
    pub(super) cells: Vec<LockCellWrite>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LockCellWrite {
    pub(super) qualifier: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) ttl: Duration,
}

/// What must hold of a row. All of it is checked in one step, under the lock of the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LockRowCondition {
    pub(super) number: NumberTest,
    /// Cells that must be as the test says.
    pub(super) cells: Vec<(Vec<u8>, LockCellTest)>,
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
pub(super) enum LockCellTest {
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
    /// Permits with lower numbers than this one.
    pub(super) permits: u16,
    /// Whether others may wait exclusively.
    pub(super) intents: bool,
    /// Cells as they were seen: our own hold, or those of an earlier number, which hold nothing any more.
    pub(super) exactly: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Answer to a [`LockRowChange`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LockRowChanged {
    /// The step at this position was made. With the cells as they were right after the steps, if they were read.
    Made(usize, Option<OwnCells>),
    /// None was made. With the cells, too.
    Refused(Option<OwnCells>),
}

/// The operations of the layout `own`. Each change writes both cells in one atomic step, so they always have the same
/// timestamp. No call carries one: the server chooses one that is not older than that of the cells before.
///
/// # Errors
/// As for [`CellStore`].
pub(super) trait OwnStore: LockTable {
    /// Writes both cells if the row is as expected. Unless that is [`Expects::Unused`], it also reads the cells in the
    /// same call.
    fn claim(&self, write: &OwnWrite<'_>, expects: &Expects, by: Deadline) -> Result<Claimed>;

    /// Writes both cells if the record is `expected`, and the number is the one to write. `parts` is as in
    /// [`CheckAndPut`].
    fn rewrite(&self, write: &OwnWrite<'_>, expected: &[u8], parts: u32, by: Deadline) -> Result<bool>;

    /// Makes the first of several steps whose condition holds.
    fn change(&self, change: &LockRowChange<'_>, by: Deadline) -> Result<LockRowChanged>;

    /// Puts a cell beside number and record, whatever it holds. May put it twice.
    fn put_beside(
        &self,
        row: &[u8],
        qualifier: &[u8],
        value: &[u8],
        ttl: Duration,
        by: Deadline,
    ) -> Result<()>;

    /// Replaces the records of several locks like [`rewrite`](OwnStore::rewrite), as
    /// [`Register::replace_many`](crate::store::remote::Register::replace_many) describes. A hold that others go beside is
    /// renewed beside the base that `hints` has.
    fn replace_many<'a>(
        &self,
        changes: Vec<Replace<'a>>,
        hints: &RowHints,
        by: Deadline,
        answered: OnReply<'_, 'a>,
    );

    fn read_cells(&self, row: &[u8], by: Deadline) -> Result<OwnCells>;

    /// Reads the cells of many rows. Calls `report` with the position of each row that was read, and its cells.
    ///
    /// Default: reads none.
    fn read_many(&self, rows: &[Vec<u8>], by: Deadline, report: &mut dyn FnMut(usize, OwnCells)) {
        let _ = (rows, by, report);
    }
}
