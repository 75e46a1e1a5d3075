//! What this process last saw of the rows of locks in several modes, so that most changes need one request. A wrong guess costs
//! one more: conditions decide, not these hints.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use crate::runtime::sync::Mutex;
use crate::store::remote::Record;

/// Identifies a process that waits for a lock exclusively, among all that do.
pub(super) type WaitNumber = u8;

/// The waits for a lock, as its row shows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WaitsSeen {
    /// Numbers that were used, and can be used again.
    pub(super) over: Vec<WaitNumber>,
    pub(super) open: Vec<WaitNumber>,
}

/// What a client knows of the base of a row: the number, and the longest TTL of the holds that it stands for.
pub(super) type BaseSeen = (u64, Duration);

/// The base of permits in a row, and the size of the semaphore.
pub(super) type PermitsSeen = (Record, Option<u16>);

/// So many free places are enough for the processes that choose one at one time.
pub(super) const MANY_FREE: usize = 16;

/// Most rows. When there are more, all are forgotten.
const ROWS: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct RowHints {
    rows: Mutex<HashMap<u64, RowHint>>,
    hasher: RandomState,
}

/// What was seen of a row.
#[derive(Debug, Clone, Default)]
pub(super) struct RowHint {
    pub(super) number: u64,
    /// The longest TTL of the holds with this number, if a base stood.
    pub(super) base_ttl: Option<Duration>,
    /// The base of permits, if one stood, and the size of the semaphore.
    permits: Option<PermitsSeen>,
    /// Places that this process has left.
    places: Vec<u8>,
    /// Places that others had left when the row was last read.
    free: Vec<u8>,
    /// The number of the last wait of this process.
    wait: Option<WaitNumber>,
    /// When the row was last read.
    waits: WaitsSeen,
}

impl RowHints {
    fn with<T>(&self, row: &[u8], change: impl FnOnce(&mut RowHint) -> T) -> T {
        let hash = self.hasher.hash_one(row);
        let mut rows = self.rows.lock();
        if rows.len() >= ROWS && !rows.contains_key(&hash) {
            rows.clear();
        }
        change(rows.entry(hash).or_default())
    }

    /// Returns what was seen of the row.
    pub(super) fn seen(&self, row: &[u8]) -> Option<RowHint> {
        let rows = self.rows.lock();
        let hint = rows.get(&self.hasher.hash_one(row)).filter(|hint| hint.number > 0)?;
        Some(RowHint { number: hint.number, base_ttl: hint.base_ttl, ..RowHint::default() })
    }

    /// Takes a place that this process has left there.
    pub(super) fn take(&self, row: &[u8]) -> Option<u8> {
        self.rows.lock().get_mut(&self.hasher.hash_one(row))?.places.pop()
    }

    /// Returns a number for a wait: that of the last one of this process, or one that others have left, or any. `draw` chooses it.
    /// Two processes with one number keep out readers, but the end of one wait ends the other until it is announced again.
    pub(super) fn begin_wait(&self, row: &[u8], draw: impl Fn(usize) -> usize) -> WaitNumber {
        self.with(row, |hint| {
            let WaitsSeen { over, open } = &hint.waits;
            let is_unused = |number: &WaitNumber| !open.contains(number);
            let own = hint.wait.take().filter(is_unused);
            let left = (over.len() >= MANY_FREE).then(|| over[draw(over.len())]);
            let any = (0..=WaitNumber::MAX).cycle().skip(draw(256)).take(256).find(is_unused);
            own.or(left).or(any).unwrap_or_default()
        })
    }

    /// A wait of this process is over.
    pub(super) fn ended_wait(&self, row: &[u8], number: WaitNumber) {
        self.with(row, |hint| hint.wait = Some(number));
    }

    pub(super) fn saw_waits(&self, row: &[u8], waits: &WaitsSeen) {
        self.with(row, |hint| hint.waits.clone_from(waits));
    }

    /// Takes one of the places that others had left. `draw` chooses it. `None` if there were few, which many would choose.
    pub(super) fn take_free(&self, row: &[u8], draw: impl Fn(usize) -> usize) -> Option<u8> {
        let mut rows = self.rows.lock();
        let free = &mut rows.get_mut(&self.hasher.hash_one(row))?.free;
        (free.len() >= MANY_FREE).then(|| free.swap_remove(draw(free.len())))
    }

    /// These places were free when the row was read.
    pub(super) fn saw_free(&self, row: &[u8], free: impl Iterator<Item = u8>) {
        self.with(row, |hint| {
            hint.free.clear();
            hint.free.extend(free.filter(|place| !hint.places.contains(place)));
        });
    }

    pub(super) fn saw(&self, row: &[u8], number: Option<u64>, base_ttl: Option<Duration>) {
        let Some(number) = number else { return };
        // Also a lower number. The answer may be an old one, but if the row was deleted, a renewal that waited for a higher one
        // would guess wrong each time.
        self.with(row, |hint| (hint.number, hint.base_ttl) = (number, base_ttl));
    }

    /// This base of permits stands in the row, or none does.
    pub(super) fn saw_permits(&self, row: &[u8], seen: Option<PermitsSeen>) {
        if seen.is_some() || self.permits(row).is_some() {
            self.with(row, |hint| hint.permits = seen);
        }
    }

