//! Idempotency marks: they make a change of a row exactly-once. The change writes its mark in the same atomic step,
//! under the condition that the mark does not exist. So a request that is sent again is not applied again.

use std::cell::Cell;
use std::fmt::Write as _;
use std::time::Duration;

use crate::error::Result;
use crate::names::owner::OwnerToken;
use crate::runtime::sync::real::Mutex;
use crate::runtime::time::Deadline;

/// Longest time after the first send in which a request is sent again.
pub(crate) const SENDING_MAX: Duration = Duration::from_secs(3600);
/// TTL of the mark of an operation with a request in flight. The request may be sent again in the first half of
/// this time. A request that is in flight after that arrives in the second half or never: a socket drops
/// undelivered data after minutes, and a server that was stopped for longer is removed from the cluster.
pub(crate) const IN_FLIGHT_TTL: Duration = Duration::from_secs(2 * 3600);
/// Margin for clocks that run at different speeds.
const SLACK: Duration = Duration::from_secs(30);
/// First bytes of a mark. Read as a count they are 0: the Java library adds all columns of a latch.
pub(crate) const ZERO: [u8; 8] = [0; 8];
/// Suffix of a mark that says that the operation was abandoned.
const GIVEN_UP: &[u8] = b"x";

/// An operation and the column of its mark.
pub(crate) struct MarkedOperation<'a> {
    marks: &'a IdempotencyMarks,
    slot: Option<MarkSlot>,
    /// Column of the mark.
    pub(crate) column: Vec<u8>,
    pub(crate) mark: Vec<u8>,
    ttl_least: Duration,
    by: Deadline,
    /// Number of its requests without an answer that may have been run or may still be run.
    pub(crate) in_flight: Cell<u32>,
}

impl<'a> MarkedOperation<'a> {
    /// Begins an operation. `ttl_least` is the shortest TTL of its mark.
    pub(crate) fn begin(
        marks: &'a IdempotencyMarks,
        column: impl FnOnce(&MarkSlot) -> Vec<u8>,
        ttl_least: Duration,
        by: Deadline,
    ) -> Result<MarkedOperation<'a>> {
        let mark = [ZERO.as_slice(), OwnerToken::draw()?.as_bytes()].concat();
        let slot = marks.take()?;
        Ok(MarkedOperation {
            marks,
            column: column(&slot),
            slot: Some(slot),
            mark,
            ttl_least,
            by,
            in_flight: Cell::new(0),
        })
    }

    /// Returns the TTL for a mark that is written now.
    pub(crate) fn mark_ttl(&self) -> Duration {
        if self.in_flight.get() == 0 {
            self.ttl_least.max(self.by.remaining() + SLACK)
        } else {
            IN_FLIGHT_TTL
        }
    }

    /// Returns the value that is written instead of the mark to forbid the change for good.
    pub(crate) fn given_up(&self) -> Vec<u8> {
        [&self.mark, GIVEN_UP].concat()
    }
}

impl Drop for MarkedOperation<'_> {
    fn drop(&mut self) {
        if self.in_flight.get() == 0
            && let Some(slot) = self.slot.take()
        {
            self.marks.give_back(slot);
        }
    }
}

/// Pool of mark slots: columns that only this process uses.
///
/// One operation at a time uses a slot, in any row. The mark of an operation overwrites the mark of the operation
/// before it. So a row has at most one mark for each thread of this process that worked on rows at the same time,
/// besides the marks of dropped slots, and marks are never deleted.
///
/// The mark of an operation must stay while one of its requests may arrive a second time. So a slot is returned
/// only if the server answered every request of the operation, or surely did not receive the whole request. Then
/// no copy of a request is in flight. Any other slot is dropped here, and its mark stays in the row for its TTL.
#[derive(Debug, Default)]
pub(crate) struct IdempotencyMarks {
    free: Mutex<Vec<MarkSlot>>,
}

/// Name of a mark column: 128 random bits as text.
#[derive(Debug)]
pub(crate) struct MarkSlot(String);

impl IdempotencyMarks {
    /// Takes the slot that was returned last, or a new one. This keeps the number of slots small.
    pub(crate) fn take(&self) -> Result<MarkSlot> {
        let free = self.free.lock().pop();
        free.map_or_else(MarkSlot::draw, Ok)
    }

    pub(crate) fn give_back(&self, slot: MarkSlot) {
        self.free.lock().push(slot);
    }
}

impl MarkSlot {
    fn draw() -> Result<MarkSlot> {
        let mut name = String::with_capacity(32);
        for byte in OwnerToken::draw()?.as_bytes() {
            let _ = write!(name, "{byte:02x}");
        }
        Ok(MarkSlot(name))
    }

    /// Returns the name: 32 characters.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again_only_when_it_was_given_back() {
        let marks = IdempotencyMarks::default();
        let (first, second) = (marks.take().unwrap(), marks.take().unwrap());
        assert_ne!(first.name().to_owned(), second.name().to_owned());
        let column = first.name().to_owned();
        assert_eq!(column.len(), 32);
        drop(second);
        marks.give_back(first);
        assert_eq!(marks.take().unwrap().name().to_owned(), column);
        assert_ne!(marks.take().unwrap().name().to_owned(), column);
    }
}
