//! This library's side of the benchmark: the calls that are measured.

use dlm::hbase::{Cells, Changes, Creation, Select, Table};

use crate::{Pair, increase};

pub(crate) const NAME: &str = "this library";

/// The same columns as in `Peer.java`.
const SMALL: &str = "f:a";
const LARGE: &str = "f:b";
const COUNTER: &str = "f:n";

/// A table. Each method except `put` is one measured operation, and panics if its result is wrong.
pub(crate) struct Rows(Table);

impl Rows {
    pub(crate) fn open(uri: &str) -> Rows {
        Rows(Table::open(uri).expect("a good URI"))
    }

    /// Creates or replaces both cells.
    pub(crate) fn put(&self, key: &str, pair: &Pair) {
        self.0.row(key).put(&cells(pair)).unwrap();
    }

    pub(crate) fn create(&self, key: &str, pair: &Pair) {
        assert_eq!(self.0.row(key).create(&cells(pair)).unwrap(), Creation::Created);
    }

    pub(crate) fn get(&self, key: &str, last: &Pair) {
        let found = self.0.row(key).get_only(&Select::all().column(SMALL).column(LARGE)).unwrap();
        let found = found.expect("it was put");
        assert_eq!(found.value(SMALL), Some(&last.small[..]));
        assert_eq!(found.value(LARGE), Some(&last.large[..]));
    }

    pub(crate) fn compare_and_set(&self, key: &str, before: &[u8], after: &[u8]) {
        assert!(self.0.row(key).compare_and_set(SMALL, Some(before), Some(after)).unwrap());
    }

    pub(crate) fn increment(&self, key: &str, by: i64) -> i64 {
        self.0.row(key).increment(COUNTER, by).unwrap().expect("the reply has the sum")
    }

    pub(crate) fn modify(&self, key: &str) {
        let modified = self.0.row(key).modify(&[SMALL, LARGE], |row| {
            let next = |column| {
                let mut cell = row.value(column).expect("it was put").to_vec();
                increase(&mut cell);
                cell
            };
            Some(Changes::new().put(SMALL, next(SMALL)).put(LARGE, next(LARGE)))
        });
        assert!(modified.unwrap().changed);
    }
}

fn cells(pair: &Pair) -> Cells {
    Cells::new().put(SMALL, pair.small).put(LARGE, pair.large)
}
