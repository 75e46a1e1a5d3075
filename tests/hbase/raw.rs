//! Access to HBase without this library: reads stored cells, and makes the requests of the Java library.
//!
//! On a busy machine HBase may take longer than the gateway waits for it, and the gateway closes connections that were
//! idle for a minute. So a call that fails is made again, unless it has had an effect.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use dlm::LockName;
use dlm::store::HbaseStore;
use dlm_testkit::eventually;
use hbase_thrift::hbase::{
    AlreadyExists, ColumnDescriptor, HbaseSyncClient, IOError, Mutation, THbaseSyncClient as _,
};
use thrift::protocol::{TBinaryInputProtocol, TBinaryOutputProtocol};
use thrift::transport::{
    ReadHalf, TBufferedReadTransport, TBufferedWriteTransport, TIoChannel as _, TTcpChannel, WriteHalf,
};

type Input = TBinaryInputProtocol<TBufferedReadTransport<ReadHalf<TTcpChannel>>>;
type Output = TBinaryOutputProtocol<TBufferedWriteTransport<WriteHalf<TTcpChannel>>>;
type Client = HbaseSyncClient<Input, Output>;

/// A cell's value and its timestamp in milliseconds.
pub(crate) type Cell = (Vec<u8>, i64);

/// A connection to the gateway. Its methods panic if the gateway does not answer for minutes.
pub(crate) struct Raw {
    gateway: SocketAddr,
    client: Client,
    table: Vec<u8>,
    /// Whether it has acquired a lock as the Java library does.
    holds: bool,
}

fn connect(gateway: SocketAddr) -> Client {
    let stream = TcpStream::connect(gateway).unwrap();
    stream.set_nodelay(true).unwrap();
    let (read, write) = TTcpChannel::with_stream(stream).split().unwrap();
    let input = TBinaryInputProtocol::new(TBufferedReadTransport::new(read), true);
    let output = TBinaryOutputProtocol::new(TBufferedWriteTransport::new(write), true);
    HbaseSyncClient::new(input, output)
}

impl Raw {
    pub(crate) fn connect(gateway: SocketAddr, table: &str) -> Raw {
        Raw { gateway, client: connect(gateway), table: table.into(), holds: false }
    }

