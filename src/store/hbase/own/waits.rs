//! The waits that this process has announced. Each has a number, which names its column in the row of the lock.
//!
//! A grant ends the intent of its wait, and the number is free for the next wait. An announcement that was under way meanwhile may
//! arrive after the grant, so a wait is known until it is withdrawn, or for some seconds.

use std::collections::HashMap;
use std::time::Duration;

use crate::runtime::sync::Mutex;
use crate::runtime::time::Moment;
use crate::store::hbase::row_hints::WaitNumber;
use crate::store::{INTENT_MAX, IntentId};

/// Most waits that are remembered. Then those that were not announced again lately are forgotten.
const WAITS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct AnnouncedWaits(Mutex<HashMap<IntentId, AnnouncedWait>>);

#[derive(Debug)]
struct AnnouncedWait {
    row: Box<[u8]>,
    number: WaitNumber,
    /// When it was announced first and last.
    first: Moment,
    last: Moment,
    is_granted: bool,
}

impl AnnouncedWaits {
    /// Returns how long the process has announced this wait, and its number, which `choose` chooses for a new one. After a grant
    /// it is a new one.
    pub(super) fn announce(
        &self,
        row: &[u8],
        id: IntentId,
        choose: impl FnOnce() -> WaitNumber,
    ) -> (Duration, WaitNumber) {
        let (now, mut waits) = (Moment::now(), self.0.lock());
        if waits.len() >= WAITS {
            waits.retain(|_, wait| now.since(wait.last) <= 2 * INTENT_MAX);
        }
        if let Some(wait) = waits.get_mut(&id).filter(|wait| !wait.is_granted) {
            wait.last = now;
            return (now.since(wait.first), wait.number);
        }
        let number = choose();
        let wait = AnnouncedWait { row: row.into(), number, first: now, last: now, is_granted: false };
        waits.insert(id, wait);
        (Duration::ZERO, number)
    }

    /// Returns the number of a wait that a grant ends.
    pub(super) fn number(&self, intent: Option<IntentId>) -> Option<WaitNumber> {
        let waits = self.0.lock();
        waits.get(&intent?).filter(|wait| !wait.is_granted).map(|wait| wait.number)
    }

    /// A grant has ended this wait. Returns its number.
    pub(super) fn granted(&self, intent: Option<IntentId>) -> Option<WaitNumber> {
        let mut waits = self.0.lock();
        let wait = waits.get_mut(&intent?)?;
        wait.is_granted = true;
        Some(wait.number)
    }

    /// Returns the number of a wait that is withdrawn. `None` if it is not known, or if another wait for the lock has that number
    /// by now: ending it would end that one.
    pub(super) fn to_withdraw(&self, id: IntentId) -> Option<WaitNumber> {
        let waits = self.0.lock();
        let wait = waits.get(&id)?;
        let is_same = |other: &AnnouncedWait| other.row == wait.row && other.number == wait.number;
        let is_used = waits.iter().any(|(of, other)| *of != id && !other.is_granted && is_same(other));
        (!is_used).then_some(wait.number)
    }

    pub(super) fn forget(&self, id: IntentId) {
        self.0.lock().remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(waits: &AnnouncedWaits, row: &[u8], id: u64, number: WaitNumber) -> WaitNumber {
        waits.announce(row, IntentId(id), || number).1
    }

    /// A request of a wait that a grant has ended would keep readers out, and its end would let them in before the next writer.
    #[test]
    fn a_wait_that_was_granted_is_withdrawn_unless_the_next_one_has_its_number() {
        let waits = AnnouncedWaits::default();
        let (first, second) = (IntentId(1), IntentId(2));
        assert_eq!(waits.to_withdraw(first), None, "it was never announced");
        assert_eq!([5, 6].map(|number| announced(&waits, b"a", 1, number)), [5; 2], "one number");
        assert_eq!(waits.number(Some(first)), Some(5));
        assert_eq!(waits.granted(Some(first)), Some(5));
        assert_eq!(waits.number(Some(first)), None);
        assert_eq!(waits.to_withdraw(first), Some(5));
        // Another row, and another number.
        announced(&waits, b"b", 3, 5);
        announced(&waits, b"a", 4, 7);
        assert_eq!(waits.to_withdraw(first), Some(5));
        announced(&waits, b"a", 2, 5);
        assert_eq!(waits.to_withdraw(first), None);
        assert_eq!(waits.to_withdraw(second), Some(5));
        waits.forget(second);
        assert_eq!((waits.to_withdraw(second), waits.to_withdraw(first)), (None, Some(5)));
        assert_eq!(announced(&waits, b"a", 1, 6), 6, "it begins again");
        assert_eq!(waits.number(Some(first)), Some(6));
        assert_eq!((waits.number(None), waits.granted(None)), (None, None));
    }

    #[test]
    fn a_wait_too_many_lets_those_be_forgotten_that_are_not_announced_any_more() {
        let waits = AnnouncedWaits::default();
        for id in 0..WAITS as u64 {
            announced(&waits, b"a", id, 5);
        }
        announced(&waits, b"a", u64::MAX, 5);
        assert_eq!(waits.0.lock().len(), WAITS + 1, "all of them were announced just now");
        let long_ago = Moment::from_nanos(0);
        waits.0.lock().values_mut().take(WAITS).for_each(|wait| wait.last = long_ago);
        announced(&waits, b"a", u64::MAX - 1, 5);
        assert_eq!(waits.0.lock().len(), 2);
    }
}
