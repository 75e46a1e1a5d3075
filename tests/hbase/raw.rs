//! Access to HBase without this library: reads stored cells, and makes the requests of the Java library.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use dlm::LockName;
use hbase_thrift::hbase::{ColumnDescriptor, HbaseSyncClient, Mutation, THbaseSyncClient as _};
use thrift::protocol::{TBinaryInputProtocol, TBinaryOutputProtocol};
use thrift::transport::{
    ReadHalf, TBufferedReadTransport, TBufferedWriteTransport, TIoChannel as _, TTcpChannel, WriteHalf,
};

type Input = TBinaryInputProtocol<TBufferedReadTransport<ReadHalf<TTcpChannel>>>;
type Output = TBinaryOutputProtocol<TBufferedWriteTransport<WriteHalf<TTcpChannel>>>;

/// A cell's value and its timestamp in milliseconds.
pub(crate) type Cell = (Vec<u8>, i64);

/// A connection to the gateway. Its methods panic if the gateway returns an error.
pub(crate) struct Raw {
    client: HbaseSyncClient<Input, Output>,
    table: Vec<u8>,
}

impl Raw {
    pub(crate) fn connect(gateway: SocketAddr, table: &str) -> Raw {
        let stream = TcpStream::connect(gateway).unwrap();
        stream.set_nodelay(true).unwrap();
        let (read, write) = TTcpChannel::with_stream(stream).split().unwrap();
        let input = TBinaryInputProtocol::new(TBufferedReadTransport::new(read), true);
        let output = TBinaryOutputProtocol::new(TBufferedWriteTransport::new(write), true);
        Raw { client: HbaseSyncClient::new(input, output), table: table.into() }
    }

    /// Reads the cell of the lock's record.
    pub(crate) fn lock_cell(&mut self, name: &LockName) -> Option<Cell> {
        self.cell(name.hbase_row(), b"D:L")
    }

    /// Reads the cell of the lock's fence.
    pub(crate) fn fence_cell(&mut self, name: &LockName) -> Option<Cell> {
        self.cell(name.hbase_fence_row(), b"D:F")
    }

    pub(crate) fn cell(&mut self, row: Vec<u8>, column: &[u8]) -> Option<Cell> {
        let found = self.client.get(self.table.clone(), row, column.into(), BTreeMap::new()).unwrap();
        let cell = found.into_iter().next()?;
        Some((cell.value.unwrap(), cell.timestamp.unwrap()))
    }

    /// Returns all columns of a row, as `family:qualifier`, and their values.
    pub(crate) fn row(&mut self, row: Vec<u8>) -> BTreeMap<String, Vec<u8>> {
        let found = self.client.get_row(self.table.clone(), row, BTreeMap::new()).unwrap();
        let cells = found.into_iter().flat_map(|row| row.columns.unwrap_or_default());
        cells.map(|(column, cell)| (String::from_utf8(column).unwrap(), cell.value.unwrap())).collect()
    }

    /// Writes a value without a TTL.
    pub(crate) fn put(&mut self, row: Vec<u8>, column: &[u8], value: &[u8]) {
        let put = Mutation::new(false, column.to_vec(), value.to_vec(), true);
        self.client.mutate_row(self.table.clone(), row, vec![put], BTreeMap::new()).unwrap();
    }

    /// Acquires as the Java library does: writes `M` if the cell is absent or empty. Returns whether it did.
    pub(crate) fn java_acquires(&mut self, name: &LockName, ttl: Duration) -> bool {
        let put = Mutation::new(false, b"D:L".to_vec(), b"M".to_vec(), true);
        let ttl = (ttl.as_millis() as i64).to_be_bytes().to_vec();
        let attributes = BTreeMap::from([(b"_ttl".to_vec(), ttl)]);
        let (table, row) = (self.table.clone(), name.hbase_row());
        self.client.check_and_put(table, row, b"D:L".to_vec(), Vec::new(), put, attributes).unwrap()
    }

    /// Releases as the Java library does: deletes the row, even if another holder owns it.
    pub(crate) fn java_releases(&mut self, name: &LockName) {
        self.client.delete_all_row(self.table.clone(), name.hbase_row(), BTreeMap::new()).unwrap();
    }

    /// Writes a value with this timestamp into the cell of the lock's record.
    pub(crate) fn put_at(&mut self, name: &LockName, value: &[u8], timestamp: i64) {
        let put = Mutation::new(false, b"D:L".to_vec(), value.to_vec(), true);
        let (table, row) = (self.table.clone(), name.hbase_row());
        self.client.mutate_row_ts(table, row, vec![put], timestamp, BTreeMap::new()).unwrap();
    }

    pub(crate) fn create_table(&mut self, family: &str) {
        // The gateway reads a missing text field as an empty text, and refuses it.
        let family = ColumnDescriptor {
            name: Some(family.into()),
            max_versions: Some(1),
            compression: Some("NONE".into()),
            bloom_filter_type: Some("NONE".into()),
            time_to_live: Some(i32::MAX),
            ..ColumnDescriptor::default()
        };
        self.client.create_table(self.table.clone(), vec![family]).unwrap();
    }

    /// Returns the name, the number of versions and the compression of each family.
    pub(crate) fn families(&mut self) -> Vec<(String, i32, String)> {
        let families = self.client.get_column_descriptors(self.table.clone()).unwrap();
        let told = families.into_iter().map(|(name, family)| {
            let name = String::from_utf8(name).unwrap();
            (name, family.max_versions.unwrap(), family.compression.unwrap())
        });
        told.collect()
    }

    pub(crate) fn disable_table(&mut self) {
        self.client.disable_table(self.table.clone()).unwrap();
    }

    pub(crate) fn enable_table(&mut self) {
        self.client.enable_table(self.table.clone()).unwrap();
    }

    pub(crate) fn drop_table(&mut self) {
        if self.client.is_table_enabled(self.table.clone()).unwrap() {
            self.disable_table();
        }
        self.client.delete_table(self.table.clone()).unwrap();
    }
}