    /// Makes a call on the table. Returns `None` if it failed. It may have had an effect nevertheless.
    fn once<T>(&mut self, call: impl FnOnce(&mut Client, Vec<u8>) -> thrift::Result<T>) -> Option<T> {
        match call(&mut self.client, self.table.clone()) {
            Ok(answer) => Some(answer),
            Err(thrift::Error::User(declared)) if declared.is::<IOError>() => {
                let text: String = format!("{declared:?}").chars().take(300).collect();
                eprintln!("the gateway failed: {text}");
                None
            }
            Err(thrift::Error::Transport(_)) => {
                self.client = connect(self.gateway);
                None
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Makes a call that has the same effect when it is made again, until it is answered.
    fn again<T>(&mut self, mut call: impl FnMut(&mut Client, Vec<u8>) -> thrift::Result<T>) -> T {
        let mut answer = None;
        eventually("the gateway answers", || {
            answer = self.once(&mut call);
            answer.is_some()
        });
        answer.expect("it was waited for")
    }

    /// Reads the cell of the lock's record.
    pub(crate) fn lock_cell(&mut self, name: &LockName) -> Option<Cell> {
        self.cell(HbaseStore::lock_row(name), b"D:L")
    }

    /// Reads the cell of the lock's fence.
    pub(crate) fn fence_cell(&mut self, name: &LockName) -> Option<Cell> {
        self.cell(HbaseStore::fence_row(name), b"D:F")
    }

    pub(crate) fn cell(&mut self, row: Vec<u8>, column: &[u8]) -> Option<Cell> {
        let found =
            self.again(|client, table| client.get(table, row.clone(), column.into(), BTreeMap::new()));
        let cell = found.into_iter().next()?;
        Some((cell.value.unwrap(), cell.timestamp.unwrap()))
    }

    /// Returns all columns of a row, as `family:qualifier`, and their values.
    pub(crate) fn row(&mut self, row: Vec<u8>) -> BTreeMap<String, Vec<u8>> {
        let found = self.again(|client, table| client.get_row(table, row.clone(), BTreeMap::new()));
        let cells = found.into_iter().flat_map(|row| row.columns.unwrap_or_default());
        cells.map(|(column, cell)| (String::from_utf8(column).unwrap(), cell.value.unwrap())).collect()
    }

    /// Writes a value without a TTL.
    pub(crate) fn put(&mut self, row: Vec<u8>, column: &[u8], value: &[u8]) {
        let put = Mutation::new(false, column.to_vec(), value.to_vec(), true);
        self.again(|client, table| client.mutate_row(table, row.clone(), vec![put.clone()], BTreeMap::new()));
    }

    /// Acquires as the Java library does: writes `M` if the cell is absent or empty. Returns whether it did.
    pub(crate) fn java_acquires(&mut self, name: &LockName, ttl: Duration) -> bool {
        let put = Mutation::new(false, b"D:L".to_vec(), b"M".to_vec(), true);
        let ttl = (ttl.as_millis() as i64).to_be_bytes().to_vec();
        let attributes = BTreeMap::from([(b"_ttl".to_vec(), ttl)]);
        let mut acquired = None;
        eventually("the gateway answers", || {
            let (row, column) = (HbaseStore::lock_row(name), b"D:L".to_vec());
            let answer = self.once(|client, table| {
                client.check_and_put(table, row, column, Vec::new(), put.clone(), attributes.clone())
            });
            acquired = answer.or_else(|| self.is_held_by_java(name).then_some(true));
            acquired.is_some()
        });
        self.holds = acquired.expect("it was waited for");
        self.holds
    }

    fn is_held_by_java(&mut self, name: &LockName) -> bool {
        self.lock_cell(name).is_some_and(|(value, _)| value == b"M")
    }

    /// Releases as the Java library does: deletes the row, even if another holder owns it.
    pub(crate) fn java_releases(&mut self, name: &LockName) {
        let own = std::mem::take(&mut self.holds);
        eventually("the gateway answers", || {
            let row = HbaseStore::lock_row(name);
            let deleted = self.once(|client, table| client.delete_all_row(table, row, BTreeMap::new()));
            // If it was carried out, another client may have acquired the lock by now.
            deleted.is_some()
                || if own { !self.is_held_by_java(name) } else { self.lock_cell(name).is_none() }
        });
    }

    /// Writes a value with this timestamp into the cell of the lock's record.
    pub(crate) fn put_at(&mut self, name: &LockName, value: &[u8], timestamp: i64) {
        let put = Mutation::new(false, b"D:L".to_vec(), value.to_vec(), true);
        self.again(|client, table| {
            let row = HbaseStore::lock_row(name);
            client.mutate_row_ts(table, row, vec![put.clone()], timestamp, BTreeMap::new())
        });
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
        self.again(|client, table| match client.create_table(table, vec![family.clone()]) {
            // The call before has created it.
            Err(thrift::Error::User(declared)) if declared.is::<AlreadyExists>() => Ok(()),
            created => created,
        });
    }

    /// Returns the name, the number of versions and the compression of each family.
    pub(crate) fn families(&mut self) -> Vec<(String, i32, String)> {
        let families = self.again(|client, table| client.get_column_descriptors(table));
        let told = families.into_iter().map(|(name, family)| {
            let name = String::from_utf8(name).unwrap();
            (name, family.max_versions.unwrap(), family.compression.unwrap())
        });
        told.collect()
    }

    pub(crate) fn disable_table(&mut self) {
        eventually("the table is disabled", || {
            self.once(|client, table| client.disable_table(table)).is_some() || !self.is_enabled()
        });
    }

    pub(crate) fn enable_table(&mut self) {
        eventually("the table is enabled", || {
            self.once(|client, table| client.enable_table(table)).is_some() || self.is_enabled()
        });
    }

    fn is_enabled(&mut self) -> bool {
        self.again(|client, table| client.is_table_enabled(table))
    }

    pub(crate) fn drop_table(&mut self) {
        if self.is_enabled() {
            self.disable_table();
        }
        eventually("the table is gone", || {
            self.once(|client, table| client.delete_table(table)).is_some()
                || !self.again(|client, _| client.get_table_names()).contains(&self.table)
        });
    }
}
