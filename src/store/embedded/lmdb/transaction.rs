//! One transaction on the records: what is read and written in it.

use heed::types::Bytes;
use heed::{Database, DatabaseStat, RoTxn, RwTxn, WithoutTls};

use super::mapped_file::MappedFile;

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
    room: Option<FileRoom<'a>>,
}

/// What a transaction may use of a file that is changed through the memory map.
pub(super) struct FileRoom<'a> {
    mapped: &'a MappedFile,
    /// Pages of the file that were used before.
    used: u64,
    /// Pages that the transaction may have copied before it changed them.
    copied: u64,
    /// Pages that it may have added.
    added: u64,
    /// The most pages that the tree has had. The transaction copies each of them once at most.
    tree: u64,
}

impl<'a> FileRoom<'a> {
    pub(super) fn new(mapped: &'a MappedFile, used: u64) -> FileRoom<'a> {
        FileRoom { mapped, used, copied: 0, added: 0, tree: 0 }
    }

    /// Returns up to how many pages of the file are used after the transaction.
    fn pages(&self) -> u64 {
        self.used + self.added + self.copied.min(self.tree)
    }
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
    pub(super) fn new(
        txn: RwTxn<'a>,
        records: RecordsDatabase,
        limit: usize,
        room: Option<FileRoom<'a>>,
    ) -> Writer<'a> {
        Writer { txn, records, limit, changes: 0, room }
    }

    /// The number of the transaction.
    pub(super) fn id(&self) -> u64 {
        self.txn.id() as u64
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
        self.make_room(Some(value.len()))?;
        self.records.put(&mut self.txn, key, value)
    }

    /// Deletes the record of `key` if it exists.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<(), Fault> {
        self.changes += 1;
        self.make_room(None)?;
        self.records.delete(&mut self.txn, key).map(|_| ())
    }

    /// Gives the file room for one more change: a value of so many bytes, or a record that is deleted.
    fn make_room(&mut self, value: Option<usize>) -> Result<(), Fault> {
        let Some(room) = &mut self.room else { return Ok(()) };
        let tree = self.records.stat(&self.txn)?;
        // The pages on the way to the record, each with a neighbour that gives records or takes them.
        let levels = u64::from(tree.depth) + 1;
        room.copied += 2 * levels;
        room.tree = room.tree.max(pages(tree) as u64);
        // Each of them may be split.
        room.added += value.map_or(0, |value| levels + room.mapped.pages_of(value));
        Ok(room.mapped.make_room(room.used, room.pages())?)
    }

    /// Refuses to go on if the disk has little room besides: what matters more needs it.
    pub(crate) fn keep_reserve(&self) -> Result<(), Fault> {
        let Some(room) = &self.room else { return Ok(()) };
        Ok(room.mapped.make_room_and_reserve(room.used, room.pages())?)
    }
}

fn percent(stat: DatabaseStat, limit: usize) -> u64 {
    (pages(stat) as u64 * u64::from(stat.page_size) * 100).div_ceil(limit as u64)
}

fn pages(stat: DatabaseStat) -> usize {
    stat.branch_pages + stat.leaf_pages + stat.overflow_pages
}
