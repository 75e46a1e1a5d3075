//! Marks that make a change of a row exactly-once: the change writes its mark in the same atomic step, on the
//! condition that the mark is not there. What is sent again is then not made again.

use std::cell::Cell;
use std::fmt::Write as _;
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::Result;
use crate::owner::OwnerToken;
use crate::time::Deadline;

/// No request is sent again later than this after the first.
pub(crate) const SENDING_MAX: Duration = Duration::from_secs(3600);
/// How long the mark of an operation lasts that has a request in flight: it may be sent again for the first
/// half, and what is under way then arrives in the second or never. A socket gives up what it could not deliver
/// within minutes; a server that was stopped for longer is no server any more.
pub(crate) const IN_FLIGHT_TTL: Duration = Duration::from_secs(2 * 3600);
/// For clocks that run at different speeds.
const SLACK: Duration = Duration::from_secs(30);
/// What a mark begins with: read as a count, it is 0 (the Java library sums all columns of a latch).
pub(crate) const ZERO: [u8; 8] = [0; 8];
/// Behind a mark: the operation was given up.
const GIVEN_UP: &[u8] = b"x";

/// An operation, and the column with its mark.
pub(crate) struct MarkedOperation<'a> {
    marks: &'a IdempotencyMarks,
    slot: Option<MarkSlot>,
    /// Where the mark is written.
    pub(crate) column: Vec<u8>,
    pub(crate) mark: Vec<u8>,
    ttl_least: Duration,
    by: Deadline,
    /// Its requests that may have been run, or may yet be, and were not answered.
    pub(crate) in_flight: Cell<u32>,
}

impl<'a> MarkedOperation<'a> {
    /// `ttl_least`: how long the mark lasts at least.
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

    /// How long a mark that is written now must last.
    pub(crate) fn mark_ttl(&self) -> Duration {
        if self.in_flight.get() == 0 {
            self.ttl_least.max(self.by.remaining() + SLACK)
        } else {
            IN_FLIGHT_TTL
        }
    }

    /// In place of the mark, this forbids the change for good.
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

/// Columns of this process alone, each in use by one operation at a time, whatever its row. An
/// operation's mark is written over that of the one before it, so that a row has as many of them as this
/// process had threads at work on it at once, and nothing is ever deleted.
///
/// The mark of an operation that may yet arrive a second time must stay. So a slot is given back only
/// after an operation of which every request was answered by the server, or surely never reached it
/// whole: no copy of such a request is on its way anywhere. Any other slot is forgotten here, and its
/// mark stays in the row for its TTL.
#[derive(Debug, Default)]
pub(crate) struct IdempotencyMarks {
    free: Mutex<Vec<MarkSlot>>,
}

/// 128 random bits, as text.
#[derive(Debug)]
pub(crate) struct MarkSlot(String);

impl IdempotencyMarks {
    /// The slot that was given back last, so that as few as possible are used, or a new one.
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

    /// 32 characters.
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
