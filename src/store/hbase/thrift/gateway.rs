//! Requests to the gateway, and the meaning of its answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hbase_thrift::hbase::{
    AlreadyExists, ColumnDescriptor, IOError, IllegalArgument, Mutation, TCell, THbaseSyncClient as _,
    TRowResult, TScan, TThriftServerType,
};

use super::pool::{Pool, PoolShare};
use super::wire::ThriftClient;
use crate::error::{Error, Result};
use crate::runtime::time::{self, Deadline, jittered};
use crate::settings::limits::checked_timeout;
use crate::settings::options::Options;
use crate::settings::store_option::StoreOption;
use crate::store::address::described;
use crate::store::first_contact::{FirstContact, NoAnswer, Service};
use crate::store::hbase::cell_store::{
    Cell, CellStore, CheckAndPut, Content, Count, LockCells, LockTable, NO_TABLE, PROBE, RowPage, RowScan,
    ScannedRow, SchemaFault, lacks_right,
};
use crate::store::hbase::layout::{COVER, CellColumn, FENCE, LOCK};
use crate::store::hbase::options::{GATEWAY, GATEWAY_TABLE};
use crate::store::remote::resolve::part;
use crate::store::request_kind::RequestKind;

const POOL_DEFAULT: usize = 16;
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3);
/// HBase's default of `hbase.client.pause`, the shortest pause of the gateway's client before it repeats a request.
const PAUSE_DEFAULT: Duration = Duration::from_millis(100);
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// The part of the pause in which an answer must arrive, so that the request cannot have been repeated. The rest
/// covers clocks whose speeds differ.
const SURELY_SENT_ONCE: f64 = 0.9;

/// Most rows that one scan reads.
pub(super) const ROWS_MAX: usize = 500;
/// Most sends of a read, or of a write that the gateway surely did not receive.
const SENDS: usize = 3;
/// Pause between two checks of a table that is being created.
const CREATION_POLL: Duration = Duration::from_millis(200);
/// Longest part of a gateway's message (often a Java stack trace) that an error contains.
const MESSAGE_CHARS: usize = 300;

/// HBase's attribute for the TTL of a cell: 8 bytes, big-endian milliseconds.
pub(super) const TTL: &[u8] = b"_ttl";

/// Error texts for other Thrift interfaces.
const THRIFT2: &str = "a Thrift2 gateway of HBase answers; the URI needs the port of a Thrift1 gateway, which HBase's \
                       command `thrift` starts, not `thrift2`";
const OTHER: &str = "a Thrift server of another interface answers, perhaps a Thrift2 gateway; the URI needs the port of \
                     a Thrift1 gateway";

#[derive(Debug)]
pub(in crate::store::hbase) struct Gateway {
    pub(super) uri: String,
    table: String,
    content: Content,
    pool: Arc<Pool>,
    contact: Arc<FirstContact>,
    repeats_after: Duration,
}

impl Gateway {
    /// Opens a table for locks. Does no I/O; the first call connects.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an unknown option or a value out of its limits.
    pub(in crate::store::hbase) fn new(address: &str, table: &str, options: Options) -> Result<Gateway> {
        Gateway::over(address, table, Content::Locks, options, &GATEWAY)
    }

    /// Opens a table of an application. See [`Gateway::new`].
    pub(super) fn for_rows(address: &str, table: &str, options: Options) -> Result<Gateway> {
        Gateway::over(address, table, Content::Rows, options, &GATEWAY_TABLE)
    }

