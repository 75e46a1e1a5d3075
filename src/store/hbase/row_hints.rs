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
        self.with(row, |hint| {
            // Answers overtake each other.
            if number >= hint.number {
                (hint.number, hint.base_ttl) = (number, base_ttl);
            }
        });
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
