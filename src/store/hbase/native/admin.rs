//! Requests to the master: creates the table as the Java library does (GZ, one version, split at every first byte),
//! and reads its schema and the version of HBase.

use std::borrow::Cow;
use std::time::Duration;

use super::address::Address;
use super::bytes::{constant, packed};
use super::connection::CallFailure;
use super::exception::{Exception, RetryClass};
use super::messages::{
    BytesBytesPair, ColumnFamilySchema, CreateTableRequest, CreateTableResponse, ForeignException,
    GetClusterStatusRequest, GetClusterStatusResponse, GetProcedureResultRequest, GetProcedureResultResponse,
    GetRequest, GetResponse, GetTableDescriptorsRequest, GetTableDescriptorsResponse, HBASE_VERSION,
    PROCEDURE_NOT_FOUND, PROCEDURE_RUNNING, TableName, TableSchema,
};
use super::region::Lookup;
use super::request;
use super::rpc::Native;
use super::send_error::SendError;
use super::servers::{CLIENT_SERVICE, MASTER_SERVICE};
use crate::error::{Error, Result};
use crate::runtime::time::{self, Deadline, jittered};
use crate::store::hbase::cell_store::{Content, SchemaFault};
use crate::store::request_kind::RequestKind;

const POLL: Duration = Duration::from_millis(100);

/// Attributes of a family for locks or latches. HBase's defaults are right for the others.
const ATTRIBUTES: [(&str, &str); 2] = [("VERSIONS", "1"), ("COMPRESSION", "GZ")];

/// The TTL attribute of a family without a TTL. A cell lives for the shorter of its own TTL and its family's TTL.
const FOREVER: [&str; 2] = ["2147483647", "FOREVER"];

/// HBase shows a schema only to who may change it.
const HIDDEN: &str = "does not show its schema to this user: that takes the right CREATE or ADMIN on it";
const NO_CREATE: &str =
    "does not exist, and this user may not create it: that takes the right CREATE in its namespace";

/// A table to create.
struct Wanted {
    families: Vec<ColumnFamilySchema>,
    split_keys: Vec<Vec<u8>>,
}

impl Native {
    /// Creates the table for locks or latches as the Java library does, unless it exists. Waits until it serves.
    pub(super) fn create_table(&self, family: &'static str, by: Deadline) -> Result<()> {
        let wanted = || Wanted {
            families: vec![described_family(family, &ATTRIBUTES)],
            // One split key for each first byte, 00 included, as in the Java library. That makes 257 regions, and
            // the first one is always empty.
            split_keys: (0..=255u8).map(|byte| vec![byte]).collect(),
        };
        let check = |schema: &TableSchema| self.check_schema(family, schema);
        let rows = [&b"\x00"[..], b"\x80", b"\xff\xff"];
        self.make_table(wanted, check, &rows, family.as_bytes(), by)
    }

    /// Creates the table of an application unless it exists. Waits until it serves.
    pub(super) fn create_rows_table(
        &self,
        families: &[(String, u32)],
        splits: &[Vec<u8>],
        by: Deadline,
    ) -> Result<()> {
        let wanted = || Wanted {
            families: families
                .iter()
                .map(|(name, versions)| described_family(name, &[("VERSIONS", &versions.to_string())]))
                .collect(),
            split_keys: splits.to_vec(),
        };
        let check = |schema: &TableSchema| {
            let has = |name: &str| schema.column_families.iter().any(|found| found.name == name.as_bytes());
            match families.iter().find(|(name, _)| !has(name)) {
                Some((name, _)) => Err(self.of_table(&format!("exists and has no family {name}"))),
                None => Ok(()),
            }
        };
        let Some((family, _)) = families.first() else { return Ok(()) };
        let rows: Vec<_> = [&b"\x00"[..]].into_iter().chain(splits.iter().map(Vec::as_slice)).collect();
        self.make_table(wanted, check, &rows, family.as_bytes(), by)
    }