    fn over(
        address: &str,
        table: &str,
        content: Content,
        mut options: Options,
        known: &[StoreOption],
    ) -> Result<Gateway> {
        let size = options.take_number("pool", 1, 1024)?.unwrap_or(POOL_DEFAULT);
        let connect_timeout =
            options.take_checked("connect_timeout", checked_timeout)?.unwrap_or(CONNECT_TIMEOUT_DEFAULT);
        let pause = match content {
            Content::Rows => None,
            Content::Locks | Content::OwnLocks | Content::Latches => {
                options.take_checked("gateway_pause", checked_pause)?
            }
        };
        let pause = pause.unwrap_or(PAUSE_DEFAULT);
        options.finish(known)?;
        Ok(Gateway {
            uri: format!("hbase+thrift://{}/{table}", described(address)),
            table: table.to_owned(),
            content,
            pool: Arc::new(Pool::new(address, size, connect_timeout)),
            contact: Arc::new(FirstContact::new(Service::Thrift1, false, host_and_port(address))),
            repeats_after: pause.mul_f64(SURELY_SENT_ONCE),
        })
    }

    /// Returns a gateway for another table that uses the same connections.
    pub(super) fn beside(&self, table: &str, content: Content) -> Gateway {
        let gateway = self.uri.strip_suffix(&self.table).unwrap_or(&self.uri);
        Gateway {
            uri: format!("{gateway}{table}"),
            table: table.to_owned(),
            content,
            pool: Arc::clone(&self.pool),
            contact: Arc::clone(&self.contact),
            repeats_after: self.repeats_after,
        }
    }

    pub(super) fn table(&self) -> Vec<u8> {
        self.table.clone().into_bytes()
    }

    /// Makes one request and waits for its answer, at most until `by`. Sends it again only if it cannot be applied
    /// twice: a read, or a write of which the operating system did not accept all bytes.
    ///
    /// `row` is the row of the request if it concerns exactly one row.
    pub(super) fn call<T>(
        &self,
        kind: RequestKind,
        what: &str,
        row: Option<&[u8]>,
        by: Deadline,
        request: impl Fn(&mut ThriftClient) -> thrift::Result<T>,
    ) -> Result<T> {
        self.call_in_parts(kind, what, row, (by, 1), request)
    }

    /// Reads the first `most` rows of a range, from the first of these on and before the second: a column or a family,
    /// through a filter in the gateway's language.
    pub(super) fn scan_rows(
        &self,
        (from, to): (&[u8], &[u8]),
        (column, filter): (&[u8], Option<Vec<u8>>),
        most: usize,
        by: Deadline,
    ) -> Result<Vec<TRowResult>> {
        self.call(RequestKind::Read, "scan", Some(from), by, |client| {
            let scan = TScan {
                start_row: Some(from.to_vec()),
                stop_row: (!to.is_empty()).then(|| to.to_vec()),
                columns: Some(vec![column.to_vec()]),
                caching: Some(most as i32),
                filter_string: filter.clone(),
                // The default of each field is a value, and not its absence.
                timestamp: None,
                batch_size: None,
                sort_columns: None,
                reversed: None,
                cache_blocks: None,
            };
            let scanner = client.scanner_open_with_scan(self.table(), scan, BTreeMap::new())?;
            let rows = client.scanner_get_list(scanner, most as i32)?;
            // The gateway itself closes a scanner that nobody uses.
            client.scanner_close(scanner)?;
            Ok(rows)
        })
    }

