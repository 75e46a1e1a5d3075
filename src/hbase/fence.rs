//! The fence of a row's changes. It is written into the row before the first change. The server refuses changes
//! with a stale fence.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::row_id::RowId;
use super::table::FenceColumns;
use crate::error::{Error, Result};
use crate::names::fence::{Epoch, Fence};
use crate::names::text::quoted;
use crate::runtime::time::Deadline;
use crate::store::hbase::cell_store::Durability;
use crate::store::hbase::steps::{
    CellTest, CellWrite, ColumnName, Repeat, Request, RowAnswer, RowGuard, RowStep, Rule, Which,
};
use crate::store::remote::resolve::Pauses;

/// Most attempts to raise a fence. An attempt fails only if another holder changes the fence in between.
const ROUNDS: usize = 16;

/// The fence of a lease, as stored in rows.
pub(super) struct RowFence {
    number: Fence,
    /// Big-endian, because the server compares byte by byte.
    bytes: [u8; 8],
    /// The stored name of the lock. Fences of different locks must not be compared.
    lock: String,
    /// Whether a reply has shown that the row has this fence.
    pub(super) raised: AtomicBool,
}

/// The fence in a row, compared with ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FenceStanding {
    /// It is ours.
    Raised,
    /// It is lower, or the row has none.
    Lower,
}

impl RowFence {
    pub(super) fn new(number: Fence, lock: &str) -> RowFence {
        let (bytes, lock) = (number.0.to_be_bytes(), lock.to_owned());
        RowFence { number, bytes, lock, raised: AtomicBool::new(false) }
    }

    /// Steps that write our fence if the row has none, or a lower one of the same lock.
    pub(super) fn raising<'a>(&'a self, columns: &'a FenceColumns, ttl: Duration) -> [RowStep<'a>; 2] {
        let FenceColumns { fence, lock } = columns;
        let put = || {
            let cells = vec![(fence, self.bytes.as_slice()), (lock, self.lock.as_bytes())];
            vec![CellWrite::Put { cells, ttl: Some(ttl), durability: Durability::UseDefault }]
        };
        let below = vec![(fence, Rule::Below(&self.bytes)), (lock, Rule::Is(self.lock.as_bytes()))];
        [
            RowStep::Change(RowGuard::One((fence, Rule::MissingOrEmpty)), put()),
            RowStep::Change(RowGuard::All(below), put()),
        ]
    }

    /// Tests that the fence in the row is ours.
    pub(super) fn stands<'a>(&'a self, columns: &'a FenceColumns) -> [CellTest<'a>; 2] {
        let FenceColumns { fence, lock } = columns;
        [(fence, Rule::Is(&self.bytes)), (lock, Rule::Is(self.lock.as_bytes()))]
    }

    /// Compares the fence that was read with ours.
    ///
    /// # Errors
    /// STALE_FENCE if it is higher; INVALID_ARGUMENT if it belongs to another lock.
    pub(super) fn standing(
        &self,
        columns: &FenceColumns,
        answer: &RowAnswer,
        row: &RowId,
    ) -> Result<FenceStanding> {
        let Some((stored, lock)) = stored(columns, answer, row)? else { return Ok(FenceStanding::Lower) };
        if lock != self.lock.as_bytes() {
            return Err(other_lock(&self.lock, &lock, row));
        }
        match stored.cmp(&self.number) {
            std::cmp::Ordering::Less => Ok(FenceStanding::Lower),
            std::cmp::Ordering::Equal => Ok(FenceStanding::Raised),
            std::cmp::Ordering::Greater => {
                Err(Error::StaleFence { receiver: row.described(), fence: self.number, stored })
            }
        }
    }

    pub(super) fn raise(&self, columns: &FenceColumns, row: &RowId, by: Deadline) -> Result<()> {
        let table = &*row.table.inner;
        let mut pauses = Pauses::until(by);
        for _ in 0..ROUNDS {
            let steps = || {
                let read = RowStep::Read(which(columns));
                self.raising(columns, table.fence_ttl).into_iter().chain([read]).collect()
            };
            // Raising it twice has the same effect as raising it once.
            let unanswered = std::cell::Cell::new(0);
            let request = Request {
                what: "raising a fence",
                row: &row.key,
                repeat: Repeat::Until(&unanswered),
                steps: &steps,
            };
            let answer = table.store.run(&request, by)?.pop().unwrap_or_default();
            if self.standing(columns, &answer, row)? == FenceStanding::Raised {
                self.raised.store(true, Ordering::Relaxed);
                return Ok(());
            }
            if !pauses.rest() {
                break;
            }
        }
        Err(Error::RetriesExhausted {
            store: table.store.describe().to_owned(),
            what: "the fence changed at each attempt".into(),
            source: None,
        })
    }
}

fn which(columns: &FenceColumns) -> Which<'_> {
    Which { columns: vec![&columns.fence, &columns.lock], families: Vec::new(), versions: 1 }
}

/// Checks that no later holder of the reader's lock has its fence in the row. The reader has an epoch and the stored name of
/// its lock.
///
/// # Errors
/// STALE_FENCE if one has; INVALID_ARGUMENT if the fence belongs to another lock.
pub(super) fn check_epoch(
    (epoch, of): (Epoch, &str),
    columns: &FenceColumns,
    answer: &RowAnswer,
    row: &RowId,
) -> Result<()> {
    let Some((stored, lock)) = stored(columns, answer, row)? else { return Ok(()) };
    if lock != of.as_bytes() {
        return Err(other_lock(of, &lock, row));
    }
    if epoch.is_before(stored) {
        return Err(Error::StaleEpoch { receiver: row.described(), epoch, stored });
    }
    Ok(())
}

fn other_lock(ours: &str, stored: &[u8], row: &RowId) -> Error {
    let stored = quoted(&String::from_utf8_lossy(stored));
    Error::invalid(
        "lock",
        ours,
        format!("row \"{}\" is fenced by lock {stored}: see fence_column", row.shown()),
    )
}

/// Returns the fence of a row, and its lock.
pub(super) fn stored(
    columns: &FenceColumns,
    answer: &RowAnswer,
    row: &RowId,
) -> Result<Option<(Fence, Vec<u8>)>> {
    let number = |column: &ColumnName| answer.value(column).filter(|value| !value.is_empty());
    let Some(value) = number(&columns.fence) else { return Ok(None) };
    let Ok(bytes) = value.try_into() else {
        let what = format!("column {} of row \"{}\" holds no fence", columns.fence, row.shown());
        return Err(Error::Internal { what, source: None });
    };
    let lock = answer.value(&columns.lock).unwrap_or_default().to_vec();
    Ok(Some((Fence(u64::from_be_bytes(bytes)), lock)))
}

/// Reads the fence, for [`Row::fence`](super::Row::fence).
pub(super) fn read(row: &RowId, columns: &FenceColumns, by: Deadline) -> Result<Option<(Fence, Vec<u8>)>> {
    let steps = || vec![RowStep::Read(which(columns))];
    let request = Request { what: "reading a fence", row: &row.key, repeat: Repeat::Read, steps: &steps };
    let answer = row.table.inner.store.run(&request, by)?.pop().unwrap_or_default();
    stored(columns, &answer, row)
}