    fn make_table(
        &self,
        wanted: impl Fn() -> Wanted,
        check: impl Fn(&TableSchema) -> Result<()>,
        rows: &[&[u8]],
        family: &[u8],
        by: Deadline,
    ) -> Result<()> {
        let failed = |send_error: SendError| {
            let what = if is_denied(&send_error) { NO_CREATE } else { "could not be created" };
            match self.explain_of_master("creating the table", send_error) {
                error @ (Error::Connection { .. } | Error::TableCreation { .. }) => error,
                error => Error::TableCreation {
                    table: self.table.clone(),
                    what: what.into(),
                    source: Some(error.into()),
                },
            }
        };
        let described = match self.described(by) {
            Ok(None) => {
                self.ask_for_table(wanted(), by).map_err(failed)?;
                self.described(by)
            }
            described => described,
        };
        match described {
            Ok(schema) => schema.iter().try_for_each(check)?,
            // HBase refuses this only for tables that exist. Services often have no right that shows a schema, and who
            // has just made a table gets the rights on it a moment later.
            Err(send_error) if is_denied(&send_error) => log::warn!("table {:?} {HIDDEN}", self.table),
            Err(send_error) => return Err(failed(send_error)),
        }
        // Another client's creation of the table may be under way. So the table is ready only if its rows can be
        // read.
        rows.iter().try_for_each(|row| self.wait_for_row(row, family, by))
    }

    fn wait_for_row(&self, row: &[u8], family: &[u8], by: Deadline) -> Result<()> {
        let [key, family] = packed([row, family]);
        loop {
            let probe = self.on_region(RequestKind::Read, "Get", row, by, |region, by| {
                let request = GetRequest {
                    region: region.specifier(),
                    get: Some(request::get(&key, &family, &[constant("L")])),
                };
                let answer: Result<GetResponse, _> =
                    self.locator.servers().call(&region.server, CLIENT_SERVICE, "Get", &request, by);
                answer.map_err(SendError::Call)
            });
            match probe {
                Ok(_) => return Ok(()),
                Err(Error::TableCreation { .. }) if by.remaining() > POLL => time::sleep(jittered(POLL)),
                Err(error) => {
                    let may_not = matches!(error, Error::Internal { .. });
                    let what =
                        if may_not { "exists but cannot be used" } else { "exists but does not serve yet" };
                    return Err(Error::TableCreation {
                        table: self.table.clone(),
                        what: what.into(),
                        source: Some(error.into()),
                    });
                }
            }
        }
    }

    /// Asks the master to create the table and waits for its procedure. Succeeds too if another client created the
    /// table first.
    fn ask_for_table(&self, wanted: Wanted, by: Deadline) -> Result<(), SendError> {
        let Wanted { families, split_keys } = wanted;
        let schema = TableSchema {
            table_name: Some(self.table_name()),
            attributes: Vec::new(),
            column_families: families,
        };
        let request = CreateTableRequest { table_schema: Some(schema), split_keys };
        let created: Result<CreateTableResponse, SendError> = self.on_master("CreateTable", by, &request);
        let proc_id = match created {
            Ok(response) => response.proc_id.unwrap_or_default(),
            Err(send_error) if is_exception(&send_error, "TableExistsException") => return Ok(()),
            // The reply is lost. The existence of the table shows whether the master created it.
            Err(SendError::Call(CallFailure::Lost(_) | CallFailure::TooLong(..))) => {
                return self.wait_for_description(by);
            }
            Err(send_error) => return Err(send_error),
        };
        loop {
            let request = GetProcedureResultRequest { proc_id };
            let result: GetProcedureResultResponse = match self.on_master("getProcedureResult", by, &request)
            {
                // The master died. Another master continues its procedures.
                Err(SendError::Call(CallFailure::Lost(_))) => return self.wait_for_description(by),
                answer => answer?,
            };
            match (result.state, result.exception) {
                (_, Some(exception)) => return outcome(exception),
                (PROCEDURE_RUNNING, None) if by.remaining() > POLL => time::sleep(jittered(POLL)),
                // The master does not know the procedure: it ended long ago, or another master took over.
                (PROCEDURE_NOT_FOUND, None) => return self.wait_for_description(by),
                (_, None) => return Ok(()),
            }
        }
    }

