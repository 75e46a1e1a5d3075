//! Columns in which operations leave their marks.

use std::fmt::Write as _;

use parking_lot::Mutex;

use crate::error::Result;
use crate::store::OwnerToken;

/// Columns of this process alone, each in use by one operation at a time, whatever its row. An
/// operation's mark is written over that of the one before it, so that a row has as many of them as this
/// process had threads at work on it at once, and nothing is ever deleted.
///
/// The mark of an operation that may yet arrive a second time must stay. So a slot is given back only
/// after an operation of which every request was answered by the server, or surely never reached it
/// whole: no copy of such a request is on its way anywhere. Any other slot is forgotten here, and its
/// mark stays in the row for its TTL.
#[derive(Debug, Default)]
pub(super) struct Slots {
    free: Mutex<Vec<Slot>>,
}

/// 128 random bits, as text.
#[derive(Debug)]
pub(super) struct Slot(String);

impl Slots {
    /// The slot that was given back last, so that as few as possible are used, or a new one.
    pub(super) fn take(&self) -> Result<Slot> {
        let free = self.free.lock().pop();
        free.map_or_else(Slot::draw, Ok)
    }

    pub(super) fn give_back(&self, slot: Slot) {
        self.free.lock().push(slot);
    }
}

impl Slot {
    fn draw() -> Result<Slot> {
        let mut name = String::with_capacity(32);
        for byte in OwnerToken::draw()?.as_bytes() {
            let _ = write!(name, "{byte:02x}");
        }
        Ok(Slot(name))
    }

    /// Not shared with other farms: the marks in one column are ordered by the count that changes with
    /// each of them (see `change`), also after a server's clock was set back.
    pub(super) fn column(&self, farm: &str) -> Vec<u8> {
        format!("op_{}_{farm}", self.0).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again_only_when_it_was_given_back() {
        let slots = Slots::default();
        let (first, second) = (slots.take().unwrap(), slots.take().unwrap());
        assert_ne!(first.column("dc1"), second.column("dc1"));
        let column = first.column("dc1");
        assert_eq!(column.len(), "op_".len() + 32 + "_dc1".len());
        drop(second);
        slots.give_back(first);
        assert_eq!(slots.take().unwrap().column("dc1"), column);
        assert_ne!(slots.take().unwrap().column("dc1"), column);
    }
}
