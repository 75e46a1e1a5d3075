//! What this process last saw of the rows of locks in several modes, so that most changes need one request. A wrong guess costs
//! one more: conditions decide, not these hints.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use crate::runtime::sync::Mutex;

/// What a client knows of the base of a row: the number, and the longest TTL of the holds that it stands for.
pub(super) type BaseSeen = (u64, Duration);

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
    /// Places that this process has left.
    places: Vec<u8>,
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

    /// Returns what was seen of the row, and a place that this process has left there, which is its own from now on.
    pub(super) fn take(&self, row: &[u8]) -> Option<(RowHint, Option<u8>)> {
        let mut rows = self.rows.lock();
        let hint = rows.get_mut(&self.hasher.hash_one(row)).filter(|hint| hint.number > 0)?;
        let place = hint.places.pop();
        Some((RowHint { places: Vec::new(), ..*hint }, place))
    }

    pub(super) fn saw(&self, row: &[u8], number: Option<u64>, base_ttl: Option<Duration>) {
        let Some(number) = number else { return };
        // Also a lower number. The answer may be an old one, but if the row was deleted, a renewal that waited for a higher one
        // would guess wrong each time.
        self.with(row, |hint| (hint.number, hint.base_ttl) = (number, base_ttl));
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
        assert!(hints.take(b"a").is_none());
        assert_eq!(hints.base(b"a", 7, TTL), (7, TTL), "nothing is known");
        hints.saw(b"a", None, Some(TTL));
        assert!(hints.take(b"a").is_none(), "a row without a number");
        for number in [9, 7] {
            hints.saw(b"a", Some(number), Some(2 * TTL));
            assert_eq!(hints.base(b"a", number, TTL), (number, 2 * TTL));
            assert_eq!(hints.base(b"a", number + 1, TTL), (number + 1, TTL), "of another number");
        }
        hints.saw(b"a", Some(7), None);
        let (hint, _) = hints.take(b"a").unwrap();
        assert_eq!((hint.number, hint.base_ttl), (7, None), "no base stands");
    }

    #[test]
    fn a_place_that_was_left_is_given_to_one_hold_only() {
        let hints = RowHints::default();
        hints.saw(b"a", Some(7), None);
        hints.left(b"a", 3);
        hints.left(b"a", 3);
        let places = [(); 2].map(|()| hints.take(b"a").unwrap().1);
        assert_eq!(places, [Some(3), None]);
        assert!(hints.take(b"b").is_none(), "another row");
    }

    #[test]
    fn a_row_too_many_lets_all_be_forgotten() {
        let hints = RowHints::default();
        for row in 0..ROWS {
            hints.saw(&row.to_be_bytes(), Some(1), None);
        }
        hints.saw(&0_usize.to_be_bytes(), Some(2), None);
        assert!(hints.take(&1_usize.to_be_bytes()).is_some());
        hints.saw(b"another", Some(1), None);
        assert!(hints.take(&1_usize.to_be_bytes()).is_none() && hints.take(b"another").is_some());
    }
}