    fn wait_for_description(&self, by: Deadline) -> Result<(), SendError> {
        loop {
            match self.described(by) {
                Ok(Some(_)) => return Ok(()),
                Err(send_error) if by.remaining() <= POLL => return Err(send_error),
                Ok(None) if by.remaining() <= POLL => return Err(SendError::Lookup(Lookup::NoTable)),
                Ok(None) | Err(_) => time::sleep(jittered(POLL)),
            }
        }
    }

    fn described(&self, by: Deadline) -> Result<Option<TableSchema>, SendError> {
        let request = GetTableDescriptorsRequest { table_names: vec![self.table_name()] };
        match self.on_master::<GetTableDescriptorsResponse>("GetTableDescriptors", by, &request) {
            Ok(response) => Ok(response.table_schema.into_iter().next()),
            Err(send_error) if is_exception(&send_error, "TableNotFoundException") => Ok(None),
            Err(send_error) => Err(send_error),
        }
    }

    /// Sends one request to the active master. Finds that master first, and sends again only if the request was not
    /// run.
    fn on_master<T: prost::Message + Default>(
        &self,
        method: &'static str,
        by: Deadline,
        request: &impl prost::Message,
    ) -> Result<T, SendError> {
        loop {
            let sent =
                self.locator.active_master(by).map_err(SendError::Lookup).and_then(|master: Address| {
                    self.locator
                        .servers()
                        .call(&master, MASTER_SERVICE, method, request, by)
                        .map_err(SendError::Call)
                });
            match sent {
                Err(send_error) if waits_for_master(&send_error) && by.remaining() > POLL => {
                    time::sleep(jittered(POLL));
                }
                sent => return sent,
            }
        }
    }

    /// Reads the version of the active master. The RegionServers have the same version, except during an update.
    pub(super) fn asked_version(&self, by: Deadline) -> Result<String> {
        let request = GetClusterStatusRequest { options: vec![HBASE_VERSION] };
        let answer: GetClusterStatusResponse = self
            .on_master("GetClusterStatus", by, &request)
            .map_err(|send_error| self.explain_of_master("asking for the version", send_error))?;
        Ok(answer.cluster_status.and_then(|status| status.hbase_version).unwrap_or_default().version)
    }

    /// Like [`explain`](Native::explain). The master asks for other rights than a RegionServer.
    fn explain_of_master(&self, what: &str, send_error: SendError) -> Error {
        match send_error {
            SendError::Call(CallFailure::Exception(exception)) if exception.is_denied() => {
                Error::Internal { what: format!("{}: {what}", self.uri), source: Some(exception.into()) }
            }
            send_error => self.explain(RequestKind::Read, what, send_error),
        }
    }

    fn table_name(&self) -> TableName {
        let (namespace, qualifier) = self.table.split_once(':').unwrap_or(("default", &self.table));
        TableName { namespace: namespace.into(), qualifier: qualifier.into() }
    }

    fn check_schema(&self, family: &str, schema: &TableSchema) -> Result<()> {
        for fault in self.schema_faults(family, schema)? {
            log::warn!("table {:?}, {}", self.table, fault.what);
        }
        Ok(())
    }

    /// Lists the faults of the table's schema; `None` if the table does not exist.
    pub(super) fn diagnosed(&self, family: &str, by: Deadline) -> Result<Option<Vec<SchemaFault>>> {
        match self.described(by) {
            Ok(schema) => schema.map(|schema| self.schema_faults(family, &schema)).transpose(),
            Err(send_error) if is_denied(&send_error) => {
                let advice = "grant one of them, or let somebody who has it run the doctor";
                Ok(Some(vec![SchemaFault { what: HIDDEN.into(), is_unsafe: false, advice }]))
            }
            Err(send_error) => Err(self.explain_of_master("describing the table", send_error)),
        }
    }