    /// Like [`call`](Gateway::call), but the remaining time is divided into [parts](part), and one send takes at
    /// most one of them.
    pub(super) fn call_in_parts<T>(
        &self,
        kind: RequestKind,
        what: &str,
        row: Option<&[u8]>,
        (by, parts): (Deadline, u32),
        request: impl Fn(&mut ThriftClient) -> thrift::Result<T>,
    ) -> Result<T> {
        if !self.contact.has_answered() {
            // A change must not be the first thing that a stranger is asked for: it would be in doubt. The answer of a
            // stranger to a read cannot be understood.
            self.greet(by)?;
        }
        let share = PoolShare { table: self.content, first: row.and_then(|row| row.first().copied()) };
        let mut sends = 1;
        loop {
            let mut pooled = self.pool.lend(share, by).map_err(|error| self.contact.named(error))?;
            let link = pooled.link();
            link.begin(part(by, parts));
            let error = match request(&mut link.client) {
                Ok(answer) => {
                    self.contact.answered();
                    pooled.give_back();
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let sent = link.sent();
            if let thrift::Error::User(declared) = &error {
                self.contact.answered();
                let refused = self.refusal(kind, what, declared.as_ref());
                pooled.give_back();
                return Err(refused);
            }
            drop(pooled);
            let harmless = kind == RequestKind::Read || !sent;
            if harmless && sends < SENDS && !by.passed() && matches!(error, thrift::Error::Transport(_)) {
                sends += 1;
                continue;
            }
            return Err(self.contact.named(self.lost(harmless, what, error)));
        }
    }

    /// Asks once which interface the gateway has, on a connection of its own.
    fn hello(&self, by: Deadline) -> std::result::Result<(), NoAnswer> {
        let unreached = |what: &str, source: Option<thrift::Error>| Error::Connection {
            store: self.uri.clone(),
            what: what.to_owned(),
            source: source.map(Into::into),
        };
        let share = PoolShare { table: self.content, first: None };
        let lent = self.pool.lend(share, by).map_err(|error| match error {
            Error::Connection { what, source, .. } => {
                Error::Connection { store: self.uri.clone(), what, source }
            }
            error => error,
        });
        let mut pooled = lent.map_err(NoAnswer::Again)?;
        let link = pooled.link();
        link.begin(by);
        match link.client.get_thrift_server_type() {
            Ok(TThriftServerType::TWO) => Err(NoAnswer::Final(unreached(THRIFT2, None))),
            Ok(_) | Err(thrift::Error::User(_)) => Ok(()),
            // Gateways before HBase 2.3 do not know the call.
            Err(thrift::Error::Application(_)) => {
                link.begin(by);
                match link.client.get_column_descriptors(self.table()) {
                    Ok(_) | Err(thrift::Error::User(_)) => Ok(()),
                    Err(thrift::Error::Application(_)) => Err(NoAnswer::Final(unreached(OTHER, None))),
                    Err(error) => Err(NoAnswer::Again(unreached("no answer", Some(error)))),
                }
            }
            Err(error @ thrift::Error::Transport(_)) => {
                Err(NoAnswer::Again(unreached("no answer", Some(error))))
            }
            Err(error) => Err(NoAnswer::Final(unreached("the answer cannot be read", Some(error)))),
        }
    }

    /// Returns the error for a request without a complete answer: the connection broke, the time ran out, or the
    /// answer cannot be read. `harmless`: the request surely changed nothing.
    pub(super) fn lost(&self, harmless: bool, what: &str, error: thrift::Error) -> Error {
        if !harmless {
            return Error::InDoubt {
                what: format!("{}: {what}: no answer", self.uri),
                source: Some(error.into()),
            };
        }
        match error {
            error @ thrift::Error::Transport(_) => Error::Connection {
                store: self.uri.clone(),
                what: format!("{what}: no answer"),
                source: Some(error.into()),
            },
            // The `Display` text of this error is only "bad data".
            thrift::Error::Protocol(unreadable) => Error::RetriesExhausted {
                store: self.uri.clone(),
                what: format!("{what}: the answer cannot be read: {}", unreadable.message),
                source: Some(thrift::Error::Protocol(unreadable).into()),
            },
            // The message of an application error is from the gateway. The other messages are from this library.
            error => Error::RetriesExhausted {
                store: self.uri.clone(),
                what: format!("{what}: unexpected answer; is this a Thrift1 gateway?"),
                source: Some(error.into()),
            },
        }
    }

    /// Returns the error for an exception that the gateway's interface declares. Only the text tells these
    /// exceptions apart. A write is in doubt unless the exception is known to mean that it had no effect.
    fn refusal(
        &self,
        kind: RequestKind,
        what: &str,
        declared: &(dyn std::error::Error + Send + Sync + 'static),
    ) -> Error {
        let text = text(declared);
        let of_table = |what: String| Error::TableCreation { table: self.table.clone(), what, source: None };
        if text.contains("TableNotFoundException") {
            return of_table(NO_TABLE.into());
        }
        if text.contains("TableNotEnabledException") {
            return of_table(format!("is disabled; in the HBase shell: enable {:?}", self.table));
        }
        if text.contains("NoSuchColumnFamilyException") {
            return of_table(self.content.lacking());
        }
        let said = format!("{what}: {}", shown(&text));
        if self.content == Content::Rows && text.contains("Field is not a long") {
            return Error::invalid("row", shown(&text), "counters of 8 bytes");
        }
        if text.contains("AccessDeniedException") {
            let hint = lacks_right(kind, &self.table);
            return Error::Internal { what: format!("{}: {said}{hint}", self.uri), source: None };
        }
        if declared.is::<IllegalArgument>() {
            return Error::Internal { what: format!("{}: {said}", self.uri), source: None };
        }
        // For a write this proves nothing: the gateway may have sent the write already and failed in a retry.
        if kind == RequestKind::Read && text.contains("Zookeeper") && text.contains("could not be completed")
        {
            return Error::Connection {
                store: self.uri.clone(),
                what: format!("the gateway cannot reach the cluster: {said}"),
                source: None,
            };
        }
        if kind == RequestKind::Read {
            Error::RetriesExhausted { store: self.uri.clone(), what: said, source: None }
        } else {
            Error::InDoubt { what: format!("{}: {said}", self.uri), source: None }
        }
    }

    /// Returns the families of the table; `None` if the table does not exist.
    pub(super) fn families(&self, by: Deadline) -> Result<Option<BTreeMap<Vec<u8>, ColumnDescriptor>>> {
        let found = self.call(RequestKind::Read, "getColumnDescriptors", None, by, |client| {
            client.get_column_descriptors(self.table())
        });
        match found {
            Ok(families) => Ok(Some(families)),
            Err(Error::TableCreation { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks the gateway to create the table. The caller checks afterwards whether the table exists, so IN_DOUBT is
    /// only logged.
    pub(super) fn create(&self, family: &str, by: Deadline) -> Result<()> {
        log::warn!(
            "creating table {:?} with one region: a Thrift gateway cannot pre-split; a table for many locks is \
             better created with 256 splits, as the Java library does",
            self.table
        );
        let created = self.call(RequestKind::Write, "createTable", None, by, |client| {
            // A table that exists already is a success. Any other declared error goes on.
            match client.create_table(self.table(), vec![lock_family(family)]) {
                Err(thrift::Error::User(declared)) if declared.is::<AlreadyExists>() => Ok(()),
                answer => answer,
            }
        });
        match created {
            Err(error) if !error.is_in_doubt() => Err(error),
            Err(error) => {
                log::warn!("{}", error.chain());
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn check_schema(&self, family: &str, families: &BTreeMap<Vec<u8>, ColumnDescriptor>) -> Result<()> {
        if let Some(odd) = self.oddity(family, families)? {
            log::warn!("table {:?}: {odd}", self.table);
        }
        Ok(())
    }

    /// Returns the fault of the table's schema, if it has one.
    fn oddity(&self, family: &str, families: &BTreeMap<Vec<u8>, ColumnDescriptor>) -> Result<Option<String>> {
        let Some(found) = families.get(format!("{family}:").as_bytes()) else {
            return Err(Error::TableCreation {
                table: self.table.clone(),
                what: format!("exists and {}", self.content.lacking()),
                source: None,
            });
        };
        let as_expected = found.max_versions == Some(1) && found.compression.as_deref() == Some("GZ");
        Ok((!as_expected).then(|| {
            format!(
                "family {family} keeps {} versions with compression {}; expected are 1 and GZ",
                found.max_versions.unwrap_or_default(),
                found.compression.as_deref().unwrap_or("unknown")
            )
        }))
    }
}

impl LockTable for Gateway {
    fn describe(&self) -> String {
        self.uri.clone()
    }

    fn ensure_table(&self, family: &'static str, by: Deadline) -> Result<()> {
        let failed = |error: Error| match error {
            error @ (Error::TableCreation { .. } | Error::Connection { .. }) => error,
            error => Error::TableCreation {
                table: self.table.clone(),
                what: "could not be created".into(),
                source: Some(error.into()),
            },
        };
        if let Some(families) = self.families(by).map_err(failed)? {
            return self.check_schema(family, &families);
        }
        self.create(family, by).map_err(failed)?;
        loop {
            // The families are listed before the region serves requests, so a read decides.
            let serves = match self.families(by) {
                Ok(Some(families)) => {
                    self.check_schema(family, &families)?;
                    self.get(b"?", CellColumn { family, qualifier: "L" }, by).map(|_| true)
                }
                Ok(None) => Ok(false),
                Err(error) => Err(error),
            };
            match serves {
                Ok(true) => return Ok(()),
                outcome if by.remaining() < CREATION_POLL => {
                    let source = outcome.err().map(Into::into);
                    let what = "was requested but does not serve yet; call initialize() again".into();
                    return Err(Error::TableCreation { table: self.table.clone(), what, source });
                }
                _ => time::sleep(jittered(CREATION_POLL)),
            }
        }
    }

    fn greet(&self, by: Deadline) -> Result<()> {
        self.contact.greet(by, |by| self.hello(by))
    }

    fn version(&self, _: Deadline) -> Result<Option<String>> {
        Ok(None)
    }

    fn diagnose_table(&self, family: &'static str, by: Deadline) -> Result<Option<Vec<SchemaFault>>> {
        let Some(families) = self.families(by)? else { return Ok(None) };
        let odd = self.oddity(family, &families)?;
        Ok(Some(
            odd.map(|what| SchemaFault { what, is_unsafe: false, advice: SchemaFault::ALTER })
                .into_iter()
                .collect(),
        ))
    }

    fn probe_rows(&self, _: Deadline) -> Result<Vec<(String, Vec<u8>)>> {
        Ok(vec![(self.uri.clone(), PROBE.to_vec())])
    }

    /// Opens a scanner, reads one part of its rows and closes it.
    fn scan(&self, scan: &RowScan<'_>, by: Deadline) -> Result<RowPage> {
        let RowScan { column, from, to, filled, most, .. } = *scan;
        let most = most.clamp(1, ROWS_MAX);
        let found = self.scan_rows((from, to), (&name(column), None), most, by)?;
        let is_full = found.len() >= most;
        let last = found.last().and_then(|row| row.row.clone());
        let row = |found: TRowResult| {
            let (_, found_cell) = found.columns.unwrap_or_default().into_iter().next()?;
            Some(ScannedRow { row: found.row?, cell: cell(found_cell), beside: None })
        };
        let rows = found.into_iter().filter_map(row).filter(|row| !filled || !row.cell.value.is_empty());
        let next = last.filter(|_| is_full).map(|last| [&last[..], b"\0"].concat());
        Ok(RowPage { rows: rows.collect(), next })
    }

    fn put(&self, row: &[u8], column: CellColumn, value: &[u8], ttl: Duration, by: Deadline) -> Result<()> {
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        self.call(RequestKind::Write, "mutateRow", Some(row), by, |client| {
            let put = Mutation::new(false, name(column), value.to_vec(), true);
            let attributes = BTreeMap::from([(TTL.to_vec(), ttl_ms.to_be_bytes().to_vec())]);
            client.mutate_row(self.table(), row.to_vec(), vec![put], attributes)
        })
    }
}

impl CellStore for Gateway {
    fn repeats_after(&self) -> Option<Duration> {
        Some(self.repeats_after)
    }

    fn get(&self, row: &[u8], column: CellColumn, by: Deadline) -> Result<Option<Cell>> {
        let cells = self.call(RequestKind::Read, "get", Some(row), by, |client| {
            client.get(self.table(), row.to_vec(), name(column), BTreeMap::new())
        })?;
        Ok(cells.into_iter().next().map(cell))
    }

    fn read_cells(&self, row: &[u8], by: Deadline) -> Result<LockCells> {
        let columns = vec![name(LOCK), name(COVER), name(FENCE)];
        let found = self.call(RequestKind::Read, "get", Some(row), by, |client| {
            client.get_row_with_columns(self.table(), row.to_vec(), columns.clone(), BTreeMap::new())
        })?;
        let mut columns = found.into_iter().next().and_then(|row| row.columns).unwrap_or_default();
        let mut take = |column| columns.remove(&name(column)).map(cell);
        Ok(LockCells { record: take(LOCK), cover: take(COVER), has_count: take(FENCE).is_some() })
    }

    fn check_and_put(&self, swap: &CheckAndPut<'_>, by: Deadline) -> Result<bool> {
        let CheckAndPut { row, column, expected, value, ttl, cover, durability: _, parts } = *swap;
        if let Some(lasts) = cover {
            let ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
            self.put(row, COVER, &ms.to_be_bytes(), lasts, by)?;
        }
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        self.call_in_parts(RequestKind::Write, "checkAndPut", Some(row), (by, parts), |client| {
            let put = Mutation::new(false, name(column), value.to_vec(), true);
            let attributes = BTreeMap::from([(TTL.to_vec(), ttl_ms.to_be_bytes().to_vec())]);
            client.check_and_put(self.table(), row.to_vec(), name(column), expected.to_vec(), put, attributes)
        })
    }

    /// `atomicIncrement` takes no seed and no TTL. A new counter begins at 1 and never expires; an existing counter
    /// keeps its TTL. A caller that receives such a small number replaces it with the seed.
    fn count(&self, count: Count<'_>, by: Deadline) -> Result<i64> {
        self.call(RequestKind::Write, "atomicIncrement", Some(count.row), by, |client| {
            client.atomic_increment(self.table(), count.row.to_vec(), name(count.column), 1)
        })
    }
}

fn cell(found: TCell) -> Cell {
    let written_ms = found.timestamp.and_then(|ms| u64::try_from(ms).ok()).unwrap_or_default();
    Cell { value: found.value.unwrap_or_default(), written_ms }
}

fn checked_pause(pause: Duration) -> Result<Duration> {
    if (PAUSE_MIN..=PAUSE_MAX).contains(&pause) {
        Ok(pause)
    } else {
        Err(Error::invalid("gateway_pause", format!("{pause:?}"), "1ms to 10m"))
    }
}

/// Returns host and port, for messages. Nothing if the address has another form: then connecting says so.
fn host_and_port(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((host.to_owned(), port.parse().ok()?))
}

fn name(column: CellColumn) -> Vec<u8> {
    format!("{}:{}", column.family, column.qualifier).into_bytes()
}

/// Describes the family as the Java library creates it: GZ, one version, and HBase's defaults for the rest. All
/// attributes are set because the defaults of the gateway are different.
fn lock_family(family: &str) -> ColumnDescriptor {
    ColumnDescriptor {
        name: Some(format!("{family}:").into_bytes()),
        max_versions: Some(1),
        compression: Some("GZ".into()),
        in_memory: Some(false),
        bloom_filter_type: Some("ROW".into()),
        bloom_filter_vector_size: Some(0),
        bloom_filter_nb_hashes: Some(0),
        block_cache_enabled: Some(true),
        time_to_live: Some(i32::MAX),
    }
}

/// Returns the message of a declared exception, which is often a whole Java stack trace.
fn text(declared: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    if let Some(error) = declared.downcast_ref::<IOError>() {
        error.message.clone().unwrap_or_default()
    } else if let Some(error) = declared.downcast_ref::<IllegalArgument>() {
        error.message.clone().unwrap_or_default()
    } else {
        declared.to_string()
    }
}

/// Shortens a message for an error: one line, without the stack trace, cut to [`MESSAGE_CHARS`].
fn shown(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("at "));
    lines.collect::<Vec<_>>().join("; ").chars().filter(|c| !c.is_control()).take(MESSAGE_CHARS).collect()
}
