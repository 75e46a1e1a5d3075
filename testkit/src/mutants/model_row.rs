//! A small model of a row, with or without a defect.

use std::thread;

use parking_lot::Mutex;

/// A defect of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowMutation {
    /// Compare-and-set writes the new value, whatever the old one.
    IgnoresOldValue,
    /// An increment reads and writes in two steps.
    LosesIncrement,
    /// Some reads return the value before the last write.
    ReadsStale,
}

/// A row with one number. It may be shared between threads.
#[derive(Debug, Default)]
pub struct ModelRow {
    state: Mutex<RowState>,
    mutation: Option<RowMutation>,
}

#[derive(Debug, Default)]
struct RowState {
    value: Option<i64>,
    /// The value before the last write.
    before: Option<i64>,
    reads: u64,
}

impl RowState {
    fn write(&mut self, value: i64) {
        self.before = self.value.replace(value);
    }
}

impl ModelRow {
    /// Makes a row that does not exist yet.
    pub fn new() -> ModelRow {
        ModelRow::default()
    }

    /// Makes a row with a defect.
    pub fn mutant(mutation: RowMutation) -> ModelRow {
        ModelRow { mutation: Some(mutation), ..ModelRow::default() }
    }

    /// Creates the row. Returns `false` if it exists.
    pub fn create(&self, value: i64) -> bool {
        self.set_if(|before| before.is_none(), value)
    }

    /// Writes the value.
    pub fn put(&self, value: i64) {
        self.set_if(|_| true, value);
    }

    /// Writes the value if the row has the expected one. Returns whether it did.
    pub fn compare_and_set(&self, expected: Option<i64>, value: i64) -> bool {
        let blind = self.mutation == Some(RowMutation::IgnoresOldValue);
        self.set_if(|before| blind || before == expected, value)
    }

    /// Returns the value; `None` if the row does not exist.
    pub fn get(&self) -> Option<i64> {
        let mut state = self.state.lock();
        state.reads += 1;
        let stale = self.mutation == Some(RowMutation::ReadsStale) && state.reads.is_multiple_of(8);
        if stale { state.before } else { state.value }
    }

    /// Adds to the value, and returns the sum. A row that does not exist counts as zero.
    pub fn increment(&self, by: i64) -> i64 {
        let mut state = self.state.lock();
        let sum = state.value.unwrap_or(0).wrapping_add(by);
        if self.mutation == Some(RowMutation::LosesIncrement) {
            drop(state);
            thread::yield_now();
            state = self.state.lock();
        }
        state.write(sum);
        sum
    }

    /// Reads, adds, compares and sets, until it succeeds. Returns the sum.
    pub fn modify(&self, by: i64) -> i64 {
        loop {
            let before = self.get();
            let sum = before.unwrap_or(0).wrapping_add(by);
            if self.compare_and_set(before, sum) {
                return sum;
            }
        }
    }

    fn set_if(&self, allowed: impl FnOnce(Option<i64>) -> bool, value: i64) -> bool {
        let mut state = self.state.lock();
        let sets = allowed(state.value);
        if sets {
            state.write(value);
        }
        sets
    }
}