    fn schema_faults(&self, family: &str, schema: &TableSchema) -> Result<Vec<SchemaFault>> {
        let mut faults = Vec::new();
        let mut add = |what: String, is_unsafe| {
            faults.push(SchemaFault { what, is_unsafe, advice: SchemaFault::ALTER })
        };
        let Some(found) = schema.column_families.iter().find(|found| found.name == family.as_bytes()) else {
            return Err(self.of_table(&format!("exists and {}", self.content.lacking())));
        };
        if self.content == Content::OwnLocks && schema.column_families.len() > 1 {
            return Err(self.of_table(
                "exists and has other families than O: clients of the layout java could \
                 use it, and exclude none of the layout own",
            ));
        }
        for (key, expected) in ATTRIBUTES {
            let value = value_of(&found.attributes, key).unwrap_or("its default".into());
            if value != expected {
                add(format!("family {family}: {key} is {value}, expected is {expected}"), false);
            }
        }
        if let Some(ttl) = value_of(&found.attributes, "TTL")
            && !FOREVER.contains(&ttl.as_ref())
        {
            let effect = "longer leases end early, and fences can go back";
            add(format!("family {family}: TTL is {ttl} s, expected is none: {effect}"), false);
        }
        if let Some(scope) = value_of(&found.attributes, "REPLICATION_SCOPE").filter(|scope| scope != "0") {
            let effect = "do not lock in the other cluster, which gets records late";
            add(format!("family {family}: REPLICATION_SCOPE is {scope}, expected is 0: {effect}"), false);
        }
        // In the layout `own` each acquire and renewal asks for a synced log itself.
        if let Some(durability) = value_of(&schema.attributes, "DURABILITY")
            && self.content != Content::OwnLocks
            && ["SKIP_WAL", "ASYNC_WAL"].contains(&durability.as_ref())
        {
            let effect = "a crash of a RegionServer can free a held lock";
            add(format!("DURABILITY is {durability}, expected is SYNC_WAL: {effect}"), true);
        }
        Ok(faults)
    }
}

fn value_of<'a>(attributes: &'a [BytesBytesPair], key: &str) -> Option<Cow<'a, str>> {
    let found = attributes.iter().find(|attribute| attribute.first == key.as_bytes());
    found.map(|found| String::from_utf8_lossy(&found.second))
}

/// Describes a family with these attributes. HBase's defaults are right for the others.
fn described_family(name: &str, attributes: &[(&str, &str)]) -> ColumnFamilySchema {
    let attribute =
        |(key, value): &(&str, &str)| BytesBytesPair { first: (*key).into(), second: (*value).into() };
    ColumnFamilySchema { name: name.into(), attributes: attributes.iter().map(attribute).collect() }
}

/// Returns whether the failure is one of a master that is starting or was just replaced.
fn waits_for_master(send_error: &SendError) -> bool {
    match send_error {
        SendError::Call(CallFailure::Exception(exception)) => {
            matches!(exception.retry_class(), RetryClass::Leave | RetryClass::Busy)
        }
        // The other masters may still report a master that has stopped.
        SendError::Call(CallFailure::NotSent(_)) | SendError::Lookup(Lookup::NotServed) => true,
        SendError::Call(CallFailure::Lost(_) | CallFailure::TooLong(..) | CallFailure::Unwelcome(_))
        | SendError::Lookup(_) => false,
    }
}

fn is_denied(send_error: &SendError) -> bool {
    matches!(send_error, SendError::Call(CallFailure::Exception(exception)) if exception.is_denied())
}

fn is_exception(send_error: &SendError, class: &str) -> bool {
    matches!(send_error, SendError::Call(CallFailure::Exception(exception)) if exception.class == class)
}

/// Returns the result of a procedure that ended with an exception.
fn outcome(exception: ForeignException) -> Result<(), SendError> {
    let told = exception.generic_exception.unwrap_or_default();
    let exception = Exception::from_server(&told.class_name, &told.message);
    if exception.class == "TableExistsException" { Ok(()) } else { Err(exception.into()) }
}
