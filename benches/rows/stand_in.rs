//! This library's side of the benchmark, on a map in memory: a stand-in until `dlm::hbase` is there.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::{Pair, increase};

/// Its figures say nothing.
pub(crate) const NAME: &str = "stand-in without HBase";

pub(crate) struct Rows(Mutex<HashMap<String, (Pair, i64)>>);

impl Rows {
    pub(crate) fn open(_uri: &str) -> Rows {
        Rows(Mutex::default())
    }

    pub(crate) fn put(&self, key: &str, pair: &Pair) {
        self.0.lock().unwrap().insert(key.to_owned(), (pair.clone(), 0));
    }

    pub(crate) fn create(&self, key: &str, pair: &Pair) {
        assert!(self.0.lock().unwrap().insert(key.to_owned(), (pair.clone(), 0)).is_none());
    }

    pub(crate) fn get(&self, key: &str, last: &Pair) {
        assert_eq!(self.0.lock().unwrap()[key].0, *last);
    }

    pub(crate) fn compare_and_set(&self, key: &str, before: &[u8], after: &[u8]) {
        let mut rows = self.0.lock().unwrap();
        let small = &mut rows.get_mut(key).expect("it was put").0.small;
        assert_eq!(small, before);
        small.copy_from_slice(after);
    }

    pub(crate) fn increment(&self, key: &str, by: i64) -> i64 {
        let mut rows = self.0.lock().unwrap();
        let counter = &mut rows.get_mut(key).expect("it was put").1;
        *counter += by;
        *counter
    }

    pub(crate) fn modify(&self, key: &str) {
        let mut rows = self.0.lock().unwrap();
        let pair = &mut rows.get_mut(key).expect("it was put").0;
        increase(&mut pair.small);
        increase(&mut pair.large);
    }
}