    /// Returns the base of permits that was last seen in the row.
    pub(super) fn permits(&self, row: &[u8]) -> Option<PermitsSeen> {
        self.rows.lock().get(&self.hasher.hash_one(row))?.permits.clone()
    }

    /// This process has left the place.
    pub(super) fn left(&self, row: &[u8], place: u8) {
        self.with(row, |hint| {
            if !hint.places.contains(&place) {
                hint.places.push(place);
            }
        });
    }

    /// Returns the base that the holds with this number are beside. By default it lasts as long as `ttl`.
    pub(super) fn base(&self, row: &[u8], number: u64, ttl: Duration) -> BaseSeen {
        let rows = self.rows.lock();
        let hint = rows.get(&self.hasher.hash_one(row)).filter(|hint| hint.number == number);
        (number, hint.and_then(|hint| hint.base_ttl).unwrap_or(ttl))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    #[test]
    fn the_last_answer_counts_also_after_a_row_was_deleted() {
        let hints = RowHints::default();
        assert!(hints.seen(b"a").is_none());
        assert_eq!(hints.base(b"a", 7, TTL), (7, TTL), "nothing is known");
        hints.saw(b"a", None, Some(TTL));
        assert!(hints.seen(b"a").is_none(), "a row without a number");
        for number in [9, 7] {
            hints.saw(b"a", Some(number), Some(2 * TTL));
            assert_eq!(hints.base(b"a", number, TTL), (number, 2 * TTL));
            assert_eq!(hints.base(b"a", number + 1, TTL), (number + 1, TTL), "of another number");
        }
        hints.saw(b"a", Some(7), None);
        let hint = hints.seen(b"a").unwrap();
        assert_eq!((hint.number, hint.base_ttl), (7, None), "no base stands");
    }

    #[test]
    fn a_place_that_was_left_is_given_to_one_hold_only() {
        let hints = RowHints::default();
        hints.saw(b"a", Some(7), None);
        hints.left(b"a", 3);
        hints.left(b"a", 3);
        assert_eq!([(); 2].map(|()| hints.take(b"a")), [Some(3), None]);
        assert!(hints.take(b"b").is_none(), "another row");
    }

    /// A row would fill with places that were used once.
    #[test]
    fn a_guess_is_a_place_that_others_have_left_if_there_were_many() {
        let (hints, many) = (RowHints::default(), MANY_FREE as u8);
        hints.saw(b"a", Some(7), None);
        hints.left(b"a", 3);
        let last = |count: usize| count - 1;
        hints.saw_free(b"a", 0..many);
        assert_eq!(hints.take_free(b"a", last), None, "one of them is this process's own");
        hints.saw_free(b"a", 0..=many);
        assert_eq!(hints.take_free(b"a", last), Some(many));
        assert_eq!(hints.take_free(b"a", last), None, "few are left");
        hints.saw_free(b"a", 0..=many);
        hints.saw_free(b"a", std::iter::empty());
        assert_eq!(hints.take_free(b"a", last), None, "they are none any more");
        assert_eq!(hints.take_free(b"b", last), None, "another row");
    }

    /// Each number is a column, and HBase reads those whose cells are over, too.
    #[test]
    fn waits_use_few_numbers_and_none_that_another_process_uses() {
        let hints = RowHints::default();
        let seen = |over: &[u8], open: &[u8]| WaitsSeen { over: over.to_vec(), open: open.to_vec() };
        let first = |_| 0;
        hints.saw(b"a", Some(7), None);
        hints.saw_waits(b"a", &seen(&[], &[0, 1]));
        assert_eq!(hints.begin_wait(b"a", first), 2);
        hints.ended_wait(b"a", 2);
        assert_eq!(hints.begin_wait(b"a", |_| 9), 2, "the own one again");
        assert_eq!(hints.begin_wait(b"a", |_| 9), 9, "it is in use");
        hints.ended_wait(b"a", 2);
        hints.saw_waits(b"a", &seen(&[], &[2]));
        assert_eq!(hints.begin_wait(b"a", |_| 9), 9, "another process uses it");
        hints.saw_waits(b"a", &seen(&(20..20 + MANY_FREE as u8).collect::<Vec<_>>(), &[2]));
        assert_eq!(hints.begin_wait(b"a", |_| 3), 23, "one that others have left");
        hints.saw_waits(b"a", &seen(&[], &(0..=u8::MAX).collect::<Vec<_>>()));
        assert_eq!(hints.begin_wait(b"a", |_| 3), 0, "all are in use");
    }

    #[test]
    fn a_row_too_many_lets_all_be_forgotten() {
        let hints = RowHints::default();
        for row in 0..ROWS {
            hints.saw(&row.to_be_bytes(), Some(1), None);
        }
        hints.saw(&0_usize.to_be_bytes(), Some(2), None);
        assert!(hints.seen(&1_usize.to_be_bytes()).is_some());
        hints.saw(b"another", Some(1), None);
        assert!(hints.seen(&1_usize.to_be_bytes()).is_none() && hints.seen(b"another").is_some());
    }
}
