//! One transaction on the records: what is read and written in it.

use heed::types::Bytes;
use heed::{Database, DatabaseStat, RoTxn, RwTxn, WithoutTls};

/// The error of an LMDB call.
pub(crate) use heed::Error as Fault;

pub(super) type RecordsDatabase = Database<'static, Bytes, Bytes>;

/// A read transaction: one consistent state of the records.
pub(crate) struct Reader<'a> {
    txn: &'a RoTxn<'a, WithoutTls>,
    records: RecordsDatabase,
    limit: usize,
}

/// A write transaction: all its changes take effect together, or none.
pub(crate) struct Writer<'a> {
    txn: RwTxn<'a>,
    records: RecordsDatabase,
    limit: usize,
    changes: u64,
}

/// The key and the value of a record.
type KeyValue<'a> = (&'a [u8], &'a [u8]);

/// The end of a write transaction.
pub(crate) enum TxnEnd<T> {
    /// Commit the changes and return this value.
    Commit(T),
    /// Discard the changes and return this value.
    Abandon(T),
}

impl<'a> Reader<'a> {
    pub(super) fn new(txn: &'a RoTxn<'a, WithoutTls>, records: RecordsDatabase, limit: usize) -> Reader<'a> {
        Reader { txn, records, limit }
    }

    /// Returns the value of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<&[u8]>, Fault> {
        self.records.get(self.txn, key)
    }

    /// The first record behind `key` in byte order.
    pub(crate) fn after(&self, key: &[u8]) -> Result<Option<KeyValue<'_>>, Fault> {
        self.records.get_greater_than(self.txn, key)
    }

    /// Returns how much of the file the records use, in percent.
    pub(crate) fn percent(&self) -> Result<u64, Fault> {
        Ok(percent(self.records.stat(self.txn)?, self.limit))
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(txn: RwTxn<'a>, records: RecordsDatabase, limit: usize) -> Writer<'a> {
        Writer { txn, records, limit, changes: 0 }
    }

    /// Number of records that were put and deleted.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn commit(self) -> Result<(), Fault> {
        self.txn.commit()
    }

    /// Returns the value of `key`, including the changes of this transaction.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<&[u8]>, Fault> {
        self.records.get(&self.txn, key)
    }

    /// The first record behind `key` in byte order.
    pub(crate) fn after(&self, key: &[u8]) -> Result<Option<KeyValue<'_>>, Fault> {
        self.records.get_greater_than(&self.txn, key)
    }

    /// Returns how much of the file the records use after the changes of this transaction, in percent.
    pub(crate) fn percent(&self) -> Result<u64, Fault> {
        Ok(percent(self.records.stat(&self.txn)?, self.limit))
    }

    /// Counts the records whose keys begin with `prefix`, up to `most`.
    pub(crate) fn count(&self, prefix: &[u8], most: usize) -> Result<usize, Fault> {
        let mut count = 0;
        for found in self.records.prefix_iter(&self.txn, prefix)?.take(most) {
            found?;
            count += 1;
        }
        Ok(count)
    }

    /// Sets the value of `key`.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        self.changes += 1;
        self.records.put(&mut self.txn, key, value)
    }

    /// Deletes the record of `key` if it exists.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<(), Fault> {
        self.changes += 1;
        self.records.delete(&mut self.txn, key).map(|_| ())
    }
}

fn percent(stat: DatabaseStat, limit: usize) -> u64 {
    let pages = stat.branch_pages + stat.leaf_pages + stat.overflow_pages;
    (pages as u64 * u64::from(stat.page_size) * 100).div_ceil(limit as u64)
}
